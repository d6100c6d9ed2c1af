"""An audit: the outcome of every message that was due in a window, with the coverage of the
archive; and a search for messages by id, target or headers, each with its outcome.

An audit reads the archive alone, sends no request to a broker, and writes nothing except the
details, if they are requested. Law: a message is called missing only if the archive proves it; it
is pending while the logs do not prove that it is settled, or its target was not read since, and
unknown where the archive cannot tell, as after a gap or in a target that it does not hold."""

from collections.abc import Mapping
from functools import reduce

from msgspec import Struct
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from chronos.core.timefmt import format_time
from chronos.errors import ArchiveFailed
from chronos.spark import ledger
from chronos.spark.audit import summary
from chronos.spark.audit.coverage import (
    EVIDENCE,
    ArchiveCoverage,
    collect_evidence,
    coverage,
    evidence_rows,
    recent,
    usable,
)
from chronos.spark.audit.hops import with_hops
from chronos.spark.audit.outcomes import (
    INNER,
    WRONG,
    Span,
    outcomes,
    promised_deliveries,
    received,
    stepped_over,
    with_accepted_ms,
    with_erased,
    with_replays,
)
from chronos.spark.audit.reach import decided_since, reach
from chronos.spark.audit.summary import DAY_MS
from chronos.spark.backfill.selection import has_headers, has_id, requested
from chronos.spark.delta import is_empty, once
from chronos.spark.request import BackfillRequest
from chronos.spark.runs import UNREADABLE
from chronos.spark.schema import DECISIONS, DELIVERIES, MESSAGES
from chronos.spark.session import Step, Watch, ignore
from chronos.spark.storage import ArchiveStorage
from chronos.spark.tables import Tables, open_tables

TAIL_MS = 120_000
"""Time in ms before the archive's end whose messages may be pending: an idle master writes progress
once a minute."""


class EmptyWindow(ValueError):
    """The window of due times ends before it begins."""


class ShardCoverage(Struct, frozen=True, kw_only=True):
    """How far the messages of one shard can be judged."""

    shard: int
    settled_ms: int | None
    """Messages with due time and timestamp up to here are proved to be settled, epoch ms; None: no
    message is."""
    gap_ms: int | None
    """When records of its delay or progress partition were found deleted before they were archived;
    None: never."""


class TargetCoverage(Struct, frozen=True, kw_only=True):
    """How far one target is archived."""

    target: str
    covered_ms: int | None
    """Every record committed by then is archived, epoch ms; None: unknown for all."""
    gap_ms: int | None
    """When records were found deleted before they were archived; None: never."""
    unresolved: bool
    """True if a transaction was open in it when it was last read."""
    born_ms: int | None = None
    """The topic is known to have existed since then; None: not known."""
    compacted_ms: int | None = None
    """When it was last known to be compacted; None: never."""
    gap_reason: str | None = None
    """Why they were not archived, as in the table `offsets`."""


class Audit(Struct, frozen=True, kw_only=True):
    """The result of an audit."""

    cluster: str
    span: Span
    archived_ms: int
    """The end of the archive, epoch ms: it holds every record of the delay topic written by then;
    0: there is no such time yet."""
    judged_ms: int
    """Every message due before was judged, or can never be."""
    overall: summary.SummaryRow
    reasons: list[tuple[str, str, int]]
    targets: list[summary.SummaryRow]
    hours: list[summary.SummaryRow]
    days: list[summary.SummaryRow]
    points: list[summary.SummaryRow]
    point_ms: int
    """Width of a point in ms."""
    worst: list[summary.SummaryRow]
    samples: list[summary.OutcomeSample]
    shards: list[ShardCoverage]
    archived_targets: list[TargetCoverage]
    details: str | None
    versions: Mapping[str, int]
    """The version of each table of the archive that was read, by its name."""

    @property
    def broken(self) -> bool:
        """True if a message is missing, duplicated or early."""
        return any(self.overall.counts.get(outcome) for outcome in WRONG)

    @property
    def not_proved(self) -> list[str]:
        """The reasons why the archive does not prove the outcome of every message of the window;
        empty if it does.

        Messages due in the last `TAIL_MS` before the archive's end may still be pending.
        """
        why = []
        unknown = self.overall.counts.get("unknown")
        if unknown:
            reasons = sorted(
                {reason for outcome, reason, _ in self.reasons if outcome == "unknown"}
            )
            why.append(f"{unknown:,} messages are unknown ({', '.join(reasons)})")
        if self.judged_ms < min(self.span.to_ms, self.archived_ms - TAIL_MS):
            why.append(f"messages due from {format_time(self.judged_ms)} on are pending")
        if self.span.to_ms > self.archived_ms:
            why.append(before_window(self.archived_ms))
        return why

    @property
    def clean(self) -> bool:
        """True if nothing is missing, duplicated or early, and the archive proves it."""
        return not self.broken and not self.not_proved


