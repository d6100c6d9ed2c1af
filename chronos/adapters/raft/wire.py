"""The messages between nodes of a cluster: MessagePack over HTTP, authenticated with a shared secret.

The header of a request has an HMAC of its receiver, of a challenge of the receiver, of a nonce and of the digest of its content; an answer
has an HMAC of its content and of the request. The key depends on the secret, the cluster and the names of the voters. A request without a
valid header is answered with 401 before its content is read, and changes nothing. A request counts once: a recorded one is refused.
Without TLS the messages can be read.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

from chronos.core.raft import register
from chronos.core.raft.sessions import Content, Seat
from chronos.core.raft.values import LogEnd
from chronos.core.roles import Member, Request, Roles

PATH = "/v1/raft"

SIGNATURE = "Chronos-Signature"
"""Header of a request: challenge, nonce, digest of the content and HMAC, in hexadecimal with dots between; of an answer: its HMAC."""

CHALLENGE = "Chronos-Challenge"
"""Header of an answer: the challenge for the next requests to this voter."""

CHALLENGE_S = 30.0
"""How long a voter gives the same challenge out; it takes it for as long again."""

BODY_BYTES_MAX = 4 * 1024 * 1024
"""Largest message: many times the roles and reports of a hundred shards on each of ten nodes."""

REGISTER_BYTES_MAX = BODY_BYTES_MAX - 65_536
"""Largest value of the register: it is sent to the other voters as a whole, in one message with others."""

ROLES_BYTES_MAX = REGISTER_BYTES_MAX - 65_536
"""Largest value with which roles are published. The rest is for requests: `chronos forget` makes roles smaller that have become too large."""


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


class TooLarge(Struct, frozen=True, kw_only=True, tag=True):
    """With this change the register would not fit in a message: nothing was changed."""

    bytes: int
    """Its size then."""
    bytes_max: int


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


Answer = NotLeader | Taken | Gone | Refused | TooLarge | News


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


class Signature(Struct, frozen=True):
    """The parts of the header of a request, whose HMAC is right."""

    challenge: str
    nonce: str
    digest: str

    def is_of(self, body: bytes) -> bool:
        """Return whether this content was signed."""
        return hmac.compare_digest(self.digest, hashlib.sha256(body).hexdigest())


_SIGNATURE = re.compile(r"([0-9a-f]{32})\.([0-9a-f]{32})\.([0-9a-f]{64})\.([0-9a-f]{64})")


class Seal:
    """Signs and checks the messages of one cluster with one list of voters."""

    def __init__(self, secret: str, cluster: str, voters: Iterable[str]) -> None:
        """`voters`: their names; the names of clusters and of nodes have no space."""
        names = " ".join(sorted(voters))
        self._key = hmac.digest(secret.encode(), f"chronos raft {cluster} {names}".encode(), "sha256")

    def request(self, to: str, challenge: str, body: bytes) -> str:
        """Return the header of a new request to a voter that gave this challenge."""
        nonce, digest = secrets.token_hex(16), hashlib.sha256(body).hexdigest()
        return f"{challenge}.{nonce}.{digest}.{self._sign('request', to, challenge, nonce, digest)}"

    def read(self, to: str, header: str) -> Signature | None:
        """Return the signature of a request to this voter; None if it is not one of this cluster."""
        found = _SIGNATURE.fullmatch(header)
        if found is None:
            return None
        challenge, nonce, digest, mac = found.groups()
        if not hmac.compare_digest(mac, self._sign("request", to, challenge, nonce, digest)):
            return None
        return Signature(challenge, nonce, digest)

    def answer(self, request: str, body: bytes) -> str:
        """Return the header of an answer to the request with that header."""
        return self._sign("answer", request, hashlib.sha256(body).hexdigest())

    def _sign(self, *parts: str) -> str:
        mac = hmac.new(self._key, digestmod=hashlib.sha256)
        for part in parts:
            data = part.encode()
            mac.update(len(data).to_bytes(8))
            mac.update(data)
        return mac.hexdigest()


class Challenges:
    """The challenges of one voter: random, so that a request recorded before cannot be repeated. Times are seconds of any steady clock."""

    def __init__(self, now_s: float) -> None:
        self._used: dict[str, set[str]] = {}
        """The challenge of now and the one before -> the nonces of the requests that used it."""
        self._current = ""
        self._renew(now_s)

    def current(self, now_s: float) -> str:
        """Return the challenge to give out."""
        self._age(now_s)
        return self._current

    def take(self, signature: Signature, now_s: float) -> bool:
        """Return whether a request is new; it is not from now on."""
        self._age(now_s)
        used = self._used.get(signature.challenge)
        if used is None or signature.nonce in used:
            return False
        used.add(signature.nonce)
        return True

    def _age(self, now_s: float) -> None:
        if now_s >= self._renew_s + CHALLENGE_S:
            self._used.clear()
        if now_s >= self._renew_s:
            self._renew(now_s)

    def _renew(self, now_s: float) -> None:
        before = self._used.get(self._current)
        self._used = {} if before is None else {self._current: before}
        self._current = secrets.token_hex(16)
        self._used[self._current] = set()
        self._renew_s = now_s + CHALLENGE_S


def is_same(one: str, other: str) -> bool:
    """Compare two signatures in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())
