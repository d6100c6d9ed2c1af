"""The expiry of what was settled long ago: the archive keeps of it the outcome and the times.

    1. `erased` gets a row for each delivery, the other tables lose theirs
    2. a row of `offsets`: the commit point
    3. the ledger loses the rows of messages of which no record is left
    4. VACUUM removes the files that no row of `offsets` of the last days names

A kill before 2 leaves everything as it was, and the next expiry completes what a kill after 2 left.

What is settled is judged as an audit does, by the steps before the limit alone: each shard as it
was after its last step before. A record of the delay topic goes with the messages of its id that
the log connects with it: a message that was replaced goes with the one that took its place, a
cancel with its message, the source of a forwarded record with that record. Law: what stays is
judged as before. So a message that is pending, or that broke a promise, keeps everything that its
outcome follows from, and steps and decisions stay from the oldest record that does."""

from collections.abc import Mapping

from msgspec import Struct
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from chronos.core.timefmt import MS_MAX
from chronos.spark import ledger, schema
from chronos.spark.archive.commits import Commits
from chronos.spark.archive.compact import KEPT_H
from chronos.spark.archive.erase import RECORD, erasing, remove, write_erased
from chronos.spark.audit.coverage import archived_through, coverage, usable
from chronos.spark.audit.hops import hops
from chronos.spark.audit.job import judge
from chronos.spark.audit.outcomes import WRONG, Span, held, refused, with_replays
from chronos.spark.codec import DAY_MS, of_shard, partition_of
from chronos.spark.delta import is_empty, table_at
from chronos.spark.ledger import TOKEN
from chronos.spark.schema import DEAD_LETTERS, DECISIONS, DELIVERIES, MESSAGES, PROGRESS, REJECTED
from chronos.spark.session import Step, Watch
from chronos.spark.storage import ArchiveStorage
from chronos.spark.tables import Tables, open_tables

EXPIRE = "expire"

EVERYTHING = Span(from_ms=0, to_ms=MS_MAX + 1)


class Expired(Struct, frozen=True, kw_only=True):
    """The result of expiry."""

    rows: dict[str, int]
    """Rows that were removed, by table."""
    erased: int
    """Deliveries of which the outcome and the times stay."""


def expire(spark: SparkSession, storage: ArchiveStorage, before_ms: int, watch: Watch) -> Expired:
    """Erase what was settled before a time, epoch ms: letters, steps and decisions by whole UTC
    days. ArchiveFailed if there is no archive, or a backfill is unfinished."""
    with erasing(spark, storage) as commits:
        tables, _, delay_topic = open_tables(spark, storage)
        watch(Step(name="judging what was settled"))
        ends = _ends(tables, before_ms)
        judged = _judged(spark, storage, tables, ends, delay_topic)
        records = _records(tables, judged, ends, delay_topic)
        erased = _erased(judged, records).localCheckpoint()
        watch(Step(name="writing what stays"))
        count = 0 if erased.isEmpty() else write_erased(commits, erased, EXPIRE)  # 1
        removed = {}
        gone = {
            MESSAGES: records.where("goes"),
            DELIVERIES: _deliveries(tables, records, erased, before_ms, delay_topic),
        }
        for table, rows in gone.items():
            watch(Step(name=f"expiring {table.name}"))
            removed[table.name] = remove(spark, storage, table, rows)
        needed_ms = _needed_ms(tables, records, ends, before_ms)
        for table, until_ms in (
            (REJECTED, before_ms),
            (DEAD_LETTERS, before_ms),
            (DECISIONS, needed_ms),
            (PROGRESS, needed_ms),
        ):
            watch(Step(name=f"expiring {table.name}"))
            removed[table.name] = _remove_days(spark, storage, commits, table, until_ms)
        watch(Step(name="committing"))
        commits.note(EXPIRE)  # 2
        commits.remove_erased_rows_sent()  # 3
        for name in schema.TABLES:  # 4
            watch(Step(name=f"removing old files of {name}"))
            table_at(spark, storage, name).vacuum(KEPT_H)
        return Expired(rows=removed, erased=count)


class _Ends(Struct, frozen=True, kw_only=True):
    """The shards as they were after their last steps before the limit."""

    until: dict[int, int]
    """For each shard the offset after that step in the progress topic."""
    pulled: dict[int, int]
    """The offset up to which its steps had executed the delay topic."""
    first_ms: int | None
    """The time of the earliest of these steps, epoch ms; None: there is none. 0: a shard has steps,
    and the records that its first one executed are not archived yet."""

    def has(self, offset: str) -> Column:
        """True if the offset, of the progress topic, is of a step before the limit."""
        return _below(offset, self.until)

    def executed(self) -> Column:
        """True for a record of the delay topic that a step before the limit executed."""
        return _below("offset", self.pulled)


def _below(offset: str, ends: Mapping[int, int]) -> Column:
    """True if the offset is below that of its shard."""
    return f.coalesce(f.col(offset) < of_shard(ends), f.lit(False))


