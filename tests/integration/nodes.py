"""Nodes in the process of the test, whose clocks it sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chronos.adapters.machine import ShiftedClock
from chronos.config import load
from chronos.node import Node
from tests.harness.broker import Broker
from tests.harness.ports import free_port
from tests.integration.flow import KafkaFlow


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
