"""Reconciliation of a run with the log: how much of each part was sent. `ledger` explains why that is exact.

It plans and sends nothing. Law: the log is read only after every producer of an earlier attempt is fenced.
"""

import json
import time
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from chronos.errors import LogUnavailable
from chronos.spark import ledger
from chronos.spark.archive.unreadable import known_ranges, parts_around, records_around
from chronos.spark.audit.coverage import archived_through
from chronos.spark.backfill.sending import Opener
from chronos.spark.codec import header_text
from chronos.spark.ledger import REPLAY_POSITION
from chronos.spark.progress import Step, Watch
from chronos.spark.requests import Attempt, BackfillRun
from chronos.spark.rows import raw
from chronos.spark.runs import UNREADABLE, ArchiveBrokers
from chronos.spark.schema import DELIVERIES, RAW, columns_of
from chronos.spark.storage import ArchiveStorage
from chronos.spark.tables import Tables

STABLE_S = 120.0
"""Most seconds to wait for the end of open transactions before the delay topic is read."""

POLL_S = 0.2
"""Seconds between two questions for the last stable offset."""


class Reconciliation:
    """Reconciles the runs of one archive with the log."""

    def __init__(
        self,
        spark: SparkSession,
        storage: ArchiveStorage,
        brokers: ArchiveBrokers,
        opener: Opener,
        tables: Tables,
        *,
        cluster: str,
        source: Mapping[str, str],
        watch: Watch,
    ) -> None:
        """`source`: options of Spark's Kafka source."""
        self._spark = spark
        self._storage = storage
        self._brokers = brokers
        self._opener = opener
        self._tables = tables
        self._cluster = cluster
        self._source = source
        self._watch = watch

    def rows_sent(self, run: BackfillRun) -> list[int]:
        """Rows of each part that were sent: 1. record a new attempt, 2. fence the earlier ones, 3. read the log."""
        before = list(run.attempts)
        number = before[-1].number + 1 if before else 1
        run.attempts.append(Attempt(number=number, began_ms=_now_ms()))
        ledger.save_run(self._storage, run)
        if not before:
            return [0] * len(run.rows)
        self._watch(Step(name="reading how much was sent before"))
        if run.request.direct:
            return ledger.sent_directly(self._storage, run)
        for attempt in before:
            if not attempt.is_fenced:
                for part in ledger.started_parts(self._storage, run.run, attempt.number):
                    transactional_id = ledger.transactional_id(self._cluster, run.run, attempt.number, part)
                    self._opener.open(transactional_id).close()
                attempt.is_fenced = True
        ledger.save_run(self._storage, run)
        return self._in_log(run)

    def _in_log(self, run: BackfillRun) -> list[int]:
        """Rows of each part in the delay topic, and in the archive where the topic was trimmed."""
        info = self._brokers.describe([run.topic])[run.topic]
        shards = [int(shard) for shard in run.begin]
        is_same = info is not None and info.id == run.topic_id  # a topic created again may have fewer partitions
        watermarks = {shard: self._stable_ends(run.topic, shard) for shard in shards} if is_same else {}
        starts = {shard: seen.start for shard, seen in watermarks.items()}
        offsets = self._tables.offsets.where("table = 'messages'")
        archived: dict[int, int] = {}
        if run.topic == run.source:
            archived = {row["shard"]: row["through"] for row in archived_through(self._tables.offsets).collect()}
        lost = f.col("gap") & ~f.col("gap_reason").eqNullSafe(UNREADABLE) & (f.col("read_ms") >= run.planned_ms)
        gaps = {row["partition"] for row in offsets.where(lost).collect()}
        ledger.check_log(run, info.id if info is not None else None, starts, archived, gaps)
        begin = {shard: max(run.begin[str(shard)], starts[shard]) for shard in shards}
        stable = {shard: watermarks[shard].stable for shard in shards}
        found = _positions(raw(self._around(run, begin, stable)))
        if any(begin[int(shard)] > first for shard, first in run.begin.items()):
            first = f.create_map(*(f.lit(each) for pair in run.begin.items() for each in (int(pair[0]), pair[1])))
            of_run = self._tables.messages.where(f.col("offset") >= first[f.col("shard")])
            found = found.unionByName(_positions(of_run))
        return ledger.rows_committed(found, run)

    def _around(self, run: BackfillRun, begin: Mapping[int, int], stable: Mapping[int, int]) -> DataFrame:
        """The committed records of the run's delay topic between these offsets, without those in ranges that the archive knows to be
        unreadable."""
        ranges = known_ranges(self._spark, self._brokers, self._storage, run.topic) if run.topic == run.source else {}
        parts = parts_around({str(shard): (begin[shard], stable[shard]) for shard in begin}, ranges)
        if parts is None:
            return self._source_of({run.topic: begin}, {run.topic: stable})
        nothing = self._source_of({run.topic: begin}, {run.topic: begin})
        return records_around(self._spark, self._brokers, run.topic, parts, self._options(), nothing)

    def records(self, partitions: Mapping[str, int]) -> DataFrame:
        """All committed records of some topics, with the columns of `rows.raw`."""
        watermarks = {
            topic: {partition: self._stable_ends(topic, partition) for partition in range(count)}
            for topic, count in partitions.items()
        }
        begin = {topic: {partition: seen.start for partition, seen in of.items()} for topic, of in watermarks.items()}
        until = {topic: {partition: seen.stable for partition, seen in of.items()} for topic, of in watermarks.items()}
        return self._read(begin, until)

    def _read(self, begin: Mapping[str, Mapping[int, int]], until: Mapping[str, Mapping[int, int]]) -> DataFrame:
        if not begin:
            return self._spark.createDataFrame([], columns_of(DELIVERIES)).select(*(name for name, *_ in RAW))
        return raw(self._source_of(begin, until))

    def _source_of(self, begin: Mapping[str, Mapping[int, int]], until: Mapping[str, Mapping[int, int]]) -> DataFrame:
        options = {
            **self._options(),
            "assign": json.dumps({topic: list(of) for topic, of in begin.items()}),
            "startingOffsets": json.dumps(begin),
            "endingOffsets": json.dumps(until),
        }
        return self._spark.read.format("kafka").options(**options).load()

    def _options(self) -> dict[str, str]:
        return {"kafka.isolation.level": "read_committed", "includeHeaders": "true", **self._source}

    def _stable_ends(self, topic: str, shard: int) -> Any:
        """The watermarks of a partition, once every transaction before its present end has ended."""
        high: int | None = None
        deadline = time.monotonic() + STABLE_S
        while True:
            watermarks = self._brokers.watermarks(topic, shard)
            high = watermarks.high if high is None else high
            if watermarks.stable >= high:
                return watermarks
            if time.monotonic() >= deadline:
                raise LogUnavailable(
                    f"a transaction is open in {topic}/{shard} at offset {watermarks.stable} for more than {STABLE_S:.0f} s;"
                    " end its producer, or wait for its timeout, and run the same command again"
                )
            time.sleep(POLL_S)


def _positions(records: DataFrame) -> DataFrame:
    return records.select(header_text(REPLAY_POSITION).alias("position")).where(f.col("position").isNotNull())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
