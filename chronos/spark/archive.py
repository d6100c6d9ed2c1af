"""The archive: Chronos's topics and chosen targets, incrementally and exactly once, to Parquet.

One stream a table, with Spark's structured streaming. A run is a fresh checkpoint that begins at what is committed:
what an earlier run left half done is removed first, so every record is in the archive once, whatever was killed.
"""

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
import structlog
from msgspec import Struct, to_builtins
from msgspec import convert as from_builtins
from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from chronos.core.message import ATTEMPT, DETAIL, DUE_AT, ID, OCCURRENCE, REASON
from chronos.errors import ArchiveFailed
from chronos.spark import schema
from chronos.spark.codec import (
    header,
    header_number,
    header_text,
    parse_messages,
    source_part,
    unpack_decisions,
    unpack_steps,
)
from chronos.spark.place import Place
from chronos.spark.schema import Table

log = structlog.get_logger("chronos.archive")

RUNS = "_runs"
RUNS_KEPT = 3
"""Runs whose checkpoints stay, for whoever looks into an incident; only the last one is needed."""

ARCHIVE_GROUP = "{cluster}-archive"
"""The consumer group whose place says what is archived: behind it the logs may be trimmed."""


class TopicSeen(Struct, frozen=True, kw_only=True):
    """What the brokers say of a topic: `TopicInfo`, as much of it as matters here."""

    id: str
    partitions: int


class EndsSeen(Struct, frozen=True, kw_only=True):
    """Where a partition begins and ends."""

    start: int
    stable: int
    high: int


class Brokers(Protocol):
    """What the archive asks of the brokers, beside Spark's own reading."""

    def names(self) -> list[str]:
        """All topics, those of Kafka itself left out."""

    def look(self, topics: Sequence[str]) -> Mapping[str, Any]:
        """`TopicInfo` by name; None for one that is not there."""

    def ends(self, topic: str, partition: int) -> Any:
        """`Ends` of a partition."""

    def mark(self, group: str, places: Mapping[tuple[str, int], int]) -> None:
        """Commit the places of a consumer group that has no members."""


class PartitionRead(Struct, kw_only=True):
    """Where a run begins to read a partition, and what the log held then."""

    begin: int
    log_start: int
    stable_end: int
    high_watermark: int
    gap_reason: str | None = None
    position: int = 0
    """How far it is archived: `begin`, until a batch is committed."""


class TopicRead(Struct, kw_only=True):
    """A topic as a run reads it."""

    id: str
    table: str
    partitions: dict[str, PartitionRead]


class Run(Struct, kw_only=True):
    """`_runs/<run>/run.json`: where each topic begins. Topics that are read no more are kept with their place."""

    read_ms: int
    topics: dict[str, TopicRead]


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


Watch = Callable[[str, int, int], None]
"""Called after each batch with table, offsets archived in this run, offsets there were to archive at its beginning."""


# --- records to rows


def raw(records: DataFrame) -> DataFrame:
    """Spark's Kafka columns -> those of every table: times in ms, headers with `name` and `value`."""
    return records.select(
        "topic",
        "partition",
        "offset",
        f.unix_millis("timestamp").alias("timestamp_ms"),
        "key",
        "value",
        f.col("headers").cast("array<struct<name:string,value:binary>>").alias("headers"),
    )


def messages_of(shards: int) -> Callable[[DataFrame], DataFrame]:
    """Records of the delay topic -> `messages`."""
    columns = schema.columns_of(schema.MESSAGES)

    def made(records: DataFrame) -> DataFrame:
        asked = raw(records).withColumnRenamed("partition", "shard").drop("topic")
        return asked.mapInArrow(parse_messages(shards), columns)

    return made


def steps_of(records: DataFrame) -> DataFrame:
    """Progress records -> `progress`."""
    return _progress(records).mapInArrow(unpack_steps, schema.columns_of(schema.PROGRESS))


def decisions_of(records: DataFrame) -> DataFrame:
    """Progress records -> `decisions`."""
    return _progress(records).mapInArrow(unpack_decisions, schema.columns_of(schema.DECISIONS))


