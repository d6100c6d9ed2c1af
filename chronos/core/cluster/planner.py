"""The planner of the controller: computes the plan at once when the view of the cluster has
changed, and only after REPLAN_MS when nothing but the time and the reports on replicas has, because
a plan takes time. The plan itself is `core.cluster.assignment`."""

from msgspec.structs import replace

from chronos.core.cluster.assignment import plan
from chronos.core.cluster.roles import ClusterView, Roles

REPLAN_MS = 250
"""Time after which a view is planned again that has not changed, or only in the reports of its
members: its deadlines are seconds away or more, and a plan for 1,000 shards on 50 nodes takes some
30 ms."""


class RolePlanner:
    """Plans again at once when the view has changed, and only after REPLAN_MS when nothing but the
    time and the reports on replicas has: reports change all the time, because they
    include progress."""

    def __init__(self) -> None:
        self._last: tuple[ClusterView, Roles] | None = None

    def plan(self, view: ClusterView) -> Roles:
        """Return the roles to publish now."""
        if self._last is not None:
            before, roles = self._last
            if 0 <= view.now_ms - before.now_ms < REPLAN_MS and _same_but_reports(before, view):
                return roles
        roles = plan(view)
        self._last = view, roles
        return roles


def _same_but_reports(before: ClusterView, view: ClusterView) -> bool:
    same = replace(
        view, now_ms=before.now_ms, members=before.members, in_sync_from=before.in_sync_from
    )
    return (
        same == before
        and view.members.keys() == before.members.keys()
        and all(
            replace(member, replicas=before.members[node].replicas) == before.members[node]
            for node, member in view.members.items()
        )
    )
