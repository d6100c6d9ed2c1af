"""The registration of a node with the registry of another one, which is a server of the test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from chronos.admin.cluster import registry as own_registry
from chronos.admin.cluster.peers import PeerClient
from chronos.admin.cluster.registry import Registrar
from chronos.core.cluster.registry import registration as registrations
from chronos.node import Node
from chronos.workers.cluster.membership import Membership
from tests.harness.inside import Inside
from tests.harness.plans import plan_for
from tests.harness.serving import serving
from tests.harness.zookeeper import member
from tests.sim.coordinator import Ensemble, SimCoordinator
from tests.sim.world import World

PATIENCE_S = 30.0

LATE_S = 0.3
"""How long the other registry takes to answer a registration once the node stops."""

REGISTERED = (
    b'{"result": "registered", "state_version": 1, "node": "n1", "refused": [], "masters": []}'
)


class Joined:
    """A node on its own, and the membership of a simulated coordinator."""

    def __init__(self, node: Node, membership: Membership) -> None:
        self._node = node
        self.membership = membership

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)


def joined(node: Node, other: str) -> Joined:
    """The node in a cluster with another one, which has this address."""
    world = World(0)
    ensemble = Ensemble(world, shards=1, replication=None, session_ms=60_000)
    own, its = (
        SimCoordinator(ensemble, "n1", lambda _: None),
        SimCoordinator(ensemble, "n2", lambda _: None),
    )
    own.join(member("n1"))
    its.join(replace(member("n2"), address=other))
    while "n2" not in own.look().members:
        world.pass_time(20)
    return Joined(
        node, Membership(own, node="n1", clock=node.clock, describe=node.describe, plan=plan_for(1))
    )


@contextmanager
def registry(answer: Callable[[str], bytes]) -> Iterator[str]:
    """Another node's registry. `answer`: takes the method of a request, and gives its answer."""

    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = answer(self.command)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_PUT = do_DELETE = respond  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as address:
        yield address


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes register every half second."""
    monkeypatch.setattr(own_registry, "REGISTER_EVERY_MS", 500)


@pytest.mark.usefixtures("often")
def test_a_node_that_stops_leaves_after_its_last_registration(tmp_path: Path) -> None:
    """A registration that is answered after the un-registration would keep the node until it
    expires."""
    arrived, stopping, answered = threading.Event(), threading.Event(), list[str]()

    def answer(method: str) -> bytes:
        if method == "PUT":
            arrived.set()
            assert stopping.wait(PATIENCE_S)
            threading.Event().wait(LATE_S)
        answered.append(method)
        return REGISTERED

    with (
        Inside(tmp_path, node__id="n1") as service,
        registry(answer) as url,
    ):

        async def stop() -> None:
            context = copy(service.server._context)
            assert context is not None
            context.node = joined(service.node, url)  # type: ignore[assignment]
            context.peers, context.stopping = PeerClient(service.node), asyncio.Event()
            registrar = Registrar(context, "http://127.0.0.1:1")
            running = asyncio.create_task(registrar.run())
            assert await asyncio.to_thread(arrived.wait, PATIENCE_S)
            context.stopping.set()
            stopping.set()
            await registrar.leave()
            await running
            await context.peers.close()

        asyncio.run(stop())
    assert answered == ["PUT", "DELETE"]


@pytest.mark.usefixtures("often")
def test_an_answer_that_is_none_is_an_error_and_the_registration_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other registry is asked again after its pause, and the node leaves it in order."""
    monkeypatch.setattr(registrations, "RETRY_MS", 300)
    asked: list[str] = []
    second = threading.Event()

    def answer(method: str) -> bytes:
        asked.append(method)
        if asked.count("PUT") == 2:
            second.set()
        return REGISTERED if asked.count("PUT") > 1 else b"no JSON"

    with (
        Inside(tmp_path, node__id="n1") as service,
        registry(answer) as url,
    ):

        async def register() -> float:
            context = copy(service.server._context)
            assert context is not None
            context.node = joined(service.node, url)  # type: ignore[assignment]
            context.peers, context.stopping = PeerClient(service.node), asyncio.Event()
            registrar = Registrar(context, "http://127.0.0.1:1")
            running = asyncio.create_task(registrar.run())
            started_s = asyncio.get_running_loop().time()
            assert await asyncio.to_thread(second.wait, PATIENCE_S)
            took_s = asyncio.get_running_loop().time() - started_s
            context.stopping.set()
            await registrar.leave()
            await running
            await context.peers.close()
            return took_s

        assert asyncio.run(register()) >= 0.3
    assert asked == ["PUT", "PUT", "DELETE"]
