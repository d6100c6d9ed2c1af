"""Forwarded records compared with their sources: outcomes changed where the two do not fit.

A record that came to another partition than that of its id is the source. The shard it came to
lists it as forwarded in a progress record, and in the same transaction writes it to the partition
of its id, as a record with a hop: a header that names the source. Law (laws 1 and 3): each
listed source has one record with its hop, and each accepted record with a hop has a listed source.
An accepted record with a hop whose source is not listed, or has an earlier record, counts as
duplicated; a source without a record as missing. A mismatch that a gap or an open transaction could
explain is not judged. Nor is a missing record looked for if its source has a spread, or has no due
time and was forwarded more than 45 minutes after it came."""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from chronos.core.message import FORWARDED, SPREAD, Reason
from chronos.spark.audit.coverage import Coverage
from chronos.spark.audit.outcomes import Span, forwarded, refused
from chronos.spark.audit.reach import AROUND_MS, around
from chronos.spark.codec import header_text, source_parts
from chronos.spark.delta import is_empty
from chronos.spark.schema import MESSAGES

NOT_LISTED = "hop-not-listed"
"""Reason of a record that was accepted with a hop that its source's shard does not list, or that
another record has too."""

NOT_FORWARDED = "not-forwarded"
"""Reason of a record that its shard lists as forwarded, and that is in no other partition."""

TRANSACTION_MS = 15 * 60_000
"""How long after a hop its step may be committed: Kafka's default of
`transaction.max.timeout.ms`."""


def with_hops(
    outcomes: DataFrame,
    messages: DataFrame,
    decisions: DataFrame,
    delay_topic: str,
    span: Span,
    delay: Mapping[int, Coverage],
    steps: Mapping[int, Coverage],
) -> DataFrame:
    """`outcomes` -> the same, in which a hop that is not listed counts as duplicated, and a lost
    one as missing. `decisions`: at least those since the records around the window.

    `delay` and `steps`: the coverage of the partitions of the delay and the progress topic, by
    shard."""
    found = hops(messages, delay_topic, around(span))
    # Most archives have neither, and the joins below would read the headers twice more.
    if is_empty(
        found.select("shard").unionByName(decisions.where(_is_forwarded()).select("shard"))
    ):
        return outcomes
    refusals = refused(decisions)
    listed = forwarded(refusals)
    forged = _not_listed(found, span, refusals, listed, steps)
    lost = _not_forwarded(messages, listed, found, span, delay)
    is_forged = f.col("_forged") & ~f.col("outcome").eqNullSafe("rejected")
    names = outcomes.columns
    marked = outcomes.join(
        forged.select("shard", "source_offset", f.lit(True).alias("_forged")),
        ["shard", "source_offset"],
        "left",
    ).select(
        *(
            f.when(is_forged, "duplicated").otherwise(f.col(name)).alias(name)
            if name == "outcome"
            else f.when(is_forged, NOT_LISTED).otherwise(f.col(name)).alias(name)
            if name == "reason"
            else f.col(name)
            for name in names
        )
    )
    # An action promises nothing, so that it has no outcome that could be changed.
    acting = forged.where(~f.col("verb").isin("schedule", "replace"))
    added = acting.withColumns(
        {"outcome": f.lit("duplicated"), "reason": f.lit(NOT_LISTED)}
    ).unionByName(lost.withColumns({"outcome": f.lit("missing"), "reason": f.lit(NOT_FORWARDED)}))
    return marked.unionByName(_rows(added, outcomes))


def hops(messages: DataFrame, delay_topic: str, span: Span) -> DataFrame:
    """Table `messages` -> the records filed in the window that have a hop, with `from_shard` and
    `from_offset` of their source."""
    has_hop = f.exists("headers", lambda pair: pair["name"] == FORWARDED)
    seen = messages.where(span.within(MESSAGES) & f.coalesce(has_hop, f.lit(False)))
    topic, shard, offset = source_parts("_source")
    own = seen.withColumn("_source", f.substring_index(header_text(FORWARDED), ";", 1))
    own = own.withColumns({"from_shard": shard, "from_offset": offset}).where(topic == delay_topic)
    return own.select(
        "shard",
        f.col("offset").alias("source_offset"),
        "timestamp_ms",
        "verb",
        "id",
        "target",
        "requested_due_ms",
        "due_ms",
        "from_shard",
        "from_offset",
    )


def _is_forwarded() -> Column:
    """True for the decision of a shard that forwarded a record, or holds it until it can."""
    return (f.col("outcome") == "refused") & f.col("reason").isin(
        Reason.FORWARDED.label, Reason.HELD.label
    )


