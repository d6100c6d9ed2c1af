"""The cost of an audit: it reads what its window needs, however much is archived beside it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from chronos.spark.audit.job import Audit, audit
from chronos.spark.storage import ArchiveStorage
from tests.spark.runs import END_MS, Runs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DAY_MS = 86_400_000
RUNS, RUNS_BEFORE = 4, 30
"""Daily runs whose rows the audit of the window needs, and those before them."""

FROM_MS = END_MS - DAY_MS + DAY_MS // 2
HOUR_MS = 3_600_000


METRICS = {"number of files read": "files", "number of output rows": "rows"}


def read_by(spark: SparkSession, folder: Path, from_ms: int) -> tuple[Counter[str], Audit]:
    """What Spark's scans of an audit of one hour counted: `<table> files` and `<table> rows`;
    and the audit."""
    store = spark._jsparkSession.sharedState().statusStore()
    # Spark keeps the newest thousand, so that their number says nothing.
    before = _executions(store)
    found = audit(spark, ArchiveStorage(str(folder)), from_ms=from_ms, to_ms=from_ms + HOUR_MS)
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    counted: dict[int, tuple[str, int]] = {}
    for execution in sorted(_executions(store) - before):
        values = store.executionMetrics(execution)
        nodes = store.planGraph(execution).allNodes()
        for node in (nodes.apply(number) for number in range(nodes.size())):
            table = re.search(rf"{re.escape(str(folder))}/(\w+)\]", node.desc())
            if table is None or not node.name().startswith("Scan parquet"):
                continue
            metrics = node.metrics()
            for metric in (metrics.apply(number) for number in range(metrics.size())):
                value = values.get(metric.accumulatorId())
                if metric.name() in METRICS and value.isDefined():
                    # Of a frame that is kept the plan is part of each execution that uses it.
                    number = int(value.get().replace(",", ""))
                    of = f"{table[1]} {METRICS[metric.name()]}"
                    counted[metric.accumulatorId()] = of, number
    total: Counter[str] = Counter()
    for of, number in counted.values():
        total[of] += number
    return total, found


def _executions(store: Any) -> set[int]:
    """The ids of the executions that Spark knows."""
    known = store.executionsList()
    return {int(known.apply(at).executionId()) for at in range(known.size())}


def test_an_audit_reads_as_much_beside_many_runs_as_without_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the table `offsets`, whose files are merged, and for the records of messages that an
    action moved into the window."""
    spark.conf.set("spark.sql.maxMetadataStringLength", "1000")
    few, many = tmp_path / "few", tmp_path / "many"
    Runs(RUNS, every_ms=DAY_MS).write(few)
    Runs(RUNS_BEFORE + RUNS, every_ms=DAY_MS).write(many)
    without, alone = read_by(spark, few, FROM_MS)
    beside, found = read_by(spark, many, FROM_MS)
    assert alone.overall.counts["delivered"]
    assert found.overall.counts == alone.overall.counts
    assert without["messages files"]
    print(without, beside)
    for of in ("messages", "deliveries", "decisions", "progress"):
        for what in METRICS.values():
            assert beside[f"{of} {what}"] == without[f"{of} {what}"]
