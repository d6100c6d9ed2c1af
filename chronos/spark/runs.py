"""The runs of the archive: where each begins, the gaps known by then, and the rows of the table
`offsets`; and the interface to the brokers that the archive and backfills need.

Spark reads the records that are archived; an adapter of the service implements `TopicBrokers` and
`ArchiveBrokers`. Gaps that appear while a run reads are found in `archive.job`. Rows are made here
and written in `archive.commits`."""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, Protocol
from uuid import uuid4

from msgspec import Struct
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from chronos.errors import ArchiveFailed, ArchiveUnusable, LogUnavailable
from chronos.spark import schema
from chronos.spark.elections import Loss, find_loss
from chronos.spark.storage import ArchiveStorage


class TopicBrokers(Protocol):
    """Topics and the ends of their partitions."""

    def names(self) -> list[str]:
        """All topics, except those of Kafka itself."""

    def describe(self, topics: Sequence[str]) -> Mapping[str, Any]:
        """`TopicInfo` by name; None for a topic that does not exist."""

    def cluster_id(self) -> str:
        """The id that Kafka gave the cluster."""

    def watermarks(self, topic: str, partition: int) -> Any:
        """`Watermarks` of a partition."""


OLDEST_ASKED = 8
"""Partitions of a new target that are asked for their first record: one old record proves that the
topic existed then."""

LOOK_MS = 60_000
"""Time in ms that a run takes at most from its first request until it has the ends of a topic: an
election may lie between."""

OFFSETS_NAME = ("messages", "progress")
"""Tables whose offsets identify messages, also in receipts: a topic created again needs another
archive."""

TRIMMED, RECREATED, TRUNCATED, DELETED = "trimmed", "recreated", "truncated", "deleted"
UNREADABLE = "unreadable"
"""Reasons of gaps, as in the table `offsets`. Behind an unreadable one nothing can be missing: its
records were rejected."""


class ArchiveBrokers(TopicBrokers, Protocol):
    """The requests of the archive to the brokers, besides Spark's own reading."""

    def reader(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        mode: Literal["plain", "bounded"] = "plain",
    ) -> Any:
        """A `ports.Reader` of a partition; `bounded`: with bounded memory."""

    def batch_header(self, topic: str, partition: int, offset: int) -> Any:
        """The header of the batch that holds the offset, or of the next one: `first`, `last`,
        `leader_epoch`, `timestamp_ms`, `create_time` if that is the producer's, and `hidden` if it
        has no visible records."""

    def truncated(
        self, positions: Mapping[tuple[str, int], tuple[int, int]]
    ) -> set[tuple[str, int]]:
        """The partitions whose log no longer has the records before an offset that it had in a
        leader epoch."""

    def commit_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit offsets of a consumer group that has no members."""


class PartitionRead(Struct, kw_only=True):
    """The offset a run begins to read a partition at, and the log's ends then."""

    begin: int
    log_start: int
    stable_end: int
    high_watermark: int
    gap_reason: str | None = None
    position: int = 0
    """Offset up to which the partition is archived: `begin` until a batch is committed."""
    leader_epoch: int | None = None
    """A leader epoch in which the log had all records before `position`; None: not known."""
    loss: Loss | None = None
    """What may have been lost since the run before, at elections."""
    oldest_ms: int | None = None
    """Timestamp of its first record when a target was looked at for the first time, `read_ms` if it
    had none; None: not asked."""


class TopicRead(Struct, kw_only=True):
    """A topic and its partitions as a run reads them."""

    id: str
    table: str
    partitions: dict[str, PartitionRead]
    compacted: bool | None = None
    """True if its `cleanup.policy` has `compact`; None: not known."""


class ArchiveRun(Struct, kw_only=True):
    """A run of the archive: where each topic begins, and how far it is archived. Topics that are no
    longer read keep their offsets."""

    read_ms: int
    topics: dict[str, TopicRead]
    broker_ms: int | None = None
    """Newest timestamp in the progress topic, by the brokers' clocks; None: not known."""


ARCHIVE_ID = "id"
"""Key of `archive.json` with the id of the archive, which its commits have."""


