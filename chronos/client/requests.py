"""Requests to the HTTP interface and the meaning of its answers, without any I/O; and the times and
durations that a Python program may give. Requests about dead letters are in `dead_letters`, those
to the registry in `servers`.

A bare number is refused as a time, and as a duration unless it is 0: its unit is never guessed.

Both clients send `HttpRequest` values and read the answers by `read_answer`. Lists are read page by
page by the clients. Any other call that takes several requests is a generator, such as `confirm`:
it yields requests and pauses, and the client sends back the answers."""

import base64
import json
import secrets
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypedDict, TypeVar, Unpack, cast
from urllib.parse import quote, urlencode

import msgspec

from chronos.client.models import (
    Job,
    JobAction,
    LatePolicy,
    ListedState,
    MessageInfo,
    NotFound,
    OnConflict,
    Outcome,
    Page,
    Refused,
    Rejected,
    Result,
    Scheduled,
    ServiceFailed,
)
from chronos.core.timefmt import format_time, looks_like_seconds, parse_duration_ms, parse_time_ms

Time = datetime | str
"""A `datetime` with a time zone, or RFC 3339 with an offset: `2030-01-31T09:00:00+01:00`."""

Delay = timedelta | str
"""A `timedelta`, or numbers with units: `250ms`, `1.5s`, `90s`, `15m`, `2h`, `1h30m`, `7d`,
`2w`."""

_EPOCH_START = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)

COME_BACK = frozenset({429, 502, 503, 504})
"""Statuses that ask the client to try again."""

ACTION_WAIT_S = 5.0
"""How long the service waits for an action to be applied before it answers."""

CHANGE_WAIT_S = 10.0
"""How long the service waits for the change of a rate limit to be in force before it answers."""

RHYTHMS = (["cron"], ["every"], ["backoff"])
"""First words of a repetition."""

PAGE_MESSAGES = 1_000
"""Messages of one page, the most that the service gives."""

CONFIRM_WAIT = "5s"
"""How long `wait=True` waits until the shard has applied a message: the same time as for an
action."""

FRESH_WAIT_S = 3.0
"""How long the service waits for the first page of a list until its shards have applied the log."""

OUTCOME_WAIT_S = 5.0
"""How long the service waits at most for one answer about the outcome of a message."""

JOB_EVERY_S = 0.2
"""Pause between two looks at a job."""

Bytes = bytes | str | None
"""Text is sent as UTF-8."""

HeaderValue = Bytes | Sequence[Bytes]
"""The value of a header; a sequence repeats the header, in order."""

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode
_scheduled = msgspec.json.Decoder(Scheduled).decode
_scheduled_many = msgspec.json.Decoder(list[Scheduled]).decode
_outcome = msgspec.json.Decoder(Outcome).decode
_result = msgspec.json.Decoder(Result).decode
_message_info = msgspec.json.Decoder(MessageInfo).decode
_job = msgspec.json.Decoder(Job).decode
_decode_jobs = msgspec.json.Decoder(dict[str, list[Job]]).decode

_page = msgspec.json.Decoder(Page).decode


