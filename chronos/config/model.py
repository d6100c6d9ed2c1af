"""Every key there is: its type, default and bounds, and its meaning with unit and reason.

With the sections in `cluster` this is the only list. The reference, the example file, the names of
variables and the hints for mistyped keys are all made from these models. A model built in code has
its values checked, but not the constraints between them: `load` checks those."""

import socket
from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from chronos.config.cluster import CoordinatorConfig, FailoverConfig, ReplicationConfig
from chronos.config.values import (
    Address,
    Addresses,
    Duration,
    Hosts,
    Name,
    Patterns,
    Rates,
    Replicas,
    Section,
    Size,
    Text,
    Topic,
    key,
)


class NodeConfig(Section):
    """The identity of this process, and the directory of its state."""

    id: Name = Field(
        default_factory=lambda: socket.gethostname(),
        validate_default=True,
        description=(
            "Name of this node, unique in the cluster and the same after a restart: it is bound "
            "to `data_dir`. The default is the host's name."
        ),
    )
    host: Name | None = key(
        None,
        "Name of the machine, the same for all nodes on it; `--processes` of `chronos serve` sets "
        "it. The replicas of a shard are placed on different machines, as far as there are. "
        "Followers in sync, observers of a master, and the nodes that `failover.on_unhealthy` "
        "depends on count once for each machine. null: no other node shares the machine.",
    )
    data_dir: Text = key(
        "chronos-data",
        "Directory of the store and, with the embedded log, of the log; relative to the working "
        "directory. It must be on a local disk.",
    )


class KafkaLogConfig(Section):
    """The Kafka cluster; used with `log.kind: kafka`."""

    bootstrap_servers: Addresses | None = key(
        None,
        (
            "Brokers to start from, as `host:port` separated by commas. Required with `log.kind: "
            "kafka`."
        ),
    )
    request_timeout: Duration = key(
        "5s",
        "How long a request to the brokers for offsets, topics or settings may take before it "
        "counts as failed. A longer time helps where brokers are far away; a shorter one reports "
        "sooner that none answers.",
        least="100ms",
        most="1m",
    )
    properties: Mapping[str, str] = Field(
        default_factory=dict,
        repr=False,  # It may hold passwords, and a representation ends up in logs.
        description=(
            "Further librdkafka properties by their own names, such as `security.protocol`; "
            "passed to every client. Properties that exactly-once delivery depends on are set by "
            "Chronos and refused here. A single one can be given as `--set "
            "log.kafka.properties.sasl.username=x`, or as "
            "`CHRONOS_LOG__KAFKA__PROPERTIES__SASL_USERNAME=x` ('_' stands for '.')."
        ),
    )


class EmbeddedLogConfig(Section):
    """The log inside the process; used with `log.kind: embedded`."""

    retention: Duration = key(
        "7d",
        "How long records of target topics are kept. A week is Kafka's own default; "
        "a consumer may be down over a weekend.",
        least="1s",
        most="36500d",
    )


class LogConfig(Section):
    """The log that messages are read from and delivered to."""

    kind: Literal["embedded", "kafka"] = key(
        "embedded",
        "`embedded`: a durable log inside this process, for evaluation and tests; it needs "
        "nothing installed and serves one process only. `kafka`: a Kafka cluster.",
    )
    kafka: KafkaLogConfig = Field(default_factory=KafkaLogConfig)
    embedded: EmbeddedLogConfig = Field(default_factory=EmbeddedLogConfig)