def check_format(storage: ArchiveStorage) -> dict[str, Any] | None:
    """The contents of `archive.json`; None if there is no archive. ArchiveUnusable if its format is
    unknown."""
    found = storage.read_json("archive.json")
    if found is not None and found.get("format") != schema.FORMAT:
        raise ArchiveUnusable(
            f"{storage.uri} has format {found.get('format')}; this version of Chronos knows "
            f"{schema.FORMAT}"
        )
    return found  # type: ignore[no-any-return]


def no_archive(storage: ArchiveStorage) -> ArchiveFailed:
    """The error of a job that needs an archive where there is none."""
    return ArchiveFailed(
        f"{storage.uri} holds no archive; `chronos archive --location` creates one"
    )


def archived_run(offsets: DataFrame) -> ArchiveRun | None:
    """Table `offsets` -> the run before, with the offset up to which each partition is archived as
    its position; None for a new archive.

    A topic that was created again has the partitions of its last id."""
    columns = [name for name, *_ in schema.OFFSETS.columns if name not in ("targets", "versions")]
    rows = offsets.where(f.col("table").isin(*schema.TABLES)).groupBy("topic", "partition")
    last = rows.agg(
        f.max_by(f.struct(*columns), f.struct("sequence", "until_offset")).alias("last")
    )
    found = sorted(
        (row["last"] for row in last.collect()),
        key=lambda row: (row["sequence"], row["topic"], row["partition"]),
    )
    if not found:
        return None
    topics: dict[str, TopicRead] = {}
    for row in found:
        of_topic = topics.get(row["topic"])
        if of_topic is None or of_topic.id != row["topic_id"]:
            of_topic = TopicRead(id=row["topic_id"], table=row["table"], partitions={})
            topics[row["topic"]] = of_topic
        of_topic.compacted = row["compacted"]
        of_topic.partitions[str(row["partition"])] = PartitionRead(
            begin=row["until_offset"],
            log_start=row["log_start"],
            stable_end=row["stable_end"],
            high_watermark=row["high_watermark"],
            position=row["until_offset"],
            leader_epoch=row["leader_epoch"],
        )
    newest = max(row["read_ms"] for row in found)
    return ArchiveRun(read_ms=newest, topics=topics)


class StartedRun(Struct, frozen=True, kw_only=True):
    """A run that has begun, and the topics it can read."""

    name: str
    """A name that no other run has."""
    run: ArchiveRun
    rows: "list[OffsetRow]"
    """The rows of `offsets` to write before anything is read."""
    read: set[str]
    """Topics that the run reads."""
    left_out: dict[str, str]
    """Topics that cannot be read now, each with the reason; their positions stay."""


def begin_run(
    storage: ArchiveStorage,
    brokers: ArchiveBrokers,
    streams: Iterable[tuple[str, Sequence[str]]],
    before: ArchiveRun | None,
    deleted: Sequence[str] = (),
) -> StartedRun:
    """Begin a run of these `(table, topics)`: each partition at its position, or behind a gap.

    `deleted`: topics archived before that no longer exist. ArchiveUnusable if the delay or progress
    topic was created again or lost archived records: its offsets name other messages than the
    tables."""
    known = before.topics if before is not None else {}
    topics = dict(known)
    found: dict[str, _Found] = {}
    left_out: dict[str, str] = {}
    broker_ms: int | None = None
    # Before the first request: everything committed by then is visible to the run.
    read_ms = time.time_ns() // 1_000_000
    for table, named in streams:
        infos = brokers.describe(named)
        for topic in named:
            info, old = infos[topic], known.get(topic)
            if info is None:
                continue  # deleted since it was listed
            if table in OFFSETS_NAME and old is not None and old.id != info.id:
                raise ArchiveUnusable(
                    f"{topic} was deleted and created again: its offsets name other messages than "
                    f"those in {storage.uri}; choose another location"
                )
            try:
                found[topic] = _look_at(brokers, topic, info, table)
            except LogUnavailable as error:
                left_out[topic] = str(error)
        if table == schema.PROGRESS.name:
            broker_ms = _newest_ms(
                brokers, {topic: found[topic] for topic in named if topic in found}
            )
    # No two runs have the same time, whatever happens to this machine's clock, and no run looks
    # older than what it has seen.
    read_ms = max(read_ms, broker_ms or 0, 0 if before is None else before.read_ms + 1)
    truncated = _truncated(brokers, found, known)
    for topic, seen in found.items():
        topics[topic] = _begin_topic(topic, seen, known.get(topic), truncated)
        if seen.table == schema.DELIVERIES.name and topic not in known:
            for part, first in list(topics[topic].partitions.items())[:OLDEST_ASKED]:
                first.oldest_ms = _oldest_ms(
                    brokers, topic, part, seen.watermarks[part], broker_ms or read_ms
                )
        if seen.table == schema.DELIVERIES.name:
            _note_losses(brokers, topic, seen, topics[topic], known.get(topic), read_ms)
        lost = [
            part for part, read in topics[topic].partitions.items() if read.gap_reason == TRUNCATED
        ]
        if seen.table in OFFSETS_NAME and lost:
            raise ArchiveUnusable(
                f"{topic}/{lost[0]} lost records that are archived (a lost disk, or an unclean "
                f"leader election): its offsets name other messages than those in {storage.uri}; "
                "choose another location"
            )
    read = set(found)
    if not read:
        raise LogUnavailable(
            f"no topic can be read: {'; '.join(left_out.values()) or 'all were deleted'}"
        )
    run = ArchiveRun(read_ms=read_ms, topics=topics, broker_ms=broker_ms)
    return StartedRun(
        name=uuid4().hex,
        run=run,
        rows=_begin_rows(run, read, deleted),
        read=read,
        left_out=left_out,
    )


