"""The token file (`admin.tokens`): the senders it names, and the roles, targets, ids and limits of
each.

An entry has one of three proofs: the hash of a bearer token, a name in a client certificate, or
claims in a token of the issuer. Certificates are verified in the TLS handshake
(`admin.tls.client_ca`), the issuer's tokens in `issuer`; this module verifies neither. The file is
read again when it changes; a file that cannot be used leaves the tokens that were read before in
force.

The file is YAML:

    tokens:
      - name: shop
        sha256: <64 hexadecimal digits: the SHA-256 of the token>
        roles: [read, payload, write]
        targets: ["orders.*"]       # optional; without it, all
        limits: {polls: 100}        # optional; see `SenderLimits`
        ids: ["order-*"]            # required beside `targets` with the role `write`; else optional
      - name: billing
        certificate: uri:spiffe://example.org/billing     # instead of `sha256`
        roles: [write]
      - name: support
        claims: {groups: support}   # instead of `sha256`: claims in a token of the issuer
        roles: [read]

`format: 1` may stand before the list; a file of another format is refused. A certificate is named
by its whole subject as in RFC 4514 (`CN=shop,O=Example`) or by one of its alternative names
(`dns:shop.internal`, `uri:spiffe://example.org/shop`)."""

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

import msgspec
import structlog
import yaml
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from chronos.core.reach import ALL, EVERYTHING, Reach
from chronos.errors import ConfigurationError
from chronos.node.certificates import name_of

log = structlog.get_logger("chronos.http")

Role = Literal["open", "any", "read", "payload", "write", "operate", "node"]
"""What a route needs: nothing, a valid token with any role, one of the roles of tokens, or to be
another node of the cluster."""

ROLES: Final = ("read", "payload", "write", "operate")
"""`payload` shows the payloads and headers of what `read` shows without them."""

ALL_TARGETS = ALL_IDS = ALL

PATTERNS_BYTES_MAX = 5_000
"""Most bytes of the patterns of one token, which are sent to other nodes in a header."""

FORMAT = 1
"""The format of the file."""

SUBJECT_MAX = 200
"""Most characters of the subject of a token of the issuer in the name of its sender."""

_Patterns = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1)]


class SenderLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of one token on one node, so that capacity is left for the others."""

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
    """Patterns of the ids that it may see and change; a generated id belongs to the tokens that
    have its target."""
    limits: SenderLimits | None = None
    """None: only those of all senders together."""

    @property
    def reach(self) -> Reach:
        """The targets and ids that the sender may see and change."""
        reach = Reach(targets=self.targets, ids=self.ids)
        return reach if reach.is_limited else EVERYTHING

    @property
    def is_limited(self) -> bool:
        """True if some targets or ids are not for it."""
        return self.reach.is_limited

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


class _Token(Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,100}$")]
    roles: Annotated[list[Literal["read", "payload", "write", "operate"]], Meta(min_length=1)]
    # Null is refused: of a list whose entries were all taken out it would make one of everything.
    targets: _Patterns | UnsetType = UNSET
    ids: _Patterns | UnsetType = UNSET
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")] | None = None
    certificate: str | None = None
    claims: Annotated[dict[str, Any], Meta(min_length=1)] | None = None
    limits: SenderLimits | None = None


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    tokens: list[_Token]
    format: int = FORMAT


def digest(token: str) -> str:
    """Return the hash of a token as the file has it."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


class _Loader(yaml.SafeLoader):
    """YAML in which no mapping has a name twice: the first value would be dropped."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in names:
                line = key.start_mark.line + 1
                raise ValueError(f"gives {key.value} a second time, on line {line}; keep one")
            names.add(key.value if isinstance(key, yaml.ScalarNode) else None)
        return super().construct_mapping(node, deep)


class Tokens(Struct, frozen=True, kw_only=True):
    """The senders of a token file, by their proofs."""

    senders: dict[str, Sender]
    """By the hashes of their tokens."""
    certificates: dict[str, Sender]
    """By a name in their certificates, in the order of the file."""
    claims: tuple[tuple[dict[str, Any], Sender], ...]
    """By the claims that a token of the issuer must have, in the order of the file."""


def parse_tokens(data: bytes) -> Tokens:
    """The senders of a file; ValueError with a text for users."""
    if not data.strip():
        raise ValueError("is empty; to have no tokens, write `tokens: []`")
    try:
        found = msgspec.convert(yaml.load(data, _Loader), _File)
    except (yaml.YAMLError, UnicodeDecodeError):
        # The parser's text shows what is in the file.
        raise ValueError("is not YAML") from None
    except msgspec.ValidationError as error:
        raise ValueError(f"is not a list of tokens: {error}") from None
    if found.format != FORMAT:
        raise ValueError(
            f"has format {found.format}, and this version of Chronos knows format {FORMAT}"
        )
    senders = {token.name: _sender(token) for token in found.tokens}
    certificates = [
        (_name(token), senders[token.name])
        for token in found.tokens
        if token.certificate is not None
    ]
    _check_unique("name", (token.name for token in found.tokens))
    _check_unique("sha256", (token.sha256 for token in found.tokens if token.sha256 is not None))
    _check_unique("certificate", (name for name, _ in certificates))
    return Tokens(
        senders={
            token.sha256: senders[token.name] for token in found.tokens if token.sha256 is not None
        },
        certificates=dict(certificates),
        claims=tuple(
            (token.claims, senders[token.name])
            for token in found.tokens
            if token.claims is not None
        ),
    )


def _name(token: _Token) -> str:
    assert token.certificate is not None
    try:
        return name_of(token.certificate)
    except ValueError as error:
        raise ValueError(f"gives the token {token.name} {error}") from None


def _has(claims: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether a token has these claims: each is the value, or a list with the value in it; a
    mapping is compared by its keys."""
    for name, value in wanted.items():
        found = claims.get(name)
        if isinstance(value, Mapping):
            if not (isinstance(found, Mapping) and _has(found, value)):
                return False
        elif not (
            _is_same(found, value)
            or (isinstance(found, list) and any(_is_same(each, value) for each in found))
        ):
            return False
    return True


