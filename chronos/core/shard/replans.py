"""The pending occurrences of series under newer zone data: they keep their wall-clock times.

A time that a cron expression gives by a wall clock is recorded with the zone's offset from UTC, and
the entry keeps that: its wall-clock time is the instant plus the offset. An index
(`keys.WALL_CLOCK`) holds the positions of these entries, written in the same batch as the entries.
A master whose zone data are newer than those that planned last goes through the index, in the order
of time, and records the new instant of every occurrence that moves; replicas carry that out (law
9). A master whose zone data are older or equal moves nothing.

The next occurrence is the first whose wall-clock time is after that of the one before it: none is
delivered twice, and none is left out."""

from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from chronos.core.keys import (
    ID_STATE,
    OFFSET_MAX,
    WALL_CLOCK,
    entry_key,
    entry_position,
    wall_clock_key,
)
from chronos.core.message import Entry
from chronos.core.series import keeps_wall_clock, planned_again, repetition_of, shift_ms
from chronos.core.shard.codec import PENDING, State, pack_entry, unpack_entry, unpack_id_state
from chronos.core.shard.progress import REPLANS_MAX, Decision, Progress, Replan
from chronos.core.shard.rules import Rules
from chronos.core.shard.step import KeyValue, Placed, Selection, Staged, StoreView, placed_ms
from chronos.core.shard.wheel import Position
from chronos.errors import LogMismatch

ENTRIES_AT_ONCE = 50
"""Entries that are read at once: of 1 MB each they take 50 MB."""

BYTES_MAX = 8_000_000
"""Bytes of entries after which a step looks at no more of them."""

_END = bytes([WALL_CLOCK[0] + 1])


class ZoneWalk:
    """The way of one master through the pending occurrences, if its zone data are newer than those
    that planned last."""

    def __init__(self, rules: Rules, view: StoreView) -> None:
        self._rules, self._view = rules, view
        self._from: bytes | None = WALL_CLOCK
        """The first key of the index that is not looked at yet; None: the way is over."""
        self._ahead: bytes | None = WALL_CLOCK
        """The same after the step that is being made."""

    def is_unfinished(self, state: State) -> bool:
        """Return whether there are occurrences to look at, or an end to record."""
        return (
            self._from is not None
            and bool(state.zone_data)
            and self._rules.zone_data.version > state.zone_data
        )

    def add_moves(self, staged: Staged, state: State) -> None:
        """Add the next occurrences that move to the changes of a step, or its end: those of at most
        REPLANS_MAX positions."""
        start = self._from
        assert start is not None, "the way is over"
        due_ms, offset = state.cursor
        first = (
            wall_clock_key(due_ms, offset + 1)
            if offset < OFFSET_MAX
            else wall_clock_key(due_ms + 1, 0)
        )
        rows, rest = self._view.scan(max(start, first), _END, REPLANS_MAX, BYTES_MAX)
        positions = [entry_position(key) for key, _ in rows]
        # A record of this batch changed the first one among these: its place is not known yet.
        known = next((at for at, each in enumerate(positions) if each[1] in staged.removed), None)
        replans: list[Replan] = []
        looked = size = 0
        while (part := positions[looked:known][:ENTRIES_AT_ONCE]) and size < BYTES_MAX:
            data = self._view.get([entry_key(*position) for position in part])
            for position, packed in zip(part, data, strict=True):
                if position[1] in staged.zones.fired:
                    continue
                assert packed is not None, "the index names a position without an entry"
                size += len(packed)
                replans += self._replan(position, unpack_entry(packed))
            looked += len(part)
        if looked == len(rows):
            self._ahead = rest
        else:
            self._ahead = rows[looked - 1][0] + b"\0" if looked else start
        # An upsert keeps the time of the occurrence before it, and its spread may place it behind.
        behind = [
            wall_clock_key(staged.placed[each][0], each)
            for each in staged.zones.dated & staged.placed.keys()
        ]
        if self._ahead is not None:
            behind.append(self._ahead)
        self._ahead = min(behind, default=None)
        if self._ahead is None:
            staged.zones.version = self._rules.zone_data.version
        carry_out(staged, replans, state, self._view, self._rules.shard)

    def took_moves(self) -> None:
        """Go on behind the occurrences that `add_moves` looked at: its step is committed, or had
        nothing to record."""
        self._from = self._ahead

    def _replan(self, position: Position, entry: Entry) -> list[Replan]:
        """Return the new time of an occurrence; nothing if it stays where it is."""
        repetition, zone_data = repetition_of(entry), self._rules.zone_data
        assert repetition is not None
        assert repetition.offset_s is not None
        wall_ms = entry.due_ms + repetition.offset_s * 1_000
        try:
            next_ms = zone_data.time_at(repetition.cron, repetition.zone, wall_ms)
            if next_ms is None or 0 < repetition.until_ms < next_ms:
                return []
            offset_s = zone_data.offset_s(repetition.cron, repetition.zone, next_ms)
        except ValueError:
            # The decision about the occurrence says so when it is due.
            return []
        if offset_s is None or (next_ms, offset_s) == (entry.due_ms, repetition.offset_s):
            return []
        return [Replan(*position, next_ms, offset_s)]


