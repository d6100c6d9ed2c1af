"""What the tests of `chronos archive expire` and `forget` have in common."""

from __future__ import annotations

import base64
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from deltalake import DeltaTable
from msgspec import structs

from chronos.core.message import ID
from chronos.spark import schema
from chronos.spark.audit.coverage import coverage
from chronos.spark.audit.job import judge
from chronos.spark.audit.outcomes import Span
from chronos.spark.delta import once
from chronos.spark.session import Step
from chronos.spark.storage import ArchiveStorage
from chronos.spark.tables import Tables, open_tables
from tests.spark.cases import T
from tests.spark.histories import DELAY, HOUR_MS, Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def letter(table: schema.Table, offset: int, own: bytes | None, source: int, **more: Any) -> Row:
    """A row of the rejected or dead-letter topic."""
    headers = None if own is None else [{"name": ID, "value": own}]
    return {
        "topic": table.name,
        "partition": 0,
        "offset": offset,
        "timestamp_ms": T,
        "key": own,
        "value": b"a letter",
        "headers": headers,
        "id": own,
        "due_at_ms": T,
        "source_topic": DELAY,
        "shard": 0,
        "source_offset": source,
        "occurrence": 1,
        "attempt": 1,
        "reason": "too-large",
        "detail": "a text",
        **more,
    }


def holders(folder: Path, message_id: bytes) -> list[str]:
    """The files below the folder that hold an id: as they are, in base64 or hexadecimal, or in the
    rows or the statistics of Parquet."""
    forms = (message_id, base64.b64encode(message_id), message_id.hex().encode())
    found = []
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        texts = [path.read_bytes()]
        if path.suffix == ".parquet":
            file = pq.ParquetFile(path)
            texts += [
                repr(file.read().to_pylist()).encode(),
                repr(file.metadata.to_dict()).encode(),
            ]
        if any(form in text for form in forms for text in texts):
            found.append(str(path.relative_to(folder)))
    return found


def rows_archived(folder: Path) -> dict[str, list[Row]]:
    """The rows of each table but `offsets` that count, by another reader than Spark."""
    offsets = DeltaTable(folder / "offsets").to_pyarrow_table(columns=["sequence", "versions"])
    newest = max(offsets.to_pylist(), key=lambda row: row["sequence"])
    found = {}
    for name, version in newest["versions"]:
        rows = DeltaTable(folder / name, version=version).to_pyarrow_table().to_pylist()
        found[name] = sorted(rows, key=repr)
    return found


def tables_of(spark: SparkSession, storage: ArchiveStorage) -> Tables:
    """The tables of an archive, each read once."""
    found, _, _ = open_tables(spark, storage)
    names = ("messages", "deliveries", "decisions", "progress")
    return structs.replace(found, **{name: once(getattr(found, name)) for name in names})


def counts(spark: SparkSession, folder: Path) -> dict[str, int]:
    """The outcomes of all messages, without the summary of an audit."""
    archive = tables_of(spark, ArchiveStorage(str(folder)))
    span = Span(from_ms=0, to_ms=T + 3_650 * 24 * HOUR_MS)
    rows = judge(archive, coverage(archive.offsets), DELAY, span).outcomes
    return dict(Counter(row["outcome"] for row in rows.select("outcome").collect()))


class Killed(BaseException):
    """The process ends here."""


def kill_at(name: str) -> Any:
    """A watch that ends the job as a step begins."""

    def watch(step: Step) -> None:
        if step.name == name:
            raise Killed

    return watch
