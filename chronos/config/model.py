"""Every key there is: its type, default and bounds, and its meaning with unit and reason.

This is the only list. The reference, the example file, the names of variables and the hints for mistyped
keys are all read off these models. A model built in code has its values checked, not the relations
between them: `load` does that.
"""

import socket
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from chronos.config.values import (
    Address,
    Addresses,
    Duration,
    Name,
    Patterns,
    Replicas,
    Size,
    Text,
    Topic,
    duration_ms,
    size_bytes,
)
from chronos.core.timefmt import UNIT_MS


def key(default: object, meaning: str, *, least: object = None, most: object = None) -> Any:
    """A key: its default and bounds as a person would write them, its meaning with unit and reason."""
    return Field(default, description=meaning, validate_default=True, ge=_number(least), le=_number(most))


def _number(bound: object) -> int | None:
    if bound is None or isinstance(bound, int):
        return bound
    return duration_ms(bound) if str(bound).endswith(tuple(UNIT_MS)) else size_bytes(bound)


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class NodeConfig(_Section):
    """Who this process is, and where it keeps its state."""

    id: Name = Field(
        default_factory=lambda: socket.gethostname(),
        validate_default=True,
        description="Name of this node, unique in the cluster and the same after a restart: it is bound to "
        "`data_dir`. The default is the host's name.",
    )
    data_dir: Text = key(
        "chronos-data",
        "Directory of the store and, with the embedded log, of the log; relative to the working directory. "
        "It must be on a local disk.",
    )


class KafkaLogConfig(_Section):
    """The Kafka cluster; used with `log.kind: kafka`."""

    bootstrap_servers: Addresses | None = key(
        None, "Brokers to start from, as `host:port` separated by commas. Required with `log.kind: kafka`."
    )
    properties: Mapping[str, str] = Field(
        default_factory=dict,
        repr=False,  # It holds passwords, and a representation ends up in logs.
        description="Further librdkafka properties by their own names, such as `security.protocol`; passed "
        "to every client. Those on which exactly once rests belong to Chronos and are refused. "
        "A single one can be given as `--set log.kafka.properties.sasl.username=x`, or as "
        "`CHRONOS_LOG__KAFKA__PROPERTIES__SASL_USERNAME=x` ('_' stands for '.').",
    )


class EmbeddedLogConfig(_Section):
    """The log inside the process; used with `log.kind: embedded`."""

    retention: Duration = key(
        "7d",
        "How long records of target topics are kept. A week, as Kafka's own default, "
        "so that a consumer may miss a weekend.",
        least="1s", most="36500d",
    )  # fmt: skip
    partitions: int = key(
        1,
        "Partitions of a target topic created on its first use. One keeps all of a topic in order, "
        "and a single process gains little from more.",
        least=1, most=1024,
    )  # fmt: skip


class LogConfig(_Section):
    """Where messages come from and go to."""

    kind: Literal["embedded", "kafka"] = key(
        "embedded",
        "`embedded` is a durable log inside this one process and needs nothing installed; "
        "`kafka` is for everything else. The embedded log is not a broker for clusters.",
    )
    kafka: KafkaLogConfig = Field(default_factory=KafkaLogConfig)
    embedded: EmbeddedLogConfig = Field(default_factory=EmbeddedLogConfig)