def _ends(tables: Tables, before_ms: int) -> _Ends:
    """The ends of the shards. Timestamps need not be in order, so that a shard ends before its
    first step after the limit."""
    steps = usable(tables.progress, tables.offsets)
    late = f.min(f.when(f.col("timestamp_ms") >= before_ms, f.col("offset")))
    first_late = steps.groupBy("shard").agg(late.alias("late"))
    before = steps.join(f.broadcast(first_late), "shard").where("late is null or offset < late")
    found = (
        before.groupBy("shard")
        .agg(
            (f.max("offset") + 1).alias("until"),
            f.max("pull_offset").alias("pulled"),
            f.max("timestamp_ms").alias("last_ms"),
        )
        .collect()
    )
    is_unread = not is_empty(tables.progress.join(steps, "shard", "left_anti"))
    times = [0] * is_unread + [row["last_ms"] for row in found]
    return _Ends(
        until={row["shard"]: row["until"] for row in found},
        pulled={row["shard"]: row["pulled"] for row in found},
        first_ms=min(times, default=None),
    )


def _judged(
    spark: SparkSession,
    storage: ArchiveStorage,
    tables: Tables,
    ends: _Ends,
    delay_topic: str,
) -> DataFrame:
    """The outcomes of all messages as of these ends, with `is_final`: it was settled by then, and
    broke no promise that could still be looked into; no record that is archived later changes
    it."""
    as_of = Tables(
        messages=tables.messages,
        deliveries=tables.deliveries,
        decisions=tables.decisions.where(ends.has("progress_offset")),
        progress=tables.progress.where(ends.has("offset")),
        offsets=tables.offsets,
        erased=tables.erased,
    )
    stays = f.col("outcome").isin("pending", *WRONG) | f.col("reason").eqNullSafe(
        "open-transaction"
    )
    is_erased = f.col("outcome") == "erased"
    is_final = is_erased | (f.coalesce("settled", f.lit(False)) & ~stays)
    judged = judge(as_of, coverage(tables.offsets), delay_topic, EVERYTHING).outcomes
    if ledger.runs(storage):
        judged = with_replays(judged, ledger.sent_rows(spark, storage))
    return judged.withColumn("is_final", is_final).drop("id", "target").localCheckpoint()


def _records(tables: Tables, judged: DataFrame, ends: _Ends, delay_topic: str) -> DataFrame:
    """Table `messages` -> the address of each record, `accepted_ms`, and `goes`: whether it is
    removed. `last_occurrence`: of the message that it brought."""
    promised = judged.groupBy("shard", f.col("source_offset").alias("offset")).agg(
        f.min("is_final").alias("is_final"),
        f.max(_is_replaced()).alias("is_replaced"),
        f.max("occurrence").alias("last_occurrence"),
    )
    refusals = refused(tables.decisions.where(ends.has("progress_offset")))
    rows = (
        tables.messages.select(
            *RECORD,
            "month",
            "verb",
            f.coalesce("id", f.col("offset").cast("string").cast("binary")).alias("id"),
            f.least("first_ms", "timestamp_ms").alias("accepted_ms"),
            ends.executed().alias("is_executed"),
        )
        .join(promised, list(RECORD), "left")
        .join(refusals, list(RECORD), "left")
    )
    found = hops(tables.messages, delay_topic, EVERYTHING)
    if found.isEmpty():
        return _with_goes(rows).localCheckpoint()
    rows = rows.localCheckpoint()
    found = found.select(
        "shard", f.col("source_offset").alias("offset"), "from_shard", "from_offset"
    ).localCheckpoint()
    sources = rows.where("not is_executed").select(
        *(f.col(name).alias(f"from_{name}") for name in RECORD)
    )
    of_hop = ["from_shard", "from_offset"]
    early = found.join(sources, of_hop, "left_semi")
    doubled = found.join(found.groupBy(*of_hop).count().where("count > 1"), of_hop, "left_semi")
    stay = _marked(early.unionByName(doubled), "stays")
    rows = rows.join(stay, list(RECORD), "left").withColumn(
        "is_final", f.when(f.col("stays"), f.lit(False)).otherwise(f.col("is_final"))
    )
    rows = _with_goes(rows).localCheckpoint()
    kept = found.join(rows.where("goes"), list(RECORD), "left_anti")
    named = kept.select(*(f.col(f"from_{name}").alias(name) for name in RECORD))
    goes = f.col("goes") & ~f.coalesce("is_source", f.lit(False))
    return (
        rows.join(_marked(named, "is_source"), list(RECORD), "left")
        .withColumn("goes", goes)
        .drop("is_source")
        .localCheckpoint()
    )


_MARKED = (*RECORD, "month", "accepted_ms", "last_occurrence")


def _marked(records: DataFrame, name: str) -> DataFrame:
    """Records -> their addresses, once each, with a column of this name that is true."""
    return records.select(*RECORD).distinct().withColumn(name, f.lit(True))


