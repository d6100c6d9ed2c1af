"""The shard watch: what it asks the log for."""

from __future__ import annotations

import time
from pathlib import Path

from chronos.config import load
from chronos.errors import ChronosError
from chronos.node import Node
from chronos.node.watch import ShardWatch
from chronos.workers.replica_state import ReplicaState
from tests.harness.broker import wait_until
from tests.sim.broker import DELAY, PROGRESS, Brokers
from tests.sim.log import SimLog
from tests.sim.simulation import Observer as Caller
from tests.sim.world import World

SHARDS = 3


def test_a_partition_that_cannot_be_asked_for_hides_no_other(tmp_path: Path) -> None:
    """The first shard's partitions have no leader: the ends of the others are known after as many calls as there are shards."""
    settings = [f"node.data_dir={tmp_path / 'node'}", f"shards={SHARDS}", "limits.disk_reserve=1MB"]
    node = Node(load(None, {}, settings))
    node.start()
    try:
        assert wait_until(
            lambda: all(shard.role == ReplicaState.MASTER for shard in node.shards), deadline=time.monotonic() + 30
        )
        world = World(0)
        brokers = Brokers(world, lambda transaction: None)
        for topic in (DELAY, PROGRESS):
            brokers.create(topic, SHARDS)
            brokers.leaderless[brokers.topics[topic][0].name] = world.now_ms + 60_000
        errors: list[ChronosError] = []
        watch = ShardWatch(
            node.shards,
            SimLog(Caller(world), brokers),
            delay_topic=DELAY,
            progress_topic=PROGRESS,
            clock=node.clock,
            failed=errors.append,
        )
        for _ in range(SHARDS):
            watch.look()
        assert watch._delay_ends.keys() | watch._progress_ends.keys() == {1, 2}
    finally:
        node.stop()
