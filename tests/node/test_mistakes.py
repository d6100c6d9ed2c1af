"""Records with a mistake of their producer, through a whole node: each is refused with a reason, or
shown."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from chronos.cli.service.findings import of_shard
from tests.harness.inside import Inside
from tests.harness.waiting import wait_until

TO = ("chronos-target-topic", b"orders")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with Inside(tmp_path_factory.mktemp("mistakes")) as running:
        yield running


def write(node: Inside, message_id: bytes, *headers: tuple[str, bytes]) -> None:
    """Write a record as a Kafka producer would, and wait until it is taken in."""
    (appended,) = node.node.log.append(
        [("chronos.delay", message_id, b"v", list(headers), 0)], 30.0
    )
    assert node.node.shards[0].applied.wait_pulled(appended.offset + 1, 30.0)


def reasons(node: Inside) -> dict[str, str]:
    """Id -> why its record was rejected."""
    found = node.ask("GET", "/v1/topics/chronos.rejected/records?partition=0&offset=0").json()[
        "records"
    ]
    return {record["key"]: record["headers"]["chronos-reason"] for record in found}


def test_a_header_in_another_spelling_has_its_effect(node: Inside) -> None:
    write(
        node,
        b"spread",
        TO,
        ("Chronos-Deliver-At", b"1900000000000"),
        ("chronos_spread", b"1h"),
        ("trace", b"1"),
    )
    found = node.ask("GET", "/v1/messages/spread").json()
    assert (found["state"], found["spread"], found["target"]["headers"]) == (
        "pending",
        "1h",
        {"trace": "1"},
    )


def test_a_mistyped_header_and_a_mistyped_year_are_rejected(node: Inside) -> None:
    now_ms = time.time_ns() // 1_000_000
    write(node, b"mistyped", TO, ("chronos-delay", b"1h"), ("Chronos_Spraed", b"1h"))
    write(node, b"year", TO, ("chronos-deliver-at", b"%d" % (now_ms - 365 * 86_400_000)))
    write(node, b"twice", TO, ("chronos-delay", b"1h"), ("Chronos-Delay", b"1h"))
    write(node, b"micro", TO, ("chronos-deliver-at", b"%d000" % now_ms))
    write(
        node,
        b"backfilled",
        TO,
        ("chronos-action", b"backfill"),
        ("chronos-deliver-at", b"%d" % (now_ms - 365 * 86_400_000)),
    )
    assert reasons(node) == {
        "mistyped": "unknown-header",
        "year": "past",
        "twice": "repeated-header",
        "micro": "beyond-max-delay",
    }
    wait_until(lambda: node.ask("GET", "/v1/messages/backfilled").json()["state"] == "delivered")


def test_delays_without_a_unit_are_shown_with_their_target(node: Inside) -> None:
    write(node, b"five", TO, ("chronos-delay", b"5"))
    (shard,) = node.ask("GET", "/v1/shards").json()["shards"]
    assert shard["unitless"]["orders"] >= 1
    found = [finding for finding in of_shard(shard) if "unit" in finding.text]
    assert [(finding.verdict, finding.what) for finding in found] == [("note", "shard 0")]
    assert "orders (" in found[0].text


def test_what_http_schedules_has_units(node: Inside) -> None:
    before = node.ask("GET", "/v1/shards").json()["shards"][0]["unitless"]
    body = {
        "target": {"topic": "orders"},
        "value": "v",
        "delay": "5ms",
        "spread": "7ms",
        "id": "soon",
    }
    assert node.ask("POST", "/v1/messages", body).status == 202
    wait_until(lambda: node.ask("GET", "/v1/messages/soon").json()["state"] == "delivered")
    assert node.ask("GET", "/v1/shards").json()["shards"][0]["unitless"] == before
