"""A run of the archive: Chronos's topics and the chosen targets to Delta tables, incrementally, in
a location that the first run claims.

Spark's structured streaming reads the topics in up to five streams, one after the other. Each
stream writes one table; that of the progress topic writes `progress` and `decisions`. Each batch
ends with rows of `offsets`, by which it counts (`commits`). Each stream of a run has a checkpoint
of its own, which begins where the table `offsets` ends, or behind a gap, and is removed when the
run ends: no run continues the checkpoint of another. At its end the run commits its positions in
the delay and progress topics to Kafka: the service trims these topics only below them.

Law: no record is in the archive twice, and none that is read is missing, also after a kill. Left
out are only the records of targets that Chronos did not deliver, unless the plan asks for all
records, and those of other programs in the progress topic. Law: a location is claimed only after
the brokers have shown that they have the delay and progress topics, and that the progress topic,
if it has a record that can be read, was written by the cluster. Whether the rejected and the
dead-letter topic exist is not checked: one that does not is not read.

Unless the plan names targets, a run reads those that the messages name, as the rows of `offsets`
note them, and a second run follows if it finds others.

The columns of the tables are in `schema`, the parsing of records in `codec`, and the reading of the
brokers' state, with the port `ArchiveBrokers`, in `runs`."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq
import structlog
from msgspec import Struct
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from chronos.core.message import Record
from chronos.core.shard.progress import is_foreign, unpack_progress
from chronos.errors import (
    ArchiveFailed,
    ArchiveInUse,
    ArchiveUnusable,
    ChronosError,
    LogMismatch,
    Retry,
)
from chronos.spark import schema
from chronos.spark.archive.commits import Commits, create_tables
from chronos.spark.archive.unreadable import (
    Ranges,
    find_unreadable,
    known_ranges,
    parts_around,
    records_around,
    skipped,
)
from chronos.spark.codec import (
    decisions_of,
    deliveries_of,
    messages_of,
    steps_of,
    with_reason,
)
from chronos.spark.delta import Commit, is_empty
from chronos.spark.runs import (
    ARCHIVE_ID,
    RECREATED,
    TRIMMED,
    TRUNCATED,
    UNREADABLE,
    ArchiveBrokers,
    ArchiveRun,
    OffsetRow,
    StartedRun,
    archived_run,
    begin_run,
    check_format,
    loss_of,
    offset_row,
)
from chronos.spark.schema import Table
from chronos.spark.session import Step, Watch, one_line
from chronos.spark.storage import ArchiveStorage


class ArchivePlan(Struct, frozen=True, kw_only=True):
    """The topics to archive, and how to read them."""

    cluster: str
    bootstrap_servers: str
    delay: str
    progress: str
    rejected: str
    dead_letter: str
    targets: list[str] | None = None
    """Names or shell-style patterns of target topics; None: those that messages name."""
    all_records: bool = False
    """True to archive records of target topics that Chronos did not deliver too."""
    batch_records: int = 2_000_000
    """Most records of one micro-batch."""
    other_cluster: bool = False
    """True to accept a Kafka cluster with another id than that of the archive."""
    reader: dict[str, str] = {}
    """Further options of Spark's Kafka source."""


CLUSTER_ID = "kafka_cluster_id"
"""Key of `archive.json` with the id that Kafka gave the cluster."""

CHECKPOINTS = "_checkpoints"
"""Folder of the checkpoints of Spark's streams, while a run writes."""

RECORD_S = 5.0
"""Most seconds to wait for a progress record of one shard."""

RECORDS, RECORDS_BYTES = 100, 1_000_000
"""Records and bytes read at once until then."""


