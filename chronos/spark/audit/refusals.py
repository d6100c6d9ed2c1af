"""The delay records that masters refused, and what became of those that were held: the table `decisions` in, one row a record out."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from chronos.core.message import Reason
from chronos.spark.decisions import WRITTEN_ON

_REFUSED = ("shard", "source_offset", "progress_offset", "decided_ms", "reason", "waits")


def refused(decisions: DataFrame) -> DataFrame:
    """Table `decisions` -> `shard`, `offset`, `refused_for`, `refused_ms`, `waits`: the delay records that masters refused.

    A held record waits until a step writes it on: from that step on it was forwarded, or rejected for the reason it has.
    """
    found = decisions.where((f.col("outcome") == "refused") & f.col("destination").isNull())
    refusals = found.withColumn("waits", f.lit(False)).select(*_REFUSED).unionByName(held(decisions))
    # A held record may be refused by the step that writes on the others.
    last = f.max_by(f.struct("reason", "decided_ms", "waits"), "progress_offset")
    by_offset = refusals.groupBy("shard", f.col("source_offset").alias("offset")).agg(last.alias("last"))
    reason = f.coalesce("last.reason", f.lit("refused"))
    return by_offset.select(
        "shard",
        "offset",
        reason.alias("refused_for"),
        f.col("last.decided_ms").alias("refused_ms"),
        f.col("last.waits").alias("waits"),
    )


def held(decisions: DataFrame) -> DataFrame:
    """Table `decisions` -> the held records: each left its queue in the first step that wrote on as far as its offset.

    As `forwarded` from that step on, if it has the reason `held`; `waits` is true if there is no such step.
    """
    is_end = f.col("outcome") == WRITTEN_ON
    from_end = (
        Window.partitionBy("shard", "destination")
        .orderBy(f.desc("source_offset"), is_end.desc())
        .rowsBetween(Window.unboundedPreceding, 0)
    )
    written_ms = f.last(f.when(is_end, f.col("decided_ms")), ignorenulls=True).over(from_end)
    queued = decisions.where(f.col("destination").isNotNull()).withColumn("_written_ms", written_ms).where(~is_end)
    waits = f.col("_written_ms").isNull()
    goes_on = ~waits & (f.col("reason") == Reason.HELD.label)
    changed = {
        "reason": f.when(goes_on, Reason.FORWARDED.label).otherwise(f.col("reason")),
        "decided_ms": f.coalesce("_written_ms", "decided_ms"),
        "waits": waits,
    }
    return queued.withColumns(changed).select(*_REFUSED)


def forwarded(refusals: DataFrame) -> DataFrame:
    """The result of `refused` -> `shard`, `offset`, `refused_ms`: the delay records that masters forwarded."""
    return refusals.where(f.col("refused_for") == Reason.FORWARDED.label).select("shard", "offset", "refused_ms")
