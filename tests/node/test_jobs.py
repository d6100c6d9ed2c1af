"""Bulk operations of a real node on the embedded log: over HTTP, from the command line and with the
clients."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from chronos.client import AsyncClient, Client, Job, NotFound, Refused
from tests.harness.command import run as command
from tests.harness.service import Service

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
SHARDS = 3

PAGES_LEFT = 8
"""Pages that 10,000 deleted rows take at most (6 were measured); 30,000 take more."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One node for all tests; each test uses topics of its own."""
    with Service(tmp_path_factory.mktemp("jobs") / "data", settings={"shards": SHARDS}) as running:
        yield running.start()


def schedule(service: Service, topic: str, count: int, **fields: Any) -> list[str]:
    """Schedule messages with and without ids, an hour ahead, half of them for the tenant `t1`;
    return their ids."""
    batch = []
    for at in range(count):
        target = {"topic": topic, "headers": {"tenant": f"t{at % 2}"}}
        batch.append({"target": target, "value": "v", "delay": "1h"} | fields)
        if at % 4:
            batch[-1]["id"] = f"{topic}/{at}"
    accepted = service.post("/v1/messages", batch)
    return [one["id"] for one in accepted]


def run_job(
    service: Service, action: str, matching: dict[str, Any], **fields: Any
) -> dict[str, Any]:
    """Start a job and wait for its end."""
    job = service.post("/v1/jobs", {"action": action, "filter": matching} | fields)
    found: dict[str, Any] = {}

    def has_ended() -> bool:
        nonlocal found
        found = service.get(f"/v1/jobs/{job['id']}")
        return bool(found["state"] != "running")

    service.wait_until(has_ended, f"end the job {job['id']}", timeout_s=60)
    return found


def states(service: Service, ids: list[str]) -> list[str]:
    """The states of messages; waits until all of them are taken in."""
    found: list[Any] = []

    def are_known() -> bool:
        answers = [service.ask("GET", f"/v1/messages/{quote(one, safe='')}") for one in ids]
        found[:] = [answer.get("state") for _, answer in answers]
        return all(status == 200 for status, _ in answers)

    service.wait_until(are_known, "take in the messages")
    return found


def outcome(job: dict[str, Any]) -> tuple[str, int, int, int, int]:
    return job["state"], job["matched"], job["done"], job["too_late"], job["failed"]


def test_a_filter_cancels_exactly_its_messages_and_a_second_run_finds_none(service):
    """With ids and without, in every shard; the others stay; the counts by target are exact."""
    ids = schedule(service, "bulk-a", 40) + schedule(service, "bulk-b", 5)
    counted = run_job(service, "count", {})
    targets = {each["topic"]: each["messages"] for each in counted["targets"]}
    assert (targets["bulk-a"], targets["bulk-b"]) == (40, 5)
    assert counted["matched"] == counted["scanned"] == service.pending()

    job = run_job(service, "cancel", {"target": "bulk-a", "headers": {"tenant": "t1"}})
    assert outcome(job) == ("done", 20, 20, 0, 0)
    assert job["targets"] == [{"topic": "bulk-a", "messages": 20}]
    assert (
        states(service, ids)
        == [("pending", "cancelled")[at % 2] for at in range(40)] + ["pending"] * 5
    )
    assert outcome(
        run_job(service, "cancel", {"target": "bulk-a", "headers": {"tenant": "t1"}})
    ) == (
        "done",
        0,
        0,
        0,
        0,
    )
    listed = service.get("/v1/jobs")["jobs"]
    assert [each["action"] for each in listed[:3]] == ["cancel", "cancel", "count"]
    assert "targets" not in listed[0]


