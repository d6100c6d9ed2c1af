"""The opening of what the configuration names: the log, producers besides it, the audit trail and
the stores.

Each function makes one object from a configuration; nothing is kept here. A store is given the
identity of its shard and topics when it is new, and is refused if it has another one
(`check_identity`)."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from chronos.adapters.audit import AuditFile, AuditFileTrail
from chronos.adapters.embedded.log import EmbeddedLog
from chronos.adapters.rocksdb import BlockCache, RocksStore
from chronos.config import Config
from chronos.core.keys import IDENTITY_KEY
from chronos.core.shard.codec import Identity, pack_identity, unpack_identity
from chronos.errors import LogMismatch
from chronos.ports import Appender, AuditSink, AuditTrail, Clock, Log, Store, TopicInfo

if TYPE_CHECKING:
    from chronos.adapters.kafka.log import KafkaLog as KafkaLog
    from chronos.adapters.kafka.writer import BulkOpener
from chronos.node.data_directory import DataDirectory

log = structlog.get_logger("chronos.node")

MEMTABLE_BYTES = 32 * 1024 * 1024
"""Most memory of a shard for rows that are not on disk yet. Messages that are delivered while they
are still in it cause no disk write."""

MEMTABLES_BYTES = 1024 * 1024 * 1024
"""The same for all shards of a node together."""

EMBEDDED_REMEDY = (
    "Restore a copy of the whole data directory: the embedded log is trimmed up to the stores, "
    "so that pending messages are in this store alone. `chronos doctor` tells more."
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
        shards=config.shards,
    )


def open_appender(config: Config) -> Appender:
    """Return an appender to the Kafka cluster of `log.kafka` with a producer of its own, which is
    made at the first use."""
    from chronos.adapters.kafka.appender import KafkaAppender
    from chronos.adapters.kafka.connection import Connection

    kafka = config.log.kafka
    assert kafka.bootstrap_servers is not None
    return KafkaAppender(
        Connection(
            kafka.bootstrap_servers,
            kafka.properties,
            request_timeout_s=kafka.request_timeout / 1_000,
        )
    )


def open_bulk(config: Config) -> "BulkOpener":
    """Return an opener of producers for the same Kafka cluster in the tasks of a Spark job."""
    from chronos.adapters.kafka.writer import BulkOpener

    assert config.log.kafka.bootstrap_servers is not None
    return BulkOpener(
        bootstrap_servers=config.log.kafka.bootstrap_servers,
        properties=dict(config.log.kafka.properties),
        timeout_s=config.delivery.transaction_timeout / 1_000,
    )


def open_audit(config: Config) -> AuditSink | None:
    """Return the file of the audit trail; None: its entries are log lines. Raises
    ConfigurationError."""
    path = config.audit.path
    return None if path is None else AuditFile(path)


def open_audit_trail(config: Config) -> AuditTrail | None:
    """Return the reader of that file; None: log lines are not read."""
    path = config.audit.path
    return None if path is None else AuditFileTrail(path)


def open_store(
    config: Config,
    directory: DataDirectory,
    shard: int,
    *,
    cache: BlockCache | None = None,
    mine: Identity | None = None,
    creates: bool = True,
) -> RocksStore:
    """Return the store of a shard, open unless it is not on disk yet and `creates` is false.

    `cache`: the block cache that all stores of a node share; None: one of its own. `mine`: the
    identity that it must have, or LogMismatch is raised; None: any."""
    settings, path = config.store, directory.store(shard)
    return RocksStore(
        path,
        block_cache=settings.block_cache if cache is None else cache,
        memtable_bytes=min(MEMTABLE_BYTES, MEMTABLES_BYTES // config.shards),
        remedy=EMBEDDED_REMEDY if config.log.kind == "embedded" else None,
        opened=creates or path.exists(),
        check=None if mine is None else lambda store: check_identity(store, mine, path),
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
    """Give the store in `path` this identity if it has none yet. Raises LogMismatch when it has
    another one."""
    (data,) = store.get([IDENTITY_KEY])
    if data is None:
        store.write([(IDENTITY_KEY, pack_identity(mine))], [])
        return
    known = unpack_identity(data)
    for name in Identity.__struct_fields__:
        was, now = getattr(known, name), getattr(mine, name)
        if was != now:
            raise LogMismatch(
                f"the store in {path} was built with {name}={was}, now it is {now}. A topic id "
                "changes when a topic is deleted and created again: its pending messages are "
                "gone from the log. Point Chronos to the right cluster and topics; or, to start "
                "anew, remove the data directory and both the delay and the progress topic."
            )
