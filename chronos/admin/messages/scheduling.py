"""The writing of messages and actions from HTTP: JSON becomes records of the delay topic, and the
records of many requests are written together.

Errors are reported by field, before anything is written, and those of all messages of a request at
once: of each message all errors of its form (fields that are missing, unknown or of a wrong type),
or else the first error in its values. The requests that arrive during a write go together into the
next one: a disk or a broker acknowledges few large writes faster than many small ones. The order of
the requests is kept."""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import NamedTuple

import msgspec
from msgspec import UNSET, Struct, UnsetType

from chronos.admin.http.access import check_given_id, check_target
from chronos.admin.http.encoding import from_base64, headers_in, id_bytes, id_text, to_bytes
from chronos.admin.http.problems import (
    check,
    converted,
    decode_json,
    invalid,
    invalid_faults,
    malformed,
    with_integers,
    wrong_field,
)
from chronos.admin.http.schemas import (
    BATCH_MAX,
    FAULTS_MAX,
    Fault,
    HeaderValues,
    Message,
    Reschedule,
)
from chronos.admin.http.tokens import Sender
from chronos.core.cron import next_cron
from chronos.core.keys import parse_generated_id, partition_of
from chronos.core.message import (
    ACTION,
    ATTEMPTS,
    CALL,
    DELAY,
    DELIVER_AT,
    EXPIRE_AT,
    ID,
    LATE_POLICY,
    ON_CONFLICT,
    PREFIX,
    RECEIPT,
    REPEAT,
    REPEAT_TIMES,
    REPEAT_UNTIL,
    SPREAD,
    TARGET_KEY,
    TARGET_TOPIC,
    TIME_ZONE,
    Entry,
    LatePolicy,
    Reason,
    Record,
    Rejection,
    header_of,
)
from chronos.core.series import (
    check_units,
    is_paused,
    parse_repetition,
    planned_ms,
    repetition_of,
    resumed_ms,
)
from chronos.core.shard.parsing import parse, repeats_by_cron
from chronos.core.shard.rules import Rules
from chronos.core.size import batch_bytes
from chronos.core.timefmt import (
    check_unit,
    format_duration,
    format_time,
    parse_duration_ms,
    parse_time_ms,
)
from chronos.core.values import bad_value
from chronos.ports import Appended, Outgoing, RecordLog

GROUP_RECORDS = 5_000
"""Records of several requests in one write: as many as a step pulls."""

GROUP_BYTES = 8_000_000
"""Bytes of several requests in one write."""

TIMEOUT_S = 15.0
"""How long the log may take to acknowledge, from the request on."""

WRITE_S_MIN = 1.0
"""The least time that the log has to acknowledge, for requests that waited behind another write."""

Waiting = tuple[Sequence[Outgoing], int, float, asyncio.Future[list[Appended]]]
"""Records, their size in bytes, the deadline by the loop's clock, the result."""


