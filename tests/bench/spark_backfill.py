"""Throughput of `chronos backfill` through the delay topic, with a check that a node delivers each
replay once."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

from chronos.adapters.kafka.log import KafkaLog
from tests.bench.figures import Bench
from tests.harness.service import Service
from tests.integration.flow import read_committed
from tests.spark.lost import GAP_MS, START_MS, expected, write_lost

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from chronos.spark.ledger import BackfillReport

MESSAGES = 1_000_000
WARM_UP = 20_000
SHARDS = 4
BACKFILL_PER_S = 25_000
DRAIN_S = 300.0


def backfill_figure(bench: Bench, messages: int = MESSAGES) -> None:
    """Add the figures of throughput, planning included, and of the deliveries in the target."""
    from chronos.spark.session import open_session
    from tests.spark.conftest import connector

    spark = open_session(
        "bench", "local[2]", {**connector(), "spark.local.dir": str(bench.directory)}
    )
    try:
        for count in (*([WARM_UP] if messages > WARM_UP else []), messages):
            cluster = f"bench-{uuid.uuid4().hex[:8]}"
            seconds, report = _replay(bench, spark, cluster, count)
            bench.say(f"     {count:,} messages in {seconds:.1f} s, {report.attempts} attempt")
    finally:
        spark.stop()
    rate = messages / seconds
    bench.add(
        f"backfill of {messages:,} messages through the delay topic",
        f"{rate:,.0f}/s",
        f">= {BACKFILL_PER_S:,}/s",
        rate >= BACKFILL_PER_S,
        seconds=seconds,
    )
    lost, duplicated = _delivered(bench, cluster, messages)
    bench.add(
        "of these, at the target",
        f"{lost:,} lost, {duplicated:,} duplicated",
        "0 lost, 0 duplicated",
        lost == duplicated == 0,
        lost=lost,
        duplicated=duplicated,
    )


def _replay(
    bench: Bench, spark: SparkSession, cluster: str, messages: int
) -> tuple[float, BackfillReport]:
    """Seconds from the request to the last row of the ledger, and the report."""
    from chronos.spark.request import BackfillRequest
    from chronos.spark.storage import ArchiveStorage
    from tests.spark.backfills import backfill_of

    bench.broker.create_topic(
        f"{cluster}.delay", partitions=SHARDS, config={"message.timestamp.type": "LogAppendTime"}
    )
    bench.broker.create_topic(f"{cluster}.target", partitions=SHARDS)
    folder = bench.directory / cluster
    write_lost(
        folder,
        cluster=cluster,
        delay=f"{cluster}.delay",
        target=f"{cluster}.target",
        messages=messages,
        shards=SHARDS,
    )
    storage = ArchiveStorage(str(folder))
    brokers = KafkaLog(
        bootstrap_servers=bench.broker.bootstrap,
        properties={},
        progress_topic=f"{cluster}.progress",
        transaction_timeout_s=10,
    )
    try:
        job = backfill_of(spark, storage, brokers, bench.broker.bootstrap)
        began = time.monotonic()
        planned = job.plan(
            BackfillRequest(mode="missing", from_ms=START_MS, to_ms=START_MS + messages * GAP_MS)
        )
        assert planned.messages == messages
        report = job.send(job.begin(planned))
        return time.monotonic() - began, report
    finally:
        brokers.close()


def _delivered(bench: Bench, cluster: str, messages: int) -> tuple[int, int]:
    """Number of messages that a node does not deliver, and number delivered more than once."""
    topics = {
        name: f"{cluster}.{name}" for name in ("delay", "progress", "rejected", "dead_letter")
    }
    settings: dict[str, object] = {"shards": SHARDS, "cluster": cluster} | {
        f"topics.{name}": topic for name, topic in topics.items()
    }
    last: dict[int, int] = {}
    for message in read_committed(bench.broker.bootstrap, topics["delay"]):
        last[message.partition() or 0] = (message.offset() or 0) + 1
    node = Service(
        bench.directory / f"{cluster}-node", bootstrap=bench.broker.bootstrap, settings=settings
    )
    with node.start() as service:

        def is_done() -> bool:
            shards = service.shards()
            has_read = all(shard["pull_offset"] >= last[shard["shard"]] for shard in shards)
            return has_read and not sum(shard["pending"] for shard in shards)

        service.wait_until(is_done, "deliver", timeout_s=DRAIN_S, every_s=0.5)
    times: dict[bytes, int] = {}
    for message in read_committed(bench.broker.bootstrap, f"{cluster}.target"):
        value = message.value() or b""
        times[value] = times.get(value, 0) + 1
    target = f"{cluster}.target"
    lost = sum(expected(number, target, SHARDS)[1] not in times for number in range(messages))
    return lost, sum(count > 1 for count in times.values())
