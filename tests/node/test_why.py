"""Why a message was not delivered, as a real node on the embedded log tells it: HTTP, command line,
log, metrics."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from chronos.client import Client
from tests.harness.command import run
from tests.harness.service import Service

pytestmark = pytest.mark.process

DOOMED = 7


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A node on which the messages `doomed-0` and so on died, because their target was forbidden
    after they were accepted, and the message `stale` expired."""
    settings = {"shards": 1, "workers.push": "off"}
    with Service(tmp_path_factory.mktemp("why") / "data", settings=settings) as running:
        running.start()
        target = {"topic": "forbidden", "key": "k", "headers": {"trace": "t-1"}}
        messages = [
            {"id": f"doomed-{number}", "target": target, "value": "please pay", "delay": "1h"}
            for number in range(DOOMED)
        ]
        binary = {
            "id": "binary",
            "target": {"topic": "bills"},
            "value_base64": "/wA=",
            "delay": "1h",
            "attempts": 2,
        }
        now_ms = int(time.time() * 1_000)
        stale = {
            "id": "stale",
            "target": {"topic": "bills"},
            "value": "v",
            "deliver_at": now_ms,
            "expire_at": now_ms + 1,
        }
        running.post("/v1/messages", [*messages, binary, stale])
        running.wait_until(lambda: running.pending() == DOOMED + 2, "accept the messages")
        assert not warnings(running)
        running.stop()
        running.settings |= {"targets.deny": "forbidden", "workers.push": "on"}
        running.start()
        for number in range(DOOMED):
            assert running.post(f"/v1/messages/doomed-{number}/fire", None)["result"] == "fired"
        running.wait_until(lambda: running.pending() == 1, "dead-letter the messages")
        yield running


def warnings(service: Service) -> list[str]:
    """The details of `/readyz` about dead letters."""
    return [text for text in service.get("/readyz").get("details", []) if "dead-lettered" in text]


def test_a_dead_message_tells_why(service: Service) -> None:
    found = service.get("/v1/messages/doomed-0")
    assert (
        found["state"],
        found["reason"],
        found["detail"],
        found["attempts"],
        found["parked"],
    ) == ("dead", "forbidden-target", "targets.allow and targets.deny", 1, False)
    assert found["last_try_at"] == found["settled_at"]
    assert found["next_try_at"] is None
    assert "value" not in found
    with_payload = service.get("/v1/messages/doomed-0", payload="true")
    assert with_payload == {**found, "value": "please pay"}
    assert with_payload["target"]["headers"] == {"trace": "t-1"}
    done = run("get", "doomed-0", "--payload", "--server", service.url)
    rows = dict(re.findall(r"^(.*?)  +(.*)$", done.out, re.MULTILINE))
    assert (rows["state"], rows["reason"], rows["attempts"], rows["value"]) == (
        "dead",
        "forbidden-target: targets.allow and targets.deny",
        "1",
        "please pay",
    )
    assert {"last try", "settled"} <= rows.keys()


def test_an_expired_message_tells_why(service: Service) -> None:
    found = service.get("/v1/messages/stale")
    assert (found["state"], found["reason"], found["attempts"]) == ("expired", "expired", 0)
    assert found["detail"].startswith("expired at ")
    assert found["last_try_at"] == found["settled_at"] > found["expire_at"]


def test_a_pending_message_shows_its_payload_on_request_and_its_own_number_of_attempts(
    service: Service,
) -> None:
    with Client(service.url) as client:
        plain, full = client.get("binary"), client.get("binary", payload=True)
    assert (plain.state, plain.reason, plain.attempts, plain.attempts_max) == (
        "pending",
        None,
        0,
        2,
    )
    assert (plain.value, plain.value_base64) == (None, None)
    assert (full.value, full.value_base64) == (None, "/wA=")


def samples(service: Service, name: str) -> dict[str, float]:
    """Label value -> value of a metric with one label, where it is not 0."""
    found = re.findall(rf'^{name}{{\w+="(.*?)"}} (\S+)$', service.get("/metrics"), re.MULTILINE)
    assert found, f"{name} is not there"
    return {label: float(value) for label, value in found if float(value)}


def test_rejections_are_logged_once_a_step_and_counted_by_reason(service: Service) -> None:
    assert service.ask("DELETE", "/v1/messages/nobody")[1]["result"] == "unknown"
    assert samples(service, "chronos_rejections_total") == {"unknown": 1}
    (line,) = service.events("records rejected")
    assert (line["shard"], line["count"], line["by"], line["ids"]) == (
        0,
        1,
        {"unknown": 1},
        ["nobody"],
    )


