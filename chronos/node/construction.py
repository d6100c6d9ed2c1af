"""The construction of a node: opens the log and the stores, and makes the other `NodeParts`, none
of them started.

`construct` returns a complete value or raises; if it raises, everything that it opened is closed
again. It opens the adapters (`opening`, `cluster`), and connects the parts: the functions of a node
that they call are passed to them here."""

import os
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from threading import Event, Thread
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct

from chronos import __version__
from chronos.adapters.checkpoints.files import Copier
from chronos.adapters.embedded.log import EmbeddedLog
from chronos.adapters.rocksdb import RocksStore, shared_cache
from chronos.adapters.tracing import Spans, open_spans
from chronos.config import Config
from chronos.core.shard.codec import Identity
from chronos.core.timefmt import MS_MAX
from chronos.errors import ConfigurationError
from chronos.node.bootstrap import OtherNodes, StoreBootstrap
from chronos.node.checkpoints import CheckpointScheduler
from chronos.node.cluster import ClusterNode, NodeCallbacks, open_coordinator, unreachable_ms
from chronos.node.maintenance import (
    CAUSES_EVERY_S,
    DeadLetterCauses,
    Job,
    LedTargets,
    compact,
    maintain,
    ping,
)
from chronos.node.opening import identity, open_log
from chronos.node.shard_set import ShardSet
from chronos.node.shards import ShardDriver, Shared, look, make_shard
from chronos.node.start_turns import StartTurns
from chronos.node.threads import guarded_thread
from chronos.node.topics import check_progress_fits, cluster_topic, own_topics
from chronos.node.watch import ShardWatch
from chronos.ports import Clock, Log, TopicInfo
from chronos.workers.cluster.membership import Membership
from chronos.workers.replica.checkpoint import LogPosition, needed_from
from chronos.workers.replica.leadership import STANDALONE, Assignment
from chronos.workers.replica.recovery import RecoveryCost
from chronos.workers.replica.retention import id_states_kept_ms
from chronos.workers.replica.state import ReplicaState
from chronos.workers.step.horizon import Elsewhere
from chronos.workers.watch.reachability import LogReachability
from chronos.workers.watch.topics import CHECK_EVERY_MS, TopicWatch
from chronos.workers.watch.transactions import OpenTransactions

if TYPE_CHECKING:
    from chronos.node.node import Node

log = structlog.get_logger("chronos.node")

STORES_AT_ONCE = 8
"""Stores that are opened at the same time: opening one waits for the disk for most of its time."""

RETIRING_EVERY_S = 60.0
"""How often a node that retires says what it still holds."""

EXPIRE_EVERY_S = 60.0
"""How often the embedded log drops records that are older than its retention."""


class NodeParts(Struct, frozen=True, kw_only=True):
    """The parts of a node that is running, or is about to run."""

    log: Log
    topics: TopicWatch
    open_transactions: OpenTransactions
    reachability: LogReachability | None
    """None on the embedded log."""
    spans: Spans | None
    """None if tracing is off."""
    copier: Copier
    checkpoints: CheckpointScheduler | None
    """None without a location for them."""
    cluster: ClusterNode | None
    """None for a standalone node."""
    shards: ShardSet
    watch: ShardWatch
    maintenance: Thread
    compaction: Thread
    pings: Thread | None
    """None on the embedded log."""

    @property
    def membership(self) -> Membership | None:
        """This node's membership in the cluster; None for a standalone node."""
        return None if self.cluster is None else self.cluster.membership


