"""The assignment of masters and replicas: tables for each rule, and properties of every cluster."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from chronos.core.cluster import assignment
from chronos.core.cluster.assignment import KEPT, PATIENCE_MS, REBALANCE_PAUSE_MS, plan
from chronos.core.cluster.health import ARMED, ARMED_MS, AUTO, MOVED_MS, OFF, is_unhealthy
from chronos.core.cluster.planner import REPLAN_MS, RolePlanner
from chronos.core.cluster.replication import is_in_sync
from chronos.core.cluster.reports import LAG_MAX, MASTER, NOT_HELD
from chronos.core.cluster.roles import (
    AWAY_MS,
    DEGRADED,
    HISTORY_MAX,
    OK,
    REBALANCE_AFTER_MS,
    REPLACE_AFTER_MS,
    UNREACHABLE,
    ClusterView,
    Member,
    ReplicaReport,
    Request,
    Roles,
    ShardRoles,
)
from tests.harness.table import table
from tests.unit.settings import examples

NOW_MS = 1_800_000_000_000
NODES = ("a", "b", "c", "d")


def member(
    node: str,
    *replicas: ReplicaReport,
    leaving: bool = False,
    log: str = OK,
    applied: int | None = 10,
    shards: int = 4,
    eligible: bool = True,
    host: str = "",
    retiring: bool = False,
) -> Member:
    """A member with the same report for all shards, or the given ones."""
    reports = replicas or tuple(ReplicaReport(applied=applied) for _ in range(shards))
    return Member(
        node=node,
        instance=f"i-{node}",
        address=f"http://{node}:7700",
        version="1",
        started_ms=0,
        leaving=leaving,
        log=log,
        eligible=eligible,
        host=host,
        retiring=retiring,
        replicas=dict(enumerate(reports)),
    )


def view(
    *members: Member, roles: Roles | None = None, now_ms: int = NOW_MS, **more: Any
) -> ClusterView:
    """A view of these members, all of them present for long."""
    settings: dict[str, Any] = {
        "controller": "a",
        "controller_epoch": 1,
        "shards": 4,
        "replication": None,
        "since_ms": {each.node: 0 for each in members},
    } | more
    return ClusterView(
        now_ms=now_ms,
        members={each.node: each for each in members},
        roles=roles or Roles(),
        **settings,
    )


def masters(roles: Roles) -> list[str | None]:
    """The masters, by shard."""
    return [roles.shards[shard].master for shard in sorted(roles.shards)]


def reasons(roles: Roles) -> list[str]:
    """The reasons in the history, oldest first."""
    return [change.why for change in roles.history]


def later(before: ClusterView, ms: int, *members: Member, **more: Any) -> ClusterView:
    """The same view after its plan was published, some time later, perhaps with other members."""
    new = {each.node: each for each in members} or dict(before.members)
    return replace(
        before,
        roles=plan(before),
        now_ms=before.now_ms + ms,
        members=new,
        **({"requests": ()} | more),
    )


# --- The first masters ----------------------------------------------------------------------------


def test_equal_replicas_share_the_shards_in_preferred_order() -> None:
    roles = plan(view(*map(member, NODES)))
    assert masters(roles) == ["a", "b", "c", "d"]
    assert roles.shards[1].replicas == ("b", "c", "d", "a")
    assert reasons(roles) == ["first"] * 4
    assert [given.epoch for given in roles.shards.values()] == [1] * 4


BEST = {
    "the furthest wins": ((5, 9, 7), "b"),
    "unknown never wins": ((None, 0, None), "b"),
    "no progress is known": ((None, None, None), None),
    "a tie goes to the first": ((9, 9, 3), "a"),
}


@pytest.mark.parametrize(("applied", "master"), BEST.values(), ids=BEST)
def test_the_first_master_of_a_shard(applied: tuple[int | None, ...], master: str | None) -> None:
    members = [
        member(node, ReplicaReport(applied=each))
        for node, each in zip(NODES, applied, strict=False)
    ]
    assert masters(plan(view(*members, shards=1))) == [master]


def test_a_tie_goes_to_the_node_with_the_fewest_shards() -> None:
    """Shard 2 would prefer c, which has two shards already."""
    leads = {0: "c", 1: "c"}
    members = [
        member(
            node,
            *(ReplicaReport(applied=20 if leads.get(shard) == node else 10) for shard in range(3)),
        )
        for node in "abc"
    ]
    assert masters(plan(view(*members, shards=3))) == ["c", "c", "a"]


# --- Failover -------------------------------------------------------------------------------------


def test_only_the_shards_of_a_lost_master_move() -> None:
    before = view(*map(member, "abc"))
    old = plan(before)
    new = plan(later(before, 1_000, member("a"), member("c")))
    moved = [shard for shard in range(4) if old.shards[shard] != new.shards[shard]]
    assert [old.shards[shard].master for shard in moved] == ["b"] * len(moved)
    assert "b" not in masters(new)
    assert new.shards[1].previous == "b"
    assert new.shards[1].epoch == 2
    assert new.away == {"b": NOW_MS + 1_000}
    assert reasons(new)[-1] == "lost its session"


def test_a_restarted_master_keeps_its_role_while_its_progress_is_unknown() -> None:
    before = view(*map(member, "ab"))
    restarted = member("a", applied=None)
    assert plan(later(before, 1, restarted, member("b"))).shards == plan(before).shards


def test_a_shard_waits_a_bounded_time_for_a_better_replica() -> None:
    """No candidate has everything that the lost master reported: after 30 s the best of them is
    chosen."""
    ahead, behind = member("a", applied=5_000), member("b", applied=10)
    lost = later(view(ahead, behind), 1_000, behind)
    waiting = plan(lost)
    assert masters(waiting) == [None] * 4
    assert set(reasons(waiting)[4:]) == {"lost its session; no replica can take over yet"}
    assert masters(plan(later(lost, PATIENCE_MS - 1))) == [None] * 4
    given_up = plan(later(lost, PATIENCE_MS))
    assert masters(given_up) == ["b"] * 4
    assert given_up.shards[0].previous == "a"
    caught_up = member("b", applied=5_000)
    assert masters(plan(later(lost, 100, caught_up))) == ["b"] * 4
    assert masters(plan(later(lost, 100, behind, ahead))) == ["a"] * 4


@pytest.mark.parametrize("leads", [True, False])
def test_a_progress_that_no_replica_has_holds_up_no_failover_once_a_master_leads(
    leads: bool,
) -> None:
    """The progress topic was deleted and created again: what was reported before is not there to
    wait for."""
    roles = Roles(shards={0: ShardRoles(master="a", epoch=3, replicas=("a", "b"), applied=5_000)})
    a = member(
        "a", ReplicaReport(applied=10, role="master", role_epoch=3 if leads else 2, role_node="a")
    )
    b = member("b", ReplicaReport(applied=10, role="follower"))
    before = view(a, b, roles=roles, shards=1)
    assert plan(before).shards[0].applied == (10 if leads else 5_000)
    assert masters(plan(later(before, 1, b))) == ["b" if leads else None]


def test_a_replica_in_sync_is_promoted_before_one_that_is_not_and_at_once() -> None:
    """RH-14: a paused replica or one of unknown state loses to one in sync, however far it is;
    without one in sync it wins."""
    follower = ReplicaReport(applied=100, role="follower")
    before = view(
        member("a"),
        member("b"),
        member("c"),
        roles=Roles(shards={0: ShardRoles(master="a", epoch=1)}),
        shards=1,
    )

    def chosen(b: ReplicaReport, c: ReplicaReport, in_sync_from: dict[int, int]) -> str | None:
        lost = {"b": member("b", b), "c": member("c", c)}
        roles = Roles(
            shards={0: ShardRoles(master="a", epoch=1, replicas=("a", "b", "c"), applied=160)}
        )
        return (
            plan(replace(before, members=lost, roles=roles, in_sync_from=in_sync_from))
            .shards[0]
            .master
        )

    full = replace(follower, applied=160, reason="the disk is full")
    assert chosen(full, follower, {0: 100}) == "c"
    assert chosen(full, follower, {0: 101}) == "b"
    assert chosen(full, follower, {}) == "b"
    assert chosen(replace(follower, applied=150), replace(follower, applied=140), {0: 100}) == "b"
    assert chosen(replace(follower, applied=150), replace(follower, applied=140), {0: 151}) is None
    assert chosen(replace(follower, applied=160, role="starting"), follower, {0: 100}) == "c"


def test_a_planned_hand_over_prefers_a_replica_in_sync() -> None:
    replicas = [
        ReplicaReport(applied=90, role="follower", reason="paused"),
        ReplicaReport(applied=80, role="follower"),
    ]
    before = view(
        member("a", leaving=True),
        *(member(node, each) for node, each in zip("bc", replicas, strict=True)),
        shards=1,
    )
    given_roles = Roles(shards={0: ShardRoles(master="a", epoch=1, replicas=("a", "b", "c"))})
    assert masters(plan(replace(before, roles=given_roles))) == ["b"]
    assert masters(plan(replace(before, roles=given_roles, in_sync_from={0: 80}))) == ["c"]


def test_without_members_there_is_no_master_and_the_next_member_becomes_it() -> None:
    lost = later(view(member("a"), replication=2), 1_000)
    lost = replace(lost, members={})
    assert masters(plan(lost)) == [None] * 4
    assert masters(plan(later(lost, 1, member("a")))) == ["a"] * 4


# --- Epochs ---------------------------------------------------------------------------------------

EPOCHS = {
    "no log contains a later one": (ReplicaReport(applied=1, role_epoch=3, role_node="a"), 3),
    "a later one was reported": (ReplicaReport(applied=1, role_epoch=8), 9),
    "another wrote under the same one": (ReplicaReport(applied=1, role_epoch=3, role_node="b"), 4),
    "it wrote under the same one": (
        ReplicaReport(applied=1, role_epoch=3, role_node="a", role_instance="i-a"),
        3,
    ),
    "it lost its disk and wrote under the same one before": (
        ReplicaReport(applied=1, role_epoch=3, role_node="a", role_instance="i-lost"),
        4,
    ),
    "an older one was reported": (ReplicaReport(applied=1, role_epoch=2, role_node="b"), 3),
}


@pytest.mark.parametrize(("report", "epoch"), EPOCHS.values(), ids=EPOCHS)
def test_a_master_whose_log_has_a_later_role_epoch_gets_a_later_one(
    report: ReplicaReport, epoch: int
) -> None:
    """A coordinator restored to an older state must not block a shard."""
    published = Roles(shards={0: ShardRoles(master="a", epoch=3, replicas=("a",))})
    roles = plan(view(member("a", report), roles=published, shards=1))
    assert (roles.shards[0].master, roles.shards[0].epoch) == ("a", epoch)


def test_a_new_master_gets_an_epoch_greater_than_any_reported() -> None:
    """Also where the roles were lost altogether."""
    members = [
        member("a", ReplicaReport(applied=5, role_epoch=41)),
        member("b", ReplicaReport(applied=6, role_epoch=40)),
    ]
    assert plan(view(*members, shards=1)).shards[0].epoch == 42


# --- Leaving, drained, transferred ----------------------------------------------------------------


def test_the_shards_of_a_leaving_node_go_to_other_nodes_while_there_are_any() -> None:
    before = view(*map(member, "ab"))
    roles = plan(later(before, 1, member("a", leaving=True), member("b")))
    assert masters(roles) == ["b"] * 4
    assert reasons(roles)[-1] == "leaving"
    assert roles.shards[0].previous == "a"
    alone = plan(later(before, 1, member("a", leaving=True), member("b", applied=None)))
    assert masters(alone) == masters(plan(before))


def test_a_drained_node_is_master_of_no_shard_until_it_is_undrained() -> None:
    before = view(*map(member, "ab"), requests=(Request(kind="drain", node="a"),))
    drained = plan(before)
    assert (masters(drained), drained.drained) == (["b"] * 4, ("a",))
    undrained = later(before, REBALANCE_PAUSE_MS, requests=(Request(kind="undrain", node="a"),))
    assert plan(undrained).drained == ()
    assert Counter(masters(plan(undrained))) == {"b": 3, "a": 1}


PAUSED = [ReplicaReport(applied=5_000, reason="no space left")] * 4


@pytest.mark.parametrize(
    "other",
    [member("b", applied=5_000 - LAG_MAX - 1), member("b", *PAUSED)],
    ids=["behind", "paused"],
)
def test_a_drained_node_keeps_its_shards_until_another_replica_can_continue(other: Member) -> None:
    """A replica that is far behind, or paused, would deliver nothing for a while; one of a node
    that stops goes to it all the same."""
    alone = view(member("a", applied=5_000))
    drained = later(
        alone, 1, member("a", applied=5_000), other, requests=(Request(kind="drain", node="a"),)
    )
    roles = plan(drained)
    assert (masters(roles), roles.drained) == (["a"] * 4, ("a",))
    assert (
        masters(plan(later(drained, 1, member("a", applied=5_000), member("b", applied=5_000))))
        == ["b"] * 4
    )
    assert (
        masters(plan(later(drained, 1, member("a", applied=5_000, leaving=True), other)))
        == ["b"] * 4
    )


RESTORING = [ReplicaReport(applied=None, role="restoring")] * 4


@pytest.mark.parametrize(
    "behind",
    [RESTORING, [ReplicaReport(applied=5, role="follower")] * 4],
    ids=["restoring", "replaying"],
)
def test_a_master_that_is_far_behind_gives_way_to_a_replica_that_returns(
    behind: list[ReplicaReport],
) -> None:
    """Not before it had time to lead, as after a restart, and not once it leads."""
    late, back = member("a", *behind), member("b", applied=LAG_MAX + 10)
    alone = later(view(member("a")), PATIENCE_MS - 1, late, back)
    assert masters(plan(alone)) == ["a"] * 4
    ready = later(alone, 1)
    assert masters(plan(ready)) == ["b"] * 4
    assert reasons(plan(ready))[-1] == "far behind, and another replica is not"
    restarted = later(alone, 1, since_ms={"a": NOW_MS + 1})
    assert masters(plan(restarted)) == ["a"] * 4
    leads = member("a", *[replace(report, role="master") for report in behind])
    assert masters(plan(later(alone, 1, leads, back))) == ["a"] * 4
    assert masters(plan(later(alone, 1, late, member("b", applied=10)))) == ["a"] * 4


def test_rate_limits_are_kept_until_they_are_changed_or_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests are answered in their order; more limits than a bound are not taken."""
    monkeypatch.setattr(assignment, "LIMITS_MAX", 2)

    def limit(pattern: str, rate: str) -> Request:
        return Request(kind="limit", node="", pattern=pattern, rate=rate)

    before = view(
        *map(member, "ab"), requests=(limit("mail", "5/s"), limit("a*", "1/s"), limit("b", "1/s"))
    )
    assert plan(before).limited == {"mail": "5/s", "a*": "1/s"}
    after = later(before, 0, requests=(limit("mail", "7/s"), limit("a*", ""), limit("unknown", "")))
    assert plan(after).limited == {"mail": "7/s"}
    assert plan(later(after, REBALANCE_PAUSE_MS)).limited == {"mail": "7/s"}


