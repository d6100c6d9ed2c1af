"""Masters that are alive but stuck, on a real Kafka and a real ZooKeeper or none: replaced, or left
alone, as configured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.faults import epochs_complaints
from tests.chaos.fleet import Fleet
from tests.harness.broker import Broker
from tests.harness.disk import fill, small_disk
from tests.harness.zookeeper import Ensemble
from tests.integration.flow import SHARDS, KafkaFlow, now_ms
from tests.integration.health import FAST, give

pytestmark = pytest.mark.kafka

REPLACED_S = 60.0
"""In `auto`, a stuck master is replaced within this time, also with the constants that are the
default."""


SESSION_S = 10
"""Long enough for a machine that is busy with other tests."""

LAST = SHARDS - 1
"""The last shard that would be moved to spread masters evenly."""

FOUND_MS = 10_000
"""Longer than it takes to find a stuck master with these constants."""


@contextmanager
def cluster(
    tmp_path: Path, broker: Broker, flow: KafkaFlow, mode: str, zookeeper: Ensemble | None
) -> Iterator[Fleet]:
    """Three nodes that run, with this `failover.on_unhealthy`."""
    settings: dict[str, object] = {
        **flow.settings(),
        **FAST,
        "delivery.transaction_timeout": "4s",
        "failover.on_unhealthy": mode,
    }
    hosts = None if zookeeper is None else zookeeper.hosts
    with Fleet(
        tmp_path,
        bootstrap=broker.bootstrap,
        zookeeper=hosts,
        shards=SHARDS,
        session_s=SESSION_S,
        settings=settings,
    ) as fleet:
        yield fleet.start()


def check_outcome(flow: KafkaFlow, fleet: Fleet, broker: Broker) -> None:
    """Assert that every message has its one outcome, and that no epoch went back."""
    flow.flush()
    flow.wait_settled(fleet.any())
    assert flow.complaints() == []
    assert epochs_complaints(broker, f"{flow.prefix}.progress", SHARDS) == []


def whys(fleet: Fleet) -> list[str]:
    """The reasons of the last changes of roles, newest first."""
    return [change["why"] for change in fleet.nodes_seen()["history"]]


def write(flow: KafkaFlow) -> None:
    """Messages that become due within the next ten seconds."""
    flow.write(1_000, now_ms() - 500, now_ms() + 10_000)
    flow.poll()


def test_a_master_that_hangs_or_whose_disk_is_full_is_replaced_and_costs_no_message(
    broker: Broker, tmp_path: Path
) -> None:
    """In `auto`, one after the other: with its transaction open and its messages sent, and without
    room for its store."""
    flow = KafkaFlow(broker, 1)
    with small_disk(tmp_path / "n1"), cluster(tmp_path, broker, flow, "auto", None) as fleet:
        give(fleet, "n2")
        write(flow)
        fleet.nodes["n2"].hang()
        fleet.wait_led(without="n2", timeout_s=REPLACED_S)
        assert "unhealthy by its probes" in whys(fleet)
        write(flow)
        fleet.nodes["n2"].unhang()
        fleet.wait_placed()

        give(fleet, "n1")
        fill(tmp_path / "n1", 0)
        write(flow)
        fleet.wait_led(without="n1", timeout_s=REPLACED_S)
        (tmp_path / "n1" / "ballast").unlink()
        fleet.wait_placed()
        check_outcome(flow, fleet, broker)


def test_with_permission_only_an_operator_has_a_master_that_hangs_replaced(
    broker: Broker, zookeeper: Ensemble, tmp_path: Path
) -> None:
    """In `armed`: it is named and stays, until `chronos failover arm` permits one switch of one
    shard."""
    flow = KafkaFlow(broker, 2)
    with cluster(tmp_path, broker, flow, "armed", zookeeper) as fleet:
        give(fleet, "n1")
        asked = fleet.nodes["n2"]
        write(flow)
        fleet.nodes["n1"].hang()

        def is_named() -> bool:
            return len(asked.get("/v1/failover")["shards"][LAST]["unhealthy"]) >= 2

        asked.wait_until(is_named, "name the stuck master", timeout_s=REPLACED_S)
        until_ms = now_ms() + 2_000
        asked.wait_until(lambda: now_ms() > until_ms, "go on for two periods")
        assert "unhealthy by its probes" not in whys(fleet)
        assert asked.post(f"/v1/shards/{LAST}/arm", None)["result"] == "done"
        asked.wait_until(
            lambda: fleet.masters(asked=asked).get(LAST) in ("n2", "n3"), "be led by another node"
        )
        assert whys(fleet).count("unhealthy by its probes") == 1
        fleet.nodes["n1"].unhang()
        fleet.wait_placed()
        check_outcome(flow, fleet, broker)


def test_switched_off_no_master_is_replaced_and_no_probe_is_sent(
    broker: Broker, zookeeper: Ensemble, tmp_path: Path
) -> None:
    flow = KafkaFlow(broker, 3)
    with cluster(tmp_path, broker, flow, "off", zookeeper) as fleet:
        give(fleet, "n1")
        asked = fleet.nodes["n2"]
        write(flow)
        fleet.nodes["n1"].hang()
        until_ms = now_ms() + FOUND_MS
        asked.wait_until(lambda: now_ms() > until_ms, "go on for ten periods")
        assert not any(why.startswith("unhealthy") for why in whys(fleet))
        assert asked.ask("POST", "/v1/shards/0/arm")[0] == 409
        fleet.nodes["n1"].unhang()
        check_outcome(flow, fleet, broker)
        assert sum(shard["totals"]["probes"] for shard in asked.shards()) == 0
