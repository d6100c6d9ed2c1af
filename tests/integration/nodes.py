"""Nodes in the process of the test, whose clocks it sets; and what a standalone node shows of
another one on the same topics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from chronos.config import load
from chronos.node import Node
from tests.harness.broker import Broker
from tests.harness.clock import ShiftedClock
from tests.harness.ports import free_port
from tests.harness.service import Service
from tests.integration.flow import KafkaFlow

SILENCE_S = 90
"""A node takes over a shard from another data directory's node after this time without a progress
record of it."""


@contextmanager
def running(data_dir: Path, clock: ShiftedClock, settings: dict[str, object]) -> Iterator[Node]:
    """Run a node in this process, so that its clock can be set."""
    own = {
        "node.data_dir": data_dir,
        "admin.port": free_port(),
        "limits.disk_reserve": "1MB",
        **settings,
    }
    node = Node(load(None, {}, [f"{path}={value}" for path, value in own.items()]), clock=clock)
    node.start()
    try:
        yield node
    finally:
        node.stop()


def kafka(broker: Broker, flow: KafkaFlow) -> dict[str, object]:
    """The settings for this broker and the topics of the flow."""
    return {"log.kind": "kafka", "log.kafka.bootstrap_servers": broker.bootstrap, **flow.settings()}


def taken_over(service: Service, shards: int) -> set[object]:
    """The nodes from which the service has taken over, once it has done so for all shards."""
    found = service.events("taking over from a silent node")
    return (
        {entry["node"] for entry in found}
        if {entry["shard"] for entry in found} == set(range(shards))
        else set()
    )


def paused(service: Service) -> str:
    """Why the shards are paused; empty while the node does not answer."""
    with suppress(OSError):
        return " ".join(str(shard["paused"]) for shard in service.shards())
    return ""