@pytest.mark.parametrize("replication", [None, 2])
def test_a_node_that_is_away_for_seven_days_is_forgotten(replication: int | None) -> None:
    """Pods that are named anew leave nothing behind: no replica, no drain, no line among those that
    are away."""
    before = view(
        *map(member, "abc"), replication=replication, requests=(Request(kind="drain", node="c"),)
    )
    away = later(before, 1_000, member("a"))
    almost = later(away, AWAY_MS - 1)
    assert plan(almost).away.keys() >= {"c"}
    assert plan(almost).drained == ("c",)
    forgotten = plan(later(almost, 1))
    assert forgotten.nodes == {"a"}
    assert masters(forgotten) == ["a"] * 4

    # A node that comes back is a new one.
    back = plan(
        replace(almost, roles=forgotten, members={each.node: each for each in map(member, "ac")})
    )
    assert all(set(given.replicas) == {"a", "c"} for given in back.shards.values())


def test_a_node_that_is_away_is_forgotten_on_request() -> None:
    before = view(*map(member, "abc"))
    asked = Request(kind="forget", node="b")
    present = plan(replace(before, requests=(asked,)))
    assert present.nodes == {"a", "b", "c"}
    assert "forget to b refused: it is a member: stop it first" in reasons(present)
    gone = later(before, 1_000, *map(member, "ac"))
    assert plan(gone).nodes == {"a", "b", "c"}
    forgotten = plan(replace(gone, requests=(asked,)))
    assert forgotten.nodes == {"a", "c"}
    assert None not in masters(forgotten)


def test_a_drained_node_is_master_when_there_is_no_other_node() -> None:
    drained = Roles(drained=("a",))
    assert masters(plan(view(member("a"), roles=drained))) == ["a"] * 4


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (UNREACHABLE, OK, "b"),
        (UNREACHABLE, DEGRADED, "a"),
        (UNREACHABLE, UNREACHABLE, "a"),
        (DEGRADED, OK, "a"),
    ],
)
def test_a_master_without_a_connection_to_the_log_is_replaced_by_one_with_a_connection(
    a: str, b: str, expected: str
) -> None:
    """And by no other node: if no node reaches the brokers, no shard moves."""
    before = view(member("a"), member("b", leaving=True))
    assert masters(plan(before)) == ["a"] * 4
    roles = plan(later(before, 1, member("a", log=a), member("b", log=b)))
    assert masters(roles) == [expected] * 4
    assert (reasons(roles)[-1] == "the log does not answer it") == (expected == "b")


