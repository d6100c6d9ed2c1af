"""A shard of a node, stepped by hand on a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chronos.adapters.embedded.log import EmbeddedLog
from chronos.config import Config, load
from chronos.core.clock import AGES
from chronos.core.keys import ID_STATE, OFFSET_MAX
from chronos.node.shards import Shared, make_shard
from chronos.node.topics import own_topics
from chronos.ports import Clock, Log, Store
from chronos.workers.replica.leadership import STANDALONE, Assignment
from chronos.workers.replica.recovery import RecoveryCost
from chronos.workers.replica.replica import Replica
from chronos.workers.replica.state import ReplicaState
from tests.harness.clock import HandClock
from tests.harness.memory import MemoryStore
from tests.harness.rows import rows_of

MINUTE_MS, HOUR_MS = 60_000, 3_600_000


def step(replica: Replica, clock: HandClock, minutes: int) -> None:
    """Twenty steps in each of some minutes."""
    for _ in range(minutes):
        clock.now += MINUTE_MS
        for _ in range(20):
            replica.step(clock.now)


def configured(tmp_path: Path, *settings: str) -> Config:
    """One shard, whose retention is an hour."""
    common = [
        "shards=1",
        "retention.delivered=1h",
        "retention.deduplication=1h",
        f"node.data_dir={tmp_path / 'node'}",
    ]
    return load(None, {}, [*common, *settings])


def opened(config: Config, tmp_path: Path, clock: Clock) -> EmbeddedLog:
    """A log with Chronos's topics."""
    log = EmbeddedLog(
        tmp_path / "log", clock=clock, progress_topic=config.topics.progress, disk_reserve_bytes=0
    )
    log.prepare(own_topics(config), create=True)
    return log


def send(
    log: EmbeddedLog,
    config: Config,
    key: bytes | None,
    delay: bytes,
    count: int = 1,
    **headers: bytes,
) -> None:
    """Write the same message to the delay topic some times."""
    own = {"chronos-target-topic": b"t", "chronos-delay": delay}
    own |= {name.replace("_", "-"): value for name, value in headers.items()}
    log.append([(config.topics.delay, key, b"v", own, 0)] * count, 9.0)


def keys_delivered(log: EmbeddedLog) -> list[str]:
    """The ids of the delivered messages, in order."""
    reader = log.reader("t", 0, 0)
    return [
        dict(record.headers or ())["chronos-id"].decode()  # type: ignore[union-attr]
        for record in reader.read(100, 1 << 20)  # type: ignore[union-attr]
    ]  # type: ignore[union-attr]


def make_replica(
    config: Config,
    log: Log,
    store: Store,
    clock: Clock,
    restore: Callable[[RecoveryCost], bool] = lambda cost: False,
    assigned: Callable[[], Assignment] = lambda: STANDALONE,
) -> Replica:
    """The replica of a node, which is always master unless another assignment is given."""
    shared = Shared(
        config=config,
        log=log,
        clock=clock,
        instance="i",
        guard=lambda: None,
        failed=lambda error: None,
    )
    return make_shard(shared, 0, store=store, assigned=assigned, restore=restore).replica


def test_a_clock_that_was_ahead_once_does_not_delay_the_deletion_of_settled_messages(
    tmp_path: Path,
) -> None:
    """The id states of settled messages are deleted as usual, not a year later."""
    clock = HandClock()
    config = configured(tmp_path)
    log, store = opened(config, tmp_path, clock), MemoryStore()
    replica = make_replica(config, log, store, clock)
    step(replica, clock, 1)
    clock.now += 365 * 24 * HOUR_MS
    step(replica, clock, 1)
    clock.now -= 365 * 24 * HOUR_MS
    log.append(
        [
            (
                config.topics.delay,
                b"id",
                b"v",
                {"chronos-target-topic": b"t", "chronos-delay": b"0"},
                0,
            )
        ],
        9.0,
    )
    step(replica, clock, 2)
    assert replica.state.totals.delivered == 1
    assert len(rows_of(store, ID_STATE, b"j")) == 1
    step(replica, clock, 120)
    assert rows_of(store, ID_STATE, b"j") == []
    replica.close()
    log.close()


