"""Throughput of `chronos archive`, and of plain Spark that copies the same records from Kafka to
Delta tables with the same columns and partitions."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from chronos.adapters.kafka.log import KafkaLog
from chronos.core.shard.progress import NO_OUTCOMES, Progress, pack_progress
from tests.bench import load
from tests.bench.figures import Bench

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from chronos.spark.archive.job import ArchivePlan

RECORDS = 2_000_000
"""Number of messages; there are as many deliveries."""

PARTITIONS = 4
DUE_MS = 1_900_000_000_000
SPREAD_MS = 6 * 3_600_000
"""Ms over which the due times are spread: six hours."""

SMALLER = 4
"""Factor by which a second load is smaller: two sizes show how the time grows."""

WARM_UP = 20_000
ROUNDS = 3
ARCHIVE_PER_S = 40_000
SHARE_OF_PLAIN = 0.6


def archive_figure(bench: Bench, records: int = RECORDS) -> None:
    """Add the figures of throughput, and the ratio to plain Spark, which alternates with it in one
    session."""
    from chronos.spark.session import open_session
    from tests.spark.conftest import connector

    # A small load is to show that the benchmark runs: it needs no warm session and no median.
    is_small = records <= WARM_UP
    loads = [] if is_small else [(_fill(bench, WARM_UP), 1)]
    loads += [
        (_fill(bench, records // SMALLER), 1),
        (_fill(bench, records), 1 if is_small else ROUNDS),
    ]
    spark = open_session(
        "bench", "local[2]", {**connector(), "spark.local.dir": str(bench.directory)}
    )
    archived: list[list[tuple[float, float]]] = []
    plain: list[float] = []
    try:
        for plan, rounds in loads:
            archived.append([])
            plain.clear()
            for _ in range(rounds):
                plain.append(_copy(bench, spark, plan))
                rate, size = _archive(bench, spark, plan)
                archived[-1].append((rate, size))
                bench.say(
                    f"     archive {rate:,.0f}/s, {size:.0f} bytes a record; plain Spark "
                    f"{plain[-1]:,.0f}/s"
                )
    finally:
        spark.stop()
    (smaller_rate, smaller_size), *_ = archived[-2]
    rates = [rate for rate, _ in archived[-1]]
    rate, size, reference = statistics.median(rates), archived[-1][0][1], statistics.median(plain)
    bench.add(
        f"archive of {records // SMALLER:,} messages and their deliveries",
        f"{smaller_rate:,.0f}/s, {smaller_size:.0f} bytes a record",
        f">= {ARCHIVE_PER_S:,}/s",
        smaller_rate >= ARCHIVE_PER_S,
    )
    bench.add(
        f"archive of {records:,} messages and their deliveries",
        f"{rate:,.0f}/s, {size:.0f} bytes a record",
        f">= {ARCHIVE_PER_S:,}/s",
        rate >= ARCHIVE_PER_S,
        rates=rates,
    )
    bench.add(
        "the same beside plain Spark that writes the same columns",
        f"{rate / reference:.2f} of {reference:,.0f}/s",
        f">= {SHARE_OF_PLAIN}",
        rate >= SHARE_OF_PLAIN * reference,
        rates=plain,
    )


def _fill(bench: Bench, records: int) -> ArchivePlan:
    """Topics with `records` messages and as many deliveries; the progress topic holds one
    record."""
    from chronos.spark.archive.job import ArchivePlan

    cluster = bench.name("archived")
    own = {name: f"{cluster}.{name}" for name in ("delay", "progress", "rejected", "dead_letter")}
    target = f"{cluster}.target"
    servers = bench.broker.bootstrap
    for topic in (*own.values(), target):
        bench.broker.create_topic(topic, partitions=PARTITIONS)
    bench.say(f"     writing {2 * records:,} records")
    load.fill(
        servers,
        own["delay"],
        target,
        records,
        DUE_MS,
        keyed=False,
        partitions=PARTITIONS,
        spread_ms=SPREAD_MS,
    )
    producer = Producer(
        {**load.PRODUCER, "bootstrap.servers": servers, "linger.ms": 20, "batch.size": 1_000_000}
    )
    for at in range(records):
        partition, offset, due_ms = (
            at % PARTITIONS,
            at // PARTITIONS,
            DUE_MS + at * SPREAD_MS // records,
        )
        headers = [
            ("traceparent", load.TRACE),
            ("chronos-id", b"%d-%d-%d" % (partition, due_ms, offset)),
            ("chronos-due-at", b"%d" % due_ms),
            ("chronos-source", f"{own['delay']}/{partition}/{offset}".encode()),
        ]
        while True:
            try:
                producer.produce(target, load.payload(at), None, partition, headers=headers)  # type: ignore[arg-type]
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush(60)
    step = Progress(
        role_epoch=1,
        log_epoch=1,
        cluster=cluster,
        node="n",
        instance="i",
        shards=PARTITIONS,
        cursor_due_ms=0,
        cursor_offset=0,
        pull_offset=0,
        counts=(0, *NO_OUTCOMES),
    )
    producer.produce(own["progress"], pack_progress(step), partition=0)
    if producer.flush(60) > 0:
        raise RuntimeError("the load was not written")
    return ArchivePlan(
        cluster=cluster,
        bootstrap_servers=servers,
        delay=own["delay"],
        progress=own["progress"],
        rejected=own["rejected"],
        dead_letter=own["dead_letter"],
        targets=[target],
    )


def _archive(bench: Bench, spark: SparkSession, plan: ArchivePlan) -> tuple[float, float]:
    """Records a second of a whole run, and bytes of Parquet a record."""
    from chronos.spark.archive.job import archive
    from chronos.spark.storage import ArchiveStorage

    brokers = KafkaLog(
        bootstrap_servers=plan.bootstrap_servers,
        properties={},
        progress_topic=plan.progress,
        transaction_timeout_s=10,
    )
    try:
        folder = bench.directory / bench.name("archive")
        began = time.monotonic()
        records = sum(
            each.records
            for each in archive(spark, brokers, ArchiveStorage(str(folder)), plan, lambda *_: None)
        )
        seconds = time.monotonic() - began
        return records / seconds, sum(
            file.stat().st_size for file in folder.rglob("*.parquet")
        ) / records
    finally:
        brokers.close()


def _copy(bench: Bench, spark: SparkSession, plan: ArchivePlan) -> float:
    """Records a second of Spark's own source and sink, with the options that the archive reads
    with: a stream for each table."""
    from chronos.spark import schema
    from chronos.spark.codec import stored, with_receipt

    folder = bench.directory / bench.name("copy")
    assert plan.targets is not None
    copied = 0
    began = time.monotonic()
    for table, topic, made in (
        (schema.DELIVERIES, plan.targets[0], with_receipt),
        (schema.MESSAGES, plan.delay, _messages),
    ):
        options = {
            "kafka.bootstrap.servers": plan.bootstrap_servers,
            "kafka.isolation.level": "read_committed",
            "subscribe": topic,
            "startingOffsets": "earliest",
            "includeHeaders": "true",
            "maxOffsetsPerTrigger": str(plan.batch_records),
            "minPartitions": str(spark.sparkContext.defaultParallelism),
        }
        records = spark.readStream.format("kafka").options(**options).load()
        assert table.partition is not None
        query = (
            stored(made(records), table)
            .writeStream.trigger(availableNow=True)
            .format("delta")
            .partitionBy(table.partition)
            .option("checkpointLocation", str(folder / f"_{table.name}"))
            .start(str(folder / table.name))
        )
        query.awaitTermination()
        query.stop()
    seconds = time.monotonic() - began
    for table in (schema.DELIVERIES, schema.MESSAGES):
        copied += spark.read.format("delta").load(str(folder / table.name)).count()
    return copied / seconds


def _messages(records: DataFrame) -> DataFrame:
    """The columns of `messages` as far as the headers of these records say them: each schedules a
    message at a time, and has no key."""
    from pyspark.sql import functions as f

    from chronos.core.message import DELIVER_AT, TARGET_TOPIC
    from chronos.spark import schema
    from chronos.spark.codec import header_number, header_text, raw

    own = raw(records).withColumnRenamed("partition", "shard")
    due_ms = header_number(DELIVER_AT)
    made = own.withColumns(
        {
            "verb": f.lit("schedule"),
            "id": f.concat_ws("-", "shard", due_ms, "offset").cast("binary"),
            "target": header_text(TARGET_TOPIC),
            "requested_due_ms": due_ms,
            "due_ms": due_ms,
        }
    )
    kinds = schema.columns_of(schema.MESSAGES)
    missing = [field for field in kinds if field.name not in made.columns]
    none = {field.name: f.lit(None).cast(field.dataType) for field in missing}
    return made.withColumns(none).select(*kinds.names)
