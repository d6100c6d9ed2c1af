"""The wait of a request for a node that this node does not see yet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import NamedTuple

from chronos.admin.cluster import wait_for_member
from chronos.admin.context import silence
from chronos.admin.waiting import poll
from chronos.core.codec import State
from chronos.core.roles import ClusterView, Member, Roles
from chronos.errors import CoordinatorFull
from chronos.ports import ClusterSnapshot
from chronos.workers.claim import FOREIGN_SILENCE_MS
from chronos.workers.membership import Membership
from tests.harness.inside import Inside
from tests.sim.coordinator import Ensemble, SimCoordinator
from tests.sim.world import World


class Cluster(NamedTuple):
    """The part of a node that has its membership."""

    membership: Membership
    in_sync: None = None


def member(node: str) -> Member:
    """A node without replicas."""
    return Member(node=node, instance=f"i-{node}", address=f"http://{node}", version="0", started_ms=0)


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


def test_a_node_says_that_roles_do_not_change_and_is_ready(tmp_path: Path) -> None:
    """In the details of `/readyz`: the coordinator cannot store the roles, or does not answer. The node works."""
    with Inside(tmp_path, node__id="n1", shards=1) as service:
        world = World(0)
        coordinator = SimCoordinator(
            Ensemble(world, shards=1, replication=None, session_ms=5_000), "n1", lambda _: None
        )
        coordinator.join(member("n1"))
        context = copy(service.server._context)
        assert context is not None
        node = copy(service.node)
        context.node = node

        def refused(_: ClusterView) -> Roles:
            raise CoordinatorFull("the roles are too large")

        node._cluster = Cluster(  # type: ignore[assignment]
            membership := Membership(
                coordinator, node="n1", clock=node.clock, describe=lambda: member("n1"), plan=refused
            )
        )
        while not coordinator.look().confirmed:
            world.pass_time(20)
        assert (context.reasons(), context.details()) == ([], [])
        membership.step(node.clock.now_ms())
        assert (context.reasons(), context.details()) == ([], ["roles do not change: the roles are too large"])
        coordinator.cut_ms = world.now_ms + 60_000
        coordinator.tick()
        assert context.reasons() == []
        assert context.details() == ["the coordinator does not answer this node: its roles do not change"]


def test_a_shard_whose_master_has_been_silent_is_named_by_the_time_of_its_last_record() -> None:
    """A master commits a record every minute, so it may be down after one and a half."""
    state = State(node="n2", progress_ms=1_000_000)
    assert silence(3, state, 1_000_000 + FOREIGN_SILENCE_MS - 1) is None
    assert silence(3, State(), 1_000_000) is None
    assert silence(3, state, 1_000_000 + FOREIGN_SILENCE_MS) == (
        "shard 3: this node has read no progress of the master, n2, since 1970-01-01T00:16:40.000Z; this node cannot take over"
        " before the coordinator answers"
    )
