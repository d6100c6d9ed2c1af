"""The log on Apache Kafka (`ports.Log`), through confluent-kafka (librdkafka): one object for
readers, writers, topics and offsets.

Exactly once (law 3) rests on a fixed `transactional.id` for each shard, a writer that raises
ProducerLost after any doubt and has what others wrote verified before each commit (`writer`), and
`read_committed` readers (`reader`). Client settings with their reasons are in `connection`."""

import math
import threading
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from confluent_kafka import Consumer

from chronos.adapters.kafka.appender import KafkaAppender
from chronos.adapters.kafka.batches import BatchHeader
from chronos.adapters.kafka.bounded.alone import AloneReader
from chronos.adapters.kafka.bounded.reader import BoundedReader
from chronos.adapters.kafka.connection import (
    CONSUMER,
    PATIENT_CONSUMER,
    RECEIVE_BYTES,
    RECEIVE_BYTES_MAX,
    REQUEST_TIMEOUT_S,
    Connection,
)
from chronos.adapters.kafka.offsets import KafkaOffsets
from chronos.adapters.kafka.reader import KafkaReader, PartitionConsumer, record_bytes_max
from chronos.adapters.kafka.shared import QUIET_S, PatientReader, SharedConsumer
from chronos.adapters.kafka.topics import KafkaTopics
from chronos.adapters.kafka.writer import KafkaWriter, Throttling
from chronos.core.message import Record
from chronos.core.size import RESPONSE_OVERHEAD
from chronos.errors import LogUnavailable
from chronos.ports import Appended, Outgoing, ReaderMode, TopicInfo, TopicSpec, Watermarks

AHEAD_MAX = 1_000
"""Most batches in a row with a producer's timestamp in the future that are passed in a search by
time."""

TOPIC_ID_S = 1.0
"""How long the id of the progress topic is taken for the current one."""

BETWEEN_S = 5.0
"""How long reading the records between two offsets may take."""

BETWEEN_RECORDS = 100

BETWEEN_BYTES = 8_000_000
"""Records and bytes read at once."""

BETWEEN_WAIT_S = 0.1
"""How long to wait for them each time."""


