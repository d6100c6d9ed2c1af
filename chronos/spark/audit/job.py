"""The audit: what became of every message that was due in a window, by what the archive proves.

Reads the archive and writes nothing, except the details if they are wanted. Says how far it could judge: what lies
beyond is pending, and what the archive cannot know is unknown, never missing.
"""

from collections.abc import Callable

from msgspec import Struct
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.storagelevel import StorageLevel

from chronos.core.timefmt import format_time
from chronos.errors import ArchiveFailed
from chronos.spark import ledger, schema
from chronos.spark.audit import summary
from chronos.spark.audit.coverage import JUDGES, coverage, judge_rows, judges, recent, usable
from chronos.spark.audit.outcomes import WRONG, Span, fates, received, scheduled, units
from chronos.spark.backfill.replays import with_replays
from chronos.spark.runs import check_format
from chronos.spark.storage import Place

DAY_MS = 86_400_000

Watch = Callable[[str], None]
"""Told what is being done now, in a few words."""


class EmptyWindow(ValueError):
    """The window of due times ends before it begins."""


class ShardSeen(Struct, frozen=True, kw_only=True):
    """How far one shard can be judged."""

    shard: int
    settled_ms: int | None
    """Everything with a due time and a timestamp up to here is proved to be settled; None: nothing is."""
    gap_ms: int | None
    """When records of its delay or progress partition were found to be gone before they were archived."""


class TargetSeen(Struct, frozen=True, kw_only=True):
    """How far one target is archived."""

    target: str
    covered_ms: int | None
    """Everything committed by then is archived; None: nothing is known to be."""
    gap_ms: int | None
    unresolved: bool
    """When it was read last, a transaction was open in it."""


class Audit(Struct, frozen=True, kw_only=True):
    """What was found."""

    cluster: str
    span: Span
    archived_ms: int
    """When the delay topic was last archived."""
    judged_ms: int
    """Every message due before was judged, or cannot be."""
    overall: summary.Row
    reasons: list[tuple[str, str, int]]
    targets: list[summary.Row]
    hours: list[summary.Row]
    points: list[summary.Row]
    point_ms: int
    """How much time a point stands for."""
    worst: list[summary.Row]
    samples: list[summary.Sample]
    shards: list[ShardSeen]
    archived_targets: list[TargetSeen]
    details: str | None

    @property
    def clean(self) -> bool:
        """Nothing is missing, doubled or early."""
        return not any(self.overall.counts.get(outcome) for outcome in WRONG)


class Tables(Struct, frozen=True, kw_only=True):
    """The tables an audit reads."""

    messages: DataFrame
    deliveries: DataFrame
    decisions: DataFrame
    progress: DataFrame
    offsets: DataFrame


class Judged(Struct, frozen=True, kw_only=True):
    """Fates, not yet computed, and how far they could be judged."""

    fates: DataFrame
    shards: list[ShardSeen]
    targets: list[TargetSeen]


def read_table(spark: SparkSession, place: Place, table: schema.Table) -> DataFrame:
    """A table of the archive, also of an older version; empty when nothing was archived to it yet."""
    kinds = schema.table_schema(table)
    if not place.folders(table.name):
        return spark.createDataFrame([], kinds)
    return spark.read.schema(kinds).parquet(place.path(table.name))


def open_tables(spark: SparkSession, place: Place) -> tuple[Tables, str, str]:
    """The tables, the cluster's name and its delay topic; ArchiveFailed when there is no archive.

    Spark lists a table's files here. `offsets` comes first: what it vouches for is there by then, whatever an archive
    run beside adds to the others.
    """
    found = check_format(place)
    if found is None:
        raise ArchiveFailed(f"{place.uri} is no archive: there is no archive.json; `chronos archive` makes one")
    offsets = read_table(spark, place, schema.OFFSETS)
    tables = Tables(
        messages=read_table(spark, place, schema.MESSAGES),
        deliveries=read_table(spark, place, schema.DELIVERIES),
        decisions=read_table(spark, place, schema.DECISIONS),
        progress=read_table(spark, place, schema.PROGRESS),
        offsets=offsets,
    )
    return tables, found["cluster"], found["topics"]["delay"]


def last_read_ms(offsets: DataFrame) -> int | None:
    """When the delay topic was read last; None: never."""
    found = offsets.where("table = 'messages'").agg(f.max("read_ms").alias("read_ms")).first()
    return None if found is None else found["read_ms"]


def default_span(archived_ms: int, from_ms: int | None, to_ms: int | None) -> Span:
    """The last 24 hours that are archived, as far as not said otherwise; EmptyWindow when there is nothing between."""
    end_ms = archived_ms if to_ms is None else to_ms
    start_ms = end_ms - DAY_MS if from_ms is None else from_ms
    if start_ms >= end_ms:
        raise EmptyWindow(f"the window ends at {format_time(end_ms)}, before it begins at {format_time(start_ms)}")
    return Span(from_ms=start_ms, to_ms=end_ms)