class TopicsConfig(Section):
    """Chronos's own topics."""

    delay: Topic = key("chronos.delay", "Topic that producers write delayed messages to.")
    progress: Topic = key(
        "chronos.progress", "Topic of the progress records, which hold the decisions of every step."
    )
    rejected: Topic = key(
        "chronos.rejected", "Topic of the records that were refused, each with its reason."
    )
    dead_letter: Topic = key(
        "chronos.dead-letter", "Topic of the messages that could not be delivered."
    )
    cluster: Topic = key(
        "chronos.cluster",
        (
            "Topic of the heartbeats and roles of a cluster with `coordinator.kind: kafka`; "
            "unused otherwise."
        ),
    )
    misplaced: Literal["forward", "reject"] = key(
        "forward",
        "What is done with a record in another partition than that of its id, which is where Java "
        "clients place it as a key. `forward`: it is written on to its own partition, so that "
        "producers may use any partitioner. `reject`: it is refused.",
    )
    create: bool = key(
        True,
        "Create these topics if they are missing. Switch this off if an operator creates them; "
        "their settings are checked at every start in both cases.",
    )
    replication_factor: Replicas = key(
        -1,
        "Replicas of a topic that Chronos creates; -1: the broker's default. "
        "Use 3 in production: with one replica, a broker that is down stops its shards.",
        least=-1,
        most=100,
    )
    min_insync_replicas: int | None = key(
        None,
        "Replicas that must hold a record before it counts as written, in topics that Chronos "
        "creates; null: the broker's default. Use 2 with 3 replicas.",
        least=1,
        most=100,
    )
    message_bytes_max: Size = key(
        "1MiB",
        "Largest record that the delay topic accepts, in bytes, headers included. 1 MiB is "
        "Kafka's own default. The rejected and dead-letter topics allow larger records, so that a "
        "record can be copied with its reason. At most 255 MiB: the Kafka clients are set to "
        "handle records of up to 256 MiB, the reason included.",
        least="1KiB",
        most="255MiB",
    )
    compression: Literal["producer", "uncompressed"] = key(
        "producer",
        "Compression of the delay topic, and of the topic of the cluster, on the brokers "
        "(`compression.type`). `producer`: batches are kept as producers compressed them. "
        "`uncompressed`: the brokers decompress every batch and refuse a record that is larger "
        "than the topic takes when it is decompressed; for producers that are not trusted. It "
        "costs disk, CPU and heap of the brokers: see *Compression* under *Run on an existing "
        "Kafka* first. It is set when the topic is created; a topic with another value is logged "
        "at every start.",
    )


class WorkersConfig(Section):
    """The tasks of this node; each can be switched off for maintenance."""

    pull: bool = key(
        True,
        "Read the delay topic. Off: no new messages are accepted, and pending ones are delivered; "
        "cancels and changes have no effect until it is on again.",
    )
    push: bool = key(True, "Deliver due messages. Off: messages are accepted and stay pending.")
    delete: bool = key(
        True, "Delete settled messages from the store once they are older than their retention."
    )


class LimitsConfig(Section):
    """Limits for messages, and for the disk."""

    max_delay: Duration = key(
        "3650d",
        "How far ahead a message may be due; a message due later is rejected. Few events are "
        "planned more than ten years ahead, and the limit catches times in microseconds or "
        "nanoseconds.",
        least="1s",
        most="36500d",
    )
    max_past: Duration = key(
        "30d",
        "How long ago a message may be due when it is written; one due earlier is rejected, "
        "because its year or its unit is wrong, and it would be delivered at once. What is due "
        "less long ago is accepted, and the HTTP interface and the command line warn. Series, "
        "replays of dead letters and backfills may be due at any time. 0 switches the check off.",
        least="0s",
        most="36500d",
    )
    disk_reserve: Size = key(
        "256MiB",
        "Free space on the disk of `node.data_dir`, in bytes, below which no step starts. "
        "It leaves room for compactions of the store that are running. 0 switches the check off.",
        least=0,
        most="1TiB",
    )