class RequestAppender:
    """The only writer of the HTTP interface. For one event loop."""

    def __init__(self, log: RecordLog, executor: Executor) -> None:
        self._log = log
        self._executor = executor
        self._waiting: deque[Waiting] = deque()
        self._writing: asyncio.Task[None] | None = None

    async def append(self, records: Sequence[Outgoing], size_bytes: int) -> list[Appended]:
        """Write the records in order, and return once all of them are durable. What may wait is
        bounded by `bodies`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Appended]] = loop.create_future()
        self._waiting.append((records, size_bytes, loop.time() + TIMEOUT_S, future))
        if self._writing is None:
            self._writing = loop.create_task(self._write_all())
        return await future

    async def _write_all(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                group = self._next_group()
                records = [record for batch, *_ in group for record in batch]
                timeout_s = max(WRITE_S_MIN, group[0][2] - loop.time())
                try:
                    appended = await loop.run_in_executor(
                        self._executor, self._log.append, records, timeout_s
                    )
                except Exception as error:
                    for *_, future in group:
                        if not future.done():
                            future.set_exception(error)
                    continue
                start = 0
                for batch, _, _, future in group:
                    if not future.done():
                        future.set_result(appended[start : start + len(batch)])
                    start += len(batch)
        finally:
            self._writing = None

    def _next_group(self) -> list[Waiting]:
        """The next requests, at least one, as many as fit into one write."""
        taken = [self._waiting.popleft()]
        count, size = len(taken[0][0]), taken[0][1]
        while self._waiting:
            batch, batch_bytes, *_ = self._waiting[0]
            count, size = count + len(batch), size + batch_bytes
            if count > GROUP_RECORDS or size > GROUP_BYTES:
                break
            taken.append(self._waiting.popleft())
        return taken


FIELDS = {
    DELIVER_AT: "deliver_at",
    DELAY: "delay",
    TARGET_TOPIC: "target.topic",
    TARGET_KEY: "target.key",
    ON_CONFLICT: "on_conflict",
    EXPIRE_AT: "expire_at",
    ATTEMPTS: "attempts",
    REPEAT_TIMES: "repeat_times",
    REPEAT_UNTIL: "repeat_until",
    REPEAT: "repeat",
    TIME_ZONE: "time_zone",
    LATE_POLICY: "late_policy",
    SPREAD: "spread",
}
"""The field from which a control header is made; a header comes before one whose name its own
begins with."""

TIME_FIELDS = frozenset({"deliver_at", "delay"})
"""Fields of which a message needs one."""

VALUE_FIELDS = frozenset({"value", "value_base64"})
"""Fields of which a message needs one: without a payload it would be a tombstone."""

PAST_WARNED_MS = 60_000
"""A due time further in the past than this was perhaps not meant: clocks and networks explain
less."""

_REASON_FIELDS = {
    Reason.BAD_ID: "id",
    Reason.RESERVED_ID: "id",
    Reason.WRONG_SHARD: "id",
    Reason.RESERVED_TARGET: "target.topic",
    Reason.FORBIDDEN_TARGET: "target.topic",
}

_decode: Callable[[bytes], Message | list[Message]] = msgspec.json.Decoder(
    Message | list[Message]
).decode


class Planned(Struct, frozen=True, gc=False):
    """A message ready to be written, and what its answer needs."""

    record: Outgoing
    id: str | None
    """The user's id; None: the message gets a generated id."""
    due_ms: int
    is_delay: bool
    """`due_ms` counts from the broker's timestamp."""
    bytes: int
    target: str
    """The target topic."""
    replaces: bool = False
    """True if it replaces the pending message with its id."""
    first: tuple[str, str] | None = None
    """Cron expression and time zone, if the first time of a series is left to them."""


class ManyExpressions(Exception):
    """Messages have more different cron expressions than may be checked here."""


class _FieldError(Exception):
    """One field of a message is not valid."""

    def __init__(self, field: str, detail: str, reason: str | None = None) -> None:
        self.fault = Fault(field=field, detail=detail, reason=UNSET if reason is None else reason)
        super().__init__(detail)


KnowsCall = Callable[[int, bytes | None, bytes | None], bool]
"""Whether shard, id and token are those of a call that was executed before. Then the shard refuses
its record as repeated, even one that would be rejected by now."""


