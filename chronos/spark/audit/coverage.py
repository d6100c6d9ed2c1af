"""How much of the logs the archive holds, and so how far it can be judged: never more than is proved.

Two questions. Up to which moment is a target archived whole, with no transaction left open and nothing gone before it
was read? And what do the progress records written by then prove to be settled? The answers are small (a row for each
topic; a row for each shard and moment) and go to the driver; the tables themselves do not.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from chronos.core.keys import OFFSET_MAX
from chronos.core.timefmt import format_time

CLOCK_TOLERANCE_MS = 500
"""How far the clocks of brokers, masters and the archive may be apart (law 2)."""

STEPS_BEFORE_MS = 86_400_000
"""So much older than the window are the oldest progress records read: a shard may have been at rest before it began."""

MOMENTS_MAX = 32
"""Moments for which the progress log is judged; where targets were read at more, some count as read earlier."""

ALWAYS = 2**62
"""A moment after every record."""


class Coverage(Struct, frozen=True, kw_only=True):
    """What the archive holds of a topic, or of one partition of it."""

    covered_ms: int
    """Everything committed by then is archived; 0: nothing is known to be."""
    gap_ms: int | None = None
    """When records were last found to be gone before they were archived; None: never."""
    before_gap_ms: int = 0
    """Like `covered_ms`, from before the first such gap; 0: the gap is at the beginning."""
    unresolved: bool = False
    """When it was read last, a transaction was open in it."""


class Frontier(Struct, frozen=True):
    """Of one shard: delay records below `offset` with a place due at or before `due_ms` are settled."""

    offset: int = 0
    due_ms: int = -1


def coverage(offsets: DataFrame, *by: str) -> dict[tuple[str | int, ...], Coverage]:
    """Table `offsets` -> what is covered, by these columns (`table` and `topic`, or `table` and `partition`)."""
    reads = _reads(offsets)
    gaps = reads.where("gap").groupBy(*by).agg(f.min("read_ms").alias("first_gap_ms"), f.max("read_ms").alias("gap_ms"))
    complete = (f.col("until_offset") >= f.col("stable_end")) & (f.col("stable_end") == f.col("high_watermark"))
    whole_ms = f.when(complete, f.col("read_ms"))
    earlier = f.col("read_ms") < f.col("first_gap_ms")
    partitions = (
        reads.join(gaps, list(by), "left")
        .groupBy(*dict.fromkeys([*by, "topic", "partition"]))
        .agg(
            f.max(whole_ms).alias("covered_ms"),
            f.max("gap_ms").alias("gap_ms"),
            f.max(f.when(earlier, whole_ms)).alias("before_gap_ms"),
            f.max(f.coalesce(earlier, f.lit(False))).alias("is_older"),
            f.max_by(f.col("stable_end") < f.col("high_watermark"), "read_ms").alias("unresolved"),
        )
    )
    # A partition that was added after the gap has nothing to say about the time before it.
    before_gap_ms = f.min(f.when(f.col("is_older"), f.coalesce("before_gap_ms", f.lit(0))))
    found = partitions.groupBy(*by).agg(
        f.min(f.coalesce("covered_ms", f.lit(0))).alias("covered_ms"),
        f.max("gap_ms").alias("gap_ms"),
        f.coalesce(before_gap_ms, f.lit(0)).alias("before_gap_ms"),
        f.max("unresolved").alias("unresolved"),
    )
    return {
        tuple(row[name] for name in by): Coverage(
            covered_ms=row["covered_ms"], gap_ms=row["gap_ms"], before_gap_ms=row["before_gap_ms"],
            unresolved=row["unresolved"],
        )
        for row in found.collect()
    }  # fmt: skip


def _reads(offsets: DataFrame) -> DataFrame:
    """One row for each partition and look at it; also with a gap where the first look found its beginning gone."""
    reads = offsets.groupBy("table", "topic", "partition", "read_ms").agg(
        f.min("from_offset").alias("from_offset"),
        f.max("until_offset").alias("until_offset"),
        f.max("stable_end").alias("stable_end"),
        f.max("high_watermark").alias("high_watermark"),
        f.max("gap").alias("gap"),
    )
    first = offsets.groupBy("table", "topic", "partition").agg(f.min("read_ms").alias("first_ms"))
    # A message's own record is always older than what may be done to it: of the delay topic no beginning is needed.
    beheaded = (f.col("read_ms") == f.col("first_ms")) & (f.col("from_offset") > 0) & (f.col("table") != "messages")
    return reads.join(first, ["table", "topic", "partition"]).withColumn("gap", f.col("gap") | beheaded)


def archived_through(offsets: DataFrame, table: str = "messages") -> DataFrame:
    """Table `offsets` -> `shard`, `through`: the offset up to which its delay partition is archived, or its progress."""
    own = offsets.where(f.col("table") == table)
    return own.groupBy(f.col("partition").alias("shard")).agg(f.max("until_offset").alias("through"))


def usable(progress: DataFrame, offsets: DataFrame) -> DataFrame:
    """The progress records whose decisions and delay records are all archived: it is read by them and no further."""
    through = f.broadcast(archived_through(offsets))
    told = f.broadcast(archived_through(offsets, "progress").withColumnRenamed("through", "told"))
    seen = progress.join(through, "shard").join(told, "shard")
    return seen.where("pull_offset <= through AND offset < told").drop("through", "told")


def recent(progress: DataFrame, from_ms: int) -> DataFrame:
    """Table `progress` -> the records that matter to what is due from then on, by their folders.

    By older ones the cursor stood before everything due then: whatever they staged found it pending.
    """
    since_ms = max(0, from_ms - STEPS_BEFORE_MS)
    return progress.where((f.col("due_date") >= format_time(since_ms)[:10]) & (f.col("timestamp_ms") >= since_ms))


def frontiers(progress: DataFrame, moments: Sequence[int]) -> dict[tuple[int, int], Frontier]:
    """Table `progress` -> for each shard and moment what the records written by then prove to be settled.

    Let `(d, max)` be the greatest cursor, and p the pull offset of the first record whose cursor was due at `d`. What
    lies below p was placed by a cursor before `d`, so at `max(due, timestamp, d)` at the latest if not after `d` by
    its own times: all of it with due time and timestamp at or before `d` lies at or behind the cursor. A cursor that
    stands amid the messages due at `d` proves the same of `d - 1`.
    """
    if not moments:
        return {}
    spark = progress.sparkSession
    wanted = f.broadcast(spark.createDataFrame([(moment,) for moment in moments], "moment long"))
    at_end = (f.col("cursor_offset") == str(OFFSET_MAX)).cast("long")
    steps = progress.select("shard", "timestamp_ms", "cursor_due_ms", at_end.alias("at_end"), "pull_offset")
    seen = steps.join(wanted, f.col("timestamp_ms") <= f.col("moment") - CLOCK_TOLERANCE_MS)
    last = (
        seen.groupBy("shard", "moment")
        .agg(f.max(f.col("cursor_due_ms") * 2 + f.col("at_end")).alias("last"))
        .select("shard", "moment", (f.shiftright("last", 1) - 1 + f.col("last") % 2).alias("due_ms"))
    )
    found = (
        seen.join(f.broadcast(last), ["shard", "moment"])
        .groupBy("shard", "moment", "due_ms")
        .agg(
            f.min(f.when(f.col("cursor_due_ms") >= f.col("due_ms"), f.col("pull_offset"))).alias("offset"),
            f.max(f.col("cursor_due_ms") < f.col("due_ms")).alias("has_before"),
        )
        .where("has_before")
    )
    return {(row["shard"], row["moment"]): Frontier(row["offset"], row["due_ms"]) for row in found.collect()}


class Judge(Struct, frozen=True, kw_only=True):
    """What may be said of messages of one shard and target that were not found."""

    any: Frontier
    """By everything the progress log says: what lies beyond is pending."""
    covered: Frontier
    """By what it said when the target was archived whole: what is settled by then should have been found."""
    before_gap: Frontier
    """By what it said before anything was gone: that which a gap may hide is judged by this alone."""
    shard_gap_ms: int | None
    target_gap_ms: int | None
    unresolved: bool


def judges(
    targets: Mapping[str, Coverage], delay: Mapping[int, Coverage], steps: Mapping[int, Coverage], progress: DataFrame
) -> tuple[dict[tuple[int, str], Judge], dict[int, Frontier]]:
    """For each shard and archived target what may be said, and for each shard what is settled by all that is known.

    `delay` and `steps` are the coverage of the partitions of the delay and the progress topic, by shard.
    """
    shards = sorted({*delay, *steps})
    moments = {coverage.covered_ms for coverage in targets.values()}
    first_gap = {shard: _before_gap([delay.get(shard), steps.get(shard)]) for shard in shards}
    for target in targets.values():
        moments |= {_earliest(target, first_gap[shard]) for shard in shards}
    rounded = _thin(moments)
    proved = frontiers(progress, [*sorted({*rounded.values()} - {0}), ALWAYS])
    none = Frontier()
    found = {}
    for name, target in targets.items():
        for shard in shards:
            gaps = [seen.gap_ms for seen in (delay.get(shard), steps.get(shard)) if seen and seen.gap_ms is not None]
            found[shard, name] = Judge(
                any=proved.get((shard, ALWAYS), none),
                covered=proved.get((shard, rounded[target.covered_ms]), none),
                before_gap=proved.get((shard, rounded[_earliest(target, first_gap[shard])]), none),
                shard_gap_ms=max(gaps, default=None),
                target_gap_ms=target.gap_ms,
                unresolved=target.unresolved,
            )
    return found, {shard: proved.get((shard, ALWAYS), none) for shard in shards}


def _before_gap(seen: Iterable[Coverage | None]) -> int | None:
    """The earliest moment from before a gap; None without any gap."""
    return min((each.before_gap_ms for each in seen if each is not None and each.gap_ms is not None), default=None)


def _earliest(target: Coverage, of_shard: int | None) -> int:
    own = [target.covered_ms, *([] if target.gap_ms is None else [target.before_gap_ms])]
    return min([*own, *([] if of_shard is None else [of_shard])])


def _thin(moments: Iterable[int]) -> dict[int, int]:
    """At most `MOMENTS_MAX` moments for all: each stands for those after it, up to the next."""
    known = sorted({*moments, 0})
    stride = -(-len(known) // MOMENTS_MAX)
    # Counted from the last one: the latest moment is the one that most targets share.
    kept = sorted({0, *known[::-1][::stride]})
    return {moment: kept[bisect_right(kept, moment) - 1] for moment in known}


def judge_rows(found: Mapping[tuple[int, str], Judge]) -> list[tuple[int | str | bool | None, ...]]:
    """As rows of `JUDGES`."""
    return [
        (shard, target, each.any.offset, each.any.due_ms, each.covered.offset, each.covered.due_ms,
         each.before_gap.offset, each.before_gap.due_ms, each.shard_gap_ms, each.target_gap_ms, each.unresolved)
        for (shard, target), each in found.items()
    ]  # fmt: skip


JUDGES = (
    "shard int, target string, any_offset long, any_due_ms long, covered_offset long, covered_due_ms long,"
    " before_gap_offset long, before_gap_due_ms long, shard_gap_ms long, target_gap_ms long, unresolved boolean"
)


def is_settled(which: str) -> Column:
    """Whether a unit with `source_offset` and `place_ms` is settled by one of the frontiers of its judge."""
    return (f.col("source_offset") < f.col(f"{which}_offset")) & (f.col("place_ms") <= f.col(f"{which}_due_ms"))
