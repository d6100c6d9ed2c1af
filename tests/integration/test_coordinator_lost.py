"""A cluster whose coordinator lost its data, or was restored to an older state, under running
nodes: no role moves, and a node that is killed afterwards is replaced."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.drill import Drill
from tests.chaos.fleet import SESSION_S, Fleet
from tests.harness.broker import Broker
from tests.harness.zookeeper import Ensemble, Server
from tests.integration.flow import KafkaFlow, now_ms

pytestmark = pytest.mark.kafka

SHARDS = 4

BACK_S = 3 * SESSION_S
"""Longest time from the moment when the coordinator answers again until roles can move: three
session timeouts of ZooKeeper."""

LATE_MS = 2_000
"""Lateness that no message has: half of a session timeout, and far more than a busy machine
needs."""


@pytest.fixture
def flow(broker: Broker) -> KafkaFlow:
    """Messages on separate topics."""
    return KafkaFlow(broker, 1)


@pytest.fixture
def fleet_on(broker: Broker, flow: KafkaFlow, tmp_path: Path) -> Callable[..., Fleet]:
    """Three nodes for the flow, not started yet, on a coordinator."""
    settings = {**flow.settings(), "delivery.transaction_timeout": "4s"}

    def made(zookeeper: str | None = None, *, raft: bool = False) -> Fleet:
        return Fleet(
            tmp_path,
            bootstrap=broker.bootstrap,
            zookeeper=zookeeper,
            raft=raft,
            shards=SHARDS,
            # A busy machine may stop a process for longer than the voters' default of 1.2 s.
            settings=settings | ({"coordinator.raft.timeout": f"{SESSION_S}s"} if raft else {}),
        )

    return made


def roles_of(fleet: Fleet) -> dict[int, tuple[str, int]]:
    """Master and newest role epoch of each shard, once all nodes agree about the masters."""
    fleet.wait_led()
    fleet.wait_agreed()
    epochs = epochs_of(fleet)
    return {each["shard"]: (each["master"], epochs[each["shard"]]) for each in fleet.any().shards()}


def epochs_of(fleet: Fleet) -> dict[int, int]:
    """The newest role epoch of each shard that a node has read; a follower may be behind."""
    epochs: dict[int, int] = {}
    for node in fleet.running.values():
        for each in node.shards():
            epochs[each["shard"]] = max(each["epoch"]["role"], epochs.get(each["shard"], 0))
    return epochs


def wait_back(fleet: Fleet, begun_s: float) -> None:
    """Wait until every node has confirmed roles and lists all running nodes, at most BACK_S after
    that time."""
    fleet.wait_placed()
    took_s = time.monotonic() - begun_s
    print(f"back after {took_s:.1f} s")
    assert took_s < BACK_S


def lose_a_node(fleet: Fleet) -> None:
    """Kill the node that is master of most shards, and wait until others have taken over."""
    killed = fleet.busiest()
    fleet.nodes[killed].kill()
    fleet.wait_led(without=killed)


def check_outcome(flow: KafkaFlow, fleet: Fleet) -> None:
    """Assert that every message has its one outcome."""
    flow.flush()
    flow.wait_settled(fleet.any())
    assert flow.complaints() == []


def details(fleet: Fleet) -> list[str]:
    """What `/readyz` tells on any node, as one text for each."""
    return [str(node.ask("GET", "/readyz")[1]) for node in fleet.running.values()]


def wait_told(fleet: Fleet, text: str) -> None:
    """Wait until a node tells this in `/readyz`."""
    fleet.any().wait_until(
        lambda: any(text in told for told in details(fleet)), f"tell: {text}", every_s=0.05
    )


def wiped(fleet: Fleet, server: Server) -> str:
    """The server lost its data."""
    server.kill()
    server.wipe()
    return "ZooKeeper has no roles of this cluster any more"


def restored(fleet: Fleet, server: Server) -> str:
    """The server was restored to the state from before a shard moved."""
    server.kill()
    server.save()
    server.start()
    fleet.wait_placed()
    server.advance()
    shard, master = next(iter(fleet.masters().items()))
    fleet.transfer(shard, next(name for name in fleet.nodes if name != master))
    fleet.wait_led()
    server.kill()
    server.restore()
    return "roles of the coordinator are older"


@pytest.mark.parametrize("lose", [wiped, restored])
def test_no_role_moves_when_zookeeper_lost_its_data_or_was_restored(
    lose: Callable[[Fleet, Server], str],
    fleet_on: Callable[..., Fleet],
    own_zookeeper: Ensemble,
    flow: KafkaFlow,
) -> None:
    own_zookeeper[0].advance()
    with fleet_on(own_zookeeper.hosts) as fleet:
        fleet.start()
        flow.write(300, now_ms(), now_ms() + 12_000, keyed=0.5)
        told = lose(fleet, own_zookeeper[0])
        before = epochs_of(fleet)
        led = len(fleet.take_overs())
        own_zookeeper[0].start()
        begun_s = time.monotonic()
        wait_told(fleet, told)
        wait_back(fleet, begun_s)
        after = roles_of(fleet)
        assert {shard: epoch for shard, (_, epoch) in after.items()} == before
        assert len(fleet.take_overs()) == led
        for node in fleet.nodes.values():
            (event,) = node.events("zookeeper session replaced")
            assert "lost, or restored from an older state" in str(event["why"])
        lose_a_node(fleet)
        check_outcome(flow, fleet)


def test_no_role_moves_when_the_topic_of_the_cluster_is_deleted_and_created_again(
    fleet_on: Callable[..., Fleet], broker: Broker, flow: KafkaFlow
) -> None:
    with fleet_on() as fleet:
        fleet.start()
        flow.write(300, now_ms(), now_ms() + 12_000, keyed=0.5)
        before, led = roles_of(fleet), len(fleet.take_overs())
        topic = f"{flow.prefix}.cluster"
        admin, begun_s = broker.admin(), time.monotonic()
        admin.delete_topics([topic])[topic].result(BACK_S)
        fleet.any().wait_until(
            lambda: not fleet.any().get("/v1/nodes")["sure"], "notice it", every_s=0.02
        )
        wait_back(fleet, begun_s)
        assert roles_of(fleet) == before
        assert len(fleet.take_overs()) == led
        lose_a_node(fleet)
        check_outcome(flow, fleet)


def test_no_role_moves_when_two_of_three_voters_lost_their_disks(
    fleet_on: Callable[..., Fleet], flow: KafkaFlow
) -> None:
    """The third is master of all shards, and runs on while the others are started again."""
    with fleet_on(raft=True) as fleet:
        fleet.start()
        for shard in range(SHARDS):
            if fleet.masters()[shard] != "n3":
                fleet.transfer(shard, "n3")
                fleet.wait_led()
        flow.write(300, now_ms(), now_ms() + 12_000, keyed=0.5)
        before, led = roles_of(fleet), len(fleet.take_overs())
        for name in ("n1", "n2"):
            fleet.nodes[name].kill()
            shutil.rmtree(fleet.nodes[name].data_dir)
        for name in ("n1", "n2"):
            fleet.nodes[name].launch()
        fleet.wait_placed()
        assert roles_of(fleet) == before
        assert len(fleet.take_overs()) == led
        lose_a_node(fleet)
        check_outcome(flow, fleet)


@pytest.mark.campaign
def test_nothing_is_late_while_the_quorum_is_away_for_three_session_timeouts(
    fleet_on: Callable[..., Fleet], broker: Broker, flow: KafkaFlow
) -> None:
    with Ensemble(3) as ensemble, fleet_on(ensemble.hosts) as fleet:
        fleet.start()

        def act() -> None:
            before, led = roles_of(fleet), len(fleet.take_overs())
            back_s = time.monotonic() + 3 * SESSION_S
            for server in ensemble.servers[:2]:
                server.kill()
            time.sleep(back_s - time.monotonic())  # The length of the outage is the fault.
            ensemble.start()
            wait_back(fleet, time.monotonic())
            assert roles_of(fleet) == before
            assert len(fleet.take_overs()) == led

        with Drill(
            broker, f"{flow.prefix}.delay", f"{flow.prefix}.load", rate=500, seconds_max=200
        ) as drill:
            drill.fault("quorum", act)
            found: Any = drill.result()
        assert (found.lost, found.duplicated, found.early) == (0, 0, 0)
        assert found.windows[0].worst_ms < LATE_MS
        lose_a_node(fleet)
