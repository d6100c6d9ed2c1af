"""Delta tables by path, without a catalog: creation, the write of a batch, the versions of a table,
and the reading of one.

A batch is one commit, which has the id of its writer and the number of the batch (`txn` of Delta's
protocol). Delta skips a number that is not greater than the last one of the same writer, without an
error; so each run is a writer of its own. Law: a batch counts as written when its commit was found
in the log of the table, with as many rows as Spark's tasks counted, and with all of its files. Law:
a table has reader version 1 and writer version 2, without table features, so that any reader of
Delta knows it.

Only the log's commits are read here, by Delta's public protocol; what belongs to a version is
decided by Delta."""

import json
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

from delta.tables import DeltaTable
from msgspec import Struct
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from chronos.errors import ArchiveFailed, ArchiveUnusable
from chronos.spark.storage import ArchiveStorage

LOG = "_delta_log"

COMMIT = re.compile(r"(\d{20})\.json")
"""Name of the file of a commit."""

PROTOCOL = (1, 2)
"""Reader and writer version of every table."""


WRITERS_KEPT = "interval 30 days"
"""Time for which the log keeps the last number of a writer: no writer lives so long."""


class Commit(Struct, frozen=True, kw_only=True):
    """A batch in the log of a table."""

    version: int
    rows: int
    files: list[str]
    """The files that it added, by their paths below the table."""


def last_version(storage: ArchiveStorage, folder: str) -> int | None:
    """The newest version of a table; None if there is no table."""
    found = (COMMIT.fullmatch(name) for name, _ in storage.files(f"{folder}/{LOG}"))
    return max((int(match[1]) for match in found if match), default=None)


def create(
    storage: ArchiveStorage,
    folder: str,
    kinds: StructType,
    *,
    partition: str | None = None,
    counted: Sequence[str] = (),
) -> None:
    """Create a table without rows, unless it exists: its log is one commit. `counted`: the columns
    with a minimum and a maximum for each file.

    Written without Spark, which takes a second for each, and would give it the protocol that the
    session's settings ask for."""
    if last_version(storage, folder) is not None:
        return
    settings = {"delta.setTransactionRetentionDuration": WRITERS_KEPT}
    if counted:
        settings["delta.dataSkippingStatsColumns"] = ",".join(counted)
    reader, writer = PROTOCOL
    now_ms = time.time_ns() // 1_000_000
    protocol = {"minReaderVersion": reader, "minWriterVersion": writer}
    table = {
        "id": str(uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": kinds.json(),
        "partitionColumns": [] if partition is None else [partition],
        "configuration": settings,
        "createdTime": now_ms,
    }
    info = {"timestamp": now_ms, "operation": "CREATE TABLE", "operationParameters": {}}
    actions = [{"commitInfo": info}, {"protocol": protocol}, {"metaData": table}]
    lines = "".join(f"{json.dumps(action)}\n" for action in actions)
    storage.write(f"{folder}/{LOG}/{0:020}.json", lines.encode())


def check_protocol(storage: ArchiveStorage, folder: str, actions: Iterable[dict[str, Any]]) -> None:
    """Raise ArchiveUnusable if a commit gives the table another protocol than `PROTOCOL`."""
    for action in actions:
        found = action.get("protocol")
        if found is not None:
            protocol = found["minReaderVersion"], found["minWriterVersion"]
            if protocol != PROTOCOL:
                raise ArchiveUnusable(
                    f"{storage.path(folder)} has reader version {protocol[0]} and writer version "
                    f"{protocol[1]}, and the tables of an archive have {PROTOCOL[0]} and "
                    f"{PROTOCOL[1]}, which every reader knows: remove Spark's settings "
                    "spark.databricks.delta.properties.defaults.*"
                )


def append(
    storage: ArchiveStorage,
    folder: str,
    rows: DataFrame,
    *,
    writer: str,
    number: int,
    in_place_of: str | None = None,
) -> Commit:
    """Append a batch to a table: its commit. Columns that the table does not have are added to it.
    `in_place_of`: a condition on the column that the table is partitioned by; the rows that fulfil
    it are removed in the same commit.

    ArchiveFailed unless the log has the commit of this writer and number with all rows that Spark's
    tasks counted, in files that are there. A task on another host would write to a local folder of
    that host, which nothing reads."""
    before = last_version(storage, folder)
    written = Observation()
    counted = rows.observe(written, f.count(f.lit(1)).alias("rows"))
    made = counted.write.format("delta").option("txnAppId", writer).option("txnVersion", number)
    if in_place_of is None:
        made.mode("append").option("mergeSchema", True).save(storage.path(folder))
    else:
        made.mode("overwrite").option("replaceWhere", in_place_of).save(storage.path(folder))
    commit = _find(storage, folder, -1 if before is None else before, writer, number)
    if commit is None:
        raise ArchiveFailed(
            f"Spark wrote batch {number} of {writer} to {storage.path(folder)}, and its commit is "
            "not there: the location must be object storage, or a folder that all hosts of the "
            "--master share, and no other program may write to it"
        )
    if commit.rows != written.get["rows"]:
        if before is not None:  # else every reader would look for the files
            table_at(rows.sparkSession, storage, folder).restoreToVersion(before)
        raise ArchiveFailed(
            f"Spark's tasks wrote {written.get['rows']} rows to {storage.path(folder)} and "
            f"{commit.rows} are there: with a --master of several hosts the location must be "
            "object storage, or a folder that all of them share"
        )
    return commit


def _find(
    storage: ArchiveStorage, folder: str, before: int, writer: str, number: int
) -> Commit | None:
    """The commit of a batch among those after version `before`, with the rows of those of its files
    that are there."""
    last = last_version(storage, folder)
    for version in range(before + 1, 0 if last is None else last + 1):
        actions = list(_actions(storage, folder, version))
        check_protocol(storage, folder, actions)
        transactions = [each["txn"] for each in actions if "txn" in each]
        if (writer, number) not in [(each["appId"], each["version"]) for each in transactions]:
            continue
        added = {unquote(each["add"]["path"]): each["add"] for each in actions if "add" in each}
        sizes = storage.sizes(folder, list(added))
        return Commit(
            version=version,
            rows=sum(
                json.loads(each["stats"])["numRecords"]
                for path, each in added.items()
                if sizes[path] == each["size"]
            ),
            files=sorted(added),
        )
    return None


def _actions(storage: ArchiveStorage, folder: str, version: int) -> Iterator[dict[str, Any]]:
    """The actions of a commit."""
    data = storage.read(f"{folder}/{LOG}/{version:020}.json")
    for line in (data or b"").splitlines():
        yield json.loads(line)


def read(spark: SparkSession, storage: ArchiveStorage, folder: str, version: int) -> DataFrame:
    """A version of a table; commits that follow do not change it."""
    source = spark.read.format("delta").option("versionAsOf", version)
    return source.load(storage.path(folder))


def table_at(spark: SparkSession, storage: ArchiveStorage, folder: str) -> DeltaTable:
    """The newest version of a table, to be changed."""
    found: DeltaTable = DeltaTable.forPath(spark, storage.path(folder))
    return found


def is_empty(rows: DataFrame) -> bool:
    """True if there are no rows: by one job, where `isEmpty` starts one for more and more
    partitions."""
    return not rows.limit(1).count()


def once(rows: DataFrame) -> DataFrame:
    """The rows, computed by their first use, and kept in memory or on disk until they are not
    referred to any more.

    What is made of them has a plan that begins with them. A plan that contained their own would be
    analyzed again by each transformation: a third of the processor time of an audit of few messages
    (measured)."""
    return rows.localCheckpoint(eager=False)
