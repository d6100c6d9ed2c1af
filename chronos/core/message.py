"""What a record of the delay topic means: headers in, a value that says what is asked, or a refusal, out.

Not the state of anything: whether an id is taken or a message still pending is for `shard` to say.
Keeps its part of law 1: every record parses to something, none raises.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from fnmatch import fnmatchcase

from msgspec import Struct

from chronos.core.keys import ID_BYTES_MAX, address, parse_address, partition_of
from chronos.core.timefmt import parse_duration_ms, parse_time_ms

Headers = Sequence[tuple[str, bytes | None]]
"""Headers as a Kafka client gives them: in order, names may repeat, values may be null."""

PREFIX = "chronos-"

DELIVER_AT = "chronos-deliver-at"
DELAY = "chronos-delay"
TARGET_TOPIC = "chronos-target-topic"
TARGET_KEY = "chronos-target-key"
ACTION = "chronos-action"
ID = "chronos-id"
ON_CONFLICT = "chronos-on-conflict"
EXPIRE_AT = "chronos-expire-at"

DUE_AT = "chronos-due-at"
SOURCE = "chronos-source"
OCCURRENCE = "chronos-occurrence"
ATTEMPT = "chronos-attempt"
REASON = "chronos-reason"
DETAIL = "chronos-detail"

SCHEDULING = frozenset({DELIVER_AT, DELAY, TARGET_TOPIC, TARGET_KEY, ACTION, ON_CONFLICT, EXPIRE_AT})
"""Control headers a `schedule` or `replace` may carry."""

LATER = frozenset(
    "chronos-" + name for name in ("repeat", "repeat-times", "repeat-until", "time-zone", "late-policy", "spread")
)
"""Control headers of the contract that this version refuses as not supported yet."""

RECEIPT = frozenset({ID, DUE_AT, SOURCE, OCCURRENCE, ATTEMPT, REASON, DETAIL})
"""Headers Chronos itself wrote on a delivered, rejected or dead-lettered record; dropped when it is sent round again."""

TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)
"""Kafka's rule for topic names (`org.apache.kafka.common.internals.Topic`); `.` and `..` are excluded too."""


TARGETS_SEEN_MAX = 10_000
"""Target topics remembered as good: about 1 MB."""


class Reason(IntEnum):
    """Why a message was refused or given up; one byte in progress records, a word in `chronos-reason`."""

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
    NOT_SUPPORTED_YET = 19
    EXPIRED = 32
    TARGET_MISSING = 33
    TOO_LARGE = 34
    REFUSED_BY_BROKER = 35
    NO_LEADER = 36

    @property
    def word(self) -> str:
        """The reason as users read it: `too-late`."""
        return self.name.lower().replace("_", "-")


class Verb(IntEnum):
    """What a record asks for (`chronos-action`)."""

    SCHEDULE = 1
    REPLACE = 2
    RESCHEDULE = 3
    CANCEL = 4
    FIRE_NOW = 5
    PROBE = 6


class OnConflict(IntEnum):
    """What becomes of a `schedule` whose id is taken (`chronos-on-conflict`)."""

    REJECT = 1
    REPLACE = 2
    IGNORE = 3


VERBS = {b"schedule": Verb.SCHEDULE, b"replace": Verb.REPLACE, b"reschedule": Verb.RESCHEDULE,
         b"cancel": Verb.CANCEL, b"fire-now": Verb.FIRE_NOW, b"probe": Verb.PROBE}  # fmt: skip
CONFLICT_POLICIES = {b"reject": OnConflict.REJECT, b"replace": OnConflict.REPLACE, b"ignore": OnConflict.IGNORE}


class Record(Struct, frozen=True, gc=False):
    """One record of a topic, as the log gives it."""

    offset: int
    timestamp_ms: int
    """The broker's clock when it was appended (`LogAppendTime`)."""
    key: bytes | None
    value: bytes | None
    headers: Headers | None
    """None when the headers cannot be read: a name is not UTF-8."""


class Entry(Struct, frozen=True, array_like=True, gc=False):
    """A pending message as the store keeps it. Field order is the layout: append only, with a default."""

    id: bytes | None
    """The user's key, or the address once the entry no longer stands at it; None: it stands at its address."""
    due_ms: int
    """As requested, or of the occurrence. Its place in the store may be later, never earlier."""
    target: str
    key: bytes | None
    headers: dict[str, bytes | None] | list[tuple[str, bytes | None]]
    """The producer's own, in order. A dict when no name repeats: half the cost of a list to pack and to send."""
    value: bytes | None
    timestamp_ms: int
    """The broker's clock when the record was accepted by the log."""
    expire_at_ms: int | None = None
    occurrence: int = 1
    attempt: int = 1


