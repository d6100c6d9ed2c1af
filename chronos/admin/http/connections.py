"""Connections and request bodies: the bounds of their number, memory and time, and the answers to
connections that do not send HTTP.

All bodies, the records made from them, the bytes received and not read yet, and the buffers of TLS
share one bound of memory. Before the server reads a body, at most BODY_UNREAD_MAX bytes of it are
received; for most routes it reads none.

Connections take at most half of the process's file descriptors: the rest is for the node's own
files and sockets. At the bound one connection is closed for a new one: one that negotiates TLS,
else one that has sent no request yet, else the one that has been idle longest. A connection is not
idle while a handler serves its request; while the finished answer is sent, it counts as idle. If
handlers serve all connections, the new one is closed."""

import asyncio
import resource
import socket
import ssl
import time
from asyncio.sslproto import SSLProtocol
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Protocol, Self, cast

import structlog
from aiohttp import web
from aiohttp.streams import StreamReader

from chronos.admin.http.problems import ProblemError, answer, beyond_limits
from chronos.admin.http.tokens import Sender
from chronos.core import certificates

BODIES_BYTES_MAX = 256 * 1024 * 1024
"""Bytes of all bodies and their records, from the first byte until the answer, and of all bytes
received and not read yet; further bodies are refused."""

READ_BYTES = 32 * 1024
"""Bytes of a body that may wait while it is read. Before, far less may: see `READ_AHEAD_BYTES`."""

BODY_S = 30.0
"""How long a body may take to arrive."""

log = structlog.get_logger("chronos.http")

CONNECTIONS_MAX = 2_000
"""Most connections: each takes some kilobytes, and one pass of the loop for each event."""

HEADER_S = 10.0
"""How long a new connection may take to negotiate TLS and to send its first request, headers
included."""

KEEP_S = 75.0
"""How long an idle connection is kept, and how long an answer may take to be read."""

RECEIVE_BYTES = 16 * 1024
"""Bytes that are received at a time; asyncio's own 256 KiB are kept by every connection with
TLS."""

READ_AHEAD_BYTES = 8 * 1024
"""Bytes of a body that wait to be read: at twice as many nothing more is received."""

TLS_BYTES_MAX, TLS_BYTES_MIN = 24 * 1024, 20 * 1024
"""Encrypted bytes that wait to be read: from the first number on nothing is received, until there
are no more than the second, which is more than one record of TLS takes."""

TLS_BYTES = RECEIVE_BYTES + TLS_BYTES_MAX + RECEIVE_BYTES
"""The memory of a connection with TLS for what is encrypted, counted as long as it is open."""

BODY_UNREAD_MAX = 2 * READ_AHEAD_BYTES + TLS_BYTES_MAX + RECEIVE_BYTES
"""Most bytes of a body that a connection has received before it stops: what was decrypted at once
comes after the last look."""

HEADS_BYTES_MAX = 96 * 1024
"""Most bytes of requests without their bodies that a connection sends before they are answered;
then it is closed."""

ALWAYS_BYTES = 8 * 1024
"""Bytes that a connection may always send: health checks are answered also when the memory for
requests is taken."""

LINGER_S = 2.0
"""How long the rest of a body is thrown away after the answer, so that a client which is still
sending reads it."""

SWEEP_S = 1.0
"""Time between two looks for connections that took too long."""

ACCEPT_PAUSE_S = 1.0
"""Pause after the system refused to accept a connection."""

BACKLOG = 128
"""Connections that the system accepts before the node does."""

LOG_EVERY_S = 60.0
"""Time between two log lines about untrusted clients of one kind, however often it happens."""

FAULT_EVERY_S = 1.0
"""Time between two log lines about errors of Chronos of one kind: a client that can cause one can
cause thousands."""


class BodyBudget:
    """The memory for the bodies in flight. For one event loop."""

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max
        self._arriving: set[asyncio.Timeout] = set()
        self._is_stopping = False

    @asynccontextmanager
    async def arriving(self) -> AsyncIterator[None]:
        """Bound the time in which a body arrives. ProblemError if it takes too long, or the server
        stops."""
        try:
            async with asyncio.timeout(0 if self._is_stopping else BODY_S) as limit:
                self._arriving.add(limit)
                try:
                    yield
                finally:
                    self._arriving.discard(limit)
        except TimeoutError:
            if self._is_stopping:
                raise ProblemError(
                    503, "stopping", "the body had not arrived when this node was stopped"
                ) from None
            raise ProblemError(
                408, "too-slow", f"the body did not arrive within {BODY_S:g} s"
            ) from None

    def stop(self) -> None:
        """Refuse the bodies that have not arrived."""
        self._is_stopping = True
        for limit in self._arriving:
            limit.reschedule(asyncio.get_running_loop().time())

    def take(self, size: int) -> None:
        """Take bytes; ProblemError with status 503 when they are not left."""
        if size > self._left:
            raise ProblemError(
                503,
                "busy",
                "other requests take all of the memory for requests",
                hint="try again, at a lower rate",
            )
        self._left -= size

    def take_anyway(self, size: int) -> bool:
        """Take bytes that are in memory already; False if there are more than the bound now."""
        self._left -= size
        return self._left >= 0

    def give_back(self, size: int) -> None:
        """Return bytes that were taken."""
        self._left += size