def test_a_store_whose_logs_were_trimmed_while_it_was_fetched_is_fetched_again(
    tmp_path: Path,
) -> None:
    """The first copy took so long that the logs begin after it: that is no error, and a later copy
    is fetched."""
    clock = HandClock()
    config = configured(tmp_path)
    log, store = opened(config, tmp_path, clock), MemoryStore()
    replica = make_replica(config, log, store, clock)
    copies = []
    for _ in range(2):
        step(replica, clock, 5)
        copies.append((replica.state.applied, rows_of(store)))
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


def test_an_id_is_remembered_until_every_record_of_its_window_is_pulled(tmp_path: Path) -> None:
    """A duplicate written within the window, behind a backlog, and pulled after it is refused."""
    clock = HandClock()
    config = configured(tmp_path, "retention.deduplication=6h")
    log, store = opened(config, tmp_path, clock), MemoryStore()
    replica = make_replica(config, log, store, clock)
    step(replica, clock, 1)
    send(log, config, b"order-17", b"0")
    step(replica, clock, 1)
    assert keys_delivered(log) == ["order-17"]
    replica.close()
    clock.now += 5 * HOUR_MS
    send(log, config, None, b"30d", count=12_000)
    send(log, config, b"order-17", b"0")
    clock.now += 2 * HOUR_MS
    replica = make_replica(config, log, store, clock)
    step(replica, clock, 1)
    assert replica.state.totals.accepted == 12_001
    assert replica.state.totals.rejected == 1
    assert keys_delivered(log) == ["order-17"]
    step(replica, clock, 6 * 60)
    send(log, config, b"order-17", b"0")
    step(replica, clock, 1)
    assert keys_delivered(log) == ["order-17"] * 2, "the id is free after the window"
    assert len(rows_of(store, ID_STATE, b"j")) == 1
    replica.close()
    log.close()


def test_the_heartbeats_of_an_idle_shard_move_its_cursor(tmp_path: Path) -> None:
    """Once a minute, up to a moment at which the end of the log was reached, and they count as no
    step."""
    clock = HandClock()
    config = configured(tmp_path)
    log = opened(config, tmp_path, clock)
    replica = make_replica(config, log, MemoryStore(), clock)
    step(replica, clock, 1)
    for _ in range(3):
        before, moment_ms = replica.state.applied, clock.now
        step(replica, clock, 1)
        assert replica.state.applied == before + 1
        assert moment_ms < replica.state.cursor_due_ms <= clock.now
        assert replica.state.cursor_offset == OFFSET_MAX
    assert replica.commits == 0
    replica.close()
    log.close()


def test_without_pulling_what_is_pending_is_delivered_and_the_rest_is_left_unread(
    tmp_path: Path,
) -> None:
    """A record behind the pull offset stops nothing, and its id is still taken when it is
    pulled."""
    clock = HandClock()
    config = configured(tmp_path)
    log, store = opened(config, tmp_path, clock), MemoryStore()
    replica = make_replica(config, log, store, clock)
    step(replica, clock, 1)
    send(log, config, b"order-17", b"10m")
    send(log, config, b"order-18", b"2h")
    step(replica, clock, 1)
    replica.close()
    clock.now += 20 * MINUTE_MS
    send(log, config, b"order-17", b"0")
    send(log, config, b"order-19", b"0")
    replica = make_replica(configured(tmp_path, "workers.pull=off"), log, store, clock)
    step(replica, clock, 3 * 60)
    assert keys_delivered(log) == ["order-17", "order-18"]
    assert (replica.state.pending, replica.state.pull_offset, replica.paused) == (0, 2, None)
    replica.close()
    replica = make_replica(config, log, store, clock)
    step(replica, clock, 2)
    assert keys_delivered(log) == ["order-17", "order-18", "order-19"]
    assert replica.state.totals.rejected == 1, (
        "order-17 was written again 10 min after its delivery"
    )
    replica.close()
    log.close()


