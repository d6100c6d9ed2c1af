"""How a Kafka reader handles the client's errors, including those that a test cannot make a broker
return, and large batches."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaError, Producer, TopicPartition
from msgspec.structs import replace

from chronos.adapters.kafka.batches import BatchHeader
from chronos.adapters.kafka.bounded import turns
from chronos.adapters.kafka.bounded.reader import MEMORY_BYTES, BoundedReader
from chronos.adapters.kafka.log import KafkaLog
from chronos.adapters.kafka.reader import KafkaReader
from chronos.config import load
from chronos.errors import BatchUnreadable, ChronosError, LogMismatch, LogUnavailable
from chronos.node.topics import cluster_topic, own_topics
from chronos.ports import READING_BOUNDED, TopicSpec
from tests.contract.implementations import connected, read_until
from tests.harness.broker import Broker
from tests.harness.table import table
from tests.harness.waiting import check_deadline, wait_until
from tests.integration.foreign import Sent, alter_topic, produce

TIMEOUT_S = 60.0

RECORD_BYTES_MAX = 1_000


class Answer:
    """A message of the client: a record at an offset, or an error."""

    def __init__(self, offset: int, error: int | None = None, *, bytes_more: int = 0) -> None:
        self._offset = offset
        self._error = error
        self._bytes_more = bytes_more

    def error(self) -> KafkaError | None:
        return None if self._error is None else KafkaError(self._error)

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 2, 1_000 + self._offset

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes:
        return b"%d" % self._offset + bytes(self._bytes_more)

    def headers(self) -> None:
        return None


class Client:
    """A consumer of a partition with records 0 to 9, which reports each error once, in front of its
    record."""

    def __init__(self, errors: dict[int, list[int]]) -> None:
        self.errors = errors
        self.at = 0
        self.large: set[int] = set()
        """Offsets of records that are too large."""
        self.assigned = True

    def assign(self, partitions: list[TopicPartition]) -> None:
        (partition,) = partitions
        self.at = partition.offset
        self.assigned = True

    def unassign(self) -> None:
        self.assigned = False

    def consume(self, count: int, timeout_s: float) -> list[Answer]:
        assert self.assigned
        answers: list[Answer] = []
        while len(answers) < count and self.at < 10:
            errors = self.errors.get(self.at)
            if errors:
                answers.append(Answer(self.at, errors.pop(0)))
            else:
                answers.append(
                    Answer(self.at, bytes_more=RECORD_BYTES_MAX if self.at in self.large else 0)
                )
                self.at += 1
        return answers


@table(
    ("code", "raised"),
    [
        (KafkaError._UNKNOWN_PARTITION, LogUnavailable),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, LogUnavailable),
        (KafkaError._AUTO_OFFSET_RESET, LogMismatch),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, LogUnavailable),
        (KafkaError._TRANSPORT, None),
        (KafkaError.NOT_LEADER_FOR_PARTITION, None),
        (KafkaError._BAD_COMPRESSION, BatchUnreadable),
        (KafkaError._BAD_MSG, LogUnavailable),
        (KafkaError.INVALID_MSG, LogUnavailable),
        (KafkaError.UNKNOWN, LogUnavailable),
        (KafkaError._FAIL, LogUnavailable),
    ],
)
@table("before", [[], [KafkaError._PARTITION_EOF]])
@table("at", [0, 1, 7])
def test_an_error_among_records_costs_none_of_them(
    at: int, before: list[int], code: int, raised: type[ChronosError] | None
) -> None:
    reader = KafkaReader(Client({at: [*before, code]}), "delay", 0, 0, RECORD_BYTES_MAX)  # type: ignore[arg-type]
    found: list[int] = []
    failed: list[type[ChronosError]] = []
    for _ in range(10):
        try:
            found += [record.offset for record in reader.read(4, 10**6)]
        except ChronosError as error:
            failed.append(type(error))
    assert found == list(range(10))
    assert failed == ([] if raised is None else [raised])
    assert reader.position == 10


def child_of(reader: BoundedReader) -> int | None:
    """The process that reads for this reader now; None while there is none."""
    return None if reader._child is None else reader._child.pid


def test_an_error_is_raised_once_the_records_before_it_were_returned() -> None:
    """Raised earlier, it would keep every record before it from being read for as long as it
    lasts."""
    reader = KafkaReader(
        Client({3: [KafkaError._BAD_COMPRESSION]}),  # type: ignore[arg-type]
        "delay",
        5,
        0,
        RECORD_BYTES_MAX,  # type: ignore[arg-type]
    )  # type: ignore[arg-type]
    assert [record.offset for record in reader.read(10, 10**6)] == [0, 1, 2]
    with pytest.raises(BatchUnreadable, match="reading delay/5: a batch cannot be read") as raised:
        reader.read(10, 10**6)
    assert raised.value.offset == 3
    assert reader.position == 3
    assert [record.offset for record in reader.read(10, 10**6)] == [3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("at", [0, 3, 4])
def test_a_record_that_is_too_large_is_an_error_until_a_seek(at: int) -> None:
    """Nothing is fetched meanwhile, and every record before it is read."""
    client = Client({})
    client.large = {at, at + 2}
    reader = KafkaReader(client, "delay", 5, 0, RECORD_BYTES_MAX)  # type: ignore[arg-type]
    found: list[int] = []
    failed: list[int] = []
    for _ in range(12):
        try:
            found += [record.offset for record in reader.read(4, 10**6)]
        except BatchUnreadable as error:
            assert not client.assigned
            assert reader.wait(0)
            failed.append(error.offset)
            if len(failed) % 2 == 0:
                reader.seek(error.offset + 1)
    assert found == [offset for offset in range(10) if offset not in client.large]
    assert failed == [at, at, at + 2, at + 2]


@pytest.fixture
def log(broker: Broker) -> Iterator[KafkaLog]:
    """Clients of the shared broker."""
    with connected(broker) as opened:
        yield opened


@pytest.mark.kafka
def test_a_reader_reads_the_largest_batch_that_its_topic_accepts() -> None:
    """librdkafka refuses a response above 100 MB unless it is told otherwise: the reader would
    stand there for ever."""
    value = bytes(110_000_000)
    with Broker({"socket.request.max.bytes": 200_000_000}) as broker, connected(broker) as log:
        log.prepare(
            [TopicSpec(name="large", partitions=1, settings={"max.message.bytes": "120000000"})],
            create=True,
        )
        log.append([("large", None, value, {}, 0)], TIMEOUT_S)
        reader = log.reader("large", 0, 0)
        found = read_until(reader, 1)
        reader.close()
    assert [record.value == value for record in found] == [True]


def test_an_uncompressed_topic_refuses_what_is_too_large_only_when_it_is_decompressed(
    broker: Broker, log: KafkaLog, topic_names: Callable[..., str]
) -> None:
    """The broker converts before it compares sizes; a topic that keeps the producer's compression
    accepts the same record."""
    kept, checked = topic_names("kept"), topic_names("checked")
    specs = {
        compression: own_topics(
            load(None, {}, [f"topics.compression={compression}", f"topics.delay={topic}"])
        )[0]
        for compression, topic in (("producer", kept), ("uncompressed", checked))
    }
    log.prepare(list(specs.values()), create=True)
    bomb = Sent(bytes(30_000_000), partition=0)
    assert produce(broker.bootstrap, kept, [bomb], compression_codec="zstd") == [(0, 0)]
    with pytest.raises(AssertionError, match="MSG_SIZE_TOO_LARGE"):
        produce(broker.bootstrap, checked, [bomb], compression_codec="zstd")
    assert produce(broker.bootstrap, checked, [Sent(b"small")], compression_codec="zstd")
    found = log.prepare([replace(specs["uncompressed"], name=kept)], create=True)[kept]
    (advice,) = found.advice
    assert advice.startswith(
        f"{kept} has compression.type=producer, uncompressed is advised: kafka-configs "
    )


def test_the_topic_of_the_cluster_has_the_same_compression() -> None:
    """A node reads what any client wrote there, and decompresses it."""
    for compression in ("producer", "uncompressed"):
        assert (
            cluster_topic(load(None, {}, [f"topics.compression={compression}"])).settings[
                "compression.type"
            ]
            == compression
        )


def test_a_batch_that_cannot_be_decompressed_is_an_error_with_its_place_and_bounds(
    broker: Broker, log: KafkaLog, topic_names: Callable[..., str]
) -> None:
    """Records before it are read, those behind it after a seek; its bounds are those of its header,
    from any offset in it."""
    topic = broker.create_topic(topic_names(), config={"message.timestamp.type": "LogAppendTime"})
    poison = [Sent(bytes(100_000), partition=0)] * 1_050
    produce(broker.bootstrap, topic, [Sent(b"before", partition=0)])
    places = produce(
        broker.bootstrap,
        topic,
        poison,
        compression_codec="zstd",
        linger_ms=5_000,
        batch_size=200_000_000,
        message_max_bytes=200_000_000,
    )
    (_, last), *_ = produce(broker.bootstrap, topic, [Sent(b"after", partition=0)])
    assert [offset for _, offset in places] == list(range(1, last)), "the poison is not one batch"
    reader = log.reader(topic, 0, 0)
    assert [record.value for record in read_until(reader, 1)] == [b"before"]
    for _ in range(2):
        with pytest.raises(BatchUnreadable, match="cannot be read") as caught:
            read_until(reader, 2)
        assert caught.value.offset == reader.position == 1
    assert [log.batch_bounds(topic, 0, offset) for offset in (0, 1, 700, last)] == [
        (0, 0),
        (1, last - 1),
        (1, last - 1),
        (last, last),
    ]
    reader.seek(last)
    assert [record.value for record in read_until(reader, last + 1)] == [b"after"]
    reader.close()


def test_a_bounded_reader_reports_what_exceeds_its_memory_and_reads_everything_else(
    broker: Broker, log: KafkaLog, topic_names: Callable[..., str]
) -> None:
    """A large record in front of such a batch, which its child fetches ahead, is read; a child that
    is killed proves nothing."""
    topic = broker.create_topic(topic_names(), config={"message.timestamp.type": "LogAppendTime"})

    def send(*sizes: int) -> None:
        for size in sizes:
            sent = [Sent(bytes(size), partition=0)]
            produce(
                broker.bootstrap,
                topic,
                sent,
                compression_codec="lz4",
                message_max_bytes=500_000_000,
            )

    send(5, 40_000_000)
    aborting = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    aborting.init_transactions()
    aborting.begin_transaction()
    aborting.produce(topic, b"aborted", partition=0)
    aborting.flush()
    aborting.abort_transaction()
    send(250_000_000, 6)
    assert [log.batch_header(topic, 0, offset).hidden for offset in range(6)] == [
        False,
        False,
        True,
        True,
        False,
        False,
    ]
    reader = log.reader(topic, 0, 0, mode="bounded")
    assert isinstance(reader, BoundedReader)
    found: list[tuple[int, int]] = []
    unreadable: list[int] = []
    killed: set[int] = set()
    deadline = time.monotonic() + 2 * TIMEOUT_S
    while reader.position < 6:
        check_deadline(deadline, f"at {reader.position}")
        child = child_of(reader)
        if child is not None and reader.position == 1 and len(killed) < 2 and child not in killed:
            os.kill(child, signal.SIGKILL)
            killed.add(child)
        reader.wait(1.0)
        try:
            found += [
                (record.offset, len(record.value or b"")) for record in reader.read(1_000, 10**9)
            ]
        except BatchUnreadable as error:
            unreadable.append(error.offset)
            reader.seek(log.batch_bounds(topic, 0, error.offset)[1] + 1)
        except LogUnavailable:
            continue
    assert found == [(0, 5), (1, 40_000_000), (5, 6)]
    assert unreadable == [4]
    assert killed, "no child was there to be killed"
    produce(broker.bootstrap, topic, [Sent(b"behind the stretch", partition=0)])
    assert [record.value for record in read_until(reader, 7)] == [b"behind the stretch"]
    reader.close()


def test_the_bounded_readers_of_a_process_run_one_child_at_a_time(
    broker: Broker, log: KafkaLog, topic_names: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of all shards together is bounded. A reader whose shard takes no records loses its
    turn after a while."""
    topic = broker.create_topic(topic_names(), partitions=3)
    for partition in range(3):
        produce(
            broker.bootstrap,
            topic,
            [Sent(b"%d" % number, partition=partition) for number in range(5)],
        )
    readers = [log.reader(topic, partition, 0, mode="bounded") for partition in range(3)]
    bounded = [reader for reader in readers if isinstance(reader, BoundedReader)]
    assert len(bounded) == 3

    def with_child() -> list[int]:
        return [
            partition for partition, reader in enumerate(bounded) if child_of(reader) is not None
        ]

    bounded[0].wait(0)
    bounded[1].wait(0)
    assert with_child() == [0]
    assert [reader.delayed for reader in bounded] == [
        f"{READING_BOUNDED}: 2 of 3 shards wait for their turn"
    ] * 3
    with monkeypatch.context() as patch:
        patch.setattr(turns, "TURN_S", 0.0)
        bounded[1].wait(0)
        assert with_child() == [
            0,
            1,
        ]  # the first one was killed, which its reader does not know yet
    monkeypatch.setattr(turns, "TURN_S", TIMEOUT_S)
    found: dict[int, list[bytes | None]] = {1: [], 2: []}
    deadline = time.monotonic() + TIMEOUT_S
    while any(len(values) < 5 for values in found.values()):
        check_deadline(deadline, found)
        for partition, values in found.items():
            bounded[partition].wait(0.02)
            assert with_child() in ([0], [0, 1], [0, 2])
            values += [record.value for record in bounded[partition].read(100, 10**6)]
    found[0] = [record.value for record in read_until(bounded[0], 5)]
    assert list(found.values()) == [[b"%d" % number for number in range(5)]] * 3
    assert [reader.delayed for reader in bounded] == [None] * 3
    for reader in bounded:
        reader.close()


