"""The verification of an archive: the files of what is archived are there, and every row of them
can be read."""

from urllib.parse import unquote, urlsplit

from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import MapType

from chronos.spark import schema
from chronos.spark.delta import last_version, read
from chronos.spark.ledger import ROWS
from chronos.spark.runs import check_format, no_archive
from chronos.spark.session import Step, Watch, one_line
from chronos.spark.storage import ArchiveStorage
from chronos.spark.tables import pinned


class Verified(Struct, frozen=True, kw_only=True):
    """The result of a verification."""

    files: int
    """Files that were looked for."""
    rows: int
    """Rows that were read."""
    problems: list[str]
    """One line for each file that is missing, and for each table that cannot be read or has another
    number of rows than its log says."""


def verify(spark: SparkSession, storage: ArchiveStorage, watch: Watch) -> Verified:
    """Look for every file of the versions that are archived, and read them; ArchiveFailed if there
    is no archive."""
    now = pinned(spark, storage) if check_format(storage) is not None else None
    if now is None:
        raise no_archive(storage)
    versions = {name: now.versions[name] for name in schema.TABLES if name in now.versions}
    sent = last_version(storage, ROWS)
    if sent is not None:
        versions[ROWS] = sent
    files, rows, problems = 0, 0, []
    for name, version in versions.items():
        watch(Step(name=f"verifying {name}"))
        table = read(spark, storage, name, version)
        paths = _paths(table, storage, name)
        sizes = storage.sizes(name, paths)
        lost = [f"{name}/{path} is missing" for path in paths if sizes[path] is None]
        files += len(paths)
        if lost:
            problems += lost
            continue
        try:
            found = _rows(table)
        except Exception as error:
            line = one_line(error)
            if line is None:
                raise
            problems.append(f"{name} cannot be read: {line}")
            continue
        rows += found
        logged = table.count()
        if found != logged:
            problems.append(f"{name} has {found:,} rows, and its log says {logged:,}")
    return Verified(files=files, rows=rows, problems=problems)


def _paths(table: DataFrame, storage: ArchiveStorage, name: str) -> list[str]:
    """The files of a table by their paths below it."""
    root = urlsplit(storage.uri).path.rstrip("/")
    found = (unquote(urlsplit(uri).path) for uri in table.inputFiles())
    return sorted(path.removeprefix(f"{root}/{name}/") for path in found)


def _rows(table: DataFrame) -> int:
    """The number of rows in the files, every column of which is read but for maps, which cannot be
    hashed. Delta would take a count alone from its log."""
    names = [field.name for field in table.schema if not isinstance(field.dataType, MapType)]
    hashes = table.select(f.xxhash64(*names).alias("hash"))
    row = hashes.agg(f.count("hash").alias("rows"), f.bit_xor("hash").alias("all")).first()
    assert row is not None
    return int(row["rows"])