def _progress(records: DataFrame) -> DataFrame:
    return raw(records).select(f.col("partition").alias("shard"), "offset", "timestamp_ms", "value")


def with_receipt(records: DataFrame) -> DataFrame:
    """Records of a target, rejected or dead-letter topic -> the same with what the receipt says."""
    return raw(records).select(
        "*",
        header(ID).alias("id"),
        header_number(DUE_AT).alias("due_at_ms"),
        source_part(0, "string").alias("source_topic"),
        source_part(1, "int").alias("shard"),
        source_part(2, "bigint").alias("source_offset"),
        f.coalesce(header_text(OCCURRENCE).try_cast("int"), f.lit(1)).alias("occurrence"),
        f.coalesce(header_text(ATTEMPT).try_cast("int"), f.lit(1)).alias("attempt"),
    )


def deliveries_of(*, all_records: bool) -> Callable[[DataFrame], DataFrame]:
    """Records of target topics -> `deliveries`: those with a receipt, or all."""

    def made(records: DataFrame) -> DataFrame:
        received = with_receipt(records)
        return received if all_records else received.where(f.col("source_offset").isNotNull())

    return made


def explained(records: DataFrame) -> DataFrame:
    """Records of the rejected or dead-letter topic -> the tables of these names."""
    return with_receipt(records).select("*", header_text(REASON).alias("reason"), header_text(DETAIL).alias("detail"))


def in_hours(rows: DataFrame, table: Table) -> DataFrame:
    """With the UTC date and hour to lie under: of the table's time, or of the record's where that is null."""
    assert table.partitioned_by is not None
    when: Column = f.col(table.partitioned_by)
    if table.partitioned_by != "timestamp_ms" and "timestamp_ms" in rows.columns:
        when = f.coalesce(when, f.col("timestamp_ms"))
    moment = f.timestamp_millis(when)
    return rows.withColumn("due_date", f.date_format(moment, "yyyy-MM-dd")).withColumn("due_hour", f.hour(moment))


# --- a run


def archive(spark: SparkSession, brokers: Brokers, place: Place, plan: Plan, watch: Watch) -> list[Done]:
    """Everything there is now, to its end. ArchiveFailed says which topic, partition and offsets could not be read."""
    with place.alone():
        _claim(place, plan)
        before = settle(place)
        streams = _streams(brokers, plan)
        run = _begin(brokers, streams, before)
        name = _next_run(place)
        _note_begin(place, name, run, {topic for stream in streams for topic in stream.topics})
        place.write_json(f"{RUNS}/{name}/run.json", to_builtins(run))
        done = [_Reading(spark, place, plan, name, run, stream, watch).read() for stream in streams]
        now = _positions(place, name, run)
        own = {plan.delay, plan.progress}
        brokers.mark(
            ARCHIVE_GROUP.format(cluster=plan.cluster),
            {(topic, int(number)): read.position for topic, seen in now.topics.items() if topic in own
             for number, read in seen.partitions.items()},
        )  # fmt: skip
        for old in place.folders(RUNS)[:-RUNS_KEPT]:
            place.remove(f"{RUNS}/{old}")
        return done


def settle(place: Place) -> Run | None:
    """Remove what the last run did not commit; where everything stands. None for a new archive."""
    names = [name for name in place.folders(RUNS) if place.exists(f"{RUNS}/{name}/run.json")]
    if not names:
        return None
    name = names[-1]
    run = from_builtins(place.read_json(f"{RUNS}/{name}/run.json"), Run)
    committed = {table: _committed(place, name, table) for table in {read.table for read in run.topics.values()}}
    for table in schema.TABLES:
        for folder in place.folders(table):
            of_run, number, stream = parse_batch(folder, table)
            if of_run == name and number > committed.get(stream, -1):
                log.warning("removing what a run did not commit", table=table, batch=folder)
                place.remove(f"{table}/{folder}")
    return _positions(place, name, run)


def batch_folder(run: str, number: int, stream: str, table: str) -> str:
    """The folder of a micro-batch below its table."""
    return f"batch={run}-{number:06}" + (f"-{stream}" if table == schema.OFFSETS.name else "")


