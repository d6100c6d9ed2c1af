"""A drill: the topics of a cluster whose steps a test writes, and their archive."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession

from chronos.core.keys import OFFSET_MAX
from chronos.core.shard.progress import NO_OUTCOMES, Progress, pack_progress
from chronos.spark import runs
from chronos.spark.archive.job import archive
from chronos.spark.audit.job import Audit, audit
from chronos.spark.request import BackfillRequest
from chronos.spark.session import Step, ignore
from chronos.spark.storage import ArchiveStorage
from tests.harness.broker import Broker
from tests.integration.flow import now_ms
from tests.spark.backfills import backfill_of
from tests.spark.histories import HOUR_MS
from tests.spark.logs import SHARDS, Logs

COUNT = 60


class Killed(BaseException):
    """The process ends here."""


class Drill:
    """The topics of a cluster whose steps are written by the test, and their archive."""

    def __init__(self, spark: SparkSession, broker: Broker, directory: Path) -> None:
        self.spark = spark
        self.logs = Logs(broker)
        self.brokers = self.logs.brokers()
        self.storage = ArchiveStorage(str(directory / "archive"))
        self.directory = directory / "archive"
        self.due_ms = now_ms() - HOUR_MS

    def step(self, cursor_ms: int, pulled: int) -> None:
        """A progress record of each shard."""
        for shard in range(SHARDS):
            step = Progress(
                role_epoch=1,
                log_epoch=1,
                cluster=self.logs.cluster,
                node="n",
                instance="i",
                shards=SHARDS,
                cursor_due_ms=cursor_ms,
                cursor_offset=OFFSET_MAX,
                pull_offset=pulled,
                counts=(0, *NO_OUTCOMES),
            )
            self.logs.write(self.logs.progress, pack_progress(step), partition=shard)
        self.logs.flush()

    def begin(self) -> None:
        """The first step, and a first run of the archive: from then on the target is known to
        exist."""
        self.step(0, 0)
        self.archive()

    def send(self) -> None:
        """Messages that are due."""
        for at in range(COUNT):
            headers = [
                ("chronos-deliver-at", b"%d" % (self.due_ms + at)),
                ("chronos-target-topic", self.logs.target.encode()),
            ]
            self.logs.write(self.logs.delay, b"%d" % at, headers, partition=at % SHARDS)
        self.logs.flush()

    def settle(self) -> None:
        """The steps that prove that all of them have ended."""
        for _ in range(2):
            self.step(now_ms(), COUNT // SHARDS)

    def deliver(self, *, key: bytes | None = None) -> None:
        """Their deliveries, all with this key."""
        for at in range(COUNT):
            receipt = self.logs.receipt(at % SHARDS, at // SHARDS, self.due_ms + at)
            self.logs.write(self.logs.target, b"%d" % at, receipt, key=key, partition=at % SHARDS)
        self.logs.flush()

    def archive(self, *, killed_at: str | None = None) -> None:
        """Archive everything; with `killed_at` the run ends as it begins to read that table."""

        def watch(step: Step) -> None:
            if step.name == f"archiving {killed_at}":
                raise Killed

        try:
            archive(
                self.spark,
                self.brokers,
                self.storage,
                self.logs.plan(),
                watch if killed_at else ignore,
            )
        except Killed:
            assert killed_at is not None
        else:
            assert killed_at is None

    def audit(self) -> Audit:
        """An audit of all messages."""
        return audit(self.spark, self.storage, from_ms=self.due_ms, to_ms=self.due_ms + 60_000)

    def to_send(self) -> int:
        """The number of messages that a backfill would send by default."""
        job = backfill_of(self.spark, self.storage, self.brokers, self.logs.broker.bootstrap)
        planned = job.plan(
            BackfillRequest(mode="missing", from_ms=self.due_ms, to_ms=self.due_ms + 60_000)
        )
        job.discard(planned)
        return planned.messages


def set_clock(monkeypatch: pytest.MonkeyPatch, by_ms: int) -> None:
    """Set the clock of the archive's machine so much ahead."""
    monkeypatch.setattr(
        runs, "time", SimpleNamespace(time_ns=lambda: time.time_ns() + by_ms * 1_000_000)
    )
