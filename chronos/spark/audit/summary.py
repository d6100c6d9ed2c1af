"""The summary of outcomes: counts, and lateness percentiles per target, hour and point in time.

Everything comes out of one small table, `cube`: the number of deliveries by outcome, reason,
target, point in time (a minute to an hour, by the length of the window) and class of lateness. It
is made in one pass and combined where the rows are, so that one target with nearly all messages
costs no more than many. Law: everything that goes to the driver is bounded by a limit of this
module."""

from typing import Any

from msgspec import Struct
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from chronos.spark.audit.outcomes import OUTCOMES, WRONG, Span

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

POINTS_MAX = 1_500
"""Most points of a curve: a day by the minute."""

WIDTHS_MS = tuple(
    minutes * MINUTE_MS for minutes in (1, 2, 5, 10, 15, 30, 60, 180, 360, 720, 1_440, 10_080)
)
"""Widths of a point in ms; the smallest that needs at most `POINTS_MAX` points is taken."""

TARGETS_MAX = 1_000
"""Most targets in the summary: the ones with most messages."""

HOURS_MAX = 10_000
"""Most rows of target and hour in the summary; the details of an audit have all."""

DAYS_MAX = 4_000
"""Most days in the summary, the last ones: ten years."""

WORST = 10
"""Number of worst minutes in the summary."""

SAMPLES = 20
"""Deliveries named for each outcome that breaks a law."""

_SHARD_SHIFT = 48
"""Bits for the offset in a number made of shard and offset."""


class Lateness(Struct, frozen=True, kw_only=True):
    """Lateness of delivered messages: ms from due (or accepted, if that was later) to delivered."""

    count: int
    p50_ms: int | None
    p99_ms: int | None
    p999_ms: int | None
    max_ms: int | None


class SummaryRow(Struct, frozen=True, kw_only=True):
    """Counts and lateness of a target, an hour, a point in time, or the whole window."""

    counts: dict[str, int]
    """Deliveries by outcome, without zeros."""
    lateness: Lateness
    target: str | None = None
    at_ms: int | None = None
    """Beginning of the hour or point in epoch ms; None: no time."""


class OutcomeSample(Struct, frozen=True, kw_only=True):
    """One delivery whose outcome breaks a law."""

    outcome: str
    shard: int
    source_offset: int
    target: str | None
    at_ms: int
    """Beginning of the minute it was due in, epoch ms."""


