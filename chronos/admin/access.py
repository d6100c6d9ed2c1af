"""Who may send a request: the tokens of users, and the nodes of the cluster."""

import hmac
from collections.abc import Callable, Mapping

from aiohttp import hdrs, web

from chronos.admin.audit import SENDER
from chronos.admin.connections import SparseLog
from chronos.admin.problems import ProblemError
from chronos.admin.tokens import ANYBODY, MEMBER, Role, Sender, TokenFile
from chronos.core.roles import Member

NODE_HEADER = "Chronos-Node"
"""Name of the node that sends the request."""

TOKEN_HEADER = "Chronos-Token"
"""The token that this node gave the coordinator."""

ASKER_HEADER = "Chronos-Asker"
"""Name of the token whose request a node forwards: its work takes turns with that of other tokens."""


class Access:
    """Finds the sender of a request, and decides what it may do. For one event loop."""

    def __init__(self, path: str | None, members: Callable[[], Mapping[str, Member]], sparse_log: SparseLog) -> None:
        """`path`: the file of tokens; None: there are none. `members`: the nodes of the cluster, by name.

        Raises ConfigurationError if the file cannot be used.
        """
        self._tokens = None if path is None else TokenFile(path)
        self._members = members
        self._log = sparse_log

    @property
    def tokens_problem(self) -> str | None:
        """Why the file of tokens in its present form is not used, and the tokens are those of an earlier one; None: it is used."""
        return None if self._tokens is None else self._tokens.problem

    def admit(self, request: web.Request, role: Role, *, concerns_targets: bool) -> Sender:
        """The sender. ProblemError: 401 without a valid token, 403 with one that may not do this.

        `concerns_targets`: the handler checks the targets of each message. Any other request concerns the whole service: a
        token that is limited to some targets may read the answer, but change nothing.
        """
        if self._tokens is None or role in ("open", "node"):
            # A route for nodes checks the node itself, and waits for one that has just joined.
            request[SENDER] = MEMBER if self._is_member(request) else ANYBODY
            return ANYBODY
        sender = self._sender(request)
        if sender is None:
            self._log.warn("request without a valid token", method=request.method, path=request.path[:200])
            raise ProblemError(
                401, "no-token", "this service needs a valid token",
                hint="send it as `Authorization: Bearer TOKEN`; for the command line use --token-file or CHRONOS_TOKEN",
            )  # fmt: skip
        request[SENDER] = sender
        if role not in sender.roles:
            raise self._forbidden(f"the token {sender.name} does not have the role {role}")
        if sender.is_limited and not concerns_targets and role != "read":
            raise self._forbidden(
                f"the token {sender.name} is for some targets only, and this concerns the whole service",
            )
        return sender

    @staticmethod
    def _forbidden(detail: str) -> ProblemError:
        return ProblemError(403, "forbidden", detail)

    def _sender(self, request: web.Request) -> Sender | None:
        if self._is_member(request):
            return MEMBER
        assert self._tokens is not None
        scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        return self._tokens.sender(token.strip()) if scheme.lower() == "bearer" and token else None

    def _is_member(self, request: web.Request) -> bool:
        node = request.headers.get(NODE_HEADER)
        return bool(node) and is_token_of(self._members().get(str(node)), request.headers.get(TOKEN_HEADER, ""))


def is_token_of(member: Member | None, token: str) -> bool:
    """Return whether a node gave this token to the coordinator."""
    return bool(member is not None and member.token and hmac.compare_digest(member.token.encode(), token.encode()))


def forbidden_target(sender: Sender, topic: str) -> ProblemError:
    """403 for a request that names a target topic which is not for the sender."""
    return ProblemError(403, "forbidden", f"the token {sender.name} is not for the target {topic[:249]}")
