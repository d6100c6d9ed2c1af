"""The controller's plan: a pure function from what is known of a cluster to the roles to publish.

It keeps liveness, that every shard has one master, and spares movement. A mistake costs time, never a message: who is
master by the log alone is decided by its fence (law 5).
"""

from collections import Counter
from collections.abc import Iterable

from msgspec.structs import replace

from chronos.core.roles import (
    HISTORY_MAX,
    OK,
    UNREACHABLE,
    Change,
    ClusterView,
    ReplicaReport,
    Request,
    Roles,
    ShardRoles,
)

PATIENCE_MS = 30_000
"""How long a shard whose candidates all lack something waits for one that has it: a restart, but no repair."""

REBALANCE_PAUSE_MS = 5_000
"""Between two such moves, and after any other change of master: each costs a moment of delivery."""

LAG_MAX = 1_000
"""Progress records a replica may be behind and still count as caught up; it reads them in well under a second."""

PASSES_MAX = 100
"""Bound of the passes of one plan; what is left then is done by the next."""


def plan(view: ClusterView) -> Roles:
    """What to publish now. The same view with this as its `roles` (and no requests) gives this again.

    1. Everybody's progress, and who is away since when, are noted.
    2. Each shard gets its replicas: those it had, and new ones only where some are missing.
    3. Requests are answered, oldest first.
    4. A shard whose master is gone, leaving, drained or cut off from the log gets another; all other masters stay.
    5. At most one shard is moved only to spread masters evenly.
    """
    table = _Table(view)
    table.note()  # 1
    table.hold()  # 2
    for request in view.requests:  # 3
        table.answer(request)
    before = None
    for _ in range(PASSES_MAX):
        table.hold()
        table.assign()  # 4
        table.spread()  # 5
        after = table.roles()
        if after == before:
            break
        before = after
    return table.roles()