def construct(node: "Node") -> NodeParts:
    """Return the parts of a node, whose data directory is claimed.

    The numbers are those of `Node.start`: 2. open the log and check its topics, 3. construct the
    copier, the membership and the bootstrap, 4. open the stores that are there and construct all
    shards."""
    config, clock = node.config, node.clock
    with ExitStack() as undo:
        spans = _open_spans(config)
        if spans is not None:
            undo.callback(spans.close)
        # 2.
        log_port = open_log(config, node.directory, clock)
        undo.callback(log_port.close)
        reachability = _reachability(config, log_port, clock)
        topics, infos = _topics(config, log_port)
        # 3.
        copier = _copier(node)
        checkpoints = _checkpoints(node, log_port, copier)
        shards = ShardSet(config, node.directory)
        cluster = _cluster_node(node, log_port, shards)
        if cluster is not None:
            undo.callback(cluster.leave, 0.0)
        membership = None if cluster is None else cluster.membership
        bootstrap = _bootstrap(node, copier, checkpoints, membership)
        node.rates.open(shards.drivers, membership)
        node.registry_configuration.open(membership)
        # 4.
        elsewhere = Elsewhere(
            log_port,
            config.topics.progress,
            lambda: {shard.number: shard.state for shard in shards.drivers},
        )
        undo.callback(shards.close)
        shared = _shared(node, log_port, shards, elsewhere, spans)
        _open_shards(node, shards, infos, shared, bootstrap, checkpoints, membership)
        watch = _watch(node, log_port, shards)
        open_transactions = OpenTransactions(log_port, config.topics.delay)
        jobs = _jobs(node, log_port, shards, topics, open_transactions, elsewhere, watch)
        undo.pop_all()
    return NodeParts(
        log=log_port,
        topics=topics,
        open_transactions=open_transactions,
        reachability=reachability,
        spans=spans,
        copier=copier,
        checkpoints=checkpoints,
        cluster=cluster,
        shards=shards,
        watch=watch,
        maintenance=_thread(node, "maintenance", partial(maintain, jobs, clock)),
        compaction=_thread(node, "compaction", partial(compact, shards.stores, node.guard)),
        pings=None
        if reachability is None
        else _thread(node, "reachability", partial(ping, reachability, clock)),
    )


def _thread(node: "Node", name: str, run: Callable[[Event], None]) -> Thread:
    """Return a thread, not started yet, that ends with the node."""
    return guarded_thread(name, partial(run, node.stopping), node.fail)


# ------------------------------------------------------------------------------------------ The log


def _open_spans(config: Config) -> Spans | None:
    tracing = config.tracing
    if not tracing.enabled:
        return None
    return open_spans(
        tracing.endpoint,
        delay_topic=config.topics.delay,
        node=config.node.id,
        version=__version__,
        environ=os.environ,
    )


def _reachability(config: Config, log_port: Log, clock: Clock) -> LogReachability | None:
    if config.log.kind != "kafka":
        return None
    return LogReachability(
        log_port,
        unreachable_ms=unreachable_ms(config),
        clock=clock,
        brokers=str(config.log.kafka.bootstrap_servers),
    )


def _topics(config: Config, log_port: Log) -> tuple[TopicWatch, Mapping[str, TopicInfo]]:
    """Return the watch over the topics, which are checked, and created where they may be, and their
    descriptions."""
    # A broker shows the cluster topic only after all topics that it was asked for before, which
    # takes a minute for some thousand partitions: one request creates all.
    is_on_kafka = config.coordinator.kind == "kafka"
    topics, others = own_topics(config), [cluster_topic(config)] if is_on_kafka else []
    infos = log_port.prepare([*topics, *others], create=config.topics.create)
    check_progress_fits(config, infos[config.topics.progress])
    watch = TopicWatch(
        log_port,
        topics[:2],
        infos,
        letters=topics[2:],
        others=others,
        create=config.topics.create,
    )
    return watch, infos


# ------------------------------------------------------------------- Checkpoints and the membership


def _copier(node: "Node") -> Copier:
    retention = node.config.retention
    return Copier(
        node.directory.path / "copies",
        node=node.config.node.id,
        version=__version__,
        remembered_ms=id_states_kept_ms(retention.delivered, retention.deduplication),
        reserve_bytes=node.config.limits.disk_reserve,
    )