def test_no_child_runs_beside_a_batch_that_is_read_alone(
    broker: Broker, log: KafkaLog, topic_names: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both take much memory. A child of another reader ends first, if its turn has lasted long
    enough."""
    topic = broker.create_topic(topic_names(), partitions=2)
    for partition in range(2):
        produce(
            broker.bootstrap,
            topic,
            [Sent(b"%d" % number, partition=partition) for number in range(5)],
        )
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    bounded = log.reader(topic, 1, 0, mode="bounded")
    assert isinstance(bounded, BoundedReader)
    bounded.wait(0)
    assert child_of(bounded) is not None
    alone = log.reader(topic, 0, 0, mode="alone")

    def is_without_child() -> bool:
        bounded.wait(0.1)  # notices that its child was killed, and gets no other one
        return child_of(bounded) is None

    wait_until(is_without_child, timeout_s=TIMEOUT_S)
    assert is_without_child()
    assert [record.value for record in read_until(alone, 5)] == [
        b"%d" % number for number in range(5)
    ]
    alone.close()
    assert [record.value for record in read_until(bounded, 5)] == [
        b"%d" % number for number in range(5)
    ]
    bounded.close()


def test_a_batch_of_many_tiny_records_counts_with_the_memory_of_its_records() -> None:
    """16 MB without compression, of records of eight bytes, take more than a child may allocate."""
    tiny = BatchHeader(first=5, last=2_000_004, bytes=16_000_000, codec=0)
    assert tiny.memory_bytes_max > 1.5 * MEMORY_BYTES
    few = replace(tiny, last=5)
    assert few.memory_bytes_max < 1.1 * few.bytes


def test_an_offset_is_found_by_its_time_behind_timestamps_in_the_future(
    broker: Broker, log: KafkaLog, topic_names: Callable[..., str]
) -> None:
    """Records from a time when the topic took the producers' timestamps, which Kafka finds for
    every time before them."""
    topic = broker.create_topic(
        topic_names(),
        config={
            "message.timestamp.type": "LogAppendTime",
            "message.timestamp.after.max.ms": 2**63 - 1,
        },
    )
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})

    def send_ahead(*timestamps: int) -> None:
        alter_topic(broker, topic, message_timestamp_type="CreateTime")
        for timestamp in timestamps:
            producer.produce(topic, b"ahead", partition=0, timestamp=timestamp)
            assert producer.flush(TIMEOUT_S) == 0
        alter_topic(broker, topic, message_timestamp_type="LogAppendTime")

    def send() -> int:
        produce(broker.bootstrap, topic, [Sent(b"of its time", partition=0)])
        return log.append([(topic, None, b"of its time", {}, 0)], TIMEOUT_S)[0].timestamp_ms

    now_ms = time.time_ns() // 1_000_000
    times = []
    send_ahead(4_000_000_000_000, now_ms * 1_000)  # offsets 0 and 1
    for _ in range(3):
        times.append(send())  # offsets 2 and 3, 5 and 6, 8 and 9
        send_ahead(now_ms * 1_000_000)  # 4, 7 and 10
    assert log.offset_at(topic, 0, now_ms - 100_000) <= 2
    assert log.offset_at(topic, 0, times[0] + 1) == 4
    assert log.offset_at(topic, 0, times[1] + 1) == 7
    assert log.offset_at(topic, 0, times[2] + 1) >= 10


def test_the_offsets_of_a_topic_that_was_deleted_and_created_again_are_found(
    broker: Broker, log: KafkaLog, topic_names: Callable[..., str]
) -> None:
    """Also by the clients kept from earlier requests, which were told meanwhile that it does not
    exist."""
    topic, admin = broker.create_topic(topic_names()), broker.admin()
    log.watermarks(topic, 0)
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    kept = [consumer._consumer for level in log._offsets._idle.values() for consumer in level]
    assert len(kept) == 2
    wait_until(
        lambda: not any(client.list_topics(topic).topics[topic].partitions for client in kept),
        timeout_s=TIMEOUT_S,
    )
    broker.create_topic(topic)
    assert log.watermarks(topic, 0).high == 0
