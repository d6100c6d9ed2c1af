"""From fates to figures: counts by outcome, lateness percentiles per target and hour, the curve and the worst of it.

Everything comes out of one small table, `cube`: how many units had which outcome, target, minute and class of lateness.
It is made in one pass, combined where the rows are (one target with nearly all messages costs no more than many), and
whatever goes to the driver is bounded by a limit that stands here.
"""

from typing import Any

from msgspec import Struct
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from chronos.spark.audit.outcomes import OUTCOMES, WRONG, Span

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS

POINTS_MAX = 1_500
"""Most points of a curve: a day by the minute."""

WIDTHS_MS = tuple(minutes * MINUTE_MS for minutes in (1, 2, 5, 10, 15, 30, 60, 180, 360, 720, 1_440, 10_080))
"""Widths of a point, of which the least is taken that keeps to `POINTS_MAX`."""

TARGETS_MAX = 1_000
"""Most targets in the summary: those with most messages."""

HOURS_MAX = 10_000
"""Most rows of target and hour in the summary; the details have all."""

WORST = 10
"""The worst minutes shown."""

SAMPLES = 20
"""Units shown of each fate that breaks a law."""

_SHARD_SHIFT = 48
"""Bits of an offset beside its shard in one number."""


class Lateness(Struct, frozen=True, kw_only=True):
    """Of delivered messages: milliseconds between due (or accepted, if that was later) and delivered."""

    count: int
    p50_ms: int | None
    p99_ms: int | None
    p999_ms: int | None
    max_ms: int | None


class Row(Struct, frozen=True, kw_only=True):
    """Figures of a target, an hour, a point in time, or all of the window."""

    counts: dict[str, int]
    """By outcome, those that occur."""
    lateness: Lateness
    target: str | None = None
    at_ms: int | None = None
    """Beginning of the hour or point."""


class Sample(Struct, frozen=True, kw_only=True):
    """One unit with a fate that breaks a law."""

    outcome: str
    shard: int
    source_offset: int
    target: str | None
    at_ms: int
    """The minute it was due in."""


def width_ms(span: Span) -> int:
    """How much time a point of the curve stands for."""
    length_ms = max(1, span.to_ms - span.from_ms)
    return next((width for width in WIDTHS_MS if length_ms <= width * POINTS_MAX), -(-length_ms // POINTS_MAX))


def cube(judged: DataFrame, span: Span) -> DataFrame:
    """`fates` -> `target`, `at_ms`, `outcome`, `reason`, `late_ms` (class), `n`, `max_ms`,
    `first_due_ms`, `sample`.

    Lateness below a second is kept to the millisecond, above to three digits: exact to 1 % at the worst.
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
    unit = f.pow(f.lit(10.0), f.greatest(digits - 3, f.lit(0))).cast("long")
    return f.when(late < 1_000, late).otherwise(late - late % unit)


def _figures(cells: DataFrame, *by: str | Column) -> DataFrame:
    """Rows of `cube` -> counts by outcome and lateness percentiles, by some columns."""
    percentiles = f.expr("percentile(late_ms, array(0.5, 0.99, 0.999), n)").alias("late")
    counts = [
        f.sum(f.when(f.col("outcome") == outcome, f.col("n")).otherwise(0)).alias(outcome) for outcome in OUTCOMES
    ]
    timed = f.sum(f.when(f.col("late_ms").isNotNull(), f.col("n")).otherwise(0)).alias("timed")
    return cells.groupBy(*by).agg(
        percentiles, f.max("max_ms").alias("max_ms"), f.sum("n").alias("total"), timed, *counts
    )


def _row(row: Any) -> Row:
    found = row.asDict()
    late = [None if each is None else round(each) for each in found["late"] or (None,) * 3]
    return Row(
        counts={outcome: found[outcome] for outcome in OUTCOMES if found[outcome]},
        lateness=Lateness(
            count=found["timed"] or 0, p50_ms=late[0], p99_ms=late[1], p999_ms=late[2], max_ms=found["max_ms"]
        ),
        target=found.get("target"),
        at_ms=found.get("at_ms"),
    )


def overall(cells: DataFrame) -> Row:
    """The whole window."""
    return _row(_figures(cells).first())


def reasons(cells: DataFrame) -> list[tuple[str, str, int]]:
    """`(outcome, reason, count)` where there is a reason, most frequent first."""
    found = cells.where("reason is not null").groupBy("outcome", "reason").agg(f.sum("n").alias("n"))
    return [
        (row["outcome"], row["reason"], row["n"]) for row in found.orderBy(f.desc("n"), "reason").limit(100).collect()
    ]


def by_target(cells: DataFrame) -> list[Row]:
    """The targets with most messages."""
    found = _figures(cells.where("target is not null"), "target").orderBy(f.desc("total"), "target").limit(TARGETS_MAX)
    return [_row(row) for row in found.collect()]


def by_hour(cells: DataFrame) -> list[Row]:
    """Each target and hour, in order; those with most messages if there are too many."""
    hour = (f.col("at_ms") - f.col("at_ms") % HOUR_MS).alias("at_ms")
    found = _figures(cells.where("target is not null"), "target", hour).orderBy(f.desc("total")).limit(HOURS_MAX)
    return sorted((_row(row) for row in found.collect()), key=lambda row: (row.target or "", row.at_ms or 0))


def over_time(cells: DataFrame, span: Span) -> list[Row]:
    """The curve: a row for each point in time that has units, in order."""
    width = width_ms(span)
    return [_row(row) for row in _by_time(cells, width).orderBy("at_ms").limit(POINTS_MAX + 2).collect()]


def worst(cells: DataFrame, span: Span) -> list[Row]:
    """The points with most broken promises, then with the greatest lateness."""
    wrong = sum((f.col(outcome) for outcome in WRONG[1:]), f.col(WRONG[0]))
    found = _by_time(cells, min(width_ms(span), HOUR_MS)).orderBy(f.desc(wrong), f.desc("max_ms"), "at_ms")
    return [_row(row) for row in found.where("timed > 0 or " + " + ".join(WRONG) + " > 0").limit(WORST).collect()]


def _by_time(cells: DataFrame, width: int) -> DataFrame:
    return _figures(cells, (f.col("at_ms") - f.col("at_ms") % width).alias("at_ms"))


def samples(cells: DataFrame) -> list[Sample]:
    """Some units of each fate that breaks a law: one of a minute, the earliest first."""
    found: list[Sample] = []
    for outcome in WRONG:
        rows = cells.where(f.col("outcome") == outcome).orderBy("at_ms").limit(SAMPLES).collect()
        found += [
            Sample(
                outcome=outcome, shard=row["sample"] >> _SHARD_SHIFT,
                source_offset=row["sample"] & (1 << _SHARD_SHIFT) - 1, target=row["target"], at_ms=row["at_ms"],
            )
            for row in rows
        ]  # fmt: skip
    return found


def first_pending_ms(cells: DataFrame) -> int | None:
    """When the first unit is due that is not judged yet; None: all are."""
    found = cells.where("outcome = 'pending'").agg(f.min("first_due_ms").alias("due_ms")).first()
    return None if found is None else found["due_ms"]
