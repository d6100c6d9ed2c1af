"""The audit trail: one place writes down who asked to change or to see what, with the outcome,
whatever answers."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from structlog.testing import capture_logs

from chronos.adapters.audit import AuditFile
from chronos.admin.http.audit import Trail
from chronos.admin.http.problems import ProblemError
from chronos.config import load
from chronos.errors import ConfigurationError, Retry
from tests.harness.audits import result
from tests.harness.inside import Inside
from tests.harness.tokens import tokens_file
from tests.harness.waiting import wait_until

ROLES: dict[str, list[str]] = {
    "reader": ["read", "payload"],
    "writer": ["write"],
    "operator": ["operate"],
}


def tokens(folder: Path) -> Path:
    """A file with one token of each role; a token is its name."""
    return tokens_file(folder, ROLES)


def entries(path: Path) -> list[dict[str, Any]]:
    """The entries of a file so far."""
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def outcomes(path: Path, count: int) -> list[dict[str, Any]]:
    """The first outcomes of a file, once that many are there."""

    def found() -> list[dict[str, Any]]:
        return [each for each in entries(path) if each["phase"] == "outcome"]

    wait_until(lambda: len(found()) >= count)
    return found()


def message(message_id: str, delay: str = "1h", target: str = "t") -> dict[str, Any]:
    """The body that schedules one."""
    return {"target": {"topic": target}, "value": "secret", "delay": delay, "id": message_id}


def test_every_change_and_every_refusal_has_one_entry(tmp_path):
    """Also refusals inside of handlers, and of bodies that cannot be read; reads have none, those
    of payloads do."""
    path = tmp_path / "audit.jsonl"
    requests: list[tuple[str, str, str, object, tuple[str, list[str], int, str] | None]] = [
        ("writer", "POST", "/v1/messages", message("a"), ("schedule", ["a"], 202, "accepted")),
        ("reader", "GET", "/v1/messages/a", None, None),
        ("reader", "GET", "/v1/messages/a?payload=true", None, ("get", ["a"], 200, "pending")),
        (
            "reader",
            "GET",
            "/v1/dead-letters/a",
            None,
            ("dead_letter", ["a"], 404, "no-dead-letter"),
        ),
        (
            "writer",
            "POST",
            "/v1/messages",
            message("b", target="__x"),
            ("schedule", ["b"], 422, "invalid"),
        ),
        ("writer", "POST", "/v1/messages", b"{", ("schedule", [], 400, "malformed")),
        (
            "writer",
            "PATCH",
            "/v1/messages/a",
            {"delay": "2h"},
            ("reschedule", ["a"], 200, "rescheduled"),
        ),
        ("writer", "DELETE", "/v1/messages/none", None, ("cancel", ["none"], 200, "unknown")),
        ("writer", "DELETE", "/v1/messages/a", None, ("cancel", ["a"], 200, "cancelled")),
        ("reader", "DELETE", "/v1/messages/a", None, ("cancel", ["a"], 403, "forbidden")),
        (
            "operator",
            "POST",
            "/v1/shards/0/transfer?to=x",
            None,
            ("transfer", ["0"], 501, "standalone"),
        ),
        (
            "operator",
            "POST",
            "/v1/shards/0/transfer?from=x",
            None,
            ("transfer", ["0"], 422, "invalid"),
        ),
        ("nobody", "DELETE", "/v1/messages/a", None, None),
        (
            "reader",
            "GET",
            "/v1/topics/chronos.delay/records",
            None,
            ("records", ["chronos.delay"], 200, "done"),
        ),
        ("reader", "GET", "/v1/topics/chronos.dead-letter/records", None, None),
    ]
    with Inside(tmp_path, admin__tokens=tokens(tmp_path), audit__path=path) as service:
        headers = {"Content-Type": "application/json"}
        answers = [
            service.ask(verb, at, body, headers, token=token)
            for token, verb, at, body, _ in requests
        ]
        expected = [
            (token, row, answer)
            for (token, *_, row), answer in zip(requests, answers, strict=True)
            if row
        ]
        found = outcomes(path, len(expected))
    assert [(e["token"], (e["verb"], e["ids"], e["status"], e["outcome"])) for e in found] == [
        (token, row) for token, row, _ in expected
    ]
    assert [each["request"] for each in found] == [
        answer.headers["chronos-request"] for *_, answer in expected
    ]
    assert {each["client"] for each in found} == {"127.0.0.1"}
    assert [each["asked"] for each in found if each["verb"] == "reschedule"] == ['{"delay": "2h"}']
    assert [each["query"] for each in found if each["verb"] == "transfer"] == ["to=x", "from=x"]
    assert "secret" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_batch_has_all_of_its_ids(tmp_path):
    """Several entries of one request, none larger than a record may be."""
    path = tmp_path / "audit.jsonl"
    ids = [f"id-{number}" for number in range(450)]
    with Inside(tmp_path, audit__path=path, audit__required="on") as service:
        assert service.ask("POST", "/v1/messages", [message(each) for each in ids]).status == 202
        assert service.ask("POST", "/v1/messages", {**message(""), "id": None}).status == 422
        found = outcomes(path, 4)
    for phase in ("intent", "outcome"):
        batch = [
            each
            for each in entries(path)
            if each["phase"] == phase and each["request"] == found[0]["request"]
        ]
        assert [each["token"] for each in batch] == [None] * 3
        assert [one for each in batch for one in each["ids"]] == ids


def test_dead_letters_that_are_named_by_their_positions_are_in_the_trail(tmp_path):
    """What cannot be a position is left out: the request is refused."""
    path = tmp_path / "audit.jsonl"
    with Inside(tmp_path, audit__path=path) as service:
        for positions, status in ((["0:1", "0:2"], 200), (["0:3", 4], 422), ("0:5", 422)):
            answer = service.ask("POST", "/v1/dead-letters/discard", {"positions": positions})
            assert answer.status == status
        found = outcomes(path, 3)
    assert [each["ids"] for each in found] == [["0:1", "0:2"], ["0:3"], []]


def test_the_intent_is_durable_before_a_request_is_executed(tmp_path):
    """A request that waits has its intent in the file; one that cannot be written down does
    nothing, and deliveries go on."""
    folder = tmp_path / "trail"
    folder.mkdir()
    path = folder / "audit.jsonl"
    settings = {
        "admin__tokens": tokens(tmp_path),
        "audit__path": path,
        "audit__required": "on",
    }
    with Inside(tmp_path, **settings) as service, ExitStack() as stack:
        poll = stack.enter_context(socket.create_connection(("127.0.0.1", service.port)))
        poll.settimeout(30)
        poll.sendall(
            b"GET /v1/topics/later/records?wait=60s HTTP/1.1\r\nHost: localhost\r\nAuthorization: "
            b"Bearer reader\r\n\r\n"
        )
        wait_until(lambda: path.exists() and len(entries(path)) == 1)
        assert [(each["phase"], each["verb"]) for each in entries(path)] == [("intent", "records")]
        assert (
            service.ask(
                "POST", "/v1/messages", message("soon", "2s", "later"), token="writer"
            ).status
            == 202
        )
        outcomes(path, 1)
        away = folder.rename(tmp_path / "away")
        with capture_logs() as logs:
            for _ in range(3):
                refused = service.ask("POST", "/v1/messages", message("refused"), token="writer")
                assert (refused.status, refused.problem) == (503, "not-audited")
                assert "audit.path" in refused.json()["detail"]
            assert (
                service.ask("GET", "/v1/messages/soon?payload=true", token="reader").problem
                == "not-audited"
            )
            assert service.ask("GET", "/livez").status == 200
            assert service.ask("GET", "/v1/messages/refused", token="reader").status == 404
            # The message is delivered, and the poll that began before is answered: the true answer.
            assert b" 200 OK" in poll.recv(65_536)
            assert (
                service.ask("DELETE", "/v1/messages/soon", token="writer").problem == "not-audited"
            )
            metrics = service.ask("GET", "/metrics", token="reader").body.decode()
            assert "chronos_audit_failing 1.0" in metrics
        assert [each["event"] for each in logs if each["event"].startswith("audit")] == [
            "audit entries cannot be written"
        ]
        away.rename(folder)
        wait_until(
            lambda: (
                service.ask("POST", "/v1/messages", message("again"), token="writer").status == 202
            )
        )
        found = outcomes(path, 3)
        assert (
            "chronos_audit_failing 0.0"
            in service.ask("GET", "/metrics", token="reader").body.decode()
        )
    assert [(each["verb"], each["status"]) for each in found] == [
        ("schedule", 202),
        ("records", 200),
        ("schedule", 202),
    ]
    assert {each["ids"][0] for each in entries(path)} == {"later", "soon", "again"}


class Stuck:
    """A sink whose first write takes until the gate is open, as on a file system that hangs."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.written: list[bytes] = []

    def write(self, entries: Sequence[bytes]) -> None:
        """Keep them, in time."""
        assert self.gate.wait(30)
        self.written += entries

    def close(self) -> None:
        """Nothing is held."""