def test_dead_letters_are_logged_and_counted_by_reason_and_target(service: Service) -> None:
    lines = service.events("messages dead-lettered")
    assert len(lines) <= DOOMED + 1
    assert sum(line["by"].get("forbidden-target forbidden", 0) for line in lines) == DOOMED
    assert sum(line["by"].get("expired bills", 0) for line in lines) == 1
    assert all(sum(line["by"].values()) == line["count"] for line in lines)
    assert {"stale", "doomed-0"} <= {named for line in lines for named in line["ids"]}
    assert samples(service, "chronos_dead_letters_total") == {
        "forbidden-target": DOOMED,
        "expired": 1,
    }
    assert 'chronos_dead_letters_total{reason="target-missing"} 0.0' in service.get("/metrics")
    assert samples(service, "chronos_target_dead_letters_total") == {
        "forbidden": DOOMED,
        "bills": 1,
    }


def test_deliveries_are_counted_by_target(service: Service) -> None:
    delivered = [
        {"target": {"topic": f"t{number % 2}"}, "value": "v", "delay": 0} for number in range(5)
    ]
    before = service.shards()[0]["totals"]["delivered"]
    service.post("/v1/messages", delivered)
    service.wait_until(lambda: service.shards()[0]["totals"]["delivered"] == before + 5, "deliver")
    assert samples(service, "chronos_target_delivered_total") == {"t0": 3, "t1": 2}


def test_targets_are_found_and_listed_in_the_order_asked_for(service: Service) -> None:
    """By a part of their names; the total tells of those that are not listed."""
    batch = [
        {"target": {"topic": topic}, "value": "v", "delay": 0}
        for topic in ("Shop.one", "Shop.two", "Shop.two", "else")
    ]
    service.post("/v1/messages", batch)

    def found(**query: object) -> dict[str, Any]:
        answer: dict[str, Any] = service.get("/v1/targets", **query)
        return answer

    service.wait_until(lambda: found(find="else")["total"] == 1, "count the deliveries")
    nothing = {"late": 0, "dead_letters": 0}
    shops = [
        {"topic": "Shop.two", "delivered": 2, **nothing},
        {"topic": "Shop.one", "delivered": 1, **nothing},
    ]
    assert found(find="sHOP.") == {
        "targets": shops,
        "total": 2,
        "others": {"delivered": 0, **nothing},
        "silent": [],
    }
    assert found(find="shop", order="topic", of="node")["targets"] == shops[::-1]
    first = found(find="shop", limit=1)
    assert (first["targets"], first["total"]) == (shops[:1], 2)
    assert found(order="dead_letters", limit=1)["targets"] == [
        {"topic": "forbidden", "delivered": 0, "late": 0, "dead_letters": DOOMED}
    ]
    status, problem = service.ask("GET", "/v1/targets?order=name")
    assert (status, problem["errors"][0]["field"]) == (422, "order")


def test_the_node_is_not_green_while_messages_die(service: Service) -> None:
    """The node is ready all the same, and the exit code of `status` says so."""
    text = (
        f"{DOOMED} messages were dead-lettered in the last 10 min: forbidden-target for forbidden "
        f"({DOOMED})"
    )
    # Everybody may read the warnings, and the names of targets only with a token.
    assert warnings(service) == [f"shard 0: {text}".replace(" for forbidden", "")]
    dead = service.shards()[0]["dead_recently"]
    assert (dead["messages"], dead["text"]) == (DOOMED, text)
    assert dead["cases"] == [
        {"reason": "forbidden-target", "target": "forbidden", "messages": DOOMED}
    ]
    status = run("status", "--server", service.url)
    assert status.code == 0
    assert "messages fail" in status.out
    assert " ".join(text.split()) in " ".join(status.out.split())
    assert re.search(r"PENDING +PARKED +NEXT DUE", status.out)
    settings = [f"--set={name}={value}" for name, value in service.settings.items()]
    doctor = run("doctor", *settings, "-o", "json")
    problems = [found["text"] for found in doctor.json["findings"] if found["verdict"] == "problem"]
    assert (doctor.code, problems) == (1, [f"{text}. `chronos get ID` tells why a message died"])


def test_a_restart_keeps_why_a_message_died(service: Service) -> None:
    """Replay computes the same state from the logs; the counts and the warning begin anew with the
    process."""
    before = service.get("/v1/messages/doomed-1")
    service.kill()
    service.start()
    # The number of the target's partitions is known again once the node has looked at the target.
    assert service.get("/v1/messages/doomed-1") | {"target": None} == before | {"target": None}
    assert before["reason"] == "forbidden-target"
    assert not warnings(service)
    assert samples(service, "chronos_dead_letters_total") == {}
