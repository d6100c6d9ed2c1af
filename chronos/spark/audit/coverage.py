"""The coverage of the logs by the archive, and the messages that it therefore proves to be settled.

Two questions. Up to which moment is a target, or a partition of the delay or progress topic,
archived completely, with no open transaction and no record deleted before it was read? And which
messages do the progress records written by then prove to be settled? The answers are small (a row
for each target and one for each such partition; a row for each shard and moment) and go to the
driver; the tables do not. Law: nothing is taken as proved that a gap, a compacted topic, an
election or an open transaction could contradict."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import astuple
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from chronos.core.keys import OFFSET_MAX
from chronos.spark.codec import partition_of
from chronos.spark.elections import Loss
from chronos.spark.runs import UNREADABLE, check_format
from chronos.spark.schema import MESSAGES, OFFSETS, PROGRESS
from chronos.spark.storage import ArchiveStorage
from chronos.spark.tables import pinned, read_table

STEPS_BEFORE_MS = 86_400_000
"""Age in ms, before the window, of the oldest progress records read: a shard may have been idle
before the window."""

MOMENTS_MAX = 32
"""Most moments the progress log is evaluated for; if targets were read at more, some count as read
earlier."""

ALWAYS = 2**62
"""A moment after every record."""


class Coverage(Struct, frozen=True, kw_only=True):
    """The part of a topic, or of one partition, that the archive holds."""

    covered_ms: int
    """`read_ms` of the last run at which every record was archived that was committed before it; 0:
    there was none."""
    until_ms: int = 0
    """Every record written by then, by the brokers' clocks, is archived; 0: unknown for all."""
    gap_ms: int | None = None
    """When records were last found deleted before they were archived; None: never."""
    before_gap_ms: int = 0
    """`covered_ms` before the first such gap, and before the topic was compacted; 0: that was so
    from the beginning."""
    compacted_ms: int | None = None
    """When the topic was last known to be compacted, so that records may be gone that nothing else
    had removed; None: never."""
    born_ms: int | None = None
    """The topic is known to have existed since then, under the id it had when the archive first
    looked at it; None: not asked."""
    unresolved: bool = False
    """True if a transaction was open in it when it was last read."""
    gap_reason: str | None = None
    """Reason of the last such gap, as in the table `offsets`."""


class Frontier(Struct, frozen=True):
    """For one shard: delay records below `offset` with a position due at or before `due_ms` are
    settled."""

    offset: int = 0
    due_ms: int = -1


class ArchiveCoverage(Struct, frozen=True, kw_only=True):
    """The part of each topic that the archive holds."""

    targets: dict[str, Coverage]
    """By topic."""
    delay: dict[int, Coverage]
    """By shard: its partition of the delay topic."""
    steps: dict[int, Coverage]
    """By shard: its partition of the progress topic."""

    @property
    def end_ms(self) -> int | None:
        """The time up to which the archive holds all of the delay topic, epoch ms: that of the
        partition least read.

        0: not every partition was read to its end yet; None: the archive never looked at the
        topic."""
        return min((seen.until_ms for seen in self.delay.values()), default=None)

    @property
    def settled_end_ms(self) -> int:
        """The same of the delay and the progress topic together: what was settled by then is known
        to be. 0: there is no such time yet."""
        seen = (*self.delay.values(), *self.steps.values())
        return min((each.until_ms for each in seen), default=0) if self.steps else 0


BY = ("table", "judged")
"""Columns by which coverage is known: see `_with_judged`."""


