"""Bulk operations whose shard is not there: it has not applied its log, or leaves the node."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from socketserver import ThreadingTCPServer
from typing import Any

import pytest

from chronos.admin.messages import jobs
from chronos.workers.replica.leadership import Assignment
from tests.harness.command import run
from tests.harness.inside import Inside
from tests.harness.joined import assign, holder, join, leave
from tests.harness.serving import Handler, serving
from tests.harness.waiting import wait_until


def ended(service: Inside, job: str) -> dict[str, Any]:
    """The job, once it has ended."""
    found: dict[str, Any] = {}

    def has_ended() -> bool:
        found.update(service.ask("GET", f"/v1/jobs/{job}").json())
        return bool(found["state"] != "running")

    wait_until(has_ended, lambda: found)
    return found


def test_a_job_whose_parts_on_other_nodes_are_to_begin_counts_as_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it cannot begin."""
    asked, is_answered = threading.Event(), threading.Event()

    class Slow(Handler):
        """A node that refuses its part late."""

        def do_POST(self) -> None:  # noqa: N802
            self.rfile.read(int(self.headers["Content-Length"]))
            asked.set()
            is_answered.wait(30)
            self.reply(500, b"")

    monkeypatch.setattr(jobs, "RUNNING_MAX", 1)
    with (
        serving(ThreadingTCPServer(("127.0.0.1", 0), Slow)) as other,
        Inside(tmp_path, node__id="n1") as service,
        ThreadPoolExecutor(1) as pool,
    ):
        leave(service)
        join(service, holder("n2", other))
        begin = partial(service.ask, "POST", "/v1/jobs", {"action": "count"})
        first = pool.submit(begin)
        try:
            wait_until(asked.is_set)
            assert (begin().status, begin().problem) == (409, "too-many-jobs")
        finally:
            is_answered.set()
        assert first.result().status == 503
        assert begin().status == 503
        assert service.ask("GET", "/v1/jobs").json()["jobs"] == []


@pytest.mark.process
def test_a_job_fails_if_its_shard_has_not_applied_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A count too. The command names the shard, and says to repeat it."""
    monkeypatch.setattr(jobs, "CAUGHT_UP_S", 0.2)
    with Inside(tmp_path, workers__pull="off") as service:
        body = {"target": {"topic": "late"}, "value": "v", "delay": "1h", "id": "late"}
        assert service.ask("POST", "/v1/messages", body).status == 202
        for action in ("count", "cancel"):
            asked = {"action": action, "filter": {"target": "late"}}
            job = ended(service, service.ask("POST", "/v1/jobs", asked).json()["id"])
            assert (job["state"], job["matched"]) == ("failed", 0)
            assert job["error"].startswith("shard 0 has not applied its log in time")
        shown = run("cancel", "--target", "late", "--yes", server=service.server.url)
        assert shown.code == 1
        assert "shard 0 has not applied its log in time" in shown.err
        assert "Repeat the command" in shown.err


def test_a_job_fails_if_its_shard_leaves_the_node(tmp_path: Path) -> None:
    """The results of the actions that it wrote are not known here."""
    asked, is_written = threading.Event(), threading.Event()

    def assigned() -> Assignment:
        """That of a master, until a job has written its actions."""
        asked.set()
        is_written.wait()
        return Assignment(kind="none")

    with Inside(tmp_path) as service:
        join(service)
        body = {"target": {"topic": "moved"}, "value": "v", "delay": "1h"}
        for name in ("a", "b"):
            answer = service.ask("POST", "/v1/messages?wait=5s", body | {"id": name})
            assert answer.json()["result"] == "scheduled"
        try:
            assign(service, assigned)
            wait_until(asked.is_set)
            path = "/v1/jobs"
            started = service.ask(
                "POST", path, {"action": "cancel", "filter": {"target": "moved"}}
            ).json()
            path = f"{path}/{started['id']}"
            wait_until(lambda: service.ask("GET", path).json()["written"] == 2)
        finally:
            is_written.set()
        job = ended(service, started["id"])
    assert (job["state"], job["written"], job["done"]) == ("failed", 2, 0)
    assert job["error"] == (
        "this node no longer holds shard 0; the results of 2 actions are not known"
    )
