"""A cluster around the server of one node inside the test process: its server sees the other nodes
through a simulated coordinator, and the node itself works on alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import NamedTuple

from msgspec.structs import force_setattr, replace

from chronos.admin.cluster.peers import PeerClient
from chronos.core.cluster.roles import Member, ReplicaReport, Roles, ShardRoles
from chronos.workers.cluster.membership import Membership
from chronos.workers.replica.leadership import Assignment
from chronos.workers.replica.state import ReplicaState
from tests.harness.inside import Inside
from tests.harness.plans import plan_for
from tests.harness.waiting import wait_until
from tests.sim.coordinator import Ensemble, SimCoordinator
from tests.sim.world import World


class Cluster(NamedTuple):
    """The part of a node that has its membership."""

    membership: Membership
    in_sync: None = None

    def verdict(self, _: int) -> None:
        """The node observes no master."""


def holder(node: str, address: str, *, shard: int = 0, applied: int = 1) -> Member:
    """A follower of one shard; one that has applied more is asked earlier."""
    replica = ReplicaReport(role=ReplicaState.FOLLOWER, applied=applied)
    return Member(
        node=node,
        instance=f"i-{node}",
        address=address,
        version="1.0",
        started_ms=0,
        replicas={shard: replica},
    )


def join(service: Inside, *others: Member) -> None:
    """Have the server of `service` see a cluster of itself and these."""
    world, shards = World(0), len(service.node.shards)
    ensemble = Ensemble(world, shards=shards, replication=None, session_ms=5_000)
    own = service.node.describe()
    members: Mapping[str, Member] = {each.node: each for each in (own, *others)}
    clients = {name: SimCoordinator(ensemble, name, lambda _: None) for name in members}
    for name, client in clients.items():
        client.join(members[name])
    roles = {shard: ShardRoles(replicas=tuple(members)) for shard in range(shards)}
    ensemble.publish(Roles(shards=roles), 0)
    mine = clients[own.node]
    while len(mine.look().members) < len(members) or mine.look().roles is None:
        world.pass_time(20)
    node = copy(service.node)
    membership = Membership(
        mine,
        node=own.node,
        clock=node.clock,
        describe=service.node.describe,
        plan=plan_for(shards),
    )
    node._parts = replace(service.node._built, cluster=Cluster(membership))
    context = service.server._context
    assert context is not None
    context.node, context.peers = node, PeerClient(node)


def leave(service: Inside) -> None:
    """Take all shards from the node, as the controller does, and wait until it has let go of
    them."""
    assign(service, lambda: Assignment(kind="none"))
    shards = service.node.shards
    wait_until(lambda: all(shard.role == ReplicaState.NONE for shard in shards))


def assign(service: Inside, assigned: Callable[[], Assignment]) -> None:
    """Have the shards of the node take their assignment from this function."""
    for shard in service.node.shards:
        shard._assigned = assigned
        force_setattr(shard.replica._parts.context, "assigned", assigned)
        shard.step_soon()
