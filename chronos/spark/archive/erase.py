"""The erasure of messages, which `expire` and `forget` have in common: the rows that the table
`erased` gets for their deliveries, and the removal of rows from the other tables.

Law: the row of a delivery in `erased` is committed with the removal of its message, so that an
audit finds one or the other."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from chronos.spark import ledger
from chronos.spark.archive.commits import Commits, committing
from chronos.spark.delta import table_at
from chronos.spark.schema import ERASED, Table, columns_of
from chronos.spark.storage import ArchiveStorage

RECORD = ("shard", "offset")
"""The columns that name a record of the delay topic."""


@contextmanager
def erasing(spark: SparkSession, storage: ArchiveStorage) -> Iterator[Commits]:
    """The commits of a job that erases: other writers and backfills are kept out. ArchiveFailed if
    there is no archive, or a backfill is unfinished."""
    with committing(spark, storage) as commits, ledger.locked(storage):
        ledger.check_ended(storage)
        yield commits


def write_erased(commits: Commits, deliveries: DataFrame, work: str) -> int:
    """Write rows of `audit.outcomes` to the table `erased`: their number."""
    rows = deliveries.withColumns(
        {
            "window_ms": f.coalesce("window_ms", "due_ms"),
            "erased_ms": f.lit(time.time_ns() // 1_000_000),
        }
    ).select(*columns_of(ERASED).names)
    return commits.write(ERASED, rows, run=uuid4().hex, stream=work, number=0).rows


def address(table: Table) -> tuple[str, ...]:
    """The columns that name one row of a table. A topic that was created again may have another
    record at the same offset."""
    names = columns_of(table).names
    if "topic" in names:
        return ("topic", "partition", "offset", "timestamp_ms")
    return RECORD


def remove(spark: SparkSession, storage: ArchiveStorage, table: Table, gone: DataFrame) -> int:
    """Remove rows from a table, `gone` with at least their `address` and partition: their number.

    Only files of these partitions are read, and only those that hold one of the rows are written
    again. Delta's log keeps the condition, which names columns and dates, but no values."""
    partition = table.partition
    assert partition is not None
    names = (partition, *address(table))
    rows = gone.select(*names).distinct().persist()
    try:
        found = rows.agg(
            f.count("*").alias("rows"),
            f.min(partition).alias("first"),
            f.max(partition).alias("last"),
        ).first()
        assert found is not None
        if found["rows"]:
            same = f.col(f"kept.{partition}").between(found["first"], found["last"])
            for name in names:
                same &= f.col(f"kept.{name}") == f.col(f"gone.{name}")
            kept = table_at(spark, storage, table.name).alias("kept")
            kept.merge(rows.alias("gone"), same).whenMatchedDelete().execute()
        return int(found["rows"])
    finally:
        rows.unpersist()