class Unread:
    """The bytes that one connection has received and that were not read yet."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.size = 0
        self.is_read = False
        """True while a handler reads them: each time all that have come."""

    def set(self, size: int) -> bool:
        """Count so many bytes from now on; False if all connections and bodies have more than the
        bound."""
        more, self.size = size - self.size, size
        return self._budget.take_anyway(more)


class Receiving(Protocol):
    """The part of a connection that counts what it received."""

    unread: Unread


class BodyShare:
    """The share of one request, given back at its end."""

    def __init__(self, budget: BodyBudget) -> None:
        self.budget = budget
        self._size = 0

    def grow(self, size: int) -> None:
        """Take more bytes; ProblemError with status 503 when they are not left."""
        self.budget.take(size)
        self._size += size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.budget.give_back(self._size)


async def read_body(request: web.Request, share: BodyShare, bytes_max: int) -> bytes:
    """The body of a request with JSON. ProblemError for another type, too many bytes, or too much
    time."""
    if request.content_type != "application/json":
        raise ProblemError(
            415,
            "not-json",
            f"Content-Type is {request.headers.get('Content-Type', 'missing')[:100]}",
            hint="send -H 'Content-Type: application/json'",
        )
    if (request.content_length or 0) > bytes_max:
        raise web.HTTPRequestEntityTooLarge(bytes_max)
    body = bytearray()
    unread = cast(Receiving, request.protocol).unread
    request.content.set_read_chunk_size(READ_BYTES)
    unread.is_read = True
    try:
        async with share.budget.arriving():
            while chunk := await request.content.readany():
                unread.set(0)
                share.grow(len(chunk))
                body += chunk
                if len(body) > bytes_max:
                    raise web.HTTPRequestEntityTooLarge(bytes_max)
    finally:
        unread.is_read = False
    return bytes(body)


def connections_max() -> int:
    """Return the most connections: at most half of the process's file descriptors."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        CONNECTIONS_MAX
        if descriptors == resource.RLIM_INFINITY
        else min(CONNECTIONS_MAX, descriptors // 2)
    )


class SparseLog:
    """Log lines that untrusted clients cause: the first of each kind at once, then one in a while
    with the number of the others."""

    def __init__(self) -> None:
        self._next_s: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def warn(self, event: str, **fields: object) -> None:
        """Log the event, or count it; once a minute."""
        if self._is_due(event, LOG_EVERY_S):
            log.warning(event, **fields, left_out=self._left_out.pop(event, 0))

    def fault(self, event: str, error: BaseException, **fields: object) -> None:
        """Log an error of Chronos with its traceback, or count it; once a second for each place in
        the code that raises it."""
        kind = f"{event}: {type(error).__name__} at {_place(error)}"
        if self._is_due(kind, FAULT_EVERY_S):
            log.error(event, **fields, left_out=self._left_out.pop(kind, 0), exc_info=error)

    def _is_due(self, kind: str, every_s: float) -> bool:
        now_s = time.monotonic()
        if now_s < self._next_s.get(kind, 0.0):
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return False
        self._next_s[kind] = now_s + every_s
        return True


