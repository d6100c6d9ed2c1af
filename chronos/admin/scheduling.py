"""From the JSON of a request to records of the delay topic: checked here by the rules the shard will judge by.

So that who schedules over HTTP learns at once, and field by field, what anybody else finds in `chronos.rejected`.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from chronos.admin.encoding import from_base64, headers_in, id_bytes, id_text, to_bytes
from chronos.admin.problems import ProblemError, invalid
from chronos.admin.schemas import BATCH_MAX, Fault, HeaderValues, Message, Move
from chronos.core.keys import parse_generated_id, partition_of
from chronos.core.message import (
    ACTION,
    DELAY,
    DELIVER_AT,
    EXPIRE_AT,
    ID,
    ON_CONFLICT,
    PREFIX,
    RECEIPT,
    TARGET_KEY,
    TARGET_TOPIC,
    Reason,
    Record,
    Rejection,
)
from chronos.core.parsing import parse
from chronos.core.rules import Rules
from chronos.core.size import batch_bytes
from chronos.core.timefmt import parse_duration_ms, parse_time_ms
from chronos.ports import Outgoing

FIELDS = {
    DELIVER_AT: "deliver_at",
    DELAY: "delay",
    TARGET_TOPIC: "target.topic",
    TARGET_KEY: "target.key",
    ON_CONFLICT: "on_conflict",
    EXPIRE_AT: "expire_at",
}
"""Control headers by the field they are made from."""

_REASON_FIELDS = {
    Reason.BAD_ID: "id", Reason.RESERVED_ID: "id", Reason.WRONG_SHARD: "id",
    Reason.RESERVED_TARGET: "target.topic", Reason.FORBIDDEN_TARGET: "target.topic",
}  # fmt: skip

FAULTS_SHOWN = 20
"""Faults of one request that are listed; the rest is counted."""

T = TypeVar("T")

_decode: Callable[[bytes], Message | list[Message]] = msgspec.json.Decoder(Message | list[Message]).decode


class Planned(Struct, frozen=True, gc=False):
    """A message ready to be written, and what its answer will need."""

    record: Outgoing
    id: str | None
    """The user's; None: it will be the message's address."""
    due_ms: int
    is_delay: bool
    """`due_ms` counts from the broker's timestamp."""
    bytes: int


class _Wrong(Exception):
    def __init__(self, field: str, detail: str, reason: str | None = None) -> None:
        self.fault = Fault(field=field, detail=detail, reason=UNSET if reason is None else reason)
        super().__init__(detail)


