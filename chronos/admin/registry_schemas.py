"""The types of `/v1/registry`."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from chronos.admin.schemas import ADDRESS_PATTERN, Instant, ShardNumber, TopicName

SHARDS_MAX = 1_024
"""Most shards of a registration."""

TOPICS_MAX = 100
"""Most topics of a registration."""

NAME_CHARACTERS_MAX = 250
"""Longest name of a cluster, and of a namespace or key of the configuration."""

VALUE_CHARACTERS_MAX = 16_384
"""Longest value of the configuration."""

Short = Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS_MAX)]
ClusterName = Annotated[
    str,
    Meta(min_length=1, max_length=NAME_CHARACTERS_MAX, title="cluster", description="Name of a cluster (`cluster`)."),
]
ConfigName = Annotated[
    str,
    Meta(
        min_length=1, title="name", description="Namespace of the configuration, or key in one: at most 250 characters."
    ),
]
Address = Annotated[
    str,
    Meta(max_length=1_000, pattern=ADDRESS_PATTERN, title="URL", description="URL of a node, without credentials."),
]
Permissions = Annotated[
    list[Literal["read", "write"]],
    Meta(max_length=2, description="What clients may do: follow the topic's pending messages, write to it."),
]
StateVersion = Annotated[
    int,
    Meta(
        ge=0,
        le=2**63 - 1,
        description="Grows with every change of the registration, also across restarts: the time of the change (epoch ms). An older one never "
        "displaces a newer one. At most a day ahead of the clock of the node asked.",
    ),
]
Partitions = Annotated[int, Meta(ge=1, le=SHARDS_MAX, description="Partitions of the topic: the number of shards.")]


class RegisteredShard(Struct, forbid_unknown_fields=True, kw_only=True):
    """A node's replica of a shard."""

    shard: ShardNumber
    role: Literal["master", "follower"]
    epoch: Annotated[
        int, Meta(ge=0, le=2**63 - 1, description="The role epoch. Of two masters the greater one is the master.")
    ]


class RegisteredTopic(Struct, forbid_unknown_fields=True, kw_only=True):
    """A topic whose partitions are shards."""

    topic: TopicName
    partitions: Partitions
    permissions: Permissions


class RegistrationBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """A node with all that it serves; it replaces what was registered before."""

    cluster: ClusterName
    instance: Annotated[Short, Meta(description="Id of the node's data directory.")]
    address: Address
    version: Annotated[Short, Meta(description="Version of Chronos.")]
    state_version: StateVersion
    writable: Annotated[bool, Meta(description="False: the node is drained.")] = True
    expire_after: (
        Annotated[
            int,
            Meta(
                ge=1, le=86_400_000, description="Milliseconds after which it expires; absent: `registry.expire_after`."
            ),
        ]
        | UnsetType
    ) = UNSET
    shards: Annotated[list[RegisteredShard], Meta(max_length=SHARDS_MAX)]
    topics: (
        Annotated[
            list[RegisteredTopic],
            Meta(
                max_length=TOPICS_MAX, description="Counts for the shards that the node is master of; null: as before."
            ),
        ]
        | None
    ) = None


class NodeAddress(Struct, kw_only=True):
    """A node, and where to reach it."""

    node: str
    address: str
    announced: Annotated[
        bool,
        Meta(
            description="True: the node registered itself, as a member of the cluster. Clients send tokens to no other address."
        ),
    ]


class ShardMaster(Struct, kw_only=True):
    """The registered master of a shard."""

    shard: ShardNumber
    master: NodeAddress


class RegistrationResult(Struct, kw_only=True):
    """The result of a registration."""

    result: Annotated[
        Literal["registered", "ignored"],
        Meta(description="`ignored`: a newer state of the node, or of another node with its address, is registered."),
    ]
    state_version: Annotated[StateVersion, Meta(description="The state version that is registered now.")]
    node: Annotated[str, Meta(description="The node that has it.")]
    refused: Annotated[
        list[ShardNumber],
        Meta(description="Shards of which another node is registered as master with a greater role epoch."),
    ]
    masters: Annotated[list[ShardMaster], Meta(description="The masters of the shards that the node follows.")]