def check_claim(storage: ArchiveStorage, brokers: ArchiveBrokers, plan: ArchivePlan) -> Any:
    """The contents of `archive.json` as they will be; nothing is written.

    ArchiveUnusable if the location holds another archive, or the brokers or topics belong to
    another cluster."""
    own = {
        "delay": plan.delay,
        "progress": plan.progress,
        "rejected": plan.rejected,
        "dead_letter": plan.dead_letter,
    }
    claim: dict[str, Any] = {"format": schema.FORMAT, "cluster": plan.cluster, "topics": own}
    found = check_format(storage)
    free = {CLUSTER_ID: None, ARCHIVE_ID: None}
    if found is not None and {**found, **free} != {**claim, **free}:
        raise ArchiveUnusable(
            f"{storage.uri} is the archive of {found}, not of {claim}: choose another location"
        )
    check_cluster_id(storage.uri, found or {}, brokers.cluster_id(), any_cluster=plan.other_cluster)
    if found is None:
        _check_cluster(brokers, plan)
    archive_id = (found or {}).get(ARCHIVE_ID) or uuid4().hex
    return {**claim, ARCHIVE_ID: archive_id, CLUSTER_ID: brokers.cluster_id()}


def check_cluster_id(
    location: str, claim: dict[str, Any], cluster_id: str, *, any_cluster: bool
) -> None:
    """Raise ArchiveUnusable if the archive was made from a Kafka cluster with another id, unless
    any is accepted."""
    known = claim.get(CLUSTER_ID)
    if known is not None and known != cluster_id and not any_cluster:
        raise ArchiveUnusable(
            f"{location} was archived from the Kafka cluster {known}, and these brokers belong to "
            f"{cluster_id}: correct log.kafka.bootstrap_servers, choose another location, or "
            "accept the cluster with --other-cluster"
        )


def _check_cluster(brokers: ArchiveBrokers, plan: ArchivePlan) -> None:
    """Raise ArchiveUnusable if the progress topic was written by another cluster than the plan
    names."""
    info = brokers.describe([plan.progress])[plan.progress]
    if info is None:
        return
    for partition in range(info.partitions):
        record = _first_progress(brokers, plan.progress, partition)
        if record is None:
            continue
        # A record that this version cannot read is named by the stream that archives it.
        with suppress(LogMismatch):
            written_by = unpack_progress(record.value, info.partitions).cluster
            if written_by != plan.cluster:
                raise ArchiveUnusable(
                    f"{plan.progress} was written by the cluster {written_by}, and the "
                    f"setting cluster is {plan.cluster}: use the settings of the service"
                )
            return


def _first_progress(brokers: ArchiveBrokers, topic: str, partition: int) -> Record | None:
    """The first progress record; None if there is none, or if it cannot be read in RECORD_S."""
    watermarks = brokers.watermarks(topic, partition)
    reader = brokers.reader(topic, partition, watermarks.start)
    deadline = time.monotonic() + RECORD_S
    try:
        while reader.position < watermarks.stable and time.monotonic() < deadline:
            records = reader.read(RECORDS, RECORDS_BYTES)
            own: Record | None = next((each for each in records if not is_foreign(each)), None)
            if own is not None:
                return own
            if not records:
                reader.wait(0.1)
        return None
    finally:
        reader.close()


def write_claim(storage: ArchiveStorage, claim: dict[str, Any]) -> None:
    """Write `archive.json` if it differs."""
    if check_format(storage) != claim:
        storage.write_json("archive.json", claim)


def named_targets(offsets: DataFrame) -> set[str]:
    """Table `offsets` -> the targets that all archived messages name."""
    named = offsets.where(f.col("targets").isNotNull()).select(f.explode("targets").alias("target"))
    return {row["target"] for row in named.distinct().collect()}


log = structlog.get_logger("chronos.archive")

ARCHIVE_GROUP = "{cluster}-archive"
"""Consumer group whose offsets are those archived: below them the logs may be trimmed."""

OVERFLOW = "long overflow"
"""Part of Spark's error about a timestamp."""

PAST_IT = (
    "In a target: delete the records up to there (kafka-delete-records), or leave the topic out "
    "(--targets). In the delay topic: wait until the service has rejected it, and run the same "
    "command again"
)
"""The advice of an error about a record that the archive cannot read."""

CAUSE_CHARACTERS = 2_000
"""Most characters of Spark's message that an error repeats."""


class JvmEnded(ArchiveFailed):
    """Spark's JVM ended during a stream: no other one can be read."""


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