class Planner:
    """Turns messages into records. Any thread may call."""

    def __init__(
        self,
        *,
        rules: Sequence[Rules],
        delay_topic: str,
        bytes_max: int,
        knows_call: KnowsCall,
    ) -> None:
        self._rules = rules
        self._knows_call = knows_call
        self._delay_topic = delay_topic
        self._bytes_max = bytes_max
        self._turn = itertools.count()

    def plan_body(
        self,
        body: bytes,
        now_ms: int,
        *,
        sender: Sender,
        expressions_max: int,
        go_on: Callable[[], None],
        call: str | None = None,
    ) -> tuple[list[Planned], bool]:
        """The messages of a request body as records, and whether the body is an array.

        `expressions_max`: different cron expressions that are checked. `go_on`: called before each
        message; raises what ends the work. `call`: the name of the call, to which an array adds
        the index of each message. Raises ProblemError with every error of every message:
        400 when the body is not JSON, else 422; 403 for the first message that is not the sender's
        own; ManyExpressions."""
        try:
            decoded = _decode(body)
        except msgspec.ValidationError as error:
            decoded = decode_json(body, error)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise malformed(error) from None
        is_batch = isinstance(decoded, list)
        messages = decoded if isinstance(decoded, list) else [decoded]
        if not 0 < len(messages) <= BATCH_MAX:
            raise invalid(
                f"{len(messages)} messages in one request",
                [Fault(detail=f"send 1 to {BATCH_MAX} messages at once")],
            )
        planned = self._plan_all(messages, now_ms, is_batch, expressions_max, go_on, call)
        if sender.is_limited:
            for one in planned:
                check_target(sender, one.target)
                if (key := one.record[1]) is not None:
                    check_given_id(sender, key)
        return planned, is_batch

    def _plan_all(
        self,
        messages: Sequence[object],
        now_ms: int,
        is_batch: bool,
        expressions_max: int,
        go_on: Callable[[], None],
        call: str | None,
    ) -> list[Planned]:
        """All messages as records; ProblemError with every error. What is no Message is checked as
        plain JSON."""
        planned: list[Planned] = []
        faults: list[Fault] = []
        expressions: set[str] = set()
        total = 0
        for index, message in enumerate(messages):
            go_on()
            repeat = (
                message.get("repeat")
                if isinstance(message, dict)
                else getattr(message, "repeat", UNSET)
            )
            if isinstance(repeat, str) and _is_cron(repeat):
                expressions.add(repeat)
                if len(expressions) > expressions_max:
                    raise ManyExpressions
            found = self._plan_or_faults(
                message,
                now_ms,
                suggests=len(faults) < FAULTS_MAX,
                call=f"{call}/{index}" if call and is_batch else call,
            )
            if isinstance(found, Planned):
                planned.append(found)
                continue
            total += len(found)
            for fault in found[: FAULTS_MAX - len(faults)]:
                fault.index = index if is_batch else UNSET
                faults.append(fault)
        if faults:
            several = len(messages) > 1
            hint = "nothing of this request was written" if several else None
            raise invalid_faults(faults, total=total, hint=hint, is_batch=several)
        return planned

    def _plan_or_faults(
        self, message: object, now_ms: int, *, suggests: bool, call: str | None
    ) -> Planned | list[Fault]:
        if not isinstance(message, Message):
            data = with_integers(message)
            faults = list(check(data, Message, suggests=suggests))
            if faults:
                if (
                    isinstance(data, dict)
                    and not TIME_FIELDS & data.keys()
                    and not _is_cron(data.get("repeat"))
                ):
                    faults.append(_no_time(data.get("repeat")).fault)
                if isinstance(data, dict) and not VALUE_FIELDS & data.keys():
                    faults.append(_no_value().fault)
                return faults
            message = msgspec.convert(data, Message)
        try:
            return self._plan(message, now_ms, call)
        except _FieldError as error:
            return [error.fault]

    def _plan(self, message: Message, now_ms: int, call: str | None) -> Planned:
        target = message.target
        control: dict[str, bytes | None] = {TARGET_TOPIC: _bytes("target.topic", target.topic)}
        first = None
        if message.deliver_at is UNSET and message.delay is UNSET and _is_cron(message.repeat):
            due_ms, is_delay = 0, True
            first = (
                str(message.repeat).strip()[4:].strip(),
                "" if message.time_zone is UNSET else message.time_zone,
            )
        else:
            due_ms, is_delay = _due(message)
            time_header, text = _time_header(due_ms, is_delay)
            control[time_header] = text
        message_id = None if message.id is UNSET else _id(message.id)
        if target.key is not None or target.key_base64 is not UNSET:
            control[TARGET_KEY] = _either("target.key", target.key, target.key_base64)
        if message.on_conflict is not UNSET:
            control[ON_CONFLICT] = message.on_conflict.encode()
        if message.expire_at is not UNSET:
            control[EXPIRE_AT] = b"%d" % _time_ms("expire_at", message.expire_at)
        if message.attempts is not UNSET:
            control[ATTEMPTS] = b"%d" % message.attempts
        if call is not None and message_id is not None:
            control[CALL] = call.encode()
        control |= _options(message)
        pairs = list(control.items())
        headers: dict[str, bytes | None] | list[tuple[str, bytes | None]] = control
        if target.headers:
            own = _own_headers(target.headers, self._rules[0])
            pairs += own
            headers = control | dict(own)
            if len(headers) != len(pairs):
                headers = pairs
        if message.value is UNSET and message.value_base64 is UNSET:
            raise _no_value()
        value = _either(
            "value", None if message.value is UNSET else message.value, message.value_base64
        )
        shards = len(self._rules)
        shard = (
            next(self._turn) % shards if message_id is None else partition_of(message_id, shards)
        )
        size = self._size(message_id, value, pairs)
        parsed = parse(Record(0, now_ms, message_id, value, pairs), self._rules[shard])
        if type(parsed) is Rejection and not self._knows_call(shard, parsed.id, parsed.call):
            raise _rejected(parsed)
        return Planned(
            record=(self._delay_topic, message_id, value, headers, shard),
            id=None if message_id is None else id_text(message_id),
            due_ms=due_ms,
            is_delay=is_delay,
            bytes=size,
            target=target.topic,
            replaces=message.on_conflict in ("replace", "upsert"),
            first=first,
        )

    def _size(
        self, key: bytes | None, value: bytes | None, pairs: list[tuple[str, bytes | None]]
    ) -> int:
        """Size of the record in bytes; an estimate where it is far below the limit."""
        rough = len(value or b"") + len(key or b"") + 1_024
        if len(pairs) <= 4 and rough * 2 < self._bytes_max:
            return rough
        # The embedded log's own format takes up to four bytes a header more than Kafka's.
        exact = batch_bytes(key, value, pairs) + 4 * len(pairs)
        if exact > self._bytes_max:
            raise _FieldError(
                "value",
                f"the record would take {exact} bytes, more than topics.message_bytes_max"
                f" ({self._bytes_max})",
                Reason.TOO_LARGE.label,
            )
        return exact