def _place(error: BaseException) -> str:
    """Return where the error was raised: there are as many places as lines of code, whatever a
    client sends."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


class Listener:
    """Listens on the addresses of a host, and hands its connections to a server of aiohttp. For one
    event loop."""

    def __init__(
        self,
        server: web.Server,
        sparse_log: SparseLog,
        memory: BodyBudget,
        *,
        most: int,
        **options: Any,
    ) -> None:
        """`memory`: that of requests. `options`: those of aiohttp's `RequestHandler`."""
        self._server = server
        self._log = sparse_log
        self.memory = memory
        self._most = most
        self._options = options
        self._count = 0
        self._new: dict[ServerConnection, float] = {}
        self._idle: dict[ServerConnection, float] = {}
        self._of_tokens: dict[str, set[ServerConnection]] = {}
        self._sockets: list[socket.socket] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._beginning: set[asyncio.Task[None]] = set()
        self._handshakes: dict[asyncio.Task[None], None] = {}

    async def listen(
        self, host: str, port: int, tls: Callable[[], ssl.SSLContext | None]
    ) -> tuple[str, int]:
        """Listen on every address of the host; return the first one. `tls`: the context for a new
        connection. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys(
            (family, address) for family, _, _, _, address in found
        ):
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
        assert isinstance(connection, ServerConnection)
        self._new.pop(connection, None)
        self._idle.pop(connection, None)
        try:
            yield
        finally:
            connection.answered()
            if connection.transport is not None:
                self._idle[connection] = time.monotonic() + KEEP_S

    def claim(self, connection: "ServerConnection", sender: Sender) -> None:
        """Count the connection with the token of its request: for one too many an idle one of the
        same token is closed.

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

    def _disown(self, connection: "ServerConnection") -> None:
        name = connection.token
        if name is not None:
            connection.token = None
            mine = self._of_tokens[name]
            mine.discard(connection)
            if not mine:
                del self._of_tokens[name]

    async def _accept(
        self, listening: socket.socket, tls: Callable[[], ssl.SSLContext | None]
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
                if self._count < self._most or self._evict():
                    self._begin(accepted, tls())
                else:
                    accepted.close()
            except Exception as error:
                # Without this task nothing would be accepted any more, so no error ends it.
                self._log.warn(
                    "connections cannot be accepted",
                    why=getattr(error, "strerror", None) or repr(error),
                )
                await asyncio.sleep(ACCEPT_PAUSE_S)
            # sock_accept does not yield while connections wait to be accepted.
            await asyncio.sleep(0)

    def _evict(self) -> bool:
        """Close the connection that has been idle longest, new ones first; False if all of them
        serve requests."""
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
        connection = ServerConnection(self, self._server, self._options)
        task = asyncio.get_running_loop().create_task(self._connect(connection, accepted, tls))
        self._count += 1
        encrypted = Unread(self.memory)
        encrypted.set(0 if tls is None else TLS_BYTES)
        connection.encrypted = encrypted

        # A task that is cancelled before its first step runs nothing of its own.
        def end(_: object) -> None:
            self._handshakes.pop(task, None)
            self._beginning.discard(task)
            if not connection.was_made:
                self._count -= 1
                connection.forget()
                accepted.close()

        self._beginning.add(task)
        if tls is not None:
            self._handshakes[task] = None
        task.add_done_callback(end)

    async def _connect(
        self, connection: "ServerConnection", accepted: socket.socket, tls: ssl.SSLContext | None
    ) -> None:
        loop = asyncio.get_running_loop()
        if tls is None:
            await loop.connect_accepted_socket(lambda: connection, accepted)
            return
        done = loop.create_future()
        # As `connect_accepted_socket` does it, with buffers that are smaller.
        protocol = _Tls(
            loop,
            connection,
            tls,
            done,
            server_side=True,
            ssl_handshake_timeout=HEADER_S,  # type: ignore[arg-type]
        )
        transport: asyncio.BaseTransport | None = None
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, accepted)
            await done
        except asyncio.CancelledError:
            if transport is not None:
                transport.close()
            raise
        except OSError as error:
            self._log.warn("TLS handshake failed", why=certificates.reason(error))

    def opened(self, connection: "ServerConnection") -> None:
        """A connection is ready for its first request."""
        self._new[connection] = time.monotonic() + HEADER_S

    def lost(self, connection: "ServerConnection") -> None:
        """A connection is closed."""
        self._count -= 1
        connection.forget()
        self._new.pop(connection, None)
        self._idle.pop(connection, None)
        self._disown(connection)

    def flooded(self, connection: "ServerConnection", why: str) -> None:
        """A connection has sent more than there is memory for."""
        self._log.warn("connection closed", why=why, bytes=connection.unread.size)

    def failed(self, why: str) -> None:
        """A connection carried something that is not a request."""
        self._log.warn("request not read", why=why)

    def fault(self, error: BaseException) -> None:
        """A request met an error that was not expected."""
        self._log.fault("request not answered", error)

    async def _sweep(self) -> None:
        """Close the connections that took too long, about once a second."""
        while True:
            await asyncio.sleep(SWEEP_S)
            now_s = time.monotonic()
            for connections in (self._new, self._idle):
                for connection in [each for each, ends_s in connections.items() if ends_s <= now_s]:
                    del connections[connection]
                    connection.abort()


class _Tls(SSLProtocol):
    """TLS with small buffers. Its base class is what `asyncio` uses for every connection with
    TLS."""

    max_size = RECEIVE_BYTES