def test_records_from_the_future_pause_the_shard_until_their_time_has_come(tmp_path: Path) -> None:
    """A broker whose clock was ahead for a moment: its records wait until that time, and law 6
    holds behind them."""
    clock = HandClock()
    config = configured(tmp_path)
    log = opened(config, tmp_path, clock)
    replica = make_replica(config, log, MemoryStore(), clock)
    step(replica, clock, 1)
    clock.now += 4_000
    send(log, config, b"future", b"0")
    clock.now -= 4_000
    replica.step(clock.now)
    assert "in this machine's future" in str(replica.paused)
    assert replica.state.pull_offset == 0
    clock.now += 4_000
    for _ in range(20):
        replica.step(clock.now)
    assert replica.paused is None
    assert keys_delivered(log) == ["future"]
    replica.close()
    log.close()


def test_records_that_are_written_while_a_step_pulls_are_not_from_the_future(
    tmp_path: Path,
) -> None:
    """On a loaded machine seconds pass between the beginning of a step and its pull."""
    clock = HandClock()
    config = configured(tmp_path)
    log = opened(config, tmp_path, clock)
    replica = make_replica(config, log, MemoryStore(), clock)
    step(replica, clock, 1)
    began_ms = clock.now
    clock.now += 4_000
    send(log, config, b"present", b"0")
    replica.step(began_ms)
    assert replica.paused is None
    step(replica, clock, 1)
    assert keys_delivered(log) == ["present"]
    replica.close()
    log.close()


@pytest.mark.parametrize(
    ("off_ms", "says"), [(60_000, "60000 ms ahead of"), (-600, "600 ms behind"), (400, None)]
)
def test_a_follower_whose_clock_is_wrong_says_so_until_it_is_set(
    tmp_path: Path, off_ms: int, says: str | None
) -> None:
    """It would pause as master, so the controller prefers another replica. A backlog, however old,
    says nothing about the clock."""
    clock, own = HandClock(), HandClock()
    config = configured(tmp_path)
    log = opened(config, tmp_path, clock)
    master = make_replica(config, log, MemoryStore(), clock)
    step(master, clock, 1)
    own.now = clock.now + off_ms
    follower = make_replica(
        config, log, MemoryStore(), own, assigned=lambda: Assignment(kind="follower")
    )
    for _ in range(5):
        step(master, clock, 2)
    clock.now += HOUR_MS
    for _ in range(AGES):
        own.now = clock.now + off_ms
        for _ in range(9):
            follower.step(own.now)
        assert (follower.role, follower.paused) == (ReplicaState.FOLLOWER, None)
        step(master, clock, 2)
    own.now = clock.now + off_ms
    for _ in range(9):
        follower.step(own.now)
    assert follower.paused is says or (says is not None and says in str(follower.paused))
    own.now, own.stepped = clock.now, -off_ms
    for _ in range(2):
        follower.step(own.now)
    assert follower.paused is None
    for each in (master, follower):
        each.close()
    log.close()


def test_a_reschedule_beyond_the_expiry_is_refused_and_the_message_keeps_its_time(
    tmp_path: Path,
) -> None:
    """It could only expire. A new time at the expiry itself is accepted."""
    clock = HandClock()
    config = configured(tmp_path)
    log = opened(config, tmp_path, clock)
    replica = make_replica(config, log, MemoryStore(), clock)
    step(replica, clock, 1)
    expiry = b"%d" % (clock.now + 30 * MINUTE_MS)
    for key in (b"a", b"b"):
        send(log, config, key, b"10m", chronos_expire_at=expiry)
    for key, time in ((b"a", b"%d" % (clock.now + 30 * MINUTE_MS + 1)), (b"b", expiry)):
        headers = {"chronos-action": b"reschedule", "chronos-deliver-at": time}
        log.append([(config.topics.delay, key, None, headers, 0)], 9.0)
    step(replica, clock, 1)
    assert (replica.state.totals.changed, replica.state.totals.rejected) == (1, 1)
    step(replica, clock, 10)
    assert keys_delivered(log) == ["a"]
    (rejected,) = log.reader(config.topics.rejected, 0, 0).read(9, 1 << 20)
    assert dict(rejected.headers or ())["chronos-reason"] == b"beyond-expiry"
    # A replica whose store is empty replays the decision.
    again = make_replica(config, log, MemoryStore(), clock)
    step(again, clock, 1)
    assert again.state.totals == replica.state.totals
    again.close()
    replica.close()
    log.close()
