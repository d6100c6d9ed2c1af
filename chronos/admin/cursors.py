"""Page keys: positions in the log, sealed so that a client can neither read nor make them.

A key is bound to the token and to the conditions of its request: given back with others it cannot be read. All nodes of a cluster
read each other's keys. With `coordinator.secret` the key of the seal is made from it. Otherwise it is made from the random token that
the node has given the coordinator at its start, which only nodes can read; then a page key ends with the process of its node.

The seal is a synthetic initialization vector (as in RFC 5297), with HMAC-SHA-256 as the function and SHAKE-256 as the key stream.
"""

import binascii
import hashlib
import hmac
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import asdict

from chronos.admin.problems import ProblemError
from chronos.config import Config
from chronos.core.roles import Member

if TYPE_CHECKING:
    from chronos.admin.context import Call

TAG_BYTES = 16

BESIDES = frozenset({"after", "fresh", "limit", "shards"})
"""Parameters that a key is not bound to."""


class Cursors:
    """Seals and opens the page keys of one node. For one event loop."""

    def __init__(self, config: Config, token: str, members: Callable[[], Mapping[str, Member]]) -> None:
        """`token`: the one that this node gives the coordinator. `members`: the nodes of the cluster, by name."""
        self._cluster = config.cluster
        self._secret = config.coordinator.secret if config.coordinator.kind == "raft" else None
        self._node = "" if self._secret else config.node.id
        self._token = token
        self._members = members

    def seal(self, call: "Call", conditions: Struct, numbers: Sequence[int]) -> str:
        """The page key of a position. `conditions`: the query or the body of the request."""
        secret = self._secret_of(self._node)
        assert secret is not None
        plain = struct.pack(f">{len(numbers)}Q", *numbers)
        tag, cipher = _sealed(secret, _bound(call, conditions), plain)
        node = self._node.encode()
        return urlsafe_b64encode(bytes([len(node)]) + node + tag + cipher).decode().rstrip("=")

    def open(self, call: "Call", conditions: Struct, text: str) -> list[int]:
        """The position of a page key. ProblemError with status 400 if it is none of this request."""
        try:
            data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
            node, rest = data[1 : 1 + data[0]].decode(), data[1 + data[0] :]
            tag, cipher = rest[:TAG_BYTES], rest[TAG_BYTES:]
            numbers = [number for (number,) in struct.iter_unpack(">Q", cipher)]
        except (binascii.Error, ValueError, IndexError, struct.error):
            raise begin_again() from None
        secret = self._secret_of(node)
        if secret is None or not numbers:
            raise begin_again()
        plain = _stream(secret, tag, cipher)
        if not hmac.compare_digest(_tag(secret, _bound(call, conditions), plain), tag):
            raise begin_again()
        return [number for (number,) in struct.iter_unpack(">Q", plain)]

    def _secret_of(self, node: str) -> bytes | None:
        """The key of a node's seals; None: it is not known here."""
        if node == self._node:
            secret = self._secret or self._token
        else:
            member = None if self._secret else self._members().get(node)
            secret = "" if member is None else member.token
        return hmac.digest(secret.encode(), f"chronos page keys {self._cluster}".encode(), "sha256") if secret else None


def begin_again() -> ProblemError:
    """400: the page key is not one of this token and these conditions, or its key is no longer known."""
    return ProblemError(
        400, "begin-again", "`after` cannot be read: begin again without it",
        hint="a page key is for the same token and the same conditions, and may end with the process of the node that made it",
    )  # fmt: skip


def _bound(call: "Call", conditions: Struct) -> bytes:
    given = {name: value for name, value in asdict(conditions).items() if name not in BESIDES and value is not UNSET}
    return msgspec.json.encode([call.request.path, call.sender.name, given])


def _sealed(secret: bytes, bound: bytes, plain: bytes) -> tuple[bytes, bytes]:
    tag = _tag(secret, bound, plain)
    return tag, _stream(secret, tag, plain)


def _tag(secret: bytes, bound: bytes, plain: bytes) -> bytes:
    return hmac.digest(secret, b"tag" + struct.pack(">I", len(bound)) + bound + plain, "sha256")[:TAG_BYTES]


def _stream(secret: bytes, tag: bytes, data: bytes) -> bytes:
    """The data with the key stream of the tag: enciphers and deciphers."""
    key = hmac.digest(secret, b"stream" + tag, "sha256")
    stream = hashlib.shake_256(key).digest(len(data))
    return (int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(data), "big")
