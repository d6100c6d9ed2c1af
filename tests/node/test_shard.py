"""A shard of a node, stepped by hand on a clock that is moved by hand."""

from __future__ import annotations

from pathlib import Path

from chronos.adapters.embedded import EmbeddedLog
from chronos.adapters.memory import MemoryStore
from chronos.config import load
from chronos.core.keys import WORD
from chronos.node.opening import own_topics
from chronos.node.shards import make_shard
from chronos.workers.replica import STANDALONE, Replica
from tests.clock import HandClock

MINUTE_MS, HOUR_MS = 60_000, 3_600_000


def step(replica: Replica, clock: HandClock, minutes: int) -> None:
    """Some steps in each of so many minutes."""
    for _ in range(minutes):
        clock.now += MINUTE_MS
        for _ in range(20):
            replica.step(clock.now)


def test_a_clock_that_was_ahead_once_does_not_put_the_retention_off(tmp_path: Path) -> None:
    """What is remembered of settled messages is bounded all the time, not again in a year."""
    clock = HandClock()
    config = load(
        None,
        {},
        ["shards=1", "retention.delivered=1h", "retention.deduplication=1h", f"node.data_dir={tmp_path / 'node'}"],
    )
    log = EmbeddedLog(tmp_path / "log", clock=clock, progress_topic=config.topics.progress, disk_reserve_bytes=0)
    log.prepare(own_topics(config), create=True)
    store = MemoryStore()
    replica = make_shard(
        config,
        0,
        log_port=log,
        store=store,
        clock=clock,
        instance="i",
        guard=lambda: None,
        assigned=lambda: STANDALONE,
        begin=lambda replay: False,
        failed=lambda error: None,
    ).replica
    step(replica, clock, 1)
    clock.now += 365 * 24 * HOUR_MS
    step(replica, clock, 1)
    clock.now -= 365 * 24 * HOUR_MS
    log.append([(config.topics.delay, b"id", b"v", {"chronos-target-topic": b"t", "chronos-delay": b"0"}, 0)], 9.0)
    step(replica, clock, 2)
    assert replica.state.totals.delivered == 1
    assert len(store.scan(WORD, b"j", 9, 10**6)) == 1
    step(replica, clock, 120)
    assert store.scan(WORD, b"j", 9, 10**6) == []
    replica.close()
    log.close()