class RunObserver:
    """Sees the commits of a run, and may end it early. This one does neither. Threads of the driver
    call the methods."""

    def committed(self, counts: Sequence[TableResult]) -> None:
        """A commit was made: what it added, by table. Nothing for the tables that are not named."""

    def is_stopping(self) -> bool:
        """True from the moment on at which the run is to end after its current commit."""
        return False


Watermarks = dict[str, dict[str, int]]
"""Offsets by topic and partition."""


def archive(
    spark: SparkSession,
    brokers: ArchiveBrokers,
    storage: ArchiveStorage,
    plan: ArchivePlan,
    watch: Watch,
    observer: RunObserver | None = None,
) -> list[TableResult]:
    """Archive every record up to the current end of the topics, or up to the commit at which the
    observer asks to stop.

    ArchiveFailed names the topic, partition and offsets that could not be read; ArchiveUnusable
    means that the location cannot hold this archive.

    1. The brokers show that they have the topics and belong to the cluster; only then the location
       is claimed.
    2. What a killed job wrote without committing it is removed.
    3. The run records the offsets it begins at, and the gaps known by then.
    4. Each stream is read to its end. A stream that fails does not stop the others.
    5. The positions in the delay and progress topics are committed: the service trims the topics
       below them.

    Where no targets are given and the messages name new ones, another run reads these.
    """
    existing = _existing(brokers, plan)  # 1
    claim = check_claim(storage, brokers, plan)
    with storage.locked():
        write_claim(storage, claim)
        create_tables(storage)
        commits = Commits(spark, storage, claim[ARCHIVE_ID])  # 2
        storage.remove(CHECKPOINTS)
        job = _Job(
            spark=spark,
            brokers=brokers,
            storage=storage,
            plan=plan,
            watch=watch,
            commits=commits,
            observer=observer or RunObserver(),
        )
        offsets = commits.read(schema.OFFSETS)
        before = archived_run(offsets)
        try:
            if plan.targets is not None:
                return _run(job, before, _matching(existing, plan, plan.targets))[1]
            named = named_targets(offsets)
            run, results = _run(job, before, _matching(existing, plan, named))
            if job.observer.is_stopping():
                return results
            new = named_targets(commits.read(schema.OFFSETS)) - named
            if not _matching(existing, plan, new):
                return results
            _, more = _run(job, run, _matching(existing, plan, named | new))
            return _added(results, more)
        finally:
            storage.remove(CHECKPOINTS)


def passing_error(error: Exception) -> ChronosError | None:
    """The error of a run as one of Chronos that the next run may not meet; None for any other one,
    and if Spark's JVM has ended, without which no run can do anything."""
    if isinstance(error, ChronosError):
        may_pass = isinstance(error, Retry | ArchiveInUse) and not isinstance(error, JvmEnded)
        return error if may_pass else None
    if isinstance(error, Py4JError | ConnectionError) and not isinstance(error, Py4JJavaError):
        return None
    return one_line(error)


class _Job(Struct, frozen=True, kw_only=True):
    """The parts that all runs of one call of `archive` work with."""

    spark: SparkSession
    brokers: ArchiveBrokers
    storage: ArchiveStorage
    plan: ArchivePlan
    watch: Watch
    commits: Commits
    observer: RunObserver