@pytest.mark.slow
def test_a_list_after_many_cancelled_messages_is_read_in_parts_and_the_store_is_compacted(
    tmp_path,
):
    """The one that is left is found, page by page, and on few pages when the store is
    compacted."""
    with Service(tmp_path / "data", settings={"shards": 1}) as alone:
        alone.start()
        at_ms = (time.time_ns() // 1_000_000 // 60_000 + 60) * 60_000
        for start in range(0, 30_000, 1_000):
            alone.post(
                "/v1/messages",
                [
                    {"target": {"topic": "far"}, "value": "v", "deliver_at": at_ms + start + each}
                    for each in range(1_000)
                ],
            )
        left = {"target": {"topic": "left"}, "value": "v", "deliver_at": at_ms + 59_000}
        message_id = alone.post("/v1/messages", left)["id"]
        alone.wait_until(lambda: alone.pending() == 30_001, "take in the messages", timeout_s=60)
        job = run_job(alone, "cancel", {"target": "far"})
        assert outcome(job) == ("done", 30_000, 30_000, 0, 0)
        assert pages_until(alone, message_id)
        alone.wait_until(
            lambda: "store compacted" in alone.log_path.read_text(),
            "compact the store",
            timeout_s=60,
        )
        # If it was compacted before the job ended, up to 10,000 deleted rows are left.
        alone.wait_until(
            lambda: pages_until(alone, message_id) <= PAGES_LEFT,
            "list the message on few pages",
            timeout_s=60,
        )


def pages_until(service, message_id: str) -> int:
    """The number of pages up to the one that has the only message that is left."""
    count, after = 0, None
    while True:
        page = service.get("/v1/messages?limit=1" + (f"&after={after}" if after else ""))
        count, after = count + 1, page["after"]
        if page["messages"]:
            assert [one["id"] for one in page["messages"]] == [message_id]
            return count


def test_a_filter_reschedules_and_fires(service):
    """A message that was moved is not found again at its new place; one that expires before the new
    time is refused."""
    ids = schedule(service, "moved", 12)
    service.post(
        "/v1/messages",
        {
            "target": {"topic": "moved"},
            "value": None,
            "delay": "1h",
            "id": "moved/x",
            "expire_at": time.time_ns() // 1_000_000 + 7_000_000,
        },
    )
    job = run_job(service, "reschedule", {"target": "moved"}, delay="3h")
    assert outcome(job) == ("done", 13, 12, 0, 1)
    assert job["reasons"] == {"beyond-expiry": 1}
    soon = service.get(
        "/v1/messages", target="moved", due_to=time.time_ns() // 1_000_000 + 2 * 3_600_000
    )
    assert [one["id"] for one in soon["messages"]] == ["moved/x"]
    count = run_job(service, "count", {"target": "moved", "contains": "ved/x"})
    assert outcome(count) == ("done", 1, 0, 0, 0)
    count = run_job(service, "count", {"target": "moved", "series": True})
    assert outcome(count) == ("done", 0, 0, 0, 0)
    assert outcome(run_job(service, "fire", {"id_prefix": "moved/"})) == ("done", 10, 10, 0, 0), ids
    service.wait_until(
        lambda: (
            states(service, ids)
            == ["delivered" if one.startswith("moved/") else "pending" for one in ids]
        ),
        "deliver what was fired",
    )


def test_a_job_leaves_messages_alone_that_are_scheduled_after_its_start(service):
    """The due window is compared with the time of the next delivery."""
    at_ms = time.time_ns() // 1_000_000 + 30 * 86_400_000
    first = service.post(
        "/v1/messages",
        [{"target": {"topic": "w"}, "value": None, "deliver_at": at_ms + n} for n in range(10)],
    )
    job = run_job(service, "cancel", {"due_from": at_ms + 2, "due_to": at_ms + 5})
    assert outcome(job) == ("done", 3, 3, 0, 0)
    later = service.post(
        "/v1/messages", {"target": {"topic": "w"}, "value": None, "deliver_at": at_ms + 3}
    )
    expected = ["cancelled" if 2 <= n < 5 else "pending" for n in range(10)] + ["pending"]
    assert states(service, [one["id"] for one in [*first, later]]) == expected


def test_a_stopped_job_writes_nothing_more_and_says_how_far_it_got(service):
    """What it wrote stays; a repeated job does the rest."""
    count = 6_000
    schedule(service, "stopped", count, delay="2h")
    service.wait_until(
        lambda: run_job(service, "count", {"target": "stopped"})["matched"] == count, "take them in"
    )
    started = service.post("/v1/jobs", {"action": "cancel", "filter": {"target": "stopped"}})
    status, stopped = service.ask("DELETE", f"/v1/jobs/{started['id']}")
    assert status == 200
    assert stopped["state"] in ("stopped", "done")
    assert stopped["written"] == stopped["done"] + stopped["too_late"] + stopped["failed"]
    left = run_job(service, "count", {"target": "stopped"})["matched"]
    assert left == count - stopped["done"]
    assert outcome(run_job(service, "cancel", {"target": "stopped"})) == ("done", left, left, 0, 0)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"action": "cancel"}, "filter"),
        ({"action": "cancel", "filter": {}}, "filter"),
        ({"action": "cancel", "filter": {"target": "a"}, "delay": "1h"}, "delay"),
        ({"action": "reschedule", "filter": {"target": "a"}}, "deliver_at"),
        ({"action": "reschedule", "filter": {"target": "a"}, "delay": "99999d"}, "deliver_at"),
        ({"action": "cancel", "filter": {"targte": "a"}}, "filter.targte"),
        ({"action": "cancel", "filter": {"due_from": "yesterday"}}, "filter.due_from"),
        ({"action": "purge", "filter": {"target": "a"}}, "action"),
    ],
)
def test_a_job_that_cannot_be_executed_is_refused_by_field(service, body, field):
    """A filter without conditions is an accident."""
    status, problem = service.ask("POST", "/v1/jobs", body)
    assert (status, problem["errors"][0]["field"]) == (422, field)


