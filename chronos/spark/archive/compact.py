"""Compaction of the archive: a few large files in place of many small ones.

The batches of a table that hold small files are written into one new folder, which readers skip
until it is complete. A journal then names the new folder and the ones that it replaces; the old
folders are hidden, the new one is renamed, the old ones and the journal are removed. After a kill
the next run of `chronos archive` or of `chronos archive compact` completes a compaction whose
journal is written, and removes the new folder of one without a journal. Law: readers never see a
record twice. While folders are replaced, a reader may miss records; `tables.open_tables` fails
then."""

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f

from chronos.errors import ArchiveFailed
from chronos.spark import inventory, schema
from chronos.spark.runs import check_format, remove_uncommitted
from chronos.spark.session import Step, Watch
from chronos.spark.storage import ArchiveStorage
from chronos.spark.tables import JOURNAL

MAKING = "_compacting"
"""Folder below a table that the new files are written to."""

REPLACED = "_replaced"
"""Folder below a table that hides the replaced folders until they are removed."""


class CompactedTable(Struct, frozen=True, kw_only=True):
    """The result of compaction for one table."""

    table: str
    files_before: int
    files_after: int


def compact(
    spark: SparkSession, storage: ArchiveStorage, file_bytes: int, watch: Watch
) -> list[CompactedTable]:
    """Compact every table. Batches whose files have `file_bytes` or more on average stay as they
    are."""
    if check_format(storage) is None:
        raise ArchiveFailed(
            f"{storage.uri} holds no archive; `chronos archive --location` creates one"
        )
    with storage.locked():
        finish(storage)
        remove_uncommitted(storage)
        inventory.need_whole(storage, schema.TABLES)  # afterwards nothing would show what was lost
        return [_compact(spark, storage, name, file_bytes, watch) for name in schema.TABLES]


def finish(storage: ArchiveStorage) -> None:
    """Complete every journal, and remove the files of compactions without one."""
    for name in schema.TABLES:
        journal = storage.read_json(f"{name}/{JOURNAL}")
        if journal is not None:
            for old in journal["old"]:
                inventory.forget(storage, f"{name}/{old}")
                storage.hide(f"{name}/{old}", f"{name}/{REPLACED}/{old}")
            if storage.exists(f"{name}/{MAKING}"):
                storage.move(f"{name}/{MAKING}", f"{name}/{journal['new']}")
            inventory.record(storage, f"{name}/{journal['new']}", journal["files"])
            storage.remove(f"{name}/{REPLACED}")
            storage.remove_file(f"{name}/{JOURNAL}")
        storage.remove(f"{name}/{MAKING}")


def _compact(
    spark: SparkSession, storage: ArchiveStorage, name: str, file_bytes: int, watch: Watch
) -> CompactedTable:
    table = schema.TABLES[name]
    batches = [folder for folder in storage.folders(name) if folder.startswith("batch=")]
    found = {batch: _parquet(storage, f"{name}/{batch}") for batch in batches}
    sizes = {batch: [size for _, size in each] for batch, each in found.items()}
    files = sum(map(len, sizes.values()))
    small = [
        batch for batch in batches if sum(sizes[batch]) < file_bytes * max(1, len(sizes[batch]))
    ]
    bytes_of = Counter[str]()
    for path, size in (each for batch in small for each in found[batch]):
        bytes_of[path.rpartition("/")[0]] += size
    # One file an hour, and one more for every `file_bytes` of it, so that a large hour is divided
    # among tasks.
    parts = {
        hour: max(1, size // file_bytes) if table.partitioned_by else 1
        for hour, size in bytes_of.items()
    }
    if sum(len(sizes[batch]) for batch in small) <= sum(parts.values()) or not small:
        return CompactedTable(table=name, files_before=files, files_after=files)
    watch(Step(name=f"compacting {sum(len(sizes[batch]) for batch in small)} files of {name}"))
    files_of = spark.read.schema(schema.table_schema(table)).option("basePath", storage.path(name))
    rows = files_of.parquet(*(storage.path(name, batch) for batch in small)).drop("batch")
    hourly = [column for column in ("due_date", "due_hour") if column in rows.columns]
    if hourly:
        offset = "offset" if "offset" in rows.columns else "progress_offset"
        spread = rows.repartition(*hourly, f.pmod(f.xxhash64(offset), _parts_of(parts)))
    else:
        spread = rows.coalesce(1)
    writer = spread.write.mode("overwrite").options(**schema.WRITING)
    (writer.partitionBy(*hourly) if hourly else writer).parquet(storage.path(name, MAKING))
    before = sum(rows for batch in small for _, rows in storage.parquet(f"{name}/{batch}").values())
    written = storage.check_rows(f"{name}/{MAKING}", before)
    made = len(_parquet(storage, f"{name}/{MAKING}"))
    new = _unused(batches)
    assert new not in small, f"{new} would replace itself"
    storage.write_json(f"{name}/{JOURNAL}", {"new": new, "old": small, "files": written})
    finish(storage)
    return CompactedTable(
        table=name,
        files_before=files,
        files_after=files - sum(len(sizes[batch]) for batch in small) + made,
    )


def _parts_of(parts: Mapping[str, int]) -> Column:
    """Column with the number of files of the row's hour."""
    several = [
        f.lit(each) for hour, number in parts.items() if number > 1 for each in (hour, number)
    ]
    if not several:
        return f.lit(1)
    folder = f.concat(f.lit("due_date="), "due_date", f.lit("/due_hour="), "due_hour")
    return f.coalesce(f.try_element_at(f.create_map(*several), folder), f.lit(1))


def _unused(batches: Iterable[str]) -> str:
    """A name greater than that of every compacted folder: an older one may be among the folders it
    replaces."""
    made = [batch.removeprefix("batch=c") for batch in batches if batch.startswith("batch=c")]
    return f"batch=c{max((int(each.partition('-')[0]) for each in made), default=0) + 1:08}"


def _parquet(storage: ArchiveStorage, below: str) -> list[tuple[str, int]]:
    return [
        (path, size)
        for path, size in storage.files(below, recursive=True)
        if path.endswith(".parquet")
    ]