class DeliveryConfig(Section):
    """How due messages are handed to their targets."""

    linger: Duration = key(
        "10ms",
        "Shortest time between two transactions of a shard with few messages: after one with fewer "
        "than 50 records and deliveries, what becomes due, or arrives, within this time shares the "
        "next one. The brokers pay for transactions, not for messages. A message after a pause is "
        "delivered at once. 0: each as soon as possible.",
        least="0ms",
        most="1s",
    )
    create_topics: bool = key(
        False,
        "Create target topics that do not exist. It is off by default, so that messages for a "
        "mistyped topic are dead-lettered and not written to a topic without readers. The embedded "
        "log creates every target, whatever is set.",
    )
    transaction_timeout: Duration = key(
        "10s",
        "Longest transaction. A master that freezes blocks readers of its targets for this time; "
        "if it is too short, a brief stall of a broker aborts transactions. "
        "Brokers refuse a value above their `transaction.max.timeout.ms`, 15m by default.",
        least="1s",
        most="15m",
    )
    attempts_max: int = key(
        5,
        "Delivery attempts for a message that its topic refuses, including the first; after the "
        "last one it is dead-lettered. A message may ask for fewer with `chronos-attempts`.",
        least=1,
        most=1000,
    )
    retry_base: Duration = key(
        "1s",
        "Wait before the second attempt; it doubles before each further attempt.",
        least="1ms",
        most="1d",
    )
    retry_cap: Duration = key(
        "5m",
        "Longest wait between two attempts, so that delivery to a repaired topic resumes soon.",
        least="1ms",
        most="7d",
    )
    rates: Rates = Field(
        default_factory=dict,
        description=(
            "Rate limits of target topics, as `{pattern: rate}`; patterns as in `targets.allow`. "
            "A rate is `200/s`, `50/s burst 100` (at most 100 messages at once after a pause; "
            "without it, half a second's), or `unlimited`. Each topic that a pattern matches has "
            "the rate for itself, in the whole service. Of several patterns the topic's own name "
            "wins, then the longest one besides its wildcards. `chronos rates` changes them at "
            "run time, and those changes win."
        ),
    )


class DeliveryFaultsConfig(Section):
    """How brokers that are slow or fail are treated."""

    enabled: bool = key(
        True,
        "Choose the partition of each message without a key by how fast the brokers have "
        "answered: partitions that a slow or failed broker leads are avoided for a time. A "
        "message with a key keeps its partition. Off: the Kafka client chooses at random.",
    )


class TargetsConfig(Section):
    """The topics that messages may be delivered to; topics of Chronos and of Kafka itself are
    always refused."""

    allow: Patterns = key(("*",), "Shell-style patterns; a target must match one of them.")
    deny: Patterns = key(
        (), "Shell-style patterns; a target must match none of them, even if it is allowed."
    )


class CheckpointsConfig(Section):
    """Copies of the store: new replicas start from them, and the logs may be trimmed up to
    them."""

    location: Text | None = Field(
        default=None,
        repr=False,  # A URL may hold a password.
        description="Folder or URL to keep checkpoints in, never inside `node.data_dir`: they must "
        "survive the loss of that disk. Without a location the delay and progress topics are kept "
        "forever.",
    )
    every: Duration = key(
        "1h",
        "Time between two checkpoints of a shard. It bounds how much log a new replica reads.",
        least="1m",
        most="7d",
    )
    keep: int = key(
        3,
        "Number of checkpoints kept for each shard; older ones are removed. At least three, "
        "because the logs are trimmed only up to the oldest of three: a single damaged "
        "checkpoint then does no harm.",
        least=3,
        most=1000,
    )
    keep_logs: Duration = key(
        "7d",
        "Minimum time that records of the delay and progress topics are kept, regardless of "
        "checkpoints. A week of records serves a replica that was off over a weekend, and the "
        "analysis of an incident.",
        least="1h",
        most="36500d",
    )


class RetentionConfig(Section):
    """How long settled messages are remembered."""

    delivered: Duration = key(
        "36h",
        "How long a message that has ended can still be looked up and listed: a complaint in the "
        "morning is about the day before. With 1,000,000 messages of 250 bytes a day this takes "
        "0.3 GB, seven days 1.5 GB.",
        least="1ms",
        most="3650d",
    )
    deduplication: Duration = key(
        "6h",
        "How long an id stays taken after the delivery of its message, so that a late retry of a "
        "producer is a conflict and not a second delivery.",
        least="1ms",
        most="3650d",
    )


