"""The contract of every log, over each row of `LOGS` in `tests/contract/implementations.py`."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Consumer, TopicPartition

from chronos.core.keys import OFFSET_MAX, partition_of
from chronos.core.message import Entry, Record
from chronos.core.selector import Selector
from chronos.core.shard.codec import FRESH
from chronos.core.shard.look_ahead import LookAhead
from chronos.core.shard.progress import Progress, pack_progress
from chronos.core.shard.rules import Rules
from chronos.core.shard.shard import Shard
from chronos.core.shard.step import selection_of
from chronos.errors import (
    ClockDisagrees,
    ConfigurationError,
    LogMismatch,
    LogUnavailable,
    ProducerLost,
    TransactionAborted,
)
from chronos.ports import Appended, Outgoing, Reader, TopicSpec, Writer
from chronos.workers.step.horizon import LOOK_EVERY_MS, UNPULLED_BEFORE_MS, Elsewhere
from chronos.workers.step.partitions import TURN_MESSAGES
from chronos.workers.step.planned import PlannedTransaction, StepInputs
from chronos.workers.step.push import Pusher, PushSettings
from chronos.workers.step.targets import Refusals, Retries
from tests.contract.implementations import LOGS, PARTITIONS, TIMEOUT_S, Feature, LogCase
from tests.harness.drafts import plan_of
from tests.harness.memory import MemoryStore
from tests.harness.waiting import check_deadline

NO_LIMIT = 10**8


@pytest.fixture(params=[pytest.param(name, marks=row.marks) for name, row in LOGS.items()])
def case(request: pytest.FixtureRequest, topic_names: Callable[..., str]) -> Iterator[LogCase]:
    """Each log of the table, with a prepared progress topic."""
    with LOGS[request.param].open(request, topic_names("progress")) as opened:
        opened.log.prepare(
            [TopicSpec(name=opened.progress, partitions=PARTITIONS, settings={})], create=True
        )
        yield opened


def outgoing(
    topic: str,
    value: bytes | None = b"v",
    *,
    key: bytes | None = None,
    headers: object = None,
    partition: int = 0,
) -> Outgoing:
    return topic, key, value, headers or [], partition  # type: ignore[return-value]


def read_until(reader: Reader, end: int) -> list[Record]:
    """Read everything up to a position; fails if it does not come in time."""
    deadline = time.monotonic() + TIMEOUT_S
    records: list[Record] = []
    while reader.position < end:
        check_deadline(deadline, f"at {reader.position}, not at {end}, with {len(records)} records")
        reader.wait(1.0)
        records += reader.read(1_000, NO_LIMIT)
    return records


def settled_end(case: LogCase, topic: str, partition: int = 0) -> int:
    """The stable end once no transaction is open: Kafka writes its markers a moment after the
    commit returned."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            watermarks = case.log.watermarks(topic, partition)
            if watermarks.stable == watermarks.high:
                return watermarks.stable
        except (
            LogUnavailable
        ):  # the leader of a new topic's partition takes a moment to learn that it leads
            pass
        check_deadline(deadline)


def committed(case: LogCase, topic: str, partition: int = 0) -> list[Record]:
    """Everything a read_committed reader sees once no transaction is open."""
    settled_end(case, topic, partition)
    return readable(case, topic, partition)


def readable(case: LogCase, topic: str, partition: int = 0) -> list[Record]:
    """Everything a read_committed reader sees now."""
    watermarks = case.log.watermarks(topic, partition)
    reader = case.log.reader(topic, partition, watermarks.start)
    try:
        return read_until(reader, watermarks.stable)
    finally:
        reader.close()


def commit(writer: Writer, messages: list[Outgoing], progress: bytes = b"progress") -> Appended:
    writer.send(messages, progress)
    return writer.commit(lambda timestamp_ms, others: None)


