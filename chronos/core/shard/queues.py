"""Queues of held records, in the store: records that wait until the partition they are forwarded
to, or the rejected topic, takes them.

A record whose id belongs to a partition that takes none at the moment is held, and so is every
later one for that partition while the queue is not empty: the records of an id keep their order.
Likewise rejected records while the rejected topic takes none. The records that leave a queue are a
prefix, in the order of offsets; the progress record in the same transaction names the last of them.
A record that its partition no longer takes, because of its size, goes on to the rejected topic or
to the queue of that. A shard whose queues are full (`is_full`) pulls nothing more.

The master decides when a destination takes records, in `workers.step.held`. All functions are
deterministic (law 9)."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from chronos.core.keys import (
    OFFSET_MAX,
    QUEUE_STATE,
    REJECTED,
    held_key,
    held_offset,
    queue_of,
    queue_state_key,
)
from chronos.core.message import Reason, Record
from chronos.core.shard.codec import (
    HeldRecord,
    QueueState,
    State,
    pack_held,
    pack_queue_state,
    unpack_held,
    unpack_queue_state,
)
from chronos.core.shard.fifo import Fifo, FifoWrites, Kind
from chronos.core.shard.letters import Held, Prefix
from chronos.core.shard.progress import Hold, Progress, Written, detail_number
from chronos.core.shard.step import KeyValue, Staged, StoreView
from chronos.errors import LogMismatch

HELD_MAX = 100_000
"""Held records of a shard above which it pulls nothing more: as many as it pulls in a few seconds,
and rewrites in as many."""

HELD_BYTES_MAX = 256_000_000
"""Bytes of their rows above which it pulls nothing more: as much as the smallest reserve of the
disk (`limits.disk_reserve`)."""


QUEUES: Kind[int, QueueState] = Kind(
    prefix=QUEUE_STATE,
    key=queue_state_key,
    name=queue_of,
    pack=pack_queue_state,
    unpack=unpack_queue_state,
)


class Queues(Fifo[int, QueueState]):
    """The queues of one shard that are not empty, by destination."""

    def __init__(self, view: StoreView, *, held: int) -> None:
        """`held`: number of held records in the store."""
        super().__init__(view, QUEUES, held)

    def first(self, destination: int, records_max: int, bytes_max: int) -> Prefix:
        """Return the first held records of a destination whose queue is not empty, within both
        limits, at least one."""
        start = held_key(destination, self.states[destination].offset)
        found = self.portions(start, _stop(destination), records_max, bytes_max)
        rows = next(filter(None, found), [])
        assert rows, "a queue that is not empty has no rows"
        return Prefix(destination=destination, rows=_unpacked(rows))

    def replay(self, written: Iterable[Written]) -> list[Prefix]:
        """Return the held records that the master wrote on. Raises LogMismatch if they are not
        there."""
        prefixes = []
        for queue in written:
            destination, state = queue.destination, self.states.get(queue.destination)
            start = held_key(destination, 0 if state is None else state.offset)
            stop = held_key(destination, queue.offset) + b"\0"
            rows: list[tuple[bytes, bytes]] = []
            for part in self.portions(start, stop):
                rows += part
            prefix = Prefix(
                destination=destination, rows=_unpacked(rows), too_large=queue.too_large
            )
            offsets = {offset for offset, _, _ in prefix.rows}
            if not {queue.offset, *queue.too_large} <= offsets:
                raise LogMismatch(
                    f"a progress record names held records up to offset {queue.offset} that this "
                    "replica does not hold: remove the shard's store to rebuild it from the logs"
                )
            prefixes.append(prefix)
        return prefixes

    def writes(self, staged: Staged, progress: Progress) -> FifoWrites[int, QueueState]:
        """Return what the step writes about queues."""
        puts: list[KeyValue] = []
        deletes: list[bytes] = []
        length: defaultdict[int, int] = defaultdict(int)
        size: defaultdict[int, int] = defaultdict(int)
        first = {destination: state.offset for destination, state in self.states.items()}
        for prefix in staged.letters.written:
            destination = prefix.destination
            deletes += [held_key(destination, offset) for offset, _, _ in prefix.rows]
            length[destination] -= len(prefix.rows)
            size[destination] -= sum(row_bytes for _, _, row_bytes in prefix.rows)
            first[destination] = prefix.rows[-1][0] + 1
        for held, hold in zip(staged.letters.held, progress.held, strict=True):
            record, destination = held.record, held.destination
            headers = None if record.headers is None else list(record.headers)
            detail = progress.details[hold.detail - 1] if hold.detail else ""
            data = pack_held(
                HeldRecord(
                    record.key, record.value, headers, record.timestamp_ms, held.reason, detail
                )
            )
            puts.append((held_key(destination, record.offset), data))
            length[destination] += 1
            size[destination] += len(data)
            # What comes from another queue may be older than all others.
            first[destination] = min(record.offset, first.get(destination, record.offset))
        states: dict[int, QueueState | None] = {}
        for destination, change in length.items():
            before = self.states.get(destination, QueueState(0, 0, 0))
            count = before.length + change
            assert count >= 0, "more records left a queue than were held in it"
            size_now = before.bytes + size[destination]
            assert count or not size_now, "the bytes of an empty queue are counted wrongly"
            states[destination] = QueueState(count, size_now, first[destination]) if count else None
        return self.with_states(
            puts, deletes, states, length=sum(length.values()), row_bytes=sum(size.values())
        )


def is_full(state: State) -> bool:
    """Return whether a shard holds so many records that it pulls nothing more."""
    return state.held >= HELD_MAX or state.held_bytes >= HELD_BYTES_MAX


def holds(held: Iterable[Held], details: list[str]) -> tuple[Hold, ...]:
    """Return what the progress record says about records that begin to wait; adds the texts of
    their reasons to `details`."""
    return tuple(
        Hold(
            each.record.offset,
            each.destination,
            detail_number(details, each.detail) if each.detail else 0,
        )
        for each in held
    )


def written(prefixes: Iterable[Prefix]) -> tuple[Written, ...]:
    """Return what the progress record says about the queues that are written on."""
    return tuple(
        Written(prefix.destination, prefix.rows[-1][0], prefix.too_large) for prefix in prefixes
    )


def held_by(
    progress: Progress, records: Sequence[Record], prefixes: Iterable[Prefix] = ()
) -> list[Held]:
    """Return the records that begin to wait by a progress record. Raises LogMismatch if one of them
    is neither among `records` nor too large among `prefixes`."""
    if not progress.held:
        return []
    reasons, by_offset = {**progress.rejections()}, {record.offset: record for record in records}
    for prefix in prefixes:
        for offset, held, _ in prefix.rows:
            if offset in prefix.too_large:
                by_offset[offset], reasons[offset] = record_of(offset, held), Reason.TOO_LARGE
    for first, _ in progress.unreadable:
        by_offset[first] = unreadable_record(first)
    try:
        return [
            Held(
                by_offset[hold.offset],
                hold.destination,
                reasons[hold.offset] if hold.destination == REJECTED else 0,
            )
            for hold in progress.held
        ]
    except KeyError as error:
        raise LogMismatch(
            f"a progress record holds the record at offset {error}, which it does not refuse: "
            "check topics.progress"
        ) from error


def record_of(offset: int, held: HeldRecord) -> Record:
    """Return a held record as it came."""
    return Record(offset, held.timestamp_ms, held.key, held.value, held.headers)


def unreadable_record(first: int) -> Record:
    """Return the record that stands for a range of offsets that cannot be read."""
    return Record(offset=first, timestamp_ms=0, key=None, value=None, headers=())


def _unpacked(rows: Iterable[tuple[bytes, bytes]]) -> list[tuple[int, HeldRecord, int]]:
    return [(held_offset(key), unpack_held(data), len(data)) for key, data in rows]


def _stop(destination: int) -> bytes:
    """Return the first key after the queue of a destination."""
    return held_key(destination, OFFSET_MAX) + b"\0"