def _is_same(found: object, value: object) -> bool:
    # True equals 1 in Python, which a token file does not mean.
    return type(found) is type(value) and found == value


def _sender(token: _Token) -> Sender:
    roles = frozenset(token.roles)
    if [token.sha256, token.certificate, token.claims].count(None) != 2:
        raise ValueError(f"must give the token {token.name} one of sha256, certificate and claims")
    if token.claims is not None and not _is_plain(token.claims):
        raise ValueError(
            f"gives the token {token.name} claims that are no text, number, switch or mapping of "
            "these"
        )
    if token.targets and not token.ids and "write" in roles:
        raise ValueError(
            f"limits the token {token.name} to targets, and not to ids: name the ids that it may "
            f'write, such as `ids: ["{token.name}-*"]`'
        )
    patterns = [*(token.targets or ()), *(token.ids or ())]
    if sum(len(pattern.encode()) + 3 for pattern in patterns) > PATTERNS_BYTES_MAX:
        raise ValueError(
            f"has more than {PATTERNS_BYTES_MAX} bytes of targets and ids for the token "
            f"{token.name}"
        )
    return Sender(
        name=token.name,
        roles=roles,
        targets=tuple(token.targets) if token.targets else ALL_TARGETS,
        ids=tuple(token.ids) if token.ids else ALL_IDS,
        limits=token.limits or SenderLimits(),
    )


def _is_plain(claims: Mapping[Any, Any]) -> bool:
    return all(
        isinstance(name, str)
        and (
            _is_plain(value)
            if isinstance(value, Mapping) and value
            else isinstance(value, str | int)
        )
        for name, value in claims.items()
    )


def _check_unique(field: str, values: Iterable[str]) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"has two tokens with the {field} {value}")
        seen.add(value)


class TokenFile:
    """The tokens of a file, read again when it changes."""

    def __init__(
        self, path: str, *, with_certificates: bool = True, with_claims: bool = True
    ) -> None:
        """`with_certificates`: clients show certificates of an authority. `with_claims`: there is
        an issuer.

        Raises ConfigurationError if the file cannot be used.
        """
        self._path = path
        self._with_certificates = with_certificates
        self._with_claims = with_claims
        self.problem: str | None = None
        """Why the file in its current form is not used; None: it is."""
        try:
            self._stamp = self._state()
            self._found = self._read()
        except (OSError, ValueError) as error:
            raise ConfigurationError([f"admin.tokens: {_text(path, error)}"]) from None

    def sender(self, token: str) -> Sender | None:
        """The sender with the token; None: no token of the file."""
        self._refresh()
        # The hash is found by its value: comparing hashes tells nothing about a token.
        return self._found.senders.get(digest(token))

    def sender_with_certificate(self, names: Sequence[str]) -> Sender | None:
        """The sender of the first entry with one of the names in a certificate; None: there is no
        such entry."""
        self._refresh()
        if not names:
            return None
        return next(
            (sender for name, sender in self._found.certificates.items() if name in names), None
        )

    def sender_with_claims(self, claims: Mapping[str, Any]) -> Sender | None:
        """The sender of the first entry whose claims a token of the issuer has; its name has the
        token's `sub`. None: no such entry."""
        self._refresh()
        found = next(
            (sender for wanted, sender in self._found.claims if _has(claims, wanted)), None
        )
        subject = str(claims.get("sub", ""))[:SUBJECT_MAX]
        return (
            None
            if found is None
            else replace(found, name=f"{found.name}:{quote(subject, safe='@')}")
        )

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
            self._found, self.problem = self._read(), None
            log.info("tokens read", tokens=len(self._found.senders))
        except (OSError, ValueError) as error:
            self.problem = _text(self._path, error)
            log.error(
                "tokens not read",
                why=self.problem,
                consequence="the tokens of before stay in force",
            )

    def _state(self) -> tuple[object, ...]:
        found = os.stat(self._path)
        return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode

    def _read(self) -> Tokens:
        with open(self._path, "rb") as file:
            if os.fstat(file.fileno()).st_mode & stat.S_IWOTH:
                raise ValueError("may be written by every user of this machine: chmod o-w")
            found = parse_tokens(file.read())
        if found.certificates and not self._with_certificates:
            raise ValueError("has entries with `certificate`, and admin.tls.client_ca is not set")
        if found.claims and not self._with_claims:
            raise ValueError("has entries with `claims`, and admin.jwt is not set")
        return found


def _text(path: str, error: Exception) -> str:
    return f"{path} {f'cannot be read: {error.strerror}' if isinstance(error, OSError) else error}"
