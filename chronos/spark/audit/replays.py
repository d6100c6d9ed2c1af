"""The effect of replays on outcomes: outcomes and the ledger of backfills in, outcomes out.

A replay through the delay topic is a message of its own, with its own due time and outcome; the original was `replaced`
by it. A replay straight to the target carries the receipt of the original. Law: it is no duplicate.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from chronos.core.clock import CLOCK_TOLERANCE_MS
from chronos.spark.ledger import TOKEN

REPLAYED = "replayed"
"""The reason of an outcome that a replay changed."""


def with_replays(outcomes: DataFrame, sent: DataFrame) -> DataFrame:
    """`outcomes` and `ledger.LEDGER` -> `outcomes` in which a replayed message is neither missing nor duplicated."""
    replays = sent.groupBy(*TOKEN).agg(
        f.count(f.when(f.col("via") == "direct", 1)).alias("direct"),
        f.max(f.col("outcome") == "missing").alias("was_missing"),
        f.max(f.col("via") == "delay").alias("by_delay"),
    )
    joined = outcomes.join(replays, list(TOKEN), "left")
    outcome, reason = f.col("outcome"), f.col("reason")
    not_judged = (outcome == "pending") & (reason == "not-settled")
    is_replaced = f.col("by_delay") & ((outcome == "missing") | not_judged)
    wanted = f.col("direct") + f.when(f.col("was_missing"), 0).otherwise(1)
    # A reason names how a delivered message had ended before: that was no replay.
    is_once = (outcome == "duplicated") & reason.isNull() & (f.col("deliveries") <= wanted)
    is_early = f.col("delivered_ms") < f.col("due_ms") - CLOCK_TOLERANCE_MS
    changed = f.when(is_replaced, "replaced").when(is_once & is_early, "early").when(is_once, "delivered")
    return joined.select(
        *(f.coalesce(changed, outcome).alias(name) if name == "outcome"
          else f.when(changed.isNotNull(), REPLAYED).otherwise(reason).alias(name) if name == "reason"
          else f.col(name) for name in outcomes.columns)
    )  # fmt: skip
