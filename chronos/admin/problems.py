"""Error answers: `application/problem+json` (RFC 9457), with a hint what to do."""

from collections.abc import Callable
from typing import TypeVar

import msgspec
from aiohttp import web

from chronos.admin.schemas import Fault, Problem
from chronos.errors import ChronosError, LogUnavailable, NoSpace, Retry

_Given = TypeVar("_Given")
_Made = TypeVar("_Made")

PROBLEM_JSON = "application/problem+json"

DIGITS_MAX = 9
"""Most digits of a number in a path: more than any of them has, and few enough to be converted at once."""

TITLES = {
    "malformed": "The request body is not JSON",
    "invalid": "The request is not valid",
    "begin-again": "The page key cannot be read",
    "bad-request": "The request is not valid HTTP",
    "encoded": "The body is encoded",
    "not-json": "Content-Type must be application/json",
    "too-large": "The request is too large",
    "too-slow": "The request took too long to arrive",
    "cross-site": "Requests from other web sites are refused",
    "wrong-host": "This host name is not served here",
    "no-token": "A token is needed",
    "forbidden": "The token does not permit this",
    "beyond-limits": "The token has as many requests as it may have",
    "not-found": "There is no message with this id",
    "not-applied": "Records that may be about this id are not applied yet",
    "no-dead-letter": "There is no dead letter with this id",
    "no-rejection": "There is no rejected record with this id",
    "no-topic": "There is no such topic",
    "closed-topic": "This topic is not shown",
    "no-partition": "There is no such partition",
    "no-shard": "There is no such shard",
    "no-checkpoints": "No location for checkpoints is configured",
    "not-held": "This node has no replica of the shard",
    "no-holder": "No node with a replica of the shard answers",
    "not-a-member": "Only nodes of the cluster may request this",
    "busy-copying": "This node is already sending checkpoints",
    "no-job": "This node has no such job",
    "too-many-jobs": "Too many jobs are running",
    "no-node": "There is no such node",
    "no-rate": "No such limit was set at run time",
    "no-route": "No node is registered for this",
    "no-value": "There is no such value",
    "node-registered": "Another node is registered with this name or address",
    "registry-full": "The registry is full",
    "not-permitted": "The failover cannot be permitted",
    "transfer-refused": "The shard keeps its master",
    "node-present": "The node is a member of the cluster",
    "trimmed": "The record is no longer in the log",
    "standalone": "A standalone node has no other node to transfer to",
    "not-audited": "The request cannot be written down",
    "busy": "Too many requests wait to be written",
    "unavailable": "The log does not answer",
    "too-few-in-sync": "Too few followers of the shard are in sync",
    "no-space": "The disk is full",
    "not-ready": "The node is not ready",
    "failed": "The node has failed",
    "stopping": "The node is stopping",
    "internal": "Something went wrong in Chronos",
}

_encode = msgspec.json.Encoder().encode


class ProblemError(Exception):
    """Ends a request with a problem. Handlers raise it, the server answers it."""

    def __init__(
        self, status: int, kind: str, detail: str, *, hint: str | None = None, errors: list[Fault] | None = None
    ) -> None:
        # Headers that are not UTF-8 come as half surrogate pairs, which JSON cannot have.
        detail = detail.encode("utf-8", "backslashreplace").decode()
        self.status = status
        self.problem = Problem(
            type=f"urn:chronos:problem:{kind}",
            title=TITLES[kind],
            status=status,
            detail=detail,
            hint=msgspec.UNSET if hint is None else hint,
            errors=msgspec.UNSET if errors is None else errors,
        )
        super().__init__(detail)


def invalid(detail: str, errors: list[Fault], *, hint: str | None = None) -> ProblemError:
    """422: the request can be read, but it is not valid."""
    return ProblemError(422, "invalid", detail, hint=hint, errors=errors)


def beyond_limits(token: str | None, what: str) -> ProblemError:
    """429: the token has as much of something as it may have."""
    return ProblemError(
        429, "beyond-limits", f"the token {token} has {what}, the most that it may have at a time on one node",
        hint="wait until one ends; `limits` in the file of `admin.tokens` sets the number",
    )  # fmt: skip


def wrong_field(field: str, detail: str) -> ProblemError:
    """422 for one field of a request, or one parameter."""
    return invalid(f"{field}: {detail}", [Fault(field=field, detail=detail)])


def converted(field: str, convert: Callable[[_Given], _Made], value: _Given) -> _Made:
    """The value of a field as `convert` makes it; ProblemError with status 422 if that raises ValueError."""
    try:
        return convert(value)
    except ValueError as error:
        raise wrong_field(field, str(error)) from None


def shard_number(text: str, shards: int) -> int:
    """The shard that a path names; ProblemError with status 404 if there is none of that number."""
    if not (text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX and int(text) < shards):
        raise ProblemError(404, "no-shard", f"there are shards 0 to {shards - 1}")
    return int(text)


def from_error(error: ChronosError) -> ProblemError:
    """The problem for a failure of the log or of a store."""
    if isinstance(error, NoSpace):
        return ProblemError(507, "no-space", str(error))
    if isinstance(error, LogUnavailable):
        return ProblemError(
            503,
            "unavailable",
            str(error),
            hint="try again with the same id: the message is scheduled once; without an id it may be scheduled twice",
        )
    if isinstance(error, Retry):
        return ProblemError(503, "unavailable", str(error), hint="try again")
    return ProblemError(500, "failed", str(error))


def answer(problem: Problem, headers: dict[str, str] | None = None) -> web.Response:
    """The response."""
    response = web.Response(status=problem.status, body=_encode(problem), content_type=PROBLEM_JSON, headers=headers)
    if problem.status == 401:
        response.headers["WWW-Authenticate"] = 'Bearer realm="chronos"'
    if problem.status in (429, 503):
        response.headers["Retry-After"] = "1"
    return response


def plain(error: web.HTTPException) -> web.Response:
    """aiohttp's own errors (404, 405, 413 ...) as problems, with their headers."""
    kind = "too-large" if error.status == 413 else None
    problem = Problem(
        type=f"urn:chronos:problem:{kind}" if kind else "about:blank",
        title=TITLES[kind] if kind else error.reason,
        status=error.status,
        detail=_DETAILS.get(error.status, error.text or error.reason),
        hint="/openapi.json lists all paths and methods" if error.status in (404, 405) else msgspec.UNSET,
    )
    allow = error.headers.get("Allow")
    return answer(problem, {"Allow": allow} if allow else None)


_DETAILS = {
    404: "there is nothing at this path",
    405: "this path does not support this method",
    413: "the body is larger than the limit of one request",
}
