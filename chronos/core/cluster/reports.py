"""The reports of a cluster's members about their replicas, as an index for one plan: which node
leads a shard, how far each replica is, which masters are reported unhealthy, and which role was
written last. It decides nothing."""

from collections.abc import Iterable, Mapping
from operator import attrgetter

from chronos.core.cluster.roles import Member, ReplicaReport, ShardRoles

LAG_MAX = 1_000
"""Progress records by which a replica may lag and still count as caught up: it reads them in well
under a second."""

MASTER = "master"
"""The role that a replica reports while it leads (`workers.replica.state`)."""

NOT_HELD = "none"
"""The role that a replica reports on a node that does not hold the shard."""

NO_REPORT = ReplicaReport()
"""The report of a node that reports nothing about a shard."""

last_seen = attrgetter("role_epoch", "role_node", "role_instance")
"""Return the greatest role epoch that a replica has seen, and its writer."""


class Reports:
    """The reports of all members, as they are at the time of one plan."""

    def __init__(self, members: Mapping[str, Member]) -> None:
        self._members = members
        self.furthest: dict[int, int] = {}
        """Shard -> the greatest progress that a member reports."""
        self.seen: dict[int, set[tuple[int, str, str]]] = {}
        """Shard -> the greatest role epochs that members have seen in its progress log, each with
        its node and the id of that node's data directory."""
        self.suspected: set[int] = set()
        """Shards whose master a member finds unhealthy."""
        # Half of the time of a plan. Member by member, as they lie in memory: shard by shard it
        # takes more than twice as long (measured with 1,000 shards on 50 nodes).
        furthest, seen = self.furthest, self.seen
        for member in members.values():
            for shard, replica in member.replicas.items():
                applied, last = replica.applied, last_seen(replica)
                if applied is not None and applied > furthest.get(shard, -1):
                    furthest[shard] = applied
                if shard not in seen:
                    seen[shard] = {last}
                elif last not in seen[shard]:
                    seen[shard].add(last)
                if replica.unhealthy:
                    self.suspected.add(shard)

    def replica(self, shard: int, node: str | None) -> ReplicaReport:
        """Return the node's report of its replica; an empty one if there is none."""
        member = self._members.get(node or "")
        return NO_REPORT if member is None else member.replicas.get(shard, NO_REPORT)

    def latest_epoch(self, shard: int) -> int:
        """Return the greatest role epoch in the shard's progress log; 0 if there is none."""
        return max((epoch for epoch, _, _ in self.seen.get(shard, ())), default=0)

    def is_led(self, shard: int, given: ShardRoles) -> bool:
        """Return whether the master reports that it leads under the current role."""
        replica = self.replica(shard, given.master)
        return replica.role == MASTER and (replica.role_epoch, replica.role_node) == (
            given.epoch,
            given.master,
        )

    def is_stale(self, shard: int, master: str, epoch: int) -> bool:
        """Return whether the progress log contains a later role than this one of a member."""
        # A master whose data directory is not the one that wrote under its epoch is another node
        # with the same id: it lost its disk and came back before its session ended.
        instance = self._members[master].instance
        return any(
            seen > epoch or by not in ("", master) or in_instance not in ("", instance)
            for seen, by, in_instance in self.seen.get(shard, ())
            if seen >= epoch
        )

    def leader(self, shard: int, nodes: Iterable[str]) -> str | None:
        """Return which of the nodes leads a shard of which the roles know nothing, by its report;
        None if another one wrote later."""
        epoch = self.latest_epoch(shard)
        for node in nodes:
            replica = self.replica(shard, node)
            leads = (
                replica.role == MASTER
                and replica.role_epoch == epoch > 0
                and replica.applied is not None
            )
            if leads and self._members[node].eligible and not self.is_stale(shard, node, epoch):
                return node
        return None
