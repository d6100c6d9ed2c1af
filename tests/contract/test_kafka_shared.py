"""The shared consumer: readers that move to it while their partition is quiet, and away from it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from confluent_kafka import Producer

from chronos.adapters.kafka.log import KafkaLog
from chronos.adapters.kafka.reader import KafkaReader
from chronos.adapters.kafka.shared import (
    HELD_BYTES,
    HELD_MAX,
    QUIET_RECORDS,
    PatientReader,
    Share,
    SharedConsumer,
)
from chronos.core.message import Record
from chronos.errors import BatchUnreadable, LogMismatch
from tests.contract.implementations import connected, read_until
from tests.harness.broker import Broker
from tests.harness.waiting import check_deadline, wait_until
from tests.integration.foreign import Sent, produce

pytestmark = pytest.mark.kafka

TIMEOUT_S = 60.0
QUIET_S = 0.3
PARTITIONS = 3
SEED = 7


@pytest.fixture
def log(broker: Broker) -> Iterator[KafkaLog]:
    """Clients of the shared broker."""
    with connected(broker) as opened:
        yield opened


@pytest.fixture
def topic(broker: Broker, topic_names: Callable[..., str]) -> str:
    return broker.create_topic(
        topic_names(), partitions=PARTITIONS, config={"message.timestamp.type": "LogAppendTime"}
    )


def shares(reader: PatientReader) -> bool:
    """Whether it reads through the shared consumer."""
    return reader._share is not None


class Reading:
    """A patient reader, and what it has read."""

    def __init__(
        self, log: KafkaLog, topic: str, partition: int = 0, *, shares: bool = False
    ) -> None:
        self.reader = log.patient_reader(topic, partition, 0, shares=shares, quiet_s=QUIET_S)
        self.records: list[Record] = []
        self.moves = 0

    def step(self, timeout_s: float = 0.05) -> None:
        """One turn of a shard's thread."""
        before = shares(self.reader)
        self.reader.wait(timeout_s)
        self.records += self.reader.read(5_000, 10**9)
        self.moves += before != shares(self.reader)

    def until(self, condition: Callable[[PatientReader], bool]) -> None:
        """Read until the condition holds; fails if it does not in time."""
        deadline = time.monotonic() + TIMEOUT_S
        while not condition(self.reader):
            check_deadline(deadline, (self.reader.position, shares(self.reader)))
            self.step()

    def is_shared(self) -> None:
        """Read until the reader shares the consumer."""
        self.until(shares)

    @property
    def offsets(self) -> list[int]:
        return [record.offset for record in self.records]


def plain(log: KafkaLog, topic: str, partition: int) -> tuple[list[Record], int]:
    """All records of a partition, by a reader of its own, and its end."""
    end = log.stable_end(topic, partition)
    reader = log.plain_reader(topic, partition, 0)
    records = read_until(reader, end)
    reader.close()
    return records, end


def test_a_reader_shares_from_the_start_by_its_mode(log: KafkaLog, topic: str) -> None:
    with (
        closing(log.reader(topic, 0, 0, mode="quiet")) as quiet,
        closing(log.reader(topic, 1, 0, mode="patient")) as patient,
    ):
        assert isinstance(quiet, PatientReader)
        assert isinstance(patient, PatientReader)
        assert (shares(quiet), shares(patient)) == (True, False)