def time_ms(value: Time) -> int:
    """Epoch milliseconds, rounded up; ValueError for a time without an offset and for a bare
    number."""
    if isinstance(value, datetime):
        if value.tzinfo is None or value.utcoffset() is None:
            raise ValueError(f"{value.isoformat()} has no time zone; give the datetime a tzinfo")
        return -((_EPOCH_START - value) // _MS)
    text = str(value)
    if _is_number(text):
        number = int(float(text))
        meant = format_time(number * 1_000 if looks_like_seconds(number) else number)
        raise ValueError(
            f"{text} is a bare number, not a time; write RFC 3339 with an offset, such as {meant}"
        )
    return parse_time_ms(text)


def delay_ms(value: Delay) -> int:
    """Milliseconds, rounded up; ValueError for a negative duration and for a bare number but 0."""
    if isinstance(value, timedelta):
        if value < timedelta():
            raise ValueError(f"{value!r} is negative; a delay is 0 or more")
        return -(-value // _MS)
    text = str(value)
    if _is_number(text) and text != "0":
        raise ValueError(f"{text} has no unit; write {text}s, {text}m or {text}ms")
    return parse_duration_ms(text)


def delay_text(value: Delay) -> str:
    """The duration as the service takes it, with a unit."""
    return f"{delay_ms(value)}ms"


def _is_number(text: str) -> bool:
    return text.removeprefix("-").replace(".", "", 1).isdecimal() and len(text) <= 20


class MessageOptions(TypedDict, total=False):
    """All options of a message, without its target topic and its value. See `message`."""

    deliver_at: Time | None
    delay: Delay | None
    id: str | bytes | None
    key: Bytes
    headers: Mapping[str, HeaderValue] | None
    on_conflict: OnConflict | None
    expire_at: Time | None
    attempts: int | None
    repeat: str | None
    repeat_times: int | None
    repeat_until: Time | None
    time_zone: str | None
    late_policy: LatePolicy | None
    spread: Delay | None


class FilterOptions(TypedDict, total=False):
    """All conditions of a filter. See `conditions`."""

    target: str | None
    due_from: Time | None
    due_to: Time | None
    id_prefix: str | bytes | None
    key: str | bytes | None
    headers: Mapping[str, str] | None
    contains: str | None
    series: bool


class HttpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP request."""

    method: str
    path: str
    decode: Callable[[bytes], Any]
    """From the body of a good answer to what the caller gets."""
    body: bytes | None = None
    repeatable: bool = True
    """True if sending it twice does what sending it once does."""
    wait_s: float = 0.0
    """How long the service may wait before it answers."""
    id: str | None = None
    """The id of the message that it concerns, as the HTTP interface writes it."""
    starts_job: bool = False
    """True if its answer is a job, which no other node than the one that answers knows."""
    job: str | None = None
    """The id of the job that it concerns."""
    key: str | None = None
    """Names the call (`Idempotency-Key`), the same at each repetition."""

    @property
    def headers(self) -> dict[str, str]:
        """The headers of its own."""
        content = {} if self.body is None else {"Content-Type": "application/json"}
        return content if self.key is None else content | {"Idempotency-Key": self.key}

    def as_json(self) -> "HttpRequest":
        """The same request, answered with the JSON of the service."""
        return msgspec.structs.replace(self, decode=json.loads)


def message(
    topic: str,
    value: Bytes = None,
    *,
    deliver_at: Time | None = None,
    delay: Delay | None = None,
    id: str | bytes | None = None,
    key: Bytes = None,
    headers: Mapping[str, HeaderValue] | None = None,
    on_conflict: OnConflict | None = None,
    expire_at: Time | None = None,
    attempts: int | None = None,
    repeat: str | None = None,
    repeat_times: int | None = None,
    repeat_until: Time | None = None,
    time_zone: str | None = None,
    late_policy: LatePolicy | None = None,
    spread: Delay | None = None,
) -> dict[str, Any]:
    """Return a message in the form of the HTTP interface, for `schedule_many`.

    `topic`         the topic to deliver to
    `value`         the payload; None is a null payload
    `deliver_at`    the due time; give either this or `delay`
    `delay`         time from the acceptance by the log to the due time
    `id`            a name of your choice, to find, cancel or replace the message by
    `key`           the Kafka key of the delivered message
    `headers`       passed through to the target
    `on_conflict`   the policy if the id is taken: `reject` (default), `replace`, `ignore`, or `upsert`, with which a pending message keeps its time
    `expire_at`     time after which the message is not delivered
    `attempts`      delivery attempts while the target refuses the message, at most the service's `delivery.attempts_max`
    `repeat`        makes it a series: `every 30s`, `backoff 1s 2 1h`, or `cron 0 9 * * 1-5`, which needs no time
    `repeat_times`  the number of occurrences
    `repeat_until`  no occurrence is due after this time
    `time_zone`     of the cron expression: `Europe/Lisbon`; UTC if absent
    `late_policy`   for missed occurrences: `fire-once` (default), `fire-all` or `skip`
    `spread`        the window in which it is delivered, from its due time on

    Raises ValueError or TypeError for arguments that cannot be sent.
    """  # noqa: E501
    target: dict[str, Any] = {"topic": _checked("topic", topic)} | _bytes_field("key", key)
    if headers:
        target["headers"] = {
            _checked("header", name): _header(content) for name, content in headers.items()
        }
    if repeat is not None:
        check_rhythm(repeat)
    found: dict[str, Any] = {"target": target} | (_bytes_field("value", value) or {"value": None})
    if deliver_at is not None or delay is not None or not is_cron(repeat):
        found |= _when(deliver_at, delay)
    if id is not None:
        found["id"] = id_text(id)
    if on_conflict is not None:
        found["on_conflict"] = on_conflict
    if expire_at is not None:
        found["expire_at"] = time_ms(expire_at)
    if attempts is not None:
        found["attempts"] = attempts
    if repeat_until is not None:
        found["repeat_until"] = time_ms(repeat_until)
    if spread is not None:
        found["spread"] = delay_text(spread)
    rhythm = {
        "repeat": repeat,
        "repeat_times": repeat_times,
        "time_zone": time_zone,
        "late_policy": late_policy,
    }
    return found | {name: option for name, option in rhythm.items() if option is not None}


def check_rhythm(repeat: str) -> None:
    """ValueError for a repetition that does not begin with a word for its kind, such as a cron
    expression alone."""
    if repeat.split()[:1] not in RHYTHMS:
        raise ValueError(
            f"repeat {repeat[:80]!r} is not a repetition: begin with cron, every or backoff"
            + (f"; write cron {repeat[:80]}" if len(repeat.split()) in (5, 6) else "")
        )


def is_cron(repeat: str | None) -> bool:
    """Return whether the series needs no time: its cron expression gives the first one."""
    return repeat is not None and repeat.lstrip().startswith("cron")


def conditions(
    *,
    target: str | None = None,
    due_from: Time | None = None,
    due_to: Time | None = None,
    id_prefix: str | bytes | None = None,
    key: str | bytes | None = None,
    headers: Mapping[str, str] | None = None,
    contains: str | None = None,
    series: bool = False,
) -> dict[str, Any]:
    """Return a filter of messages in the form of the HTTP interface: all conditions must be true of
    a message.

    `target`      its target topic, or a pattern such as `mail*`
    `due_from`    it is due at or after this time
    `due_to`      it is due before this time
    `id_prefix`   its id begins so; generated ids are included
    `key`         it is delivered with this Kafka key
    `headers`     it has these headers, among any others, with exactly these values
    `contains`    its id, its Kafka key, or the name or the value of a header contains this text
    `series`      it is a series, if True

    Raises ValueError or TypeError for arguments that cannot be sent.
    """
    found: dict[str, Any] = {}
    if target is not None:
        found["target"] = _checked("target", target)
    if due_from is not None:
        found["due_from"] = time_ms(due_from)
    if due_to is not None:
        found["due_to"] = time_ms(due_to)
    if due_from is not None and due_to is not None and found["due_from"] > found["due_to"]:
        raise ValueError("due_to lies before due_from, so that no message is in between")
    if id_prefix is not None:
        found["id_prefix"] = id_text(id_prefix)
    if key is not None:
        found["key"] = id_text(key)
    if headers:
        found["headers"] = {
            _checked("header", name): _checked("header", value) for name, value in headers.items()
        }
    if contains is not None:
        found["contains"] = _checked("contains", contains)
    if series:
        found["series"] = True
    return found


# --- Requests


def _key() -> str:
    """Return a name for one call."""
    return secrets.token_hex(16)


def schedule(
    messages: Mapping[str, Any] | Sequence[Mapping[str, Any]], wait: Delay | bool | None = None
) -> HttpRequest:
    """Schedule one message, or several together, made by `message`; with `wait`, at most
    OUTCOME_WAIT_S, return what became of them."""
    wait_ms = None if wait is None or wait is False else _wait_ms(wait)
    if wait_ms is not None and wait_ms > OUTCOME_WAIT_S * 1_000:
        raise ValueError(f"wait is at most {OUTCOME_WAIT_S:g} s")
    one = isinstance(messages, Mapping)
    each: Iterable[Mapping[str, Any]] = [messages] if isinstance(messages, Mapping) else messages
    repeatable = all("id" in found for found in each)
    return HttpRequest(
        method="POST",
        path="/v1/messages" if wait_ms is None else f"/v1/messages?wait={wait_ms}",
        body=_encode(messages),
        decode=_scheduled if one else _scheduled_many,
        repeatable=repeatable,
        wait_s=(wait_ms or 0) / 1_000,
        id=messages.get("id") if isinstance(messages, Mapping) else None,
        key=_key() if repeatable else None,
    )


def outcome(scheduled: Scheduled, wait_s: float) -> HttpRequest:
    """The outcome of a message that was scheduled, after a wait of at most OUTCOME_WAIT_S."""
    query = urlencode({"offset": scheduled.offset, "wait": int(wait_s * 1_000)})
    path = f"{_message_path(scheduled.id)}/outcome?{query}"
    return HttpRequest(method="GET", path=path, decode=_outcome, wait_s=wait_s, id=scheduled.id)


def get(id: str | bytes, *, payload: bool = False, rejections: bool = False) -> HttpRequest:
    """Everything known about a message."""
    asked = {"payload": payload, "rejections": rejections}
    query = urlencode({name: "true" for name, wanted in asked.items() if wanted})
    return HttpRequest(
        method="GET",
        path=_message_path(id) + (query and f"?{query}"),
        decode=_message_info,
        id=id_text(id),
    )


def cancel(id: str | bytes) -> HttpRequest:
    """Cancel a message."""
    return HttpRequest(
        method="DELETE",
        path=_message_path(id),
        decode=_result,
        wait_s=ACTION_WAIT_S,
        id=id_text(id),
        key=_key(),
    )


def reschedule(id: str | bytes, deliver_at: Time | None, delay: Delay | None) -> HttpRequest:
    """Give a pending message a new time."""
    return HttpRequest(
        method="PATCH",
        path=_message_path(id),
        body=_encode(_when(deliver_at, delay)),
        decode=_result,
        wait_s=ACTION_WAIT_S,
        id=id_text(id),
        key=_key(),
    )


def fire(id: str | bytes) -> HttpRequest:
    """Deliver a pending message now."""
    path = _message_path(id) + "/fire"
    return HttpRequest(
        method="POST",
        path=path,
        decode=_result,
        repeatable=False,
        wait_s=ACTION_WAIT_S,
        id=id_text(id),
    )


def pause(id: str | bytes, until: Time | None) -> HttpRequest:
    """Leave out the occurrences of a series until a time, or until it is resumed."""
    return HttpRequest(
        method="POST",
        path=_message_path(id) + "/pause",
        body=_encode({} if until is None else {"until": time_ms(until)}),
        decode=_result,
        wait_s=ACTION_WAIT_S,
        id=id_text(id),
        key=_key(),
    )


def resume(id: str | bytes) -> HttpRequest:
    """Let a paused series go on."""
    return HttpRequest(
        method="POST",
        path=_message_path(id) + "/resume",
        decode=_result,
        wait_s=ACTION_WAIT_S,
        id=id_text(id),
        key=_key(),
    )


def page(
    *,
    limit: int = PAGE_MESSAGES,
    after: str | None = None,
    state: ListedState = "pending",
    **conditions_: Unpack[FilterOptions],
) -> HttpRequest:
    """Some of the messages of which the filter is true, from the place `after` on.

    The first page has what was acknowledged before, unless its `behind` names shards that are not
    that far."""
    query: dict[str, Any] = {"limit": limit, **conditions(**conditions_)}
    if state != "pending":
        query["state"] = state
    query["header"] = [f"{name}={value}" for name, value in query.pop("headers", {}).items()]
    if "series" in query:
        query["series"] = "true"
    query |= {"fresh": "true"} if after is None else {"after": after}
    path = f"/v1/messages?{urlencode(query, doseq=True)}"
    return HttpRequest(
        method="GET", path=path, decode=_page, wait_s=FRESH_WAIT_S if after is None else 0.0
    )


def start_job(
    action: JobAction,
    matching: FilterOptions,
    deliver_at: Time | None = None,
    delay: Delay | None = None,
    until: Time | None = None,
) -> HttpRequest:
    """Start a bulk operation on all pending messages of which the filter is true."""
    content: dict[str, Any] = {"action": action, "filter": conditions(**matching)}
    if action == "reschedule":
        content |= _when(deliver_at, delay)
    if until is not None:
        content["until"] = time_ms(until)
    return HttpRequest(
        method="POST",
        path="/v1/jobs",
        body=_encode(content),
        decode=_job,
        repeatable=False,
        starts_job=True,
    )


def job(id: str) -> HttpRequest:
    """The current state of a job."""
    return HttpRequest(method="GET", path=_job_path(id), decode=_job, job=id)


def jobs() -> HttpRequest:
    """The jobs of the node asked."""
    return HttpRequest(method="GET", path="/v1/jobs", decode=_jobs)


def stop_job(id: str) -> HttpRequest:
    """Stop a job."""
    return HttpRequest(
        method="DELETE", path=_job_path(id), decode=_job, wait_s=ACTION_WAIT_S, job=id
    )


def records(topic: str, partition: int, offset: int | None, limit: int, wait: Delay) -> HttpRequest:
    """Records of one partition of a topic."""
    wait_ms = delay_ms(wait)
    query: dict[str, Any] = {"partition": partition, "limit": limit, "wait": wait_ms}
    if offset is not None:
        query["offset"] = offset
    path = f"/v1/topics/{quote(topic, safe='')}/records?{urlencode(query)}"
    return HttpRequest(method="GET", path=path, decode=json.loads, wait_s=wait_ms / 1_000)


def rates(topic: str | None) -> HttpRequest:
    """The rate limits and lanes, or those of one topic."""
    return ask("/v1/rates", {} if topic is None else {"topic": _checked("topic", topic)})


def set_rate(pattern: str, rate: str) -> HttpRequest:
    """Set the rate limit of the topics that match a pattern."""
    body = _encode({"rate": _checked("rate", rate)})
    return HttpRequest(
        method="PUT", path=_rate_path(pattern), body=body, decode=json.loads, wait_s=CHANGE_WAIT_S
    )


def remove_rate(pattern: str) -> HttpRequest:
    """Remove a rate limit that was set at run time."""
    return HttpRequest(
        method="DELETE",
        path=_rate_path(pattern),
        decode=json.loads,
        repeatable=False,
        wait_s=CHANGE_WAIT_S,
    )


def ask(path: str, query: Mapping[str, Any]) -> HttpRequest:
    """Any GET, answered with JSON. A list in the query repeats its name."""
    return HttpRequest(
        method="GET",
        path=f"{path}?{urlencode(query, doseq=True)}" if query else path,
        decode=json.loads,
    )


def post(path: str) -> HttpRequest:
    """A POST without a body, answered with JSON."""
    return HttpRequest(method="POST", path=path, decode=json.loads, repeatable=False)


# --- Answers


def read_answer(request: HttpRequest, status: int, body: bytes) -> Any:
    """The decoded answer; a problem is raised as the error it means."""
    if status < 300:
        try:
            return request.decode(body)
        except (ValueError, msgspec.MsgspecError) as error:
            raise ServiceFailed(
                f"the answer to {request.method} {request.path} is not from Chronos: {error}"
            ) from None
    try:
        problem = json.loads(body)
        text = str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        raise ServiceFailed(
            f"the answer to {request.method} {request.path} was a {status} without a reason: is "
            "this Chronos?"
        ) from None
    if "hint" in problem:
        text += f" ({problem['hint']})"
    if status == 404:
        raise NotFound(text)
    if status in (409, 410) or status >= 500 or status == 429:
        raise ServiceFailed(text)
    raise Refused(text, problem.get("errors", ()))


Steps = Generator[HttpRequest | float, Any, T]
"""Yields requests, whose answers are sent back, and pauses in seconds; returns its result."""


def _wait_ms(wait: Delay | Literal[True]) -> int:
    """Return the time to wait until a shard has applied what was scheduled; True stands for
    CONFIRM_WAIT."""
    return delay_ms(CONFIRM_WAIT if wait is True else wait)


def confirm(
    scheduled: Scheduled, wait: Delay | Literal[True], on_conflict: OnConflict | None
) -> Steps[Scheduled]:
    """Wait until the shard has applied the message, and return it with the result; Rejected if it
    was not accepted."""
    deadline_s = time.monotonic() + _wait_ms(wait) / 1_000
    while True:
        left_s = max(0.0, deadline_s - time.monotonic())
        try:
            found: Outcome = yield outcome(scheduled, min(left_s, OUTCOME_WAIT_S))
        except NotFound as error:
            # It was applied long ago; or it is settled and its retention is over.
            return msgspec.structs.replace(scheduled, detail=str(error))
        if found.result != "accepted" or found.detail is not None or left_s == 0:
            break
    result = found.result
    if result == "conflict" and on_conflict == "ignore":
        result = "ignored"  # as the service says itself, unless it was restarted since
    known = msgspec.structs.replace(
        scheduled,
        result=result,
        detail=found.detail,
        due_at=found.due_at or scheduled.due_at,
    )
    if result in ("conflict", "rejected"):
        raise Rejected(f"{scheduled.id} was rejected: {found.detail}", known)
    return known


def follow_job(started: Job, wait: Delay) -> Steps[Job]:
    """Look at a job until it has ended, or until the time is over."""
    deadline_s = time.monotonic() + delay_ms(wait) / 1_000
    found = started
    while found.state == "running" and time.monotonic() < deadline_s:
        yield JOB_EVERY_S
        found = yield job(started.id)
    return found


# --- Fields


def id_text(id: str | bytes) -> str:
    """An id as the HTTP interface writes it: bytes that are not UTF-8 in base64."""
    if isinstance(id, str):
        return _checked("id", id)
    if not isinstance(id, bytes):
        raise TypeError(f"id must be str or bytes, not {type(id).__name__}")
    text = _utf8(id)
    return text if text is not None and not text.startswith("base64:") else f"base64:{_base64(id)}"


def id_bytes(text: str) -> bytes:
    """The bytes of an id as the HTTP interface writes it."""
    encoded = text.removeprefix("base64:")
    return text.encode() if encoded == text else base64.b64decode(encoded)


def id_path(id: str | bytes) -> str:
    """An id as a part of a path."""
    text = id_text(id)
    if not text.strip("."):
        # Clients and proxies take dots for steps in the path.
        text = f"base64:{_base64(text.encode())}"
    return quote(text, safe="")


def _message_path(id: str | bytes) -> str:
    return f"/v1/messages/{id_path(id)}"


def _job_path(id: str) -> str:
    return f"/v1/jobs/{quote(_checked('id', id), safe='')}"


def _rate_path(pattern: str) -> str:
    return f"/v1/rates/{quote(_checked('pattern', pattern), safe='')}"


def _when(deliver_at: Time | None, delay: Delay | None) -> dict[str, Any]:
    if deliver_at is not None and delay is not None:
        raise ValueError("give deliver_at or delay, not both")
    if deliver_at is not None:
        return {"deliver_at": time_ms(deliver_at)}
    if delay is not None:
        return {"delay": delay_text(delay)}
    raise ValueError("give deliver_at or delay: when to deliver")


def _bytes_field(name: str, content: Bytes) -> dict[str, Any]:
    if content is None:
        return {}
    if isinstance(content, str):
        return {name: _checked(name, content)}
    if not isinstance(content, bytes):
        raise TypeError(
            f"{name} must be str, bytes or None, not "
            f"{type(content).__name__}{_how_to_encode(content)}"
        )
    text = _utf8(content)
    return {name: text} if text is not None else {f"{name}_base64": _base64(content)}


def _how_to_encode(content: object) -> str:
    return (
        "; encode it, for example with json.dumps"
        if isinstance(content, dict | list | tuple | int | float)
        else ""
    )


def _header(content: HeaderValue) -> Any:
    if content is None:
        return None
    if isinstance(content, str | bytes):
        ((name, encoded),) = _bytes_field("header", content).items()
        return encoded if name == "header" else {"base64": encoded}
    if not isinstance(content, Sequence):
        raise TypeError(
            f"a header must be str, bytes, None or a list of these, not {type(content).__name__}"
        )
    return [_header(one) for one in cast(Sequence[Bytes], content)]


def _checked(name: str, text: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{name} must be str, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} {text[:80]!r} is not valid text; give its bytes") from None
    return text


def _utf8(content: bytes) -> str | None:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _jobs(body: bytes) -> list[Job]:
    return _decode_jobs(body)["jobs"]