def coverage(offsets: DataFrame) -> ArchiveCoverage:
    """Table `offsets` -> the coverage of the archive.

    A range that cannot be read hides nothing: the progress record that steps over it rejects its
    records."""
    reads = _with_judged(_reads(offsets.where(~f.col("gap_reason").eqNullSafe(UNREADABLE))))
    gaps = (
        reads.where("gap")
        .groupBy(*BY)
        .agg(
            f.min("read_ms").alias("first_gap_ms"),
            f.max("read_ms").alias("gap_ms"),
            f.max_by("gap_reason", "read_ms").alias("why"),
        )
    )
    kept = _compacted(reads)
    complete = (f.col("until_offset") >= f.col("stable_end")) & (
        f.col("stable_end") == f.col("high_watermark")
    )
    whole_ms = f.when(complete, f.col("read_ms"))
    # By the clock of the archive's machine only where the brokers' is not known: it may be ahead.
    until_ms = f.when(complete, f.least("read_ms", f.coalesce("broker_ms", "read_ms")))
    earlier = f.col("read_ms") < f.least("first_gap_ms", "first_compacted_ms")
    partitions = (
        reads.join(gaps, list(BY), "left")
        .join(kept, list(BY), "left")
        .groupBy(*BY, "topic", "partition")
        .agg(
            f.max(whole_ms).alias("covered_ms"),
            f.max(until_ms).alias("until_ms"),
            f.max("compacted_ms").alias("compacted_ms"),
            f.min("oldest_ms").alias("born_ms"),
            f.max("gap_ms").alias("gap_ms"),
            f.max("why").alias("why"),
            f.max(f.when(earlier, whole_ms)).alias("before_gap_ms"),
            f.max(f.coalesce(earlier, f.lit(False))).alias("is_older"),
            f.max_by(f.col("stable_end") < f.col("high_watermark"), "read_ms").alias("unresolved"),
        )
    )
    # A partition that was added after the gap does not limit the time before it.
    before_gap_ms = f.min(f.when(f.col("is_older"), f.coalesce("before_gap_ms", f.lit(0))))
    found = partitions.groupBy(*BY).agg(
        f.min(f.coalesce("covered_ms", f.lit(0))).alias("covered_ms"),
        f.min(f.coalesce("until_ms", f.lit(0))).alias("until_ms"),
        f.max("compacted_ms").alias("compacted_ms"),
        f.min("born_ms").alias("born_ms"),
        f.max("gap_ms").alias("gap_ms"),
        f.max("why").alias("why"),
        f.coalesce(before_gap_ms, f.lit(0)).alias("before_gap_ms"),
        f.max("unresolved").alias("unresolved"),
    )
    covered = {
        (row["table"], row["judged"]): Coverage(
            covered_ms=row["covered_ms"],
            until_ms=row["until_ms"],
            gap_ms=row["gap_ms"],
            compacted_ms=row["compacted_ms"],
            born_ms=row["born_ms"],
            before_gap_ms=row["before_gap_ms"],
            unresolved=row["unresolved"],
            gap_reason=row["why"],
        )
        for row in found.collect()
    }
    of_shards = {
        name: {int(shard): seen for (table, shard), seen in covered.items() if table == name}
        for name in ("messages", "progress")
    }
    return ArchiveCoverage(
        targets={topic: seen for (table, topic), seen in covered.items() if table == "deliveries"},
        delay=of_shards["messages"],
        steps=of_shards["progress"],
    )


def archived_until(spark: SparkSession, storage: ArchiveStorage) -> int | None:
    """The end of the archive: see `ArchiveCoverage.end_ms`; None too if there is no archive.
    ArchiveUnusable if it lost a version of a table."""
    if check_format(storage) is None:
        return None
    now = pinned(spark, storage)
    if now is None:
        return None
    offsets = read_table(spark, storage, OFFSETS, now.versions)
    return coverage(offsets.where(f.col("table") == MESSAGES.name)).end_ms


def _compacted(reads: DataFrame) -> DataFrame:
    """Result of `_reads` -> by BY, `first_compacted_ms` and `compacted_ms`, of topics
    whose policy was to compact.

    The policy may have changed until the next read, and before the first one that noted it.
    """
    topic = Window.partitionBy("table", "topic")
    noted = f.when(f.col("compacted").isNotNull(), f.col("read_ms"))
    known = reads.withColumns(
        {
            "first_known": f.min_by("compacted", noted).over(topic),
            "next_ms": f.lead("read_ms").over(
                Window.partitionBy("table", "topic", "partition").orderBy("read_ms")
            ),
        }
    ).where(f.coalesce("compacted", "first_known", f.lit(False)) & (f.col("table") == "deliveries"))
    return known.groupBy(*BY).agg(
        f.min("read_ms").alias("first_compacted_ms"),
        f.max(f.coalesce("next_ms", "read_ms")).alias("compacted_ms"),
    )


