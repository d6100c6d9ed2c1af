"""The tables of an archive as DataFrames, for audit and backfill: all but `rejected` and
`dead_letters`. A run of the archive reads single ones with `read_table`.

The columns are in `schema`; in older files a newer column reads as null. Law: `open_tables` fails
if a recorded file of these tables or of `sent` is missing or has another size, if one was added, or
if a compaction replaces folders."""

from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession

from chronos.errors import ArchiveFailed
from chronos.spark import inventory, schema
from chronos.spark.runs import check_format
from chronos.spark.storage import ArchiveStorage

JOURNAL = "_compaction.json"
"""File below a table that names the new folder of a compaction and the folders it replaces."""

SENT = "sent"
"""Folder of the ledger of backfills."""

READ = (schema.MESSAGES, schema.DELIVERIES, schema.DECISIONS, schema.PROGRESS, schema.OFFSETS)
"""The tables that are read together."""


class Tables(Struct, frozen=True, kw_only=True):
    """The tables that an audit or a backfill reads."""

    messages: DataFrame
    deliveries: DataFrame
    decisions: DataFrame
    progress: DataFrame
    offsets: DataFrame


def read_table(spark: SparkSession, storage: ArchiveStorage, table: schema.Table) -> DataFrame:
    """A table of the archive; empty if nothing was archived to it yet."""
    kinds = schema.table_schema(table)
    if not storage.folders(table.name):
        return spark.createDataFrame([], kinds)
    return spark.read.schema(kinds).parquet(storage.path(table.name))


def open_tables(spark: SparkSession, storage: ArchiveStorage) -> tuple[Tables, str, str]:
    """The tables, the cluster's name and its delay topic; ArchiveFailed if there is no archive,
    ArchiveUnusable if it lost a file.

    Spark lists the files of a table here. `offsets` comes first: everything it covers is in the
    other tables by then, and rows that a concurrent run of the archive adds to them are not
    covered. A compaction between the listings could hide rows, so that one under way is an error
    too."""
    found = check_format(storage)
    if found is None:
        raise ArchiveFailed(
            f"{storage.uri} is not an archive: it has no archive.json; `chronos archive` creates "
            "one"
        )
    compacted = _compacted(storage)
    offsets = read_table(spark, storage, schema.OFFSETS)
    tables = Tables(
        messages=read_table(spark, storage, schema.MESSAGES),
        deliveries=read_table(spark, storage, schema.DELIVERIES),
        decisions=read_table(spark, storage, schema.DECISIONS),
        progress=read_table(spark, storage, schema.PROGRESS),
        offsets=offsets,
    )
    inventory.need_whole(storage, (*(table.name for table in READ), SENT))
    if _compacted(storage) != compacted:
        raise ArchiveFailed(
            f"{storage.uri} was compacted while it was read; run the same command again"
        )
    return tables, found["cluster"], found["topics"]["delay"]


def _compacted(storage: ArchiveStorage) -> set[str]:
    """The folders that compactions have made; ArchiveFailed if one is replacing folders now, or was
    killed while it did."""
    found = set()
    for table in READ:
        if storage.exists(f"{table.name}/{JOURNAL}"):
            raise ArchiveFailed(
                f"{storage.uri} is being compacted, or a compaction was killed: wait for it, or "
                "run `chronos archive compact`"
            )
        found |= {
            f"{table.name}/{name}"
            for name in storage.folders(table.name)
            if name.startswith("batch=c")
        }
    return found
