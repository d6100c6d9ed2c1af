"""The values of the push: the bounds of one step of a master (`Limits`), the inputs of a plan, and
the planned transaction, which `push` fills; and the numbers of dead letters and rejected records of
one step by reason and target, for log lines, metrics and the reports of recent dead letters."""

from collections import Counter
from collections.abc import Iterable, Mapping, Set

import structlog
from msgspec import Struct, field

from chronos.core.keys import Lane
from chronos.core.message import TARGET_TOPIC, Reason, Record, Rejection
from chronos.core.shard.progress import Decision
from chronos.ports import Outgoing
from chronos.workers.step.letter_topics import DEAD_LETTERS, UNBOUNDED, Refusal
from chronos.workers.step.partitions import Turn
from chronos.workers.step.targets import Attempt, Refusals


class Limits(Struct, frozen=True, kw_only=True):
    """Bounds of one step."""

    messages: int
    """Most records pulled, and most messages selected."""
    bytes: int
    """Most bytes pulled, and most bytes selected."""
    wheel_messages: int = 100_000
    """Messages in the wheel above which it is shrunk: those of `wheel_horizon_ms` at 10,000 a
    second."""
    wheel_bytes: int = 32 << 20
    """Bytes in the wheel above which it is shrunk."""
    wheel_horizon_ms: int = 10_000
    """How far ahead an idle master reads messages into the wheel, so that no delivery waits for the
    disk."""
    linger_ms: int
    """Least time between two transactions of a master that has caught up."""
    pull: bool
    """False: no delay records are pulled, and messages are selected without regard to those that
    are not pulled."""
    push: bool
    """False: no messages are selected."""


log = structlog.get_logger("chronos.shard")

IDS_SHOWN = 5
"""Ids in one log line."""

ID_BYTES_SHOWN = 100
"""Bytes of one of them."""

CASES_SHOWN = 10
"""Pairs of reason and target in one log line; the others are counted together."""

CASES_MAX = 1_000
"""Pairs of reason and target that are counted apart: refused records may name any target."""

OTHER = "other"
"""Stands for all further targets."""


class LetterCounts(Struct):
    """Dead letters, or rejected records, of one step."""

    cases: Counter[tuple[Reason, str]] = field(default_factory=Counter)
    """Number by reason and target; an empty target: none is named."""
    ids: list[bytes] = field(default_factory=list)
    """The first ids."""

    def add(self, reason: Reason, target: str, message_id: bytes) -> None:
        """Count one."""
        self.count(reason, target, 1)
        if len(self.ids) < IDS_SHOWN:
            self.ids.append(message_id)

    def count(self, reason: Reason, target: str, number: int) -> None:
        """Count this many, without their ids."""
        case = (reason, target)
        self.cases[
            case if case in self.cases or len(self.cases) < CASES_MAX else (reason, OTHER)
        ] += number

    def write(self, event: str, shard: int) -> None:
        """Write the log line."""
        shown = self.cases.most_common(CASES_SHOWN)
        by = {f"{reason.label} {target}".rstrip(): count for (reason, target), count in shown}
        rest = self.cases.total() - sum(by.values())
        if rest:
            by[OTHER] = rest
        ids = [
            message_id[:ID_BYTES_SHOWN].decode("utf-8", "backslashreplace")
            for message_id in self.ids
        ]
        log.warning(event, shard=shard, count=self.cases.total(), by=by, ids=ids)


def count_rejected(rejections: Iterable[tuple[Record, Rejection]], shard: int) -> LetterCounts:
    """Return the counts of the rejected records of a step. A record without a key is named by shard
    and offset."""
    counts = LetterCounts()
    for record, rejection in rejections:
        target = (
            next((value for name, value in record.headers or () if name == TARGET_TOPIC), None)
            or b""
        )
        named = record.key if record.key is not None else b"%d/%d" % (shard, record.offset)
        counts.add(
            rejection.reason, target[:ID_BYTES_SHOWN].decode("utf-8", "backslashreplace"), named
        )
    return counts


class StepInputs(Struct, frozen=True, kw_only=True):
    """The state of a shard that a transaction is planned on, besides its selection."""

    now_ms: int
    refusals: Refusals
    """Messages of targets that are set aside are deferred, unless the selection attempts them."""
    poison: Attempt | None = None
    """An attempt that alone made a transaction fail: its message is retried or dead-lettered."""
    lanes: Set[Lane] = frozenset()
    """The lanes that were not empty before the step."""
    defers_dead_letters: bool = False
    """Messages that would be dead-lettered are deferred."""
    rejected_bytes_max: int = UNBOUNDED
    """Most bytes of the records for the rejected topic."""
    dead_letter_bytes_max: int = UNBOUNDED
    """Most bytes of the dead letters."""


class PlannedTransaction(Struct, kw_only=True):
    """The plan of a step: the contents of its transaction. `Pusher.plan` fills it, or `plan_next`
    before the step; afterwards it is read-only."""

    messages: list[Outgoing]
    decisions: list[Decision]
    due_ms: list[int]
    """Due time of each delivered message, in order."""
    details: list[str] = field(default_factory=list)
    """`Progress.details` of the decisions."""
    targets: Mapping[str, int]
    """`Selection.targets`."""
    undelivered: Counter[str] = field(default_factory=Counter)
    """Target -> those of them that are not delivered."""
    refused_to: frozenset[int] = frozenset()
    """The destinations of the rejected and forwarded records among the messages: REJECTED, and
    partitions of the delay topic. Then nothing is delivered."""
    dead_letters: int = 0
    """Number of dead letters among the messages."""
    dead: LetterCounts = field(default_factory=LetterCounts)
    """The dead letters by reason and target."""
    defers_dead_letters: bool = False
    """The dead-letter topic takes no records: messages that would go there are deferred."""
    dead_letter_bytes: int = 0
    """Bytes of the dead letters, where they are bounded."""
    turn: Turn
    """The partitions of the messages without a key."""
    refusal: Refusal | None = None
    """Why the dead-letter topic takes no records, by its description; None if it was not described,
    or takes them."""
    allowed: dict[str, int] = {}
    """Limited target -> number of messages that may still be delivered to it in this step."""
    spent: dict[str, int] = {}
    """Limited target -> number of messages that take part of its rate."""

    @property
    def letters_to(self) -> Set[int]:
        """The destinations of all letters among the messages."""
        return self.refused_to | {DEAD_LETTERS} if self.dead_letters else self.refused_to