class Keyed(Struct, frozen=True, gc=False):
    """A message with an id of its own that asks for more than to be refused when the id is taken."""

    entry: Entry
    verb: Verb
    on_conflict: OnConflict

    @property
    def id(self) -> bytes | None:
        """The entry's."""
        return self.entry.id


class Action(Struct, frozen=True, gc=False):
    """Something asked of a message that is there already."""

    verb: Verb
    id: bytes
    due_ms: int | None = None
    """The new time of a `reschedule`."""


class Refusal(Struct, frozen=True, gc=False):
    """Why a record is refused: the reason decides, the detail explains it to a person."""

    reason: Reason
    detail: str


PROBE_ID = b""
PROBE_ACTION = Action(Verb.PROBE, PROBE_ID)


class Rules:
    """What the master's configuration allows. Only ever asked while deciding, never while replaying."""

    def __init__(
        self,
        *,
        shard: int,
        shards: int,
        own_topics: Iterable[str] = (),
        allow: Sequence[str] = ("*",),
        deny: Sequence[str] = (),
        max_delay_ms: int = 400 * 86_400_000,
        deduplication_ms: int = 6 * 3_600_000,
        refuse_wrong_shard: bool = False,
    ) -> None:
        assert 0 <= shard < shards
        self.shard = shard
        self.shards = shards
        self.own_topics = frozenset(own_topics)
        self.allow = tuple(allow)
        self.deny = tuple(deny)
        self.max_delay_ms = max_delay_ms
        self.deduplication_ms = deduplication_ms
        self.refuse_wrong_shard = refuse_wrong_shard
        self.topics_seen: dict[bytes, str] = {}
        """Targets judged good before, at most TARGETS_SEEN_MAX."""

    def target(self, raw: bytes) -> str | Refusal:
        """The topic a `chronos-target-topic` names, or why it may not be used."""
        known = self.topics_seen.get(raw)
        if known is not None:
            return known
        judged = self._judge_target(raw)
        if isinstance(judged, str):
            if len(self.topics_seen) >= TARGETS_SEEN_MAX:
                self.topics_seen.clear()
            self.topics_seen[raw] = judged
        return judged

    def _judge_target(self, raw: bytes) -> str | Refusal:
        name = raw.decode("utf-8", "replace")
        if TOPIC_NAME.fullmatch(name) is None or name in (".", ".."):
            return Refusal(Reason.BAD_VALUE, f"{TARGET_TOPIC}: {name[:80]!r} is not a topic name")
        if name in self.own_topics or name.startswith("__"):
            return Refusal(Reason.RESERVED_TARGET, f"{name} is a topic of Chronos or of Kafka itself")
        if not self.allows(name):
            return Refusal(Reason.FORBIDDEN_TARGET, f"{name} is not allowed by targets.allow and targets.deny")
        return name

    def allows(self, topic: str) -> bool:
        """Whether `targets.allow` and `targets.deny` let messages go to the topic; deny wins."""
        return any(fnmatchcase(topic, pattern) for pattern in self.allow) and not any(
            fnmatchcase(topic, pattern) for pattern in self.deny
        )


Asked = Entry | Keyed | Action | Refusal
"""What a record asks for; an `Entry` alone is a message that is refused when it has an id, and the id is taken."""


def parse(record: Record, rules: Rules) -> Asked:
    """What the record asks for. Never raises: whatever cannot be understood is a `Refusal`."""
    if record.headers is None:
        return Refusal(Reason.UNREADABLE_HEADERS, "a header name is not UTF-8")
    control: dict[str, bytes | None] = {}
    passed: dict[str, bytes | None] = {}
    for name, value in record.headers:
        if name[:8] == PREFIX:
            control[name] = value
        else:
            passed[name] = value
    headers: dict[str, bytes | None] | list[tuple[str, bytes | None]] = passed
    if len(control) + len(passed) != len(record.headers):
        own = [header for header in record.headers if header[0][:8] != PREFIX]
        repeated = _repeated(record.headers)
        if repeated:
            return Refusal(Reason.REPEATED_HEADER, f"{repeated[:80]} is given more than once")
        headers = passed if len(own) == len(passed) else own

    if len(control) == 2:
        plain = _plain(record, control, headers, rules)
        if plain is not None:
            return plain
    verb = _verb(record, control)
    if isinstance(verb, Refusal):
        return verb
    if verb is Verb.PROBE:
        return PROBE_ACTION
    if verb is Verb.SCHEDULE or verb is Verb.REPLACE:
        return _message(record, control, headers, verb, rules)
    return _action(record, control, verb, rules)


