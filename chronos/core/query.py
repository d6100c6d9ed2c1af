"""Queries of a shard, answered from its store: one message, a page of pending ones by a filter, the
timeline, and a scan of all pending messages for bulk operations.

Queries read through `StoreView`, so any replica can answer. Every call does a bounded amount of
work; the answer names the position from which the caller can continue.

`scan_pending` reads a snapshot of the store, so it finds every message that is pending at that
moment exactly once, whatever the shard does meanwhile: messages that are scheduled or moved later
are not found at their new positions."""

from collections.abc import Callable, Collection, Iterator
from fnmatch import fnmatchcase
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from chronos.core.keys import (
    MINUTE_MS,
    OFFSET_MAX,
    STATE_KEY,
    Lane,
    count_key,
    entry_key,
    entry_position,
    id_key,
    key_number,
    lane_key,
    lane_position,
    parked_key,
    parked_position,
    parse_generated_id,
    position_before,
    queue_state_key,
    unpack_lane,
)
from chronos.core.message import Entry, EntryHead, entry_id
from chronos.core.reach import EVERYTHING, Reach
from chronos.core.shard.codec import (
    ABSENT,
    CANCELLED,
    DELIVERED,
    FRESH,
    PENDING,
    STATE_NAMES,
    Failure,
    IdState,
    State,
    unpack_entry,
    unpack_head,
    unpack_id_state,
    unpack_state,
)
from chronos.core.shard.counts import next_counted
from chronos.core.shard.lanes import lane_of, read_states
from chronos.core.shard.step import StoreView, portions
from chronos.core.shard.wheel import Position
from chronos.core.timefmt import MS_MAX

WILDCARDS = frozenset("*?[")
"""Characters of a pattern that is not the name of one topic."""


@lru_cache(maxsize=10_000)
def is_like(topic: str, pattern: str) -> bool:
    """Return whether a topic matches a pattern, which is its name or a shell-style pattern as in
    `targets.allow`."""
    return fnmatchcase(topic, pattern)


class Filter(Struct, frozen=True, kw_only=True):
    """Conditions that must all be true of a message; the default is true of every message."""

    target: str | None = None
    """Its target topic matches this name or pattern."""
    due_from_ms: int = 0
    """It is due at or after this time (epoch ms), by its position in the store."""
    due_to_ms: int = MS_MAX + 1
    """It is due before this time (epoch ms), by its position in the store."""
    id_prefix: bytes = b""
    """First bytes of its id, be it the user's or a generated one."""
    key: bytes | None = None
    """The Kafka key that it is delivered with."""
    headers: tuple[tuple[str, bytes], ...] = ()
    """Headers that it has, among any others, with exactly these values."""
    contains: bytes = b""
    """Its id, its Kafka key, or the name or the value of one of its headers contains this."""
    is_series: bool = False
    """It has a repetition, if True."""
    reach: Reach = EVERYTHING
    """It is the sender's own."""

    @property
    def is_selective(self) -> bool:
        """True if messages of the due window are told apart by more than their time."""
        return (
            self.target is not None
            or bool(self.id_prefix)
            or self.needs_entry
            or self.reach.is_limited
        )

    @property
    def needs_entry(self) -> bool:
        """True if the head of an entry is not enough to tell."""
        return bool(self.headers) or self.key is not None or bool(self.contains) or self.is_series

    @property
    def start(self) -> Position:
        """The first position of the due window."""
        return max(min(self.due_from_ms, MS_MAX), 0), 0

    @property
    def stop(self) -> Position:
        """The first position after the due window."""
        return max(min(self.due_to_ms, MS_MAX + 1), 0), 0

    def concerns_target(self, topic: str) -> bool:
        """Return whether the filter may be true of a message for the topic."""
        return (self.target is None or is_like(topic, self.target)) and self.reach.admits_target(
            topic
        )

    def concerns(self, entry: Entry | EntryHead, shard: int, offset: int) -> bool:
        """Return whether the filter is true of a message whose position is in the due window."""
        if self.target is not None and not is_like(entry.target, self.target):
            return False
        if self.reach is not EVERYTHING and not self.reach.admits(
            entry_id(entry, shard, offset), entry.target
        ):
            return False
        if self.id_prefix and not entry_id(entry, shard, offset).startswith(self.id_prefix):
            return False
        if self.needs_entry:
            assert isinstance(entry, Entry), "this filter needs the whole entry"
            if self.is_series and (entry.options is None or entry.options.repetition is None):
                return False
            if self.key is not None and entry.key != self.key:
                return False
            headers = entry.headers
            pairs = headers.items() if isinstance(headers, dict) else headers
            if self.contains and not (
                self.contains in entry_id(entry, shard, offset)
                or self.contains in (entry.key or b"")
                or any(self.contains in name.encode(errors="surrogatepass") for name, _ in pairs)
                or any(self.contains in (value or b"") for _, value in pairs)
            ):
                return False
            return all(pair in pairs for pair in self.headers)
        return True


