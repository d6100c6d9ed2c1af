"""Features of the embedded log alone: it stores everything itself, creates targets, and frees
space."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chronos.adapters.embedded.log import COMPACT_BYTES, RETENTION_MS, EmbeddedLog
from chronos.adapters.embedded.topics import (
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
from chronos.core.message import Record
from chronos.errors import (
    ClockDisagrees,
    LogMismatch,
    LogUnavailable,
    StoreCorrupt,
    StoreInUse,
    TransactionAborted,
)
from chronos.ports import Outgoing, TopicSpec, Watermarks
from tests.harness.clock import ShiftedClock
from tests.harness.waiting import check_deadline

TIMEOUT_S = 30.0
NO_LIMIT = 10**9
DAY_MS = 86_400_000


class PassingClock(ShiftedClock):
    """A clock on which a shift is time that passes, not a step."""

    def stepped_ms(self) -> int:
        """Always 0."""
        return 0


class Bench:
    """A log on such a clock, which can be reopened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = PassingClock()
        self.log = self.open()

    def open(self, *, partitions_default: int = 2, retention_ms: int = RETENTION_MS) -> EmbeddedLog:
        self.log = EmbeddedLog(
            self.path,
            clock=self.clock,
            partitions_default=partitions_default,
            retention_ms=retention_ms,
            disk_reserve_bytes=0,
        )
        specs = [
            TopicSpec(name=name, partitions=2, settings={}) for name in ("own", "chronos.progress")
        ]
        self.log.prepare(specs, create=True)
        return self.log

    def reopen(self, **settings: int) -> EmbeddedLog:
        self.log.close()
        return self.open(**settings)

    def append(self, topic: str, *values: bytes, partition: int = 0) -> None:
        self.log.append([message(topic, value, partition) for value in values], TIMEOUT_S)

    def values(self, topic: str, partition: int = 0) -> list[bytes | None]:
        reader = self.log.reader(topic, partition, self.log.watermarks(topic, partition).start)
        return [record.value for record in reader.read(100_000, NO_LIMIT)]


def message(topic: str, value: bytes, partition: int = 0) -> Outgoing:
    return topic, None, value, [], partition


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "log")
    yield made
    made.log.close()


# ------------------------------------------------------------------------------------------- Bytes


def test_rows_have_their_golden_bytes():
    """A change here is a change of format: see `core.shard.codec` for how to make one."""
    assert topic_key("a.b") == b"ta.b"
    assert record_key(1, 2, 3) == bytes.fromhex("72 00000001 00000002 0000000000000003")
    assert start_key(1, 2) == bytes.fromhex("73 00000001 00000002")
    assert pack_offset(258) == bytes.fromhex("0000000000000102")
    assert pack_topic(TopicRow(1, "x", 2, True)) == bytes.fromhex("01 94 01 a178 02 c3")
    assert pack_stamp(1_700_000_000_000) == bytes.fromhex("01 0000018bcfe56800")
    packed = pack_body(None, b"v", [("h", b"1"), ("h", None)])
    assert packed == bytes.fromhex("93 c0 c40176 92 92a168c40131 92a168c0")


def test_rows_decode_to_what_was_encoded():
    """Keys, offsets, topics and records."""
    assert topic_name(topic_key("a.b")) == "a.b"
    assert record_offset(record_key(9, 8, 2**40)) == 2**40
    assert unpack_offset(pack_offset(2**40)) == 2**40
    row = TopicRow(7, "id", 3, False)
    assert unpack_topic(pack_topic(row)) == row
    data = pack_stamp(5) + pack_body(b"k", None, {"a": b"1", "b": None})
    assert unpack_record(4, data) == Record(4, 5, b"k", None, [("a", b"1"), ("b", None)])


@pytest.mark.parametrize("data", [b"", b"\x02", b"\x01", b"\x01" + bytes(8) + b"\x93\xc0"])
def test_bytes_of_another_version_or_cut_bytes_are_a_named_error(data):
    """As a record and as a topic."""
    with pytest.raises(StoreCorrupt):
        unpack_record(0, data)
    with pytest.raises(StoreCorrupt):
        unpack_topic(data)


# ---------------------------------------------------------------------------------- Across restarts


def test_a_restart_keeps_records_offsets_and_topic_ids(bench):
    """Also of a partition whose records are all trimmed: no offset is used twice."""
    bench.append("own", b"a", b"b")
    bench.append("own", b"x", b"y", b"z", partition=1)
    bench.log.trim("own", 1, 3)
    before = bench.log.topics()
    log = bench.reopen()
    assert log.topics() == before
    assert bench.values("own") == [b"a", b"b"]
    assert log.watermarks("own", 1) == Watermarks(start=3, stable=3, high=3)
    (appended,) = log.append([message("own", b"next", 1)], TIMEOUT_S)
    assert appended.offset == 3


def test_an_open_log_cannot_be_opened_a_second_time(bench):
    """A second process would assign the same offsets."""
    with pytest.raises(StoreInUse):
        EmbeddedLog(bench.path, clock=bench.clock)


