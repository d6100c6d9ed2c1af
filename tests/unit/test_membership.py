"""Membership: a node's assignments by the published roles, its reports, and the members that can
answer for a shard."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from chronos.core.cluster.roles import (
    UNREACHABLE,
    ClusterState,
    Member,
    ReplicaReport,
    Request,
    Roles,
    ShardRoles,
)
from chronos.core.shard.codec import RULES
from chronos.errors import CoordinatorFull, CoordinatorUnavailable, LogMismatch
from chronos.ports import ClusterSnapshot
from chronos.workers.cluster.membership import (
    FULL_PAUSE_MS,
    PREDECESSOR_MS,
    REPORT_MS,
    STEP_MS,
    Membership,
    holders,
)
from chronos.workers.replica.leadership import Assignment
from chronos.workers.replica.state import ReplicaState
from tests.sim.coordinator import Ensemble, SimCoordinator
from tests.sim.world import World

SPREAD_MS = 100
"""In this time every node has the published roles and the reported members."""

SESSION_MS = 10_000


class WorldClock:
    """The simulated time."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now_ms(self) -> int:
        return self._world.now_ms

    def stepped_ms(self) -> int:
        return 0


class Node:
    """A node with two shards, whose reports the test sets."""

    def __init__(self, case: TwoMembers, name: str) -> None:
        self.name = name
        self.member = Member(
            node=name,
            instance=f"i-{name}",
            address=f"http://{name}",
            version="1",
            started_ms=0,
            replicas={
                0: ReplicaReport(role="follower", applied=1),
                1: ReplicaReport(role="follower", applied=1),
            },
        )
        self.coordinator = SimCoordinator(case.ensemble, name, lambda where: None)
        self.membership = Membership(
            self.coordinator,
            node=name,
            clock=WorldClock(case.world),
            describe=lambda: self.member,
            plan=case.plan,
        )

    def report(self, shard: int, **changes: object) -> None:
        """From now on the node reports this about its replica of the shard."""
        self.member = replace(
            self.member,
            replicas={
                **self.member.replicas,
                shard: replace(self.member.replicas[shard], **changes),
            },
        )


class TwoMembers:
    """Two nodes of a cluster whose controller publishes the roles that the test sets."""

    def __init__(self) -> None:
        self.world = World(0)
        self.ensemble = Ensemble(self.world, shards=2, replication=None, session_ms=SESSION_MS)
        self.shards: dict[int, ShardRoles] = {}
        self.a, self.b = Node(self, "a"), Node(self, "b")
        self.a.membership.join()
        self.b.membership.join()
        self.step()

    def plan(self, view: ClusterState) -> Roles:
        return replace(
            view.roles,
            controller=view.controller,
            controller_epoch=1,
            shards=self.shards,
        )

    def step(self, wait_ms: int = SPREAD_MS) -> None:
        """The nodes take a step, and time passes."""
        for node in (self.a, self.b):
            node.coordinator.tick()
            node.membership.step(self.world.now_ms)
        self.world.pass_time(wait_ms)

    def publish(self, shard: int, roles: ShardRoles) -> None:
        self.shards = {**self.shards, shard: roles}
        self.step()

    def reported(self, node: Node) -> Member:
        """The node as the other one knows it."""
        other = self.b if node is self.a else self.a
        return other.membership.snapshot().members[node.name]


@pytest.fixture
def case() -> TwoMembers:
    return TwoMembers()


# ----------------------------------------------------------------------------------- The assignment


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        pytest.param(
            None, Assignment(kind="follower", epoch=0), id="the shard is not assigned yet"
        ),
        pytest.param(
            ShardRoles(), Assignment(kind="follower", epoch=0), id="every node holds the shard"
        ),
        pytest.param(
            ShardRoles(master="b", epoch=3),
            Assignment(kind="follower", epoch=3),
            id="another node is its master",
        ),
        pytest.param(
            ShardRoles(master="b", epoch=3, replicas=("b", "a")),
            Assignment(kind="follower", epoch=3),
            id="it is a holder",
        ),
        pytest.param(
            ShardRoles(master="b", epoch=3, replicas=("b",)),
            Assignment(kind="none", epoch=3),
            id="others hold it",
        ),
        pytest.param(
            ShardRoles(master="a", epoch=3, replicas=("a",)),
            Assignment(kind="master", epoch=3),
            id="it is its master",
        ),
    ],
)
def test_the_assignment_follows_from_the_published_roles(
    case: TwoMembers, roles: ShardRoles | None, expected: Assignment
) -> None:
    if roles is not None:
        case.publish(1, roles)
    case.publish(0, ShardRoles(master="b", epoch=1))
    assert case.a.membership.assignment(1) == expected


