"""A node as a member of a cluster: opens the coordinator, and runs the threads of its membership
and of the probes of masters.

The decisions are those of `core.cluster` and `workers.cluster`. A standalone node has no
`ClusterNode`."""

import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct

from chronos.config import Config
from chronos.core.cluster.health import OFF, HealthRules, Mode, Verdict, mode_of
from chronos.core.cluster.planner import RolePlanner
from chronos.core.cluster.replication import ReplicationRules
from chronos.core.cluster.roles import (
    ClusterState,
    ClusterView,
    Member,
    Roles,
    machines,
)
from chronos.core.cluster.timing import Timing
from chronos.errors import ChronosError, CoordinatorUnavailable
from chronos.node.opening import open_appender
from chronos.node.threads import join_until, run_guarded
from chronos.node.tls import Tls
from chronos.node.topics import cluster_topic
from chronos.ports import Appender, Clock, ClusterInspection, Coordinator, Log
from chronos.workers.cluster.in_sync import InSyncWatch
from chronos.workers.cluster.membership import Membership
from chronos.workers.cluster.observer import HealthObserver, MasterPosition, ProbedTopic
from chronos.workers.cluster.steadiness import Steadiness

if TYPE_CHECKING:
    from chronos.adapters.kafka.cluster.coordinator import KafkaCoordinator
    from chronos.adapters.raft.coordinator import RaftCoordinator
    from chronos.adapters.zookeeper.coordinator import ZooKeeperCoordinator

log = structlog.get_logger("chronos.cluster")

WAIT_MAX_S = 1.0
"""Longest single wait, so that a stop is noticed."""

HAND_OVER_S = 5.0
"""How long a node that stops waits for other nodes to take over its shards."""

POLL_S = 0.02
"""Time between two checks of the hand-over, and between two attempts to join."""

HEARTBEATS = 6
"""Heartbeats in the time-out of a coordinator at the least: Kafka's own sessions have three, and
with twice as many a pause of a collector or a lost packet moves no role."""

HEARTBEAT_MS_MAX = 250
"""Longest time between two heartbeats, however long the time-out is: a node joins, and learns of
new roles on voters, within a few of them."""

UNREACHABLE_SHARE = 3 / 4
"""Share of the session time-out without an answer from the log after which a master is replaced:
with the last ping, a node that is cut off from the log is replaced no later than one that is cut
off from the coordinator."""

UNREACHABLE_TIMEOUTS = 2
"""The same with the coordinator on Kafka or on voters, in its timeouts: with Kafka a node that is
cut off from all brokers is gone before that. A ping is slower than a heartbeat, because it goes to
any broker."""

UNREACHABLE_STANDALONE_MS = 6_000
"""The same time of a standalone node, which no other node replaces: the outage is only named."""

VOTE_FILE = "vote.raft"
"""Name of the file of a voter in the data directory."""

VOTE_S = 30.0
"""How long one attempt to join waits for the voters to elect a leader."""

JOIN_S = 60.0
"""How long a node that starts waits for the coordinator: a whole cluster may be starting, whose
voters have no leader yet, or whose broker still makes the logs of some thousand partitions."""


def open_coordinator(config: Config, tls: Tls) -> Coordinator:
    """Return the coordinator of a cluster, not connected yet. Raises ConfigurationError for a
    missing file or package."""
    if config.coordinator.kind == "raft":
        return open_on_raft(config, tls)
    return (open_on_kafka if config.coordinator.kind == "kafka" else open_on_zookeeper)(config)


def open_on_kafka(config: Config) -> "KafkaCoordinator":
    """Return the coordinator on the Kafka cluster of `log.kafka`."""
    from chronos.adapters.kafka.cluster.coordinator import KafkaCoordinator
    from chronos.adapters.kafka.connection import Connection

    timeout_ms, kafka = config.coordinator.kafka.timeout, config.log.kafka
    assert kafka.bootstrap_servers is not None
    connection = Connection(
        kafka.bootstrap_servers,
        kafka.properties,
        request_timeout_s=kafka.request_timeout / 1_000,
    )
    return KafkaCoordinator(
        connection,
        cluster_topic(config),
        create_topic=config.topics.create,
        cluster=config.cluster,
        node=config.node.id,
        timing=Timing(heartbeat_ms=heartbeat_ms(timeout_ms), timeout_ms=timeout_ms),
        transaction_timeout_s=config.delivery.transaction_timeout / 1_000,
    )


