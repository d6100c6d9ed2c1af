"""Membership: reports this node's replicas to the coordinator, reads their assignments, and, on the
controller, plans roles. And the followers in sync, as this node sees them.

What `core.cluster.replication` decides from the reports of all members. Every node knows it,
because each accepts messages for all shards. Reports that the coordinator has not confirmed for
`max_lag` count for nothing: no failover is possible then, whatever they say.

After an outage of the brokers one node reaches them before the others, and reports from before may
still say that all is well: a member is steady once every report of one timeout said that the log
answers it. Roles that are lost, or older than the progress logs, are not decided anew before the
members could report which of them leads.

Safety does not depend on it (the log keeps law 5); a mistake costs time.
"""

from collections.abc import Callable, Mapping, Sequence

import structlog
from msgspec.structs import replace

from chronos.core.cluster.replication import (
    ProgressWindows,
    ReplicationRules,
    followers_in_sync,
    machines_in_sync,
    too_few,
)
from chronos.core.cluster.roles import (
    OK,
    UNREACHABLE,
    ClusterState,
    ClusterView,
    Member,
    ReplicaReport,
    Request,
    Roles,
    ShardRoles,
)
from chronos.core.shard.codec import check_rules
from chronos.errors import CoordinatorFull, CoordinatorUnavailable, LogMismatch
from chronos.ports import Clock, ClusterSnapshot, Coordinator, steady_ms
from chronos.workers.replica.state import NOT_READABLE, Assignment, ReplicaState

log = structlog.get_logger("chronos.cluster")

OBSERVE_MS = 200
"""Time between two looks at the reports, which come at least every 500 ms."""


class InSyncWatch:
    """One thread calls `step`; any thread may call the rest."""

    def __init__(
        self,
        rules: ReplicationRules,
        *,
        node: str,
        clock: Clock,
        snapshot: Callable[[], ClusterSnapshot],
    ) -> None:
        self.rules = rules
        self._node = node
        self._clock = clock
        self._snapshot = snapshot
        self._windows = ProgressWindows(rules.max_lag_ms)
        self._observed_ms: int | None = None
        self._confirmed_ms: int | None = None
        """When the coordinator last confirmed what the members report; None before the first
        time."""
        self._short: frozenset[int] = frozenset()
        """Shards of this node that had too few followers in sync at the last look: only changes are
        logged."""

    @property
    def needed(self) -> Mapping[int, int]:
        """Shard -> progress that a replica in sync has at the least."""
        return self._windows.needed

    def step(self) -> None:
        """Look at what the members report, at most every OBSERVE_MS."""
        now_ms = steady_ms(self._clock)
        if self._observed_ms is not None and now_ms - self._observed_ms < OBSERVE_MS:
            return
        self._observed_ms = now_ms
        snapshot = self._snapshot()
        self._windows.observe(snapshot.members, snapshot.roles, now_ms)
        if snapshot.confirmed:
            self._confirmed_ms = now_ms
        if self.rules.needed:
            self._log_changes(snapshot)

    def _log_changes(self, snapshot: ClusterSnapshot) -> None:
        own = (
            []
            if snapshot.roles is None
            else [n for n, given in snapshot.roles.shards.items() if given.master == self._node]
        )
        short = frozenset(shard for shard in own if self.shortage(shard) is not None)
        for shard in sorted(short - self._short):
            log.warning(
                "too few followers in sync",
                shard=shard,
                in_sync=self.counted(shard),
                needed=self.rules.needed,
            )
        for shard in sorted((self._short - short).intersection(own)):
            log.info(
                "enough followers in sync",
                shard=shard,
                in_sync=self.counted(shard),
                needed=self.rules.needed,
            )
        self._short = short

    def followers(self, shard: int) -> tuple[str, ...]:
        """Return the nodes with a follower in sync, by name; none of them is known without roles or
        a coordinator that answers."""
        return self._look(shard)[0]

    def counted(self, shard: int) -> int:
        """Return how many of them count: one for each machine but the master's."""
        return machines_in_sync(*self._look(shard))

    def _look(self, shard: int) -> tuple[tuple[str, ...], str | None, Mapping[str, Member]]:
        """Return the followers in sync, the master, and the members."""
        snapshot = self._snapshot()
        if snapshot.roles is None or not self._is_current():
            return (), None, {}
        given = snapshot.roles.shards.get(shard)
        master = None if given is None else given.master
        found = followers_in_sync(
            snapshot.members, shard, master=master, needed=self.needed.get(shard)
        )
        return found, master, snapshot.members

    def shortage(self, shard: int) -> str | None:
        """Return that the shard has too few followers in sync, for people; None if it has enough or
        needs none."""
        needed, missing = self.rules.needed, self.missing(shard)
        if not missing:
            return None
        why = ""
        if not self._is_current():
            why = "; the coordinator does not answer"
        elif len(self.followers(shard)) > needed - missing:
            why = "; of those on one machine one counts, and of the master's none"
        return too_few(needed, missing, why)

    def missing(self, shard: int) -> int:
        """Return how many followers in sync the shard has too few; 0 if it needs none."""
        needed = self.rules.needed
        return max(0, needed - self.counted(shard)) if needed else 0

    def _is_current(self) -> bool:
        confirmed_ms = self._confirmed_ms
        return (
            confirmed_ms is not None
            and steady_ms(self._clock) - confirmed_ms < self.rules.max_lag_ms
        )


