"""Replicas that begin with another node's checkpoint, over HTTP, and replicas that are compared by their digest.

Three nodes, a real Kafka and a real ZooKeeper. No node has a `checkpoints.location`: what they have is in the logs and
in each other.
"""

import json
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient

from tests.chaos.fleet import Fleet
from tests.harness.broker import Broker, free_port
from tests.harness.service import Service
from tests.harness.zookeeper import Ensemble
from tests.integration.flow import SHARDS, KafkaFlow, now_ms

pytestmark = [pytest.mark.integration, pytest.mark.slow]

MESSAGES = 48_000
"""More in each shard than is replayed without asking anybody (`node.beginning`)."""

BEFORE_CUT_BYTES = 200_000
"""What a gate lets through of an answer when it cuts: less than a checkpoint of 12,000 messages."""

AGREE_S = 60.0


class Gate:
    """A port in front of a node, under which the others know it; it can end every long answer in the middle."""

    def __init__(self) -> None:
        self.cutting = False
        self.cuts = 0
        self.target = 0
        """The node's own port."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", self.target)) as node:
            threading.Thread(target=self._forward, args=(client, node), daemon=True).start()
            passed = 0
            while chunk := node.recv(65_536):
                passed += len(chunk)
                if self.cutting and passed > BEFORE_CUT_BYTES:
                    self.cuts += 1
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(chunk)

    @staticmethod
    def _forward(client: socket.socket, node: socket.socket) -> None:
        with suppress(OSError):
            while chunk := client.recv(65_536):
                node.sendall(chunk)
            node.shutdown(socket.SHUT_WR)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[Ensemble]:
    """One server for this file."""
    with Ensemble() as server:
        yield server


@pytest.fixture
def flow(broker: Broker) -> KafkaFlow:
    """Messages, and topics of their own."""
    return KafkaFlow(broker, 1)


@pytest.fixture
def gates() -> Iterator[dict[str, Gate]]:
    """One in front of each node."""
    with Gate() as one, Gate() as two, Gate() as three:
        yield {"n1": one, "n2": two, "n3": three}


@pytest.fixture
def fleet(
    broker: Broker, zookeeper: Ensemble, flow: KafkaFlow, gates: dict[str, Gate], tmp_path: Path
) -> Iterator[Fleet]:
    """Three nodes that know each other by their gates, not started yet."""
    with Fleet(
        tmp_path,
        bootstrap=broker.bootstrap,
        zookeeper=zookeeper.hosts,
        shards=SHARDS,
        settings={**flow.settings(), "delivery.transaction_timeout": "4s"},
        node_settings=lambda name: {"admin.advertised": gates[name].url},
    ) as nodes:
        for name, node in nodes.nodes.items():
            gates[name].target = node.port
        yield nodes


def digests(fleet: Fleet) -> list[dict[str, Any]]:
    """Of every shard, once all replicas stand at the same progress record; each names its digest only once."""
    agreed = []
    for shard in range(SHARDS):
        deadline = time.monotonic() + AGREE_S
        while True:
            found = [node.get(f"/v1/shards/{shard}/digest") for node in fleet.running.values()]
            if len({each["applied"] for each in found}) == 1:
                break
            assert time.monotonic() < deadline, f"the replicas of shard {shard} do not meet: {found}"
        assert len({each["node"] for each in found}) == len(fleet.running)
        assert len({(each["digest"], each["pending"], each["pull_offset"]) for each in found}) == 1, found
        agreed.append(found[0])
    return agreed


def wipe(node: Service) -> None:
    """Kill it, and take its disk away."""
    node.kill()
    shutil.rmtree(node.data_dir)
    node.log_path.unlink()


def restored(node: Service) -> int:
    """How many stores began with a checkpoint since the disk was taken away."""
    return node.log_path.read_text().count('"event": "restored"')


def told_to_the_coordinator(zookeeper: Ensemble, path: str) -> dict[str, Any]:
    """What a znode holds."""
    client = KazooClient(zookeeper.hosts)
    client.start()
    try:
        return dict(json.loads(client.get(path)[0]))
    finally:
        client.stop()
        client.close()


def trim(broker: Broker, flow: KafkaFlow, to: list[dict[str, Any]]) -> None:
    """Cut both topics of every shard off behind what all replicas have applied, as checkpoints would allow."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    places = [
        TopicPartition(f"{flow.prefix}.{topic}", each["shard"], each[position])
        for each in to
        for topic, position in (("delay", "pull_offset"), ("progress", "applied"))
    ]
    for future in admin.delete_records(places).values():
        future.result(30)


