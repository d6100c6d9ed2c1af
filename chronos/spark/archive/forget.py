"""The forgetting of messages by id: no file of the archive holds them any more.

    1. the ids leave the requests and samples of the ledger
    2. `erased` gets a row for each of their deliveries, and every other table loses theirs
    3. a row of `offsets`: the commit point
    4. the ledger loses their rows, and VACUUM removes the files that held them

Before 3 a kill leaves the messages as they were; the same command forgets them. After 3 they are
forgotten, and the next job that commits completes 4 (`commits`). An id that is not found is
forgotten too: older files may hold it, which an expiry or a compaction has left."""

from collections.abc import Collection, Iterable
from functools import reduce

from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from chronos.core.timefmt import MS_MAX
from chronos.errors import ArchiveFailed
from chronos.spark import ledger
from chronos.spark.archive.commits import FORGET, LETTERS
from chronos.spark.archive.erase import RECORD, erasing, remove, write_erased
from chronos.spark.audit.coverage import coverage
from chronos.spark.audit.job import judge
from chronos.spark.audit.outcomes import Span, with_replays
from chronos.spark.codec import LEFT_LANE, WRITTEN_ON, header, header_text
from chronos.spark.ledger import ID_PREFIX, REPLAY_ID, REPLAY_OF
from chronos.spark.schema import DELIVERIES, MESSAGES, REJECTED
from chronos.spark.session import Step, Watch
from chronos.spark.storage import ArchiveStorage
from chronos.spark.tables import Tables, open_tables, read_table

REPLAYS_DEEP = 20
"""Most replays of replays that are followed."""

PENDING_NAMED = 10
"""Most pending messages that are named."""


class ForgottenIds(Struct, frozen=True, kw_only=True):
    """The result of forgetting."""

    rows: dict[str, int]
    """Rows that were removed, by table."""
    erased: int
    """Deliveries of which the outcome and the times stay."""
    not_found: list[bytes]
    """Ids of which the archive holds nothing."""
    pending: list[bytes]
    """Ids of pending messages among them, at most `PENDING_NAMED`: if there is one, nothing was
    forgotten."""


def forget(
    spark: SparkSession, storage: ArchiveStorage, ids: Collection[bytes], watch: Watch
) -> ForgottenIds:
    """Forget these ids, with their replays. ArchiveFailed if there is no archive, or a backfill is
    unfinished."""
    with erasing(spark, storage) as commits:
        tables, _, delay_topic = open_tables(spark, storage)
        watch(Step(name="looking for the messages"))
        wanted = spark.createDataFrame([(each,) for each in {*ids}], "id binary")
        letters = {each: read_table(spark, storage, each, tables.versions) for each in LETTERS}
        records = _records(tables.messages, letters[REJECTED], wanted, delay_topic)
        records = records.localCheckpoint()
        named = wanted.unionByName(records.where("id is not null").select("id")).distinct()
        gone = {
            MESSAGES: records,
            DELIVERIES: _received(tables.deliveries, records, named, delay_topic),
            **{
                each: _received(rows, records, named, delay_topic, by_record=True)
                for each, rows in letters.items()
            },
        }
        gone = {table: rows.localCheckpoint() for table, rows in gone.items()}
        known = _ids([*gone.values(), ledger.all_rows(spark, storage)], wanted)
        watch(Step(name="judging them"))
        judged = _outcomes(spark, storage, tables, records, delay_topic)
        waits = [] if judged is None else _pending(judged)
        if waits:
            return ForgottenIds(rows={}, erased=0, not_found=[], pending=waits)
        ledger.remove_ids(storage, {*ids})  # 1
        watch(Step(name="writing what stays"))
        erased = 0 if judged is None else write_erased(commits, judged, FORGET)  # 2
        removed = {}
        for table, rows in gone.items():
            watch(Step(name=f"forgetting {table.name}"))
            removed[table.name] = remove(spark, storage, table, rows)
        watch(Step(name="committing"))
        commits.note(FORGET)  # 3
        watch(Step(name="forgetting rows of the ledger"))
        commits.remove_erased_rows_sent()  # 4
        commits.vacuum(watch)
        return ForgottenIds(
            rows=removed, erased=erased, not_found=sorted({*ids} - known), pending=[]
        )


