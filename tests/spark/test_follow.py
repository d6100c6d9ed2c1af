"""`chronos archive --follow` as a process: its metrics and its readiness while the broker works, is
gone, and is back; and its end by a signal."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from chronos.errors import ArchiveFailed, ArchiveInUse, ArchiveUnusable, LogUnavailable
from chronos.spark.archive.job import (
    JvmEnded,
    RunObserver,
    TableResult,
    archive,
    passing_error,
)
from chronos.spark.audit.coverage import archived_until, coverage
from chronos.spark.session import ignore
from chronos.spark.storage import ArchiveStorage
from chronos.spark.tables import open_tables
from tests.harness.broker import Broker
from tests.harness.waiting import wait_until
from tests.spark.conftest import conf, small
from tests.spark.logs import SHARDS, Logs, positions_in

pytestmark = pytest.mark.spark

DUE_MS = 1_900_000_000_000

ANSWER_S = 5.0
"""Most seconds for an answer of the HTTP server, on a machine that is busy."""

LONG_S = 240.0
"""Most seconds for what the archive does, from the start of its process to the end of a run."""


class Follower:
    """A process of `chronos archive --follow` and its HTTP interface."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log
        self.slowest_s = 0.0
        self.url = ""

    def output(self) -> str:
        """What it has written to stderr and stdout."""
        return self._log.read_text()

    def await_listening(self) -> None:
        """Wait for the line that names its address."""

        def is_listening() -> bool:
            found = re.search(r"listening on (\S+)", self.output())
            self.url = found[1] if found else ""
            return bool(found)

        wait_until(is_listening, self.output, LONG_S)

    def get(self, path: str) -> tuple[int, str]:
        """Status and body."""
        began = time.monotonic()
        try:
            with urllib.request.urlopen(self.url + path, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        finally:
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def readiness(self) -> tuple[int, dict[str, Any]]:
        """Status and JSON of `/readyz`."""
        status, body = self.get("/readyz")
        return status, json.loads(body)

    def metrics(self) -> dict[str, float]:
        """The values of `/metrics`, with the value of a label behind the name."""
        families = text_string_to_metric_families(self.get("/metrics")[1])
        return {
            ":".join([sample.name, *sample.labels.values()]): sample.value
            for family in families
            for sample in family.samples
        }

    def wait(self, what: str, expected: float) -> None:
        """Wait until a value of `/metrics` is at least this."""
        wait_until(
            lambda: self.metrics().get(what, -1.0) >= expected,
            lambda: f"{what}: {self.metrics()}\n{self.output()[-3_000:]}",
            LONG_S,
        )

    def wait_for_status(self, status: int) -> dict[str, Any]:
        """Wait until `/readyz` answers with this status, and return its JSON."""
        found: dict[str, Any] = {}

        def is_there() -> bool:
            nonlocal found
            seen, found = self.readiness()
            return seen == status

        wait_until(is_there, lambda: f"{found}\n{self.output()[-3_000:]}", LONG_S)
        return found


@contextmanager
def following(logs: Logs, folder: Path, *more: str) -> Iterator[Follower]:
    """Start the process; it is killed at the end if it is still there."""
    command = [
        *(sys.executable, "-m", "chronos", "archive", "--location", str(folder)),
        *("--targets", logs.target, "--follow", "--every", "1s", "--listen", "127.0.0.1:0"),
        *more,
        *logs.settings(),
        *conf(small()),
    ]
    log = folder.with_suffix(".log")
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        follower = Follower(process, log)
        follower.await_listening()
        yield follower
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_metrics_and_readiness_follow_the_archive_through_an_outage(
    own_broker: Broker, tmp_path: Path
) -> None:
    """Not ready before the first run, and after an outage of the broker for too long, with the
    reason; ready again when the broker is back. Each record is archived once, and every answer
    comes soon."""
    logs = Logs(own_broker)
    logs.write(logs.progress, logs.step())
    logs.schedule(20, DUE_MS)
    folder = tmp_path / "archive"
    with following(logs, folder) as follower:
        status, problem = follower.readiness()
        assert (status, problem["type"]) == (503, "urn:chronos:problem:not-archived")
        assert problem["detail"] == "no run has ended without an error yet"
        assert follower.metrics()["chronos_archive_ready"] == 0

        assert follower.wait_for_status(200) == {"status": "ok"}
        first = follower.metrics()
        assert first["chronos_archive_records_total:messages"] == 20
        assert first["chronos_archive_records_total:deliveries"] == 20
        assert first["chronos_archive_records_total:rejected"] == 0
        assert first["chronos_archive_ready"] == 1
        assert time.time() - first["chronos_archive_commit_timestamp_seconds"] < LONG_S
        assert 0 < first["chronos_archive_run_seconds"] < LONG_S
        end_s = first["chronos_archive_end_timestamp_seconds"]
        assert 0 <= first["chronos_archive_success_timestamp_seconds"] - end_s < 2 * LONG_S

        logs.schedule(20, DUE_MS)
        logs.write(logs.progress, logs.step())
        logs.flush()
        follower.wait("chronos_archive_records_total:messages", 40)
        follower.wait("chronos_archive_end_timestamp_seconds", end_s + 0.001)

        own_broker.kill()
        problem = follower.wait_for_status(503)
        reasons = [fault["detail"] for fault in problem["errors"]]
        assert reasons[0].startswith("the last run without an error ended ")
        follower.wait("chronos_archive_ready", 0)
        assert re.match(r"the run that ended at \S+Z failed: .*127.0.0.1", reasons[1]), reasons
        assert any(
            value >= 1
            for name, value in follower.metrics().items()
            if name.startswith("chronos_archive_failures_total:")
        )
        own_broker.start()
        follower.wait_for_status(200)
        logs.schedule(20, DUE_MS)
        follower.wait("chronos_archive_records_total:messages", 60)

        follower.process.send_signal(signal.SIGTERM)
        assert follower.process.wait(LONG_S) == 0
        assert "stopped after a commit; the next run continues here" in follower.output()
    assert follower.slowest_s < ANSWER_S
    everything = sorted((at % SHARDS, at // SHARDS) for at in range(60))
    assert positions_in(folder, "messages", "shard") == everything
    assert positions_in(folder, "deliveries", "partition") == [
        (logs.target, *at) for at in everything
    ]


class StopsAfter(RunObserver):
    """Asks to stop after so many commits that added messages."""

    def __init__(self, commits: int) -> None:
        self.left = commits
        self.seen: list[TableResult] = []

    def committed(self, counts: Sequence[TableResult]) -> None:
        self.seen += counts
        self.left -= any(each.table == "messages" and each.records for each in counts)

    def is_stopping(self) -> bool:
        return self.left <= 0


def test_a_run_that_is_to_stop_ends_after_its_commit_and_the_next_one_continues(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """What was committed before is archived once; the positions that Kafka gets are those of the
    last commit; the end of the archive is that of an audit."""
    logs = Logs(broker)
    logs.write(logs.progress, logs.step())
    logs.schedule(40, DUE_MS)
    storage, brokers = ArchiveStorage(str(tmp_path)), logs.brokers()
    assert archived_until(spark, storage) is None
    try:
        stops = StopsAfter(1)
        plan = logs.plan(batch_records=10)
        archive(spark, brokers, storage, plan, ignore, stops)
        archived = positions_in(tmp_path, "messages", "shard")
        assert 0 < len(archived) < 40
        assert sum(each.records for each in stops.seen if each.table == "messages") == len(archived)
        assert archived_until(spark, storage) == 0
        group = f"{logs.cluster}-archive"
        for shard in range(SHARDS):
            offsets = [offset for part, offset in archived if part == shard]
            assert brokers.committed(group, logs.delay, shard) == len(offsets)

        goes_on = StopsAfter(100)
        archive(spark, brokers, storage, plan, ignore, goes_on)
        whole = sorted((at % SHARDS, at // SHARDS) for at in range(40))
        assert positions_in(tmp_path, "messages", "shard") == whole
        until_ms = archived_until(spark, storage)
        assert until_ms == coverage(open_tables(spark, storage)[0].offsets).end_ms
        assert until_ms
    finally:
        brokers.close()


def test_errors_that_may_pass_are_told_from_others(spark: SparkSession) -> None:
    """A failed task of Spark may pass; the end of its JVM, a wrong location and a fault of Chronos
    do not."""
    assert isinstance(passing_error(LogUnavailable("x")), LogUnavailable)
    assert isinstance(passing_error(ArchiveInUse("x")), ArchiveInUse)
    assert passing_error(ArchiveUnusable("x")) is None
    assert passing_error(JvmEnded("x")) is None
    assert passing_error(ConnectionRefusedError()) is None
    assert passing_error(AssertionError()) is None
    with pytest.raises(PySparkException) as raised:
        spark.sql("select raise_error('x')").collect()
    assert isinstance(passing_error(raised.value), ArchiveFailed)
