"""Error answers (`application/problem+json`, RFC 9457), many with a hint what to do; and the check
of JSON against the types of `schemas`, which names errors by their fields.

The decoders of msgspec stop at the first error. They run first, on every request; a body or a query
that they refuse is checked again here, field by field, so that the answer lists the first error of
every field, of FAULTS_MAX fields at most. An array is one field."""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

import msgspec
from aiohttp import web
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import fields

from chronos.admin.http.schemas import FAULTS_MAX, PATTERN_TEXTS, Fault, Problem
from chronos.core.timefmt import DURATION_PATTERN, duration_advice
from chronos.errors import ChronosError, LogUnavailable, NoSpace, Retry

_Given = TypeVar("_Given")
_Made = TypeVar("_Made")

PROBLEM_JSON = "application/problem+json"

DIGITS_MAX = 9
"""Most digits of a number in a path: more than any of them has, and few enough to be converted at
once."""

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
    "not-pending": "The message is no longer pending",
    "not-applied": "Records that may be about this id are not applied yet",
    "no-dead-letter": "There is no dead letter with this id",
    "no-rejection": "There is no rejected record with this id",
    "no-topic": "There is no such topic",
    "closed-topic": "This topic is not shown",
    "no-partition": "There is no such partition",
    "no-shard": "There is no such shard",
    "no-checkpoints": "No location for checkpoints is configured",
    "no-trail": "The audit trail cannot be read here",
    "no-audits": "No folder of audits is configured",
    "no-audit": "There is no such audit",
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
    "registry-full": "The registry is full",
    "not-permitted": "The failover cannot be permitted",
    "transfer-refused": "The shard keeps its master",
    "drain-refused": "The node keeps its shards",
    "node-present": "The node is a member of the cluster",
    "trimmed": "The record is no longer in the log",
    "standalone": "A standalone node has no other node to transfer to",
    "not-audited": "The request cannot be written down",
    "busy": "Too many requests wait to be written",
    "unavailable": "The log does not answer",
    "too-few-in-sync": "Too few followers of the shard are in sync",
    "no-space": "The disk is full",
    "not-ready": "The node is not ready",
    "not-archived": "The archive is not up to date",
    "failed": "The node has failed",
    "stopping": "The node is stopping",
    "internal": "Something went wrong in Chronos",
}

_encode = msgspec.json.Encoder().encode

_DETAILS = {
    404: "there is nothing at this path",
    405: "this path does not support this method",
    413: "the body is larger than the limit of one request",
}

VALUES_MAX = 1_000_000
"""JSON values of a body, estimated from above, up to which all errors are searched for: some
hundred MB as Python objects. The answer to a body with more values has its first error only."""

NAME_SHOWN = 100
"""Characters of a name from a request that an error repeats."""

JSON_NAMES = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "a boolean",
    "object": "an object",
    "array": "an array",
    "null": "null",
}

UNIONS = (Union, UnionType)

T = TypeVar("T")

_TEXTS = {repr(pattern): text for pattern, text in PATTERN_TEXTS.items()}
_PATH = re.compile(r" - at .*$", re.DOTALL)
_INDEX = re.compile(r"(?:\[([0-9]+)\])?\.?(.*)", re.DOTALL)
_NAME = re.compile(r"Object (?:missing required|contains unknown) field `(.*)`", re.DOTALL)
_TYPE = re.compile(r"Expected `([a-z| ]+)`, got `([a-z]+)`")
_PATTERN = re.compile(r"Expected `str` matching regex (.*)", re.DOTALL)
_BOUND = re.compile(r"Expected `[a-z]+` (>=|<=) (-?[0-9]+)")
_LENGTH = re.compile(r"Expected `([a-z]+)` of length (>=|<=) ([0-9]+)")
_MULTIPLE = re.compile(r"Expected `int` that's a multiple of ([0-9]+)")