def losses(offsets: DataFrame, from_ms: int) -> dict[str, list[Loss]]:
    """Table `offsets` -> by target, the times between which elections may have cost records, from
    then on, in order and apart."""
    rows = (
        offsets.where(f.col("loss_until_ms") >= from_ms)
        .select("topic", "loss_from_ms", "loss_until_ms")
        .distinct()
    )
    found: dict[str, list[Loss]] = {}
    for topic, *times in rows.orderBy("topic", "loss_from_ms").collect():
        one, known = Loss(*times), found.setdefault(topic, [])
        if known and one.from_ms <= known[-1].until_ms:
            one = Loss(known[-1].from_ms, max(one.until_ms, known.pop().until_ms))
        known.append(one)
    return found


def _with_judged(offsets: DataFrame) -> DataFrame:
    """Table `offsets` -> the same with `judged`, that of which an audit asks how far it is
    archived: a target as a whole, and each partition of the topics of Chronos."""
    is_target = f.col("table") == "deliveries"
    return offsets.withColumn(
        "judged", f.when(is_target, f.col("topic")).otherwise(f.col("partition").cast("string"))
    )


def _reads(offsets: DataFrame) -> DataFrame:
    """One row for each partition and read of it; a first read that found the log's beginning
    deleted counts as a gap."""
    reads = offsets.groupBy("table", "topic", "partition", "read_ms").agg(
        f.min("from_offset").alias("from_offset"),
        f.max("until_offset").alias("until_offset"),
        f.max("stable_end").alias("stable_end"),
        f.max("high_watermark").alias("high_watermark"),
        f.max("gap").alias("gap"),
        f.max("gap_reason").alias("gap_reason"),
        f.max("broker_ms").alias("broker_ms"),
        f.max("compacted").alias("compacted"),
        f.min("oldest_ms").alias("oldest_ms"),
    )
    first = offsets.groupBy("table", "topic", "partition").agg(f.min("read_ms").alias("first_ms"))
    # An action is always later than the record of its message, so the delay topic may begin
    # anywhere.
    starts_late = (
        (f.col("read_ms") == f.col("first_ms"))
        & (f.col("from_offset") > 0)
        & (f.col("table") != "messages")
    )
    return reads.join(first, ["table", "topic", "partition"]).withColumn(
        "gap", f.col("gap") | starts_late
    )


def archived_through(offsets: DataFrame, table: str = "messages") -> DataFrame:
    """Table `offsets` -> `shard`, `through`: the offset up to which its partition of the table's
    topic is archived."""
    own = offsets.where(f.col("table") == table)
    return own.groupBy(f.col("partition").alias("shard")).agg(
        f.max("until_offset").alias("through")
    )


def usable(progress: DataFrame, offsets: DataFrame) -> DataFrame:
    """The progress records whose decisions and delay records are all archived; only these are
    evidence."""
    through = f.broadcast(archived_through(offsets))
    steps = f.broadcast(
        archived_through(offsets, "progress").withColumnRenamed("through", "steps_through")
    )
    seen = progress.join(through, "shard").join(steps, "shard")
    return seen.where("pull_offset <= through AND offset < steps_through").drop(
        "through", "steps_through"
    )


def recent(progress: DataFrame, from_ms: int) -> DataFrame:
    """Table `progress` -> the records that concern messages due from then on, selected by
    date.

    At older records the cursor was before all of these messages: whatever such a step staged, they
    were pending."""
    since_ms = max(0, from_ms - STEPS_BEFORE_MS)
    return progress.where(
        (f.col("date") >= partition_of(PROGRESS, since_ms)) & (f.col("timestamp_ms") >= since_ms)
    )


