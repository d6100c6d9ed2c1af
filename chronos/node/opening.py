"""Opens what a node stands on: its data directory, file descriptors, the log with the topics that
Chronos owns, and the stores."""

import fcntl
import os
import resource
import shutil
import socket
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from chronos.adapters.audit import AuditFile, AuditFileTrail
from chronos.adapters.embedded.log import EmbeddedLog
from chronos.adapters.machine import keep_private
from chronos.adapters.rocksdb import BlockCache, RocksStore
from chronos.config import Config
from chronos.core.keys import IDENTITY_KEY
from chronos.core.shard.codec import Identity, pack_identity, unpack_identity
from chronos.core.shard.progress import progress_bytes_max
from chronos.core.size import STEP_MESSAGES
from chronos.errors import ConfigurationError, LogMismatch, Stop, StoreInUse
from chronos.ports import Appender, AuditSink, AuditTrail, Clock, Log, Store, TopicInfo, TopicSpec

log = structlog.get_logger("chronos.node")

INSTANCE = "instance"
"""The file that holds the directory's id."""

READING = "reading"
"""The folder that says, while the process runs and after it was killed, where it began to read each
shard, whether the process before it was killed too, and how many processes the kernel had killed
for want of memory by then."""

AFTER_AN_END = "again"
"""The process began after one that did not stop in order."""

UNKNOWN = "unknown"
"""The number of processes killed for want of memory, where it does not tell whether this one
was."""


def killed_for_memory(vmstat: Path = Path("/proc/vmstat")) -> str:
    """Return how many processes the kernel has killed for want of memory since it started, those of
    any container included; UNKNOWN if it does not count them, or if this process may also end
    because the memory that it asks for is refused."""
    if any(
        resource.getrlimit(kind)[0] != resource.RLIM_INFINITY
        for kind in (resource.RLIMIT_DATA, resource.RLIMIT_AS)
    ):
        return UNKNOWN
    try:
        counts = dict(line.split() for line in vmstat.read_text().splitlines())
    except (OSError, ValueError):
        return UNKNOWN
    return counts.get("oom_kill", UNKNOWN)


class DataDirectory:
    """The folder in which a node keeps its stores, its copies, its lock and its id."""

    def __init__(self, path: Path, *, node: str) -> None:
        self.path = path
        self.instance = ""
        """The id of the directory, which identifies the node in the log; empty before `claim`."""
        self.place = ""
        """Where it is: another one for a copy of it; empty before `claim`."""
        self._node = node
        self._lock_file: int | None = None

    def claim(self) -> None:
        """Lock the directory for this process and read its id. Raises StoreInUse; Stop if it cannot
        be used at all."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not keep_private(self.path):
                log.warning(
                    "others may read node.data_dir, which is another user's",
                    path=str(self.path),
                    remedy="chown or chmod it",
                )
            handle = os.open(self.path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise Stop(f"node.data_dir {self.path} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(handle, 200).decode("utf-8", "replace").strip()
            os.close(handle)
            raise StoreInUse(
                f"{self.path} is in use by another Chronos ({owner or 'unknown'}). Stop it, or "
                "give this node another node.data_dir."
            ) from None
        self._lock_file = handle
        os.truncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()}, node {self._node}\n".encode(), 0)
        id_file = self.path / INSTANCE
        if not id_file.exists():
            new_file = self.path / "instance.new"
            new_file.write_text(uuid.uuid4().hex + "\n")
            new_file.replace(id_file)
        self.instance = id_file.read_text().strip()
        self.place = f"{socket.gethostname()}:{self.path.resolve()}:{os.fstat(handle).st_ino}"

    def known_instance(self) -> str:
        """Return the id of the directory without locking it; empty if it has none yet."""
        try:
            return (self.path / INSTANCE).read_text().strip()
        except OSError:
            return ""

    def release(self) -> None:
        """Unlock the directory."""
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def ended_reading(self, shard: int, offset: int) -> bool:
        """Return whether a record of the topic may have ended the last process that read a shard,
        so that this one must read in another way.

        That process ended without an orderly stop. Its end counts if it had begun at the same
        offset, or followed such an end itself, and the machine may have been short of memory; and
        if it had done both, whatever the memory was."""
        before = self._read_before(shard)
        if not before:
            return False
        # A flush between the two ends moves the offset: the second one counts all the same.
        is_same, is_second = before[0] == str(offset), AFTER_AN_END in before[1:]
        lacked_memory = (
            UNKNOWN in (known := killed_for_memory(), *before[2:]) or known not in before[2:]
        )
        return (is_same or is_second) and (lacked_memory or (is_same and is_second))

    def begin_reading(self, shard: int, offset: int) -> None:
        """Note that this process reads a shard's delay partition from the offset on, from now.

        On a full disk the process does without the note: it must start to deliver, and so to make
        room."""
        before = self._read_before(shard)
        path = self.path / READING / str(shard)
        with suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"{offset} {AFTER_AN_END if before else '-'} {killed_for_memory()}\n")

    def _read_before(self, shard: int) -> list[str]:
        try:
            return (self.path / READING / str(shard)).read_text().split()
        except OSError:
            return []

    def end_reading(self) -> None:
        """Note that the process stopped in order."""
        shutil.rmtree(self.path / READING, ignore_errors=True)

    def store(self, shard: int) -> Path:
        """Return the folder of a shard's store."""
        return self.path / "shards" / str(shard)

    def free_bytes(self) -> int:
        """Return the bytes that an unprivileged process may still write to its disk."""
        stat = os.statvfs(self.path)
        return stat.f_bavail * stat.f_frsize


BASE = 100
"""For the process, its coordinator, and some connections over HTTP (measured: 70)."""