def test_a_write_that_hangs_refuses_requests_at_once(monkeypatch):
    """The first ones after the time that an intent may take; none of them waits for the thread, and
    outcomes are not lost."""
    monkeypatch.setattr("chronos.admin.http.audit.INTENT_S", 0.2)
    sink = Stuck()

    async def main() -> None:
        trail = Trail(sink, node="n", required=True, now_ms=lambda: 0)
        trail.tell([b"outcome"], keep=True)
        refused = await asyncio.gather(
            *(trail.intend([b"%d" % number]) for number in range(5)), return_exceptions=True
        )
        assert [type(each) for each in refused] == [ProblemError] * 5
        began_s = asyncio.get_running_loop().time()
        for number in range(100):
            with pytest.raises(ProblemError, match="the audit trail cannot be written"):
                await trail.intend([b"later %d" % number])
        assert asyncio.get_running_loop().time() - began_s < 5
        sink.gate.set()
        await trail.close()

    asyncio.run(main())
    assert sink.written == [b"outcome"]


def test_a_trail_that_is_not_required_stops_nothing(tmp_path):
    """What waits is bounded, and written once that is possible."""
    folder = tmp_path / "trail"
    folder.mkdir()
    path = folder / "audit.jsonl"
    with Inside(tmp_path, audit__path=path) as service:
        away = folder.rename(tmp_path / "away")
        for number in range(5):
            assert service.ask("POST", "/v1/messages", message(f"id-{number}")).status == 202
        away.rename(folder)
        assert [each["ids"] for each in outcomes(path, 5)] == [
            [f"id-{number}"] for number in range(5)
        ]


