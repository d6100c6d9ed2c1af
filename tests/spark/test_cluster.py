"""The jobs as commands with the master of a standalone Spark cluster: its executors are other
processes than the driver's, as on other hosts, and share a local folder with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.broker import Broker
from tests.integration.flow import now_ms
from tests.spark.conftest import ROOT, conf, connector
from tests.spark.histories import HOUR_MS
from tests.spark.logs import SHARDS, Logs, positions_in
from tests.spark.standalone import StandaloneCluster

pytestmark = [pytest.mark.spark, pytest.mark.campaign]

COUNT = 200

COMMAND_S = 600.0
"""Most seconds for one command."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    """Two workers, whose executors find this checkout."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    with StandaloneCluster(folder, {"PYTHONPATH": str(ROOT)}) as made:
        yield made


NOT_PROVED = 6
"""Exit code of an audit without a broken promise: no step proves that the messages are settled."""


def command(*arguments: str, code: int = 0) -> Any:
    """Run `chronos` with Python for driver and executors as the documentation says, and return its
    JSON. `code`: its exit code."""
    environ = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    ran = subprocess.run(
        [sys.executable, "-m", "chronos", *arguments, "-o", "json"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    assert ran.returncode == code, f"{arguments[:2]}: {ran.stdout}\n{ran.stderr[-4_000:]}"
    return json.loads(ran.stdout.splitlines()[-1])


def test_executors_archive_audit_and_send_again(
    cluster: StandaloneCluster, broker: Broker, tmp_path: Path
) -> None:
    """Each record is archived once; the audit finds what one on this machine finds; a backfill
    sends every message once. Every executor has worked."""
    logs = Logs(broker)
    due_ms = now_ms() - HOUR_MS
    logs.write(logs.progress, logs.step())
    logs.schedule(COUNT, due_ms)
    archive = tmp_path / "archive"
    spark = [
        *("--location", str(archive), "--master", cluster.url),
        *conf({**connector(), "spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}),
    ]
    window = ["--from", str(due_ms), "--to", str(due_ms + COUNT)]
    done = command("archive", *spark, "--targets", logs.target, *logs.settings())
    records = {each["table"]: each["records"] for each in done["tables"]}
    assert (records["messages"], records["deliveries"]) == (COUNT, COUNT)
    everything = sorted((at % SHARDS, at // SHARDS) for at in range(COUNT))
    assert positions_in(archive, "messages", "shard") == everything
    assert positions_in(archive, "deliveries", "partition") == [
        (logs.target, *at) for at in everything
    ]
    assert command("archive", "verify", *spark)["problems"] == []
    audited = command("audit", *spark, *window, code=NOT_PROVED)
    assert audited["counts"]["delivered"] == COUNT
    sent = command("backfill", *spark, *window, "--all", "--yes", *logs.settings())
    assert sent["messages"] == COUNT
    again = command("backfill", *spark, *window, "--all", "--yes", *logs.settings())
    assert (again["messages"], again["sent_before"]) == (0, COUNT)
    ends = [logs.brokers().watermarks(logs.delay, shard).high for shard in range(SHARDS)]
    assert sum(ends) >= 2 * COUNT
    worked = [path.parent.parent.name for path in cluster.executors()]
    assert set(worked) == {"work-0", "work-1"}