def frontiers(
    progress: DataFrame, offsets: DataFrame, moments: Sequence[int]
) -> dict[tuple[int, int], Frontier]:
    """Tables `progress` and `offsets` -> for each shard and moment the frontier that the records
    prove which a run had seen then.

    A moment is the `read_ms` of a run. A run looks at the progress topic before it looks at
    targets, so that it found there everything that the progress records below its end of the
    progress topic had committed. No clock is compared."""
    if not moments:
        return {}
    wanted = f.broadcast(
        progress.sparkSession.createDataFrame([(moment,) for moment in moments], "moment long")
    )
    ends = (
        offsets.where(f.col("table") == "progress")
        .join(wanted, f.col("read_ms") <= f.col("moment"))
        .groupBy(f.col("partition").alias("shard"), "moment")
        .agg(f.max("stable_end").alias("end"))
        .withColumn("end", f.when(f.col("moment") == ALWAYS, ALWAYS).otherwise(f.col("end")))
    )
    return _frontiers(progress, ends)


def frontiers_at(progress: DataFrame, moments: Sequence[int]) -> dict[tuple[int, int], Frontier]:
    """Table `progress` -> for each shard and moment the frontier that the records written before it
    prove, by the brokers' clocks."""
    if not moments:
        return {}
    wanted = f.broadcast(
        progress.sparkSession.createDataFrame([(moment,) for moment in moments], "moment long")
    )
    before = progress.join(wanted, f.col("timestamp_ms") < f.col("moment"))
    return _frontiers(
        progress, before.groupBy("shard", "moment").agg((f.max("offset") + 1).alias("end"))
    )


def _frontiers(progress: DataFrame, ends: DataFrame) -> dict[tuple[int, int], Frontier]:
    """Table `progress`, and `shard`, `moment`, `end` -> for each shard and moment the frontier that
    its records below `end` prove.

    Let `(d, max)` be the greatest cursor, and p the pull offset of the first record whose cursor
    was due at `d`. Messages below p were placed by a cursor before `d`, so not later than at
    `max(due, timestamp, d)`: each of them with due time and timestamp at or before `d` is at or
    behind the cursor. A cursor amid the messages due at `d` proves the same for `d - 1`."""
    at_end = (f.col("cursor_offset") == str(OFFSET_MAX)).cast("long")
    steps = progress.select(
        "shard", "offset", "cursor_due_ms", at_end.alias("at_end"), "pull_offset"
    )
    seen = steps.join(f.broadcast(ends), "shard").where(f.col("offset") < f.col("end"))
    last = (
        seen.groupBy("shard", "moment")
        .agg(f.max(f.col("cursor_due_ms") * 2 + f.col("at_end")).alias("last"))
        .select(
            "shard", "moment", (f.shiftright("last", 1) - 1 + f.col("last") % 2).alias("due_ms")
        )
    )
    found = (
        seen.join(f.broadcast(last), ["shard", "moment"])
        .groupBy("shard", "moment", "due_ms")
        .agg(
            f.min(f.when(f.col("cursor_due_ms") >= f.col("due_ms"), f.col("pull_offset"))).alias(
                "offset"
            ),
            f.max(f.col("cursor_due_ms") < f.col("due_ms")).alias("has_before"),
        )
        .where("has_before")
    )
    return {
        (row["shard"], row["moment"]): Frontier(row["offset"], row["due_ms"])
        for row in found.collect()
    }


class Evidence(Struct, frozen=True, kw_only=True):
    """The proof that the archive has about messages of one shard and target without an archived
    delivery."""

    any: Frontier
    """By all progress records: messages beyond it are pending."""
    covered: Frontier
    """By the progress records seen at `covered_ms` of the target: messages settled by then should
    be in the archive."""
    before_gap: Frontier
    """By the progress records seen before any gap or compaction: the only evidence for messages
    that one may hide."""
    shard_gap_ms: int | None
    target_gap_ms: int | None
    target_compacted_ms: int | None
    target_born_ms: int | None
    unresolved: bool
    losses: list[tuple[int, int, int]] = []
    """For each loss in the target, `until_ms`, and `offset` and `due_ms` of the frontier by the
    progress records written before."""


