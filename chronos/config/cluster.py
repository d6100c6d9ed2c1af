"""The sections of the configuration about clusters: the coordinator, failover and replication.

All other sections are in `model`."""

from typing import Literal

from pydantic import Field

from chronos.config.values import Duration, Ensemble, Section, Text, Voters, key


class KafkaCoordinatorConfig(Section):
    """The coordinator on Kafka itself, on the brokers of `log.kafka`; for `coordinator.kind:
    kafka`."""

    timeout: Duration = key(
        "1500ms",
        "How long a node may be silent before its shards get other masters, or another controller "
        "takes its place. It must be longer than the brokers need to elect leaders for their "
        "partitions, or a broker that fails moves roles for nothing. A node sends six heartbeats "
        "in this time, or more. The same on all nodes.",
        least="200ms",
        most="1m",
    )


class ZooKeeperConfig(Section):
    """The ZooKeeper ensemble; for `coordinator.kind: zookeeper`."""

    hosts: Ensemble | None = key(
        None,
        (
            "ZooKeeper servers, as `host:port` separated by commas. Required with "
            "`coordinator.kind: zookeeper`."
        ),
    )
    session_timeout: Duration = key(
        "10s",
        "How long a node may be silent before its session ends and its shards get other masters. "
        "A shorter time makes failover faster, and unnecessary failovers more frequent. ZooKeeper "
        "allows 2 to 20 of its ticks.",
        least="4s",
        most="30s",
    )
    path: Text = key(
        "/chronos",
        (
            "Parent znode of all clusters; each cluster has a znode with its name below it. It is "
            "created if it is missing."
        ),
    )
    authentication: Literal["none", "digest", "sasl"] = key(
        "none",
        "How this node authenticates: `digest` is ZooKeeper's own scheme and needs nothing else; "
        "`sasl` is DIGEST-MD5 over SASL and needs the Python package `pure-sasl`.",
    )
    username: Text | None = key(None, "User name of this node. Required with `digest` and `sasl`.")
    password: Text | None = Field(
        default=None,
        repr=False,  # A representation ends up in logs.
        description=(
            "Password of this node; better given as the variable "
            "`CHRONOS_COORDINATOR__ZOOKEEPER__PASSWORD`."
        ),
    )
    acl: Literal["open", "creator"] = key(
        "open",
        "Access to the znodes of Chronos. `open`: every ZooKeeper client may read and change "
        "them, as is ZooKeeper's own default. `creator`: only clients with the credentials of "
        "this node, so all nodes must use the same ones.",
    )
    tls: bool = key(
        False,
        "Encrypt the connections, and check the servers' certificates and names. ZooKeeper servers "
        "use a separate port for TLS (`secureClientPort`).",
    )
    ca: Text | None = key(
        None, "PEM file with the certificate authorities of the servers; null: those of the system."
    )
    certfile: Text | None = key(
        None, "PEM file with this node's certificate, if the servers require one."
    )
    keyfile: Text | None = key(None, "PEM file with the private key of `certfile`.")


class RaftConfig(Section):
    """The coordinator in the nodes themselves; for `coordinator.kind: raft`."""

    peers: Voters = key(
        (),
        "The nodes that vote, each as `node.id=host:port`; three or five, the same list on all "
        "nodes. The port is another one than that of `admin`, and a node of the list listens on "
        "it. Nodes that are not in the list are members without a vote. Required with "
        "`coordinator.kind: raft`.",
    )
    host: Text = key(
        "0.0.0.0",
        "Address on which a node of `peers` listens. Every request there must be authenticated "
        "with `coordinator.secret`; with `admin.tls` the connections are encrypted.",
    )
    timeout: Duration = key(
        "1200ms",
        "How long a node may be silent before its shards get other masters, or another leader is "
        "elected. In this time there are six heartbeats of the leader and six reports of a "
        "node, or more. RocketMQ's DLedger waits `6s`. The "
        "same on all nodes.",
        least="200ms",
        most="1m",
    )


class CoordinatorConfig(Section):
    """How the master of each shard is chosen."""

    kind: Literal["standalone", "kafka", "zookeeper", "raft"] = key(
        "standalone",
        "`standalone`: this node is master of every shard. `kafka`, `zookeeper` and `raft`: "
        "several nodes share the shards and take over from each other; they find each other over "
        "a topic on Kafka itself, over ZooKeeper, or over some of the nodes, which vote.",
    )
    replication: int | None = key(
        None,
        "Number of nodes that hold each shard; null: all nodes, so that each of them can take "
        "over any shard and answer any request itself; of nodes that share a machine (`node.host`) "
        "one. With a number, each added node reduces the load of the others.",
        least=2,
        most=100,
    )
    secret: Text | None = Field(
        default=None,
        repr=False,  # A representation ends up in logs.
        description=(
            "Authenticates the nodes to each other with `coordinator.kind: raft`, which requires "
            "it: at least 16 characters, the same on all nodes; better given as the variable "
            "`CHRONOS_COORDINATOR__SECRET`. Whoever knows it commands the cluster."
        ),
    )
    kafka: KafkaCoordinatorConfig = Field(default_factory=KafkaCoordinatorConfig)
    zookeeper: ZooKeeperConfig = Field(default_factory=ZooKeeperConfig)
    raft: RaftConfig = Field(default_factory=RaftConfig)


class FailoverConfig(Section):
    """Masters that are alive but stuck: nodes of a cluster probe each shard, and replace a master
    that does nothing."""

    on_unhealthy: Literal["off", "armed", "auto"] | None = key(
        None,
        "What happens when two thirds of the nodes find a shard's master unhealthy. `off`: "
        "nothing, and no probes are sent. `armed`: another node becomes master if an operator "
        "permitted it with `chronos failover arm SHARD` within the last 15 s. `auto`: another "
        "node becomes master, at most once in 5 minutes for each shard. null: `auto` with three "
        "registered nodes or more on different machines, else `off`. The same on all nodes. A "
        "master whose session is lost is always replaced.",
    )
    candidate: bool = key(
        True,
        "This node may become master. Off: it holds replicas, answers requests and observes the "
        "masters, and never becomes master of any shard.",
    )
    every: Duration = key(
        "5s",
        (
            "Time between two observations of a shard. A stuck master is found after five to seven "
            "of them; with the default, after 25 to 35 s."
        ),
        least="500ms",
        most="10m",
    )


class ReplicationConfig(Section):
    """Followers that are ready to take a shard over. They bound the time of a failover; messages
    are safe in Kafka without them."""

    mode: Literal["async", "sync"] = key(
        "async",
        "`async`: a shard needs no follower. `sync`: a shard with fewer than `min_in_sync` "
        "followers in sync is reported, and `on_too_few` applies to it. The same on all nodes, as "
        "all of this section.",
    )
    min_in_sync: int = key(
        1,
        "Followers in sync that a shard needs with `mode: sync`, the master not counted. With 1, "
        "one node may fail at any time and another is ready.",
        least=1,
        most=99,
    )
    on_too_few: Literal["warn", "refuse"] = key(
        "refuse",
        "What happens with `mode: sync` to messages for a shard with too few followers in sync. "
        "`refuse`: `POST /v1/messages` answers 503. `warn`: they are accepted. Records that Kafka "
        "clients write to the delay topic are always accepted.",
    )