def test_without_published_roles_a_node_follows_and_begins_nothing() -> None:
    """Also a node that has not joined."""
    case = TwoMembers()
    outsider = Node(case, "c")
    expected = Assignment(kind="follower", epoch=0, confirmed=False)
    assert outsider.membership.assignment(0) == expected


def test_a_master_that_cannot_reach_the_coordinator_continues_unconfirmed(case: TwoMembers) -> None:
    """Also once its session has ended: no role is as late as its own until it has read one."""
    case.publish(0, ShardRoles(master="a", epoch=2))
    case.a.coordinator.cut_ms = case.world.now_ms + 2 * SESSION_MS
    case.step()
    assert case.a.membership.assignment(0) == Assignment(kind="master", epoch=2, confirmed=False)
    while case.world.now_ms < case.a.coordinator.cut_ms:
        case.step(1_000)
    case.a.coordinator.tick()
    lost = case.a.membership.assignment(0)
    assert lost == Assignment(kind="follower", epoch=0, confirmed=False)
    assert lost.continues(Assignment(kind="master", epoch=2))
    case.step()
    assert case.a.membership.assignment(0) == Assignment(kind="master", epoch=2)


@pytest.mark.parametrize(
    ("node", "waits"),
    [
        pytest.param("a", False, id="the controller, which has not read them yet"),
        pytest.param("a", True, id="the controller"),
        pytest.param("b", True, id="another node"),
    ],
)
def test_roles_of_newer_rules_end_a_node_and_are_not_published_over(
    case: TwoMembers, node: str, waits: bool
) -> None:
    case.publish(0, ShardRoles(master="a", epoch=2))
    newer = replace(case.ensemble.roles, rules=RULES + 1)
    assert case.ensemble.publish(newer, case.ensemble.version)
    version = case.ensemble.version
    if waits:
        case.world.pass_time(SPREAD_MS)
    membership = {"a": case.a, "b": case.b}[node].membership
    assert (membership.snapshot().roles == newer) == waits
    with pytest.raises(LogMismatch, match=f"the record of the roles .* by rules {RULES + 1}, "):
        membership.step(case.world.now_ms)
    assert (case.ensemble.roles, case.ensemble.version) == (newer, version)


PREVIOUS = ShardRoles(master="a", epoch=2, previous="b")


@pytest.mark.parametrize(
    ("roles", "role", "log", "expected"),
    [
        pytest.param(PREVIOUS, "master", "answers", True, id="the previous master still is master"),
        pytest.param(PREVIOUS, "stepped down", "answers", False, id="it stepped down"),
        pytest.param(PREVIOUS, "master", UNREACHABLE, False, id="its log does not answer"),
        pytest.param(
            replace(PREVIOUS, previous=None), "master", "answers", False, id="there was none"
        ),
        pytest.param(
            replace(PREVIOUS, previous="a"), "master", "answers", False, id="it was this node"
        ),
        pytest.param(replace(PREVIOUS, previous="c"), "master", "answers", False, id="it is gone"),
    ],
)
def test_a_new_master_waits_for_a_predecessor_that_can_finish_its_step(
    case: TwoMembers, roles: ShardRoles, role: str, log: str, expected: bool
) -> None:
    for node in (case.a, case.b):
        node.report(0, role=role)
    case.b.member = replace(case.b.member, log=log)
    case.publish(0, roles)
    assert case.a.membership.assignment(0).predecessor_active == expected


def test_a_predecessor_is_waited_for_half_a_second_and_with_a_later_epoch_again(
    case: TwoMembers,
) -> None:
    case.b.report(0, role="master")
    case.publish(0, PREVIOUS)
    assert case.a.membership.assignment(0).predecessor_active
    case.world.pass_time(PREDECESSOR_MS - 1)
    assert case.a.membership.assignment(0).predecessor_active
    case.world.pass_time(1)
    assert not case.a.membership.assignment(0).predecessor_active
    case.publish(0, replace(PREVIOUS, epoch=3))
    assert case.a.membership.assignment(0).predecessor_active


# -------------------------------------------------------------------------------------- The reports


def test_a_change_of_state_is_reported_at_once_and_positions_twice_a_second(
    case: TwoMembers,
) -> None:
    case.a.report(0, role="recovering")
    case.step()
    assert case.reported(case.a).replicas[0].role == "recovering"
    case.a.report(0, applied=2)
    case.step()
    assert case.reported(case.a).replicas[0].applied == 1
    case.world.pass_time(REPORT_MS)
    case.step()
    assert case.reported(case.a).replicas[0].applied == 2


@pytest.mark.parametrize(
    "change",
    [{"reason": "paused"}, {"applied": None}, {"role_epoch": 4}],
    ids=["paused", "the position is not known any more", "a greater role epoch was seen"],
)
def test_changes_that_the_controller_decides_by_are_reported_at_once(
    case: TwoMembers, change: dict[str, object]
) -> None:
    case.a.report(0, applied=2)
    case.world.pass_time(REPORT_MS)
    case.step()
    case.a.report(0, **change)
    case.step()
    assert case.reported(case.a) == case.a.member


