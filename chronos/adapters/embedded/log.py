"""Reading the embedded log."""

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rocksdict import WriteBatch

from chronos.adapters.embedded.journal import Journal, Ticket, puts
from chronos.adapters.embedded.topics import (
    EmbeddedTopics,
    Partition,
    Topic,
    is_topic_name,
    pack_body,
    pack_offset,
    pack_stamp,
    record_key,
    record_offset,
    unpack_record,
    wake,
)
from chronos.core.keys import partition_of
from chronos.core.message import Record
from chronos.errors import (
    ClockDisagrees,
    LogMismatch,
    LogUnavailable,
    ProducerLost,
    Retry,
    StoreCorrupt,
    TransactionAborted,
)
from chronos.ports import (
    CLOCK_TOLERANCE_MS,
    Appended,
    Clock,
    Outgoing,
    ReaderMode,
    Sent,
    Throttle,
    TopicInfo,
    TopicSpec,
    Verify,
    Watermarks,
)


class EmbeddedReader:
    """Reads one partition. See `ports.Reader`. For one thread."""

    def __init__(self, journal: Journal, path: Path, partition: Partition, offset: int) -> None:
        self._journal = journal
        self._path = path
        self._partition = partition
        self.position = offset

    @property
    def delayed(self) -> str | None:
        """Never."""
        return None

    def read(self, records_max: int, bytes_max: int) -> list[Record]:
        """Return the next synced records without waiting. Raises LogMismatch, StoreCorrupt,
        LogUnavailable."""
        partition, position, end = self._partition, self.position, self._partition.end
        if self._journal.closed:
            raise LogUnavailable("the embedded log is closed")
        if not partition.start <= position <= end:
            raise LogMismatch(
                f"offset {position} of {partition.name} is not in the log, which holds "
                f"{partition.start} to {end}: it was trimmed, or is not the log that was read "
                "before"
            )
        if position == end or records_max < 1:
            return []
        rows = self._journal.db.rows(
            partition.key(position), partition.key(end), records_max, bytes_max
        )
        records = [unpack_record(record_offset(key), data) for key, data in rows]
        if (
            not records
            or records[0].offset != position
            or records[-1].offset != position + len(records) - 1
        ):
            if position < partition.start:
                raise LogMismatch(f"offset {position} of {partition.name} was trimmed just now")
            raise StoreCorrupt(
                f"{self._path}: records of {partition.name} at or after {position} are missing"
            )
        self.position += len(records)
        return records

    @property
    def waker(self) -> None:
        """Nothing ends a wait."""
        return None

    def wait(self, timeout_s: float) -> bool:
        """Wait for a record, or for an error that `read` will raise."""
        partition, journal = self._partition, self._journal
        with partition.changed:
            return partition.changed.wait_for(
                lambda: journal.closed or not partition.start <= self.position == partition.end,
                timeout_s,
            )

    def seek(self, offset: int) -> None:
        """Continue from another offset."""
        self.position = offset

    def close(self) -> None:
        """Nothing to release."""


def first_after(journal: Journal, partition: Partition, timestamp_ms: int) -> int:
    """Return the first offset with a greater timestamp, by bisection, on the assumption that
    timestamps never went back."""
    low, high = partition.start, partition.end
    while low < high:
        middle = (low + high) // 2
        data = journal.db.get([partition.key(middle)])[0]
        if data is not None and unpack_record(middle, data).timestamp_ms > timestamp_ms:
            high = middle
        else:
            low = middle + 1
    return low


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


RETENTION_MS = 7 * 86_400_000
"""How long targets keep records unless configured otherwise."""

DISK_RESERVE_BYTES = 256 << 20
"""Free space on the disk below which nothing is written."""

MESSAGE_BYTES_MAX = 1 << 20
"""Largest record of a topic without a setting of its own: Kafka's `max.message.bytes`."""

MEMTABLE_BYTES = 32 << 20

COMPACT_BYTES = 64 << 20
"""Estimate of what must be trimmed off a partition before its space is given back: that rewrites a
table or two."""