class Steadiness:
    """One node's memory of the reports of all members. One thread calls `step` and `completed`."""

    def __init__(self, *, timeout_ms: int, clock: Clock) -> None:
        """`timeout_ms`: time without an answer of the log after which a master is replaced."""
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._since_ms: dict[tuple[str, int], int] = {}
        """Process of a member -> since when every report of it said that the log answers it."""
        self._stepped_ms = 0
        self._known: tuple[int, bool] | None = None
        """The epoch of the controller at its last plan, and whether there were roles."""
        self._known_ms = 0
        """Since when, without a pause."""
        self._planned_ms = 0

    def step(self, snapshot: ClusterSnapshot) -> None:
        """Note what the members report; all are counted from here if the reports may be from before
        a pause."""
        now_ms = steady_ms(self._clock)
        if not snapshot.confirmed or now_ms - self._stepped_ms > self._timeout_ms // 2:
            self._since_ms = {}
        self._stepped_ms = now_ms
        answered = [
            (node, each.started_ms) for node, each in snapshot.members.items() if each.log == OK
        ]
        self._since_ms = {process: self._since_ms.get(process, now_ms) for process in answered}

    def completed(self, view: ClusterView) -> ClusterView:
        """Return the view of the controller with the members that are not steady, and whether lost
        or older roles wait for reports."""
        now_ms = steady_ms(self._clock)
        known = view.controller_epoch, view.roles.are_empty
        if known != self._known or now_ms - self._planned_ms > self._timeout_ms:
            self._known, self._known_ms = known, now_ms
        self._planned_ms = now_ms
        unsteady = frozenset(
            node
            for node, member in view.members.items()
            if now_ms - self._since_ms.get((node, member.started_ms), now_ms) < self._timeout_ms
        )
        awaits_reports = now_ms - self._known_ms < self._timeout_ms
        return replace(view, unsteady=unsteady, awaits_reports=awaits_reports)


STEP_MS = 50
"""Longest time between two steps; a change in the cluster ends the wait earlier."""

REPORT_MS = 500
"""How often positions that change all the time are reported; a change of state is reported at
once."""

DESCRIBE_MS = 200
"""How often this node looks at all its shards for changes of which none has told."""

FULL_PAUSE_MS = 1_000
"""Pause after roles or a report that the coordinator cannot store: only requests of an operator
will change that."""

PREDECESSOR_MS = 500
"""How long a new master waits for the previous one to finish its step before fencing it."""


def holders(
    snapshot: ClusterSnapshot, shard: int, *, besides: str, order: Sequence[ReplicaState]
) -> list[tuple[Member, ReplicaReport]]:
    """Return the members that can answer for a shard, each with its replica: by state in this
    order, then the furthest first.

    `besides`: a node to leave out. States that are not in `order` come after those that are.
    """
    found = []
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
        found.append((rank, -replica.applied, member, replica))
    return [(member, replica) for *_, member, replica in sorted(found, key=lambda each: each[:2])]


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
        controller publishes in a state. `changed`: whether `describe` is called now; else it is
        called once DESCRIBE_MS have passed, because it looks at every shard."""
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
        """What the coordinator cannot store, so that no role changes; None if it stores all."""
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
                check_rules(snapshot.roles.rules, "the record of the roles", LogMismatch)
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
        check_rules(state.roles.rules, "the record of the roles", LogMismatch)
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
