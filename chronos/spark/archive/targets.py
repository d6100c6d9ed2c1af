"""The targets that archived messages name: those that are archived where none are given.

The names that each run added are found in the files it wrote; a run without its list makes the whole table be read once.
"""

from collections.abc import Iterable

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from chronos.spark import schema
from chronos.spark.runs import RUNS, parse_batch
from chronos.spark.storage import ArchiveStorage
from chronos.spark.tables import read_table

TARGETS = "targets.json"
"""File of a run with the targets that the messages archived up to its end name."""


def named_targets(spark: SparkSession, storage: ArchiveStorage) -> set[str]:
    """The targets named by all archived messages."""
    runs = storage.folders(RUNS)
    if not runs:
        return set()
    found = storage.read_json(f"{RUNS}/{runs[-1]}/{TARGETS}")
    if found is not None:
        return set(found)
    rows = read_table(spark, storage, schema.MESSAGES).where("target is not null").select("target").distinct()
    return {row["target"] for row in rows.collect()}


def save_named_targets(storage: ArchiveStorage, run: str, before: Iterable[str]) -> set[str]:
    """Add the targets that the messages of a run name to those named before, and keep them with the run."""
    named = set(before)
    table = schema.MESSAGES.name
    for folder in storage.folders(table):
        if parse_batch(folder, table)[0] != run:
            continue
        for path, _ in storage.files(f"{table}/{folder}", recursive=True):
            if path.endswith(".parquet"):
                with storage.open(f"{table}/{folder}/{path}") as stream:
                    for rows in pq.ParquetFile(stream).iter_batches(columns=["target"]):
                        named.update(pc.unique(rows.column("target")).drop_null().to_pylist())
    storage.write_json(f"{RUNS}/{run}/{TARGETS}", sorted(named))
    return named