class StoreConfig(Section):
    """RocksDB, which holds the state of each shard."""

    block_cache: Size = key(
        "64MiB",
        "Memory for blocks read from disk, in bytes, shared by all shards. "
        "Delivery reads each entry once, in order: a larger cache helps look-ups only.",
        least="1MiB",
        most="1TiB",
    )
    flush_every: Duration = key(
        "15s",
        "Maximum time between two flushes of a shard. It bounds how much log a restart replays.",
        least="100ms",
        most="1h",
    )


class AdminTlsConfig(Section):
    """TLS of the HTTP interface. Versions 1.2 and later are accepted."""

    certificate: Text | None = Field(
        default=None,
        description=(
            "PEM file with the certificate of this node and those that lead to its authority; "
            "null: no TLS."
        ),
    )
    key: Text | None = Field(
        default=None,
        description="PEM file with the private key of `certificate`, without a password.",
    )
    client_ca: Text | None = Field(
        default=None,
        description=(
            "PEM file with the certificate authorities of clients, see `client_certificates`; "
            "null: clients show none. Other nodes are also trusted by it, and this node shows "
            "them `certificate`."
        ),
    )
    client_certificates: Literal["required", "optional"] = Field(
        default="required",
        description=(
            "With `client_ca`: whether every client, health checks included, must show a "
            "certificate, or may. One of another authority is refused. Entries of `admin.tokens` "
            "say what the client with a certificate may do."
        ),
    )


class AdminJwtConfig(Section):
    """Tokens of an OIDC issuer (JWT) as bearer tokens. Entries with `claims` in `admin.tokens` say
    what they permit."""

    issuer: Text | None = Field(
        default=None,
        description=(
            "Value of the claim `iss`, for example `https://login.example.org/realms/main`; null: "
            "no tokens of an issuer."
        ),
    )
    audience: Text | None = Field(
        default=None,
        description=(
            "Value that the claim `aud` must have, or contain: the name of this service at the "
            "issuer."
        ),
    )
    jwks: Text | None = Field(
        default=None,
        description=(
            "Public keys of the issuer: a file, read again when it changes, or a URL with "
            "`https://`, read every 5 minutes and for a token with an unknown key."
        ),
    )


class AdminConfig(Section):
    """The HTTP interface."""

    host: Text = key(
        "127.0.0.1",
        "Address to listen on; `0.0.0.0` for all. The default accepts connections from this "
        "machine only; another address needs `tokens`, or `open`.",
    )
    open: bool = key(
        False,
        "Give every client that reaches `host` all rights, where it is not an address of this "
        "machine only and there are no `tokens`; for a network or a proxy that admits only "
        "clients with those rights.",
    )
    tokens: Text | None = key(
        None,
        "YAML file that says what bearer tokens, client certificates and tokens of an issuer may "
        "do, and with which targets and ids; it is read again when it changes. With it, every "
        "request needs a token, except for health checks, the console and `/openapi.json`. null: "
        "no tokens.",
    )
    tls: AdminTlsConfig = Field(default_factory=AdminTlsConfig)
    jwt: AdminJwtConfig = Field(default_factory=AdminJwtConfig)
    port: int = key(
        7700, "Port to listen on; 0 takes any free port and logs its number.", least=0, most=65_535
    )
    advertised: Address | None = Field(
        default=None,
        repr=False,  # A URL may hold a password.
        description="URL under which the other nodes of the cluster reach this one, for example "
        "`http://chronos-1:7700`; null: made from `host` and `port`, which works only if all "
        "nodes run on "
        "one machine or `host` is an address that the other nodes can reach.",
    )
    allowed_hosts: Hosts = key(
        (),
        "Further host names under which this node is served, without a port, for example the name "
        "of a proxy or of a Kubernetes service. Addresses, `localhost`, `node.id`, the name of "
        "the machine, `host` and the name in `advertised` are always served. A request for "
        "another name is refused, because a web site could otherwise make its own name that of "
        "this node (DNS rebinding).",
    )
    archive_audits: Text | None = key(
        None,
        "Folder with results of `chronos audit -o json`, files that end in `.json`, which the "
        "console shows; the node only reads it. null: none.",
    )


