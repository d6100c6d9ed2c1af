"""The node: everything is constructed here, started in order, and stopped in the reverse order.

start: data directory, log, topics, stores, membership, shards (replay, then steps), keeper      (HTTP comes last, in `cli`)
stop:  (HTTP first) masterships handed over, keeper, shards, membership, stores, log, data directory
"""

import fcntl
import os
import threading
import time
import uuid
from pathlib import Path

import structlog

from chronos import __version__
from chronos.adapters.checkpoint_files import Copier
from chronos.adapters.clock import SystemClock
from chronos.adapters.embedded import EmbeddedLog
from chronos.adapters.rocks import RocksStore, shared_cache
from chronos.checkpointing import Keeping
from chronos.config import Config
from chronos.core.codec import Identity, State, pack_identity, unpack_identity
from chronos.core.keys import IDENTITY_KEY
from chronos.core.message import Rules
from chronos.core.roles import Member
from chronos.core.roles import Replica as Described
from chronos.driver import ShardDriver
from chronos.errors import ChronosError, ConfigurationError, LogMismatch, NoSpace, Retry, Stop, StoreInUse
from chronos.ports import Clock, Coordinator, Log, Store, TopicInfo, TopicSpec
from chronos.workers.checkpoint import Position
from chronos.workers.delete import words_kept_ms
from chronos.workers.master import Limits
from chronos.workers.member import Membership
from chronos.workers.push import Pusher
from chronos.workers.replica import STANDALONE, Replica
from chronos.workers.watch import Watch

log = structlog.get_logger("chronos.node")

KEEPER_S = 1.0
"""How often the keeper looks whether a flush or a cleaning is due."""

EXPIRE_EVERY_S = 60.0
"""How often the embedded log drops what is older than its retention."""

STOP_S = 10.0
"""How long all shards together may take to end their steps; a transaction's time-out is the longest of them."""

HAND_OVER_S = 5.0
"""How long a node that stops waits for others to take over its shards."""

AWAY_MS = 7 * 86_400_000
"""A node that was away for so long is not waited for with trimming: when it comes back it begins with a checkpoint."""

IN_PLACE = ("master", "follower", "none")
"""Roles of a replica that has nothing left to do before it serves."""

EMBEDDED_REMEDY = (
    "Restore a copy of the whole data directory: the embedded log is trimmed behind the stores, so that what was pending"
    " is in this store alone. `chronos doctor` tells more."
)
"""What to do about a damaged store whose log is on the same disk."""

HEADROOM_BYTES = 256 * 1024
"""What rejected and dead-letter topics take beyond the delay topic: reason, source and receipt."""


