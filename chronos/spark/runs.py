"""What the archive knows of its own runs: where each partition stands, and which batches are whole.

    <location>/_runs/<run>/run.json            where the run began each partition, and what the log held then
    <location>/_runs/<run>/<stream>/...        Spark's checkpoint: `offsets` says where a batch ends, `commits` that it is whole

A batch that is not committed is removed before anything else is written: each record is in the archive once.
"""

import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
import structlog
from msgspec import Struct, to_builtins
from msgspec import convert as from_builtins

from chronos.errors import ArchiveUnusable, LogUnavailable
from chronos.spark import schema
from chronos.spark.storage import Place

log = structlog.get_logger("chronos.archive")

RUNS = "_runs"
RUNS_KEPT = 3
"""Runs whose checkpoints stay, for whoever looks into an incident; only the last one is needed."""


OFFSETS_NAME = ("messages", "progress")
"""Tables whose offsets are the names of messages, here and in receipts: another topic is another archive."""


class Brokers(Protocol):
    """What the archive asks of the brokers, beside Spark's own reading."""

    def names(self) -> list[str]:
        """All topics, those of Kafka itself left out."""

    def describe(self, topics: Sequence[str]) -> Mapping[str, Any]:
        """`TopicInfo` by name; None for one that is not there."""

    def watermarks(self, topic: str, partition: int) -> Any:
        """`Watermarks` of a partition."""

    def commit_offsets(self, group: str, places: Mapping[tuple[str, int], int]) -> None:
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


def check_format(place: Place) -> dict[str, Any] | None:
    """What `archive.json` says; None where there is no archive. ArchiveUnusable for a format that is not known."""
    found = place.read_json("archive.json")
    if found is not None and found.get("format") != schema.FORMAT:
        raise ArchiveUnusable(
            f"{place.uri} has format {found.get('format')}; this version of Chronos knows {schema.FORMAT}"
        )
    return found  # type: ignore[no-any-return]


def settle(place: Place) -> Run | None:
    """Remove what the last run did not commit; where everything stands. None for a new archive."""
    names = [name for name in place.folders(RUNS) if place.exists(f"{RUNS}/{name}/run.json")]
    if not names:
        return None
    name = names[-1]
    run = from_builtins(place.read_json(f"{RUNS}/{name}/run.json"), Run)
    whole = {table: committed_batch(place, name, table) for table in {read.table for read in run.topics.values()}}
    for table in schema.TABLES:
        for folder in place.folders(table):
            of_run, number, stream = parse_batch(folder, table)
            if of_run == name and number > whole.get(stream, -1):
                log.warning("removing what a run did not commit", table=table, batch=folder)
                place.remove(f"{table}/{folder}")
    return positions(place, name, run)


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


class Begun(Struct, frozen=True, kw_only=True):
    """A run that has begun."""

    name: str
    run: Run
    read: set[str]
    """The topics it reads."""
    left_out: dict[str, str]
    """Those it cannot read now, and why: they stay where they are."""


def begin_run(
    place: Place, brokers: Brokers, streams: Iterable[tuple[str, Sequence[str]]], before: Run | None
) -> Begun:
    """A new run of these `(table, topics)`: each partition where it stands, or behind a gap.

    ArchiveUnusable when the delay or progress topic is another one: its offsets name other messages than the tables do.
    """
    known = before.topics if before is not None else {}
    topics = dict(known)
    read: set[str] = set()
    left_out: dict[str, str] = {}
    read_ms = time.time_ns() // 1_000_000  # before the first look: what is said to be read by then was there to be seen
    for table, named in streams:
        infos = brokers.describe(named)
        for topic in named:
            info, old = infos[topic], known.get(topic)
            if info is None:
                continue  # gone since it was listed
            if table in OFFSETS_NAME and old is not None and old.id != info.id:
                raise ArchiveUnusable(
                    f"{topic} was deleted and made again: its offsets name other messages than those in {place.uri};"
                    " choose another location"
                )
            try:
                topics[topic] = _begin_topic(brokers, topic, info, table, old)
            except LogUnavailable as error:
                left_out[topic] = str(error)
                continue
            read.add(topic)
    if not read:
        raise LogUnavailable(f"no topic can be read: {'; '.join(left_out.values()) or 'all are gone'}")
    run = Run(read_ms=read_ms, topics=topics)
    names = place.folders(RUNS)
    name = f"{int(names[-1]) + 1 if names else 1:08}"
    _note_begin(place, name, run, read)
    place.write_json(f"{RUNS}/{name}/run.json", to_builtins(run))
    return Begun(name=name, run=run, read=read, left_out=left_out)


