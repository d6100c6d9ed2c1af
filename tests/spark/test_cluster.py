"""The jobs as commands with the master of a standalone Spark cluster: its executors are other
processes than the driver's, as on other hosts, and share a local folder with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
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


def run(arguments: Sequence[str], python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    """Run `chronos`. `python`: that of executors."""
    environ = {
        **os.environ,
        "PYSPARK_PYTHON": python,
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return subprocess.run(
        [sys.executable, "-m", "chronos", *arguments, "-o", "json"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )


def command(*arguments: str) -> Any:
    """Run `chronos` with Python for driver and executors as the documentation says, and return its
    JSON."""
    ran = run(arguments)
    assert ran.returncode == 0, f"{arguments[:2]}: {ran.stdout}\n{ran.stderr[-4_000:]}"
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
    audited = command("audit", *spark, *window)
    assert audited["counts"]["delivered"] == COUNT
    sent = command("backfill", *spark, *window, "--all", "--yes", *logs.settings())
    assert sent["messages"] == COUNT
    again = command("backfill", *spark, *window, "--all", "--yes", *logs.settings())
    assert (again["messages"], again["sent_before"]) == (0, COUNT)
    ends = [logs.brokers().watermarks(logs.delay, shard).high for shard in range(SHARDS)]
    assert sum(ends) >= 2 * COUNT
    worked = [path.parent.parent.name for path in cluster.executors()]
    assert set(worked) == {"work-0", "work-1"}


def test_executors_without_the_packages_are_named_before_anything_is_written(
    cluster: StandaloneCluster, broker: Broker, tmp_path: Path
) -> None:
    """With the Python that this environment was made from, which has none of them; and with one
    that does not exist."""
    logs = Logs(broker)
    logs.write(logs.progress, logs.step())
    logs.flush()
    location = tmp_path / "archive"
    spark = ["--location", str(location), "--master", cluster.url, *conf(connector())]
    bare = str(Path(sys.base_prefix) / "bin" / "python3")
    for python, text in (
        (bare, "has no confluent_kafka, msgspec, pandas, pyarrow: each host that runs tasks needs"),
        ("/nowhere/python", "Spark's executors cannot run Python ("),
    ):
        ran = run(["archive", *spark, *logs.settings()], python)
        assert ran.returncode == 3, ran.stderr[-3_000:]
        assert text in " ".join(ran.stderr.split()), ran.stderr[-3_000:]
    assert not location.exists()
