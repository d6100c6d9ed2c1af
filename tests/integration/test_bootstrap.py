"""Replicas restored from another node's checkpoint over HTTP, and replicas compared by their
digests.

Three nodes, a real Kafka and a real ZooKeeper. No node has a `checkpoints.location`: a replica is
restored from a peer or from the logs."""

import json
import shutil
import socket
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
from tests.harness.broker import Broker
from tests.harness.command import run
from tests.harness.ports import free_port
from tests.harness.service import Service
from tests.harness.waiting import check_deadline
from tests.harness.zookeeper import Ensemble
from tests.integration.flow import SHARDS, KafkaFlow, now_ms

MESSAGES = 48_000
"""More in each shard than a replica replays without asking for a checkpoint."""

HOUR_MS = 3_600_000

BEFORE_CUT_BYTES = 200_000
"""Bytes of an answer that a cutting gate forwards: less than a checkpoint of 12,000 messages."""

AGREE_S = 60.0


class Gate:
    """A proxy port that a node advertises; it can cut every long answer in the middle."""

    def __init__(self) -> None:
        self.cutting = False
        self.cuts = 0
        self.target = 0
        """The port of the node."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        with (
            client,
            suppress(OSError),
            socket.create_connection(("127.0.0.1", self.target)) as node,
        ):
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
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.close()


@pytest.fixture
def flow(broker: Broker) -> KafkaFlow:
    """Messages on separate topics."""
    return KafkaFlow(broker, 1)


@pytest.fixture
def gates() -> Iterator[dict[str, Gate]]:
    """A gate for each node."""
    with Gate() as one, Gate() as two, Gate() as three:
        yield {"n1": one, "n2": two, "n3": three}


@pytest.fixture
def fleet(
    broker: Broker, zookeeper: Ensemble, flow: KafkaFlow, gates: dict[str, Gate], tmp_path: Path
) -> Iterator[Fleet]:
    """Three nodes that reach each other through their gates, not started yet."""
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
    """The digest of every shard, once all replicas stand at the same progress record and have equal
    digests."""
    agreed = []
    for shard in range(SHARDS):
        deadline = time.monotonic() + AGREE_S
        while True:
            # A replica that was just restored answers 503 until it has applied its first record.
            answers = [
                node.ask("GET", f"/v1/shards/{shard}/digest") for node in fleet.running.values()
            ]
            assert {status for status, _ in answers} <= {200, 503}, answers
            found = [answer for _, answer in answers]
            if (
                all(status == 200 for status, _ in answers)
                and len({each["applied"] for each in found}) == 1
            ):
                break
            check_deadline(
                deadline, f"the replicas of shard {shard} do not stand at the same record: {found}"
            )
        assert len({each["node"] for each in found}) == len(fleet.running)
        assert (
            len({(each["digest"], each["pending"], each["pull_offset"]) for each in found}) == 1
        ), found
        agreed.append(found[0])
    return agreed


def wipe(node: Service) -> None:
    """Kill the node and delete its data directory and log."""
    node.kill()
    shutil.rmtree(node.data_dir)
    node.log_path.unlink()


def restored(node: Service) -> int:
    """Number of stores restored from a checkpoint since the data directory was deleted."""
    return node.log_path.read_text().count('"event": "restored"')


def znode(zookeeper: Ensemble, path: str) -> dict[str, Any]:
    """The content of a znode."""
    client = KazooClient(zookeeper.hosts)
    client.start()
    try:
        return dict(json.loads(client.get(path)[0]))
    finally:
        client.stop()
        client.close()


def trim(broker: Broker, flow: KafkaFlow, to: list[dict[str, Any]]) -> None:
    """Trim both topics of every shard up to the positions that all replicas have applied, as
    checkpoints would allow."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    places = [
        TopicPartition(f"{flow.prefix}.{topic}", each["shard"], each[position])
        for each in to
        for topic, position in (("delay", "pull_offset"), ("progress", "applied"))
    ]
    for future in admin.delete_records(places).values():
        future.result(30)


@pytest.mark.campaign
def test_a_new_replica_is_restored_from_a_checkpoint_of_another_node_whatever_fails(
    fleet: Fleet, flow: KafkaFlow, broker: Broker, gates: dict[str, Gate]
) -> None:
    """1. One peer fails in the middle: the next one is used. 2. All fail: the logs are replayed. 3.
    All fail and the logs are trimmed: the replica waits and names the peers. 4. A master is killed.
    After each, all digests are equal."""
    fleet.start()
    flow.write(MESSAGES, now_ms() + HOUR_MS, now_ms() + HOUR_MS, keyed=0.1, delays=0.0)
    flow.flush()
    newcomer = fleet.nodes["n3"]
    for shard in range(SHARDS):
        fleet.any().post(f"/v1/shards/{shard}/transfer?to=n2", None)
    newcomer.wait_until(
        lambda: newcomer.pending() == MESSAGES, "hold the pending messages", timeout_s=90.0
    )
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
    assert [(away["node"], away["shards"]) for away in seen["away"]] == [
        ("n2", list(range(SHARDS)))
    ]
    assert {change["why"] for change in seen["history"][:SHARDS]} == {"lost its session"}
    by_masters = newcomer.get("/v1/shards", copies="masters")["shards"]
    assert {shard["shard"]: shard["node"] for shard in by_masters} == masters
    assert {shard["role"] for shard in by_masters} == {"master"}
    digests(fleet)
    fleet.nodes["n2"].start()
    digests(fleet)
    flow.fire(flow.sent)
    flow.flush()
    flow.wait_settled(newcomer, timeout_s=150.0)
    assert flow.complaints() == []
    digests(fleet)