class _Found(Struct, frozen=True):
    """A topic as the brokers describe it at the beginning of a run."""

    table: str
    id: str
    watermarks: dict[str, Any]
    """`Watermarks` by partition."""
    compacted: bool


def _look_at(brokers: ArchiveBrokers, topic: str, info: Any, table: str) -> _Found:
    if info.leaderless:
        raise LogUnavailable(
            "no broker leads "
            f"{', '.join(f'{topic}/{number}' for number in sorted(info.leaderless))}"
        )
    watermarks = {
        str(number): brokers.watermarks(topic, number) for number in range(info.partitions)
    }
    return _Found(table, info.id, watermarks, info.compacted)


def _newest_ms(brokers: ArchiveBrokers, found: Mapping[str, _Found]) -> int | None:
    """The newest timestamp in the topics, by the clocks of the brokers; None if they are empty, or
    cannot tell.

    Everything that was written by then, by any of these clocks, is seen by whoever looks at other
    topics afterwards."""
    newest: list[int] = []
    for topic, seen in found.items():
        for part, ends in seen.watermarks.items():
            if ends.stable <= ends.start:
                continue
            with suppress(
                LogUnavailable
            ):  # some settings of TLS or SASL are not supported for headers
                header = brokers.batch_header(topic, int(part), ends.stable - 1)
                newest += [] if header.create_time else [header.timestamp_ms]
    return max(newest, default=None)


def _oldest_ms(
    brokers: ArchiveBrokers, topic: str, part: str, ends: Any, seen_ms: int
) -> int | None:
    """The timestamp of the first record of a partition, or `seen_ms` if that is older; None if the
    brokers cannot tell.

    What was delivered since then is in this topic, and not in an earlier one of its name: `seen_ms`
    is the time of the newest step that had been committed when the topic was seen."""
    if ends.high <= ends.start:
        return seen_ms
    with suppress(LogUnavailable):
        return min(seen_ms, int(brokers.batch_header(topic, int(part), ends.start).timestamp_ms))
    return None


def _truncated(
    brokers: ArchiveBrokers, found: Mapping[str, _Found], known: Mapping[str, TopicRead]
) -> set[Any]:
    """Partitions whose log no longer has what was archived from it, although it reaches beyond.

    Only an election can bring a log with other records, so only partitions with a new leader epoch
    are compared."""
    asked = {}
    for topic, seen in found.items():
        old = known.get(topic)
        for part, read in old.partitions.items() if old is not None and old.id == seen.id else ():
            now = seen.watermarks.get(part)
            if (
                now is None
                or read.leader_epoch in (None, now.leader_epoch)
                or now.leader_epoch is None
            ):
                continue
            if now.start <= read.position <= now.high:
                asked[topic, int(part)] = (read.position, read.leader_epoch)
    return brokers.truncated(asked) if asked else set()


