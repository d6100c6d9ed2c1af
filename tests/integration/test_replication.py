"""Replication modes on a real Kafka: what a cluster accepts while its followers are gone, and when
they are back."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chronos.core.keys import partition_of
from tests.chaos.faults import epochs_complaints
from tests.chaos.fleet import Fleet, Node
from tests.harness.broker import Broker
from tests.harness.command import run
from tests.integration.flow import SHARDS, KafkaFlow, now_ms

GONE_S = 60.0
"""Time for killed nodes to be gone and for the others to say so: a few seconds, on a machine that
is busy more."""

TOO_FEW = "0 of 1 followers in sync"


@pytest.fixture
def flow(broker: Broker) -> KafkaFlow:
    """Messages on separate topics."""
    return KafkaFlow(broker, 1)


@pytest.fixture
def fleet(broker: Broker, flow: KafkaFlow, tmp_path: Path) -> Iterator[Fleet]:
    """Three nodes whose shards need one follower in sync; n3 accepts messages without it all the
    same."""
    settings = {**flow.settings(), "delivery.transaction_timeout": "4s", "replication.mode": "sync"}
    with Fleet(
        tmp_path,
        bootstrap=broker.bootstrap,
        zookeeper=None,
        shards=SHARDS,
        settings=settings,
        node_settings=lambda name: {"replication.on_too_few": "warn" if name == "n3" else "refuse"},
    ) as nodes:
        yield nodes


def post(node: Node, *ids: str) -> tuple[int, str | None, Any]:
    """Schedule these messages for tomorrow; `(status, Retry-After, answer)`."""
    due_ms = now_ms() + 86_400_000
    body = [
        {"id": each, "target": {"topic": "later"}, "value": "x", "deliver_at": due_ms}
        for each in ids
    ]
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=60)
    try:
        connection.request(
            "POST", "/v1/messages", json.dumps(body), {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        return answer.status, answer.getheader("Retry-After"), json.loads(answer.read())
    finally:
        connection.close()


def details(node: Node) -> str:
    """The details of `/readyz`; empty while it does not answer 200."""
    status, answer = node.ask("GET", "/readyz")
    return "; ".join(answer.get("details", [])) if status == 200 else ""


def in_sync(node: Node) -> list[list[str]]:
    """The followers in sync of each shard, as the node sees them."""
    return [shard["in_sync"] for shard in node.shards()]


def metric(node: Node) -> list[float]:
    """`chronos_in_sync_replicas` of each shard."""
    text = node.ask("GET", "/metrics")[1]
    return [
        float(line.split()[1])
        for line in text.splitlines()
        if line.startswith("chronos_in_sync_replicas{")
    ]


def told(command: str, node: Node) -> str:
    """The output of `chronos status` or `chronos doctor` for the node, on one line."""
    arguments = ["--server", node.url] if command == "status" else []
    if command == "doctor":
        for path, value in node.settings.items():
            arguments += ["--set", f"{path}={value}"]
    done = run(command, *arguments, variables={"COLUMNS": "250"}, timeout_s=120)
    return " ".join((done.out + done.err).split())


def test_without_followers_in_sync_messages_are_refused_over_http_until_there_are_some(
    fleet: Fleet, flow: KafkaFlow, broker: Broker
) -> None:
    """Both followers of every shard are killed; Kafka clients go on writing; then one of them comes
    back, and the other."""
    fleet.start()
    alone, other, lenient = fleet.nodes.values()
    alone.wait_until(
        lambda: all(len(each) == 2 for each in in_sync(alone)),
        "see two followers in sync",
        timeout_s=GONE_S,
    )
    assert post(alone, "a")[0] == 202
    assert TOO_FEW not in details(alone)

    other.kill()
    lenient.kill()
    fleet.wait_led()
    alone.wait_until(
        lambda: details(alone).count(TOO_FEW) == SHARDS, "say so in /readyz", timeout_s=GONE_S
    )
    assert "messages for it are not accepted over HTTP" in details(alone)
    assert (in_sync(alone), metric(alone)) == ([[]] * SHARDS, [0.0] * SHARDS)
    status, retry_after, problem = post(alone, "b", "c")
    assert (status, retry_after, problem["type"]) == (
        503,
        "1",
        "urn:chronos:problem:too-few-in-sync",
    )
    assert (
        f"shard {min(partition_of(each, SHARDS) for each in (b'b', b'c'))} has {TOO_FEW}"
        in problem["detail"]
    )
    assert alone.ask("GET", "/v1/messages/b")[0] == 404
    assert alone.ask("DELETE", "/v1/messages/a")[1]["result"] == "cancelled"
    assert f"shard 0: {TOO_FEW}" in told("status", alone)
    assert f"PROBLEM shard 0: {TOO_FEW}" in told("doctor", alone)
    written = flow.write(200, now_ms(), now_ms() + 3_000, keyed=0.5)
    flow.flush()
    alone.wait_until(
        lambda: flow.is_settled(alone), "deliver what Kafka clients wrote", timeout_s=GONE_S
    )

    lenient.start()
    alone.wait_until(
        lambda: in_sync(alone) == [["n3"]] * SHARDS, "have followers again", timeout_s=GONE_S
    )
    assert post(alone, "d")[0] == 202
    assert TOO_FEW not in details(alone)

    alone.kill()
    fleet.wait_led(without="n1")
    lenient.wait_until(
        lambda: details(lenient).count(TOO_FEW) == SHARDS, "say so in /readyz", timeout_s=GONE_S
    )
    assert "not accepted" not in details(lenient)
    assert post(lenient, "e")[0] == 202
    alone.start()
    other.start()
    lenient.wait_until(
        lambda: all(len(each) == 2 for each in in_sync(lenient)), "see both again", timeout_s=GONE_S
    )
    assert TOO_FEW not in details(lenient)
    assert len(written) == 200
    assert flow.complaints() == []
    assert epochs_complaints(broker, f"{flow.prefix}.progress", SHARDS) == []
