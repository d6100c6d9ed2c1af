"""Accepts connections: bounds their number and their time, and answers what is not HTTP.

A node without a free file descriptor cannot open its own files and sockets, so connections take at most half of them. At the
bound the connection that has been idle longest is closed for a new one; a connection that serves a request is not.
"""

import asyncio
import resource
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog
from aiohttp import web

from chronos.admin.problems import ProblemError, answer, beyond_limits
from chronos.admin.tokens import Sender

log = structlog.get_logger("chronos.http")

CONNECTIONS_MAX = 2_000
"""Most connections: each takes some kilobytes, and one pass of the loop for each event."""

HEADER_S = 10.0
"""How long a new connection may take to negotiate TLS and to send its first request, headers included."""

KEEP_S = 75.0
"""How long an idle connection is kept, and how long an answer may take to be read."""

SWEEP_S = 1.0
"""Time between two looks for connections that took too long."""

ACCEPT_PAUSE_S = 1.0
"""Pause after the system refused to accept a connection."""

BACKLOG = 128
"""Connections that the system accepts before the node does."""

LOG_EVERY_S = 60.0
"""Time between two log lines of one kind, however often it happens."""

SERVER = "Chronos"
"""The header `Server`, without a version, which helps an attacker only."""


def connections_max() -> int:
    """Return the most connections: at most half of the process's file descriptors."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS_MAX if descriptors == resource.RLIM_INFINITY else min(CONNECTIONS_MAX, descriptors // 2)


class SparseLog:
    """Log lines about strangers: the first of each kind at once, then one a minute with the number of the others."""

    def __init__(self) -> None:
        self._next_s: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def warn(self, event: str, **fields: object) -> None:
        """Log the event, or count it."""
        now_s = time.monotonic()
        if now_s < self._next_s.get(event, 0.0):
            self._left_out[event] = self._left_out.get(event, 0) + 1
            return
        self._next_s[event] = now_s + LOG_EVERY_S
        log.warning(event, **fields, left_out=self._left_out.pop(event, 0))


class Listener:
    """Listens on the addresses of a host, and hands its connections to a server of aiohttp. For one event loop."""

    def __init__(self, server: web.Server, sparse_log: SparseLog, *, most: int, **options: Any) -> None:
        """`options`: those of aiohttp's `RequestHandler`."""
        self._server = server
        self._log = sparse_log
        self._most = most
        self._options = options
        self._count = 0
        self._new: dict[Connection, float] = {}
        self._idle: dict[Connection, float] = {}
        self._of_tokens: dict[str, set[Connection]] = {}
        self._sockets: list[socket.socket] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._beginning: set[asyncio.Task[None]] = set()
        self._handshakes: dict[asyncio.Task[None], None] = {}

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None) -> tuple[str, int]:
        """Listen on every address of the host; return the first one. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
            listening = socket.create_server(address[:2], family=family, backlog=BACKLOG)
            listening.setblocking(False)
            self._sockets.append(listening)
        self._tasks = [loop.create_task(self._accept(each, tls)) for each in self._sockets]
        self._tasks.append(loop.create_task(self._sweep()))
        name: tuple[str, int] = self._sockets[0].getsockname()[:2]
        return name

    async def close(self) -> None:
        """Accept no more connections. Those that are open belong to the server."""
        ending = [*self._tasks, *self._beginning]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        for each in self._sockets:
            each.close()

    @contextmanager
    def serving(self, request: web.Request) -> Iterator[None]:
        """While a request is served, its connection is not idle."""
        connection = request.protocol
        assert isinstance(connection, Connection)
        self._new.pop(connection, None)
        self._idle.pop(connection, None)
        try:
            yield
        finally:
            if connection.transport is not None:
                self._idle[connection] = time.monotonic() + KEEP_S

    def claim(self, connection: "Connection", sender: Sender) -> None:
        """Count the connection with the token of its request: for one too many an idle one of the same token is closed.

        ProblemError with status 429, after which the connection is closed, if none is idle.
        """
        name = sender.name
        if connection.token == name:
            return
        self._disown(connection)
        if name is None or sender.limits is None:
            return
        mine = self._of_tokens.setdefault(name, set())
        if len(mine) >= sender.limits.connections:
            idle = next((each for each in mine if each in self._idle), None)
            if idle is None:
                connection.is_last = True
                raise beyond_limits(name, f"{len(mine)} connections")
            del self._idle[idle]
            self._disown(idle)
            idle.abort()
        self._of_tokens.setdefault(name, set()).add(connection)
        connection.token = name

    def _disown(self, connection: "Connection") -> None:
        name = connection.token
        if name is not None:
            connection.token = None
            mine = self._of_tokens[name]
            mine.discard(connection)
            if not mine:
                del self._of_tokens[name]

    async def _accept(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
                if self._count < self._most or self._evict():
                    self._begin(accepted, tls)
                else:
                    accepted.close()
            except Exception as error:
                # Without this task nothing would be accepted any more, so no error ends it.
                self._log.warn("connections cannot be accepted", why=getattr(error, "strerror", None) or repr(error))
                await asyncio.sleep(ACCEPT_PAUSE_S)
            # sock_accept does not yield while connections wait to be accepted.
            await asyncio.sleep(0)

    def _evict(self) -> bool:
        """Close the connection that has been idle longest, new ones first; False if all of them serve requests."""
        self._log.warn("too many connections", connections=self._count, most=self._most)
        for handshake in self._handshakes:
            del self._handshakes[handshake]
            handshake.cancel()
            return True
        for connections in (self._new, self._idle):
            for connection in connections:
                del connections[connection]
                connection.abort()
                return True
        return False

    def _begin(self, accepted: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Begin a connection; with TLS it may be evicted until its handshake is done."""
        connection = Connection(self, self._server, self._options)
        task = asyncio.get_running_loop().create_task(self._connect(connection, accepted, tls))
        self._count += 1

        # A task that is cancelled before its first step runs nothing of its own.
        def end(_: object) -> None:
            self._handshakes.pop(task, None)
            self._beginning.discard(task)
            if not connection.was_made:
                self._count -= 1
                accepted.close()

        self._beginning.add(task)
        if tls is not None:
            self._handshakes[task] = None
        task.add_done_callback(end)

    async def _connect(self, connection: "Connection", accepted: socket.socket, tls: ssl.SSLContext | None) -> None:
        timeout_s = None if tls is None else HEADER_S
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, accepted, ssl=tls, ssl_handshake_timeout=timeout_s
            )
        except OSError as error:
            self._log.warn("TLS handshake failed", why=str(error) or type(error).__name__)

    def opened(self, connection: "Connection") -> None:
        """A connection is ready for its first request."""
        self._new[connection] = time.monotonic() + HEADER_S

    def lost(self, connection: "Connection") -> None:
        """A connection is closed."""
        self._count -= 1
        self._new.pop(connection, None)
        self._idle.pop(connection, None)
        self._disown(connection)

    def failed(self, why: str, **more: object) -> None:
        """A connection carried something that is not a request, or its request met an error that was not expected."""
        self._log.warn("request not read", why=why, **more)

    async def _sweep(self) -> None:
        """Close the connections that took too long, about once a second."""
        while True:
            await asyncio.sleep(SWEEP_S)
            now_s = time.monotonic()
            for connections in (self._new, self._idle):
                for connection in [each for each, ends_s in connections.items() if ends_s <= now_s]:
                    del connections[connection]
                    connection.abort()


