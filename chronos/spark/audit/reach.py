"""The part of the tables that an audit reads besides the rows of its window.

What was sent and decided before the first record of the window was accepted concerns no message of
the window, with one exception: messages that an action, or a decision about their series, moved
into it. These are searched for by id, and by position, in the whole archive, and only if there is
such an action or decision. Law: what is left out cannot change an outcome."""

from typing import TYPE_CHECKING

from msgspec import Struct, structs
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from chronos.core.clock import CLOCK_TOLERANCE_MS
from chronos.spark.audit.events import takes_over
from chronos.spark.audit.timeline import AGAIN, DEAD_LETTER, EXPIRED, SKIPPED
from chronos.spark.codec import PLANNED_AGAIN
from chronos.spark.delta import once
from chronos.spark.schema import MESSAGES

if TYPE_CHECKING:
    from chronos.spark.audit.outcomes import Span

AROUND_MS = 3_600_000
"""How far from each other a record and its hop may be filed: both have the same due time, but an
action has its timestamp."""

CLOCKS_MS = 3_600_000
"""How much older than a record what follows it in the logs may look, in ms: far more than two
clocks of brokers may differ."""

NONE_MS = 2**62
"""A time after every record."""

NARROW = (
    "shard",
    "offset",
    "accepted_ms",
    "verb",
    "id",
    "target",
    "requested_due_ms",
    "due_ms",
    "on_conflict",
)
"""Columns of a record that decide what it promises."""


class AuditReach(Struct, frozen=True, kw_only=True):
    """How far an audit reads beyond its window."""

    since_ms: int
    """No record filed in the window, or within AROUND_MS of it, was accepted before; NONE_MS: there
    is none."""
    requested_ms: int
    """No message of the window was requested for an earlier time; NONE_MS: there is none."""
    moved: DataFrame | None
    """`shard`, `id` of the actions that move a message into the window; None: there are none."""
    carried: DataFrame | None
    """`shard`, `offset` of the messages that a decision carries into the window, and `is_planned`
    if it is one about new zone data; None: there are none."""


def reach(messages: DataFrame, decisions: DataFrame, span: "Span") -> AuditReach:
    """Tables `messages`, with `accepted_ms`, and `decisions` -> the reach of an audit."""
    is_here = f.col("verb").isin("schedule", "replace") & span.holds("due_ms")
    first = messages.where(around(span).within(MESSAGES)).agg(
        f.min("accepted_ms").alias("first"),
        f.min(f.when(is_here, f.col("requested_due_ms"))).alias("second"),
    )
    moved, carried = once(_moving(messages, span)), once(_carrying(decisions, span))
    counts = (each.agg(f.count("*").alias("first")) for each in (moved, carried))
    found = first.withColumn("of", f.lit(0))
    for at, count in enumerate(counts, 1):
        found = found.unionByName(count.withColumn("of", f.lit(at)), allowMissingColumns=True)
    window, movers, carriers = sorted(found.collect(), key=lambda row: row["of"])
    return AuditReach(
        since_ms=NONE_MS if window["first"] is None else window["first"],
        requested_ms=NONE_MS if window["second"] is None else window["second"],
        moved=moved if movers["first"] else None,
        carried=carried if carriers["first"] else None,
    )


def around(span: "Span") -> "Span":
    """The window with AROUND_MS before and after it."""
    return structs.replace(span, from_ms=span.from_ms - AROUND_MS, to_ms=span.to_ms + AROUND_MS)


def may_act() -> Column:
    """True for a record that is about a message that may exist already."""
    acting = f.col("verb").isin("cancel", "reschedule", "fire-now", "replace")
    return acting | ((f.col("verb") == "schedule") & takes_over())


def is_message() -> Column:
    """True for a record that schedules a message."""
    return f.col("verb").isin("schedule", "replace")


def is_carried(span: "Span") -> Column:
    """True for a decision that carries a message into the window."""
    return f.col("outcome").isin(AGAIN, SKIPPED, EXPIRED, DEAD_LETTER, PLANNED_AGAIN) & span.holds(
        "next_due_ms"
    )


def decided_since(since_ms: int) -> Column:
    """True for the decisions about records that were accepted at `since_ms` or later, and for
    others; it leaves files out by their statistics."""
    return f.col("decided_ms") >= since_ms - CLOCKS_MS


def sent_since(messages: DataFrame, since_ms: int) -> DataFrame:
    """Table `messages` -> those sent after a record accepted at `since_ms`; and others."""
    return messages.where(f.col("timestamp_ms") >= since_ms - CLOCKS_MS)


def _moving(messages: DataFrame, span: "Span") -> DataFrame:
    is_fired = f.col("verb") == "fire-now"
    when = f.coalesce(f.when(is_fired, f.col("accepted_ms")), f.col("due_ms"))
    # A forwarded action may be older than its message by this much, and then has the time of the
    # message.
    from_ms = span.from_ms - CLOCK_TOLERANCE_MS

    def is_near(name: str) -> Column:
        return (f.col(name) >= from_ms) & (f.col(name) < span.to_ms)

    # Files are left out by their statistics, which are of columns.
    may_be = is_near("due_ms") | is_near("timestamp_ms") | is_near("first_ms")
    moves = f.col("verb").isin("reschedule", "fire-now")
    found = messages.where(may_be & moves & (when >= from_ms) & (when < span.to_ms))
    return found.select("shard", "id").distinct()


def _carrying(decisions: DataFrame, span: "Span") -> DataFrame:
    found = decisions.where(is_carried(span))
    return found.groupBy("shard", f.col("source_offset").alias("offset")).agg(
        f.max(f.col("outcome") == PLANNED_AGAIN).alias("is_planned")
    )
