"""The writers of the embedded log: of records outside transactions, and of the transactions of each
shard (`ports.Writer`).

A transaction is one atomic write. Readers see a record once it is synced; a writer is fenced by the
next one of its shard, under the lock of the log (law 3). No record is written while the machine's
clock is stepped by more than CLOCK_TOLERANCE_MS against the start of the process, even to the right
time: that takes a restart (law 2)."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from chronos.adapters.embedded.journal import Journal, Ticket, puts
from chronos.adapters.embedded.topics import (
    EmbeddedTopics,
    Partition,
    Topic,
    is_topic_name,
    pack_body,
    pack_stamp,
    record_key,
    wake,
)
from chronos.core.keys import partition_of
from chronos.errors import (
    ClockDisagrees,
    LogUnavailable,
    ProducerLost,
    Retry,
    TransactionAborted,
)
from chronos.ports import (
    CLOCK_TOLERANCE_MS,
    Appended,
    Clock,
    Outgoing,
    Sent,
    Throttle,
    Verify,
)

Placed = tuple[Partition, bytes]
"""A record to be written: its partition and packed body."""


class RecordRefused(Exception):
    """A record that cannot be written because of its content or its topic."""


class RecordWriter:
    """Writes records, and decides their partitions, offsets and timestamps. Any thread may call."""

    def __init__(
        self, journal: Journal, topics: EmbeddedTopics, lock: threading.RLock, clock: Clock
    ) -> None:
        self.journal = journal
        self.topics = topics
        self.lock = lock
        self.writers: dict[int, EmbeddedWriter] = {}
        """The writer of each shard; every earlier one is fenced."""
        self._clock = clock
        self._unsynced: deque[tuple[int, Mapping[Partition, int]]] = deque()
        """Writes that readers do not see yet: number, and the new end of each partition."""

    def append(self, records: Sequence[Outgoing], timeout_s: float) -> list[Appended]:
        """Write records outside any transaction, all or none. Raises LogUnavailable if one is
        refused."""
        try:
            placed = self.place(records)
        except RecordRefused as refused:
            raise LogUnavailable(str(refused)) from refused
        with self.lock:
            self.journal.make_ready()
            timestamp_ms = self.timestamp_ms()
            offsets, ticket = self.write(placed, timestamp_ms)
        self.journal.wait_synced(ticket, timeout_s)
        return [
            Appended(partition=partition.partition, offset=offset, timestamp_ms=timestamp_ms)
            for (partition, _), offset in zip(placed, offsets, strict=True)
        ]

    def place(self, records: Iterable[Outgoing]) -> list[Placed]:
        """Pack the records and choose their partitions; creates missing targets. Raises
        RecordRefused."""
        placed = []
        for name, key, value, headers, partition in records:
            topic = self.topics.get(name) or self._create_target(name)
            try:
                body = pack_body(key, value, headers)
            except UnicodeEncodeError as error:
                raise RecordRefused(
                    f"a header name for {name} is not valid Unicode: {error}"
                ) from error
            if len(body) > topic.bytes_max:
                raise RecordRefused(
                    f"{name} takes {topic.bytes_max} bytes, not a record of {len(body)}"
                )
            if partition >= topic.row.partitions:
                raise RecordRefused(f"there is no partition {partition} of {name}")
            chosen = partition if partition >= 0 else _choose_partition(topic, key)
            placed.append((topic.partitions[chosen], body))
        return placed

    def _create_target(self, name: str) -> Topic:
        if not is_topic_name(name):
            raise RecordRefused(f"{name[:300]!r} is not a topic name")
        with self.lock:
            return self.topics.create_target(name)

    def timestamp_ms(self) -> int:
        """The host's time, which records get. After a step of the host's clock it cannot be trusted
        (law 2)."""
        stepped_ms = self._clock.stepped_ms()
        if abs(stepped_ms) > CLOCK_TOLERANCE_MS:
            raise ClockDisagrees(
                f"this machine's clock was stepped by {stepped_ms} ms while Chronos ran. Nothing "
                "is accepted or delivered until it is back; if the new time is the right one, "
                "restart Chronos"
            )
        return self._clock.now_ms()

    def write(self, placed: Sequence[Placed], timestamp_ms: int) -> tuple[list[int], Ticket]:
        """Write all records atomically and return their offsets, with the lock held. If it raises,
        nothing was written."""
        stamp = pack_stamp(timestamp_ms)
        ends = {partition: partition.next for partition, _ in placed}
        offsets = []
        rows = []
        for partition, body in placed:
            offset = ends[partition]
            ends[partition] = offset + 1
            offsets.append(offset)
            rows.append((record_key(partition.number, partition.partition, offset), stamp + body))
        ticket = self.journal.write(lambda: puts(rows))
        for partition, end in ends.items():
            partition.next = end
        self._unsynced.append((ticket[1], ends))
        return offsets, ticket

    def show(self, synced: int) -> None:
        """Let readers see the writes up to this number, with the lock held."""
        moved: set[Partition] = set()
        while self._unsynced and self._unsynced[0][0] <= synced:
            _, ends = self._unsynced.popleft()
            for partition, end in ends.items():
                partition.end = end
            moved.update(ends)
        wake(moved)

    def forget_unsynced(self) -> None:
        """Forget the unsynced writes after the database was reopened: those that it still has are
        read from it."""
        self._unsynced.clear()


def _choose_partition(topic: Topic, key: bytes | None) -> int:
    if topic.row.partitions == 1:
        return 0
    if key is not None:
        return partition_of(key, topic.row.partitions)
    topic.turn = (topic.turn + 1) % topic.row.partitions
    return topic.turn


class EmbeddedWriter:
    """Writes the transactions of one shard. See `ports.Writer`."""

    sent: Sequence[Sent] = ()
    """There are no brokers."""

    throttle: Throttle | None = None
    """There are no quotas."""

    def __init__(self, records: RecordWriter, progress_topic: str, shard: int) -> None:
        self._records = records
        self._progress_topic = progress_topic
        self._shard = shard
        self._placed: list[Placed] | None = None

    def begin_at(self, end: int) -> None:
        """Nothing to compare: no writer of this log outlives its successor."""

    def send(self, messages: Iterable[Outgoing], progress: bytes) -> None:
        """Pack everything and choose the partition of each message; nothing is written yet."""
        self._placed = None
        try:
            placed = self._records.place(messages)
        except RecordRefused as refused:
            raise TransactionAborted(str(refused), poison_likely=True) from refused
        placed.append(
            (
                self._records.topics.partition(self._progress_topic, self._shard),
                pack_body(None, progress, ()),
            )
        )
        self._placed = placed

    def commit(self, verify: Verify, meanwhile: Callable[[], None] | None = None) -> Appended:
        """1. check that no other writer took over, 2. verify, 3. write, 4. sync; `meanwhile` runs
        first.

        Raises NoSpace too: nothing was written, and this writer may go on.
        """
        if meanwhile is not None:
            meanwhile()
        placed, self._placed = self._placed, None
        assert placed is not None, "commit without send"
        records, journal = self._records, self._records.journal
        with records.lock:
            journal.make_ready()
            if records.writers.get(self._shard) is not self:
                raise ProducerLost(f"another writer has taken over shard {self._shard}")
            timestamp_ms = records.timestamp_ms()
            verify(timestamp_ms, ())  # a writer that another one has replaced does not come here
            offsets, ticket = records.write(placed, timestamp_ms)
        try:
            journal.wait_synced(ticket)
        except Retry as error:
            raise ProducerLost(f"a transaction was written, but {error}") from error
        return Appended(partition=self._shard, offset=offsets[-1], timestamp_ms=timestamp_ms)

    def close(self) -> None:
        """Nothing to release."""