def recorded_version(
    zone_data: str, staged: Staged, decisions: Sequence[Decision], state: State
) -> str:
    """Return `Progress.zone_data` of a step of a master with this version of the zone data."""
    if staged.zones.version:
        return staged.zones.version
    if zone_data == state.zone_data or zone_data > state.zone_data > "":
        return ""
    return zone_data if any(each.offset_s is not None for each in decisions) else ""


def carry_out(
    staged: Staged, replans: Sequence[Replan], state: State, view: StoreView, shard: int
) -> None:
    """Add the occurrences that move to the changes of a step. Raises LogMismatch if the store has
    another message at their positions."""
    if not replans:
        return
    entries = view.get([entry_key(replan.due_ms, replan.offset) for replan in replans])
    for replan, data in zip(replans, entries, strict=True):
        entry = None if data is None else unpack_entry(data)
        if (
            entry is None
            or entry.id is None
            or replan.offset in staged.removed
            or not keeps_wall_clock(entry)
        ):
            raise LogMismatch(
                f"replaying shard {shard}: no occurrence of a series is pending at "
                f"{replan.due_ms}/{replan.offset}, whose time the master changed with its zone "
                "data: remove the shard's store to rebuild it from the logs"
            )
        id_state = staged.id_states.get(entry.id)
        if id_state is None:
            (known,) = view.get([ID_STATE + entry.id])
            assert known is not None, "a pending occurrence has no id state"
            id_state = unpack_id_state(known)
        assert id_state.state == PENDING, "a pending occurrence has ended"
        moved = planned_again(entry, replan.next_ms, replan.offset_s)
        place_ms = placed_ms(
            moved.due_ms + shift_ms(moved, shard, replan.offset), 0, state.cursor_due_ms
        )
        staged.removed[replan.offset] = replan.due_ms
        staged.placed[replan.offset] = (place_ms, pack_entry(moved))
        staged.zones.dated.add(replan.offset)
        staged.id_states[entry.id] = replace(id_state, due_ms=place_ms)
    staged.zones.replans += replans


def index_writes(
    staged: Staged,
    selection: Selection,
    decisions: Mapping[int, Decision],
    rescheduled: Mapping[int, Placed],
    view: StoreView,
) -> tuple[list[KeyValue], list[bytes]]:
    """Return the rows of the index that a step adds and deletes."""
    keys = [wall_clock_key(due_ms, offset) for offset, due_ms in staged.removed.items()]
    deletes = _present(keys, view) if keys else []
    left = selection.left
    deletes += [
        wall_clock_key(due_ms, offset)
        for (due_ms, offset, _), entry in zip(
            selection.items[left:], selection.entries[left:], strict=True
        )
        if entry.options is not None and keeps_wall_clock(entry)
    ]
    places = [
        (staged.placed[offset][0], offset)
        for offset in sorted(staged.zones.dated & staged.placed.keys())
    ]
    puts = [(wall_clock_key(*place), b"") for place in places if place > selection.cursor]
    for offset, (due_ms, data) in rescheduled.items():
        if decisions[offset].offset_s is not None and keeps_wall_clock(unpack_entry(data)):
            puts.append((wall_clock_key(due_ms, offset), b""))
    return puts, deletes


def _present(keys: Collection[bytes], view: StoreView) -> list[bytes]:
    """Return those of the keys that are in the store: it keeps a mark for each key that is
    deleted, whether or not it was there."""
    rows = view.get(list(keys))
    return [key for key, row in zip(keys, rows, strict=True) if row is not None]


def versions(state: State, progress: Progress) -> tuple[str, str]:
    """Return `State.zone_data` and `State.newest_zone_data` after a step."""
    if not progress.zone_data:
        return state.zone_data, state.newest_zone_data
    return progress.zone_data, max(progress.zone_data, state.newest_zone_data)
