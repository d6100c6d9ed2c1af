"""No thread of a node ends unnoticed: it tries again, or the node fails with an error that names
the thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chronos.adapters.machine import SystemClock
from chronos.adapters.zookeeper import ZooKeeperCoordinator
from chronos.config import load
from chronos.core.cluster.roles import Member, Roles, ShardRoles
from chronos.errors import ChronosError, CoordinatorUnavailable
from chronos.node import Node
from chronos.node.cluster import ClusterNode, reassigned
from tests.harness.files import no_more_files


def coordinator() -> ZooKeeperCoordinator:
    """A coordinator whose ZooKeeper does not exist."""
    return ZooKeeperCoordinator(hosts="127.0.0.1:1", cluster="c", node="n", instance="i", shards=1)


def test_a_machine_without_a_file_descriptor_has_an_unavailable_coordinator() -> None:
    """The same error as when no server answers: masters continue."""
    member = Member(node="n", instance="i", address="", version="", started_ms=0, replicas={})
    with no_more_files(), pytest.raises(CoordinatorUnavailable, match="Too many open files"):
        coordinator().join(member)


def test_a_membership_thread_that_fails_fails_the_node() -> None:
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
        changed=lambda: True,
        assigned=lambda _: None,
        failed=failures.append,
    )
    cluster_node._membership_thread.start()
    cluster_node._membership_thread.join(9.0)
    (failure,) = failures
    assert "membership failed" in str(failure)


def test_shards_look_at_the_roles_only_if_more_than_progress_has_changed() -> None:
    """Progress is published every two seconds; hundreds of shards that look at it would hinder
    each other."""

    def roles(*masters: str, rules: int = 1, applied: int = 0) -> Roles:
        return Roles(
            rules=rules,
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
            (before, roles("a", "b", "a", rules=2)),
            (before, None),
            (None, before),
        ]
    ]
    assert found == [[], [], [1], [0, 1, 2], [0, 1, 2], [0, 1, 2]]


@pytest.mark.parametrize("name", ["maintenance", "reachability"])
def test_a_thread_that_fails_fails_the_node(name: str, tmp_path: Path) -> None:
    node = Node(load(None, {}, [f"node.data_dir={tmp_path}"]))
    thread = {"maintenance": node._maintenance, "reachability": node._pings}[name]
    thread.start()  # Nothing that it works on was opened.
    assert node.failed.wait(9.0)
    assert f"{name} failed" in str(node.failure)