def open_on_zookeeper(config: Config) -> "ZooKeeperCoordinator":
    """Return the coordinator on ZooKeeper."""
    # Imported here: other nodes run without the ZooKeeper client.
    from chronos.adapters.zookeeper.coordinator import ZooKeeperCoordinator
    from chronos.adapters.zookeeper.servers import ZooKeeperServers

    settings = config.coordinator.zookeeper
    assert settings.hosts is not None
    servers = ZooKeeperServers(
        hosts=settings.hosts,
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
    return ZooKeeperCoordinator(servers, cluster=config.cluster, node=config.node.id)


def open_on_raft(config: Config, tls: Tls) -> "RaftCoordinator":
    """Return the coordinator on the voters among the nodes."""
    from chronos.adapters.raft.coordinator import RaftCoordinator, VoterClients
    from chronos.adapters.raft.voter import Voting

    settings = config.coordinator.raft
    voters = dict(peer.split("=", 1) for peer in settings.peers)
    own = voters.get(config.node.id)
    scheme = "http" if config.admin.tls.certificate is None else "https"
    assert config.coordinator.secret is not None
    clients = VoterClients(
        peers={node: f"{scheme}://{address}" for node, address in voters.items()},
        secret=config.coordinator.secret,
        tls=tls.client,
    )
    return RaftCoordinator(
        clients,
        cluster=config.cluster,
        node=config.node.id,
        timing=Timing(heartbeat_ms=heartbeat_ms(settings.timeout), timeout_ms=settings.timeout),
        join_s=VOTE_S,
        voting=None
        if own is None
        else Voting(
            host=settings.host,
            port=int(own.rpartition(":")[2]),
            path=Path(config.node.data_dir) / VOTE_FILE,
            tls=tls.server,
        ),
    )


def heartbeat_ms(timeout_ms: int) -> int:
    """Return the time between two heartbeats with this time-out."""
    return min(HEARTBEAT_MS_MAX, timeout_ms // HEARTBEATS)


def unreachable_ms(config: Config) -> int:
    """Return the time without an answer from the log after which a master is replaced."""
    if config.coordinator.kind == "raft":
        return UNREACHABLE_TIMEOUTS * config.coordinator.raft.timeout
    if config.coordinator.kind == "kafka":
        return UNREACHABLE_TIMEOUTS * config.coordinator.kafka.timeout
    if config.coordinator.kind == "standalone":
        return UNREACHABLE_STANDALONE_MS
    return int(config.coordinator.zookeeper.session_timeout * UNREACHABLE_SHARE)


def observes(config: Config) -> bool:
    """Return whether this node may probe the masters: one that does not pull or deliver expects the
    same of no other."""
    return config.failover.on_unhealthy != OFF and config.workers.pull and config.workers.push


def health_rules(config: Config) -> HealthRules:
    """Return the constants of this node's observations."""
    return HealthRules(every_ms=config.failover.every)


def replication_rules(config: Config) -> ReplicationRules:
    """Return the section `replication` as the core has it."""
    settings = config.replication
    return ReplicationRules(
        mode=settings.mode,
        min_in_sync=settings.min_in_sync,
        on_too_few=settings.on_too_few,
    )


def reassigned(before: Roles | None, roles: Roles | None, shards: int) -> Collection[int]:
    """Return the shards whose replicas have to look at the roles, because more than progress has
    changed."""
    if roles is before:
        return ()
    if before is None or roles is None:
        return range(shards)
    was, now = before.decisions.shards, roles.decisions.shards
    return [shard for shard in range(shards) if was.get(shard) != now.get(shard)]


class NodeCallbacks(Struct, frozen=True, kw_only=True):
    """The functions of this node that its membership calls."""

    describe: Callable[[], Member]
    """Returns this node as it is now."""
    changed: Callable[[], bool]
    """See `Membership`."""
    look: Callable[[int, str], MasterPosition | None]
    """See `HealthObserver`."""
    assigned: Callable[[Collection[int]], None]
    """Called with the shards whose roles, or whether they are confirmed, have changed, and once a
    second."""
    failed: Callable[[ChronosError], None]
    """Called with the error that ended a thread."""


class ClusterNode:
    """This node as a member of a cluster, from `join` to `leave`."""

    def __init__(
        self,
        coordinator: Coordinator,
        config: Config,
        *,
        log: Log,
        clock: Clock,
        callbacks: NodeCallbacks,
    ) -> None:
        self._mode = config.failover.on_unhealthy
        planner = RolePlanner()

        def planned(state: ClusterState) -> Roles:
            view = ClusterView.of(
                state,
                shards=config.shards,
                replication=config.coordinator.replication,
                on_unhealthy=self._mode,
                in_sync_from=self.in_sync.needed,
            )
            return planner.plan(self._steadiness.completed(view))

        self.membership = Membership(
            coordinator,
            node=config.node.id,
            clock=clock,
            describe=callbacks.describe,
            plan=planned,
            changed=callbacks.changed,
        )
        self.in_sync = InSyncWatch(
            replication_rules(config),
            node=config.node.id,
            clock=clock,
            snapshot=self.membership.snapshot,
        )
        """The followers in sync of all shards."""
        self._coordinator = coordinator
        self._node = config.node.id
        self._shards = config.shards
        self._assigned = callbacks.assigned
        self._clock = clock
        self._leaving = threading.Event()
        self._steadiness = Steadiness(timeout_ms=unreachable_ms(config), clock=clock)
        self._observer = None
        self._probes: Appender | None = None
        if observes(config):
            self._probes = open_appender(config)
            probed = ProbedTopic(
                log=log, appender=self._probes, topic=config.topics.delay, shards=config.shards
            )
            self._observer = HealthObserver(
                probed,
                health_rules(config),
                clock=clock,
                snapshot=self.membership.snapshot,
                position_of=callbacks.look,
            )
        # Separate threads, because a probe may take long and must not delay the membership.
        self._membership_thread = _thread("membership", self._run_membership, callbacks.failed)
        self._health_thread = _thread("health", self._run_health, callbacks.failed)

    def join(self) -> None:
        """Register this node, and start the threads. Raises NodeIdTaken, CoordinatorUnavailable."""
        deadline_s, first = time.monotonic() + JOIN_S, True
        while True:
            try:
                self.membership.join()
                break
            except CoordinatorUnavailable as error:
                if time.monotonic() > deadline_s:
                    raise
                if first:
                    log.warning("waiting for the coordinator", why=str(error), at_most_s=JOIN_S)
                first = False
                time.sleep(POLL_S)
        self._membership_thread.start()
        if self._observer is not None:
            self._health_thread.start()

    def verdict(self, shard: int) -> Verdict | None:
        """Return this node's current verdict on the shard's master; None without one."""
        return None if self._observer is None else self._observer.verdict(shard)

    def hand_over(self, handed_over: Callable[[], bool]) -> None:
        """Wait until the other nodes have taken over this node's shards; at most HAND_OVER_S, and
        only while another node can."""
        deadline_s = time.monotonic() + HAND_OVER_S
        while (
            self._membership_thread.is_alive()
            and time.monotonic() < deadline_s
            and self._has_successors()
        ):
            if handed_over():
                return
            time.sleep(POLL_S)

    def _has_successors(self) -> bool:
        """Return whether another node that stays holds a shard that this one holds, as far as is
        known."""
        snapshot = self.membership.snapshot()
        staying = {
            node for node, member in snapshot.members.items() if node != self._node and member.stays
        }
        roles = snapshot.roles
        return bool(staying) and (
            roles is None
            or any(
                self._node in given.replicas and not staying.isdisjoint(given.replicas)
                for given in roles.shards.values()
            )
        )

    def leave(self, timeout_s: float) -> None:
        """End the threads and the session with the coordinator, which waits for no broker: they may
        be away."""
        self._leaving.set()
        deadline_s = time.monotonic() + timeout_s
        join_until(self._membership_thread, deadline_s)
        self._coordinator.leave()
        join_until(self._health_thread, deadline_s)
        if self._probes is not None:
            self._probes.close()

    def _run_membership(self) -> None:
        roles: Roles | None = None
        confirmed: bool | None = None
        looked_s = 0.0
        while not self._leaving.is_set():
            self.in_sync.step()
            self._steadiness.step(self.membership.snapshot())
            wake_ms = self.membership.step(self._clock.now_ms())
            snapshot = self.membership.snapshot()
            now_s = time.monotonic()
            changed = (
                reassigned(roles, snapshot.roles, self._shards)
                if snapshot.confirmed == confirmed
                else range(self._shards)
            )
            if changed or now_s - looked_s >= WAIT_MAX_S:
                looked_s = now_s
                self._assigned(changed)
            roles, confirmed = snapshot.roles, snapshot.confirmed
            timeout_s = (wake_ms - self._clock.now_ms()) / 1_000
            if timeout_s > 0:
                self._coordinator.wait(min(timeout_s, WAIT_MAX_S))

    @property
    def on_unhealthy(self) -> Mode:
        """The mode of `failover.on_unhealthy` in force: OFF, ARMED or AUTO of
        `core.cluster.health`."""
        snapshot = self.membership.snapshot()
        return mode_of(self._mode, len(machines(snapshot.members, snapshot.roles)))

    def _run_health(self) -> None:
        observer = self._observer
        assert observer is not None
        while not self._leaving.wait(observer.rules.timeout_ms / 1_000):
            if self.on_unhealthy != OFF:
                observer.step()


def _thread(
    name: str, run: Callable[[], None], failed: Callable[[ChronosError], None]
) -> threading.Thread:
    return threading.Thread(target=run_guarded, args=(name, run, failed), name=name, daemon=True)


def inspect_coordinator(config: Config) -> ClusterInspection:
    """Return the cluster as a client of the coordinator sees it, without joining. Raises
    ConfigurationError, CoordinatorUnavailable."""
    if config.coordinator.kind == "kafka":
        from chronos.adapters.kafka.cluster.inspection import inspect as inspect_kafka

        on_kafka = open_on_kafka(config)
        return inspect_kafka(on_kafka.topic(), on_kafka.timing)
    if config.coordinator.kind == "raft":
        return open_on_raft(config, Tls(config)).inspect()
    from chronos.adapters.zookeeper.inspection import inspect

    return inspect(open_on_zookeeper(config))
