"""Results and errors of the client.

    ChronosError
    └── ClientError            the call failed; `exit_code` is that of the command line
        ├── Unreachable   3    no answer from the address, or none in time
        ├── NotFound      4    what the call names does not exist: a message, a job, a topic, a partition
        ├── Refused       2    the request, the address, the token or a TLS file is invalid; `errors` names the fields
        ├── Rejected      1    the shard rejected the message; only `schedule(wait=...)` and `confirm` raise it
        └── ServiceFailed 1    the service could not carry out a valid request, or the answer is not from Chronos

An argument that is wrong on its own, such as a time without a zone, raises ValueError or TypeError.
"""  # noqa: E501

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from chronos.errors import ChronosError

LAST_MOMENT = datetime.max.replace(tzinfo=UTC)
"""The last time that a `datetime` holds; it stands for every later one."""

if TYPE_CHECKING:
    AnyTime = datetime
else:
    # The HTTP interface writes a time beyond the year 9999 as epoch milliseconds, which msgspec
    # does not take as a `datetime`: `_moment` reads these fields.
    AnyTime = Any

OnConflict = Literal["reject", "replace", "ignore", "upsert"]
"""Policy for a message whose id is taken."""

Action = Literal["schedule", "replace", "reschedule", "cancel", "fire-now"]
"""Values of the header `chronos-action`."""

LatePolicy = Literal["fire-once", "fire-all", "skip"]
"""Policy for the occurrences of a series that were missed."""

MessageState = Literal["pending", "delivered", "cancelled", "expired", "dead", "settled"]
"""`settled`, in a list only: the message ended, and a later one has its id, so that it is not known
how."""
ListedState = Literal["pending", "settled", "delivered", "cancelled", "expired", "dead"]

ActionResult = Literal[
    "cancelled",
    "rescheduled",
    "fired",
    "paused",
    "resumed",
    "too_late",
    "unknown",
    "refused",
    "accepted",
]


ScheduleOutcome = Literal[
    "accepted",
    "scheduled",
    "conflict",
    "ignored",
    "rejected",
    "created",
    "unchanged",
    "changed",
]
"""What is known of a message: `accepted` means that the log has it, and that its shard has not
applied it yet."""

JobAction = Literal["count", "cancel", "reschedule", "fire", "pause", "resume"]
"""What a job does with the messages of its filter; `count` changes nothing."""

JobState = Literal["running", "done", "stopped", "failed"]


class Scheduled(msgspec.Struct, frozen=True, kw_only=True):
    """A message that the log has acknowledged."""

    id: str
    """The given id, or the generated one."""
    shard: int
    offset: int
    """Offset of its record in the delay topic."""
    due_at: datetime
    """When it is due, if it is scheduled."""
    result: ScheduleOutcome = "accepted"
    """`accepted`, unless `schedule(wait=...)` or `confirm` has found out: then `scheduled`, or
    `ignored` if the id is taken; for an upsert `created`, `unchanged` or `changed`."""
    detail: str | None = None
    """Why it is not scheduled."""
    warnings: tuple[str, ...] = ()
    """Warnings: a probable mistake, such as a due time in the past, and why its target would refuse
    it now."""

    @property
    def applied(self) -> bool:
        """True once the shard has applied the message, with this result."""
        return self.result != "accepted"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a record that schedules a message."""

    result: ScheduleOutcome
    id: str
    shard: int
    offset: int
    """Offset of the record in the delay topic."""
    detail: str | None = None
    """Why it is not scheduled."""
    due_at: datetime | None = None
    """Of an upsert: when the message that has the id is due."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an action. True if the message was cancelled, rescheduled, fired, paused or
    resumed."""

    result: ActionResult
    """`accepted`: the action is in the log, but was not applied in time."""
    id: str
    shard: int
    offset: int | None = None
    """Offset of the action's record in the delay topic; None if there is none, because a series
    that is to go on is not paused."""
    detail: str | None = None
    """Why the action was refused."""
    warnings: list[str] = msgspec.field(default_factory=list)
    """A warning if the new time is in the past."""
    due_at: datetime | None = None
    """When a series that was paused or resumed goes on; None for other actions."""

    def __bool__(self) -> bool:
        return self.result in ("cancelled", "rescheduled", "fired", "paused", "resumed")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where a message is, or was, delivered."""

    topic: str
    key: str | None = None
    """The Kafka key, if it is UTF-8."""
    key_base64: str | None = None
    """The Kafka key, if it is not UTF-8."""
    headers: dict[str, Any] = msgspec.field(default_factory=dict)
    """Values by name: text, None, `{"base64": ...}`, or a list of these for a name that is
    repeated."""
    partition: int | None = None
    """The partition that the key names, or that of the lane of a parked message; None if it is not
    known."""