class TopicsConfig(_Section):
    """Chronos's own topics."""

    delay: Topic = key("chronos.delay", "Topic that producers write delayed messages to.")
    progress: Topic = key("chronos.progress", "Topic of the progress records: what every step decided.")
    rejected: Topic = key("chronos.rejected", "Topic of the records that were refused, each with its reason.")
    dead_letter: Topic = key("chronos.dead-letter", "Topic of the messages that could not be delivered.")
    partitioner: Literal["any", "murmur2"] = key(
        "any",
        "`murmur2`: all producers place keys as Java clients do, and an id in another shard than its key "
        "belongs to is refused. `any`: it is accepted with a warning, and ids are unique per shard only. "
        "`any` is the default because librdkafka clients place keys otherwise unless told.",
    )
    create: bool = key(
        True,
        "Create those of these topics that are missing. Off where topics are made by others; "
        "their settings are checked at every start either way.",
    )
    replication_factor: Replicas = key(
        -1,
        "Replicas of a topic that Chronos creates; -1 takes the broker's default, which its operator chose. "
        "Use 3 in production: with one, a broken broker stops its shards.",
        least=-1, most=100,
    )  # fmt: skip
    min_insync_replicas: int | None = key(
        None,
        "Replicas that must hold a record before it counts as written, in topics that Chronos creates; "
        "null takes the broker's default. 2 goes with 3 replicas.",
        least=1, most=100,
    )  # fmt: skip
    message_bytes_max: Size = key(
        "1MiB",
        "Largest record the delay topic takes, in bytes, headers included. It is Kafka's own default. The "
        "rejected and dead-letter topics get headroom on top, so that what came in can go out.",
        least="1KiB", most="512MiB",
    )  # fmt: skip


class ZooKeeperConfig(_Section):
    """The ZooKeeper ensemble; for `coordinator.kind: zookeeper`."""

    hosts: Addresses | None = key(
        None,
        "ZooKeeper servers, as `host:port` separated by commas. Required with `coordinator.kind: zookeeper`.",
    )
    session_timeout: Duration = key(
        "10s",
        "How long a node may be silent before its session ends and its shards get another master. Shorter "
        "switches sooner, and more often for nothing; ZooKeeper grants between 2 and 20 of its ticks.",
        least="4s", most="30s",
    )  # fmt: skip
    path: Text = key(
        "/chronos",
        "Where clusters are kept in ZooKeeper; each has a znode with its name below it. It is made if it is missing.",
    )
    authentication: Literal["none", "digest", "sasl"] = key(
        "none",
        "How this node says who it is: `digest` is ZooKeeper's own scheme and needs nothing else; `sasl` is "
        "DIGEST-MD5 over SASL and needs the Python package `pure-sasl`.",
    )
    username: Text | None = key(None, "Who this node is. Required with `digest` and `sasl`.")
    password: Text | None = Field(
        default=None,
        repr=False,  # A representation ends up in logs.
        description="Its password; better given as the variable `CHRONOS_COORDINATOR__ZOOKEEPER__PASSWORD`.",
    )
    acl: Literal["open", "creator"] = key(
        "open",
        "Who may read and change what Chronos keeps in ZooKeeper: `open` for everybody, as ZooKeeper's own default; "
        "`creator` for those who authenticate as this node does, so all nodes must do it alike.",
    )
    tls: bool = key(
        False,
        "Encrypt the connections, and check the servers' certificates and names. The servers have "
        "a port of their own for it (`secureClientPort`).",
    )
    ca: Text | None = key(
        None, "PEM file with the certificates of who signed those of the servers; null takes those of the system."
    )
    certfile: Text | None = key(None, "PEM file with this node's certificate, where the servers ask for one.")
    keyfile: Text | None = key(None, "PEM file with the private key of `certfile`.")


class CoordinatorConfig(_Section):
    """Who decides which node is master of which shard."""

    kind: Literal["standalone", "zookeeper", "raft"] = key(
        "standalone",
        "`standalone`: this node is master of every shard. `zookeeper`: several nodes share the shards, and take "
        "over from each other. `raft` is not supported yet.",
    )
    replication: int | None = key(
        None,
        "How many nodes hold each shard; null: every node, so that any of them can take over and answer for all. "
        "A number makes a node that is added take load off the others.",
        least=2, most=100,
    )  # fmt: skip
    zookeeper: ZooKeeperConfig = Field(default_factory=ZooKeeperConfig)


class WorkersConfig(_Section):
    """What this node does: everything, unless a part is stopped on purpose."""

    pull: bool = key(True, "Read the delay topic. Off: nothing new is taken in, what is pending is delivered.")
    push: bool = key(True, "Deliver what is due. Off: messages are accepted and wait.")
    delete: bool = key(True, "Drop from the store what is settled and older than its retention.")