def test_a_vacant_shard_goes_to_a_node_with_a_connection_to_the_log_if_there_is_one() -> None:
    before = view(*map(member, "abc"))
    roles = plan(later(before, 1, member("b", log=UNREACHABLE), member("c", log=DEGRADED)))
    assert roles.shards[0].master == "c"
    assert masters(plan(view(member("b", log=UNREACHABLE)))) == ["b"] * 4


def test_a_transfer_makes_the_node_master_at_once() -> None:
    asked = view(*map(member, "ab"), requests=(Request(kind="transfer", node="b", shard=0),))
    roles = plan(later(view(*map(member, "ab")), 1, requests=asked.requests))
    given = roles.shards[0]
    assert (given.master, given.previous, given.epoch) == ("b", "a", 2)
    assert reasons(roles)[-1] == "asked for by an operator"


def test_a_transfer_does_not_wait_for_the_last_records() -> None:
    before = view(member("a", applied=LAG_MAX), member("b", applied=LAG_MAX))
    asked = Request(kind="transfer", node="b", shard=0)
    roles = plan(
        later(before, 1, member("a", applied=LAG_MAX), member("b", applied=0), requests=(asked,))
    )
    assert roles.shards[0].master == "b"


REFUSED = {
    "it is not a member at the moment": Request(kind="transfer", node="z", shard=0),
    "there is no such shard": Request(kind="transfer", node="b", shard=9),
    "its progress is not known yet": Request(kind="transfer", node="c", shard=0),
    "it is about to stop": Request(kind="transfer", node="d", shard=0),
    "the log does not answer it": Request(kind="transfer", node="e", shard=0),
    "its failover.candidate is off": Request(kind="transfer", node="f", shard=0),
    "its replica is paused: " + "x" * assignment.REASON_CHARS: Request(
        kind="transfer", node="g", shard=0
    ),
    f"its replica is {LAG_MAX + 1} progress records behind": Request(
        kind="transfer", node="h", shard=0
    ),
    "there is no such request": Request(kind="explode", node="b", shard=0),
}


@table(("reason", "request_"), REFUSED.items())
def test_a_refused_request_is_in_the_history_and_changes_nothing(
    reason: str, request_: Request
) -> None:
    ahead = LAG_MAX + 1
    members = (
        member("a", applied=ahead),
        member("b", applied=ahead),
        member("c", applied=None),
        member("d", applied=ahead, leaving=True),
        member("e", applied=ahead, log=DEGRADED),
        member("f", applied=ahead, eligible=False),
        member("g", *(ReplicaReport(applied=ahead, reason="x" * 1_000) for _ in range(4))),
        member("h", applied=0),
    )
    before = view(*members)
    roles = plan(later(before, 1, requests=(request_,)))
    assert roles.shards == plan(before).shards
    assert reasons(roles)[-1] == f"{request_.kind} to {request_.node} refused: {reason}"


def test_a_transfer_to_a_node_without_a_replica_is_refused() -> None:
    before = view(*map(member, "abc"), replication=2)
    node = next(node for node in "abc" if node not in plan(before).shards[0].replicas)
    asked = Request(kind="transfer", node=node, shard=0)
    roles = plan(later(before, 1, requests=(asked,)))
    assert reasons(roles)[-1] == f"transfer to {node} refused: it holds no replica"


def test_the_history_is_bounded_and_keeps_the_newest() -> None:
    asked = tuple(
        Request(kind="transfer", node="ab"[at % 2], shard=0) for at in range(HISTORY_MAX + 9)
    )
    roles = plan(view(*map(member, "ab"), requests=asked, shards=1))
    assert len(roles.history) == HISTORY_MAX
    assert roles.history[-1].epoch == roles.shards[0].epoch


# --- Unhealthy masters ----------------------------------------------------------------------------


def judged(*replicas: ReplicaReport, mode: str = AUTO, **more: Any) -> ClusterView:
    """Nodes a, b, c, ... with these reports about the only shard, whose master a has role epoch
    1."""
    members = [member(node, each) for node, each in zip("abcdef", replicas, strict=False)]
    roles = plan(view(*map(member, "abcdef"[: len(replicas)]), shards=1))
    assert masters(roles) == ["a"]
    return view(*members, roles=roles, shards=1, on_unhealthy=mode, **more)


def report(
    applied: int | None = 10, *, bad: bool = True, epoch: int = 1, **more: Any
) -> ReplicaReport:
    """A replica of a node that judges the master of this role epoch."""
    return ReplicaReport(applied=applied, judged=epoch, unhealthy=bad, **more)


def test_an_unhealthy_master_is_replaced_under_the_next_epoch_and_told_to_follow() -> None:
    """HA-39, HA-44: one change demotes and promotes; the verdicts on the old epoch say nothing
    about the new one."""
    before = judged(report(), report(), report())
    roles = plan(before)
    given_roles = roles.shards[0]
    assert (given_roles.master, given_roles.previous, given_roles.epoch) == ("b", "a", 2)
    assert reasons(roles)[-1] == "unhealthy by its probes"
    assert plan(replace(before, roles=roles)) == roles


@table(
    ("reports", "moves"),
    [
        ((report(), report(), report(bad=False)), True),
        ((report(bad=False), report(), report(bad=False)), False),
        ((ReplicaReport(applied=10), report(), report()), True),
        ((ReplicaReport(applied=10), report(), ReplicaReport(applied=10)), False),
        ((ReplicaReport(applied=10), report()), False),
        ((report(), report()), True),
        ((report(bad=False), report()), False),
        ((report(epoch=2), report(epoch=2), report(epoch=2)), False),
        ((report(epoch=0), report(epoch=0), report(epoch=0)), False),
    ],
)
def test_two_thirds_of_those_that_judge_the_present_master_decide(
    reports: tuple[ReplicaReport, ...], moves: bool
) -> None:
    """HA-25 to HA-28: a lone observer never does; a node without a verdict is none."""
    assert (masters(plan(judged(*reports))) != ["a"]) == moves


def test_the_candidate_is_the_most_advanced_replica_that_works() -> None:
    """HA-33, HA-36: never one of unknown progress, of a node that is no candidate, paused, cut off,
    or deposed and not aware of it."""

    def chosen(*others: ReplicaReport) -> str | None:
        return masters(plan(judged(report(20), *others)))[0]

    assert chosen(report(5), report(9), report(7)) == "c"
    assert chosen(report(None), report(0), report(None)) == "c"
    assert chosen(report(None), report(None)) == "a"
    assert chosen(report(9, reason="the disk is full"), report(5)) == "c"
    assert chosen(report(9, role="master"), report(5)) == "c"
    before = judged(report(), report(9), report(5))
    cut_off = {**before.members, "b": replace(before.members["b"], log=DEGRADED)}
    assert masters(plan(replace(before, members=cut_off))) == ["c"]
    no_candidate = {**before.members, "b": replace(before.members["b"], eligible=False)}
    assert masters(plan(replace(before, members=no_candidate))) == ["c"]


def test_a_node_that_is_no_candidate_never_becomes_master() -> None:
    """HA-33: of no shard, even if there is no other node; one that was master gives way."""
    assert masters(plan(view(member("a", eligible=False)))) == [None] * 4
    before = view(member("a"), member("b"))
    after = plan(later(before, 1, member("a", eligible=False), member("b")))
    assert masters(after) == ["b"] * 4
    assert reasons(after)[-1] == "its failover.candidate is off"


def test_nothing_moves_back_to_a_master_that_hangs() -> None:
    """It still reports that it is master: masters are spread evenly without it."""
    stuck = member("a", *(report(role="master") for _ in range(4)))
    roles = Roles(
        shards={shard: ShardRoles(master="b", epoch=2, replicas=("a", "b")) for shard in range(4)}
    )
    before = view(stuck, member("b"), roles=roles)
    assert masters(plan(before)) == ["b"] * 4
    thawed = {**before.members, "a": member("a")}
    assert "a" in masters(plan(replace(before, members=thawed)))


def arm(at_ms: int = NOW_MS, shard: int = 0) -> Request:
    return Request(kind="arm", node="", shard=shard, at_ms=at_ms)


def test_without_permission_an_unhealthy_master_stays() -> None:
    """HA-03, HA-31."""
    for mode in (OFF, ARMED):
        before = judged(report(), report(), report(), mode=mode)
        assert plan(before) == before.roles


