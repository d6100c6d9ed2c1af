"""The topics of the embedded log, with the offsets of their partitions, and its rows as bytes.

    v                                          version of this layout
    t  name                                    topic: version byte, msgpack [number, id, partitions, own]
    s  number u32, partition u32               start offset u64, absent before the first trim
    r  number u32, partition u32, offset u64   record: version byte, timestamp_ms u64,
                                               msgpack [key, value, [[header name, header value],
                                               ...]]

A change of a topic or a record takes a new version byte, a change of the keys a new version of the
layout; an unknown version raises StoreCorrupt.
"""  # noqa: E501

import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from struct import Struct as Layout

import msgspec
from msgspec import Struct

from chronos.adapters.embedded.journal import Journal, puts
from chronos.core.message import Record
from chronos.core.shard.rules import TOPIC_NAME
from chronos.errors import ConfigurationError, LogMismatch, StoreCorrupt
from chronos.ports import TopicInfo, TopicSpec

LAYOUT_KEY = b"v"
LAYOUT_VERSION, TOPIC_VERSION, RECORD_VERSION = b"\x01", b"\x01", b"\x01"

OFFSET_MAX = 2**64 - 1

Headers = Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]]

_record_key = Layout(">cIIQ").pack
_start_key = Layout(">cII").pack
_u64 = Layout(">Q")


class TopicRow(Struct, frozen=True, array_like=True):
    """A topic as stored. The order of fields is the layout."""

    number: int
    """Stands for the name in the other rows; never reused."""
    id: str
    """Topic id."""
    partitions: int
    """Number of partitions."""
    own: bool
    """One of Chronos's own topics, created by `prepare`: its records expire only if its settings
    say so."""


class _Body(Struct, frozen=True, array_like=True, gc=False):
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


_encode = msgspec.msgpack.Encoder().encode
_decode_body = msgspec.msgpack.Decoder(_Body).decode
_decode_topic = msgspec.msgpack.Decoder(TopicRow).decode


def topic_key(name: str) -> bytes:
    """Key of a topic."""
    return b"t" + name.encode()


def topic_name(key: bytes) -> str:
    """Name in a topic's key."""
    return key[1:].decode()


def record_key(number: int, partition: int, offset: int) -> bytes:
    """Key of a record: 17 bytes."""
    return _record_key(b"r", number, partition, offset)


def record_offset(key: bytes) -> int:
    """Offset in a record's key."""
    return int.from_bytes(key[9:])


def start_key(number: int, partition: int) -> bytes:
    """Key of a partition's start offset."""
    return _start_key(b"s", number, partition)


def pack_offset(offset: int) -> bytes:
    """Bytes of a start offset."""
    return _u64.pack(offset)


def unpack_offset(data: bytes) -> int:
    """Start offset in the bytes."""
    return int.from_bytes(data)