class LimitsConfig(_Section):
    """What is refused, and when work stops before it does harm."""

    max_delay: Duration = key(
        "3650d",
        "How far ahead a message may be due; a later one is rejected. Ten years: hardly anything is planned further "
        "ahead, and a time in micro- or nanoseconds is found out.",
        least="1s", most="36500d",
    )  # fmt: skip
    disk_reserve: Size = key(
        "256MiB",
        "Free space on the disk of `node.data_dir`, in bytes, below which no step starts. "
        "It leaves room for what the store is compacting at that moment. 0 switches the check off.",
        least=0, most="1TiB",
    )  # fmt: skip


class DeliveryConfig(_Section):
    """How due messages are handed to their targets."""

    batch_messages: int = key(
        5000,
        "Most messages of one step and so of one transaction. Throughput hardly grows beyond this, and "
        "readers of the targets wait for open transactions.",
        least=1, most=100_000,
    )  # fmt: skip
    batch_bytes: Size = key(
        "8MB",
        "Most bytes of one step and so of one transaction; a single message may be larger than what is left. "
        "It bounds memory per shard and the time readers wait.",
        least="1KiB", most="1GiB",
    )  # fmt: skip
    create_topics: bool = key(
        False,
        "Create target topics that do not exist. Off, because a mistyped topic must not swallow messages: "
        "they are dead-lettered, where somebody sees them.",
    )
    transaction_timeout: Duration = key(
        "10s",
        "Longest transaction. A master that freezes holds readers of its targets back for so long; "
        "shorter than a broker's hiccup, it aborts for nothing. "
        "The broker refuses more than its `transaction.max.timeout.ms`, 15m by default.",
        least="1s", most="15m",
    )  # fmt: skip
    attempts_max: int = key(
        5,
        "Attempts at a message that its topic refuses, the first one counted; "
        "after the last it is dead-lettered.",
        least=1, most=1000,
    )  # fmt: skip
    retry_base: Duration = key(
        "1s",
        "Wait before the second attempt; it doubles with each further one.",
        least="1ms", most="1d",
    )  # fmt: skip
    retry_cap: Duration = key(
        "5m",
        "Longest wait between two attempts, so that a repaired topic is not left waiting for hours.",
        least="1ms", most="7d",
    )  # fmt: skip


class TargetsConfig(_Section):
    """Which topics messages may be delivered to. Chronos's and Kafka's own topics never are."""

    allow: Patterns = key(("*",), "Shell-style patterns; a target must match one of them.")
    deny: Patterns = key((), "Shell-style patterns; a target must match none of them, even if it is allowed.")


class CheckpointsConfig(_Section):
    """Copies of the store, from which a new replica starts, and behind which the logs may be trimmed."""

    location: Text | None = Field(
        default=None,
        repr=False,  # A URL may hold a password.
        description="Folder or URL to keep checkpoints in, never inside `node.data_dir`: they are for the "
        "day that disk is gone. Without one both logs are kept for ever, being the only other copy.",
    )
    every: Duration = key(
        "1h",
        "Time between two checkpoints. It bounds how much log a new replica reads.",
        least="1m", most="7d",
    )  # fmt: skip
    keep: int = key(
        3,
        "Checkpoints kept of each shard; older ones are removed. Not fewer than three, because the logs are "
        "trimmed only behind the oldest of at least three: a damaged one must not be the only way back.",
        least=3, most=1000,
    )  # fmt: skip
    keep_logs: Duration = key(
        "7d",
        "How long records of the delay and progress topics are kept at the least, whatever checkpoints there "
        "are. A week, so that a replica that was off for a weekend, or somebody who looks into an incident, "
        "still finds them.",
        least="1h", most="36500d",
    )  # fmt: skip


class RetentionConfig(_Section):
    """How long settled messages are remembered."""

    delivered: Duration = key(
        "6h",
        "How long a delivered message can still be looked up. It costs disk; "
        "six hours cover a question asked on the same day.",
        least="1ms", most="3650d",
    )  # fmt: skip
    deduplication: Duration = key(
        "6h",
        "How long after its delivery an id is still taken, so that a producer's late repetition is a "
        "conflict and no second delivery.",
        least="1ms", most="3650d",
    )  # fmt: skip


