"""One Spark session for all tests, and the connector's jars."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from tests.harness.broker import QUICK_START
from tests.harness.java import shared_classes
from tests.harness.tiers import chosen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

WITHOUT_SPARK = {"test_backfill_pace.py", "test_backfill_request.py", "test_progress.py"}
"""Modules that import neither PySpark nor Arrow: `./scripts/test fast` runs them on Python
alone."""

HEAP = ("-Xms1g", "-Xmn500m", "-XX:MetaspaceSize=512m")
"""Java's options for a heap that is there from the start: fewer collections."""

LATE_COMPILER = (
    "-XX:Tier4InvocationThreshold=20000",
    "-XX:Tier4MinInvocationThreshold=2400",
    "-XX:Tier4CompileThreshold=60000",
    "-XX:Tier4BackEdgeThreshold=160000",
)
"""Java's options to compile well only what runs four times as often as by default: a tenth less of
the processor for the tests of a session, a third of which was compilation (measured)."""


INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.optimizer.excludedRules": (
        "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation"
    ),
}
"""Spark's settings to interpret each query and to plan it once. The tests of a session have
hundreds of queries with few rows: compiling them took a third of the time, planning each stage
again half of the rest, and computing conditions on rows of the driver while planning a tenth
(measured). One of the audits does all three, as those of users do."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out of `./scripts/test fast` the modules that import PySpark or Arrow, if these are not
    installed."""
    if chosen(config) != "fast" or importlib.util.find_spec("pyspark") is not None:
        return None
    name = collection_path.name
    return True if name.startswith("test_") and name not in WITHOUT_SPARK else None


def connector() -> dict[str, str]:
    """Spark's settings with the connector that scripts/spark/fetch brought."""
    jars = sorted(ROOT.glob(".cache/spark-*/*.jar"))
    assert jars, "the Kafka connector is missing: ./scripts/spark/fetch"
    return {"spark.jars": ",".join(map(str, jars))}


def small(*, compiled: bool = False) -> dict[str, str]:
    """Spark's settings for small jobs: the connector, two partitions for each shuffle, and a JVM
    that starts quickly. `compiled`: as for users, each query is compiled and its stages planned
    again."""
    # The quick compiler only: a job of seconds does not earn back what the other one costs.
    return _quick((QUICK_START, *spark_classes())) | ({} if compiled else INTERPRETED)


@cache
def spark_classes() -> tuple[str, ...]:
    """Java's options to start Spark with the classes that a job before it has loaded."""
    import pyspark

    return shared_classes("spark", str(Path(pyspark.__file__).parent), _run_job)


def _run_job(options: Sequence[str]) -> None:
    with TemporaryDirectory() as directory:
        command = [
            sys.executable,
            str(HERE / "small_job.py"),
            json.dumps(_quick(options)),
            directory,
        ]
        subprocess.run(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=300,
            check=True,
        )


def _quick(options: Sequence[str]) -> dict[str, str]:
    from chronos.spark.session import COMMON

    java = (
        COMMON["spark.driver.extraJavaOptions"],
        "-XX:+UseSerialGC",
        *HEAP,
        *LATE_COMPILER,
        *options,
    )
    return {
        **connector(),
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.codegen.cache.maxEntries": "2000",
        "spark.driver.memory": "2g",
        "spark.python.daemon.module": "tests.spark.preloaded",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        "spark.driver.extraJavaOptions": " ".join(java),
    }


def conf(settings: Mapping[str, str]) -> list[str]:
    """Settings as options of the command line."""
    return [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session that all tests of the process share: two threads, two partitions for each
    shuffle."""
    from chronos.spark.session import open_session

    session = open_session("tests", "local[2]", {**_quick(spark_classes()), **INTERPRETED})
    yield session
    session.stop()