class Node:
    """One Chronos process."""

    def __init__(self, config: Config, *, clock: Clock | None = None, from_checkpoint: bool = False) -> None:
        """`from_checkpoint`: begin with the newest checkpoints, also where there are stores."""
        self.config = config
        self.clock = clock or SystemClock()
        self.started_ms = self.clock.now_ms()
        self.instance = ""
        self.log: Log
        self.shards: list[ShardDriver] = []
        self.failure: ChronosError | None = None
        """Why the node cannot go on, once that is so."""
        self.failed = threading.Event()
        self._cache = shared_cache(config.store.block_cache)
        self.checkpoints: Keeping | None = None
        """The checkpoints of this node's shards; None without a location for them."""
        self._from_checkpoint = from_checkpoint
        self._flushed: dict[int, Position] = {}
        """Where each shard's store stood at its last flush: what a crash would leave."""
        self.membership: Membership | None = None
        """This node's place in the cluster; None for a standalone node."""
        self._coordinator: Coordinator | None = None
        self._leaving = False
        self._member = threading.Thread(target=self._be_member, name="member", daemon=True)
        self._stores: list[Store] = []
        self._lock_file: int | None = None
        self._stopping = threading.Event()
        self._left = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="keeper", daemon=True)
        self._data_dir = Path(config.node.data_dir)

    # --- start

    def start(self) -> None:
        """Bring everything up; on any error, whatever was up is down again."""
        try:
            self.claim_data_dir()
            self.log = self.open_log()
            topics = self.own_topics()
            infos = self.log.prepare(topics, create=self.config.topics.create)
            self._watch = Watch(self.log, topics[:2], infos)
            self.checkpoints = self._open_checkpoints()
            for number in range(self.config.shards):
                self.shards.append(self._open_shard(number, infos))
            if self.config.coordinator.kind == "zookeeper":
                self._join()
            for shard in self.shards:
                shard.start()
            self._keeper.start()
            if self.checkpoints is not None:
                self.checkpoints.start()
        except BaseException:
            self.stop()
            raise
        log.info("started", node=self.config.node.id, shards=self.config.shards, log=self.config.log.kind)

    def claim_data_dir(self) -> None:
        """The data directory belongs to one process at a time, and to one node for ever."""
        try:
            self._data_dir.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._data_dir / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise Stop(f"node.data_dir {self._data_dir} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(handle, 200).decode("utf-8", "replace").strip()
            os.close(handle)
            raise StoreInUse(
                f"{self._data_dir} is in use by another Chronos ({owner or 'unknown'}). Stop it, or give this node"
                " another node.data_dir."
            ) from None
        self._lock_file = handle
        os.truncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()}, node {self.config.node.id}\n".encode(), 0)
        named = self._data_dir / "instance"
        if not named.exists():
            fresh = self._data_dir / "instance.new"
            fresh.write_text(uuid.uuid4().hex + "\n")
            fresh.replace(named)
        self.instance = named.read_text().strip()

    def open_log(self) -> Log:
        """The log that `log.kind` names."""
        config = self.config
        if config.log.kind == "embedded":
            return EmbeddedLog(
                self._data_dir / "log",
                clock=self.clock,
                progress_topic=config.topics.progress,
                retention_ms=config.log.embedded.retention,
                partitions_default=config.log.embedded.partitions,
                disk_reserve_bytes=config.limits.disk_reserve,
            )
        # Imported here: a node on the embedded log runs without the Kafka client.
        from chronos.adapters.kafka import KafkaLog

        assert config.log.kafka.bootstrap_servers is not None
        return KafkaLog(
            bootstrap_servers=config.log.kafka.bootstrap_servers,
            properties=config.log.kafka.properties,
            cluster=config.cluster,
            progress_topic=config.topics.progress,
            transaction_timeout_s=config.delivery.transaction_timeout / 1_000,
        )

    def own_topics(self) -> list[TopicSpec]:
        """Chronos's own four topics, as they have to be."""
        topics = self.config.topics
        common = {"replication.factor": str(topics.replication_factor), "unclean.leader.election.enable": "false"}
        if topics.min_insync_replicas is not None:
            common["min.insync.replicas"] = str(topics.min_insync_replicas)
        # The log is the only other copy of what is pending: it is kept for ever.
        kept = {**common, "retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete",
                "message.timestamp.type": "LogAppendTime"}  # fmt: skip
        # What came in can go out, and waits there until somebody has looked at it.
        letters = {**common, "retention.ms": "-1", "max.message.bytes": str(topics.message_bytes_max + HEADROOM_BYTES)}
        shards = self.config.shards
        return [
            TopicSpec(name=topics.delay, partitions=shards, per_shard=True,
                      settings={**kept, "max.message.bytes": str(topics.message_bytes_max)}),
            TopicSpec(name=topics.progress, partitions=shards, per_shard=True,
                      settings={**kept, "max.message.bytes": "4194304"}),
            TopicSpec(name=topics.rejected, partitions=shards, settings=letters),
            TopicSpec(name=topics.dead_letter, partitions=shards, settings=letters),
        ]  # fmt: skip

    def open_store(self, number: int) -> Store:
        """The store of a shard, which `stop` closes again; all of them share one block cache."""
        settings = self.config.store
        store = RocksStore(
            self._data_dir / "shards" / str(number),
            block_cache=self._cache,
            memtable_bytes=settings.memtable,
            blob_bytes_min=settings.blob_bytes_min,
            remedy=EMBEDDED_REMEDY if self.config.log.kind == "embedded" else None,
        )
        self._stores.append(store)
        return store

    def _open_checkpoints(self) -> Keeping | None:
        if self.config.checkpoints.location is None:
            return None
        if self.config.log.kind == "embedded":
            raise ConfigurationError([
                "checkpoints.location: the embedded log lies on the same disk as the store, and a checkpoint of the store is"
                " worth nothing without it. Copy the whole data directory instead, or use log.kind: kafka"
            ])  # fmt: skip
        retention = self.config.retention
        copier = Copier(
            self._data_dir / "copies",
            node=self.config.node.id,
            version=__version__,
            remembered_ms=words_kept_ms(retention.delivered, retention.deduplication),
        )
        return Keeping(self.config, self.log, self.clock, copier=copier, failed=self._fail)

    def _open_shard(self, number: int, infos: dict[str, TopicInfo]) -> ShardDriver:
        """Its store, from a checkpoint where there is none or one that the logs do not reach back to; and its driver."""
        identity, path = self._identity(number, infos), self._data_dir / "shards" / str(number)
        if self.checkpoints is not None:
            if not path.exists():
                self.checkpoints.restore(number, identity, path)
            elif self._from_checkpoint:
                self.checkpoints.replace(number, identity, path)
        store = self.open_store(number)
        self.check_identity(store, number, infos)
        if self.checkpoints is not None and self.checkpoints.is_behind(number, store):
            store.close()
            self._stores.remove(store)
            self.checkpoints.replace(number, identity, path)
            store = self.open_store(number)
            self.check_identity(store, number, infos)
        shard = self._driver(number, store)
        self._flushed[number] = _position(shard.state)
        if self.checkpoints is not None:
            self.checkpoints.add(
                shard,
                identity,
                replicas=lambda: self._replica_positions(number),
                trims=lambda: shard.role == "master",
            )
        return shard

    def _replica_positions(self, number: int) -> list[Position | None]:
        """From where on each registered replica needs the logs; None: not known, so nothing may be trimmed."""
        positions: list[Position | None] = [self._flushed[number]]
        if self.membership is None:
            return positions
        outlook = self.membership.outlook()
        if outlook.roles is None or not outlook.sure:
            return [None]
        for member in outlook.members.values():
            replica = member.replicas.get(number)
            if member.node != self.config.node.id and replica is not None and replica.role != "none":
                kept = (replica.kept_applied, replica.kept_pull_offset)
                positions.append(None if None in kept else Position(applied=kept[0], pull_offset=kept[1]))  # type: ignore[arg-type]
        now_ms = self.clock.now_ms()
        given = outlook.roles.shards.get(number)
        if given is not None and any(
            now_ms - outlook.roles.away.get(node, now_ms) < AWAY_MS
            for node in given.replicas
            if node not in outlook.members
        ):
            positions.append(None)
        return positions

    def _identity(self, number: int, infos: dict[str, TopicInfo]) -> Identity:
        topics = self.config.topics
        return Identity(
            cluster=self.config.cluster,
            shard=number,
            shards=self.config.shards,
            delay_topic=topics.delay,
            delay_topic_id=infos[topics.delay].id,
            progress_topic=topics.progress,
            progress_topic_id=infos[topics.progress].id,
        )

    def check_identity(self, store: Store, number: int, infos: dict[str, TopicInfo]) -> None:
        """A store belongs to one shard of one pair of topics; the topics' ids tell whether they are still the same."""
        identity = self._identity(number, infos)
        (data,) = store.get([IDENTITY_KEY])
        if data is None:
            store.write([(IDENTITY_KEY, pack_identity(identity))], [])
            return
        known = unpack_identity(data)
        for name in Identity.__struct_fields__:
            was, now = getattr(known, name), getattr(identity, name)
            if was != now:
                raise LogMismatch(
                    f"the store in {self._data_dir / 'shards' / str(number)} was built with {name}={was}, now it is {now}."
                    " A topic id changes when a topic is deleted and created again: its pending messages are gone"
                    " from the log. Point Chronos to the right cluster and topics; or, to start anew, remove the data"
                    " directory and both the delay and the progress topic."
                )

    def _driver(self, number: int, store: Store) -> ShardDriver:
        config = self.config
        topics, delivery, settings = config.topics, config.delivery, config.store
        rules = Rules(
            shard=number,
            shards=config.shards,
            own_topics=(topics.delay, topics.progress, topics.rejected, topics.dead_letter),
            allow=config.targets.allow,
            deny=config.targets.deny,
            max_delay_ms=config.limits.max_delay,
            deduplication_ms=config.retention.deduplication,
            refuse_wrong_shard=topics.partitioner == "murmur2",
        )

        def pusher() -> Pusher:
            return Pusher(
                self.log,
                rules,
                delay_topic=topics.delay,
                rejected_topic=topics.rejected,
                dead_letter_topic=topics.dead_letter,
                create_topics=delivery.create_topics,
                attempts_max=delivery.attempts_max,
                retry_base_ms=delivery.retry_base,
                retry_cap_ms=delivery.retry_cap,
            )

        replica = Replica(
            log_port=self.log,
            store=store,
            clock=self.clock,
            rules=rules,
            pusher=pusher,
            limits=Limits(
                messages=delivery.batch_messages,
                bytes=delivery.batch_bytes,
                wheel_messages=settings.wheel_messages,
                wheel_bytes=settings.wheel_bytes,
                wheel_horizon_ms=settings.wheel_horizon,
                pull=config.workers.pull,
                push=config.workers.push,
            ),
            delay_topic=topics.delay,
            progress_topic=topics.progress,
            node=config.node.id,
            instance=self.instance,
            delivered_ms=config.retention.delivered if config.workers.delete else None,
            deduplication_ms=config.retention.deduplication,
            guard=self._guard,
            assigned=lambda: STANDALONE if self.membership is None else self.membership.role(number),
        )
        return ShardDriver(replica, clock=self.clock, failed=self._fail)

    # --- the cluster

    def _join(self) -> None:
        """Take this node's place in the cluster, and keep it up on a thread of its own."""
        # Imported here: a standalone node runs without the ZooKeeper client.
        from chronos.adapters.zookeeper import ZooKeeperCoordinator
        from chronos.core.roles import plan

        settings = self.config.coordinator.zookeeper
        assert settings.hosts is not None
        self._coordinator = coordinator = ZooKeeperCoordinator(
            hosts=settings.hosts,
            cluster=self.config.cluster,
            node=self.config.node.id,
            instance=self.instance,
            shards=self.config.shards,
            replication=self.config.coordinator.replication,
            session_timeout_s=settings.session_timeout / 1_000,
            path=settings.path,
            authentication=settings.authentication,
            username=settings.username,
            password=settings.password,
            acl=settings.acl,
            tls=settings.tls,
            ca=settings.ca,
            certfile=settings.certfile,
            keyfile=settings.keyfile,
        )
        self.membership = Membership(
            coordinator, node=self.config.node.id, clock=self.clock, describe=self.describe, plan=plan
        )
        self.membership.join()
        self._member.start()

    def describe(self) -> Member:
        """What this node says of itself to the cluster."""
        config = self.config
        return Member(
            node=config.node.id,
            instance=self.instance,
            address=str(config.admin.advertised or f"http://{config.admin.host}:{config.admin.port}"),
            version=__version__,
            started_ms=self.started_ms,
            leaving=self._leaving,
            replicas={shard.number: _described(shard, self._flushed[shard.number]) for shard in self.shards},
        )

    def _be_member(self) -> None:
        assert self.membership is not None
        assert self._coordinator is not None
        while not self._left.is_set():
            try:
                wake_ms = self.membership.step(self.clock.now_ms())
            except ChronosError as error:
                self._fail(error)
                return
            timeout_s = (wake_ms - self.clock.now_ms()) / 1_000
            if timeout_s > 0:
                self._coordinator.wait(min(timeout_s, KEEPER_S))

    def _hand_over(self) -> None:
        """Let the other nodes take over what this one is master of, as long as there are others."""
        if self.membership is None or not self._member.is_alive():
            return
        self._leaving = True
        deadline = time.monotonic() + HAND_OVER_S
        while time.monotonic() < deadline and len(self.membership.outlook().members) > 1:
            if all(shard.role != "master" for shard in self.shards):
                return
            time.sleep(0.02)

    def _guard(self) -> str | None:
        """Why no step may start now; None when all is well."""
        reserve, free = self.config.limits.disk_reserve, self.disk_free_bytes()
        if free >= reserve:
            return None
        return (
            f"{self._data_dir} has {free // 2**20} MiB free, less than limits.disk_reserve"
            f" ({reserve // 2**20} MiB): nothing is pulled or delivered until there is more"
        )

    def disk_free_bytes(self) -> int:
        """Bytes an unprivileged process may still write where the data directory is."""
        found = os.statvfs(self._data_dir)
        return found.f_bavail * found.f_frsize

    def _fail(self, error: ChronosError) -> None:
        if self.failure is None:
            self.failure = error
        self.failed.set()

    # --- while it runs

    @property
    def ready(self) -> bool:
        """Every shard is in its place and nothing is paused."""
        return self.failure is None and bool(self.shards) and all(
            shard.role in IN_PLACE and shard.paused is None for shard in self.shards
        )  # fmt: skip

    def _keep(self) -> None:
        """Look at the topics; flush what a replay would have to repeat; let the embedded log forget what is flushed."""
        flushed_s = expired_s = time.monotonic()
        look_ms = 0
        flush_every_s = self.config.store.flush_every / 1_000
        while not self._stopping.wait(KEEPER_S):
            now_s = time.monotonic()
            try:
                now_ms = self.clock.now_ms()
                if now_ms >= look_ms:
                    look_ms = self._watch.step(now_ms)
                if now_s - flushed_s >= flush_every_s:
                    flushed_s = now_s
                    self._flush()
                if isinstance(self.log, EmbeddedLog) and now_s - expired_s >= EXPIRE_EVERY_S:
                    expired_s = now_s
                    self.log.expire(now_ms)
            except Retry as error:
                log.warning("keeping", why=str(error))
            except Stop as error:
                self._fail(error)
                return

    def _flush(self) -> None:
        topics = self.config.topics
        for shard in self.shards:
            # Read before the flush: at least this much of the logs is needed no more.
            state = shard.state
            shard.store.flush()
            self._flushed[shard.number] = _position(state)
            if isinstance(self.log, EmbeddedLog):
                self.log.trim(topics.delay, shard.number, state.pull_offset)
                self.log.trim(topics.progress, shard.number, state.applied)

    # --- stop

    def stop(self) -> None:
        """Stop in the reverse order; what is in the store is flushed, so that the next start replays nothing."""
        self._hand_over()
        if self.checkpoints is not None:
            self.checkpoints.stop()
        deadline = time.monotonic() + STOP_S
        self._stopping.set()
        for shard in self.shards:
            shard.stop()
        for thread in (self._keeper, *self.shards):
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))
        self._left.set()
        if self._member.is_alive():
            self._member.join(max(0.0, deadline - time.monotonic()))
        if self._coordinator is not None:
            self._coordinator.leave()
        stuck = [shard.number for shard in self.shards if shard.is_alive()]
        if stuck:
            # Closing a store under a running step would lose nothing, but crash: leave both to the end of the process.
            log.error("shards do not end their step", shards=stuck)
            return
        for store in self._stores:
            try:
                store.close()
            except (NoSpace, Stop) as error:
                log.warning("closing a store", why=str(error))
        if hasattr(self, "log"):
            self.log.close()
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None
        log.info("stopped")


def _position(state: State) -> Position:
    return Position(applied=state.applied, pull_offset=state.pull_offset)


def _described(shard: ShardDriver, kept: Position) -> Described:
    state = shard.state
    return Described(
        applied=state.applied if shard.replica.known else None,
        pull_offset=state.pull_offset,
        role_epoch=state.role_epoch,
        role_node=state.node,
        log_epoch=state.log_epoch,
        role=shard.role,
        reason=shard.paused,
        kept_applied=kept.applied,
        kept_pull_offset=kept.pull_offset,
    )