class Judgement(Struct, frozen=True, kw_only=True):
    """The outcomes, not yet computed, and how far they could be judged."""

    outcomes: DataFrame
    are_filed_here: bool
    """True if the records of all of them are filed in the window."""
    shards: list[ShardCoverage]
    targets: list[TargetCoverage]


UNREAD = "the archive does not hold every partition of the delay topic yet"


def before_window(archived_ms: int) -> str:
    """Why an archive that ends then does not prove the whole window."""
    return (
        f"the archive ends at {format_time(archived_ms)}, before the window does"
        if archived_ms
        else UNREAD
    )


def archive_end(covered: ArchiveCoverage, location: str, *, needs_window: bool) -> int:
    """The end of what the archive holds, epoch ms; 0: there is none yet.

    ArchiveFailed if there is none and the window would end there, or the delay topic was never
    looked at."""
    archived_ms = covered.end_ms
    if archived_ms is None:
        raise ArchiveFailed(
            f"the archive at {location} holds no record of the delay topic yet; run `chronos "
            "archive`"
        )
    if not archived_ms and needs_window:
        raise ArchiveFailed(
            f"{UNREAD}, so that it has no end: run `chronos archive` to its end, or give --from "
            "and --to"
        )
    return archived_ms


def default_span(
    archived_ms: int, from_ms: int | None, to_ms: int | None, now_ms: int = 0, *, days: int = 1
) -> Span:
    """The window; by default the last days that are archived, or up to `now_ms` where it begins
    behind the archive's end.

    EmptyWindow if it ends before it begins.
    """
    end_ms = archived_ms if to_ms is None else to_ms
    start_ms = end_ms - days * DAY_MS if from_ms is None else from_ms
    if to_ms is None and start_ms >= end_ms:
        if start_ms >= now_ms:
            raise EmptyWindow(
                f"the archive ends at {format_time(archived_ms)}, before the window begins at "
                f"{format_time(start_ms)}; run `chronos archive` first, or give an earlier --from"
                if archived_ms
                else f"{UNREAD}; run `chronos archive` to its end first"
            )
        end_ms = now_ms
    if start_ms >= end_ms:
        raise EmptyWindow(
            f"the window ends at {format_time(end_ms)}, before it begins at {format_time(start_ms)}"
        )
    return Span(from_ms=start_ms, to_ms=end_ms)


def judge(tables: Tables, covered: ArchiveCoverage, delay_topic: str, span: Span) -> Judgement:
    """The outcomes of the promised deliveries due in the window. `covered`: by the same tables.

    ArchiveFailed if a row is outside the partition of its time."""
    spark = tables.offsets.sparkSession
    _check_partitions(tables, span)
    targets, delay, steps = covered.targets, covered.delay, covered.steps
    messages = with_accepted_ms(tables.messages)
    reached = reach(messages, tables.decisions, span)
    progress = usable(tables.progress, tables.offsets)
    found, last = collect_evidence(
        targets, delay, steps, recent(progress, span.from_ms), tables.offsets, span.from_ms
    )
    evidence = spark.createDataFrame(evidence_rows(found), EVIDENCE)
    last_table = spark.createDataFrame(
        [(shard, frontier.offset, frontier.due_ms) for shard, frontier in last.items()],
        "shard int, last_offset long, last_due_ms long",
    )
    promised = promised_deliveries(messages, tables.decisions, progress, span, reached)
    if not is_empty(tables.offsets.where(f.col("gap_reason") == UNREADABLE)):
        promised = promised.unionByName(stepped_over(tables.decisions, tables.offsets, span))
    wanted = Span(from_ms=min(span.from_ms, reached.requested_ms), to_ms=span.to_ms)
    delivered = received(tables.deliveries, delay_topic, wanted)
    judged = outcomes(promised, delivered, evidence, last_table)
    decisions = tables.decisions.where(decided_since(reached.since_ms))
    judged = with_hops(judged, tables.messages, decisions, delay_topic, span, delay, steps)
    return Judgement(
        outcomes=judged if tables.erased is None else with_erased(judged, tables.erased, span),
        are_filed_here=reached.moved is None and reached.carried is None,
        shards=[
            ShardCoverage(
                shard=shard,
                settled_ms=frontier.due_ms if frontier.due_ms >= 0 else None,
                gap_ms=max(
                    (
                        seen.gap_ms
                        for seen in (delay.get(shard), steps.get(shard))
                        if seen is not None and seen.gap_ms is not None
                    ),
                    default=None,
                ),
            )
            for shard, frontier in sorted(last.items())
        ],
        targets=[
            TargetCoverage(
                target=name,
                covered_ms=seen.until_ms or None,
                gap_ms=seen.gap_ms,
                unresolved=seen.unresolved,
                gap_reason=seen.gap_reason,
                compacted_ms=seen.compacted_ms,
                born_ms=seen.born_ms,
            )
            for name, seen in sorted(targets.items())
        ],
    )


