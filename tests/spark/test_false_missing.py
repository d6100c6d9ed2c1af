"""Drills: what was delivered is not called missing, and not sent again, because a clock is wrong or
a broker removed it in time."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from chronos.adapters.kafka.writer import BulkOpener
from chronos.core.keys import OFFSET_MAX
from chronos.core.shard.progress import NO_OUTCOMES, Progress, pack_progress
from chronos.spark import runs
from chronos.spark.archive.job import archive
from chronos.spark.audit.job import Audit, audit
from chronos.spark.backfill.job import Backfill
from chronos.spark.ledger import Request
from chronos.spark.runs import begin_run
from chronos.spark.session import Step, ignore
from chronos.spark.storage import ArchiveStorage
from tests.integration.flow import now_ms
from tests.spark.histories import HOUR_MS
from tests.spark.logs import SHARDS, Logs, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.harness.broker import Broker

pytestmark = pytest.mark.timeout(900)

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
        opener = BulkOpener(
            bootstrap_servers=self.logs.broker.bootstrap, properties={}, timeout_s=30
        )
        job = Backfill(
            self.spark,
            self.storage,
            self.brokers,
            opener,
            bootstrap_servers=self.logs.broker.bootstrap,
        )
        planned = job.plan(Request(mode="missing", from_ms=self.due_ms, to_ms=self.due_ms + 60_000))
        job.discard(planned)
        return planned.messages


@pytest.fixture
def drill(spark: SparkSession, broker: Broker, tmp_path: Path) -> Iterator[Drill]:
    """A drill on the shared broker."""
    made = Drill(spark, broker, tmp_path)
    yield made
    made.brokers.close()


def set_clock(monkeypatch: pytest.MonkeyPatch, by_ms: int) -> None:
    """Set the clock of the archive's machine so much ahead."""
    monkeypatch.setattr(
        runs, "time", SimpleNamespace(time_ns=lambda: time.time_ns() + by_ms * 1_000_000)
    )


def test_a_lost_message_is_found(drill: Drill) -> None:
    """The other drills would prove nothing if none were."""
    drill.begin()
    drill.send()
    drill.settle()
    drill.archive()
    assert (drill.audit().overall.counts, drill.to_send()) == ({"missing": COUNT}, COUNT)


def test_a_machine_whose_clock_is_ahead_calls_nothing_missing_after_a_kill(
    drill: Drill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps that the killed run read are older, by that clock, than its last look at the
    target."""
    set_clock(monkeypatch, 60_000)
    drill.begin()
    drill.send()
    drill.archive()
    drill.deliver()
    drill.settle()
    drill.archive(killed_at="deliveries")
    found = drill.audit()
    assert (found.broken, found.clean, drill.to_send()) == (False, False, 0)
    assert found.reasons == [("pending", "target-not-read-so-far", COUNT)]
    drill.archive()
    assert (drill.audit().overall.counts, drill.to_send()) == ({"delivered": COUNT}, 0)
    # The archive does not end behind the newest record that it may hold.
    assert drill.audit().archived_ms <= now_ms()


def test_no_run_is_older_than_what_it_has_seen_or_than_the_run_before_it(
    drill: Drill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that is behind would let a gap look older than the messages that it hides."""
    drill.step(0, 0)
    since_ms = now_ms() - 1_000
    streams = [("progress", [drill.logs.progress]), ("deliveries", [drill.logs.target])]
    set_clock(monkeypatch, -60_000)
    first = begin_run(drill.storage, drill.brokers, streams, None).run
    assert first.broker_ms is not None
    assert since_ms < first.read_ms == first.broker_ms <= now_ms() + 500
    set_clock(monkeypatch, -120_000)
    assert begin_run(drill.storage, drill.brokers, streams, first).run.read_ms == first.read_ms + 1


def test_a_record_that_a_compacted_target_may_have_removed_is_unknown(drill: Drill) -> None:
    """It is not sent again: the replay of an old value would take the place of the newest one."""
    target = f"{drill.logs.target}.compacted"
    drill.logs.broker.create_topic(
        target,
        partitions=SHARDS,
        config={"message.timestamp.type": "LogAppendTime", "cleanup.policy": "compact,delete"},
    )
    drill.logs.target = target
    drill.begin()
    drill.send()
    drill.settle()
    drill.archive()
    found = drill.audit()
    assert (found.reasons, found.broken, found.clean) == (
        [("unknown", "compacted", COUNT)],
        False,
        False,
    )
    assert drill.to_send() == 0
    noted = {
        row["topic"]: row["compacted"] for row in table(drill.directory, "offsets").to_pylist()
    }
    assert noted == {
        target: True,
        drill.logs.delay: False,
        drill.logs.progress: False,
        drill.logs.rejected: False,
        drill.logs.dead_letter: False,
    }


def test_what_a_target_held_that_was_created_again_before_the_first_run_is_unknown(
    drill: Drill,
) -> None:
    """Readers may have had it. What was due since the new topic is known to exist is missing, if it
    is."""
    drill.step(0, 0)
    drill.send()
    drill.deliver()
    drill.settle()
    drill.logs.delete(drill.logs.target)
    drill.logs.create(drill.logs.target)
    drill.archive()
    found = drill.audit()
    assert (found.reasons, found.broken, found.clean) == ([("unknown", "gap", COUNT)], False, False)
    assert drill.to_send() == 0


def test_what_a_target_lost_at_an_election_before_it_was_archived_is_unknown(drill: Drill) -> None:
    """Readers may have had it, and the log has grown again: half of one partition's records are
    left, and none of the other's."""
    broker, folders = drill.logs.broker, [f"{drill.logs.target}-{part}" for part in range(SHARDS)]
    drill.begin()
    drill.send()
    saved = drill.directory.parent / "saved"
    for at in range(COUNT):
        if at in (0, COUNT // 2):
            drill.logs.flush()
            part = 0 if at == 0 else 1
            shutil.copytree(broker.data / folders[part], saved / folders[part])
        receipt = drill.logs.receipt(at % SHARDS, at // SHARDS, drill.due_ms + at)
        drill.logs.write(drill.logs.target, b"%d" % at, receipt, partition=at % SHARDS)
    drill.logs.flush()
    drill.settle()
    broker.kill()
    for folder in folders:
        shutil.rmtree(broker.data / folder)
        shutil.copytree(saved / folder, broker.data / folder)
    broker.start()
    for at in range(2 * COUNT):
        drill.logs.write(drill.logs.target, b"of another producer", partition=at % SHARDS)
    drill.logs.flush()
    drill.archive()
    gaps = {row["gap_reason"] for row in table(drill.directory, "offsets").to_pylist()}
    assert gaps == {None}, "no archived record was lost"
    found = drill.audit()
    left = COUNT // 4
    assert (found.overall.counts, found.broken) == (
        {"delivered": left, "unknown": COUNT - left},
        False,
    )
    assert found.reasons == [("unknown", "gap", COUNT - left)]
    assert drill.to_send() == 0