def headers_of(record: Record) -> list[tuple[str, bytes | None]]:
    """Fails if they cannot be read."""
    assert record.headers is not None
    return list(record.headers)


def values(records: list[Record]) -> list[bytes | None]:
    return [record.value for record in records]


# ---------------------------------------------------------------------------------------- Appending


def test_appended_records_are_read_back_byte_for_byte(case):
    """Null and empty keys and values, any bytes, headers in order, repeated names, null header
    values."""
    topic = case.topic(partitions=1)
    any_bytes = bytes(range(256))
    pairs = [("b", b"1"), ("a", b""), ("b", None), ("ü", any_bytes), ("b", b"1")]
    sent = [
        outgoing(topic, None, key=None),
        outgoing(topic, b"", key=b""),
        outgoing(topic, any_bytes, key=any_bytes, headers=pairs),
        outgoing(topic, b"x" * 500_000, headers={"z": b"1", "a": None}),
    ]
    before_ms = case.clock.now_ms()
    appended = case.log.append(sent, TIMEOUT_S)
    after_ms = case.clock.now_ms() + 1

    assert [(each.partition, each.offset) for each in appended] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert all(before_ms - 5 <= each.timestamp_ms <= after_ms for each in appended)
    records = readable(case, topic)
    assert [(record.key, record.value) for record in records] == [
        (key, value) for _, key, value, *_ in sent
    ]
    assert [headers_of(record) for record in records] == [[], [], pairs, [("z", b"1"), ("a", None)]]
    assert [record.offset for record in records] == [0, 1, 2, 3]


def test_a_record_keeps_the_timestamp_it_was_acknowledged_with(case):
    """The log's own clock counts."""
    topic = case.topic(partitions=1, message_timestamp_type="LogAppendTime")
    (appended,) = case.log.append([outgoing(topic)], TIMEOUT_S)
    assert [record.timestamp_ms for record in readable(case, topic)] == [appended.timestamp_ms]


def test_a_key_decides_the_partition_as_java_producers_place_it(case):
    """Unless a partition is named."""
    topic = case.topic()
    keys = [b"key-%d" % n for n in range(40)]
    appended = case.log.append([outgoing(topic, key=key, partition=-1) for key in keys], TIMEOUT_S)
    assert [each.partition for each in appended] == [partition_of(key, PARTITIONS) for key in keys]
    appended = case.log.append([outgoing(topic, key=key, partition=3) for key in keys], TIMEOUT_S)
    assert {each.partition for each in appended} == {3}


def test_records_without_a_key_go_to_any_partition(case):
    """The watermarks count each of them once."""
    topic = case.topic()
    appended = case.log.append(
        [outgoing(topic, b"%d" % n, partition=-1) for n in range(40)], TIMEOUT_S
    )
    watermarks = [case.log.watermarks(topic, partition).high for partition in range(PARTITIONS)]
    assert sum(watermarks) == 40
    assert all(each.offset < watermarks[each.partition] for each in appended)


