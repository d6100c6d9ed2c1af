"""One Spark session for all tests, and the connector's jars. Every test here counts as one of integration."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`./scripts/test fast` installs no Spark: there is nothing to import then."""
    fast = "not integration" in config.getoption("markexpr")
    return True if fast and importlib.util.find_spec("pyspark") is None else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark needs Java and half a minute."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.integration)


def connector() -> dict[str, str]:
    """Spark's settings with the connector that scripts/spark/fetch brought."""
    jars = sorted(ROOT.glob(".cache/spark-*/*.jar"))
    assert jars, "the Kafka connector is missing: ./scripts/spark/fetch"
    return {"spark.jars": ",".join(map(str, jars))}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session that all tests share: two threads, small shuffles."""
    from chronos.spark.session import open_session

    settings = {**connector(), "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}
    session = open_session("tests", "local[2]", settings)
    yield session
    session.stop()