def test_a_permission_is_used_once() -> None:
    """HA-31: by the next failover within 15 s, also if the master becomes unhealthy only then."""
    healthy = judged(
        report(bad=False), report(bad=False), report(bad=False), mode=ARMED, requests=(arm(),)
    )
    permitted = plan(healthy)
    assert (permitted.armed, permitted.shards) == ({0: NOW_MS + ARMED_MS}, healthy.roles.shards)
    for after_ms, moves in ((ARMED_MS - 1, True), (ARMED_MS, False)):
        failing = judged(report(), report(), report(), mode=ARMED)
        roles = plan(replace(failing, roles=permitted, now_ms=NOW_MS + after_ms))
        assert (masters(roles), roles.armed) == (["b"] if moves else ["a"], {})
    again = judged(*(report(epoch=2) for _ in range(3)), mode=ARMED)
    assert masters(
        plan(replace(again, roles=plan(replace(failing, roles=permitted, now_ms=NOW_MS + 1))))
    ) == ["b"]


def test_a_permission_of_a_clock_that_was_ahead_is_over() -> None:
    """HA-31: after the clock was set back, or with a controller whose clock is behind, nobody knows
    how old it is."""
    permitted = Roles(
        shards=judged(report()).roles.shards, armed={0: NOW_MS + ARMED_MS + 1, 1: NOW_MS + ARMED_MS}
    )
    roles = plan(replace(judged(report(), report(), report(), mode=ARMED), roles=permitted))
    assert (masters(roles), roles.armed) == (["a"], {1: NOW_MS + ARMED_MS})


def test_a_permission_is_used_up_if_no_replica_can_take_over() -> None:
    """HA-31: removed by the first check."""
    roles = plan(judged(report(), report(None), mode=ARMED, requests=(arm(),)))
    assert (masters(roles), roles.armed) == (["a"], {})
    assert reasons(roles)[-1] == "unhealthy by its probes; no replica can take over"


@pytest.mark.parametrize(
    ("mode", "asked", "why"),
    [
        (OFF, arm(), "arm refused: failover.on_unhealthy is off"),
        (ARMED, arm(NOW_MS - ARMED_MS), "arm refused: it came too late"),
    ],
)
def test_a_permission_that_is_not_valid_is_refused(mode: str, asked: Request, why: str) -> None:
    before = judged(report(), report(), report(), mode=mode, requests=(asked,))
    roles = plan(before)
    assert (roles.shards, roles.armed, reasons(roles)[-1]) == (before.roles.shards, {}, why)


def test_a_verdict_moves_a_shard_once_in_five_minutes_unless_an_operator_permits_more() -> None:
    """What another master does not cure is no fault of the masters."""
    moved = plan(judged(report(), report(), report()))
    assert moved.unhealthy_moves == {0: NOW_MS}
    still = replace(
        judged(*(report(epoch=2) for _ in range(3))), roles=moved, now_ms=NOW_MS + MOVED_MS - 1
    )
    assert masters(plan(still)) == ["b"]
    assert masters(plan(replace(still, requests=(arm(still.now_ms),)))) != ["b"]
    asked = plan(replace(still, requests=(Request(kind="transfer", node="a", shard=0),)))
    assert (masters(asked), asked.unhealthy_moves) == (["a"], {})
    kept = plan(replace(still, requests=(Request(kind="transfer", node="b", shard=0),)))
    assert masters(kept) != ["b"]
    later_on = plan(replace(still, now_ms=NOW_MS + MOVED_MS))
    assert (masters(later_on) != ["b"], later_on.unhealthy_moves) == (True, {0: NOW_MS + MOVED_MS})
    assert (
        plan(view(member("a"), roles=moved, shards=1, now_ms=NOW_MS + MOVED_MS)).unhealthy_moves
        == {}
    )


def test_no_shard_moves_to_a_node_whose_own_shards_are_stuck() -> None:
    """All nodes share the cause, such as a target that no transaction can be finished with."""
    roles = Roles(
        shards={shard: ShardRoles(master=node, epoch=1) for shard, node in enumerate("abc")}
    )
    all_stuck = [member(node, *(report() for _ in range(3))) for node in "abc"]
    before = view(*all_stuck, roles=roles, shards=3, on_unhealthy=AUTO)
    assert masters(plan(before)) == ["a", "b", "c"]
    c_works = [member(node, report(), report(), report(bad=False)) for node in "abc"]
    assert masters(plan(view(*c_works, roles=roles, shards=3, on_unhealthy=AUTO))) == [
        "c",
        "c",
        "c",
    ]


@pytest.mark.parametrize(("nodes", "moves"), [("ab", False), ("abc", True)])
def test_three_registered_nodes_replace_an_unhealthy_master_without_a_setting(
    nodes: str, moves: bool
) -> None:
    """A node that is away counts: the mode does not change while one is restarted."""
    roles = plan(view(*map(member, nodes), shards=1))
    before = view(
        *(member(node, report()) for node in "ab"), roles=roles, shards=1, on_unhealthy=None
    )
    assert (masters(plan(before)) != ["a"]) == moves


# --- After an outage of the brokers, and after the loss of the roles ------------------------------


def test_a_master_that_the_log_does_not_answer_keeps_its_shard_until_another_node_is_steady() -> (
    None
):
    """The first node to reach the brokers again takes nothing: the master reaches them in a moment
    too."""
    before = later(
        view(*map(member, "abc")), 1, *(member(node, log=UNREACHABLE) for node in "ab"), member("c")
    )
    assert plan(replace(before, unsteady={"c"})).shards == before.roles.shards
    assert masters(plan(before)) == ["c"] * 4
    leaving = {**before.members, "a": member("a", log=UNREACHABLE, leaving=True)}
    assert plan(replace(before, members=leaving, unsteady={"c"})).shards[0].master == "c"


def test_a_lost_master_is_replaced_at_once_also_where_no_node_is_steady() -> None:
    """The best replica takes over; of those in sync one on a steady node, though it is some records
    behind."""
    roles = Roles(shards={0: ShardRoles(master="a", epoch=1, replicas=("a", "b", "c"))})
    follower = ReplicaReport(applied=10, role="follower")
    lost = view(
        member("b", replace(follower, applied=11)),
        member("c", follower),
        roles=roles,
        shards=1,
        in_sync_from={0: 9},
    )
    assert masters(plan(lost)) == ["b"]
    assert masters(plan(replace(lost, unsteady={"b"}))) == ["c"]
    assert masters(plan(replace(lost, unsteady={"b", "c"}))) == ["b"]
    assert masters(plan(replace(lost, unsteady={"b"}, in_sync_from={}))) == ["b"]


def test_masters_are_not_spread_to_a_node_that_is_not_steady() -> None:
    grown = later(one_node(), 1_000_000, member("a"), member("b"), since_ms={"a": 0, "b": 0})
    assert masters(plan(replace(grown, unsteady={"b"}))) == ["a"] * 4


def as_reported(roles: Roles, nodes: str = "abc") -> list[Member]:
    """Members that report what they have under these roles."""

    def replica(node: str, given: ShardRoles) -> ReplicaReport:
        held = node in given.replicas
        return ReplicaReport(
            applied=10 if held else 3,
            role="master" if node == given.master else "follower" if held else "none",
            role_epoch=given.epoch - (not held),
            role_node=(given.master or "") if held else "a",
        )

    return [
        member(node, *(replica(node, given) for _, given in sorted(roles.shards.items())))
        for node in nodes
    ]


@examples(300)
@given(
    st.lists(st.tuples(st.integers(0, 7), st.sampled_from("abc")), max_size=20),
    st.sampled_from((None, 2)),
)
def test_masters_stay_where_they_are_when_the_roles_are_lost(
    moves: list[tuple[int, str]], replication: int | None
) -> None:
    """After any transfers. Nothing is decided before the members could report."""
    settings: dict[str, Any] = {"shards": 8, "replication": replication}
    roles = plan(view(*(member(node, shards=8) for node in "abc"), **settings))
    for shard, node in moves:
        asked = (Request(kind="transfer", node=node, shard=shard),)
        roles = plan(view(*as_reported(roles), roles=roles, requests=asked, **settings))
    lost = view(*as_reported(roles, "a"), awaits_reports=True, **settings)
    assert plan(lost).are_empty
    found = plan(view(*as_reported(roles), **settings))
    assert [(each.master, each.epoch) for _, each in sorted(found.shards.items())] == [
        (each.master, each.epoch) for _, each in sorted(roles.shards.items())
    ]
    assert {shard: set(each.replicas) for shard, each in found.shards.items()} == {
        shard: set(each.replicas) for shard, each in roles.shards.items()
    }
    assert plan(view(*as_reported(roles), roles=found, **settings)).shards == found.shards


