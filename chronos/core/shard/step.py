"""The values that one step of a shard passes from move to move (parsed, staged, selected, written),
the shard's read access to the store, and small functions on both.

`shard` and `staging` compute the values, `look_ahead` some of them early. All are frozen except
`Staged` and its `ZoneChanges`: after `Shard.stage` the master may still hold or reject records
(`workers.step.held`) and move occurrences (`replans`). `placed_ms` keeps its part of law 4."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Protocol

import msgspec
from msgspec import Struct

from chronos.core.keys import Lane
from chronos.core.message import Command, Entry, Record
from chronos.core.shard.codec import (
    IdState,
    LaneState,
    QueueState,
    State,
    Totals,
    unpack_entry,
)
from chronos.core.shard.letters import Letters
from chronos.core.shard.progress import Decision, Outcome, Replan
from chronos.core.shard.wheel import Item, Position
from chronos.core.size import count_within


class StoreView(Protocol):
    """The read access of a shard to its store."""

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of the keys, in their order; None for a key that is not there."""

    def scan(
        self, start: bytes, stop: bytes, count_max: int, bytes_max: int
    ) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Return the first rows with `start <= key < stop` in order, and the key from which the
        next scan goes on; None: there are no more.

        At most `count_max` rows and `bytes_max` bytes, but one row may be larger. A scan that
        passes over many deleted rows ends early, with fewer rows or none."""


KeyValue = tuple[bytes, bytes]
"""Key and value, as the store takes them."""

CREATED, UNCHANGED, CHANGED = "created", "unchanged", "changed"
"""What an upsert did: it became a new message, or found the same one pending, or took the place of
the pending one."""


def portions(
    view: StoreView, start: bytes, stop: bytes, count_max: int, bytes_max: int
) -> Iterator[list[KeyValue]]:
    """Yield all rows with `start <= key < stop` in order, scan by scan; a scan may have none."""
    position: bytes | None = start
    while position is not None and position < stop:
        rows, position = view.scan(position, stop, count_max, bytes_max)
        yield rows


Placed = tuple[int, bytes]
"""Due time (epoch ms) and packed entry of a message that is to be put into the store."""


def placed_ms(due_ms: int, timestamp_ms: int, cursor_due_ms: int) -> int:
    """Return the due time at which an entry is stored: the one placement rule
    (docs/concepts/time.md).

    `timestamp_ms` is the broker timestamp of the record that places it, 0 for an outcome that
    reschedules it. No entry is ever placed at or before the cursor (law 4)."""
    return max(due_ms, timestamp_ms, cursor_due_ms + 1)


class Parsed(Struct, frozen=True, kw_only=True):
    """Delay records, parsed independently of the records before them."""

    records: Sequence[Record]
    commands: list[Command]
    """One per record, in order."""
    places: list[Placed | None]
    """Requested due time and packed entry of each plain message, before placement; None for all
    other commands."""
    known: dict[bytes, IdState]
    """The stored states of the named ids."""
    named_ids: Set[bytes]
    """Ids that the records name, stored or not."""
    action_ids: frozenset[bytes]
    """Ids that an action names: only these can be generated ids."""


class ZoneChanges(Struct, kw_only=True):
    """The occurrences that newer zone data move in one step, and those that they leave."""

    fired: set[int] = msgspec.field(default_factory=set)
    """Source offsets of due messages that a `fire-now` named: newer zone data do not move them."""
    dated: set[int] = msgspec.field(default_factory=set)
    """Source offsets of staged entries that newer zone data move (`series.keeps_wall_clock`)."""
    replans: list[Replan] = msgspec.field(default_factory=list)
    """The pending occurrences that newer zone data move in this step."""
    version: str = ""
    """The version of the zone data by which all occurrences are planned with this step; empty: it
    is the same as before, or not all are."""


class Staged(Struct, kw_only=True):
    """The changes that a batch of delay records asks for. `Shard.stage` fills it; afterwards the
    master may still hold or reject records and move occurrences in it."""

    pull_offset: int
    """Offset after the last record staged."""
    watermark_ms: int
    """Greatest broker timestamp among the records staged (epoch ms)."""
    horizon_ms: int = 0
    """Ids settled, and cancels noted, before this time (epoch ms) are forgotten in this step."""
    placed: dict[int, Placed] = msgspec.field(default_factory=dict)
    """Source offset -> entry that is to be put into the store."""
    removed: dict[int, int] = msgspec.field(default_factory=dict)
    """Source offset -> due time (epoch ms) of stored entries that leave their position."""
    unparked: dict[int, tuple[int, Lane]] = msgspec.field(default_factory=dict)
    """Source offset -> due time (epoch ms) and lane of parked messages that leave their lane by an
    action."""
    relaned: dict[int, tuple[int, Lane, bytes]] = msgspec.field(default_factory=dict)
    """Source offset -> due time (epoch ms), lane and packed entry of messages that take the place
    of a parked one in its lane."""
    cancels: dict[int, bytes | None] = msgspec.field(default_factory=dict)
    """Source offset -> packed entry of messages that were cancelled; None for one that is in the
    store, at the position it leaves."""
    id_states: dict[bytes, IdState] = msgspec.field(default_factory=dict)
    """Id -> its new state; a settled one gets its time from the progress record."""
    letters: Letters = msgspec.field(default_factory=Letters)
    """The records that are refused, and the held ones that are written to their destination."""
    accepted: int = 0
    cancelled: int = 0
    replaced: int = 0
    changed: int = 0
    probes: int = 0
    upserts: dict[int, str] = msgspec.field(default_factory=dict)
    """Offset of an upsert -> CREATED, UNCHANGED or CHANGED."""
    unreadable: list[tuple[int, int]] = msgspec.field(default_factory=list)
    """`(first, last)` of the ranges of offsets that are stepped over; no record is staged with
    them."""
    ahead: list[tuple[int, int]] = msgspec.field(default_factory=list)
    """Partition and milliseconds of every hop whose first timestamp is too far ahead to be
    believed; empty on replay."""
    zones: ZoneChanges = msgspec.field(default_factory=ZoneChanges)


class Leaving(Struct, frozen=True, kw_only=True):
    """The first messages of a lane, selected to leave it."""

    lane: Lane
    items: list[Item]
    """In order, at least one."""
    entries: list[Entry]
    """The items, unpacked."""
    is_all: bool
    """True if nothing else is in the lane."""


class Selection(Struct, frozen=True, kw_only=True):
    """The messages of one step: those that leave lanes, then due ones in order, and the cursor once
    those are settled."""

    items: list[Item]
    entries: list[Entry]
    """The items, unpacked."""
    with_id: list[int]
    """Indices of the entries that carry an id: only these have an id state, and only these can have
    failed before."""
    with_terms: list[int]
    """Indices of the entries with an expiry or with options: only these can have a fate."""
    targets: Mapping[str, int]
    """Target -> number of messages for it."""
    cursor: Position
    complete: bool
    """True if everything that is due was selected, and everything in the open lanes."""
    leaving: tuple[Leaving, ...] = ()
    """The lanes of the first items."""

    @property
    def left(self) -> int:
        """Number of items that leave a lane; the other items are due."""
        return sum(len(leaving.items) for leaving in self.leaving)


class Writes(Struct, frozen=True, kw_only=True):
    """The part of a step's write that does not depend on the time of its commit."""

    puts: list[KeyValue]
    deletes: list[bytes]
    delta: dict[int, int]
    """Minute -> change of its count of pending messages."""
    id_states: dict[bytes, IdState]
    """New id states of messages without a decision; those of settled ids have no time yet."""
    decided: dict[bytes, IdState]
    """New id states of messages with a decision, without a time."""
    rescheduled: dict[int, Placed]
    """Source offset -> entry at its next time, of messages that stay pending."""
    lanes: dict[Lane, LaneState | None]
    """Every lane that changed -> its new state; None: it is empty."""
    parked: int
    """Change of the number of parked messages."""
    queues: dict[int, QueueState | None]
    """Every destination whose queue of held records changed -> its new state; None: it is empty."""
    held: int
    """Change of the number of held records."""
    held_bytes: int
    """Change of the bytes of their rows."""


