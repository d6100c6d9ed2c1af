"""Pausing and resuming series on a real node on the embedded log: over HTTP, from the command line
and with the clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

import chronos
from chronos.client import Refused
from tests.harness.command import run
from tests.harness.service import Service

pytestmark = pytest.mark.process

DAY_MS = 24 * 3_600_000
MAX_DELAY_MS = 3_650 * DAY_MS
"""The default of `limits.max_delay`."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One node for all tests; each test uses topics and ids of its own."""
    with Service(tmp_path_factory.mktemp("pause") / "data", settings={"shards": 2}) as running:
        yield running.start()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def ms(instant: str) -> int:
    return int(datetime.fromisoformat(instant).timestamp() * 1_000)


def begin(service: Service, name: str, **fields: Any) -> int:
    """Schedule a series for the topic with its name; return its first due time (epoch ms)."""
    first_ms = now_ms() + 60_000
    body = {"target": {"topic": name}, "value": "v", "id": name, "deliver_at": first_ms}
    service.post("/v1/messages?wait=5s", body | {"repeat": "every 1h"} | fields)
    return int(fields.get("deliver_at", first_ms))


def pause(service: Service, name: str, body: Any = None) -> tuple[int, dict[str, Any]]:
    return service.ask("POST", f"/v1/messages/{name}/pause", body)


def resume(service: Service, name: str) -> tuple[int, dict[str, Any]]:
    return service.ask("POST", f"/v1/messages/{name}/resume")


def due_times(service: Service, topic: str, count: int) -> list[int]:
    """The due times of the first deliveries to a topic."""
    found = service.records(topic, count)
    return [int(one["headers"]["chronos-due-at"]) for one in found]


def test_a_paused_series_delivers_nothing_until_it_is_resumed_and_goes_on_in_its_rhythm(service):
    """A message that is due after several of its occurrences comes before the next one of them."""
    first_ms = begin(service, "beats", deliver_at=now_ms() + 300, repeat="every 300ms")
    service.records("beats", 2)
    status, answer = pause(service, "beats")
    assert (status, answer["result"]) == (200, "paused")
    assert abs(ms(answer["due_at"]) - now_ms() - MAX_DELAY_MS) < 60_000
    found = service.get("/v1/messages/beats")
    assert (found["state"], found["paused"], found["due_at"]) == (
        "pending",
        True,
        answer["due_at"],
    )
    (row,) = service.get("/v1/messages", target="beats", series="true")["messages"]
    assert row["paused"]
    before = len(service.get("/v1/topics/beats/records")["records"])
    service.post("/v1/messages", {"target": {"topic": "clock"}, "value": "v", "delay": "1s"})
    service.records("clock", 1)
    assert len(service.get("/v1/topics/beats/records")["records"]) == before

    resumed_ms = now_ms()
    status, answer = resume(service, "beats")
    assert (status, answer["result"]) == (200, "resumed")
    assert not service.get("/v1/messages/beats")["paused"]
    dues = due_times(service, "beats", before + 3)
    assert dues[before] == ms(answer["due_at"])
    assert resumed_ms <= dues[before] <= resumed_ms + 5_000
    assert all((due - first_ms) % 300 == 0 for due in dues)
    assert service.ask("DELETE", "/v1/messages/beats")[1]["result"] == "cancelled"


def test_a_pause_until_a_time_ends_with_the_first_time_of_the_rhythm_from_then_on(service):
    """Times of a cron series too, in its zone; the next times begin there."""
    first_ms = begin(service, "polls")
    until_ms = first_ms + 5 * 3_600_000 + 1
    _, answer = pause(service, "polls", {"until": until_ms})
    assert ms(answer["due_at"]) == first_ms + 6 * 3_600_000
    begin(service, "daily", repeat="cron 0 9 * * *", time_zone="Europe/Lisbon")
    _, answer = pause(service, "daily", {"until": "2031-07-10T08:00:01Z"})
    assert answer["due_at"] == "2031-07-11T08:00:00.000Z"
    found = service.get("/v1/messages/daily", occurrences=2)
    assert found["paused"]
    assert found["occurrences_at"] == ["2031-07-11T08:00:00.000Z", "2031-07-12T08:00:00.000Z"]
    # A second pause, and a resume before the first time of the rhythm, move it back.
    _, answer = pause(service, "polls", {"until": first_ms + 1})
    assert ms(answer["due_at"]) == first_ms + 3_600_000
    _, answer = resume(service, "polls")
    assert ms(answer["due_at"]) == first_ms


