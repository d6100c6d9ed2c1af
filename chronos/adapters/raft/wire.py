"""The messages between nodes of a cluster: MessagePack over HTTP, authenticated with a shared secret.

Every request has an HMAC of its content and receiver, and every answer one of its content and the request. A message without it is
answered with 401 and changes nothing. Whoever can read the connection can repeat a message: TLS prevents that.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from chronos.core.raft import register
from chronos.core.raft.sessions import Content, Seat
from chronos.core.raft.values import LogEnd
from chronos.core.roles import Member, Request, Roles

PATH = "/v1/raft"

SIGNATURE = "Chronos-Signature"

BODY_BYTES_MAX = 4 * 1024 * 1024
"""Largest message: many times the roles and reports of a hundred shards on each of ten nodes."""


class Join(Struct, frozen=True, kw_only=True, tag=True):
    """A node registers as a new life."""

    life: str
    member: Member


class Report(Struct, frozen=True, kw_only=True, tag=True):
    """A member reports, and asks for what is new."""

    life: str
    seat: Seat
    member: Member
    revision: Seat
    """Of the members that it knows."""
    stamp: LogEnd
    """Of the content that it knows."""


class Ask(Struct, frozen=True, kw_only=True, tag=True):
    """A member leaves a request for the controller."""

    id: str
    request: Request


class Publish(Struct, frozen=True, kw_only=True, tag=True):
    """The controller publishes roles over those of a version, and answers requests with them."""

    life: str
    version: int
    roles: Roles
    answered: tuple[str, ...]


class Leave(Struct, frozen=True, kw_only=True, tag=True):
    """A member ends its session."""

    life: str


class Inspect(Struct, frozen=True, kw_only=True, tag=True):
    """A client that is not a member asks for everything."""


Call = Join | Report | Ask | Publish | Leave | Inspect


class NotLeader(Struct, frozen=True, kw_only=True, tag=True):
    """Another voter leads, or none."""

    leader: str = ""


class Taken(Struct, frozen=True, kw_only=True, tag=True):
    """Another data directory has the name."""

    holder: Member


class Gone(Struct, frozen=True, kw_only=True, tag=True):
    """The life has no place any more; it has to join again."""


class Refused(Struct, frozen=True, kw_only=True, tag=True):
    """The roles are of another version, or the sender is not the controller."""


class News(Struct, frozen=True, kw_only=True, tag=True):
    """The present state, without the parts that the asker knows."""

    leader: str
    seat: Seat = (0, 0)
    settled: bool
    """All members are known."""
    controller: str
    revision: Seat
    members: Mapping[str, Member] | None = None
    since_ms: Mapping[str, int] = {}
    stamp: LogEnd
    content: Content | None = None


Answer = NotLeader | Taken | Gone | Refused | News


class Batch(Struct, frozen=True, tag=True):
    """Messages between two voters."""

    messages: tuple[register.Message, ...]


Incoming = Batch | Call

encode = msgspec.msgpack.Encoder().encode
decode_incoming = msgspec.msgpack.Decoder(Incoming).decode
encode_content = msgspec.msgpack.Encoder().encode
_decode_content = msgspec.msgpack.Decoder(Content).decode


_decode_answer = msgspec.msgpack.Decoder(Answer).decode


def decode_answer(body: bytes) -> Answer:
    """Return the answer of a voter. Raises MsgspecError."""
    answer: Answer = _decode_answer(body)
    return answer


def decode_content(value: bytes) -> Content:
    """Return the content of the register; an empty one before the first."""
    return _decode_content(value) if value else Content()


class Seal:
    """Signs and checks the messages of one cluster."""

    def __init__(self, secret: str, cluster: str) -> None:
        self._key = hmac.digest(secret.encode(), f"chronos raft {cluster}".encode(), "sha256")

    def request(self, to: str, body: bytes) -> str:
        """The signature of a request to a voter."""
        return self._sign(b"request", to.encode(), body)

    def answer(self, request: str, body: bytes) -> str:
        """The signature of an answer to the request with that signature."""
        return self._sign(b"answer", request.encode(), body)

    def _sign(self, *parts: bytes) -> str:
        mac = hmac.new(self._key, digestmod=hashlib.sha256)
        for part in parts:
            mac.update(len(part).to_bytes(8))
            mac.update(part)
        return mac.hexdigest()


def is_same(one: str, other: str) -> bool:
    """Compare two signatures in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())