class Changes(Struct, frozen=True, kw_only=True):
    """One atomic write, deletes first, and its effect on the memory of a shard."""

    puts: list[KeyValue]
    deletes: list[bytes]
    state: State
    counts: dict[int, int]
    """Minute -> its new count of pending messages."""
    id_states: dict[bytes, IdState]
    removed: list[Position]
    """Positions that the wheel must forget."""
    arrived: list[Item]
    """Entries that the wheel must hold."""
    lanes: dict[Lane, LaneState | None]
    """Every lane that changed -> its new state; None: it is empty."""
    queues: dict[int, QueueState | None]
    """Every destination whose queue of held records changed -> its new state; None: it is empty."""


def nothing_selected(cursor: Position, *, complete: bool) -> Selection:
    """Return a selection without messages."""
    return Selection(
        items=[],
        entries=[],
        with_id=[],
        with_terms=[],
        targets={},
        cursor=cursor,
        complete=complete,
    )


def unpacked(items: list[Item], cursor: Position, *, complete: bool) -> Selection:
    """Return the selection of these items, with their entries unpacked. Raises StoreCorrupt."""
    assert not items or items[-1][:2] <= cursor, "a selection ends after its cursor"
    return selection_of(
        items, [unpack_entry(data) for _, _, data in items], cursor, complete=complete
    )