def test_a_file_that_was_renamed_is_followed_by_a_new_one(tmp_path):
    """As logrotate does it; no entry is lost, and one cut short by a full disk is not joined to the
    next one."""
    path = tmp_path / "audit.jsonl"
    sink = AuditFile(str(path))
    sink.write([b'{"a":1}', b'{"a":2}'])
    path.rename(tmp_path / "audit.jsonl.1")
    sink.write([b'{"a":3}'])
    assert [entries(tmp_path / name) for name in ("audit.jsonl.1", "audit.jsonl")] == [
        [{"a": 1}, {"a": 2}],
        [{"a": 3}],
    ]
    path.unlink()
    path.mkdir()
    with pytest.raises(Retry, match=r"audit\.path .* cannot be written: Is a directory"):
        sink.write([b'{"a":4}'])
    path.rmdir()
    sink.write([b'{"a":4}'])
    assert entries(path) == [{"a": 4}]
    # By another process, or by the one before.
    with path.open("ab") as file:
        file.write(b'{"torn":')
    sink.write([b'{"a":5}', b'{"a":6}'])
    assert path.read_bytes() == b'{"a":4}\n{"torn":\n{"a":5}\n{"a":6}\n'
    sink.close()
    with pytest.raises(
        ConfigurationError, match=r"audit\.path: .* cannot be written: No such file"
    ):
        AuditFile(str(tmp_path / "none" / "audit"))