def _plain(
    record: Record,
    control: Mapping[str, bytes | None],
    headers: dict[str, bytes | None] | list[tuple[str, bytes | None]],
    rules: Rules,
) -> Asked | None:
    """A time in epoch milliseconds and a target seen before, nothing else: what almost every record looks like.

    A short cut, worth a quarter of the parser's time; None sends the record the long way, to the same answer.
    """
    at, target = control.get(DELIVER_AT), control.get(TARGET_TOPIC)
    if at is None or target is None or len(at) != 13 or not at.isdigit():
        return None
    topic, due_ms, key = rules.topics_seen.get(target), int(at), record.key
    if topic is None or due_ms > record.timestamp_ms + rules.max_delay_ms:
        return None
    if key is not None and (key[:1].isdigit() or len(key) > ID_BYTES_MAX or not key or rules.refuse_wrong_shard):
        refusal = _judge_id(key, rules, own=True)
        if refusal is not None:
            return refusal
    return Entry(key, due_ms, topic, None, headers, record.value, record.timestamp_ms)


def _repeated(headers: Headers) -> str | None:
    """The first control header that is given twice; receipts do not count, they are dropped anyway."""
    seen: set[str] = set()
    for name, _ in headers:
        if name[:8] == PREFIX and name not in RECEIPT:
            if name in seen:
                return name
            seen.add(name)
    return None


def _verb(record: Record, control: Mapping[str, bytes | None]) -> Verb | Refusal:
    if ACTION not in control:
        says_nothing = record.value is None and record.key is not None
        return Verb.CANCEL if says_nothing and DELIVER_AT not in control and DELAY not in control else Verb.SCHEDULE
    raw = control[ACTION]
    verb = VERBS.get(raw or b"")
    if verb is None:
        return Refusal(Reason.BAD_VALUE, f"{ACTION}: {_shown(raw)} is none of {_words(VERBS)}")
    return verb


def _message(
    record: Record,
    control: dict[str, bytes | None],
    headers: dict[str, bytes | None] | list[tuple[str, bytes | None]],
    verb: Verb,
    rules: Rules,
) -> Asked:
    """A `schedule` or a `replace`."""
    target = control.get(TARGET_TOPIC)
    misfit = _misfit(control, SCHEDULING)
    if misfit is not None:
        return misfit
    if target is None:
        return Refusal(Reason.NO_TARGET, f"{TARGET_TOPIC} is missing")
    topic = rules.target(target)
    if isinstance(topic, Refusal):
        return topic
    due_ms = _due_ms(record, control, rules)
    if isinstance(due_ms, Refusal):
        return due_ms
    expire_at_ms: int | None = None
    if EXPIRE_AT in control:
        try:
            expire_at_ms = parse_time_ms(_text(control[EXPIRE_AT]))
        except ValueError as error:
            return Refusal(Reason.BAD_VALUE, f"{EXPIRE_AT}: {error}")
        if expire_at_ms < due_ms:
            return Refusal(Reason.CONTRADICTORY_HEADERS, f"{EXPIRE_AT} lies before the time it is due")
    entry = Entry(
        record.key, due_ms, topic, control.get(TARGET_KEY), headers, record.value, record.timestamp_ms, expire_at_ms
    )
    if record.key is None:
        return _without_id(entry, control, verb)
    return _with_id(entry, record.key, control, verb, rules)


def _without_id(entry: Entry, control: Mapping[str, bytes | None], verb: Verb) -> Asked:
    if verb is Verb.REPLACE:
        return Refusal(Reason.NO_ID, "replace needs an id, the record's key")
    if ON_CONFLICT in control:
        return Refusal(Reason.CONTRADICTORY_HEADERS, f"{ON_CONFLICT} without an id, the record's key")
    return entry


def _with_id(entry: Entry, key: bytes, control: Mapping[str, bytes | None], verb: Verb, rules: Rules) -> Asked:
    refusal = _judge_id(key, rules, own=True)
    if refusal is not None:
        return refusal
    if ON_CONFLICT not in control:
        return Keyed(entry, verb, OnConflict.REPLACE) if verb is Verb.REPLACE else entry
    if verb is Verb.REPLACE:
        return Refusal(Reason.CONTRADICTORY_HEADERS, f"{ON_CONFLICT} goes with schedule, not with replace")
    policy = CONFLICT_POLICIES.get(control[ON_CONFLICT] or b"")
    if policy is None:
        return Refusal(
            Reason.BAD_VALUE, f"{ON_CONFLICT}: {_shown(control[ON_CONFLICT])} is none of {_words(CONFLICT_POLICIES)}"
        )
    return entry if policy is OnConflict.REJECT else Keyed(entry, verb, policy)