class StoreConfig(_Section):
    """RocksDB, and the time wheel before it."""

    block_cache: Size = key(
        "64MiB",
        "Memory for blocks read from disk, in bytes, shared by all shards. "
        "Delivery reads each entry once, in order: more helps lookups only.",
        least="1MiB", most="1TiB",
    )  # fmt: skip
    memtable: Size = key(
        "32MiB",
        "Memory for entries not yet on disk, in bytes per shard. "
        "Messages delivered while they are in it never cost a disk write.",
        least="64KiB", most="4GiB",
    )  # fmt: skip
    flush_every: Duration = key(
        "1m",
        "Longest time between two flushes of a shard. It bounds what a restart reads again from the logs.",
        least="100ms", most="1h",
    )  # fmt: skip
    blob_bytes_min: Size = key(
        "16KiB",
        "Payloads from this size, in bytes, go to blob files, which compaction does not copy again "
        "and again. Below it the detour costs more than the copying.",
        least=0, most="1GiB",
    )  # fmt: skip
    wheel_horizon: Duration = key(
        "10s",
        "How far ahead due messages are read into memory, so that delivering at the millisecond "
        "never waits for the disk.",
        least="100ms", most="1h",
    )  # fmt: skip
    wheel_messages: int = key(
        100_000,
        "Most messages in memory, per shard; beyond it the store is scanned. "
        "It is the horizon at 10,000 messages a second.",
        least=2, most=10_000_000,
    )  # fmt: skip
    wheel_bytes: Size = key(
        "32MiB",
        "Most bytes of messages in memory, per shard; beyond it the store is scanned.",
        least="64KiB", most="64GiB",
    )  # fmt: skip


class AdminConfig(_Section):
    """The HTTP interface."""

    host: Text = key(
        "127.0.0.1",
        "Address to listen on. Only this machine by default, because the interface asks nobody for a "
        "password; `0.0.0.0` for all.",
    )
    port: int = key(7700, "Port to listen on; 0 takes any free one and logs which.", least=0, most=65_535)
    advertised: Address | None = Field(
        default=None,
        repr=False,  # A URL may hold a password.
        description="URL under which the other nodes of the cluster reach this one, for example "
        "`http://chronos-1:7700`; null makes it from `host` and `port`, which is right only where all nodes run on "
        "one machine or `host` is this machine's own address.",
    )


class LoggingConfig(_Section):
    """What Chronos says about itself, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = key("info", "Least important level to write.")
    format: Literal["auto", "json", "console"] = key(
        "auto",
        "`json`: one object a line; `console`: for people; `auto`: JSON when stdout is not a terminal.",
    )


class Config(_Section):
    """All settings of one process. Frozen; made by `load`."""

    cluster: Name = key(
        "chronos",
        "Name of the cluster. It is part of every transactional id, so two clusters on one Kafka "
        "need two names; changing it loses the fencing of the running one.",
    )
    shards: int = key(
        4,
        "Partitions of the delay topic, each a state machine with a thread of its own. It cannot be changed "
        "once the topic exists. Four spread over as many nodes, and one process "
        "gains nothing from more.",
        least=1, most=1024,
    )  # fmt: skip
    node: NodeConfig = Field(default_factory=NodeConfig)
    log: LogConfig = Field(default_factory=LogConfig)
    topics: TopicsConfig = Field(default_factory=TopicsConfig)
    coordinator: CoordinatorConfig = Field(default_factory=CoordinatorConfig)
    workers: WorkersConfig = Field(default_factory=WorkersConfig)
    limits: LimitsConfig = Field(default_factory=LimitsConfig)
    delivery: DeliveryConfig = Field(default_factory=DeliveryConfig)
    targets: TargetsConfig = Field(default_factory=TargetsConfig)
    checkpoints: CheckpointsConfig = Field(default_factory=CheckpointsConfig)
    retention: RetentionConfig = Field(default_factory=RetentionConfig)
    store: StoreConfig = Field(default_factory=StoreConfig)
    admin: AdminConfig = Field(default_factory=AdminConfig)
    logging: LoggingConfig = Field(default_factory=LoggingConfig)
