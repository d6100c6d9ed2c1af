"""The HTTP interface of a real node on the embedded log, used as any client uses it."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
import pytest

from chronos.admin import Server
from chronos.admin.cluster import metrics
from chronos.admin.cluster.overview import added_up
from chronos.admin.http import openapi
from chronos.admin.http.routes import table
from chronos.admin.http.schemas import (
    HEADER_NAME_PATTERN,
    INSTANT_PATTERN,
    PATTERN_TEXTS,
    TIME_PATTERN,
    Minute,
)
from chronos.admin.messages import messages
from chronos.admin.messages.listing import merge
from chronos.client import AsyncClient, NotFound, ServiceFailed, headers
from chronos.config import load
from chronos.core.keys import partition_of
from chronos.core.timefmt import DURATION_PATTERN
from chronos.node import Node
from tests.harness.service import Service

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One node for all tests; each test uses topics and ids of its own."""
    settings = {"shards": 3, "targets.deny": "forbidden.*", "limits.max_delay": "36500d"}
    with Service(tmp_path_factory.mktemp("http") / "data", settings=settings) as running:
        yield running.start()


def ask(
    service: Service, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Send a request exactly as given; status, headers and body of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
    try:
        connection.request(
            method, path, body, {name.replace("_", "-"): value for name, value in headers.items()}
        )
        answer = connection.getresponse()
        return (
            answer.status,
            {name.lower(): value for name, value in answer.getheaders()},
            answer.read(),
        )
    finally:
        connection.close()


def message(topic: str = "orders", **fields: Any) -> dict[str, Any]:
    """A message with the usual fields."""
    target = {"topic": topic, **fields.pop("target", {})}
    times = {} if {"deliver_at", "delay"} & fields.keys() else {"delay": "1h"}
    return {"target": target, "value": "payload", **times, **fields}


# --- Scheduling


def test_a_message_is_delivered_at_its_time_with_key_headers_and_receipt(service):
    """Key, value and headers are those of the request; the receipt names the source."""
    due_ms = time.time_ns() // 1_000_000 + 300
    headers = {"traceparent": "00-ab-01", "twice": ["1", {"base64": "/w=="}], "none": None}
    body = message(
        "whole",
        id="whole-1",
        deliver_at=due_ms,
        value="grüße",
        target={"key": "k", "headers": headers},
    )
    accepted = service.post("/v1/messages", body)
    assert accepted["id"] == "whole-1"
    (record,) = service.records("whole", 1)
    assert (record["key"], record["value"]) == ("k", "grüße")
    receipt = {
        name: record["headers"].pop(name)
        for name in ("chronos-id", "chronos-due-at", "chronos-source")
    }
    assert record["headers"] == headers
    assert receipt == {
        "chronos-id": "whole-1",
        "chronos-due-at": str(due_ms),
        "chronos-source": f"chronos.delay/{accepted['shard']}/{accepted['offset']}",
    }
    assert service.get("/v1/messages/whole-1")["state"] == "delivered"


def test_bytes_that_are_not_text_are_sent_in_base64(service):
    """Payload, key and id."""
    raw = bytes(range(256))
    coded = base64.b64encode(raw).decode()
    name = "base64:" + base64.b64encode(b"\xff\xfe/1").decode()
    body = {
        "target": {"topic": "raw", "key_base64": coded},
        "value_base64": coded,
        "delay": "1ms",
        "id": name,
    }
    accepted = service.post("/v1/messages", body)
    assert accepted["id"] == name
    (record,) = service.records("raw", 1)
    assert (record["key_base64"], record["value_base64"]) == (coded, coded)
    assert "value" not in record
    assert service.get(f"/v1/messages/{quote(name, safe='')}")["state"] == "delivered"


def test_a_null_payload_stays_null(service):
    """An empty string is not null."""
    service.post(
        "/v1/messages", [message("nulls", delay=0, value=None), message("nulls", delay=0, value="")]
    )
    assert sorted(str(record["value"]) for record in service.records("nulls", 2)) == ["", "None"]


def test_a_message_that_is_due_in_the_past_is_accepted_with_a_warning(service):
    """It says how long ago; a minute is explained by clocks. A series may begin in the past."""
    now_ms = time.time_ns() // 1_000_000
    due = [
        now_ms - 3 * 86_400_000,
        now_ms - 5 * 3_600_000,
        now_ms - 150_000,
        now_ms - 5_000,
        now_ms + 3_600_000,
    ]
    sent = [message("late", deliver_at=due_ms, id=f"late-{at}") for at, due_ms in enumerate(due)]
    answers = service.post("/v1/messages", [*sent, message("late", delay="1h")])
    told = [answer.get("warnings") for answer in answers]
    assert [None if texts is None else texts[0].partition(", ")[2] for texts in told] == [
        "3 days ago",
        "5 hours ago",
        "2 minutes ago",
        None,
        None,
        None,
    ]
    assert told[0][0].startswith(f"due at {answers[0]['due_at']}, ")
    status, changed = service.ask(
        "PATCH", "/v1/messages/late-4", {"deliver_at": now_ms - 7_200_000}
    )
    assert (status, changed["result"]) == (200, "rescheduled")
    assert changed["warnings"][0].endswith(", 2 hours ago")
    old = message(
        "late",
        deliver_at="2020-01-01T00:00:00Z",
        repeat="every 8760h",
        late_policy="skip",
        id="series",
    )
    assert service.post("/v1/messages", old)["warnings"][0].startswith(
        "due at 2020-01-01T00:00:00.000Z, "
    )


def test_a_change_to_a_time_long_ago_is_refused(service):
    """The message keeps its time."""
    service.post("/v1/messages", message(id="kept"))
    status, problem = service.ask(
        "PATCH", "/v1/messages/kept", {"deliver_at": "2020-01-01T00:00:00Z"}
    )
    assert (status, problem["errors"][0]["field"], problem["errors"][0]["reason"]) == (
        422,
        "deliver_at",
        "past",
    )
    status, problem = service.ask("PATCH", "/v1/messages/kept", {"delay": 30})
    assert (status, problem["detail"]) == (422, "delay: 30 has no unit; write 30s or 30ms")
    assert service.get("/v1/messages/kept")["state"] == "pending"


def test_a_message_without_an_id_gets_its_address_as_id(service):
    """The generated id in the answer has the due time that the log's clock gives."""
    accepted = service.post("/v1/messages", message(delay="1h"))
    shard, due_ms, offset = map(int, accepted["id"].split("-"))
    assert (shard, offset) == (accepted["shard"], accepted["offset"])
    assert abs(due_ms - time.time_ns() // 1_000_000 - 3_600_000) < 5_000
    found = service.get(f"/v1/messages/{accepted['id']}")
    assert (found["state"], found["due_at"]) == ("pending", accepted["due_at"])


def test_messages_without_an_id_are_spread_over_the_shards(service):
    """In turn."""
    accepted = service.post("/v1/messages", [message(delay="2h") for _ in range(9)])
    assert sorted(one["shard"] for one in accepted) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_a_batch_is_answered_in_its_order(service):
    """Element by element."""
    accepted = service.post("/v1/messages", [message(id=f"batch-{at}") for at in range(500)])
    assert [one["id"] for one in accepted] == [f"batch-{at}" for at in range(500)]


def test_a_batch_with_one_invalid_message_writes_nothing_and_names_it(service):
    """The error has index and field; the hint says that nothing was written."""
    before = sum(shard["end_offset"] for shard in settled_shards(service))
    batch = [message(id=f"torn-{at}") for at in range(10)]
    batch[7]["target"]["topic"] = "chronos.delay"
    status, problem = service.ask("POST", "/v1/messages", batch)
    assert status == 422
    assert problem["errors"] == [
        {
            "index": 7,
            "field": "target.topic",
            "reason": "reserved-target",
            "detail": "chronos.delay is a topic of Chronos or of Kafka itself",
        }
    ]
    assert "nothing" in problem["hint"]
    assert sum(shard["end_offset"] for shard in settled_shards(service)) == before


def settled_shards(service: Service) -> list[dict[str, Any]]:
    """The shards, once they have applied everything in the log."""
    service.wait_until(
        lambda: all(shard["lag"] == 0 for shard in service.shards()), "apply everything"
    )
    return service.shards()


@pytest.mark.parametrize(
    ("change", "field", "text"),
    [
        (
            {"delay": "soon"},
            "delay",
            ("is not a duration; write 250ms, 1.5s, 90s, 15m, 2h, 1h30m, 7d, 2w or PT1M30S"),
        ),
        ({"delay": "1h", "deliver_at": 5}, "delay", "both given"),
        ({"deliver_at": "2030-01-31T09:00:00"}, "deliver_at", "it has no offset from UTC; write"),
        ({"deliver_at": "soon"}, "deliver_at", "RFC 3339 with an offset"),
        ({"deliver_at": 10**14}, "deliver_at", "limits.max_delay"),
        (
            {"deliver_at": 1_700_000_000_000_000},
            "deliver_at",
            ("1700000000000000 looks like microseconds"),
        ),
        (
            {"deliver_at": "1700000000000000000"},
            "deliver_at",
            ("1700000000000000000 looks like nanoseconds"),
        ),
        ({"delay": "9999999999999999"}, "delay", "is longer than the longest duration"),
        ({"delay": "9999999999999999s"}, "delay", "is longer than the longest duration"),
        (
            {"deliver_at": "2020-01-31T09:00:00Z"},
            "deliver_at",
            ("more than 30d in the past, the limit set by limits.max_past"),
        ),
        ({"delay": 5}, "delay", "5 has no unit; write 5s or 5ms"),
        ({"delay": "999"}, "delay", "999 has no unit; write 999s or 999ms"),
        ({"delay": "1h", "spread": 30}, "spread", "30 has no unit; write 30s or 30ms"),
        ({"delay": "1h", "repeat": "every 500"}, "repeat", "500 has no unit; write 500s or 500ms"),
        (
            {"delay": "1h", "repeat": "backoff 1s 2 900"},
            "repeat",
            ("900 has no unit; write 900s or 900ms"),
        ),
        ({"delay": "1h", "repeat": "0 9 * * 1-5"}, "repeat", "begin with every, backoff or cron"),
        (
            {"delay": "1h", "headers": {"a": "b"}},
            "headers",
            ("unknown field; did you mean target.headers?"),
        ),
        ({"delay": "1h", "key": "k"}, "key", "unknown field; did you mean target.key?"),
        (
            {"delay": "1h", "target": {"topic": "o", "headers": {"Chronos_Spread": "1s"}}},
            ("target.headers"),
            "own",
        ),
        (
            {"delay": "1h", "target": {"topic": "o", "headers": {"chronos_dely": "1s"}}},
            ("target.headers"),
            "did you mean chronos-delay?",
        ),
        ({"delay": "1h", "expire_at": 10**12}, "expire_at", "before"),
        ({"delay": "1h", "expire_at": 5}, "expire_at", "looks like seconds"),
        ({"delay": "1h", "expire_at": "never"}, "expire_at", "never"),
        ({"delay": "1h", "on_conflict": "reject"}, "on_conflict", "without an id"),
        ({"delay": "1h", "id": "0-5-5"}, "id", "looks like the id"),
        ({"delay": "1h", "id": "ü" * 513}, "id", "1024"),
        ({"delay": "1h", "id": "base64:?"}, "id", "base64"),
        ({"delay": "1h", "value_base64": "eA=="}, "value_base64", "value is given too"),
        ({"delay": "1h", "value": "x" * 1_100_000}, "value", "message_bytes_max"),
        (
            {"delay": "1h", "repeat": "every 5ms"},
            "repeat",
            ("shorter than the shortest interval, 100ms"),
        ),
        (
            {"delay": "1h", "repeat": "hourly"},
            "repeat",
            ("is not a repetition; begin with every, backoff or cron"),
        ),
        ({"repeat": "every 5s"}, "deliver_at", "neither deliver_at nor delay is given"),
        (
            {"repeat": "0 9 * * 1-5"},
            "repeat",
            ("is not a repetition; begin with every, backoff or cron: write cron 0 9 * * 1-5"),
        ),
        (
            {"repeat": "cron 0 9 * *"},
            "repeat",
            ("'0 9 * *' is not a cron expression: it does not have 5 or 6 fields"),
        ),
        ({"repeat": "cron 0 25 * * *"}, "repeat", "is not a cron expression: bad hour"),
        ({"repeat": "cron 0 0 30 2 *"}, "repeat", "is not a cron expression: bad day-of-month"),
        (
            {"repeat": "cron 0 9 * * *", "time_zone": "Europe/Atlantis"},
            "time_zone",
            ("is not a time zone"),
        ),
        (
            {"repeat": "cron 0 9 * * *", "time_zone": "localtime"},
            "time_zone",
            ("'localtime' is not a time zone"),
        ),
        (
            {"repeat": "cron 0 9 * * *", "time_zone": "europe/lisbon"},
            "time_zone",
            ("did you mean Europe/Lisbon?"),
        ),
        (
            {"repeat": "cron 0 9 * * *", "expire_at": 10**13},
            "expire_at",
            ("counted from its first due time"),
        ),
        (
            {"delay": "1h", "repeat": "every 5s", "time_zone": "UTC"},
            "time_zone",
            ("with a cron expression only"),
        ),
        (
            {"delay": "1h", "repeat": "every 5s", "repeat_until": 10**12},
            "repeat_until",
            ("before the first due time"),
        ),
        (
            {"delay": "1h", "repeat": "every 5s", "repeat_times": 0},
            "repeat_times",
            ("must be at least 1"),
        ),
        ({"delay": "1h", "repeat_times": 3}, "repeat_times", "repeat_times without repeat"),
        ({"delay": "1h", "repeat": "every 10000000d"}, "repeat", "limits.max_delay"),
        ({"delay": "1h", "spread": "soon"}, "spread", "is not a duration"),
        ({"delay": "1h", "spread": 10**14}, "spread", "limits.max_delay"),
        ({"delay": "1h", "dealy": 5}, "dealy", "unknown field; did you mean delay?"),
        ({"delay": "1h", "value": 5}, "value", "must be a string or null, not an integer"),
        ({"delay": "1h", "target": {"topic": "forbidden.orders"}}, "target.topic", "targets.deny"),
        (
            {"delay": "1h", "target": {"topic": "__consumer_offsets"}},
            "target.topic",
            ("Kafka itself"),
        ),
        (
            {"delay": "1h", "target": {"topic": "a b"}},
            "target.topic",
            ("is not a topic name: 1 to 249 letters"),
        ),
        ({"delay": "1h", "target": {"topic": ".."}}, "target.topic", "not a topic name"),
        (
            {"delay": "1h", "target": {"topic": "o", "headers": {"chronos-action": "cancel"}}},
            ("target.headers"),
            "own",
        ),
        (
            {"delay": "1h", "target": {"topic": "o", "headers": {"h": 5}}},
            "target.headers",
            ("'h': must be"),
        ),
        (
            {"delay": "1h", "target": {"topic": "o", "haeders": {}}},
            "target.haeders",
            ("did you mean headers?"),
        ),
        ({"delay": "1h", "target": {}}, "target.topic", "required field is missing"),
        ({"delay": "1h", "target": None}, "target", "must be an object, not null"),
        ({"delay": -1}, "delay", "must be at least 0"),
        ({"delay": "1h", "id": ""}, "id", "must not be empty"),
        (
            {"delay": "1h", "id": "x", "on_conflict": "skip"},
            "on_conflict",
            ("must be one of reject, replace, ignore"),
        ),
        ({"delay": "1h", "value_base64": "?"}, "value_base64", "is not base64"),
    ],
)
def test_an_invalid_message_is_refused_with_field_and_text(service, change, field, text):
    """The rules are those of the shard, so nothing of it reaches the rejected topic."""
    body = {"target": {"topic": "orders"}, "value": "payload"} | change
    status, problem = service.ask("POST", "/v1/messages", body)
    assert status == 422, problem
    (fault,) = problem["errors"]
    assert text in fault["detail"]
    assert fault["field"] == field
    assert problem["detail"] == f"{field}: {fault['detail']}"
    assert "index" not in fault


NO_VALUE = "neither value nor value_base64 is given; null is a null payload, a tombstone"


def test_an_empty_message_names_all_that_is_missing(service):
    """The target, a time, and a value: without one it would be a tombstone."""
    status, problem = service.ask("POST", "/v1/messages", {})
    assert (status, problem["detail"]) == (422, "target: required field is missing (and 2 more)")
    assert problem["errors"] == [
        {"field": "target", "detail": "required field is missing"},
        {
            "field": "deliver_at",
            "detail": "neither deliver_at nor delay is given",
            "reason": "no-time",
        },
        {"field": "value", "detail": NO_VALUE},
    ]
    status, problem = service.ask("POST", "/v1/messages", {"target": {"topic": "o"}, "delay": "1h"})
    assert (status, problem["errors"]) == (422, [{"field": "value", "detail": NO_VALUE}])


def test_all_errors_of_a_message_are_listed(service):
    """Each with its field; the detail repeats the first one and counts the others."""
    status, problem = service.ask("POST", "/v1/messages", {"value": 5, "delay": "soon", "idd": "x"})
    assert status == 422
    assert [fault["field"] for fault in problem["errors"]] == ["target", "value", "delay", "idd"]
    assert problem["detail"] == "target: required field is missing (and 3 more)"


def test_all_errors_of_a_batch_are_listed_with_index_and_field(service):
    """Errors of the form of a message and errors against the rules alike."""
    batch: list[Any] = [message() for _ in range(6)]
    batch[1] = {}
    batch[2] = 5
    batch[3]["target"]["topic"] = "forbidden.orders"
    batch[5]["dealy"] = "1s"
    status, problem = service.ask("POST", "/v1/messages", batch)
    assert status == 422
    assert [(fault["index"], fault.get("field")) for fault in problem["errors"]] == [
        (1, "target"),
        (1, "deliver_at"),
        (1, "value"),
        (2, None),
        (3, "target.topic"),
        (5, "dealy"),
    ]
    assert problem["detail"] == "message 1: target: required field is missing (and 5 more)"
    assert "errors_total" not in problem


def test_the_first_100_errors_of_a_batch_are_listed_and_all_are_counted(service):
    """The answer to a large batch stays small."""
    status, problem = service.ask("POST", "/v1/messages", [{"value": 5}] * 5_000)
    assert (status, len(problem["errors"]), problem["errors_total"]) == (422, 100, 15_000)
    assert problem["detail"].endswith("(and 14999 more)")


@pytest.mark.parametrize(
    ("last", "field", "detail"),
    [
        ({"target": {}}, "target.topic", "required field is missing"),
        ({"dealy": 1}, "dealy", "unknown field"),
        ({"delay": "soon"}, "delay", PATTERN_TEXTS[DURATION_PATTERN]),
    ],
)
def test_a_body_with_a_million_values_is_answered_with_its_first_error(
    service, last, field, detail
):
    """The search for all errors would take a multiple of the body in memory."""
    wide = message(target={"headers": {f"h{at}": "" for at in range(900)}})
    batch = [wide] * 1_150 + [message() | last] + [{}] * 100
    status, problem = service.ask("POST", "/v1/messages", batch)
    assert (status, problem["errors"]) == (
        422,
        [{"index": 1_150, "field": field, "detail": detail}],
    )


def test_the_only_message_of_an_array_is_not_numbered_in_the_text(service):
    """Clients send a single message as an array of one; its errors read like those of a single
    message."""
    status, problem = service.ask("POST", "/v1/messages", [message("chronos.delay")])
    assert (status, "hint" in problem) == (422, False)
    assert (
        problem["detail"] == "target.topic: chronos.delay is a topic of Chronos or of Kafka itself"
    )
    assert problem["errors"][0]["index"] == 0


def test_no_error_of_a_pattern_shows_a_regular_expression():
    """Every pattern that requests are checked by has a text in plain words."""
    types = [
        kind for route in table(None) for kind in (route.body, route.query) if kind is not None
    ]
    patterns: set[str] = set()

    def collect(schema: object) -> None:
        children = (
            schema.values()
            if isinstance(schema, dict)
            else schema
            if isinstance(schema, list)
            else ()
        )
        if isinstance(schema, dict) and isinstance(schema.get("pattern"), str):
            patterns.add(schema["pattern"])
        for child in children:
            collect(child)

    collect(list(msgspec.json.schema_components(types)))
    checked_elsewhere = {HEADER_NAME_PATTERN, INSTANT_PATTERN, TIME_PATTERN}
    assert patterns - checked_elsewhere == set(PATTERN_TEXTS)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"nope", b'{"target": {"topic": "\xff"}}', b'{"repeat": ' + b"[" * 100_000]
)
def test_a_body_that_is_not_json_is_malformed(service, body):
    """Status 400, whatever the bytes."""
    status, headers, answer = ask(
        service, "POST", "/v1/messages", body, Content_Type="application/json"
    )
    assert (status, headers["content-type"].split(";")[0]) == (400, "application/problem+json")
    assert json.loads(answer)["type"] == "urn:chronos:problem:malformed"