def time_ms(value: int | str) -> int:
    """Epoch milliseconds of a time in a request; ValueError with a text for users."""
    return parse_time_ms(value if isinstance(value, str) else str(value))


def duration_ms(value: int | str) -> int:
    """Milliseconds of a duration in a request; ValueError with a text for users."""
    return parse_duration_ms(value if isinstance(value, str) else str(value))


def past_warnings(due_ms: int, now_ms: int) -> list[str] | UnsetType:
    """The warning about a due time in the past."""
    if due_ms >= now_ms - PAST_WARNED_MS:
        return UNSET
    seconds = (now_ms - due_ms) // 1_000
    ago = next((f"{seconds // unit} {name}" for name, unit in _AGO if seconds >= 2 * unit))
    return [f"due at {format_time(due_ms)}, {ago} ago"]


_AGO = (("days", 86_400), ("hours", 3_600), ("minutes", 60), ("seconds", 1))


def _is_cron(repeat: object) -> bool:
    return isinstance(repeat, str) and repeats_by_cron({REPEAT: repeat.encode(errors="replace")})


def _options(message: Message) -> dict[str, bytes | None]:
    """The control headers of a repetition and of a spread; their values are checked with the
    record."""
    texts: dict[str, str | int | UnsetType] = {
        REPEAT: message.repeat,
        REPEAT_TIMES: message.repeat_times,
        TIME_ZONE: message.time_zone,
        LATE_POLICY: message.late_policy,
    }
    found: dict[str, bytes | None] = {
        name: _bytes(FIELDS[name], str(text)) for name, text in texts.items() if text is not UNSET
    }
    if message.repeat is not UNSET:
        try:
            check_units(message.repeat)
        except ValueError as error:
            raise _FieldError("repeat", str(error), Reason.BAD_VALUE.label) from None
    if message.spread is not UNSET:
        found[SPREAD] = b"%dms" % _delay_ms("spread", message.spread)
    if message.repeat_until is not UNSET:
        found[REPEAT_UNTIL] = b"%d" % _time_ms("repeat_until", message.repeat_until)
    return found


def new_time(request: Reschedule) -> tuple[str, bytes]:
    """The control header for the new time of a `reschedule`."""
    try:
        due_ms, is_delay = _due(request)
    except _FieldError as error:
        raise invalid_faults([error.fault]) from None
    return _time_header(due_ms, is_delay)


