"""Answers that are the whole truth: why a message is late, what became of it, what a filter means,
what a list has."""

from __future__ import annotations

import asyncio
import re
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import chronos
from chronos.admin.cluster.cluster import check_drain
from chronos.admin.http.context import THREADS
from chronos.admin.http.problems import ProblemError
from chronos.client import AsyncClient, Client, Rejected, message
from chronos.client.requests import time_ms
from chronos.core.cluster.roles import Member, Roles
from chronos.core.timefmt import format_time
from chronos.errors import LogUnavailable
from chronos.ports import ClusterSnapshot
from tests.harness.command import run
from tests.harness.inside import Inside
from tests.harness.ports import free_port
from tests.harness.serving import serving
from tests.harness.waiting import wait_until


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """One node for the tests that need nothing special; each uses topics and ids of its own."""
    with Inside(tmp_path_factory.mktemp("answers"), shards=2) as inside:
        yield inside


@pytest.fixture
def client(node: Inside) -> Iterator[Client]:
    with Client(node.server.url) as opened:
        yield opened


def body(topic: str = "orders", **fields: Any) -> dict[str, Any]:
    return {"target": {"topic": topic}, "value": "v", "delay": "1h"} | fields


def overdue(inside: Inside, message_id: str) -> dict[str, Any]:
    """The message, once it is overdue."""
    found: dict[str, Any] = {}

    def look() -> bool:
        found.update(inside.ask("GET", f"/v1/messages/{message_id}").json())
        return found.get("overdue_ms") is not None

    wait_until(look)
    return found


# --- Why it is late