def _check_partitions(tables: Tables, span: Span) -> None:
    """Raise ArchiveFailed if a row of the window is in another partition than that of its time:
    nothing would find it, and a message could be called missing."""
    read = (
        (MESSAGES, tables.messages),
        (DELIVERIES, tables.deliveries),
        (DECISIONS, tables.decisions),
    )
    outside = reduce(
        DataFrame.unionAll,
        (
            rows.where(span.outside(table)).select(f.lit(table.name).alias("table")).limit(1)
            for table, rows in read
        ),
    )
    found = outside.agg(f.first("table").alias("table")).first()
    if found is not None and found["table"] is not None:
        raise ArchiveFailed(
            f"a row of table {found['table']} is in another partition than that of its time: "
            "another program wrote it. Archive to another location"
        )


def audit(
    spark: SparkSession,
    storage: ArchiveStorage,
    *,
    from_ms: int | None,
    to_ms: int | None,
    now_ms: int = 0,
    details: str | None = None,
    watch: Watch = ignore,
) -> Audit:
    """Audit a window of due times; `details` is a new folder for a row of Parquet for each promised
    delivery.

    `now_ms`: where a window ends that begins behind the archive's end; nothing in it can be judged.

    ArchiveFailed if there is no archive or the details cannot be written; EmptyWindow.
    """
    tables, cluster, delay_topic = open_tables(spark, storage)
    watch(Step(name="reading the coverage of the archive"))
    covered = coverage(tables.offsets)
    needs_window = from_ms is None and to_ms is None
    archived_ms = archive_end(covered, storage.uri, needs_window=needs_window)
    span = default_span(archived_ms, from_ms, to_ms, now_ms)
    judged = judge(tables, covered, delay_topic, span)
    rows = judged.outcomes
    if ledger.runs(storage):
        rows = with_replays(rows, ledger.sent_rows(spark, storage))
    if details is not None:
        watch(Step(name=f"writing the details to {details}"))
        rows = _written(spark, rows.drop(*INNER), details)
    watch(Step(name="joining promised deliveries with the targets"))
    cells = once(summary.cube(rows, span))
    return _summary(cells, judged, span, cluster, archived_ms, details, tables.versions)


def check_details(details: str) -> None:
    """Raise ArchiveFailed if the folder for the details exists already."""
    if ArchiveStorage(details).exists(""):
        raise ArchiveFailed(
            f"{details} exists already; choose another folder for the details, or remove it"
        )


def _written(spark: SparkSession, rows: DataFrame, details: str) -> DataFrame:
    """The rows, written and read again, so that they are computed once."""
    storage = ArchiveStorage(details)
    try:
        rows.write.parquet(storage.uri)
    except AnalysisException as error:
        if error.getCondition() == "PATH_ALREADY_EXISTS":
            check_details(details)
        raise
    return spark.read.parquet(storage.uri)


def _summary(
    cells: DataFrame,
    judged: Judgement,
    span: Span,
    cluster: str,
    archived_ms: int,
    details: str | None,
    versions: Mapping[str, int],
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
        days=summary.by_day(cells),
        points=summary.over_time(cells, span),
        point_ms=summary.width_ms(span),
        worst=summary.worst(cells, span),
        samples=summary.samples(cells),
        shards=judged.shards,
        archived_targets=judged.targets,
        details=details,
        versions=versions,
    )


FIND_DAYS = 30
"""The default window of `find` without ids ends where the archive does, and begins so many days
before."""


