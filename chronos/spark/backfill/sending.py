"""The sending of one part of a plan, as a Spark task: the record of each message, and its producer,
which an adapter implements (`BackfillWriter`, `Opener`); the cancels of what was sent; and
`Reconciliation`, which finds the rows that earlier attempts have sent.

Planning and the sequence of attempts are in `job`. Law: the delivered record equals the original in
key, payload and the producer's own headers, byte for byte; added are the headers of `ledger.OWN`
and Chronos's receipt, which has the id of the replay, or in direct sending that of the original.
Law: the log is read only after every producer of an earlier attempt is fenced. `ledger` explains
why sending through the delay topic is exactly once."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from chronos.core.message import (
    ACTION,
    DELIVER_AT,
    DUE_AT,
    EXPIRE_AT,
    ID,
    OCCURRENCE,
    ON_CONFLICT,
    PREFIX,
    REPEAT,
    REPEAT_TIMES,
    SOURCE,
    TARGET_KEY,
    TARGET_TOPIC,
    folded_name,
)
from chronos.errors import ArchiveFailed, LogUnavailable
from chronos.spark import ledger
from chronos.spark.archive.unreadable import Ranges, known_ranges, parts_around, records_around
from chronos.spark.audit.coverage import archived_through
from chronos.spark.backfill.pace import Pace, SendingTurn
from chronos.spark.codec import header_text, of_shard, raw
from chronos.spark.ledger import (
    KEPT,
    OWN,
    REPLAY_ID,
    REPLAY_OF,
    REPLAY_POSITION,
    SERIES,
    SETTLED,
    Attempt,
    BackfillRun,
    id_prefix,
)
from chronos.spark.runs import UNREADABLE, ArchiveBrokers
from chronos.spark.schema import DELIVERIES, RAW, columns_of
from chronos.spark.session import Step, Watch, ignore
from chronos.spark.storage import ArchiveStorage
from chronos.spark.tables import Tables, open_tables

PORTION_ROWS = 5_000
"""Most messages of one transaction: it ends soon enough not to delay the readers of the delay
topic."""

PORTION_BYTES = 8_000_000
"""Most payload bytes of one transaction, and of the rows read from the plan at once; one message
may be larger."""

SENT_COLUMNS = "part int, rows long"
"""Columns that a task returns: a part and the rows it sent of it."""

CANCELS_COLUMNS = "cancels long"
"""Column that a task returns: the number of the cancels it wrote."""

Headers = list[tuple[str, bytes | None]]
BulkRecord = tuple[str, bytes | None, bytes | None, Headers]


class BackfillWriter(Protocol):
    """One producer of bulk records."""

    def send(self, records: Sequence[BulkRecord]) -> None:
        """Send all records or raise: in one transaction, or each acknowledged."""

    def close(self) -> None:
        """Close the producer; queued records are dropped."""


class Opener(Protocol):
    """Opens producers; a value that is pickled to the executors."""

    def open(self, transactional_id: str | None, batch_bytes: int = ...) -> Any:
        """A `BackfillWriter`; with an id, earlier producers of that id are fenced and their
        transactions resolved first.

        A batch of several records has at most `batch_bytes`.
        """


class SendingJob(Struct, frozen=True, kw_only=True):
    """The parameters of the tasks of one attempt."""

    location: str
    cluster: str
    topic: str
    """`BackfillRun.origin`, which the ids of replays contain."""
    to: str
    """The delay topic that replays are sent to; another one after the loss of the first."""
    to_topic: str | None
    """The topic that all messages are delivered to; None: each to its target."""
    run: str
    purpose: str
    mode: str
    direct: bool
    expired: bool
    """True to ignore `chronos-expire-at`."""
    attempt: int
    files: list[str]
    """Files of the plan, by part."""
    done: list[int]
    """Rows of each part that earlier attempts sent."""
    pace: Pace
    """The due times of the messages to send, before the rate is changed."""
    ahead_ms: int | None
    """How long before its due time a message is sent; None: as soon as possible, and the rate does
    not change."""
    opener: Opener
    batch_bytes: int
    """Most bytes of a batch that every topic sent to accepts."""

    def rank(self, rows: Sequence[int]) -> list[int]:
        """For parts with these numbers of rows, the rank of each part's row 0, counting only rows
        not sent before."""
        ranks, passed = [], 0
        for count, done in zip(rows, self.done, strict=True):
            ranks.append(passed - done)
            passed += count - done
        return ranks


def send_parts(
    job: SendingJob, ranks: Sequence[int]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Batches with a column `id`, the number of a part -> `SENT_COLUMNS`, once the part is sent."""

    def sent(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch.column("id").to_pylist():
                rows = _Part(job, part, ranks[part]).send()
                yield pa.RecordBatch.from_arrays(
                    [pa.array([part], pa.int32()), pa.array([rows], pa.int64())],
                    names=["part", "rows"],
                )

    return sent


def write_cancels(
    opener: Opener, topic: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Batches with a column `replay_id` -> `CANCELS_COLUMNS`, once a cancel of each id is in the
    delay topic. A task that runs again writes them again, without effect."""

    def written(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer: BackfillWriter = opener.open(None)
        try:
            for batch in batches:
                ids = batch.column("replay_id").to_pylist()
                for at in range(0, len(ids), PORTION_ROWS):
                    part = ids[at : at + PORTION_ROWS]
                    writer.send([(topic, id_, None, [(ACTION, b"cancel")]) for id_ in part])
                yield pa.RecordBatch.from_arrays([pa.array([len(ids)], pa.int64())], ["cancels"])
        finally:
            writer.close()

    return written


class _Part:
    """The steps of a task, in the order that step 3 of `ledger` needs."""

    def __init__(self, job: SendingJob, part: int, rank: int) -> None:
        self._job = job
        self._part = part
        self._rank = rank
        self._storage = ArchiveStorage(job.location)
        self._turn = SendingTurn(
            job.pace, job.ahead_ms, lambda: ledger.rate_changes(self._storage, job.run)
        )

    def send(self) -> int:
        """Once the first message may be sent: 1. record the part, 2. take its transactional id, 3.
        check that the attempt is still the last, 4. send."""
        context = TaskContext.get()
        job, part = self._job, self._part
        self._turn.wait(job.done[part] + self._rank)
        is_first = ledger.record_started(self._storage, job.run, job.attempt, part)
        # In a stage that Spark runs again, a task counts as a first attempt.
        if not is_first or (context is not None and context.attemptNumber() > 0):
            raise ArchiveFailed(
                "a task ended before its time; the log is read before it is tried again"
            )
        transactional_id = (
            None if job.direct else ledger.transactional_id(job.cluster, job.run, job.attempt, part)
        )
        writer = job.opener.open(transactional_id, job.batch_bytes)
        try:
            run = ledger.load_run(self._storage, job.run)
            if run is None or run.state != "sending" or run.attempts[-1].number != job.attempt:
                raise ArchiveFailed(f"another attempt at run {job.run} has begun; this one ends")
            return self._send_all(writer)
        finally:
            writer.close()

    def _send_all(self, writer: BackfillWriter) -> int:
        job, sent = self._job, 0
        for row, records in self._portions():
            writer.send(records)
            sent += len(records)
            if job.direct or job.ahead_ms is not None:
                ledger.record_sent(self._storage, job.run, self._part, row + len(records))
            self._turn.look()
        return sent

    def _portions(self) -> Iterator[tuple[int, list[BulkRecord]]]:
        """The number of the first row, and the records of one transaction."""
        job = self._job
        records: list[BulkRecord] = []
        size, turn, rank = 0, self._turn, self._rank
        first = row = job.done[self._part]
        for batch in self._batches(row):
            made = records_of(batch, job, self._part, row, lambda row: turn.pace.due_ms(row + rank))
            for bytes_ in batch.column("bytes").to_pylist():
                if records and (
                    size + bytes_ > PORTION_BYTES
                    or len(records) == PORTION_ROWS
                    or not turn.admits(row + rank)
                ):
                    yield first, records
                    first, records, size = row, [], 0
                turn.wait(row + rank)
                records.append(next(made))  # made now: its due time may have changed
                size += bytes_
                row += 1
        if records:
            yield first, records

    def _batches(self, skip: int) -> Iterator[pa.RecordBatch]:
        path = f"{ledger.run_folder(self._job.run)}/_plan/{self._job.files[self._part]}"
        with self._storage.open(path) as stream:
            file = pq.ParquetFile(stream)
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(
                    rows_together(file.metadata.row_group(group)), row_groups=[group]
                ):
                    if skip >= batch.num_rows:
                        skip -= batch.num_rows
                        continue
                    yield batch.slice(skip)
                    skip = 0


def rows_together(group: Any) -> int:
    """Most rows of a row group that are read into memory at once, by the sizes in its metadata."""
    columns = [group.column(number) for number in range(group.num_columns)]
    payload: int = next(
        column.statistics.max for column in columns if column.path_in_schema == "bytes"
    )
    largest = max(1, payload, group.total_byte_size // group.num_rows)
    rows: int = PORTION_BYTES // largest
    return max(1, min(PORTION_ROWS, rows))


# --- records of rows


class PlannedMessage(NamedTuple):
    """The columns of a plan's row that sending needs."""

    shard: int
    source_offset: int
    occurrence: int
    id: bytes
    target: str
    requested_due_ms: int
    due_ms: int
    key: bytes | None
    value: bytes | None
    target_key: bytes | None
    expire_at_ms: int | None
    outcome: str


def replay_id(job: SendingJob, row: PlannedMessage) -> bytes:
    """The id of a replay: equal for equal messages and purposes, so that a second replay is a
    conflict."""
    original = f"{job.topic}/{row.shard}/{row.source_offset}/{row.occurrence}"
    return (id_prefix(job.purpose, job.to_topic) + original).encode()


def rows_of(batch: pa.RecordBatch) -> Iterator[PlannedMessage]:
    """The rows of a batch of a plan."""
    return map(
        PlannedMessage._make,
        zip(*(batch.column(name).to_pylist() for name in PlannedMessage._fields), strict=True),
    )


def records_of(
    batch: pa.RecordBatch, job: SendingJob, part: int, first: int, due_ms: Callable[[int], int]
) -> Iterator[BulkRecord]:
    """Rows of a plan -> the records to produce, in order; `first` is the number of the first row in
    its part, and `due_ms` gives the due time of a row in epoch ms."""
    found = batch.column("headers")
    ends = found.offsets.to_pylist()
    pairs = list(
        zip(found.values.field(0).to_pylist(), found.values.field(1).to_pylist(), strict=True)
    )
    make = _direct if job.direct else _delayed
    run = job.run.encode()
    for at, row in enumerate(rows_of(batch)):
        position = (REPLAY_POSITION, b"%b/%d/%d" % (run, part, first + at))
        if row.outcome == SETTLED:
            yield job.to, row.id, None, [position, (ACTION, b"settled")]
            continue
        original = [(_spelled(name), value) for name, value in pairs[ends[at] : ends[at + 1]]]
        headers = [pair for pair in original if pair[0][:8] != PREFIX and pair[0] not in OWN]
        headers += (
            (REPLAY_OF, f"{job.topic}/{row.shard}/{row.source_offset}/{row.occurrence}".encode()),
            position,
        )
        if row.key is not None:
            headers.append((REPLAY_ID, row.id))
        yield make(job, row, original, headers, due_ms(first + at))


@lru_cache(maxsize=10_000)
def _spelled(name: str) -> str:
    """The name as Chronos spells it, if it stands for one of its headers."""
    folded = folded_name(name)
    return folded if folded.startswith(PREFIX) else name


def _delayed(
    job: SendingJob, row: PlannedMessage, original: Headers, headers: Headers, due_ms: int
) -> BulkRecord:
    """A record for the delay topic. A message replayed as pending keeps its id and its times, and a
    series goes on."""
    expire_at_ms = None if job.expired else row.expire_at_ms
    headers += [pair for pair in original if pair[0] in KEPT]
    if job.mode == "pending":
        series = _series(original, row.occurrence)
        headers += series
        due_ms = row.requested_due_ms if series else row.due_ms
        id_ = row.id if row.key is not None else replay_id(job, row)
    else:
        id_ = replay_id(job, row)
        due_ms = due_ms if expire_at_ms is None else min(due_ms, expire_at_ms)
    headers += (
        (ACTION, b"backfill"),
        (DELIVER_AT, b"%d" % due_ms),
        (TARGET_TOPIC, (job.to_topic or row.target).encode()),
        (ON_CONFLICT, b"ignore"),
    )
    if row.target_key is not None:
        headers.append((TARGET_KEY, row.target_key))
    if expire_at_ms is not None:
        headers.append((EXPIRE_AT, b"%d" % expire_at_ms))
    return job.to, id_, row.value, headers


def _series(original: Headers, occurrence: int) -> Headers:
    """The headers of the rest of a series from this occurrence on; none if the record is no series.

    `backoff` begins with its first step again.
    """
    headers = [pair for pair in original if pair[0] in SERIES]
    if not any(name == REPEAT for name, _ in headers):
        return []
    done = occurrence - 1
    return [
        (name, b"%d" % (int(value or b"") - done) if name == REPEAT_TIMES else value)
        for name, value in headers
    ]


def _direct(
    job: SendingJob, row: PlannedMessage, original: Headers, headers: Headers, _due_ms: int
) -> BulkRecord:
    """A record for the target, with the receipt of the original."""
    headers += (
        (ID, row.id),
        (DUE_AT, b"%d" % row.requested_due_ms),
        (SOURCE, f"{job.topic}/{row.shard}/{row.source_offset}".encode()),
    )
    if row.occurrence > 1:
        headers.append((OCCURRENCE, b"%d" % row.occurrence))
    return job.to_topic or row.target, row.target_key, row.value, headers


STABLE_S = 120.0
"""Most seconds to wait for the end of open transactions before the delay topic is read."""

POLL_S = 0.2
"""Seconds between two questions for the last stable offset."""


class KafkaSource(Struct, frozen=True, kw_only=True):
    """A Kafka cluster that is read."""

    brokers: ArchiveBrokers
    options: Mapping[str, str]
    """Of Spark's Kafka source."""


class BackfillContext(Struct, frozen=True, kw_only=True):
    """The parts that a backfill works with."""

    spark: SparkSession
    storage: ArchiveStorage
    archived: KafkaSource
    """The cluster that was archived."""
    to: KafkaSource
    """The cluster that messages are sent to; usually the same value."""
    opener: Opener
    """Opens producers for that cluster."""
    watch: Watch = ignore


class Reconciliation:
    """Reconciles the runs of one archive with the log."""

    def __init__(self, context: BackfillContext, tables: Tables, *, cluster: str) -> None:
        self._spark = context.spark
        self._storage = context.storage
        self._archived = context.archived
        self._to = context.to
        self._opener = context.opener
        self._watch = context.watch
        self._tables = tables
        self._cluster = cluster

    def rows_sent(self, run: BackfillRun) -> list[int]:
        """Rows of each part that were sent: 1. record a new attempt, 2. fence the earlier ones, 3.
        read the log."""
        before = list(run.attempts)
        number = before[-1].number + 1 if before else 1
        run.attempts.append(Attempt(number=number, began_ms=_now_ms()))
        ledger.save_run(self._storage, run)
        if not before:
            return [0] * len(run.rows)
        self._watch(Step(name="reading how much was sent before"))
        if run.request.direct:
            return ledger.rows_recorded(self._storage, run)
        for attempt in before:
            if not attempt.is_fenced:
                for part in ledger.started_parts(self._storage, run.run, attempt.number):
                    transactional_id = ledger.transactional_id(
                        self._cluster, run.run, attempt.number, part
                    )
                    self._opener.open(transactional_id).close()
                attempt.is_fenced = True
        ledger.save_run(self._storage, run)
        return self._in_log(run)

    def _in_log(self, run: BackfillRun) -> list[int]:
        """Rows of each part in the delay topic, and in the archive where the topic was trimmed."""
        info = self._to.brokers.describe([run.topic])[run.topic]
        shards = [int(shard) for shard in run.begin]
        is_same = (
            info is not None and info.id == run.topic_id
        )  # a topic created again may have fewer partitions
        watermarks = (
            {shard: _stable_ends(self._to, run.topic, shard) for shard in shards} if is_same else {}
        )
        starts = {shard: seen.start for shard, seen in watermarks.items()}
        offsets = self._tables.offsets.where("table = 'messages'")
        archived: dict[int, int] = {}
        if run.is_to_archived_topic:
            archived = {
                row["shard"]: row["through"]
                for row in archived_through(self._tables.offsets).collect()
            }
        lost = (
            f.col("gap")
            & ~f.col("gap_reason").eqNullSafe(UNREADABLE)
            & (f.col("read_ms") >= run.planned_ms)
        )
        gaps = {row["partition"] for row in offsets.where(lost).collect()}
        ledger.check_log(run, info.id if info is not None else None, starts, archived, gaps)
        begin = {shard: max(run.begin[str(shard)], starts[shard]) for shard in shards}
        stable = {shard: watermarks[shard].stable for shard in shards}
        found = _positions(raw(self._around(run, begin, stable)))
        if any(begin[int(shard)] > first for shard, first in run.begin.items()):
            first = of_shard({int(shard): begun for shard, begun in run.begin.items()})
            of_run = self._tables.messages.where(f.col("offset") >= first)
            found = found.unionByName(_positions(of_run))
        return ledger.rows_committed(found, run)

    def _around(
        self, run: BackfillRun, begin: Mapping[int, int], stable: Mapping[int, int]
    ) -> DataFrame:
        """The committed records of the run's delay topic between these offsets, without those in
        ranges that the archive knows to be unreadable."""
        ranges = self._ranges(run.topic, begin) if run.is_to_archived_topic else {}
        parts = parts_around({str(shard): (begin[shard], stable[shard]) for shard in begin}, ranges)
        if parts is None:
            return self._read(self._to, {run.topic: begin}, {run.topic: stable})
        nothing = self._read(self._to, {run.topic: begin}, {run.topic: begin})
        options = _read_committed(self._to)
        return records_around(self._spark, self._to.brokers, run.topic, parts, options, nothing)

    def _ranges(self, topic: str, begin: Mapping[int, int]) -> Ranges:
        """The ranges that the archive knows by now."""
        tables, _, _ = open_tables(self._spark, self._storage)
        return known_ranges(self._to.brokers, tables.progress, tables.decisions, topic, begin)

    def records(self, partitions: Mapping[str, int]) -> DataFrame:
        """All committed records of some topics of the archived cluster, with the columns of
        `codec.raw`."""
        watermarks = {
            topic: {
                partition: _stable_ends(self._archived, topic, partition)
                for partition in range(count)
            }
            for topic, count in partitions.items()
        }
        begin = {
            topic: {partition: seen.start for partition, seen in of.items()}
            for topic, of in watermarks.items()
        }
        until = {
            topic: {partition: seen.stable for partition, seen in of.items()}
            for topic, of in watermarks.items()
        }
        if not begin:
            return self._spark.createDataFrame([], columns_of(DELIVERIES)).select(
                *(name for name, *_ in RAW)
            )
        return raw(self._read(self._archived, begin, until))

    def _read(
        self,
        source: KafkaSource,
        begin: Mapping[str, Mapping[int, int]],
        until: Mapping[str, Mapping[int, int]],
    ) -> DataFrame:
        options = {
            **_read_committed(source),
            "assign": json.dumps({topic: list(of) for topic, of in begin.items()}),
            "startingOffsets": json.dumps(begin),
            "endingOffsets": json.dumps(until),
        }
        return self._spark.read.format("kafka").options(**options).load()


def _read_committed(source: KafkaSource) -> dict[str, str]:
    own = {"kafka.isolation.level": "read_committed", "includeHeaders": "true"}
    return {**own, **source.options}


def _stable_ends(source: KafkaSource, topic: str, shard: int) -> Any:
    """The watermarks of a partition, once every transaction before its current end has ended."""
    high: int | None = None
    deadline = time.monotonic() + STABLE_S
    while True:
        watermarks = source.brokers.watermarks(topic, shard)
        high = watermarks.high if high is None else high
        if watermarks.stable >= high:
            return watermarks
        if time.monotonic() >= deadline:
            raise LogUnavailable(
                f"a transaction is open in {topic}/{shard} at offset {watermarks.stable} for "
                f"more than {STABLE_S:.0f} s; end its producer, or wait for its timeout, and "
                "run the same command again"
            )
        time.sleep(POLL_S)


def _positions(records: DataFrame) -> DataFrame:
    return records.select(header_text(REPLAY_POSITION).alias("position")).where(
        f.col("position").isNotNull()
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