def collect_evidence(
    targets: Mapping[str, Coverage],
    delay: Mapping[int, Coverage],
    steps: Mapping[int, Coverage],
    progress: DataFrame,
    offsets: DataFrame,
    from_ms: int = 0,
) -> tuple[dict[tuple[int, str], Evidence], dict[int, Frontier]]:
    """The evidence for each shard and archived target, and for each shard the frontier of all
    progress records.

    `delay` and `steps` are the coverage of the partitions of the delay and the progress topic, by
    shard. No message is judged that is due before `from_ms`."""
    shards = sorted({*delay, *steps})
    moments = {coverage.covered_ms for coverage in targets.values()}
    first_gap = {shard: _before_gap([delay.get(shard), steps.get(shard)]) for shard in shards}
    for target in targets.values():
        moments |= {_earliest(target, first_gap[shard]) for shard in shards}
    rounded = _thin(moments)
    proved = frontiers(progress, offsets, [*sorted({*rounded.values()} - {0}), ALWAYS])
    none = Frontier()
    lost = losses(offsets, from_ms)
    before = _thin(each.from_ms for of_target in lost.values() for each in of_target)
    kept = frontiers_at(progress, sorted({*before.values()} - {0}))
    found = {}
    for name, target in targets.items():
        for shard in shards:
            gaps = [
                seen.gap_ms
                for seen in (delay.get(shard), steps.get(shard))
                if seen and seen.gap_ms is not None
            ]
            found[shard, name] = Evidence(
                any=proved.get((shard, ALWAYS), none),
                covered=proved.get((shard, rounded[target.covered_ms]), none),
                before_gap=proved.get((shard, rounded[_earliest(target, first_gap[shard])]), none),
                shard_gap_ms=max(gaps, default=None),
                target_gap_ms=target.gap_ms,
                target_compacted_ms=target.compacted_ms,
                target_born_ms=target.born_ms,
                unresolved=target.unresolved,
                losses=[
                    (each.until_ms, *astuple(kept.get((shard, before[each.from_ms]), none)))
                    for each in lost.get(name, ())
                ],
            )
    return found, {shard: proved.get((shard, ALWAYS), none) for shard in shards}


def _before_gap(seen: Iterable[Coverage | None]) -> int | None:
    """The earliest moment before a gap; None if there is no gap."""
    return min(
        (each.before_gap_ms for each in seen if each is not None and each.gap_ms is not None),
        default=None,
    )


def _earliest(target: Coverage, of_shard: int | None) -> int:
    may_hide = target.gap_ms is not None or target.compacted_ms is not None
    own = [target.covered_ms, *([target.before_gap_ms] if may_hide else [])]
    return min([*own, *([] if of_shard is None else [of_shard])])


def _thin(moments: Iterable[int]) -> dict[int, int]:
    """Map every moment to one of at most `MOMENTS_MAX` that is not later."""
    known = sorted({*moments, 0})
    stride = -(-len(known) // MOMENTS_MAX)
    # Strides count from the last moment, because most targets share it.
    kept = sorted({0, *known[::-1][::stride]})
    return {moment: kept[bisect_right(kept, moment) - 1] for moment in known}


def evidence_rows(found: Mapping[tuple[int, str], Evidence]) -> list[tuple[object, ...]]:
    """The evidence as rows of `EVIDENCE`."""
    return [
        (
            shard,
            target,
            each.any.offset,
            each.any.due_ms,
            each.covered.offset,
            each.covered.due_ms,
            each.before_gap.offset,
            each.before_gap.due_ms,
            each.shard_gap_ms,
            each.target_gap_ms,
            each.target_compacted_ms,
            each.target_born_ms,
            each.unresolved,
            each.losses,
        )
        for (shard, target), each in found.items()
    ]


EVIDENCE = (
    "shard int, target string, any_offset long, any_due_ms long, covered_offset long, "
    "covered_due_ms long, before_gap_offset long, before_gap_due_ms long, shard_gap_ms long, "
    "target_gap_ms long, target_compacted_ms long, target_born_ms long, unresolved boolean, "
    "losses array<struct<until_ms: long, offset: long, due_ms: long>>"
)
"""Columns of the evidence, one row for each shard and target."""


def is_settled(which: str) -> Column:
    """True if a promised delivery with `source_offset` and `place_ms` is settled by frontier
    `which` of its evidence."""
    return (f.col("source_offset") < f.col(f"{which}_offset")) & (
        f.col("place_ms") <= f.col(f"{which}_due_ms")
    )