def _checkpoints(node: "Node", log_port: Log, copier: Copier) -> CheckpointScheduler | None:
    config = node.config
    if config.checkpoints.location is None:
        return None
    if config.log.kind == "embedded":
        raise ConfigurationError(
            [
                "checkpoints.location: the embedded log lies on the same disk as the store, "
                "and a checkpoint of the store is worth nothing without it. Copy the whole "
                "data directory instead, or use log.kind: kafka"
            ]
        )
    return CheckpointScheduler(config, log_port, node.clock, copier=copier, failed=node.fail)


def _cluster_node(node: "Node", log_port: Log, shards: ShardSet) -> ClusterNode | None:
    config, clock = node.config, node.clock
    if config.coordinator.kind == "standalone":
        return None

    def reassign(changed: Collection[int]) -> None:
        """Have the shards look at the roles if these have changed, and start those that this node
        holds."""
        shards.step_soon(changed)
        # Before the roles are known, a shard without a store may not be this node's.
        if cluster.membership.snapshot().roles is not None:
            shards.start()

    cluster = ClusterNode(
        open_coordinator(config, node.tls),
        config,
        log=log_port,
        clock=clock,
        callbacks=NodeCallbacks(
            describe=node.describe,
            changed=shards.take_change,
            look=lambda shard, master: look(
                shards.drivers[shard], leads=master == config.node.id, now_ms=clock.now_ms()
            ),
            assigned=reassign,
            failed=node.fail,
        ),
    )
    return cluster


def _bootstrap(
    node: "Node",
    copier: Copier,
    checkpoints: CheckpointScheduler | None,
    membership: Membership | None,
) -> StoreBootstrap:
    if node.from_checkpoint and checkpoints is None and membership is None:
        raise ConfigurationError(
            [
                "--from-checkpoint needs checkpoints.location: this node has no checkpoints, "
                "and no other nodes"
            ]
        )
    return StoreBootstrap(
        copier,
        checkpoints=checkpoints,
        others=None
        if membership is None
        else OtherNodes(
            membership=membership,
            node=node.config.node.id,
            token=node.token,
            tls=node.tls.client,
        ),
        stopping=node.stopping,
        clock=node.clock,
        stores=node.directory.stores,
        forced=range(node.config.shards) if node.from_checkpoint else (),
    )


# --------------------------------------------------------------------------------------- The shards


def _shared(
    node: "Node", log_port: Log, shards: ShardSet, elsewhere: Elsewhere, spans: Spans | None
) -> Shared:
    forwards = node.config.topics.misplaced == "forward"
    return Shared(
        config=node.config,
        log=log_port,
        clock=node.clock,
        instance=node.instance,
        guard=node.guard,
        failed=node.fail,
        changed=shards.note_change,
        outcomes=node.outcomes,
        turns=StartTurns(),
        limits=node.rates.limits,
        selector=node.selector,
        elsewhere=elsewhere.read_ms if forwards else lambda shard: MS_MAX,
        tracing=spans,
    )


def _open_shards(
    node: "Node",
    shards: ShardSet,
    infos: Mapping[str, TopicInfo],
    shared: Shared,
    bootstrap: StoreBootstrap,
    checkpoints: CheckpointScheduler | None,
    membership: Membership | None,
) -> None:
    """Open the stores, and construct the drivers with their checkpoints scheduled."""
    config = node.config
    cache = shared_cache(config.store.block_cache)

    def opened(mine: Identity) -> tuple[RocksStore, LogPosition]:
        return shards.open_store(mine, cache=cache, creates=membership is None)

    def replica_positions(number: int) -> list[LogPosition | None]:
        """Return the position from which each registered replica needs the logs; None: not known,
        so nothing may be trimmed."""
        flushed = shards.flushed(number)
        if membership is None:
            return [flushed]
        return needed_from(
            membership.snapshot(),
            number,
            node=config.node.id,
            flushed=flushed,
            now_ms=node.clock.now_ms(),
        )

    identities = [identity(config, number, infos) for number in range(config.shards)]
    with ThreadPoolExecutor(STORES_AT_ONCE, "open") as threads:
        stores = threads.map(opened, identities)
        for mine, (store, position) in zip(identities, stores, strict=True):
            is_bounded = config.log.kind == "kafka" and node.directory.ended_reading(
                mine.shard, position.pull_offset
            )
            shard = make_shard(
                shared,
                mine.shard,
                store=store,
                assigned=partial(_assigned, membership, mine.shard),
                restore=partial(_restore, bootstrap, shards, store, mine),
                bounded=is_bounded,
            )
            shards.drivers.append(shard)
            if checkpoints is not None:
                checkpoints.add(
                    shard,
                    mine,
                    replicas=partial(replica_positions, mine.shard),
                    trims=partial(_is_master, shard),
                )


