"""The node: the parts of one Chronos process, started and stopped in order.

`Node.start` and `Node.stop` number the order. Threads of its own do the maintenance, compact the
stores and ask whether a broker answers. The HTTP interface is not part of it: `cli` starts it last
and stops it first. What a part does is the subject of its own file."""

import os
import secrets
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from chronos import __version__, zones
from chronos.adapters.checkpoints.files import Copier
from chronos.adapters.clock import SystemClock
from chronos.adapters.embedded.log import EmbeddedLog
from chronos.adapters.kafka.closing import consumers
from chronos.adapters.rocksdb import RocksStore, shared_cache
from chronos.adapters.tracing import Spans, open_spans
from chronos.config import Config
from chronos.core.cluster.health import Mode, Verdict, mode_of
from chronos.core.cluster.roles import OK, Member
from chronos.core.keys import STATE_KEY
from chronos.core.selector import Selector
from chronos.core.shard.codec import FRESH, Identity, unpack_state
from chronos.core.timefmt import MS_MAX
from chronos.errors import ChronosError, ConfigurationError, NoSpace, Retry, Stop
from chronos.node.bootstrap import OtherNodes, StoreBootstrap
from chronos.node.checkpoints import CheckpointScheduler
from chronos.node.cluster import ClusterNode, NodeCallbacks, open_coordinator, unreachable_ms
from chronos.node.data_directory import DataDirectory
from chronos.node.descriptors import raise_limit
from chronos.node.history import History
from chronos.node.opening import identity, open_log, open_store
from chronos.node.outcomes import Outcomes, is_over
from chronos.node.rates import NodeRates
from chronos.node.registry_values import RegistryConfiguration
from chronos.node.shards import ShardDriver, Shared, look, make_shard, report
from chronos.node.start_turns import StartTurns
from chronos.node.threads import join_until, run_guarded
from chronos.node.tls import Tls
from chronos.node.topics import check_progress_fits, cluster_topic, own_topics
from chronos.node.watch import ShardWatch
from chronos.ports import Clock, Log
from chronos.workers.cluster.in_sync import InSyncWatch
from chronos.workers.cluster.membership import Membership
from chronos.workers.push.targets import due_targets
from chronos.workers.replica.checkpoint import LogPosition, needed_from
from chronos.workers.replica.horizon import Elsewhere
from chronos.workers.replica.leadership import STANDALONE
from chronos.workers.replica.recovery import RecoveryCost
from chronos.workers.replica.retention import id_states_kept_ms
from chronos.workers.replica.state import IN_PLACE, ReplicaState
from chronos.workers.watch.reachability import LogReachability
from chronos.workers.watch.topics import CHECK_EVERY_MS, TopicWatch
from chronos.workers.watch.transactions import OpenTransactions

log = structlog.get_logger("chronos.node")

MAINTENANCE_S = 1.0
"""How often the maintenance thread checks whether a part of its work is due."""

REST_S, REST_TIMES = 30.0, 20
"""How long a store is not compacted again: so long at least, and so many times what it took."""

CAUSES_EVERY_MS = 5_000
"""How often the targets of recent dead letters are looked at."""

CAUSES_MAX = 100
"""Most of them that are looked at."""

STORES_AT_ONCE = 8
"""Stores that are opened at the same time: opening one waits for the disk for most of its time."""

RETIRING_EVERY_S = 60.0
"""How often a node that retires says what it still holds."""

EXPIRE_EVERY_S = 60.0
"""How often the embedded log drops records that are older than its retention."""

STOP_S = 10.0
"""How long all shards together may take to end their steps; the longest part is a transaction's
time-out."""