class Planner:
    """Turns messages into records. Any thread may call."""

    def __init__(self, *, rules: Sequence[Rules], delay_topic: str, bytes_max: int) -> None:
        self._rules = rules
        self._delay_topic = delay_topic
        self._bytes_max = bytes_max
        self._turn = itertools.count()

    def read(self, body: bytes) -> Message | list[Message]:
        """The body as messages; ProblemError names the field that does not fit."""
        messages = decode_body(_decode, body)
        if isinstance(messages, list) and not 0 < len(messages) <= BATCH_MAX:
            raise invalid(
                f"{len(messages)} messages in one request", [Fault(detail=f"send 1 to {BATCH_MAX} messages at once")]
            )
        return messages

    def plan(self, messages: Sequence[Message], now_ms: int, *, batch: bool) -> list[Planned]:
        """All of them as records, or ProblemError with what is wrong with which."""
        planned: list[Planned] = []
        faults: list[Fault] = []
        for index, message in enumerate(messages):
            try:
                planned.append(self._plan(message, now_ms))
            except _Wrong as wrong:
                wrong.fault.index = index if batch else UNSET
                faults.append(wrong.fault)
        if faults:
            first = faults[0]
            where = f"message {first.index}: " if batch else ""
            more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
            raise invalid(
                f"{where}{first.field}: {first.detail}{more}",
                faults[:FAULTS_SHOWN],
                hint="nothing of this request was written" if batch else None,
            )
        return planned

    def _plan(self, message: Message, now_ms: int) -> Planned:
        target = message.target
        control: dict[str, bytes | None] = {TARGET_TOPIC: _bytes("target.topic", target.topic)}
        due_ms, is_delay = _due(message)
        control[DELAY if is_delay else DELIVER_AT] = b"%d" % due_ms
        message_id = None if message.id is UNSET else _id(message.id)
        if target.key is not None or target.key_base64 is not UNSET:
            control[TARGET_KEY] = _either("target.key", target.key, target.key_base64)
        if message.on_conflict is not UNSET:
            control[ON_CONFLICT] = message.on_conflict.encode()
        if message.expire_at is not UNSET:
            control[EXPIRE_AT] = b"%d" % _time_ms("expire_at", message.expire_at)
        if message.repeat is not UNSET or message.spread is not UNSET:
            field = "repeat" if message.repeat is not UNSET else "spread"
            raise _Wrong(field, "not supported yet", Reason.NOT_SUPPORTED_YET.label)
        pairs = list(control.items())
        headers: dict[str, bytes | None] | list[tuple[str, bytes | None]] = control
        if target.headers:
            own = _own_headers(target.headers)
            pairs += own
            headers = control | dict(own)
            if len(headers) != len(pairs):
                headers = pairs
        value = _either("value", message.value, message.value_base64)
        shards = len(self._rules)
        shard = next(self._turn) % shards if message_id is None else partition_of(message_id, shards)
        size = self._size(message_id, value, pairs)
        asked = parse(Record(0, now_ms, message_id, value, pairs), self._rules[shard])
        if type(asked) is Rejection:
            raise _refused(asked)
        return Planned(
            record=(self._delay_topic, message_id, value, headers, shard),
            id=None if message_id is None else id_text(message_id),
            due_ms=due_ms,
            is_delay=is_delay,
            bytes=size,
        )

    def _size(self, key: bytes | None, value: bytes | None, pairs: list[tuple[str, bytes | None]]) -> int:
        """Bytes of the record, roughly when it is far below the limit."""
        rough = len(value or b"") + len(key or b"") + 1_024
        if len(pairs) <= 4 and rough * 2 < self._bytes_max:
            return rough
        # The embedded log's own format takes up to four bytes a header more than Kafka's.
        exact = batch_bytes(key, value, pairs) + 4 * len(pairs)
        if exact > self._bytes_max:
            raise _Wrong("value", f"the record would take {exact} bytes, more than topics.message_bytes_max"
                                  f" ({self._bytes_max})", Reason.TOO_LARGE.label)  # fmt: skip
        return exact


