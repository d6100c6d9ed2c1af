"""The archive: Chronos's topics and chosen targets, incrementally and exactly once, to Parquet.

One stream a table, with Spark's structured streaming. A run is a fresh checkpoint that begins at what is committed:
what an earlier run left half done is removed first, so every record is in the archive once, whatever was killed.
"""

import json
from collections.abc import Callable
from fnmatch import fnmatchcase

from msgspec import Struct
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from chronos.errors import ArchiveFailed, ArchiveUnusable
from chronos.spark import schema
from chronos.spark.archive.compact import finish
from chronos.spark.rows import decisions_of, deliveries_of, explained, in_hours, messages_of, steps_of
from chronos.spark.runs import (
    RUNS,
    RUNS_KEPT,
    Begun,
    Brokers,
    OffsetRow,
    batch_ends,
    batch_folder,
    begin_run,
    check_format,
    committed_batch,
    offset_row,
    offsets_file,
    positions,
    settle,
)
from chronos.spark.schema import Table
from chronos.spark.storage import Place

ARCHIVE_GROUP = "{cluster}-archive"
"""The consumer group whose place says what is archived: behind it the logs may be trimmed."""


CAUSE_CHARACTERS = 2_000
"""As much of what Spark says of a failure as an error repeats."""


class Stream(Struct, frozen=True, kw_only=True):
    """One table's topics, and what is made of their records."""

    table: str
    topics: list[str]
    outputs: list[tuple[Table, Callable[[DataFrame], DataFrame]]]


class Done(Struct, kw_only=True):
    """What a run did with one table."""

    table: str
    records: int = 0
    batches: int = 0
    gaps: int = 0


class Plan(Struct, frozen=True, kw_only=True):
    """What to archive, and how."""

    cluster: str
    bootstrap_servers: str
    delay: str
    progress: str
    rejected: str
    dead_letter: str
    targets: list[str]
    """Names or shell-style patterns of target topics."""
    all_records: bool = False
    """Also records of target topics that Chronos did not deliver."""
    batch_records: int = 2_000_000
    """Most records of one micro-batch."""
    reader: dict[str, str] = {}
    """Further options of Spark's Kafka source."""


Watermarks = dict[str, dict[str, int]]
"""Offsets by topic and partition."""

Watch = Callable[[str, int, int], None]
"""Called after each batch with table, offsets archived in this run, offsets there were to archive at its beginning."""


def archive(spark: SparkSession, brokers: Brokers, place: Place, plan: Plan, watch: Watch) -> list[Done]:
    """Everything there is now, to its end. ArchiveFailed says which topic, partition and offsets could not be read;
    ArchiveUnusable, that this is no place for it.

    1. What a killed run or compaction left half done is settled.
    2. The run notes where it begins, and what was gone before.
    3. Each stream is read to its end. One that fails does not keep the others from going on.
    4. How far delay and progress topic are archived is committed, for whoever trims them.
    """
    with place.alone():
        _claim(place, plan)
        finish(place)
        before = settle(place)  # 1
        streams = _streams(brokers, plan)
        begun = begin_run(place, brokers, [(stream.table, stream.topics) for stream in streams], before)  # 2
        done, failed = [], [f"{topic} was left out: {why}" for topic, why in begun.left_out.items()]
        for stream in streams:  # 3
            try:
                done.append(_Reading(spark, brokers, place, plan, begun, stream, watch).read())
            except ArchiveFailed as error:
                failed.append(str(error))
        reached = positions(place, begun.name, begun.run).topics
        own = [topic for topic in (plan.delay, plan.progress) if topic in reached]
        archived = {(topic, int(number)): read.position for topic in own
                    for number, read in reached[topic].partitions.items()}  # fmt: skip
        if archived:
            brokers.commit_offsets(ARCHIVE_GROUP.format(cluster=plan.cluster), archived)  # 4
        for old in place.folders(RUNS)[:-RUNS_KEPT]:
            place.remove(f"{RUNS}/{old}")
        if failed:
            raise ArchiveFailed("\n".join(failed))
        return done


def _claim(place: Place, plan: Plan) -> None:
    own = {"delay": plan.delay, "progress": plan.progress, "rejected": plan.rejected, "dead_letter": plan.dead_letter}
    said = {"format": schema.FORMAT, "cluster": plan.cluster, "topics": own}
    found = check_format(place)
    if found is None:
        place.write_json("archive.json", said)
    elif found != said:
        raise ArchiveUnusable(f"{place.uri} is the archive of {found}, not of {said}: choose another location")


def _streams(brokers: Brokers, plan: Plan) -> list[Stream]:
    """Progress first: what it says is settled has then been delivered before the targets are read."""
    own = [plan.delay, plan.progress, plan.rejected, plan.dead_letter]
    there = set(brokers.names())
    targets = sorted(
        name for name in there if name not in own and any(fnmatchcase(name, wanted) for wanted in plan.targets)
    )
    missing = [name for name in own if name not in there]
    if plan.delay in missing or plan.progress in missing:
        raise ArchiveFailed(
            f"the brokers have no {' and no '.join(missing)}: is this the right cluster? See log.kafka and topics.*"
        )
    shards = brokers.describe([plan.delay])[plan.delay].partitions
    streams = [
        Stream(table="progress", topics=[plan.progress],
               outputs=[(schema.PROGRESS, steps_of), (schema.DECISIONS, decisions_of)]),
        Stream(table="deliveries", topics=targets,
               outputs=[(schema.DELIVERIES, deliveries_of(all_records=plan.all_records))]),
        Stream(table="rejected", topics=[plan.rejected], outputs=[(schema.REJECTED, explained)]),
        Stream(table="dead_letters", topics=[plan.dead_letter], outputs=[(schema.DEAD_LETTERS, explained)]),
        Stream(table="messages", topics=[plan.delay], outputs=[(schema.MESSAGES, messages_of(shards))]),
    ]  # fmt: skip
    found = [Stream(table=each.table, topics=[topic for topic in each.topics if topic in there], outputs=each.outputs)
             for each in streams]  # fmt: skip
    return [stream for stream in found if stream.topics]