class KafkaLog:
    """A Kafka cluster. See `ports.Log`, and `KafkaTopics` and `KafkaOffsets` for what the jobs of
    Spark and `chronos doctor` ask besides. Any thread may call."""

    marker_offsets = 1

    def __init__(
        self,
        *,
        bootstrap_servers: str,
        properties: Mapping[str, Any],
        progress_topic: str,
        transaction_timeout_s: float,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        shards: int = 1,
    ) -> None:
        """`properties`: librdkafka settings of the operator, for every client. `shards`: of the
        cluster."""
        self._progress_topic = progress_topic
        self._transaction_timeout_s = transaction_timeout_s
        self._throttling: dict[int, Throttling] = {}
        """By shard: a producer that takes over from one that failed goes on with its rate."""
        self._connection = Connection(
            bootstrap_servers, properties, request_timeout_s=request_timeout_s, shards=shards
        )
        self._topics = KafkaTopics(self._connection, progress_topic)
        self._offsets = KafkaOffsets(self._connection)
        self._appender = KafkaAppender(self._connection)
        self._shared = SharedConsumer(self._shared_settings)
        self._progress_topic_id = -math.inf, ""
        """When it was asked for (`time.monotonic()`), and the id."""
        self._progress_id_lock = threading.Lock()
        self._bounded_until: dict[tuple[str, int], int] = {}
        """Topic and partition -> end of the stretch that is read in bounded memory."""

    # --- records

    def reader(
        self, topic: str, partition: int, offset: int, *, mode: ReaderMode = "plain"
    ) -> KafkaReader | BoundedReader | PatientReader:
        """Return a reader with a consumer of its own. A `bounded` one has it in a child process, up
        to the end that the partition had at the first such request; a `patient` one shares a
        consumer with others while its partition is quiet, and a `quiet` one from the start."""
        if mode == "bounded":
            at = topic, partition
            if at not in self._bounded_until:
                self._bounded_until[at] = self.stable_end(topic, partition)
            return BoundedReader(self, topic, partition, offset, until=self._bounded_until[at])
        if mode == "alone":
            return AloneReader(self, topic, partition, offset)
        if mode in ("patient", "quiet"):
            return self.patient_reader(topic, partition, offset, shares=mode == "quiet")
        return self.plain_reader(topic, partition, offset)

    def plain_reader(self, topic: str, partition: int, offset: int) -> KafkaReader:
        """A consumer of its own for one partition."""
        settings = self.consumer_settings(topic)
        return KafkaReader(Consumer(settings), topic, partition, offset, record_bytes_max(settings))

    def patient_reader(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        shares: bool = False,
        quiet_s: float = QUIET_S,
    ) -> PatientReader:
        """A reader that shares a consumer while next to nothing comes; `shares`: from the start on.
        `quiet_s`: see `shared.QUIET_S`."""
        settings = {**self.consumer_settings(topic), **PATIENT_CONSUMER}

        def reader(client: PartitionConsumer, position: int) -> KafkaReader:
            return KafkaReader(client, topic, partition, position, record_bytes_max(settings))

        return PatientReader(
            lambda position: reader(Consumer(settings), position),
            lambda position, share: reader(share, position),
            self._shared,
            offset,
            shares=shares,
            quiet_s=quiet_s,
        )

    def _shared_settings(self) -> dict[str, Any]:
        """Return the settings of the shared consumer, which accepts the largest batch of all
        topics known now."""
        largest = max(self._topics.bytes_max, key=self._topics.bytes_max.__getitem__, default="")
        return {**self.consumer_settings(largest), **PATIENT_CONSUMER}

    def consumer_settings(self, topic: str) -> dict[str, Any]:
        """Return the settings of a consumer, which accepts the largest batch of the topic."""
        batch_bytes = self._topics.bytes_max.get(topic, 0)
        receive_bytes = min(max(RECEIVE_BYTES, batch_bytes + RESPONSE_OVERHEAD), RECEIVE_BYTES_MAX)
        return self._connection.settings({**CONSUMER, "receive.message.max.bytes": receive_bytes})

    def writer(self, shard: int) -> KafkaWriter:
        """The transactional producer `chronos-<id of the progress topic>-<shard>`; Kafka fences
        every earlier one.

        Masters fence each other exactly if they write to the same progress topic, whatever their
        clusters are called."""
        return KafkaWriter(
            self._connection,
            transactional_id=f"chronos-{self._progress_id()}-{shard}",
            progress_topic=self._progress_topic,
            shard=shard,
            small_batch_topics=self._topics.small_batch_topics,
            throttling=self._throttling.setdefault(shard, Throttling(self._transaction_timeout_s)),
            read=partial(self.records_between, self._progress_topic, shard),
        )

    def records_between(
        self, topic: str, partition: int, start: int, stop: int
    ) -> Generator[Record]:
        """Yield the committed records from `start` to `stop`, exclusive, before which no
        transaction is open. Raises LogUnavailable after BETWEEN_S, LogMismatch."""
        deadline = time.monotonic() + BETWEEN_S
        reader = self.plain_reader(topic, partition, start)
        try:
            while reader.position < stop:
                if time.monotonic() > deadline:
                    raise LogUnavailable(
                        f"{topic}/{partition} was read to {reader.position} of {stop} in "
                        f"{BETWEEN_S:g} s"
                    )
                found = reader.read(BETWEEN_RECORDS, BETWEEN_BYTES)
                yield from (record for record in found if record.offset < stop)
                if not found:
                    reader.wait(BETWEEN_WAIT_S)
        finally:
            reader.close()

    def _progress_id(self) -> str:
        """Return the id that Kafka gave the progress topic, as of now or of a moment ago: a node
        that takes over hundreds of shards asks once."""
        now_s = time.monotonic()
        # Those that wait get what the first one finds; they wait no longer than they would ask.
        if not self._progress_id_lock.acquire(timeout=self._connection.request_timeout_s):
            raise LogUnavailable(f"the description of {self._progress_topic} takes too long")
        try:
            found_s, found = self._progress_topic_id
            if now_s - found_s > TOPIC_ID_S:
                asked_s = time.monotonic()
                info = self.describe([self._progress_topic])[self._progress_topic]
                if info is None:
                    raise LogUnavailable(f"the topic {self._progress_topic} is not there")
                found = info.id
                self._progress_topic_id = asked_s, found
            return found
        finally:
            self._progress_id_lock.release()

    def append(self, records: Sequence[Outgoing], timeout_s: float) -> list[Appended]:
        return self._appender.append(records, timeout_s)

    def batch_bounds(self, topic: str, partition: int, offset: int) -> tuple[int, int]:
        header = self.batch_header(topic, partition, offset)
        return header.first, header.last

    def batch_header(self, topic: str, partition: int, offset: int) -> BatchHeader:
        """Return the header of a batch, asked of the partition's leader."""
        return self._topics.batch_header(topic, partition, offset)

    # --- topics

    def prepare(self, topics: Sequence[TopicSpec], *, create: bool) -> dict[str, TopicInfo]:
        return self._topics.prepare(topics, create=create)

    def describe(self, topics: Sequence[str]) -> dict[str, TopicInfo | None]:
        return self._topics.describe(topics)

    def names(self) -> list[str]:
        return self._topics.names()

    def brokers(self) -> list[tuple[str, int]]:
        return self._topics.brokers()

    def creation_problems(self, specs: Sequence[TopicSpec]) -> list[str]:
        return self._topics.creation_problems(specs)

    def denied(self, topics: Sequence[str]) -> dict[str, list[str]]:
        return self._topics.denied(topics)

    def cluster_id(self) -> str:
        return self._topics.cluster_id()

    def ping(self, timeout_s: float) -> bool:
        return self._topics.ping(timeout_s)

    # --- offsets

    def watermarks(self, topic: str, partition: int) -> Watermarks:
        return self._offsets.watermarks(topic, partition)

    def stable_end(self, topic: str, partition: int) -> int:
        return self._offsets.stable_end(topic, partition)

    def stable_ends(self, topic: str, partitions: Collection[int]) -> dict[int, int]:
        return self._offsets.stable_ends(topic, partitions)

    def high_watermarks(self, topic: str, partitions: Collection[int]) -> dict[int, int]:
        return self._offsets.high_watermarks(topic, partitions)

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int:
        found = self._offsets.offset_at(topic, partition, timestamp_ms)
        stable = self.stable_end(topic, partition)
        with suppress(
            LogUnavailable
        ):  # some settings of TLS or SASL are not supported for headers: Kafka's answer counts
            if found < stable:
                header = self.batch_header(topic, partition, found)
                if _is_ahead(header):
                    return self._offset_behind(
                        topic, partition, header.last + 1, stable, timestamp_ms
                    )
        return found

    def _offset_behind(
        self, topic: str, partition: int, low: int, high: int, timestamp_ms: int
    ) -> int:
        """The same by the headers of batches from `low` to `high`, without those with a producer's
        timestamp in the future.

        Kafka finds the first record with such a timestamp, and one from before the topic had the
        broker's may have any."""
        while low < high:
            middle = (low + high) // 2
            header = self.batch_header(topic, partition, middle)
            for _ in range(AHEAD_MAX):
                if not _is_ahead(header) or header.last + 1 >= high:
                    break
                header = self.batch_header(topic, partition, header.last + 1)
            if _is_ahead(header) or header.timestamp_ms >= timestamp_ms:
                high = max(low, min(middle, header.first))
            else:
                low = header.last + 1
        return min(low, high)

    def truncated(
        self, positions: Mapping[tuple[str, int], tuple[int, int]]
    ) -> set[tuple[str, int]]:
        """The partitions whose log no longer has the records before an offset that it had in a
        leader epoch."""
        found = self._offsets.truncated(positions)
        # The client compares only once a broker has told it of the election.
        for at, (offset, epoch) in positions.items():
            if at not in found and offset > self._offsets.watermarks(*at).start:
                header = self.batch_header(*at, offset - 1)
                if header.first < offset and header.leader_epoch > epoch:
                    found.add(at)
        return found

    def trim(self, topic: str, partition: int, offset: int) -> None:
        watermarks = self._offsets.watermarks(topic, partition)
        offset = min(offset, watermarks.stable)
        if offset > watermarks.start:
            self._topics.delete_records(topic, partition, offset)

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        return self._offsets.committed(group, topic, partition)

    def commit_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit offsets, by topic and partition, for a consumer group that has no members."""
        self._offsets.commit_offsets(group, offsets)

    def close(self) -> None:
        """Release the clients; readers and writers are closed by their owners."""
        self._appender.close()
        self._offsets.close()
        self._shared.close()


def _is_ahead(header: BatchHeader) -> bool:
    """Return whether a producer's timestamp in the batch lies in the future: it says nothing about
    when it was written."""
    return header.create_time and header.timestamp_ms > time.time_ns() // 1_000_000
