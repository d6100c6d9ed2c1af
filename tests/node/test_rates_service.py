"""Rate limits of a running node: over HTTP, on the command line, with the client, in the metrics,
and across a restart."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import chronos
from chronos.client import NotFound, Refused
from tests.harness.command import run
from tests.harness.service import Service

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One node for all tests, each with topics of its own; limits are removed again."""
    settings = {"shards": 2, "delivery.rates": '{"slow.*": 1/s, "slow.held": 0/s burst 5}'}
    with Service(tmp_path_factory.mktemp("rates") / "data", settings=settings) as running:
        yield running.start()


def limits(service: Service, **query: str) -> list[tuple[str, str, str]]:
    """The limits as pattern, rate and source."""
    return [
        (found["pattern"], found["rate"], found["source"])
        for found in service.get("/v1/rates", **query)["rates"]
    ]


def send(service: Service, topic: str, count: int) -> None:
    """Schedule messages that are due at once."""
    service.post(
        "/v1/messages",
        [{"target": {"topic": topic}, "value": str(at), "delay": 0} for at in range(count)],
    )


def lane(service: Service, topic: str) -> dict[str, Any] | None:
    """The lane of a topic; None if nothing waits in it."""
    return next((found for found in service.get("/v1/rates", topic=topic)["lanes"]), None)


def count(service: Service, topic: str) -> int:
    """The number of messages delivered to a topic."""
    status, answer = service.ask("GET", f"/v1/topics/{topic}/records?limit=1000")
    return len(answer["records"]) if status == 200 else 0


def test_limits_are_shown_in_their_order_and_changed_at_run_time(service: Service) -> None:
    configured = [("slow.held", "0/s burst 5", "configuration"), ("slow.*", "1/s", "configuration")]
    assert limits(service) == configured
    assert service.ask("PUT", "/v1/rates/slow.*", {"rate": "20/s burst 40"}) == (
        200,
        {"pattern": "slow.*", "rate": "20/s burst 40", "source": "run-time"},
    )
    assert service.ask("PUT", "/v1/rates/%5Bm-z%5D%3F", {"rate": "unlimited"})[0] == 200
    changed = [("slow.*", "20/s burst 40", "run-time"), ("[m-z]?", "unlimited", "run-time")]
    assert limits(service) == changed + configured
    assert limits(service, topic="slow.held") == changed[:1]
    assert limits(service, topic="other") == []
    assert service.ask("DELETE", "/v1/rates/%5Bm-z%5D%3F")[1]["rate"] == "unlimited"
    assert service.ask("DELETE", "/v1/rates/slow.*")[0] == 200
    assert limits(service) == configured


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("PUT", "/v1/rates/mail", {"rate": "fast"}, 422, "is not a rate"),
        ("PUT", "/v1/rates/mail", {"rate": "1000/s burst 1"}, 422, "burst out of bounds"),
        ("PUT", "/v1/rates/mail", {}, 422, "rate"),
        ("PUT", "/v1/rates/a%2Fb", {"rate": "1/s"}, 422, "nor a pattern"),
        ("DELETE", "/v1/rates/slow.*", None, 404, "unlimited"),
        ("GET", "/v1/rates?topic=a%2Fb", None, 422, "topic name"),
    ],
)
def test_a_request_that_is_not_valid_is_refused(
    service: Service, method: str, path: str, body: object, status: int, text: str
) -> None:
    found, answer = service.ask(method, path, body)
    assert (found, text in str(answer)) == (status, True), answer


def test_a_lane_is_shown_with_its_backlog_its_rate_and_its_end_and_a_change_acts_on_it(
    service: Service,
) -> None:
    send(service, "slow.mail", 120)
    service.wait_until(
        lambda: (lane(service, "slow.mail") or {"messages": 0})["messages"] >= 100, "park"
    )
    found = lane(service, "slow.mail")
    assert found is not None
    assert (found["waits_for"], found["partition"], found["rate"]) == ("rate", None, "1/s")
    end = datetime.fromisoformat(found["empty_at"]) - datetime.now(UTC)
    assert timedelta(seconds=60) < end < timedelta(seconds=125)
    with urllib.request.urlopen(service.url + "/metrics") as answer:
        metrics = answer.read().decode()
    assert (
        float(re.search(r'^chronos_lane_messages{topic="slow.mail"} (.+)$', metrics, re.M)[1]) > 60  # type: ignore[index]
    )  # type: ignore[index]
    assert "wait in lanes" in run("status", server=service.url).out
    shown = run("rates", "slow.mail", server=service.url).out
    assert re.search(r"slow\.\*\s+1/s\s+configuration", shown), shown
    assert re.search(r"slow\.mail\s+rate\s+\d+\s+1/s", shown), shown
    assert service.ask("PUT", "/v1/rates/slow.mail", {"rate": "500/s"})[0] == 200
    service.wait_until(lambda: count(service, "slow.mail") == 120, "empty the lane")
    assert lane(service, "slow.mail") is None
    assert service.ask("DELETE", "/v1/rates/slow.mail")[0] == 200


def test_the_command_sets_shows_and_removes_a_limit(service: Service) -> None:
    assert run("rates", "cli.*", "7/s burst 9", server=service.url).out == "cli.*: 7/s burst 9\n"
    assert re.search(r"cli\.\*\s+7/s burst 9\s+run time", run("rates", server=service.url).out)
    assert (
        run("rates", "cli.x", "-o", "json", server=service.url).json["rates"][0]["pattern"]
        == "cli.*"
    )
    assert "has no rate limit" in run("rates", "unknown", server=service.url).out
    assert run("rates", "cli.*", "off", server=service.url).code == 0
    gone = run("rates", "cli.*", "off", server=service.url)
    assert (gone.code, "no limit was set" in gone.err) == (4, True), gone.err
    wrong = run("rates", "cli.*", "fast", server=service.url)
    assert (wrong.code, "is not a rate" in wrong.err) == (2, True), wrong.err


def test_both_clients_change_limits(service: Service) -> None:
    with chronos.Client(service.url) as client:
        assert client.set_rate("lib.*", "3/s")["source"] == "run-time"
        assert client.rates("lib.a")["rates"][0]["rate"] == "3/s"
        with pytest.raises(Refused):
            client.set_rate("lib.*", "fast")

    async def remove() -> None:
        async with chronos.AsyncClient(service.url) as client:
            await client.set_rate("lib.b", "4/s")
            assert [found["pattern"] for found in (await client.rates())["rates"]][:2] == [
                "lib.b",
                "lib.*",
            ]
            for pattern in ("lib.*", "lib.b"):
                await client.remove_rate(pattern)
            with pytest.raises(NotFound):
                await client.remove_rate("lib.*")

    asyncio.run(remove())


def test_limits_set_at_run_time_and_parked_messages_survive_a_restart(service: Service) -> None:
    """A target with the rate 0 receives nothing before and after it."""
    assert service.ask("PUT", "/v1/rates/kept", {"rate": "2.5/s"})[0] == 200
    send(service, "slow.held", 30)
    service.wait_until(
        lambda: (lane(service, "slow.held") or {"messages": 0})["messages"] == 30, "park"
    )
    service.kill()
    service.start()
    assert limits(service)[0] == ("kept", "2.5/s", "run-time")
    held = lane(service, "slow.held")
    assert held is not None
    assert (held["messages"], held["empty_at"]) == (30, None)
    assert count(service, "slow.held") == 0
    assert service.ask("PUT", "/v1/rates/slow.held", {"rate": "unlimited"})[0] == 200
    service.wait_until(lambda: count(service, "slow.held") == 30, "let them leave")
