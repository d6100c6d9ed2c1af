"""Opens the log, with the topics that Chronos owns, and the stores that belong to them, by the configuration."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from chronos.adapters.audit import AuditFile, AuditTopic
from chronos.adapters.embedded.log import EmbeddedLog
from chronos.adapters.rocksdb.store import BlockCache, RocksStore
from chronos.config import Config
from chronos.core.codec import Identity, pack_identity, unpack_identity
from chronos.core.keys import IDENTITY_KEY
from chronos.core.progress import progress_bytes_max
from chronos.errors import ConfigurationError, LogMismatch
from chronos.node.directory import DataDirectory
from chronos.ports import Appender, AuditSink, Clock, Log, Store, TopicInfo, TopicSpec

if TYPE_CHECKING:
    from chronos.adapters.kafka.bulk import BulkOpener
    from chronos.adapters.kafka.log import KafkaLog as KafkaLog

HEADROOM_BYTES = 256 * 1024
"""Bytes by which a rejected or dead-letter record may exceed its delay record: reason, source, receipt."""

PROGRESS_BYTES = 4 * 1024 * 1024
"""Largest progress record that the progress topic accepts, unless `delivery.batch_messages` needs a larger one."""

CLUSTER_BYTES = 4 * 1024 * 1024
"""Largest record that the cluster topic accepts: the report of a node with some thousands of shards."""

EMBEDDED_REMEDY = (
    "Restore a copy of the whole data directory: the embedded log is trimmed behind the stores, so that pending messages"
    " are in this store alone. `chronos doctor` tells more."
)
"""The remedy for a damaged store on the embedded log, for people."""


def open_log(config: Config, directory: DataDirectory, clock: Clock) -> Log:
    """Return the log that `log.kind` names."""
    if config.log.kind == "embedded":
        return open_embedded(config, directory, clock)
    return open_kafka(config)


def open_embedded(config: Config, directory: DataDirectory, clock: Clock) -> EmbeddedLog:
    """Return the embedded log of the data directory."""
    return EmbeddedLog(
        directory.path / "log",
        clock=clock,
        progress_topic=config.topics.progress,
        retention_ms=config.log.embedded.retention,
        partitions_default=config.log.embedded.partitions,
        disk_reserve_bytes=config.limits.disk_reserve,
    )


def open_kafka(config: Config) -> "KafkaLog":
    """Return the Kafka cluster of `log.kafka`."""
    # Imported here: a node on the embedded log runs without the Kafka client.
    from chronos.adapters.kafka.log import KafkaLog

    assert config.log.kafka.bootstrap_servers is not None
    return KafkaLog(
        bootstrap_servers=config.log.kafka.bootstrap_servers,
        properties=config.log.kafka.properties,
        progress_topic=config.topics.progress,
        transaction_timeout_s=config.delivery.transaction_timeout / 1_000,
        request_timeout_s=config.log.kafka.request_timeout / 1_000,
    )


def open_appender(config: Config) -> Appender:
    """Return an appender to the Kafka cluster of `log.kafka` with a producer of its own, which is made at the first use."""
    from chronos.adapters.kafka.appender import KafkaAppender
    from chronos.adapters.kafka.connection import Connection

    kafka = config.log.kafka
    assert kafka.bootstrap_servers is not None
    return KafkaAppender(
        Connection(kafka.bootstrap_servers, kafka.properties, request_timeout_s=kafka.request_timeout / 1_000)
    )


def open_bulk(config: Config) -> "BulkOpener":
    """Return an opener of producers for the same Kafka cluster in the tasks of a Spark job."""
    from chronos.adapters.kafka.bulk import BulkOpener

    assert config.log.kafka.bootstrap_servers is not None
    return BulkOpener(
        bootstrap_servers=config.log.kafka.bootstrap_servers,
        properties=dict(config.log.kafka.properties),
        timeout_s=config.delivery.transaction_timeout / 1_000,
    )


def own_topics(config: Config) -> list[TopicSpec]:
    """Return the four topics that Chronos owns, with the settings they must have."""
    topics = config.topics
    common = _durable(config)
    # The log is the only other copy of the pending messages, so Kafka must not delete anything by itself.
    kept = {**common, "retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete",
            "message.timestamp.type": "LogAppendTime"}  # fmt: skip
    # Every message that fits the delay topic must fit here, and stays until an operator has looked at it.
    letters = {**common, "retention.ms": "-1", "max.message.bytes": str(topics.message_bytes_max + HEADROOM_BYTES)}
    shards = config.shards
    progress_bytes = max(PROGRESS_BYTES, progress_bytes_max(config.delivery.batch_messages))
    return [
        TopicSpec(name=topics.delay, partitions=shards, per_shard=True,
                  settings={**kept, "max.message.bytes": str(topics.message_bytes_max),
                            "compression.type": topics.compression}),
        TopicSpec(name=topics.progress, partitions=shards, per_shard=True,
                  settings={**kept, "max.message.bytes": str(progress_bytes)}),
        TopicSpec(name=topics.rejected, partitions=shards, settings=letters),
        TopicSpec(name=topics.dead_letter, partitions=shards, settings=letters),
    ]  # fmt: skip


def audit_topics(config: Config) -> list[TopicSpec]:
    """Return the topic of the audit trail; nothing if it has none."""
    if config.audit.to != "topic":
        return []
    return [TopicSpec(name=config.audit.topic, partitions=1, settings={**_durable(config), "retention.ms": "-1"})]


def open_audit(config: Config, log: Log) -> AuditSink | None:
    """Return where the audit trail is kept, by `audit.to`; None: in the log lines. Raises ConfigurationError.

    On Kafka it has a producer of its own: a topic that takes nothing then discards no messages.
    """
    audit = config.audit
    if audit.to == "file":
        assert audit.path is not None
        return AuditFile(audit.path)
    if audit.to == "log":
        return None
    if config.log.kind == "kafka":
        return AuditTopic(open_appender(config), audit.topic, owns_log=True)
    return AuditTopic(log, audit.topic, owns_log=False)


def cluster_topic(config: Config) -> TopicSpec:
    """Return the topic of `coordinator.kind: kafka`: heartbeats and roles. The controller trims it; nothing else deletes from it."""
    return TopicSpec(name=config.topics.cluster, partitions=2, settings={
        **_durable(config), "retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete",
        "max.message.bytes": str(CLUSTER_BYTES), "compression.type": config.topics.compression,
    })  # fmt: skip


def _durable(config: Config) -> dict[str, str]:
    """Return the settings that every topic of Chronos has."""
    topics = config.topics
    common = {"replication.factor": str(topics.replication_factor), "unclean.leader.election.enable": "false"}
    if topics.min_insync_replicas is not None:
        common["min.insync.replicas"] = str(topics.min_insync_replicas)
    return common


def check_progress_fits(config: Config, progress: TopicInfo) -> None:
    """Raise ConfigurationError if the progress topic refuses the largest progress record of one step: no retry would help."""
    name, messages = config.topics.progress, config.delivery.batch_messages
    needed = progress_bytes_max(messages)
    if progress.bytes_max >= needed:
        return
    fitting = (progress.bytes_max - progress_bytes_max(0)) // (progress_bytes_max(1) - progress_bytes_max(0))
    raise ConfigurationError([
        f"{name} has max.message.bytes={progress.bytes_max}, Chronos needs {needed} for the progress record of {messages}"
        f" messages: kafka-configs --alter --topic {name} --add-config max.message.bytes={needed}, or set"
        f" delivery.batch_messages to at most {max(fitting, 1)}"
    ])  # fmt: skip


def open_store(config: Config, directory: DataDirectory, shard: int, cache: BlockCache | None = None) -> RocksStore:
    """Return the open store of a shard. `cache`: the block cache that all stores of a node share; None: one of its own."""
    settings = config.store
    return RocksStore(
        directory.store(shard),
        block_cache=settings.block_cache if cache is None else cache,
        memtable_bytes=settings.memtable,
        blob_bytes_min=settings.blob_bytes_min,
        remedy=EMBEDDED_REMEDY if config.log.kind == "embedded" else None,
    )


def identity(config: Config, shard: int, infos: Mapping[str, TopicInfo]) -> Identity:
    """Return the identity of a store of the shard: one shard of one pair of topics."""
    topics = config.topics
    return Identity(
        cluster=config.cluster,
        shard=shard,
        shards=config.shards,
        delay_topic=topics.delay,
        delay_topic_id=infos[topics.delay].id,
        progress_topic=topics.progress,
        progress_topic_id=infos[topics.progress].id,
    )


def check_identity(store: Store, mine: Identity, path: Path) -> None:
    """Give the store in `path` this identity if it has none yet. Raises LogMismatch when it has another one."""
    (data,) = store.get([IDENTITY_KEY])
    if data is None:
        store.write([(IDENTITY_KEY, pack_identity(mine))], [])
        return
    known = unpack_identity(data)
    for name in Identity.__struct_fields__:
        was, now = getattr(known, name), getattr(mine, name)
        if was != now:
            raise LogMismatch(
                f"the store in {path} was built with {name}={was}, now it is {now}."
                " A topic id changes when a topic is deleted and created again: its pending messages are gone"
                " from the log. Point Chronos to the right cluster and topics; or, to start anew, remove the data"
                " directory and both the delay and the progress topic."
            )
