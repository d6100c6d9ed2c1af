"""The values of the oracle's model: what a producer asked for, what became of it, and what one
transaction wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from chronos.core.message import Record
from chronos.core.shard.progress import Progress
from tests.sim.oracle_series import Rhythm
from tests.sim.world import CORRECTNESS, Finding

TOLERANCE_MS = 500
"""How far a broker's clock may be from a machine's."""

SKEW_MS = 240
"""How far the clock of a broker or machine is off at most: two of them differ by less than the
tolerance."""

Position = tuple[int, int]
Pairs = list[tuple[str, bytes | None]]


def wrong(text: str) -> Finding:
    """A finding: the service and the documentation disagree."""
    return Finding(CORRECTNESS, text)


@dataclass(frozen=True, kw_only=True)
class Command:
    """What a producer asks for with a record. The workload writes the record and the command side
    by side; nothing is parsed."""

    verb: str = "schedule"
    id: bytes | None = None
    """The id that the record names, by its key or by `chronos-id`."""
    is_keyed: bool = False
    """The id is the record's key."""
    flaw: str = ""
    """The reason with which the record is refused wherever it is read; empty: nothing is wrong with
    it."""
    at_ms: int | None = None
    delay_ms: int | None = None
    target: str = ""
    target_key: bytes | None = None
    headers: Pairs = field(default_factory=list)
    """The producer's own headers."""
    value: bytes | None = None
    expire_at_ms: int | None = None
    attempts_max: int = 0
    rhythm: Rhythm | None = None
    spread_ms: int = 0
    on_conflict: str = "reject"
    replayed: bytes | None = None
    call: bytes | None = None
    """Names the call of which the record may be a repetition."""
    hop: tuple[int, int, int] | None = None
    """Partition, offset and first timestamp that the record's hop names."""

    @property
    def leaves_first_time(self) -> bool:
        """The first time of the series is the first one of its cron expression."""
        return self.rhythm is not None and self.at_ms is None and self.delay_ms is None


@dataclass(kw_only=True)
class Message:
    """A message that was accepted."""

    id: bytes
    offset: int
    command: Command
    due_ms: int
    place_ms: int
    """When it is to be selected: later than due where it is late, spread, or tried again."""
    expire_at_ms: int | None
    first_ms: int
    source: int
    """The partition that its record came to first."""
    occurrence: int = 1
    attempt: int = 1
    planned_ms: int = 0
    """The time of the occurrence in the rhythm."""
    wall_ms: int | None = None
    """What the wall clock shows at that time, if a cron expression of wall-clock times gave it."""
    is_moved: bool = False
    """It is due at another time than the rhythm gave it, so that new zone data do not move it."""
    first_by_ms: int = 0
    """While its first time is not decided: the latest that it may be; 0: any."""
    aside: bool = False
    """It is late for a reason of its own: a retry, a lane, a reschedule, or because missed ones
    were put together."""
    lane: tuple[str, int] | None = None
    reason: str = ""
    """Why it was not delivered when it was tried last."""

    @property
    def position(self) -> Position:
        return self.place_ms, self.offset

    @property
    def expires_ms(self) -> int | None:
        """When its occurrence expires: one that is moved to a later time takes its expiry along."""
        if self.expire_at_ms is None or self.command.rhythm is None:
            return self.expire_at_ms
        return self.expire_at_ms + max(0, self.due_ms - self.planned_ms)


@dataclass(frozen=True, kw_only=True)
class Cancel:
    """A cancel that came before a message of its id may come."""

    source: int
    first_ms: int
    noted_ms: int


@dataclass(kw_only=True)
class Settled:
    """The last message of an id, once it is not pending."""

    state: str
    message: Message
    settled_ms: int
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Written:
    """A record that the transaction wrote."""

    topic: str
    partition: int
    record: Record


@dataclass(frozen=True, kw_only=True)
class Step:
    """One committed transaction of a shard."""

    progress: Progress
    offset: int
    """Of the progress record."""
    timestamp_ms: int
    """Of the progress record, by the broker's clock."""
    records: Sequence[Record]
    """The delay records that it took."""
    written: Sequence[Written]
    began_ms: int
    """The machine's clock before the master decided anything about this step."""
    sent_ms: int
    """The machine's clock when it handed the records over."""
    zone_data: str
    """The version of the master's zone data."""
    zone_ms: int
    """How far the wall clock is ahead of UTC by them."""


class Facts:
    """What the model is told about the world: which outcomes of a delivery were possible."""

    def may_die(self, message: Message, reason: str, step: Step) -> str:
        """Return why the message cannot have been dead-lettered or tried again for this reason;
        empty: it can."""
        raise NotImplementedError

    def may_wait(self, message: Message, reason: str, step: Step) -> str:
        """Return why the message cannot have been deferred for this reason; empty: it can."""
        raise NotImplementedError

    def may_hold(self, destination: int) -> str:
        """Return why a partition of the delay topic, or the rejected topic (-1), takes records;
        empty: perhaps it does not."""
        raise NotImplementedError

    def may_park(self, message: Message, lane: int, step: Step) -> str:
        """Return why the message cannot have been parked in this lane; empty: it can."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The settings of the service."""

    shards: int
    forwards: bool = True
    """`topics.misplaced` is `forward`."""
    deduplication_ms: int = 6 * 3_600_000
    delivered_ms: int = 6 * 3_600_000
    attempts_max: int = 3
