"""The time of one plan of the controller, for settled clusters: no broker needed."""

import statistics
import time

from msgspec.structs import replace

from chronos.core.cluster.assignment import plan
from chronos.core.cluster.roles import ClusterView, Member, ReplicaReport, Roles
from tests.bench.figures import Bench

NOW_MS = 1_800_000_000_000
PLANS = 9
"""Plans that are timed; the median counts."""

SETTLING_PLANS = 20
"""Plans, 10 s apart, after which nothing moves any more: one move is made every 5 s."""

CLUSTERS = ((100, 20, None, 2.0), (100, 20, 3, 2.0), (1_000, 50, None, 40.0), (1_000, 50, 3, 40.0))
"""Shards, nodes, `coordinator.replication`, and the most ms that a plan may take."""


def settled(shards: int, nodes: int, replication: int | None) -> ClusterView:
    """The view of a cluster in which every shard has a master and all replicas are at its
    position."""
    names = [f"n{node:02}" for node in range(nodes)]
    view = ClusterView(
        now_ms=NOW_MS,
        controller=names[0],
        controller_epoch=1,
        shards=shards,
        replication=replication,
        members={name: _member(name, Roles(), shards) for name in names},
        since_ms=dict.fromkeys(names, 0),
        roles=Roles(),
    )
    for _ in range(SETTLING_PLANS):
        roles = plan(view)
        view = replace(
            view,
            roles=roles,
            members={name: _member(name, roles, shards) for name in names},
            now_ms=view.now_ms + 10_000,
            in_sync_from=dict.fromkeys(range(shards), 900),
        )
    assert plan(view).shards == view.roles.shards, "the cluster has not settled"
    return view


def _member(node: str, roles: Roles, shards: int) -> Member:
    replicas = {}
    for shard in range(shards):
        given = roles.shards.get(shard)
        if given is None or node in given.replicas:
            replicas[shard] = ReplicaReport(
                applied=1_000,
                role="follower" if given is None or given.master != node else "master",
                role_epoch=0 if given is None else given.epoch,
                role_node="" if given is None else given.master or "",
                role_instance="" if given is None else f"i-{given.master}",
            )
        else:
            replicas[shard] = ReplicaReport(role="none")
    return Member(
        node=node,
        instance=f"i-{node}",
        address=f"http://{node}:7700",
        version="1",
        started_ms=0,
        replicas=replicas,
    )


def figure_plan(bench: Bench) -> None:
    """The processor time of one plan."""
    for shards, nodes, replication, most_ms in CLUSTERS:
        view = settled(shards, nodes, replication)
        spent_ms = []
        for _ in range(PLANS):
            began_s = time.process_time()
            plan(view)
            spent_ms.append((time.process_time() - began_s) * 1_000)
        took_ms = statistics.median(spent_ms)
        replicas = "" if replication is None else f", {replication} replicas each"
        bench.add(
            f"a plan for {shards:,} shards on {nodes} nodes{replicas}",
            f"{took_ms:.1f} ms",
            f"<= {most_ms:g} ms",
            took_ms <= most_ms,
            spent_ms=spent_ms,
        )
