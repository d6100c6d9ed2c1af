"""What one token may take of a node, so that the others are served as if it were not there."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from chronos.admin.http.tokens import SenderLimits, digest, parse_tokens
from chronos.admin.http.waiting import ThreadTurns, asker
from chronos.core.reach import EVERYTHING
from tests.harness.inside import Inside
from tests.harness.waiting import wait_until

LIMITS: dict[str, dict[str, int]] = {
    "greedy": {},
    "other": {},
    "small": {"polls": 2, "connections": 3, "jobs": 1},
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """One node for all tests; a token is its name."""
    folder = tmp_path_factory.mktemp("fairness")
    path = folder / "tokens.yaml"
    entries = [
        {
            "name": name,
            "sha256": digest(name),
            "roles": ["read", "payload", "write", "operate"],
            "limits": limits,
        }
        for name, limits in LIMITS.items()
    ]
    path.write_text(json.dumps({"tokens": entries}))
    with Inside(folder, admin__tokens=path) as running:
        yield running


def poll(service: Inside, token: str, stack: ExitStack, topic: str = "never") -> socket.socket:
    """A connection with a long poll."""
    connection = stack.enter_context(
        socket.create_connection(("127.0.0.1", service.port), timeout=30)
    )
    path = f"/v1/topics/{topic}/records?wait=60s"
    connection.sendall(
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    )
    return connection


@pytest.mark.slow
def test_long_polls_of_one_token_leave_room_for_others(service: Inside) -> None:
    """Of 500, as many wait as the token may have; the others are told so, and another token is not
    concerned."""
    with ExitStack() as stack:
        polls = [poll(service, "greedy", stack) for _ in range(500)]
        context = service.server._context
        assert context is not None
        wait_until(lambda: context.polls._count == SenderLimits().polls)
        refused = service.ask("GET", "/v1/topics/never/records?wait=60s", token="greedy")
        assert (refused.status, refused.problem, refused.headers["retry-after"]) == (
            429,
            "beyond-limits",
            "1",
        )
        waiting = poll(service, "other", stack, "soon")
        body = {"target": {"topic": "soon"}, "value": "v", "delay": "0s"}
        assert service.ask("POST", "/v1/messages", body, token="other").status == 202
        assert b" 200 OK" in waiting.recv(65_536)
        assert len(polls) == 500
    wait_until(lambda: context.polls._count == 0 and not context.polls._of_tokens)


def test_connections_of_one_token_are_bounded(service: Inside) -> None:
    """An idle one gives way; without one, the new connection is closed after its answer."""
    listener = service.server._listener
    assert listener is not None
    with ExitStack() as stack:
        idle = stack.enter_context(
            socket.create_connection(("127.0.0.1", service.port), timeout=30)
        )
        idle.sendall(
            b"GET /v1/rates HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer small\r\n\r\n"
        )
        assert idle.recv(65_536).startswith(b"HTTP/1.1 200")
        for _ in range(2):
            poll(service, "small", stack)
        wait_until(lambda: len(listener._of_tokens["small"]) == 3)
        assert service.ask("GET", "/v1/rates", token="small").status == 200
        assert idle.recv(1) == b""
        wait_until(lambda: len(listener._of_tokens["small"]) == 2)
        slow = stack.enter_context(
            socket.create_connection(("127.0.0.1", service.port), timeout=30)
        )
        slow.sendall(
            b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer small\r\n"
            b"Content-Type: application/json\r\nContent-Length: 10\r\n\r\n"
        )
        wait_until(lambda: len(listener._of_tokens["small"]) == 3)
        last = stack.enter_context(
            socket.create_connection(("127.0.0.1", service.port), timeout=30)
        )
        last.sendall(
            b"GET /v1/rates HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer small\r\n\r\n"
        )
        answer = b"".join(iter(lambda: last.recv(65_536), b""))
        assert answer.startswith(b"HTTP/1.1 429")
        assert b"the token small has 3 connections" in answer
        assert service.ask("GET", "/v1/rates", token="other").status == 200
    wait_until(lambda: "small" not in listener._of_tokens)


@contextmanager
def occupied(service: Inside, token: str, threads: int) -> Iterator[None]:
    """While work of the token takes its share of the threads, and much more of it waits."""
    gate, context = threading.Event(), service.server._context
    assert context is not None

    async def occupy() -> None:
        asker.set(token)
        await asyncio.gather(*(context.in_thread(gate.wait, 60) for _ in range(threads)))

    work = asyncio.run_coroutine_threadsafe(occupy(), service._loop)
    try:
        yield
    finally:
        gate.set()
        work.result(30)


def test_the_work_of_one_token_does_not_stop_that_of_others(service: Inside) -> None:
    """It has a part of the threads, however much of it waits. Its jobs are bounded too."""
    body = {"target": {"topic": "t"}, "value": "v", "delay": "1h", "id": "there"}
    assert service.ask("POST", "/v1/messages", body, token="other").status == 202
    with occupied(service, "small", 100):
        assert service.ask("GET", "/v1/messages/there", token="other").status == 200
        assert service.ask("GET", "/v1/messages?target=t", token="other").status == 200
        first = service.ask("POST", "/v1/jobs", {"action": "count"}, token="small")
        assert (first.status, first.json()["state"]) == (202, "running")
        refused = service.ask("POST", "/v1/jobs", {"action": "count"}, token="small")
        assert (refused.status, refused.problem) == (429, "beyond-limits")
        others = service.ask("POST", "/v1/jobs", {"action": "count"}, token="other").json()["id"]
        wait_until(
            lambda: (
                service.ask("GET", f"/v1/jobs/{others}", token="other").json()["state"] == "done"
            )
        )
        assert (
            service.ask("GET", f"/v1/jobs/{first.json()['id']}", token="other").json()["state"]
            == "running"
        )


def test_the_turn_is_that_of_the_token_that_used_the_least_time() -> None:
    """Many short pieces of work beside few long ones; what waits longest is first within a token; a
    request that ended is left out."""
    order: list[str] = []

    async def main() -> None:
        turns = ThreadTurns(1, "turns", share=1)
        gates = {name: threading.Event() for name in ("first", "long")}

        async def ask(name: str, work: str) -> None:
            asker.set(name)

            def run() -> None:
                if work in gates:
                    assert gates[work].wait(30)
                order.append(f"{name} {work}")

            await turns.run(run)

        tasks = [asyncio.create_task(ask("greedy", "first"))]
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(ask("greedy", f"{number}")) for number in range(3)]
        gone = asyncio.create_task(ask("other", "gone"))
        tasks += [asyncio.create_task(ask("other", f"{number}")) for number in range(3)]
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.get_running_loop().run_in_executor(None, gates["first"].wait, 0.2)
        gates["first"].set()
        await asyncio.gather(*tasks)
        assert not turns._accounts
        turns.close()

    asyncio.run(main())
    assert order == [
        "greedy first",
        "other 0",
        "other 1",
        "other 2",
        "greedy 0",
        "greedy 1",
        "greedy 2",
    ]


def test_an_error_of_work_is_that_of_its_request() -> None:
    """And the thread is free again."""

    async def main() -> None:
        turns = ThreadTurns(1, "turns", share=1)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await turns.run(lambda: 1 // 0)
        assert await turns.run(lambda: 5) == 5
        turns.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ("{polls: 0}", "Expected `int` >= 1"),
        ("{polls: 501}", "<= 500"),
        ("{pools: 1}", "unknown field `pools`"),
    ],
)
def test_limits_that_are_none_are_named(limits: str, text: str) -> None:
    """Like everything else in the file."""
    entry = f"{{name: a, sha256: '{digest('a')}', roles: [read], limits: {limits}}}"
    with pytest.raises(ValueError, match=text):
        parse_tokens(f"{{tokens: [{entry}]}}".encode())


def test_forwarded_work_is_that_of_the_token_that_asked(tmp_path: Path) -> None:
    """Its name goes with the request to the other node."""
    heads: list[dict[str, Any]] = []

    async def main() -> None:
        from aiohttp import web

        from chronos.admin.cluster.peers import PeerClient

        async def seen(request: web.Request) -> web.Response:
            heads.append(dict(request.headers))
            return web.Response(text="{}")

        app = web.Application()
        app.router.add_get("/v1/messages", seen)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0]
        with Inside(tmp_path) as other:
            member = other.node.describe()
            peers = PeerClient(other.node)
            for name in (None, "greedy"):
                asker.set(name)
                await peers.ask_member(
                    structs.replace(member, address=f"http://{host}:{port}"),
                    "GET",
                    "/v1/messages",
                    {},
                    reach=EVERYTHING,
                )
            await peers.close()
        await runner.cleanup()

    asyncio.run(main())
    assert [each.get("Chronos-Asker") for each in heads] == [None, "greedy"]
