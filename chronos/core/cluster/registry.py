"""The registry: which node serves which shard, after the rules of RocketMQ's NameServer; and the
registration of one node with all registries.

A set of brokers is a shard here: one node is its master, the others are followers. Nodes register
with every registry; registries store no registrations and do not exchange anything. The
configuration alone is kept: by the coordinator, or in a file by a standalone node. A registration
replaces everything known of its node. Safety never depends on it: a stale route costs a forwarded
request, because the log fences.

Tables: node -> its registration and the time of the last one; address -> node; (cluster,
shard) -> the nodes that hold it; cluster -> its nodes and shards; topic -> the shards whose master
registered it. RocketMQ's fifth table, of filter servers, has no counterpart. All answers
are copies. No locks: one thread owns a registry.

After RocketMQ: each time the whole registration, at once when it changes, else every
interval. A registry that does not answer is asked again after a pause. No registry waits for
another one."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

EXPIRE_AFTER_MS = 120_000
"""Time after its last registration at which a node is removed."""

EXPIRE_INTERVALS = 4
"""The same of a node that registers itself, in its intervals: three registrations in a row may be
lost."""

SCANS = 3
"""Scans for expired nodes in an interval of registrations; the first comes in half that time, and a
node registers with others that soon after its start."""

READ, WRITE = 4, 2
"""Bits of a permission."""

NODES_MAX = 10_000
"""Most registered nodes."""

HOLDINGS_MAX = 100_000
"""Most replicas that all these nodes together register: some tens of megabytes."""

TOPICS_MAX = 200_000
"""Most topics that all these registrations together have, and that all shards together have: two
for each replica. Some tens of megabytes."""

ENTRIES_MAX = 1_000
"""Most configuration entries of a registry."""

CONFIGURATION_BYTES_MAX = 65_536
"""Most bytes of all of them, names included: the coordinator keeps them with the roles, and may
store no more than 1 MB."""

Configuration = Mapping[str, Mapping[str, str]]
"""Values for clients: namespace -> key -> value."""


class Full(Exception):
    """The registry has as many nodes, replicas, topics or configuration entries as it may have, or
    as large ones."""


def configured(known: Configuration, namespace: str, key: str, value: str | None) -> Configuration:
    """Return the configuration with the value set; None: without it. Raises Full."""
    values = {name: content for name, content in known.get(namespace, {}).items() if name != key}
    if value is not None:
        values[key] = value
    changed = {name: content for name, content in {**known, namespace: values}.items() if content}
    if value is None:
        return changed
    entries = [
        (name, each, content) for name, pairs in changed.items() for each, content in pairs.items()
    ]
    if len(entries) > ENTRIES_MAX:
        raise Full(f"the registry has {ENTRIES_MAX} configuration entries, which is the most")
    if (
        size := sum(len(text.encode()) for entry in entries for text in entry)
    ) > CONFIGURATION_BYTES_MAX:
        raise Full(
            f"the configuration of the registry would have {size} bytes, and may have "
            f"{CONFIGURATION_BYTES_MAX}"
        )
    return changed


class Holding(Struct, frozen=True, kw_only=True):
    """A replica of a shard, as its node registers it."""

    master: bool
    """True: the node is the shard's master. False: it follows."""
    epoch: int
    """The role epoch that the node knows: of two nodes that register as master, the greater one
    wins."""


class TopicConfig(Struct, frozen=True, kw_only=True):
    """A topic whose partitions are shards, as a master registers it."""

    partitions: int
    permissions: int
    """READ, WRITE or both: what clients may do with it."""


class Registration(Struct, frozen=True, kw_only=True):
    """Everything that a node registers."""

    cluster: str
    node: str
    instance: str
    """The id of its data directory."""
    address: str
    """The URL of its HTTP interface. One address belongs to one node."""
    version: str
    """Version of the software."""
    state_version: int
    """Grows with every change of the other fields, also across restarts: an older registration
    never displaces a newer one."""
    writable: bool = True
    """False: the node is drained."""
    expire_after_ms: int | None = None
    """How long the registration counts; None: as long as the registry decides."""
    shards: Mapping[int, Holding] = {}
    """The replicas that the node holds, by number of the shard."""
    topics: Mapping[str, TopicConfig] | None = None
    """The topics of the cluster; None: as registered before."""


class Endpoint(Struct, frozen=True, kw_only=True):
    """A node and its address."""

    node: str
    address: str


class Answer(Struct, frozen=True, kw_only=True):
    """The result of a registration."""

    accepted: bool
    """False: ignored, because a newer state of the node, or of another node with its address, is
    registered."""
    state_version: int
    """The state version that is registered now."""
    node: str
    """The node that has it: the sender, or the one with its address."""
    refused: tuple[int, ...] = ()
    """Shards of which another node is registered as master with a greater role epoch."""
    masters: Mapping[int, Endpoint] = {}
    """The registered masters of the shards that the node follows."""


class RegistryRoute(Struct, frozen=True, kw_only=True):
    """The nodes that serve one shard of a topic."""

    shard: int
    permissions: int
    """Those of the topic; without WRITE while the master is drained or not known."""
    master: Endpoint | None
    followers: tuple[Endpoint, ...]
    """In the order of their names."""


class Routes(Struct, frozen=True, kw_only=True):
    """The routes of a topic."""

    partitions: int
    """Number of shards that the topic has, registered or not."""
    routes: tuple[RegistryRoute, ...]
    """By shard; those without a registered node are missing."""


