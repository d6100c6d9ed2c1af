"""A log inside this one process: topics, partitions, offsets and transactions on RocksDB. See `ports.Log`.

Acknowledged means synced to the disk; a transaction is one atomic write; readers see what is synced. There
are no markers, so offsets have no gaps, and a gap found while reading is damage. It is not a broker: nobody
else can connect to it. A topic that is not there is made by the first record for it: there is no other way.
"""

import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from rocksdict import WriteBatch

from chronos.adapters.embedded.journal import Journal, Ticket
from chronos.adapters.embedded.rows import (
    LAYOUT_KEY,
    LAYOUT_VERSION,
    OFFSET_MAX,
    TopicRow,
    pack_body,
    pack_offset,
    pack_stamp,
    pack_topic,
    record_key,
    record_offset,
    start_key,
    topic_key,
    topic_name,
    unpack_offset,
    unpack_record,
    unpack_topic,
)
from chronos.core.keys import partition_of
from chronos.core.message import Record
from chronos.core.rules import TOPIC_NAME
from chronos.errors import (
    ClockDisagrees,
    ConfigurationError,
    LogMismatch,
    LogUnavailable,
    ProducerLost,
    Retry,
    StoreCorrupt,
    TransactionAborted,
)
from chronos.ports import CLOCK_TOLERANCE_MS, Appended, Clock, Outgoing, TopicInfo, TopicSpec, Watermarks

RETENTION_MS = 7 * 86_400_000
DISK_RESERVE_BYTES = 256 << 20
MESSAGE_BYTES_MAX = 1 << 20
MEMTABLE_BYTES = 32 << 20

COMPACT_BYTES = 64 << 20
"""Trimmed off a partition, by estimate, before that space is asked back: it costs a rewrite of a table or two."""


class _Partition:
    """Where a partition stands, in memory. Guarded by the log's lock."""

    def __init__(self, topic: str, number: int, partition: int, lock: threading.RLock) -> None:
        self.name = f"{topic}/{partition}"
        self.number = number
        self.partition = partition
        self.start = 0
        self.end = 0
        """Behind the last synced record: what readers may see."""
        self.next = 0
        """Behind the last record written."""
        self.compacted = 0
        """Where the space was asked back last."""
        self.idle_bytes = 0
        """About how much was trimmed since."""
        self.changed = threading.Condition(lock)

    def key(self, offset: int) -> bytes:
        return record_key(self.number, self.partition, offset)

    @property
    def start_key(self) -> bytes:
        return start_key(self.number, self.partition)


class _Topic:
    def __init__(self, name: str, row: TopicRow, bytes_max: int, lock: threading.RLock) -> None:
        self.row = row
        self.bytes_max = bytes_max
        self.retention_ms: int | None = None
        """Of one of Chronos's own; None: for ever."""
        self.turn = 0
        """Partition of the last record without a key."""
        self.partitions = [_Partition(name, row.number, partition, lock) for partition in range(row.partitions)]

    def info(self) -> TopicInfo:
        return _info(self.row.id, self.row.partitions, self.bytes_max)


class _Refused(Exception):
    """A record that cannot be written, because of what it is."""


Placed = tuple[_Partition, bytes]
"""A record to be written: its partition and packed body."""


class EmbeddedReader:
    """Reads one partition. See `ports.Reader`. For one thread."""

    def __init__(self, log: "EmbeddedLog", partition: _Partition, offset: int) -> None:
        self._log = log
        self._partition = partition
        self.position = offset

    def read(self, records_max: int, bytes_max: int) -> list[Record]:
        """What is there now, without waiting."""
        records = self._log._read(self._partition, self.position, records_max, bytes_max)
        self.position += len(records)
        return records

    def wait(self, timeout_s: float) -> bool:
        """Wait until there is something to read, or something wrong with the position."""
        partition, log = self._partition, self._log
        with partition.changed:
            return partition.changed.wait_for(
                lambda: log.closed or not partition.start <= self.position == partition.end, timeout_s
            )

    def seek(self, offset: int) -> None:
        """Read on from another offset."""
        self.position = offset

    def close(self) -> None:
        """Nothing is held."""