class ProblemError(Exception):
    """Ends a request with a problem. Handlers raise it, the server answers it."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        hint: str | None = None,
        errors: list[Fault] | None = None,
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
    """Return a ProblemError with status 422: the request can be read, but it is not valid."""
    return ProblemError(422, "invalid", detail, hint=hint, errors=errors)


def beyond_limits(token: str | None, what: str) -> ProblemError:
    """Return a ProblemError with status 429: the token has reached one of its limits."""
    return ProblemError(
        429,
        "beyond-limits",
        f"the token {token} has {what}, the most that it may have at a time on one node",
        hint="wait until one ends; `limits` in the file of `admin.tokens` sets the number",
    )


def wrong_field(field: str, detail: str) -> ProblemError:
    """422 for one field of a request, or one parameter."""
    return invalid(f"{field}: {detail}", [Fault(field=field, detail=detail)])


def converted(field: str, convert: Callable[[_Given], _Made], value: _Given) -> _Made:
    """The value of a field as `convert` makes it; ProblemError with status 422 if that raises
    ValueError."""
    try:
        return convert(value)
    except ValueError as error:
        raise wrong_field(field, str(error)) from None


def shard_number(text: str, shards: int) -> int:
    """The shard that a path names; ProblemError with status 404 if there is none of that number."""
    if not (text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX and int(text) < shards):
        raise ProblemError(404, "no-shard", f"there are shards 0 to {shards - 1}")
    return int(text)


def from_error(error: ChronosError, *, hint: str = "try again") -> ProblemError:
    """The problem for a failure of the log or of a store. `hint`: what to do when the log does not
    answer."""
    if isinstance(error, NoSpace):
        return ProblemError(507, "no-space", str(error))
    if isinstance(error, LogUnavailable):
        return ProblemError(503, "unavailable", str(error), hint=hint)
    if isinstance(error, Retry):
        return ProblemError(503, "unavailable", str(error), hint="try again")
    return ProblemError(500, "failed", str(error))


def answer(problem: Problem, headers: dict[str, str] | None = None) -> web.Response:
    """The response."""
    response = web.Response(
        status=problem.status, body=_encode(problem), content_type=PROBLEM_JSON, headers=headers
    )
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
        hint="/openapi.json lists all paths and methods"
        if error.status in (404, 405)
        else msgspec.UNSET,
    )
    allow = error.headers.get("Allow")
    return answer(problem, {"Allow": allow} if allow else None)


def decode_body(decode: Callable[[bytes], T], kind: Any, body: bytes) -> T:
    """The body, decoded; ProblemError with status 400 when it is not JSON, 422 with all errors when
    it does not fit `kind`."""
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        data = with_integers(decode_json(body, error))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(error) from None
    faults = list(check(data, kind))
    if faults:
        raise invalid_faults(faults)
    return cast(T, msgspec.convert(data, kind))


def decode_json(body: bytes, refused: msgspec.ValidationError) -> Any:
    """A refused body as plain Python values, to search it for all errors.

    ProblemError with status 400 when the body is not JSON, 422 with the first error when it has too
    many values."""
    if body.count(b",") + body.count(b"[") + body.count(b"{") > VALUES_MAX:
        fault = _first_fault(str(refused))
        raise invalid_faults([fault], is_batch=fault.index is not UNSET)
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(error) from None


def _first_fault(error: str) -> Fault:
    """The error that msgspec found first, with the index and the field of its path."""
    text, _, path = error.partition(" - at `$")
    index, field = _INDEX.fullmatch(path.rstrip("`")).groups("")  # type: ignore[union-attr]
    name = _NAME.search(text)
    if name is not None:
        field = f"{field}.{name[1]}".lstrip(".")
        text = "required field is missing" if "missing" in text else "unknown field"
    return Fault(
        detail=plain_text(text, None), field=field or UNSET, index=int(index) if index else UNSET
    )


def with_integers(data: Any) -> Any:
    """An object whose fields with numbers such as 5.0 are integers, which they are in JSON Schema
    and not in msgspec."""
    if not isinstance(data, dict):
        return data
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in data.items()
    }


def malformed(error: Exception) -> ProblemError:
    """Return a ProblemError with status 400: the body is not JSON."""
    return ProblemError(
        400, "malformed", str(error), hint="send one JSON object, or an array of them"
    )


def invalid_faults(
    faults: list[Fault],
    *,
    total: int | None = None,
    hint: str | None = None,
    is_batch: bool = False,
) -> ProblemError:
    """422 with at least one error: the detail repeats the first one and counts the others.

    `total` is the number of errors where `faults` holds only the first ones. The detail names the
    element of a batch."""
    assert faults
    total = len(faults) if total is None else total
    first = faults[0]
    index = f"message {first.index}" if is_batch else ""
    where = "".join(f"{part}: " for part in (index, first.field or "") if part)
    more = f" (and {total - 1} more)" if total > 1 else ""
    problem = invalid(f"{where}{first.detail}{more}", faults[:FAULTS_MAX], hint=hint)
    if total > FAULTS_MAX:
        problem.problem.errors_total = total
    return problem


def check(
    data: Any,
    kind: Any,
    *,
    strict: bool = True,
    noun: str = "field",
    path: str = "",
    suggests: bool = True,
) -> Iterator[Fault]:
    """The errors of decoded JSON against a type, in the order of the type's fields.

    `strict` is that of `msgspec.convert`. `noun` is the word for a field in the texts, `path` the
    field that `data` is from. `suggests`: errors for unknown names suggest a known one, which takes
    some time."""
    struct = _struct_of(kind)
    if struct is None or not isinstance(data, dict):
        text = _error(data, kind, strict=strict)
        if text is not None:
            yield Fault(detail=text, field=path or UNSET)
        return
    known = {each.encode_name: each for each in fields(struct)}
    for name, each in known.items():
        where = f"{path}.{name}" if path else name
        if name in data:
            yield from check(
                data[name], each.type, strict=strict, noun=noun, path=where, suggests=suggests
            )
        elif each.required:
            yield Fault(detail=f"required {noun} is missing", field=where)
    for count, name in enumerate(each for each in data if each not in known):
        shown = str(name)[:NAME_SHOWN]
        close = _meant(shown, known) if suggests and count < FAULTS_MAX else None
        meant = f"; did you mean {close}?" if close else ""
        yield Fault(detail=f"unknown {noun}{meant}", field=f"{path}.{shown}" if path else shown)


def _meant(name: str, known: Mapping[str, Any]) -> str | None:
    """The field that was meant: one of an object inside, or one with a similar name."""
    for outer, each in known.items():
        inner = _struct_of(each.type)
        if inner is not None and any(name == one.encode_name for one in fields(inner)):
            return f"{outer}.{name}"
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


def _error(data: Any, kind: Any, *, strict: bool) -> str | None:
    """Why the data is not of the type, in plain words; None: it is."""
    is_mapping = any(get_origin(each) is dict for each in _members(kind))
    for name, value in data.items() if is_mapping and isinstance(data, dict) else ():
        text = _convert_error({name: value}, kind, strict=strict)
        if text is not None:
            return f"{str(name)[:NAME_SHOWN]!r}: {text}"
    return _convert_error(data, kind, strict=strict)


def _convert_error(data: Any, kind: Any, *, strict: bool) -> str | None:
    try:
        msgspec.convert(data, kind, strict=strict)
    except msgspec.ValidationError as error:
        return plain_text(str(error), kind, data)
    return None


def plain_text(error: str, kind: Any, value: object = None) -> str:
    """The text of a msgspec error without type names of Python, regular expressions and paths; of
    a value that is known, with the form in which it can be written."""
    text = _PATH.sub("", error)
    if match := _TYPE.fullmatch(text):
        expected = [JSON_NAMES[name] for name in match[1].split(" | ") if name in JSON_NAMES]
        return f"must be {' or '.join(expected)}, not {JSON_NAMES.get(match[2], match[2])}"
    if match := _PATTERN.fullmatch(text):
        if match[1] == repr(DURATION_PATTERN) and isinstance(value, str):
            return f"is not a duration; {duration_advice(value)}"
        return _TEXTS.get(match[1], "has the wrong form")
    if match := _BOUND.fullmatch(text):
        return f"must be {'at least' if match[1] == '>=' else 'at most'} {match[2]}"
    if match := _LENGTH.fullmatch(text):
        unit = "characters" if match[1] == "str" else "elements"
        if (match[2], match[3]) == (">=", "1"):
            return "must not be empty"
        return f"must have {'at least' if match[2] == '>=' else 'at most'} {match[3]} {unit}"
    if match := _MULTIPLE.fullmatch(text):
        return f"must be a multiple of {match[1]}"
    if text.startswith("Invalid enum value"):
        choices = ", ".join(map(str, _choices(kind)))
        return f"must be one of {choices}" if choices else "is not one of the possible values"
    return text.replace("`", "")


def _struct_of(kind: Any) -> type[Struct] | None:
    """The one Struct of a type, which may be annotated or optional."""
    members = list(_members(kind))
    is_struct = (
        len(members) == 1 and isinstance(members[0], type) and issubclass(members[0], Struct)
    )
    return members[0] if is_struct else None


def _members(kind: Any) -> Iterator[Any]:
    """The types of a union, without annotations and without UNSET."""
    if get_origin(kind) is Annotated:
        yield from _members(get_args(kind)[0])
    elif get_origin(kind) in UNIONS:
        for each in get_args(kind):
            yield from _members(each)
    elif kind is not UnsetType:
        yield kind


def _choices(kind: Any) -> list[Any]:
    return [
        choice
        for each in _members(kind)
        if get_origin(each) is Literal
        for choice in get_args(each)
    ]


def query_faults(query: Mapping[str, Any], kind: type[Struct]) -> list[Fault]:
    """The errors of the parameters of a query."""
    return list(check(dict(query), kind, strict=False, noun="parameter"))
