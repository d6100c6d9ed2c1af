"""A shard of a node, stepped by hand on a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from chronos.adapters.embedded.log import EmbeddedLog
from chronos.adapters.memory import MemoryStore
from chronos.config import Config, load
from chronos.core.keys import ID_STATE
from chronos.node.opening import own_topics
from chronos.node.shards import make_shard
from chronos.ports import Clock, Log, Store
from chronos.workers.recovery import RecoveryCost
from chronos.workers.replica import Replica
from chronos.workers.replica_state import STANDALONE, ReplicaState
from tests.harness.clock import HandClock

MINUTE_MS, HOUR_MS = 60_000, 3_600_000


def step(replica: Replica, clock: HandClock, minutes: int) -> None:
    """Twenty steps in each of some minutes."""
    for _ in range(minutes):
        clock.now += MINUTE_MS
        for _ in range(20):
            replica.step(clock.now)


def configured(tmp_path: Path) -> Config:
    """One shard, whose retention is an hour."""
    return load(
        None,
        {},
        ["shards=1", "retention.delivered=1h", "retention.deduplication=1h", f"node.data_dir={tmp_path / 'node'}"],
    )


def opened(config: Config, tmp_path: Path, clock: Clock) -> EmbeddedLog:
    """A log with Chronos's topics."""
    log = EmbeddedLog(tmp_path / "log", clock=clock, progress_topic=config.topics.progress, disk_reserve_bytes=0)
    log.prepare(own_topics(config), create=True)
    return log


def make_replica(
    config: Config, log: Log, store: Store, clock: Clock, restore: Callable[[RecoveryCost], bool] = lambda cost: False
) -> Replica:
    """The replica of a node that is always master."""
    return make_shard(
        config,
        0,
        log_port=log,
        store=store,
        clock=clock,
        instance="i",
        guard=lambda: None,
        assigned=lambda: STANDALONE,
        restore=restore,
        failed=lambda error: None,
    ).replica


def test_a_clock_that_was_ahead_once_does_not_delay_the_deletion_of_settled_messages(tmp_path: Path) -> None:
    """The id states of settled messages are deleted as usual, not a year later."""
    clock = HandClock()
    config = configured(tmp_path)
    log, store = opened(config, tmp_path, clock), MemoryStore()
    replica = make_replica(config, log, store, clock)
    step(replica, clock, 1)
    clock.now += 365 * 24 * HOUR_MS
    step(replica, clock, 1)
    clock.now -= 365 * 24 * HOUR_MS
    log.append([(config.topics.delay, b"id", b"v", {"chronos-target-topic": b"t", "chronos-delay": b"0"}, 0)], 9.0)
    step(replica, clock, 2)
    assert replica.state.totals.delivered == 1
    assert len(store.scan(ID_STATE, b"j", 9, 10**6)) == 1
    step(replica, clock, 120)
    assert store.scan(ID_STATE, b"j", 9, 10**6) == []
    replica.close()
    log.close()


def test_a_store_whose_logs_were_trimmed_while_it_was_fetched_is_fetched_again(tmp_path: Path) -> None:
    """The first copy took so long that the logs begin after it: that is no error, and a later copy is fetched."""
    clock = HandClock()
    config = configured(tmp_path)
    log, store = opened(config, tmp_path, clock), MemoryStore()
    replica = make_replica(config, log, store, clock)
    copies = []
    for _ in range(2):
        step(replica, clock, 5)
        copies.append((replica.state.applied, store.scan(b"", b"\xff", 10**6, 10**9)))
    replica.close()
    fresh = MemoryStore()
    restored: list[int] = []

    def restore(cost: RecoveryCost) -> bool:
        if not cost.store_empty and cost.logs_complete:
            return False
        applied, rows = copies[len(restored)]
        restored.append(applied)
        fresh.write(rows, [])
        log.trim(config.topics.progress, 0, copies[1][0])
        return True

    again = make_replica(config, log, fresh, clock, restore)
    step(again, clock, 2)
    assert restored == [copies[0][0], copies[1][0]]
    assert again.role == ReplicaState.MASTER
    again.close()
    log.close()