@pytest.mark.timeout(420)
def test_a_new_replica_begins_with_a_checkpoint_of_another_node_whatever_fails_in_between(
    fleet: Fleet, flow: KafkaFlow, broker: Broker, gates: dict[str, Gate]
) -> None:
    """1. a peer fails in the middle: the next one gives it. 2. all fail: the logs. 3. all fail, and the logs are
    trimmed: it waits, and says for whom. 4. a master is killed. After each all replicas have the same digests."""
    fleet.start()
    flow.write(MESSAGES, now_ms() + 100_000, now_ms() + 110_000, keyed=0.1, delays=0.0)
    flow.flush()
    newcomer = fleet.nodes["n3"]
    for shard in range(SHARDS):
        fleet.any().post(f"/v1/shards/{shard}/transfer?to=n2", None)
    newcomer.wait_until(lambda: newcomer.pending() == MESSAGES, "hold what is pending")
    digests(fleet)

    # 1. Followers are asked first: n1, which fails; then n2.
    gates["n1"].cutting = True
    wipe(newcomer)
    newcomer.start()
    assert (restored(newcomer), gates["n1"].cuts) == (SHARDS, SHARDS)
    digests(fleet)

    # 2.
    gates["n2"].cutting = True
    wipe(newcomer)
    newcomer.start()
    assert (restored(newcomer), gates["n2"].cuts) == (0, SHARDS)
    digests(fleet)

    # 3.
    wipe(newcomer)
    trim(broker, flow, digests(fleet))
    newcomer.launch()

    def waits() -> bool:
        with suppress(OSError):
            return "no checkpoint can be fetched: node n1" in str(newcomer.ask("GET", "/readyz")[1])
        return False

    newcomer.wait_until(waits, "wait for a checkpoint")
    gates["n1"].cutting = gates["n2"].cutting = False
    newcomer.wait_ready()
    assert restored(newcomer) == SHARDS
    digests(fleet)

    # 4.
    fleet.nodes["n2"].kill()
    masters = fleet.wait_led(without="n2")
    seen = fleet.nodes_seen()
    assert [(away["node"], away["shards"]) for away in seen["away"]] == [("n2", list(range(SHARDS)))]
    assert {change["why"] for change in seen["history"][:SHARDS]} == {"lost its session"}
    by_masters = newcomer.get("/v1/shards", copies="masters")["shards"]
    assert {shard["shard"]: shard["node"] for shard in by_masters} == masters
    assert {shard["role"] for shard in by_masters} == {"master"}
    digests(fleet)
    fleet.nodes["n2"].start()
    digests(fleet)
    flow.flush()
    flow.wait_settled(newcomer, timeout_s=150.0)
    assert flow.complaints() == []
    digests(fleet)