class UnregistrationResult(Struct, kw_only=True):
    """The result of an un-registration."""

    result: Annotated[
        Literal["removed", "ignored", "unknown"],
        Meta(description="`ignored`: a newer state of the node is registered. `unknown`: the node was not registered."),
    ]


class RegisteredNode(Struct, kw_only=True):
    """A registered node."""

    cluster: str
    node: str
    instance: str
    address: str
    announced: Annotated[
        bool,
        Meta(
            description="True: the node registered itself, as a member of the cluster. Clients send tokens to no other address."
        ),
    ]
    version: str
    state_version: StateVersion
    writable: Annotated[bool, Meta(description="False: it is drained, or its write permission is wiped.")]
    registered_at: Annotated[Instant, Meta(description="Time of its last registration.")]
    shards: list[RegisteredShard]


class RegisteredNodes(Struct, kw_only=True):
    """The registered nodes."""

    registry: Annotated[str, Meta(description="The node whose registry answers.")]
    nodes: list[RegisteredNode]


class ShardRoute(Struct, kw_only=True):
    """The nodes that serve a shard."""

    shard: ShardNumber
    permissions: Permissions
    master: Annotated[NodeAddress | None, Meta(description="null: none is registered.")]
    followers: list[NodeAddress]


class ShardRoutes(Struct, kw_only=True, omit_defaults=True):
    """The routes of a topic."""

    cluster: str
    topic: str
    partitions: Partitions
    routes: Annotated[list[ShardRoute], Meta(description="By shard. A shard without a registered node is missing.")]
    order: Annotated[
        str | UnsetType,
        Meta(description="The topic's value in `ORDER_TOPIC_CONFIG`; only with `registry.order_config: on`."),
    ] = UNSET


class TopicInCluster(Struct, kw_only=True):
    """A registered topic."""

    cluster: str
    topic: str
    partitions: Partitions
    permissions: Permissions


class RegisteredTopics(Struct, kw_only=True):
    """The registered topics."""

    topics: list[TopicInCluster]


class RegisteredCluster(Struct, kw_only=True):
    """A cluster with registered nodes."""

    cluster: str
    nodes: list[str]
    shards: Annotated[list[ShardNumber], Meta(description="Shards with at least one node.")]


class RegisteredClusters(Struct, kw_only=True):
    """The clusters with registered nodes."""

    clusters: list[RegisteredCluster]


class Namespaces(Struct, kw_only=True):
    """The namespaces of the configuration."""

    namespaces: list[str]


class NamespaceValues(Struct, kw_only=True):
    """The values of one namespace."""

    namespace: str
    values: dict[str, str]


class ConfigEntry(Struct, kw_only=True):
    """One value of the configuration."""

    registry: Annotated[str, Meta(description="The node whose registry answers.")]
    namespace: str
    key: str
    value: str


class ConfigChange(Struct, forbid_unknown_fields=True, kw_only=True):
    """A value to set."""

    value: Annotated[str, Meta(max_length=VALUE_CHARACTERS_MAX)]


# --- Queries


class RegistryQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which cluster."""

    cluster: Annotated[ClusterName, Meta(description="Default: all.")] | UnsetType = UNSET


class OneClusterQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which cluster."""

    cluster: Annotated[ClusterName, Meta(description="Default: that of the node asked.")] | UnsetType = UNSET


class RoutesQuery(OneClusterQuery):
    """Which routes."""

    topic: Annotated[TopicName, Meta(description="Default: the delay topic of the node asked.")] | UnsetType = UNSET
    shard: Annotated[ShardNumber, Meta(description="Default: all.")] | UnsetType = UNSET


class UnregistrationQuery(OneClusterQuery):
    """Which state of which node."""

    state_version: (
        Annotated[StateVersion, Meta(description="The state that ends; a newer one stays. Default: any.")] | UnsetType
    ) = UNSET
