"""A network between two processes of this machine that can be cut and mended: TCP links through one event loop.

What this is: for each link a port of the loopback interface that passes everything on to another one. Cut, a link is
either refused (connections end, nobody gets a new one: a host that rejects) or silent (nothing is forwarded and nothing
is closed, new connections are taken and never answered: a cable that is out). What was on its way into a silent link
comes out when it is mended, late, as TCP's retransmissions would.

What this is not: a network with losses or delays, and nothing that knows a protocol.

    with Network() as network:
        link = network.link(broker.port)
        link.cut(silent=True)
        link.mend()
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.harness.ports import free_port

CHUNK_BYTES = 65_536

ANSWER_S = 10.0
"""How long the loop may take for anything asked of it."""

T = TypeVar("T")


class Link:
    """One port in front of another."""

    def __init__(self, network: Network, target_port: int) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._network = network
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._flows = asyncio.Event()
        self._transports: set[asyncio.WriteTransport] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def cut(self, *, silent: bool) -> None:
        """From now on nothing passes: in silence, or with every connection ended and refused."""
        self._network.run(self._fall_silent() if silent else self._refuse())

    def mend(self) -> None:
        """Everything passes again."""
        self._network.run(self.open())

    async def open(self) -> None:
        """Listen, and forward."""
        self._flows.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _fall_silent(self) -> None:
        self._flows.clear()

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for transport in list(self._transports):
            transport.abort()

    async def close(self) -> None:
        """End the link and what goes through it."""
        await self._refuse()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._transports.add(writer.transport)
        beyond: asyncio.StreamWriter | None = None
        try:
            await self._flows.wait()
            source, beyond = await asyncio.open_connection("127.0.0.1", self._target_port)
            self._transports.add(beyond.transport)
            await asyncio.gather(self._pump(reader, beyond), self._pump(source, writer))
        except OSError:
            pass  # One of the two ends is gone: so is the other.
        except asyncio.CancelledError:
            pass  # The link is closed. The server would report a task that ends as cancelled.
        finally:
            for end in (writer, beyond):
                if end is not None:
                    self._transports.discard(end.transport)
                    end.transport.abort()
            self._tasks.discard(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            await self._flows.wait()
            writer.write(chunk)
            await writer.drain()
        with suppress(OSError):
            writer.write_eof()


class Network:
    """The loop of all links, on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._links: list[Link] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def link(self, target_port: int) -> Link:
        """A new link to a port of this machine."""
        link = Link(self, target_port)
        self.run(link.open())
        self._links.append(link)
        return link

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        """Have the loop do something, and wait for it."""
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result(ANSWER_S)

    def close(self) -> None:
        """End all links."""
        for link in self._links:
            self.run(link.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_S)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