def parse_batch(folder: str, table: str) -> tuple[str, int, str]:
    """Run, number and stream of a batch's folder; run and stream are empty for one that was compacted."""
    parts = folder.removeprefix("batch=").split("-", 2)
    if len(parts) < 2 or not parts[1].isdigit():
        return "", 0, ""
    stream = parts[2] if len(parts) > 2 else "progress" if table == schema.DECISIONS.name else table
    return parts[0], int(parts[1]), stream


def _claim(place: Place, plan: Plan) -> None:
    own = {"delay": plan.delay, "progress": plan.progress, "rejected": plan.rejected, "dead_letter": plan.dead_letter}
    said = {"format": schema.FORMAT, "cluster": plan.cluster, "topics": own}
    found = check_format(place)
    if found is None:
        place.write_json("archive.json", said)
    elif found != said:
        raise ArchiveFailed(f"{place.uri} is the archive of {found}, not of {said}: choose another location")


def check_format(place: Place) -> dict[str, Any] | None:
    """What `archive.json` says; None where there is no archive. ArchiveFailed for a format that is not known."""
    found = place.read_json("archive.json")
    if found is not None and found.get("format") != schema.FORMAT:
        raise ArchiveFailed(
            f"{place.uri} has format {found.get('format')}; this version of Chronos knows {schema.FORMAT}"
        )
    return found  # type: ignore[no-any-return]


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
    shards = brokers.look([plan.delay])[plan.delay].partitions
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


