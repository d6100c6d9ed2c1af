"""How a Kafka writer notices that it has lost its fence, which Kafka keeps only as long as it
remembers the transactional id."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

import pytest
from confluent_kafka import Producer

from chronos.adapters.kafka.log import KafkaLog
from chronos.adapters.kafka.writer import BulkOpener, KafkaWriter
from chronos.core.message import Record
from chronos.errors import ChronosError, ClockDisagrees, LogMismatch, ProducerLost
from chronos.ports import Outgoing, TopicSpec
from tests.harness.broker import FORGETFUL, Broker
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.kafka

SHARD = 1


class CountingLog(KafkaLog):
    """A log that counts how often its writers read."""

    reads = 0

    def records_between(
        self, topic: str, partition: int, start: int, stop: int
    ) -> Generator[Record]:
        self.reads += 1
        return super().records_between(topic, partition, start, stop)


class Case:
    """A writer of one shard, and what it has shown to its verification."""

    def __init__(self, log: CountingLog, topic: str, bootstrap: str) -> None:
        self.log, self.topic, self.bootstrap = log, topic, bootstrap
        self.writer = log.writer(SHARD)
        self.writer.begin_at(self.end())

    def end(self) -> int:
        """The end of the progress partition once no transaction is open."""
        ends = lambda: self.log.watermarks(self.topic, SHARD)  # noqa: E731
        wait_until(lambda: ends().stable == ends().high)
        return ends().high

    def commit(self, progress: bytes = b"own") -> list[Record]:
        """Commit a step; return what others wrote before it."""
        seen: list[Record] = []
        self.writer.send([], progress)
        self.writer.commit(lambda timestamp_ms, others: seen.extend(others))
        return seen

    def abort(self) -> None:
        """Have a step refused by its verification."""

        def refuse(timestamp_ms: int, others: Iterable[Record]) -> None:
            raise ClockDisagrees("", aborted=True)

        self.writer.send([], b"aborted")
        with pytest.raises(ClockDisagrees):
            self.writer.commit(refuse)

    def produce(self, value: bytes) -> None:
        """Write a record to the partition as another program."""
        self._write(Producer({"bootstrap.servers": self.bootstrap}), value, None)

    def begin(self, value: bytes, *, key: bytes | None = None) -> Producer:
        """The same in a transaction, which the caller ends."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": self.topic})
        producer.init_transactions(30)
        producer.begin_transaction()
        self._write(producer, value, key)
        return producer

    def _write(self, producer: Producer, value: bytes, key: bytes | None) -> None:
        producer.produce(self.topic, value, key, partition=SHARD)
        assert producer.flush(30) == 0


def opened(broker: Broker, topic: str) -> CountingLog:
    log = CountingLog(
        bootstrap_servers=broker.bootstrap,
        properties={},
        progress_topic=topic,
        transaction_timeout_s=10.0,
    )
    log.prepare([TopicSpec(name=topic, partitions=SHARD + 1, settings={})], create=True)
    return log


@pytest.fixture
def case(broker: Broker, topic_names: Callable[..., str]) -> Iterator[Case]:
    topic = topic_names("progress")
    log = opened(broker, topic)
    made = Case(log, topic, broker.bootstrap)
    yield made
    made.writer.close()
    log.close()


def test_a_writer_that_is_alone_reads_nothing(case: Case) -> None:
    """Its commits and aborted steps have known places, also in a log with earlier records."""
    for _ in range(3):
        assert case.commit() == []
    case.abort()
    case.abort()
    assert case.commit() == []
    assert case.log.reads == 0