def _run(
    job: _Job, before: ArchiveRun | None, targets: list[str]
) -> tuple[ArchiveRun, list[TableResult]]:
    """One run over these targets: the run with its positions at its end, and its counts."""
    brokers, storage, plan = job.brokers, job.storage, job.plan
    streams = _streams(brokers, plan, targets)
    deleted = _deleted(brokers, plan, before)
    started = begin_run(
        storage, brokers, [(stream.table, stream.topics) for stream in streams], before, deleted
    )
    job.commits.commit(started.rows, {}, run=started.name, stream="begin", number=0)  # 3
    job.observer.committed(
        [TableResult(table=stream.table, gaps=_gaps(started, stream)) for stream in streams]
    )
    results, failures = (
        [],
        [f"{topic} was left out: {why}" for topic, why in started.left_out.items()],
    )
    for stream in streams:  # 4
        if job.observer.is_stopping():
            break
        ranges: Ranges = {}
        try:
            if stream.table == schema.MESSAGES.name and plan.delay in started.read:
                ranges = _ranges(job, started.run)
            results.append(_StreamRun(job, started, stream, ranges).read())
        except ArchiveFailed as error:
            failures.append(str(error))
            if isinstance(error, JvmEnded) or job.commits.is_unsure:
                break
    reached = started.run.topics
    own = [topic for topic in (plan.delay, plan.progress) if topic in reached]
    archived = {
        (topic, int(number)): read.position
        for topic in own
        for number, read in reached[topic].partitions.items()
    }
    if archived:
        brokers.commit_offsets(ARCHIVE_GROUP.format(cluster=plan.cluster), archived)  # 5
    if failures:
        raise ArchiveFailed("\n".join(failures))
    return started.run, results


def _gaps(started: StartedRun, stream: Stream) -> int:
    """The gaps in the topics of a stream that are known when the run begins."""
    return sum(
        read.gap_reason is not None
        for topic in stream.topics
        if topic in started.read
        for read in started.run.topics[topic].partitions.values()
    )


def _ranges(job: _Job, run: ArchiveRun) -> Ranges:
    """The ranges that the run must not read, by the progress records archived up to now."""
    return known_ranges(
        job.brokers,
        job.commits.read(schema.PROGRESS),
        job.commits.read(schema.DECISIONS),
        job.plan.delay,
        {int(part): read.begin for part, read in run.topics[job.plan.delay].partitions.items()},
    )


def _added(results: list[TableResult], more: list[TableResult]) -> list[TableResult]:
    """The counts of two runs by table, in the order of reading."""
    first, second = ({each.table: each for each in run} for run in (results, more))
    return [
        TableResult(
            table=table,
            records=sum(run[table].records for run in (first, second) if table in run),
            batches=sum(run[table].batches for run in (first, second) if table in run),
            gaps=sum(run[table].gaps for run in (first, second) if table in run),
        )
        for table in second | first
    ]


def _existing(brokers: ArchiveBrokers, plan: ArchivePlan) -> set[str]:
    """The topics of the brokers; ArchiveFailed if the delay or the progress topic is not among
    them."""
    existing = set(brokers.names())
    missing = [name for name in (plan.delay, plan.progress) if name not in existing]
    if missing:
        raise ArchiveFailed(
            f"the brokers have no {' and no '.join(missing)}: is this the right cluster? See "
            "log.kafka and topics.*"
        )
    return existing


def _matching(topics: Iterable[str], plan: ArchivePlan, wanted: Iterable[str]) -> list[str]:
    """The topics that are wanted as targets; wanted are patterns where the plan has them, otherwise
    names."""
    own = (plan.delay, plan.progress, plan.rejected, plan.dead_letter)
    names = set(wanted)
    return sorted(
        name
        for name in topics
        if name not in own
        and (
            name in names
            or (plan.targets is not None and any(fnmatchcase(name, each) for each in names))
        )
    )


def _deleted(brokers: ArchiveBrokers, plan: ArchivePlan, before: ArchiveRun | None) -> list[str]:
    """Targets that were archived, are still wanted, and no longer exist."""
    known = (
        []
        if before is None
        else [name for name, read in before.topics.items() if read.table == "deliveries"]
    )
    existing = set(brokers.names())
    gone = [
        name
        for name in _matching(known, plan, known if plan.targets is None else plan.targets)
        if name not in existing
    ]
    for name in gone:
        log.warning("a target that was archived no longer exists", topic=name)
    return gone


