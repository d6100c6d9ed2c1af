"""The node: the parts of one Chronos process, started and stopped in order.

`Node.start` and `Node.stop` number the order; `construction` makes the parts, and says which
function of the node each of them calls. The HTTP interface is not part of it: `cli` starts it last
and stops it first. What a part does is the subject of its own file."""

import secrets
import threading
import time
from pathlib import Path

import structlog

from chronos import __version__, zones
from chronos.adapters.checkpoints.files import Copier
from chronos.adapters.clock import SystemClock
from chronos.adapters.kafka.closing import consumers
from chronos.config import Config
from chronos.core.cluster.health import Mode, Verdict, mode_of
from chronos.core.cluster.roles import OK, Member
from chronos.core.selector import Selector
from chronos.errors import ChronosError, Stop
from chronos.node.checkpoints import CheckpointScheduler
from chronos.node.construction import NodeParts, construct
from chronos.node.data_directory import DataDirectory
from chronos.node.descriptors import raise_limit
from chronos.node.history import History
from chronos.node.outcomes import Outcomes
from chronos.node.rates import NodeRates
from chronos.node.registry_values import RegistryConfiguration
from chronos.node.shards import ShardDriver, report
from chronos.node.threads import join_until
from chronos.node.tls import Tls
from chronos.ports import Clock, Log
from chronos.workers.cluster.in_sync import InSyncWatch
from chronos.workers.cluster.membership import Membership
from chronos.workers.replica.state import IN_PLACE, ReplicaState
from chronos.workers.watch.transactions import OpenTransactions

