"""The sender of a request, and the checks whether the request is permitted: its host name, its
origin, its encoding, its token or certificate, and the targets, ids and headers of messages that it
names.

A browser sends requests for any web page that a person opens. Two checks keep such pages away from
the service: the Host header must have an address, `localhost` or a name of the node (against DNS
rebinding), and only a link to the console may be marked as a request of another site.

A sender is nobody in particular, the owner of a token or certificate of the token file (read in
`tokens`), the owner of a token of an OIDC issuer (verified in `issuer`), or another node of the
cluster. Another node proves itself by the token that it registered with the coordinator, and names
the sender for whom it asks and the targets and ids that this sender may reach."""

import binascii
import hmac
import ipaddress
import re
import socket
import ssl
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from urllib.parse import urlsplit

import msgspec
from aiohttp import hdrs, web
from msgspec.structs import replace

from chronos.admin.http.audit import SENDER
from chronos.admin.http.connections import SparseLog
from chronos.admin.http.encoding import id_text
from chronos.admin.http.issuer import Issuer, Untrusted
from chronos.admin.http.problems import ProblemError, wrong_field
from chronos.admin.http.tokens import (
    ANYBODY,
    MEMBER,
    Role,
    Sender,
    TokenFile,
)
from chronos.config import Config
from chronos.core.cluster.roles import Member
from chronos.core.query.filter import WILDCARDS
from chronos.core.reach import EVERYTHING, Reach
from chronos.node.certificates import decoded

PAGE = "/"
VIEWS = "/ui/"
"""The console: the only paths that a link on another site may lead to."""

HOST = re.compile(r"(\[[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?", re.ASCII)
"""A Host header: a name or an address, and a port."""

NODE_HEADER = "Chronos-Node"
"""Name of the node that sends the request."""

TOKEN_HEADER = "Chronos-Token"
"""The token that this node gave the coordinator."""

REACH_HEADER = "Chronos-Reach"
"""The reach of the sender whose request a node forwards, in JSON and base64; absent: it is not
limited."""

ASKER_HEADER = "Chronos-Asker"
"""Name of the token whose request a node forwards: its work takes turns with that of other
tokens."""


