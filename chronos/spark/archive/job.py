"""A run of the archive: Chronos's topics and the chosen targets to Parquet, incrementally.

One stream of Spark's structured streaming for each table. A run has a checkpoint of its own, which begins where the last
one was committed; the uncommitted batches of an earlier run are removed first. Law: every record is in the archive once,
after a kill at any point too. What the records mean is `audit/`; their columns are `rows` and `codec`.
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
from chronos.spark.progress import Step, Watch
from chronos.spark.rows import decisions_of, deliveries_of, in_hours, messages_of, steps_of, with_reason
from chronos.spark.runs import (
    RUNS,
    RUNS_KEPT,
    ArchiveBrokers,
    OffsetRow,
    StartedRun,
    batch_ends,
    batch_folder,
    begin_run,
    check_format,
    committed_batch,
    offset_row,
    offsets_file,
    positions,
    remove_uncommitted,
)
from chronos.spark.schema import Table
from chronos.spark.storage import ArchiveStorage

ARCHIVE_GROUP = "{cluster}-archive"
"""Consumer group whose offsets are those archived: below them the logs may be trimmed."""

CAUSE_CHARACTERS = 2_000
"""Most characters of Spark's message that an error repeats."""


class Stream(Struct, frozen=True, kw_only=True):
    """The topics that one table is read from, and the tables their records become."""

    table: str
    topics: list[str]
    outputs: list[tuple[Table, Callable[[DataFrame], DataFrame]]]


class TableResult(Struct, kw_only=True):
    """Counts of a run for one table."""

    table: str
    records: int = 0
    batches: int = 0
    gaps: int = 0


class ArchivePlan(Struct, frozen=True, kw_only=True):
    """The topics to archive, and how to read them."""

    cluster: str
    bootstrap_servers: str
    delay: str
    progress: str
    rejected: str
    dead_letter: str
    targets: list[str]
    """Names or shell-style patterns of target topics."""
    all_records: bool = False
    """True to archive records of target topics that Chronos did not deliver too."""
    batch_records: int = 2_000_000
    """Most records of one micro-batch."""
    reader: dict[str, str] = {}
    """Further options of Spark's Kafka source."""


Watermarks = dict[str, dict[str, int]]
"""Offsets by topic and partition."""


def archive(
    spark: SparkSession, brokers: ArchiveBrokers, storage: ArchiveStorage, plan: ArchivePlan, watch: Watch
) -> list[TableResult]:
    """Archive every record up to the present end of the topics.

    ArchiveFailed names the topic, partition and offsets that could not be read; ArchiveUnusable means that the location
    cannot hold this archive.

    1. What a killed run or compaction left unfinished is completed or removed.
    2. The run records the offsets it begins at, and the gaps known by then.
    3. Each stream is read to its end. A stream that fails does not stop the others.
    4. The positions in the delay and progress topics are committed: the service trims the topics below them.
    """
    with storage.locked():
        _claim(storage, plan)
        finish(storage)
        before = remove_uncommitted(storage)  # 1
        streams = _streams(brokers, plan)
        started = begin_run(storage, brokers, [(stream.table, stream.topics) for stream in streams], before)  # 2
        results, failures = [], [f"{topic} was left out: {why}" for topic, why in started.left_out.items()]
        for stream in streams:  # 3
            try:
                results.append(_StreamRun(spark, brokers, storage, plan, started, stream, watch).read())
            except ArchiveFailed as error:
                failures.append(str(error))
        reached = positions(storage, started.name, started.run).topics
        own = [topic for topic in (plan.delay, plan.progress) if topic in reached]
        archived = {(topic, int(number)): read.position for topic in own
                    for number, read in reached[topic].partitions.items()}  # fmt: skip
        if archived:
            brokers.commit_offsets(ARCHIVE_GROUP.format(cluster=plan.cluster), archived)  # 4
        for old in storage.folders(RUNS)[:-RUNS_KEPT]:
            storage.remove(f"{RUNS}/{old}")
        if failures:
            raise ArchiveFailed("\n".join(failures))
        return results


def _claim(storage: ArchiveStorage, plan: ArchivePlan) -> None:
    """Write `archive.json`, or check that it names the same cluster and topics."""
    own = {"delay": plan.delay, "progress": plan.progress, "rejected": plan.rejected, "dead_letter": plan.dead_letter}
    claim = {"format": schema.FORMAT, "cluster": plan.cluster, "topics": own}
    found = check_format(storage)
    if found is None:
        storage.write_json("archive.json", claim)
    elif found != claim:
        raise ArchiveUnusable(f"{storage.uri} is the archive of {found}, not of {claim}: choose another location")


def _streams(brokers: ArchiveBrokers, plan: ArchivePlan) -> list[Stream]:
    """The streams in the order of reading: progress first, so that what it proves settled is in the targets when they are read."""
    own = [plan.delay, plan.progress, plan.rejected, plan.dead_letter]
    existing = set(brokers.names())
    targets = sorted(
        name for name in existing if name not in own and any(fnmatchcase(name, wanted) for wanted in plan.targets)
    )
    missing = [name for name in own if name not in existing]
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
        Stream(table="rejected", topics=[plan.rejected], outputs=[(schema.REJECTED, with_reason)]),
        Stream(table="dead_letters", topics=[plan.dead_letter], outputs=[(schema.DEAD_LETTERS, with_reason)]),
        Stream(table="messages", topics=[plan.delay], outputs=[(schema.MESSAGES, messages_of(shards))]),
    ]  # fmt: skip
    found = [Stream(table=each.table, topics=[topic for topic in each.topics if topic in existing], outputs=each.outputs)
             for each in streams]  # fmt: skip
    return [stream for stream in found if stream.topics]


