"""Lanes: queues of messages that are due and cannot be delivered yet, in the store
(docs/concepts/store.md).

A due message is parked if its partition has no leader, no partition of its topic has one, its topic
could not be created, or its target's rate is used up; each of these has a lane of its own, and
messages that become due while it is not empty follow. A lane contains only pending messages. Those
that are selected to leave are a prefix, in the order of due times; the progress record names its
end, the lane's cursor. A record of the delay topic may take a message out of any place in a lane,
and an upsert may put another one in its place. A message that left is a settled entry behind the
shard's cursor, unless it has a new time or is parked again.

The master decides when a lane is open, in `workers.step.lanes`. All functions are deterministic
(law 9)."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from chronos.core.keys import (
    LANE_STATE,
    OFFSET_MAX,
    Lane,
    entry_key,
    lane_key,
    lane_position,
    lane_state_key,
    pack_lane,
    parked_key,
    unpack_lane,
)
from chronos.core.message import Entry, entry_id
from chronos.core.series import aside, expires_ms
from chronos.core.shard.codec import (
    LaneState,
    pack_entry,
    pack_lane_state,
    unpack_entry,
    unpack_lane_state,
)
from chronos.core.shard.fifo import Fifo, FifoWrites, Kind, read_states
from chronos.core.shard.progress import Decision, LaneCursor, Outcome
from chronos.core.shard.step import KeyValue, Leaving, Selection, Staged, StoreView
from chronos.core.shard.wheel import Item, Position

EXPIRED_READ = 100
"""Rows that are read beyond those that a rate allows: expired messages at the head of a lane leave
without waiting for it."""


LANES: Kind[Lane, LaneState] = Kind(
    prefix=LANE_STATE,
    key=lane_state_key,
    name=lambda key: unpack_lane(key[1:]),
    pack=pack_lane_state,
    unpack=unpack_lane_state,
)


class Lanes(Fifo[Lane, LaneState]):
    """The lanes of one shard that are not empty."""

    def __init__(self, view: StoreView, shard: int, *, parked: int) -> None:
        """`parked`: number of parked messages in the store."""
        super().__init__(view, LANES, parked)
        self._shard = shard

    # --- select

    def select(
        self,
        lane: Lane,
        staged: Staged,
        messages_max: int,
        bytes_max: int,
        allowed: int | None = None,
        now_ms: int = 0,
    ) -> Leaving | None:
        """Return the first messages of the lane within both limits, at least one; None if actions
        empty it, or upserts have taken the places of all.

        A message that failed before is selected alone. `allowed`: number of messages that the rate
        of the topic allows now; those that have expired by `now_ms` do not count. None without a
        rate."""
        if allowed is not None:
            if allowed <= 0:
                return None
            messages_max = min(messages_max, 2 * allowed + EXPIRED_READ)
        start, stop = self._range(lane)
        ended = [1 for _, of in staged.unparked.values() if of == lane]
        entered = [1 for _, of, _ in staged.relaned.values() if of == lane]
        for rows in self.portions(start, stop, messages_max, bytes_max):
            items = _remaining(_items(rows), staged)
            if items:
                break
        else:
            return None
        entries = _unpacked(items, allowed, now_ms)
        tried = next((at for at, entry in enumerate(entries) if entry.attempt > 1), len(entries))
        del entries[max(1, tried) :]
        del items[len(entries) :]
        is_all = not entered and len(items) + len(ended) == self.states[lane].length
        return Leaving(lane=lane, items=items, entries=entries, is_all=is_all)

    def replay(self, cursors: Iterable[LaneCursor], staged: Staged) -> list[Leaving]:
        """Return the messages that the master let leave when it moved the lanes' cursors."""
        replayed = []
        for cursor in cursors:
            lane = (cursor.topic, cursor.partition)
            start, _ = self._range(lane)
            stop = _after(lane, (cursor.due_ms, cursor.offset))
            items: list[Item] = []
            for rows in self.portions(start, stop):
                items += _items(rows)
            items = _remaining(items, staged)
            if items:
                entries = [unpack_entry(data) for _, _, data in items]
                replayed.append(Leaving(lane=lane, items=items, entries=entries, is_all=False))
        return replayed

    def _range(self, lane: Lane) -> tuple[bytes, bytes]:
        """Return the first key that a message of the lane can have, and the first key after the
        lane."""
        state = self.states.get(lane)
        start = (0, 0) if state is None else (state.due_ms, state.offset)
        return lane_key(lane, *start), _after(lane, (OFFSET_MAX, OFFSET_MAX))

    # --- apply

    def writes(
        self,
        staged: Staged,
        selection: Selection,
        decisions: Mapping[int, Decision],
        settled_ms: int,
    ) -> FifoWrites[Lane, LaneState]:
        """Return what the step writes about lanes; the entries of due messages are not among it.

        `settled_ms`: due time, behind the new cursor, of the settled entry of a message that
        leaves."""
        puts: list[KeyValue] = []
        deletes: list[bytes] = []
        change: defaultdict[Lane, int] = defaultdict(int)
        first: dict[Lane, Position] = {}
        """Lane -> first position that a message of it can have, once the messages selected have
        left."""
        for offset, (due_ms, lane) in staged.unparked.items():
            deletes += (lane_key(lane, due_ms, offset), parked_key(due_ms, offset))
            change[lane] -= 1
        for leaving in selection.leaving:
            lane = leaving.lane
            last_ms, last_offset = leaving.items[-1][:2]
            first[lane] = (last_ms, last_offset + 1)
            change[lane] -= len(leaving.items)
            for due_ms, offset, data in leaving.items:
                deletes += (lane_key(lane, due_ms, offset), parked_key(due_ms, offset))
                decision = decisions.get(offset)
                if decision is None or not (
                    decision.next_due_ms or decision.outcome is Outcome.PARKED
                ):
                    puts.append((entry_key(settled_ms, offset), data))
        for (due_ms, offset, _), entry in zip(selection.items, selection.entries, strict=True):
            decision = decisions.get(offset)
            if decision is None or decision.outcome is not Outcome.PARKED:
                continue
            lane = (entry.target, decision.lane)
            named = replace(entry, id=entry_id(entry, self._shard, offset), options=aside(entry))
            puts.append((lane_key(lane, due_ms, offset), pack_entry(named)))
            puts.append((parked_key(due_ms, offset), pack_lane(lane)))
            change[lane] += 1
            first[lane] = min(self._first(lane, first, (due_ms, offset)), (due_ms, offset))
        for offset, (due_ms, lane, data) in staged.relaned.items():
            puts.append((lane_key(lane, due_ms, offset), data))
            puts.append((parked_key(due_ms, offset), pack_lane(lane)))
            change[lane] += 1
            first[lane] = min(self._first(lane, first, (due_ms, offset)), (due_ms, offset))
        states: dict[Lane, LaneState | None] = {}
        for lane, delta in change.items():
            state = self.states.get(lane)
            length = delta + (0 if state is None else state.length)
            assert length >= 0, "more messages left a lane than were parked in it"
            states[lane] = LaneState(length, *self._first(lane, first, (0, 0))) if length else None
        return self.with_states(puts, deletes, states, length=sum(change.values()))

    def _first(self, lane: Lane, first: Mapping[Lane, Position], otherwise: Position) -> Position:
        state = self.states.get(lane)
        return first.get(lane, otherwise if state is None else (state.due_ms, state.offset))


