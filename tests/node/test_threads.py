"""No thread of a node ends unnoticed: it tries again, or the node fails with an error that names
the thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from chronos.adapters.clock import SystemClock
from chronos.adapters.zookeeper.coordinator import ZooKeeperCoordinator
from chronos.adapters.zookeeper.servers import ZooKeeperServers
from chronos.config import load
from chronos.core.cluster.roles import Member, Roles, ShardRoles
from chronos.core.shard.codec import RULES
from chronos.errors import ChronosError, CoordinatorUnavailable, LogMismatch, LogUnavailable
from chronos.node import Node, cluster, maintenance
from chronos.node.cluster import ClusterNode, NodeCallbacks, reassigned
from chronos.node.maintenance import Job, compact, maintain, ping
from chronos.node.threads import guarded_thread
from chronos.ports import Coordinator
from tests.harness.files import no_more_files
from tests.harness.waiting import wait_until
from tests.harness.zookeeper import member
from tests.sim.coordinator import Ensemble, SimCoordinator
from tests.sim.world import World


def coordinator() -> ZooKeeperCoordinator:
    """A coordinator whose ZooKeeper does not exist."""
    return ZooKeeperCoordinator(ZooKeeperServers(hosts="127.0.0.1:1"), cluster="c", node="n")


def test_a_machine_without_a_file_descriptor_has_an_unavailable_coordinator() -> None:
    """The same error as when no server answers: masters continue."""
    member = Member(node="n", instance="i", address="", version="", started_ms=0, replicas={})
    with no_more_files(), pytest.raises(CoordinatorUnavailable, match="Too many open files"):
        coordinator().join(member)


def made_cluster_node(
    made: Coordinator, describe: Callable[[], Member], failed: Callable[[ChronosError], None]
) -> ClusterNode:
    """A node of a cluster that has no shards and observes no masters."""
    no_log: Any = None
    settings = [
        "log.kind=kafka",
        "log.kafka.bootstrap_servers=127.0.0.1:1",
        "coordinator.kind=zookeeper",
        "coordinator.zookeeper.hosts=127.0.0.1:1",
        "failover.on_unhealthy=off",
    ]
    return ClusterNode(
        made,
        load(None, {}, settings),
        log=no_log,
        clock=SystemClock(),
        callbacks=NodeCallbacks(
            describe=describe,
            look=lambda shard, master: None,
            changed=lambda: True,
            assigned=lambda _: None,
            failed=failed,
        ),
    )


def test_a_node_that_starts_waits_for_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole cluster may be starting. The log names the reason once; after a minute it is an
    error."""
    world = World(0)
    made = SimCoordinator(
        Ensemble(world, shards=1, replication=None, session_ms=5_000), "n", lambda _: None
    )
    made.cut_ms = world.now_ms + 1
    failures: list[ChronosError] = []
    cluster_node = made_cluster_node(made, lambda: member("n"), failures.append)
    with monkeypatch.context() as patched:
        patched.setattr(cluster, "JOIN_S", -1.0)
        with pytest.raises(CoordinatorUnavailable):
            cluster_node.join()
    with capture_logs() as lines, ThreadPoolExecutor(1) as threads:
        joining = threads.submit(cluster_node.join)
        wait_until(lambda: len(lines) > 0)
        made.cut_ms = 0
        joining.result(9.0)
    cluster_node.leave(9.0)
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == [
        "waiting for the coordinator"
    ]
    assert failures == []


def test_a_membership_thread_that_fails_fails_the_node() -> None:
    def describe() -> Member:
        raise OSError("unforeseen")

    failures: list[ChronosError] = []
    cluster_node = made_cluster_node(coordinator(), describe, failures.append)
    cluster_node._membership_thread.start()
    cluster_node._membership_thread.join(9.0)
    (failure,) = failures
    assert "membership failed" in str(failure)


def test_the_roles_of_a_newer_version_fail_the_node_and_are_not_published_over() -> None:
    """A node of this version would not know how to decide by them."""
    ensemble = Ensemble(World(0), shards=1, replication=None, session_ms=60_000)
    ensemble.published = newer = Roles(rules=RULES + 1)
    failures: list[ChronosError] = []
    cluster_node = made_cluster_node(
        SimCoordinator(ensemble, "n", lambda _: None), lambda: member("n"), failures.append
    )
    cluster_node.join()
    cluster_node._membership_thread.join(9.0)
    (failure,) = failures
    assert isinstance(failure, LogMismatch)
    assert f"written by rules {RULES + 1}" in str(failure)
    assert (ensemble.published, ensemble.version) == (newer, 0)


def test_shards_look_at_the_roles_only_if_more_than_progress_has_changed() -> None:
    """Progress is published every two seconds; hundreds of shards that look at it would hinder
    each other."""

    def roles(*masters: str, applied: int = 0) -> Roles:
        return Roles(
            shards={
                number: ShardRoles(master=master, applied=applied, replicas=("a", "b"))
                for number, master in enumerate(masters)
            },
        )

    before = roles("a", "b", "a")
    found = [
        list(reassigned(earlier, now, 3))
        for earlier, now in [
            (before, before),
            (before, roles("a", "b", "a", applied=7)),
            (before, roles("a", "a", "a")),
            (before, None),
            (None, before),
        ]
    ]
    assert found == [[], [], [1], [0, 1, 2], [0, 1, 2]]


@pytest.mark.parametrize("name", ["maintenance", "reachability", "compaction"])
def test_a_thread_that_fails_fails_the_node(name: str, tmp_path: Path) -> None:
    node = Node(load(None, {}, [f"node.data_dir={tmp_path}"]))

    def fails(*_: object) -> Any:
        raise ZeroDivisionError

    failing: Any = SimpleNamespace(step=fails, compact=fails, is_open=True)
    runs: dict[str, Callable[..., None]] = {
        "maintenance": partial(maintain, [Job(fails)]),
        "reachability": partial(ping, failing),
        "compaction": lambda _, stopping: compact({0: failing}, lambda: None, stopping),
    }
    guarded_thread(name, partial(runs[name], node.clock, node.stopping), node.fail).start()
    assert node.failed.wait(9.0)
    assert f"{name} failed" in str(node.failure)


def test_a_job_that_has_to_wait_hinders_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker answers one of them; each runs at its own times."""
    monkeypatch.setattr(maintenance, "MAINTENANCE_S", 0.01)
    ran: list[str] = []
    stopping = threading.Event()

    def unreachable(now_ms: int) -> None:
        ran.append("unreachable")
        raise LogUnavailable("no broker answers")

    def last(now_ms: int) -> None:
        ran.append("last")
        if ran.count("last") == 3:
            stopping.set()

    jobs = [
        Job(lambda now_ms: ran.append("waits"), every_s=60.0, waits=True),
        Job(lambda now_ms: ran.append("once"), every_s=60.0),
        Job(unreachable),
        Job(last),
    ]
    with capture_logs() as lines:
        maintain(jobs, SystemClock(), stopping)
    assert ran == ["once", *["unreachable", "last"] * 3]
    assert {line["why"] for line in lines} == {"no broker answers"}
