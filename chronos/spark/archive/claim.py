"""The claim of a location: `archive.json` names the cluster and topics whose archive it is.

Law: a location is claimed only after the brokers have shown that they belong to that cluster and have these topics, so
that a wrong setting leaves nothing behind.
"""

import time
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

from chronos.core.progress import unpack_progress
from chronos.errors import ArchiveUnusable, LogMismatch
from chronos.spark import schema
from chronos.spark.archive.plan import ArchivePlan
from chronos.spark.runs import ArchiveBrokers, check_format
from chronos.spark.storage import ArchiveStorage

CLUSTER_ID = "kafka_cluster_id"
"""Key of `archive.json` with the id that Kafka gave the cluster; archives of the first version lack it."""

EMPTY = "batch=00000000-empty"
"""Folder below each table with a file without rows, so that a reader finds the columns."""

RECORD_S = 5.0
"""Most seconds to wait for a progress record of one shard."""


def check_claim(storage: ArchiveStorage, brokers: ArchiveBrokers, plan: ArchivePlan) -> Any:
    """The contents of `archive.json` as they will be; nothing is written.

    ArchiveUnusable if the location holds another archive, or the brokers or topics belong to another cluster.
    """
    own = {"delay": plan.delay, "progress": plan.progress, "rejected": plan.rejected, "dead_letter": plan.dead_letter}
    claim: dict[str, Any] = {"format": schema.FORMAT, "cluster": plan.cluster, "topics": own}
    found = check_format(storage)
    if found is not None and {**found, CLUSTER_ID: None} != {**claim, CLUSTER_ID: None}:
        raise ArchiveUnusable(f"{storage.uri} is the archive of {found}, not of {claim}: choose another location")
    check_cluster_id(storage.uri, found or {}, brokers.cluster_id(), any_cluster=plan.other_cluster)
    if found is None:
        _check_cluster(brokers, plan)
    return {**claim, CLUSTER_ID: brokers.cluster_id()}


def check_cluster_id(location: str, claim: dict[str, Any], cluster_id: str, *, any_cluster: bool) -> None:
    """Raise ArchiveUnusable if the archive was made from a Kafka cluster with another id, unless any is accepted."""
    known = claim.get(CLUSTER_ID)
    if known is not None and known != cluster_id and not any_cluster:
        raise ArchiveUnusable(
            f"{location} was archived from the Kafka cluster {known}, and these brokers belong to {cluster_id}: correct"
            " log.kafka.bootstrap_servers, choose another location, or accept the cluster with --other-cluster"
        )


def _check_cluster(brokers: ArchiveBrokers, plan: ArchivePlan) -> None:
    """Raise ArchiveUnusable if the progress topic was written by another cluster than the plan names."""
    info = brokers.describe([plan.progress])[plan.progress]
    for partition in range(info.partitions if info is not None else 0):
        watermarks = brokers.watermarks(plan.progress, partition)
        if watermarks.stable <= watermarks.start:
            continue
        reader = brokers.reader(plan.progress, partition, watermarks.start)
        try:
            deadline = time.monotonic() + RECORD_S
            while not (records := reader.read(1, 1)) and reader.position < watermarks.stable:
                if time.monotonic() > deadline:
                    break
                reader.wait(0.1)
        finally:
            reader.close()
        # A record that this version cannot read is named by the stream that archives it.
        with suppress(LogMismatch):
            for record in records:
                written_by = unpack_progress(record.value).cluster
                if written_by != plan.cluster:
                    raise ArchiveUnusable(
                        f"{plan.progress} was written by the cluster {written_by}, and the setting cluster is"
                        f" {plan.cluster}: use the settings of the service"
                    )
                return


def write_claim(storage: ArchiveStorage, claim: dict[str, Any]) -> None:
    """Write `archive.json` if it differs, and a file without rows for each table that has no folder yet."""
    if check_format(storage) != claim:
        storage.write_json("archive.json", claim)
    for table in schema.TABLES.values():
        if not storage.folders(table.name):
            hour = "" if table.partitioned_by is None else "/due_date=1970-01-01/due_hour=0"
            storage.write(f"{table.name}/{EMPTY}{hour}/empty.parquet", _empty_file(table))


def _empty_file(table: schema.Table) -> bytes:
    """A Parquet file with the table's columns, all nullable as Spark writes them, and no rows."""
    columns = to_arrow_schema(schema.columns_of(table))
    empty = pa.schema([pa.field(column.name, column.type) for column in columns]).empty_table()
    sink = pa.BufferOutputStream()
    pq.write_table(empty, sink)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]
