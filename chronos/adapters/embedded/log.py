"""The embedded log (`ports.Log`): a durable log inside the process, for evaluation and tests. It
serves one process, and a partition has one replica. Its storage is `journal`, its topics are in
`topics`."""

import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from rocksdict import WriteBatch

from chronos.adapters.embedded.journal import Journal, puts
from chronos.adapters.embedded.reader import EmbeddedReader, first_after
from chronos.adapters.embedded.topics import (
    EmbeddedTopics,
    Partition,
    pack_offset,
    wake,
)
from chronos.adapters.embedded.writer import EmbeddedWriter, RecordWriter
from chronos.errors import LogMismatch
from chronos.ports import (
    Appended,
    Clock,
    Outgoing,
    ReaderMode,
    TopicInfo,
    TopicSpec,
    Watermarks,
)

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
