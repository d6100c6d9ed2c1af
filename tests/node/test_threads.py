"""No thread of a node ends in silence: what it cannot go on with is tried again, or ends the node with its name."""

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
    """Nobody is there."""
    return ZooKeeperCoordinator(hosts="127.0.0.1:1", cluster="c", node="n", instance="i", shards=1)


def test_a_machine_without_a_file_descriptor_has_no_coordinator_for_a_while() -> None:
    """As when no server answers: masters go on."""
    member = Member(node="n", instance="i", address="", version="", started_ms=0, replicas={})
    with no_more_files(), pytest.raises(CoordinatorUnavailable, match="Too many open files"):
        coordinator().join(member)


@pytest.mark.parametrize("thread", ["member", "reach"])
def test_a_thread_of_the_place_that_fails_fails_the_node(thread: str) -> None:
    def describe() -> Member:
        raise OSError("nobody thought of this")

    failures: list[ChronosError] = []
    unforeseen: Any = None
    place = ClusterNode(
        coordinator(),
        node="n",
        log=unforeseen,
        unreachable_ms=9,
        clock=SystemClock(),
        describe=describe,
        failed=failures.append,
    )
    running = {"member": place._thread, "reach": place._asking}[thread]
    running.start()
    running.join(9.0)
    (failure,) = failures
    assert f"{thread} failed" in str(failure)


def test_a_maintenance_thread_that_fails_fails_the_node(tmp_path: Path) -> None:
    node = Node(load(None, {}, [f"node.data_dir={tmp_path}"]))
    node._maintenance.start()  # Nothing that it looks at was ever made.
    assert node.failed.wait(9.0)
    assert "maintenance failed" in str(node.failure)