def page(service: Inside, **query: object) -> dict[str, Any]:
    """One page of the trail, as the operator sees it."""
    answer = service.ask("GET", f"/v1/audit?{urlencode(query)}", token="operator")
    assert answer.status == 200, answer
    return dict(answer.json())


def test_the_trail_is_read_newest_first_page_by_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By sender, action, id, phase and time; reading it makes no entry, and a line of something
    else is left out."""
    monkeypatch.setattr("chronos.adapters.audit.BLOCK_BYTES", 100)
    path = tmp_path / "audit.jsonl"
    settings: dict[str, object] = {"audit__required": "on"}
    settings["audit__path"] = path
    with Inside(tmp_path, admin__tokens=tokens(tmp_path), **settings) as service:
        assert page(service)["entries"] == []
        for number in range(5):
            body = message(f"id-{number}")
            assert service.ask("POST", "/v1/messages", body, token="writer").status == 202
        with path.open("a") as file:
            file.write("no JSON\n\n")
        assert service.ask("DELETE", "/v1/messages/id-1", token="reader").status == 403
        assert service.ask("DELETE", "/v1/messages/id-1", token="writer").status == 200
        wait_until(lambda: len(page(service, phase="outcome")["entries"]) == 7)
        whole = page(service)
        assert (whole["after"], whole["read"]) == (None, 14)
        assert [each["verb"] for each in whole["entries"]][:2] == ["cancel", "cancel"]
        assert whole["entries"] == sorted(whole["entries"], key=lambda e: e["time"], reverse=True)
        found: list[dict[str, Any]] = []
        after: dict[str, object] = {}
        for _ in range(20):
            part = page(service, limit=2, **after)
            found += part["entries"]
            if part["after"] is None:
                break
            after = {"after": part["after"]}
        assert found == whole["entries"]
        refused = page(service, refused="true")["entries"]
        assert [(e["token"], e["verb"], e["status"]) for e in refused] == [
            ("reader", "cancel", 403)
        ]
        named = page(service, id="id-1", token="writer", phase="outcome")["entries"]
        assert [e["verb"] for e in named] == ["cancel", "schedule"]
        assert len(page(service, action="schedule", phase="intent")["entries"]) == 5
        middle = found[7]["time"]
        newer, older = page(service, since=middle), page(service, until=middle)
        assert newer["entries"] + older["entries"] == whole["entries"]
        assert newer["entries"][-1]["time"] == middle
        assert service.ask("GET", "/v1/audit", token="reader").problem == "forbidden"
        key = page(service, limit=1)["after"]
        other = service.ask("GET", f"/v1/audit?after={key}&action=cancel", token="operator")
        assert (other.status, other.problem) == (400, "begin-again")
        path.rename(tmp_path / "old")
        path.touch()
        changed = service.ask("GET", f"/v1/audit?after={key}", token="operator")
        assert (changed.status, changed.problem) == (400, "begin-again")
        path.unlink()
        assert service.ask("GET", "/v1/audit", token="operator").status == 503


def test_audits_of_the_archive_are_read_from_their_folder(tmp_path: Path) -> None:
    """The newest first; a file that is no result is listed with the reason, and one that has become
    a result is read again."""
    folder = tmp_path / "audits"
    settings: dict[str, object] = {"admin__archive_audits": folder}
    with Inside(tmp_path, admin__tokens=tokens(tmp_path), **settings) as service:

        def ask(path: str = "", token: str = "operator") -> Any:
            return service.ask("GET", f"/v1/archive-audits{path}", token=token)

        def listed(**query: object) -> dict[str, Any]:
            answer = ask(f"?{urlencode(query)}")
            assert answer.status == 200, answer
            return dict(answer.json())

        assert (ask().status, ask().problem) == (503, "unavailable")
        folder.mkdir()
        assert listed() == {"audits": [], "total": 0}
        files = {
            "broken": result().encode(),
            "clean": result(clean=True, counts={"delivered": 12}).encode(),
            "open": result(counts={"unknown": 1}, not_proved=["1 message is unknown"]).encode(),
            "running": b"",
            "other": b'{"cluster": 1}',
            "cut": result()[:100].encode(),
            "deep": b'{"x": ' + b"[" * 200_000,
            "large": b" " * (8 << 20) + b"{}",
        }
        for at, (name, data) in enumerate(files.items()):
            (folder / f"{name}.json").write_bytes(data)
            os.utime(folder / f"{name}.json", (at, at))
        (folder / "notes.txt").write_text("no result")
        (folder / "folder.json").mkdir()
        (folder / "loop.json").symlink_to("loop.json")
        (folder / ".json").touch()
        (folder / ".hidden.json").touch()
        Path(os.fsdecode(os.fsencode(folder) + b"/\xff.json")).touch()
        found = listed()
        assert found["total"] == len(files)
        assert [each["name"] for each in found["audits"]] == list(files)[::-1]
        by_name = {each["name"]: each for each in found["audits"]}
        verdicts = {"broken": "broken", "clean": "clean", "open": "not-proved"}
        assert {name: each.get("verdict") for name, each in by_name.items()} == {
            **verdicts,
            **dict.fromkeys(("running", "other", "cut", "deep", "large")),
        }
        assert "is running" in by_name["running"]["problem"]
        assert "not a result" in by_name["other"]["problem"]
        assert "larger than 8 MiB" in by_name["large"]["problem"]
        assert by_name["broken"]["written_at"] == "1970-01-01T00:00:00.000Z"
        assert by_name["broken"]["from"] == "2030-01-30T00:00:00Z"
        assert by_name["open"]["not_proved"] == ["1 message is unknown"]
        assert [each["name"] for each in listed(limit=2)["audits"]] == ["large", "deep"]
        (folder / "running.json").write_bytes(files["clean"])
        assert listed()["audits"][0] == by_name["clean"] | {
            "name": "running",
            "written_at": listed()["audits"][0]["written_at"],
        }

        whole = ask("/broken").json()
        assert whole["samples"] == json.loads(result())["samples"]
        assert whole["targets"][0]["target"] == "orders"
        assert whole["worst"][0]["at"] == "2030-01-30T08:00:00Z"
        assert whole["counts"] == {"delivered": 11, "missing": 1}
        for name in ("none", "other", "..%2Fother", "notes.txt", "loop", ".hidden"):
            assert (ask(f"/{name}").status, ask(f"/{name}").problem) == (404, "no-audit")
        assert ask(token="reader").problem == "forbidden"
        assert ask("/broken", token="reader").problem == "forbidden"


def test_without_a_folder_the_answer_says_what_to_set(tmp_path: Path) -> None:
    with Inside(tmp_path) as service:
        for path in ("/v1/archive-audits", "/v1/archive-audits/a"):
            answer = service.ask("GET", path)
            assert (answer.status, answer.problem) == (501, "no-audits")
            assert "admin.archive_audits" in answer.json()["detail"]


def test_log_lines_are_not_read(tmp_path: Path) -> None:
    """The answer says what to set."""
    with Inside(tmp_path) as service:
        answer = service.ask("GET", "/v1/audit")
        assert (answer.status, answer.problem) == (501, "no-trail")
        assert "audit.path" in answer.json()["hint"]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (["audit.required=on"], "--set: audit.required: is on, and the entries are log lines"),
    ],
)
def test_settings_of_the_trail_that_do_not_go_together_are_named(settings, text):
    """Before anything is opened."""
    with pytest.raises(ConfigurationError) as refused:
        load(None, {}, settings)
    assert any(problem.startswith(text) for problem in refused.value.problems), (
        refused.value.problems
    )
