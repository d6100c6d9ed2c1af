"""The Python client: both clients against a real node, and the control headers for a Kafka
producer."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta, timezone
from http.server import ThreadingHTTPServer
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import ClassVar

import pytest

import chronos
from chronos.client import (
    MessageInfo,
    NotFound,
    Refused,
    Rejected,
    ServiceFailed,
    Unreachable,
    message,
    requests,
    servers,
)
from chronos.client.models import ListedState
from chronos.core.message import Action, ConditionalSchedule, Entry, Record, Verb
from chronos.core.shard.parsing import parse
from chronos.core.shard.rules import Rules
from tests.harness.command import run
from tests.harness.ports import free_port
from tests.harness.service import Service
from tests.harness.serving import Handler, serving


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One node for all tests."""
    with Service(tmp_path_factory.mktemp("client") / "data", settings={"shards": 2}) as running:
        yield running.start()


@pytest.fixture
def client(service: Service) -> Iterator[chronos.Client]:
    with chronos.Client(service.url) as made:
        yield made


def later(seconds: float = 3_600) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def test_a_message_is_scheduled_found_moved_and_cancelled(client):
    """The life of a message that is never delivered."""
    due = later()
    scheduled = client.schedule(
        "library",
        "value",
        deliver_at=due,
        id="life",
        key="k",
        headers={"a": "1", "raw": b"\xff", "many": ["x", None, b"\xff"]},
    )
    assert scheduled.id == "life"
    assert timedelta() <= scheduled.due_at - due < timedelta(milliseconds=1)
    found = client.get("life")
    assert (found.state, found.due_at, found.value_bytes) == ("pending", scheduled.due_at, 5)
    assert found.target is not None
    assert (found.target.topic, found.target.key) == ("library", "k")
    assert found.target.headers == {
        "a": "1",
        "raw": {"base64": "/w=="},
        "many": ["x", None, {"base64": "/w=="}],
    }
    assert client.reschedule("life", delay=timedelta(hours=2))
    assert client.get("life").due_at > due + timedelta(minutes=59)
    assert client.cancel("life")
    assert client.get("life").state == "cancelled"
    assert not client.fire("life")
    assert client.fire("life").result == "too_late"


def test_a_fired_message_arrives(client, service):
    """With its bytes."""
    name = client.schedule("fired", b"\x00\xff", delay="1h").id
    assert client.fire(name).result == "fired"
    service.wait_until(lambda: client.get(name).state == "delivered", "deliver it")
    records = client.records("fired", wait="10s")["records"]
    assert [record["value_base64"] for record in records] == ["AP8="]


def test_many_are_scheduled_at_once_and_listed_in_order(client):
    """Fetched page by page."""
    batch = [
        message("listed", str(at), delay=timedelta(hours=1, seconds=at % 7), id=f"l{at}")
        for at in range(700)
    ]
    assert [one.id for one in client.schedule_many(batch)] == [f"l{at}" for at in range(700)]
    client.get("l699")
    found = []
    for _ in range(50):
        found = list(client.pending(target="listed"))
        if len(found) == 700:
            break
        client.ask("/v1/messages", limit=1)
    assert len({one.id for one in found}) == 700
    assert [one.due_at for one in found] == sorted(one.due_at for one in found)
    assert list(client.pending(target="listed", due_to=later(60))) == []
    client.schedule("listed", id="l/tenant", delay="1h", headers={"tenant": "a=b"}, wait="30s")
    assert [info.id for info in client.pending(id_prefix="l/", headers={"tenant": "a=b"})] == [
        "l/tenant"
    ]
    assert [info.id for info in client.pending(target="listed", contains="a=")] == ["l/tenant"]
    client.schedule("listed", id="l/series", delay="1h", repeat="every 1h", wait="30s")
    assert [info.id for info in client.pending(target="listed", series=True)] == ["l/series"]


