"""Pages of messages by a filter: pending ones, and settled ones, each in the order of their
positions in the store; and the look-up of the next stored due time.

Each call reads a bounded part of the store; a page comes with the position after which the next
one continues. The shard may take steps between two pages and during one (`page`)."""

from collections.abc import Collection

from msgspec import Struct
from msgspec.structs import replace

from chronos.core.keys import (
    OFFSET_MAX,
    STATE_KEY,
    entry_key,
    entry_position,
    id_key,
    lane_key,
    parked_key,
    parked_position,
    position_before,
    unpack_lane,
)
from chronos.core.message import Entry, entry_id
from chronos.core.query.filter import Filter
from chronos.core.query.lookup import SETTLED, FoundMessage
from chronos.core.shard.codec import (
    CANCELLED,
    DELIVERED,
    STATE_NAMES,
    Failure,
    IdState,
    State,
    unpack_entry,
    unpack_id_state,
    unpack_state,
)
from chronos.core.shard.counts import next_counted
from chronos.core.shard.step import StoreView
from chronos.core.shard.wheel import Position
from chronos.core.timefmt import MS_MAX

PAGE_SCAN_MAX = 5_000
"""Entries read of one shard for one page, whether they match or not."""

PAGE_SCAN_BYTES = 8_000_000
"""Bytes of entries read of one shard for one page; at least one entry is read."""

MERGED_SCAN_MAX = 10_000
"""Entries read of all shards for one page that is merged from theirs: a search for a text in the
headers of so many takes some 150 ms."""

SHARD_SCAN_MIN = 100
"""Entries of a shard that are read for such a page, however many shards there are."""

ENTRIES_SCAN = 250
"""Entries read in one scan, for the same reason: a shard waits for the GIL several times in a
step."""


EMPTY_SCANS_MAX = 2
"""Scans without an entry after which a look-up ends, each of which passed over deleted entries for
some milliseconds."""


class MessageRow(Struct, frozen=True, kw_only=True):
    """One pending message of a page."""

    id: bytes
    place_ms: int
    offset: int
    entry: Entry
    is_parked: bool = False
    failure: Failure | None = None
    """Why it was not delivered when it was last tried."""

    @property
    def position(self) -> Position:
        """Its position in the store."""
        return self.place_ms, self.offset


def after(position: Position) -> Position:
    """Return the first position after this one."""
    due_ms, offset = position
    return (due_ms, offset + 1) if offset < OFFSET_MAX else (due_ms + 1, 0)


