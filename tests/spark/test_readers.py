"""Other readers of Delta read the archive, as its page shows."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from chronos.spark.codec import CALENDAR_MS_MAX
from tests.spark.cases import (
    JudgedShard,
    T,
    add_batch,
    archive_of,
    begin_archive,
    rows_of,
    write_archive,
)
from tests.spark.erasing import rows_archived

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs/how-to/archive.md"

LOCATION = "/var/lib/chronos-archive"
"""The archive of the page."""


def run_example(names: str, archive: Path) -> dict[str, Any]:
    """Run the example of the page that imports `names`, for another archive: its variables."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (block,) = (block for block in blocks if f"import {names}\n" in block)
    found: dict[str, Any] = {}
    exec(block.replace(LOCATION, str(archive)), found)
    return found


def case() -> JudgedShard:
    """Two messages of one month and one of the next, two that are due and were sent at times that
    no timestamp holds, and two deliveries with headers."""
    customer = [{"name": "customer", "value": b"42"}, {"name": "customer", "value": b"43"}]
    made = JudgedShard("", {}).send(0, T).send(1, T + 1).send(2, T + 31 * 86_400_000)
    made.send(3, CALENDAR_MS_MAX + 1, headers=[]).send(4, None, timestamp_ms=-2)
    return made.deliver(0, T, T, headers=customer).deliver(1, T + 1, T + 1, headers=customer[1:])


@pytest.fixture(scope="module")
def archived(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of these messages."""
    folder = begin_archive(tmp_path_factory.mktemp("readers") / "archive")
    add_batch(archive_of(spark, [case()]), folder, "first")
    return folder


def test_rows_are_stored_as_without_spark(archived: Path, tmp_path: Path) -> None:
    """Their times, their first headers and their partitions, by another program."""
    by_hand = rows_archived(write_archive(rows_of([case()]), tmp_path / "archive"))
    found = rows_archived(archived)
    assert found == by_hand
    assert {row["month"] for row in found["messages"]} == {
        date(2030, 1, 1),
        date(2030, 2, 1),
        date(9999, 12, 1),
        date(1970, 1, 1),
    }


def test_deltalake_reads_a_partition(archived: Path) -> None:
    """The page's example, with times as timestamps in UTC."""
    rows = run_example("DeltaTable", archived)["january"].to_pylist()
    assert sorted((row["id"], row["due_at"], row["target"]) for row in rows) == [
        (b"0-%d-%d" % (T + at, at), datetime.fromtimestamp((T + at) / 1000, UTC), "target-0")
        for at in (0, 1)
    ]


def test_duckdb_reads_headers_by_name(archived: Path) -> None:
    """The page's example: of a repeated header the first value counts."""
    found = run_example("duckdb", archived)["counts"]
    assert found == [("target-0", date(2030, 1, 1), 1)]
