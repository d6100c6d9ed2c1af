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
from chronos.workers.replica import STANDALONE, RecoveryCost, Replica
from tests.harness.clock import HandClock

MINUTE_MS, HOUR_MS = 60_000, 3_600_000


def step(replica: Replica, clock: HandClock, minutes: int) -> None:
    """Some steps in each of so many minutes."""
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


def made(
    config: Config, log: Log, store: Store, clock: Clock, begin: Callable[[RecoveryCost], bool] = lambda replay: False
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
        begin=begin,
        failed=lambda error: None,
    ).replica


def test_a_clock_that_was_ahead_once_does_not_put_the_retention_off(tmp_path: Path) -> None:
    """What is remembered of settled messages is bounded all the time, not again in a year."""
    clock = HandClock()
    config = configured(tmp_path)
    log, store = opened(config, tmp_path, clock), MemoryStore()
    replica = made(config, log, store, clock)
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


def test_logs_that_are_trimmed_while_a_store_is_fetched_have_it_begin_with_a_later_one(tmp_path: Path) -> None:
    """What was fetched first is no end of the process: it took so long that the logs begin behind it."""
    clock = HandClock()
    config = configured(tmp_path)
    log, store = opened(config, tmp_path, clock), MemoryStore()
    replica = made(config, log, store, clock)
    copies = []
    for _ in range(2):
        step(replica, clock, 5)
        copies.append((replica.state.applied, store.scan(b"", b"\xff", 10**6, 10**9)))
    replica.close()
    fresh, given = MemoryStore(), []

    def begin(replay: RecoveryCost) -> bool:
        if not replay.empty and replay.whole:
            return False
        applied, rows = copies[len(given)]
        given.append(applied)
        fresh.write(rows, [])
        log.trim(config.topics.progress, 0, copies[1][0])
        return True

    again = made(config, log, fresh, clock, begin)
    step(again, clock, 2)
    assert given == [copies[0][0], copies[1][0]]
    assert again.role == "master"
    again.close()
    log.close()