def after(position: Position) -> Position:
    """Return the first position after this one."""
    due_ms, offset = position
    return (due_ms, offset + 1) if offset < OFFSET_MAX else (due_ms + 1, 0)


PAGE_SCAN_MAX = 5_000
"""Entries read of one shard for one page, whether they match or not."""

PAGE_SCAN_BYTES = 8_000_000
"""Bytes of entries read of one shard for one page; at least one entry is read."""

MERGED_SCAN_MAX = 10_000
"""Entries read of all shards for one page that is merged from theirs: a search for a text in the
headers of so many takes some 150 ms."""

SHARD_SCAN_MIN = 100
"""Entries of a shard that are read for such a page, however many shards there are."""

INTERVALS_MAX = 1_500
"""Most intervals of a timeline: a day by the minute, and some more."""

TIMELINE_MAX_MS = 1_100 * 86_400_000
"""Longest period of a timeline, in ms: three years. Only minutes with messages cost anything."""

SETTLED = "settled"
"""The state of a message that ended, where it is not known how."""

COUNTS_SCAN = 1_000
"""Counts read in one scan: a scan holds the GIL."""

ENTRIES_SCAN = 250
"""Entries read in one scan, for the same reason: a shard waits for the GIL several times in a
step."""


EMPTY_SCANS_MAX = 2
"""Scans without an entry after which a look-up ends, each of which passed over deleted entries for
some milliseconds."""


class FoundMessage(Struct, frozen=True, kw_only=True):
    """The known state of one message."""

    id: bytes
    state: str
    """pending, delivered, cancelled, expired or dead; of `settled` also SETTLED."""
    place_ms: int
    """Due time in the store (epoch ms): never before the requested one; later after a retry or a
    late arrival."""
    offset: int
    """Source offset: that of its delay record."""
    settled_ms: int | None
    """Broker time (epoch ms) at which it was settled; None while it is pending, or if it has no id
    state."""
    entry: Entry | None
    """The message; None after a cancel, or after its retention."""
    failure: Failure | None = None
    """Why it was not delivered when it was last tried."""
    lane: Lane | None = None
    """The lane in which it is parked."""


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


def holds_for(view: StoreView, state: State, destination: int) -> bool:
    """Return whether a shard holds records that are to be forwarded to this partition."""
    return state.held_forwards > 0 and view.get([queue_state_key(destination)])[0] is not None


def find(
    view: StoreView, state: State, shard: int, shards: int, message_id: bytes, *, reach: Reach
) -> FoundMessage | None:
    """Return the state of the id in this shard, from its id state or from the entry at its
    generated id; None if unknown.

    A message out of reach is unknown, also one whose target is no longer kept, if the reach is
    limited."""
    found = _find(view, state, shard, shards, message_id)
    if found is None or not reach.is_limited:
        return found
    return (
        found if found.entry is not None and reach.admits(message_id, found.entry.target) else None
    )