def test_an_occurrence_takes_its_expiry_along(service):
    """Otherwise the first one after a pause would be dead-lettered, and a pause beyond the expiry
    refused."""
    first_ms = now_ms() + 60_000
    begin(service, "bounded", deliver_at=first_ms, expire_at=first_ms + 10_000)
    _, answer = pause(service, "bounded", {"until": first_ms + 1})
    assert answer["result"] == "paused"
    found = service.get("/v1/messages/bounded")
    assert ms(found["expire_at"]) == ms(found["due_at"]) + 10_000
    # One whose expiry in the rhythm is over is delivered all the same, and the next one has its
    # own.
    first_ms = now_ms() + 400
    begin(service, "short", deliver_at=first_ms, expire_at=first_ms + 200, repeat="every 1s")
    pause(service, "short")
    service.post("/v1/messages", {"target": {"topic": "later"}, "value": "v", "delay": "1500ms"})
    service.records("later", 1)
    _, answer = resume(service, "short")
    first, second = due_times(service, "short", 2)
    assert first == ms(answer["due_at"])
    assert second == first + 1_000
    assert service.ask("DELETE", "/v1/messages/short")[1]["result"] == "cancelled"


def test_what_cannot_be_paused_is_said(service):
    """No series, no message, one that has ended, and an end that is not ahead."""
    service.post(
        "/v1/messages?wait=5s",
        {"target": {"topic": "once"}, "value": "v", "delay": "1h", "id": "once"},
    )
    for act in (pause, resume):
        status, problem = act(service, "once")
        assert (status, "is not a series" in problem["errors"][0]["detail"]) == (422, True)
        status, problem = act(service, "no-such-series")
        assert (status, problem["type"]) == (404, "urn:chronos:problem:not-found")
    begin(service, "over")
    assert service.ask("DELETE", "/v1/messages/over")[1]["result"] == "cancelled"
    status, problem = pause(service, "over")
    assert (status, problem["type"]) == (409, "urn:chronos:problem:not-pending")
    begin(service, "present")
    status, problem = pause(service, "present", {"until": now_ms() - 1})
    assert (status, problem["errors"][0]["field"]) == (422, "until")
    assert pause(service, "present", {"util": now_ms()})[0] == 422
    assert not service.get("/v1/messages/present")["paused"]


def test_a_series_that_is_not_paused_stays_as_it_is_when_it_is_resumed(service):
    """One that was moved within its interval too; and one that is resumed twice."""
    first_ms = begin(service, "moved")
    assert (
        service.ask("PATCH", "/v1/messages/moved", {"deliver_at": first_ms + 1_800_000})[0] == 200
    )
    for _ in range(2):
        status, answer = resume(service, "moved")
        assert (status, answer["result"], "offset" in answer) == (200, "resumed", False)
        assert ms(answer["due_at"]) == first_ms + 1_800_000
    pause(service, "moved")
    _, answer = resume(service, "moved")
    assert (ms(answer["due_at"]), "offset" in answer) == (first_ms, True)
    assert "offset" not in resume(service, "moved")[1]


def test_what_a_pause_could_not_keep_is_refused(service):
    """A series that makes up for everything, an end beyond the reach or the rhythm."""
    first_ms = begin(service, "invoices", late_policy="fire-all")
    status, problem = pause(service, "invoices")
    assert (status, "fire-all" in problem["errors"][0]["detail"]) == (422, True)
    begin(service, "bounded-end", repeat_until=first_ms + 3 * 3_600_000)
    status, problem = pause(service, "bounded-end", {"until": first_ms + 4 * 3_600_000})
    assert (status, "no time in its rhythm" in problem["errors"][0]["detail"]) == (422, True)
    assert pause(service, "bounded-end", {"until": first_ms + 2 * 3_600_000})[0] == 200
    beyond = {"until": now_ms() + MAX_DELAY_MS + 60_000}
    status, problem = pause(service, "bounded-end", beyond)
    assert (status, problem["errors"][0]["field"]) == (422, "until")
    wrong = {"action": "pause", "filter": {"target": "bounded-end"}} | beyond
    assert service.ask("POST", "/v1/jobs", wrong)[0] == 422
    # The last occurrence keeps its place in the rhythm.
    first_ms = begin(service, "last", repeat_times=1)
    _, answer = pause(service, "last", {"until": first_ms + 1})
    assert ms(answer["due_at"]) == first_ms + 3_600_000
    assert service.get("/v1/messages/last")["paused"]


def test_a_series_of_long_steps_is_not_paused_into_the_middle_of_one(tmp_path):
    """Its next time lies beyond what a message can be moved to."""
    settings = {"shards": 1, "limits.max_delay": "7d"}
    with Service(tmp_path / "data", settings=settings) as service:
        service.start()
        begin(service, "yearly", repeat="cron 0 9 1 1 *", deliver_at=now_ms() + 3_600_000)
        status, problem = pause(service, "yearly")
        assert (status, "more than 7d ahead" in problem["errors"][0]["detail"]) == (422, True)