class Node:
    """One Chronos process."""

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock | None = None,
        from_checkpoint: bool = False,
        retires: bool = False,
    ) -> None:
        """`from_checkpoint`: replace the stores by the newest checkpoints, regardless of their
        contents. `retires`: give all replicas away, see `is_retired`."""
        self.config = config
        self._retires = retires
        self.clock = clock or SystemClock()
        self.started_ms = self.clock.now_ms()
        self.directory = DataDirectory(Path(config.node.data_dir), node=config.node.id)
        self.token = secrets.token_hex(16)
        """Proves to other nodes that a request is from this node; only the coordinator stores
        it."""
        self.tls = Tls(config)
        """The certificates of the HTTP interface and of the voter."""
        self.log: Log
        self.copier: Copier
        self.rates = NodeRates(config, self.directory.path)
        """The rate limits of target topics."""
        self.registry_configuration = RegistryConfiguration(self.directory.path)
        """The configuration that the registry serves."""
        self.open_transactions: OpenTransactions
        """Records that open transactions of producers hold back, of the shards this node is master
        of."""
        self.shards: list[ShardDriver] = []
        self._forwards = config.topics.misplaced == "forward"
        self.selector = Selector()
        """The latencies of the brokers, as its shards measure them; empty with
        `delivery_faults.enabled: off`."""
        self.checkpoints: CheckpointScheduler | None = None
        """The checkpoints of this node's shards; None without a location for them."""
        self.outcomes = Outcomes(lambda: self.delay_leaders)
        """Counts of the outcomes of all shards since the process started."""
        self.history = History(self.outcomes)
        """The last day, minute by minute."""
        self.failure: ChronosError | None = None
        """The error that ends the node; None before it."""
        self.failed = threading.Event()
        """Set with `failure`."""
        self._cache = shared_cache(config.store.block_cache)
        self._from_checkpoint = from_checkpoint
        self._bytes_max: dict[str, int] = {}
        """Limits of the targets of recent dead letters, as of the last look."""
        self._flushed: dict[int, LogPosition] = {}
        """By shard, the position of its store at its last flush, from which it replays after a
        crash."""
        self._cluster: ClusterNode | None = None
        """None for a standalone node."""
        self._causes_looked_ms = 0
        """When the targets of recent dead letters were last looked at (epoch ms)."""
        self._looked_at: set[int] = set()
        """Shards whose targets were looked at once, since this node leads them."""
        self._leaving = False
        self._is_changed = False
        """The state of a shard changed, and is to be reported at once."""
        self._reads = False
        """Its shards may be started."""
        self._reading: set[int] = set()
        """Shards that were started once."""
        self._turns = StartTurns()
        self._starting = threading.Lock()
        """Held while shards are started."""
        self._stores: dict[int, RocksStore] = {}
        self._spans: Spans | None = None
        """None if tracing is off."""
        self._watch: ShardWatch | None = None
        self._reachability: LogReachability | None = None
        """None on the embedded log."""
        self._stopping = threading.Event()
        self._maintenance = threading.Thread(
            target=run_guarded,
            args=("maintenance", self._maintain, self._fail),
            name="maintenance",
            daemon=True,
        )
        self._compaction = threading.Thread(
            target=run_guarded,
            args=("compaction", self._compact, self._fail),
            name="compaction",
            daemon=True,
        )
        # A thread of its own, because a ping of the log may take long.
        self._pings = threading.Thread(
            target=run_guarded,
            args=("reachability", self._ping, self._fail),
            name="reachability",
            daemon=True,
        )

    @property
    def membership(self) -> Membership | None:
        """This node's membership in the cluster; None for a standalone node."""
        return None if self._cluster is None else self._cluster.membership

    @property
    def in_sync(self) -> InSyncWatch | None:
        """The followers in sync of all shards; None for a standalone node."""
        return None if self._cluster is None else self._cluster.in_sync

    @property
    def instance(self) -> str:
        """The id of its data directory."""
        return self.directory.instance

    # --- start

    def start(self) -> None:
        """Start everything in order; after an error everything is stopped again, and the error is
        raised.

        1. raise the limit of open files if it is too low, open the spans, and lock the data
           directory, 2. open the log and check its topics, 3. construct the copier and the
           bootstrap,
        4. open the stores that are there and construct all shards, 5. join the cluster, 6. start
           the shards with a store, 7. start the maintenance, the watch and the checkpoints

        A member of a cluster starts the other shards once it knows the roles, if it holds them.
        """
        config = self.config
        try:
            # 1.
            raise_limit(config)
            self._spans = self._open_spans()
            self.directory.claim()
            # 2.
            self.log = open_log(config, self.directory, self.clock)
            if config.log.kind == "kafka":
                self._reachability = LogReachability(
                    self.log,
                    unreachable_ms=unreachable_ms(config),
                    clock=self.clock,
                    brokers=str(config.log.kafka.bootstrap_servers),
                )
            # A broker shows it only after all that was asked for before, which takes a minute for
            # some thousand partitions: one request creates all.
            is_on_kafka = config.coordinator.kind == "kafka"
            topics, others = own_topics(config), [cluster_topic(config)] if is_on_kafka else []
            infos = self.log.prepare([*topics, *others], create=config.topics.create)
            check_progress_fits(config, infos[config.topics.progress])
            self._topic_watch = TopicWatch(
                self.log,
                topics[:2],
                infos,
                letters=topics[2:],
                others=others,
                create=config.topics.create,
            )
            self.open_transactions = OpenTransactions(self.log, config.topics.delay)
            self._elsewhere = Elsewhere(
                self.log,
                config.topics.progress,
                lambda: {shard.number: shard.state for shard in self.shards},
            )
            # 3.
            self.copier = self._make_copier()
            self.checkpoints = self._make_checkpoints()
            self._cluster = self._make_cluster_node()
            self._bootstrap = self._make_bootstrap()
            self.rates.open(self.shards, self.membership)
            self.registry_configuration.open(self.membership)
            # 4.
            shared = self._shared()
            identities = [identity(config, number, infos) for number in range(config.shards)]
            with ThreadPoolExecutor(STORES_AT_ONCE, "open") as threads:
                for mine, store in zip(
                    identities, threads.map(self._open_store, identities), strict=True
                ):
                    self.shards.append(self._open_shard(shared, mine, store))
            # 5.
            if self._reachability is not None:
                self._pings.start()
            if self._cluster is not None:
                self._cluster.join()
            # 6.
            self._reads = True
            self._start_shards(lambda shard: shard.store.is_open)
            # 7.
            self._watch = self._make_watch()
            self._maintenance.start()
            self._compaction.start()
            self._watch.start()
            if self.checkpoints is not None:
                self.checkpoints.start()
        except BaseException:
            self.stop()
            raise
        log.info("started", node=config.node.id, shards=config.shards, log=config.log.kind)

    def _open_spans(self) -> Spans | None:
        tracing = self.config.tracing
        if not tracing.enabled:
            return None
        return open_spans(
            tracing.endpoint,
            delay_topic=self.config.topics.delay,
            node=self.config.node.id,
            version=__version__,
            environ=os.environ,
        )

    def _make_copier(self) -> Copier:
        retention = self.config.retention
        return Copier(
            self.directory.path / "copies",
            node=self.config.node.id,
            version=__version__,
            remembered_ms=id_states_kept_ms(retention.delivered, retention.deduplication),
        )

    def _make_checkpoints(self) -> CheckpointScheduler | None:
        if self.config.checkpoints.location is None:
            return None
        if self.config.log.kind == "embedded":
            raise ConfigurationError(
                [
                    "checkpoints.location: the embedded log lies on the same disk as the store, "
                    "and a checkpoint of the store is worth nothing without it. Copy the whole "
                    "data directory instead, or use log.kind: kafka"
                ]
            )
        return CheckpointScheduler(
            self.config, self.log, self.clock, copier=self.copier, failed=self._fail
        )

    def _make_cluster_node(self) -> ClusterNode | None:
        config = self.config
        if config.coordinator.kind == "standalone":
            return None
        return ClusterNode(
            open_coordinator(config, self.tls),
            config,
            log=self.log,
            clock=self.clock,
            callbacks=NodeCallbacks(
                describe=self.describe,
                changed=self._take_changed,
                look=lambda shard, master: look(
                    self.shards[shard], leads=master == config.node.id, now_ms=self.clock.now_ms()
                ),
                assigned=self._reassign,
                failed=self._fail,
            ),
        )

    def _take_changed(self) -> bool:
        """Return whether the state of a shard changed since the last call."""
        changed, self._is_changed = self._is_changed, False
        return changed

    def _note_change(self) -> None:
        self._is_changed = True

    def _reassign(self, changed: Collection[int]) -> None:
        """Have the shards look at the roles if these have changed, and start those that this node
        holds."""
        for shard in changed:
            self.shards[shard].step_soon()
        # Before the roles are known, a shard without a store may not be this node's.
        if self.membership is not None and self.membership.snapshot().roles is not None:
            self._start_shards()

    def _start_shards(self, may: Callable[[ShardDriver], bool] = lambda shard: True) -> None:
        """Start the shards that have something to do and no thread, if they may."""
        with self._starting:
            for shard in self.shards:
                if self._reads and shard.lacks_thread and may(shard):
                    number = shard.number
                    if self.config.log.kind == "kafka" and number not in self._reading:
                        self.directory.begin_reading(number, self._flushed[number].pull_offset)
                    self._reading.add(number)
                    shard.start()

    def _make_watch(self) -> ShardWatch:
        topics = self.config.topics
        return ShardWatch(
            self.shards,
            self.log,
            progress_topic=topics.progress,
            clock=self.clock,
            failed=self._fail,
            outage=lambda: self.outage,
        )

    def _make_bootstrap(self) -> StoreBootstrap:
        if self._from_checkpoint and self.checkpoints is None and self.membership is None:
            raise ConfigurationError(
                [
                    "--from-checkpoint needs checkpoints.location: this node has no checkpoints, "
                    "and no other nodes"
                ]
            )
        return StoreBootstrap(
            self.copier,
            checkpoints=self.checkpoints,
            others=None
            if self.membership is None
            else OtherNodes(
                membership=self.membership,
                node=self.config.node.id,
                token=self.token,
                tls=self.tls.client,
            ),
            stopping=self._stopping,
            forced=range(self.config.shards) if self._from_checkpoint else (),
        )

    def _open_store(self, mine: Identity) -> RocksStore:
        store = open_store(
            self.config,
            self.directory,
            mine.shard,
            cache=self._cache,
            mine=mine,
            creates=self._cluster is None,
        )
        self._stores[mine.shard] = store
        return store

    def _open_shard(self, shared: Shared, mine: Identity, store: RocksStore) -> ShardDriver:
        """Return the driver of a shard, with its checkpoints scheduled."""
        number, position = mine.shard, _position(store)
        bounded = self.config.log.kind == "kafka" and self.directory.ended_reading(
            number, position.pull_offset
        )
        shard = make_shard(
            shared,
            number,
            store=store,
            assigned=lambda: (
                STANDALONE if self.membership is None else self.membership.assignment(number)
            ),
            restore=lambda cost: self._restore(store, mine, cost),
            bounded=bounded,
        )
        self._flushed[number] = position
        if self.checkpoints is not None:
            self.checkpoints.add(
                shard,
                mine,
                replicas=lambda: self._replica_positions(number),
                trims=lambda: shard.role == ReplicaState.MASTER,
            )
        return shard

    def _shared(self) -> Shared:
        return Shared(
            config=self.config,
            log=self.log,
            clock=self.clock,
            instance=self.instance,
            guard=self._guard,
            failed=self._fail,
            changed=self._note_change,
            outcomes=self.outcomes,
            turns=self._turns,
            limits=self.rates.limits,
            selector=self.selector,
            elsewhere=self._elsewhere.read_ms if self._forwards else lambda shard: MS_MAX,
            tracing=self._spans,
        )

    def _restore(self, store: RocksStore, mine: Identity, cost: RecoveryCost) -> bool:
        """Return whether a checkpoint replaced the contents of the store."""
        checkpoint = self._bootstrap.restore(store, mine, cost)
        if checkpoint is None:
            return False
        self._flushed[mine.shard] = LogPosition(
            applied=checkpoint.applied, pull_offset=checkpoint.pull_offset
        )
        return True

    def _replica_positions(self, number: int) -> list[LogPosition | None]:
        """Return the position from which each registered replica needs the logs; None: not known,
        so nothing may be trimmed."""
        flushed = self._flushed[number]
        if self.membership is None:
            return [flushed]
        return needed_from(
            self.membership.snapshot(),
            number,
            node=self.config.node.id,
            flushed=flushed,
            now_ms=self.clock.now_ms(),
        )

    # --- the cluster

    def describe(self) -> Member:
        """Return the report of this node to the cluster."""
        config = self.config
        scheme = "http" if config.admin.tls.certificate is None else "https"
        return Member(
            node=config.node.id,
            instance=self.instance,
            place=self.directory.place,
            address=str(
                config.admin.advertised or f"{scheme}://{config.admin.host}:{config.admin.port}"
            ),
            version=__version__,
            started_ms=self.started_ms,
            leaving=self._leaving,
            host=config.node.host or "",
            retiring=self._retires,
            eligible=config.failover.candidate,
            log=OK if self._reachability is None else self._reachability.verdict,
            token=self.token,
            zone_data=zones.VERSION,
            replicas={
                shard.number: report(shard, self._flushed[shard.number], self.verdict(shard.number))
                for shard in self.shards
            },
        )

    @property
    def on_unhealthy(self) -> Mode:
        """The mode of `failover.on_unhealthy` in force."""
        return (
            mode_of(self.config.failover.on_unhealthy, 0)
            if self._cluster is None
            else self._cluster.on_unhealthy
        )

    def verdict(self, shard: int) -> Verdict | None:
        """Return this node's verdict on the shard's master; None: it does not observe it."""
        return None if self._cluster is None else self._cluster.verdict(shard)

    @property
    def is_retired(self) -> bool:
        """True if the node was to give all replicas away, and other nodes have them: its data
        directory is not needed any more."""
        if not self._retires or self.membership is None:
            return False
        snapshot = self.membership.snapshot()
        roles = snapshot.roles
        return (
            snapshot.confirmed
            and roles is not None
            and not roles.are_empty
            and not any(
                self.config.node.id in (given.master, *given.replicas)
                for given in roles.shards.values()
            )
            and all(shard.role == ReplicaState.NONE for shard in self.shards)
        )

    # --- while it runs

    @property
    def ready(self) -> bool:
        """True if every replica is in place, none is paused, a broker answers, and no topic is
        missing."""
        return (
            self.failure is None
            and self.degraded is None
            and self.outage is None
            and bool(self.shards)
            and all(shard.role in IN_PLACE and shard.paused is None for shard in self.shards)
        )

    @property
    def degraded(self) -> str | None:
        """What is wrong with the topics, for people, although the shards work; None if nothing
        is."""
        return self._topic_watch.problem

    @property
    def advice(self) -> list[str]:
        """What is wrong or unwise in the settings of the topics, for people, although the node goes
        on."""
        return self._topic_watch.advice

    @property
    def older_zone_data(self) -> str | None:
        """What is wrong with this node's zone data, for people, although it leads; None if
        nothing is."""
        newest = max(
            (
                shard.replica.state.newest_zone_data
                for shard in self.shards
                if shard.role == ReplicaState.MASTER
            ),
            default="",
        )
        if newest <= zones.VERSION:
            return None
        return (
            f"this node has the zone data IANA {zones.VERSION}, and times of series were planned "
            f"by IANA {newest}: it computes the next ones with older data. Install the newest "
            "version of the package tzdata, and restart this node"
        )

    @property
    def switched_off(self) -> list[str]:
        """What this node does not do because an operator has switched it off, for people."""
        workers = self.config.workers
        found = []
        if not workers.push:
            found.append(
                "nothing is delivered: workers.push is off. Due messages wait; to end it, set it "
                "to on and restart this node"
            )
        if not workers.pull:
            found.append(
                "nothing new is taken in: workers.pull is off. Messages, cancels and changes wait "
                "in the log; to end it, set it to on and restart this node"
            )
        return found

    @property
    def outage(self) -> str | None:
        """Since when no broker answers this node, for people; None if one does."""
        return None if self._reachability is None else self._reachability.outage

    @property
    def delay_leaders(self) -> tuple[int, ...]:
        """The broker that leads each partition of the delay topic, as of the last check; empty: not
        known."""
        return self._topic_watch.leaders

    @property
    def clients_abandoned(self) -> int:
        """Consumers of this process that did not close in time."""
        return consumers.abandoned

    def disk_free_bytes(self) -> int:
        """Return the bytes that an unprivileged process may still write to the disk of the data
        directory."""
        return self.directory.free_bytes()

    def _guard(self) -> str | None:
        """Return why no step may begin now; None if one may."""
        reserve, free = self.config.limits.disk_reserve, self.disk_free_bytes()
        if free >= reserve:
            return None
        return (
            f"{self.directory.path} has {free // 2**20} MiB free, less than limits.disk_reserve"
            f" ({reserve // 2**20} MiB): nothing is pulled or delivered until there is more"
        )

    def _fail(self, error: ChronosError) -> None:
        if self.failure is None:
            self.failure = error
        self.failed.set()

    def _maintain(self) -> None:
        """The maintenance thread: keeps the history, checks the topics, looks for open
        transactions, asks for the ends of the partitions, flushes the stores, and drops expired
        records of an embedded log."""
        flushed_s = expired_s = told_s = time.monotonic()
        check_ms = 0
        flush_every_s = self.config.store.flush_every / 1_000
        while not self._stopping.wait(MAINTENANCE_S):
            now_s = time.monotonic()
            try:
                now_ms = self.clock.now_ms()
                self._keep_history(now_ms)
                # A time further away than the interval was set by a clock that was ahead then.
                if not 0 < check_ms - now_ms <= CHECK_EVERY_MS:
                    check_ms = self._topic_watch.step(now_ms)
                led = {shard.number for shard in self.shards if shard.role == ReplicaState.MASTER}
                delay_ends = self.log.stable_ends(self.config.topics.delay, led)
                self.open_transactions.step(now_ms, led, delay_ends)
                self._look_at_targets(led)
                if led and self._forwards:
                    self._elsewhere.step(
                        now_ms,
                        {shard.number for shard in self.shards if shard.role == ReplicaState.NONE},
                    )
                if self._watch is not None:
                    self._watch.look(delay_ends)
                if now_s - flushed_s >= flush_every_s:
                    flushed_s = now_s
                    self._flush()
                if isinstance(self.log, EmbeddedLog) and now_s - expired_s >= EXPIRE_EVERY_S:
                    expired_s = now_s
                    self.log.expire(now_ms)
                self._look_at_causes(now_ms)
                if self._retires and now_s - told_s >= RETIRING_EVERY_S:
                    told_s = now_s
                    held = [each.number for each in self.shards if each.role != ReplicaState.NONE]
                    log.info("other nodes are to take over what this one holds", shards=held)
            except Retry as error:
                log.warning("maintenance failed", why=str(error))

    def _compact(self) -> None:
        """The compaction thread: compacts the stores in which many rows were deleted, one at a time
        and none while the disk is nearly full."""
        rested_s: dict[int, float] = {}
        while not self._stopping.wait(MAINTENANCE_S):
            for number, store in list(self._stores.items()):
                began_s = time.monotonic()
                if (
                    began_s < rested_s.get(number, 0.0)
                    or not store.is_open
                    or self._guard() is not None
                    or self._stopping.is_set()
                ):
                    continue
                try:
                    if not store.compact():
                        continue
                except (Retry, NoSpace) as error:
                    log.warning("store not compacted", shard=number, why=str(error))
                now_s = time.monotonic()
                rested_s[number] = now_s + max(REST_S, REST_TIMES * (now_s - began_s))
                log.info("store compacted", shard=number, seconds=round(now_s - began_s, 1))

    def _keep_history(self, now_ms: int) -> None:
        self.history.step(
            now_ms,
            pending=sum(
                shard.state.pending for shard in self.shards if shard.role == ReplicaState.MASTER
            ),
            lateness=[shard.lateness for shard in self.shards],
        )

    def _ping(self) -> None:
        """The reachability thread."""
        assert self._reachability is not None
        while not self._stopping.is_set():
            wake_ms = self._reachability.step(self.clock.now_ms())
            self._stopping.wait(min((wake_ms - self.clock.now_ms()) / 1_000, MAINTENANCE_S))

    def _look_at_targets(self, led: set[int]) -> None:
        """Describe the targets as soon as this node leads a shard with messages for them: the log
        warns of those with one replica."""
        new = led - self._looked_at
        self._looked_at = set(led)
        topics = {
            topic
            for shard in self.shards
            if shard.number in new
            for topic in due_targets(shard.store)
        }
        if topics:
            self.log.describe(sorted(topics))

    def _look_at_causes(self, now_ms: int) -> None:
        """Look whether the targets of recent dead letters take such messages now: then these are no
        longer reported."""
        if 0 <= now_ms - self._causes_looked_ms < CAUSES_EVERY_MS:
            return
        self._causes_looked_ms = now_ms
        topics = sorted(self.outcomes.recent_targets(now_ms))[:CAUSES_MAX]
        if topics:
            infos, rules = self.log.describe(topics), self.shards[0].shard.rules
            before = self._bytes_max
            self.outcomes.forget_recent(
                lambda reason, topic: (
                    topic in infos
                    and rules.allows(topic)
                    and is_over(reason, infos[topic], before.get(topic))
                )
            )
            self._bytes_max = {
                topic: info.bytes_max for topic, info in infos.items() if info is not None
            }

    def _flush(self) -> None:
        """Flush all stores, so that a crash replays only later records, and trim an embedded log to
        the flushed positions."""
        topics = self.config.topics
        for shard in self.shards:
            store = self._stores[shard.number]
            # The state is read before the flush, which covers at least as much of the logs; unless
            # the store was replaced or reopened meanwhile, and holds something older.
            opened = store.times_opened
            try:
                position = _position(store)
                store.flush()
            except Retry:
                if store.is_open:
                    raise
                continue  # the node no longer holds the shard
            if store.times_opened != opened:
                continue
            self._flushed[shard.number] = position
            if isinstance(self.log, EmbeddedLog):
                self.log.trim(topics.delay, shard.number, position.pull_offset)
                self.log.trim(topics.progress, shard.number, position.applied)

    # --- stop

    def stop(self) -> None:
        """Stop everything in order; the stores are flushed, so that the next start replays nothing.

        1. have other nodes take over the shards, 2. end the checkpoints, 3. end the maintenance and
           the shards' steps, and send their last spans,
        4. leave the cluster, 5. close the stores, the log and the data directory
        """
        # 1.
        self._leaving = self._is_changed = True
        if self._cluster is not None:
            self._cluster.hand_over(
                lambda: all(shard.role != ReplicaState.MASTER for shard in self.shards)
            )
        # 2.
        if self.checkpoints is not None:
            self.checkpoints.stop()
        # 3.
        deadline_s = time.monotonic() + STOP_S
        self._stopping.set()
        for shard in self.shards:
            shard.stop()
        threads = [self._maintenance, self._pings, self._compaction]
        if self._watch is not None:
            self._watch.stop()
            threads.append(self._watch.thread)
        for thread in threads:
            join_until(thread, deadline_s)
        for shard in self.shards:
            shard.join(deadline_s)
        if self._spans is not None:
            self._spans.close()
        # 4.
        if self._cluster is not None:
            self._cluster.leave(max(0.0, deadline_s - time.monotonic()))
        # 5.
        stuck = [shard.number for shard in self.shards if shard.is_running]
        if stuck:
            # Closing a store under a running step would crash: the end of the process closes
            # everything, and loses nothing.
            log.error("shards do not end their step", shards=stuck)
            return
        # Not after a start that failed before it read, nor after an error that reading may have
        # caused, such as a lack of memory.
        if self._reads and (self.failure is None or isinstance(self.failure, Stop)):
            self.directory.end_reading()
        self._close()
        log.info("stopped")

    def _close(self) -> None:
        for store in self._stores.values():
            try:
                store.close()
            except (NoSpace, Stop) as error:
                log.warning("closing a store", why=str(error))
        if hasattr(self, "log"):  # not set if the start failed before it
            self.log.close()
        self.directory.release()


def _position(store: RocksStore) -> LogPosition:
    """Return the position of the state in a store; the beginning of the logs for one that is not
    open."""
    (data,) = store.get([STATE_KEY]) if store.is_open else (None,)
    return LogPosition.of(FRESH if data is None else unpack_state(data))
