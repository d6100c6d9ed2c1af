"""The HTTP server of `chronos archive --follow`: `/metrics` for Prometheus, and `/readyz`.

It shows no records: it asks for no token, and has no TLS. It has a thread and an event loop of its
own, so that it answers while Spark works."""

import asyncio
import threading
from concurrent.futures import Future
from contextlib import AbstractContextManager

import msgspec
from aiohttp import web
from msgspec import UNSET
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from chronos.admin.archive.status import ArchiveStatus
from chronos.admin.http.access import Hosts
from chronos.admin.http.connections import (
    BODIES_BYTES_MAX,
    BodyBudget,
    Listener,
    SparseLog,
    connections_max,
)
from chronos.admin.http.problems import ProblemError
from chronos.admin.http.schemas import Fault, Health
from chronos.admin.http.server import LINE_BYTES_MAX, add_headers, guard
from chronos.config import Config
from chronos.errors import Stop

STOP_S = 5.0
"""How long requests may take to finish when the server stops."""

_encode = msgspec.json.Encoder().encode


class ArchiveServer:
    """Serves the status of one process from a thread of its own."""

    def __init__(self, status: ArchiveStatus, config: Config) -> None:
        self._status = status
        self._hosts = Hosts.of(config)
        self._registry = CollectorRegistry()
        self._registry.register(status)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    def start(self, host: str, port: int) -> str:
        """Listen, and return the URL; Stop if that is not possible. Port 0: any free one."""
        listening: Future[str] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(host, port, listening)),
            name="archive-http",
            daemon=True,
        )
        self._thread.start()
        try:
            return listening.result()
        except OSError as error:
            raise Stop(
                f"--listen {host}:{port}: cannot listen there: {error.strerror or error}. Is "
                "another `chronos archive --follow` running? Choose another port; 0 takes any free "
                "one"
            ) from None

    def stop(self) -> None:
        """Accept no more requests, and finish those that are there."""
        if self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        if self._thread is not None:
            self._thread.join()

    async def _serve(self, host: str, port: int, listening: "Future[str]") -> None:
        sparse_log = SparseLog()
        listener: Listener | None = None

        def serving(request: web.Request) -> AbstractContextManager[None]:
            assert listener is not None
            return listener.serving(request)

        app = web.Application(middlewares=[guard(serving, self._hosts, sparse_log)])
        app.on_response_prepare.append(add_headers)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/readyz", self._ready)
        runner = web.AppRunner(app, shutdown_timeout=STOP_S)
        await runner.setup()
        try:
            assert runner.server is not None
            listener = Listener(
                runner.server,
                sparse_log,
                BodyBudget(BODIES_BYTES_MAX),
                most=connections_max(),
                max_line_size=LINE_BYTES_MAX,
                auto_decompress=False,
            )
            try:
                found, number = await listener.listen(host, port, lambda: None)
            except OSError as error:
                listening.set_exception(error)
                return
            self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
            shown = f"[{found}]" if ":" in found else found
            listening.set_result(f"http://{shown}:{number}")
            await self._stopping.wait()
        finally:
            if listener is not None:
                await listener.close()
            await runner.cleanup()

    async def _metrics(self, _: web.Request) -> web.Response:
        body = generate_latest(self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _ready(self, _: web.Request) -> web.Response:
        reasons = self._status.reasons()
        if reasons:
            raise ProblemError(
                503,
                "not-archived",
                "; ".join(reasons),
                errors=[Fault(detail=reason) for reason in reasons],
            )
        health = Health(details=self._status.details() or UNSET)
        return web.Response(body=_encode(health), content_type="application/json")