@examples(300)
@given(
    st.lists(st.tuples(st.integers(0, 7), st.sampled_from("abc")), max_size=20),
    st.integers(0, 20),
    st.sampled_from((None, 2)),
)
def test_masters_stay_where_they_are_when_the_roles_are_older_than_the_logs(
    moves: list[tuple[int, str]], restored: int, replication: int | None
) -> None:
    """After any transfers, with the roles from before some of them. Nothing is decided before the
    members could report."""
    settings: dict[str, Any] = {"shards": 8, "replication": replication}
    published = [plan(view(*(member(node, shards=8) for node in "abc"), **settings))]
    for shard, node in moves:
        roles, asked = published[-1], (Request(kind="transfer", node=node, shard=shard),)
        published.append(plan(view(*as_reported(roles), roles=roles, requests=asked, **settings)))
    roles, older = published[-1], published[min(restored, len(published) - 1)]
    if older.shards != roles.shards:
        waiting = view(*as_reported(roles, "a"), roles=older, awaits_reports=True, **settings)
        if any(
            replica.role_epoch > older.shards[shard].epoch
            for shard, replica in waiting.members["a"].replicas.items()
        ):
            assert plan(waiting).shards == older.shards
    found = plan(view(*as_reported(roles), roles=older, **settings))
    assert [(each.master, each.epoch) for _, each in sorted(found.shards.items())] == [
        (each.master, each.epoch) for _, each in sorted(roles.shards.items())
    ]
    assert plan(view(*as_reported(roles), roles=found, **settings)).shards == found.shards


def test_a_leader_that_older_roles_do_not_know_as_a_replica_keeps_its_shard() -> None:
    """Also if the master of the older roles is gone."""
    leads = ReplicaReport(
        applied=20, role="master", role_epoch=7, role_node="b", role_instance="i-b"
    )
    follows = replace(leads, role="follower")
    older = Roles(shards={0: ShardRoles(master="a", epoch=3, replicas=("a", "c"))})
    for members in (
        (member("b", leads), member("c", follows)),
        (member("a", follows), member("b", leads), member("c", follows)),
    ):
        found = plan(view(*members, roles=older, shards=1, replication=2)).shards[0]
        assert (found.master, found.epoch) == ("b", 7)
        assert "b" in found.replicas


def test_without_a_leader_older_roles_are_decided_anew_above_the_logs() -> None:
    """Its master is gone: another node gets a later role than any in the logs."""
    follows = ReplicaReport(applied=20, role="follower", role_epoch=7, role_node="a")
    older = Roles(shards={0: ShardRoles(master="b", epoch=3, replicas=("a", "b", "c"))})
    before = view(member("b", follows), member("c", follows), roles=older, shards=1)
    assert plan(replace(before, awaits_reports=True)).shards == older.shards
    found = plan(before).shards[0]
    assert (found.master, found.epoch) == ("b", 8)


def test_a_new_cluster_waits_for_no_reports() -> None:
    assert masters(plan(view(*map(member, NODES), awaits_reports=True))) == ["a", "b", "c", "d"]


def test_a_reported_master_that_another_one_has_followed_gets_no_shard_back() -> None:
    """Its report is older than the progress log of another replica; the new role epoch is above
    both."""
    deposed = ReplicaReport(
        applied=20, role="master", role_epoch=5, role_node="a", role_instance="i-a"
    )
    later_log = ReplicaReport(applied=30, role="follower", role_epoch=7, role_node="c")
    roles = plan(view(member("a", deposed), member("b", later_log), shards=1))
    assert (masters(roles), roles.shards[0].epoch) == (["b"], 8)
    same = replace(later_log, role_epoch=5)
    assert plan(view(member("a", deposed), member("b", same), shards=1)).shards[0].epoch == 6


def test_the_progress_of_a_master_that_stays_is_what_the_members_report() -> None:
    """Also if the roles were lost for this shard only, and knew a greater progress."""
    leads = ReplicaReport(
        applied=20, role="master", role_epoch=6, role_node="a", role_instance="i-a"
    )
    before = view(
        member("a", leads),
        shards=1,
        roles=Roles(shards={0: ShardRoles(replicas=("a",), applied=840)}),
    )
    found = plan(before)
    assert (masters(found), found.shards[0].epoch, found.shards[0].applied) == (["a"], 6, 20)
    assert plan(replace(before, roles=found)) == found


def test_requests_are_answered_while_lost_roles_wait_for_reports() -> None:
    asked = (Request(kind="drain", node="b"), Request(kind="transfer", node="b", shard=0), arm())
    roles = plan(
        view(*as_reported(plan(view(*map(member, "abc")))), awaits_reports=True, requests=asked)
    )
    assert (roles.are_empty, roles.drained) == (True, ("b",))
    assert reasons(roles) == [
        f"{kind} to {node} refused: the roles were lost, and no shard has a master yet"
        for kind, node in (("transfer", "b"), ("arm", ""))
    ]


# --- Spreading evenly -----------------------------------------------------------------------------


def one_node() -> ClusterView:
    """One node with all shards."""
    return view(member("a"))


def test_one_shard_moves_at_a_time_with_a_pause() -> None:
    grown = later(one_node(), 1_000_000, member("a"), member("b"), since_ms={"a": 0, "b": 0})
    assert Counter(masters(plan(grown))) == {"a": 3, "b": 1}
    assert reasons(plan(grown))[-1] == "spread evenly"
    assert plan(later(grown, REBALANCE_PAUSE_MS - 1)).shards == plan(grown).shards
    even = later(grown, REBALANCE_PAUSE_MS)
    assert Counter(masters(plan(even))) == {"a": 2, "b": 2}
    assert plan(later(even, 10 * REBALANCE_PAUSE_MS)).shards == plan(even).shards


NOT_YET = {
    "it has just come": (
        member("b", applied=LAG_MAX + 1),
        NOW_MS + 1_000_000 - REBALANCE_AFTER_MS + 1,
    ),
    "it is far behind": (member("b", applied=0), 0),
    "its progress is unknown": (member("b", applied=None), 0),
    "it is about to stop": (member("b", applied=LAG_MAX + 1, leaving=True), 0),
}


@pytest.mark.parametrize(("newcomer", "since_ms"), NOT_YET.values(), ids=NOT_YET)
def test_nothing_moves_to_a_node_that_is_not_ready(newcomer: Member, since_ms: int) -> None:
    ahead = member("a", applied=LAG_MAX + 1)
    grown = later(view(ahead), 1_000_000, ahead, newcomer, since_ms={"a": 0, "b": since_ms})
    assert masters(plan(grown)) == ["a"] * 4


def test_the_time_a_newcomer_waits_can_be_set() -> None:
    since_ms = {"a": 0, "b": NOW_MS + 1_000_000}
    grown = later(
        one_node(), 1_000_000, member("a"), member("b"), since_ms=since_ms, rebalance_after_ms=0
    )
    assert Counter(masters(plan(grown))) == {"a": 3, "b": 1}


# --- Replicas -------------------------------------------------------------------------------------


def test_a_shard_lies_on_a_node_that_may_lead_if_there_is_one() -> None:
    """At most as many replicas as are asked for."""
    nodes = [member(node, shards=8, eligible=node in "cd") for node in NODES]
    before = view(*nodes, replication=2, shards=8)
    for _ in range(5):
        roles = plan(before)
        assert set(masters(roles)) == {"c", "d"}
        assert {len(given.replicas) for given in roles.shards.values()} == {2}
        before = later(before, REBALANCE_PAUSE_MS)


def test_a_shard_on_drained_nodes_alone_gets_a_replica_on_another_one() -> None:
    """And then has one less of the drained ones."""
    before = view(*(member(node, shards=8) for node in NODES), replication=2, shards=8)
    assert {"a", "b"} in [set(given.replicas) for given in plan(before).shards.values()]
    for node in "ab":
        before = later(before, REBALANCE_PAUSE_MS, requests=(Request(kind="drain", node=node),))
    for _ in range(5):
        before = later(before, REBALANCE_PAUSE_MS)
    roles = plan(before)
    assert (roles.drained, set(masters(roles))) == (("a", "b"), {"c", "d"})
    assert {len(given.replicas) for given in roles.shards.values()} == {2}
    assert plan(later(before, REBALANCE_PAUSE_MS)).shards == roles.shards


def test_a_drained_node_with_the_only_replicas_gives_them_away_and_takes_none() -> None:
    """And a node that comes takes its share."""
    before = view(*(member(node, shards=8) for node in "ad"), replication=1, shards=8)
    before = later(before, REBALANCE_PAUSE_MS, requests=(Request(kind="drain", node="d"),))
    assert plan(replace(before, roles=plan(before), requests=())).shards == plan(before).shards
    newcomers = [member(node, shards=8) for node in "acd"]
    for _ in range(20):
        before = later(before, REBALANCE_PAUSE_MS, *newcomers, since_ms=dict.fromkeys("acd", 0))
    roles = plan(before)
    assert Counter(masters(roles)) == {"a": 4, "c": 4}
    assert {given.replicas for given in roles.shards.values()} == {("a",), ("c",)}


