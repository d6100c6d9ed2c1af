"""One registry: the tables of the registered nodes, and the answers from them.

A set of brokers of RocketMQ is a shard here: one node is its master, the others are followers. A
registration replaces everything known of its node, except that one without topics (None) leaves
those registered before.

Tables: node -> its registration and the time of the last one; address -> node; (cluster,
shard) -> the nodes that hold it; cluster -> its nodes and shards; topic -> the shards whose master
registered it. RocketMQ's fifth table, of filter servers, has no counterpart. An answer that was
given stays as it is when the tables change. No locks: one thread owns a registry."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Literal

from msgspec import Struct

from chronos.core.cluster.registry.configuration import Configuration
from chronos.core.cluster.registry.values import (
    WRITE,
    Answer,
    ClusterSummary,
    Endpoint,
    Full,
    Holding,
    KnownNode,
    Registration,
    RegistryRoute,
    Routes,
    TopicConfig,
)

EXPIRE_AFTER_MS = 120_000
"""Time after its last registration at which a node is removed."""

SCANS = 3
"""Scans for expired nodes in an interval of registrations; the first comes in half that time, and a
node registers with others that soon after its start."""

NODES_MAX = 10_000
"""Most registered nodes."""

HOLDINGS_MAX = 100_000
"""Most replicas that all these nodes together register: some tens of megabytes."""

TOPICS_MAX = 200_000
"""Most topics that all these registrations together have, and that all shards together have: two
for each replica. Some tens of megabytes."""

_Key = tuple[str, str]
"""Cluster and node."""
_Shard = tuple[str, int]
"""Cluster and number of the shard."""


class _Live(Struct, frozen=True):
    registration: Registration
    registered_ms: int


class _Used(Struct):
    """The numbers of nodes, replicas and topics that are registered, which are bounded."""

    nodes: int = 0
    replicas: int = 0
    topics: int = 0
    """Topics of the registrations."""
    served: int = 0
    """Topics of the shards."""

    def count(self, registration: Registration, times: int) -> None:
        """Add a registration, or take it away with -1."""
        self.nodes += times
        self.replicas += times * len(registration.shards)
        self.topics += times * _topics_in(registration)


class Registry:
    """The tables of one registry. Times are milliseconds of any clock that does not step back."""

    def __init__(self) -> None:
        self.changes = 0
        """Grows whenever an answer about routes may have changed."""
        self._live: dict[_Key, _Live] = {}
        self._used = _Used()
        self._addresses: dict[str, _Key] = {}
        self._holders: dict[_Shard, dict[str, Holding]] = {}
        self._members: dict[str, tuple[set[str], set[int]]] = {}
        """By cluster: its nodes and its shards."""
        self._topics: dict[str, dict[_Shard, TopicConfig]] = {}
        self._topics_of: dict[_Shard, Mapping[str, TopicConfig]] = {}
        """Shard -> the topics that its master registered."""
        self._config: Configuration = {}

    # --- registration

    def register(self, registration: Registration, now_ms: int) -> Answer:
        """Replace the registration of a node. Raises Full.

        1. State versions decide whether the registration counts.
        2. The node is added to its cluster, and removed from shards that it no longer registers.
        3. It becomes a holder of its shards, and master where no other one has a greater epoch.
        4. The topics of each shard that it is master of are replaced.
        5. Its registration becomes the live one.
        6. The answer names the masters of the shards that it follows."""
        cluster, node = key = (registration.cluster, registration.node)
        live = self._live.get(key)
        # 1. One address has one record: of two nodes with one address, the newer state counts.
        same_address = self._addresses.get(registration.address, key)
        for other in (live, self._live.get(same_address)):
            if other is not None and other.registration.state_version > registration.state_version:
                newer = other.registration
                return Answer(accepted=False, state_version=newer.state_version, node=newer.node)
        self._check_bounds(registration, {key, same_address})
        self._check_topics(registration, {key, same_address})
        if same_address != key:
            self._remove(same_address)
        known = None if live is None else live.registration
        # 2.
        nodes, shards = self._members.setdefault(cluster, (set(), set()))
        nodes.add(node)
        if known is not None:
            self._addresses.pop(known.address, None)
            for shard in known.shards.keys() - registration.shards.keys():
                self._drop_holder((cluster, shard), node)
        # 3.
        is_new_version = known is None or known.state_version != registration.state_version
        self.changes += known != registration
        refused = []
        for shard, holding in registration.shards.items():
            shards.add(shard)
            holders = self._holders.setdefault((cluster, shard), {})
            master = _master_of(holders)
            is_first = holding.master and master != node
            if is_first and master is not None:
                if holders[master].epoch > holding.epoch:
                    self.changes += holders.pop(node, None) is not None
                    refused.append(shard)
                    continue
                del holders[master]
            self.changes += holders.get(node) != holding
            holders[node] = holding
            # 4.
            if holding.master and registration.topics is not None and (is_new_version or is_first):
                self._put_topics((cluster, shard), registration.topics)
        # 5.
        if known is not None:
            self._used.count(known, -1)
        self._used.count(registration, 1)
        self._addresses[registration.address] = key
        self._live[key] = _Live(registration, now_ms)
        # 6.
        masters = {
            shard: self._endpoint((cluster, master))
            for shard, holding in registration.shards.items()
            if (master := _master_of(self._holders[cluster, shard])) not in (None, node)
        }
        return Answer(
            accepted=True,
            state_version=registration.state_version,
            node=node,
            refused=tuple(sorted(refused)),
            masters=masters,
        )

    def _check_bounds(self, registration: Registration, replaced: AbstractSet[_Key]) -> None:
        """Raise Full if the registry would be too large with a registration in place of those of
        these nodes."""
        used, known = self._used, self._replaced(replaced)
        if used.nodes - len(known) >= NODES_MAX:
            raise Full(f"{NODES_MAX} nodes are registered, which is the most")
        if (
            used.replicas - sum(len(each.shards) for each in known) + len(registration.shards)
            > HOLDINGS_MAX
        ):
            raise Full(f"{used.replicas} replicas are registered; {HOLDINGS_MAX} are the most")

    def _check_topics(self, registration: Registration, replaced: AbstractSet[_Key]) -> None:
        """Raise Full if there would be too many topics; those that the registration puts in place
        of others do not count."""
        used = self._used
        before = sum(map(_topics_in, self._replaced(replaced)))
        if used.topics - before + _topics_in(registration) > TOPICS_MAX:
            raise Full(f"{used.topics} topics are registered; {TOPICS_MAX} are the most")
        if registration.topics is None:
            return
        led = [
            (registration.cluster, shard)
            for shard, holding in registration.shards.items()
            if holding.master
        ]
        before = sum(len(self._topics_of.get(shard, {})) for shard in led)
        if used.served - before + len(led) * len(registration.topics) > TOPICS_MAX:
            raise Full(f"the shards have {used.served} topics; {TOPICS_MAX} are the most")

    def _replaced(self, keys: AbstractSet[_Key]) -> list[Registration]:
        """Return the registrations of these nodes."""
        return [live.registration for key in keys if (live := self._live.get(key)) is not None]

    def unregister(
        self, cluster: str, node: str, state_version: int
    ) -> Literal["removed", "ignored", "unknown"]:
        """Remove a node that stops. Return `ignored` if its next process has registered a newer
        state."""
        live = self._live.get((cluster, node))
        if live is None:
            return "unknown"
        if live.registration.state_version > state_version:
            return "ignored"
        self._remove((cluster, node))
        return "removed"

    def expire(self, now_ms: int) -> list[KnownNode]:
        """Remove the nodes whose last registration is older than their time, and return them."""
        expired = [
            (key, self._node(key))
            for key, live in self._live.items()
            if live.registered_ms + (live.registration.expire_after_ms or EXPIRE_AFTER_MS) < now_ms
        ]
        for key, _ in expired:
            self._remove(key)
        return [node for _, node in expired]

    def _remove(self, key: _Key) -> None:
        """Remove everything known of a node; a second call does nothing."""
        live = self._live.pop(key, None)
        if live is None:
            return
        self.changes += 1
        self._used.count(live.registration, -1)
        cluster, node = key
        if self._addresses.get(live.registration.address) == key:
            del self._addresses[live.registration.address]
        # The node's own registration names its shards, so no table is scanned.
        for shard in live.registration.shards:
            self._drop_holder((cluster, shard), node)
        nodes, shards = self._members[cluster]
        nodes.discard(node)
        if not nodes:
            assert not shards, "a shard has a holder that is not registered"
            del self._members[cluster]

    def _drop_holder(self, shard: _Shard, node: str) -> None:
        """Remove a node from a shard; the last one takes the shard, and its part of each topic,
        with it."""
        holders = self._holders.get(shard)
        if holders is None:
            return
        holders.pop(node, None)
        if holders:
            return
        del self._holders[shard]
        self._members[shard[0]][1].discard(shard[1])
        self._put_topics(shard, {})

    def _put_topics(self, shard: _Shard, topics: Mapping[str, TopicConfig]) -> None:
        """Replace the topics of a shard; a topic that is no longer registered for any shard is
        removed."""
        self.changes += 1
        before = self._topics_of.pop(shard, {})
        self._used.served -= len(before)
        for topic in before.keys() - topics.keys():
            self._drop_topic(topic, shard)
        for topic, config in topics.items():
            self._topics.setdefault(topic, {})[shard] = config
        if topics:
            self._topics_of[shard] = dict(topics)
            self._used.served += len(topics)

    def _drop_topic(self, topic: str, shard: _Shard) -> None:
        shards = self._topics[topic]
        del shards[shard]
        if not shards:
            del self._topics[topic]

    # --- queries

    def routes(self, cluster: str, topic: str, shard: int | None = None) -> Routes | None:
        """Return the routes of a topic, or of one shard; None unless both its shards and their
        nodes are known."""
        shards = self._topics.get(topic, {})
        if shard is None:
            queues = {number: config for (of, number), config in shards.items() if of == cluster}
        else:
            queues = {shard: shards[cluster, shard]} if (cluster, shard) in shards else {}
        routes = tuple(self._route(cluster, number, queues[number]) for number in sorted(queues))
        if not routes:
            return None
        return Routes(
            partitions=max(config.partitions for config in queues.values()),
            routes=routes,
        )

    def _route(self, cluster: str, shard: int, config: TopicConfig) -> RegistryRoute:
        holders = self._holders[cluster, shard]
        master = _master_of(holders)
        is_writable = master is not None and self._live[cluster, master].registration.writable
        return RegistryRoute(
            shard=shard,
            permissions=config.permissions if is_writable else config.permissions & ~WRITE,
            master=None if master is None else self._endpoint((cluster, master)),
            followers=tuple(
                self._endpoint((cluster, node)) for node in sorted(holders) if node != master
            ),
        )

    def nodes(self, cluster: str | None = None) -> list[KnownNode]:
        """Return the registered nodes of a cluster, or of all, in the order of their names."""
        return [self._node(key) for key in sorted(self._live) if cluster in (None, key[0])]

    def topics(self, cluster: str) -> dict[str, TopicConfig]:
        """Return the registered topics of a cluster."""
        return {
            topic: next(config for (of, _), config in shards.items() if of == cluster)
            for topic, shards in sorted(self._topics.items())
            if any(of == cluster for of, _ in shards)
        }

    def clusters(self) -> dict[str, ClusterSummary]:
        """Return the registered clusters."""
        return {
            cluster: ClusterSummary(nodes=tuple(sorted(nodes)), shards=tuple(sorted(shards)))
            for cluster, (nodes, shards) in sorted(self._members.items())
        }

    # --- changes of an operator

    def delete_topic(self, cluster: str, topic: str) -> bool:
        """Remove a topic until a master registers it with a new state; return whether it was
        registered."""
        shards = [shard for shard in self._topics.get(topic, {}) if shard[0] == cluster]
        for shard in shards:
            left = {
                name: config for name, config in self._topics_of[shard].items() if name != topic
            }
            self._put_topics(shard, left)
        return bool(shards)

    def configure(self, configuration: Configuration) -> None:
        """Replace the configuration."""
        if configuration is not self._config:
            self._config = configuration
            self.changes += 1

    # --- parts of answers

    def _node(self, key: _Key) -> KnownNode:
        live = self._live[key]
        return KnownNode(registration=live.registration, registered_ms=live.registered_ms)

    def _endpoint(self, key: _Key) -> Endpoint:
        return Endpoint(node=key[1], address=self._live[key].registration.address)


def _topics_in(registration: Registration) -> int:
    return len(registration.topics or ())


def _master_of(holders: Mapping[str, Holding]) -> str | None:
    return next((node for node, holding in holders.items() if holding.master), None)
