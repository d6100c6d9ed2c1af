"""What a controller has to see for some time before it moves a shard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from chronos.adapters.embedded.log import EmbeddedLog
from chronos.core.cluster.roles import (
    DEGRADED,
    OK,
    UNREACHABLE,
    ClusterView,
    Member,
    Roles,
    ShardRoles,
)
from chronos.ports import ClusterSnapshot
from chronos.workers.cluster.steadiness import Steadiness
from chronos.workers.watch.reachability import PINGS, LogReachability
from tests.harness.clock import HandClock

TIMEOUT_MS = 2_400

STEP_MS = 50

PAUSE_MS = 4 * TIMEOUT_MS
"""For which a process does not run."""


class Controller:
    """The memory of a controller, stepped by hand."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.steadiness = Steadiness(timeout_ms=TIMEOUT_MS, clock=self.clock)
        self.members = {node: member(node) for node in "ab"}
        self.confirmed = True
        self.epoch = 1
        self.roles = Roles(shards={0: ShardRoles(master="a", epoch=1)})

    def after(self, ms: int) -> ClusterView:
        """The view after so much time, with the usual steps in it."""
        for _ in range(ms // STEP_MS):
            self.clock.now += STEP_MS
            self.steadiness.step(
                ClusterSnapshot(roles=self.roles, members=self.members, confirmed=self.confirmed)
            )
            view = self.steadiness.completed(self.view())
        return view

    def view(self) -> ClusterView:
        return ClusterView(
            now_ms=self.clock.now,
            controller="a",
            controller_epoch=self.epoch,
            shards=1,
            replication=None,
            members=self.members,
            since_ms={},
            roles=self.roles,
        )


def member(node: str, log: str = OK) -> Member:
    return Member(node=node, instance=node, address="", version="", started_ms=1, log=log)


def test_a_member_is_steady_once_every_report_of_one_timeout_said_that_the_log_answers_it() -> None:
    case = Controller()
    assert case.after(TIMEOUT_MS).unsteady == {"a", "b"}
    assert case.after(STEP_MS).unsteady == set()
    for log in (DEGRADED, UNREACHABLE):
        case.members["b"] = member("b", log)
        assert case.after(STEP_MS).unsteady == {"b"}
        case.members["b"] = member("b")
        assert case.after(TIMEOUT_MS).unsteady == {"b"}
        assert case.after(STEP_MS).unsteady == set()


def test_a_process_that_was_just_started_is_not_steady() -> None:
    case = Controller()
    assert case.after(2 * TIMEOUT_MS).unsteady == set()
    case.members["b"] = replace(member("b"), started_ms=2)
    assert case.after(TIMEOUT_MS).unsteady == {"b"}


def test_reports_from_before_a_pause_say_nothing() -> None:
    """Neither while the coordinator does not answer, nor after a freeze of this process, is any
    report a present one."""
    case = Controller()
    assert case.after(2 * TIMEOUT_MS).unsteady == set()
    case.confirmed = False
    assert case.after(STEP_MS).unsteady == {"a", "b"}
    case.confirmed = True
    assert case.after(2 * TIMEOUT_MS).unsteady == set()
    case.clock.now += TIMEOUT_MS
    assert case.after(STEP_MS).unsteady == {"a", "b"}


def test_a_node_reports_that_the_log_answers_it_once_it_did(tmp_path: Path) -> None:
    """Nothing is known of it before."""
    clock = HandClock()
    log = EmbeddedLog(tmp_path, clock=clock, progress_topic="p", disk_reserve_bytes=0)
    reachability = LogReachability(log, unreachable_ms=TIMEOUT_MS, clock=clock)
    assert reachability.verdict == DEGRADED
    reachability.step(clock.now)
    assert reachability.verdict == OK
    log.close()


class SlowLog(EmbeddedLog):
    """A log whose pings take some time and have an answer or none, as the test says."""

    def __init__(self, path: Path, clock: HandClock) -> None:
        super().__init__(path, clock=clock, progress_topic="p", disk_reserve_bytes=0)
        self.hand, self.answers, self.takes_ms = clock, True, 0
        self.reachability = LogReachability(self, unreachable_ms=TIMEOUT_MS, clock=clock)
        self.verdicts: list[str] = []
        """Those that the node could report while it pinged."""

    def ping(self, timeout_s: float) -> bool:
        self.verdicts.append(self.reachability.verdict)
        self.hand.now += self.takes_ms
        self.verdicts.append(self.reachability.verdict)
        return self.answers


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[SlowLog]:
    """One that has answered once."""
    log = SlowLog(tmp_path, HandClock())
    log.reachability.step(log.hand.now)
    log.verdicts.clear()
    yield log
    log.close()


def test_a_pause_of_the_process_between_two_pings_is_no_silence_of_the_log(slow: SlowLog) -> None:
    """Another thread than the one that pings may be the first after it to report the verdict."""
    slow.hand.now += PAUSE_MS
    slow.reachability.step(slow.hand.now)
    assert {*slow.verdicts, slow.reachability.verdict} == {OK}


def test_a_pause_of_the_process_in_a_ping_is_no_silence_of_the_log(slow: SlowLog) -> None:
    """The time of the ping is over then, whatever the brokers have answered."""
    slow.hand.now += TIMEOUT_MS // PINGS
    slow.answers, slow.takes_ms = False, PAUSE_MS
    slow.reachability.step(slow.hand.now)
    slow.answers, slow.takes_ms = True, 0
    slow.reachability.step(slow.hand.now)
    assert {*slow.verdicts, slow.reachability.verdict} == {OK}


@pytest.mark.parametrize("takes_ms", [0, 100, 2 * TIMEOUT_MS // PINGS])
def test_a_log_that_answers_no_ping_is_unreachable_in_time(slow: SlowLog, takes_ms: int) -> None:
    """Whether pings fail at once, as when connections are refused, or wait for their whole time."""
    slow.answers, slow.takes_ms = False, takes_ms
    answered_ms = wake_ms = slow.hand.now
    while slow.reachability.verdict != UNREACHABLE:
        slow.hand.now = max(slow.hand.now, wake_ms)
        wake_ms = slow.reachability.step(slow.hand.now)
        assert slow.hand.now - answered_ms <= TIMEOUT_MS + takes_ms
    assert slow.hand.now - answered_ms >= TIMEOUT_MS
    slow.answers = True
    slow.reachability.step(slow.hand.now)
    assert slow.reachability.verdict == OK


def test_lost_roles_wait_for_reports_for_one_timeout() -> None:
    case = Controller()
    assert not case.after(2 * TIMEOUT_MS).awaits_reports
    roles, case.roles = case.roles, Roles()
    assert case.after(TIMEOUT_MS).awaits_reports
    assert not case.after(STEP_MS).awaits_reports
    case.roles = roles
    case.after(STEP_MS)
    case.roles = Roles()
    assert case.after(STEP_MS).awaits_reports


def test_a_node_that_controls_again_counts_from_then() -> None:
    case = Controller()
    case.roles = Roles()
    case.after(2 * TIMEOUT_MS)
    case.clock.now += 2 * TIMEOUT_MS
    assert case.after(STEP_MS).awaits_reports


def test_a_new_controller_waits_for_reports_for_one_timeout() -> None:
    """The roles may be older than the logs: a coordinator that is restored has a new controller."""
    case = Controller()
    assert not case.after(2 * TIMEOUT_MS).awaits_reports
    case.epoch = 2
    assert case.after(TIMEOUT_MS).awaits_reports
    assert not case.after(STEP_MS).awaits_reports