PER_SHARD = {"kafka": 34, "embedded": 8}
"""By `log.kind`, for each shard: six of its store, and with Kafka up to 28 of the clients of one
broker, most of them pipes (measured with 16 and 64 shards). A table of a store takes one more, and
a further broker up to six."""

AMPLE = 2
"""Times as many are asked for as are needed, for tables, brokers and connections."""


def needed(config: Config) -> int:
    """Return the least number of file descriptors with which the node works."""
    return BASE + config.shards * PER_SHARD[config.log.kind]


def too_few(config: Config) -> str | None:
    """Return what to do about a limit that cannot be raised as far as the node needs, for people;
    None if it is high enough."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        None if hard == resource.RLIM_INFINITY or hard >= needed(config) else _problem(config, hard)
    )


def _problem(config: Config, limit: int) -> str:
    least = needed(config)
    return (
        f"this process may open {limit:,} files, and {config.shards} shards need {least:,}: raise "
        f"the limit of open files to {least} or more (`LimitNOFILE` of systemd, `--ulimit nofile` "
        "of Docker, `ulimit -n` of a shell)"
    )


def raise_limit(config: Config) -> None:
    """Raise the limit of this process to the one that the system allows, if it is not ample. Raises
    ConfigurationError."""
    if (problem := too_few(config)) is not None:
        raise ConfigurationError([problem])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ample = AMPLE * needed(config)
    if soft in (resource.RLIM_INFINITY, hard) or soft >= ample:
        return
    for limit in (hard, ample, needed(config)):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        except (OSError, ValueError):  # macOS names no limit and allows less
            continue
        log.info("limit of open files raised", before=soft, now=limit, needed=needed(config))
        return
    if soft < needed(config):
        raise ConfigurationError([_problem(config, soft)])


if TYPE_CHECKING:
    from chronos.adapters.kafka.log import KafkaLog as KafkaLog
    from chronos.adapters.kafka.writer import BulkOpener

HEADROOM_BYTES = 256 * 1024
"""Bytes by which a rejected or dead-letter record may exceed its delay record: reason, source,
receipt."""

PROGRESS_BYTES = 4 * 1024 * 1024
"""Largest record of the progress topic: that of a step is a tenth of it at most."""

MEMTABLE_BYTES = 32 * 1024 * 1024
"""Most memory of a shard for rows that are not on disk yet. Messages that are delivered while they
are still in it cause no disk write."""

MEMTABLES_BYTES = 1024 * 1024 * 1024
"""The same for all shards of a node together."""

CLUSTER_BYTES = 4 * 1024 * 1024
"""Largest record that the cluster topic accepts: the report of a node with some thousands of
shards."""

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
    from chronos.adapters.kafka.connection import Connection
    from chronos.adapters.kafka.log import KafkaAppender

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


def own_topics(config: Config) -> list[TopicSpec]:
    """Return the four topics that Chronos owns, with the settings they must have."""
    topics = config.topics
    common = _durable(config)
    # The log is the only other copy of the pending messages, so Kafka must not delete anything by
    # itself.
    kept = {
        **common,
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "cleanup.policy": "delete",
        "message.timestamp.type": "LogAppendTime",
    }
    # Every message that fits the delay topic must fit here, and stays until an operator has looked
    # at it.
    letters = {
        **common,
        "retention.ms": "-1",
        "max.message.bytes": str(topics.message_bytes_max + HEADROOM_BYTES),
    }
    shards = config.shards
    return [
        TopicSpec(
            name=topics.delay,
            partitions=shards,
            per_shard=True,
            settings={
                **kept,
                "max.message.bytes": str(topics.message_bytes_max),
                "compression.type": topics.compression,
            },
        ),
        TopicSpec(
            name=topics.progress,
            partitions=shards,
            per_shard=True,
            settings={**kept, "max.message.bytes": str(PROGRESS_BYTES)},
        ),
        TopicSpec(name=topics.rejected, partitions=shards, settings=letters),
        TopicSpec(name=topics.dead_letter, partitions=shards, settings=letters),
    ]


def open_audit(config: Config) -> AuditSink | None:
    """Return the file of the audit trail; None: its entries are log lines. Raises
    ConfigurationError."""
    path = config.audit.path
    return None if path is None else AuditFile(path)


def open_audit_trail(config: Config) -> AuditTrail | None:
    """Return the reader of that file; None: log lines are not read."""
    path = config.audit.path
    return None if path is None else AuditFileTrail(path)


def cluster_topic(config: Config) -> TopicSpec:
    """Return the topic of `coordinator.kind: kafka`: heartbeats and roles. The controller trims it;
    nothing else deletes from it."""
    return TopicSpec(
        name=config.topics.cluster,
        partitions=2,
        settings={
            **_durable(config),
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "cleanup.policy": "delete",
            "max.message.bytes": str(CLUSTER_BYTES),
            "compression.type": config.topics.compression,
        },
    )


def _durable(config: Config) -> dict[str, str]:
    """Return the settings that every topic of Chronos has."""
    topics = config.topics
    common = {
        "replication.factor": str(topics.replication_factor),
        "unclean.leader.election.enable": "false",
    }
    if topics.min_insync_replicas is not None:
        common["min.insync.replicas"] = str(topics.min_insync_replicas)
    return common


def check_progress_fits(config: Config, progress: TopicInfo) -> None:
    """Raise ConfigurationError if the progress topic refuses the largest progress record of one
    step: no retry would help."""
    name = config.topics.progress
    needed = progress_bytes_max(STEP_MESSAGES)
    if progress.bytes_max >= needed:
        return
    raise ConfigurationError(
        [
            f"{name} has max.message.bytes={progress.bytes_max}, Chronos needs {needed} for the "
            f"progress record of one step: kafka-configs --alter --topic {name} --add-config "
            f"max.message.bytes={needed}"
        ]
    )


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