class Connection(web.RequestHandler):
    """One connection."""

    __slots__ = ("_listener", "is_last", "token", "was_made")

    def __init__(self, listener: Listener, server: web.Server, options: dict[str, Any]) -> None:
        options = {"access_log": None, "keepalive_timeout": KEEP_S, **options}
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._listener = listener
        self.token: str | None = None
        """Name of the token with which it is counted."""
        self.is_last = False
        """True: it is closed after the answer."""
        self.was_made = False
        """True once it was ready for requests: then its end is reported by `connection_lost`."""

    def claim(self, sender: Sender) -> None:
        """See `Listener.claim`."""
        self._listener.claim(self, sender)

    def abort(self) -> None:
        """Close at once, also if an answer was not read to its end."""
        transport = self.transport
        self.force_close()
        if transport is not None:
            transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.was_made = True
        self._listener.opened(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._listener.lost(self)

    def log_exception(self, *args: Any, **kw: Any) -> None:
        self._listener.failed(repr(kw.get("exc_info") or args))

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer what is not HTTP. The server itself answers every other error; what it could not answer is a bug."""
        if isinstance(exc, ConnectionError):
            raise exc  # the client has left
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer was sent already")
        if status < 500:
            self._listener.failed(type(exc).__name__)
            problem = ProblemError(status, "bad-request", "the request cannot be read as HTTP/1.1").problem
        else:
            self._listener.failed(repr(exc), exc_info=exc)
            problem = ProblemError(500, "internal", "see the log of this node", hint="this is a bug in Chronos").problem
        response = answer(problem, {"Server": SERVER, "X-Content-Type-Options": "nosniff"})
        response.force_close()
        return response