def test_a_closed_log_wakes_its_readers_and_refuses_every_call(bench):
    """For readers, appends and writers."""
    reader = bench.log.reader("own", 0, 0)
    writer = bench.log.writer(0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(reader.wait, TIMEOUT_S)
        bench.log.close()
        assert waiting.result(TIMEOUT_S / 2)
    with pytest.raises(LogUnavailable, match="closed"):
        reader.read(1, 1)
    with pytest.raises(LogUnavailable, match="closed"):
        bench.append("own", b"late")
    writer.send([], b"late")
    with pytest.raises(LogUnavailable, match="closed"):
        writer.commit(lambda timestamp_ms, others: None)


def test_nothing_is_written_while_the_clock_of_the_host_is_stepped(tmp_path):
    """Records carry that clock: appends and transactions fail, and succeed once it is set back."""
    clock = ShiftedClock()
    log = EmbeddedLog(tmp_path / "stepped", clock=clock, disk_reserve_bytes=0)
    log.prepare([TopicSpec(name="chronos.progress", partitions=1, settings={})], create=True)
    writer = log.writer(0)
    clock.shift(-700)
    with pytest.raises(ClockDisagrees):
        log.append([message("target", b"a")], TIMEOUT_S)
    writer.send([message("target", b"b")], b"")
    with pytest.raises(ClockDisagrees):
        writer.commit(lambda timestamp_ms, others: None)
    clock.shift(700)
    writer.send([message("target", b"c")], b"")
    writer.commit(lambda timestamp_ms, others: None)
    assert log.watermarks("target", 0).stable == 1
    log.close()


# ------------------------------------------------------------------------------------------ Targets


def test_a_target_is_created_by_the_first_record_for_it(bench):
    """With the default number of partitions at that time, in a transaction or by an append."""
    writer = bench.log.writer(0)
    writer.send([message("delivered", b"a")], b"")
    writer.commit(lambda timestamp_ms, others: None)
    bench.append("appended", b"b")
    infos = bench.reopen(partitions_default=5).topics()
    assert infos["delivered"].partitions == infos["appended"].partitions == 2
    assert (bench.values("delivered"), bench.values("appended")) == ([b"a"], [b"b"])


def test_records_without_a_key_take_turns(bench):
    """Round robin over the partitions."""
    bench.log.append([("turns", None, b"%d" % n, [], -1) for n in range(10)], TIMEOUT_S)
    assert [bench.log.watermarks("turns", partition).high for partition in (0, 1)] == [5, 5]


@pytest.mark.parametrize(
    "refused",
    [
        ("not a name", None, b"", [], 0),
        ("own", None, b"", [], 2),
        ("own", None, b"", [("\ud800", b"")], 0),
    ],
)
def test_a_message_that_cannot_be_written_is_reported_as_likely_poison(bench, refused):
    """An invalid topic name, a missing partition, a header name that is not valid Unicode."""
    writer = bench.log.writer(0)
    with pytest.raises(TransactionAborted) as aborted:
        writer.send([message("own", b"sound"), refused], b"")
    assert aborted.value.poison_likely
    with pytest.raises(LogUnavailable):
        bench.log.append([message("own", b"sound"), refused], TIMEOUT_S)
    assert bench.values("own") == []
    with pytest.raises(LogMismatch):
        bench.log.watermarks("not a name", 0)


# ------------------------------------------------------------------------------------------- Space


def test_a_trim_moves_the_start_neither_back_nor_beyond_the_end(bench):
    """Whatever offset is given."""
    bench.append("own", *(b"%d" % n for n in range(10)))
    starts = []
    for offset in (4, 2, 0, 7, 100, 3):
        bench.log.trim("own", 0, offset)
        starts.append(bench.log.watermarks("own", 0).start)
    assert starts == [4, 4, 4, 7, 10, 10]
    bench.append("own", b"next")
    assert bench.values("own") == [b"next"]


def test_targets_expire_by_age_and_own_topics_only_with_a_retention(bench):
    """Younger records stay, and those of own topics without `retention.ms` stay for ever."""
    week = TopicSpec(name="rejected", partitions=1, settings={"retention.ms": str(7 * DAY_MS)})
    bench.log.prepare([week], create=True)
    bench.reopen(retention_ms=DAY_MS).prepare([week], create=True)
    for _ in range(10):
        for topic in ("target", "own", "rejected"):
            bench.append(topic, b"%d" % bench.clock.now_ms())
        bench.clock.shift(DAY_MS // 4)
    for topic, kept in (("target", 4), ("own", 10), ("rejected", 10)):
        bench.log.expire(bench.clock.now_ms())
        assert len(bench.values(topic)) in (kept, kept - 1)
    bench.log.expire(bench.clock.now_ms() + 30 * DAY_MS)
    assert [len(bench.values(topic)) for topic in ("target", "own", "rejected")] == [0, 10, 0]


def test_trimmed_space_is_freed(bench):
    """Once enough was trimmed."""
    value = b"".join(n.to_bytes(4) for n in range(250)) * 4  # 4 kB, too small for a blob file
    count = 0
    while count * len(value) < COMPACT_BYTES * 1.1:
        bench.append("own", *[count.to_bytes(4) + value] * 1_000)
        count += 1_000
    bench.append("own", b"last")
    bench.reopen()
    full_bytes = bench.log.size_bytes()
    bench.log.trim("own", 0, count)
    # RocksDB removes the files a moment after the compaction.
    deadline = time.monotonic() + TIMEOUT_S
    while bench.log.size_bytes() >= full_bytes / 2:
        check_deadline(deadline)
    assert bench.values("own") == [b"last"]
    assert bench.log.verify() < 10


def test_a_reader_amid_trimmed_records_gets_an_error(bench):
    """It is not moved without an error; a reader after the trimmed records is not affected."""
    bench.append("own", *(b"%d" % n for n in range(10)))
    behind, within = bench.log.reader("own", 0, 6), bench.log.reader("own", 0, 3)
    bench.log.trim("own", 0, 5)
    assert within.wait(0)
    with pytest.raises(LogMismatch, match="trimmed"):
        within.read(1, 1)
    assert [record.offset for record in behind.read(100, NO_LIMIT)] == [6, 7, 8, 9]