log = structlog.get_logger("chronos.node")

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
        self.from_checkpoint = from_checkpoint
        self.retires = retires
        self.clock = clock or SystemClock()
        self.started_ms = self.clock.now_ms()
        self.directory = DataDirectory(Path(config.node.data_dir), node=config.node.id)
        self.token = secrets.token_hex(16)
        """Proves to other nodes that a request is from this node; only the coordinator stores
        it."""
        self.tls = Tls(config)
        """The certificates of the HTTP interface and of the voter."""
        self.rates = NodeRates(config, self.directory.path)
        """The rate limits of target topics."""
        self.registry_configuration = RegistryConfiguration(self.directory.path)
        """The configuration that the registry serves."""
        self.selector = Selector()
        """The latencies of the brokers, as its shards measure them; empty with
        `delivery_faults.enabled: off`."""
        self.outcomes = Outcomes(lambda: self.delay_leaders)
        """Counts of the outcomes of all shards since the process started."""
        self.history = History(self.outcomes)
        """The last day, minute by minute."""
        self.failure: ChronosError | None = None
        """The error that ends the node; None before it."""
        self.failed = threading.Event()
        """Set with `failure`."""
        self.stopping = threading.Event()
        """Set when the threads are to end."""
        self._leaving = False
        self._parts: NodeParts | None = None
        """None before the start."""

    # --- the parts

    @property
    def _built(self) -> NodeParts:
        assert self._parts is not None, "the node has not started"
        return self._parts

    @property
    def log(self) -> Log:
        """The log."""
        return self._built.log

    @property
    def copier(self) -> Copier:
        """Copies the stores."""
        return self._built.copier

    @property
    def open_transactions(self) -> OpenTransactions:
        """Records that open transactions of producers hold back, of the shards this node is master
        of."""
        return self._built.open_transactions

    @property
    def checkpoints(self) -> CheckpointScheduler | None:
        """The checkpoints of this node's shards; None without a location for them."""
        return self._built.checkpoints

    @property
    def shards(self) -> list[ShardDriver]:
        """Its shards, by number; none before the start."""
        return [] if self._parts is None else self._parts.shards.drivers

    @property
    def membership(self) -> Membership | None:
        """This node's membership in the cluster; None for a standalone node."""
        return None if self._parts is None else self._parts.membership

    @property
    def in_sync(self) -> InSyncWatch | None:
        """The followers in sync of all shards; None for a standalone node."""
        cluster = self._built.cluster
        return None if cluster is None else cluster.in_sync

    @property
    def instance(self) -> str:
        """The id of its data directory."""
        return self.directory.instance

    # --- start

    def start(self) -> None:
        """Start everything in order; after an error everything is stopped again, and the error is
        raised.

        1. raise the limit of open files if it is too low, and lock the data directory, 2. open the
           log and check its topics, 3. construct the copier, the membership and the bootstrap,
        4. open the stores that are there and construct all shards, 5. start the pings of the log,
           and join the cluster, 6. start the shards with a store, 7. start the maintenance, the
           compaction, the watch and the checkpoints

        A member of a cluster starts the other shards once it knows the roles, if it holds them.
        """
        config = self.config
        try:
            # 1.
            raise_limit(config)
            self.directory.claim()
            # 2. to 4.
            parts = self._parts = construct(self)
            # 5.
            if parts.pings is not None:
                parts.pings.start()
            if parts.cluster is not None:
                parts.cluster.join()
            # 6.
            parts.shards.may_start = True
            parts.shards.start(lambda shard: shard.store.is_open)
            # 7.
            parts.maintenance.start()
            parts.compaction.start()
            parts.watch.start()
            if parts.checkpoints is not None:
                parts.checkpoints.start()
        except BaseException:
            self.stop()
            raise
        log.info("started", node=config.node.id, shards=config.shards, log=config.log.kind)

    # --- the cluster

    def describe(self) -> Member:
        """Return the report of this node to the cluster."""
        config, parts = self.config, self._built
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
            retiring=self.retires,
            eligible=config.failover.candidate,
            log=OK if parts.reachability is None else parts.reachability.verdict,
            token=self.token,
            zone_data=zones.VERSION,
            replicas={
                shard.number: report(
                    shard, parts.shards.flushed(shard.number), self.verdict(shard.number)
                )
                for shard in self.shards
            },
        )

    @property
    def on_unhealthy(self) -> Mode:
        """The mode of `failover.on_unhealthy` in force."""
        cluster = None if self._parts is None else self._parts.cluster
        return (
            mode_of(self.config.failover.on_unhealthy, 0)
            if cluster is None
            else cluster.on_unhealthy
        )

    def verdict(self, shard: int) -> Verdict | None:
        """Return this node's verdict on the shard's master; None: it does not observe it."""
        cluster = self._built.cluster
        return None if cluster is None else cluster.verdict(shard)

    @property
    def is_retired(self) -> bool:
        """True if the node was to give all replicas away, and other nodes have them: its data
        directory is not needed any more."""
        if not self.retires or self.membership is None:
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
        """True if no error ended the node, every replica is in place, none is paused, a broker
        answers, and nothing is wrong with the topics."""
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
        return self._built.topics.problem

    @property
    def advice(self) -> list[str]:
        """What is wrong or unwise in the settings of the topics, for people, although the node goes
        on."""
        return self._built.topics.advice

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
        reachability = None if self._parts is None else self._parts.reachability
        return None if reachability is None else reachability.outage

    @property
    def delay_leaders(self) -> tuple[int, ...]:
        """The broker that leads each partition of the delay topic, as of the last check; empty: not
        known."""
        return () if self._parts is None else self._parts.topics.leaders

    @property
    def clients_abandoned(self) -> int:
        """Consumers of this process that did not close in time."""
        return consumers.abandoned

    def disk_free_bytes(self) -> int:
        """Return the bytes that an unprivileged process may still write to the disk of the data
        directory."""
        return self.directory.free_bytes()

    def guard(self) -> str | None:
        """Return why no step may begin now; None if one may."""
        reserve, free = self.config.limits.disk_reserve, self.disk_free_bytes()
        if free >= reserve:
            return None
        return (
            f"{self.directory.path} has {free // 2**20} MiB free, less than limits.disk_reserve"
            f" ({reserve // 2**20} MiB): nothing is pulled or delivered until there is more"
        )

    def fail(self, error: ChronosError) -> None:
        """End the node with an error; the first one counts. Any thread may call it."""
        if self.failure is None:
            self.failure = error
        self.failed.set()

    # --- stop

    def stop(self) -> None:
        """Stop everything in order; the stores are flushed, so that the next start replays nothing.

        1. have other nodes take over the shards, 2. end the checkpoints, 3. end the maintenance,
           the compaction, the pings, the watch and the shards' steps, and send their last spans,
        4. leave the cluster, 5. close the stores, the log and the data directory
        """
        self._leaving = True
        if self._parts is None or self._stop(self._parts):
            self.directory.release()
            log.info("stopped")

    def _stop(self, parts: NodeParts) -> bool:
        """Stop the parts; return whether they are closed."""
        # 1.
        parts.shards.note_change()
        if parts.cluster is not None:
            parts.cluster.hand_over(lambda: not parts.shards.led())
        # 2.
        if parts.checkpoints is not None:
            parts.checkpoints.stop()
        # 3.
        deadline_s = time.monotonic() + STOP_S
        self.stopping.set()
        parts.shards.stop()
        parts.watch.stop()
        for thread in (parts.maintenance, parts.pings, parts.compaction, parts.watch.thread):
            if thread is not None:
                join_until(thread, deadline_s)
        parts.shards.join(deadline_s)
        if parts.spans is not None:
            parts.spans.close()
        # 4.
        if parts.cluster is not None:
            parts.cluster.leave(max(0.0, deadline_s - time.monotonic()))
        # 5.
        if stuck := parts.shards.running():
            # Closing a store under a running step would crash: the end of the process closes
            # everything, and loses nothing.
            log.error("shards do not end their step", shards=stuck)
            return False
        # Not after a start that failed before it read, nor after an error that reading may have
        # caused, such as a lack of memory.
        if parts.shards.may_start and (self.failure is None or isinstance(self.failure, Stop)):
            self.directory.end_reading()
        parts.shards.close()
        parts.log.close()
        return True