def test_a_time_beyond_the_year_9999_is_the_last_one_that_a_datetime_holds(client, service):
    """A message that never expires and a series without an end stop no list; `datetime.max` is
    rounded up to the first millisecond of the year 10000."""
    last = datetime.max.replace(tzinfo=UTC)
    client.schedule("endless", "v", delay="1h", id="never-expires", expire_at=last)
    client.schedule(
        "endless", "v", delay="1h", id="never-ends", repeat="every 1h", repeat_until=last
    )
    client.schedule("endless", "v", delay="1h", id="ends", expire_at=later(7_200), wait="30s")

    def both(found: list[MessageInfo]) -> None:
        times = {each.id: each for each in found}
        assert set(times) == {"never-expires", "never-ends", "ends"}
        assert times["never-expires"].expire_at == last
        assert times["never-ends"].repetition is not None
        assert times["never-ends"].repetition.until == last
        assert times["ends"].expire_at is not None
        assert times["ends"].expire_at < later(7_300)

    async def listed(state: ListedState) -> list[MessageInfo]:
        async with chronos.AsyncClient(service.url) as other:
            found = [each async for each in other.settled(state, target="endless")]
            return found if state != "pending" else [await other.get(each.id) for each in found]

    both([client.get(name) for name in ("never-expires", "never-ends", "ends")])
    both(list(client.pending(target="endless")))
    both(asyncio.run(listed("pending")))
    for name, line in (("never-expires", "expires"), ("never-ends", "repeats")):
        assert "9999-12-31 23:59:59.999+00:00" in shown_where_clocks_are_ahead(service, name, line)
    for name in ("never-expires", "never-ends", "ends"):
        assert client.cancel(name)
    both(list(client.settled(target="endless")))
    both(asyncio.run(listed("cancelled")))


def shown_where_clocks_are_ahead(service: Service, name: str, begins: str) -> str:
    """The line of `chronos get` that begins so, in a zone in which the last moment in UTC has no
    local time; in a new Python, because a forked one keeps its zone."""
    done = subprocess.run(
        [sys.executable, "-m", "chronos", "get", name, "--server", service.url],
        env={**os.environ, "TZ": "ahead-9"},
        capture_output=True,
        text=True,
        check=True,
    )
    (found,) = [line for line in done.stdout.splitlines() if line.startswith(begins)]
    return found


@pytest.mark.parametrize("name", ["a/b?c#d%", "..", b"\xff\x00", "ü", b"base64:x"])
def test_any_id_can_be_asked_for(client, name):
    """Text and bytes."""
    client.schedule("named", "v", delay="1h", id=name, on_conflict="replace")
    assert client.get(name).state == "pending"
    assert client.cancel(name).result == "cancelled"


def test_an_unknown_id_is_not_found(client):
    """NotFound, with the hint of the service."""
    with pytest.raises(NotFound, match="nothing is known of nobody"):
        client.get("nobody")
    assert client.cancel("nobody").result == "unknown"


def test_a_refusal_names_the_field(client):
    """And the message of the batch."""
    with pytest.raises(Refused, match=r"chronos\.delay") as refused:
        client.schedule_many([message("fine", delay="1ms"), message("chronos.delay", delay="1ms")])
    assert refused.value.errors[0]["index"] == 1
    assert refused.value.errors[0]["field"] == "target.topic"


def test_the_answer_of_another_program_is_recognised():
    """An HTTP server that is not Chronos."""
    server = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import http.server as h; s=h.HTTPServer(('127.0.0.1', 0), h.BaseHTTPRequestHandler);"
            "print(s.server_port, flush=True); s.serve_forever()",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert server.stdout is not None
    try:
        port = int(server.stdout.readline())
        with (
            chronos.Client(f"http://127.0.0.1:{port}", retries=0) as client,
            pytest.raises(ServiceFailed, match="is this Chronos"),
        ):
            client.get("x")
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def test_an_address_without_a_service_is_unreachable():
    """Within the deadline; the error says what to look at."""
    started = time.monotonic()
    with (
        chronos.Client(f"http://127.0.0.1:{free_port()}", timeout_s=0.5) as client,
        pytest.raises(Unreachable, match="chronos serve"),
    ):
        client.get("x")
    assert time.monotonic() - started < 5


