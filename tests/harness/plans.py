"""Plans of a controller for tests of coordinators."""

from __future__ import annotations

from collections.abc import Callable

from chronos.core.cluster.assignment import plan
from chronos.core.cluster.roles import ClusterState, ClusterView, Roles


def plan_for(shards: int) -> Callable[[ClusterState], Roles]:
    """The plan of a controller of so many shards, each held by all nodes."""
    return lambda state: plan(ClusterView.of(state, shards=shards, replication=None))