def selection_of(
    items: list[Item], entries: list[Entry], cursor: Position, *, complete: bool
) -> Selection:
    """Return the selection of these items, whose entries are given."""
    return Selection(
        items=items,
        entries=entries,
        with_id=[at for at, entry in enumerate(entries) if entry.id is not None],
        with_terms=_with_terms(entries),
        targets=_targets(entries),
        cursor=cursor,
        complete=complete,
    )


def _with_terms(entries: Sequence[Entry]) -> list[int]:
    return [
        at
        for at, entry in enumerate(entries)
        if entry.options is not None or entry.expire_at_ms is not None
    ]


def _targets(entries: Sequence[Entry]) -> Mapping[str, int]:
    return Counter([entry.target for entry in entries])


def with_leaving(selection: Selection, leaving: Sequence[Leaving], *, complete: bool) -> Selection:
    """Return the selection with the messages that leave these lanes in front."""
    items = [item for lane in leaving for item in lane.items]
    entries = [entry for lane in leaving for entry in lane.entries]
    assert all(entry.id is not None for entry in entries), "a parked message has no id"
    return Selection(
        items=items + selection.items,
        entries=entries + selection.entries,
        with_id=[*range(len(items)), *(len(items) + at for at in selection.with_id)],
        with_terms=_with_terms(entries) + [len(items) + at for at in selection.with_terms],
        targets=_targets(entries + selection.entries),
        cursor=selection.cursor,
        complete=complete,
        leaving=tuple(leaving),
    )


def fitting(items: Sequence[Item], messages_max: int, bytes_max: int) -> int:
    """Return how many leading items, at least one, stay within both limits."""
    return count_within([len(data) for _, _, data in items[:messages_max]], bytes_max)


def add_totals(
    totals: Totals, staged: Staged, selection: Selection, decisions: Sequence[Decision]
) -> Totals:
    """Return the totals after a step."""
    outcomes = [decision.outcome for decision in decisions]
    rescheduled = sum(decision.next_due_ms > 0 for decision in decisions)
    # `again` reschedules the series, but this occurrence was delivered.
    again = outcomes.count(Outcome.AGAIN)
    letters = staged.letters
    return Totals(
        accepted=totals.accepted + staged.accepted,
        delivered=totals.delivered + len(selection.items) - len(outcomes) + again,
        cancelled=totals.cancelled + staged.cancelled,
        replaced=totals.replaced + staged.replaced,
        changed=totals.changed + staged.changed,
        expired=totals.expired + outcomes.count(Outcome.EXPIRED),
        dead=totals.dead + outcomes.count(Outcome.DEAD),
        carried=totals.carried + rescheduled,
        rejected=totals.rejected + letters.rejected_in_all,
        ignored=totals.ignored + letters.ignored,
        probes=totals.probes + staged.probes,
        parked=totals.parked + outcomes.count(Outcome.PARKED),
        forwarded=totals.forwarded + letters.forwarded_in_all,
        held=totals.held + letters.begun,
    )
