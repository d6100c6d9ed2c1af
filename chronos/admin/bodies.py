"""Reads the bodies of requests. All of them, the records made from them, and what was received and not read yet share one bound
in memory.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Protocol, Self, cast

from aiohttp import web

from chronos.admin.problems import ProblemError

BODIES_BYTES_MAX = 256 * 1024 * 1024
"""Bytes of all bodies and their records, from the first byte until the answer, and of what connections have received and nobody
has read; further bodies are refused."""

READ_BYTES = 32 * 1024
"""Bytes of a body that may wait while it is read. Before, far less may: see `connections.READ_AHEAD_BYTES`."""

BODY_S = 30.0
"""How long a body may take to arrive."""


class BodyBudget:
    """The memory for the bodies in flight. For one event loop."""

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max
        self._arriving: set[asyncio.Timeout] = set()
        self._is_stopping = False

    @asynccontextmanager
    async def arriving(self) -> AsyncIterator[None]:
        """While a body arrives. ProblemError if that takes too long, or the server stops."""
        try:
            async with asyncio.timeout(0 if self._is_stopping else BODY_S) as limit:
                self._arriving.add(limit)
                try:
                    yield
                finally:
                    self._arriving.discard(limit)
        except TimeoutError:
            if self._is_stopping:
                raise ProblemError(503, "stopping", "the body had not arrived when this node was stopped") from None
            raise ProblemError(408, "too-slow", f"the body did not arrive within {BODY_S:g} s") from None

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
    """The bytes that one connection has received, and that nobody has read."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.size = 0
        self.is_read = False
        """True while a handler reads them: each time all that have come."""

    def set(self, size: int) -> bool:
        """Count so many bytes from now on; False if all connections and bodies have more than the bound."""
        more, self.size = size - self.size, size
        return self._budget.take_anyway(more)


class Receiving(Protocol):
    """The part of a connection that counts what it received."""

    unread: Unread


class Hold:
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
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.budget.give_back(self._size)


async def read_body(request: web.Request, hold: Hold, bytes_max: int) -> bytes:
    """The body of a request with JSON. ProblemError for another type, too many bytes, or too much time."""
    if request.content_type != "application/json":
        raise ProblemError(
            415, "not-json", f"Content-Type is {request.headers.get('Content-Type', 'missing')[:100]}",
            hint="send -H 'Content-Type: application/json'",
        )  # fmt: skip
    if (request.content_length or 0) > bytes_max:
        raise web.HTTPRequestEntityTooLarge(bytes_max)
    body = bytearray()
    unread = cast(Receiving, request.protocol).unread
    request.content.set_read_chunk_size(READ_BYTES)
    unread.is_read = True
    try:
        async with hold.budget.arriving():
            while chunk := await request.content.readany():
                unread.set(0)
                hold.grow(len(chunk))
                body += chunk
                if len(body) > bytes_max:
                    raise web.HTTPRequestEntityTooLarge(bytes_max)
    finally:
        unread.is_read = False
    return bytes(body)