def job(service: Service, action: str, matching: Any, **fields: Any) -> dict[str, Any]:
    """Start a job, and wait for its end."""
    found = service.post("/v1/jobs", {"action": action, "filter": matching} | fields)
    path = f"/v1/jobs/{found['id']}"
    service.wait_until(lambda: service.get(path)["state"] != "running", "end the job")
    ended: dict[str, Any] = service.get(path)
    return ended


def test_a_job_pauses_all_series_of_a_filter_and_no_other_message(service):
    """Each goes on at a time of its own rhythm."""
    firsts = {}
    for at in range(20):
        name = f"many-{at}"
        firsts[name] = begin(service, name, target={"topic": "many"})
    service.post(
        "/v1/messages?wait=5s",
        {"target": {"topic": "many"}, "value": "v", "delay": "1h", "id": "many-once"},
    )
    found = job(service, "pause", {"target": "many"})
    assert (found["matched"], found["done"], found["failed"]) == (20, 20, 0)
    rows = service.get("/v1/messages", target="many", limit=100)["messages"]
    assert {one["id"] for one in rows if one["paused"]} == {*firsts}
    assert resume(service, "many-7")[0] == 200
    found = job(service, "resume", {"target": "many"})
    assert (found["matched"], found["done"], found["failed"]) == (20, 19, 0)
    assert found["too_late"] == 0
    for name, first_ms in firsts.items():
        assert ms(service.get(f"/v1/messages/{name}")["due_at"]) == first_ms
    until_ms = now_ms() + 10 * 3_600_000
    found = job(service, "pause", {"target": "many"}, until=until_ms)
    for name, first_ms in firsts.items():
        due_ms = ms(service.get(f"/v1/messages/{name}")["due_at"])
        assert until_ms <= due_ms < until_ms + 3_600_000
        assert (due_ms - first_ms) % 3_600_000 == 0
    for wrong in (
        {"action": "pause", "filter": {}},
        {"action": "cancel", "filter": {"target": "x"}, "until": until_ms},
    ):
        assert service.ask("POST", "/v1/jobs", wrong)[0] == 422


def test_the_command_line_pauses_and_resumes(service):
    """One by its id, and all of a filter; `get` and `list` say that it is paused."""
    begin(service, "nightly")
    done = run("pause", "nightly", server=service.url)
    assert (done.code, done.out) == (0, "paused\n")
    assert done.err.startswith("paused until it is resumed, at the latest until 20")
    assert "pending, paused" in run("get", "nightly", server=service.url).out
    listed = run("list", "--target", "nightly", server=service.url).out
    assert "every 1h, paused" in listed
    done = run("resume", "nightly", server=service.url)
    assert (done.code, done.out) == (0, "resumed\n")
    done = run("pause", "--target", "nightly", "--resume-at", "+3h", "--yes", server=service.url)
    assert (done.code, done.out.startswith("1 paused")) == (0, True)
    done = run("resume", "--series", "--target", "nightly", "--yes", server=service.url)
    assert (done.code, done.out.startswith("1 resumed in ")) == (0, True)
    done = run("resume", "--series", "--target", "nightly", "--yes", server=service.url)
    assert (done.code, done.out.startswith("0 resumed, 1 not paused in ")) == (0, True)
    done = run("resume", "nightly", server=service.url)
    assert (done.code, done.out) == (0, "resumed\n")
    done = run("pause", "--target", "nightly", "--until", "+5h", "--yes", server=service.url)
    assert (done.code, done.out.startswith("1 paused")) == (0, True)
    assert run("resume", "--target", "nightly", "--until", "+5h", server=service.url).code == 2
    assert run("pause", server=service.url).code == 2
    assert run("pause", "nightly", "--resume-at", "soon", server=service.url).code == 2
    assert run("resume", "no-such-series", server=service.url).code == 4


def test_the_clients_pause_and_resume(service):
    """The blocking one and the asynchronous one."""
    until = datetime(2031, 7, 10, 12, tzinfo=UTC)
    begin(service, "asked", repeat="cron 0 9 * * *")
    with chronos.Client(service.url) as client:
        paused = client.pause("asked", until=until)
        assert (bool(paused), paused.result) == (True, "paused")
        assert paused.due_at == datetime(2031, 7, 11, 9, tzinfo=UTC)
        assert client.get("asked").paused
        assert client.resume("asked").result == "resumed"
        assert not client.get("asked").paused
        assert client.pause_where(until=until, wait="30s", target="asked").done == 1
        assert client.resume_where(wait="30s", target="asked").done == 1
        with pytest.raises(Refused, match="not ahead"):
            client.pause("asked", until=datetime(2020, 1, 1, tzinfo=UTC))

    async def again() -> None:
        async with chronos.AsyncClient(service.url) as client:
            assert await client.pause("asked")
            assert (await client.get("asked")).paused
            assert (await client.resume("asked")).result == "resumed"
            assert (await client.pause_where(wait="30s", target="asked")).done == 1
            assert (await client.resume_where(wait="30s", target="asked")).done == 1

    asyncio.run(again())
