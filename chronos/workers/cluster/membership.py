"""The membership of a node in its cluster: reports this node's replicas to the coordinator, reads
their assignments, and, on the controller, publishes the planned roles.

It decides nothing about a shard: the plan is `core.cluster.assignment`, and a replica acts on its
assignment (`workers.replica.replica`). Safety does not depend on it: the log keeps law 5, and a
mistake costs time."""

from collections.abc import Callable, Sequence

import structlog

from chronos.core.cluster.roles import (
    UNREACHABLE,
    ClusterState,
    Member,
    ReplicaReport,
    Request,
    Roles,
    ShardRoles,
)
from chronos.core.shard.codec import check_rules
from chronos.errors import CoordinatorFull, CoordinatorUnavailable, LogMismatch
from chronos.ports import Clock, ClusterSnapshot, Coordinator
from chronos.workers.replica.leadership import Assignment
from chronos.workers.replica.state import NOT_READABLE, ReplicaState

log = structlog.get_logger("chronos.cluster")

STEP_MS = 50
"""Longest time between two steps; a change in the cluster ends the wait earlier."""

REPORT_MS = 500
"""How often positions that change all the time are reported; a change of state is reported at
once."""

DESCRIBE_MS = 200
"""How often this node compares the state of all its shards with its last report, even if no change
was signalled."""

FULL_PAUSE_MS = 1_000
"""Pause after roles or a report that the coordinator cannot store: only requests of an operator
will change that."""

PREDECESSOR_MS = 500
"""How long a new master waits for the previous one to finish its step before fencing it."""


def holders(
    snapshot: ClusterSnapshot, shard: int, *, besides: str, order: Sequence[ReplicaState]
) -> list[tuple[Member, ReplicaReport]]:
    """Return the members that can answer for a shard, each with its replica: in the order of their
    states, then the furthest first.

    `besides`: a node to leave out. `order`: of the states; other states come after these.
    """
    ranked = []
    for member in snapshot.members.values():
        replica = member.replicas.get(shard)
        if (
            member.node == besides
            or replica is None
            or replica.role in NOT_READABLE
            or replica.applied is None
        ):
            continue
        rank = order.index(ReplicaState(replica.role)) if replica.role in order else len(order)
        ranked.append((rank, -replica.applied, member, replica))
    return [(member, replica) for *_, member, replica in sorted(ranked, key=lambda row: row[:2])]


class Membership:
    """This node's membership in the cluster: joins, reports, gives each shard its assignment, and
    controls."""

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        node: str,
        clock: Clock,
        describe: Callable[[], Member],
        plan: Callable[[ClusterState], Roles],
        changed: Callable[[], bool] = lambda: True,
    ) -> None:
        """`describe`: returns the report of this node. `plan`: returns the roles that the
        controller publishes in a state. `changed`: returns whether `describe` is called now;
        otherwise it is called once DESCRIBE_MS have passed, because it reads the state of every
        shard."""
        self.controls = False
        """True if this node was the controller at the last step."""
        self._coordinator = coordinator
        self._node = node
        self._clock = clock
        self._describe = describe
        self._described_ms = 0
        self._changed = changed
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
        """The error of a coordinator that cannot store roles or a report because of their size, so
        that no role changes; None if it stores them."""
        return str(self._unavailable) if isinstance(self._unavailable, CoordinatorFull) else None

    def join(self) -> None:
        """Register this node. Raises NodeIdTaken, CoordinatorUnavailable."""
        member = self._describe()
        self._coordinator.join(member)
        self._reported = member
        log.info("joined", node=member.node, instance=member.instance)

    def step(self, now_ms: int) -> int:
        """1. Join again after a lost session, 2. report, 3. control; return when to be called
        again. Raises NodeIdTaken, LogMismatch."""
        if self.full is not None and 0 <= now_ms - self._unavailable_ms < FULL_PAUSE_MS:
            return now_ms + STEP_MS
        try:
            snapshot = self._coordinator.look()
            if snapshot.roles is not None:
                _check(snapshot.roles)
            if snapshot.roles is None and not snapshot.confirmed:
                self.controls = False
                self.join()
            self._report(now_ms)
            self.controls = self._coordinator.control(self._checked_plan)
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

    def _checked_plan(self, state: ClusterState) -> Roles:
        """Return the roles to be published. Raises LogMismatch instead of publishing over those of
        a newer version."""
        _check(state.roles)
        return self._plan(state)

    def _report(self, now_ms: int) -> None:
        # While the coordinator cannot be used, only a report that went through shows that it can be
        # again.
        lost = self._unavailable is not None
        if not (lost or self._changed()) and 0 <= now_ms - self._described_ms < DESCRIBE_MS:
            return
        self._described_ms = now_ms
        member, reported = self._describe(), self._reported
        if member == reported and not lost:
            return
        only_positions = reported is not None and _without_positions(member) == _without_positions(
            reported
        )
        if only_positions and not lost and 0 <= now_ms - self._reported_ms < REPORT_MS:
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
        """Return the current assignment of this node's replica; called by the shards' own
        threads."""
        snapshot = self._coordinator.look()
        if snapshot.roles is None:
            return Assignment(kind="follower", epoch=0, confirmed=False)
        roles = snapshot.roles.shards.get(shard)
        if roles is None:
            return Assignment(kind="follower", epoch=0, confirmed=snapshot.confirmed)
        if roles.master == self._node:
            return Assignment(
                kind="master",
                epoch=roles.epoch,
                confirmed=snapshot.confirmed,
                predecessor_active=self._predecessor_active(snapshot, shard, roles),
            )
        is_holder = not roles.replicas or self._node in roles.replicas
        return Assignment(
            kind="follower" if is_holder else "none",
            epoch=roles.epoch,
            confirmed=snapshot.confirmed,
        )

    def _predecessor_active(self, snapshot: ClusterSnapshot, shard: int, roles: ShardRoles) -> bool:
        """Return whether the previous master still reports that it is master, so that it may finish
        its step first."""
        now_ms = self._clock.now_ms()
        epoch, since_ms = self._assigned_ms.get(shard, (0, 0))
        if epoch != roles.epoch:
            since_ms = now_ms
            self._assigned_ms[shard] = (roles.epoch, now_ms)
        if (
            roles.previous is None
            or roles.previous == self._node
            or not 0 <= now_ms - since_ms < PREDECESSOR_MS
        ):
            return False
        previous = snapshot.members.get(roles.previous)
        if previous is None or previous.log == UNREACHABLE:
            return False  # it cannot finish its step
        replica = previous.replicas.get(shard)
        return replica is not None and replica.role == ReplicaState.MASTER


def _check(roles: Roles) -> None:
    """Raise LogMismatch if the roles allow rules that this version does not know."""
    check_rules(roles.rules, "the record of the roles", LogMismatch)


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
