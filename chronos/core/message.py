"""The values that messages are made of: records, entries, commands, rejections and reasons; the
names of headers, with the check of their spelling; and the receipt.

No state: `core.shard.parsing` makes commands of records, `core.shard.rules` holds what the
configuration allows, `core.shard.shard` keeps the state."""

from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated

from msgspec import Meta, Struct

from chronos.core.keys import generated_id

Headers = Sequence[tuple[str, bytes | None]]
"""Headers as a Kafka client returns them: in order; names may repeat, values may be null."""

PREFIX = "chronos-"

DELIVER_AT = "chronos-deliver-at"
DELAY = "chronos-delay"
TARGET_TOPIC = "chronos-target-topic"
TARGET_KEY = "chronos-target-key"
ACTION = "chronos-action"
ID = "chronos-id"
ON_CONFLICT = "chronos-on-conflict"
EXPIRE_AT = "chronos-expire-at"
ATTEMPTS = "chronos-attempts"
REPEAT = "chronos-repeat"
REPEAT_TIMES = "chronos-repeat-times"
REPEAT_UNTIL = "chronos-repeat-until"
TIME_ZONE = "chronos-time-zone"
LATE_POLICY = "chronos-late-policy"
SPREAD = "chronos-spread"
CALL = "chronos-call"
"""Names a call, so that its repetition is recognized."""

DUE_AT = "chronos-due-at"
SOURCE = "chronos-source"
OCCURRENCE = "chronos-occurrence"
ATTEMPT = "chronos-attempt"
REASON = "chronos-reason"
DETAIL = "chronos-detail"
REPLAYED = "chronos-replayed"

FORWARDED = "chronos-forwarded"
"""The hop of a forwarded record: `<topic>/<partition>/<offset>;<epoch ms>`, its source and its
first timestamp."""

RESOLUTION = "chronos-resolution"
RESOLVED = "chronos-resolved"

OPTIONAL = frozenset({ATTEMPTS, REPEAT, REPEAT_TIMES, REPEAT_UNTIL, TIME_ZONE, LATE_POLICY, SPREAD})
"""Control headers of which the `Options` of an entry are made."""

SCHEDULING = (
    frozenset({DELIVER_AT, DELAY, TARGET_TOPIC, TARGET_KEY, ACTION, ON_CONFLICT, EXPIRE_AT, CALL})
    | OPTIONAL
)
"""Control headers that a `schedule` or `replace` may carry."""

RECEIPT = frozenset({ID, DUE_AT, SOURCE, OCCURRENCE, ATTEMPT, REASON, DETAIL, REPLAYED})
"""Headers that Chronos writes on a delivered, rejected or dead-lettered record; dropped when the
record is sent again."""


class Reason(IntEnum):
    """Why a record was refused or a message not delivered: a number in progress records, a text in
    `chronos-reason`."""

    UNREADABLE_HEADERS = 1
    UNKNOWN_HEADER = 2
    REPEATED_HEADER = 3
    CONTRADICTORY_HEADERS = 4
    BAD_VALUE = 5
    BEYOND_MAX_DELAY = 6
    NO_TIME = 7
    NO_TARGET = 8
    RESERVED_TARGET = 9
    FORBIDDEN_TARGET = 10
    BAD_ID = 11
    RESERVED_ID = 12
    NO_ID = 13
    WRONG_SHARD = 14
    CONFLICT = 15
    IGNORED = 16
    TOO_LATE = 17
    UNKNOWN = 18
    FORWARDED = 20
    UNREADABLE = 21
    CREATE_TIME = 23
    BEYOND_EXPIRY = 24
    HELD = 25
    PAST = 26
    REPEATED = 27
    EXPIRED = 32
    TARGET_MISSING = 33
    TOO_LARGE = 34
    REFUSED_BY_BROKER = 35
    NO_LEADER = 36
    NO_KEY = 37
    RATE_LIMITED = 38

    @property
    def label(self) -> str:
        """The reason as users see it, for example `too-late`."""
        return self.name.lower().replace("_", "-")


REASON_LABELS = tuple(sorted(reason.label for reason in Reason))
"""The values of `chronos-reason`, in order."""


class Verb(IntEnum):
    """The action of a record (`chronos-action`)."""

    SCHEDULE = 1
    REPLACE = 2
    RESCHEDULE = 3
    CANCEL = 4
    FIRE_NOW = 5
    PROBE = 6
    REPLAY = 7
    BACKFILL = 8
    SETTLED = 9


class OnConflict(IntEnum):
    """The conflict policy of a `schedule` whose id is taken (`chronos-on-conflict`)."""

    REJECT = 1
    REPLACE = 2
    IGNORE = 3
    UPSERT = 4


