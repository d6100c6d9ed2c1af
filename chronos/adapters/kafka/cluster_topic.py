"""The topic `chronos.cluster`: two partitions, one consumer of both, their ends, and their trimming.

The position of a reader is lost when the log was truncated by an unclean election, was trimmed beyond it while this process
was stopped, or belongs to another topic of the same name. All of these are `Forgotten`: the process registers anew.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from chronos.adapters.kafka.batches import BatchHeader
from chronos.adapters.kafka.closing import consumers
from chronos.adapters.kafka.connection import Connection
from chronos.adapters.kafka.errors import FORBIDDEN_CODES, UNREADABLE_CODES
from chronos.adapters.kafka.offsets import TRUNCATED_CODES, KafkaOffsets
from chronos.adapters.kafka.permissions import public_operations
from chronos.adapters.kafka.settings import CONSUMER, RECONNECTING
from chronos.adapters.kafka.topics import KafkaTopics
from chronos.core.cluster_records import HEARTBEATS, ROLES
from chronos.errors import ConfigurationError, LogUnavailable
from chronos.ports import TopicSpec, Watermarks

log = structlog.get_logger("chronos.cluster")

PARTITIONS = (HEARTBEATS, ROLES)

STEP_OVER_AGAIN_S = 1.0
"""Pause before a broker is asked again for the header of a batch that cannot be read."""

READER: Mapping[str, Any] = {
    **CONSUMER,
    **RECONNECTING,
    # A fetch is answered as soon as there is a record. The default of 10 ms of the other readers would cost a hundred
    # requests a second.
    "fetch.wait.max.ms": 500,
}
"""Settings of the reader."""

READ_MAX = 1_000
"""Most records of one call."""


class Forgotten(Exception):
    """The position of the reader, or the record of a writer, is not in the log that this process has read."""


class Entry(NamedTuple):
    """A record of either partition."""

    partition: int
    offset: int
    value: bytes | None


class ClusterTopic:
    """The topic as an operator sees it: its id, its ends, and what is deleted of it. Any thread may call."""

    def __init__(self, connection: Connection, spec: TopicSpec, *, create: bool) -> None:
        """`create`: create the topic if it is missing. No request is made before `open`."""
        self.connection = connection
        self.name = spec.name
        self.id = ""
        """Topic id, as of the last `open`; it changes when the topic is deleted and created again."""
        self.advice: tuple[str, ...] = ()
        """Settings that are only unwise, as of the last `open`."""
        self._spec = spec
        self._create = create
        self._topics = KafkaTopics(connection, spec.name)
        self._offsets = KafkaOffsets(connection)

    def exists(self) -> bool:
        """Return whether the topic exists. Raises LogUnavailable."""
        return self._topics.describe([self.name])[self.name] is not None

    def open(self, *, create: bool | None = None) -> None:
        """Create the topic if it is missing, check it, and remember its id. Raises ConfigurationError, LogUnavailable."""
        info = self._topics.prepare([self._spec], create=self._create if create is None else create)[self.name]
        if info.partitions != len(PARTITIONS):
            raise ConfigurationError([
                f"{self.name} has {info.partitions} partitions, Chronos needs {len(PARTITIONS)}: name another topic"
                " (topics.cluster), or delete this one while all nodes are stopped"
            ])  # fmt: skip
        self.id, self.advice = info.id, info.advice

    def is_same(self) -> bool:
        """Return whether the topic is still the one that was opened; True also if no broker answers."""
        try:
            info = self._topics.describe([self.name])[self.name]
        except LogUnavailable:
            return True
        return info is not None and info.id == self.id

    def reader(self) -> "ClusterReader":
        """Return a reader of all that both partitions hold. Raises LogUnavailable."""
        kept = [self.watermarks(partition) for partition in PARTITIONS]
        return ClusterReader(self.connection, self.name, kept, self.batch_header)

    def batch_header(self, partition: int, offset: int) -> BatchHeader:
        """Return the header of the batch that holds the offset. Raises LogUnavailable."""
        return self._topics.batch_header(self.name, partition, offset)

    def watermarks(self, partition: int) -> Watermarks:
        """Return the first and last offsets of a partition. Raises LogUnavailable."""
        return self._offsets.watermarks(self.name, partition)

    def stable_end(self, partition: int) -> int:
        """Return the last stable offset of a partition. Raises LogUnavailable."""
        return self._offsets.stable_end(self.name, partition)

    def trim(self, partition: int, offset: int) -> None:
        """Delete the records of a partition before the offset. Raises LogUnavailable."""
        if offset > self.watermarks(partition).start:
            self._topics.delete_records(self.name, partition, offset)

    def denied(self) -> list[str]:
        """Return which of Read and Write an ACL denies."""
        return self._topics.denied([self.name]).get(self.name, [])

    def public(self) -> list[str]:
        """Return which of Read and Write every client may do. Raises LogUnavailable."""
        return public_operations(self.connection, self.name)

    def close(self) -> None:
        """Release the clients."""
        self._offsets.close()


class ClusterReader:
    """Reads both partitions as a `read_committed` consumer, from the first records kept. For one thread."""

    def __init__(
        self, connection: Connection, topic: str, kept: list[Watermarks], header: Callable[[int, int], BatchHeader]
    ) -> None:
        """`kept`: the watermarks of both partitions. `header`: see `ClusterTopic.batch_header`."""
        self.start = kept[HEARTBEATS].start
        """First offset of the partition HEARTBEATS when it began."""
        self.positions = [each.start for each in kept]
        """Offset after the last record read of each partition, or after the transaction markers that follow it."""
        self.problem = ""
        """What the client reported last and may not mend by itself, for people; empty if nothing."""
        self._ends = [each.stable for each in kept]
        self._topic = topic
        self._header = header
        self._unreadable: dict[int, int] = {}
        """Partition -> offset of a batch that the client cannot decompress, until it is stepped over."""
        self._step_over_s = 0.0
        """Monotonic time before which no broker is asked again for the header of such a batch."""
        self._consumer = Consumer(connection.settings(READER))
        self._assign()

    def _assign(self) -> None:
        """Read on from the positions."""
        self._consumer.assign([
            TopicPartition(self._topic, partition, position) for partition, position in enumerate(self.positions)
        ])  # fmt: skip

    @property
    def caught_up(self) -> bool:
        """True once everything was read that both partitions held when this reader began."""
        return all(position >= end for position, end in zip(self.positions, self._ends, strict=True))

    def poll(self, timeout_s: float) -> list[Entry]:
        """Return the next records of both partitions; wait so long for the first. Raises Forgotten."""
        first = self._consumer.poll(timeout_s)
        entries = []
        for message in [] if first is None else [first, *self._consumer.consume(READ_MAX, 0)]:
            error = message.error()
            if error is not None:
                self._check(error, message)
                continue
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            self.positions[partition] = offset + 1
            entries.append(Entry(partition, offset, message.value()))
        if self._unreadable and time.monotonic() >= self._step_over_s:
            self._step_over()
        return entries

    def _step_over(self) -> None:
        """Read on behind the batches that cannot be decompressed; without an answer of the broker, try again after a pause."""
        for partition, offset in list(self._unreadable.items()):
            try:
                batch = self._header(partition, offset)
            except LogUnavailable as error:
                self.problem = f"reading {self._topic}/{partition}: a batch cannot be read: {error}"
                self._step_over_s = time.monotonic() + STEP_OVER_AGAIN_S
                return
            log.warning(
                "batch of the cluster topic ignored",
                partition=partition,
                offset=batch.first,
                last=batch.last,
                bytes=batch.bytes,
            )
            self.positions[partition] = max(self.positions[partition], batch.last + 1)
            del self._unreadable[partition]
        self.problem = ""
        self._assign()

    def _check(self, error: KafkaError, message: Message) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            partition = message.partition() or 0
            self.positions[partition] = max(self.positions[partition], message.offset() or 0)
        elif code in TRUNCATED_CODES:
            raise Forgotten(f"{self._topic}/{message.partition()}: {error.str()}")
        elif code in FORBIDDEN_CODES:
            self.problem = f"reading {self._topic}: {error.str()}; Chronos needs the permission READ"
        elif code in UNREADABLE_CODES:
            partition = message.partition() or 0
            self._unreadable[partition] = max(self.positions[partition], message.offset() or 0)

    def read_all(self, timeout_s: float) -> list[Entry]:
        """Return what both partitions held when this reader began, as far as it comes in time. Raises Forgotten."""
        deadline = time.monotonic() + timeout_s
        entries: list[Entry] = []
        while not self.caught_up and (left_s := deadline - time.monotonic()) > 0:
            entries += self.poll(min(left_s, 0.1))
        return entries

    def close(self) -> None:
        """Release the client."""
        try:
            consumers.close(self._consumer)
        except (KafkaException, RuntimeError):
            return  # closed before
