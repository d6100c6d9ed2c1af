"""Compaction: few files of many small ones, and each record still there exactly once, whatever is killed.

The batches of a table that hold small files are written together into one new folder, which readers skip until it is
whole. Then a journal names it and those it replaces; the old ones are put away, the new one takes its place, the old
ones and the journal go. A journal that is found is carried out, also by `chronos archive`: from the moment it is
written there is no way back. Never are there two of a record; between the renames there may be none.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f

from chronos.errors import ArchiveFailed
from chronos.spark import schema
from chronos.spark.runs import check_format, settle
from chronos.spark.storage import Place

JOURNAL = "_compaction.json"
MAKING = "_compacting"
REPLACED = "_replaced"


class Compacted(Struct, frozen=True, kw_only=True):
    """What became of one table."""

    table: str
    files_before: int
    files_after: int


def compact(spark: SparkSession, place: Place, file_bytes: int, say: Callable[[str], None]) -> list[Compacted]:
    """Every table. Batches whose files are `file_bytes` large on average stay as they are."""
    if check_format(place) is None:
        raise ArchiveFailed(f"{place.uri} holds no archive; `chronos archive --location` makes one")
    with place.alone():
        finish(place)
        settle(place)
        return [_compact(spark, place, name, file_bytes, say) for name in schema.TABLES]


def finish(place: Place) -> None:
    """Carry out what a journal says, as far as it was not done yet."""
    for name in schema.TABLES:
        journal = place.read_json(f"{name}/{JOURNAL}")
        if journal is not None:
            for old in journal["old"]:
                place.put_away(f"{name}/{old}", f"{name}/{REPLACED}/{old}")
            if place.exists(f"{name}/{MAKING}"):
                place.move(f"{name}/{MAKING}", f"{name}/{journal['new']}")
            place.remove(f"{name}/{REPLACED}")
            place.remove_file(f"{name}/{JOURNAL}")
        place.remove(f"{name}/{MAKING}")


def _compact(spark: SparkSession, place: Place, name: str, file_bytes: int, say: Callable[[str], None]) -> Compacted:
    table = schema.TABLES[name]
    batches = [folder for folder in place.folders(name) if folder.startswith("batch=")]
    found = {batch: _parquet(place, f"{name}/{batch}") for batch in batches}
    sizes = {batch: [size for _, size in each] for batch, each in found.items()}
    files = sum(map(len, sizes.values()))
    small = [batch for batch in batches if sum(sizes[batch]) < file_bytes * max(1, len(sizes[batch]))]
    bytes_of = Counter[str]()
    for path, size in (each for batch in small for each in found[batch]):
        bytes_of[path.rpartition("/")[0]] += size
    # One file an hour, and one more for every `file_bytes` of it: a dominant hour does not become one task's burden.
    parts = {hour: max(1, size // file_bytes) if table.partitioned_by else 1 for hour, size in bytes_of.items()}
    if sum(len(sizes[batch]) for batch in small) <= sum(parts.values()) or not small:
        return Compacted(table=name, files_before=files, files_after=files)
    say(f"{name}: {sum(len(sizes[batch]) for batch in small)} files of {len(small)} batches")
    files_of = spark.read.schema(schema.table_schema(table)).option("basePath", place.path(name))
    rows = files_of.parquet(*(place.path(name, batch) for batch in small)).drop("batch")
    hourly = [column for column in ("due_date", "due_hour") if column in rows.columns]
    if hourly:
        offset = "offset" if "offset" in rows.columns else "progress_offset"
        spread = rows.repartition(*hourly, f.pmod(f.xxhash64(offset), _parts_of(parts)))
    else:
        spread = rows.coalesce(1)
    writer = spread.write.mode("overwrite").options(**schema.WRITING)
    (writer.partitionBy(*hourly) if hourly else writer).parquet(place.path(name, MAKING))
    place.hold(f"{name}/{MAKING}", sum(place.rows(f"{name}/{batch}") for batch in small))
    made = len(_parquet(place, f"{name}/{MAKING}"))
    new = _unused(batches)
    assert new not in small, f"{new} would replace itself"
    place.write_json(f"{name}/{JOURNAL}", {"new": new, "old": small})
    finish(place)
    return Compacted(table=name, files_before=files,
                     files_after=files - sum(len(sizes[batch]) for batch in small) + made)  # fmt: skip


def _parts_of(parts: Mapping[str, int]) -> Column:
    """The hour's number of files: of those with more than one, by its folder."""
    several = [f.lit(said) for hour, number in parts.items() if number > 1 for said in (hour, number)]
    if not several:
        return f.lit(1)
    folder = f.concat(f.lit("due_date="), "due_date", f.lit("/due_hour="), "due_hour")
    return f.coalesce(f.try_element_at(f.create_map(*several), folder), f.lit(1))


def _unused(batches: Iterable[str]) -> str:
    """A name above that of every folder compaction made: an older one may be among those it replaces."""
    made = [batch.removeprefix("batch=c") for batch in batches if batch.startswith("batch=c")]
    return f"batch=c{max((int(each.partition('-')[0]) for each in made), default=0) + 1:08}"


def _parquet(place: Place, below: str) -> list[tuple[str, int]]:
    return [(path, size) for path, size in place.files(below, recursive=True) if path.endswith(".parquet")]