@pytest.mark.process
def test_a_late_message_of_a_paused_shard_tells_the_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full, and has room again."""
    with Inside(tmp_path, limits__disk_reserve="1MB") as inside:
        due_ms = time.time_ns() // 1_000_000 + 2_000
        assert (
            inside.ask("POST", "/v1/messages?wait=5s", body(id="late", delay=2_000)).json()[
                "result"
            ]
            == "scheduled"
        )
        with monkeypatch.context() as full:
            full.setattr(inside.node.directory, "free_bytes", lambda: 0)
            found = overdue(inside, "late")
            assert found["state"] == "pending"
            assert found["waits_for"].startswith("shard 0 is paused: ")
            assert "less than limits.disk_reserve" in found["waits_for"]
            assert 1_000 <= found["overdue_ms"] <= time.time_ns() // 1_000_000 - due_ms + 2_000
            shown = run("get", "late", server=inside.server.url).out
            assert "overdue" in shown
            assert "waits for  shard 0 is paused: " in shown
        wait_until(lambda: inside.ask("GET", "/v1/messages/late").json()["state"] == "delivered")
        found = inside.ask("GET", "/v1/messages/late").json()
        assert (found["overdue_ms"], found["waits_for"]) == (None, None)


def test_a_late_message_tells_that_nothing_is_pushed(tmp_path: Path) -> None:
    with Inside(tmp_path, workers__push="off") as inside:
        inside.ask("POST", "/v1/messages", body(id="late", delay=0))
        assert overdue(inside, "late")["waits_for"] == "nothing is delivered: workers.push is off"


def test_a_late_message_of_a_limited_target_tells_the_rate(tmp_path: Path) -> None:
    with Inside(tmp_path, delivery__rates="{mail: 0.001/s burst 1}") as inside:
        inside.ask(
            "POST", "/v1/messages", [body("mail", id=f"m{number}", delay=0) for number in range(3)]
        )
        wait_until(lambda: inside.ask("GET", "/v1/messages/m2").json().get("parked", False))
        found = overdue(inside, "m2")
        waits = r"the rate of mail is limited to 0\.001/s; [23] messages of shard 0 wait for it"
        assert re.fullmatch(waits, found["waits_for"])


def test_a_message_that_is_not_due_is_not_late(node: Inside) -> None:
    node.ask("POST", "/v1/messages", body(id="early"))
    found = node.ask("GET", "/v1/messages/early").json()
    assert (found["state"], found["overdue_ms"], found["waits_for"]) == ("pending", None, None)


# --- What became of it


def test_a_request_that_waits_is_told_what_became_of_its_message(node: Inside) -> None:
    first = node.ask("POST", "/v1/messages?wait=5s", body(id="once"))
    assert (first.status, first.json()["result"]) == (200, "scheduled")
    for policy, result in (("reject", "conflict"), ("ignore", "ignored"), ("replace", "scheduled")):
        answer = node.ask("POST", "/v1/messages?wait=5s", body(id="once", on_conflict=policy))
        assert (answer.status, answer.json()["result"]) == (200, result), policy
        detail = answer.json().get("detail")
        assert detail == (
            None if result == "scheduled" else "another message has this id and is pending"
        )
    without_id = node.ask("POST", "/v1/messages?wait=5s", body(delay=0))
    assert (without_id.status, without_id.json()["result"]) == (200, "scheduled")
    plain = node.ask("POST", "/v1/messages", body(id="once"))
    assert (plain.status, plain.json()["result"]) == (202, "accepted")
    asked = f"/v1/messages/once/outcome?offset={plain.json()['offset']}"
    assert node.ask("GET", asked).json()["result"] == "conflict"


def test_an_upsert_is_told_what_it_did_and_when_the_message_is_due(
    node: Inside, client: Client
) -> None:
    """By HTTP, by the client at once and later, and in a batch."""
    every = {"repeat": "every 1h", "delay": "1h", "on_conflict": "upsert"}
    first = node.ask("POST", "/v1/messages?wait=5s", body(id="start", **every)).json()
    assert first["result"] == "created"
    again = node.ask("POST", "/v1/messages?wait=5s", body(id="start", **every)).json()
    assert (again["result"], again["due_at"]) == ("unchanged", first["due_at"])
    asked = f"/v1/messages/start/outcome?offset={again['offset']}"
    assert node.ask("GET", asked).json()["result"] == "unchanged"
    changed = client.schedule(
        "orders", "w", delay="1h", repeat="every 1h", id="start", on_conflict="upsert", wait=True
    )
    assert changed.result == "changed"
    assert format_time(time_ms(changed.due_at)) == first["due_at"]
    many = client.schedule_many(
        [
            message(
                "orders",
                "w",
                delay="2h",
                repeat=f"every {hours}h",
                id="start",
                on_conflict="upsert",
            )
            for hours in (1, 2, 2)
        ],
        wait=True,
    )
    assert [each.result for each in many] == ["unchanged", "changed", "unchanged"]
    assert node.ask("GET", "/v1/messages/start").json()["due_at"] == first["due_at"]


def test_a_series_that_ended_is_not_begun_again_by_an_upsert(node: Inside, client: Client) -> None:
    once: dict[str, Any] = {
        "repeat": "every 1h",
        "repeat_times": 1,
        "delay": "0ms",
        "on_conflict": "upsert",
    }
    assert node.ask("POST", "/v1/messages?wait=5s", body(id="ends", **once)).status == 200
    wait_until(lambda: node.ask("GET", "/v1/messages/ends").json()["state"] == "delivered")
    with pytest.raises(Rejected, match="the series with this id ended"):
        client.schedule(
            "orders",
            "v",
            delay="1h",
            repeat="every 1h",
            id="ends",
            on_conflict="upsert",
            wait=True,
        )


# --- A call that is repeated


@contextmanager
def losing(port: int, answers: int) -> Iterator[str]:
    """The address of a proxy that passes every request on, and loses the first answers."""
    left = [answers]

    class Passes(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", port)) as onward:
                asked = b""
                while part := self.request.recv(1 << 20):
                    onward.sendall(part)
                    asked += part
                    head, end, body = asked.partition(b"\r\n\r\n")
                    length = re.search(rb"(?i)content-length: ([0-9]+)", head)
                    if not end or len(body) < (int(length[1]) if length else 0):
                        continue
                    asked = b""
                    answer = onward.recv(1 << 20)
                    if left[0] > 0:
                        left[0] -= 1
                        return
                    self.request.sendall(answer)

    with serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Passes)) as address:
        yield address


def test_a_client_whose_first_answer_is_lost_is_answered_once(node: Inside, client: Client) -> None:
    with losing(node.port, 1) as server, Client(server, timeout_s=60) as losing_client:
        found = losing_client.schedule("orders", "v", delay="1h", id="lost", wait=True)
        assert found.result == "scheduled"
    state = client.get("lost")
    assert state.rejection is None
    for act in ("cancel", "schedule"):
        with losing(node.port, 1) as server, Client(server, timeout_s=60) as losing_client:
            if act == "cancel":
                assert losing_client.cancel("lost")
            else:
                again = losing_client.schedule_many(
                    [message("orders", "v", delay="1h", id=name) for name in ("lost", "lost-2")],
                    wait=True,
                )
                assert [each.result for each in again] == ["scheduled", "scheduled"]
    every = {"delay": "1h", "repeat": "every 1h"}
    client.schedule("orders", "v", id="lost-series", wait=True, **every)  # type: ignore[arg-type]
    for act in ("pause", "resume"):
        with losing(node.port, 1) as server, Client(server, timeout_s=60) as losing_client:
            assert getattr(losing_client, act)("lost-series")


def test_a_repeated_request_does_not_undo_what_came_in_between(node: Inside) -> None:
    every = {"repeat": "every 1h", "delay": "1h"}

    def ask(method: str, path: str, key: str, content: object = None) -> Any:
        answer = node.ask(method, f"/v1/messages{path}", content, {"Idempotency-Key": key})
        assert answer.status == 200, answer.json()
        return answer.json()

    assert ask("POST", "?wait=5s", "a", body(id="calls", **every))["result"] == "scheduled"
    assert ask("POST", "/calls/pause", "b", {})["result"] == "paused"
    assert ask("POST", "/calls/resume", "c")["result"] == "resumed"
    assert ask("POST", "/calls/pause", "b", {})["result"] == "paused"
    assert not node.ask("GET", "/v1/messages/calls").json()["paused"]
    assert ask("POST", "/calls/pause", "d", {})["result"] == "paused"
    assert ask("POST", "/calls/resume", "c")["result"] == "resumed"
    assert node.ask("GET", "/v1/messages/calls").json()["paused"]
    assert ask("DELETE", "/calls", "e")["result"] == "cancelled"
    assert ask("POST", "/calls/resume", "c")["result"] == "resumed", "it was, before"
    assert ask("POST", "?wait=5s", "f", body(id="calls", **every))["result"] == "scheduled"
    assert ask("DELETE", "/calls", "e")["result"] == "cancelled"
    assert node.ask("GET", "/v1/messages/calls").json()["state"] == "pending"
    other = body(id="calls", **every)
    assert ask("POST", "?wait=5s", "g", other)["result"] == "conflict", "another caller"


def test_a_repeated_request_that_contradicts_itself_by_now_has_its_first_answer(
    node: Inside,
) -> None:
    """A delay counts from the request, and the expiry does not."""
    expire_at_ms = int(time.time() * 1_000) + 4_000
    expiring: dict[str, Any] = {"delay": "1s", "expire_at": expire_at_ms}

    def ask(name: str, key: str) -> Any:
        content = body(id=name, **expiring)
        return node.ask("POST", "/v1/messages?wait=5s", content, {"Idempotency-Key": key})

    assert ask("expiring", "a").json()["result"] == "scheduled"
    wait_until(lambda: time.time() * 1_000 > expire_at_ms - 1_000)
    assert ask("another", "b").status == 422
    repeated = ask("expiring", "a")
    assert (repeated.status, repeated.json()["result"]) == (200, "scheduled")


def test_a_repeated_reschedule_to_a_time_too_far_past_by_now_has_its_first_answer(
    tmp_path: Path,
) -> None:
    with Inside(tmp_path, limits__max_past="1s") as node:
        assert node.ask("POST", "/v1/messages?wait=5s", body(id="moved", delay="1h")).status == 200
        deliver_at_ms = int(time.time() * 1_000) + 1_000
        at = {"deliver_at": deliver_at_ms}

        def reschedule(name: str) -> Any:
            return node.ask("PATCH", f"/v1/messages/{name}", at, {"Idempotency-Key": "a"})

        assert reschedule("moved").json()["result"] == "rescheduled"
        wait_until(lambda: time.time() * 1_000 > deliver_at_ms + 1_000)
        assert reschedule("another").status == 422
        repeated = reschedule("moved")
        assert (repeated.status, repeated.json()["result"]) == (200, "rescheduled")


def test_the_name_of_a_call_is_checked_and_not_shown(node: Inside, client: Client) -> None:
    for key in ("", "two words", "x" * 256):
        answer = node.ask("POST", "/v1/messages", body(), {"Idempotency-Key": key})
        assert (answer.status, answer.json()["errors"][0]["field"]) == (422, "Idempotency-Key")
    client.schedule("orders", "v", delay="1h", id="shown", wait=True)
    with pytest.raises(Rejected):
        client.schedule("orders", "v", delay="1h", id="shown", wait=True)
    found = node.ask("GET", "/v1/messages/shown?rejections=true").body
    assert b"chronos-call" not in found
    wait_until(lambda: node.ask("GET", "/v1/rejected?id=shown").json()["rejected"] != [])
    assert b"chronos-call" not in node.ask("GET", "/v1/rejected?id=shown").body


def test_a_request_for_many_that_waits_is_told_what_became_of_each(
    node: Inside, client: Client
) -> None:
    """Two shards, a taken id, and more messages than are looked for at once."""
    names = [f"each-{number}" for number in range(120)]
    together = [body(id=name) for name in names] + [
        body(id="each-7"),
        body(id="each-7", on_conflict="replace"),
        body(),
    ]
    answer = node.ask("POST", "/v1/messages?wait=5s", together)
    found = answer.json()
    assert answer.status == 200
    assert [each["id"] for each in found[:121]] == [*names, "each-7"]
    assert len({each["shard"] for each in found}) == 2
    # The first message of the id was scheduled, though the last one replaced it.
    assert [each["result"] for each in found] == ["scheduled"] * 120 + [
        "conflict",
        "scheduled",
        "scheduled",
    ]
    with pytest.raises(ValueError, match="at most 5 s"):
        client.schedule_many([message("mail", "v", delay="1h")], wait="6s")
    sent = client.schedule_many(
        [message("mail", "v", id="each-7", delay="1h"), message("mail", "v", delay="1h")], wait=True
    )
    assert [one.result for one in sent] == ["conflict", "scheduled"]
    assert client.schedule_many([message("mail", "v", delay="1h")])[0].result == "accepted"


@pytest.mark.parametrize(
    ("query", "content"),
    [("wait=6s", body()), ("wait=6s", [body()]), ("wait=soon", body()), ("soon=1", body())],
)
def test_a_wait_that_is_not_possible_writes_nothing(
    node: Inside, query: str, content: object
) -> None:
    before = [node.node.log.watermarks("chronos.delay", shard).high for shard in range(2)]
    assert node.ask("POST", f"/v1/messages?{query}", content).status == 422
    assert [node.node.log.watermarks("chronos.delay", shard).high for shard in range(2)] == before


def test_a_message_that_is_not_applied_is_accepted(tmp_path: Path) -> None:
    with Inside(tmp_path, workers__pull="off") as inside:
        answer = inside.ask("POST", "/v1/messages?wait=10ms", body(id="unread"))
        assert (answer.status, answer.json()["result"]) == (202, "accepted")
        with Client(inside.server.url) as client:
            sent = client.schedule("orders", "v", delay="1h", id="unread", wait="10ms")
            assert (sent.result, sent.applied) == ("accepted", False)


def test_a_node_that_was_restarted_still_tells_a_taken_id(tmp_path: Path) -> None:
    """The refusal itself is remembered by the process only."""
    with Inside(tmp_path) as inside:
        first = inside.ask("POST", "/v1/messages?wait=5s", body(id="once")).json()
        second = inside.ask("POST", "/v1/messages?wait=5s", body(id="once")).json()
    with Inside(tmp_path) as inside:
        for sent, result in ((first, "scheduled"), (second, "conflict")):
            answer = inside.ask("GET", f"/v1/messages/once/outcome?offset={sent['offset']}").json()
            assert answer["result"] == result
        assert (
            inside.ask("GET", f"/v1/messages/nobody/outcome?offset={first['offset']}").status == 404
        )


@pytest.mark.process
def test_the_client_and_the_command_line_use_the_same_words(node: Inside, client: Client) -> None:
    assert client.schedule("orders", "v", delay="1h", id="same").result == "accepted"
    assert (
        client.schedule(
            "orders", "v", delay="1h", id="same", on_conflict="replace", wait=True
        ).result
        == "scheduled"
    )
    ignored = client.schedule("orders", "v", delay="1h", id="same", on_conflict="ignore", wait=True)
    assert (ignored.result, ignored.detail) == (
        "ignored",
        "another message has this id and is pending",
    )
    with pytest.raises(Rejected, match="another message has this id and is pending") as caught:
        client.schedule("orders", "v", delay="1h", id="same", wait=True)
    assert caught.value.scheduled is not None
    assert caught.value.scheduled.result == "conflict"

    def send(*options: str) -> tuple[int, str, str]:
        done = run(
            "send",
            "--to",
            "orders",
            "--in",
            "1h",
            "--id",
            "same",
            "v",
            *options,
            server=node.server.url,
        )
        return done.code, done.out, done.err

    assert send() == (0, "same\n", "")
    assert send("--wait", "--on-conflict", "replace") == (0, "same\n", "")
    why = "another message has this id and is pending"
    assert send("--wait", "--on-conflict", "ignore") == (0, "same\n", f"ignored: {why}\n")
    assert send("--wait") == (1, "", f"error: same was rejected: {why}\n")
    code, out, _ = send("--wait", "-o", "json")
    assert (code, '"result": "conflict"' in out) == (1, True)


# --- Filters


@pytest.mark.process
def test_a_target_is_a_pattern(node: Inside, client: Client) -> None:
    sent = client.schedule_many(
        [message(f"mail-{name}", "v", delay="1h") for name in ("a", "b", "ab")]
    )
    assert {found.id for found in client.pending(target="mail-*")} == {one.id for one in sent}
    assert {found.id for found in client.pending(target="mail-?")} == {one.id for one in sent[:2]}
    assert [found.id for found in client.pending(target="mail-ab")] == [sent[2].id]
    job = client.count_where(target="mail-[ab]", wait="10s")
    assert (job.state, job.matched) == ("done", 2)
    done = run("list", "--target", "mail-*", "-o", "json", server=node.server.url)
    assert len(done.json["messages"]) == 3
    answer = node.ask("GET", "/v1/messages?target=no%20topic")
    assert answer.status == 422
    assert "is not the name of a topic, nor a pattern like orders.*" in answer.body.decode()


@pytest.mark.process
def test_an_empty_window_is_refused(node: Inside, client: Client) -> None:
    for path in ("/v1/messages?due_from=2&due_to=1", "/v1/dead-letters?since=2&until=1"):
        assert node.ask("GET", path).status == 422, path
    job = {"action": "count", "filter": {"due_from": 2, "due_to": 1}}
    answer = node.ask("POST", "/v1/jobs", job)
    assert (answer.status, answer.json()["errors"][0]["field"]) == (422, "filter.due_to")
    with pytest.raises(ValueError, match="due_to lies before due_from"):
        client.count_where(due_from="2030-01-02T00:00:00Z", due_to="2030-01-01T00:00:00Z")
    done = run("list", "--due-from", "+2h", "--due-to", "+1h", server=node.server.url)
    assert (done.code, "--due-to lies before --due-from" in done.err) == (2, True)
    done = run("dead-letters", "list", "--since", "-1h", "--until", "-2h", server=node.server.url)
    assert (done.code, "--until lies before --since" in done.err) == (2, True)


@pytest.mark.process
def test_a_prefix_with_a_wildcard_is_named(node: Inside) -> None:
    done = run("list", "--id-prefix", "order-*", server=node.server.url)
    assert (done.code, "--id-prefix is no pattern" in done.err) == (0, True)


# --- Lists


def test_a_list_has_what_was_scheduled_before(client: Client) -> None:
    """At once, every time."""
    for turn in range(5):
        client.schedule_many([message(f"fresh-{turn}", "v", delay="1h") for _ in range(1_000)])
        assert sum(1 for _ in client.pending(target=f"fresh-{turn}")) == 1_000


@pytest.mark.process
def test_a_list_names_the_shards_that_are_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chronos.admin.messages.listing.FRESH_S", 0.05)
    with Inside(tmp_path, workers__pull="off", shards=2) as inside:
        inside.ask("POST", "/v1/messages", [body(), body()])
        answer = inside.ask("GET", "/v1/messages?fresh=true").json()
        assert (answer["messages"], answer["behind"]) == ([], [0, 1])
        assert "behind" not in inside.ask("GET", "/v1/messages").json()
        done = run("list", server=inside.server.url)
        assert (done.code, "the log of shard 0, 1" in done.err) == (0, True)


# --- Clients, drains, the doctor


def test_a_closed_client_stays_closed(node: Inside) -> None:
    client = Client(node.server.url)
    client.get(client.schedule("orders", "v", delay="1h", wait=True).id)
    client.close()
    with pytest.raises(RuntimeError, match="this client is closed"):
        client.get("any")

    async def closed() -> None:
        other = AsyncClient(node.server.url)
        await other.close()
        with pytest.raises(RuntimeError, match="this client is closed"):
            await other.get("any")

    asyncio.run(closed())


def member(node: str, **more: Any) -> Member:
    return Member(
        node=node, instance=node, address=f"http://{node}:7700", version="1", started_ms=0, **more
    )


def test_the_last_node_that_may_lead_is_not_drained() -> None:
    def look(*members: Member, drained: tuple[str, ...] = ()) -> ClusterSnapshot:
        roles = Roles(drained=drained)
        return ClusterSnapshot(
            members={each.node: each for each in members}, roles=roles, confirmed=True
        )

    check_drain(look(member("a"), member("b")), "a")
    check_drain(look(member("a"), member("b"), drained=("a",)), "a")
    check_drain(look(member("a"), drained=("a",)), "a")
    for snapshot, why in (
        (look(member("a")), "there is none"),
        (look(member("a"), member("b"), drained=("b",)), "b is drained"),
        (look(member("a"), member("b", leaving=True)), "b is stopping"),
        (
            look(member("a"), member("b", eligible=False)),
            r"b is never master \(failover.candidate\)",
        ),
    ):
        with pytest.raises(
            ProblemError, match=f"no other node can lead the shards of a: {why}"
        ) as caught:
            check_drain(snapshot, "a")
        assert caught.value.status == 409


@pytest.mark.process
def test_the_doctor_asks_the_service_that_it_is_told_of(node: Inside, tmp_path: Path) -> None:
    """In an empty directory, which is no service."""
    for options, server in (((), node.server.url), (("--server", node.server.url), None)):
        done = run("doctor", *options, server=server, cwd=tmp_path)
        assert (done.code, done.err) == (0, ""), done.out
        assert f"node {node.node.config.node.id} is ready" in done.out
        here = done.out.index("chronos-data is not on this machine")
        assert here < done.out.index(f"node {node.node.config.node.id} is ready")
        assert done.out.endswith("\nno problems found; not checked: data directory, disk, stores\n")
    assert not list(tmp_path.iterdir())
    nobody = run("doctor", server=f"http://127.0.0.1:{free_port()}", cwd=tmp_path)
    assert nobody.code == 3
    assert "PROBLEM  service" in nobody.out
    assert "ok       settings" in nobody.out
    assert nobody.out.index("PROBLEM  service") > nobody.out.index("not on this machine")


@pytest.mark.process
@pytest.mark.parametrize(
    ("switch", "consequence"),
    [("push", "nothing is delivered"), ("pull", "nothing new is taken in")],
)
def test_a_node_tells_which_of_its_switches_is_off(
    tmp_path: Path, switch: str, consequence: str
) -> None:
    """Once, however many shards it has; it stays ready, since somebody has set it on purpose."""
    says = f"{consequence}: workers.{switch} is off."
    with Inside(tmp_path / "off", shards=3, **{f"workers__{switch}": "off"}) as inside:
        inside.wait_ready()
        ready = inside.ask("GET", "/readyz")
        assert (ready.status, ready.json()["status"]) == (200, "ok")
        (detail,) = ready.json()["details"]
        assert detail.startswith(says)
        assert detail.endswith("set it to on and restart this node")
        for verb in (("status",), ("top",), ("doctor",)):
            done = run(*verb, server=inside.server.url, cwd=tmp_path)
            assert done.code == 0, done.out
            assert " ".join(done.out.split()).count(detail) == 1, done.out
            assert " ready" in done.out
        assert f"note     service: {detail}\n" in done.out


def test_a_node_that_only_keeps_its_settled_messages_tells_of_no_switch(tmp_path: Path) -> None:
    """And one whose switches are on."""
    for switch in ("off", "on"):
        with Inside(tmp_path / switch, workers__delete=switch) as inside:
            inside.wait_ready()
            assert inside.ask("GET", "/readyz").json() == {"status": "ok"}
            assert inside.ask("GET", "/v1/nodes").json()["nodes"][0]["switched_off"] == []


@pytest.mark.process
def test_the_doctor_tells_what_the_service_tells(tmp_path: Path) -> None:
    """A node with a token that the doctor is given, or is not given."""
    from hashlib import sha256

    token = "secret-token"
    digest = sha256(token.encode()).hexdigest()
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text(f"tokens:\n  - name: op\n    sha256: {digest}\n    roles: [read]\n")
    tokens.chmod(0o600)
    (tmp_path / "token").write_text(token)
    with Inside(tmp_path, admin__tokens=tokens) as inside:
        refused = run("doctor", server=inside.server.url, cwd=tmp_path)
        assert refused.code == 2
        assert "this service needs a valid token" in refused.out
        done = run(
            "doctor",
            "--token-file",
            str(tmp_path / "token"),
            server=inside.server.url,
            cwd=tmp_path,
        )
        assert done.code == 0, done.out
        assert "is ready" in done.out


# --- Errors


@pytest.mark.process
def test_a_repetition_that_says_not_how_is_named_as_it_was_typed(node: Inside) -> None:
    why = r"repeat '0 9 \* \* 1-5' is not a repetition: begin with cron, every or backoff"
    with pytest.raises(ValueError, match=why):
        message("t", repeat="0 9 * * 1-5")
    with pytest.raises(
        ValueError, match=r"'0 9 \* \* 1-5' is not a repetition; begin with every, backoff or cron"
    ):
        chronos.headers(target="t", repeat="0 9 * * 1-5", delay="1h")
    with pytest.raises(ValueError, match="write cron 0 9"):
        chronos.headers(target="t", repeat="0 9 * * 1-5")

    def refused(*options: str) -> str:
        done = run("send", "--to", "t", "v", *options, server=node.server.url)
        assert (done.code, done.out) == (2, "")
        return " ".join(done.err.replace("│", " ").split())

    assert "--cron: '0 9 * *' is not 5 or 6 cron fields, such as '0 9 * * 1-5'" in refused(
        "--cron", "0 9 * *"
    )
    assert "--every: '5 s' is not a duration, such as 30s" in refused(
        "--every", "5 s", "--in", "1h"
    )
    assert "--backoff: '1s 2' is not BASE FACTOR CAP, such as '1s 2 1h'" in refused(
        "--backoff", "1s 2", "--in", "1h"
    )
    wrong = refused("--cron", "99 9 * * 1-5")
    assert wrong.startswith("error: --cron: ")
    assert "cron 99" not in wrong


def test_shards_are_shown_while_no_broker_answers_for_as_many_as_there_are_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ends of all shards are one question to the log, which takes one thread of those for
    queries."""
    ended, asked = threading.Event(), threading.Event()

    def silent(*_: object) -> None:
        asked.set()
        ended.wait(60)
        raise LogUnavailable("no broker answers")

    with Inside(tmp_path, shards=THREADS) as inside:
        inside.wait_ready()

        def shown() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = inside.ask("GET", "/v1/shards").json()["shards"]
            return found

        assert inside.ask("POST", "/v1/messages", body()).status == 202
        before = [shard["end_offset"] for shard in shown()]
        assert sum(before) == 1
        monkeypatch.setattr(inside.node.log, "watermarks", silent)
        monkeypatch.setattr(inside.node.log, "high_watermarks", silent)
        try:
            assert [shard["end_offset"] for shard in shown()] == before
            assert asked.is_set()
        finally:
            ended.set()
        wait_until(lambda: {shard["end_offset"] for shard in shown()} == {None})
        assert all(shard["store_bytes"] > 0 for shard in shown())
        monkeypatch.undo()
        assert [shard["end_offset"] for shard in shown()] == before