class Repetition(msgspec.Struct, frozen=True, kw_only=True):
    """The rhythm of a series."""

    repeat: str
    """Such as `every 30s`, or `cron 0 9 * * 1-5`."""
    times: int | None = None
    """The number of occurrences; None: without limit."""
    until: AnyTime | None = None
    """No occurrence is due after this time; LAST_MOMENT also for one beyond the year 9999."""
    time_zone: str | None = None
    """The time zone of a cron expression; None: UTC."""
    late_policy: LatePolicy = "fire-once"

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "until", _moment(self.until))


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    """A record that was rejected."""

    at: datetime
    reason: str
    detail: str
    """The reason in words."""


class MessageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """State, times and target of a message."""

    id: str
    state: MessageState
    shard: int
    offset: int
    """Offset of its record in the delay topic."""
    due_at: datetime
    """The requested due time."""
    planned_at: datetime
    """Time of the next delivery: later than `due_at` for a late arrival or a retry."""
    settled_at: datetime | None = None
    """When it was settled; None: it is pending, or the time is not kept."""
    accepted_at: datetime | None = None
    """When the log accepted it."""
    expire_at: AnyTime | None = None
    """The message is not delivered after this time; LAST_MOMENT also for one beyond the year
    9999."""
    target: Target | None = None
    """None once the message itself is deleted."""
    occurrence: int = 1
    attempt: int = 1
    value_bytes: int | None = None
    """Size of the payload; None for a null payload."""
    parked: bool = False
    """It is due and waits in a lane, for the reason in `reason`."""
    overdue_ms: int | None = None
    """By how much a pending message is overdue; None: by less than 1 s, or it is not pending. Only
    `get` tells."""
    waits_for: str | None = None
    """What an overdue message waits for, in words."""
    reason: str | None = None
    """Why it was not delivered when it was last tried, as in the header `chronos-reason`."""
    detail: str | None = None
    """The reason in words."""
    attempts: int = 0
    """Delivery attempts that failed."""
    attempts_max: int | None = None
    """Its own number of attempts; None: the service's `delivery.attempts_max`."""
    last_try_at: datetime | None = None
    """When the reason was found."""
    next_try_at: datetime | None = None
    """When it is tried again; None for a parked one, which leaves its lane as soon as that is
    open."""
    value: str | None = None
    """The payload, if it was asked for and is UTF-8."""
    value_base64: str | None = None
    """The payload, if it was asked for and is not UTF-8."""
    repetition: Repetition | None = None
    """None if it is delivered once."""
    paused: bool = False
    """It is a series that leaves out occurrences, and goes on at `due_at`."""
    spread: str | None = None
    """The window in which it is delivered, from `due_at` on; None: there is none."""
    rejection: Rejection | None = None
    """The newest record with this id that was rejected after the message was accepted, if it was
    asked for; None: none is known."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "expire_at", _moment(self.expire_at))


def _moment(given: object) -> datetime | None:
    """Return the time as the HTTP interface writes it; LAST_MOMENT for one beyond the year 9999."""
    if isinstance(given, str) and given.isdecimal():
        return LAST_MOMENT
    return msgspec.convert(given, datetime | None)


class TargetCount(msgspec.Struct, frozen=True, kw_only=True):
    """Messages for one target topic."""

    topic: str
    messages: int


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A bulk operation. True if it has looked at every message and no action failed.

    Its node keeps it in memory: when that node stops, the job is lost, and what it wrote stays. It
    can be repeated."""

    id: str
    node: str
    """The node that runs it."""
    action: JobAction
    state: JobState
    started_at: datetime
    ended_at: datetime | None
    elapsed_ms: int
    expected: int
    """Messages to be read, about."""
    scanned: int
    """Messages read."""
    matched: int
    """Messages of which the filter is true."""
    written: int
    """Actions that the log has acknowledged."""
    done: int
    """Actions that had their effect."""
    too_late: int
    """Messages that were settled or changed before their action."""
    failed: int
    """Actions that were refused, or that the log did not take."""
    reasons: dict[str, int]
    """Refused actions by reason."""
    rate: float
    """Messages per second."""
    targets: list[TargetCount] = msgspec.field(default_factory=list)
    """Matching messages by target topic, the most first; not in a list of jobs."""
    other_targets: int = 0
    """Matching messages for targets beyond the first 10,000."""
    error: str | None = None
    """Why it failed or was stopped."""

    def __bool__(self) -> bool:
        return self.state == "done" and self.failed == 0


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One page of messages, in the order of `planned_at`."""

    messages: list[MessageInfo]
    after: str | None
    """Page key of the next page; None on the last page."""
    behind: tuple[int, ...] = ()
    """Shards that had not applied their log in time: messages that were scheduled a moment ago may
    be missing."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that could not be delivered."""

    id: str
    """Id of the message; empty if its record was too large to be passed on."""
    reason: str
    """One word, such as `target-missing`."""
    detail: str
    """An explanation for people."""
    topic: str
    """Target topic; empty if the message's record was too large to be passed on."""
    dead_at: datetime
    """When the dead letter was written."""
    due_at: datetime | None
    """The requested due time."""
    attempt: int
    """Number of the last attempt to deliver it."""
    source: str
    """Position of its record in the delay topic: topic/partition/offset."""
    partition: int
    offset: int
    """Position of the dead letter in its topic."""
    value_bytes: int | None
    """Size of the payload; None for a null payload."""
    occurrence: int = 1
    replayed: str | None = None
    """The message was a replay: `source` of its first dead letter."""
    resolution: Literal["replayed", "discarded"] | None = None
    """How the dead letter was resolved; None: it was not."""