class EmbeddedLog:
    """See `ports.Log`. Any thread may call."""

    marker_offsets = 0

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock,
        progress_topic: str = "chronos.progress",
        partitions_default: int = 1,
        retention_ms: int = RETENTION_MS,
        disk_reserve_bytes: int = DISK_RESERVE_BYTES,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        memtable_bytes: int = MEMTABLE_BYTES,
    ) -> None:
        """`partitions_default`, `retention_ms`, `message_bytes_max`: of topics that are created by
        their first record."""
        self._path = path
        self._progress_topic = progress_topic
        self._retention_ms = retention_ms
        self._lock = threading.RLock()
        self._journal = Journal(
            path,
            lock=self._lock,
            memtable_bytes=memtable_bytes,
            disk_reserve_bytes=disk_reserve_bytes,
            on_synced=self._show,
            on_reopened=self._reload,
        )
        try:
            self._topics = EmbeddedTopics(
                self._journal,
                path,
                self._lock,
                partitions_default=partitions_default,
                message_bytes_max=message_bytes_max,
            )
            self._records = RecordWriter(self._journal, self._topics, self._lock, clock)
        except BaseException:
            self._journal.close()
            raise

    def _show(self, synced: int) -> None:
        self._records.show(synced)

    def _reload(self) -> None:
        self._records.forget_unsynced()
        self._topics.reload()

    # --- records

    def reader(
        self, topic: str, partition: int, offset: int, *, mode: ReaderMode = "plain"
    ) -> EmbeddedReader:
        """A reader that starts at the offset. Records are not compressed, so every reader is
        bounded."""
        return EmbeddedReader(
            self._journal, self._path, self._topics.partition(topic, partition), offset
        )

    def writer(self, shard: int) -> EmbeddedWriter:
        """A writer for the shard; fences the earlier ones and syncs what they wrote last."""
        with self._lock:
            self._journal.make_ready(gives_space=True)
            writer = EmbeddedWriter(self._records, self._progress_topic, shard)
            self._records.writers[shard] = writer
        self._journal.wait_synced(self._journal.last())
        return writer

    def append(self, records: Sequence[Outgoing], timeout_s: float) -> list[Appended]:
        """Write records outside any transaction, all or none. Raises LogUnavailable if one is
        refused."""
        return self._records.append(records, timeout_s)

    # --- topics

    def prepare(self, topics: Sequence[TopicSpec], *, create: bool) -> dict[str, TopicInfo]:
        """Create missing topics and check all. Of the settings, `max.message.bytes` and
        `retention.ms` count."""
        with self._lock:
            # The node calls this every second: a journal that failed is reopened even if nothing is
            # written.
            self._journal.make_ready(gives_space=True)
            infos = self._topics.prepare(topics, create=create)
        self._journal.wait_synced(self._journal.last())
        return infos

    def describe(self, topics: Sequence[str]) -> dict[str, TopicInfo | None]:
        """Describe topics; None for an invalid name. A topic that its first record will create is
        described without an id."""
        return self._topics.describe(topics)

    def topics(self) -> dict[str, TopicInfo]:
        """All topics."""
        return self._topics.infos()

    def ping(self, timeout_s: float) -> bool:
        """Always True: there is no broker that could fail to answer."""
        return True

    # --- offsets

    def watermarks(self, topic: str, partition: int) -> Watermarks:
        """Start and end of the partition; no transaction is ever open, so all of it is stable."""
        with self._lock:
            found = self._topics.partition(topic, partition)
            return Watermarks(start=found.start, stable=found.end, high=found.end)

    def stable_end(self, topic: str, partition: int) -> int:
        """The offset after the last synced record."""
        return self._topics.partition(topic, partition).end

    def stable_ends(self, topic: str, partitions: Collection[int]) -> dict[int, int]:
        """The offset after the last synced record of each partition."""
        ends = {}
        for partition in partitions:
            with suppress(LogMismatch):
                ends[partition] = self.stable_end(topic, partition)
        return ends

    high_watermarks = stable_ends

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """The first offset with that timestamp or a greater one, by bisection."""
        return first_after(
            self._journal, self._topics.partition(topic, partition), timestamp_ms - 1
        )

    def batch_bounds(self, topic: str, partition: int, offset: int) -> tuple[int, int]:
        """A record is a batch of its own."""
        return offset, offset

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        """Always None: the embedded log has no consumer groups."""
        self._topics.partition(topic, partition)
        return None

    # --- space

    def trim(self, topic: str, partition: int, offset: int) -> None:
        """Delete the records before the offset, never beyond the end. Offsets are never reused."""
        with self._lock:
            self._journal.make_ready(gives_space=True)
            trimmed = self._topics.partition(topic, partition)
            start = min(offset, trimmed.end)
            if start <= trimmed.start:
                return
            (sample,) = self._journal.db.get([trimmed.key(trimmed.start)])
            trimmed.trimmed_bytes += (start - trimmed.start) * len(sample or b"")
            ticket = self._journal.write(lambda: _trimming(trimmed, start))
            trimmed.start = start
            wake([trimmed])
        self._journal.wait_synced(ticket)
        if trimmed.trimmed_bytes >= COMPACT_BYTES or self._journal.is_short_of_space():
            since, trimmed.compacted, trimmed.trimmed_bytes = trimmed.compacted, start, 0
            self._journal.db.compact(trimmed.key(since), trimmed.key(start))

    def expire(self, now_ms: int) -> None:
        """Trim what is older than its topic's retention; Chronos's own topics expire only if they
        have `retention.ms`."""
        # raises while the clock is wrong: set ahead, it would expire young records
        self._records.timestamp_ms()
        for name, topic in self._topics.items():
            retention_ms = topic.retention_ms if topic.row.own else self._retention_ms
            if retention_ms is not None:
                for partition in topic.partitions:
                    offset = first_after(self._journal, partition, now_ms - retention_ms)
                    self.trim(name, partition.partition, offset)

    def verify(self) -> int:
        """Read every row, check every checksum and return the number of rows."""
        return self._journal.db.verify()

    def size_bytes(self) -> int:
        """Bytes on disk."""
        return self._journal.db.size_bytes()

    def close(self) -> None:
        """Flush, close, and wake every reader that waits."""
        self._journal.close()
        with self._lock:
            self._topics.wake_all()


def _trimming(partition: Partition, start: int) -> WriteBatch:
    batch = puts([(partition.start_key, pack_offset(start))])
    batch.delete_range(partition.key(partition.start), partition.key(start))
    return batch