class _Table:
    """Roles on their way from one value to the next, within one call of `plan`."""

    def __init__(self, view: ClusterView) -> None:
        self.view = view
        self.members = view.members
        self.shards = {shard: view.roles.shards.get(shard, ShardRoles()) for shard in range(view.shards)}
        self.drained = set(view.roles.drained)
        self.away = dict(view.roles.away)
        self.history = list(view.roles.history)
        self.masters = Counter(given.master for given in self.shards.values() if given.master)

    def roles(self) -> Roles:
        """As a value."""
        return Roles(
            controller=self.view.controller,
            controller_epoch=self.view.controller_epoch,
            shards=dict(self.shards),
            drained=tuple(sorted(self.drained)),
            away=dict(self.away),
            history=tuple(self.history[-HISTORY_MAX:]),
        )

    # What is reported

    def replica(self, shard: int, node: str | None) -> ReplicaReport:
        """What the node says of its replica; nothing is known of one that says nothing."""
        member = self.members.get(node or "")
        return ReplicaReport() if member is None else member.replicas.get(shard, ReplicaReport())

    def reported(self, shard: int) -> Iterable[ReplicaReport]:
        """What all members say of the shard."""
        return (member.replicas[shard] for member in self.members.values() if shard in member.replicas)

    def note(self) -> None:
        """Keep the greatest progress of each shard, and since when a node is away."""
        for shard, given in self.shards.items():
            applied = max((replica.applied or 0 for replica in self.reported(shard)), default=0)
            self.shards[shard] = replace(given, applied=max(given.applied, applied))
        listed = {node for given in self.shards.values() for node in given.replicas}
        away = sorted(listed - set(self.members))
        self.away = {node: min(self.away.get(node, self.view.now_ms), self.view.now_ms) for node in away}

    # Who holds a shard

    def hold(self) -> None:
        """Give each shard its replicas: sticky, evenly spread; then move at most one towards an even spread."""
        for shard, given in self.shards.items():
            nodes = self._all(given) if self.view.replication is None else self._some(shard, given)
            self._list(shard, nodes)
        if self.view.replication is not None:
            self._even_out()
        listed = {node for given in self.shards.values() for node in given.replicas}
        self.away = {node: since_ms for node, since_ms in self.away.items() if node in listed}

    def _all(self, given: ShardRoles) -> set[str]:
        return {*given.replicas, *self.members}

    def _some(self, shard: int, given: ShardRoles) -> set[str]:
        count = self.view.replication or 0
        nodes = {node for node in given.replicas if node in self.members or not self._gone(node)}
        held = self._held()
        order = _preferred(shard, self.members)
        spare = [node for node in order if node not in nodes and not self.members[node].leaving]
        spare.sort(key=lambda node: held[node])
        nodes.update(spare[: max(0, count - len(nodes))])
        if len(nodes) > count and all(self._caught_up(shard, node) for node in nodes if node in self.members):
            # The master stays; then those who are there, then those who hold little.
            drop = max(nodes - {given.master or ""}, key=lambda node: (node not in self.members, held[node], node))
            nodes.discard(drop)
        return nodes

    def _even_out(self) -> None:
        """Let the node that holds the least hold one more; one that holds more loses it once that has caught up."""
        held = self._held()
        moves = [
            (held[given_up] - held[node], -shard, node)
            for shard, given in self.shards.items()
            for given_up in given.replicas
            for node in sorted(self.members)
            if given_up != given.master and node not in given.replicas and not self.members[node].leaving
        ]
        in_excess = any(len(given.replicas) > (self.view.replication or 0) for given in self.shards.values())
        if moves and not in_excess and max(moves)[0] >= 2:
            _, shard, node = max(moves)
            self._list(-shard, {*self.shards[-shard].replicas, node})

    def _list(self, shard: int, nodes: Iterable[str]) -> None:
        self.shards[shard] = replace(self.shards[shard], replicas=tuple(_preferred(shard, nodes)))

    def _held(self) -> Counter[str]:
        return Counter(node for given in self.shards.values() for node in given.replicas)

    def _gone(self, node: str) -> bool:
        return self.view.now_ms - self.away.get(node, self.view.now_ms) >= self.view.replace_after_ms

    def _caught_up(self, shard: int, node: str) -> bool:
        applied = self.replica(shard, node).applied
        return applied is not None and applied >= self.shards[shard].applied - LAG_MAX

    # Who is master

    def answer(self, request: Request) -> None:
        """Do what an operator asks, or note why not."""
        if request.kind == "drain":
            self.drained.add(request.node)
        elif request.kind == "undrain":
            self.drained.discard(request.node)
        elif reason := self._refusal(request):
            given = self.shards.get(request.shard, ShardRoles())
            why = f"{request.kind} to {request.node} refused: {reason}"
            self._note(request.shard, given, given.master, why)
        elif self.shards[request.shard].master != request.node:
            self._give(request.shard, request.node, "asked for by an operator")

    def _refusal(self, request: Request) -> str | None:
        member = self.members.get(request.node)
        reasons = {
            "there is no such request": request.kind != "transfer",
            "there is no such shard": request.shard not in self.shards,
            "it is no member at the moment": member is None,
            "it is about to stop": member is not None and member.leaving,
            "it is drained": request.node in self.drained,
            "the log does not answer it": member is not None and member.log != OK,
            "it holds no replica": request.node not in self.shards.get(request.shard, ShardRoles()).replicas,
            "its progress is not known yet": self.replica(request.shard, request.node).applied is None,
        }
        return next((reason for reason, so in reasons.items() if so), None)

    def assign(self) -> None:
        """A master for each shard that has none which can stay; a new epoch where the log knows a later one."""
        for shard, given in self.shards.items():
            if given.master is None or given.master not in self.members:
                self._fill(shard, given)
            elif given.master not in given.replicas or not self._may_stay(given.master):
                candidates = [node for node in self._candidates(shard) if self._may_be_master(node)]
                if candidates:
                    self._give(shard, self._best(shard, candidates), self._why_not(given.master))
        for shard, given in self.shards.items():
            if given.master is not None and self._is_stale(shard, given.master, given.epoch):
                self._give(shard, given.master, "the progress log knows a later role")

    def _fill(self, shard: int, given: ShardRoles) -> None:
        """A shard without a live master: the best candidate, at once if it lacks nothing."""
        if given.master is not None:
            self.masters[given.master] -= 1
            self.shards[shard] = replace(given, master=None, previous=given.master, since_ms=self.view.now_ms)
        vacant = self.shards[shard]
        candidates = self._candidates(shard)
        fit = [node for node in candidates if self._may_stay(node)]
        candidates = fit or [node for node in candidates if not self.members[node].leaving]
        lacking = all((self.replica(shard, node).applied or 0) < vacant.applied for node in candidates)
        patient = 0 <= self.view.now_ms - vacant.since_ms < PATIENCE_MS
        if candidates and not (lacking and patient):
            why = "lost its session" if vacant.previous else "first"
            self._give(shard, self._best(shard, candidates), why)
        elif given.master is not None:
            self._note(shard, vacant, None, "lost its session, and nobody can follow yet")

    def _may_stay(self, node: str) -> bool:
        member = self.members[node]
        return node not in self.drained and not member.leaving and member.log != UNREACHABLE

    def _may_be_master(self, node: str) -> bool:
        return self._may_stay(node) and self.members[node].log == OK

    def _why_not(self, node: str) -> str:
        member = self.members[node]
        reasons = {
            "leaving": member.leaving,
            "drained": node in self.drained,
            "the log does not answer it": member.log == UNREACHABLE,
        }
        return next((reason for reason, so in reasons.items() if so), "holds no replica any more")

    def _candidates(self, shard: int) -> list[str]:
        """Live replicas whose progress is known, in preferred order."""
        nodes = self.shards[shard].replicas
        return [node for node in nodes if self.replica(shard, node).applied is not None]

    def _best(self, shard: int, candidates: list[str]) -> str:
        """The furthest; among those the one with the fewest shards; among those the first in preferred order."""
        return max(candidates, key=lambda node: (self.replica(shard, node).applied or 0, -self.masters[node]))

    def _is_stale(self, shard: int, master: str, epoch: int) -> bool:
        # A master that has another data directory than the one that wrote under its epoch is not that one, though it
        # has its id: it lost its disk and was back before anybody saw it gone.
        instance = self.members[master].instance
        return any(
            replica.role_epoch > epoch
            or replica.role_node not in ("", master)
            or replica.role_instance not in ("", instance)
            for replica in self.reported(shard)
            if replica.role_epoch >= epoch
        )

    def spread(self) -> None:
        """Move one shard to a node that has at least two fewer, if nothing moved for a while."""
        now_ms = self.view.now_ms
        if any(0 <= now_ms - given.since_ms < REBALANCE_PAUSE_MS for given in self.shards.values() if given.epoch):
            return
        moves = [
            (self.masters[given.master] - self.masters[node], -shard, -order)
            for shard, given in self.shards.items()
            for order, node in enumerate(given.replicas)
            if given.master and given.master in self.members and self._may_gain(shard, given.master, node)
        ]
        if moves and max(moves)[0] >= 2:
            _, shard, order = max(moves)
            self._give(-shard, self.shards[-shard].replicas[-order], "spread evenly")

    def _may_gain(self, shard: int, master: str, node: str) -> bool:
        ahead, behind = self.replica(shard, master).applied, self.replica(shard, node).applied
        if ahead is None or behind is None or behind < ahead - LAG_MAX or not self._may_be_master(node):
            return False
        since_ms = self.view.since_ms.get(node, self.view.now_ms)
        return self.view.now_ms - since_ms >= self.view.rebalance_after_ms

    def _give(self, shard: int, node: str, why: str) -> None:
        given = self.shards[shard]
        seen = max((replica.role_epoch for replica in self.reported(shard)), default=0)
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
        self._note(shard, new, node, why)

    def _note(self, shard: int, given: ShardRoles, master: str | None, why: str) -> None:
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


def _preferred(shard: int, nodes: Iterable[str]) -> list[str]:
    """The nodes in the order in which they are preferred for a shard: another first for each, so that it spreads."""
    ordered = sorted(nodes)
    first = shard % len(ordered) if ordered else 0
    return ordered[first:] + ordered[:first]
