"""Membership: reports this node's replicas to the coordinator, reads their assignments, and, while this node is the
controller, assigns the shards of all nodes.

Safety does not depend on it (the log keeps law 5); a mistake costs time.
"""

from collections.abc import Callable, Sequence

import structlog

from chronos.core.progress import RULES
from chronos.core.roles import UNREACHABLE, ClusterView, Member, ReplicaReport, Request, Roles, ShardRoles
from chronos.errors import CoordinatorFull, CoordinatorUnavailable
from chronos.ports import Clock, ClusterSnapshot, Coordinator
from chronos.workers.replica_state import NOT_READABLE, Assignment, ReplicaState

log = structlog.get_logger("chronos.cluster")

STEP_MS = 50
"""Longest time between two steps; a change in the cluster ends the wait earlier."""

REPORT_MS = 500
"""How often positions that change all the time are reported; a change of state is reported at once."""

FULL_PAUSE_MS = 1_000
"""Pause after roles or a report that the coordinator cannot store: only requests of an operator will change that."""

PREDECESSOR_MS = 500
"""How long a new master waits for the previous one to finish its step before fencing it."""


def holders(
    snapshot: ClusterSnapshot, shard: int, *, besides: str, order: Sequence[ReplicaState]
) -> list[tuple[Member, ReplicaReport]]:
    """Return the members that can answer for a shard, each with its replica: by state in this order, then the furthest first.

    `besides`: a node to leave out. States that are not in `order` come after those that are.
    """
    found = []
    for member in snapshot.members.values():
        replica = member.replicas.get(shard)
        if member.node == besides or replica is None or replica.role in NOT_READABLE or replica.applied is None:
            continue
        rank = order.index(ReplicaState(replica.role)) if replica.role in order else len(order)
        found.append((rank, -replica.applied, member, replica))
    return [(member, replica) for *_, member, replica in sorted(found, key=lambda each: each[:2])]


class Membership:
    """This node's membership in the cluster: joins, reports, gives each shard its assignment, and controls."""

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        node: str,
        clock: Clock,
        describe: Callable[[], Member],
        plan: Callable[[ClusterView], Roles],
    ) -> None:
        """`describe`: returns the report of this node. `plan`: returns the roles that the controller publishes for a view."""
        self.controls = False
        """True if this node was the controller at the last step."""
        self._coordinator = coordinator
        self._node = node
        self._clock = clock
        self._describe = describe
        self._plan = plan
        self._reported: Member | None = None
        self._reported_ms = 0
        self._assigned_ms: dict[int, tuple[int, int]] = {}
        """By shard: the role epoch assigned last, and when this node first saw it."""
        self._unavailable: CoordinatorUnavailable | None = None
        """Why the coordinator could not be used when it was last tried; None if it could."""
        self._unavailable_ms = 0

    @property
    def full(self) -> str | None:
        """What the coordinator cannot store, so that no role changes; None if it stores all."""
        return str(self._unavailable) if isinstance(self._unavailable, CoordinatorFull) else None

    def join(self) -> None:
        """Register this node. Raises NodeIdTaken, CoordinatorUnavailable."""
        member = self._describe()
        self._coordinator.join(member)
        self._reported = member
        log.info("joined", node=member.node, instance=member.instance)

    def step(self, now_ms: int) -> int:
        """1. Join again after a lost session, 2. report, 3. control; return when to be called again. Raises NodeIdTaken."""
        if self.full is not None and 0 <= now_ms - self._unavailable_ms < FULL_PAUSE_MS:
            return now_ms + STEP_MS
        try:
            snapshot = self._coordinator.look()
            if snapshot.roles is None and not snapshot.confirmed:
                self.controls = False
                self.join()
            self._report(now_ms)
            self.controls = self._coordinator.control(self._plan)
        except CoordinatorUnavailable as error:
            if self._unavailable is None:
                log.warning("coordinator unavailable", why=str(error))
            self._unavailable, self._unavailable_ms = error, now_ms
            self.controls = False
        else:
            if self._unavailable is not None:
                log.info("coordinator available again")
            self._unavailable = None
        return now_ms + STEP_MS

    def _report(self, now_ms: int) -> None:
        member, reported = self._describe(), self._reported
        if member == reported:
            return
        only_positions = reported is not None and _without_positions(member) == _without_positions(reported)
        if only_positions and 0 <= now_ms - self._reported_ms < REPORT_MS:
            return
        self._coordinator.report(member)
        self._reported, self._reported_ms = member, now_ms

    def snapshot(self) -> ClusterSnapshot:
        """Return the cluster as this node knows it now."""
        return self._coordinator.look()

    def ask(self, request: Request) -> None:
        """Submit an operator's request to the controller. Raises CoordinatorUnavailable."""
        self._coordinator.request(request)

    def assignment(self, shard: int) -> Assignment:
        """Return the present assignment of this node's replica; called by the shards' own threads."""
        snapshot = self._coordinator.look()
        if snapshot.roles is None:
            return Assignment(kind="follower", confirmed=False, rules=1)
        rules = min(snapshot.roles.rules, RULES)
        roles = snapshot.roles.shards.get(shard)
        if roles is None:
            return Assignment(kind="follower", confirmed=snapshot.confirmed, rules=rules)
        if roles.master == self._node:
            return Assignment(
                kind="master",
                epoch=roles.epoch,
                confirmed=snapshot.confirmed,
                predecessor_active=self._predecessor_active(snapshot, shard, roles),
                rules=rules,
            )
        is_holder = not roles.replicas or self._node in roles.replicas
        return Assignment(kind="follower" if is_holder else "none", confirmed=snapshot.confirmed, rules=rules)

    def _predecessor_active(self, snapshot: ClusterSnapshot, shard: int, roles: ShardRoles) -> bool:
        """Return whether the previous master still reports that it is master, so that it may finish its step first."""
        now_ms = self._clock.now_ms()
        epoch, since_ms = self._assigned_ms.get(shard, (0, 0))
        if epoch != roles.epoch:
            since_ms = now_ms
            self._assigned_ms[shard] = (roles.epoch, now_ms)
        if roles.previous is None or roles.previous == self._node or not 0 <= now_ms - since_ms < PREDECESSOR_MS:
            return False
        previous = snapshot.members.get(roles.previous)
        if previous is None or previous.log == UNREACHABLE:
            return False  # it cannot finish its step
        replica = previous.replicas.get(shard)
        return replica is not None and replica.role == ReplicaState.MASTER


def _without_positions(member: Member) -> object:
    """Return the parts of a report whose changes are published at once."""
    return (
        member.leaving,
        member.log,
        [
            (
                shard,
                replica.role,
                replica.reason is None,
                replica.applied is None,
                replica.role_epoch,
                replica.judged,
                replica.unhealthy,
            )
            for shard, replica in member.replicas.items()
        ],
    )
