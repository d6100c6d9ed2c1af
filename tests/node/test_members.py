"""Nodes of a cluster as a node's HTTP interface sees them: the wait for a new node, and the nodes that hold a shard."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from chronos.admin.cluster import wait_for_member
from chronos.admin.waiting import poll
from chronos.core.roles import Member, ReplicaReport, Roles
from chronos.ports import ClusterSnapshot
from chronos.workers.membership import Membership
from tests.harness.clock import HandClock
from tests.sim.coordinator import Ensemble, SimCoordinator
from tests.sim.world import World


def member(node: str, role: str | None = None, applied: int | None = None) -> Member:
    """A node whose replica of shard 0 has the role and has applied so many progress records; without a role no replica."""
    replicas = {} if role is None else {0: ReplicaReport(role=role, applied=applied)}
    return Member(
        node=node, instance=f"i-{node}", address=f"http://{node}", version="0", started_ms=0, replicas=replicas
    )


def snapshots(*nodes: tuple[str, ...]) -> Iterator[ClusterSnapshot]:
    """One snapshot for each tuple of node names, then the last one for ever."""
    for names in nodes:
        yield ClusterSnapshot(roles=Roles(), members={name: member(name) for name in names}, confirmed=True)
    while True:
        yield ClusterSnapshot(roles=Roles(), members={name: member(name) for name in nodes[-1]}, confirmed=True)


def wait(sequence: Iterator[ClusterSnapshot], node: str, *, timeout_s: float, stopped: bool = False) -> Member | None:
    """`wait_for_member` over a sequence of snapshots."""

    async def run() -> Member | None:
        stopping = asyncio.Event()
        if stopped:
            stopping.set()
        return await wait_for_member(lambda: next(sequence), node, stopping, timeout_s=timeout_s)

    return asyncio.run(run())


def test_a_node_that_appears_in_a_later_snapshot_is_found():
    """A request for a node that has just joined is not answered with 404."""
    found = wait(snapshots(("n1", "n2"), ("n1", "n2"), ("n1", "n2", "n3")), "n3", timeout_s=30)
    assert found is not None
    assert found.node == "n3"


def test_a_node_that_is_there_is_found_without_waiting():
    """The first snapshot is enough, also without any time to wait."""
    found = wait(snapshots(("n1", "n2")), "n2", timeout_s=0)
    assert found is not None
    assert found.node == "n2"


def test_a_node_that_does_not_appear_is_not_waited_for_longer_than_the_time():
    """The answer is then 404."""
    assert wait(snapshots(("n1", "n2")), "n3", timeout_s=0.05) is None


def test_a_stop_of_the_server_ends_the_wait():
    """The time of the wait does not delay the stop."""
    assert wait(snapshots(("n1",), ("n1", "n3")), "n3", timeout_s=30, stopped=True) is None


def test_a_node_that_joins_is_found_through_a_client_of_the_coordinator():
    """A client of the coordinator sees a session of another node only after its notification."""
    world = World(1)
    ensemble = Ensemble(world, shards=1, replication=None, session_ms=6_000)
    first, third = (SimCoordinator(ensemble, node, lambda _: None) for node in ("n1", "n3"))
    first.join(member("n1"))
    third.join(member("n3"))
    assert "n3" not in first.look().members
    looks = 0

    def look() -> Member | None:
        nonlocal looks
        looks += 1
        world.pass_time(20)
        return first.look().members.get("n3")

    async def run() -> Member | None:
        return await poll(look, 30, asyncio.Event(), every_s=0)

    found = asyncio.run(run())
    assert found is not None
    assert found.node == "n3"
    assert looks <= 4


def test_the_holders_of_a_shard_are_the_other_nodes_with_data_in_the_preferred_order():
    """By role, then the furthest first; nodes without data and the node itself are left out."""
    world = World(1)
    ensemble = Ensemble(world, shards=1, replication=None, session_ms=6_000)
    nodes = [
        member("n1", "follower", 99),
        member("behind", "follower", 5),
        member("ahead", "follower", 9),
        member("master", "master", 9),
        member("changing", "recovering", 7),
        member("empty", "none", 0),
        member("failed", "failed", 9),
        member("unknown", "starting", None),
        member("without"),
    ]
    for each in nodes:
        SimCoordinator(ensemble, each.node, lambda _: None).join(each)
    coordinator = ensemble.clients[0]
    coordinator.refresh()
    membership = Membership(
        coordinator, node="n1", clock=HandClock(), describe=lambda: nodes[0], plan=lambda view: view.roles
    )

    def holders(*preferred: str) -> list[str]:
        return [found.node for found, _ in membership.holders(0, preferred)]

    assert holders("master", "follower") == ["master", "ahead", "behind", "changing"]
    assert holders("follower", "master") == ["ahead", "behind", "master", "changing"]
