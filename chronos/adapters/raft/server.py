"""The HTTP server of a voter: bounds on connections and on the size of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from chronos.adapters.raft.wire import BODY_BYTES_MAX

CONNECTIONS_MAX = 250
"""Most connections: each member has one or two to the leader, and each voter one to every other."""

HANDSHAKE_S = 5.0
"""How long a new connection may take to negotiate TLS."""


class _Request(web.BaseRequest):
    """A request whose answer does not name the library and its version: they help an attacker only."""

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        response.headers.popall("Server", None)


def _request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> _Request:
    return _Request(message, payload, protocol, writer, task, asyncio.get_running_loop())


class BoundedServer(web.Server):
    """A server with at most CONNECTIONS_MAX connections. At the bound the oldest one without a valid request is closed for a new one."""

    def __init__(self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        super().__init__(handler, access_log=None, lingering_time=0, request_factory=_request)
        self._known: set[web.RequestHandler] = set()
        self._unknown: dict[web.RequestHandler, asyncio.Transport] = {}
        """Connections without a valid request so far, oldest first."""

    @property
    def count(self) -> int:
        """Number of open connections."""
        return len(self._known) + len(self._unknown)

    def keep(self, request: web.BaseRequest) -> None:
        """The connection of this request belongs to a node of the cluster."""
        if self._unknown.pop(request.protocol, None) is not None:
            self._known.add(request.protocol)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._unknown[handler] = transport
        if self.count > CONNECTIONS_MAX:
            self._unknown.pop(next(iter(self._unknown))).abort()

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._known.discard(handler)
        self._unknown.pop(handler, None)


async def read_body(request: web.BaseRequest) -> bytes | None:
    """Return the content of a request; None if it is too large."""
    content = bytearray()
    if (request.content_length or 0) > BODY_BYTES_MAX:
        return None
    async for part in request.content.iter_any():
        content += part
        if len(content) > BODY_BYTES_MAX:
            return None
    return bytes(content)