def test_half_a_surrogate_pair_is_refused(service):
    """JSON can express it, UTF-8 cannot."""
    status, _, _ = ask(
        service,
        "POST",
        "/v1/messages",
        json.dumps(message(value="\ud800")).encode(),
        Content_Type="application/json",
    )
    assert status in (400, 422)


@pytest.mark.parametrize("count", [0, 10_001])
def test_a_batch_has_1_to_10000_messages(service, count):
    """Checked before the messages."""
    status, problem = service.ask("POST", "/v1/messages", [message()] * count)
    assert (status, problem["errors"][0]["detail"]) == (422, "send 1 to 10000 messages at once")


def test_a_body_that_is_too_large_is_refused(service):
    """Without reading all of it."""
    status, _, answer = ask(
        service, "POST", "/v1/messages", b" " * (33 << 20), Content_Type="application/json"
    )
    assert (status, json.loads(answer)["type"]) == (413, "urn:chronos:problem:too-large")


def test_concurrent_requests_are_all_written(service):
    """Each gets the answers to its own messages."""
    answers: dict[int, list[dict[str, Any]]] = {}

    def send(number: int) -> None:
        answers[number] = service.post(
            "/v1/messages", [message(id=f"many-{number}-{at}") for at in range(50)]
        )

    threads = [threading.Thread(target=send, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for number in range(16):
        assert [one["id"] for one in answers[number]] == [f"many-{number}-{at}" for at in range(50)]
    places = {(one["shard"], one["offset"]) for found in answers.values() for one in found}
    assert len(places) == 16 * 50
    assert service.get("/v1/messages/many-15-49")["state"] == "pending"


# --- Finding, listing


def test_an_unknown_id_is_not_found(service):
    """Status 404, with a hint."""
    status, problem = service.ask("GET", "/v1/messages/nobody")
    assert (status, problem["type"]) == (404, "urn:chronos:problem:not-found")
    assert "rejected topic" in problem["hint"]


@pytest.mark.parametrize(
    "name", ["a/b", "ü ö?", "100%", "a+b", "base64:", "x" * 1024, "..", "#", "a%2Fb", "\t"]
)
def test_any_text_may_be_an_id(service, name):
    """It is percent-encoded in a path."""
    written = (
        "base64:" + base64.b64encode(name.encode()).decode() if name in ("base64:", "..") else name
    )
    service.post("/v1/messages", message(id=written, on_conflict="replace"))
    found = service.get(f"/v1/messages/{quote(written, safe='')}")
    assert found["state"] == "pending"


def test_a_message_is_found_as_soon_as_it_is_acknowledged(service):
    """Every time, because the answer waits for the shard."""
    for at in range(50):
        service.post("/v1/messages", message(id=f"fresh-{at}"))
        assert service.get(f"/v1/messages/fresh-{at}")["state"] == "pending"


def test_the_pages_contain_all_pending_messages_once_and_in_order(service):
    """Over all shards."""
    start = 2_900_000_000_000
    batch = [message("paged", deliver_at=start + at % 40, id=f"page-{at}") for at in range(120)]
    service.post("/v1/messages", batch)
    service.get("/v1/messages/page-119")
    settled_shards(service)
    found: list[dict[str, Any]] = []
    parameters: dict[str, Any] = {"target": "paged", "limit": 7}
    while True:
        answer = service.get("/v1/messages", **parameters)
        assert len(answer["messages"]) <= 7
        found += answer["messages"]
        if answer["after"] is None:
            break
        parameters["after"] = answer["after"]
    assert sorted(one["id"] for one in found) == sorted(one["id"] for one in batch)
    assert [one["due_at"] for one in found] == sorted(one["due_at"] for one in found)
    some = service.get("/v1/messages", target="paged", due_from=start + 5, due_to=start + 7)[
        "messages"
    ]
    assert sorted(one["id"] for one in some) == sorted(
        f"page-{at}" for at in range(120) if at % 40 in (5, 6)
    )


def test_series_are_listed_apart_and_their_next_times_are_told(service):
    daily = {"repeat": "cron 0 9 * * *", "time_zone": "Asia/Tokyo", "repeat_times": 3}
    plain = message("rhythm", id="rhythm-once")
    every = message("rhythm", id="rhythm-every", repeat="every 1h")
    cron = {"id": "rhythm-cron", "target": {"topic": "rhythm"}, "value": "v", **daily}
    service.post("/v1/messages?wait=5s", [plain, every, cron])
    status, answer = service.ask("GET", "/v1/messages?target=rhythm&series=true")
    assert status == 200
    assert sorted(one["id"] for one in answer["messages"]) == ["rhythm-cron", "rhythm-every"]
    assert all("occurrences_at" not in one for one in answer["messages"])

    def times(id: str, count: int = 10) -> list[str] | None:
        status, answer = service.ask("GET", f"/v1/messages/{id}?occurrences={count}")
        assert status == 200
        return answer.get("occurrences_at")

    assert [at[11:] for at in times("rhythm-cron") or []] == ["00:00:00.000Z"] * 3
    assert len(times("rhythm-every") or []) == 10
    assert times("rhythm-every", 0) is None
    assert times("rhythm-once") is None
    assert service.ask("GET", "/v1/messages/rhythm-once?occurrences=101")[0] == 422


def test_pending_messages_are_listed_by_id_prefix_and_header(service):
    """Also by the prefix of a generated id; all conditions must be true; a header is compared as a
    whole."""
    batch = [
        message(
            "sifted",
            id=f"{kind}-{at}",
            target={"headers": {"tenant": f"t{at % 2}", "lang": ["en", "de"]}},
        )
        for kind in ("sift", "other")
        for at in range(4)
    ]
    service.post("/v1/messages", [*batch, message("sifted")])
    settled_shards(service)

    def listed(query: str) -> list[str]:
        status, answer = service.ask("GET", f"/v1/messages?target=sifted&{query}")
        assert status == 200
        return sorted(one["id"] for one in answer["messages"])

    page = service.get("/v1/messages?target=sifted&limit=1")
    assert page["through"] == page["messages"][0]["planned_at"]
    assert "through" not in service.get("/v1/messages?target=sifted")
    assert listed("id_prefix=sift-") == [f"sift-{at}" for at in range(4)]
    assert listed("id_prefix=sift-&header=tenant=t1") == ["sift-1", "sift-3"]
    assert listed("header=lang=de&header=tenant=t0&id_prefix=o") == ["other-0", "other-2"]
    assert listed("header=tenant=t") == []
    assert listed("contains=her-") == [f"other-{at}" for at in range(4)]
    assert listed("contains=t1&id_prefix=sift-") == ["sift-1", "sift-3"]
    assert len(listed("contains=enan")) == 8
    assert listed("contains=T1") == []
    (plain,) = (one for shard in range(3) for one in listed(f"id_prefix={shard}-"))
    assert plain.count("-") == 2
    status, problem = service.ask("GET", "/v1/messages?header=tenant")
    assert (status, problem["errors"][0]["field"]) == (422, "header")
    assert "NAME=VALUE" in problem["detail"]


def test_pages_are_merged_only_as_far_as_every_shard_has_answered():
    """Messages behind the end of an incomplete part are left to the next page."""
    shards = [
        ([((1, 0, 0), "a"), ((9, 0, 1), "b")], None),
        ([((2, 1, 0), "c")], (4, 1, 7)),
        ([((3, 2, 5), "d"), ((4, 2, 6), "e")], None),
    ]
    assert merge(shards, 10) == (["a", "c", "d"], (4, 1, 7))
    assert merge(shards, 2) == (["a", "c"], (2, 1, 0))
    assert merge([([((1, 0, 0), "a")], None)], 5) == (["a"], None)
    # The answer of a node for two shards, which ends with a message of the second one.
    assert merge([([((1, 0, 0), "a"), ((2, 3, 0), "f")], (2, 3, 0)), *shards[1:2]], 10) == (
        ["a", "c", "f"],
        (2, 3, 0),
    )


def test_the_history_tells_what_the_last_minutes_did(service):
    def delivered() -> int:
        return sum(each["delivered"] for each in service.get("/v1/history")["minutes"])

    before = delivered()
    service.post("/v1/messages?wait=5s", [message("history", delay=0) for _ in range(25)])
    service.wait_until(lambda: delivered() >= before + 25, "count the deliveries")
    found = service.get("/v1/history", minutes=2)
    assert found["node"] == service.shards()[0]["node"]
    assert 1 <= len(found["minutes"]) <= 2
    last = found["minutes"][-1]
    assert last["start"].endswith(":00.000Z")
    assert last["late_max_ms"] >= last["late_p99_ms"] > 0
    service.wait_until(
        lambda: service.get("/v1/history")["minutes"][-1]["pending"] == service.pending(),
        "count the pending messages",
    )
    assert service.get("/v1/history", of="cluster")["silent"] == []
    for minutes in (0, 1441, "x"):
        assert service.ask("GET", f"/v1/history?minutes={minutes}")[0] == 422


def test_the_minutes_of_several_nodes_are_added_up():
    """A lateness that one node does not know is not known of all; a node that delivered nothing has
    none."""

    def minute(start: str, delivered: int, late_ms: float | None) -> Minute:
        return Minute(
            start=start,
            delivered=delivered,
            dead=1,
            expired=2,
            rejected=3,
            pending=4,
            late_p99_ms=late_ms,
            late_max_ms=late_ms,
        )

    one = [minute("12:00", 5, 10.0), minute("12:01", 0, None), minute("12:02", 1, None)]
    other = [minute("12:01", 7, 25.0), minute("12:02", 9, 5.0), minute("12:03", 0, None)]
    found = added_up([one, other])
    assert [(each.start, each.delivered, each.late_max_ms) for each in found] == [
        ("12:00", 5, 10.0),
        ("12:01", 7, 25.0),
        ("12:02", 10, None),
        ("12:03", 0, None),
    ]
    assert [each.late_p99_ms for each in found] == [each.late_max_ms for each in found]
    assert [(each.dead, each.expired, each.rejected, each.pending) for each in found[:2]] == [
        (1, 2, 3, 4),
        (2, 4, 6, 8),
    ]


def test_the_timeline_counts_pending_messages(service):
    """By the minute, summed to the requested step."""
    start = 2_950_000_000_000 // 3_600_000 * 3_600_000
    service.post(
        "/v1/messages", [message("timed", deliver_at=start + at * 60_000) for at in range(90)]
    )
    settled_shards(service)
    hours = service.get(
        "/v1/timeline", **{"from": start, "to": start + 2 * 3_600_000, "step": "1h"}
    )
    assert [interval["pending"] for interval in hours["intervals"]] == [60, 30]
    assert hours["pending"] == 90
    minutes = service.get("/v1/timeline", **{"from": start + 80 * 60_000})
    assert [interval["pending"] for interval in minutes["intervals"]] == [1] * 10 + [0] * 50
    status, problem = service.ask("GET", f"/v1/timeline?from={start}&step=30s")
    detail = (
        "step: must be a whole number of minutes, at least 1m: messages are counted by the minute"
    )
    assert (status, problem["detail"]) == (422, detail)
    status, problem = service.ask("GET", f"/v1/timeline?from={start}&to=0")
    assert (status, problem["detail"]) == (422, "to: the end must lie after the beginning")


# --- Acting


def test_a_cancelled_message_is_not_delivered(service):
    """A second cancel answers `cancelled` too, and is counted as ignored, not as rejected."""

    def total(name: str) -> int:
        return sum(shard["totals"][name] for shard in service.shards())

    service.post("/v1/messages", message("never", id="gone", delay="1s"))
    status, done = service.ask("DELETE", "/v1/messages/gone")
    assert (status, done["result"]) == (200, "cancelled")
    before = total("rejected"), total("ignored")
    assert service.ask("DELETE", "/v1/messages/gone")[1]["result"] == "cancelled"
    assert (total("rejected"), total("ignored")) == (before[0], before[1] + 1)
    found = service.get("/v1/messages/gone")
    assert (found["state"], found["target"]) == ("cancelled", None)


def test_an_action_on_an_unknown_id_is_unknown(service):
    """All three actions."""
    requests = [
        ("DELETE", "/v1/messages/no-one", None),
        ("POST", "/v1/messages/no-one/fire", None),
        ("PATCH", "/v1/messages/no-one", {"delay": "1h"}),
        ("DELETE", "/v1/messages/0-1900000000000-1", None),
    ]
    for method, path, body in requests:
        status, done = service.ask(method, path, body)
        assert (status, done["result"]) == (200, "unknown")


def test_an_action_on_a_delivered_message_is_too_late(service):
    """All three actions, by an id of its own and by a generated one."""
    service.post("/v1/messages", message("late", id="past", delay=0))
    address = service.post("/v1/messages", message("late", delay=0))["id"]
    service.records("late", 2)
    for name in ("past", address):
        assert service.ask("DELETE", f"/v1/messages/{name}")[1]["result"] == "too_late"
        assert service.ask("POST", f"/v1/messages/{name}/fire")[1]["result"] == "too_late"
        assert (
            service.ask("PATCH", f"/v1/messages/{name}", {"delay": "1h"})[1]["result"] == "too_late"
        )


def test_a_fired_message_is_delivered_now(service):
    """By an id of its own and by a generated one."""
    service.post("/v1/messages", message("fired", id="fire-me"))
    address = service.post("/v1/messages", message("fired"))["id"]
    for name in ("fire-me", address):
        assert service.ask("POST", f"/v1/messages/{name}/fire")[1]["result"] == "fired"
    names = {record["headers"]["chronos-id"] for record in service.records("fired", 2)}
    assert names == {"fire-me", address}


def test_a_rescheduled_message_has_a_new_time(service):
    """A time or a delay; the id stays."""
    address = service.post("/v1/messages", message("moved"))["id"]
    status, done = service.ask(
        "PATCH", f"/v1/messages/{address}", {"deliver_at": "2061-12-31T23:59:59+00:00"}
    )
    assert (status, done["result"]) == (200, "rescheduled")
    assert service.get(f"/v1/messages/{address}")["due_at"] == "2061-12-31T23:59:59.000Z"
    assert (
        service.ask("PATCH", f"/v1/messages/{address}", {"delay": 0})[1]["result"] == "rescheduled"
    )
    assert service.records("moved", 1)[0]["headers"]["chronos-id"] == address


@pytest.mark.parametrize(
    "body", [{}, {"delay": "1h", "deliver_at": 5}, {"delay": "x"}, {"deliver_at": 10**14}]
)
def test_a_reschedule_needs_a_valid_time(service, body):
    """Refused before anything is written."""
    assert service.ask("PATCH", "/v1/messages/whatever", body)[0] == 422


def test_an_id_that_came_to_another_shard_is_found_in_its_own(tmp_path):
    """A producer with another partitioner than murmur2 chose the shard: the record is forwarded,
    and look-ups wait for it."""
    config = load(
        None, {}, [f"node.data_dir={tmp_path}", "admin.port=0", "shards=3", "limits.disk_reserve=0"]
    )
    node = Node(config)
    node.start()

    async def follow() -> None:
        server = Server(node)
        await server.start()
        try:
            async with AsyncClient(server.url) as client:
                for at in range(6):
                    name = f"stray-{at}"
                    shard = partition_of(name.encode(), 3)
                    other = (shard + 1 + at % 2) % 3
                    due = dict(headers(target="t", delay="1h"))
                    node.log.append([(config.topics.delay, name.encode(), b"v", due, other)], 10)
                    assert (await client.get(name)).shard == shard
                    for act in (client.reschedule(name, delay="2h"), client.cancel(name)):
                        done = await act
                        assert (bool(done), done.shard) == (True, shard)
                    assert (await client.get(name)).state == "cancelled"
                with pytest.raises(NotFound):
                    await client.get("nobody")
        finally:
            await server.stop()

    try:
        asyncio.run(follow())
    finally:
        node.stop()


def test_what_may_still_be_forwarded_is_not_called_unknown(tmp_path, monkeypatch):
    """While a shard has not pulled what it holds, status 503 names it, and an action on an unknown
    id has no result yet."""
    monkeypatch.setattr(messages, "ACT_S", 0.2)
    settings = [
        f"node.data_dir={tmp_path}",
        "admin.port=0",
        "shards=3",
        "limits.disk_reserve=0",
        "workers.pull=off",
    ]
    config = load(None, {}, settings)
    node = Node(config)
    node.start()
    name = next(f"id-{at}" for at in range(99) if partition_of(f"id-{at}".encode(), 3) == 0)

    async def ask() -> None:
        server = Server(node)
        await server.start()
        try:
            async with AsyncClient(server.url, retries=0) as client:
                with pytest.raises(NotFound):
                    await client.get(name)
                due = dict(headers(target="t", delay="1h"))
                node.log.append([(config.topics.delay, name.encode(), b"v", due, 1)], 10)
                with pytest.raises(
                    ServiceFailed, match="so far: shard 1 has not applied its log in time"
                ):
                    await client.get(name)
                assert (await client.cancel(name)).result == "accepted"
        finally:
            await server.stop()

    try:
        asyncio.run(ask())
    finally:
        node.stop()


# --- Topics


def test_a_long_poll_returns_with_the_first_record(service):
    """Long before the end of its wait."""
    service.post("/v1/messages", message("poll", delay=0))
    offset = len(service.records("poll", 1))
    service.post("/v1/messages", message("poll", delay="300ms", value="second"))
    started = time.monotonic()
    answer = service.get("/v1/topics/poll/records", offset=offset, wait="30s")
    assert [record["value"] for record in answer["records"]] == ["second"]
    assert time.monotonic() - started < 10


def test_a_poll_without_wait_returns_at_once(service):
    """With no records, and the offset to read on from."""
    service.post("/v1/messages", message("idle", delay=0))
    service.records("idle", 1)
    assert service.get("/v1/topics/idle/records", offset=1) == {"records": [], "next_offset": 1}


def test_the_topics_are_listed_with_their_ends(service):
    """Chronos's own topics among them."""
    service.post("/v1/messages", message("listed", delay=0))
    service.records("listed", 1)
    topics = {topic["topic"]: topic["partitions"] for topic in service.get("/v1/topics")["topics"]}
    assert topics["listed"] == [{"partition": 0, "start": 0, "end": 1}]
    assert len(topics["chronos.delay"]) == 3


def test_a_missing_topic_partition_shard_or_path_is_not_found(service):
    """A wrong method is answered with the right ones."""
    assert service.ask("GET", "/v1/topics/nothing-here/records")[1]["type"].endswith("no-topic")
    assert service.ask("GET", "/v1/topics/chronos.delay/records?partition=3")[1]["type"].endswith(
        "no-partition"
    )
    assert service.ask("GET", "/v1/topics/chronos.delay/records?offset=999999999")[0] == 422
    assert service.ask("POST", "/v1/shards/3/transfer?to=n2")[0] == 404
    assert service.ask("POST", "/v1/shards/2/transfer?to=n2")[0] == 501
    status, headers, answer = ask(service, "PUT", "/v1/messages")
    assert (status, set(headers["allow"].split(","))) == (405, {"GET", "POST"})
    assert json.loads(answer)["status"] == 405
    assert ask(service, "GET", "/v2")[0] == 404


def test_an_invalid_parameter_is_refused(service):
    """A mistyped filter must not list everything."""
    for path in (
        "/v1/messages?targte=x",
        "/v1/messages?limit=0",
        "/v1/messages?limit=5&limit=6",
        "/v1/shards?x=1",
        "/v1/topics/a/records?wait=2m",
        "/v1/messages?due_from=yesterday",
    ):
        status, problem = service.ask("GET", path)
        assert (status, problem["type"]) == (422, "urn:chronos:problem:invalid"), path


@pytest.mark.parametrize(
    ("path", "errors"),
    [
        ("/v1/messages?targte=x", {"targte": "unknown parameter; did you mean target?"}),
        (
            "/v1/messages?limit=0&after=x&zzz=1",
            {"limit": "must be at least 1", "zzz": "unknown parameter"},
        ),
        ("/v1/messages?limit=5&limit=6", {"limit": "parameter is given more than once"}),
        ("/v1/shards?copies=all", {"copies": "must be one of own, masters"}),
        ("/v1/shards?shards=a", {"shards": "is not a list of shard numbers, such as 0,3,7"}),
    ],
)
def test_all_errors_of_the_parameters_are_listed(service, path, errors):
    """Each with the name of the parameter, in plain words."""
    status, problem = service.ask("GET", path)
    assert (status, {fault["field"]: fault["detail"] for fault in problem["errors"]}) == (
        422,
        errors,
    )


def test_a_transfer_without_a_node_names_the_parameter(service):
    """Status 422, whatever the shard."""
    status, problem = service.ask("POST", "/v1/shards/0/transfer")
    assert (status, problem["detail"]) == (422, "to: required parameter is missing")


# --- Operation


def test_shards_and_nodes_show_their_state(service):
    """Positions, totals, lateness."""
    service.post("/v1/messages", message("shown", delay=0))
    service.records("shown", 1)
    shards = settled_shards(service)
    assert [shard["shard"] for shard in shards] == [0, 1, 2]
    for shard in shards:
        assert (shard["role"], shard["paused"], shard["lag"]) == ("master", None, 0)
        assert shard["master"] == service.get("/v1/nodes")["nodes"][0]["node"]
        assert shard["totals"]["accepted"] >= shard["totals"]["delivered"]
    assert sum(shard["lateness"]["count"] for shard in shards) > 0
    found = service.get("/v1/nodes")
    (node,) = found["nodes"]
    assert (node["ready"], node["reasons"], node["log"]) == (True, [], "embedded")
    assert (node["brokers"], [shard["waits_for"] for shard in shards]) == ([], [None] * 3)
    assert [(shard["shard"], shard["role"]) for shard in node["shards"]] == [
        (0, "master"),
        (1, "master"),
        (2, "master"),
    ]
    assert (found["controller"], found["history"], found["sure"]) == (None, [], True)


def test_the_metrics_are_those_of_the_reference(service):
    """Each metric, for each shard; the buckets of a histogram are cumulative."""
    status, headers, body = ask(service, "GET", "/metrics")
    assert (status, headers["content-type"].split(";")[0]) == (200, "text/plain")
    text = body.decode()
    for series in metrics.METRICS:
        name = series.name + ("_count" if series.kind == "histogram" else "")
        # A node alone observes no other master, and has no follower.
        is_there = re.search(rf'^{name}{{shard="2"}} ', text, re.MULTILINE) is not None
        assert is_there == (
            series.name
            not in (
                "chronos_master_unhealthy",
                "chronos_in_sync_replicas",
                "chronos_in_sync_missing",
            )
        ), series.name
    for name, kind, _ in metrics.BROKER_METRICS:
        assert f"\n# TYPE {name} {kind}" in text
    for name, _, _ in metrics.NODE_METRICS:
        assert f"\n{name}" in text
    buckets = [
        float(value)
        for value in re.findall(
            r'^chronos_lateness_seconds_bucket{le="[^"]+",shard="0"} (.+)$', text, re.M
        )
    ]
    assert buckets == sorted(buckets)
    assert len(buckets) == 17


CONSOLE = ROOT / "chronos" / "admin" / "static"
"""The files of the console."""


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 200),
        ("/?due=24h", 200),
        ("/ui/messages?target=orders&target=bills&any=thing", 200),
        ("/ui/messages/..%2F..%2Fetc%2Fpasswd%3Fa%3Db%23c", 200),
        ("/ui/nothing", 404),
        ("/ui/nothing/messages", 404),
    ],
)
def test_the_console_opens_any_view_and_permits_nothing_from_elsewhere(service, path, status):
    """The same document for all of them, with its addresses relative to theirs; its policy permits
    nothing inline."""
    answer, headers, body = ask(service, "GET", path)
    assert (answer, headers["content-type"]) == (status, "text/html; charset=utf-8")
    document = (CONSOLE / "index.html").read_bytes()
    up = b"../" * (path.partition("?")[0].count("/") - 1)
    assert body == document.replace(b'="./', b'="' + (up or b"./"))
    again = ask(service, "GET", path, If_None_Match=headers["etag"])
    assert again[0] == (304 if status == 200 else status)
    policy = headers["content-security-policy"]
    assert policy == (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_the_console_holds_its_files_only_and_each_has_a_tag(service):
    """A browser asks every time, and gets no file that it has."""
    kinds = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
    files = [path for path in CONSOLE.rglob("*") if path.suffix in kinds]
    assert len(files) > 20
    for path in files:
        name = path.relative_to(CONSOLE).as_posix()
        status, headers, body = ask(service, "GET", f"/static/{name}")
        assert (status, body) == (200, path.read_bytes())
        assert headers["content-type"].split(";")[0] == kinds[path.suffix]
        assert headers["cache-control"] == "no-cache"
        again = ask(service, "GET", f"/static/{name}", If_None_Match=headers["etag"])
        assert (again[0], again[2]) == (304, b"")
    for name in ("nothing.js", "lib", "lib/", "../http/server.py", "lib/..%2Fapp.js", "%2e%2e/x"):
        assert ask(service, "GET", f"/static/{name}")[0] == 404, name


def test_no_file_of_the_console_makes_html_of_text():
    """Nor fetches anything from elsewhere."""
    for path in CONSOLE.rglob("*"):
        if path.suffix not in (".html", ".css", ".js"):
            continue
        text = path.read_text()
        for taboo in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert taboo not in text, (path, taboo)
        assert not re.search(r"(src|href)=\"(https?:)?//|@import|url\(", text), path
        assert path.suffix != ".html" or " style=" not in text, path


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/messages"),
        ("DELETE", "/v1/messages/x"),
        ("POST", "/v1/messages/x/fire"),
        ("PATCH", "/v1/messages/x"),
    ],
)
@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Origin": ("http://evil.example")},
        {"Origin": "null"},
    ],
)
def test_another_web_site_cannot_change_anything(service, method, path, headers):
    """A request that a browser marks as cross-site is refused, with or without a body."""
    status, _, answer = ask(
        service, method, path, b"{}", Content_Type="application/json", **headers
    )
    assert (status, json.loads(answer)["type"]) == (403, "urn:chronos:problem:cross-site")