def test_an_unknown_job_is_not_found(service):
    """After a restart too: jobs are in memory."""
    for method in ("GET", "DELETE"):
        status, problem = service.ask(method, "/v1/jobs/none")
        assert (status, problem["type"]) == (404, "urn:chronos:problem:no-job")


def test_jobs_on_the_command_line(service):
    """Dry run, the question that cannot be asked, the job itself, the list of jobs, and their exit
    codes."""
    run = partial(command, server=service.url)
    ids = schedule(service, "typed", 30)
    service.wait_until(
        lambda: run_job(service, "count", {"target": "typed"})["matched"] == 30, "take them in"
    )
    dry = run("cancel", "--target", "typed", "--header", "tenant=t0", "--dry-run")
    assert (dry.code, [line.split() for line in dry.out.splitlines()[1:]]) == (
        0,
        [["typed", "15"], ["all", "15"]],
    )
    assert run("fire", "--target", "typed", "--dry-run", "-o", "json").json["matched"] == 30
    counted = run("list", "--count", "--target", "typed")
    assert (counted.code, counted.out.split()) == (
        0,
        ["TARGET", "MESSAGES", "typed", "30", "all", "30"],
    )
    asked = run("cancel", "--target", "typed")
    assert (asked.code, "--yes" in asked.err) == (2, True)
    assert states(service, ids) == ["pending"] * 30

    done = run("cancel", "--target", "typed", "--header", "tenant=t0", "--yes")
    assert (done.code, done.out.split(" in ")[0]) == (0, "15 cancelled")
    late = run("reschedule", "--id-prefix", "typed/", "--in", "2h", "--yes", "-o", "json")
    assert (late.code, late.json["matched"], late.json["done"]) == (0, 15, 15)
    assert run("cancel", "--id-prefix", "none-", "--dry-run").err == "no pending message matches\n"
    for wrong in (
        ("cancel",),
        ("cancel", "typed/1", "--target", "typed"),
        ("cancel", "typed/1", "--dry-run"),
        ("reschedule", "--target", "typed", "--yes"),
        ("jobs", "--stop"),
        ("fire", "--header", "x", "--yes"),
    ):
        assert run(*wrong).code == 2, wrong

    listed = run("jobs")
    assert listed.out.splitlines()[0].split()[:3] == ["JOB", "ACTION", "STATE"]
    one = run("jobs", late.json["id"])
    assert "id_prefix typed/" in one.out
    assert run("jobs", late.json["id"], "--stop", "-o", "json").json["state"] == "done"
    assert run("jobs", "none").code == 4


def test_a_terminal_is_asked_before_many_messages_are_changed(service):
    """The counts come before the question; anything but yes changes nothing."""
    ids = schedule(service, "asked", 4)
    service.wait_until(
        lambda: run_job(service, "count", {"target": "asked"})["matched"] == 4, "take them in"
    )
    for answer, code, expected in ((b"n\n", 1, "pending"), (b"y\n", 0, "cancelled")):
        code_found, shown = on_terminal(
            ["cancel", "--target", "asked", "--server", service.url], answer
        )
        assert (code_found, "cancel 4 messages?" in shown) == (code, True), shown
        assert states(service, ids) == [expected] * 4