def pack_body(key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    """Key, value and headers of a record: the part known before it is written. Raises
    UnicodeEncodeError for a header name."""
    return _encode((key, value, list(headers.items()) if isinstance(headers, Mapping) else headers))


def pack_stamp(timestamp_ms: int) -> bytes:
    """The part of a record in front of its body."""
    return RECORD_VERSION + _u64.pack(timestamp_ms)


def unpack_record(offset: int, data: bytes) -> Record:
    """Record in the bytes. Raises StoreCorrupt when they are damaged or of another version."""
    if data[:1] != RECORD_VERSION:
        raise _unknown("a record", data)
    try:
        body = _decode_body(memoryview(data)[9:])
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(f"a record of the embedded log cannot be decoded: {error}") from error
    return Record(offset, _u64.unpack_from(data, 1)[0], body.key, body.value, body.headers)


def pack_topic(topic: TopicRow) -> bytes:
    """Bytes of a topic."""
    return TOPIC_VERSION + _encode(topic)


def unpack_topic(data: bytes) -> TopicRow:
    """Topic in the bytes. Raises StoreCorrupt when they are damaged or of another version."""
    if data[:1] != TOPIC_VERSION:
        raise _unknown("a topic", data)
    try:
        return _decode_topic(data[1:])
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(f"a topic of the embedded log cannot be decoded: {error}") from error


def _unknown(what: str, data: bytes) -> StoreCorrupt:
    version = data[0] if data else "none"
    return StoreCorrupt(
        f"{what} of the embedded log has format version {version}, which this version of Chronos "
        "does not know: was the data directory written by a newer one?"
    )


class Partition:
    """The offsets of a partition. Guarded by the log's lock."""

    def __init__(self, topic: str, number: int, partition: int, lock: threading.RLock) -> None:
        self.name = f"{topic}/{partition}"
        self.number = number
        """Number of the topic."""
        self.partition = partition
        self.start = 0
        self.end = 0
        """Offset after the last synced record: the end that readers see."""
        self.next = 0
        """Offset after the last record written."""
        self.compacted = 0
        """Offset up to which the space was given back last."""
        self.trimmed_bytes = 0
        """Estimate of what was trimmed since."""
        self.changed = threading.Condition(lock)

    def key(self, offset: int) -> bytes:
        """Key of a record."""
        return record_key(self.number, self.partition, offset)

    @property
    def start_key(self) -> bytes:
        """Key of the start offset."""
        return start_key(self.number, self.partition)


class Topic:
    """A topic and its partitions."""

    def __init__(self, name: str, row: TopicRow, bytes_max: int, lock: threading.RLock) -> None:
        self.row = row
        self.bytes_max = bytes_max
        """Largest record in bytes."""
        self.retention_ms: int | None = None
        """How long one of Chronos's own topics keeps records; None: for ever."""
        self.turn = 0
        """Partition of the last record without a key."""
        self.partitions = [
            Partition(name, row.number, partition, lock) for partition in range(row.partitions)
        ]

    def info(self) -> TopicInfo:
        """The description of the topic."""
        return _info(self.row.id, self.row.partitions, self.bytes_max)


class EmbeddedTopics:
    """All topics by name. Writing methods are called with the log's lock held."""

    def __init__(
        self,
        journal: Journal,
        path: Path,
        lock: threading.RLock,
        *,
        partitions_default: int,
        message_bytes_max: int,
    ) -> None:
        """`partitions_default`, `message_bytes_max`: of a topic that is created by its first
        record."""
        self._journal = journal
        self._path = path
        self._lock = lock
        self._partitions_default = partitions_default
        self._message_bytes_max = message_bytes_max
        self._topics: dict[str, Topic] = {}
        self.load()

    def load(self) -> None:
        """Read topics and offsets from the disk. Known partitions stay the objects that readers
        hold."""
        db = self._journal.db
        layout = db.get([LAYOUT_KEY])[0]
        if layout is None and not db.rows(b"", None, 1, 1):
            self._journal.write(lambda: puts([(LAYOUT_KEY, LAYOUT_VERSION)]))
        elif layout != LAYOUT_VERSION:
            raise StoreCorrupt(
                f"{self._path} holds no log, or one of a layout that this version does not know"
            )
        start = topic_key("")
        while rows := db.rows(start, b"u", 1_000, 1_000_000):
            for key, data in rows:
                self._load_topic(topic_name(key), unpack_topic(data))
            start = rows[-1][0] + b"\0"

    def _load_topic(self, name: str, row: TopicRow) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = Topic(name, row, self._message_bytes_max, self._lock)
        db = self._journal.db
        starts = db.get([partition.start_key for partition in topic.partitions])
        for partition, data in zip(topic.partitions, starts, strict=True):
            partition.start = unpack_offset(data) if data else 0
            last = db.last_key(partition.key(0), partition.key(OFFSET_MAX))
            partition.end = partition.next = max(
                partition.start, record_offset(last) + 1 if last else 0
            )
        return topic

    def reload(self) -> None:
        """Reload topics and offsets after the database was reopened: only its content counts."""
        # The row of a topic created a moment ago may have been lost.
        rows = [(topic_key(name), pack_topic(topic.row)) for name, topic in self._topics.items()]
        self._journal.write(lambda: puts(rows))
        self.load()
        self.wake_all()

    def wake_all(self) -> None:
        """Wake the readers of all partitions."""
        wake(partition for topic in self._topics.values() for partition in topic.partitions)

    def items(self) -> list[tuple[str, Topic]]:
        """All topics."""
        with self._lock:
            return list(self._topics.items())

    def get(self, name: str) -> Topic | None:
        """The topic; None where there is none yet."""
        return self._topics.get(name)

    def partition(self, topic: str, partition: int) -> Partition:
        """The partition. Raises LogMismatch where there is none."""
        known = self._topics.get(topic)
        if known is None or not 0 <= partition < known.row.partitions:
            raise LogMismatch(f"there is no {topic}/{partition} in the embedded log")
        return known.partitions[partition]

    # --- descriptions

    def describe(self, topics: Sequence[str]) -> dict[str, TopicInfo | None]:
        """Describe topics; None for an invalid name. A topic that its first record will create is
        described without an id."""
        with self._lock:
            return {name: self._describe(name) for name in topics}

    def _describe(self, name: str) -> TopicInfo | None:
        topic = self._topics.get(name)
        if topic is not None:
            return topic.info()
        return (
            _info("", self._partitions_default, self._message_bytes_max)
            if is_topic_name(name)
            else None
        )

    def infos(self) -> dict[str, TopicInfo]:
        """The descriptions of all topics."""
        with self._lock:
            return {name: topic.info() for name, topic in self._topics.items()}

    # --- creation

    def prepare(self, topics: Sequence[TopicSpec], *, create: bool) -> dict[str, TopicInfo]:
        """Create missing topics and check all. Of the settings, `max.message.bytes` and
        `retention.ms` count."""
        problems = [problem for spec in topics if (problem := self._problem(spec, create=create))]
        if problems:
            raise ConfigurationError(problems)
        for spec in topics:
            topic = self._topics.get(spec.name)
            if topic is None or not topic.row.own:
                topic = self._create(spec.name, spec.partitions, own=True)
            topic.bytes_max = int(spec.settings.get("max.message.bytes", self._message_bytes_max))
            retention_ms = int(spec.settings.get("retention.ms", "-1"))
            topic.retention_ms = None if retention_ms < 0 else retention_ms
        return {spec.name: self._topics[spec.name].info() for spec in topics}

    def _problem(self, spec: TopicSpec, *, create: bool) -> str | None:
        topic = self._topics.get(spec.name)
        if topic is None:
            if not is_topic_name(spec.name):
                return f"{spec.name!r} is not a topic name"
            return (
                None if create else f"topics.create is off and this topic is missing: {spec.name}"
            )
        if spec.per_shard and topic.row.partitions != spec.partitions:
            return (
                f"{spec.name} has {topic.row.partitions} partitions where {spec.partitions} are "
                "needed: the number of shards is fixed once there are messages; set `shards` to "
                "what the topic has"
            )
        return None

    def create_target(self, name: str) -> Topic:
        """The target topic, created now if it is missing."""
        return self._topics.get(name) or self._create(name, self._partitions_default, own=False)

    def _create(self, name: str, partitions: int, *, own: bool) -> Topic:
        """Create a topic, or make an existing one Chronos's own."""
        self._journal.make_ready()
        known = self._topics.get(name)
        if known is None:
            number = 1 + max((topic.row.number for topic in self._topics.values()), default=0)
            row = TopicRow(number, uuid.uuid4().hex, partitions, own)
        else:
            row = msgspec.structs.replace(known.row, own=own)
        # The topic's records come later in the same WAL: the row needs no sync of its own.
        self._journal.write(lambda: puts([(topic_key(name), pack_topic(row))]))
        if known is None:
            return self._load_topic(name, row)
        known.row = row
        return known


def wake(partitions: Iterable[Partition]) -> None:
    """Wake the readers of the partitions. Called with the log's lock held."""
    for partition in partitions:
        partition.changed.notify_all()


def is_topic_name(name: str) -> bool:
    """Kafka's rule for names."""
    return TOPIC_NAME.fullmatch(name) is not None and name not in (".", "..")


def _info(topic_id: str, partitions: int, bytes_max: int) -> TopicInfo:
    return TopicInfo(
        id=topic_id, partitions=partitions, leaderless=frozenset(), bytes_max=bytes_max
    )