class FoundDelivery(Struct, frozen=True, kw_only=True):
    """One promised delivery: a message, or an occurrence of a series."""

    id: bytes | None
    """None: the record could not be read."""
    target: str | None
    outcome: str
    """As `chronos audit` names it."""
    reason: str | None
    shard: int
    offset: int
    """Position of its record in the delay topic."""
    occurrence: int
    attempt: int
    accepted_ms: int | None
    due_ms: int
    delivered_ms: int | None


class FoundDeliveries(Struct, frozen=True, kw_only=True):
    """The deliveries that were found, the earliest due first."""

    span: Span | None
    """The window of due times that was searched; None: the whole archive."""
    deliveries: list[FoundDelivery]
    has_more: bool


def find(
    spark: SparkSession,
    storage: ArchiveStorage,
    request: BackfillRequest,
    *,
    id_prefix: str = "",
    limit: int,
    now_ms: int = 0,
    watch: Watch = ignore,
) -> FoundDeliveries:
    """Find the deliveries of the request's window, targets, ids and headers, at most `limit` of
    them. Ids without a window are looked for in the whole archive.

    ArchiveFailed if there is no archive; EmptyWindow.
    """
    tables, _, delay_topic = open_tables(spark, storage)
    watch(Step(name="reading the coverage of the archive"))
    covered = coverage(tables.offsets)
    has_window = request.from_ms is not None or request.to_ms is not None
    archived_ms = archive_end(covered, storage.uri, needs_window=not has_window)
    is_everywhere = not has_window and bool(request.ids or id_prefix)
    if is_everywhere:
        watch(Step(name="looking for the ids"))
        # Of any target: an action names none.
        named = tables.messages.where(has_id(request) & _begins_with(id_prefix))
        of_ids = _span_of(due_times(with_accepted_ms(named), tables.decisions))
        if of_ids is None:
            return FoundDeliveries(span=None, deliveries=[], has_more=False)
        span = of_ids
    else:
        span = default_span(archived_ms, request.from_ms, request.to_ms, now_ms, days=FIND_DAYS)
    judged = judge(tables, covered, delay_topic, span)
    rows = judged.outcomes
    if ledger.runs(storage):
        rows = with_replays(rows, ledger.sent_rows(spark, storage))
    rows = requested(rows, request).where(_begins_with(id_prefix))
    if request.headers:
        filed = span.within(MESSAGES) if judged.are_filed_here else f.lit(True)
        records = tables.messages.where(filed & has_headers(request)).select(
            "shard", f.col("offset").alias("source_offset")
        )
        rows = rows.join(records, ["shard", "source_offset"], "left_semi")
    watch(Step(name="looking for the messages"))
    in_order = rows.orderBy("due_ms", "shard", "source_offset", "occurrence")
    found = in_order.limit(limit + 1).collect()
    deliveries = [
        FoundDelivery(
            id=None if row["id"] is None else bytes(row["id"]),
            target=row["target"],
            outcome=row["outcome"],
            reason=row["reason"],
            shard=row["shard"],
            offset=row["source_offset"],
            occurrence=row["occurrence"],
            attempt=row["attempt"],
            accepted_ms=row["accepted_ms"],
            due_ms=row["due_ms"],
            delivered_ms=row["delivered_ms"],
        )
        for row in found[:limit]
    ]
    return FoundDeliveries(
        span=None if is_everywhere else span, deliveries=deliveries, has_more=len(found) > limit
    )


def due_times(messages: DataFrame, decisions: DataFrame) -> DataFrame:
    """Records of some ids, with `accepted_ms`, and table `decisions` -> `shard`, `id` and each time
    `at` at which a delivery that they promise was ever due.

    Besides ids and times it reads of the decisions only what they are about and when it was due
    next."""
    records = messages.where(~f.col("verb").isin("cancel", "settled", "probe")).select(
        "shard", "id", "offset", f.coalesce("due_ms", "accepted_ms").alias("at")
    )
    moved = decisions.where(f.col("next_due_ms").isNotNull()).select(
        "shard", f.col("source_offset").alias("offset"), f.col("next_due_ms").alias("at")
    )
    moved = records.drop("at").join(moved, ["shard", "offset"])
    return records.unionByName(moved).select("shard", "id", "at")


def _span_of(times: DataFrame) -> Span | None:
    """The window of all these times; None: there are none."""
    found = times.agg(f.min("at").alias("first"), f.max("at").alias("last")).first()
    assert found is not None
    if found["first"] is None:
        return None
    return Span(from_ms=found["first"], to_ms=found["last"] + 1)


def _begins_with(id_prefix: str) -> Column:
    return f.hex("id").startswith(id_prefix.encode().hex().upper()) if id_prefix else f.lit(True)