def _action(record: Record, control: dict[str, bytes | None], verb: Verb, rules: Rules) -> Asked:
    """A `reschedule`, `cancel` or `fire-now`."""
    allowed = {ACTION, ID, DELIVER_AT, DELAY} if verb is Verb.RESCHEDULE else {ACTION, ID}
    misfit = _misfit(control, frozenset(allowed))
    if misfit is not None:
        return misfit
    named = control.get(ID)
    if named is not None and record.key is not None and named != record.key:
        return Refusal(Reason.CONTRADICTORY_HEADERS, f"{ID} and the record's key name different messages")
    if sum(name == ID for name, _ in record.headers or ()) > 1:
        return Refusal(Reason.REPEATED_HEADER, f"{ID} is given more than once")
    if ID in control and named is None:
        return Refusal(Reason.BAD_VALUE, f"{ID}: null is no id")
    target_id = named if named is not None else record.key
    if target_id is None:
        return Refusal(Reason.NO_ID, f"{verb.name.lower().replace('_', '-')} needs an id: the record's key, or {ID}")
    refusal = _judge_id(target_id, rules, own=False)
    if refusal is not None:
        return refusal
    if verb is not Verb.RESCHEDULE:
        return Action(verb, target_id)
    due_ms = _due_ms(record, control, rules)
    return due_ms if isinstance(due_ms, Refusal) else Action(verb, target_id, due_ms)


def _misfit(control: Mapping[str, bytes | None], allowed: frozenset[str]) -> Refusal | None:
    """The first control header that does not belong here; receipts of an earlier delivery are let through."""
    for name in control:
        if name in allowed or name in RECEIPT:
            continue
        if name in LATER:
            return Refusal(Reason.NOT_SUPPORTED_YET, f"{name} is not supported yet")
        if name in SCHEDULING:
            return Refusal(
                Reason.CONTRADICTORY_HEADERS, f"{name} does not go with {_shown(control.get(ACTION, b'cancel'))}"
            )
        return Refusal(Reason.UNKNOWN_HEADER, f"{name[:80]} is no header of Chronos")
    return None


def _due_ms(record: Record, control: Mapping[str, bytes | None], rules: Rules) -> int | Refusal:
    at = control.get(DELIVER_AT)
    if at is not None and DELAY not in control:
        try:
            due_ms = parse_time_ms(_text(at))
        except ValueError as error:
            return Refusal(Reason.BAD_VALUE, f"{DELIVER_AT}: {error}")
    elif DELAY in control:
        if DELIVER_AT in control:
            return Refusal(Reason.CONTRADICTORY_HEADERS, f"{DELIVER_AT} and {DELAY} are both given")
        try:
            due_ms = record.timestamp_ms + parse_duration_ms(_text(control[DELAY]))
        except ValueError as error:
            return Refusal(Reason.BAD_VALUE, f"{DELAY}: {error}")
    elif DELIVER_AT in control:
        return Refusal(Reason.BAD_VALUE, f"{DELIVER_AT}: null is no time")
    else:
        return Refusal(Reason.NO_TIME, f"neither {DELIVER_AT} nor {DELAY} is given")
    if due_ms > record.timestamp_ms + rules.max_delay_ms:
        return Refusal(Reason.BEYOND_MAX_DELAY, f"due more than {rules.max_delay_ms} ms ahead (limits.max_delay)")
    return due_ms


def _judge_id(message_id: bytes, rules: Rules, *, own: bool) -> Refusal | None:
    """Whether the id may be used: as a key of the user's `own` choosing, or to name a message in an action."""
    if not 0 < len(message_id) <= ID_BYTES_MAX:
        return Refusal(Reason.BAD_ID, f"an id is 1 to {ID_BYTES_MAX} bytes long, this one {len(message_id)}")
    named = parse_address(message_id, rules.shards)
    if named is not None:
        if own:
            return Refusal(Reason.RESERVED_ID, "this key looks like the id Chronos gives to a message without one")
        if named[0] != rules.shard:
            return Refusal(Reason.WRONG_SHARD, f"this id belongs to shard {named[0]}, the record came to {rules.shard}")
    elif rules.refuse_wrong_shard and partition_of(message_id, rules.shards) != rules.shard:
        return Refusal(
            Reason.WRONG_SHARD,
            f"murmur2 places this id in shard {partition_of(message_id, rules.shards)}, the record came to {rules.shard}:"
            " the producer's partitioner differs (librdkafka: partitioner=murmur2_random)",
        )
    return None


def _text(raw: bytes | None) -> str:
    """UTF-8 text of a control header; ValueError with a text for users."""
    if raw is None:
        raise ValueError("null is no value")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{_shown(raw)} is not UTF-8") from None


def _shown(raw: bytes | None) -> str:
    return "null" if raw is None else repr(raw[:80].decode("utf-8", "backslashreplace"))


def _words(table: Mapping[bytes, object]) -> str:
    return ", ".join(word.decode() for word in table)


def receipt(entry: Entry, offset: int, shard: int, source_prefix: bytes) -> dict[str, bytes | None]:
    """The headers that tell a consumer where a message came from.

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


def entry_id(entry: Entry, shard: int, offset: int) -> bytes:
    """The id users know the message by."""
    return entry.id if entry.id is not None else address(shard, entry.due_ms, offset)
