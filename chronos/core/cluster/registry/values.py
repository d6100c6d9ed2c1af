"""The values of a registry: the registration of a node, and the answers to nodes and clients."""

from collections.abc import Mapping

from msgspec import Struct

READ, WRITE = 4, 2
"""Bits of a permission."""


class Full(Exception):
    """The registry has as many nodes, replicas, topics or configuration entries as it may have, or
    as large ones."""


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
    """The whole registration of a node."""

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
    """The permissions of the topic; without WRITE while the master is drained or not known."""
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