VERBS = {
    b"schedule": Verb.SCHEDULE,
    b"replace": Verb.REPLACE,
    b"reschedule": Verb.RESCHEDULE,
    b"cancel": Verb.CANCEL,
    b"fire-now": Verb.FIRE_NOW,
    b"probe": Verb.PROBE,
    b"replay": Verb.REPLAY,
    b"backfill": Verb.BACKFILL,
    b"settled": Verb.SETTLED,
}
CONFLICT_POLICIES = {
    b"reject": OnConflict.REJECT,
    b"replace": OnConflict.REPLACE,
    b"ignore": OnConflict.IGNORE,
    b"upsert": OnConflict.UPSERT,
}


class Record(Struct, frozen=True, gc=False):
    """One record of a topic, as the log returns it."""

    offset: int
    timestamp_ms: int
    """The broker's clock when it was appended (`LogAppendTime`), unless `create_time`."""
    key: bytes | None
    value: bytes | None
    headers: Headers | None
    """None if the headers cannot be read: a name is not UTF-8."""
    create_time: bool = False
    """The timestamp is the producer's (`CreateTime`), in any unit: it must not influence a time of
    the shard."""


class Repeat(IntEnum):
    """The kind of a repetition (`chronos-repeat`)."""

    EVERY = 1
    BACKOFF = 2
    CRON = 3


class LatePolicy(IntEnum):
    """The policy for a series that is found behind after an outage (`chronos-late-policy`)."""

    FIRE_ONCE = 1
    FIRE_ALL = 2
    SKIP = 3


LATE_POLICIES = {
    b"fire-once": LatePolicy.FIRE_ONCE,
    b"fire-all": LatePolicy.FIRE_ALL,
    b"skip": LatePolicy.SKIP,
}


class Repetition(Struct, frozen=True, array_like=True, gc=False):
    """The rhythm of a series. Field order is the layout."""

    kind: Annotated[int, Meta(ge=1, le=Repeat.CRON.value)]
    """A `Repeat`."""
    values: tuple[int, ...] = ()
    """`EVERY`: the interval (ms). `BACKOFF`: base (ms), factor in thousandths, cap (ms). `CRON`:
    none."""
    cron: str = ""
    """`CRON`: the expression, with 5 or 6 fields."""
    zone: str = ""
    """`CRON`: the time zone; empty: UTC."""
    times: int = 0
    """Most occurrences; 0: without limit."""
    until_ms: int = 0
    """The last due time (epoch ms) that an occurrence may have; 0: without limit."""
    late_policy: Annotated[int, Meta(ge=1, le=LatePolicy.SKIP.value)] = LatePolicy.FIRE_ONCE
    planned_ms: int = 0
    """Time (epoch ms) of the pending occurrence in the rhythm, where that is not its due time; 0:
    it is. While the first time is not decided: the latest that it may be; 0: any."""
    offset_s: int | None = None
    """`CRON`: the zone's offset from UTC (s) at that time in the rhythm, so that its wall-clock
    time is known; None: the time was given, or the expression counts real time."""


class Options(Struct, frozen=True, array_like=True, gc=False):
    """What few messages ask for. Field order is the layout."""

    attempts_max: int = 0
    """Most attempts to deliver it (`chronos-attempts`); 0: the configuration's."""
    spread_ms: int = 0
    """The window (ms) over which messages with the same due time are spread; 0: none."""
    repetition: Repetition | None = None


class IdOrder(Struct, frozen=True, array_like=True, gc=False):
    """What is remembered of the records of one id besides its first timestamp: the order of
    records that come later depends on it, and which of them repeat a call. Field order is the
    layout."""

    source: int | None = None
    """The partition that the message came to first; None: its own."""
    cancels: tuple[tuple[int, int], ...] = ()
    """`(first timestamp, partition)` of the latest cancel, and of the latest one that came to
    another partition than that."""
    calls: bytes | None = None
    """The tokens of the last calls that were executed, CALL_BYTES each, in order."""


class Entry(Struct, frozen=True, array_like=True, gc=False):
    """A pending message as the store keeps it. Field order is the layout."""

    id: bytes | None
    """The user's key, or the generated id of an entry that has left the position in that id; else
    None."""
    due_ms: int
    """Due time (epoch ms) as requested, or of the occurrence. The position in the store may be
    later, never earlier."""
    target: str
    key: bytes | None
    headers: dict[str, bytes | None] | list[tuple[str, bytes | None]]
    """The producer's headers in order. A dict if no name repeats: half the cost of a list to pack
    and to send."""
    value: bytes | None
    timestamp_ms: int
    """The broker's clock when the record was appended (`LogAppendTime`); of a forwarded record, the
    first of these."""
    expire_at_ms: int | None = None
    """Time (epoch ms) after which the message is not delivered."""
    occurrence: int = 1
    """The occurrence of a series, from 1 on; 0: its first time is not decided yet."""
    attempt: int = 1
    """The attempt to deliver it that comes next, from 1 on."""
    options: Options | None = None
    """None for a plain message."""
    order: IdOrder | None = None
    """None for a message that came to its own partition, whose id no remembered cancel or call has
    named."""