def decode_body(decode: Callable[[bytes], T], body: bytes) -> T:
    """The body by a decoder; what is wrong with it becomes a problem: 400 if it is not JSON, 422 if it does not fit."""
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        text, _, path = str(error).rpartition(" - at `$")
        path = path.rstrip("`")
        index: int | None = None
        if path.startswith("[") and path[1 : path.find("]")].isdigit():
            index, path = int(path[1 : path.find("]")]), path[path.find("]") + 1 :]
        field = path.lstrip(".")
        detail = text or str(error)
        where = "".join(f"{part}: " for part in (f"message {index}" if index is not None else "", field) if part)
        raise invalid(
            where + detail,
            [Fault(detail=detail, field=field or UNSET, index=UNSET if index is None else index)],
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProblemError(400, "malformed", str(error), hint="send one JSON object, or an array of them") from None


def time_ms(value: int | str) -> int:
    """Epoch milliseconds of a time in a request; ValueError with a text for users."""
    return value if isinstance(value, int) else parse_time_ms(value)


def duration_ms(value: int | str) -> int:
    """Milliseconds of a duration in a request; ValueError with a text for users."""
    return value if isinstance(value, int) else parse_duration_ms(value)


def new_time(move: Move) -> tuple[str, bytes]:
    """The control header for the new time of a `reschedule`."""
    try:
        due_ms, is_delay = _due(move)
    except _Wrong as wrong:
        raise invalid(f"{wrong.fault.field}: {wrong.fault.detail}", [wrong.fault]) from None
    return (DELAY if is_delay else DELIVER_AT), b"%d" % due_ms


def plan_action(
    message_id: bytes, verb: str, time: tuple[str, bytes] | None, rules: Rules, delay_topic: str, now_ms: int
) -> Outgoing:
    """The record that asks for an action; ProblemError when the shard would not even understand it."""
    headers: dict[str, bytes | None] = {ACTION: verb.encode()}
    key: bytes | None = message_id
    if parse_generated_id(message_id, rules.shards) is not None:
        key, headers[ID] = None, message_id
    if time is not None:
        headers[time[0]] = time[1]
    asked = parse(Record(0, now_ms, key, None, list(headers.items())), rules)
    if type(asked) is Rejection:
        fault = _refused(asked).fault
        raise invalid(f"{fault.field}: {fault.detail}", [fault])
    return delay_topic, key, None, headers, rules.shard


def _due(message: Message | Move) -> tuple[int, bool]:
    """`(milliseconds, whether they count from the broker's timestamp)`."""
    if message.deliver_at is not UNSET:
        if message.delay is not UNSET:
            raise _Wrong("delay", "deliver_at and delay are both given", Reason.CONTRADICTORY_HEADERS.label)
        return _time_ms("deliver_at", message.deliver_at), False
    if message.delay is UNSET:
        raise _Wrong("deliver_at", "neither deliver_at nor delay is given", Reason.NO_TIME.label)
    try:
        return duration_ms(message.delay), True
    except ValueError as error:
        raise _Wrong("delay", str(error), Reason.BAD_VALUE.label) from None


def _time_ms(field: str, value: int | str) -> int:
    try:
        return time_ms(value)
    except ValueError as error:
        raise _Wrong(field, str(error), Reason.BAD_VALUE.label) from None


def _id(text: str) -> bytes:
    try:
        return id_bytes(text)
    except ValueError as error:
        raise _Wrong("id", str(error), Reason.BAD_ID.label) from None


def _bytes(field: str, text: str) -> bytes:
    try:
        return to_bytes(text)
    except ValueError as error:
        raise _Wrong(field, str(error), Reason.BAD_VALUE.label) from None


def _either(field: str, text: str | None, base64: str | UnsetType) -> bytes | None:
    """Bytes given as text or in base64."""
    if base64 is UNSET:
        return None if text is None else _bytes(field, text)
    if text is not None:
        raise _Wrong(f"{field}_base64", f"{field} is given too", Reason.CONTRADICTORY_HEADERS.label)
    try:
        return from_base64(base64)
    except ValueError as error:
        raise _Wrong(f"{field}_base64", str(error), Reason.BAD_VALUE.label) from None


def _own_headers(headers: HeaderValues) -> list[tuple[str, bytes | None]]:
    """The user's headers without the receipt of an earlier delivery; no others may look like control headers."""
    try:
        pairs = headers_in(headers)
    except ValueError as error:
        raise _Wrong("target.headers", str(error), Reason.BAD_VALUE.label) from None
    own = [pair for pair in pairs if pair[0] not in RECEIPT]
    for name, _ in own:
        if name.startswith(PREFIX):
            raise _Wrong(
                "target.headers", f"{name[:80]}: names that start with {PREFIX} are Chronos's own",
                Reason.UNKNOWN_HEADER.label,
            )  # fmt: skip
    return own


def _refused(rejection: Rejection) -> _Wrong:
    """The core's words, with the names of fields for those of headers."""
    detail = rejection.detail
    field = _REASON_FIELDS.get(rejection.reason, "")
    for header, name in FIELDS.items():
        if header in detail:
            field = field or name
            detail = detail.removeprefix(f"{header}: ").replace(header, name)
    if rejection.reason is Reason.BEYOND_MAX_DELAY:
        field = "deliver_at"
    return _Wrong(field or "id", detail, rejection.reason.label)
