"""The scan of all pending messages of a filter, for bulk operations, from a snapshot of the store.

It finds every message that is pending at the moment of the snapshot exactly once, whatever the
shard does meanwhile; a message that is scheduled or moved later is not found at its new
position."""

from collections.abc import Callable, Iterator

from msgspec import Struct

from chronos.core.keys import (
    MINUTE_MS,
    STATE_KEY,
    count_key,
    entry_key,
    entry_position,
    lane_key,
    lane_position,
)
from chronos.core.message import entry_id
from chronos.core.query.filter import Filter
from chronos.core.query.pages import after
from chronos.core.shard.codec import FRESH, unpack_entry, unpack_head, unpack_state
from chronos.core.shard.lanes import read_lanes
from chronos.core.shard.step import StoreView, portions

SCAN_ROWS, SCAN_BYTES = 1_000, 4_000_000
"""Rows and bytes of one scan, which holds the GIL for some milliseconds."""


class Match(Struct, frozen=True, gc=False):
    """A pending message of which the filter is true."""

    id: bytes
    place_ms: int
    """With `offset`: its position."""
    offset: int
    target: str


def scan_pending(
    view: StoreView, shard: int, matching: Filter
) -> Iterator[tuple[int, list[Match]]]:
    """Yield, scan by scan, the number of messages read and those of which the filter is true.

    First parked messages, lane by lane, then all others in the order of their due times.
    """
    (data,) = view.get([STATE_KEY])
    state = FRESH if data is None else unpack_state(data)
    for lane, lane_state in sorted(read_lanes(view, state.parked).items()):
        if matching.concerns_target(lane[0]):
            first = max((lane_state.due_ms, lane_state.offset), matching.start)
            begin, end = lane_key(lane, *first), lane_key(lane, *matching.stop)
            yield from _scan(view, shard, matching, begin, end, lane_position)
    first = max(after(state.cursor), matching.start)
    if first < matching.stop:
        yield from _scan(
            view, shard, matching, entry_key(*first), entry_key(*matching.stop), entry_position
        )


def _scan(
    view: StoreView,
    shard: int,
    matching: Filter,
    start: bytes,
    stop: bytes,
    position_of: Callable[[bytes], tuple[int, ...]],
) -> Iterator[tuple[int, list[Match]]]:
    # Decoding the first fields takes a fifth of the time of a whole entry.
    unpack = unpack_entry if matching.needs_entry else unpack_head
    for rows in portions(view, start, stop, SCAN_ROWS, SCAN_BYTES):
        matches = []
        for key, data in rows:
            place_ms, offset = position_of(key)
            entry = unpack(data)
            if matching.concerns(entry, shard, offset):
                matches.append(
                    Match(entry_id(entry, shard, offset), place_ms, offset, entry.target)
                )
        yield len(rows), matches


def pending_between(view: StoreView, matching: Filter) -> int:
    """Return the number of pending messages in the minutes of the filter's due window: as many as a
    scan reads, or some more."""
    start, stop = (
        count_key(matching.start[0] // MINUTE_MS),
        count_key(-(-matching.stop[0] // MINUTE_MS)),
    )
    return sum(
        int.from_bytes(data, "big")
        for rows in portions(view, start, stop, SCAN_ROWS, SCAN_BYTES)
        for _, data in rows
    )