def test_readers_that_move_read_every_record_once(
    broker: Broker, log: KafkaLog, topic: str
) -> None:
    """Bursts, single records, committed and aborted transactions and pauses, at random, while three
    readers move to and fro. One begins in the shared consumer."""
    dice = random.Random(SEED)
    readings = [
        Reading(log, topic, partition, shares=partition == 1) for partition in range(PARTITIONS)
    ]
    assert [shares(reading.reader) for reading in readings] == [False, True, False]
    idempotent = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    transactional = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    transactional.init_transactions(TIMEOUT_S)
    for turn in range(60):
        partition = dice.randrange(PARTITIONS)
        count = dice.choice([1, 1, 2, 3 * QUIET_RECORDS, 2 * HELD_MAX])
        is_transaction = dice.random() < 0.4
        producer = transactional if is_transaction else idempotent
        if is_transaction:
            transactional.begin_transaction()
        for number in range(count):
            producer.produce(topic, f"{turn}-{number}", partition=partition)
            if dice.random() < 0.002:
                readings[partition].step(0)
        producer.flush(TIMEOUT_S)
        if is_transaction and dice.random() < 0.3:
            transactional.abort_transaction(TIMEOUT_S)
        elif is_transaction:
            transactional.commit_transaction(TIMEOUT_S)
        pause_s = dice.choice([0, 0, 0.1, 3 * QUIET_S])
        began_s = time.monotonic()
        while time.monotonic() - began_s <= pause_s:
            for reading in readings:
                reading.step(0.01)
    for partition, reading in enumerate(readings):
        expected, end = plain(log, topic, partition)
        reading.until(lambda reader, end=end: reader.position >= end)  # type: ignore[misc]
        assert reading.records == expected
        # Twice to the shared consumer and back, at least.
        assert reading.moves >= 4
        reading.is_shared()
        reading.reader.close()


def test_a_shared_reader_that_finds_little_stays(broker: Broker, log: KafkaLog, topic: str) -> None:
    """With its records, its positions and the ends behind markers, as a reader of its own."""
    reading = Reading(log, topic)
    reading.is_shared()
    for number in range(QUIET_RECORDS):
        (place,) = produce(broker.bootstrap, topic, [Sent(b"%d" % number, partition=0)])
        reading.until(lambda reader, place=place: reader.position > place[1])  # type: ignore[misc]
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(TIMEOUT_S)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(topic, b"in a transaction", partition=0)
        producer.flush(TIMEOUT_S)
        end(TIMEOUT_S)
    stable = log.stable_end(topic, 0)
    assert stable == QUIET_RECORDS + 4
    reading.until(lambda reader: reader.position == stable)
    assert reading.offsets == list(range(QUIET_RECORDS + 1))
    assert reading.moves <= 2
    reading.reader.close()


