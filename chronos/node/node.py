"""The node: everything is constructed here, started in order, and stopped in the reverse order.

start: data directory, log, topics, stores, membership, shards (replay, then steps), maintenance      (HTTP comes last, in `cli`)
stop:  (HTTP first) masterships handed over, maintenance, shards, membership, stores, log, data directory
"""

import secrets
import threading
import time
from pathlib import Path

import structlog

from chronos import __version__
from chronos.adapters.checkpoints.files import Copier
from chronos.adapters.clock import SystemClock
from chronos.adapters.embedded.log import EmbeddedLog
from chronos.adapters.rocksdb.store import RocksStore, shared_cache
from chronos.config import Config
from chronos.core.codec import FRESH, Identity, State, unpack_state
from chronos.core.keys import STATE_KEY
from chronos.core.roles import OK, Member
from chronos.errors import ChronosError, ConfigurationError, NoSpace, Retry, Stop
from chronos.node.bootstrap import StoreBootstrap
from chronos.node.checkpointing import CheckpointScheduler
from chronos.node.cluster import UNREACHABLE_SHARE, ClusterNode, open_coordinator
from chronos.node.directory import DataDirectory
from chronos.node.driver import ShardDriver, surely
from chronos.node.opening import check_identity, identity, open_log, open_store, own_topics
from chronos.node.shards import described, make_shard
from chronos.ports import Clock, Log, TopicInfo
from chronos.workers.checkpoint import LogPosition, needed_from
from chronos.workers.delete import id_states_kept_ms
from chronos.workers.membership import Membership
from chronos.workers.replica import STANDALONE, RecoveryCost
from chronos.workers.watch import LOOK_EVERY_MS, TopicWatch

log = structlog.get_logger("chronos.node")

MAINTENANCE_S = 1.0
"""How often the maintenance thread looks whether a flush or a cleaning is due."""

EXPIRE_EVERY_S = 60.0
"""How often the embedded log drops what is older than its retention."""

STOP_S = 10.0
"""How long all shards together may take to end their steps; a transaction's time-out is the longest of them."""

IN_PLACE = ("master", "follower", "none")
"""Roles of a replica that has nothing left to do before it serves."""