def _streams(brokers: ArchiveBrokers, plan: ArchivePlan, targets: list[str]) -> list[Stream]:
    """The streams in the order of reading: progress first, so that what it proves settled is in the
    targets when they are read."""
    existing = {
        name
        for name, info in brokers.describe([plan.rejected, plan.dead_letter]).items()
        if info is not None
    }
    existing |= {plan.delay, plan.progress, *targets}
    info = brokers.describe([plan.delay])[plan.delay]
    if info is None:
        raise ArchiveFailed(f"{plan.delay} was deleted just now")
    streams = [
        Stream(
            table="progress",
            topics=[plan.progress],
            outputs=[
                (schema.PROGRESS, steps_of(info.partitions)),
                (schema.DECISIONS, decisions_of(info.partitions)),
            ],
        ),
        Stream(
            table="deliveries",
            topics=targets,
            outputs=[(schema.DELIVERIES, deliveries_of(all_records=plan.all_records))],
        ),
        Stream(table="rejected", topics=[plan.rejected], outputs=[(schema.REJECTED, with_reason)]),
        Stream(
            table="dead_letters",
            topics=[plan.dead_letter],
            outputs=[(schema.DEAD_LETTERS, with_reason)],
        ),
        Stream(
            table="messages",
            topics=[plan.delay],
            outputs=[(schema.MESSAGES, messages_of(info.partitions))],
        ),
    ]
    found = [
        Stream(
            table=each.table,
            topics=[topic for topic in each.topics if topic in existing],
            outputs=each.outputs,
        )
        for each in streams
    ]
    return [stream for stream in found if stream.topics]


