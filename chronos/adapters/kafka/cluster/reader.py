"""One consumer of both partitions of the topic `chronos.cluster`.

The position of a reader is lost when the log was truncated by an unclean election, was trimmed
beyond it while this process did not read, or belongs to another topic of the same name. All of
these are `Forgotten`: the process registers anew."""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from chronos.adapters.kafka.batches import BatchHeader
from chronos.adapters.kafka.closing import consumers
from chronos.adapters.kafka.connection import (
    CONSUMER,
    FORBIDDEN_CODES,
    RECONNECTING,
    UNREADABLE_CODES,
    Connection,
)
from chronos.adapters.kafka.offsets import TRUNCATED_CODES
from chronos.core.cluster.kafka.records import HEARTBEATS
from chronos.errors import LogUnavailable
from chronos.ports import Watermarks

log = structlog.get_logger("chronos.cluster")

STEP_OVER_AGAIN_S = 1.0
"""Pause before a broker is asked again for the header of a batch that cannot be read."""

READER: Mapping[str, Any] = {
    **CONSUMER,
    **RECONNECTING,
    # A fetch is answered as soon as there is a record. The default of 10 ms of the other readers
    # would cost a hundred requests a second.
    "fetch.wait.max.ms": 500,
}
"""Settings of the reader."""

READ_MAX = 1_000
"""Most records of one call."""


class Forgotten(Exception):
    """The position of the reader, or the record of a writer, is not in the log that this process
    has read."""


class TopicEntry(NamedTuple):
    """A record of either partition."""

    partition: int
    offset: int
    value: bytes | None


class ClusterReader:
    """Reads both partitions as a `read_committed` consumer, from the first records kept. For one
    thread."""

    def __init__(
        self,
        connection: Connection,
        topic: str,
        kept: list[Watermarks],
        header: Callable[[int, int], BatchHeader],
    ) -> None:
        """`kept`: the watermarks of both partitions. `header`: see `ClusterTopic.batch_header`."""
        self.start = kept[HEARTBEATS].start
        """First offset of the partition HEARTBEATS when it began."""
        self.positions = [each.start for each in kept]
        """Offset after the last record read of each partition, or after the transaction markers
        that follow it."""
        self.problem = ""
        """The last error that the client may not mend by itself, for people; empty if there is
        none."""
        self._ends = [each.stable for each in kept]
        self._topic = topic
        self._header = header
        self._unreadable: dict[int, int] = {}
        """Partition -> offset of a batch that the client cannot decompress, until it is stepped
        over."""
        self._step_over_s = 0.0
        """Monotonic time before which no broker is asked again for the header of such a batch."""
        self._consumer = Consumer(connection.settings(READER))
        self._assign()

    def _assign(self) -> None:
        """Read on from the positions."""
        self._consumer.assign(
            [
                TopicPartition(self._topic, partition, position)
                for partition, position in enumerate(self.positions)
            ]
        )

    @property
    def caught_up(self) -> bool:
        """True once everything was read that both partitions held when this reader began."""
        return all(
            position >= end for position, end in zip(self.positions, self._ends, strict=True)
        )

    def poll(self, timeout_s: float) -> list[TopicEntry]:
        """Return the next records of both partitions; wait so long for the first. Raises
        Forgotten."""
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
            entries.append(TopicEntry(partition, offset, message.value()))
        if self._unreadable and time.monotonic() >= self._step_over_s:
            self._step_over()
        return entries

    def _step_over(self) -> None:
        """Read on behind the batches that cannot be decompressed; without an answer of the broker,
        try again after a pause."""
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
            self.problem = (
                f"reading {self._topic}: {error.str()}; Chronos needs the permission READ"
            )
        elif code in UNREADABLE_CODES:
            partition = message.partition() or 0
            self._unreadable[partition] = max(self.positions[partition], message.offset() or 0)

    def read_all(self, timeout_s: float) -> list[TopicEntry]:
        """Return what both partitions held when this reader began, as far as it comes in time.
        Raises Forgotten."""
        deadline = time.monotonic() + timeout_s
        entries: list[TopicEntry] = []
        while not self.caught_up and (left_s := deadline - time.monotonic()) > 0:
            entries += self.poll(min(left_s, 0.1))
        return entries

    def close(self) -> None:
        """Release the client."""
        try:
            consumers.close(self._consumer)
        except (KafkaException, RuntimeError):
            return  # closed before
