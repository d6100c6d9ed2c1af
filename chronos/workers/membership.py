"""The member: this node's place in the cluster. Reports what its replicas are, hears which of them are to be master,
and, while it is the controller, plans for all.

Safety never rests here (law 5 rests on the log); a mistake costs time.
"""

from collections.abc import Callable, Sequence

import structlog

from chronos.core.roles import UNREACHABLE, ClusterView, Member, ReplicaReport, Request, Roles, ShardRoles
from chronos.errors import CoordinatorUnavailable
from chronos.ports import Clock, ClusterSnapshot, Coordinator
from chronos.workers.replica import Assignment

log = structlog.get_logger("chronos.cluster")

STEP_MS = 50
"""Longest time between two looks at the cluster; a change wakes earlier."""

REPORT_MS = 500
"""How often positions that move all the time are reported; a role that changes is reported at once."""

AWAIT_MS = 500
"""How long a new master waits for the one before it to finish its step; then it fences it."""

HOLDS_NOTHING = ("none", "failed", "stopped")
"""Roles of replicas that hold nothing, or cannot be asked for what they hold."""


class Membership:
    """Joins, reports, listens and plans."""

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        node: str,
        clock: Clock,
        describe: Callable[[], Member],
        plan: Callable[[ClusterView], Roles],
    ) -> None:
        self.controls = False
        """Whether this node was the controller at the last step."""
        self._coordinator = coordinator
        self._node = node
        self._clock = clock
        self._describe = describe
        self._plan = plan
        self._reported: Member | None = None
        self._reported_ms = 0
        self._given_ms: dict[int, tuple[int, int]] = {}
        self._unavailable: str | None = None

    def join(self) -> None:
        """Take this node's place. Raises NodeIdTaken, CoordinatorUnavailable."""
        member = self._describe()
        self._coordinator.join(member)
        self._reported = member
        log.info("joined", node=member.node, instance=member.instance)

    def step(self, now_ms: int) -> int:
        """One turn; when to be called again. Raises NodeIdTaken."""
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
            self._unavailable = str(error)
            self.controls = False
        else:
            if self._unavailable is not None:
                log.info("coordinator available again")
            self._unavailable = None
        return now_ms + STEP_MS

    def _report(self, now_ms: int) -> None:
        member, before = self._describe(), self._reported
        if member == before:
            return
        moved_only = before is not None and _without_positions(member) == _without_positions(before)
        if moved_only and 0 <= now_ms - self._reported_ms < REPORT_MS:
            return
        self._coordinator.report(member)
        self._reported, self._reported_ms = member, now_ms

    def snapshot(self) -> ClusterSnapshot:
        """What is known of the cluster now."""
        return self._coordinator.look()

    def ask(self, request: Request) -> None:
        """Leave an operator's request to the controller. Raises CoordinatorUnavailable."""
        self._coordinator.request(request)

    def role(self, shard: int) -> Assignment:
        """What this node's replica of the shard is to be now; called by the shards' own threads."""
        snapshot = self._coordinator.look()
        if snapshot.roles is None:
            return Assignment(kind="follower", confirmed=False)
        given = snapshot.roles.shards.get(shard)
        if given is None:
            return Assignment(kind="follower", confirmed=snapshot.confirmed)
        if given.master == self._node:
            return Assignment(
                kind="master",
                epoch=given.epoch,
                confirmed=snapshot.confirmed,
                predecessor_active=self._predecessor_active(snapshot, shard, given),
            )
        held = not given.replicas or self._node in given.replicas
        return Assignment(kind="follower" if held else "none", confirmed=snapshot.confirmed)

    def holders(self, shard: int, preferred: Sequence[str]) -> list[tuple[Member, ReplicaReport]]:
        """The other nodes that hold the shard, each with its replica.

        In the order of the preferred roles, then those with any other role; the furthest first among equals.
        """
        found = [
            (member, replica)
            for member in self.snapshot().members.values()
            if member.node != self._node
            and (replica := member.replicas.get(shard)) is not None
            and replica.role not in HOLDS_NOTHING
            and replica.applied is not None
        ]
        rank = {role: at for at, role in enumerate(preferred)}
        return sorted(found, key=lambda each: (rank.get(each[1].role, len(rank)), -(each[1].applied or 0)))

    def _predecessor_active(self, snapshot: ClusterSnapshot, shard: int, given: ShardRoles) -> bool:
        """Whether the master before this one is there and still says it is master: it finishes its step first."""
        now_ms = self._clock.now_ms()
        epoch, since_ms = self._given_ms.get(shard, (0, 0))
        if epoch != given.epoch:
            since_ms = now_ms
            self._given_ms[shard] = (given.epoch, now_ms)
        if given.previous is None or given.previous == self._node or not 0 <= now_ms - since_ms < AWAIT_MS:
            return False
        before = snapshot.members.get(given.previous)
        if before is None or before.log == UNREACHABLE:
            return False  # It cannot finish anything.
        replica = before.replicas.get(shard)
        return replica is not None and replica.role == "master"


def _without_positions(member: Member) -> object:
    """What should be known at once when it changes."""
    return (
        member.leaving,
        member.log,
        [
            (shard, replica.role, replica.reason is None, replica.applied is None, replica.role_epoch)
            for shard, replica in member.replicas.items()
        ],
    )
