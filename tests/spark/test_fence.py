"""The fence: Spark's JVM writes the files and may outlive its driver, so that it keeps the lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from chronos.errors import ArchiveInUse
from chronos.spark.archive.compact import compact
from chronos.spark.archive.job import archive
from chronos.spark.session import ignore
from chronos.spark.storage import ArchiveStorage
from tests.harness.waiting import wait_until
from tests.spark.conftest import conf, small
from tests.spark.logs import SHARDS, Logs, positions_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.harness.broker import Broker

pytestmark = [pytest.mark.spark, pytest.mark.campaign]

COUNT = 4_000
DUE_MS = 1_900_000_000_000


def jvm_of(driver: int) -> int | None:
    """The process id of the driver's JVM; None if it has none yet."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            after_name = (entry / "stat").read_text().rpartition(")")[2].split()
            name = (entry / "comm").read_text().strip()
        except OSError:
            continue  # the process ended meanwhile
        if name == "java" and int(after_name[1]) == driver:
            return int(entry.name)
    return None


def is_running(pid: int) -> bool:
    """Whether a process exists and has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_jvm_that_outlives_its_driver_keeps_other_jobs_out(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """The driver is killed with kill -9 while its JVM is frozen in the middle of a batch: every
    other job that commits is refused until the JVM is woken and has ended; then each record is in
    the archive once."""
    logs = Logs(broker)
    logs.write(logs.progress, logs.step())
    logs.schedule(COUNT, DUE_MS)
    command = [
        *(sys.executable, "-m", "chronos", "archive", "--location", str(tmp_path / "archive")),
        *("--targets", logs.target, "--batch-records", "200"),
        *logs.settings(),
        *conf(small()),
    ]
    storage = ArchiveStorage(str(tmp_path / "archive"))
    with (tmp_path / "driver.log").open("wb") as output:
        driver = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    jvm = None
    brokers = logs.brokers()
    try:
        wait_until(
            lambda: len(storage.files("deliveries/_delta_log")) > 4,
            lambda: (tmp_path / "driver.log").read_text()[-4_000:],
            timeout_s=250,
        )
        jvm = jvm_of(driver.pid)
        assert jvm is not None
        os.kill(jvm, signal.SIGSTOP)
        driver.kill()
        driver.wait()
        assert is_running(jvm)
        with pytest.raises(ArchiveInUse, match="another process is writing"):
            archive(spark, brokers, storage, logs.plan(), ignore)
        with pytest.raises(ArchiveInUse, match="another process is writing"):
            compact(spark, storage, 1 << 20, ignore)
        os.kill(jvm, signal.SIGCONT)
        woken = jvm
        wait_until(lambda: not is_running(woken), lambda: "the JVM does not end", timeout_s=60)
        archive(spark, brokers, storage, logs.plan(), ignore)
    finally:
        for pid in (driver.pid, jvm):
            if pid is not None and is_running(pid):
                os.kill(pid, signal.SIGKILL)
        brokers.close()
    everything = sorted((at % SHARDS, at // SHARDS) for at in range(COUNT))
    assert positions_in(tmp_path / "archive", "messages", "shard") == everything
    assert positions_in(tmp_path / "archive", "deliveries", "partition") == [
        (logs.target, *at) for at in everything
    ]