def _records(
    messages: DataFrame, rejected: DataFrame, ids: DataFrame, delay_topic: str
) -> DataFrame:
    """Table `messages` -> the records of the ids, those without an id that were rejected under one,
    and the replays of all of these."""
    columns = ("shard", "offset", "month", "id", "timestamp_ms", "requested_due_ms", "due_ms")
    own = messages.select(*columns)
    under_one = rejected.where(f.col("source_topic") == delay_topic).join(
        f.broadcast(ids), "id", "left_semi"
    )
    nameless = own.where("id is null").join(
        f.broadcast(_at(under_one.select("shard", f.col("source_offset").alias("offset")))),
        list(RECORD),
        "left_semi",
    )
    found = own.join(f.broadcast(ids), "id", "left_semi").unionByName(nameless)
    replays = messages.where(f.col("id").startswith(f.lit(ID_PREFIX.encode())))
    if replays.isEmpty():
        return found
    of = header_text(REPLAY_OF)
    replays = replays.select(
        *columns,
        header(REPLAY_ID).alias("of_id"),
        f.regexp_extract(of, _TOKEN, 1).alias("of_topic"),
        f.regexp_extract(of, _TOKEN, 2).try_cast("int").alias("of_shard"),
        f.regexp_extract(of, _TOKEN, 3).try_cast("long").alias("of_offset"),
    ).localCheckpoint()
    by_id = replays.join(f.broadcast(ids.withColumnRenamed("id", "of_id")), "of_id", "left_semi")
    of_here = replays.where(f.col("of_topic") == delay_topic)
    last = found.unionByName(by_id.select(*columns)).dropDuplicates(list(RECORD))
    found = last = last.localCheckpoint()
    for _ in range(REPLAYS_DEEP):
        of_last = last.select(f.col("shard").alias("of_shard"), f.col("offset").alias("of_offset"))
        more = of_here.join(of_last, ["of_shard", "of_offset"], "left_semi").select(*columns)
        last = more.join(found.select(*RECORD), list(RECORD), "left_anti").localCheckpoint()
        if last.isEmpty():
            return found
        found = found.unionByName(last)
    raise ArchiveFailed(f"a replay repeats a replay more than {REPLAYS_DEEP} times")


_TOKEN = r"^(.*)/([0-9]+)/([0-9]+)/[0-9]+$"


def _at(records: DataFrame, offset: str = "offset") -> DataFrame:
    """Records -> `shard` and `offset`, once each; the latter under another name if one is given."""
    return records.select("shard", f.col("offset").alias(offset)).distinct()


def _received(
    rows: DataFrame,
    records: DataFrame,
    ids: DataFrame,
    delay_topic: str,
    *,
    by_record: bool = False,
) -> DataFrame:
    """Rows with a receipt -> those with one of the ids, or without an id and of one of the records;
    `by_record`: of one of these with any id. In a target, a record of another cluster may name a
    record of the same topic and offset."""
    of_records = rows.where(
        (f.col("source_topic") == delay_topic) & (f.col("id").isNull() | f.lit(by_record))
    ).join(f.broadcast(_at(records, "source_offset")), ["shard", "source_offset"], "left_semi")
    by_id = rows.join(f.broadcast(ids), "id", "left_semi")
    columns = ("topic", "partition", "offset", "timestamp_ms", "date", "id")
    return by_id.select(*columns).unionByName(of_records.select(*columns))


def _ids(found: Iterable[DataFrame], wanted: DataFrame) -> set[bytes]:
    """Those of the wanted ids that rows with a column `id` have."""
    known = reduce(DataFrame.unionByName, (rows.select("id") for rows in found))
    rows = known.join(f.broadcast(wanted), "id", "left_semi").distinct().collect()
    return {bytes(row["id"]) for row in rows}


def _outcomes(
    spark: SparkSession,
    storage: ArchiveStorage,
    tables: Tables,
    records: DataFrame,
    delay_topic: str,
) -> DataFrame | None:
    """The outcomes of what these records promised, but for what is erased already; None without
    records.

    The few rows that they follow from are computed first: Spark would plan a judgement of joins for
    minutes."""
    first = records.agg(
        f.min(f.least("timestamp_ms", "requested_due_ms", "due_ms")).alias("from_ms")
    ).first()
    if first is None or first["from_ms"] is None:
        return None
    by_source = f.broadcast(_at(records, "source_offset"))

    def of_records(rows: DataFrame) -> DataFrame:
        return rows.join(by_source, ["shard", "source_offset"], "left_semi").localCheckpoint()

    cursors = f.col("outcome").isin(LEFT_LANE, WRITTEN_ON)
    messages = tables.messages.join(f.broadcast(_at(records)), list(RECORD), "left_semi")
    own = Tables(
        messages=messages.localCheckpoint(),
        deliveries=of_records(tables.deliveries),
        decisions=tables.decisions.where(cursors)
        .unionByName(of_records(tables.decisions.where(~cursors)))
        .localCheckpoint(),
        progress=tables.progress,
        offsets=tables.offsets,
        erased=None if tables.erased is None else of_records(tables.erased),
    )
    span = Span(from_ms=max(0, first["from_ms"]), to_ms=MS_MAX + 1)
    judged = judge(own, coverage(tables.offsets), delay_topic, span).outcomes
    if ledger.runs(storage):
        judged = with_replays(judged, ledger.sent_rows(spark, storage))
    return judged.where("outcome <> 'erased'").localCheckpoint()


def _pending(judged: DataFrame) -> list[bytes]:
    """Ids of pending messages, at most `PENDING_NAMED`; an empty one for a message without."""
    rows = judged.where("outcome = 'pending'").select("id").distinct().limit(PENDING_NAMED)
    return [bytes(row["id"] or b"") for row in rows.collect()]