def test_the_own_page_of_the_service_may_change_things(service):
    """Its requests have the same origin."""
    origin = {"Origin": service.url, "Sec_Fetch_Site": "same-origin"}
    body = json.dumps(message()).encode()
    assert (
        ask(service, "POST", "/v1/messages", body, Content_Type="application/json", **origin)[0]
        == 202
    )


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
def test_a_form_of_another_site_is_not_taken_for_json(service, kind):
    """The three content types a form can send."""
    assert (
        ask(service, "POST", "/v1/messages", json.dumps(message()).encode(), Content_Type=kind)[0]
        == 415
    )


@pytest.mark.parametrize(
    ("host", "status"),
    [("evil.example", 421), ("localhost:1", 200), ("127.0.0.1", 200), ("[::1]:7", 200)],
)
def test_a_host_name_rebound_to_this_machine_is_not_served(service, host, status):
    """DNS rebinding would give the page of another site the origin of the service."""
    assert ask(service, "GET", "/v1/shards", Host=host)[0] == status


def test_a_request_that_is_not_http_is_answered_with_400(service):
    """The service stays ready."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=10) as connection:
        connection.sendall(b"\x00\x01\x02 nonsense\r\n\r\n")
        assert b"400" in connection.recv(1_000)
    assert service.is_ready()


@pytest.mark.process
def test_a_stop_ends_long_polls_at_once_and_loses_nothing(tmp_path):
    """HTTP ends first: a waiting poll is answered, and acknowledged messages are there at the next
    start."""
    with Service(tmp_path / "data", settings={"shards": 1}) as service:
        service.start()
        service.post("/v1/messages", message("stopped", delay=0))
        service.records("stopped", 1)
        accepted = service.post("/v1/messages", message("stopped"))
        answers: list[int] = []
        parts = urlsplit(service.url)

        def poll() -> None:
            connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
            connection.request("GET", "/v1/topics/stopped/records?offset=1&wait=60s")
            started.set()
            with suppress(ConnectionError):
                answers.append(connection.getresponse().status)

        started = threading.Event()
        thread = threading.Thread(target=poll)
        thread.start()
        assert started.wait(10)
        began = time.monotonic()
        assert service.stop() == 0
        thread.join(10)
        # The poll was answered, or came too late to be accepted; the stop did not wait for its end.
        assert answers in ([200], [])
        assert time.monotonic() - began < 10
        service.start()
        assert service.get(f"/v1/messages/{accepted['id']}")["state"] == "pending"


def test_the_reference_pages_are_up_to_date():
    """`python -m chronos.admin http` and `metrics`."""
    reference = ROOT / "docs" / "reference"
    assert (reference / "http.md").read_text() == openapi.contents()
    assert (reference / "metrics.md").read_text() == metrics.reference()