@pytest.mark.timeout(180)
def test_a_checkpoint_is_given_to_members_only_and_a_digest_to_everybody(
    fleet: Fleet, flow: KafkaFlow, zookeeper: Ensemble
) -> None:
    """Who asks must show what only the coordinator was told; nothing that is shown anywhere gives that away."""
    fleet.start()
    node = fleet.nodes["n1"]
    node.wait_until(lambda: node.ask("GET", "/v1/shards/0/digest")[0] == 200, "hold something of the shard")
    token = told_to_the_coordinator(zookeeper, f"/chronos/{flow.prefix}/members/n2")["token"]

    def ask(**headers: str) -> int:
        request = urllib.request.Request(f"{node.url}/v1/shards/0/checkpoint", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert answer.read().startswith(b"manifest.json\0")
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    assert ask(**{"Chronos-Node": "n2", "Chronos-Token": token}) == 200
    assert ask(**{"Chronos-Node": "n3", "Chronos-Token": token}) == 403
    assert ask(**{"Chronos-Node": "n2", "Chronos-Token": ""}) == 403
    assert ask() == 403
    shown = "".join(str(node.ask("GET", path)) for path in ("/v1/nodes", "/v1/shards", "/metrics")) + node.tail(10_000)
    assert token not in shown
    assert node.ask("GET", "/v1/shards/9/digest")[0] == 404


def doctor(node: Service, *, settings: dict[str, object] | None = None) -> tuple[int, dict[str, list[str]]]:
    """`chronos doctor` with a node's settings: its exit code, and what it says by verdict."""
    given = {**node.settings, **(settings or {})}
    arguments = [part for path, value in given.items() for part in ("--set", f"{path}={value}")]
    done = subprocess.run(
        [sys.executable, "-m", "chronos", "doctor", "-o", "json", *arguments],
        capture_output=True,
        text=True,
        timeout=90,
    )
    said: dict[str, list[str]] = {"ok": [], "note": [], "problem": []}
    for finding in json.loads(done.stdout)["findings"]:
        said[finding["verdict"]].append(f"{finding['what']}: {finding['text']}")
    return done.returncode, said


@pytest.mark.timeout(240)
def test_the_doctor_sees_the_cluster_from_outside(
    fleet: Fleet, flow: KafkaFlow, gates: dict[str, Gate], zookeeper: Ensemble, tmp_path: Path
) -> None:
    """A healthy cluster; a node that cannot be reached, one that is gone, an id that is taken; and no ZooKeeper."""
    fleet.start()
    flow.write(20, now_ms() + 600_000, now_ms() + 600_000)
    flow.flush()
    node = fleet.nodes["n1"]
    node.wait_until(lambda: node.pending() == 20, "hold what is pending")
    code, said = doctor(node)
    assert (code, said["problem"]) == (0, [])
    fine = "\n".join(said["ok"])
    assert "a session begins" in fine
    assert "node n2: ready" in fine
    assert "every shard has a master" in fine
    assert any("one replica only" in text and flow.target in text for text in said["note"])

    # Somebody else with this node's name.
    code, said = doctor(node, settings={"node.data_dir": tmp_path / "other"})
    assert code == 1
    assert any("node.id n1 is taken by another data directory" in text for text in said["problem"])

    # n2 answers ZooKeeper, but not at the address it gave; n3 is gone.
    gates["n2"].target = 1
    fleet.nodes["n3"].kill()
    node.wait_until(lambda: [each["node"] for each in node.get("/v1/nodes")["away"]] == ["n3"], "miss n3")
    fleet.wait_led(without="n3")
    code, said = doctor(node)
    assert code == 3
    assert [text.split(",")[0] for text in said["problem"]] == ["node n2: it has a session with ZooKeeper"]
    assert any("node n3 holds copies and is away" in text for text in said["note"])
    gates["n2"].target = fleet.nodes["n2"].port

    # A stopped node looks at its own stores besides.
    assert fleet.nodes["n2"].stop() == 0
    code, said = doctor(fleet.nodes["n2"])
    assert (code, said["problem"]) == (0, [])
    assert any("n2 is no member at the moment" in text for text in said["note"])
    assert sum("every checksum is right" in text for text in said["ok"]) == SHARDS

    # Nobody there.
    code, said = doctor(node, settings={"coordinator.zookeeper.hosts": f"127.0.0.1:{free_port()}"})
    assert code == 3
    assert any("no ZooKeeper server answers" in text for text in said["problem"])