class EntryHead(Struct, frozen=True, array_like=True, gc=False):
    """The first fields of an `Entry`, for scans."""

    id: bytes | None
    due_ms: int
    target: str


class ConditionalSchedule(Struct, frozen=True, gc=False):
    """A message with an id and a conflict policy other than `reject`, or a call that may be
    repeated, or a replayed message."""

    entry: Entry
    verb: Verb
    on_conflict: OnConflict
    is_at: bool = False
    """The due time is given as `chronos-deliver-at`."""
    call: bytes | None = None
    """The token of its call."""

    @property
    def id(self) -> bytes | None:
        """The id of the entry."""
        return self.entry.id


class Action(Struct, frozen=True, gc=False):
    """An action on a message that exists already; `settled` takes an id without a message."""

    verb: Verb
    id: bytes
    due_ms: int | None = None
    """The new due time (epoch ms) of a `reschedule`."""
    first_ms: int | None = None
    """The first timestamp (epoch ms) of a forwarded record; None: it was not forwarded."""
    call: bytes | None = None
    """The token of its call; None for `fire-now` and `settled`."""


class Rejection(Struct, frozen=True, gc=False):
    """The reason of a rejected record, and its explanation for people."""

    reason: Reason
    detail: str
    id: bytes | None = None
    """The id that it names, of a record with a call."""
    call: bytes | None = None
    """The token of its call (`order.call_token`), by which it counts as repeated if the same call
    was executed before: a record that counts from its own timestamp may contradict itself when it
    is written again."""


class Misplaced(Rejection, frozen=True, gc=False, kw_only=True):
    """A record whose id belongs to another shard, to which it is forwarded."""

    partition: int
    """The partition of the id."""


PROBE_ID = b""
PROBE_ACTION = Action(Verb.PROBE, PROBE_ID)


Command = Entry | ConditionalSchedule | Action | Rejection
"""The command of a record. A plain `Entry` is a message that is rejected if it has an id and the id
is taken."""


def receipt(entry: Entry, offset: int, shard: int, source_prefix: bytes) -> dict[str, bytes | None]:
    """Return the receipt: the headers that tell a consumer where a message came from.

    `source_prefix` is `<topic>/<partition>/`; `(chronos-source, chronos-occurrence)` is a stable
    deduplication token.
    """
    due = b"%d" % entry.due_ms
    at = b"%d" % offset
    headers: dict[str, bytes | None] = {
        ID: entry.id if entry.id is not None else b"%d-%b-%b" % (shard, due, at),
        DUE_AT: due,
        SOURCE: source_prefix + at,
    }
    if entry.occurrence > 1:
        headers[OCCURRENCE] = b"%d" % entry.occurrence
    if entry.attempt > 1:
        headers[ATTEMPT] = b"%d" % entry.attempt
    return headers


def entry_id(entry: Entry | EntryHead, shard: int, offset: int) -> bytes:
    """Return the id by which users know the message."""
    return entry.id if entry.id is not None else generated_id(shard, entry.due_ms, offset)


HEADERS = SCHEDULING | RECEIPT | {FORWARDED, RESOLUTION, RESOLVED}
"""Every header that Chronos reads or writes, as it spells them."""

_WRITTEN_BY_USERS = sorted(SCHEDULING) + sorted(RECEIPT)
_LENGTHS = range(min(map(len, HEADERS)) - 1, max(map(len, HEADERS)) + 2)


def header_of(name: str) -> str | None:
    """Return the header of Chronos that a name stands for; None if the name is the producer's own.

    Raises ValueError, with a text for users, for a name that stands for none and begins like one,
    or is one edit away from one."""
    folded = folded_name(name)
    if folded in HEADERS:
        return folded
    meant = _nearest(folded)
    if meant is None and not folded.startswith(PREFIX):
        return None
    raise ValueError(
        f"{name[:80]} is not a header of Chronos" + (f"; did you mean {meant}?" if meant else "")
    )


def folded_name(name: str) -> str:
    """Return the name in lower case, with `-` for `_`, if it is ASCII."""
    return name.lower().replace("_", "-") if name.isascii() else name


def _nearest(name: str) -> str | None:
    """Return the header that the name becomes when one character is added, removed, replaced or
    moved."""
    if len(name) not in _LENGTHS:
        return None
    return next((_NEAR[each] for each in _with_one_less(name) if each in _NEAR), None)


def _with_one_less(name: str) -> list[str]:
    """Return the name, and the name without each of its characters."""
    return [name, *(name[:at] + name[at + 1 :] for at in range(len(name)))]


_NEAR = {each: header for header in reversed(_WRITTEN_BY_USERS) for each in _with_one_less(header)}