def test_replicas_are_spread_evenly_and_stay() -> None:
    before = view(*(member(node, shards=8) for node in NODES), replication=2, shards=8)
    held = Counter(node for given in plan(before).shards.values() for node in given.replicas)
    assert held == dict.fromkeys(NODES, 4)
    assert all(given.master in given.replicas for given in plan(before).shards.values())
    assert plan(later(before, 5_000)).shards == plan(before).shards


def test_an_absent_node_keeps_its_replicas_for_ten_minutes() -> None:
    before = view(*map(member, "abc"), replication=2)
    lost = later(before, 0, member("a"), member("b"))
    old = {shard: set(given.replicas) for shard, given in plan(before).shards.items()}
    for ms in (0, REPLACE_AFTER_MS - 1):
        roles = plan(later(lost, ms))
        assert {shard: set(given.replicas) for shard, given in roles.shards.items()} == old
    replaced = plan(later(lost, REPLACE_AFTER_MS))
    assert all(set(given.replicas) == {"a", "b"} for given in replaced.shards.values())
    assert replaced.away == {}


def test_a_new_node_takes_over_replicas_once_it_has_caught_up() -> None:
    """Until then the old ones stay, and only one shard is moved."""
    before = view(*map(member, "ab"), replication=2)
    empty = member("c", applied=None)
    grown = later(before, 1_000, member("a"), member("b"), empty)
    lengths = sorted(len(given.replicas) for given in plan(grown).shards.values())
    assert lengths == [2, 2, 2, 3]
    settled = plan(later(grown, 1_000, *map(member, "abc")))
    held = Counter(node for given in settled.shards.values() for node in given.replicas)
    assert sorted(held.values()) == [2, 3, 3]
    assert all(len(given.replicas) == 2 for given in settled.shards.values())


# --- Several nodes on one machine -----------------------------------------------------------------

TWO_MACHINES = {"a": "x", "b": "x", "c": "y", "d": "y"}


def on_machines(hosts: dict[str, str], **more: Any) -> list[Member]:
    """Members on these machines."""
    return [member(node, host=host, **more) for node, host in hosts.items()]


def machines_of(roles: Roles, hosts: dict[str, str]) -> list[list[str]]:
    """The machines of each shard's replicas."""
    return [sorted(hosts[node] for node in roles.shards[shard].replicas) for shard in range(4)]


def settled(before: ClusterView, *members: Member) -> Roles:
    """The roles after so many plans that nothing is left to move."""
    for _ in range(40):
        before = later(before, REBALANCE_PAUSE_MS, *members)
    return plan(before)


@pytest.mark.parametrize("replication", [None, 2])
def test_the_replicas_of_a_shard_lie_on_different_machines(replication: int | None) -> None:
    roles = plan(view(*on_machines(TWO_MACHINES), replication=replication))
    assert machines_of(roles, TWO_MACHINES) == [["x", "y"]] * 4
    held = Counter(node for each in roles.shards.values() for node in each.replicas)
    assert set(held.values()) == {2}
    assert roles.hosts == TWO_MACHINES


def test_a_shard_may_have_more_replicas_than_there_are_machines() -> None:
    roles = plan(view(*on_machines(TWO_MACHINES), replication=3))
    assert {tuple(each) for each in machines_of(roles, TWO_MACHINES)} <= {
        ("x", "x", "y"),
        ("x", "y", "y"),
    }


@pytest.mark.parametrize("replication", [None, 2])
def test_a_second_machine_takes_over_what_lies_on_one_machine_twice(
    replication: int | None,
) -> None:
    """One shard after the other, each once the new replica has caught up."""
    one = view(
        *on_machines({"a": "x", "b": "x"}),
        replication=replication,
        since_ms=dict.fromkeys(TWO_MACHINES, 0),
    )
    alone = settled(one)
    assert {len(each) for each in machines_of(alone, TWO_MACHINES)} == {replication or 1}
    both = on_machines(TWO_MACHINES)
    first = plan(replace(one, roles=alone, members={each.node: each for each in both}))
    assert machines_of(first, TWO_MACHINES) != machines_of(alone, TWO_MACHINES)
    roles = settled(replace(one, roles=alone), *both)
    assert machines_of(roles, TWO_MACHINES) == [["x", "y"]] * 4
    counts = Counter(masters(roles))
    assert max(counts.values()) - min(counts.get(node, 0) for node in TWO_MACHINES) <= 1


def test_a_machine_that_is_gone_is_replaced_by_no_second_replica_on_the_other() -> None:
    """With a replica on each machine; a number of replicas is kept."""
    for replication, expected in ((None, ["y"]), (2, ["y", "y"])):
        before = view(*on_machines(TWO_MACHINES), replication=replication)
        lost = later(before, 1_000, *on_machines({"c": "y", "d": "y"}))
        assert machines_of(plan(lost), TWO_MACHINES) == [["x", "y"]] * 4
        assert plan(lost).hosts == TWO_MACHINES
        gone = later(lost, REPLACE_AFTER_MS)
        assert machines_of(plan(gone), TWO_MACHINES) == [expected] * 4


def test_a_process_that_is_gone_is_replaced_by_another_one_on_its_machine() -> None:
    before = view(*on_machines(TWO_MACHINES))
    hosts = {node: host for node, host in TWO_MACHINES.items() if node != "a"}
    lost = later(before, 1_000, *on_machines(hosts))
    roles = plan(later(lost, REPLACE_AFTER_MS))
    assert machines_of(roles, TWO_MACHINES) == [["x", "y"]] * 4
    assert not any("a" in each.replicas for each in roles.shards.values())


def test_the_failover_mode_and_the_verdicts_count_machines() -> None:
    """Three processes on one machine share its network: they are one observer, which finds a master
    unhealthy only if all of them do."""
    hosts = {"a": "x", "b": "y", "c": "y", "d": "y"}

    def moves(hosts: dict[str, str], *found: bool) -> bool:
        before = judged(*(report(bad=bad) for bad in found), mode=AUTO)
        members = {
            node: replace(each, host=hosts.get(node, "")) for node, each in before.members.items()
        }
        return masters(plan(replace(before, members=members))) != ["a"]

    assert moves({}, False, True, True, True)
    assert not moves(hosts, False, True, True, True)
    assert moves(hosts, True, True, True, True)
    assert not moves(hosts, True, True, True, False)
    for shared, mode in (({}, True), (hosts, False)):
        before = judged(*(report() for _ in NODES), mode=None)  # type: ignore[arg-type]
        members = {
            node: replace(each, host=shared.get(node, "")) for node, each in before.members.items()
        }
        assert (masters(plan(replace(before, members=members))) != ["a"]) == mode


@pytest.mark.parametrize("replication", [None, 1, 2])
def test_a_node_that_retires_gives_everything_away_and_is_forgotten(
    replication: int | None,
) -> None:
    """Nothing is dropped before the other node has caught up."""
    before = view(*on_machines(TWO_MACHINES), replication=replication)
    old = plan(before)
    others = [each for each in on_machines(TWO_MACHINES) if each.node != "b"]
    empty = [replace(each, replicas={}) for each in others]
    retiring = member("b", host="x", retiring=True)
    started = plan(later(before, 1_000, retiring, *empty))
    mine = [shard for shard in range(4) if "b" in old.shards[shard].replicas]
    assert mine
    assert all("b" in started.shards[shard].replicas for shard in mine)
    assert all(len(started.shards[shard].replicas) == (replication or 2) + 1 for shard in mine)
    roles = settled(before, retiring, *others)
    assert "b" not in roles.nodes
    assert "b" not in masters(roles)
    if replication != 1:
        assert machines_of(roles, TWO_MACHINES) == [["x", "y"]] * 4
    left = plan(replace(view(*others, replication=replication), roles=roles))
    assert left.away == {}
    assert set(left.hosts) == {"a", "c", "d"}


@pytest.mark.parametrize(
    ("before", "after", "replication", "shares"),
    [
        ("x", "xxx", None, [2, 1, 1]),
        ("xx", "xxxx", 2, [2, 2, 2, 2]),
        ("xy", "xxyy", None, [2, 2, 2, 2]),
        ("xxy", "xxyyy", 3, [3, 3, 2, 2, 2]),
    ],
)
def test_processes_that_are_added_to_a_machine_get_their_share(
    before: str, after: str, replication: int | None, shares: list[int]
) -> None:
    """Also where each shard has one replica only, which is then its master."""
    names = dict.fromkeys("abcdefg", 0)
    few, many = (
        on_machines(dict(zip((*NODES, "e"), hosts, strict=False))) for hosts in (before, after)
    )
    one = view(*few, replication=replication, since_ms=names)
    roles = settled(replace(one, roles=settled(one)), *many)
    held = Counter(node for each in roles.shards.values() for node in each.replicas)
    assert sorted(held.values(), reverse=True) == shares
    assert all(each.master in each.replicas for each in roles.shards.values())
    assert plan(view(*many, replication=replication, roles=roles, since_ms=names)) == roles