def _at() -> Column:
    """The time of a record for the window: that of an action without one is its timestamp."""
    return f.coalesce("due_ms", "timestamp_ms")


def _is_within(span: Span) -> Column:
    return (_at() >= span.from_ms) & (_at() < span.to_ms)


def _not_listed(
    found: DataFrame,
    span: Span,
    refusals: DataFrame,
    listed: DataFrame,
    steps: Mapping[int, Coverage],
) -> DataFrame:
    """Accepted records of the window with a hop -> those whose source is not listed, or that
    another record names first."""
    here = found.where((f.col("verb") != "refused") & _is_within(span))
    rejected = refusals.select("shard", f.col("offset").alias("source_offset"))
    accepted = here.join(rejected, ["shard", "source_offset"], "left_anti")
    source, order = (
        ["from_shard", "from_offset"],
        f.struct("timestamp_ms", "shard", "source_offset"),
    )
    known = listed.select(f.col("shard").alias("from_shard"), f.col("offset").alias("from_offset"))
    rows = [
        (shard, seen.until_ms, -1 if seen.gap_ms is None else seen.gap_ms)
        for shard, seen in steps.items()
    ]
    archived = found.sparkSession.createDataFrame(
        rows, "from_shard int, until_ms long, gap_ms long"
    )
    # A step that was committed with the record is archived.
    is_proved = (f.col("timestamp_ms") > f.col("gap_ms")) & (
        f.col("timestamp_ms") + TRANSACTION_MS < f.col("until_ms")
    )
    unlisted = (
        accepted.join(f.broadcast(archived), "from_shard")
        .where(is_proved)
        .join(known, source, "left_anti")
    )
    first = found.groupBy(*source).agg(f.min(order).alias("first"))
    again = accepted.join(first, source).where(order != f.col("first"))
    columns = found.columns
    return (
        unlisted.select(*columns)
        .unionByName(again.select(*columns))
        .dropDuplicates(["shard", "source_offset"])
    )


def _not_forwarded(
    messages: DataFrame,
    listed: DataFrame,
    found: DataFrame,
    span: Span,
    delay: Mapping[int, Coverage],
) -> DataFrame:
    """Records that their shard lists as forwarded -> those of which no hop is archived, although it
    would be."""
    listed = listed.select(
        "shard", f.col("offset").alias("source_offset"), f.col("refused_ms").alias("decided_ms")
    )
    # The spread of a record depends on its partition, so that its hop may be filed anywhere.
    has_spread = f.exists("headers", lambda pair: pair["name"] == SPREAD)
    here = messages.where(span.within(MESSAGES) & ~f.coalesce(has_spread, f.lit(False)))
    here = here.select(
        "shard",
        f.col("offset").alias("source_offset"),
        "timestamp_ms",
        "verb",
        "id",
        "target",
        "requested_due_ms",
        "due_ms",
    ).where(_is_within(span))
    arrived = found.select(
        f.col("from_shard").alias("shard"), f.col("from_offset").alias("source_offset")
    )
    # The partition of its id may be any other: all of them must be archived.
    until_ms = min((seen.until_ms for seen in delay.values()), default=0)
    gap_ms = max((seen.gap_ms for seen in delay.values() if seen.gap_ms is not None), default=-1)
    since = (f.col("decided_ms") > gap_ms) & (f.col("decided_ms") + TRANSACTION_MS < until_ms)
    token = ["shard", "source_offset"]
    is_near = f.col("due_ms").isNotNull() | (
        f.col("decided_ms") < f.col("timestamp_ms") + AROUND_MS - TRANSACTION_MS
    )
    lost = (
        here.join(listed.where(since), token)
        .where(is_near)
        .drop("decided_ms")
        .join(arrived, token, "left_anti")
    )
    none = f.lit(None)
    return lost.withColumns(
        {"from_shard": none.cast("int"), "from_offset": none.cast("long")}
    ).dropDuplicates(token)


def _rows(found: DataFrame, like: DataFrame) -> DataFrame:
    """Records, with `outcome` and `reason` -> rows of `outcomes`."""
    values = {
        "occurrence": f.lit(1),
        "attempt": f.lit(1),
        "accepted_ms": f.col("timestamp_ms"),
        "due_ms": _at(),
        "requested_due_ms": f.coalesce("requested_due_ms", "timestamp_ms"),
        "deliveries": f.lit(0),
    }
    filled = found.withColumns(values)
    return filled.select(
        *(
            f.col(field.name).cast(field.dataType)
            if field.name in filled.columns
            else f.lit(None).cast(field.dataType).alias(field.name)
            for field in like.schema
        )
    )