class EmbeddedWriter:
    """Writes the transactions of one shard. See `ports.Writer`."""

    def __init__(self, log: "EmbeddedLog", shard: int) -> None:
        self._log = log
        self._shard = shard
        self._placed: list[Placed] | None = None

    def send(self, messages: Iterable[Outgoing], progress: bytes) -> None:
        """Pack everything and give each message its partition; nothing is written yet."""
        self._placed = self._log._place_transaction(messages, self._shard, progress)

    def commit(self, verify: Callable[[int], None], meanwhile: Callable[[], None] | None = None) -> Appended:
        """All of it in one write. Raises NoSpace too: nothing was written, and this writer may go on."""
        if meanwhile is not None:
            meanwhile()
        placed, self._placed = self._placed, None
        assert placed is not None, "commit without send"
        return self._log._commit(self, self._shard, placed, verify)

    def close(self) -> None:
        """Nothing is held."""


class EmbeddedLog:
    """See `ports.Log`. Any thread may call."""

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
        self._path = path
        self._clock = clock
        self._progress_topic = progress_topic
        self._partitions_default = partitions_default
        self._retention_ms = retention_ms
        self._message_bytes_max = message_bytes_max
        self._lock = threading.RLock()
        self._topics: dict[str, _Topic] = {}
        self._writers: dict[int, EmbeddedWriter] = {}
        self._unsynced: deque[tuple[int, Mapping[_Partition, int]]] = deque()
        """Writes that readers do not see yet: the number, and how far it moves which partitions."""
        self._journal = Journal(
            path,
            lock=self._lock,
            memtable_bytes=memtable_bytes,
            disk_reserve_bytes=disk_reserve_bytes,
            on_synced=self._show,
            on_reopened=self._reload,
        )
        try:
            self._load()
        except BaseException:
            self._journal.close()
            raise

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._journal.closed

    # --- what is there

    def _load(self) -> None:
        """Take topics and offsets from the disk. Known partitions stay the objects that readers hold."""
        db = self._journal.db
        layout = db.get([LAYOUT_KEY])[0]
        if layout is None and not db.scan(b"", None, 1, 1):
            self._journal.write(lambda: _puts([(LAYOUT_KEY, LAYOUT_VERSION)]))
        elif layout != LAYOUT_VERSION:
            raise StoreCorrupt(f"{self._path} holds no log, or one of a layout that this version does not know")
        start = topic_key("")
        while rows := db.scan(start, b"u", 1_000, 1_000_000):
            for key, data in rows:
                self._adopt(topic_name(key), unpack_topic(data))
            start = rows[-1][0] + b"\0"

    def _adopt(self, name: str, row: TopicRow) -> _Topic:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = _Topic(name, row, self._message_bytes_max, self._lock)
        db = self._journal.db
        starts = db.get([partition.start_key for partition in topic.partitions])
        for partition, data in zip(topic.partitions, starts, strict=True):
            partition.start = unpack_offset(data) if data else 0
            last = db.last_key(partition.key(0), partition.key(OFFSET_MAX))
            partition.end = partition.next = max(partition.start, record_offset(last) + 1 if last else 0)
        return topic

    def _reload(self) -> None:
        """The database was opened again: what it holds is what there is."""
        self._unsynced.clear()
        # The row of a new topic may have been lost.
        rows = [(topic_key(name), pack_topic(topic.row)) for name, topic in self._topics.items()]
        self._journal.write(lambda: _puts(rows))
        self._load()
        self._wake(partition for topic in self._topics.values() for partition in topic.partitions)

    def prepare(self, topics: Sequence[TopicSpec], *, create: bool) -> dict[str, TopicInfo]:
        """Create the missing ones, check all. Of the settings, max.message.bytes and retention.ms count."""
        with self._lock:
            # The node asks every second: a journal that failed comes back also when nobody writes.
            self._journal.make_ready(gives_space=True)
            problems = [problem for spec in topics if (problem := self._misfit(spec, create=create))]
            if problems:
                raise ConfigurationError(problems)
            for spec in topics:
                topic = self._topics.get(spec.name)
                if topic is None or not topic.row.own:
                    topic = self._make(spec.name, spec.partitions, own=True)
                topic.bytes_max = int(spec.settings.get("max.message.bytes", self._message_bytes_max))
                retention_ms = int(spec.settings.get("retention.ms", "-1"))
                topic.retention_ms = None if retention_ms < 0 else retention_ms
        self._journal.wait_synced(self._journal.last())
        return {spec.name: self._topics[spec.name].info() for spec in topics}

    def _misfit(self, spec: TopicSpec, *, create: bool) -> str | None:
        topic = self._topics.get(spec.name)
        if topic is None:
            if not _is_topic_name(spec.name):
                return f"{spec.name!r} is not a topic name"
            return None if create else f"topics.create is off and this topic is missing: {spec.name}"
        if spec.per_shard and topic.row.partitions != spec.partitions:
            return (
                f"{spec.name} has {topic.row.partitions} partitions where {spec.partitions} are needed: the"
                " number of shards is fixed once there are messages; set `shards` to what the topic has"
            )
        return None

    def _make(self, name: str, partitions: int, *, own: bool) -> _Topic:
        """A new topic, or one that becomes Chronos's own. Called with the lock held."""
        self._journal.make_ready()
        known = self._topics.get(name)
        if known is None:
            number = 1 + max((topic.row.number for topic in self._topics.values()), default=0)
            row = TopicRow(number, uuid.uuid4().hex, partitions, own)
        else:
            row = msgspec.structs.replace(known.row, own=own)
        # What is written into the topic comes later in the same WAL: it needs no sync of its own.
        self._journal.write(lambda: _puts([(topic_key(name), pack_topic(row))]))
        if known is None:
            return self._adopt(name, row)
        known.row = row
        return known

    def describe(self, topics: Sequence[str]) -> dict[str, TopicInfo | None]:
        """None for what cannot be a topic. One that nobody has written to yet is shown without an id."""
        with self._lock:
            return {name: self._look(name) for name in topics}

    def _look(self, name: str) -> TopicInfo | None:
        topic = self._topics.get(name)
        if topic is not None:
            return topic.info()
        return _info("", self._partitions_default, self._message_bytes_max) if _is_topic_name(name) else None

    def topics(self) -> dict[str, TopicInfo]:
        """The topics there are."""
        with self._lock:
            return {name: topic.info() for name, topic in self._topics.items()}

    def _partition(self, topic: str, partition: int) -> _Partition:
        known = self._topics.get(topic)
        if known is None or not 0 <= partition < known.row.partitions:
            raise LogMismatch(f"there is no {topic}/{partition} in the embedded log")
        return known.partitions[partition]

    # --- reading

    def watermarks(self, topic: str, partition: int) -> Watermarks:
        """Where the partition begins and ends; no transaction is ever open, so all of it is stable."""
        with self._lock:
            found = self._partition(topic, partition)
            return Watermarks(start=found.start, stable=found.end, high=found.end)

    def stable_end(self, topic: str, partition: int) -> int:
        """Behind the last synced record."""
        return self._partition(topic, partition).end

    def ping(self, timeout_s: float) -> bool:
        """Always: it is here."""
        return True

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """The first offset with that timestamp or a greater one, by bisection."""
        return self._first_after(self._partition(topic, partition), timestamp_ms - 1)

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        """None: there are no consumer groups here."""
        self._partition(topic, partition)
        return None

    def reader(self, topic: str, partition: int, offset: int) -> EmbeddedReader:
        """A reader that starts at the offset."""
        return EmbeddedReader(self, self._partition(topic, partition), offset)

    def _read(self, partition: _Partition, position: int, records_max: int, bytes_max: int) -> list[Record]:
        end = partition.end
        if self.closed:
            raise LogUnavailable("the embedded log is closed")
        if not partition.start <= position <= end:
            raise LogMismatch(
                f"offset {position} of {partition.name} is not in the log, which holds {partition.start} to"
                f" {end}: it was trimmed, or is not the log that was read before"
            )
        if position == end or records_max < 1:
            return []
        rows = self._journal.db.scan(partition.key(position), partition.key(end), records_max, bytes_max)
        records = [unpack_record(record_offset(key), data) for key, data in rows]
        if not records or records[0].offset != position or records[-1].offset != position + len(records) - 1:
            if position < partition.start:
                raise LogMismatch(f"offset {position} of {partition.name} was trimmed just now")
            raise StoreCorrupt(f"{self._path}: records of {partition.name} at or after {position} are missing")
        return records

    # --- writing

    def append(self, records: Sequence[Outgoing], timeout_s: float) -> list[Appended]:
        """Write records outside any transaction, all or none. Raises LogUnavailable if one is too large."""
        try:
            placed = self._place(records)
        except _Refused as refused:
            raise LogUnavailable(str(refused)) from refused
        with self._lock:
            self._journal.make_ready()
            timestamp_ms = self._timestamp_ms()
            offsets, ticket = self._write(placed, timestamp_ms)
        self._journal.wait_synced(ticket, timeout_s)
        return [
            Appended(partition=partition.partition, offset=offset, timestamp_ms=timestamp_ms)
            for (partition, _), offset in zip(placed, offsets, strict=True)
        ]

    def _timestamp_ms(self) -> int:
        """What records get: the host's clock. Once that was stepped, nobody here knows the time (law 2)."""
        stepped_ms = self._clock.stepped_ms()
        if abs(stepped_ms) > CLOCK_TOLERANCE_MS:
            raise ClockDisagrees(
                f"this machine's clock was stepped by {stepped_ms} ms while Chronos ran. Nothing is accepted or"
                " delivered until it is back; if the new time is the right one, restart Chronos"
            )
        return self._clock.now_ms()

    def writer(self, shard: int) -> EmbeddedWriter:
        """A writer for the shard; the earlier ones are lost, and what they wrote last is synced."""
        with self._lock:
            self._journal.make_ready(gives_space=True)
            writer = self._writers[shard] = EmbeddedWriter(self, shard)
        self._journal.wait_synced(self._journal.last())
        return writer

    def _place_transaction(self, messages: Iterable[Outgoing], shard: int, progress: bytes) -> list[Placed]:
        try:
            placed = self._place(messages)
        except _Refused as refused:
            raise TransactionAborted(str(refused), poison_likely=True) from refused
        placed.append((self._partition(self._progress_topic, shard), pack_body(None, progress, ())))
        return placed

    def _commit(
        self, writer: EmbeddedWriter, shard: int, placed: Sequence[Placed], verify: Callable[[int], None]
    ) -> Appended:
        """1. check that nobody took over, 2. verify, 3. write, 4. sync."""
        with self._lock:
            self._journal.make_ready()
            if self._writers.get(shard) is not writer:
                raise ProducerLost(f"another writer has taken over shard {shard}")
            timestamp_ms = self._timestamp_ms()
            verify(timestamp_ms)
            offsets, ticket = self._write(placed, timestamp_ms)
        try:
            self._journal.wait_synced(ticket)
        except Retry as error:
            raise ProducerLost(f"a transaction was written, but {error}") from error
        return Appended(partition=shard, offset=offsets[-1], timestamp_ms=timestamp_ms)

    def _place(self, records: Iterable[Outgoing]) -> list[Placed]:
        placed = []
        for name, key, value, headers, partition in records:
            topic = self._topics.get(name) or self._make_target(name)
            try:
                body = pack_body(key, value, headers)
            except UnicodeEncodeError as error:
                raise _Refused(f"a header name for {name} is not valid Unicode: {error}") from error
            if len(body) > topic.bytes_max:
                raise _Refused(f"{name} takes {topic.bytes_max} bytes, not a record of {len(body)}")
            if partition >= topic.row.partitions:
                raise _Refused(f"there is no partition {partition} of {name}")
            chosen = partition if partition >= 0 else self._choose(topic, key)
            placed.append((topic.partitions[chosen], body))
        return placed

    def _make_target(self, name: str) -> _Topic:
        if not _is_topic_name(name):
            raise _Refused(f"{name[:300]!r} is not a topic name")
        with self._lock:
            return self._topics.get(name) or self._make(name, self._partitions_default, own=False)

    @staticmethod
    def _choose(topic: _Topic, key: bytes | None) -> int:
        if topic.row.partitions == 1:
            return 0
        if key is not None:
            return partition_of(key, topic.row.partitions)
        topic.turn = (topic.turn + 1) % topic.row.partitions
        return topic.turn

    def _write(self, placed: Sequence[Placed], timestamp_ms: int) -> tuple[list[int], Ticket]:
        """One atomic write of all of them, and their offsets. Whatever it raises, nothing was written."""
        stamp = pack_stamp(timestamp_ms)
        moved = {partition: partition.next for partition, _ in placed}
        offsets = []
        rows = []
        for partition, body in placed:
            offset = moved[partition]
            moved[partition] = offset + 1
            offsets.append(offset)
            rows.append((record_key(partition.number, partition.partition, offset), stamp + body))
        ticket = self._journal.write(lambda: _puts(rows))
        for partition, behind in moved.items():
            partition.next = behind
        self._unsynced.append((ticket[1], moved))
        return offsets, ticket

    def _show(self, synced: int) -> None:
        """Let readers see the writes up to this number."""
        seen: set[_Partition] = set()
        while self._unsynced and self._unsynced[0][0] <= synced:
            _, moved = self._unsynced.popleft()
            for partition, end in moved.items():
                partition.end = end
            seen.update(moved)
        self._wake(seen)

    def _wake(self, partitions: Iterable[_Partition]) -> None:
        for partition in partitions:
            partition.changed.notify_all()

    # --- giving space back

    def trim(self, topic: str, partition: int, offset: int) -> None:
        """Drop the records before the offset, never beyond the end. Offsets are not given again."""
        with self._lock:
            self._journal.make_ready(gives_space=True)
            trimmed = self._partition(topic, partition)
            start = min(offset, trimmed.end)
            if start <= trimmed.start:
                return
            (sample,) = self._journal.db.get([trimmed.key(trimmed.start)])
            trimmed.idle_bytes += (start - trimmed.start) * len(sample or b"")
            ticket = self._journal.write(lambda: _trimming(trimmed, start))
            trimmed.start = start
            self._wake([trimmed])
        self._journal.wait_synced(ticket)
        if trimmed.idle_bytes >= COMPACT_BYTES or self._journal.is_short_of_space():
            since, trimmed.compacted, trimmed.idle_bytes = trimmed.compacted, start, 0
            self._journal.db.compact(trimmed.key(since), trimmed.key(start))

    def expire(self, now_ms: int) -> None:
        """Trim what is older than its topic keeps; Chronos's own topics keep all but for `retention.ms`."""
        self._timestamp_ms()  # a clock that was set ahead must not drop what is still young
        with self._lock:
            topics = list(self._topics.items())
        for name, topic in topics:
            keep_ms = topic.retention_ms if topic.row.own else self._retention_ms
            if keep_ms is not None:
                for partition in topic.partitions:
                    self.trim(name, partition.partition, self._first_after(partition, now_ms - keep_ms))

    def _first_after(self, partition: _Partition, timestamp_ms: int) -> int:
        """The first offset with a greater timestamp, by bisection, as if timestamps never went back."""
        low, high = partition.start, partition.end
        while low < high:
            middle = (low + high) // 2
            data = self._journal.db.get([partition.key(middle)])[0]
            if data is not None and unpack_record(middle, data).timestamp_ms > timestamp_ms:
                high = middle
            else:
                low = middle + 1
        return low

    def verify(self) -> int:
        """Read everything and check every checksum; how many rows."""
        return self._journal.db.verify()

    def size_bytes(self) -> int:
        """Bytes on disk."""
        return self._journal.db.size_bytes()

    def close(self) -> None:
        """Wake who waits, flush and close."""
        self._journal.close()
        with self._lock:
            self._wake(partition for topic in self._topics.values() for partition in topic.partitions)


def _info(topic_id: str, partitions: int, bytes_max: int) -> TopicInfo:
    return TopicInfo(id=topic_id, partitions=partitions, leaderless=frozenset(), bytes_max=bytes_max)


def _puts(rows: Iterable[tuple[bytes, bytes]]) -> WriteBatch:
    batch = WriteBatch(raw_mode=True)
    put = batch.put
    for key, value in rows:
        put(key, value)
    return batch


def _trimming(partition: _Partition, start: int) -> WriteBatch:
    batch = _puts([(partition.start_key, pack_offset(start))])
    batch.delete_range(partition.key(partition.start), partition.key(start))
    return batch


def _is_topic_name(name: str) -> bool:
    return TOPIC_NAME.fullmatch(name) is not None and name not in (".", "..")