def judge(tables: Tables, delay_topic: str, span: Span) -> Judged:
    """The fates of the units due in the window."""
    spark = tables.offsets.sparkSession
    by_partition = coverage(tables.offsets, "table", "partition")
    by_topic = coverage(tables.offsets.where("table = 'deliveries'"), "table", "topic")
    targets = {str(topic): seen for (_, topic), seen in by_topic.items()}
    delay = {int(shard): seen for (table, shard), seen in by_partition.items() if table == "messages"}
    steps = {int(shard): seen for (table, shard), seen in by_partition.items() if table == "progress"}
    progress = usable(tables.progress, tables.offsets)
    found, last = judges(targets, delay, steps, recent(progress, span.from_ms))
    judge_table = spark.createDataFrame(judge_rows(found), JUDGES)
    last_table = spark.createDataFrame(
        [(shard, frontier.offset, frontier.due_ms) for shard, frontier in last.items()],
        "shard int, last_offset long, last_due_ms long",
    )
    promised = units(tables.messages, tables.decisions, progress, span)
    asked = scheduled(tables.messages, span).agg(f.min("requested_due_ms").alias("from_ms")).first()
    from_ms = span.from_ms if asked is None or asked["from_ms"] is None else min(span.from_ms, asked["from_ms"])
    delivered = received(tables.deliveries, delay_topic, Span(from_ms=from_ms, to_ms=span.to_ms))
    return Judged(
        fates=fates(promised, delivered, judge_table, last_table),
        shards=[
            ShardSeen(
                shard=shard, settled_ms=frontier.due_ms if frontier.due_ms >= 0 else None,
                gap_ms=max((seen.gap_ms for seen in (delay.get(shard), steps.get(shard))
                            if seen is not None and seen.gap_ms is not None), default=None),
            )
            for shard, frontier in sorted(last.items())
        ],
        targets=[
            TargetSeen(target=name, covered_ms=seen.covered_ms or None, gap_ms=seen.gap_ms, unresolved=seen.unresolved)
            for name, seen in sorted(targets.items())
        ],
    )  # fmt: skip


def audit(
    spark: SparkSession,
    place: Place,
    *,
    from_ms: int | None,
    to_ms: int | None,
    details: str | None = None,
    watch: Watch = lambda _: None,
) -> Audit:
    """The audit of a window of due times; `details` is where a row for each unit is to be written as Parquet.

    ArchiveFailed when there is no archive or the details cannot be written; EmptyWindow.
    """
    tables, cluster, delay_topic = open_tables(spark, place)
    archived_ms = last_read_ms(tables.offsets)
    if archived_ms is None:
        raise ArchiveFailed(f"the archive at {place.uri} holds nothing of the delay topic yet; run `chronos archive`")
    span = default_span(archived_ms, from_ms, to_ms)
    watch("finding out how far the logs prove everything settled")
    judged = judge(tables, delay_topic, span)
    rows = judged.fates
    if ledger.runs(place):
        rows = with_replays(rows, ledger.sent_rows(spark, place))
    if details is not None:
        watch(f"writing the details to {details}")
        rows = _kept(spark, rows, details)
    watch("comparing what was scheduled with what the targets hold")
    cells = summary.cube(rows, span).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        return _summary(cells, judged, span, cluster, archived_ms, details)
    finally:
        cells.unpersist()


def _kept(spark: SparkSession, rows: DataFrame, details: str) -> DataFrame:
    """The rows, written and read again: they are computed once."""
    place = Place(details)
    try:
        rows.write.parquet(place.uri)
    except AnalysisException as error:
        if error.getCondition() != "PATH_ALREADY_EXISTS":
            raise
        raise ArchiveFailed(f"{details} is there already; choose another place for the details, or remove it") from None
    return spark.read.parquet(place.uri)


def _summary(
    cells: DataFrame, judged: Judged, span: Span, cluster: str, archived_ms: int, details: str | None
) -> Audit:
    overall = summary.overall(cells)
    pending_ms = summary.first_pending_ms(cells)
    ends = [span.to_ms, archived_ms, *([] if pending_ms is None else [pending_ms])]
    return Audit(
        cluster=cluster,
        span=span,
        archived_ms=archived_ms,
        judged_ms=max(span.from_ms, min(ends)),
        overall=overall,
        reasons=summary.reasons(cells),
        targets=summary.by_target(cells),
        hours=summary.by_hour(cells),
        points=summary.over_time(cells, span),
        point_ms=summary.width_ms(span),
        worst=summary.worst(cells, span),
        samples=summary.samples(cells),
        shards=judged.shards,
        archived_targets=judged.targets,
        details=details,
    )