def test_the_only_replica_is_dropped_after_another_node_can_lead() -> None:
    one = view(*on_machines({"a": "x"}), since_ms={"a": 0, "b": 0})
    behind = member("b", host="x", applied=None)
    roles = plan(later(replace(one, roles=plan(one)), 1_000, *on_machines({"a": "x"}), behind))
    assert sorted(len(each.replicas) for each in roles.shards.values()) == [1, 1, 1, 2]
    assert masters(roles) == ["a"] * 4
    silent = member("b", host="x", log=UNREACHABLE)
    held = plan(view(*on_machines({"a": "x"}), silent, roles=roles))
    assert masters(held) == ["a"] * 4
    assert sorted(len(each.replicas) for each in held.shards.values()) == [1, 1, 1, 2]


def test_a_retiring_node_does_not_wait_for_machines_that_never_come() -> None:
    """Two replicas were wanted, and one node is left."""
    before = view(*on_machines({"a": "x", "b": "x"}), replication=2)
    roles = settled(before, member("a", host="x"), member("b", host="x", retiring=True))
    assert [each.replicas for each in roles.shards.values()] == [("a",)] * 4
    assert masters(roles) == ["a"] * 4


def test_a_retiring_node_that_was_drained_leaves_nothing_behind() -> None:
    before = view(
        *on_machines(TWO_MACHINES), requests=(Request(kind="drain", node="b"),), replication=2
    )
    others = [each for each in on_machines(TWO_MACHINES) if each.node != "b"]
    roles = settled(before, member("b", host="x", retiring=True), *others)
    assert roles.drained == ()
    assert "b" not in roles.nodes


def test_the_place_of_a_node_that_is_away_is_not_taken_by_a_move() -> None:
    before = view(*map(member, "ab"), replication=2)
    gone = later(before, 1_000, member("a"), member("c"))
    for _ in range(10):
        gone = later(gone, 1_000)
    assert [set(each.replicas) for each in gone.roles.shards.values()] == [{"a", "b"}] * 4
    retiring = member("b", host="x", retiring=True)
    lost = view(*on_machines(TWO_MACHINES), replication=2)
    left = on_machines({"a": "x", "c": "y"})
    for _ in range(10):
        lost = later(lost, 1_000, retiring, *left)
    assert not any("b" in each.replicas for each in lost.roles.shards.values())
    assert "d" in lost.roles.nodes


def test_a_retiring_node_keeps_what_it_leads_when_the_roles_are_lost() -> None:
    """Its store is deleted once the roles do not name it."""
    leads = ReplicaReport(applied=50_000, role=MASTER, role_epoch=3, role_node="b")
    retiring = member("b", *[leads] * 4, host="x", retiring=True)
    fresh = member("a", *[ReplicaReport(applied=0, role=NOT_HELD)] * 4, host="x")
    roles = plan(view(retiring, fresh, replication=None))
    assert masters(roles) == ["b"] * 4
    assert all(set(each.replicas) == {"a", "b"} for each in roles.shards.values())


def test_a_retiring_node_keeps_a_copy_while_all_others_are_away() -> None:
    """The one that was to replace it may have come and gone without the records."""
    given = ShardRoles(master=None, epoch=1, replicas=("a", "b"))
    before = view(
        member("a", retiring=True, leaving=True),
        member("c", ReplicaReport(role=NOT_HELD)),
        roles=Roles(shards={0: given}),
        shards=1,
        replication=1,
    )
    assert plan(before).shards[0].replicas == ("a", "b")


@pytest.mark.parametrize("applied", [None, 1])
def test_a_retiring_node_takes_a_shard_over_if_no_other_can(applied: int | None) -> None:
    """So its replica counts as one in sync: it is a copy until the new one has caught up."""
    given = ShardRoles(master="a", epoch=1, replicas=("a", "b", "c"))
    lost = view(
        member("b", retiring=True, applied=50_000),
        member("c", applied=applied),
        roles=Roles(shards={0: replace(given, applied=50_000)}),
        shards=1,
        replication=2,
    )
    assert masters(plan(lost)) == ["b"]


PROCESSES = st.lists(st.tuples(st.sampled_from("xyz"), st.booleans()), min_size=1, max_size=5)
"""Nodes of machines: which one, and whether it was there from the start."""


@examples(200)
@given(PROCESSES, st.none() | st.integers(2, 3))
def test_replicas_lie_apart_and_evenly_in_the_end(
    processes: list[tuple[str, bool]], replication: int | None
) -> None:
    """All nodes have caught up. Nothing moves any more, and no machine has two replicas of a shard
    while another one has none."""
    hosts = {f"n{at}": host for at, (host, _) in enumerate(processes)}
    members = on_machines(hosts)
    first = [each for each, (_, early) in zip(members, processes, strict=True) if early]
    names = dict.fromkeys(hosts, 0)
    before = view(*(first or members), replication=replication, since_ms=names)
    roles = settled(replace(before, roles=settled(before)), *members)
    again = view(
        *members,
        roles=roles,
        replication=replication,
        since_ms=names,
        now_ms=NOW_MS + 10**9,
    )
    assert plan(again).shards == roles.shards
    count = len(set(hosts.values())) if replication is None else min(replication, len(hosts))
    for each in roles.shards.values():
        assert len(each.replicas) == count
        assert len({hosts[node] for node in each.replicas}) == min(count, len(set(hosts.values())))
        assert each.master in each.replicas


# --- Properties of every cluster ------------------------------------------------------------------