def test_concurrent_appenders_get_offsets_of_their_own_in_their_order(case):
    """Each finds its records at the offsets it was given, in the order it sent them."""
    case.require(Feature.THREADS)
    topic = case.topic(partitions=1)

    def append(thread: int) -> list[Appended]:
        return [
            appended
            for turn in range(10)
            for appended in case.log.append(
                [outgoing(topic, b"%d-%d" % (thread, turn))] * 3, TIMEOUT_S
            )
        ]

    with ThreadPoolExecutor(8) as pool:
        appended_by_thread = list(pool.map(append, range(8)))
    records = readable(case, topic)
    assert [record.offset for record in records] == list(range(240))
    for thread, appended in enumerate(appended_by_thread):
        assert [each.offset for each in appended] == sorted(each.offset for each in appended)
        found = [records[each.offset].value for each in appended]
        assert found == [b"%d-%d" % (thread, n // 3) for n in range(30)]


def test_appending_nothing_is_not_an_error(case):
    """No broker needs to be asked."""
    assert case.log.append([], TIMEOUT_S) == []


def test_a_record_too_large_for_its_topic_is_refused_and_the_next_one_is_written(case):
    """The refused record has no effect."""
    case.require(Feature.BATCH_LIMITS)
    topic = case.topic(partitions=1, max_message_bytes="10000")
    with pytest.raises(LogUnavailable):
        case.log.append([outgoing(topic, b"x" * 20_000)], TIMEOUT_S)
    case.log.append([outgoing(topic, b"small")], TIMEOUT_S)
    assert values(readable(case, topic)) == [b"small"]


def test_records_that_are_handed_over_are_not_changed(case):
    """Neither by an append nor by a transaction: the caller may use keys, values and headers
    again."""
    topic = case.topic(partitions=1)
    mapping, pairs = {"a": b"1", "b": None}, [("a", b"1"), ("a", b"2")]
    records = [outgoing(topic, b"x", headers=mapping), outgoing(topic, b"y", headers=pairs)]
    before = [*records]
    case.log.append(records, TIMEOUT_S)
    writer = case.log.writer(0)
    commit(writer, records)
    writer.close()
    assert records == before
    assert (mapping, pairs) == ({"a": b"1", "b": None}, [("a", b"1"), ("a", b"2")])
    assert [headers_of(record) for record in committed(case, topic)] == [
        [*mapping.items()],
        pairs,
    ] * 2


# ------------------------------------------------------------------------------------- Transactions


@pytest.mark.smoke
def test_a_transaction_is_readable_only_once_it_is_committed(case):
    """In every topic and partition it writes to, the progress partition among them."""
    first, second = case.topic("first"), case.topic("second")
    writer = case.log.writer(2)
    messages = [
        outgoing(first, b"a", partition=0),
        outgoing(second, b"b", partition=3),
        outgoing(first, b"c"),
    ]
    writer.send(messages, b"progress")
    partitions = ((first, 0), (second, 3), (case.progress, 2))
    assert [readable(case, *place) for place in partitions] == [[], [], []]

    appended = writer.commit(lambda timestamp_ms, others: None)
    assert [values(committed(case, *place)) for place in partitions] == [
        [b"a", b"c"],
        [b"b"],
        [b"progress"],
    ]
    (progress,) = committed(case, case.progress, 2)
    assert (progress.offset, appended.partition) == (appended.offset, 2)
    assert progress.key is None
    writer.close()


def test_a_transaction_whose_verification_raises_is_never_readable(case):
    """The exception is passed on, nothing is ever readable, and the writer goes on."""
    topic = case.topic(partitions=1)
    writer = case.log.writer(0)

    class ClockIsWrong(Exception):
        pass

    def refuse(timestamp_ms: int, others: object) -> None:
        raise ClockIsWrong

    writer.send([outgoing(topic, b"aborted")], b"aborted")
    with pytest.raises(ClockIsWrong):
        writer.commit(refuse)
    commit(writer, [outgoing(topic, b"committed")], b"committed")
    assert values(committed(case, topic)) == [b"committed"]
    assert values(committed(case, case.progress)) == [b"committed"]
    writer.close()


def test_verification_is_given_the_timestamp_of_the_progress_record(case):
    """By the clock of the log."""
    seen: list[int] = []
    writer = case.log.writer(0)
    before_ms = case.clock.now_ms()
    writer.send([], b"progress")
    appended = writer.commit(lambda timestamp_ms, others: seen.append(timestamp_ms))
    after_ms = case.clock.now_ms() + 1
    assert seen == [appended.timestamp_ms]
    assert before_ms - 5 <= seen[0] <= after_ms
    writer.close()


def test_messages_of_a_transaction_keep_their_order(case):
    """Per partition, over several transactions of two shards."""
    topic = case.topic(partitions=2)
    writers = [case.log.writer(0), case.log.writer(1)]
    for step in range(6):
        commit(
            writers[step % 2],
            [outgoing(topic, b"%d-%03d" % (step, n), partition=n % 2) for n in range(200)],
        )
    for partition in range(2):
        found = values(committed(case, topic, partition))
        assert found == [
            b"%d-%03d" % (step, n) for step in range(6) for n in range(partition, 200, 2)
        ]
    for writer in writers:
        writer.close()


@pytest.mark.smoke
def test_a_new_writer_of_a_shard_fences_the_older_one(case):
    """Nothing the older one sends is ever readable; other shards are not affected."""
    topic = case.topic(partitions=1)
    older, other = case.log.writer(1), case.log.writer(2)
    commit(older, [outgoing(topic, b"older")])
    older.send([outgoing(topic, b"zombie")], b"zombie")
    newer = case.connect().writer(1)
    with pytest.raises(ProducerLost):
        older.commit(lambda timestamp_ms, others: None)
    with pytest.raises(ProducerLost):
        commit(older, [outgoing(topic, b"zombie again")], b"zombie again")
    commit(newer, [outgoing(topic, b"newer")])
    commit(other, [outgoing(topic, b"other")])
    assert values(committed(case, topic)) == [b"older", b"newer", b"other"]
    assert values(committed(case, case.progress, 1)) == [b"progress", b"progress"]
    for writer in (older, newer, other):
        writer.close()


def test_a_new_writer_finds_what_the_older_one_committed(case):
    """Its owner reads the progress log to the end and misses nothing."""
    for turn in range(5):
        writer = case.connect().writer(0)
        assert values(committed(case, case.progress)) == [b"%d" % n for n in range(turn)]
        commit(writer, [], b"%d" % turn)
        writer.close()


def test_a_message_too_large_for_its_topic_aborts_its_transaction_as_likely_poison(case):
    """The other messages of the transaction are not written either; without it they are."""
    case.require(Feature.BATCH_LIMITS)
    small, large = case.topic("small", max_message_bytes="10000"), case.topic("large")
    writer = case.log.writer(0)
    sound = outgoing(large, b"sound")
    with pytest.raises(TransactionAborted) as aborted:
        commit(writer, [sound, outgoing(small, b"x" * 20_000)])
    assert aborted.value.poison_likely
    for attempt in itertools.count():
        try:
            commit(writer, [sound])
            break
        except TransactionAborted:  # Kafka may fail the first transaction after an abort too
            assert attempt == 0
    assert values(committed(case, large)) == [b"sound"]
    assert committed(case, small) == []
    writer.close()


# ------------------------------------------------------------------------------------------ Reading


def test_a_reader_skips_the_markers_of_transactions(case):
    """Its position reaches the last stable offset, which on Kafka is greater than that of the last
    record."""
    topic = case.topic(partitions=1)
    writer = case.log.writer(0)
    commit(writer, [outgoing(topic, b"a")])
    commit(writer, [outgoing(topic, b"b")])
    reader = case.log.reader(topic, 0, 0)
    end = settled_end(case, topic)
    assert values(read_until(reader, end)) == [b"a", b"b"]
    assert reader.position == end
    commit(writer, [outgoing(topic, b"c")])
    assert values(read_until(reader, settled_end(case, topic))) == [b"c"]
    reader.close()
    writer.close()


def test_a_reader_starts_at_its_offset_and_seeks(case):
    """Forwards and back."""
    topic = case.topic(partitions=1)
    case.log.append([outgoing(topic, b"%d" % n) for n in range(10)], TIMEOUT_S)
    reader = case.log.reader(topic, 0, 7)
    assert values(read_until(reader, 10)) == [b"7", b"8", b"9"]
    reader.seek(2)
    assert reader.position == 2
    assert values(read_until(reader, 10)) == [b"%d" % n for n in range(2, 10)]
    reader.seek(9)
    assert values(read_until(reader, 10)) == [b"9"]
    reader.close()


def test_a_read_stays_within_its_limit_and_the_next_one_continues(case):
    """Each record once, and at least one if there is one."""
    topic = case.topic(partitions=1)
    case.log.append([outgoing(topic, b"%d" % n) for n in range(50)], TIMEOUT_S)
    reader = case.log.reader(topic, 0, 0)
    found: list[Record] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < 50:
        check_deadline(deadline)
        assert reader.wait(TIMEOUT_S)
        records = reader.read(7, 1)
        assert len(records) <= 7
        found += records
        assert reader.position == len(found)
    assert values(found) == [b"%d" % n for n in range(50)]
    reader.close()


def test_waiting_ends_with_a_record_or_after_the_time(case):
    """A record wakes the reader long before the end of its time."""
    case.require(Feature.THREADS)
    topic = case.topic(partitions=1)
    reader = case.log.reader(topic, 0, 0)
    # A Kafka reader returns True once for the end of the partition.
    reader.wait(1.0)
    assert reader.read(10, NO_LIMIT) == []
    started = time.monotonic()
    assert not reader.wait(0.05)
    assert time.monotonic() - started >= 0.045
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(reader.wait, TIMEOUT_S)
        case.log.append([outgoing(topic, b"woken")], TIMEOUT_S)
        assert waiting.result(TIMEOUT_S / 2)
    assert values(read_until(reader, 1)) == [b"woken"]
    reader.close()


def test_reading_trimmed_records_is_a_named_error(case):
    """The reader never skips them in silence."""
    topic = case.topic(partitions=1)
    case.log.append([outgoing(topic, b"%d" % n) for n in range(10)], TIMEOUT_S)
    case.delete_records(topic, 0, 4)
    assert case.log.watermarks(topic, 0).start == 4
    assert values(readable(case, topic)) == [b"%d" % n for n in range(4, 10)]
    reader = case.log.reader(topic, 0, 3)
    with pytest.raises(LogMismatch, match="3"):
        read_until(reader, 10)
    reader.close()


def test_a_trimmed_partition_starts_at_the_offset(case):
    """Never beyond the end, never backwards; a later record gets the next offset."""
    topic = case.topic()
    case.log.append([outgoing(topic, b"%d" % n) for n in range(10)], TIMEOUT_S)
    end = settled_end(case, topic)
    for offset, start in ((0, 0), (4, 4), (2, 4), (end, end), (end + 100, end)):
        case.log.trim(topic, 0, offset)
        watermarks = case.log.watermarks(topic, 0)
        assert (watermarks.start, watermarks.stable, watermarks.high) == (start, end, end)
        assert [record.offset for record in readable(case, topic)] == list(range(start, end))
    (appended,) = case.log.append([outgoing(topic)], TIMEOUT_S)
    assert appended.offset == end


def test_a_trim_leaves_the_other_partitions(case):
    """Each partition has a start of its own."""
    topic = case.topic()
    case.log.append([outgoing(topic, partition=n % 2) for n in range(6)], TIMEOUT_S)
    settled_end(case, topic, 1)
    case.log.trim(topic, 1, 2)
    assert case.log.watermarks(topic, 0).start == 0
    assert case.log.watermarks(topic, 1).start == 2


def test_an_open_transaction_is_not_trimmed(case):
    """No record at or after the last stable offset is deleted, for any requested offset."""
    topic = case.topic()
    case.log.append([outgoing(topic, b"before")], TIMEOUT_S)
    stable = settled_end(case, topic)
    writer = case.log.writer(0)
    writer.send([outgoing(topic, b"open")], b"progress")
    case.log.trim(topic, 0, stable + 1)
    writer.commit(lambda timestamp_ms, others: None)
    assert [record.value for record in committed(case, topic)] == [b"open"]
    writer.close()


def test_trimming_a_missing_partition_is_a_named_error(case):
    """A partition of a topic that does not exist."""
    with pytest.raises((LogMismatch, LogUnavailable)):
        case.log.trim(case.names("missing"), 0, 5)


def test_an_offset_is_found_by_its_time(case):
    """The first record at or after it; the start for an earlier time than all, the end for a later
    one."""
    topic = case.topic(message_timestamp_type="LogAppendTime")
    times = []
    for _ in range(5):
        (appended,) = case.log.append([outgoing(topic)], TIMEOUT_S)
        times.append(appended.timestamp_ms)
        case.pass_time(3)  # the next record gets a later timestamp
    end = settled_end(case, topic)
    for offset, timestamp_ms in enumerate(times):
        assert case.log.offset_at(topic, 0, timestamp_ms) == offset
        assert case.log.offset_at(topic, 0, timestamp_ms + 1) == offset + 1
    assert case.log.offset_at(topic, 0, 0) == 0
    assert case.log.offset_at(topic, 0, times[-1] + 1_000_000) == end
    writer = case.log.writer(0)
    commit(writer, [outgoing(topic)])
    writer.close()
    end = settled_end(case, topic)
    assert case.log.offset_at(topic, 0, times[-1] + 1_000_000) == end
    case.log.trim(topic, 0, 2)
    assert case.log.offset_at(topic, 0, 0) == 2
    case.log.trim(topic, 0, end)
    assert case.log.offset_at(topic, 0, 0) == end
    assert case.log.offset_at(topic, 1, 0) == 0


def test_a_consumer_group_that_committed_nothing_has_no_offset(case):
    """A group that does not exist has none either."""
    assert case.log.committed(case.names("group"), case.topic(), 0) is None


def test_the_committed_offset_of_a_consumer_group_is_known(case):
    """For the partition it committed, and for no other."""
    case.require(Feature.GROUPS)
    topic, group = case.topic(), case.names("group")
    case.log.append([outgoing(topic) for _ in range(5)], TIMEOUT_S)
    consumer = Consumer({"bootstrap.servers": case.bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    consumer.close()
    assert case.log.committed(group, topic, 0) == 3
    assert case.log.committed(group, topic, 1) is None


def test_reading_beyond_the_end_is_a_named_error(case):
    """A store that is ahead of its log was built from another log."""
    topic = case.topic(partitions=1)
    case.log.append([outgoing(topic)], TIMEOUT_S)
    reader = case.log.reader(topic, 0, 5)
    with pytest.raises(LogMismatch, match="5"):
        read_until(reader, 6)
    reader.close()


# ------------------------------------------------------------------------------------------- Topics


def test_prepared_topics_are_there_and_stay_the_same(case):
    """A description and a second preparation find the same topic by its id."""
    name = case.names("prepared")
    spec = TopicSpec(name=name, partitions=3, settings={"max.message.bytes": "12345"})
    (info,) = case.log.prepare([spec], create=True).values()
    assert (info.partitions, info.leaderless, info.bytes_max) == (3, frozenset(), 12345)
    assert info.id
    assert case.log.prepare([spec], create=False) == {name: info}
    assert case.log.describe([name]) == {name: info}
    assert [settled_end(case, name, n) for n in range(3)] == [0, 0, 0]


def test_a_missing_topic_that_may_not_be_created_is_a_configuration_error(case):
    """It is not created."""
    name = case.names("missing")
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=name):
            case.log.prepare([TopicSpec(name=name, partitions=1, settings={})], create=False)


def test_a_topic_with_another_number_of_partitions_is_a_configuration_error(case):
    """The error names both numbers; the topic is not changed."""
    name = case.topic(partitions=2)
    with pytest.raises(ConfigurationError, match=rf"{name} has 2 partitions.* 3"):
        case.log.prepare(
            [TopicSpec(name=name, partitions=3, settings={}, per_shard=True)], create=True
        )
    assert (
        case.log.prepare([TopicSpec(name=name, partitions=3, settings={})], create=True)[
            name
        ].partitions
        == 2
    )
    info = case.log.describe([name])[name]
    assert info is not None
    assert info.partitions == 2


def test_describing_a_topic_does_not_create_it(case):
    """A log without missing topics describes what the first record would create, without an id."""
    name = case.names("nowhere")
    for _ in range(2):
        info = case.log.describe([name])[name]
        if Feature.MISSING_TOPICS in case.lacks:
            assert info is not None
            assert info.id == ""
        else:
            assert info is None
    with pytest.raises(ConfigurationError, match=name):
        case.log.prepare([TopicSpec(name=name, partitions=1, settings={})], create=False)


@pytest.mark.parametrize("name", ["not a topic", "..", "x" * 250])
def test_an_impossible_topic_name_is_described_as_missing(case, name):
    """By Kafka's rule for names."""
    assert case.log.describe([name]) == {name: None}


def test_the_watermarks_of_a_missing_partition_are_a_named_error(case):
    """Not 0, which would look like an empty partition."""
    with pytest.raises((LogMismatch, LogUnavailable)):
        case.log.watermarks(case.names("nowhere"), 0)
    with pytest.raises((LogMismatch, LogUnavailable)):
        case.log.stable_end(case.topic(partitions=1), 1)


def test_watermarks_follow_what_is_written(case):
    """An open transaction holds back the stable end."""
    topic = case.topic(partitions=1)
    case.log.append([outgoing(topic)] * 3, TIMEOUT_S)
    watermarks = case.log.watermarks(topic, 0)
    assert (watermarks.start, watermarks.stable, watermarks.high) == (0, 3, 3)
    assert case.log.stable_end(topic, 0) == 3
    writer = case.log.writer(0)
    writer.send([outgoing(topic)], b"")
    assert case.log.stable_end(topic, 0) == 3
    writer.commit(lambda timestamp_ms, others: None)
    assert settled_end(case, topic) >= 4
    assert case.log.stable_end(topic, 0) == settled_end(case, topic)
    writer.close()


def test_the_ends_of_many_partitions_are_told_at_once(case):
    """One that is missing hides no other; an open transaction holds back the stable end alone."""
    topic = case.topic(partitions=3)
    case.log.append([outgoing(topic, partition=1)] * 2, TIMEOUT_S)
    assert case.log.stable_ends(topic, [0, 1, 2]) == {0: 0, 1: 2, 2: 0}
    assert case.log.high_watermarks(topic, {1, 2}) == {1: 2, 2: 0}
    assert case.log.stable_ends(topic, []) == {}
    found = case.log.stable_ends(topic, [0, 1, 7])
    assert found == {0: 0, 1: 2}


# --- partitions of messages without a key


def test_a_description_names_the_leader_of_each_partition_of_a_log_with_brokers(case):
    topic = case.topic(partitions=3)
    info = case.log.describe([topic])[topic]
    assert info is not None
    assert len(info.leaders) in (0, info.partitions)
    assert all(leader >= 0 for leader in info.leaders)
    assert bool(info.leaders) == bool(case.bootstrap)


def test_messages_without_a_key_spread_over_the_partitions_and_the_leaders_answers_are_measured(
    case,
):
    """Small steps take turns, a large one is spread by itself; a message with a key keeps its
    partition."""
    topic, selector = case.topic(partitions=3), Selector()
    pusher = Pusher(
        case.log,
        Rules(shard=0, shards=PARTITIONS),
        PushSettings(
            delay_topic="delay",
            rejected_topic=topic,
            dead_letter_topic=topic,
            create_topics=False,
            retries=Retries(attempts_max=1, base_ms=1_000, cap_ms=1_000),
        ),
        selector=selector,
    )
    writer = case.log.writer(0)

    def ends() -> list[int]:
        return [case.log.watermarks(topic, partition).high for partition in range(3)]

    def step(*keys: bytes | None) -> list[int]:
        """Deliver a message for each key; return how many offsets each partition moved on by."""
        entries = [Entry(None, 1, topic, key, {}, b"v", 1, None) for key in keys]
        items = [(1, offset, b"") for offset in range(len(entries))]
        selection = selection_of(items, entries, (1, len(items)), complete=True)
        look_ahead: LookAhead[PlannedTransaction] = LookAhead(
            Shard(rules=Rules(shard=0, shards=PARTITIONS), state=FRESH, view=MemoryStore())
        )
        now_ms = case.clock.now_ms()
        plan = plan_of(
            pusher, selection, StepInputs(now_ms=now_ms, refusals=Refusals()), look_ahead
        )
        before = ends()
        with pusher.partitions.following(writer, case.clock):
            writer.send(plan.messages, b"progress")
            writer.commit(lambda timestamp_ms, others: None)
        return [after - earlier for after, earlier in zip(ends(), before, strict=True)]

    if case.bootstrap:
        # The marker of a transaction is written a moment after its commit, so only the greatest
        # growth is compared.
        used = set()
        for _ in range(3):
            grown = step(None, None, None, None)
            used.add(grown.index(max(grown)))
        assert used == {0, 1, 2}, "one step, one partition; the next step, the next partition"
    grown = step(*[None] * 3 * TURN_MESSAGES)
    assert min(grown) >= TURN_MESSAGES // 2, "a large step is spread over the partitions"
    home = partition_of(b"order", 3)
    grown = step(*[b"order"] * 50)
    assert grown.index(max(grown)) == home
    writer.close()
    known = selector.brokers()
    assert len(known) == bool(case.bootstrap)
    for latency in known.values():
        assert 0 <= latency.latency_ms <= 10_000
    assert [sent.failed for sent in writer.sent] == [False] * len(writer.sent)
    places = {(sent.topic, sent.partition) for sent in writer.sent}
    assert places == ({(case.progress, 0), (topic, home)} if case.bootstrap else set())


def test_the_end_of_a_progress_partition_tells_how_far_a_shard_held_elsewhere_has_read(
    case: LogCase,
) -> None:
    """Its last committed record, whatever was aborted or written by another program after it; a
    cursor in the middle of a time tells nothing."""
    now_ms = 1_700_000_000_000
    writer = case.log.writer(1)
    elsewhere = Elsewhere(case.log, case.progress, lambda: {0: FRESH, 1: FRESH})
    elsewhere.step(now_ms, {1})
    assert elsewhere.read_ms(0) == 0
    for minute, offset in enumerate((OFFSET_MAX, OFFSET_MAX, 7)):
        progress = Progress(
            role_epoch=1,
            log_epoch=1,
            cluster="c",
            node="n",
            instance="i",
            shards=2,
            cursor_due_ms=now_ms + minute * 60_000,
            cursor_offset=offset,
            pull_offset=0,
            counts=(),
        )
        commit(writer, [], pack_progress(progress))
    writer.send([], b"aborted")
    with pytest.raises(ClockDisagrees):
        writer.commit(refuse)
    writer.close()
    foreign = [
        outgoing(case.progress, key=b"k", partition=1),
        outgoing(case.progress, headers=[("a", b"1")], partition=1),
    ]
    case.log.append(foreign, TIMEOUT_S)
    settled_end(case, case.progress, 1)
    elsewhere.step(now_ms + 1, {1})
    assert elsewhere.read_ms(0) == 0, "it is not looked at all the time"
    elsewhere.step(now_ms + LOOK_EVERY_MS, {1})
    assert elsewhere.read_ms(0) == now_ms + 60_000 - UNPULLED_BEFORE_MS


def refuse(timestamp_ms: int, others: object) -> None:
    raise ClockDisagrees("the broker's clock is wrong", aborted=True)
