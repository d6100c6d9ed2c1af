"""What is answered when something goes wrong: `application/problem+json` (RFC 9457), with a hint what to do."""

import msgspec
from aiohttp import web

from chronos.admin.schemas import Fault, Problem
from chronos.errors import ChronosError, LogUnavailable, NoSpace, Retry

PROBLEM_JSON = "application/problem+json"

TITLES = {
    "malformed": "The request body is not JSON",
    "invalid": "The request is not valid",
    "not-json": "Content-Type must be application/json",
    "too-large": "The request is too large",
    "too-slow": "The request took too long to arrive",
    "cross-site": "Requests from other web sites are refused",
    "wrong-host": "This host name is not served here",
    "not-found": "There is no message with this id",
    "no-topic": "There is no such topic",
    "no-partition": "There is no such partition",
    "no-shard": "There is no such shard",
    "no-checkpoints": "No place for checkpoints is configured",
    "not-held": "This node does not hold the shard",
    "no-holder": "No node that holds the shard answers",
    "not-a-member": "Only members of the cluster may ask for this",
    "busy-copying": "Other nodes fetch checkpoints already",
    "no-node": "There is no such node",
    "trimmed": "The record is not in the log any more",
    "on-kafka": "The records are in Kafka",
    "standalone": "A standalone node has nobody to transfer to",
    "busy": "Too much is waiting to be written",
    "unavailable": "The log does not answer",
    "no-space": "The disk is full",
    "not-ready": "The node is not ready",
    "failed": "The node has failed",
    "stopping": "The node is stopping",
    "internal": "Something went wrong in Chronos",
}

_encode = msgspec.json.Encoder().encode


class ProblemError(Exception):
    """Ends a request with a problem; raised by handlers, answered by the server."""

    def __init__(
        self, status: int, kind: str, detail: str, *, hint: str | None = None, errors: list[Fault] | None = None
    ) -> None:
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
    """422: what was sent can be read, but not be done."""
    return ProblemError(422, "invalid", detail, hint=hint, errors=errors)


def wrong_field(field: str, detail: str) -> ProblemError:
    """422 for one field of a request that is no batch."""
    return invalid(f"{field}: {detail}", [Fault(field=field, detail=detail)])


def no_shard(shards: int) -> ProblemError:
    """404 for a number that is none."""
    return ProblemError(404, "no-shard", f"there are shards 0 to {shards - 1}")


def from_error(error: ChronosError) -> ProblemError:
    """What a failure of the log or of a store means for who asked."""
    if isinstance(error, NoSpace):
        return ProblemError(507, "no-space", str(error))
    if isinstance(error, LogUnavailable):
        return ProblemError(
            503, "unavailable", str(error), hint="try again; a message with an id of its own is never scheduled twice"
        )
    if isinstance(error, Retry):
        return ProblemError(503, "unavailable", str(error), hint="try again")
    return ProblemError(500, "failed", str(error))


def answer(problem: Problem, headers: dict[str, str] | None = None) -> web.Response:
    """The response."""
    response = web.Response(status=problem.status, body=_encode(problem), content_type=PROBLEM_JSON, headers=headers)
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
        hint="everything there is stands in /openapi.json" if error.status in (404, 405) else msgspec.UNSET,
    )
    allow = error.headers.get("Allow")
    return answer(problem, {"Allow": allow} if allow else None)


_DETAILS = {
    404: "nothing is served at this path",
    405: "this path does not take this method",
    413: "the body is larger than one request may be",
}
