"""Bearer tokens: what each of them may do, read from a file that holds their hashes.

format: 2
tokens:
  - name: shop
    sha256: <64 hexadecimal digits: the SHA-256 of the token>
    roles: [read, payload, write]
    targets: ["orders.*"]       # optional; without it, all
    limits: {polls: 100}        # optional; see `Limits`
    ids: ["order-*"]            # required beside `targets` with the role `write`; without it, all

A file without `format` has format 1: `read` shows payloads too, and there are no `ids`. It is read for one more release.
"""

import hashlib
import os
import stat
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Annotated, Literal

import msgspec
import structlog
import yaml
from msgspec import Meta, Struct

from chronos.errors import ConfigurationError

log = structlog.get_logger("chronos.http")

Role = Literal["open", "read", "payload", "write", "operate", "node"]
"""What a route needs: nothing, one of the roles of tokens, or to be another node of the cluster."""

ROLES = ("read", "payload", "write", "operate")
"""`payload` shows the payloads and headers of what `read` shows without them."""

ALL_TARGETS = ("*",)
ALL_IDS = ("*",)

FORMAT = 2
"""The newest format of the file."""


def matches_any(topic: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a topic matches one of the patterns."""
    return patterns is ALL_TARGETS or any(fnmatchcase(topic, pattern) for pattern in patterns)


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much one token may have at a time on one node, so that something is left for the others."""

    polls: Annotated[int, Meta(ge=1, le=500)] = 100
    """Long polls; all tokens together may have 500."""
    connections: Annotated[int, Meta(ge=1, le=2_000)] = 200
    """Connections, idle ones included: an idle one is closed for one too many."""
    jobs: Annotated[int, Meta(ge=1, le=10)] = 3
    """Running jobs; all tokens together may have ten."""


class Sender(Struct, frozen=True, kw_only=True):
    """The sender of a request, and what it may do."""

    name: str | None
    """Name of its token; None: the service has no tokens, or the sender is another node."""
    roles: frozenset[str]
    targets: tuple[str, ...] = ALL_TARGETS
    """Patterns of the target topics it may see and change."""
    ids: tuple[str, ...] = ALL_IDS
    """Patterns of the ids that it may see and change; a generated id belongs to whoever has its target."""
    limits: Limits | None = None
    """None: only those of all senders together."""

    @property
    def is_limited(self) -> bool:
        """True if some target topics are not for it."""
        return "*" not in self.targets

    def may_target(self, topic: str) -> bool:
        """Return whether messages for the topic are for this sender."""
        return matches_any(topic, self.targets)

    def may_name(self, message_id: bytes) -> bool:
        """Return whether messages with this id, given by a client, are for this sender. Patterns are compared in UTF-8."""
        return self.ids is ALL_IDS or any(fnmatchcase(message_id, pattern.encode()) for pattern in self.ids)

    @property
    def is_member(self) -> bool:
        """True for another node of the cluster."""
        return "node" in self.roles

    @property
    def sees_payloads(self) -> bool:
        """True if payloads and headers are shown to it."""
        return "payload" in self.roles


ANYBODY = Sender(name=None, roles=frozenset(ROLES))
"""Every sender while the service has no tokens."""

MEMBER = Sender(name=None, roles=frozenset((*ROLES, "node")))
"""Another node of the cluster, which has checked the sender of the request that it forwards."""


_Patterns = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1)]


class _Token(Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,100}$")]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    roles: Annotated[list[Literal["read", "payload", "write", "operate"]], Meta(min_length=1)]
    targets: _Patterns | None = None
    ids: _Patterns | None = None
    limits: Limits | None = None


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    tokens: list[_Token]
    format: Annotated[int, Meta(ge=1, le=FORMAT)] = 1


def digest(token: str) -> str:
    """Return the hash of a token as the file has it."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def parse_tokens(data: bytes) -> dict[str, Sender]:
    """The senders of a file by the hashes of their tokens; ValueError with a text for users."""
    if not data.strip():
        raise ValueError("is empty; to have no tokens, write `tokens: []`")
    try:
        found = msgspec.convert(yaml.safe_load(data), _File)
    except (yaml.YAMLError, UnicodeDecodeError):
        # The parser's text shows what is in the file.
        raise ValueError("is not YAML") from None
    except msgspec.ValidationError as error:
        raise ValueError(f"is not a list of tokens: {error}") from None
    senders = {token.sha256: _sender(token, found.format) for token in found.tokens}
    _check_unique("name", (token.name for token in found.tokens))
    _check_unique("sha256", (token.sha256 for token in found.tokens))
    return senders


def _sender(token: _Token, file_format: int) -> Sender:
    roles = frozenset(token.roles)
    if file_format == 1:
        if "payload" in roles or token.ids is not None or token.limits is not None:
            raise ValueError(
                f"gives the token {token.name} the role payload, ids or limits: begin the file with `format: 2`"
            )
        roles |= {"payload"} if "read" in roles else set()
    elif token.targets is not None and token.ids is None and "write" in roles:
        raise ValueError(
            f'limits the token {token.name} to targets, and not to ids: name the ids that it may write, such as `ids: ["{token.name}-*"]`'
        )
    return Sender(
        name=token.name,
        roles=roles,
        targets=ALL_TARGETS if token.targets is None else tuple(token.targets),
        ids=ALL_IDS if token.ids is None else tuple(token.ids),
        limits=token.limits or Limits(),
    )


def _check_unique(field: str, values: Iterable[str]) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"has two tokens with the {field} {value}")
        seen.add(value)


class TokenFile:
    """The tokens of a file, read again when it changes."""

    def __init__(self, path: str) -> None:
        """Raises ConfigurationError if the file cannot be used."""
        self._path = path
        self.problem: str | None = None
        """Why the file in its present form is not used; None: it is."""
        try:
            self._stamp = self._state()
            self._senders = self._read()
        except (OSError, ValueError) as error:
            raise ConfigurationError([f"admin.tokens: {_text(path, error)}"]) from None

    def sender(self, token: str) -> Sender | None:
        """The sender with the token; None: no token of the file."""
        self._refresh()
        # The hash is found by its value: comparing hashes tells nothing about a token.
        return self._senders.get(digest(token))

    def _refresh(self) -> None:
        """Read a changed file; one that cannot be used leaves the tokens as they are."""
        try:
            stamp = self._state()
        except OSError as error:
            stamp = (str(error),)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._senders, self.problem = self._read(), None
            log.info("tokens read", tokens=len(self._senders))
        except (OSError, ValueError) as error:
            self.problem = _text(self._path, error)
            log.error("tokens not read", why=self.problem)

    def _state(self) -> tuple[object, ...]:
        found = os.stat(self._path)
        return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode

    def _read(self) -> dict[str, Sender]:
        with open(self._path, "rb") as file:
            if os.fstat(file.fileno()).st_mode & stat.S_IWOTH:
                raise ValueError("may be written by every user of this machine: chmod o-w")
            return parse_tokens(file.read())


def _text(path: str, error: Exception) -> str:
    return f"{path} {f'cannot be read: {error.strerror}' if isinstance(error, OSError) else error}"
