"""A node on the embedded log and its HTTP interface inside the test process, with raw requests to
it."""

import asyncio
import http.client
import json
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from chronos.admin import Server
from chronos.config import load
from chronos.core.cluster.registry.registry import Registry
from chronos.node import Node
from chronos.ports import Clock
from tests.harness.waiting import wait_until

START_S = 30.0


class Answer(NamedTuple):
    """An answer as it was received."""

    status: int
    headers: dict[str, str]
    """By lower-case name."""
    body: bytes

    @property
    def problem(self) -> str:
        """The kind of a problem; empty for any other answer."""
        if self.headers.get("content-type") != "application/problem+json":
            return ""
        return str(json.loads(self.body)["type"]).rpartition(":")[2]

    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


class Inside:
    """One node with its server, in a thread of its own; starts faster than a process and needs no
    port in advance."""

    def __init__(self, folder: Path, clock: Clock | None = None, /, **settings: object) -> None:
        """`clock`: another one than the machine's. `settings`: with `__` for the dots."""
        values = {
            "node.data_dir": folder / "data",
            "admin.port": 0,
            "shards": 1,
            "limits.disk_reserve": 0,
        }
        values |= {name.replace("__", "."): value for name, value in settings.items()}
        config = load(None, {}, [f"{name}={value}" for name, value in values.items()])
        self.node = Node(config, clock=clock)
        self.server = Server(self.node)
        self.context: ssl.SSLContext | None = None
        """For requests over TLS."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def registry(self) -> Registry:
        """The registry that it serves."""
        assert self.server._context is not None, "the server has not started"
        return self.server._context.registry

    @property
    def port(self) -> int:
        """The port of the HTTP interface."""
        return int(self.server.url.rpartition(":")[2])

    def __enter__(self) -> Self:
        self.node.start()
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self.server.start(), self._loop).result(START_S)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            asyncio.run_coroutine_threadsafe(self.server.stop(), self._loop).result(START_S)
        finally:
            self._end()

    def _end(self) -> None:
        self.node.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_S)
        self._loop.close()

    def wait_ready(self) -> None:
        """Wait until it leads its shards; before, `/readyz` answers 503."""
        wait_until(lambda: self.ask("GET", "/readyz").status == 200)

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        token: str = "",
    ) -> Answer:
        """Send one request on a connection of its own. A `body` that is no bytes is sent as
        JSON."""
        sent = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        if token:
            sent["Authorization"] = f"Bearer {token}"
        connection = (
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
            if self.context is None
            else http.client.HTTPSConnection(
                "127.0.0.1", self.port, timeout=30, context=self.context
            )
        )
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            return Answer(
                answer.status,
                {name.lower(): value for name, value in answer.getheaders()},
                answer.read(),
            )
        finally:
            connection.close()
