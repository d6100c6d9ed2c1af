"""Random operations on topics and archive, each followed by an audit that a witness judges: no
false missing, no false clean."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from chronos.errors import ArchiveFailed
from chronos.spark.archive.compact import compact
from chronos.spark.audit.job import audit
from chronos.spark.runs import archived_run
from chronos.spark.session import ignore
from chronos.spark.tables import open_tables
from tests.integration.flow import now_ms
from tests.spark.drill import Drill, set_clock
from tests.spark.logs import SHARDS
from tests.spark.witness import Witness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.harness.broker import Broker

pytestmark = pytest.mark.campaign

RUNS = int(os.environ.get("WITNESS_RUNS", "1"))
"""Runs, each with a seed of its own."""

OPERATIONS = 3
"""Operations of a run, before the last one."""

BATCH = 10
"""Messages of each shard sent at a time."""


class Play:
    """A drill whose operations are chosen by chance."""

    def __init__(self, drill: Drill, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.drill = drill
        self.dice = random.Random(seed)
        self.patch = patch
        self.witness = Witness(drill.logs.broker.bootstrap)
        self.audits = 0
        self.pulled = 0
        drill.step(0, 0)

    def work(self) -> None:
        """Send messages, deliver most of them, and settle all: what is not delivered then is
        lost."""
        logs, due_ms = self.drill.logs, self.drill.due_ms
        sent: list[tuple[int, int]] = []
        for shard in range(SHARDS):
            for at in range(self.pulled, self.pulled + BATCH):
                headers = [
                    ("chronos-deliver-at", b"%d" % (due_ms + at)),
                    ("chronos-target-topic", logs.target.encode()),
                ]
                logs.write(logs.delay, b"%d" % at, headers, partition=shard)
                sent.append((shard, at))
                for _ in range(self.dice.choices([0, 1, 2], [10, 88, 2])[0]):
                    logs.write(
                        logs.target,
                        b"%d" % at,
                        logs.receipt(shard, at, due_ms + at),
                        partition=shard,
                    )
        logs.flush()
        self.witness.sent.update(dict.fromkeys(sent, now_ms()))
        self.pulled += BATCH
        for _ in range(2):
            self.drill.step(now_ms(), self.pulled)
        self.witness.look(logs.target)

    def operate(self) -> str:
        """One operation, named for the error of a run."""
        set_clock(self.patch, self.dice.choice([0, 0, 60_000, -60_000, 3_600_000]))
        operation = self.dice.choice(["work", "work", "archive", "killed", "killed", "compact"])
        table = self.dice.choice(["progress", "deliveries", "messages"])
        if operation == "work":
            self.work()
        elif operation == "archive":
            self.drill.archive()
        elif operation == "killed":
            self.drill.archive(killed_at=table) if self.unread(table) else self.drill.archive()
        elif self.drill.storage.exists("archive.json"):
            compact(self.drill.spark, self.drill.storage, 1 << 20, ignore)
        return f"{operation} {table}"

    def unread(self, table: str) -> bool:
        """True if the next run of the archive has something to read for the table: only then it is
        announced."""
        logs = self.drill.logs
        topic = {"progress": logs.progress, "deliveries": logs.target, "messages": logs.delay}[
            table
        ]
        if not self.drill.storage.exists("archive.json"):
            return self.pulled > 0
        offsets = open_tables(self.drill.spark, self.drill.storage)[0].offsets
        reached = archived_run(offsets)
        if reached is None:
            return self.pulled > 0
        ends = {part: self.drill.brokers.watermarks(topic, part).stable for part in range(SHARDS)}
        read = reached.topics[topic].partitions if topic in reached.topics else {}
        return any(
            end > (read[str(part)].position if str(part) in read else 0)
            for part, end in ends.items()
        )

    def judge(self) -> tuple[list[str], dict[str, int], bool]:
        """The contradictions of an audit now, its counts, and whether it is clean."""
        self.audits += 1
        details = self.drill.directory.parent / f"details-{self.audits}"
        window: dict[str, Any] = {"from_ms": self.drill.due_ms, "to_ms": self.drill.due_ms + 60_000}
        if not self.drill.storage.exists("archive.json"):
            with pytest.raises(ArchiveFailed, match=r"holds no archive"):
                audit(self.drill.spark, self.drill.storage, **window)
            return [], {}, False
        found = audit(self.drill.spark, self.drill.storage, details=str(details), **window)
        rows: list[dict[str, Any]] = ds.dataset(details, format="parquet").to_table().to_pylist()
        said = self.witness.contradictions(
            rows,
            clean=found.clean,
            broken=found.broken,
            archived_ms=found.archived_ms,
            to_send=self.drill.to_send(),
        )
        return said, found.overall.counts, found.clean


@pytest.fixture
def drill(spark: SparkSession, broker: Broker, tmp_path: Path) -> Iterator[Drill]:
    """A drill on the shared broker."""
    made = Drill(spark, broker, tmp_path)
    yield made
    made.brokers.close()


@pytest.mark.parametrize("number", range(RUNS))
def test_no_audit_contradicts_what_readers_found(
    drill: Drill, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """After every operation; and in the end, when all is archived, exactly the lost messages are
    missing. A lost file is refused."""
    seed = int(os.environ.get("TEST_SEED", random.randrange(2**32))) + number
    print(f"TEST_SEED={seed}")
    play = Play(drill, seed, monkeypatch)
    drill.archive()
    play.work()
    done = []
    for _ in range(OPERATIONS):
        done.append(play.operate())
        said, _, _ = play.judge()
        assert said == [], (seed, done)
    set_clock(monkeypatch, 0)
    drill.archive()
    said, counts, clean = play.judge()
    assert said == [], (seed, done)
    twice = sum(len(places) > 1 for places in play.witness.seen.values())
    lost = len(play.witness.lost())
    wanted = {
        "delivered": len(play.witness.sent) - lost - twice,
        "missing": lost,
        "duplicated": twice,
    }
    assert counts == {outcome: count for outcome, count in wanted.items() if count}
    assert clean == (not lost and not twice)
    files = [
        path
        for name in ("messages", "deliveries")
        for path in DeltaTable(drill.directory / name).file_uris()
    ]
    Path(play.dice.choice(sorted(files))).unlink()
    with pytest.raises((PySparkException, Py4JJavaError), match="FILE_NOT_EXIST"):
        play.judge()
