"""A node of a cluster: opens the coordinator, and runs the threads of its membership and of the log's reachability."""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from chronos.config import Config
from chronos.core.assignment import plan
from chronos.core.heartbeats import Timing
from chronos.core.roles import Member
from chronos.errors import ChronosError
from chronos.node.driver import run_guarded
from chronos.node.opening import cluster_topic
from chronos.ports import Clock, ClusterInspection, Coordinator, TopicLog
from chronos.workers.membership import Membership
from chronos.workers.reachability import LogReachability

if TYPE_CHECKING:
    from chronos.adapters.kafka.coordinator import KafkaCoordinator
    from chronos.adapters.zookeeper.coordinator import ZooKeeperCoordinator

WAIT_MAX_S = 1.0
"""Longest single wait, so that a stop is noticed."""

HAND_OVER_S = 5.0
"""How long a node that stops waits for other nodes to take over its shards."""

POLL_S = 0.02
"""Time between two checks of the hand-over."""

UNREACHABLE_SHARE = 3 / 4
"""Share of the session time-out without an answer from the log after which a master is replaced: with the last ping, a node
that is cut off from the log is replaced no later than one that is cut off from the coordinator."""

UNREACHABLE_TIMEOUTS = 2
"""The same with the coordinator on Kafka, in its timeouts: a node that is cut off from all brokers is gone before that. A ping is
slower than a heartbeat, because it goes to any broker."""


def open_coordinator(config: Config, instance: str) -> Coordinator:
    """Return the coordinator of a cluster, not connected yet. Raises ConfigurationError for a missing file or package."""
    return (open_on_kafka if config.coordinator.kind == "kafka" else open_on_zookeeper)(config, instance)


def open_on_kafka(config: Config, instance: str) -> "KafkaCoordinator":
    """Return the coordinator on the Kafka cluster of `log.kafka`."""
    from chronos.adapters.kafka.coordinator import KafkaCoordinator

    settings, kafka = config.coordinator.kafka, config.log.kafka
    assert kafka.bootstrap_servers is not None
    return KafkaCoordinator(
        bootstrap_servers=kafka.bootstrap_servers,
        properties=kafka.properties,
        topic=cluster_topic(config),
        create_topic=config.topics.create,
        cluster=config.cluster,
        node=config.node.id,
        instance=instance,
        shards=config.shards,
        replication=config.coordinator.replication,
        timing=Timing(heartbeat_ms=settings.heartbeat, timeout_ms=settings.timeout),
        transaction_timeout_s=config.delivery.transaction_timeout / 1_000,
        request_timeout_s=kafka.request_timeout / 1_000,
    )


def open_on_zookeeper(config: Config, instance: str) -> "ZooKeeperCoordinator":
    """Return the coordinator on ZooKeeper."""
    # Imported here: other nodes run without the ZooKeeper client.
    from chronos.adapters.zookeeper.coordinator import ZooKeeperCoordinator

    settings = config.coordinator.zookeeper
    assert settings.hosts is not None
    return ZooKeeperCoordinator(
        hosts=settings.hosts,
        cluster=config.cluster,
        node=config.node.id,
        instance=instance,
        shards=config.shards,
        replication=config.coordinator.replication,
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


def unreachable_ms(config: Config) -> int:
    """Return the time without an answer from the log after which a master is replaced."""
    if config.coordinator.kind == "kafka":
        return UNREACHABLE_TIMEOUTS * config.coordinator.kafka.timeout
    return int(config.coordinator.zookeeper.session_timeout * UNREACHABLE_SHARE)


class ClusterNode:
    """This node as a member of a cluster, from `join` to `leave`."""

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        node: str,
        log: TopicLog,
        unreachable_ms: int,
        clock: Clock,
        describe: Callable[[], Member],
        failed: Callable[[ChronosError], None],
    ) -> None:
        """`describe`: this node as it is now. `failed`: called with the error that ended a thread."""
        self.membership = Membership(coordinator, node=node, clock=clock, describe=describe, plan=plan)
        self._coordinator = coordinator
        self._clock = clock
        self._leaving = threading.Event()
        self.reachability = LogReachability(log, unreachable_ms=unreachable_ms, clock=clock)
        # Two threads, because a ping of the log may take long and must not delay the membership.
        self._membership_thread = _thread("membership", self._run_membership, failed)
        self._reachability_thread = _thread("reachability", self._run_reachability, failed)

    def join(self) -> None:
        """Register this node, and start the threads. Raises NodeIdTaken, CoordinatorUnavailable."""
        self.membership.join()
        self._membership_thread.start()
        self._reachability_thread.start()

    def hand_over(self, handed_over: Callable[[], bool]) -> None:
        """Wait until the other nodes have taken over this node's shards; at most HAND_OVER_S, and only if there are other nodes."""
        deadline_s = time.monotonic() + HAND_OVER_S
        while (
            self._membership_thread.is_alive()
            and time.monotonic() < deadline_s
            and len(self.membership.snapshot().members) > 1
        ):
            if handed_over():
                return
            time.sleep(POLL_S)

    def leave(self, timeout_s: float) -> None:
        """End the threads, then the session with the coordinator."""
        self._leaving.set()
        deadline_s = time.monotonic() + timeout_s
        for thread in (self._membership_thread, self._reachability_thread):
            if thread.is_alive():
                thread.join(max(0.0, deadline_s - time.monotonic()))
        self._coordinator.leave()

    def _run_membership(self) -> None:
        while not self._leaving.is_set():
            wake_ms = self.membership.step(self._clock.now_ms())
            timeout_s = (wake_ms - self._clock.now_ms()) / 1_000
            if timeout_s > 0:
                self._coordinator.wait(min(timeout_s, WAIT_MAX_S))

    def _run_reachability(self) -> None:
        while not self._leaving.is_set():
            wake_ms = self.reachability.step(self._clock.now_ms())
            self._leaving.wait(min((wake_ms - self._clock.now_ms()) / 1_000, WAIT_MAX_S))


def _thread(name: str, run: Callable[[], None], failed: Callable[[ChronosError], None]) -> threading.Thread:
    return threading.Thread(target=run_guarded, args=(name, run, failed), name=name, daemon=True)


def inspect_coordinator(config: Config, instance: str) -> ClusterInspection:
    """Return the cluster as a client of the coordinator sees it, without joining. Raises ConfigurationError, CoordinatorUnavailable."""
    if config.coordinator.kind == "kafka":
        from chronos.adapters.kafka.cluster_inspection import inspect as inspect_kafka

        on_kafka = open_on_kafka(config, instance)
        return inspect_kafka(on_kafka.topic(), on_kafka.timing)
    from chronos.adapters.zookeeper.inspection import inspect

    return inspect(open_on_zookeeper(config, instance))
