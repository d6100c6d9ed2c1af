"""The plan of the controller: a pure function from its view of the cluster to the roles to publish.
The masters are chosen here, and requests of operators answered; which nodes hold a shard is decided
by `placement`, a part of the plan.

It gives each shard a master as soon as a replica can take it over, but waits up to PATIENCE_MS for
a more advanced one if all candidates lack records; and it moves as little as possible. A mistake
costs time, never a message: the log fences all masters but one (law 5). `_Table.roles` keeps its
part of that: no role epoch goes back."""

from collections import Counter
from contextlib import suppress

from msgspec.structs import replace

from chronos.core.cluster.health import (
    ARM_REFUSED,
    NO_CANDIDATE,
    OFF,
    UNHEALTHY,
    Candidate,
    Mode,
    armed_until,
    choose,
    is_armed,
    is_unhealthy,
    may_switch,
    mode_of,
    was_moved,
)
from chronos.core.cluster.placement import EXCESS_MIN, Placement
from chronos.core.cluster.registry.configuration import Configuration, configured
from chronos.core.cluster.registry.values import Full
from chronos.core.cluster.replication import is_in_sync
from chronos.core.cluster.reports import LAG_MAX, MASTER, Reports
from chronos.core.cluster.roles import (
    AWAY_MS,
    HISTORY_MAX,
    OK,
    UNREACHABLE,
    Change,
    ClusterView,
    Request,
    Roles,
    ShardRoles,
    machines,
    registered,
    verdicts,
)
from chronos.core.rates import LIMITS_MAX

PATIENCE_MS = 30_000
"""Time a shard waits for a more advanced replica if all candidates lack records: long enough for a
restart of a node."""

REBALANCE_PAUSE_MS = 5_000
"""Time between two moves that only spread masters, and after any other change of master: each move
delays deliveries."""

ASKED = "asked for by an operator"

CUT_OFF = "the log does not answer it"

KEPT = "leads already; the roles were lost, or are older"

FAR_BEHIND = "far behind, and another replica is not"
"""Reasons in the history of roles."""

CATCHING_UP = frozenset({"starting", "recovering", "restoring"})
"""The roles that a replica reports before it has applied its log to the end."""

REASON_CHARS = 200
"""Most characters of a replica's reason in the history of roles, which every node receives."""

PASSES_MAX = 100
"""Most passes of one plan; the next plan continues."""


def refused(request: Request) -> str:
    """Return the beginning of the reason of a change that records the refusal of this request."""
    return f"{request.kind} to {request.node} refused"


def plan(view: ClusterView) -> Roles:
    """Return the roles to publish now. With these as the view's `roles`, and no requests, the plan
    is the same again.

    1. The progress of all replicas, and the nodes that are away, are recorded; nodes that were away
       for long are forgotten.
    2. Each shard keeps its replicas and gets new ones only where some are missing.
    3. Requests are answered, oldest first.
    4. A shard whose master is gone, leaving, drained, cut off from the log, or far behind before it
       leads, gets another one, and one whose master a quorum of observers finds unhealthy, if that
       is permitted; all other masters stay.
    5. At most one shard is moved only to spread masters evenly.

    If the roles were lost, or are older than the progress logs, no shard is decided before the
    reports of the members could arrive, so that their masters stay."""
    table = _Table(view)
    if table.awaits_reports():
        table.shards = dict(view.roles.shards)
        for request in view.requests:
            table.answer(request)
        return table.roles()
    table.record_progress()  # 1
    table.place_replicas()  # 2
    for request in view.requests:  # 3
        table.answer(request)
    for _ in range(PASSES_MAX):
        before = table.decided()
        table.place_replicas()
        table.assign()  # 4
        table.spread()  # 5
        if table.decided() == before:
            break
    return table.roles()