def test_a_step_with_a_backlog_is_committed_though_no_thread_can_be_started(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the caller's thread then, and what it had to do meanwhile is done too."""
    done: list[str] = []

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    case.writer.send([], b"own")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        appended = case.writer.commit(
            lambda timestamp_ms, others: done.append("verified"), lambda: done.append("meanwhile")
        )
    assert sorted(done) == ["meanwhile", "verified"]
    assert [record.offset for record in case.log.records_between(case.topic, SHARD, 0, 1)] == [
        appended.offset
    ]


def test_a_writer_shows_each_record_of_another_once(case: Case) -> None:
    case.commit()
    case.produce(b"theirs")
    case.begin(b"in a transaction", key=b"k").commit_transaction(30)
    assert [(record.key, record.value) for record in case.commit()] == [
        (None, b"theirs"),
        (b"k", b"in a transaction"),
    ]
    assert case.commit() == []
    assert case.log.reads == 1


def test_what_others_wrote_before_an_aborted_step_is_shown_to_the_next(case: Case) -> None:
    case.produce(b"theirs")
    case.abort()
    assert [record.value for record in case.commit()] == [b"theirs"]


def test_aborted_records_of_others_and_markers_are_read_and_are_nothing(case: Case) -> None:
    case.commit()
    case.begin(b"never").abort_transaction(30)
    assert case.commit() == []
    assert case.log.reads == 1


def test_a_step_is_lost_with_its_writer_if_what_others_wrote_cannot_be_read(case: Case) -> None:
    """A transaction of another program is open in front of it."""
    case.commit()
    producer = case.begin(b"open")
    with pytest.raises(ProducerLost, match="cannot be read"):
        case.commit()
    producer.abort_transaction(30)
    assert case.end() == 6, "the record and the marker of each: a commit and two aborts"


def test_a_writer_with_a_step_that_has_not_ended_is_lost(case: Case) -> None:
    """It aborts nothing: that step may have been committed."""
    case.writer.send([], b"open")
    with pytest.raises(ProducerLost, match="the producer can no longer be used"):
        case.writer.send([], b"next")


def test_a_first_record_below_the_end_that_was_read_is_refused(case: Case) -> None:
    """The topic was created again between the reading and the first step."""
    case.writer.begin_at(1_000)
    case.writer.send([], b"own")
    with pytest.raises(LogMismatch, match="deleted and created again"):
        case.writer.commit(lambda timestamp_ms, others: None)


@pytest.fixture(scope="module")
def forgetful() -> Iterator[Broker]:
    with Broker(FORGETFUL) as broker:
        yield broker


def step(writer: KafkaWriter, messages: Sequence[Outgoing]) -> None:
    """Commit a step with these messages."""
    writer.send(messages, b"progress")
    writer.commit(lambda timestamp_ms, others: None)


@pytest.mark.parametrize("count", [0, 100_000], ids=["at the commit", "while it produces"])
def test_a_writer_whose_transactional_id_was_forgotten_is_lost(
    forgetful: Broker, topic_names: Callable[..., str], count: int
) -> None:
    """KAFKA-17822: the client would take a new producer id by itself, and write the step again."""
    topic = topic_names("progress")
    target = forgetful.create_topic(topic_names("target"))
    log = opened(forgetful, topic)
    writer = log.writer(SHARD)
    step(writer, [])
    forgetful.wait_forgotten()
    with pytest.raises(ProducerLost, match="have forgotten the transactional id chronos-"):
        step(writer, [(target, None, b"late", [], 0)] * count)
    writer.close()
    log.close()


def test_a_bulk_producer_whose_transactional_id_was_forgotten_fails(
    forgetful: Broker, topic_names: Callable[..., str]
) -> None:
    """So does its task: a later attempt may have sent the part meanwhile."""
    topic = forgetful.create_topic(topic_names("target"))
    writer = BulkOpener(bootstrap_servers=forgetful.bootstrap, properties={}, timeout_s=20.0).open(
        "bulk-part"
    )
    writer.send([(topic, None, b"first", [])])
    forgetful.wait_forgotten()
    with pytest.raises(ChronosError):
        writer.send([(topic, None, b"late", [])])
    writer.close()
    assert [record.value for record in forgetful.console_consumer(topic, max_messages=1)] == [
        "first"
    ]
