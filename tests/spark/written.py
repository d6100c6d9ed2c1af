"""Tables of an archive written without Spark, by the package `deltalake`: in milliseconds, and with
no code of the jobs but the schema."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql.pandas.types import to_arrow_schema

from chronos.core.timefmt import MS_MAX
from chronos.spark import schema
from chronos.spark.archive.commits import create_tables
from chronos.spark.codec import CALENDAR_MS_MAX, DAY_MS
from chronos.spark.schema import Table
from chronos.spark.storage import ArchiveStorage

Row = Mapping[str, Any]
Columns = dict[str, list[Any]]

BATCH_ROWS = 100_000
"""Rows of a commit, at most: `write_batch` holds as many."""


def create_archive(
    folder: Path, name: str, topics: Mapping[str, str], cluster: str | None = None
) -> None:
    """An archive without rows; `name` is its id, and that of its cluster if none is given."""
    folder.mkdir(parents=True)
    own = {"id": name, "cluster": cluster or name}
    claim = {"format": schema.FORMAT, **own, "topics": topics}
    (folder / "archive.json").write_text(json.dumps(claim))
    create_tables(ArchiveStorage(str(folder)))


def write_batch(folder: Path, rows: Mapping[str, Iterable[Row]], run: str) -> None:
    """Write the first rows of the tables of an archive, those of `offsets` last, as a run of
    `chronos archive`."""
    versions = dict.fromkeys(schema.TABLES.keys() - {schema.OFFSETS.name}, 0)
    for name in rows.keys() & versions.keys():
        left, table = iter(rows[name]), DeltaTable(folder / name)
        while part := list(islice(left, BATCH_ROWS)):
            columns = columns_of(part, schema.TABLES[name])
            append(table, schema.TABLES[name], columns, f"{run}/{name}/{versions[name]}")
            versions[name] += 1
    own = {"sequence": 1, "versions": list(versions.items())}
    reads = columns_of(({**row, **own} for row in rows[schema.OFFSETS.name]), schema.OFFSETS)
    append(DeltaTable(folder / schema.OFFSETS.name), schema.OFFSETS, reads, f"{run}/offsets")


def read_to_the_end(
    table: str, topic: str, partition: int, end: int, read_ms: int
) -> dict[str, Any]:
    """A row of `offsets`: a partition that was read once, to its end."""
    return {
        "table": table,
        "topic": topic,
        "partition": partition,
        "topic_id": "id",
        "from_offset": 0,
        "until_offset": end,
        "log_start": 0,
        "stable_end": end,
        "high_watermark": end,
        "read_ms": read_ms,
        "gap": False,
    }


def nothing(table: Table) -> Columns:
    """The columns of no row."""
    return {name: [] for name, *_ in table.columns}


def add(columns: Columns, row: Row) -> None:
    """Add a row; what it does not have is null."""
    for name, values in columns.items():
        values.append(row.get(name))


def columns_of(rows: Iterable[Row], table: Table) -> Columns:
    """Rows -> their columns."""
    columns = nothing(table)
    for row in rows:
        add(columns, row)
    return columns


def append(table: DeltaTable, of: Table, columns: Columns, writer: str) -> None:
    """Write rows as one commit."""
    properties = CommitProperties(app_transactions=[Transaction(writer, 0)])
    write_deltalake(table, _stored(columns, of), mode="append", commit_properties=properties)


@cache
def _kinds(name: str) -> pa.Schema:
    return to_arrow_schema(schema.table_schema(schema.TABLES[name]))


def _stored(columns: Columns, table: Table) -> pa.Table:
    """Rows as they are stored, in the order of the table's time: see `codec.stored`."""
    kinds = _kinds(table.name)
    found: dict[str, pa.Array] = {
        name: pa.array(columns[name], kinds.field(name).type) for name, *_ in table.columns
    }
    for name, at in schema.times(table):
        ms = _within(found[name], CALENDAR_MS_MAX)
        found[at] = pc.cast(pc.multiply(ms, 1_000), kinds.field(at).type)
    if "headers" in columns:
        firsts = [_first_headers(headers) for headers in columns["headers"]]
        found[schema.FIRST_HEADERS] = pa.array(firsts, kinds.field(schema.FIRST_HEADERS).type)
    if table.partition is not None:
        ms = _within(found[table.time], MS_MAX)
        if "timestamp_ms" in found:
            ms = pc.coalesce(ms, _within(found["timestamp_ms"], MS_MAX))
        ms = pc.min_element_wise(pc.fill_null(ms, 0), CALENDAR_MS_MAX)
        day = pc.cast(pc.cast(pc.divide(ms, DAY_MS), pa.int32()), pa.date32())
        found[table.partition] = (
            day if table.partition == schema.DATE else pc.floor_temporal(day, unit="month")
        )
    made = pa.Table.from_arrays([found[name] for name in kinds.names], schema=kinds)
    return made.sort_by(table.time)


def _within(ms: pa.Array, ms_max: int) -> pa.Array:
    """Times, with null for those that are out of range."""
    is_within = pc.and_(pc.greater_equal(ms, 0), pc.less_equal(ms, ms_max))
    return pc.if_else(is_within, ms, None)


def _first_headers(headers: Iterable[Any] | None) -> list[tuple[str, bytes | None]] | None:
    """The first value of each name."""
    if headers is None:
        return None
    found: dict[str, bytes | None] = {}
    for header in headers:
        name, value = header.values() if isinstance(header, Mapping) else header
        found.setdefault(name, value)
    return list(found.items())