def _begin_topic(
    topic: str, seen: _Found, old: TopicRead | None, truncated: Collection[Any]
) -> TopicRead:
    same = old is not None and old.id == seen.id
    reads = {}
    for part, watermarks in seen.watermarks.items():
        at = old.partitions.get(part) if old is not None else None
        reads[part] = _partition_read(
            watermarks, at, same=same, truncated=(topic, int(part)) in truncated
        )
    return TopicRead(id=seen.id, table=seen.table, partitions=reads, compacted=seen.compacted)


def _note_losses(
    brokers: ArchiveBrokers,
    topic: str,
    seen: _Found,
    read: TopicRead,
    old: TopicRead | None,
    now_ms: int,
) -> None:
    """Enter what may have been lost in a target since the run before; a partition with a gap has
    that reason already."""
    same = old is not None and old.id == seen.id
    for part, one in read.partitions.items():
        before = old.partitions.get(part) if old is not None and same else None
        if one.gap_reason in (None, TRIMMED):
            epoch = None if before is None else before.leader_epoch
            one.loss = loss_of(
                brokers, topic, part, seen.watermarks[part], one.begin, epoch, now_ms
            )


def loss_of(
    brokers: ArchiveBrokers,
    topic: str,
    part: str,
    ends: Any,
    since: int,
    epoch: int | None,
    now_ms: int,
) -> Loss | None:
    """The result of `find_loss` for a partition; everything until now where the brokers cannot
    tell."""
    now_ms += LOOK_MS
    try:
        return find_loss(
            partial(brokers.batch_header, topic, int(part)), ends, since, epoch, now_ms
        )
    except LogUnavailable:
        return None if epoch is None else Loss(0, now_ms)


def _partition_read(
    watermarks: Any, old: PartitionRead | None, *, same: bool, truncated: bool
) -> PartitionRead:
    begin, gap = watermarks.start, None
    if old is not None and not same:
        gap = RECREATED
    elif old is not None and (truncated or old.position > watermarks.high):
        gap = TRUNCATED
    elif old is not None:
        begin = max(old.position, watermarks.start)
        gap = TRIMMED if begin > old.position else None
    return PartitionRead(
        begin=begin,
        log_start=watermarks.start,
        stable_end=watermarks.stable,
        high_watermark=watermarks.high,
        gap_reason=gap,
        position=begin,
        leader_epoch=watermarks.leader_epoch,
    )


def _begin_rows(
    run: ArchiveRun, read: Collection[str], deleted: Iterable[str]
) -> "list[OffsetRow]":
    """A row of `offsets` for each partition before anything is read, so that gaps known by then are
    recorded.

    The rows also prove that a partition had nothing new, without which the audit could call nothing
    there missing."""
    rows = [
        offset_row(
            run,
            topic,
            part,
            seen.begin,
            seen.begin,
            gap=seen.gap_reason,
            epoch=seen.leader_epoch,
            loss=seen.loss,
        )
        for topic in sorted(run.topics.keys() & set(read))
        for part, seen in run.topics[topic].partitions.items()
    ]
    rows += [
        offset_row(
            run, topic, part, seen.position, seen.position, gap=DELETED, epoch=seen.leader_epoch
        )
        for topic in deleted
        for part, seen in run.topics[topic].partitions.items()
    ]
    return rows


OffsetRow = dict[str, Any]
"""A row of the table `offsets` without the columns of its commit: `sequence`, `versions` and
`targets`."""


def offset_row(
    run: ArchiveRun,
    topic: str,
    part: str,
    begin: int,
    end: int,
    *,
    gap: str | None,
    epoch: int | None,
    loss: Loss | None = None,
) -> OffsetRow:
    """A row of the table `offsets`."""
    seen = run.topics[topic]
    read = seen.partitions[part]
    return {
        "table": seen.table,
        "topic": topic,
        "partition": int(part),
        "topic_id": seen.id,
        "from_offset": begin,
        "until_offset": end,
        "log_start": read.log_start,
        "stable_end": read.stable_end,
        "high_watermark": read.high_watermark,
        "read_ms": run.read_ms,
        "gap": gap is not None,
        "gap_reason": gap,
        "broker_ms": run.broker_ms,
        "compacted": seen.compacted,
        "oldest_ms": read.oldest_ms,
        "loss_from_ms": None if loss is None else loss.from_ms,
        "loss_until_ms": None if loss is None else loss.until_ms,
        "leader_epoch": epoch,
    }
