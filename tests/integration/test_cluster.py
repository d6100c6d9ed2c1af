"""Three nodes, a real Kafka, and a real ZooKeeper or none: roles, hand-overs, failover, fencing,
and restarted nodes."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.drill import Drill
from tests.chaos.faults import FAULTS, Fault, epochs_complaints, lose_quorum
from tests.chaos.fleet import SESSION_S, Fleet
from tests.chaos.world import EVERYTHING, World, bring_up
from tests.harness.broker import Broker
from tests.harness.service import Service
from tests.harness.zookeeper import Ensemble
from tests.integration.flow import SHARDS, KafkaFlow, now_ms

pytestmark = pytest.mark.kafka

FAULT = {fault.name: fault for fault in FAULTS}
QUORUM_LOST_S = 8.0
"""Two session timeouts; `./scripts/chaos` takes 30 s."""

UNJUDGED: dict[str, Any] = {"warm_s": 1.0, "gap_s": 0.5}
"""`./scripts/chaos` judges lateness; these tests look for lost, duplicated and early messages
only."""


@pytest.fixture
def flow(broker: Broker) -> KafkaFlow:
    """Messages on separate topics."""
    return KafkaFlow(broker, 1)


ON_KAFKA = "kafka"
"""Parameter of `world`: the coordinator is Kafka."""

ON_RAFT = "raft"
"""Parameter of `world`: the nodes themselves vote."""


@pytest.fixture
def world(
    request: pytest.FixtureRequest, broker: Broker, flow: KafkaFlow, tmp_path: Path
) -> Iterator[World]:
    """Three nodes for the flow, not started yet; with ZooKeeper unless the parameter is ON_KAFKA or
    ON_RAFT."""
    kind = getattr(request, "param", "zookeeper")
    zookeeper: Ensemble | None = (
        None if kind in {ON_KAFKA, ON_RAFT} else request.getfixturevalue("zookeeper")
    )
    hosts = None if zookeeper is None else zookeeper.hosts
    settings = {**flow.settings(), "delivery.transaction_timeout": "4s"}
    on_raft = kind == ON_RAFT
    with Fleet(
        tmp_path,
        bootstrap=broker.bootstrap,
        zookeeper=hosts,
        raft=on_raft,
        shards=SHARDS,
        settings=settings,
    ) as nodes:
        yield World(fleet=nodes, kafka=broker, zookeeper=zookeeper)


@pytest.fixture
def fleet(world: World) -> Fleet:
    """The nodes."""
    return world.fleet


def check_outcome(flow: KafkaFlow, fleet: Fleet, broker: Broker) -> None:
    """Assert that every message has its one outcome, and that no epoch went back."""
    flow.flush()
    flow.wait_settled(fleet.any())
    assert flow.complaints() == []
    assert epochs_complaints(broker, f"{flow.prefix}.progress", SHARDS) == []


def test_every_node_holds_every_shard_and_answers_for_it(
    fleet: Fleet, flow: KafkaFlow, broker: Broker
) -> None:
    """All nodes report the same masters; a message can be found and cancelled through any node."""
    fleet.start()
    seen = [fleet.masters(asked=node) for node in fleet.nodes.values()]
    assert seen[0] == seen[1] == seen[2]
    written = flow.write(300, now_ms() + 20_000, now_ms() + 25_000, keyed=1.0)
    flow.flush()
    for node in fleet.nodes.values():
        found = node.get(f"/v1/messages/{written[0].id}")
        assert found["state"] == "pending"
    for message, node in zip(written, fleet.nodes.values(), strict=False):
        status, answer = node.ask("DELETE", f"/v1/messages/{message.id}")
        assert (status, answer["result"]) == (200, "cancelled")
    for node in fleet.nodes.values():
        node.wait_until(lambda node=node: node.pending() == 297, "hold the pending messages")  # type: ignore[misc]
    fleet.wait_alike()
    seen_nodes = fleet.nodes_seen()
    assert sorted(node["node"] for node in seen_nodes["nodes"]) == ["n1", "n2", "n3"]
    assert seen_nodes["controller"] in fleet.nodes
    assert {change["shard"] for change in seen_nodes["history"]} == set(range(SHARDS))
    flow.wait_settled(fleet.any())

    def delivered(node: Service, **of: str) -> int:
        found = node.get("/v1/targets", **of)
        assert found["silent"] == []
        return sum(target["delivered"] for target in found["targets"])

    for node in fleet.nodes.values():
        node.wait_until(lambda node=node: delivered(node) == 297, "count the deliveries of all")  # type: ignore[misc]
    assert sum(delivered(node, of="node") for node in fleet.nodes.values()) == 297

    def past(node: Service) -> int:
        found = node.get("/v1/history", of="cluster")
        assert found["silent"] == []
        return sum(minute["delivered"] for minute in found["minutes"])

    # A node notes its counts once a second.
    for node in fleet.nodes.values():
        node.wait_until(lambda node=node: past(node) == 297, "note the deliveries of all")  # type: ignore[misc]


@pytest.mark.parametrize(
    ("world", "faults"),
    [
        pytest.param(
            "zookeeper",
            ("kill", "freeze", "transfer", "roll", "disk"),
            marks=pytest.mark.campaign,
        ),
        pytest.param(ON_KAFKA, ("kill", "controller", "roll"), marks=pytest.mark.smoke),
        pytest.param(
            ON_RAFT,
            ("kill", "freeze", "transfer", "controller", "roll"),
            marks=pytest.mark.campaign,
        ),
    ],
    indirect=["world"],
    ids=["zookeeper", "kafka", "raft"],
)
def test_a_node_killed_frozen_drained_and_restarted_costs_no_message(
    world: World, flow: KafkaFlow, broker: Broker, faults: tuple[str, ...]
) -> None:
    """Each fault once, with messages in flight; the topics alone show the outcome."""
    fleet = world.fleet
    fleet.start()
    dice = random.Random(7)
    for name in faults:
        written = flow.write(3_000, now_ms() - 500, now_ms() + 6_000)
        flow.poll()
        FAULT[name].act(world, dice)
        flow.cancel(written[::40])
    check_outcome(flow, fleet, broker)


def test_a_drained_node_is_master_of_no_shard_until_it_is_undrained(fleet: Fleet) -> None:
    """Over HTTP, like `chronos transfer --drain`."""
    fleet.start()
    name = fleet.busiest()
    asked = next(node for other, node in fleet.nodes.items() if other != name)
    asked.post_until_done(f"/v1/nodes/{name}/drain")
    assert name not in fleet.wait_led().values()
    status, problem = asked.ask("POST", f"/v1/shards/0/transfer?to={name}")
    assert (status, problem["detail"]) == (409, f"transfer to {name} refused: it is drained")
    assert asked.ask("POST", f"/v1/nodes/{name}/undrain")[0] == 202
    fleet.transfer(0, name)
    assert fleet.wait_led()[0] == name
    status, problem = asked.ask("POST", "/v1/shards/0/transfer?to=nobody")
    assert (status, "nobody" in problem["detail"]) == (404, True)


def test_a_second_node_with_the_same_id_is_refused(fleet: Fleet, tmp_path: Path) -> None:
    """Another data directory with the id of a running node: exit code 1, and an error that names
    the node."""
    fleet.start()
    first = fleet.nodes["n1"]
    twin = Service(
        tmp_path / "twin",
        settings={**first.settings, "node.data_dir": tmp_path / "twin", "admin.port": 1},
    )
    twin.settings["admin.port"] = twin.port
    twin.launch()
    assert twin.wait_exit(timeout_s=SESSION_S + 20.0) == 1
    assert "n1" in twin.tail()
    assert fleet.wait_led()


def test_a_node_whose_disk_is_gone_is_rebuilt_and_can_lead_again(
    fleet: Fleet, flow: KafkaFlow, broker: Broker
) -> None:
    """The same node id with an empty data directory."""
    fleet.start()
    flow.write(2_000, now_ms() - 500, now_ms() + 15_000)
    flow.flush()
    name = fleet.busiest()
    node = fleet.nodes[name]
    node.kill()
    shutil.rmtree(node.data_dir)
    fleet.wait_led(without=name)
    node.start()
    fleet.wait_alike()
    for shard in range(SHARDS):
        fleet.transfer(shard, name)
    check_outcome(flow, fleet, broker)


def test_a_single_node_continues_when_its_disk_is_gone(
    broker: Broker, zookeeper: Ensemble, flow: KafkaFlow, tmp_path: Path
) -> None:
    """No node noticed its end: the roles still name it, with an epoch that the log assigns to
    another data directory."""
    with Fleet(
        tmp_path,
        bootstrap=broker.bootstrap,
        zookeeper=zookeeper.hosts,
        count=1,
        shards=SHARDS,
        settings=flow.settings(),
    ) as alone:
        alone.start()
        flow.write(500, now_ms() - 500, now_ms() + 10_000)
        flow.flush()
        node = alone.nodes["n1"]
        node.kill()
        shutil.rmtree(node.data_dir)
        node.start()
        alone.wait_led()
        check_outcome(flow, alone, broker)


def test_failover_under_load_loses_doubles_and_delivers_early_no_message(
    world: World, flow: KafkaFlow, broker: Broker
) -> None:
    """A short drill of `scripts/chaos`, which also judges the lateness."""
    world.fleet.start()
    dice = random.Random(3)
    with Drill(
        broker,
        f"{flow.prefix}.delay",
        f"{flow.prefix}.load",
        rate=1_000,
        seconds_max=200,
        **UNJUDGED,
    ) as drill:
        for name in ("kill", "transfer", "freeze"):
            drill.fault(name, lambda name=name: FAULT[name].act(world, dice))  # type: ignore[misc]
        found = drill.result()
    assert (found.lost, found.duplicated, found.early) == (0, 0, 0)
    assert epochs_complaints(broker, f"{flow.prefix}.progress", SHARDS) == []


@pytest.mark.campaign
def test_clocks_networks_brokers_and_zookeeper_fail_one_by_one(tmp_path: Path) -> None:
    """The same with three brokers, three ZooKeeper servers, and every node behind links that can be
    cut."""
    dice = random.Random(11)

    def act(fault: Fault, world: World) -> None:
        if fault.act is lose_quorum:
            lose_quorum(world, dice, away_s=QUORUM_LOST_S)
        else:
            fault.act(world, dice)

    with (
        bring_up(tmp_path, EVERYTHING, {"delivery.transaction_timeout": "4s"}) as world,
        Drill(world.kafka, "chronos.delay", "load", rate=200, seconds_max=380, **UNJUDGED) as drill,
    ):
        for name in (
            "ahead",
            "behind",
            "hour",
            "cut-zookeeper",
            "cut-kafka",
            "zookeeper",
            "quorum",
            "broker",
        ):
            drill.fault(name, lambda name=name: act(FAULT[name], world))  # type: ignore[misc]
        found = drill.result()
        assert (found.lost, found.duplicated, found.early) == (0, 0, 0)
        assert epochs_complaints(world.kafka, "chronos.progress", world.fleet.shards) == []


def test_a_node_is_restored_from_a_checkpoint_when_its_disk_is_gone(
    broker: Broker, flow: KafkaFlow, tmp_path: Path
) -> None:
    """Checkpoints are made on demand and restored automatically and by command, and those that
    fail are told; then every message is delivered once."""
    settings = {**flow.settings(), "checkpoints.location": tmp_path / "checkpoints"}
    with Service(tmp_path / "node", bootstrap=broker.bootstrap, settings=settings) as service:
        service.start()
        flow.write(5_000, now_ms() - 500, now_ms() + 30_000)
        flow.flush()

        def kept() -> list[int]:
            return [len(shard["checkpoints"]) for shard in service.get("/v1/checkpoints")["shards"]]

        service.wait_until(lambda: min(kept()) >= 1, "make its first checkpoints")
        assert service.ask("POST", "/v1/checkpoints")[0] == 202
        service.wait_until(lambda: min(kept()) >= 2, "make one on demand")
        location = (tmp_path / "checkpoints").rename(tmp_path / "away")
        (tmp_path / "checkpoints").touch()
        assert service.ask("POST", "/v1/checkpoints")[0] == 202
        service.wait_until(
            lambda: (
                "or the trimming of logs by them, fail" in str(service.get("/readyz")["details"])
            ),
            "tell that its checkpoints fail",
        )
        service.kill()
        (tmp_path / "checkpoints").unlink()
        location.rename(tmp_path / "checkpoints")
        shutil.rmtree(service.data_dir / "shards")
        service.start()
        assert service.log_path.read_text().count('"event": "restored"') == SHARDS
        service.kill()
        service.arguments = ["--from-checkpoint"]
        service.start()
        assert service.log_path.read_text().count('"event": "restored"') == 2 * SHARDS
        flow.wait_settled(service)
        assert flow.complaints() == []


def test_a_stopped_cluster_goes_on_with_the_other_coordinator(
    broker: Broker, zookeeper: Ensemble, flow: KafkaFlow, tmp_path: Path
) -> None:
    """From ZooKeeper to Kafka and back, with messages pending and due meanwhile; role epochs only
    grow."""
    settings = {**flow.settings(), "delivery.transaction_timeout": "4s"}
    for incarnation, hosts in enumerate((zookeeper.hosts, None, zookeeper.hosts), 1):
        fleet = Fleet(
            tmp_path,
            bootstrap=broker.bootstrap,
            zookeeper=hosts,
            count=2,
            shards=SHARDS,
            settings=settings,
        )
        with fleet:
            fleet.start()
            flow.write(300, now_ms(), now_ms() + 15_000, keyed=0.5)
            flow.flush()
            for (
                shard,
                master,
            ) in fleet.masters().items():  # so that the epochs grow with every coordinator
                (other,) = set(fleet.nodes) - {master}
                fleet.transfer(shard, other)
            if incarnation == 3:
                check_outcome(flow, fleet, broker)
            for node in fleet.nodes.values():
                node.stop()