class Rhythm(NamedTuple):
    """The new time of a series that is paused, or goes on: the first one of its rhythm."""

    now_ms: int
    from_ms: int | None
    """From when on (epoch ms); None: as late as a message may be due."""
    resumes: bool = False

    def time(self, entry: Entry, rules: Rules) -> tuple[str, bytes] | None:
        """The control header for it; None if a series that is not paused shall go on. ProblemError
        if the message is not a series, or cannot be moved there."""
        repetition = repetition_of(entry)
        if repetition is None:
            raise wrong_field(
                "id", "is not a series; `chronos reschedule` gives a message another time"
            )
        if repetition.late_policy == LatePolicy.FIRE_ALL and not self.resumes:
            raise wrong_field(
                "id",
                "makes up for all that it misses (late policy fire-all), so that a pause would "
                "leave out nothing; cancel it, or edit its late policy",
            )
        try:
            if self.resumes and not is_paused(entry, self.now_ms, next_cron):
                return None
            found_ms = resumed_ms(
                entry,
                planned_ms(entry, repetition) + 1 if self.from_ms is None else self.from_ms,
                next_cron,
            )
        except ValueError as error:
            raise wrong_field("id", f"the next time cannot be computed: {error}") from None
        reach = format_duration(rules.max_delay_ms)
        if found_ms is None and self.from_ms is not None:
            raise wrong_field(
                "id",
                f"has no time in its rhythm from {format_time(self.from_ms)} on; cancel it, or "
                "reschedule it for one more time",
            )
        if found_ms is not None and found_ms > self.now_ms + rules.max_delay_ms:
            raise wrong_field(
                "id",
                f"its next time would be {format_time(found_ms)}, more than {reach} ahead, the "
                "limit set by limits.max_delay",
            )
        if self.from_ms is None or found_ms is None:
            return _time_header(rules.max_delay_ms, True)
        return _time_header(found_ms, False)


def resumed(now_ms: int) -> Rhythm:
    """The time of a series that goes on now."""
    return Rhythm(now_ms, now_ms, resumes=True)


def paused(until: int | str | UnsetType, now_ms: int, rules: Rules) -> Rhythm:
    """The time of a series that is paused; ProblemError if the end is not ahead, or too far."""
    if until is UNSET:
        return Rhythm(now_ms, None)
    until_ms = converted("until", time_ms, until)
    if until_ms <= now_ms:
        raise wrong_field("until", "is not ahead; `chronos resume` lets a series go on at once")
    if until_ms > now_ms + rules.max_delay_ms:
        raise wrong_field(
            "until",
            f"is more than {format_duration(rules.max_delay_ms)} ahead, the limit set by "
            "limits.max_delay; without it the series is paused until it is resumed",
        )
    return Rhythm(now_ms, until_ms)


def due_of(header: tuple[str, bytes], timestamp_ms: int) -> int:
    """The due time (epoch ms) that follows from the header of `Rhythm.time` and the timestamp of
    its record."""
    name, value = header
    return int(value) if name == DELIVER_AT else timestamp_ms + int(value.removesuffix(b"ms"))


def _time_header(due_ms: int, is_delay: bool) -> tuple[str, bytes]:
    return (DELAY, b"%dms" % due_ms) if is_delay else (DELIVER_AT, b"%d" % due_ms)


def plan_action(
    message_id: bytes,
    verb: str,
    time: tuple[str, bytes] | None,
    rules: Rules,
    delay_topic: str,
    now_ms: int,
    call: str | None = None,
    knows_call: KnowsCall = lambda *_: False,
) -> Outgoing:
    """The record of an action; ProblemError with status 422 when the shard would reject it as not
    valid. `call`: the name of its call."""
    headers: dict[str, bytes | None] = {ACTION: verb.encode()}
    key: bytes | None = message_id
    if parse_generated_id(message_id, rules.shards) is not None:
        key, headers[ID] = None, message_id
    if time is not None:
        headers[time[0]] = time[1]
    if call is not None:
        headers[CALL] = call.encode()
    parsed = parse(Record(0, now_ms, key, None, list(headers.items())), rules)
    if type(parsed) is Rejection and not knows_call(rules.shard, parsed.id, parsed.call):
        raise invalid_faults([_rejected(parsed).fault])
    return delay_topic, key, None, headers, rules.shard