def _assigned(membership: Membership | None, shard: int) -> Assignment:
    return STANDALONE if membership is None else membership.assignment(shard)


def _watch(node: "Node", log_port: Log, shards: ShardSet) -> ShardWatch:
    return ShardWatch(
        shards.drivers,
        log_port,
        progress_topic=node.config.topics.progress,
        clock=node.clock,
        failed=node.fail,
        outage=lambda: node.outage,
    )


def _is_master(shard: ShardDriver) -> bool:
    return shard.role == ReplicaState.MASTER


def _restore(
    bootstrap: StoreBootstrap,
    shards: ShardSet,
    store: RocksStore,
    mine: Identity,
    cost: RecoveryCost,
) -> bool:
    """Return whether a checkpoint replaced the contents of the store."""
    checkpoint = bootstrap.restore(store, mine, cost)
    if checkpoint is None:
        return False
    shards.restored(
        mine.shard,
        LogPosition(applied=checkpoint.applied, pull_offset=checkpoint.pull_offset),
    )
    return True


# ---------------------------------------------------------------------------------- The maintenance


def _jobs(
    node: "Node",
    log_port: Log,
    shards: ShardSet,
    topics: TopicWatch,
    open_transactions: OpenTransactions,
    elsewhere: Elsewhere,
    watch: ShardWatch,
) -> list[Job]:
    """Return the jobs of the maintenance thread, in their order."""
    config, drivers = node.config, shards.drivers
    led_targets = LedTargets(log_port, drivers)
    causes = DeadLetterCauses(
        log_port, node.outcomes, lambda topic: drivers[0].shard.rules.allows(topic)
    )

    def keep_history(now_ms: int) -> None:
        masters = [shard for shard in drivers if shard.role == ReplicaState.MASTER]
        node.history.step(
            now_ms,
            pending=sum(shard.state.pending for shard in masters),
            lateness=[shard.lateness for shard in drivers],
        )

    def look_at_ends(now_ms: int) -> None:
        led = shards.led()
        delay_ends = log_port.stable_ends(config.topics.delay, led)
        open_transactions.step(now_ms, led, delay_ends)
        watch.look(delay_ends)

    def look_elsewhere(now_ms: int) -> None:
        if shards.led():
            elsewhere.step(now_ms, shards.not_held())

    def tell_held(now_ms: int) -> None:
        log.info("other nodes are to take over what this one holds", shards=shards.held())

    jobs = [
        Job(keep_history),
        Job(topics.step, every_s=CHECK_EVERY_MS / 1_000),
        Job(look_at_ends),
        Job(lambda now_ms: led_targets.step(shards.led())),
    ]
    if config.topics.misplaced == "forward":
        jobs.append(Job(look_elsewhere))
    flush_s = config.store.flush_every / 1_000
    jobs.append(Job(lambda now_ms: shards.flush(log_port), every_s=flush_s, waits=True))
    if isinstance(log_port, EmbeddedLog):
        jobs.append(Job(log_port.expire, every_s=EXPIRE_EVERY_S, waits=True))
    jobs.append(Job(causes.step, every_s=CAUSES_EVERY_S))
    if node.retires:
        jobs.append(Job(tell_held, every_s=RETIRING_EVERY_S, waits=True))
    return jobs