def width_ms(span: Span) -> int:
    """Width in ms of a point of the curve."""
    length_ms = max(1, span.to_ms - span.from_ms)
    return next(
        (width for width in WIDTHS_MS if length_ms <= width * POINTS_MAX),
        -(-length_ms // POINTS_MAX),
    )


def cube(judged: DataFrame, span: Span) -> DataFrame:
    """`outcomes` -> `target`, `at_ms`, `outcome`, `reason`, `late_ms` (class), `n`, `max_ms`,
    `first_due_ms`, `sample`.

    Lateness below a second is exact to the millisecond, above to three digits: to 1 % at worst.
    """
    at_ms = min(width_ms(span), HOUR_MS)
    due, late = f.col("due_ms"), f.col("lateness_ms")
    token = f.shiftleft(f.col("shard").cast("long"), _SHARD_SHIFT) + f.col("source_offset")
    return judged.groupBy(
        "target",
        (due - due % at_ms).alias("at_ms"),
        "outcome",
        "reason",
        _class(late).alias("late_ms"),
    ).agg(
        f.count("*").alias("n"),
        f.max(late).alias("max_ms"),
        f.min(due).alias("first_due_ms"),
        f.min(f.when(f.col("outcome").isin(*WRONG), token)).alias("sample"),
    )


def _class(late: Column) -> Column:
    digits = f.length(late.cast("string"))
    rounding = f.pow(f.lit(10.0), f.greatest(digits - 3, f.lit(0))).cast("long")
    return f.when(late < 1_000, late).otherwise(late - late % rounding)


def _summary_by(cells: DataFrame, *by: str | Column) -> DataFrame:
    """Rows of `cube` -> counts by outcome and lateness percentiles, grouped by columns."""
    percentiles = f.expr("percentile(late_ms, array(0.5, 0.99, 0.999), n)").alias("late")
    counts = [
        f.sum(f.when(f.col("outcome") == outcome, f.col("n")).otherwise(0)).alias(outcome)
        for outcome in OUTCOMES
    ]
    timed = f.sum(f.when(f.col("late_ms").isNotNull(), f.col("n")).otherwise(0)).alias("timed")
    return cells.groupBy(*by).agg(
        percentiles, f.max("max_ms").alias("max_ms"), f.sum("n").alias("total"), timed, *counts
    )


def _summary_row(row: Any) -> SummaryRow:
    found = row.asDict()
    late = [None if each is None else round(each) for each in found["late"] or (None,) * 3]
    return SummaryRow(
        counts={outcome: found[outcome] for outcome in OUTCOMES if found[outcome]},
        lateness=Lateness(
            count=found["timed"] or 0,
            p50_ms=late[0],
            p99_ms=late[1],
            p999_ms=late[2],
            max_ms=found["max_ms"],
        ),
        target=found.get("target"),
        at_ms=found.get("at_ms"),
    )


def overall(cells: DataFrame) -> SummaryRow:
    """The summary of the whole window."""
    return _summary_row(_summary_by(cells).first())


def reasons(cells: DataFrame) -> list[tuple[str, str, int]]:
    """`(outcome, reason, count)` of deliveries with a reason, most frequent first."""
    found = (
        cells.where("reason is not null").groupBy("outcome", "reason").agg(f.sum("n").alias("n"))
    )
    return [
        (row["outcome"], row["reason"], row["n"])
        for row in found.orderBy(f.desc("n"), "reason").limit(100).collect()
    ]


def by_target(cells: DataFrame) -> list[SummaryRow]:
    """The targets with most messages."""
    found = (
        _summary_by(cells.where("target is not null"), "target")
        .orderBy(f.desc("total"), "target")
        .limit(TARGETS_MAX)
    )
    return [_summary_row(row) for row in found.collect()]


def by_hour(cells: DataFrame) -> list[SummaryRow]:
    """Each target and hour, in order; the ones with most messages if there are too many."""
    hour = (f.col("at_ms") - f.col("at_ms") % HOUR_MS).alias("at_ms")
    found = (
        _summary_by(cells.where("target is not null"), "target", hour)
        .orderBy(f.desc("total"))
        .limit(HOURS_MAX)
    )
    return sorted(
        (_summary_row(row) for row in found.collect()),
        key=lambda row: (row.target or "", row.at_ms or 0),
    )


def over_time(cells: DataFrame, span: Span) -> list[SummaryRow]:
    """The curve: a row for each point in time with deliveries due, in order."""
    width = width_ms(span)
    return [
        _summary_row(row)
        for row in _by_time(cells, width).orderBy("at_ms").limit(POINTS_MAX + 2).collect()
    ]


def by_day(cells: DataFrame) -> list[SummaryRow]:
    """Each day in UTC with deliveries due, in order; the last ones if there are too many."""
    found = _by_time(cells, DAY_MS).orderBy(f.desc("at_ms")).limit(DAYS_MAX).collect()
    return [_summary_row(row) for row in reversed(found)]


def worst(cells: DataFrame, span: Span) -> list[SummaryRow]:
    """The points with most broken promises, then with the greatest lateness."""
    wrong = sum((f.col(outcome) for outcome in WRONG[1:]), f.col(WRONG[0]))
    found = _by_time(cells, min(width_ms(span), HOUR_MS)).orderBy(
        f.desc(wrong), f.desc("max_ms"), "at_ms"
    )
    return [
        _summary_row(row)
        for row in found.where("timed > 0 or " + " + ".join(WRONG) + " > 0").limit(WORST).collect()
    ]


def _by_time(cells: DataFrame, width: int) -> DataFrame:
    return _summary_by(cells, (f.col("at_ms") - f.col("at_ms") % width).alias("at_ms"))


def samples(cells: DataFrame) -> list[OutcomeSample]:
    """Some deliveries of each outcome that breaks a law: one for each target, minute and reason,
    the earliest first."""
    found: list[OutcomeSample] = []
    for outcome in WRONG:
        rows = cells.where(f.col("outcome") == outcome).orderBy("at_ms").limit(SAMPLES).collect()
        found += [
            OutcomeSample(
                outcome=outcome,
                shard=row["sample"] >> _SHARD_SHIFT,
                source_offset=row["sample"] & (1 << _SHARD_SHIFT) - 1,
                target=row["target"],
                at_ms=row["at_ms"],
            )
            for row in rows
        ]
    return found


def first_pending_ms(cells: DataFrame) -> int | None:
    """Due time of the first delivery that is not judged yet; None if all are judged."""
    found = cells.where("outcome = 'pending'").agg(f.min("first_due_ms").alias("due_ms")).first()
    return None if found is None else found["due_ms"]
