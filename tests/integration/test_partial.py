"""Fewer copies than nodes: every node answers for every shard, also for shards it does not hold."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chronos.admin.http.tokens import digest
from tests.chaos.fleet import Fleet
from tests.harness.broker import Broker
from tests.harness.service import Service
from tests.harness.zookeeper import Ensemble
from tests.integration.flow import SHARDS, KafkaFlow, now_ms

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]

MESSAGES = 400


@pytest.fixture
def flow(broker: Broker) -> KafkaFlow:
    """Messages on separate topics."""
    return KafkaFlow(broker, 1)


@pytest.fixture
def fleet(broker: Broker, zookeeper: Ensemble, flow: KafkaFlow, tmp_path: Path) -> Iterator[Fleet]:
    """Three nodes, each shard on two of them. Users need a token; the nodes know each other by
    those of the coordinator."""
    tokens = tmp_path / "tokens.yaml"
    roles = ["read", "payload", "write", "operate"]
    entries = [
        {"name": "user", "sha256": digest("user"), "roles": roles},
        {
            "name": "tenant",
            "sha256": digest("tenant"),
            "roles": roles,
            "targets": [flow.target],
            "ids": ["order-1*"],
        },
        {
            "name": "stranger",
            "sha256": digest("stranger"),
            "roles": roles,
            "targets": ["none"],
            "ids": ["order-*"],
        },
    ]
    tokens.write_text(json.dumps({"tokens": entries}))
    settings = {
        **flow.settings(),
        "delivery.transaction_timeout": "4s",
        "coordinator.replication": 2,
        "admin.tokens": tokens,
        "audit.path": tmp_path / "audit.jsonl",
        "audit.required": "on",
    }
    with Fleet(
        tmp_path,
        bootstrap=broker.bootstrap,
        zookeeper=zookeeper.hosts,
        shards=SHARDS,
        settings=settings,
    ) as nodes:
        for node in nodes.nodes.values():
            node.token = "user"
        yield nodes.start()


def listed(node: Service) -> list[str]:
    """The ids of everything pending, page by page."""
    ids: list[str] = []
    after: dict[str, Any] = {}
    while True:
        found = node.get("/v1/messages", limit=70, **after)
        ids += [message["id"] for message in found["messages"]]
        if found["after"] is None:
            return ids
        after = {"after": found["after"]}


def holders(fleet: Fleet) -> dict[int, set[str]]:
    """The nodes with a copy, by shard."""
    return {
        shard: {
            node["node"]
            for node in fleet.nodes_seen()["nodes"]
            if node["shards"][shard]["role"] != "none"
        }
        for shard in range(SHARDS)
    }


def job_of(node: Service, action: str, matching: dict[str, Any]) -> dict[str, Any]:
    """A bulk operation that has ended."""
    path = f"/v1/jobs/{node.post('/v1/jobs', {'action': action, 'filter': matching})['id']}"
    node.wait_until(lambda: node.get(path)["state"] != "running", "end the job")
    found: dict[str, Any] = node.get(path)
    assert found["state"] == "done", found["error"]
    return found


def test_any_node_answers_for_shards_it_does_not_hold(
    fleet: Fleet, flow: KafkaFlow, tmp_path: Path
) -> None:
    """Look-ups, lists, counts and actions; and an error with the reason when all nodes with a shard
    are gone."""
    due_ms = now_ms() + 70_000
    written = flow.write(MESSAGES, due_ms, due_ms + 2_000, keyed=1.0, delays=0.0)
    flow.flush()
    nodes = list(fleet.nodes.values())
    fleet.wait_placed()
    held: dict[int, set[str]] = {}

    def is_settled(node: Service) -> bool:
        """Whether no copy moves any more, and the node answers for all shards by one of their
        holders."""
        held.update(holders(fleet))
        shown = node.shards()
        return (
            all(len(names) == 2 for names in held.values())
            and all(shard["node"] in held[shard["shard"]] for shard in shown)
            and sum(shard["pending"] for shard in shown) == MESSAGES
        )

    for node in nodes:
        node.wait_until(lambda node=node: is_settled(node), "count the messages of all nodes")  # type: ignore[misc]

    # Look-ups: each message through each node, and ids that do not exist.
    places = {
        message.id: nodes[0].get(f"/v1/messages/{message.id}")["shard"] for message in written[:40]
    }
    assert set(places.values()) == set(range(SHARDS))
    for node in nodes:
        for message_id, shard in places.items():
            found = node.get(f"/v1/messages/{message_id}")
            assert (found["state"], found["shard"]) == ("pending", shard)
        for strange in ("never-was", "a%2Fb%3Fc%25", "%2E%2E", "base64:Li4="):
            assert node.ask("GET", f"/v1/messages/{strange}")[0] == 404
        for number in range(2 * SHARDS):
            assert node.ask("GET", f"/v1/messages/never-{number}/outcome?offset=0")[0] == 404

    # Lists and counts are the same everywhere.
    lists = [listed(node) for node in nodes]
    assert sorted(lists[0]) == sorted(message.id for message in written if message.id)
    assert lists[0] == lists[1] == lists[2]
    assert [node.get("/v1/timeline", **{"from": due_ms - 60_000})["pending"] for node in nodes] == [
        MESSAGES
    ] * 3

    # What became of a message, and a list with all that was acknowledged.
    for node in nodes:
        for message_id in [message.id for message in written[-8:]]:
            again = {
                "id": message_id,
                "target": {"topic": flow.target},
                "value": "v",
                "delay": "1h",
                "on_conflict": "ignore",
            }
            status, answer = node.ask("POST", "/v1/messages?wait=5s", again)
            assert (status, answer["result"]) == (200, "ignored"), answer
        assert "behind" not in node.get("/v1/messages", fresh="true", limit=1)

    # A job works on all shards, whichever node is asked.
    for node in nodes:
        assert job_of(node, "count", {})["matched"] == MESSAGES
    some = [message for message in written if str(message.id).startswith("order-39")]
    job = job_of(nodes[0], "cancel", {"id_prefix": "order-39"})
    assert (job["matched"], job["done"], job["failed"]) == (len(some), len(some), 0)
    for message in some:
        message.cancel_result, message.cancel_unsure = "cancelled", True

    # Actions through a node that does not hold the shard.
    shard = 0
    other = next(node for name, node in fleet.nodes.items() if name not in held[shard])
    holder = fleet.nodes[sorted(held[shard])[0]]
    there = [message for message in written[:39] if places[message.id] == shard]
    path = f"/v1/messages/{there[0].id}"
    assert other.ask("PATCH", path, {"deliver_at": due_ms + 3_000})[1]["result"] == "rescheduled"
    assert other.ask("PATCH", path, {"deliver_at": "never"})[0] == 422
    assert other.ask("POST", f"{path}/fire")[1]["result"] == "fired"
    status, problem = other.ask("POST", f"/v1/messages/{there[2].id}/pause", {})
    assert (status, problem["errors"][0]["field"]) == (422, "id"), problem
    cancelled = f"/v1/messages/{there[1].id}"
    assert other.ask("DELETE", cancelled)[1]["result"] == "cancelled"
    assert other.get(cancelled)["state"] == "cancelled"
    there[0].due_ms, there[1].cancel_result, there[1].cancel_unsure = (
        now_ms() - 60_000,
        "cancelled",
        True,
    )

    # Each of them is in the audit trail once, by the node that was asked.
    more = [message for message in written[40:] if message.id and message not in some][:8]
    for message in more:
        assert other.ask("DELETE", f"/v1/messages/{message.id}")[1]["result"] == "cancelled"
        message.cancel_result, message.cancel_unsure = "cancelled", True

    def entries(phase: str) -> list[tuple[str, ...]]:
        """Node, token, verb, id and outcome of the entries about cancels of these ids, and of the
        actions above."""
        found = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
        fields = ("node", "token", "verb", "outcome")
        return [
            (*(str(each.get(name, "")) for name in fields), each["ids"][0])
            for each in found
            if each["phase"] == phase and {*each["ids"]} & {*asked}
        ]

    asked = [str(there[0].id), str(there[1].id), *(str(message.id) for message in more)]
    name = next(name for name, node in fleet.nodes.items() if node is other)
    expected = [
        (name, "user", "reschedule", "rescheduled", asked[0]),
        (name, "user", "reschedule", "invalid", asked[0]),
        (name, "user", "fire", "fired", asked[0]),
        (name, "user", "cancel", "cancelled", asked[1]),
        *((name, "user", "cancel", "cancelled", each) for each in asked[2:]),
    ]
    other.wait_until(lambda: len(entries("outcome")) >= len(expected), "write the outcomes")
    assert entries("outcome") == expected
    assert [row[2] for row in entries("intent")] == [row[2] for row in expected]

    # Only nodes ask for given shards.
    for node in (other, holder):
        assert node.ask("GET", f"{path}?shards={shard}")[0] == 403
        assert node.ask("DELETE", f"{path}?shards={shard}")[0] == 403

    # Every node applies the limits of a token, also for the shards that others hold, and reads the
    # page keys of others.
    ended = {there[0].id, there[1].id, *(message.id for message in more)}
    own = [
        message_id
        for message_id in lists[0]
        if message_id.startswith("order-1") and message_id not in ended
    ]
    foreign = next(message_id for message_id in places if str(message_id).startswith("order-2"))
    for node in nodes:
        node.token = "tenant"
        assert [message_id for message_id in listed(node) if message_id not in ended] == own != []
        assert node.ask("GET", f"/v1/messages/{foreign}")[0] == 403
        assert node.ask("DELETE", f"/v1/messages/{foreign}")[0] == 403
        counted = job_of(node, "count", {"target": flow.target})
        assert counted["matched"] == counted["scanned"] == len(listed(node))
        node.token = "stranger"
        assert listed(node) == []
        for message_id in [message.id for message in written[-8:]]:
            assert node.ask("GET", f"/v1/messages/{message_id}")[0] == 404
            assert node.ask("DELETE", f"/v1/messages/{message_id}")[0] == 404
        node.token = "tenant"
    page = nodes[0].get("/v1/messages", limit=3)
    rest = [node.get("/v1/messages", limit=3, after=page["after"])["messages"] for node in nodes]
    assert rest[0] == rest[1] == rest[2] != []
    for node in nodes:
        node.token = "user"

    # No token registers or removes a node.
    names = list(fleet.nodes)
    registration = {
        "cluster": flow.prefix,
        "instance": "i",
        "address": "http://evil:1",
        "version": "1",
        "state_version": now_ms(),
        "shards": [],
        "topics": [],
    }

    def cannot_be_taken(name: str) -> bool:
        answers = [
            other.ask("DELETE", f"/v1/registry/nodes/{name}"),
            other.ask("PUT", f"/v1/registry/nodes/{name}", registration),
        ]
        return [(status, problem["type"].rpartition(":")[2]) for status, problem in answers] == [
            (403, "not-a-member")
        ] * 2

    assert [name for name in names if not cannot_be_taken(name)] == []

    # One of the two is killed, then the other.
    holder.kill()
    assert [name for name in names if not cannot_be_taken(name)] == []
    assert other.get(cancelled)["state"] == "cancelled"
    second = fleet.nodes[sorted(held[shard])[1]]
    second.kill()
    status, problem = other.ask("GET", path)
    assert (status, held[shard] <= set(re.findall(r"[\w-]+", problem["detail"]))) == (503, True)
    assert other.ask("GET", "/v1/timeline")[0] == 503

    def is_reported() -> bool:
        shown = other.shards()[shard]
        return shown["node"] is None and "no node" in shown["paused"]

    other.wait_until(is_reported, "report the missing shard")
    assert [name for name in names if not cannot_be_taken(name)] == []
    mine = next(number for number, names in held.items() if names != held[shard])
    elsewhere = next(id_ for id_, at in places.items() if at == mine)
    assert other.get(f"/v1/messages/{elsewhere}")["id"] == elsewhere
    holder.launch()
    second.start()
    holder.wait_ready()
    fleet.wait_led()
    flow.wait_settled(other)
    assert flow.complaints() == []
