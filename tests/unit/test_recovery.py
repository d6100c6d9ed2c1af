"""The beginning of a replica with an empty store."""

from __future__ import annotations

import pytest

from chronos.core.shard.codec import FRESH
from chronos.errors import LogUnavailable
from chronos.ports import Watermarks
from chronos.workers.replica.recovery import begun
from tests.sim.broker import PROGRESS, Brokers
from tests.sim.log import SimLog
from tests.sim.simulation import Observer
from tests.sim.world import World


def test_a_log_that_is_trimmed_during_the_start_makes_the_replica_begin_again() -> None:
    """The next start finds that the log begins later, and looks for a checkpoint."""
    world = World(0)
    brokers = Brokers(world, lambda transaction: None)
    brokers.create(PROGRESS, 1)
    for _ in range(4):
        brokers.append(brokers.topics[PROGRESS][0], None, b"", [], None)
    log = SimLog(Observer(world), brokers)
    before = log.watermarks(PROGRESS, 0)
    log.trim(PROGRESS, 0, 3)
    delay = Watermarks(start=5, stable=9, high=9)
    with pytest.raises(LogUnavailable, match="trimmed during the start"):
        begun(FRESH, log, 0, 1, PROGRESS, before, delay)
