"""Replication modes against RocketMQ's rules RH-*: which followers are in sync, and which shards
have too few of them."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chronos.core.cluster.replication import (
    REFUSE,
    SAMPLES,
    SYNC,
    WARM,
    WARN,
    ProgressWindow,
    ProgressWindows,
    ReplicationRules,
    followers_in_sync,
    is_in_sync,
)
from chronos.core.cluster.roles import (
    DEGRADED,
    UNREACHABLE,
    Member,
    ReplicaReport,
    Roles,
    ShardRoles,
)
from chronos.ports import ClusterSnapshot
from chronos.workers.cluster.in_sync import OBSERVE_MS, InSyncWatch
from chronos.workers.replica.state import ReplicaState
from tests.unit.settings import examples

LAG_MS = 10_000
FOLLOWER = ReplicaReport(applied=100, role="follower")


def member(node: str, *replicas: ReplicaReport, **more: Any) -> Member:
    """A member that holds these shards."""
    return Member(
        node=node,
        instance=f"i-{node}",
        address="",
        version="1",
        started_ms=0,
        replicas=dict(enumerate(replicas)),
        **more,
    )


def test_the_constants_are_those_of_the_rules() -> None:
    """RH-02, RH-13: the mode is async unless it is set, and one replica suffices."""
    rules = ReplicationRules()
    assert (rules.mode, rules.min_in_sync, rules.needed, rules.refuses) == ("async", 1, 0, False)
    assert (ReplicationRules(mode=SYNC).needed, ReplicationRules(mode=SYNC).refuses) == (1, True)
    assert not ReplicationRules(mode=SYNC, on_too_few=WARN).refuses


# --- The window -----------------------------------------------------------------------------------


def test_a_replica_needs_what_was_there_one_lag_ago() -> None:
    window = ProgressWindow(LAG_MS)
    for at_ms, applied in ((0, 10), (1_000, 20), (2_000, 30), (2_001, 31)):
        window.add(applied, at_ms)
    assert window.needed == 10
    window.add(40, LAG_MS + 999)
    assert window.needed == 10
    window.add(40, LAG_MS + 1_000)
    assert window.needed == 20
    window.add(40, 3 * LAG_MS)
    assert window.needed == 40


def test_a_shard_that_stands_still_needs_its_last_record_after_one_lag() -> None:
    """Heartbeats are a minute apart: a follower that has not applied the last one yet is in sync
    for one lag, and no longer."""
    window = ProgressWindow(LAG_MS)
    window.add(10, 0)
    window.add(11, 60_000)
    assert window.needed == 10
    window.add(11, 60_000 + LAG_MS - 1)
    assert window.needed == 10
    window.add(11, 60_000 + LAG_MS)
    assert window.needed == 11


@examples(1_000)
@given(st.lists(st.tuples(st.integers(1, 3_000), st.integers(0, 50)), min_size=1, max_size=60))
def test_the_window_is_exact_to_a_hundredth_of_the_lag(moves: list[tuple[int, int]]) -> None:
    """Compared with everything that was ever added, after every addition."""
    times = list(accumulate(wait_ms for wait_ms, _ in moves))
    progress = list(accumulate(more for _, more in moves))
    window = ProgressWindow(LAG_MS)
    for at, now_ms in enumerate(times):
        window.add(progress[at], now_ms)
        old = [
            (time, applied)
            for time, applied in zip(times[: at + 1], progress, strict=False)
            if now_ms - time >= LAG_MS
        ]
        most = old[-1][1] if old else progress[0]
        # What was there for a hundredth of the lag before the next addition must be needed.
        least = max(
            (applied for time, applied in old if old[-1][0] - time >= LAG_MS // SAMPLES),
            default=progress[0],
        )
        assert least <= window.needed <= most


def test_a_window_keeps_a_bounded_number_of_samples() -> None:
    window = ProgressWindow(LAG_MS)
    for at_ms in range(0, 5 * LAG_MS, 7):
        window.add(at_ms, at_ms)
        assert len(window._samples) <= SAMPLES + 2


# --- The set --------------------------------------------------------------------------------------


def test_a_follower_is_in_sync_up_to_the_lag_and_only_if_it_could_take_over() -> None:
    assert is_in_sync(member("a", FOLLOWER), 0, 100)
    assert not is_in_sync(member("a", FOLLOWER), 0, 101)
    assert not is_in_sync(member("a", FOLLOWER), 0, None)
    assert not is_in_sync(member("a", FOLLOWER), 1, 100)
    assert not is_in_sync(member("a", replace(FOLLOWER, applied=None)), 0, 0)
    assert not is_in_sync(member("a", replace(FOLLOWER, reason="the disk is full")), 0, 0)
    assert not is_in_sync(member("a", FOLLOWER, leaving=True), 0, 0)
    assert not is_in_sync(member("a", FOLLOWER, eligible=False), 0, 0)
    assert not is_in_sync(member("a", FOLLOWER, log=UNREACHABLE), 0, 0)
    assert is_in_sync(member("a", FOLLOWER, log=DEGRADED), 0, 0)
    assert is_in_sync(member("a", FOLLOWER, retiring=True), 0, 0)
    assert set(ReplicaState) >= WARM
    for state in ReplicaState:
        assert is_in_sync(member("a", replace(FOLLOWER, role=state)), 0, 100) == (state in WARM), (
            state
        )


def test_the_master_is_not_one_of_its_followers() -> None:
    members = {node: member(node, FOLLOWER) for node in "cab"}
    assert followers_in_sync(members, 0, master="b", needed=100) == ("a", "c")
    assert followers_in_sync(members, 0, master=None, needed=100) == ("a", "b", "c")
    assert followers_in_sync(members, 0, master="b", needed=101) == ()


def test_a_follower_leaves_after_the_lag_and_joins_once_it_has_caught_up() -> None:
    """One whose reports come late stays; the progress that counts is the greatest of all members,
    whoever is master."""
    windows = ProgressWindows(LAG_MS)

    def found(now_ms: int, a: int, b: int) -> tuple[str, ...]:
        members = {
            "a": member("a", replace(FOLLOWER, applied=a)),
            "b": member("b", replace(FOLLOWER, applied=b)),
        }
        windows.observe(members, None, now_ms)
        return followers_in_sync(members, 0, master="a", needed=windows.needed.get(0))

    assert found(0, 100, 100) == ("b",)
    assert found(500, 200, 100) == ("b",)
    assert found(LAG_MS + 499, 900, 100) == ("b",)
    assert found(LAG_MS + 500, 900, 100) == ()
    assert found(LAG_MS + 600, 900, 199) == ()
    assert found(LAG_MS + 700, 900, 200) == ("b",)


def test_a_replica_that_is_far_behind_is_not_in_sync_from_the_first_look_on() -> None:
    """A new controller has no history: what is there when it begins counts as old."""
    windows = ProgressWindows(LAG_MS)
    members = {"a": member("a", replace(FOLLOWER, applied=100_000)), "b": member("b", FOLLOWER)}
    windows.observe(members, None, 0)
    assert followers_in_sync(members, 0, master="a", needed=windows.needed[0]) == ()


def test_after_a_restart_the_progress_that_the_roles_name_counts() -> None:
    """The first node to come back may be far behind the others, which are still starting."""
    roles = Roles(shards={0: ShardRoles(master=None, epoch=3, applied=1_000)})
    for applied, expected in ((5, ()), (1_000, ("a",))):
        windows = ProgressWindows(LAG_MS)
        members = {"a": member("a", replace(FOLLOWER, applied=applied))}
        windows.observe(members, roles, 0)
        assert followers_in_sync(members, 0, master=None, needed=windows.needed[0]) == expected


# --- The watch of a node --------------------------------------------------------------------------


class ReplicatedPair:
    """A cluster of a and b, where a is master of shard 0, as node a sees it."""

    def __init__(self, rules: ReplicationRules) -> None:
        self.now = 0
        self.members = {
            "a": member("a", replace(FOLLOWER, role="master")),
            "b": member("b", FOLLOWER),
        }
        self.confirmed = True
        self.roles: Roles | None = Roles(shards={0: ShardRoles(master="a", epoch=1)})
        self.watch = InSyncWatch(rules, node="a", clock=self, snapshot=self.snapshot)

    def now_ms(self) -> int:
        return self.now

    def stepped_ms(self) -> int:
        return 0

    def snapshot(self) -> ClusterSnapshot:
        return ClusterSnapshot(roles=self.roles, members=self.members, confirmed=self.confirmed)

    def step(self, ms: int = OBSERVE_MS) -> str | None:
        """What the watch says some time later."""
        self.now += ms
        self.watch.step()
        return self.watch.shortage(0)


@pytest.mark.parametrize("policy", [WARN, REFUSE])
def test_too_few_followers_are_reported_in_the_mode_sync_only(policy: str) -> None:
    case = ReplicatedPair(ReplicationRules(mode=SYNC, on_too_few=policy))
    assert case.step() is None
    without = {"a": case.members["a"]}
    case.members, both = without, case.members
    assert case.step() == "0 of 1 followers in sync (replication.min_in_sync)"
    assert case.watch.followers(0) == ()
    case.members = both
    assert case.step() is None
    case = ReplicatedPair(ReplicationRules(on_too_few=policy))
    case.members = without
    assert case.step() is None


def test_more_followers_than_one_may_be_needed() -> None:
    case = ReplicatedPair(ReplicationRules(mode=SYNC, min_in_sync=2))
    assert case.step() == "1 of 2 followers in sync (replication.min_in_sync)"
    case.members = case.members | {"c": member("c", FOLLOWER)}
    assert case.step() is None
    assert case.watch.followers(0) == ("b", "c")


def test_followers_that_share_a_machine_count_once_and_those_of_the_master_not() -> None:
    """All of them are listed: each can take over."""
    case = ReplicatedPair(ReplicationRules(mode=SYNC, min_in_sync=2))
    case.members |= {node: member(node, FOLLOWER) for node in "cd"}
    assert case.step() is None
    hosts = {"a": "x", "b": "x", "c": "y", "d": "y"}
    case.members = {node: replace(case.members[node], host=host) for node, host in hosts.items()}
    assert case.step() == (
        "1 of 2 followers in sync (replication.min_in_sync; of those on one machine one counts, "
        "and of the master's none)"
    )
    assert case.watch.followers(0) == ("b", "c", "d")
    case.members["d"] = replace(case.members["d"], host="z")
    assert case.step() is None


def test_a_node_without_roles_knows_of_no_follower() -> None:
    """Its session is lost: it cannot say that a shard has enough of them."""
    case = ReplicatedPair(ReplicationRules(mode=SYNC))
    assert case.step() is None
    case.roles = None
    assert case.step() == "0 of 1 followers in sync (replication.min_in_sync)"


def test_reports_that_the_coordinator_does_not_confirm_count_for_one_lag() -> None:
    """Without a coordinator no failover is possible, however far the followers were when it last
    answered."""
    case = ReplicatedPair(ReplicationRules(mode=SYNC, max_lag_ms=LAG_MS))
    assert case.step() is None
    case.confirmed = False
    assert case.step(LAG_MS - 1) is None
    assert (
        case.step(1)
        == "0 of 1 followers in sync (replication.min_in_sync; the coordinator does not answer)"
    )
    assert case.watch.followers(0) == ()
    case.confirmed = True
    assert case.step() is None


def test_a_watch_that_does_not_run_knows_of_no_follower_after_one_lag() -> None:
    """The reports that it has seen say nothing about the present."""
    case = ReplicatedPair(ReplicationRules(mode=SYNC, max_lag_ms=LAG_MS))
    assert case.watch.shortage(0) is not None
    assert case.step() is None
    case.now += LAG_MS
    assert case.watch.shortage(0) is not None