class AuditConfig(Section):
    """The audit trail: one entry for each request over HTTP that changes something, or that shows
    payloads."""

    path: Text | None = key(
        None,
        "File that the entries are appended to as JSON lines, each durable once it is written, "
        "also of requests to a service without tokens. A file that was renamed, as by logrotate, "
        "is followed by a new one. null: the entries are lines of the logger `chronos.audit`, for "
        "requests with a token.",
    )
    required: bool = key(
        False,
        "Refuse requests that cannot be written down, with status 503: a first entry, the intent, "
        "is durable before a request changes or shows anything. It needs "
        "`path`, and costs each request one write there. Off: entries that cannot be written are "
        "counted as lost.",
    )


class TracingConfig(Section):
    """Spans for OpenTelemetry, of messages that carry the header `traceparent`. They need the extra
    `otel`."""

    enabled: bool = key(
        False,
        "Send a span when such a message is accepted, and one when it is delivered, expired or "
        "dead-lettered, each linked to its `traceparent`.",
    )
    endpoint: Text | None = key(
        None,
        "URL that the spans are sent to, as OTLP over HTTP, for example "
        "`http://localhost:4318/v1/traces`; null: that of the variables of OpenTelemetry, such as "
        "`OTEL_EXPORTER_OTLP_ENDPOINT`, else that example.",
    )


class LoggingConfig(Section):
    """Log messages on standard error."""

    level: Literal["debug", "info", "warning", "error"] = key("info", "Lowest level to write.")
    format: Literal["auto", "json", "console"] = key(
        "auto",
        (
            "`json`: one object per line; `console`: for people; `auto`: `console` if stdout and "
            "stderr are terminals, else `json`."
        ),
    )


class Config(Section):
    """All settings of one process. Frozen; made by `load`."""

    cluster: Name = key(
        "chronos",
        "Name of the cluster: part of every progress record, and of its paths in ZooKeeper. Two "
        "clusters on one Kafka need topics of their own; a node that finds another cluster's "
        "records in its progress topic stops. It cannot be changed later.",
    )
    shards: int = key(
        4,
        "Partitions of the delay topic, each a state machine with a thread of its own. The number "
        "cannot be changed once the topic exists. Four shards can be spread over four nodes; a "
        "single process gains nothing from more.",
        least=1,
        most=1024,
    )
    node: NodeConfig = Field(default_factory=NodeConfig)
    log: LogConfig = Field(default_factory=LogConfig)
    topics: TopicsConfig = Field(default_factory=TopicsConfig)
    coordinator: CoordinatorConfig = Field(default_factory=CoordinatorConfig)
    failover: FailoverConfig = Field(default_factory=FailoverConfig)
    replication: ReplicationConfig = Field(default_factory=ReplicationConfig)
    workers: WorkersConfig = Field(default_factory=WorkersConfig)
    limits: LimitsConfig = Field(default_factory=LimitsConfig)
    delivery: DeliveryConfig = Field(default_factory=DeliveryConfig)
    delivery_faults: DeliveryFaultsConfig = Field(default_factory=DeliveryFaultsConfig)
    targets: TargetsConfig = Field(default_factory=TargetsConfig)
    checkpoints: CheckpointsConfig = Field(default_factory=CheckpointsConfig)
    retention: RetentionConfig = Field(default_factory=RetentionConfig)
    store: StoreConfig = Field(default_factory=StoreConfig)
    admin: AdminConfig = Field(default_factory=AdminConfig)
    audit: AuditConfig = Field(default_factory=AuditConfig)
    tracing: TracingConfig = Field(default_factory=TracingConfig)
    logging: LoggingConfig = Field(default_factory=LoggingConfig)