def read_lanes(view: StoreView, parked: int) -> dict[Lane, LaneState]:
    """Return the state of every lane that is not empty. `parked`: number of parked messages in the
    store; with 0 nothing is read. Raises Retry if the store cannot be read."""
    return read_states(view, LANES) if parked else {}


def lane_of(view: StoreView, due_ms: int, offset: int) -> Lane | None:
    """Return the lane of the parked message at a position; None if none is parked there."""
    (data,) = view.get([parked_key(due_ms, offset)])
    return None if data is None else unpack_lane(data)


def cursors(leaving: Iterable[Leaving]) -> tuple[LaneCursor, ...]:
    """Return the cursors that the progress record of the step names."""
    return tuple(LaneCursor(*lane.lane, *lane.items[-1][:2]) for lane in leaving)


def count_live(entries: Iterable[Entry], now_ms: int) -> int:
    """Return the number of messages that have not expired by `now_ms`."""
    return sum((at_ms := expires_ms(entry)) is None or now_ms <= at_ms for entry in entries)


def _unpacked(items: list[Item], allowed: int | None, now_ms: int) -> list[Entry]:
    """Return the entries of the items, up to as many as a rate allows; expired ones do not
    count."""
    if allowed is None:
        return [unpack_entry(data) for _, _, data in items]
    entries: list[Entry] = []
    for _, _, data in items:
        entry = unpack_entry(data)
        live = count_live((entry,), now_ms)
        if live > allowed:
            break
        allowed -= live
        entries.append(entry)
    return entries


def _items(rows: Iterable[KeyValue]) -> list[Item]:
    return [(*lane_position(key), data) for key, data in rows]


def _after(lane: Lane, position: Position) -> bytes:
    """Return the first key after a position of the lane."""
    return lane_key(lane, *position) + b"\0"


def _remaining(items: list[Item], staged: Staged) -> list[Item]:
    """Return the items that no action of this step takes out of their lane."""
    return [item for item in items if item[1] not in staged.unparked] if staged.unparked else items