def _begin_topic(brokers: Brokers, topic: str, info: Any, table: str, old: TopicRead | None) -> TopicRead:
    if info.leaderless:
        raise LogUnavailable(f"no broker leads {', '.join(f'{topic}/{number}' for number in sorted(info.leaderless))}")
    same = old is not None and old.id == info.id
    reads = {}
    for number in range(info.partitions):
        at = old.partitions.get(str(number)) if old is not None else None
        reads[str(number)] = _from(brokers.watermarks(topic, number), at, same=same)
    return TopicRead(id=info.id, table=table, partitions=reads)


def _from(watermarks: Any, old: PartitionRead | None, *, same: bool) -> PartitionRead:
    begin, gap = watermarks.start, None
    if old is not None and not same:
        gap = "recreated"
    elif old is not None and old.position > watermarks.high:
        gap = "recreated"  # a log that is shorter than it was is not the one it was
    elif old is not None:
        begin = max(old.position, watermarks.start)
        gap = "trimmed" if begin > old.position else None
    return PartitionRead(begin=begin, log_start=watermarks.start, stable_end=watermarks.stable, high_watermark=watermarks.high,
                         gap_reason=gap, position=begin)  # fmt: skip


def _note_begin(place: Place, name: str, run: Run, read: Collection[str]) -> None:
    """A row of `offsets` for each partition, before anything is read: what was gone by then is never forgotten.

    And a partition with nothing new is known to hold nothing new: what is missing there may be called so.
    """
    rows = [
        offset_row(run, topic, part, seen.begin, seen.begin, gap=seen.gap_reason)
        for topic in sorted(run.topics.keys() & set(read))
        for part, seen in run.topics[topic].partitions.items()
    ]
    place.write(f"{schema.OFFSETS.name}/batch={name}-begin/offsets.parquet", offsets_file(rows))


OffsetRow = tuple[str, str, int, str, int, int, int, int, int, int, bool, str | None]


def offset_row(run: Run, topic: str, part: str, begin: int, end: int, *, gap: str | None) -> OffsetRow:
    """A row of the table `offsets`."""
    seen = run.topics[topic]
    read = seen.partitions[part]
    return (seen.table, topic, int(part), seen.id, begin, end, read.log_start, read.stable_end, read.high_watermark,
            run.read_ms, gap is not None, gap)  # fmt: skip


def offsets_file(rows: Sequence[OffsetRow]) -> bytes:
    """The rows as a Parquet file."""
    names = [name for name, *_ in schema.OFFSETS.columns]
    kinds = [pa.string(), pa.string(), pa.int32(), pa.string(), *[pa.int64()] * 6, pa.bool_(), pa.string()]
    columns = zip(*rows, strict=True)
    table = pa.table([pa.array(list(column), kind) for column, kind in zip(columns, kinds, strict=True)], names=names)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def committed_batch(place: Place, run: str, stream: str) -> int:
    """Number of the last micro-batch Spark committed; -1 without one."""
    numbers = [int(name) for name, _ in place.files(f"{RUNS}/{run}/{stream}/commits") if name.isdigit()]
    return max(numbers, default=-1)


def batch_ends(place: Place, run: str, stream: str, number: int) -> dict[str, dict[str, int]]:
    """Where a micro-batch ends, by topic and partition, as Spark's checkpoint says."""
    data = place.read(f"{RUNS}/{run}/{stream}/offsets/{number}")
    if data is None:
        return {}
    found: dict[str, dict[str, int]] = json.loads(data.decode().splitlines()[-1])
    return found


def positions(place: Place, name: str, run: Run) -> Run:
    """The run with how far each partition is archived."""
    for table in {read.table for read in run.topics.values()}:
        number = committed_batch(place, name, table)
        if number < 0:
            continue
        for topic, watermarks in batch_ends(place, name, table, number).items():
            for partition, offset in watermarks.items():
                run.topics[topic].partitions[partition].position = offset
    return run