def _with_goes(rows: DataFrame) -> DataFrame:
    """Add `goes`: the record was executed, and is part of no outcome that is not final.

    Messages of an id that took each other's place go together, and an action goes with the message
    before it. A refused record was part of no message; one that is held has not ended."""
    is_refused = f.col("refused_for").isNotNull()
    of_id = Window.partitionBy("shard", "id").orderBy("offset")
    before = of_id.rowsBetween(Window.unboundedPreceding, -1)
    until_here = of_id.rowsBetween(Window.unboundedPreceding, 0)
    is_last = f.col("is_message") & ~f.coalesce("is_replaced", f.lit(False))
    whole = f.min(f.when(f.col("is_message"), f.col("is_final")))
    rows = (
        rows.withColumn("is_message", f.col("is_final").isNotNull() & ~is_refused)
        .withColumn("group", f.coalesce(f.sum(is_last.cast("int")).over(before), f.lit(0)))
        .withColumn("whole", whole.over(Window.partitionBy("shard", "id", "group")))
        .withColumn("whole", f.when(f.col("is_message"), f.col("whole")))
        .withColumn("whole", f.last("whole", ignorenulls=True).over(until_here))
    )
    is_schedule = f.col("verb").isin("schedule", "replace")
    is_over = (
        f.when(is_refused, f.coalesce("is_final", ~f.col("waits")))
        .when(f.col("is_message") | ~is_schedule, f.coalesce("whole", f.lit(True)))
        .otherwise(False)
    )
    return rows.withColumn("goes", f.col("is_executed") & is_over).select(*_MARKED, "goes")


def _is_replaced() -> Column:
    """True for a message whose place another one of its id took."""
    return (f.col("outcome") == "replaced") & f.col("reason").isNull()


def _erased(judged: DataFrame, records: DataFrame) -> DataFrame:
    """The final outcomes that are not erased yet: of messages whose records go, of earlier
    occurrences of the others, and of records that could not be read."""
    of_record = records.select(
        "shard", f.col("offset").alias("source_offset"), "goes", "last_occurrence"
    )
    is_earlier = f.col("occurrence") < f.col("last_occurrence")
    return (
        judged.where("is_final and outcome <> 'erased'")
        .join(of_record, ["shard", "source_offset"], "left")
        .where(f.coalesce("goes", f.lit(True)) | is_earlier)
        .drop("goes", "last_occurrence")
    )


def _deliveries(
    tables: Tables,
    records: DataFrame,
    erased: DataFrame,
    before_ms: int,
    delay_topic: str,
) -> DataFrame:
    """The deliveries of what is erased, and those before the limit that are of no record of the
    archive, and of none that is still to be archived."""
    of_record = records.select("shard", f.col("offset").alias("source_offset"), "goes")
    tokens = erased.select(*TOKEN).distinct().withColumn("is_erased", f.lit(True))
    rows = (
        tables.deliveries.join(of_record, ["shard", "source_offset"], "left")
        .join(tokens, list(TOKEN), "left")
        .join(f.broadcast(archived_through(tables.offsets)), "shard", "left")
        .withColumn("is_own", f.coalesce(f.col("source_topic") == delay_topic, f.lit(False)))
    )
    goes = f.coalesce("goes", f.lit(False)) | f.coalesce("is_erased", f.lit(False))
    is_old = (f.col("date") < partition_of(DELIVERIES, before_ms)) & (
        f.col("timestamp_ms") < before_ms
    )
    # A shard that the archive does not know has no record that is still to be archived.
    is_archived = f.coalesce(f.col("source_offset") < f.col("through"), f.lit(True))
    is_stray = is_old & (~f.col("is_own") | (f.col("goes").isNull() & is_archived))
    return rows.where((f.col("is_own") & goes) | is_stray)


def _needed_ms(tables: Tables, records: DataFrame, ends: _Ends, before_ms: int) -> int:
    """The time before which no step and no decision is about what stays; one day is left for clocks
    that differ, and for the step before one."""
    waiting = held(tables.decisions).where("waits").agg(f.min("decided_ms").alias("at_ms"))
    kept = records.where("not goes").agg(f.min("accepted_ms").alias("at_ms"))
    times = [before_ms, ends.first_ms, *(row["at_ms"] for row in kept.unionAll(waiting).collect())]
    return max(0, int(min(each for each in times if each is not None)) - DAY_MS)


def _remove_days(
    spark: SparkSession,
    storage: ArchiveStorage,
    commits: Commits,
    table: schema.Table,
    before_ms: int,
) -> int:
    """Remove the dates before that of a time, for which no file is written: the number of rows."""
    assert table.partition == schema.DATE
    old = f.col(schema.DATE) < partition_of(table, before_ms)
    count = int(commits.read(table).where(old).count())
    if count:
        table_at(spark, storage, table.name).delete(old)
    return count
