"""Bytes in JSON: ids, keys, values, headers and page keys.

Bytes are written as text if they are UTF-8, and in base64 otherwise; an id that begins with
`base64:` is written in base64 too. A page key is sealed: a client can neither read nor make one. It
is bound to the token and to the conditions of its request; with others it cannot be opened. All
nodes of a cluster open each other's keys.

With `coordinator.kind: raft` the secret of the seal is derived from `coordinator.secret`. Otherwise
it is derived from a random token that the node makes at its start. In a cluster the node gives this
token to the coordinator, where the other nodes read it, and so can every client that may read the
coordinator's data. Without raft, a page key is valid until the process that made it ends.

The seal is a synthetic initialization vector (as in RFC 5297), with HMAC-SHA-256 as the function
and SHAKE-256 as the key stream."""

import binascii
import hashlib
import hmac
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict

from chronos.admin.http.problems import ProblemError
from chronos.admin.http.schemas import Binary, HeaderValue, HeaderValues
from chronos.config import Config
from chronos.core.cluster.roles import Member
from chronos.core.keys import ID_BYTES_MAX

if TYPE_CHECKING:
    from chronos.admin.http.context import Call

BASE64_ID = "base64:"
"""Prefix of an id in base64. An id whose own bytes begin with the prefix is written in base64
too."""

TAG_BYTES = 16

BESIDES = frozenset({"after", "fresh", "limit", "shards"})
"""Parameters that a key is not bound to."""


def id_text(message_id: bytes) -> str:
    """An id as the API writes it; `id_bytes` reads it back."""
    text = decoded(message_id)
    if text is None or text.startswith(BASE64_ID):
        return BASE64_ID + encoded(message_id)
    return text


def id_path(message_id: bytes) -> str:
    """The path of a message: percent-encoded; an id of dots only, which would change the path, is
    written in base64."""
    text = id_text(message_id)
    if not text.strip("."):
        text = BASE64_ID + encoded(message_id)
    return f"/v1/messages/{quote(text, safe='')}"


def id_bytes(text: str) -> bytes:
    """The bytes of an id; ValueError, with a text for users, when the text is not an id."""
    if text.startswith(BASE64_ID):
        return from_base64(text.removeprefix(BASE64_ID))
    return to_bytes(text)


def whole_id_bytes(text: str) -> bytes:
    """The bytes of an id of a message; ValueError, with a text for users, also for its length."""
    message_id = id_bytes(text)
    if not 0 < len(message_id) <= ID_BYTES_MAX:
        raise ValueError(f"must have 1 to {ID_BYTES_MAX} bytes, not {len(message_id)}")
    return message_id


def to_bytes(text: str) -> bytes:
    """The text in UTF-8; ValueError for half a surrogate pair, which JSON can express and UTF-8
    cannot."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError("contains half of a surrogate pair") from None


def from_base64(text: str) -> bytes:
    """The bytes; ValueError, with a text for users, when the text is not base64."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        raise ValueError("is not base64") from None


def encoded(data: bytes) -> str:
    """The bytes in base64."""
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def decoded(data: bytes) -> str | None:
    """The text; None: the bytes are not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def text_or_base64(data: bytes | None) -> tuple[str | None, str | UnsetType]:
    """Bytes as the two fields of an answer, `(text, base64)`: text alone where it is UTF-8; null
    bytes are `(None, UNSET)`."""
    if data is None:
        return None, UNSET
    text = decoded(data)
    return (text, UNSET) if text is not None else (None, encoded(data))


def headers_out(
    headers: Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]],
) -> HeaderValues:
    """Headers by name, in the order of first occurrence."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    out: HeaderValues = {}
    for name, data in pairs:
        value = _header_out(data)
        if name not in out:
            out[name] = value
            continue
        before = out[name]
        out[name] = [*before, value] if isinstance(before, list) else [before, value]
    return out


def header_conditions(given: Sequence[str] | UnsetType) -> list[tuple[str, str]]:
    """Names and values of the conditions `NAME=VALUE` of a request."""
    parts = (text.partition("=") for text in ([] if given is UNSET else given))
    return [(name, value) for name, _, value in parts]


def _header_out(data: bytes | None) -> HeaderValue:
    if data is None:
        return None
    text = decoded(data)
    return text if text is not None else Binary(base64=encoded(data))


def headers_in(headers: HeaderValues) -> list[tuple[str, bytes | None]]:
    """The headers as pairs in order; ValueError, with a text for users, for a value that is not
    valid."""
    pairs: list[tuple[str, bytes | None]] = []
    for name, value in headers.items():
        to_bytes(name)
        if "\0" in name:
            # The Kafka client would end the name there.
            raise ValueError(f"the header name {name[:80]!r} contains NUL")
        for one in value if isinstance(value, list) else (value,):
            if one is None:
                pairs.append((name, None))
            else:
                pairs.append(
                    (name, to_bytes(one) if isinstance(one, str) else from_base64(one.base64))
                )
    return pairs


class Cursors:
    """Seals and opens the page keys of one node. For one event loop."""

    def __init__(
        self, config: Config, token: str, members: Callable[[], Mapping[str, Member]]
    ) -> None:
        """`token`: the one that this node gives the coordinator. `members`: the nodes of the
        cluster, by name."""
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
        """The position of a page key. ProblemError with status 400 if it is none of this
        request."""
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
        return (
            hmac.digest(secret.encode(), f"chronos page keys {self._cluster}".encode(), "sha256")
            if secret
            else None
        )


def begin_again() -> ProblemError:
    """400: the page key is not one of this token and these conditions, or its key is no longer
    known."""
    return ProblemError(
        400,
        "begin-again",
        "`after` cannot be read: begin again without it",
        hint=(
            "a page key is for the same token and the same conditions, and may end with the "
            "process of the node that made it"
        ),
    )


def _bound(call: "Call", conditions: Struct) -> bytes:
    given = {
        name: value
        for name, value in asdict(conditions).items()
        if name not in BESIDES and value is not UNSET
    }
    return msgspec.json.encode([call.request.path, call.sender.name, given])


def _sealed(secret: bytes, bound: bytes, plain: bytes) -> tuple[bytes, bytes]:
    tag = _tag(secret, bound, plain)
    return tag, _stream(secret, tag, plain)


def _tag(secret: bytes, bound: bytes, plain: bytes) -> bytes:
    return hmac.digest(secret, b"tag" + struct.pack(">I", len(bound)) + bound + plain, "sha256")[
        :TAG_BYTES
    ]


def _stream(secret: bytes, tag: bytes, data: bytes) -> bytes:
    """The data with the key stream of the tag: enciphers and deciphers."""
    key = hmac.digest(secret, b"stream" + tag, "sha256")
    stream = hashlib.shake_256(key).digest(len(data))
    return (int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(data), "big")