REPLICAS = st.builds(
    ReplicaReport,
    applied=st.none() | st.integers(0, 2_000),
    role_epoch=st.integers(0, 6),
    role_node=st.sampled_from(("", *NODES)),
    role_instance=st.sampled_from(("", *(f"i-{node}" for node in NODES), "i-lost")),
    role=st.sampled_from(("starting", "follower", "master")),
    reason=st.sampled_from((None, None, "paused")),
    judged=st.integers(0, 6),
    unhealthy=st.booleans(),
)
SHARDS = 3
MEMBERS = st.builds(
    lambda nodes, reports, leaving, logs, eligible, hosts, retiring: {
        node: member(
            node,
            *reports[at],
            leaving=leaving[at],
            log=logs[at],
            eligible=eligible[at],
            host=hosts[at],
            retiring=retiring[at],
        )
        for at, node in enumerate(sorted(nodes))
    },
    st.sets(st.sampled_from(NODES)),
    st.lists(st.lists(REPLICAS, min_size=SHARDS, max_size=SHARDS), min_size=4, max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.lists(st.sampled_from((OK, OK, DEGRADED, UNREACHABLE)), min_size=4, max_size=4),
    st.lists(st.sampled_from((True, True, False)), min_size=4, max_size=4),
    st.just([""] * 4) | st.lists(st.sampled_from(("", "x", "y")), min_size=4, max_size=4),
    st.lists(st.sampled_from((False, False, False, True)), min_size=4, max_size=4),
)
ASSIGNMENTS = st.builds(
    ShardRoles,
    master=st.none() | st.sampled_from(NODES),
    epoch=st.integers(0, 5),
    replicas=st.lists(st.sampled_from(NODES), unique=True).map(tuple),
    since_ms=st.integers(NOW_MS - 40_000, NOW_MS),
    applied=st.integers(0, 2_000),
)
REQUESTS = st.builds(
    Request,
    kind=st.sampled_from(("transfer", "drain", "undrain", "forget", "arm")),
    node=st.sampled_from((*NODES, "z")),
    shard=st.integers(-1, SHARDS),
    at_ms=st.just(NOW_MS),
)
VIEWS = st.builds(
    ClusterView,
    now_ms=st.just(NOW_MS),
    controller=st.sampled_from(NODES),
    controller_epoch=st.integers(1, 9),
    shards=st.just(SHARDS),
    replication=st.none() | st.integers(2, 4),
    members=MEMBERS,
    since_ms=st.dictionaries(st.sampled_from(NODES), st.integers(NOW_MS - 100_000, NOW_MS)),
    roles=st.builds(
        Roles,
        shards=st.dictionaries(st.integers(0, SHARDS - 1), ASSIGNMENTS),
        drained=st.sets(st.sampled_from(NODES)).map(lambda nodes: tuple(sorted(nodes))),
        away=st.dictionaries(
            st.sampled_from(NODES),
            st.integers(NOW_MS - 700_000, NOW_MS) | st.just(NOW_MS - AWAY_MS),
        ),
        armed=st.dictionaries(
            st.integers(0, SHARDS - 1), st.integers(NOW_MS - 1, NOW_MS + ARMED_MS)
        ),
    ),
    requests=st.lists(REQUESTS, max_size=3).map(tuple),
    in_sync_from=st.dictionaries(st.integers(0, SHARDS - 1), st.integers(0, 2_000)),
    on_unhealthy=st.sampled_from((OFF, ARMED, AUTO)),
    unsteady=st.sets(st.sampled_from(NODES)).map(frozenset),
)


@examples(300)
@given(VIEWS)
def test_a_master_is_alive_or_there_is_none(before: ClusterView) -> None:
    for shard, given_roles in plan(before).shards.items():
        assert given_roles.master is None or given_roles.master in before.members, shard


@examples(300)
@given(VIEWS)
def test_a_replica_with_unknown_progress_never_becomes_master(before: ClusterView) -> None:
    for shard, given_roles in plan(before).shards.items():
        old = before.roles.shards.get(shard, ShardRoles())
        if given_roles.master is not None and given_roles.master != old.master:
            assert before.members[given_roles.master].replicas[shard].applied is not None
            assert before.members[given_roles.master].eligible


@examples(300)
@given(VIEWS)
def test_a_shard_without_a_master_goes_to_a_replica_in_sync_if_one_may_have_it(
    before: ClusterView,
) -> None:
    roles = plan(replace(before, requests=()))
    for shard, given_roles in roles.shards.items():
        old = before.roles.shards.get(shard, ShardRoles())
        if old.master in before.members:
            continue
        needed = before.in_sync_from.get(shard)
        ready = [
            node
            for node in given_roles.replicas
            if node in before.members
            and is_in_sync(before.members[node], shard, needed)
            and node not in roles.drained
        ]
        assert not ready or given_roles.master in ready


@examples(300)
@given(VIEWS)
def test_epochs_only_grow_and_with_every_change_of_master(before: ClusterView) -> None:
    for shard, given_roles in plan(before).shards.items():
        old = before.roles.shards.get(shard, ShardRoles())
        assert given_roles.epoch >= old.epoch
        reports = {node: each.replicas[shard] for node, each in before.members.items()}
        # Under the role of before, or, if that was lost, under the one that it keeps.
        leads = any(
            (leader := reports.get(role.master or "")) is not None
            and (leader.role, leader.role_epoch, leader.role_node)
            == ("master", role.epoch, role.master)
            for role in (old, given_roles)
        )
        known = 0 if leads else old.applied
        assert given_roles.applied == max(
            known, *(each.applied or 0 for each in reports.values()), 0
        )
        kept = [
            change for change in plan(before).history if (change.shard, change.why) == (shard, KEPT)
        ]
        if given_roles.master is not None and given_roles.master != old.master and not kept:
            seen = (each.replicas[shard].role_epoch for each in before.members.values())
            assert given_roles.epoch > max(old.epoch, *seen, 0)


@examples(300)
@given(VIEWS)
def test_a_live_master_that_may_stay_keeps_its_shard(before: ClusterView) -> None:
    """Without requests, at most one of them moves, to spread them evenly; and those that a quorum
    finds unhealthy."""
    roles = plan(replace(before, requests=()))
    moved = 0
    for shard, old in before.roles.shards.items():
        now = before.members.get(old.master or "")
        reports = [each.replicas[shard] for each in before.members.values()]
        condemned = any(
            is_unhealthy(not each.unhealthy for each in reports if each.judged == epoch)
            for epoch in range(old.epoch, 7)
        )
        if before.on_unhealthy != OFF and condemned:
            continue
        may_stay = (
            now is not None
            and not now.leaving
            and not now.retiring
            and now.log != UNREACHABLE
            and now.eligible
        )
        if now is not None and may_stay and now.node not in roles.drained:
            held = now.node in roles.shards[shard].replicas
            moved += held and roles.shards[shard].master != now.node
    assert moved <= 1


@examples(300)
@given(VIEWS)
def test_a_shard_has_a_master_when_any_available_replica_is_up_to_date(before: ClusterView) -> None:
    roles = plan(before)
    for shard, given_roles in roles.shards.items():
        able = [
            node
            for node in given_roles.replicas
            if node in before.members
            and not before.members[node].leaving
            and before.members[node].log != UNREACHABLE
            and before.members[node].eligible
            and (applied := before.members[node].replicas[shard].applied) is not None
            and applied >= given_roles.applied
        ]
        drained_only = set(able) <= set(roles.drained)
        assert given_roles.master is not None or not able or drained_only


@examples(300)
@given(VIEWS, st.integers(1, 9))
def test_planning_again_changes_nothing(before: ClusterView, epoch: int) -> None:
    """Also for the next controller, and after a way through JSON."""
    once = plan(before)
    read = msgspec.json.decode(msgspec.json.encode(once), type=Roles)
    assert read == once
    again = plan(replace(before, roles=read, requests=(), controller="d", controller_epoch=epoch))
    assert (
        replace(again, controller=once.controller, controller_epoch=once.controller_epoch) == once
    )


@examples(300)
@given(VIEWS)
def test_masters_are_spread_evenly_to_within_one_in_the_end(before: ClusterView) -> None:
    """All nodes are present and up to date: each plan moves one shard until the spread is even."""
    assume(len(before.roles.drained) < len(NODES))
    healthy = view(
        *(member(node, applied=5_000, shards=SHARDS) for node in NODES),
        roles=before.roles,
        shards=SHARDS,
    )
    for _ in range(4 * SHARDS):
        healthy = later(healthy, REBALANCE_PAUSE_MS)
    serving = [node for node in NODES if node not in healthy.roles.drained]
    counts = Counter(masters(healthy.roles))
    loads = [counts[node] for node in serving]
    assert max(loads) - min(loads) <= 1
    assert sum(loads) == SHARDS


# --- What is set at run time


def test_values_of_the_registries_are_set_kept_and_deleted() -> None:
    """A value that does not fit is left out: the node that was asked has refused it before."""

    def request(key: str, value: str | None) -> Request:
        return Request(kind="configure", node="", namespace="n", key=key, value=value)

    first = view(
        *map(member, "ab"),
        requests=(request("k", "v"), request("k", "w"), request("large", "v" * 70_000)),
    )
    assert plan(first).configured == {"n": {"k": "w"}}
    restarted = later(first, 1_000, member("b"))
    assert plan(restarted).configured == {"n": {"k": "w"}}
    assert plan(replace(restarted, requests=(request("k", None),))).configured == {}


def test_a_replica_that_is_held_up_while_it_catches_up_is_chosen_only_if_all_are() -> None:
    """It reads its log in bounded memory, or waits for its turn to do so."""
    held_up = member("a", *[ReplicaReport(applied=20, role="recovering", reason="it waits")] * 4)
    before = view(held_up, member("b", applied=19), member("c", applied=18))
    assert masters(plan(before)) == ["b"] * 4
    lost = later(before, 1_000, held_up, member("c", applied=18))
    assert masters(plan(lost)) == ["c"] * 4
    assert masters(plan(later(before, 1_000, held_up))) == ["a"] * 4
    moved = view(held_up, member("b", leaving=True), roles=plan(before))
    assert masters(plan(moved)) == ["a"] * 4


def test_a_view_is_planned_again_once_it_has_changed_or_deadlines_may_have_passed() -> None:
    planner, seen = RolePlanner(), view(member("a"), member("b"))
    first = planner.plan(seen)
    assert planner.plan(replace(seen, now_ms=NOW_MS + REPLAN_MS - 1)) is first
    assert planner.plan(replace(seen, now_ms=NOW_MS + REPLAN_MS)) is not first
    without = view(member("b"), now_ms=NOW_MS + REPLAN_MS + 1, roles=first)
    assert masters(planner.plan(without)) == ["b"] * 4
    earlier = replace(without, now_ms=NOW_MS)
    assert planner.plan(earlier) == plan(earlier)


def test_reports_alone_are_planned_some_times_a_second_and_everything_else_at_once() -> None:
    """A member that leaves, for example; and reports count in that plan."""
    planner, progress = RolePlanner(), ReplicaReport(applied=7)
    seen = view(member("a", applied=None), member("b", applied=None), shards=1)
    assert masters(planner.plan(seen)) == [None]
    reported = view(member("a", progress), member("b", progress), shards=1, now_ms=NOW_MS + 1)
    assert masters(planner.plan(reported)) == [None]
    waited = replace(reported, now_ms=NOW_MS + REPLAN_MS)
    assert masters(planner.plan(waited)) == ["a"]
    planner.plan(seen)
    leaving = view(
        member("a", progress, leaving=True), member("b", progress), shards=1, now_ms=NOW_MS + 1
    )
    assert masters(planner.plan(leaving)) == ["b"]