class WholeDeadLetter(DeadLetter, frozen=True, kw_only=True):
    """A dead letter with its target, its own headers and its payload."""

    target: Target
    value: str | None = None
    """The payload, if it is UTF-8."""
    value_base64: str | None = None
    """The payload, if it is not UTF-8."""


class DeadLetterCount(msgspec.Struct, frozen=True, kw_only=True):
    """Number of dead letters with one reason and one target."""

    reason: str
    topic: str
    letters: int


class DeadLetterRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters that cannot be replayed, by reason. They stay as they are."""

    reason: str
    letters: int
    id: str
    """The id of the first of them."""
    detail: str
    """An explanation for the first of them."""
    final: bool = False
    """They cannot be replayed with `anyway` either."""


class DeadLetterTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a replay, a discard or a count of dead letters."""

    matched: int = 0
    """Dead letters that were selected."""
    resolved: int = 0
    """Those that were replayed or discarded; 0 in a dry run."""
    records: int = 0
    """Records of the dead-letter topic that were read."""
    counts: tuple[DeadLetterCount, ...] = ()
    """Those that were selected, by reason and target, the greatest number first."""
    refused: tuple[DeadLetterRefusal, ...] = ()

    def plus(
        self,
        matched: int,
        resolved: int,
        records: int,
        counts: Iterable[DeadLetterCount],
        refused: Iterable[DeadLetterRefusal],
    ) -> "DeadLetterTotals":
        """Return the totals with those of another part."""
        letters = Counter({(each.reason, each.topic): each.letters for each in self.counts})
        letters.update({(each.reason, each.topic): each.letters for each in counts})
        kinds = {(each.reason, each.final): each for each in self.refused}
        for each in refused:
            before = kinds.get((each.reason, each.final))
            kinds[each.reason, each.final] = (
                each
                if before is None
                else msgspec.structs.replace(before, letters=before.letters + each.letters)
            )
        return DeadLetterTotals(
            matched=self.matched + matched,
            resolved=self.resolved + resolved,
            records=self.records + records,
            counts=tuple(
                DeadLetterCount(reason=reason, topic=topic, letters=count)
                for (reason, topic), count in letters.most_common()
            ),
            refused=tuple(kinds.values()),
        )


class ClientError(ChronosError):
    """The call failed."""


class Unreachable(ClientError):
    """No answer from the address, or none in time. The request may have been carried out."""

    exit_code = 3


class NotFound(ClientError):
    """No message, dead letter, job or topic has the name."""

    exit_code = 4


class Refused(ClientError):
    """The request, the address, the token or a TLS file is invalid and would be refused again.
    `errors` lists the errors of a request, each with its field."""

    exit_code = 2

    def __init__(self, text: str, errors: Sequence[Mapping[str, Any]] = ()) -> None:
        self.errors = list(errors)
        super().__init__(text)


class Rejected(ClientError):
    """The shard rejected the message, nearly always because its id is taken. Its record is in the
    rejected topic.

    `scheduled` says what is known of it; its `result` is `conflict` or `rejected`.
    """

    def __init__(self, text: str, scheduled: Scheduled | None = None) -> None:
        self.scheduled = scheduled
        super().__init__(text)


class ServiceFailed(ClientError):
    """The service answered that it cannot carry out the request now."""