def test_a_checkpoint_is_for_members_only_and_a_digest_for_every_client(
    fleet: Fleet, flow: KafkaFlow, zookeeper: Ensemble
) -> None:
    """The request needs a token that is stored in the coordinator only; no page, metric or log
    shows it."""
    fleet.start()
    node = fleet.nodes["n1"]
    node.wait_until(
        lambda: node.ask("GET", "/v1/shards/0/digest")[0] == 200, "hold a replica of the shard"
    )
    token = znode(zookeeper, f"/chronos/{flow.prefix}/members/n2")["token"]

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
    shown = "".join(
        str(node.ask("GET", path)) for path in ("/v1/nodes", "/v1/shards", "/metrics")
    ) + node.tail(10_000)
    assert token not in shown
    assert node.ask("GET", "/v1/shards/9/digest")[0] == 404


def doctor(
    node: Service, *, settings: dict[str, object] | None = None
) -> tuple[int, dict[str, list[str]]]:
    """`chronos doctor` with a node's settings: its exit code, and its findings by verdict."""
    given = {**node.settings, **(settings or {})}
    arguments = [part for path, value in given.items() for part in ("--set", f"{path}={value}")]
    done = run("doctor", "-o", "json", *arguments, timeout_s=90)
    findings: dict[str, list[str]] = {"ok": [], "note": [], "problem": []}
    for finding in done.json["findings"]:
        findings[finding["verdict"]].append(f"{finding['what']}: {finding['text']}")
    return done.code, findings


def test_the_doctor_sees_the_cluster_from_outside(
    fleet: Fleet, flow: KafkaFlow, gates: dict[str, Gate], zookeeper: Ensemble, tmp_path: Path
) -> None:
    """A healthy cluster; an unreachable node, a dead node, an id that is taken; and no
    ZooKeeper."""
    fleet.start()
    flow.write(20, now_ms() + 600_000, now_ms() + 600_000)
    flow.flush()
    node = fleet.nodes["n1"]
    node.wait_until(lambda: node.pending() == 20, "hold the pending messages")
    code, findings = doctor(node)
    assert (code, findings["problem"]) == (0, [])
    fine = "\n".join(findings["ok"])
    assert "a session was opened" in fine
    assert "node n2: ready" in fine
    assert "every shard has a master" in fine
    assert any("one replica only" in text and flow.target in text for text in findings["note"])

    # Another data directory with this node's id.
    code, findings = doctor(node, settings={"node.data_dir": tmp_path / "other"})
    assert code == 1
    assert any(
        "node.id n1 is taken by another data directory" in text for text in findings["problem"]
    )

    # n2 has a session, but does not answer at its address; n3 is dead.
    gates["n2"].target = 1
    fleet.nodes["n3"].kill()
    node.wait_until(
        lambda: [each["node"] for each in node.get("/v1/nodes")["away"]] == ["n3"],
        "list n3 as away",
    )
    fleet.wait_led(without="n3")
    code, findings = doctor(node)
    assert code == 3
    assert [text.split(",")[0] for text in findings["problem"]] == [
        "node n2: it is a member of the cluster"
    ]
    assert any("node n3 holds replicas and has been away" in text for text in findings["note"])

    # n3 will not come back: it is forgotten on request, and a node that is present is not.
    assert node.ask("POST", "/v1/nodes/n1/forget")[0] == 409
    assert node.ask("POST", "/v1/nodes/n4/forget")[0] == 404
    assert node.ask("POST", "/v1/nodes/n3/forget")[0] in (200, 202)
    node.wait_until(lambda: node.get("/v1/nodes")["away"] == [], "forget n3")
    gates["n2"].target = fleet.nodes["n2"].port

    # On a stopped node the doctor checks its stores too.
    assert fleet.nodes["n2"].stop() == 0
    fleet.wait_led(without="n2")
    code, findings = doctor(fleet.nodes["n2"])
    assert (code, findings["problem"]) == (0, [])
    assert any("n2 is not a member at the moment" in text for text in findings["note"])
    assert sum("all checksums match" in text for text in findings["ok"]) == SHARDS

    # No ZooKeeper.
    code, findings = doctor(
        node, settings={"coordinator.zookeeper.hosts": f"127.0.0.1:{free_port()}"}
    )
    assert code == 3
    assert any("no ZooKeeper server answers" in text for text in findings["problem"])