@pytest.mark.parametrize(
    ("count", "size"),
    [(3 * HELD_MAX, 1), (4 * HELD_BYTES // 900_000, 900_000)],
    ids=["count", "size"],
)
def test_what_a_share_cannot_hold_is_read_by_a_reader_of_its_own(
    broker: Broker, log: KafkaLog, topic: str, count: int, size: int
) -> None:
    """Its shard is held up meanwhile: the share holds the first records, and has ended."""
    reading = Reading(log, topic)
    reading.is_shared()
    consumer = SharedConsumer(lambda: log.consumer_settings(topic))
    share = Share(consumer)
    reader = KafkaReader(share, topic, 0, 0, 10**9)
    produce(broker.bootstrap, topic, [Sent(bytes(size), partition=0)] * count)
    wait_until(lambda: share.has_ended, timeout_s=TIMEOUT_S)
    held = reader.read(count, 10**9)
    assert [record.offset for record in held] == list(range(reader.position))
    assert len(held) <= HELD_MAX
    assert len(held) * size < HELD_BYTES + size
    assert (reader.read(count, 10**9), reader.wait(0)) == ([], False)
    reading.until(lambda reader: reader.position == count)
    assert reading.offsets == list(range(count))
    consumer.close()
    reading.reader.close()


def test_a_seek_is_obeyed_at_once(broker: Broker, log: KafkaLog, topic: str) -> None:
    """Also to records that were read before."""
    produce(broker.bootstrap, topic, [Sent(b"%d" % at, partition=0) for at in range(5)])
    reading = Reading(log, topic)
    reading.until(lambda reader: reader.position == 5)
    reading.is_shared()
    reading.reader.seek(3)
    assert reading.reader.position == 3
    reading.until(lambda reader: reader.position == 5)
    assert reading.offsets == [0, 1, 2, 3, 4, 3, 4]
    reading.reader.close()


def test_a_partition_has_one_share(broker: Broker, log: KafkaLog, topic: str) -> None:
    """Another reader of it keeps a consumer of its own, until the share is free."""
    first, second = Reading(log, topic), Reading(log, topic)
    first.is_shared()
    began_s = time.monotonic()
    while time.monotonic() - began_s < 5 * QUIET_S:
        second.step()
    assert not shares(second.reader)
    produce(broker.bootstrap, topic, [Sent(b"one", partition=0)])
    for reading in (first, second):
        reading.until(lambda reader: reader.position == 1)
        assert reading.offsets == [0]
    first.reader.close()
    second.is_shared()
    second.reader.close()


def test_an_error_ends_the_share_and_no_other(broker: Broker, log: KafkaLog, topic: str) -> None:
    """A share that begins where the log is trimmed; the reader of the other one goes on."""
    for partition in (0, 1):
        produce(broker.bootstrap, topic, [Sent(b"%d" % at, partition=partition) for at in range(5)])
    log.trim(topic, 0, 5)
    consumer = SharedConsumer(lambda: log.consumer_settings(topic))
    trimmed, whole = Share(consumer), Share(consumer)
    below, other = (
        KafkaReader(share, topic, partition, 2, 10**9)
        for partition, share in enumerate((trimmed, whole))
    )
    with pytest.raises(LogMismatch, match=f"offset 2 of {topic}/0 is not in the log"):
        read_until(below, 3)
    assert trimmed.has_ended
    assert [record.offset for record in read_until(other, 5)] == [2, 3, 4]
    assert not whole.has_ended
    consumer.close()
    assert whole.has_ended


def test_a_batch_that_cannot_be_read_is_left_to_a_reader_of_its_own(
    broker: Broker, log: KafkaLog, topic: str
) -> None:
    """The error comes twice with its place, as it does to every reader; other partitions go on."""
    reading, other = Reading(log, topic), Reading(log, topic, 1)
    reading.is_shared()
    other.is_shared()
    produce(
        broker.bootstrap,
        topic,
        [Sent(bytes(100_000), partition=0)] * 1_050,
        compression_codec="zstd",
        linger_ms=5_000,
        batch_size=200_000_000,
        message_max_bytes=200_000_000,
    )
    for _ in range(2):
        with pytest.raises(BatchUnreadable, match="cannot be read") as caught:
            reading.until(lambda reader: reader.position > 0)
        assert caught.value.offset == reading.reader.position == 0
    assert not shares(reading.reader)
    produce(broker.bootstrap, topic, [Sent(b"one", partition=1)])
    other.until(lambda reader: reader.position == 1)
    assert shares(other.reader)
    for each in (reading, other):
        each.reader.close()


def test_another_thread_ends_a_wait(broker: Broker, log: KafkaLog, topic: str) -> None:
    """The current wait, or else the next one, and only one; a consumer of its own has no such
    waits."""
    reading = Reading(log, topic)
    alone = reading.reader.waker
    reading.is_shared()
    waker = reading.reader.waker
    assert alone is None
    assert waker is not None
    waker()
    assert not reading.reader.wait(TIMEOUT_S)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(reading.reader.wait, TIMEOUT_S)
        wait_until(waiting.running)
        waker()
        assert not waiting.result(TIMEOUT_S / 2)
        waiting = threads.submit(reading.reader.wait, TIMEOUT_S)
        produce(broker.bootstrap, topic, [Sent(b"one", partition=0)])
        assert waiting.result(TIMEOUT_S / 2)
    reading.reader.close()


def test_readers_outlive_the_shared_consumer(broker: Broker, log: KafkaLog, topic: str) -> None:
    """They go on by themselves, and stay so."""
    reading = Reading(log, topic)
    reading.is_shared()
    log.close()
    reading.until(lambda reader: not shares(reader))
    produce(broker.bootstrap, topic, [Sent(b"one", partition=0)])
    reading.until(lambda reader: reader.position == 1)
    assert reading.offsets == [0]
    reading.reader.close()