def _begin(brokers: Brokers, streams: Iterable[Stream], before: Run | None) -> Run:
    """Where each partition begins: where the archive stands, or behind a gap."""
    known = before.topics if before is not None else {}
    topics = dict(known)
    for stream in streams:
        infos = brokers.look(stream.topics)
        for topic in stream.topics:
            info = infos[topic]
            if info is None:
                continue  # gone since it was listed
            old = known.get(topic)
            same = old is not None and old.id == info.id
            reads = {}
            for number in range(info.partitions):
                at = old.partitions.get(str(number)) if old is not None else None
                reads[str(number)] = _from(brokers.ends(topic, number), at, same=same)
            topics[topic] = TopicRead(id=info.id, table=stream.table, partitions=reads)
    return Run(read_ms=time.time_ns() // 1_000_000, topics=topics)


def _from(ends: Any, old: PartitionRead | None, *, same: bool) -> PartitionRead:
    begin, gap = ends.start, None
    if old is not None and not same:
        gap = "recreated"
    elif old is not None and old.position > ends.high:
        gap = "recreated"  # a log that is shorter than it was is not the one it was
    elif old is not None:
        begin = max(old.position, ends.start)
        gap = "trimmed" if begin > old.position else None
    return PartitionRead(begin=begin, log_start=ends.start, stable_end=ends.stable, high_watermark=ends.high,
                         gap_reason=gap, position=begin)  # fmt: skip


def _note_begin(place: Place, name: str, run: Run, read: Collection[str]) -> None:
    """A row of `offsets` for each partition, before anything is read: what was gone by then is never forgotten.

    And a partition with nothing new is known to hold nothing new: what is missing there may be called so.
    """
    rows = [
        _offset_row(run, topic, part, seen.begin, seen.begin, gap=seen.gap_reason)
        for topic in sorted(run.topics.keys() & set(read))
        for part, seen in run.topics[topic].partitions.items()
    ]
    place.write(f"{schema.OFFSETS.name}/batch={name}-begin/offsets.parquet", _parquet(rows))


OffsetRow = tuple[str, str, int, str, int, int, int, int, int, int, bool, str | None]


def _offset_row(run: Run, topic: str, part: str, begin: int, end: int, *, gap: str | None) -> OffsetRow:
    seen = run.topics[topic]
    read = seen.partitions[part]
    return (seen.table, topic, int(part), seen.id, begin, end, read.log_start, read.stable_end, read.high_watermark,
            run.read_ms, gap is not None, gap)  # fmt: skip


def _parquet(rows: Sequence[OffsetRow]) -> bytes:
    names = [name for name, *_ in schema.OFFSETS.columns]
    kinds = [pa.string(), pa.string(), pa.int32(), pa.string(), *[pa.int64()] * 6, pa.bool_(), pa.string()]
    columns = zip(*rows, strict=True)
    table = pa.table([pa.array(list(column), kind) for column, kind in zip(columns, kinds, strict=True)], names=names)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _next_run(place: Place) -> str:
    names = place.folders(RUNS)
    return f"{int(names[-1]) + 1 if names else 1:08}"


def _committed(place: Place, run: str, stream: str) -> int:
    """Number of the last micro-batch Spark committed; -1 without one."""
    numbers = [int(name) for name, _ in place.files(f"{RUNS}/{run}/{stream}/commits") if name.isdigit()]
    return max(numbers, default=-1)


def _offsets(place: Place, run: str, stream: str, number: int) -> dict[str, dict[str, int]]:
    """Where a micro-batch ends, by topic and partition, as Spark's checkpoint says."""
    data = place.read(f"{RUNS}/{run}/{stream}/offsets/{number}")
    if data is None:
        return {}
    found: dict[str, dict[str, int]] = json.loads(data.decode().splitlines()[-1])
    return found


def _positions(place: Place, name: str, run: Run) -> Run:
    """The run with how far each partition is archived."""
    for table in {read.table for read in run.topics.values()}:
        number = _committed(place, name, table)
        if number < 0:
            continue
        for topic, ends in _offsets(place, name, table, number).items():
            for partition, offset in ends.items():
                run.topics[topic].partitions[partition].position = offset
    return run


class _Reading:
    """One stream of one run."""

    def __init__(
        self, spark: SparkSession, place: Place, plan: Plan, name: str, run: Run, stream: Stream, watch: Watch
    ) -> None:
        self._spark = spark
        self._place = place
        self._plan = plan
        self._name = name
        self._run = run
        self._stream = stream
        self._watch = watch
        self._begin = {
            topic: {number: read.begin for number, read in run.topics[topic].partitions.items()}
            for topic in stream.topics
            if topic in run.topics
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
            "failOnDataLoss": "false",  # what is missing was noted as a gap when the run began
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
        for table, made in self._stream.outputs:
            folder = batch_folder(self._name, number, stream, table.name)
            rows = in_hours(made(records), table)
            rows.write.mode("overwrite").partitionBy("due_date", "due_hour").parquet(place.path(table.name, folder))
        begin, end = self._range(number)
        folder = batch_folder(self._name, number, stream, schema.OFFSETS.name)
        rows_of = [
            _offset_row(self._run, topic, part, begin[topic].get(part, until), until, gap=None)
            for topic, ends in end.items()
            for part, until in ends.items()
        ]
        place.write(f"{schema.OFFSETS.name}/{folder}/offsets.parquet", _parquet(rows_of))
        self._done.batches += 1
        self._done.records += self._written(number)
        self._passed += sum(
            until - begin[topic].get(part, until) for topic, ends in end.items() for part, until in ends.items()
        )
        self._watch(stream, self._passed, self._waiting)

    def _written(self, number: int) -> int:
        """Rows of a micro-batch, by the footers of its files."""
        table = self._stream.outputs[0][0].name
        folder = batch_folder(self._name, number, self._stream.table, table)
        return self._place.rows(f"{table}/{folder}")

    def _range(self, number: int) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]]:
        begin = _offsets(self._place, self._name, self._stream.table, number - 1) if number else {}
        return begin or self._begin, _offsets(self._place, self._name, self._stream.table, number)

    def _failed(self, error: StreamingQueryException) -> ArchiveFailed:
        number = _committed(self._place, self._name, self._stream.table) + 1
        begin, end = self._range(number)
        ranges = ", ".join(
            f"{topic}/{part} offsets {begin.get(topic, {}).get(part, 0)} to {until}"
            for topic, ends in (end or self._begin).items()
            for part, until in ends.items()
        )
        said = str(error).split("\nJVM stacktrace")[0].strip()
        return ArchiveFailed(
            f"archiving {self._stream.table} failed at {ranges}. What was archived before stays; the next run begins"
            f" there. Spark said: {said[:2_000]}"
        )
