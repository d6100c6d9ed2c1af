"""A node's place in the cluster: the coordinator, the membership over it, and the threads that keep it up."""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from chronos.config import Config
from chronos.core.roles import Member
from chronos.errors import ChronosError
from chronos.node.driver import surely
from chronos.ports import Clock, Coordinator, TopicLog
from chronos.workers.membership import Membership
from chronos.workers.reachability import LogReachability

if TYPE_CHECKING:
    from chronos.adapters.zookeeper.coordinator import ZooKeeperCoordinator
    from chronos.adapters.zookeeper.inspection import ClusterInspection as ClusterInspection

WAIT_MAX_S = 1.0
"""Longest single wait, so that an end is noticed."""

HAND_OVER_S = 5.0
"""How long a node that stops waits for others to take over its shards."""

LOOK_S = 0.02

UNREACHABLE_SHARE = 3 / 4
"""Of a session's time without an answer from the log, until a master gives way: with the question that was not answered, a
node that is cut off from the log is replaced no later than one that is cut off from the coordinator."""


def open_coordinator(config: Config, instance: str) -> "ZooKeeperCoordinator":
    """The coordinator of a cluster, not connected yet. Raises ConfigurationError for a missing file or package."""
    # Imported here: a standalone node runs without the ZooKeeper client.
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


class ClusterNode:
    """One node's place, from `take` to `leave`."""

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
        from chronos.core.assignment import plan

        self.membership = Membership(coordinator, node=node, clock=clock, describe=describe, plan=plan)
        self._coordinator = coordinator
        self._clock = clock
        self._left = threading.Event()
        self.reach = LogReachability(log, unreachable_ms=unreachable_ms, clock=clock)
        self._thread = threading.Thread(target=surely, args=("member", self._run, failed), name="member", daemon=True)
        self._asking = threading.Thread(target=surely, args=("reach", self._ask, failed), name="reach", daemon=True)

    def take(self) -> None:
        """Join, and keep the place up from now on. Raises NodeIdTaken, CoordinatorUnavailable."""
        self.membership.join()
        self._thread.start()
        self._asking.start()

    def hand_over(self, handed_over: Callable[[], bool]) -> None:
        """Wait until the other nodes have taken over what this one is master of, as long as there are others."""
        deadline = time.monotonic() + HAND_OVER_S
        while self._thread.is_alive() and time.monotonic() < deadline and len(self.membership.snapshot().members) > 1:
            if handed_over():
                return
            time.sleep(LOOK_S)

    def leave(self, timeout_s: float) -> None:
        """End the thread, and give the place back."""
        self._left.set()
        deadline = time.monotonic() + timeout_s
        for thread in (self._thread, self._asking):
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))
        self._coordinator.leave()

    def _run(self) -> None:
        while not self._left.is_set():
            wake_ms = self.membership.step(self._clock.now_ms())
            timeout_s = (wake_ms - self._clock.now_ms()) / 1_000
            if timeout_s > 0:
                self._coordinator.wait(min(timeout_s, WAIT_MAX_S))

    def _ask(self) -> None:
        """A question to the log may take its time, which membership must not wait for."""
        while not self._left.is_set():
            wake_ms = self.reach.step(self._clock.now_ms())
            self._left.wait(min((wake_ms - self._clock.now_ms()) / 1_000, WAIT_MAX_S))


def inspect_coordinator(config: Config, instance: str) -> "ClusterInspection":
    """What is to be seen of the cluster from outside. Raises ConfigurationError, CoordinatorUnavailable."""
    from chronos.adapters.zookeeper.inspection import inspect

    return inspect(open_coordinator(config, instance))