class _StreamRun:
    """The reading of one stream in one run."""

    def __init__(self, job: _Job, started: StartedRun, stream: Stream, ranges: Ranges) -> None:
        """`ranges`: by partition, the offsets that are not read."""
        self._job = job
        self._name = started.name
        self._run = run = started.run
        self._stream = stream
        self._ranges = ranges
        self._begin = {
            topic: {number: read.begin for number, read in run.topics[topic].partitions.items()}
            for topic in stream.topics
            if topic in started.read
        }
        self._epochs = {
            topic: {
                number: read.leader_epoch for number, read in run.topics[topic].partitions.items()
            }
            for topic in self._begin
        }
        self._total = sum(
            max(0, read.stable_end - read.begin)
            for topic in self._begin
            for read in run.topics[topic].partitions.values()
        )
        self._archived = 0
        self._committed = -1  # number of the last batch that was committed
        self._result = TableResult(table=stream.table, gaps=_gaps(started, stream))

    def read(self) -> TableResult:
        """Archive the stream up to the end its topics had when the run began."""
        if not self._total:
            return self._result
        self._report()
        options = {
            "assign": json.dumps(
                {topic: [int(number) for number in begin] for topic, begin in self._begin.items()}
            ),
            "startingOffsets": json.dumps(self._begin),
            "maxOffsetsPerTrigger": str(self._job.plan.batch_records),
            **self._options(),
        }
        records = self._job.spark.readStream.format("kafka").options(**options).load()
        query = (
            records.writeStream.trigger(availableNow=True)
            .option(
                "checkpointLocation",
                self._job.storage.path(CHECKPOINTS, self._name, self._stream.table),
            )
            .foreachBatch(self._write)
            .start()
        )
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            raise ArchiveFailed(self._failed_at(self._stopped(error))) from error
        except Py4JJavaError:
            raise
        except (Py4JError, ConnectionError) as error:  # the connection to the JVM broke
            raise JvmEnded(self._failed_at(self._jvm_ended())) from error
        finally:
            with suppress(Py4JError, ConnectionError):
                query.stop()
        return self._result

    def _options(self) -> dict[str, str]:
        """Options of every reading of the stream."""
        return {
            "kafka.bootstrap.servers": self._job.plan.bootstrap_servers,
            "kafka.isolation.level": "read_committed",
            "includeHeaders": "true",
            # lost records are recorded as gaps, when the run begins and after each batch
            "failOnDataLoss": "false",
            "minPartitions": str(self._job.spark.sparkContext.defaultParallelism),
            **self._job.plan.reader,
        }

    def _write(self, records: DataFrame, number: int) -> None:
        """Write one micro-batch: 1. its tables, 2. its rows of `offsets`, by which it counts. A run
        that is to stop writes no other one."""
        if self._job.observer.is_stopping():
            return
        stream, commits = self._stream.table, self._job.commits
        records = self._readable(records, number)
        several = len(self._stream.outputs) > 1
        if several:
            records.persist()  # else each table would read the topic
        try:
            written = self._tables(records, number)  # 1
        finally:
            if several:
                records.unpersist()
        begin, end = self._range(number)
        rows = self._offset_rows(begin, end)
        targets = self._targets(written) if stream == schema.MESSAGES.name else []
        commits.commit(
            rows, written, run=self._name, stream=stream, number=number, targets=targets
        )  # 2
        self._committed = number
        for topic, ends in end.items():
            for part, until in ends.items():
                read = self._run.topics[topic].partitions[part]
                read.position, read.leader_epoch = until, self._epochs[topic].get(part)
        archived = TableResult(
            table=stream,
            records=written[stream].rows,
            batches=1,
            gaps=sum(row["gap"] for row in rows),
        )
        self._result.gaps += archived.gaps
        self._result.batches += archived.batches
        self._result.records += archived.records
        self._job.observer.committed([archived])
        self._archived += sum(
            until - begin[topic].get(part, until)
            for topic, ends in end.items()
            for part, until in ends.items()
        )
        self._report()

    def _tables(self, records: DataFrame, number: int) -> dict[str, Commit]:
        """Write the tables of one micro-batch; the commits by table."""
        written: dict[str, Commit] = {}
        for table, made in self._stream.outputs:
            rows = made(records)
            # A commit takes longer than to look, and most steps have no decision.
            if table.name == self._stream.table or not is_empty(rows):
                written[table.name] = self._job.commits.write(
                    table, rows, run=self._name, stream=self._stream.table, number=number
                )
        return written

    def _targets(self, written: Mapping[str, Commit]) -> list[str]:
        """The targets that the messages of a batch name, by the files that it added."""
        name, column = schema.MESSAGES.name, "target"
        found: set[str] = set()
        for path in written[name].files:
            with self._job.storage.open(f"{name}/{path}") as file:
                rows = pq.read_table(file, columns=[column], read_dictionary=[column])
            found.update(rows.column(column).unique().drop_null().to_pylist())
        return sorted(found)

    def _readable(self, records: DataFrame, number: int) -> DataFrame:
        """The records of a micro-batch; without the ranges that cannot be read, if it is near one:
        then nothing of it was read yet."""
        begin, end = self._range(number)
        for topic, ends in end.items():
            begins = {part: begin[topic].get(part, until) for part, until in ends.items()}
            spans = {
                part: (begins[part], until) for part, until in ends.items() if begins[part] < until
            }
            parts = parts_around(spans, self._ranges)
            if parts is not None:
                nothing = records.where(f.lit(False))
                return records_around(
                    self._job.spark, self._job.brokers, topic, parts, self._options(), nothing
                )
        return records

    def _report(self) -> None:
        name = f"archiving {self._stream.table}"
        self._job.watch(Step(name=name, done=self._archived, total=self._total, unit="offsets"))

    def _offset_rows(self, begin: Watermarks, end: Watermarks) -> list[OffsetRow]:
        """Rows of `offsets` for a batch just read. Offsets that the log lost meanwhile may not have
        been read: a gap."""
        infos = self._job.brokers.describe(list(end))
        rows = []
        elected, losses = {}, {}
        now_ms = max(self._run.read_ms, time.time_ns() // 1_000_000)
        for topic, ends in end.items():
            now = infos[topic]
            same = now is not None and now.id == self._run.topics[topic].id
            if now is not None and now.compacted:
                self._run.topics[topic].compacted = True
            for part, until in ends.items():
                since, gap = begin[topic].get(part, until), None if same else RECREATED
                if same and since < until:
                    watermarks = self._job.brokers.watermarks(topic, int(part))
                    known = self._epochs[topic].get(part)
                    if known is not None and watermarks.leader_epoch not in (None, known):
                        elected[topic, int(part)] = (since, known)
                        if self._stream.table == schema.DELIVERIES.name:
                            losses[topic, part] = loss_of(
                                self._job.brokers, topic, part, watermarks, since, known, now_ms
                            )
                    self._epochs[topic][part] = watermarks.leader_epoch
                    if watermarks.start > since:
                        since, gap = min(watermarks.start, until), TRIMMED
                rows.append((topic, part, since, until, gap))
        truncated = self._job.brokers.truncated(elected) if elected else set()
        rows = [
            (topic, part, since, until, TRUNCATED if (topic, int(part)) in truncated else gap)
            for topic, part, since, until, gap in rows
        ]
        for topic, part, since, until, _ in list(rows):
            for first, after in skipped(since, until, self._ranges.get(part, ())):
                rows.append((topic, part, first, after, UNREADABLE))
        return [
            offset_row(
                self._run,
                topic,
                part,
                since,
                until,
                gap=gap,
                epoch=self._epochs[topic].get(part),
                loss=losses.get((topic, part)),
            )
            for topic, part, since, until, gap in rows
        ]

    def _range(self, number: int) -> tuple[Watermarks, Watermarks]:
        """The offsets that a micro-batch begins and ends at."""
        before = self._batch_ends(number - 1) if number else {}
        return before or self._begin, self._batch_ends(number)

    def _batch_ends(self, number: int) -> Watermarks:
        """The offset that each partition of a micro-batch ends at, as Spark noted it before the
        batch began; empty if it has not."""
        path = f"{CHECKPOINTS}/{self._name}/{self._stream.table}/offsets/{number}"
        data = self._job.storage.read(path)
        if data is None:
            return {}
        found: Watermarks = json.loads(data.decode().splitlines()[-1])
        return found

    def _failed_at(self, why: str) -> str:
        ranges = ", ".join(
            f"{topic}/{part} offsets {begin} to {end}"
            for topic, part, begin, end in self._failed_ranges()
        )
        return (
            f"archiving {self._stream.table} failed at {ranges}. Records archived before stay; "
            f"the next run begins there. {why}"
        )

    def _failed_ranges(self) -> list[tuple[str, str, int, int]]:
        """Topic, partition, and offsets of the batch that failed; everything that is left where
        Spark has not begun one."""
        begin, end = self._range(self._committed + 1)
        if not end:
            end = {
                topic: {
                    part: read.stable_end
                    for part, read in self._run.topics[topic].partitions.items()
                }
                for topic in self._begin
            }
        return [
            (topic, part, begin.get(topic, {}).get(part, 0), until)
            for topic, ends in end.items()
            for part, until in ends.items()
            if until > begin.get(topic, {}).get(part, 0)
        ]

    def _stopped(self, error: StreamingQueryException) -> str:
        """The reason why the stream failed: Spark's message, or the record with a timestamp that it
        cannot hold."""
        found = None
        if OVERFLOW in str(error):
            found = find_unreadable(self._job.brokers, self._failed_ranges(), self._ranges)
        return (
            f"Spark's message: {_cause(error)}"
            if found is None
            else f"The reason is that {found}. {PAST_IT}"
        )

    def _jvm_ended(self) -> str:
        """A probable reason for the end of Spark's JVM: the first batch of the range that takes too
        much memory here too, if there is one."""
        found = find_unreadable(self._job.brokers, self._failed_ranges(), self._ranges)
        if found is None:
            return (
                "Spark's JVM ended before the job did: it was killed, or had too little memory "
                "(--conf spark.driver.memory=4g); run the same command again"
            )
        return (
            f"Spark's JVM ended before the job did, because {found}. Give it more memory (--conf "
            f"spark.driver.memory=8g). {PAST_IT}"
        )


def _cause(error: StreamingQueryException) -> str:
    """Spark's message; for a task that failed in Python, the exception without the traceback."""
    text = str(error).split("\nJVM stacktrace")[0].strip()
    _, raised, trace = text.rpartition("Traceback (most recent call last):\n")
    last = [line for line in trace.splitlines() if line[:1].isalpha()] if raised else []
    return (last[0] if last else text)[:CAUSE_CHARACTERS]
