"""One part of a plan on its way: what a Spark task does, and the record it makes of each row.

The delivered record equals the one it stands for: key, payload and the producer's own headers byte for byte. Added are
the headers of `ledger.OWN`, and Chronos's receipt, which names the replay by its id.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct
from pyspark import TaskContext

from chronos.core.message import (
    DELIVER_AT,
    DUE_AT,
    EXPIRE_AT,
    ID,
    OCCURRENCE,
    ON_CONFLICT,
    PREFIX,
    SOURCE,
    TARGET_KEY,
    TARGET_TOPIC,
)
from chronos.errors import ArchiveFailed
from chronos.spark import ledger
from chronos.spark.ledger import ID_PREFIX, OWN, REPLAY_ID, REPLAY_OF, REPLAY_PLACE
from chronos.spark.storage import Place

PORTION_ROWS = 5_000
"""Messages of one transaction: short enough not to hold readers of the delay topic back."""

PORTION_BYTES = 8_000_000
"""Of payload, in one transaction and in what is read of the plan at once; one message may be larger."""

SENT_COLUMNS = "part int, rows long"

Headers = list[tuple[str, bytes | None]]
BulkRecord = tuple[str, bytes | None, bytes | None, Headers]


class Writer(Protocol):
    """One producer."""

    def send(self, records: Sequence[BulkRecord]) -> None:
        """All of them, or an error: in one transaction, or until each is acknowledged."""

    def close(self) -> None:
        """Drop what is queued."""


class Opener(Protocol):
    """Makes producers; a value that travels to the executors."""

    def open(self, transactional_id: str | None, batch_bytes: int = ...) -> Any:
        """A `Writer`; with an id every earlier producer of that id is fenced and its transaction resolved first.

        No batch of several records is larger than `batch_bytes`.
        """


class Job(Struct, frozen=True, kw_only=True):
    """What the tasks of one attempt need to know."""

    location: str
    cluster: str
    topic: str
    """The delay topic that was archived: replays are named by it."""
    to: str
    """The delay topic they are sent to; another one after the loss of the first."""
    run: str
    purpose: str
    mode: str
    direct: bool
    expired: bool
    """Without regard to `chronos-expire-at`."""
    attempt: int
    files: list[str]
    """Of the plan, by part."""
    done: list[int]
    """Rows of each part that were sent before."""
    base_ms: int
    """Due time of the first message that is left."""
    pace_ms: float
    """From one due time to the next; sent directly: between two messages of one task."""
    opener: Opener
    batch_bytes: int
    """What every topic that is sent to takes."""

    def rank(self, rows: Sequence[int]) -> list[int]:
        """For parts with so many rows, what the first row of each counts as, were it not sent before."""
        ranks, passed = [], 0
        for count, done in zip(rows, self.done, strict=True):
            ranks.append(passed - done)
            passed += count - done
        return ranks


def send_parts(job: Job, ranks: Sequence[int]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Batches with a column `id`, the number of a part -> `SENT_COLUMNS`, once it is sent."""

    def sent(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch.column("id").to_pylist():
                rows = _Part(job, part, ranks[part]).send()
                yield pa.RecordBatch.from_arrays(
                    [pa.array([part], pa.int32()), pa.array([rows], pa.int64())], names=["part", "rows"]
                )

    return sent


class _Part:
    """The steps of a task, in the order that keeps law 3: see `ledger`."""

    def __init__(self, job: Job, part: int, rank: int) -> None:
        self._job = job
        self._part = part
        self._rank = rank
        self._place = Place(job.location)

    def send(self) -> int:
        """1. name the part, 2. take its id, 3. look whether the attempt is still the last, 4. send."""
        context = TaskContext.get()
        job, part = self._job, self._part
        is_first = ledger.note_begun(self._place, job.run, job.attempt, part)
        # In a stage that Spark runs again a task counts as a first attempt.
        if not is_first or (context is not None and context.attemptNumber() > 0):
            raise ArchiveFailed("a task ended before its time; what it had sent is found out before it is tried again")
        named = None if job.direct else ledger.transactional_id(job.cluster, job.run, job.attempt, part)
        writer = job.opener.open(named, job.batch_bytes)
        try:
            run = ledger.load_run(self._place, job.run)
            if run is None or run.state != "sending" or run.attempts[-1].number != job.attempt:
                raise ArchiveFailed(f"another attempt at run {job.run} has begun; this one ends")
            return self._send_all(writer)
        finally:
            writer.close()

    def _send_all(self, writer: Writer) -> int:
        job, sent = self._job, 0
        started_s = time.monotonic()
        for row, records in self._portions():
            writer.send(records)
            sent += len(records)
            if job.direct:
                ledger.note_sent(self._place, job.run, self._part, row + len(records))
                time.sleep(max(0.0, started_s + sent * job.pace_ms / 1_000 - time.monotonic()))
        return sent

    def _portions(self) -> Iterator[tuple[int, list[BulkRecord]]]:
        """The number of the first row, and so many records as go together."""
        job = self._job
        records: list[BulkRecord] = []
        first = row = job.done[self._part]
        size, rows_max = 0, self._rows_max()
        for batch in self._batches(row):
            for bytes_, record in zip(
                batch.column("bytes").to_pylist(), records_of(batch, job, self._part, row, self._rank), strict=True
            ):
                if records and (size + bytes_ > PORTION_BYTES or len(records) == rows_max):
                    yield first, records
                    first, records, size = row, [], 0
                records.append(record)
                size += bytes_
                row += 1
        if records:
            yield first, records

    def _rows_max(self) -> int:
        """With a pace of its own a portion is what may be sent in a second, so that it is kept."""
        if not self._job.direct or not self._job.pace_ms:
            return PORTION_ROWS
        return max(1, min(PORTION_ROWS, int(1_000 / self._job.pace_ms)))

    def _batches(self, skip: int) -> Iterator[pa.RecordBatch]:
        path = f"{ledger.folder(self._job.run)}/_plan/{self._job.files[self._part]}"
        with self._place.open(path) as stream:
            file = pq.ParquetFile(stream)
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(rows_together(file.metadata.row_group(group)), row_groups=[group]):
                    if skip >= batch.num_rows:
                        skip -= batch.num_rows
                        continue
                    yield batch.slice(skip)
                    skip = 0


def rows_together(group: Any) -> int:
    """How many rows of a row group of a plan may be in memory at once, by what its metadata say of their size."""
    columns = [group.column(number) for number in range(group.num_columns)]
    payload: int = next(column.statistics.max for column in columns if column.path_in_schema == "bytes")
    largest = max(1, payload, group.total_byte_size // group.num_rows)
    rows: int = PORTION_BYTES // largest
    return max(1, min(PORTION_ROWS, rows))


# --- rows to records


class Row(NamedTuple):
    """A row of a plan, as much of it as is sent."""

    shard: int
    source_offset: int
    occurrence: int
    id: bytes
    target: str
    due_ms: int
    key: bytes | None
    value: bytes | None
    target_key: bytes | None
    expire_at_ms: int | None


def replay_id(job: Job, row: Row) -> bytes:
    """The id of a replay: the same whenever the same is replayed for the same purpose."""
    return f"{ID_PREFIX}:{job.purpose}:{job.topic}/{row.shard}/{row.source_offset}/{row.occurrence}".encode()


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    """The rows of a batch of a plan."""
    return map(Row._make, zip(*(batch.column(name).to_pylist() for name in Row._fields), strict=True))


def records_of(batch: pa.RecordBatch, job: Job, part: int, first: int, rank: int) -> Iterator[BulkRecord]:
    """Rows of a plan -> what is produced for them, in order; `first` is the first one's place in its part."""
    found = batch.column("headers")
    ends = found.offsets.to_pylist()
    pairs = list(zip(found.values.field(0).to_pylist(), found.values.field(1).to_pylist(), strict=True))
    make = _direct if job.direct else _delayed
    run = job.run.encode()
    for at, row in enumerate(rows_of(batch)):
        headers = [pair for pair in pairs[ends[at] : ends[at + 1]] if pair[0][:8] != PREFIX and pair[0] not in OWN]
        headers += (
            (REPLAY_OF, f"{job.topic}/{row.shard}/{row.source_offset}/{row.occurrence}".encode()),
            (REPLAY_PLACE, b"%b/%d/%d" % (run, part, first + at)),
        )
        if row.key is not None:
            headers.append((REPLAY_ID, row.id))
        yield make(job, row, headers, first + at + rank)


def _delayed(job: Job, row: Row, headers: Headers, rank: int) -> BulkRecord:
    """For the delay topic. What is brought back as pending keeps its id and its times."""
    expire_at_ms = None if job.expired else row.expire_at_ms
    if job.mode == "pending":
        due_ms, id_ = row.due_ms, row.id if row.key is not None else replay_id(job, row)
    else:
        due_ms, id_ = job.base_ms + int(rank * job.pace_ms), replay_id(job, row)
        due_ms = due_ms if expire_at_ms is None else min(due_ms, expire_at_ms)
    headers += ((DELIVER_AT, b"%d" % due_ms), (TARGET_TOPIC, row.target.encode()), (ON_CONFLICT, b"ignore"))
    if row.target_key is not None:
        headers.append((TARGET_KEY, row.target_key))
    if expire_at_ms is not None:
        headers.append((EXPIRE_AT, b"%d" % expire_at_ms))
    return job.to, id_, row.value, headers


def _direct(job: Job, row: Row, headers: Headers, rank: int) -> BulkRecord:
    """For the target itself, with the receipt that the original had."""
    headers += (
        (ID, row.id),
        (DUE_AT, b"%d" % row.due_ms),
        (SOURCE, f"{job.topic}/{row.shard}/{row.source_offset}".encode()),
    )
    if row.occurrence > 1:
        headers.append((OCCURRENCE, b"%d" % row.occurrence))
    return row.target, row.target_key, row.value, headers


def rows_before(
    location: str, run: str, files: Sequence[str], ends: Sequence[int]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Batches with a column `id`, the number of a part -> `ledger.UNIT_COLUMNS` of its rows before its end."""
    columns = [column.split()[0] for column in ledger.UNIT_COLUMNS.split(", ")]

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        place = Place(location)
        for part in (part for batch in batches for part in batch.column("id").to_pylist()):
            left = ends[part]
            with place.open(f"{ledger.folder(run)}/_plan/{files[part]}") as stream:
                for rows in pq.ParquetFile(stream).iter_batches(10_000, columns=columns):
                    taken = rows.slice(0, left).select(columns)
                    left -= taken.num_rows
                    if taken.num_rows:
                        yield taken

    return read