def _due(message: Message | Reschedule) -> tuple[int, bool]:
    """`(milliseconds, True if they count from the broker's timestamp)`."""
    if message.deliver_at is not UNSET:
        if message.delay is not UNSET:
            raise _FieldError(
                "delay", "deliver_at and delay are both given", Reason.CONTRADICTORY_HEADERS.label
            )
        return _time_ms("deliver_at", message.deliver_at), False
    if message.delay is UNSET:
        raise _no_time(message.repeat if isinstance(message, Message) else UNSET)
    return _delay_ms("delay", message.delay), True


def _no_time(repeat: object) -> _FieldError:
    """The error of a message without a time; that of its repetition, if it is none: only the kind
    of a repetition tells whether a time is needed."""
    if isinstance(repeat, str):
        try:
            parse_repetition(repeat)
        except ValueError as error:
            return _FieldError("repeat", str(error), Reason.BAD_VALUE.label)
    return _FieldError("deliver_at", "neither deliver_at nor delay is given", Reason.NO_TIME.label)


def _no_value() -> _FieldError:
    return _FieldError(
        "value", "neither value nor value_base64 is given; null is a null payload, a tombstone"
    )


def _time_ms(field: str, value: int | str) -> int:
    try:
        return time_ms(value)
    except ValueError as error:
        raise _bad_value(field, error) from None


def _delay_ms(field: str, value: int | str) -> int:
    try:
        check_unit(str(value))
        return duration_ms(value)
    except ValueError as error:
        raise _bad_value(field, error) from None


def _bad_value(field: str, error: ValueError) -> _FieldError:
    rejection = bad_value(field, error)
    return _FieldError(field, str(error), rejection.reason.label)


def _id(text: str) -> bytes:
    try:
        return id_bytes(text)
    except ValueError as error:
        raise _FieldError("id", str(error), Reason.BAD_ID.label) from None


def _bytes(field: str, text: str) -> bytes:
    try:
        return to_bytes(text)
    except ValueError as error:
        raise _FieldError(field, str(error), Reason.BAD_VALUE.label) from None


def _either(field: str, text: str | None, base64: str | UnsetType) -> bytes | None:
    """The bytes of a value that is given as text or in base64."""
    if base64 is UNSET:
        return None if text is None else _bytes(field, text)
    if text is not None:
        raise _FieldError(
            f"{field}_base64",
            f"{field} is given too; give one of them",
            Reason.CONTRADICTORY_HEADERS.label,
        )
    try:
        return from_base64(base64)
    except ValueError as error:
        raise _FieldError(f"{field}_base64", str(error), Reason.BAD_VALUE.label) from None


def _own_headers(headers: HeaderValues, rules: Rules) -> list[tuple[str, bytes | None]]:
    """The user's headers without the receipt of an earlier delivery; names of control headers are
    refused."""
    try:
        pairs = headers_in(headers)
    except ValueError as error:
        raise _FieldError("target.headers", str(error), Reason.BAD_VALUE.label) from None
    own = []
    for name, value in pairs:
        if name in rules.names_seen:
            own.append((name, value))
            continue
        try:
            header = header_of(name)
        except ValueError as error:
            raise _FieldError("target.headers", str(error), Reason.UNKNOWN_HEADER.label) from None
        if header is None:
            rules.remember_name(name)
            own.append((name, value))
        elif header not in RECEIPT:
            raise _FieldError(
                "target.headers",
                f"{name[:80]}: names that start with {PREFIX} are Chronos's own",
                Reason.UNKNOWN_HEADER.label,
            )
    return own


def _rejected(rejection: Rejection) -> _FieldError:
    """The rejection's detail with the names of headers replaced by the names of fields."""
    detail = rejection.detail
    field = _REASON_FIELDS.get(rejection.reason, "")
    for header, name in FIELDS.items():
        if header in detail:
            field = field or name
            detail = detail.removeprefix(f"{header}: ").replace(header, name)
    if rejection.reason in (Reason.BEYOND_MAX_DELAY, Reason.PAST):
        field = field or "deliver_at"
    return _FieldError(field or "id", detail, rejection.reason.label)