class KnownNode(Struct, frozen=True, kw_only=True):
    """A registered node."""

    registration: Registration
    registered_ms: int
    """Time of its last registration."""


class ClusterSummary(Struct, frozen=True, kw_only=True):
    """The nodes and shards of a cluster."""

    nodes: tuple[str, ...]
    shards: tuple[int, ...]


_Key = tuple[str, str]
"""Cluster and node."""
_Shard = tuple[str, int]
"""Cluster and number of the shard."""


class _Live(Struct, frozen=True):
    registration: Registration
    registered_ms: int


class _Used(Struct):
    """What registrations take of the registry's bounds."""

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
        """The same by shard."""
        self._config: Configuration = {}

    # --- registration

    def register(self, registration: Registration, now_ms: int) -> Answer:
        """Replace what is known of a node, in six steps: state versions decide whether it counts;
        the nodes of the cluster; the holders of each shard; the topics of a shard that it is master
        of; the live table; the answer. Raises Full."""
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
        """The registrations of these nodes."""
        return [live.registration for key in keys if (live := self._live.get(key)) is not None]

    def unregister(
        self, cluster: str, node: str, state_version: int
    ) -> Literal["removed", "ignored", "unknown"]:
        """Remove a node that stops; `ignored`: a newer state of it is registered, by its
        next process."""
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
        """Make these the topics of a shard; one that is no longer registered for any shard is
        gone."""
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
        found = [shard for shard in self._topics.get(topic, {}) if shard[0] == cluster]
        for shard in found:
            left = {
                name: config for name, config in self._topics_of[shard].items() if name != topic
            }
            self._put_topics(shard, left)
        return bool(found)

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


RETRY_MS = 5_000
"""Pause before a registry that failed is asked again."""

FAILURES_TOLD = 2
"""Failures in a row that are worth a warning."""


class Peer(Struct):
    """The registry of another node."""

    node: str
    incarnation: int
    """Start of its process: the registry of the next process is empty."""
    due_ms: int
    """When to register again."""
    state_version: int
    """The state that it answered last, or that of the first look at it."""
    failures: int = 0
    """Times in a row that it did not answer."""
    is_asked: bool = False
    """A registration was sent and not answered yet."""


class OwnRegistration:
    """The registration of one node. Times are milliseconds of any clock that does not step,
    `wall_ms` is epoch time."""

    def __init__(self, *, started_ms: int, after_ms: int, every_ms: int) -> None:
        """`after_ms`: time from the start to the first registration with others. `every_ms`: the
        interval."""
        self.state: Registration | None = None
        """As it was last renewed; None before the first time."""
        self._first_ms = started_ms + after_ms
        self._every_ms = every_ms
        self._own_due_ms = 0
        self._peers: dict[str, Peer] = {}

    def renew(self, found: Registration, wall_ms: int) -> Registration:
        """Take what the node serves now; the state version grows with every change of it, also
        across restarts.

        The version of `found` counts for nothing.
        """
        known = self.state
        if known is None:
            self.state = replace(found, state_version=wall_ms)
        elif replace(found, state_version=known.state_version) != known:
            self.state = replace(found, state_version=max(known.state_version + 1, wall_ms))
        else:
            return known
        self._own_due_ms = 0
        return self.state

    def own_is_due(self, now_ms: int) -> bool:
        """Return whether the node's own registry gets the registration now; if so, it is due again
        after the interval."""
        if now_ms < self._own_due_ms:
            return False
        self._own_due_ms = now_ms + self._every_ms
        return True

    def due(self, incarnations: Mapping[str, int], now_ms: int) -> list[Peer]:
        """Return the registries to send the registration to now, which are then asked.
        `incarnations`: the start of each other node's process."""
        assert self.state is not None, "renewed before"
        for node in self._peers.keys() - incarnations.keys():
            del self._peers[node]
        found = []
        for node, incarnation in incarnations.items():
            peer = self._peers.get(node)
            if peer is None or peer.incarnation != incarnation:
                # The state at the start is no change.
                first_ms = max(now_ms, self._first_ms)
                peer = self._peers[node] = Peer(
                    node, incarnation, first_ms, self.state.state_version
                )
            is_changed = not peer.failures and peer.state_version != self.state.state_version
            if (now_ms >= peer.due_ms or is_changed) and not peer.is_asked:
                peer.is_asked = True
                found.append(peer)
        return found

    def failed(self, peer: Peer, now_ms: int) -> bool:
        """Note that a registry did not answer; return whether that is worth a warning: a node that
        has just joined is a member for a moment before it listens."""
        failures = peer.failures + 1
        peer.is_asked, peer.failures, peer.due_ms = False, failures, now_ms + RETRY_MS
        return failures == FAILURES_TOLD

    def answered(self, peer: Peer, sent: Registration, now_ms: int) -> bool:
        """Note that a registry answered; return whether its failure was told."""
        failed = peer.failures >= FAILURES_TOLD
        peer.is_asked, peer.failures, peer.due_ms = False, 0, now_ms + self._every_ms
        peer.state_version = sent.state_version
        return failed

    def overtaken(self, sent: Registration, state_version: int) -> None:
        """A registry has a later state of this node: the clock was set back between two of its
        processes."""
        if self.state is sent:
            self.state = replace(sent, state_version=state_version + 1)
            self._own_due_ms = 0