def test_an_action_without_the_log_does_not_speak_of_scheduling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hints of the two differ: an action may be repeated after a look, a message with its
    id."""

    def silent(*_: object) -> None:
        raise LogUnavailable("no broker answers")

    with Inside(tmp_path) as inside:
        monkeypatch.setattr(inside.node.log, "append", silent)
        cancelled = inside.ask("DELETE", "/v1/messages/any")
        sent = inside.ask("POST", "/v1/messages", body())
    assert (cancelled.status, sent.status) == (503, 503)
    assert cancelled.json()["hint"].startswith("the action may be in the log")
    assert sent.json()["hint"].startswith("try again with the same id")


# --- Five questions


@pytest.mark.process
def test_each_question_of_a_new_operator_is_answered_by_one_command(tmp_path: Path) -> None:
    """Why is it late, why did it not arrive, what died, what was refused, is it safe now."""
    with Inside(tmp_path / "node", delivery__rates="{mail: 0.001/s burst 1}") as inside:
        url = inside.server.url
        inside.ask(
            "POST", "/v1/messages", [body("mail", id=f"m{number}", delay=0) for number in range(3)]
        )
        stale = {
            "deliver_at": time.time_ns() // 1_000_000 - 120_000,
            "expire_at": time.time_ns() // 1_000_000 - 60_000,
        }
        inside.ask(
            "POST",
            "/v1/messages?wait=5s",
            {"target": {"topic": "orders"}, "value": "v", "id": "stale", **stale},
        )
        record = (
            "chronos.delay",
            b"mistyped",
            b"v",
            [("chronos-target-topic", b"orders"), ("chronos-delay", b"soon")],
            0,
        )
        (appended,) = inside.node.log.append([record], 30.0)
        assert inside.node.shards[0].applied.wait_pulled(appended.offset + 1, 30.0)
        wait_until(lambda: inside.ask("GET", "/v1/messages/m2").json().get("parked", False))
        wait_until(lambda: inside.ask("GET", "/v1/messages/stale").json()["state"] == "expired")
        overdue(inside, "m2")

        late = run("get", "m2", server=url)
        assert "waits for  the rate of mail is limited to 0.001/s" in late.out
        missing = run("get", "mistyped", server=url)
        assert missing.code == 4
        assert "was rejected at" in missing.err
        assert "bad-value" in missing.err
        died = run("dead-letters", "list", server=url)
        assert "stale" in died.out
        assert "expired" in died.out
        refused = run("rejected", "count", "--by", "reason,target", server=url)
        assert refused.out.split()[3:] == ["bad-value", "orders", "1"]
        # A rate that the operator has set, and a message that was worthless by its own time, are no
        # problems of the service.
        safe = run("doctor", server=url, cwd=tmp_path)
        assert safe.code == 0
        assert "no problems found" in safe.out
