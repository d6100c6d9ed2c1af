"""Compaction of the archive: Delta's OPTIMIZE merges small files, and its VACUUM removes the files
that no version of the last days needs.

Law: VACUUM keeps what any row of `offsets` of the last `KEPT_H` hours names, so that a job that
reads these versions goes on. A compaction that was killed leaves every table readable; the next
job takes back what it did not commit."""

from msgspec import Struct
from pyspark.sql import SparkSession

from chronos.spark import schema
from chronos.spark.archive.commits import committing
from chronos.spark.delta import table_at
from chronos.spark.session import Step, Watch
from chronos.spark.storage import ArchiveStorage

KEPT_H = 7 * 24
"""Hours that a file stays after the commit that removed it from its table."""

FILE_BYTES = (
    "spark.databricks.delta.optimize.minFileSize",
    "spark.databricks.delta.optimize.maxFileSize",
)
"""Delta's settings for the size up to which files are merged, and that of the merged ones."""


class CompactedTable(Struct, frozen=True, kw_only=True):
    """The result of compaction for one table."""

    table: str
    files_before: int
    files_after: int


def compact(
    spark: SparkSession, storage: ArchiveStorage, file_bytes: int, watch: Watch
) -> list[CompactedTable]:
    """Compact every table: 1. merge its files below `file_bytes`, 2. commit, 3. remove the files
    that are not needed any more."""
    with committing(spark, storage) as commits:
        for setting in FILE_BYTES:
            spark.conf.set(setting, str(file_bytes))
        done = []
        for name in schema.TABLES:  # 1
            watch(Step(name=f"compacting {name}"))
            done.append(_merge(spark, storage, name))
        commits.note("compact")  # 2
        for name in schema.TABLES:  # 3
            watch(Step(name=f"removing old files of {name}"))
            table_at(spark, storage, name).vacuum(KEPT_H)
        return done


def _merge(spark: SparkSession, storage: ArchiveStorage, name: str) -> CompactedTable:
    table = table_at(spark, storage, name)
    before = _files(table)
    table.optimize().executeCompaction()
    return CompactedTable(table=name, files_before=before, files_after=_files(table))


def _files(table: object) -> int:
    """The number of files of a table."""
    row = table.detail().select("numFiles").first()  # type: ignore[attr-defined]
    return int(row["numFiles"])
