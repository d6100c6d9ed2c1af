"""The replacement of stores by checkpoints that an operator asks for with `--from-checkpoint`."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from chronos.adapters.checkpoints.files import Copier
from chronos.adapters.clock import SystemClock
from chronos.config import load
from chronos.core.shard.codec import Identity
from chronos.errors import ChronosError, ConfigurationError, Retry
from chronos.node import Node
from chronos.node.bootstrap import StoreBootstrap
from chronos.node.checkpoints import CheckpointScheduler
from chronos.node.data_directory import DataDirectory
from chronos.node.opening import open_store
from chronos.workers.replica.recovery import RecoveryCost
from tests.sim.broker import Brokers
from tests.sim.log import SimLog
from tests.sim.simulation import Observer as Caller
from tests.sim.world import World

NOTHING_TO_READ = RecoveryCost(
    store_empty=False, logs_complete=True, records=0, applied_min=0, pull_offset_min=0
)
IDENTITY = Identity(
    cluster="c",
    shard=0,
    shards=1,
    delay_topic="d",
    delay_topic_id="1",
    progress_topic="p",
    progress_topic_id="2",
)


def test_a_store_that_must_be_replaced_is_not_used_while_the_location_fails(tmp_path: Path) -> None:
    """The logs are complete, so that the store itself would do; once the location works and is
    empty, it does."""
    location = tmp_path / "checkpoints"
    config = load(
        None,
        {},
        [
            f"node.data_dir={tmp_path / 'node'}",
            f"checkpoints.location={location}",
            "log.kind=kafka",
            "shards=1",
            "log.kafka.bootstrap_servers=127.0.0.1:1",
        ],
    )
    world = World(0)
    failures: list[ChronosError] = []
    copier = Copier(tmp_path / "copies", node="n", version="1", remembered_ms=0)
    checkpoints = CheckpointScheduler(
        config,
        SimLog(Caller(world), Brokers(world, lambda transaction: None)),
        SystemClock(),
        copier=copier,
        failed=failures.append,
    )
    bootstrap = StoreBootstrap(
        copier,
        checkpoints=checkpoints,
        others=None,
        stopping=threading.Event(),
        forced=[0],
    )
    store = open_store(config, DataDirectory(Path(config.node.data_dir), node="n"), 0)
    try:
        location.write_text("not a folder")
        for _ in range(2):
            with pytest.raises(
                Retry,
                match=(
                    "no checkpoint can replace the store of shard 0, as --from-checkpoint demands"
                ),
            ):
                bootstrap.restore(store, IDENTITY, NOTHING_TO_READ)
        location.unlink()
        assert bootstrap.restore(store, IDENTITY, NOTHING_TO_READ) is None
    finally:
        store.close()


def test_a_checkpoint_is_not_asked_of_a_node_that_has_none(tmp_path: Path) -> None:
    """What the failed start has opened is closed: the same process may start a node there."""
    config = load(None, {}, [f"node.data_dir={tmp_path / 'node'}", "limits.disk_reserve=1MB"])
    node = Node(config, from_checkpoint=True)
    with pytest.raises(ConfigurationError, match=r"--from-checkpoint needs checkpoints\.location"):
        node.start()
    again = Node(config)
    again.start()
    again.stop()