class _Reading:
    """One stream of one run."""

    def __init__(
        self,
        spark: SparkSession,
        brokers: Brokers,
        place: Place,
        plan: Plan,
        begun: Begun,
        stream: Stream,
        watch: Watch,
    ) -> None:
        self._spark = spark
        self._brokers = brokers
        self._place = place
        self._plan = plan
        self._name = begun.name
        self._run = run = begun.run
        self._stream = stream
        self._watch = watch
        self._begin = {
            topic: {number: read.begin for number, read in run.topics[topic].partitions.items()}
            for topic in stream.topics
            if topic in begun.read
        }
        self._waiting = sum(
            max(0, read.stable_end - read.begin)
            for topic in self._begin
            for read in run.topics[topic].partitions.values()
        )
        self._passed = 0
        self._done = Done(table=stream.table)
        self._done.gaps = sum(
            read.gap_reason is not None for topic in self._begin for read in run.topics[topic].partitions.values()
        )

    def read(self) -> Done:
        """Up to what is there now."""
        if not self._waiting:
            return self._done
        options = {
            "kafka.bootstrap.servers": self._plan.bootstrap_servers,
            "kafka.isolation.level": "read_committed",
            "assign": json.dumps({topic: [int(number) for number in begin] for topic, begin in self._begin.items()}),
            "startingOffsets": json.dumps(self._begin),
            "includeHeaders": "true",
            "failOnDataLoss": "false",  # what is missing is noted as a gap: when the run begins, and after each batch
            "maxOffsetsPerTrigger": str(self._plan.batch_records),
            "minPartitions": str(self._spark.sparkContext.defaultParallelism),
            **self._plan.reader,
        }
        records = self._spark.readStream.format("kafka").options(**options).load()
        query = (
            records.writeStream.trigger(availableNow=True)
            .option("checkpointLocation", self._place.path(RUNS, self._name, self._stream.table))
            .foreachBatch(self._write)
            .start()
        )
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            raise self._failed(error) from error
        finally:
            query.stop()
        return self._done

    def _write(self, records: DataFrame, number: int) -> None:
        """One micro-batch to its folders. Whoever writes it again writes it over."""
        stream, place = self._stream.table, self._place
        counts = []
        for table, made in self._stream.outputs:
            folder = batch_folder(self._name, number, stream, table.name)
            written = Observation()
            rows = in_hours(made(records), table).observe(written, f.count(f.lit(1)).alias("rows"))
            writer = rows.write.mode("overwrite").options(**schema.WRITING).partitionBy("due_date", "due_hour")
            writer.parquet(place.path(table.name, folder))
            counts.append(written.get["rows"])
            place.hold(f"{table.name}/{folder}", counts[-1])
        begin, end = self._range(number)
        folder = batch_folder(self._name, number, stream, schema.OFFSETS.name)
        rows_of = self._offset_rows(begin, end)
        place.write(f"{schema.OFFSETS.name}/{folder}/offsets.parquet", offsets_file(rows_of))
        self._done.gaps += sum(gap is not None for *_, gap in rows_of)
        self._done.batches += 1
        self._done.records += counts[0]
        self._passed += sum(
            until - begin[topic].get(part, until) for topic, ends in end.items() for part, until in ends.items()
        )
        self._watch(stream, self._passed, self._waiting)

    def _offset_rows(self, begin: Watermarks, end: Watermarks) -> list[OffsetRow]:
        """Of a batch that was read just now. What went from the logs meanwhile was perhaps not read: it is a gap."""
        there = self._brokers.describe(list(end))
        rows = []
        for topic, ends in end.items():
            now = there[topic]
            same = now is not None and now.id == self._run.topics[topic].id
            for part, until in ends.items():
                since, gap = begin[topic].get(part, until), None if same else "recreated"
                if same and since < until and (start := self._brokers.watermarks(topic, int(part)).start) > since:
                    since, gap = min(start, until), "trimmed"
                rows.append(offset_row(self._run, topic, part, since, until, gap=gap))
        return rows

    def _range(self, number: int) -> tuple[Watermarks, Watermarks]:
        begin = batch_ends(self._place, self._name, self._stream.table, number - 1) if number else {}
        return begin or self._begin, batch_ends(self._place, self._name, self._stream.table, number)

    def _failed(self, error: StreamingQueryException) -> ArchiveFailed:
        number = committed_batch(self._place, self._name, self._stream.table) + 1
        begin, end = self._range(number)
        ranges = ", ".join(
            f"{topic}/{part} offsets {begin.get(topic, {}).get(part, 0)} to {until}"
            for topic, ends in (end or self._begin).items()
            for part, until in ends.items()
            if not end or until > begin.get(topic, {}).get(part, 0)
        )
        return ArchiveFailed(
            f"archiving {self._stream.table} failed at {ranges}. What was archived before stays; the next run begins"
            f" there. Spark said: {_cause(error)}"
        )


def _cause(error: StreamingQueryException) -> str:
    """What Spark says; of a task that failed in Python the last words, without the way they took."""
    text = str(error).split("\nJVM stacktrace")[0].strip()
    _, raised, trace = text.rpartition("Traceback (most recent call last):\n")
    said = [line for line in trace.splitlines() if line[:1].isalpha()] if raised else []
    return (said[0] if said else text)[:CAUSE_CHARACTERS]