class ServerConnection(web.RequestHandler):
    """One connection."""

    __slots__ = (
        "_is_answered",
        "_listener",
        "_newest",
        "encrypted",
        "is_last",
        "is_refused",
        "token",
        "unread",
        "was_made",
    )

    def __init__(self, listener: Listener, server: web.Server, options: dict[str, Any]) -> None:
        options = {
            "access_log": None,
            "keepalive_timeout": KEEP_S,
            "read_bufsize": READ_AHEAD_BYTES,
            "lingering_time": LINGER_S,
            **options,
        }
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._listener = listener
        self._newest: StreamReader | None = None
        """The body of the newest request."""
        self._is_answered = False
        """True if the handler of every request has ended: what is left of the body is thrown away
        as it comes."""
        self.token: str | None = None
        """Name of the token with which it is counted."""
        self.is_last = False
        """True: it is closed after the answer."""
        self.is_refused = False
        """True: it sent what is not HTTP, and what else it sends is thrown away."""
        self.unread = Unread(listener.memory)
        self.encrypted = Unread(listener.memory)
        self.was_made = False
        """True once it was ready for requests: then its end is reported by `connection_lost`."""

    def data_received(self, data: bytes) -> None:
        """Take bytes of a request, and count those that wait."""
        if self.is_refused:
            return
        began_in_body = self._is_in_body()
        super().data_received(data)
        if self._messages:
            self._newest = self._messages[-1][1]
            self._is_answered = False
        of_body = self._is_in_body()
        if not data or (of_body and self._is_answered) or self.transport is None:
            return
        size = self.unread.size + len(data)
        is_within = self.unread.set(
            min(size, max(self.unread.size, BODY_UNREAD_MAX)) if of_body else size
        )
        if not of_body and not began_in_body and size > HEADS_BYTES_MAX:
            self._listener.flooded(self, "requests without their bodies take too many bytes")
            self.abort()
        elif is_within or size <= ALWAYS_BYTES or self.unread.is_read:
            return  # a handler that reads a body refuses it itself
        elif self._messages:
            # aiohttp continues when it hands the request to its handler.
            self._pause_reading_for_buffer()
        else:
            self._listener.flooded(self, "the memory for requests is taken")
            self.abort()

    def _is_in_body(self) -> bool:
        return self._newest is not None and not self._newest.is_eof()

    def answered(self) -> None:
        """End the accounting of a handled request: its body is no longer counted, whether or not it
        was read."""
        if not self._messages:
            self._is_answered = True
            self.unread.set(0)

    def forget(self) -> None:
        """Give back all memory of a closed connection."""
        self.unread.set(0)
        self.encrypted.set(0)

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
        if (
            isinstance(transport, asyncio.Transport)
            and transport.get_extra_info("sslcontext") is None
        ):
            transport.max_size = RECEIVE_BYTES  # type: ignore[attr-defined]
        else:
            transport.set_read_buffer_limits(TLS_BYTES_MAX, TLS_BYTES_MIN)  # type: ignore[attr-defined]
        self.was_made = True
        self._listener.opened(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._listener.lost(self)

    def log_exception(self, *args: Any, **kw: Any) -> None:
        error = kw.get("exc_info")
        if isinstance(error, BaseException):
            self._listener.fault(error)
        else:
            self._listener.failed(repr(args)[:200])

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is not HTTP. The server itself answers every other error; what it could not
        answer is a bug."""
        if isinstance(exc, ConnectionError):
            raise exc  # the client has left
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer was sent already")
        if status < 500:
            self.is_refused = True
            self._listener.failed(type(exc).__name__)
            problem = ProblemError(
                status, "bad-request", "the request cannot be read as HTTP/1.1"
            ).problem
        else:
            assert exc is not None, "an error without its exception"
            self._listener.fault(exc)
            problem = ProblemError(
                500, "internal", "see the log of this node", hint="this is a bug in Chronos"
            ).problem
        found = answer(problem, {"X-Content-Type-Options": "nosniff"})
        response = _Unnamed(status=found.status, body=found.body, headers=found.headers)
        response.force_close()
        return response


class _Unnamed(web.Response):
    """An answer that passes no signal of the application, and does not name the library and its
    version."""

    async def _prepare_headers(self) -> None:
        # The connection is closed after the answer, and closing it with bytes that were not read
        # resets it. What has arrived is read in these turns of the loop, and thrown away.
        for _ in range(HEADS_BYTES_MAX // RECEIVE_BYTES):
            await asyncio.sleep(0)
        await super()._prepare_headers()
        self.headers.popall("Server", None)
