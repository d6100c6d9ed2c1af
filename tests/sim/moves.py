"""Checks every change of roles that a controller publishes, with arithmetic of its own: why a
master was replaced, and by which replica.

A change is compared with the view that it was planned from. The checks of what must not happen are
always on; the cluster may be judged only as strictly as its faults allow: while none is left, a
verdict moves the shards of stuck masters and no others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from chronos.core.cluster.assignment import CUT_OFF
from chronos.core.cluster.health import ARMED, ARMED_MS, AUTO, MOVED_MS, OFF, UNHEALTHY
from chronos.core.cluster.roles import (
    OK,
    UNREACHABLE,
    Change,
    ClusterView,
    Member,
    Roles,
    ShardRoles,
)
from tests.sim.observers import HealthSettings
from tests.sim.world import CORRECTNESS, Finding, World

CLOCK_MS = 1_000
"""Allowance for the difference between two clocks without steps."""

BY_ORDER = frozenset(
    {"asked for by an operator", "spread evenly", "the progress log contains a later role"}
)
"""Changes that do not choose among candidates."""


class Moves:
    """The history of roles of one seed."""

    def __init__(self, world: World, settings: HealthSettings) -> None:
        self.world = world
        self.settings = settings
        self.clocks_step = False
        """Clocks of controllers step in this seed: a permission may last up to a step longer."""
        self.stuck: set[int] = set()
        """Shards whose masters were stuck on purpose, or kept from working, since `strict`
        began."""
        self.strict = False
        """No fault is left besides those on purpose."""
        self.is_disturbed: Callable[[str | None], bool] = lambda node_id: False
        """Return whether the node's disk or clock keeps a master on it from working."""
        self.by_verdict: dict[int, list[int]] = defaultdict(list)
        """Shard -> times at which a verdict moved it."""
        self.changes: list[tuple[int, int, str]] = []
        """Time, shard and reason of each change."""
        self.armed: dict[int, list[int]] = defaultdict(list)
        """Shard -> times of permissions that were not used."""
        self._transferred_ms: dict[int, int] = defaultdict(int)
        """Shard -> when an operator last asked for a master."""
        self._since_ms: dict[tuple[int, int], int] = {}
        """Shard and role epoch -> when it was published."""

    def armed_now(self, shard: int) -> None:
        """An operator permits a failover."""
        self.armed[shard].append(self.world.now_ms)

    def given_after_ms(self, shard: int, epoch: int) -> int | None:
        """Return when the shard got its next role epoch after this one; None: it has not got
        one."""
        return min(
            (at_ms for (of, each), at_ms in self._since_ms.items() if of == shard and each > epoch),
            default=None,
        )

    def published(self, view: ClusterView, roles: Roles) -> None:
        """The controller published the roles that it planned for this view."""
        for request in view.requests:
            if request.kind == "transfer":
                self._transferred_ms[request.shard] = self.world.now_ms
        self.stuck.update(
            shard for shard, given in view.roles.shards.items() if self.is_disturbed(given.master)
        )
        for shard, after in roles.shards.items():
            before = view.roles.shards.get(shard, ShardRoles())
            if after.epoch == before.epoch:
                continue
            self._since_ms[shard, after.epoch] = self.world.now_ms
            whys = [
                each for each in roles.history if (each.shard, each.epoch) == (shard, after.epoch)
            ]
            assert whys, "a change is in the history"
            change = whys[0]
            self.changes.append((self.world.now_ms, shard, change.why))
            if change.why == UNHEALTHY:
                self._check_verdict(view, shard, before)
            if change.why not in BY_ORDER:
                self._check_candidate(view, roles, change)

    def _found(self, shard: int, text: str) -> Finding:
        return Finding(CORRECTNESS, f"shard {shard} was moved by a verdict {text}")

    def _check_verdict(self, view: ClusterView, shard: int, before: ShardRoles) -> None:
        """HA-22, HA-25, HA-28, HA-31, HA-44."""
        now_ms, mode = self.world.now_ms, self.settings.mode
        since_ms = max(now_ms - MOVED_MS + CLOCK_MS, self._transferred_ms[shard])
        lately = [at_ms for at_ms in self.by_verdict[shard] if at_ms > since_ms]
        self.by_verdict[shard].append(now_ms)
        permitted = [at_ms for at_ms in self.armed[shard] if now_ms - at_ms < ARMED_MS + CLOCK_MS]
        if mode == AUTO and lately and not permitted and not self.clocks_step:
            raise self._found(shard, f"twice within {now_ms - lately[0]} ms")
        if mode == OFF:
            raise self._found(shard, "although failover.on_unhealthy is off")
        reports = [
            member.replicas[shard] for member in view.members.values() if shard in member.replicas
        ]
        judges = [report.unhealthy for report in reports if report.judged == before.epoch]
        if len(judges) < 2:
            raise self._found(shard, f"of {len(judges)} observers of role epoch {before.epoch}")
        if 3 * sum(judges) < 2 * len(judges):
            raise self._found(shard, f"of {sum(judges)} of {len(judges)} observers")
        age_ms = now_ms - self._since_ms[shard, before.epoch]
        if age_ms < self.settings.soonest_ms:
            raise self._found(
                shard,
                (
                    f"{age_ms} ms after its master got it; that takes {self.settings.soonest_ms} "
                    "ms at least"
                ),
            )
        if self.strict and shard not in self.stuck:
            raise self._found(shard, "although its master works")
        if mode == ARMED:
            self._use_permission(shard)

    def _use_permission(self, shard: int) -> None:
        valid_ms = 2 * ARMED_MS if self.clocks_step else ARMED_MS + CLOCK_MS
        given = [at_ms for at_ms in self.armed[shard] if self.world.now_ms - at_ms < valid_ms]
        if not given:
            raise self._found(shard, "that nobody permitted within 15 s")
        self.armed[shard].remove(given[0])

    def _check_candidate(self, view: ClusterView, roles: Roles, change: Change) -> None:
        """RH-14: a follower in sync is promoted before one that is not."""
        master = change.master
        if master is None or _is_in_sync(view, change.shard, view.members[master]):
            return
        before = view.roles.shards.get(change.shard, ShardRoles())
        passed_over = [
            node
            for node, member in view.members.items()
            if node in roles.shards[change.shard].replicas
            and node != before.master
            and node not in roles.drained
            and member.log == OK
            # A master that answers, and is only cut off from the log, gives way to a steady node
            # alone.
            and not (change.why.startswith(CUT_OFF) and node in view.unsteady)
            and _is_in_sync(view, change.shard, member)
        ]
        if passed_over:
            raise Finding(
                CORRECTNESS,
                (
                    f"shard {change.shard} was given to {master}, which is not in sync, before "
                    f"{', '.join(passed_over)}: {change.why}"
                ),
            )


def _is_in_sync(view: ClusterView, shard: int, member: Member) -> bool:
    """Return whether the replica follows, works, and lags by no more than the most advanced one of
    `max_lag` ago."""
    replica, needed = member.replicas.get(shard), view.in_sync_from.get(shard)
    if replica is None or replica.applied is None or needed is None or replica.applied < needed:
        return False
    may_take_over = member.eligible and not member.leaving and member.log != UNREACHABLE
    return (
        may_take_over
        and replica.reason is None
        and replica.role
        in {
            "follower",
            "recovering",
            "stepped down",
            "taking over",
        }
    )