def test_what_dies_while_a_terminal_is_asked_is_not_discarded(service):
    """Only what the counts before the question were of."""

    def die(count: int) -> None:
        """Expire in the lane of the target, and leave it."""
        service.ask("PUT", "/v1/rates/never", {"rate": "0/s"})
        expire_ms = time.time_ns() // 1_000_000 + 1_500
        when = {"target": {"topic": "never"}, "value": "v", "delay": 0, "expire_at": expire_ms}
        batch = [when | {"id": f"{count}-{at}"} for at in range(count)]
        service.post("/v1/messages?wait=5s", batch)
        service.wait_until(lambda: time.time_ns() // 1_000_000 > expire_ms, "let them expire")
        service.ask("PUT", "/v1/rates/never", {"rate": "100/s"})

    def dead() -> set[str]:
        found = service.get("/v1/dead-letters", target="never")["letters"]
        return {letter["id"] for letter in found}

    def later() -> None:
        die(1)
        service.wait_until(lambda: len(dead()) == 3, "let the third one die")

    die(2)
    service.wait_until(lambda: len(dead()) == 2, "let both die")
    arguments = ["dead-letters", "discard", "--target", "never", "--server", service.url]
    code, shown = on_terminal(arguments, b"y\n", later)
    assert (code, "discard 2 dead letters?" in shown) == (0, True), shown
    assert dead() == {"1-0"}
    code, shown = on_terminal([*arguments[:2], "--all", *arguments[4:]], b"y\n")
    assert (code, "discard 1 dead letter?" in shown, dead()) == (0, True, set()), shown


def on_terminal(
    arguments: list[str], answer: bytes, before: Callable[[], None] = lambda: None
) -> tuple[int, str]:
    """Run a command on a terminal that answers its question, after `before`; its exit code and all
    of its output."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "chronos", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=ROOT,
    )
    os.close(theirs)
    shown, answered = b"", False
    with suppress(OSError):  # the terminal is closed when the process ends
        while data := os.read(ours, 4_096):
            shown += data
            if not answered and b"?" in shown:
                before()
                os.write(ours, answer)
                answered = True
    os.close(ours)
    return process.wait(60), shown.decode(errors="replace")


def test_jobs_with_the_clients(service):
    """Blocking and asynchronous; a job is true once it did all of its work."""
    schedule(service, "called", 20)
    with Client(service.url) as client:
        for _ in range(50):
            counted = client.count_where(target="called", wait="30s")
            if counted.matched == 20:
                break
        assert [(each.topic, each.messages) for each in counted.targets] == [("called", 20)]
        cancelled = client.cancel_where(target="called", headers={"tenant": "t1"}, wait="30s")
        assert cancelled
        assert (cancelled.state, cancelled.done) == ("done", 10)
        assert client.job(cancelled.id) == cancelled
        assert client.jobs()[0].id == cancelled.id
        with pytest.raises(NotFound):
            client.stop_job("none")
        with pytest.raises(Refused):
            client.cancel_where()

    async def work() -> Job:
        async with AsyncClient(service.url) as client:
            moved = await client.reschedule_where(id_prefix="called/", delay="3h", wait="30s")
            assert (await client.stop_job(moved.id)).state == "done"
            assert (await client.jobs())[0].id == moved.id
            return await client.fire_where(
                target="called", due_to="2000-01-01T00:00:00Z", wait="30s"
            )

    assert asyncio.run(work()).matched == 0


def test_a_killed_node_takes_its_job_along_and_the_repeated_job_does_the_rest(tmp_path):
    """What was written stays; the command says that the job is lost."""
    count = 20_000
    with Service(tmp_path / "data", settings={"shards": 1}) as service:
        service.start()
        for part in range(2):
            schedule(service, f"killed{part}", count // 2, delay="2h")
        service.wait_until(lambda: service.pending() == count, "take them in")
        started = service.post("/v1/jobs", {"action": "cancel", "filter": {"due_from": 0}})
        service.wait_until(
            lambda: service.get(f"/v1/jobs/{started['id']}")["done"] > 0, "cancel some"
        )
        service.kill()
        service.start()
        assert service.ask("GET", f"/v1/jobs/{started['id']}")[0] == 404
        left = service.pending()
        assert left < count
        again = run_job(service, "cancel", {"due_from": 0})
        assert (again["state"], again["failed"], service.pending()) == ("done", 0, 0)
        assert again["matched"] <= left
        (shard,) = service.shards()
        assert (shard["totals"]["cancelled"], shard["totals"]["delivered"]) == (count, 0)