def scan_share(shards: int) -> int:
    """Return how many entries are read of each of so many shards for one page of all."""
    return min(PAGE_SCAN_MAX, max(SHARD_SCAN_MIN, MERGED_SCAN_MAX // shards))


def page(
    view: StoreView,
    state: State,
    shard: int,
    *,
    begin: Position | None,
    matching: Filter,
    limit: int,
    shards: int = 1,
) -> tuple[list[MessageRow], Position | None]:
    """Return at most `limit` pending messages after the position `begin` of which the filter is
    true, in order.

    The second value is the position up to which the answer is complete, which the caller passes as
    `begin` for the next page; None if there are no more. A page may be shorter than `limit`, even
    empty, and still not be the last. The shard may take steps meanwhile: pages together return each
    message that is pending at the same position throughout exactly once. `shards`: the number of
    shards that the page is merged from.

    1. read entries after the cursor of `state`, and whether there are more,
    2. read the cursor as it is now: entries at or before it are no longer pending, or were parked,
    3. read parked messages: also those that were parked since 1 are found, at the positions they
       had,
    4. read why those that wait longer than was asked for were not delivered.
    """
    assert limit > 0
    first = matching.start if begin is None else max(matching.start, after(begin))
    start, stop = max(first, after(state.cursor)), matching.stop
    rows: list[MessageRow] = []
    through: Position | None = None
    if start < stop:
        entries, rest = _entries(
            view, start, stop, scan_share(shards) if matching.is_selective else limit, counted=True
        )
        (now,) = view.get([STATE_KEY])
        state = state if now is None else unpack_state(now)
        for key, data in entries:
            place_ms, offset = entry_position(key)
            if (place_ms, offset) > state.cursor:
                entry = unpack_entry(data)
                if matching.concerns(entry, shard, offset):
                    rows.append(_row(entry, shard, place_ms, offset))
                    if len(rows) == limit:
                        break
        if rows and len(rows) == limit:
            through = rows[-1].position
        elif rest is not None:
            through = position_before(rest)
    if not state.parked:
        return _with_failures(view, rows), through
    parked, parked_through = _parked(
        view, shard, first, stop if through is None else after(through), matching, limit
    )
    through = through if parked_through is None else parked_through
    by_position = {
        row.position: row for row in [*rows, *parked] if through is None or row.position <= through
    }
    merged = [by_position[position] for position in sorted(by_position)]
    if len(merged) > limit:
        del merged[limit:]
        through = merged[-1].position
    return _with_failures(view, merged), through


def _with_failures(view: StoreView, rows: list[MessageRow]) -> list[MessageRow]:
    """Return the rows with the failures of those that are parked or are tried again later."""
    tried = [at for at, row in enumerate(rows) if row.is_parked or row.place_ms != row.entry.due_ms]
    if not tried:
        return rows
    rows = list(rows)
    states = view.get([id_key(rows[at].id) for at in tried])
    for at, data in zip(tried, states, strict=True):
        id_state = None if data is None else unpack_id_state(data)
        if id_state is not None and (id_state.due_ms, id_state.offset) == rows[at].position:
            rows[at] = replace(rows[at], failure=id_state.failure)
    return rows


def _entries(
    view: StoreView, start: Position, stop: Position, entries_max: int, *, counted: bool
) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
    """Return the first entries from `start` to before `stop`, up to PAGE_SCAN_BYTES, and the key
    from which more may follow; None: these are all.

    It ends after EMPTY_SCANS_MAX scans that met deleted entries only. `counted`: the entries are
    pending, so that minutes without pending messages are left out."""
    entries: list[tuple[bytes, bytes]] = []
    end, left, empty = entry_key(*stop), PAGE_SCAN_BYTES, 0
    key: bytes | None = entry_key(*start)
    while key is not None and len(entries) < entries_max and left > 0 and empty < EMPTY_SCANS_MAX:
        portion, key = view.scan(key, end, min(ENTRIES_SCAN, entries_max - len(entries)), left)
        entries += portion
        left -= sum(len(data) for _, data in portion)
        if not portion:
            empty += 1
            if key is not None and counted:
                key = next_counted(view, key, end)
    return entries, key


def _parked(
    view: StoreView, shard: int, first: Position, stop: Position, matching: Filter, limit: int
) -> tuple[list[MessageRow], Position | None]:
    """Return parked messages from `first` to before `stop`, in order, and the position up to which
    they are complete; None if there are no more before `stop`."""
    if first >= stop:
        return [], None
    index, rest = view.scan(parked_key(*first), parked_key(*stop), PAGE_SCAN_MAX, PAGE_SCAN_BYTES)
    rows: list[MessageRow] = []
    size = 0
    for key, lane in index:
        position = parked_position(key)
        if not matching.concerns_target(unpack_lane(lane)[0]):
            continue
        # One at a time: the bytes of several are not known before they are read.
        data = _parked_data(view, position, lane)
        if data is None:
            continue
        entry = unpack_entry(data)
        size += len(data)
        if matching.concerns(entry, shard, position[1]):
            rows.append(replace(_row(entry, shard, *position), is_parked=True))
        if len(rows) == limit or size > PAGE_SCAN_BYTES:
            return rows, position
    return rows, None if rest is None else position_before(rest)


def _parked_data(view: StoreView, position: Position, lane: bytes) -> bytes | None:
    """Return the parked message that the index had in `lane`; None if it is no longer parked."""
    (data,) = view.get([lane_key(unpack_lane(lane), *position)])
    if data is None:
        # It left its lane after the index was read, perhaps for another one.
        (lane_now,) = view.get([parked_key(*position)])
        if lane_now is not None:
            (data,) = view.get([lane_key(unpack_lane(lane_now), *position)])
    return data


def _row(entry: Entry, shard: int, place_ms: int, offset: int) -> MessageRow:
    return MessageRow(
        id=entry_id(entry, shard, offset), place_ms=place_ms, offset=offset, entry=entry
    )


def settled(
    view: StoreView,
    state: State,
    shard: int,
    *,
    begin: Position | None,
    matching: Filter,
    states: Collection[str],
    limit: int,
    shards: int = 1,
) -> tuple[list[FoundMessage], Position | None]:
    """Return at most `limit` messages that were settled with one of `states`, as `page` returns
    pending ones.

    They are the entries at or before the cursor, which are kept for `retention.delivered`. A
    message whose id has no state was delivered. If its id has a later message, its state is
    SETTLED, because how it ended is not kept."""
    assert limit > 0
    start = matching.start if begin is None else max(matching.start, after(begin))
    stop = min(matching.stop, after(state.cursor))
    if start >= stop:
        return [], None
    read, rest = _entries(view, start, stop, scan_share(shards), counted=False)
    rows = [(*entry_position(key), unpack_entry(data)) for key, data in read]
    rows = [row for row in rows if matching.concerns(row[2], shard, row[1])]
    ids = [entry_id(entry, shard, offset) for _, offset, entry in rows]
    known = view.get([id_key(message_id) for message_id in ids])
    messages: list[FoundMessage] = []
    for (place_ms, offset, entry), message_id, data in zip(rows, ids, known, strict=True):
        id_state = None if data is None else unpack_id_state(data)
        name = (
            STATE_NAMES[DELIVERED] if id_state is None else STATE_NAMES.get(id_state.state, SETTLED)
        )
        if id_state is not None and not _is_of(id_state, place_ms, offset):
            id_state, name = None, SETTLED
        ended = FoundMessage(
            id=message_id,
            state=name,
            place_ms=place_ms,
            offset=offset,
            settled_ms=None if id_state is None else id_state.settled_ms,
            entry=entry,
            failure=None if id_state is None else id_state.failure,
        )
        if ended.state in states:
            messages.append(ended)
            if len(messages) == limit:
                return messages, (place_ms, offset)
    return messages, None if rest is None else position_before(rest)


def _is_of(id_state: IdState, place_ms: int, offset: int) -> bool:
    """Return whether an id state belongs to the settled entry at this position. The state of a
    cancelled message has the position that the message had."""
    return id_state.offset == offset and (
        id_state.state == CANCELLED or id_state.due_ms == place_ms
    )


def next_place_ms(view: StoreView, state: State) -> int | None:
    """Return the stored due time of the first pending message outside lanes, in the past if the
    shard is behind; None if there is none, or only behind so many deleted entries that one call
    does not pass over them. Messages parked in lanes are overdue through no fault of the shard."""
    rows, _ = _entries(view, after(state.cursor), (MS_MAX + 1, 0), 1, counted=True)
    return entry_position(rows[0][0])[0] if rows else None
