"""The placement of replicas: which nodes hold each shard, spread over nodes and machines.

A replica stays on its node until the node is away for long, retires or is forgotten, the shard has
more replicas than it needs, or a move makes the spread more even. A shard whose replicas are all on
nodes that never lead, or are drained, has one more on another node. Which replica is the master is
decided by `assignment`."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set

from msgspec.structs import replace

from chronos.core.cluster.reports import LAG_MAX, NOT_HELD, Reports
from chronos.core.cluster.roles import ClusterView, ShardRoles, machines

EXCESS_MIN = 2
"""Least difference between two nodes, in masters or replicas, that a move makes smaller."""


class Placement:
    """The placement within one plan, whose view and reports do not change."""

    def __init__(
        self, view: ClusterView, hosts: Mapping[str, str], reports: Reports, drained: Set[str]
    ) -> None:
        """`hosts`: nodes that share their machines with others -> the machine. `drained`: as it is
        once `place` is called."""
        self._view = view
        self._members = view.members
        self._hosts = hosts
        self._reports = reports
        self._retiring = {node for node, member in view.members.items() if member.retiring}
        self._drained = drained
        self._barred: Set[str] = frozenset()
        """The nodes that are not to lead."""
        self._sorted: dict[frozenset[str], list[str]] = {}
        """Sets of nodes in order: most shards have the same replicas."""

    def place(
        self,
        shards: Mapping[int, ShardRoles],
        away: Mapping[str, int],
        has_successor: Callable[[int], bool],
    ) -> dict[int, ShardRoles]:
        """Return the shards with their replicas where they are, missing ones added, and at most one
        move towards an even spread begun. `away`: nodes that are no members -> since when;
        `has_successor`: whether another replica of the shard could take over from its master.

        Without a number of replicas each machine gets one."""
        self._barred = self._drained | {
            node for node, member in self._members.items() if not member.eligible
        }
        count = self._view.replication
        if count is None and not self._hosts:
            return self._on_all_nodes(shards)
        count = count or len(machines(self._members, self._view.roles))
        now_ms = self._view.now_ms
        lost = {
            node
            for node, since_ms in away.items()
            if now_ms - since_ms >= self._view.replace_after_ms
        }
        replicas_on = _replica_counts(shards)
        placed = dict(shards)
        for shard, given in shards.items():
            nodes = set(given.replicas).difference(lost)
            lasting = nodes - self._retiring
            if not len(nodes) == len(lasting) == count or lasting <= self._barred:
                nodes = self._with_missing(shard, given, nodes, count, replicas_on)
                drop = self._surplus(shard, given, nodes, count, replicas_on)
                if drop is not None and (drop != given.master or has_successor(shard)):
                    nodes.discard(drop)
            if len(nodes) != len(given.replicas) or not nodes.issuperset(given.replicas):
                replicas_on.subtract(given.replicas)
                replicas_on.update(nodes)
            placed[shard] = self._on(nodes, shard, given)
        self._even_out(placed, count)
        return placed

    def without(self, node: str, shards: Mapping[int, ShardRoles]) -> dict[int, ShardRoles]:
        """Return the shards without their replicas on the node."""
        return {
            shard: self._on([each for each in given.replicas if each != node], shard, given)
            for shard, given in shards.items()
        }

    def _on_all_nodes(self, shards: Mapping[int, ShardRoles]) -> dict[int, ShardRoles]:
        # Most shards have the same replicas in one of a few orders.
        nodes = {
            replicas: frozenset(replicas).union(self._members)
            for replicas in {given.replicas for given in shards.values()}
        }
        return {
            shard: self._on(nodes[given.replicas], shard, given) for shard, given in shards.items()
        }

    def _with_missing(
        self, shard: int, given: ShardRoles, nodes: set[str], count: int, replicas_on: Counter[str]
    ) -> set[str]:
        """Return the nodes and as many more as `count` needs besides those that retire, on
        different machines as far as there are. `replicas_on`: the number of replicas of
        each node."""
        lasting = nodes - self._retiring
        order = self._preferred(shard, self._members)
        leader = None if given.epoch else self._reports.leader(shard, order)
        if not given.epoch:
            # With roles that were lost, what a retiring node holds is not known otherwise.
            nodes = nodes | {node for node in self._retiring if not self._is_new(shard, node)}
        spare = [node for node in order if node not in nodes and self._members[node].stays]
        while len(lasting) < count or lasting <= self._barred:
            used = {self._machine(node) for node in lasting}
            if len(lasting) >= count:
                spare = [node for node in spare if node not in self._barred]
            elif self._view.replication is None:
                spare = [node for node in spare if self._machine(node) not in used]
            if not spare:
                break
            # With roles that were lost, the master is kept, and those that held the shard go before
            # those that did not.
            taker = min(
                spare,
                key=lambda node: (
                    node != leader,
                    lasting <= self._barred and node in self._barred,
                    self._machine(node) in used,
                    self._is_new(shard, node),
                    replicas_on[node],
                ),
            )
            spare.remove(taker)
            lasting.add(taker)
        return nodes | lasting

    def _is_new(self, shard: int, node: str) -> bool:
        return self._reports.replica(shard, node).role == NOT_HELD

    def _surplus(
        self, shard: int, given: ShardRoles, nodes: set[str], count: int, replicas_on: Counter[str]
    ) -> str | None:
        """Return the node that is to be dropped because there are more than `count`; None before
        all of them have caught up, and before there is a master."""
        if not given.epoch:
            return None
        # A retiring node does not wait for others to come.
        count = max(1, min(count, len(nodes - self._retiring)))
        # A master that retires is kept until another node leads.
        retires = given.master in self._retiring & nodes
        if len(nodes) <= count + retires or not all(
            self._caught_up(shard, given, node) for node in nodes if node in self._members
        ):
            return None
        # The master is kept first, unless it holds the only replica, and the only one that may
        # lead; then members that stay, then those that have a machine for themselves, then nodes
        # that hold few replicas.
        on = Counter(map(self._machine, nodes))
        able = nodes - self._barred
        kept = able if len(able) == 1 else set()
        if count > 1:
            kept = kept | {given.master or ""}
        drop = max(
            nodes - kept,
            key=lambda node: (
                node in self._retiring,
                on[self._machine(node)],
                node not in self._members,
                replicas_on[node],
                node,
            ),
        )
        # Those that are away may not have caught up.
        is_last = self._members.keys().isdisjoint(nodes - {drop})
        return None if drop in self._retiring and is_last else drop

    def _caught_up(self, shard: int, given: ShardRoles, node: str) -> bool:
        applied = self._reports.replica(shard, node).applied
        return applied is not None and applied >= given.applied - LAG_MAX

    def _even_out(self, shards: dict[int, ShardRoles], count: int) -> None:
        """Begin to move a replica from a machine with two replicas of the shard to one without, or
        else from a node with many replicas to the one with the fewest: the old one is dropped once
        the new one has caught up."""
        if any(len(given.replicas) > count for given in shards.values()):
            return
        replicas_on = _replica_counts(shards)
        takers = [node for node in sorted(self._members) if self._members[node].stays]
        if move := self._apart(shards, takers, replicas_on) or self._lighter(
            shards, takers, replicas_on
        ):
            shard, node = move
            given = shards[shard]
            shards[shard] = self._on({*given.replicas, node}, shard, given)

    def _apart(
        self, shards: Mapping[int, ShardRoles], takers: list[str], replicas_on: Counter[str]
    ) -> tuple[int, str] | None:
        """Return the first shard with two replicas on one machine, and the best node on a machine
        without; None if there is none."""
        if not self._hosts:
            return None
        on = {node: self._machine(node) for node in {*takers, *replicas_on}}
        free: dict[frozenset[str], str | None] = {}
        for shard, given in shards.items():
            used = frozenset(on[node] for node in given.replicas)
            if len(used) == len(given.replicas) or not self._all_present(given):
                continue
            if used not in free:
                fit = [node for node in takers if on[node] not in used]
                free[used] = min(fit, key=lambda node: replicas_on[node], default=None)
            if (node := free[used]) is not None:
                return shard, node
        return None

    def _lighter(
        self, shards: Mapping[int, ShardRoles], takers: list[str], replicas_on: Counter[str]
    ) -> tuple[int, str] | None:
        """Return the shard whose move makes the greatest difference smaller, and the node that
        takes it; None if there is none. Its replicas lie on as many machines as before.

        A master is moved only if it holds the only replica, and to a node that has stayed."""
        fewest = min((replicas_on[node] for node in takers), default=0)
        moves = [
            (replicas_on[given_up] - replicas_on[node], -shard, node)
            for shard, given in shards.items()
            for given_up in given.replicas
            if replicas_on[given_up] - fewest >= EXCESS_MIN
            and (given_up != given.master or len(given.replicas) == 1)
            and self._all_present(given)
            for node in takers
            if replicas_on[given_up] - replicas_on[node] >= EXCESS_MIN
            and node not in given.replicas
            and (given_up != given.master or self._view.has_stayed(node))
            and not {*given.replicas, node} - {given_up} <= self._barred
            and not (self._hosts and self._narrows(given, node, given_up))
        ]
        _, shard, node = max(moves, default=(0, 0, ""))
        return (-shard, node) if moves else None

    def _narrows(self, given: ShardRoles, node: str, given_up: str) -> bool:
        """Return whether the replicas would lie on fewer machines with the one node instead of the
        other."""
        before = set(map(self._machine, given.replicas))
        after = {self._machine(each) for each in (*given.replicas, node) if each != given_up}
        return len(after) < len(before)

    def _all_present(self, given: ShardRoles) -> bool:
        """Return whether all nodes with a replica are members. A node that is away keeps its
        replica, which a move could take from it."""
        return all(node in self._members for node in given.replicas)

    def _machine(self, node: str) -> str:
        return self._hosts.get(node, node)

    def _on(self, nodes: Iterable[str], shard: int, given: ShardRoles) -> ShardRoles:
        """Return the roles of the shard with its replicas on these nodes."""
        replicas = tuple(self._preferred(shard, nodes))
        return given if replicas == given.replicas else replace(given, replicas=replicas)

    def _preferred(self, shard: int, nodes: Iterable[str]) -> list[str]:
        """Return the nodes in the order of preference for a shard; consecutive shards prefer
        different nodes."""
        nodes = frozenset(nodes)
        ordered = self._sorted.get(nodes)
        if ordered is None:
            ordered = self._sorted[nodes] = sorted(nodes)
        first = shard % len(ordered) if ordered else 0
        return ordered[first:] + ordered[:first]


def _replica_counts(shards: Mapping[int, ShardRoles]) -> Counter[str]:
    return Counter(node for given in shards.values() for node in given.replicas)