def test_a_silent_service_is_given_up_at_the_deadline():
    """One deadline for all attempts."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started = time.monotonic()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with (
            chronos.Client(url, timeout_s=0.5) as client,
            pytest.raises(Unreachable, match="in time"),
        ):
            client.get("x")
        assert 0.4 < time.monotonic() - started < 4


@contextmanager
def talking(talk: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """A server that has this talk on each connection; the event is set once the block ends."""
    ended = threading.Event()

    class Talk(BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):  # the client is gone
                talk(self.request, ended)

    with serving(ThreadingTCPServer(("127.0.0.1", 0), Talk)) as address:
        try:
            yield address
        finally:
            ended.set()


FOUND = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize(
    "begins",
    [b"HTTP/1.1 200 OK\r\nX-", b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"],
    ids=["headers", "body"],
)
def test_an_answer_that_comes_byte_by_byte_is_given_up_at_the_deadline(begins):
    """Each byte comes in time, and the answer does not."""

    def trickle(connection: socket.socket, ended: threading.Event) -> None:
        connection.recv(65_536)
        connection.sendall(begins)
        for _ in range(200):  # 10 s
            if not ended.wait(0.05):
                connection.sendall(b"x")

    async def ask(address: str) -> None:
        async with chronos.AsyncClient(address, timeout_s=0.5) as client:
            await client.ask("/")

    with talking(trickle) as address:
        started = time.monotonic()
        with (
            chronos.Client(address, timeout_s=0.5) as client,
            pytest.raises(Unreachable, match="in time"),
        ):
            client.ask("/")
        with pytest.raises(Unreachable, match="in time"):
            asyncio.run(ask(address))
        assert 0.9 < time.monotonic() - started < 5


def test_a_request_that_is_sent_again_has_the_rest_of_the_time():
    """A kept connection is reset late in the call, and the next one is silent."""
    answered = threading.Event()

    def reset_late(connection: socket.socket, ended: threading.Event) -> None:
        connection.recv(65_536)
        if answered.is_set():
            ended.wait()
            return
        connection.sendall(FOUND)
        connection.recv(65_536)
        answered.set()
        ended.wait(1.5)

    with talking(reset_late) as address, chronos.Client(address, timeout_s=2) as client:
        client.ask("/")
        started = time.monotonic()
        with pytest.raises(Unreachable, match="in time"):
            client.ask("/")
        assert 1.9 < time.monotonic() - started < 3


def answering(port: int, answers: list[bytes], seen: list[bytes]) -> threading.Thread:
    """A server with prepared answers, one for each connection; `seen` gets the first line of each
    request."""
    listening = socket.create_server(("127.0.0.1", port))

    def serve() -> None:
        with listening:
            listening.settimeout(10)
            for answer in answers:
                connection, _ = listening.accept()
                with connection:
                    connection.settimeout(10)
                    seen.append(connection.recv(65_536).split(b"\r\n")[0])
                    connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


BUSY = b'HTTP/1.1 503 Busy\r\nContent-Length: 18\r\nConnection: close\r\n\r\n{"detail": "busy"}'
DONE = b'{"id": "a", "shard": 0, "offset": 1, "due_at": "2030-01-01T00:00:00Z"}'
OK = b"HTTP/1.1 202 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(DONE), DONE)


@pytest.mark.parametrize("first", [BUSY, b""], ids=["asked to come back", "connection closed"])
def test_a_message_with_an_id_is_sent_again(first):
    """Its id makes it the same message."""
    port = free_port()
    seen: list[bytes] = []
    thread = answering(port, [first, OK], seen)
    with chronos.Client(f"http://127.0.0.1:{port}") as client:
        assert client.schedule("t", delay="1ms", id="a").id == "a"
    thread.join(10)
    assert seen == [b"POST /v1/messages HTTP/1.1"] * 2


@pytest.mark.parametrize(("first", "error"), [(BUSY, ServiceFailed), (b"", Unreachable)])
def test_a_message_without_an_id_is_sent_once(first, error):
    """It might be scheduled twice otherwise."""
    port = free_port()
    seen: list[bytes] = []
    thread = answering(port, [first], seen)
    with chronos.Client(f"http://127.0.0.1:{port}") as client, pytest.raises(error):
        client.schedule("t", delay="1ms")
    thread.join(10)
    assert len(seen) == 1


@contextmanager
def registry(master: str, seen: list[str]) -> Iterator[str]:
    """A registry that routes to this master and knows no message; `seen` gets the method and path
    of each request."""
    route = {
        "shard": 0,
        "permissions": ["read", "write"],
        "master": {"node": "a", "address": master},
        "followers": [],
    }

    class Routes(Handler):
        def answer(self) -> None:
            seen.append(f"{self.command} {self.path}")
            is_routes = self.path == "/v1/registry/routes"
            body = json.dumps(
                {"partitions": 1, "routes": [route]} if is_routes else {"detail": "no"}
            ).encode()
            self.reply(200 if is_routes else 404, body)

        do_GET = do_POST = do_DELETE = answer  # noqa: N815

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Routes)) as address:
        yield address


def test_a_read_is_sent_to_another_node_after_a_time_out_and_a_write_is_not(monkeypatch):
    """A node that stood still may execute the write later: after others of the same id, which other
    nodes have executed by then."""
    monkeypatch.setattr(servers, "ATTEMPT_S", 0.2)
    monkeypatch.setattr(requests, "ACTION_WAIT_S", 0.0)
    seen: list[str] = []

    async def cancel(given: list[str]) -> None:
        async with chronos.AsyncClient(given, timeout_s=0.5) as client:
            await client.cancel("x")

    with socket.create_server(("127.0.0.1", 0)) as silent:
        master = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with registry(master, seen) as url:
            with chronos.Client([url, master], timeout_s=0.5) as client, pytest.raises(Unreachable):
                client.cancel("x")
            with pytest.raises(Unreachable):
                asyncio.run(cancel([url, master]))
            assert set(seen) == {"GET /v1/registry/routes"}
            with chronos.Client([url, master], timeout_s=20) as client, pytest.raises(NotFound):
                client.get("x")
            assert set(seen) == {"GET /v1/registry/routes", "GET /v1/messages/x"}


JOB: dict[str, object] = {
    "started_at": "2030-01-01T00:00:00.000Z",
    "ended_at": None,
    "elapsed_ms": 0,
    "expected": 0,
    "scanned": 0,
    "matched": 0,
    "written": 0,
    "done": 0,
    "too_late": 0,
    "failed": 0,
    "reasons": {},
    "rate": 0.0,
}


class JobNode(Handler):
    """A node that knows one job, `j`, and first answers requests about it with the statuses in
    `troubles`; 0 closes the connection."""

    protocol_version = "HTTP/1.1"
    troubles: ClassVar[list[int]] = []

    def answer(self) -> None:
        state = {"POST": "running", "GET": "done", "DELETE": "stopped"}[self.command]
        status, found = 200, {"id": "j", "node": "a", "action": "count", "state": state}
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/v1/jobs/j" and self.troubles:
            status, found = self.troubles.pop(0), {"detail": "trouble"}
        elif not self.path.startswith("/v1/jobs"):
            status, found = 404, {"detail": "no routes"}
        if not status:
            self.close_connection = True
            return
        self.reply(status, json.dumps(JOB | found).encode())

    do_GET = do_POST = do_DELETE = answer  # noqa: N815


@pytest.mark.process
@pytest.mark.parametrize("trouble", [[429], [502], [0, 0, 0]], ids=["429", "502", "closed"])
def test_a_job_is_looked_at_and_stopped_on_the_node_that_started_it(trouble):
    """Another node does not know it: when its node cannot answer once, or fails, the same node is
    asked again. By both clients and the command line."""
    seen: list[str] = []

    def after(trouble: list[int]) -> str:
        JobNode.troubles[:] = trouble
        return "j"

    async def work(given: list[str]) -> None:
        async with chronos.AsyncClient(given) as client:
            assert (await client.count_where(target="t")).state == "running"
            assert (await client.job(after(trouble))).state == "done"
            assert (await client.stop_job(after(trouble))).state == "stopped"
        async with chronos.AsyncClient(given) as client:
            after(trouble)
            assert (await client.count_where(target="t", wait="30s")).state == "done"

    with (
        serving(ThreadingHTTPServer(("127.0.0.1", 0), JobNode)) as runs,
        registry(runs, seen) as other,
    ):
        given = [runs, other]
        with chronos.Client(given) as client:
            assert client.count_where(target="t").state == "running"
            assert client.job(after(trouble)).state == "done"
            assert client.stop_job(after(trouble)).state == "stopped"
        with chronos.Client(given) as client:
            after(trouble)
            assert client.count_where(target="t", wait="30s").state == "done"
        asyncio.run(work(given))
        after(trouble)
        counted = run("list", "--count", "--target", "t", "--server", ",".join(given))
        assert (counted.code, counted.err) == (0, "no pending message matches\n")
    assert set(seen) <= {"GET /v1/registry/routes"}


def test_the_reason_of_a_refusal_survives_a_retry_that_is_not_answered():
    """The service said why before it fell silent."""
    port = free_port()
    seen: list[bytes] = []
    thread = answering(port, [BUSY, b""], seen)
    with (
        chronos.Client(f"http://127.0.0.1:{port}", retries=1) as client,
        pytest.raises(ServiceFailed, match="busy"),
    ):
        client.get("a")
    thread.join(10)
    assert len(seen) == 2


def test_the_asyncio_client_does_the_same(service):
    """Many at once."""

    async def live() -> None:
        async with chronos.AsyncClient(service.url) as client:
            sent = await asyncio.gather(
                *(client.schedule("async", "v", delay="1h", id=f"s/{at}") for at in range(50))
            )
            assert {one.id for one in sent} == {f"s/{at}" for at in range(50)}
            assert (await client.get("s/7")).state == "pending"
            assert await client.reschedule("s/7", deliver_at=later(7_200))
            assert (await client.cancel("s/7")).result == "cancelled"
            assert (await client.fire("s/8")).result == "fired"
            assert (await client.records("async", wait="10s"))["records"][0]["headers"][
                "chronos-id"
            ] == "s/8"
            assert {one.id async for one in client.pending(target="async")} <= {
                f"s/{at}" for at in range(50)
            }
            assert len((await client.ask("/v1/shards"))["shards"]) == 2
            assert len(await client.schedule_many([message("async", delay="1ms")])) == 1
            with pytest.raises(NotFound):
                await client.get("nobody")

    asyncio.run(live())


def test_the_asyncio_client_raises_the_same_errors():
    """The same errors."""

    async def live() -> None:
        async with chronos.AsyncClient(f"http://127.0.0.1:{free_port()}", timeout_s=1) as client:
            with pytest.raises(Unreachable):
                await client.get("x")

    asyncio.run(live())


@pytest.mark.parametrize(
    "address", ["http://", "ftp://host", "http://host:port", "http://host:99999"]
)
def test_an_invalid_address_is_refused_before_anything_is_sent(address):
    """The error says what to write."""
    with pytest.raises(Refused, match="http://host:port"):
        chronos.Client(address)


# --- Headers for a producer


def asked(
    headers: list[tuple[str, bytes]], key: bytes | None = None, value: bytes | None = b"v"
) -> object:
    """The command a shard reads from a record with these headers."""
    return parse(
        Record(0, 1_000_000, key, value, headers),
        Rules(shard=0, shards=1, max_delay_ms=10**14, min_time_ms=0),
    )


def test_the_headers_are_what_a_shard_understands():
    """All of them together."""
    headers = chronos.headers(
        target="orders",
        deliver_at="2030-01-01T00:00:00Z",
        key="k",
        on_conflict="replace",
        expire_at="2030-01-01T00:00:01Z",
    )
    found = asked(headers, b"id")
    assert type(found) is ConditionalSchedule
    assert (found.entry.target, found.entry.due_ms, found.entry.key, found.entry.expire_at_ms) == (
        "orders",
        1_893_456_000_000,
        b"k",
        1_893_456_001_000,
    )


@pytest.mark.parametrize(
    ("time", "due_ms"),
    [
        ({"deliver_at": "2030-01-01T01:00:00+01:00"}, 1_893_456_000_000),
        ({"deliver_at": datetime(2030, 1, 1, tzinfo=UTC)}, 1_893_456_000_000),
        (
            {"deliver_at": datetime(2030, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))},
            1_893_456_000_000,
        ),
        ({"deliver_at": datetime(2030, 1, 1, 0, 0, 0, 1, tzinfo=UTC)}, 1_893_456_000_001),
        ({"delay": "0"}, 1_000_000),
        ({"delay": "250ms"}, 1_000_250),
        ({"delay": "1.5s"}, 1_001_500),
        ({"delay": "1m30s"}, 1_090_000),
        ({"delay": timedelta(seconds=2)}, 1_002_000),
        ({"delay": timedelta(microseconds=1)}, 1_000_001),
    ],
)
def test_times_are_rounded_up_to_the_millisecond(time, due_ms):
    """Never early."""
    found = asked(chronos.headers(target="t", **time))
    assert type(found) is Entry
    assert found.due_ms == due_ms


def test_actions_need_no_target():
    """The key of the record names the message."""
    assert asked(chronos.headers(action="cancel"), b"a") == Action(Verb.CANCEL, b"a")
    assert asked(
        chronos.headers(action="reschedule", deliver_at="2030-01-01T00:00:00Z"), b"a"
    ) == Action(Verb.RESCHEDULE, b"a", 1_893_456_000_000)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"target": "t", "deliver_at": datetime(2030, 1, 1)}, "no time zone"),
        ({"target": "t"}, "neither deliver_at nor delay is given"),
        (
            {"target": "t", "deliver_at": "2030-01-01T00:00:00Z", "delay": "1s"},
            "deliver_at and delay are both given",
        ),
        ({"delay": "1s"}, "target is missing"),
        ({"target": "t", "delay": 30}, r"30 has no unit; write 30s, 30m or 30ms"),
        ({"target": "t", "delay": "30"}, r"30 has no unit"),
        ({"target": "t", "delay": -1.5}, r"no unit"),
        (
            {"target": "t", "deliver_at": 1_893_456_000},
            r"bare number.* such as 2030-01-01T00:00:00.000Z",
        ),
        (
            {"target": "t", "deliver_at": "1893456000000"},
            r"bare number.* such as 2030-01-01T00:00:00.000Z",
        ),
        ({"target": "t", "deliver_at": time.time}, "is not a time"),
        ({"target": "t", "delay": "1s", "on_conflict": "perhaps"}, "reject, replace, ignore"),
        ({"target": "t", "delay": timedelta(seconds=-1)}, "is negative; a delay is 0 or more"),
        ({"target": "t", "delay": "soon"}, "not a duration"),
        ({"action": "explode"}, "action: 'explode' is not one of schedule, replace"),
        ({"target": "no topic", "delay": "1s"}, "target: 'no topic' is not a topic name"),
        ({"target": "__x", "delay": "1s"}, "is a topic of Chronos or of Kafka itself"),
        (
            {
                "target": "t",
                "deliver_at": "2030-01-01T00:00:00Z",
                "expire_at": "2029-01-01T00:00:00Z",
            },
            "expire_at is before",
        ),
        (
            {"target": "t", "deliver_at": "2000-01-01T00:00:00Z"},
            "deliver_at: 946684800000 looks like seconds",
        ),
        (
            {"target": "t", "delay": "1s", "attempts": 0},
            "attempts: '0' is not a number from 1 to 1000",
        ),
        (
            {"target": "t", "delay": "1s", "repeat": "every 500"},
            "500 has no unit; write 500s or 500ms",
        ),
        (
            {"target": "t", "delay": "1s", "repeat": "0 9 * * 1-5"},
            "begin with every, backoff or cron",
        ),
        (
            {"target": "t", "repeat": "cron 61 * * * *"},
            "repeat: '61 . . . .' is not a cron expression: bad minute",
        ),
        ({"target": "t", "repeat": "cron 0 0 30 2 *"}, "bad day-of-month"),
        (
            {"target": "t", "repeat": "cron 0 9 * * 1-5", "time_zone": "Europe/Lisbonne"},
            "time_zone: 'Europe/Lisbonne' is not a time zone",
        ),
        (
            {"target": "t", "repeat": "cron 0 9 * * 1-5", "time_zone": "right/Europe/Berlin"},
            "of the IANA database; did you mean Europe/Berlin",
        ),
        ({"target": "t", "delay": "1s", "repeat_times": 3}, "repeat_times without repeat"),
        (
            {"target": "t", "delay": "1s", "repeat": "every 1s", "repeat_times": 0},
            "repeat_times: '0' is not a number",
        ),
        (
            {"target": "t", "delay": "1s", "repeat": "every 1s", "time_zone": "UTC"},
            "time_zone goes with a cron expression only",
        ),
        (
            {"target": "t", "delay": "1s", "repeat": "every 1s", "late_policy": "never"},
            "late_policy: 'never' is not one of fire-once",
        ),
        ({"action": "cancel", "target": "t"}, "target does not go with 'cancel'"),
        ({"action": "cancel", "delay": "1s"}, "delay does not go with 'cancel'"),
        ({"action": "reschedule"}, "neither deliver_at nor delay is given"),
        (
            {"action": "replace", "target": "t", "delay": "1s", "on_conflict": "reject"},
            "on_conflict goes with schedule, not with replace",
        ),
    ],
)
def test_headers_that_would_be_refused_are_refused_before_they_are_sent(arguments, says):
    """With what to write instead."""
    with pytest.raises(ValueError, match=says):
        chronos.headers(**arguments)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            {"value": {"order": 17}},
            "value must be str, bytes or None, not dict; encode it, for example with json.dumps",
        ),
        ({"value": 17}, "value must be str, bytes or None, not int"),
        ({"key": ["k"]}, "key must be"),
        ({"id": 17}, "id must be str or bytes, not int"),
        ({"headers": {"a": 1}}, "a header must be"),
        ({"headers": {"a": [["b"]]}}, None),
        ({"at": "2030-01-01T00:00:00Z"}, "unexpected keyword argument 'at'"),
    ],
)
def test_a_message_of_wrong_types_is_a_type_error_with_a_reason(arguments, says):
    """Never a traceback out of the middle of the client."""
    if says is None:
        assert message("t", delay="1s", **arguments)["target"]["headers"] == {"a": [["b"]]}
        return
    with pytest.raises(TypeError, match=says):
        message("t", delay="1s", **arguments)


def test_text_that_cannot_be_sent_is_refused():
    """Half of a surrogate pair, as a command line makes of bytes that are not UTF-8."""
    with pytest.raises(ValueError, match="is not valid text; give its bytes"):
        message("t", "\udcff", delay="1s")


# --- Waiting until a message is accepted


def test_a_message_is_confirmed_once_its_shard_has_taken_it_in(client):
    """With an id and without one."""
    assert client.schedule("confirmed", "v", delay="1h", id="confirmed", wait="10s").applied
    assert client.schedule("confirmed", "v", delay="1h", wait=timedelta(seconds=10)).applied
    assert client.schedule("confirmed", "v", delay="0ms", id="at-once", wait="10s").applied
    assert not client.schedule("confirmed", "v", delay="1h").applied


def test_a_message_whose_id_is_taken_is_rejected(client):
    """Unless the caller asked for something else."""
    client.schedule("taken", "first", delay="1h", id="taken", wait="10s")
    with pytest.raises(Rejected, match="another message has this id and is pending"):
        client.schedule("taken", "second", delay="2h", id="taken", wait="10s")
    assert client.schedule(
        "taken", "3rd", delay="2h", id="taken", on_conflict="ignore", wait="10s"
    ).applied
    assert client.get("taken").value_bytes == 5
    assert client.schedule(
        "taken", "fourth", delay="2h", id="taken", on_conflict="replace", wait="10s"
    ).applied
    assert client.get("taken").value_bytes == 6


def test_the_asyncio_client_waits_alike(service):
    """The same steps."""

    async def live() -> None:
        async with chronos.AsyncClient(service.url) as client:
            assert (
                await client.schedule("taken", "v", delay="1h", id="async-taken", wait="10s")
            ).applied
            with pytest.raises(Rejected, match="another message has this id"):
                await client.schedule("taken", "v", delay="1h", id="async-taken", wait="10s")

    asyncio.run(live())


def test_the_package_lists_what_it_offers():
    """`dir`, before anything was imported by name."""
    program = (
        "import chronos; shown = {name for name in dir(chronos) if not name.startswith('_')};"
        "assert shown == {'Client', 'AsyncClient', 'headers', 'message'}, shown"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.process
def test_importing_the_client_imports_nothing_of_the_service():
    """A program that only schedules loads nothing else."""
    program = (
        "import sys, chronos; assert 'msgspec' not in sys.modules; chronos.Client;heavy = "
        "{'aiohttp', 'asyncio', 'rocksdict', 'confluent_kafka', 'pydantic', 'structlog', 'typer'} "
        "& set(sys.modules);assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