class _StreamRun:
    """The reading of one stream in one run."""

    def __init__(
        self,
        spark: SparkSession,
        brokers: ArchiveBrokers,
        storage: ArchiveStorage,
        plan: ArchivePlan,
        started: StartedRun,
        stream: Stream,
        watch: Watch,
    ) -> None:
        self._spark = spark
        self._brokers = brokers
        self._storage = storage
        self._plan = plan
        self._name = started.name
        self._run = run = started.run
        self._stream = stream
        self._watch = watch
        self._begin = {
            topic: {number: read.begin for number, read in run.topics[topic].partitions.items()}
            for topic in stream.topics
            if topic in started.read
        }
        self._total = sum(
            max(0, read.stable_end - read.begin)
            for topic in self._begin
            for read in run.topics[topic].partitions.values()
        )
        self._archived = 0
        self._result = TableResult(table=stream.table)
        self._result.gaps = sum(
            read.gap_reason is not None for topic in self._begin for read in run.topics[topic].partitions.values()
        )

    def read(self) -> TableResult:
        """Archive the stream up to the end its topics had when the run began."""
        if not self._total:
            return self._result
        self._report()
        options = {
            "kafka.bootstrap.servers": self._plan.bootstrap_servers,
            "kafka.isolation.level": "read_committed",
            "assign": json.dumps({topic: [int(number) for number in begin] for topic, begin in self._begin.items()}),
            "startingOffsets": json.dumps(self._begin),
            "includeHeaders": "true",
            "failOnDataLoss": "false",  # lost records are recorded as gaps, when the run begins and after each batch
            "maxOffsetsPerTrigger": str(self._plan.batch_records),
            "minPartitions": str(self._spark.sparkContext.defaultParallelism),
            **self._plan.reader,
        }
        records = self._spark.readStream.format("kafka").options(**options).load()
        query = (
            records.writeStream.trigger(availableNow=True)
            .option("checkpointLocation", self._storage.path(RUNS, self._name, self._stream.table))
            .foreachBatch(self._write)
            .start()
        )
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            raise self._failed(error) from error
        finally:
            query.stop()
        return self._result

    def _write(self, records: DataFrame, number: int) -> None:
        """Write one micro-batch to its folders; a batch that Spark repeats overwrites them."""
        stream, storage = self._stream.table, self._storage
        counts = []
        for table, made in self._stream.outputs:
            folder = batch_folder(self._name, number, stream, table.name)
            written = Observation()
            rows = in_hours(made(records), table).observe(written, f.count(f.lit(1)).alias("rows"))
            writer = rows.write.mode("overwrite").options(**schema.WRITING).partitionBy("due_date", "due_hour")
            writer.parquet(storage.path(table.name, folder))
            counts.append(written.get["rows"])
            storage.check_rows(f"{table.name}/{folder}", counts[-1])
        begin, end = self._range(number)
        folder = batch_folder(self._name, number, stream, schema.OFFSETS.name)
        rows_of = self._offset_rows(begin, end)
        storage.write(f"{schema.OFFSETS.name}/{folder}/offsets.parquet", offsets_file(rows_of))
        self._result.gaps += sum(gap is not None for *_, gap in rows_of)
        self._result.batches += 1
        self._result.records += counts[0]
        self._archived += sum(
            until - begin[topic].get(part, until) for topic, ends in end.items() for part, until in ends.items()
        )
        self._report()

    def _report(self) -> None:
        name = f"archiving {self._stream.table}"
        self._watch(Step(name=name, done=self._archived, total=self._total, unit="offsets"))

    def _offset_rows(self, begin: Watermarks, end: Watermarks) -> list[OffsetRow]:
        """Rows of `offsets` for a batch just read. Offsets trimmed from the log meanwhile may not have been read: a gap."""
        infos = self._brokers.describe(list(end))
        rows = []
        for topic, ends in end.items():
            now = infos[topic]
            same = now is not None and now.id == self._run.topics[topic].id
            for part, until in ends.items():
                since, gap = begin[topic].get(part, until), None if same else "recreated"
                if same and since < until and (start := self._brokers.watermarks(topic, int(part)).start) > since:
                    since, gap = min(start, until), "trimmed"
                rows.append(offset_row(self._run, topic, part, since, until, gap=gap))
        return rows

    def _range(self, number: int) -> tuple[Watermarks, Watermarks]:
        begin = batch_ends(self._storage, self._name, self._stream.table, number - 1) if number else {}
        return begin or self._begin, batch_ends(self._storage, self._name, self._stream.table, number)

    def _failed(self, error: StreamingQueryException) -> ArchiveFailed:
        number = committed_batch(self._storage, self._name, self._stream.table) + 1
        begin, end = self._range(number)
        ranges = ", ".join(
            f"{topic}/{part} offsets {begin.get(topic, {}).get(part, 0)} to {until}"
            for topic, ends in (end or self._begin).items()
            for part, until in ends.items()
            if not end or until > begin.get(topic, {}).get(part, 0)
        )
        return ArchiveFailed(
            f"archiving {self._stream.table} failed at {ranges}. Records archived before stay; the next run begins"
            f" there. Spark's message: {_cause(error)}"
        )


def _cause(error: StreamingQueryException) -> str:
    """Spark's message; for a task that failed in Python, the exception without the traceback."""
    text = str(error).split("\nJVM stacktrace")[0].strip()
    _, raised, trace = text.rpartition("Traceback (most recent call last):\n")
    last = [line for line in trace.splitlines() if line[:1].isalpha()] if raised else []
    return (last[0] if last else text)[:CAUSE_CHARACTERS]