def _find(
    view: StoreView, state: State, shard: int, shards: int, message_id: bytes
) -> FoundMessage | None:
    (data,) = view.get([id_key(message_id)])
    if data is not None:
        id_state = unpack_id_state(data)
        if id_state.state == ABSENT:
            return None
        position = (id_state.due_ms, id_state.offset)
        (stored,) = view.get([entry_key(*position)])
        lane: Lane | None = None
        if stored is None and id_state.state == PENDING:
            lane = lane_of(view, *position)
            (stored,) = (None,) if lane is None else view.get([lane_key(lane, *position)])
        return FoundMessage(
            id=message_id,
            state=STATE_NAMES[id_state.state],
            place_ms=id_state.due_ms,
            offset=id_state.offset,
            settled_ms=None if id_state.state == PENDING else id_state.settled_ms,
            entry=None if stored is None else unpack_entry(stored),
            failure=id_state.failure,
            lane=lane,
        )
    generated_id = parse_generated_id(message_id, shards)
    if generated_id is None or generated_id[0] != shard:
        return None
    _, due_ms, offset = generated_id
    (stored,) = view.get([entry_key(due_ms, offset)])
    if stored is None:
        return None
    entry = unpack_entry(stored)
    if entry_id(entry, shard, offset) != message_id:
        # The message at this position has a key, and only its key names it.
        return None
    settled = (due_ms, offset) <= state.cursor
    return FoundMessage(
        id=message_id,
        state=STATE_NAMES[DELIVERED if settled else PENDING],
        place_ms=due_ms,
        offset=offset,
        settled_ms=None,
        entry=entry,
    )


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
        found, rest = _entries(
            view, start, stop, scan_share(shards) if matching.is_selective else limit, counted=True
        )
        (now,) = view.get([STATE_KEY])
        state = state if now is None else unpack_state(now)
        for key, data in found:
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
    found: list[tuple[bytes, bytes]] = []
    end, left, empty = entry_key(*stop), PAGE_SCAN_BYTES, 0
    key: bytes | None = entry_key(*start)
    while key is not None and len(found) < entries_max and left > 0 and empty < EMPTY_SCANS_MAX:
        portion, key = view.scan(key, end, min(ENTRIES_SCAN, entries_max - len(found)), left)
        found += portion
        left -= sum(len(data) for _, data in portion)
        if not portion:
            empty += 1
            if key is not None and counted:
                key = next_counted(view, key, end)
    return found, key


def _parked(
    view: StoreView, shard: int, first: Position, stop: Position, matching: Filter, limit: int
) -> tuple[list[MessageRow], Position | None]:
    """Return parked messages from `first` to before `stop`, as `page`; None if there are no more
    before `stop`."""
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

    They are the entries at or before the cursor, which are kept for `retention.delivered`. One
    without an id state was delivered. The state of one whose id has a later message is `settled`:
    how it ended is not kept."""
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
    found: list[FoundMessage] = []
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
            found.append(ended)
            if len(found) == limit:
                return found, (place_ms, offset)
    return found, None if rest is None else position_before(rest)


def _is_of(id_state: IdState, place_ms: int, offset: int) -> bool:
    """Return whether an id state is that of the settled entry at a position; that of a cancelled
    message has the position it left."""
    return id_state.offset == offset and (
        id_state.state == CANCELLED or id_state.due_ms == place_ms
    )


def next_place_ms(view: StoreView, state: State) -> int | None:
    """Return the stored due time of the first pending message outside lanes, in the past if the
    shard is behind; None if there is none, or only behind so many deleted entries that one call
    does not pass over them. Messages parked in lanes are overdue through no fault of the shard."""
    rows, _ = _entries(view, after(state.cursor), (MS_MAX + 1, 0), 1, counted=True)
    return entry_position(rows[0][0])[0] if rows else None


def check_timeline(from_ms: int, to_ms: int, step_ms: int) -> None:
    """Raise ValueError, with a text for users, if such a timeline cannot be computed."""
    if step_ms < MINUTE_MS or step_ms % MINUTE_MS:
        raise ValueError(
            "must be a whole number of minutes, at least 1m: messages are counted by the minute"
        )
    if to_ms <= from_ms:
        raise ValueError("the end must lie after the beginning")
    if to_ms - from_ms > TIMELINE_MAX_MS:
        raise ValueError(f"at most {TIMELINE_MAX_MS // 86_400_000} days at once")
    if -(-(to_ms - from_ms) // step_ms) > INTERVALS_MAX:
        raise ValueError(f"at most {INTERVALS_MAX} intervals at once; choose a longer step")


def timeline(view: StoreView, from_ms: int, to_ms: int, step_ms: int) -> list[int]:
    """Return the pending messages in each interval of `step_ms`, from the minute of `from_ms` on.
    Raises as `check_timeline`."""
    check_timeline(from_ms, to_ms, step_ms)
    first = from_ms // MINUTE_MS
    beyond = -(-to_ms // MINUTE_MS)
    step = step_ms // MINUTE_MS
    counts = [0] * -(-(beyond - first) // step)
    start, stop = count_key(first), count_key(beyond)
    for rows in portions(view, start, stop, COUNTS_SCAN, PAGE_SCAN_BYTES):
        for key, data in rows:
            counts[(key_number(key) - first) // step] += int.from_bytes(data, "big")
    return counts


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
    for lane, lane_state in sorted(read_states(view, state.parked).items()):
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
        found = []
        for key, data in rows:
            place_ms, offset = position_of(key)
            entry = unpack(data)
            if matching.concerns(entry, shard, offset):
                found.append(Match(entry_id(entry, shard, offset), place_ms, offset, entry.target))
        yield len(rows), found


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
