"""Batches that cannot be decompressed: the archive reads around those that the service has stepped
over, and names the others."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from chronos.spark.archive.unreadable import ReadablePart, known_ranges, parts_of, skipped
from chronos.spark.audit.coverage import coverage
from chronos.spark.audit.job import judge
from chronos.spark.audit.outcomes import Span
from chronos.spark.audit.summary import DAY_MS
from chronos.spark.request import BackfillRequest
from chronos.spark.tables import open_tables
from tests.integration.flow import now_ms
from tests.integration.foreign import Sent, alter_topic, produce, schedule
from tests.spark.conftest import conf, connector
from tests.spark.logs import Logs, positions_in, table
from tests.spark.outage import Outage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.harness.broker import Broker

pytestmark = pytest.mark.spark

BOMB_BYTES = 110_000_000
"""More than the client decompresses of zstd; 3.5 kB in the log."""


def bomb(broker: Broker, topic: str, target: str) -> int:
    """Write such a record to the first partition; its offset."""
    record = Sent(bytes(BOMB_BYTES), schedule(target), partition=0)
    ((_, offset),) = produce(
        broker.bootstrap, topic, [record], compression_codec="zstd", message_max_bytes=500_000_000
    )
    return offset


def in_nanoseconds(broker: Broker, topic: str) -> int:
    """Write a record with such a timestamp, as if from before the topic had the broker's; its
    offset."""
    alter_topic(
        broker,
        topic,
        message_timestamp_type="CreateTime",
        message_timestamp_after_max_ms=str(2**63 - 1),
    )
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    offsets: list[int | None] = []
    producer.produce(
        topic,
        b"v",
        partition=0,
        timestamp=time.time_ns(),
        on_delivery=lambda _, sent: offsets.append(sent.offset()),
    )
    assert producer.flush(60) == 0
    alter_topic(broker, topic, message_timestamp_type="LogAppendTime")
    assert offsets[0] is not None
    return offsets[0]


def test_a_range_that_was_stepped_over_is_a_gap_behind_which_nothing_is_missing(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """Micro-batches end before, in and behind it; the next run knows the range, and finds another
    one."""
    with Outage(spark, broker, tmp_path, 1) as outage:
        stamped = in_nanoseconds(broker, outage.delay)
        outage.deliver(40)
        ranges = [bomb(broker, outage.delay, outage.flow.target)]
        outage.deliver(40)
        outage.archive()
        ranges.append(bomb(broker, outage.delay, outage.flow.target))
        outage.deliver(10)
        outage.archive()
        # A backfill that was begun before a further one reads around it too, as soon as the archive
        # knows it.
        job = outage.backfill()
        run = job.begin(job.plan(BackfillRequest(mode="all", from_ms=1, to_ms=now_ms())))
        assert job._reconciliation.rows_sent(run) == [0] * len(run.rows)
        later = in_nanoseconds(broker, outage.delay)
        outage.deliver(10)
        outage.archive()
        assert job._reconciliation.rows_sent(run) == [0] * len(run.rows)
        # A partition that is read from its beginning on needs no record that is deleted in another.
        tables, _, _ = open_tables(spark, outage.storage)
        logs = outage.brokers, tables.progress, tables.decisions, outage.delay
        assert known_ranges(*logs, {0: 0, 1: 0}) == {
            "0": [(at, at) for at in [stamped, *ranges, later]]
        }
        assert known_ranges(*logs, {0: later}) == {"0": [(later, later)]}
        end = outage.brokers.watermarks(outage.delay, 0).stable
        outage.trim("delay")
        assert known_ranges(*logs, {0: end, 1: 0}) == {}
    unreadable = [stamped, *ranges, later]
    tables, _, delay_topic = open_tables(spark, outage.storage)
    span = Span(from_ms=now_ms() - DAY_MS, to_ms=now_ms() + DAY_MS)
    judged = judge(tables, coverage(tables.offsets), delay_topic, span)
    outcomes = [
        (row["outcome"], row["reason"], row["count"])
        for row in judged.outcomes.groupBy("outcome", "reason").count().collect()
    ]
    archive = tmp_path / "archive"
    gaps = [row for row in table(archive, "offsets").to_pylist() if row["gap"]]
    assert sorted(
        (row["topic"], row["partition"], row["from_offset"], row["until_offset"], row["gap_reason"])
        for row in gaps
    ) == [(outage.delay, 0, at, at + 1, "unreadable") for at in unreadable]
    archived = positions_in(archive, "messages", "shard")
    assert len(archived) == len(outage.flow.sent)
    assert not {(0, at) for at in unreadable} & set(archived)
    assert sorted(outcomes) == [
        ("delivered", None, len(outage.flow.sent)),
        ("rejected", "create-time", 2),
        ("rejected", "unreadable", len(ranges)),
    ]
    assert [each.gap_ms for each in judged.shards] == [None] * len(judged.shards)


@pytest.mark.campaign
def test_a_batch_that_ends_the_jvm_is_named(broker: Broker, tmp_path: Path) -> None:
    """In a target nothing steps over it: the error has its topic, partition and offset, and other
    topics stay archived."""
    logs = Logs(broker)
    logs.write(logs.progress, logs.step())
    logs.schedule(6, 1_900_000_000_000)
    offset = bomb(broker, logs.target, "-")
    command = [
        sys.executable,
        "-m",
        "chronos",
        "archive",
        "--location",
        str(tmp_path),
        "--targets",
        logs.target,
        "--all-records",
        *logs.settings(),
        *conf({**connector(), "spark.driver.memory": "480m"}),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 1, ended.stderr
    assert (
        f"archiving deliveries failed at {logs.target}/0 offsets 0 to {offset + 1}, {logs.target}/1"
        in ended.stderr
    )
    assert f"the batch at offset {offset} of {logs.target}/0 takes too much memory" in ended.stderr
    assert len(positions_in(tmp_path, "progress", "shard")) == 1


def test_offsets_are_read_around_ranges() -> None:
    """Also where a range is cut by the ends, or lies behind them."""
    ranges = [(5, 7), (10, 10)]
    assert parts_of(0, 20, ranges) == [
        ReadablePart(0, 5, True),
        ReadablePart(8, 10, True),
        ReadablePart(11, 20, False),
    ]
    assert parts_of(6, 10, ranges) == [ReadablePart(8, 10, True)]
    assert parts_of(0, 3, ranges) == [ReadablePart(0, 3, True)]
    assert parts_of(5, 7, ranges) == []
    assert parts_of(11, 20, ranges) == [ReadablePart(11, 20, False)]
    assert skipped(6, 20, ranges) == [(6, 8), (10, 11)]
    assert skipped(0, 5, ranges) == []