class Hosts:
    """The host names under which a node is served. Addresses always are: DNS rebinding needs a
    name."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(_plain(name) for name in names)

    @classmethod
    def of(cls, config: Config) -> "Hosts":
        """The names of a node: its id, the name of its machine, and the names in `admin`."""
        admin = config.admin
        advertised = None if admin.advertised is None else urlsplit(admin.advertised).hostname
        return cls(
            name
            for name in (
                config.node.id,
                socket.gethostname(),
                admin.host,
                advertised,
                *admin.allowed_hosts,
            )
            if name
        )

    def serves(self, name: str) -> bool:
        """Return whether the name, without a port, is an address, that of this machine, or one of
        the node."""
        name = _plain(name)
        return (
            name == "localhost"
            or name.endswith(".localhost")
            or name in self._names
            or _is_address(name)
        )

    def check(self, request: web.Request) -> str | None:
        """Return the Host header; None for a client of HTTP/1.0 that sent none. ProblemError if it
        names another host."""
        given = request.headers.getall(hdrs.HOST, [])
        if not given and request.version < (1, 1):
            return None
        parts = HOST.fullmatch(given[0]) if len(given) == 1 else None
        if parts is None:
            raise ProblemError(
                400,
                "bad-request",
                "the Host header is missing, or is not one host name with a port",
            )
        if not self.serves(parts[1]):
            raise ProblemError(
                421,
                "wrong-host",
                f"{given[0][:200]} is not a name of this node",
                hint=(
                    "use an address, localhost or the node's own name, or add the name to "
                    "admin.allowed_hosts"
                ),
            )
        return given[0]


def check_site(request: web.Request, host: str | None) -> None:
    """Raise ProblemError for a request that a browser sends for a page of another site.

    Only links to the console are followed. A browser sends `Sec-Fetch-Site` to
    addresses it trusts, which are HTTPS and loopback; elsewhere `Origin` protects everything except
    reads, whose answers the other site cannot see."""
    site = request.headers.get("Sec-Fetch-Site", "none")
    origin = request.headers.get(hdrs.ORIGIN)
    path = request.rel_url.raw_path
    is_link = request.method in (hdrs.METH_GET, hdrs.METH_HEAD) and (
        path == PAGE or path.startswith(VIEWS)
    )
    if (site not in ("same-origin", "none") and not is_link) or (
        origin is not None and _netloc(origin) != host
    ):
        raise ProblemError(
            403, "cross-site", f"this request comes from {(origin or 'another web site')[:200]}"
        )


def check_encoding(request: web.Request) -> None:
    """Raise ProblemError for a compressed body: a small one may expand to any size in memory."""
    coding = request.headers.get(hdrs.CONTENT_ENCODING, "identity")
    if coding.strip().lower() != "identity":
        raise ProblemError(
            415,
            "encoded",
            f"Content-Encoding is {coding[:100]}, and bodies are not decompressed",
            hint="send the body as it is",
        )


@lru_cache(1_000)
def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _plain(name: str) -> str:
    return name.strip("[]").rstrip(".").lower()


class Access:
    """Finds the sender of a request, and decides what it may do. For one event loop."""

    def __init__(
        self,
        path: str | None,
        members: Callable[[], Mapping[str, Member]],
        sparse_log: SparseLog,
        *,
        with_certificates: bool = False,
        issuer: Issuer | None = None,
    ) -> None:
        """`path`: the token file; None: the service has no tokens. `members`: returns the nodes of
        the cluster, by name. `with_certificates`: the TLS handshake verifies client certificates.
        `issuer`: tokens of this issuer are valid too.

        Raises ConfigurationError if the file cannot be used.
        """
        self.tokens = (
            None
            if path is None
            else TokenFile(
                path, with_certificates=with_certificates, with_claims=issuer is not None
            )
        )
        self._issuer = issuer
        self._members = members
        self._log = sparse_log

    def admit(self, request: web.Request, role: Role, *, concerns_targets: bool) -> Sender:
        """Return the sender. ProblemError: 401 without a valid token, 403 if the token does not
        permit the request.

        `concerns_targets`: the handler checks the targets of each message. Any other request
        concerns the whole service: a token that is limited to some targets may read the answer, but
        change nothing."""
        if self.tokens is None or role in ("open", "node"):
            # A route for nodes checks the node itself, and waits for one that has just joined.
            request[SENDER] = MEMBER if self._is_member(request) else ANYBODY
            return ANYBODY
        sender = self._sender(request)
        if sender is None:
            self._log.warn(
                "request without a valid token", method=request.method, path=request.path[:200]
            )
            raise ProblemError(
                401,
                "no-token",
                "this service needs a valid token",
                hint=(
                    "send it as `Authorization: Bearer TOKEN`; for the command line use "
                    "--token-file or CHRONOS_TOKEN"
                ),
            )
        request[SENDER] = sender
        missing = lack(sender, role, concerns_targets=concerns_targets)
        if missing is not None:
            raise forbidden(sender, missing)
        return sender

    def _sender(self, request: web.Request) -> Sender | None:
        if self._is_member(request):
            return replace(MEMBER, **_forwarded_reach(request))
        assert self.tokens is not None
        scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        if scheme.lower() == "bearer" and token:
            # A token counts before a certificate: a proxy shows its own, and passes on the tokens
            # of users.
            return self.tokens.sender(token.strip()) or self._of_issuer(token.strip())
        return self.tokens.sender_with_certificate(names_shown(request))

    def _of_issuer(self, token: str) -> Sender | None:
        """Return the sender with a token of the issuer. ProblemError: 401, with the reason, if the
        token is not valid; 403 if it permits nothing."""
        if self._issuer is None or token.count(".") != 2:
            return None
        assert self.tokens is not None
        try:
            claims = self._issuer.claims(token)
        except Untrusted as error:
            self._log.warn("token of the issuer refused", why=str(error))
            raise ProblemError(401, "no-token", f"the token is not valid: {error}") from None
        sender = self.tokens.sender_with_claims(claims)
        if sender is None:
            self._log.warn(
                "token of the issuer without an entry", subject=str(claims.get("sub"))[:200]
            )
            raise ProblemError(
                403, "forbidden", "no entry in the file of tokens has claims of this token"
            )
        return sender

    def _is_member(self, request: web.Request) -> bool:
        node = request.headers.get(NODE_HEADER)
        return bool(node) and is_token_of(
            self._members().get(str(node)), request.headers.get(TOKEN_HEADER, "")
        )


def lack(sender: Sender, role: Role, *, concerns_targets: bool) -> str | None:
    """Return the missing permission for a request, in words; None: the sender may send it."""
    if role not in ("any", *sender.roles):
        return f"does not have the role {role}"
    if sender.is_limited and not concerns_targets and role not in ("any", "read"):
        return "is for some targets only, and this concerns the whole service"
    return None


def is_token_of(member: Member | None, token: str) -> bool:
    """Return whether a node gave this token to the coordinator."""
    # A header that is not UTF-8 comes as half surrogate pairs.
    given = token.encode("utf-8", "surrogateescape")
    return bool(
        member is not None and member.token and hmac.compare_digest(member.token.encode(), given)
    )


def reach_header(reach: Reach) -> dict[str, str]:
    """Return the header with this reach, for a request that is forwarded."""
    if not reach.is_limited:
        return {}
    return {REACH_HEADER: b64encode(msgspec.json.encode([reach.targets, reach.ids])).decode()}


def _forwarded_reach(request: web.Request) -> dict[str, tuple[str, ...]]:
    """Return the targets and ids of the sender whose request a node forwards. ProblemError if the
    header cannot be read."""
    given = request.headers.get(REACH_HEADER)
    if given is None:
        return {}
    try:
        targets, ids = msgspec.json.decode(
            b64decode(given, validate=True), type=tuple[tuple[str, ...], tuple[str, ...]]
        )
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise ProblemError(
            400, "bad-request", f"the header {REACH_HEADER} cannot be read"
        ) from None
    return {
        "targets": EVERYTHING.targets if targets == EVERYTHING.targets else targets,
        "ids": EVERYTHING.ids if ids == EVERYTHING.ids else ids,
    }


IDEMPOTENCY_KEY = "Idempotency-Key"
"""The header of a request that names the call, the same at each repetition."""

_KEY = re.compile(r"[!-~]{1,255}", re.ASCII)


def key_of(request: web.BaseRequest) -> str | None:
    """Return what names the call of the request; None: nothing does. ProblemError with status 422
    if it cannot be a name."""
    key = request.headers.get(IDEMPOTENCY_KEY)
    if key is not None and not _KEY.fullmatch(key):
        raise wrong_field(
            IDEMPOTENCY_KEY, "is not 1 to 255 visible characters of ASCII without spaces"
        )
    return key


def check_id(sender: Sender, message_id: bytes) -> None:
    """Raise ProblemError with status 403 if the sender may not use this id, whether such a message
    exists or not."""
    if not sender.reach.admits_id(message_id):
        raise _forbidden_id(sender, message_id)


def check_given_id(sender: Sender, message_id: bytes) -> None:
    """Raise ProblemError with status 403 if the sender may not give a message this id."""
    if not sender.reach.admits_given_id(message_id):
        raise _forbidden_id(sender, message_id)


def check_target(sender: Sender, topic: str) -> None:
    """Raise ProblemError with status 403 if the sender may not use this target topic."""
    if not sender.reach.admits_target(topic):
        raise forbidden(sender, f"is not for the target {topic[:249]}")


def check_targets(sender: Sender, pattern: str) -> None:
    """Raise ProblemError with status 403 if a filter names a target topic that the sender may not
    use. A pattern is permitted: it matches only the sender's own topics."""
    if WILDCARDS.isdisjoint(pattern):
        check_target(sender, pattern)