# ----------------------------------------------------------------------------------- The controller


def test_one_of_the_nodes_is_the_controller_and_the_other_one_follows_it(case: TwoMembers) -> None:
    """Its requests are answered by the controller, whichever node was asked."""
    controllers = [node.name for node in (case.a, case.b) if node.membership.controls]
    assert controllers == ["a"]
    case.b.membership.ask(Request(kind="drain", node="b"))
    assert case.ensemble.requests
    case.publish(0, ShardRoles(master="b", epoch=1))
    assert case.ensemble.requests == []
    case.a.coordinator.leave()
    case.b.membership.step(case.world.now_ms)
    assert case.b.membership.controls


def test_a_coordinator_that_is_unavailable_ends_nothing(case: TwoMembers) -> None:
    """The controller stops controlling, and joins again once the coordinator answers and its
    session is over."""
    case.a.coordinator.cut_ms = case.world.now_ms + SESSION_MS + 2_000
    now_ms = case.world.now_ms
    case.a.coordinator.tick()
    assert case.a.membership.step(now_ms) == now_ms + STEP_MS
    assert not case.a.membership.controls
    with pytest.raises(CoordinatorUnavailable):
        case.a.membership.ask(Request(kind="drain", node="b"))
    while case.world.now_ms < case.a.coordinator.cut_ms:
        case.step(1_000)
    assert "a" not in case.b.membership.snapshot().members
    case.step()
    case.step()
    assert case.a.membership.snapshot().confirmed
    assert "a" in case.b.membership.snapshot().members


def test_an_outage_of_the_coordinator_is_two_lines_in_the_log(case: TwoMembers) -> None:
    """One when it begins and one when it ends, though most steps have nothing to report."""
    case.b.membership._changed = lambda: False
    case.b.coordinator.cut_ms = case.world.now_ms + 3_000
    with capture_logs() as logs:
        for at in range(100):
            case.b.report(0, applied=at)
            case.step(STEP_MS)
    events = [line["event"] for line in logs]
    assert events == ["coordinator unavailable", "coordinator available again"]
    applied = case.reported(case.b).replicas[0].applied
    assert applied is not None
    assert applied > 90


def test_roles_that_the_coordinator_cannot_store_are_tried_again_after_a_pause_only(
    case: TwoMembers,
) -> None:
    """Planning and encoding roles of megabytes takes long."""
    plans: list[int] = []
    is_too_large = True

    def planned(view: ClusterState) -> Roles:
        plans.append(case.world.now_ms)
        if is_too_large:
            raise CoordinatorFull("the roles are too large")
        return case.plan(view)

    case.a.membership._plan = planned
    for _ in range(2 * FULL_PAUSE_MS // SPREAD_MS):
        case.step()
        assert (case.a.membership.full, case.a.membership.controls) == (
            "the roles are too large",
            False,
        )
    assert len(plans) == 2
    is_too_large = False
    case.step(FULL_PAUSE_MS)
    case.step()
    assert (case.a.membership.full, case.a.membership.controls) == (None, True)


# -------------------------------------------------------------------------------------- The holders


def replica(role: str, applied: int | None) -> ReplicaReport:
    return ReplicaReport(role=role, applied=applied)


HELD = {
    "a": replica("master", 90),
    "b": replica("follower", 80),
    "c": replica("follower", 85),
    "d": replica("recovering", 99),
    "e": replica("none", 100),
    "f": replica("failed", 100),
    "g": replica("stopped", 100),
    "h": replica("restoring", None),
    "i": None,
}
"""What each member reports of shard 0."""


@pytest.mark.parametrize(
    ("besides", "order", "expected"),
    [
        ("z", (ReplicaState.MASTER, ReplicaState.FOLLOWER), "acbd"),
        ("z", (ReplicaState.FOLLOWER, ReplicaState.MASTER), "cbad"),
        ("c", (ReplicaState.FOLLOWER, ReplicaState.MASTER), "bad"),
        ("z", (), "dacb"),
    ],
)
def test_the_holders_of_a_shard_are_ordered_by_state_and_position(
    besides: str, order: tuple[ReplicaState, ...], expected: str
) -> None:
    """Replicas that cannot be read, or whose position is not known, are left out."""
    members = {
        node: Member(
            node=node,
            instance=node,
            address="",
            version="",
            started_ms=0,
            replicas={} if held is None else {0: held},
        )
        for node, held in HELD.items()
    }
    snapshot = ClusterSnapshot(roles=None, members=members, confirmed=True)
    found = holders(snapshot, 0, besides=besides, order=order)
    assert "".join(member.node for member, _ in found) == expected
    assert all(held == HELD[member.node] for member, held in found)
    assert holders(snapshot, 1, besides=besides, order=order) == []
