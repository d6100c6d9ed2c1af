"""The shard watch: what it asks the log for, and what it logs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from structlog.testing import capture_logs

from chronos.config import load
from chronos.errors import ChronosError
from chronos.node import Node
from chronos.node.watch import LOG_EVERY_MS, OVER_MS, ShardWatch, TroubleLog
from chronos.workers.replica.state import ReplicaState
from tests.harness.waiting import wait_until
from tests.sim.broker import DELAY, PROGRESS, Brokers
from tests.sim.log import SimLog
from tests.sim.simulation import Observer as Caller
from tests.sim.world import World

SHARDS = 3


def test_a_partition_that_cannot_be_asked_for_hides_no_other(tmp_path: Path) -> None:
    """The first shard's partitions have no leader."""
    settings = [f"node.data_dir={tmp_path / 'node'}", f"shards={SHARDS}", "limits.disk_reserve=1MB"]
    node = Node(load(None, {}, settings))
    node.start()
    try:
        wait_until(
            lambda: all(shard.role == ReplicaState.MASTER for shard in node.shards), timeout_s=30
        )
        world = World(0)
        brokers = Brokers(world, lambda transaction: None)
        for topic in (DELAY, PROGRESS):
            brokers.create(topic, SHARDS)
            brokers.leaderless[brokers.topics[topic][0].name] = world.now_ms + 60_000
        errors: list[ChronosError] = []
        log = SimLog(Caller(world), brokers)
        watch = ShardWatch(
            node.shards,
            log,
            progress_topic=PROGRESS,
            clock=node.clock,
            failed=errors.append,
            outage=lambda: None,
        )
        watch.look(log.stable_ends(DELAY, range(SHARDS)))
        assert watch._delay_ends.keys() | watch._progress_ends.keys() == {1, 2}
    finally:
        node.stop()


class Told:
    """A trouble log, and its lines as `(event, shards, seconds)`."""

    def __init__(self) -> None:
        self.troubles, self.now_ms = TroubleLog(), 1_000_000

    def after(
        self, ms: int, reasons: Mapping[int, str], stalled: Mapping[int, int] | None = None
    ) -> list[tuple[str, str, int]]:
        """The lines of the second that begins so much later."""
        self.now_ms += ms
        with capture_logs() as lines:
            self.troubles.step(self.now_ms, reasons, stalled or {})
        return [(line["event"], line["shards"], line["seconds"]) for line in lines]


def test_one_trouble_of_many_shards_is_one_line_a_minute() -> None:
    """It is logged when it begins, once a minute and when it is over, however its numbers change
    and however often it comes and goes."""
    told = Told()
    full = {shard: f"disk has {shard} MiB free" for shard in range(64)}
    assert told.after(0, full) == [("paused", "shards 0 to 63", 0)]
    for second in range(1, LOG_EVERY_MS // 1_000):
        assert told.after(1_000, full if second % 3 else {}) == []
    assert told.after(1_000, full) == [("paused", "shards 0 to 63", 60)]
    assert told.after(1_000, {}) == []
    assert told.after(OVER_MS, {}) == [("resumed", "shards 0 to 63", 60)]
    assert told.after(OVER_MS, {}) == []


def test_a_trouble_that_reaches_another_shard_or_becomes_a_stall_is_logged_again() -> None:
    """So is one with another reason; a shard that has changed its reason has not resumed."""
    told = Told()
    assert told.after(0, {3: "clock"}) == [("paused", "shard 3", 0)]
    assert told.after(1_000, {3: "clock", 5: "clock"}) == []
    assert told.after(OVER_MS - 1_000, {3: "clock", 5: "clock"}) == [("paused", "shards 3, 5", 5)]
    assert told.after(1_000, {3: "clock", 5: "clock"}, {5: 30_000}) == [
        ("stalled", "shards 3, 5", 30)
    ]
    assert told.after(1_000, {3: "disk", 5: "clock"}, {5: 31_000}) == [("paused", "shard 3", 0)]
    assert told.after(OVER_MS, {3: "disk"}) == [("resumed", "shard 5", 7)]
    assert told.after(OVER_MS, {}) == [("resumed", "shard 3", 5)]