def check_headers(sender: Sender) -> None:
    """Raise ProblemError with status 403 if the sender may not see headers, on which the request
    has a condition or counts."""
    if not sender.sees_payloads:
        raise forbidden(
            sender, "may not see headers", hint="a condition on headers needs the role payload"
        )


def _forbidden_id(sender: Sender, message_id: bytes) -> ProblemError:
    return forbidden(
        sender,
        f"is not for the id {id_text(message_id)[:200]}",
        hint="its ids are those of `ids` in the file of tokens, and those that Chronos makes",
    )


def forbidden(sender: Sender, why: str, *, hint: str | None = None) -> ProblemError:
    """Return a ProblemError with status 403. `why`: the missing permission."""
    return ProblemError(403, "forbidden", f"the token {sender.name} {why}", hint=hint)


def names_shown(request: web.Request) -> tuple[str, ...]:
    """Return the names in the certificate of the client; empty without a certificate, or if it has
    expired since the handshake."""
    found = None if request.transport is None else request.transport.get_extra_info("ssl_object")
    if not isinstance(found, ssl.SSLObject | ssl.SSLSocket):
        return ()
    encoded = found.getpeercert(binary_form=True)
    if not encoded:
        return ()
    certificate = decoded(encoded)
    return certificate.names if time.time() < certificate.ends_s else ()
