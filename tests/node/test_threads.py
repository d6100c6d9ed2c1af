"""No thread of a node ends unnoticed: it tries again, or the node fails with an error that names the thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chronos.adapters.clock import SystemClock
from chronos.adapters.zookeeper.coordinator import ZooKeeperCoordinator
from chronos.config import load
from chronos.core.roles import Member
from chronos.errors import ChronosError, CoordinatorUnavailable
from chronos.node import Node
from chronos.node.cluster import ClusterNode
from tests.harness.files import no_more_files


def coordinator() -> ZooKeeperCoordinator:
    """A coordinator whose ZooKeeper does not exist."""
    return ZooKeeperCoordinator(hosts="127.0.0.1:1", cluster="c", node="n", instance="i", shards=1)


def test_a_machine_without_a_file_descriptor_has_an_unavailable_coordinator() -> None:
    """The same error as when no server answers: masters continue."""
    member = Member(node="n", instance="i", address="", version="", started_ms=0, replicas={})
    with no_more_files(), pytest.raises(CoordinatorUnavailable, match="Too many open files"):
        coordinator().join(member)


@pytest.mark.parametrize("thread", ["membership", "reachability"])
def test_a_thread_of_the_cluster_node_that_fails_fails_the_node(thread: str) -> None:
    def describe() -> Member:
        raise OSError("unforeseen")

    failures: list[ChronosError] = []
    no_log: Any = None
    settings = [
        "log.kind=kafka",
        "log.kafka.bootstrap_servers=127.0.0.1:1",
        "coordinator.kind=zookeeper",
        "coordinator.zookeeper.hosts=127.0.0.1:1",
    ]
    cluster_node = ClusterNode(
        coordinator(),
        load(None, {}, settings),
        log=no_log,
        clock=SystemClock(),
        describe=describe,
        look=lambda shard, master: None,
        failed=failures.append,
    )
    running = {
        "membership": cluster_node._membership_thread,
        "reachability": cluster_node._reachability_thread,
    }[thread]
    running.start()
    running.join(9.0)
    (failure,) = failures
    assert f"{thread} failed" in str(failure)


def test_a_maintenance_thread_that_fails_fails_the_node(tmp_path: Path) -> None:
    node = Node(load(None, {}, [f"node.data_dir={tmp_path}"]))
    node._maintenance.start()  # Nothing that it works on was opened.
    assert node.failed.wait(9.0)
    assert "maintenance failed" in str(node.failure)