class Node:
    """One Chronos process."""

    def __init__(self, config: Config, *, clock: Clock | None = None, from_checkpoint: bool = False) -> None:
        """`from_checkpoint`: begin with the newest checkpoints, also where there are stores."""
        self.config = config
        self.clock = clock or SystemClock()
        self.started_ms = self.clock.now_ms()
        self.directory = DataDirectory(Path(config.node.data_dir), node=config.node.id)
        self.token = secrets.token_hex(16)
        """Told to the coordinator only: who shows it is this node."""
        self.log: Log
        self.copier: Copier
        self.shards: list[ShardDriver] = []
        self.failure: ChronosError | None = None
        """Why the node cannot go on, once that is so."""
        self.failed = threading.Event()
        self._cache = shared_cache(config.store.block_cache)
        self.checkpoints: CheckpointScheduler | None = None
        """The checkpoints of this node's shards; None without a location for them."""
        self._from_checkpoint = from_checkpoint
        self._flushed: dict[int, LogPosition] = {}
        """Where each shard's store stood at its last flush: what a crash would leave."""
        self._place: ClusterNode | None = None
        self._leaving = False
        self._stores: list[RocksStore] = []
        self._stopping = threading.Event()
        keep = ("maintenance", self._maintain, self._fail)
        self._maintenance = threading.Thread(target=surely, args=keep, name="maintenance", daemon=True)

    @property
    def membership(self) -> Membership | None:
        """This node's membership in the cluster; None for a standalone node."""
        return None if self._place is None else self._place.membership

    @property
    def instance(self) -> str:
        """The id of its data directory."""
        return self.directory.instance

    # --- start

    def start(self) -> None:
        """Bring everything up; on any error, whatever was up is down again."""
        config = self.config
        try:
            self.directory.claim()
            self.log = open_log(config, self.directory, self.clock)
            topics = own_topics(config)
            infos = self.log.prepare(topics, create=config.topics.create)
            self._watch = TopicWatch(self.log, topics[:2], infos)
            self.copier = self._make_copier()
            self.checkpoints = self._open_checkpoints()
            if config.coordinator.kind == "zookeeper":
                self._place = ClusterNode(
                    open_coordinator(config, self.instance),
                    node=config.node.id,
                    log=self.log,
                    unreachable_ms=int(config.coordinator.zookeeper.session_timeout * UNREACHABLE_SHARE),
                    clock=self.clock,
                    describe=self.describe,
                    failed=self._fail,
                )
            self._beginning = StoreBootstrap(
                self.copier,
                keeping=self.checkpoints,
                membership=self.membership,
                node=config.node.id,
                token=self.token,
                stopping=self._stopping,
                anew=range(config.shards) if self._from_checkpoint else (),
            )
            for number in range(config.shards):
                self.shards.append(self._open_shard(number, infos))
            if self._place is not None:
                self._place.take()
            for shard in self.shards:
                shard.start()
            self._maintenance.start()
            if self.checkpoints is not None:
                self.checkpoints.start()
        except BaseException:
            self.stop()
            raise
        log.info("started", node=config.node.id, shards=config.shards, log=config.log.kind)

    def _make_copier(self) -> Copier:
        retention = self.config.retention
        return Copier(
            self.directory.path / "copies",
            node=self.config.node.id,
            version=__version__,
            remembered_ms=id_states_kept_ms(retention.delivered, retention.deduplication),
        )

    def _open_checkpoints(self) -> CheckpointScheduler | None:
        if self.config.checkpoints.location is None:
            return None
        if self.config.log.kind == "embedded":
            raise ConfigurationError([
                "checkpoints.location: the embedded log lies on the same disk as the store, and a checkpoint of the store is"
                " worth nothing without it. Copy the whole data directory instead, or use log.kind: kafka"
            ])  # fmt: skip
        return CheckpointScheduler(self.config, self.log, self.clock, copier=self.copier, failed=self._fail)

    def _open_shard(self, number: int, infos: dict[str, TopicInfo]) -> ShardDriver:
        """Its store, and the driver of its replica."""
        mine = identity(self.config, number, infos)
        store = open_store(self.config, self.directory, number, self._cache)
        self._stores.append(store)
        check_identity(store, mine, store.path)
        shard = make_shard(
            self.config,
            number,
            log_port=self.log,
            store=store,
            clock=self.clock,
            instance=self.instance,
            guard=self._guard,
            assigned=lambda: STANDALONE if self.membership is None else self.membership.role(number),
            begin=lambda replay: self._begin(store, mine, replay),
            failed=self._fail,
        )
        self._flushed[number] = _position(shard.state)
        if self.checkpoints is not None:
            self.checkpoints.add(
                shard,
                mine,
                replicas=lambda: self._replica_positions(number),
                trims=lambda: shard.role == "master",
            )
        return shard

    def _begin(self, store: RocksStore, mine: Identity, replay: RecoveryCost) -> bool:
        found = self._beginning.begin(store, mine, replay)
        if found is not None:
            self._flushed[mine.shard] = LogPosition(applied=found.applied, pull_offset=found.pull_offset)
        return found is not None

    def _replica_positions(self, number: int) -> list[LogPosition | None]:
        """From where on each registered replica needs the logs; None: not known, so nothing may be trimmed."""
        kept = self._flushed[number]
        if self.membership is None:
            return [kept]
        return needed_from(
            self.membership.snapshot(), number, node=self.config.node.id, kept=kept, now_ms=self.clock.now_ms()
        )

    # --- the cluster

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
            log=OK if self._place is None else self._place.reach.verdict,
            token=self.token,
            replicas={shard.number: described(shard, self._flushed[shard.number]) for shard in self.shards},
        )

    def _guard(self) -> str | None:
        """Why no step may start now; None when all is well."""
        reserve, free = self.config.limits.disk_reserve, self.disk_free_bytes()
        if free >= reserve:
            return None
        return (
            f"{self.directory.path} has {free // 2**20} MiB free, less than limits.disk_reserve"
            f" ({reserve // 2**20} MiB): nothing is pulled or delivered until there is more"
        )

    def disk_free_bytes(self) -> int:
        """Bytes an unprivileged process may still write where the data directory is."""
        return self.directory.free_bytes()

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

    def _maintain(self) -> None:
        """Look at the topics; flush what a replay would have to repeat; let the embedded log forget what is flushed."""
        flushed_s = expired_s = time.monotonic()
        look_ms = 0
        flush_every_s = self.config.store.flush_every / 1_000
        while not self._stopping.wait(MAINTENANCE_S):
            now_s = time.monotonic()
            try:
                now_ms = self.clock.now_ms()
                # Also when the clock was ahead for a while, and the next look was put off by as much.
                if not 0 < look_ms - now_ms <= LOOK_EVERY_MS:
                    look_ms = self._watch.step(now_ms)
                if now_s - flushed_s >= flush_every_s:
                    flushed_s = now_s
                    self._flush()
                if isinstance(self.log, EmbeddedLog) and now_s - expired_s >= EXPIRE_EVERY_S:
                    expired_s = now_s
                    self.log.expire(now_ms)
            except Retry as error:
                log.warning("keeping", why=str(error))

    def _flush(self) -> None:
        topics = self.config.topics
        for shard, store in zip(self.shards, self._stores, strict=True):
            # Read before the flush: at least this much of the logs is needed no more, unless the store has begun anew
            # meanwhile from what it held before.
            opened = store.times_opened
            (data,) = store.get([STATE_KEY])
            state = FRESH if data is None else unpack_state(data)
            store.flush()
            if store.times_opened != opened:
                continue
            self._flushed[shard.number] = _position(state)
            if isinstance(self.log, EmbeddedLog):
                self.log.trim(topics.delay, shard.number, state.pull_offset)
                self.log.trim(topics.progress, shard.number, state.applied)

    # --- stop

    def stop(self) -> None:
        """Stop in the reverse order; what is in the store is flushed, so that the next start replays nothing."""
        self._leaving = True
        if self._place is not None:
            self._place.hand_over(lambda: all(shard.role != "master" for shard in self.shards))
        if self.checkpoints is not None:
            self.checkpoints.stop()
        deadline = time.monotonic() + STOP_S
        self._stopping.set()
        for shard in self.shards:
            shard.stop()
        for thread in (self._maintenance, *self.shards):
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))
        if self._place is not None:
            self._place.leave(max(0.0, deadline - time.monotonic()))
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
        self.directory.release()
        log.info("stopped")


def _position(state: State) -> LogPosition:
    return LogPosition(applied=state.applied, pull_offset=state.pull_offset)
