"""The tables of an archive as DataFrames, for audit and backfill: all but `rejected` and
`dead_letters`.

The columns are in `schema`. Law: the tables that are read together are of the versions that the
newest row of `offsets` names, so that what it covers is in the others, and nothing else; what is
committed later, by a run or by a compaction, does not change them."""

from collections.abc import Mapping

from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from chronos.errors import ArchiveUnusable
from chronos.spark import schema
from chronos.spark.delta import last_version, once, read
from chronos.spark.runs import check_format, no_archive
from chronos.spark.storage import ArchiveStorage


class Pinned(Struct, frozen=True, kw_only=True):
    """What is archived."""

    sequence: int
    """Number of the newest commit; 0: nothing is archived yet."""
    versions: Mapping[str, int]
    """Version of each table, `offsets` included, by its name."""


class Tables(Struct, frozen=True, kw_only=True):
    """The tables that an audit or a backfill reads."""

    messages: DataFrame
    deliveries: DataFrame
    decisions: DataFrame
    progress: DataFrame
    offsets: DataFrame
    """Without the columns `targets` and `versions`."""
    erased: DataFrame | None = None
    """None: nothing was erased."""
    versions: Mapping[str, int] = {}
    """Version of each table, by its name."""


def pinned(spark: SparkSession, storage: ArchiveStorage) -> Pinned | None:
    """What the newest row of `offsets` names; None if there is no table `offsets`.

    ArchiveUnusable if another table lost a version that it names."""
    version = last_version(storage, schema.OFFSETS.name)
    if version is None:
        return None
    rows = read(spark, storage, schema.OFFSETS.name, version)
    last = rows.agg(
        f.max("sequence").alias("sequence"), f.max_by("versions", "sequence").alias("versions")
    ).first()
    if last is None or last["sequence"] is None:
        return Pinned(sequence=0, versions={schema.OFFSETS.name: version})
    for name, named in last["versions"].items():
        found = last_version(storage, name)
        if found is None or found < named:
            raise ArchiveUnusable(
                f"{storage.uri} is not whole: table {name} lost its version {named}. Nothing can "
                "be proved or sent from it: restore the folder from a copy, or archive to another "
                "location"
            )
    return Pinned(
        sequence=last["sequence"], versions={**last["versions"], schema.OFFSETS.name: version}
    )


def read_table(
    spark: SparkSession, storage: ArchiveStorage, table: schema.Table, versions: Mapping[str, int]
) -> DataFrame:
    """A table of the archive at the version that is named; empty if none is. A column that it does
    not have yet is null."""
    kinds = schema.table_schema(table)
    version = versions.get(table.name)
    if version is None:
        return spark.createDataFrame([], kinds)
    rows = read(spark, storage, table.name, version)
    missing = [field for field in kinds if field.name not in rows.columns]
    return rows.withColumns(
        {field.name: f.lit(None).cast(field.dataType) for field in missing}
    ).select(*kinds.names)


def open_tables(spark: SparkSession, storage: ArchiveStorage) -> tuple[Tables, str, str]:
    """The tables, the cluster's name and its delay topic; ArchiveFailed if there is no archive,
    ArchiveUnusable if it lost a version of a table."""
    found = check_format(storage)
    if found is None:
        raise no_archive(storage)
    now = pinned(spark, storage)
    versions = {} if now is None else now.versions

    def table(of: schema.Table) -> DataFrame:
        return read_table(spark, storage, of, versions)

    tables = Tables(
        messages=table(schema.MESSAGES),
        deliveries=table(schema.DELIVERIES),
        decisions=table(schema.DECISIONS),
        progress=table(schema.PROGRESS),
        offsets=once(table(schema.OFFSETS).drop("targets", "versions")),
        erased=table(schema.ERASED) if versions.get(schema.ERASED.name) else None,
        versions=versions,
    )
    return tables, found["cluster"], found["topics"]["delay"]