class _Table:
    """The roles under construction, within one call of `plan`."""

    def __init__(self, view: ClusterView) -> None:
        self.view = view
        self.members = view.members
        self.reports = Reports(view.members)
        self.unhealthy: dict[tuple[int, int], bool] = {}
        """Shard and role epoch -> whether a quorum finds its master unhealthy."""
        self.shards = {
            shard: view.roles.shards.get(shard, ShardRoles()) for shard in range(view.shards)
        }
        self.hosts = {
            node: host for node, host in view.roles.hosts.items() if node not in self.members
        } | {node: member.host for node, member in self.members.items() if member.host}
        """Nodes that share their machines with others -> the machine."""
        self.drained = set(view.roles.drained)
        self.placement = Placement(view, self.hosts, self.reports, self.drained)
        self.away = dict(view.roles.away)
        self.limited = dict(view.roles.limited)
        self.configured: Configuration = view.roles.configured
        self.armed = {
            shard: end_ms
            for shard, end_ms in view.roles.armed.items()
            if is_armed(end_ms, view.now_ms)
        }
        self.unhealthy_moves = {
            shard: at_ms
            for shard, at_ms in view.roles.unhealthy_moves.items()
            if was_moved(at_ms, view.now_ms)
        }
        self.stuck = {
            given.master for shard, given in self.shards.items() if self._is_unhealthy(shard, given)
        }
        """Masters that a quorum finds unhealthy: they share the trouble of one another, and get no
        shard of one another."""
        self.history = list(view.roles.history)
        self.masters = Counter(given.master for given in self.shards.values() if given.master)

    def decided(self) -> tuple[object, ...]:
        """Return all that a pass may change, as a value: the next pass does the same if this one
        changed nothing."""
        return (
            dict(self.shards),
            dict(self.away),
            dict(self.armed),
            dict(self.unhealthy_moves),
            self.history[-HISTORY_MAX:],
        )

    def roles(self) -> Roles:
        """Return the roles as a value."""
        masters = Counter(given.master for given in self.shards.values() if given.master)
        assert +self.masters == masters, "masters are counted wrongly"
        assert all(
            given.epoch >= self.view.roles.shards.get(shard, ShardRoles()).epoch
            for shard, given in self.shards.items()
        ), "a role epoch went back"
        roles = Roles(
            controller=self.view.controller,
            controller_epoch=self.view.controller_epoch,
            shards=dict(self.shards),
            drained=tuple(sorted(self.drained)),
            away=dict(self.away),
            limited=dict(self.limited),
            configured=self.configured,
            armed=dict(self.armed),
            unhealthy_moves=dict(self.unhealthy_moves),
            history=tuple(self.history[-HISTORY_MAX:]),
        )
        known = registered(self.members, roles) if self.hosts else frozenset()
        hosts = {node: host for node, host in sorted(self.hosts.items()) if node in known}
        return replace(roles, hosts=hosts)

    # --- reports

    def awaits_reports(self) -> bool:
        """Return whether shards had masters that these roles do not know, and more members may
        report them in a moment."""
        known = self.view.roles.shards
        return self.view.awaits_reports and any(
            self.reports.latest_epoch(shard) > known.get(shard, ShardRoles()).epoch
            for shard in self.reports.seen
        )

    def record_progress(self) -> None:
        """Record the greatest progress of each shard, and since when nodes are away; forget those
        away for AWAY_MS.

        A master that leads has applied every record there is: the members' reports count alone
        then. A progress that no replica has, as of a topic that was created again, would make every
        later failover wait for a replica that has it."""
        for shard, given in self.shards.items():
            self.shards[shard] = self._with_progress(shard, given)
        now_ms = self.view.now_ms
        self._record_away()
        for node in [node for node, since_ms in self.away.items() if now_ms - since_ms >= AWAY_MS]:
            self.forget(node)

    def _with_progress(self, shard: int, given: ShardRoles) -> ShardRoles:
        known = 0 if self.reports.is_led(shard, given) else given.applied
        applied = max(known, self.reports.furthest.get(shard, 0))
        return given if applied == given.applied else replace(given, applied=applied)

    def _record_away(self) -> None:
        now_ms = self.view.now_ms
        listed = self.drained.union(*{given.replicas for given in self.shards.values()})
        away = sorted(listed - set(self.members))
        self.away = {node: min(self.away.get(node, now_ms), now_ms) for node in away}

    def forget(self, node: str) -> None:
        """Keep nothing for the node any longer: no replica, no drain, no time of absence."""
        self.shards = self.placement.without(node, self.shards)
        self.drained.discard(node)
        self.away.pop(node, None)

    # --- replicas

    def place_replicas(self) -> None:
        """Place the replicas of all shards; see `Placement.place`."""
        self.shards = self.placement.place(self.shards, self.away, self._has_successor)
        if retiring := {node for node, member in self.members.items() if member.retiring}:
            # A node that comes back under the name of one that retired is not drained.
            replicas = (given.replicas for given in self.shards.values())
            self.drained -= retiring.difference(*replicas)
        self._record_away()

    def _has_successor(self, shard: int) -> bool:
        """Return whether another replica could take the shard over from its master and go on."""
        master = self.shards[shard].master
        return master is not None and any(
            self._can_continue(shard, master, node) for node in self._fit_candidates(shard)
        )

    # --- masters

    def answer(self, request: Request) -> None:
        """Carry out an operator's request, or record why it was refused."""
        if request.kind == "drain":
            self.drained.add(request.node)
        elif request.kind == "undrain":
            self.drained.discard(request.node)
        elif request.kind == "limit":
            self._limit(request.pattern, request.rate)
        elif request.kind == "configure":
            # The node that was asked has checked the bounds; two requests at the same time may
            # exceed them together.
            with suppress(Full):
                self.configured = configured(
                    self.configured, request.namespace, request.key, request.value
                )
        elif request.kind == "arm" and request.shard in self.shards:
            self._arm(request)
        elif request.kind == "forget" and request.node not in self.members:
            self.forget(request.node)
        elif reason := self._refusal(request):
            given = self.shards.get(request.shard, ShardRoles())
            self._record_change(request.shard, given, given.master, f"{refused(request)}: {reason}")
        else:
            # The operator has inspected the shard, even if the current master was asked for.
            self.unhealthy_moves.pop(request.shard, None)
            if self.shards[request.shard].master != request.node:
                self._assign_master(request.shard, request.node, ASKED)

    def _limit(self, pattern: str, rate: str) -> None:
        if not rate:
            self.limited.pop(pattern, None)
        elif pattern in self.limited or len(self.limited) < LIMITS_MAX:
            self.limited[pattern] = rate

    def _arm(self, request: Request) -> None:
        """Permit one failover of a shard on failed probes, or record why not."""
        until_ms = armed_until(request.at_ms, self.view.now_ms)
        if self._mode() != OFF and until_ms is not None:
            self.armed[request.shard] = until_ms
            return
        given = self.shards[request.shard]
        reason = "it came too late" if until_ms is None else "failover.on_unhealthy is off"
        self._record_change(request.shard, given, given.master, f"{ARM_REFUSED}: {reason}")

    def _refusal(self, request: Request) -> str | None:
        member = self.members.get(request.node)
        given = self.shards.get(request.shard, ShardRoles())
        replica = self.reports.replica(request.shard, request.node)
        ahead = self.reports.replica(request.shard, given.master)
        behind = (ahead.applied or 0) - (replica.applied or 0)
        reasons = {
            "it is a member: stop it first": request.kind == "forget",
            "there is no such request": request.kind not in ("transfer", "arm"),
            "the roles were lost, and no shard has a master yet": not self.shards,
            "there is no such shard": request.shard not in self.shards,
            "it is not a member at the moment": member is None,
            "it is about to stop": member is not None and not member.stays,
            "it is drained": request.node in self.drained,
            "its failover.candidate is off": member is not None and not member.eligible,
            "the log does not answer it": member is not None and member.log != OK,
            "it holds no replica": request.node not in given.replicas,
            f"its replica is paused: {(replica.reason or '')[:REASON_CHARS]}": replica.reason
            is not None,
            "its progress is not known yet": replica.applied is None,
            f"its replica is {behind} progress records behind": behind > LAG_MAX,
        }
        return next((reason for reason, applies in reasons.items() if applies), None)

    def assign(self) -> None:
        """Assign a master to each shard without one that can stay; a new epoch where the log has a
        later one."""
        for shard, given in self.shards.items():
            if (leader := self._later_leader(shard, given)) is not None:
                self._keep_leader(shard, leader)
            elif given.master is None or given.master not in self.members:
                self._fill_vacancy(shard, given)
            elif given.master not in given.replicas or not self._may_stay(given.master):
                candidates = [node for node in self._candidates(shard) if self._may_be_master(node)]
                if self._may_come_back(given.master):
                    candidates = [node for node in candidates if self._is_steady(node)]
                if not self._must_go(shard, given.master):
                    candidates = [
                        node for node in candidates if self._can_continue(shard, given.master, node)
                    ]
                if candidates:
                    self._assign_master(
                        shard, self._best(shard, candidates), self._why_replaced(given.master)
                    )
            elif further := self._further(shard, given):
                self._assign_master(shard, self._best(shard, further), FAR_BEHIND)
            elif self._is_unhealthy(shard, given):
                self._fail_over(shard, given)
        for shard, given in self.shards.items():
            if given.master is not None and self.reports.is_stale(shard, given.master, given.epoch):
                self._assign_master(shard, given.master, "the progress log contains a later role")

    def _later_leader(self, shard: int, given: ShardRoles) -> str | None:
        """Return which member leads the shard by a later role than these, which are of a
        coordinator that lost its data, or was restored to an older state; None if there is none."""
        if self.reports.latest_epoch(shard) <= given.epoch:
            return None
        return self.reports.leader(shard, sorted(self.members))

    def _keep_leader(self, shard: int, node: str) -> None:
        """Leave the shard to its master, which goes on under its epoch."""
        given, epoch = self.shards[shard], self.reports.replica(shard, node).role_epoch
        replicas = given.replicas if node in given.replicas else (*given.replicas, node)
        new = replace(given, master=node, epoch=epoch, replicas=replicas, since_ms=self.view.now_ms)
        if given.master is not None:
            self.masters[given.master] -= 1
        self.masters[node] += 1
        self.shards[shard] = self._with_progress(shard, new)
        self._record_change(shard, new, node, KEPT)

    def _fill_vacancy(self, shard: int, given: ShardRoles) -> None:
        """Assign the best candidate to a shard without a live master, at once if it has every
        record or is in sync."""
        if given.master is not None:
            self.masters[given.master] -= 1
            self.shards[shard] = replace(
                given, master=None, previous=given.master, since_ms=self.view.now_ms
            )
        vacant = self.shards[shard]
        present = [node for node in self._candidates(shard) if not self.members[node].leaving]
        candidates = [node for node in present if self._may_stay(node)] or present
        behind = self._are_behind(shard, candidates)
        if behind:
            # One that retires is replaced again as soon as another one has caught up.
            retiring = [node for node in present if self.members[node].retiring]
            if not self._are_behind(shard, retiring):
                candidates, behind = retiring, False
        patient = 0 <= self.view.now_ms - vacant.since_ms < PATIENCE_MS
        if candidates and not (behind and patient):
            why = "lost its session" if vacant.previous else "first"
            self._assign_master(shard, self._best(shard, candidates), why)
        elif given.master is not None:
            self._record_change(
                shard, vacant, None, "lost its session; no replica can take over yet"
            )

    def _are_behind(self, shard: int, nodes: list[str]) -> bool:
        """Return whether none of the nodes has every record or is in sync."""
        needed = self.shards[shard].applied
        return all(
            (self.reports.replica(shard, node).applied or 0) < needed
            and not self._is_in_sync(shard, node)
            for node in nodes
        )

    def _further(self, shard: int, given: ShardRoles) -> list[str]:
        """Return the candidates that could lead at once, if the current master has not begun to
        lead for PATIENCE_MS and is far behind.

        It was the only one that was there, or lost its disk: it would read its logs, or fetch a
        checkpoint, for minutes or hours."""
        assert given.master is not None
        master, now_ms = self.reports.replica(shard, given.master), self.view.now_ms
        since_ms = max(given.since_ms, self.view.since_ms.get(given.master, now_ms))
        if master.role == MASTER or 0 <= now_ms - since_ms < PATIENCE_MS:
            return []
        needed = (master.applied or 0) + LAG_MAX
        return [
            node
            for node in self._fit_candidates(shard)
            if (self.reports.replica(shard, node).applied or 0) > needed
        ]

    def _is_unhealthy(self, shard: int, given: ShardRoles) -> bool:
        """Return whether a quorum of observers finds the master unhealthy that these roles name."""
        if shard not in self.reports.suspected:
            return False
        found = self.unhealthy.get((shard, given.epoch))
        if found is None:
            found = is_unhealthy(verdicts(self.members, shard, given.epoch).values())
            self.unhealthy[shard, given.epoch] = found
        return found

    def _fail_over(self, shard: int, given: ShardRoles) -> None:
        """Replace an unhealthy master, if that is permitted and another replica can take over.

        The old master is told to follow by the same roles that name the new one, which waits a
        moment for its step to end and then fences it. So the old one need not answer."""
        permitted_until_ms = self.armed.pop(shard, None)
        now_ms = self.view.now_ms
        if not may_switch(
            self._mode(), permitted_until_ms, now_ms, self.unhealthy_moves.get(shard)
        ):
            return
        nodes = [
            node
            for node in self._fit_candidates(shard)
            if self._is_steady(node) and node not in self.stuck
        ]
        if nodes:
            self._assign_master(shard, self._best(shard, nodes), UNHEALTHY)
            self.unhealthy_moves[shard] = now_ms
        elif permitted_until_ms is not None:
            self._record_change(shard, given, given.master, NO_CANDIDATE)

    def _mode(self) -> Mode:
        return mode_of(self.view.on_unhealthy, len(machines(self.members, self.view.roles)))

    def _is_fit(self, shard: int, node: str) -> bool:
        """Return whether the replica of a node that is not master works: a deposed master may hang
        and still report that it is one."""
        replica = self.reports.replica(shard, node)
        return (
            node != self.shards[shard].master and replica.reason is None and replica.role != MASTER
        )

    def _may_stay(self, node: str) -> bool:
        member = self.members[node]
        return (
            node not in self.drained
            and member.stays
            and member.log != UNREACHABLE
            and member.eligible
        )

    def _must_go(self, shard: int, master: str) -> bool:
        """Return whether a master that may not stay cannot wait for a replica that works: it is
        about to stop, or does nothing."""
        member = self.members[master]
        return (
            master not in self.shards[shard].replicas or member.leaving or member.log == UNREACHABLE
        )

    def _may_come_back(self, master: str) -> bool:
        """Return whether the log alone does not answer the master: after an outage it may reach it
        in a moment, like all others."""
        member = self.members[master]
        return (
            member.log == UNREACHABLE
            and not member.leaving
            and member.eligible
            and master not in self.drained
        )

    def _is_steady(self, node: str) -> bool:
        return node not in self.view.unsteady

    def _can_continue(self, shard: int, master: str, node: str) -> bool:
        """Return whether the replica of another node works and has nearly all that the master
        has."""
        ahead = self.reports.replica(shard, master).applied or 0
        behind = self.reports.replica(shard, node).applied
        return behind is not None and behind >= ahead - LAG_MAX and self._is_fit(shard, node)

    def _may_be_master(self, node: str) -> bool:
        return self._may_stay(node) and self.members[node].log == OK

    def _why_replaced(self, node: str) -> str:
        member = self.members[node]
        reasons = {
            "leaving": member.leaving,
            "retiring": member.retiring,
            "drained": node in self.drained,
            CUT_OFF: member.log == UNREACHABLE,
            "its failover.candidate is off": not member.eligible,
        }
        return next(
            (reason for reason, applies in reasons.items() if applies), "holds no replica any more"
        )

    def _candidates(self, shard: int) -> list[str]:
        """Return the members that may be master at all and hold a replica of known progress, in
        preferred order."""
        nodes = [
            node
            for node in self.shards[shard].replicas
            if node in self.members and self.members[node].eligible
        ]
        return [node for node in nodes if self.reports.replica(shard, node).applied is not None]

    def _fit_candidates(self, shard: int) -> list[str]:
        """Return the candidates that could lead at once, besides the current master, in preferred
        order."""
        return [
            node
            for node in self._candidates(shard)
            if self._may_be_master(node) and self._is_fit(shard, node)
        ]

    def _best(self, shard: int, candidates: list[str]) -> str:
        """Return the most advanced candidate, of those in sync if there is one; of equals the one
        with the fewest shards, then the first in preferred order. One that is held up while it
        catches up is chosen only if all are."""
        candidates = [
            node for node in candidates if not self._is_held_up(shard, node)
        ] or candidates
        best = choose(
            Candidate(
                node=node,
                applied=self.reports.replica(shard, node).applied,
                masters=self.masters[node],
                in_sync=self._is_in_sync(shard, node),
                steady=self._is_steady(node),
            )
            for node in candidates
        )
        assert best is not None, "candidates have a known progress"
        return best

    def _is_held_up(self, shard: int, node: str) -> bool:
        """Return whether the replica has not caught up, and is paused or reads its log in bounded
        memory."""
        replica = self.reports.replica(shard, node)
        return replica.role in CATCHING_UP and replica.reason is not None

    def _is_in_sync(self, shard: int, node: str) -> bool:
        return is_in_sync(self.members[node], shard, self.view.in_sync_from.get(shard))

    def spread(self) -> None:
        """Move one shard to a node that is master of at least two fewer, if nothing moved within
        REBALANCE_PAUSE_MS."""
        now_ms = self.view.now_ms
        if any(
            0 <= now_ms - given.since_ms < REBALANCE_PAUSE_MS
            for given in self.shards.values()
            if given.epoch
        ):
            return
        fewest = min((self.masters[node] for node in self.members), default=0)
        moves = [
            (self.masters[given.master] - self.masters[node], -shard, -order)
            for shard, given in self.shards.items()
            if given.master
            and given.master in self.members
            and self.masters[given.master] - fewest >= EXCESS_MIN
            for order, node in enumerate(given.replicas)
            if self.masters[given.master] - self.masters[node] >= EXCESS_MIN
            and self._may_gain(shard, given.master, node)
        ]
        if moves:
            _, shard, order = max(moves)
            self._assign_master(-shard, self.shards[-shard].replicas[-order], "spread evenly")

    def _may_gain(self, shard: int, master: str, node: str) -> bool:
        if self.reports.replica(shard, master).applied is None or not self._can_continue(
            shard, master, node
        ):
            return False
        return self._may_be_master(node) and self._is_steady(node) and self.view.has_stayed(node)

    def _assign_master(self, shard: int, node: str, why: str) -> None:
        given = self.shards[shard]
        seen = self.reports.latest_epoch(shard)
        if given.master is not None:
            self.masters[given.master] -= 1
        self.masters[node] += 1
        new = replace(
            given,
            master=node,
            epoch=max(seen, given.epoch) + 1,
            previous=given.master or given.previous,
            since_ms=self.view.now_ms,
        )
        self.shards[shard] = new
        self._record_change(shard, new, node, why)

    def _record_change(self, shard: int, given: ShardRoles, master: str | None, why: str) -> None:
        self.history.append(
            Change(
                at_ms=self.view.now_ms,
                shard=shard,
                master=master,
                previous=given.previous,
                epoch=given.epoch,
                why=why,
            )
        )
