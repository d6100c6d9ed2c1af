"""A TCP proxy between processes of this machine whose links can be cut and restored; all links
share one event loop.

Each link is a port of the loopback interface that forwards to another port. A link that is cut
either refuses (connections are reset, new ones rejected, as by a firewall that rejects) or is
silent (nothing is forwarded and nothing closed, new connections are accepted and never answered, as
with an unplugged cable). Bytes sent into a silent link arrive late, after it is restored, as with
TCP retransmissions.

The proxy does not lose or interpret bytes, and delays them only on a link with a delay.

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

UNDER_WAY_MAX = 1_000
"""Chunks under way on a link with a delay: as a network, it takes no more."""

ANSWER_S = 10.0
"""How long the loop may take for a call from another thread."""

T = TypeVar("T")


class Link:
    """One port that forwards to another."""

    def __init__(self, network: Network, target_port: int, delay_s: float = 0.0) -> None:
        """`delay_s`: how long bytes are under way, in each direction."""
        self.port = free_port()
        self._delay_s = delay_s
        self.address = f"127.0.0.1:{self.port}"
        self._network = network
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._flows = asyncio.Event()
        self._transports: set[asyncio.WriteTransport] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def cut(self, *, silent: bool) -> None:
        """Stop forwarding: silently, or with every connection reset and new ones refused."""
        self._network.run(self._silence() if silent else self._refuse())

    def mend(self) -> None:
        """Forward again."""
        self._network.run(self.open())

    def refuse_new(self) -> None:
        """Refuse new connections from now on; those that are there stay."""
        self._network.run(self._stop_listening())

    def mend_old(self) -> None:
        """Forward the connections that are there again, and accept no new ones."""
        self._network.run(self._flow())

    def strand(self) -> None:
        """Keep the connections that are there silent for good, and forward new ones."""
        self._network.run(self._strand())

    async def open(self) -> None:
        """Listen and forward."""
        await self._flow()
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _flow(self) -> None:
        self._flows.set()

    async def _silence(self) -> None:
        self._flows.clear()

    async def _strand(self) -> None:
        self._flows.clear()
        self._flows = asyncio.Event()
        self._flows.set()

    async def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _refuse(self) -> None:
        await self._stop_listening()
        for transport in list(self._transports):
            transport.abort()

    async def close(self) -> None:
        """Close the link and its connections."""
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
        flows = self._flows
        try:
            await flows.wait()
            source, beyond = await asyncio.open_connection("127.0.0.1", self._target_port)
            self._transports.add(beyond.transport)
            await asyncio.gather(
                self._pump(reader, beyond, flows), self._pump(source, writer, flows)
            )
        except OSError:
            pass  # One end has closed: the other is closed below.
        except asyncio.CancelledError:
            pass  # The link is closed. The server would log a task that ends as cancelled.
        finally:
            for end in (writer, beyond):
                if end is not None:
                    self._transports.discard(end.transport)
                    end.transport.abort()
            self._tasks.discard(task)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flows: asyncio.Event
    ) -> None:
        # Without a delay, bytes of a silent link are not read: its sender notices.
        if self._delay_s:
            await self._pump_late(reader, writer, flows)
        else:
            while chunk := await reader.read(CHUNK_BYTES):
                await self._forward(writer, chunk, flows)
        with suppress(OSError):
            writer.write_eof()

    async def _pump_late(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flows: asyncio.Event
    ) -> None:
        clock = asyncio.get_running_loop().time
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(UNDER_WAY_MAX)

        async def arrive() -> None:
            while (found := await under_way.get())[1]:
                await asyncio.sleep(max(0.0, found[0] - clock()))
                await self._forward(writer, found[1], flows)

        arriving = asyncio.create_task(arrive())
        try:
            while chunk := await reader.read(CHUNK_BYTES):
                await under_way.put((clock() + self._delay_s, chunk))
            await under_way.put((0.0, b""))
            await arriving
        finally:
            arriving.cancel()

    @staticmethod
    async def _forward(writer: asyncio.StreamWriter, chunk: bytes, flows: asyncio.Event) -> None:
        await flows.wait()
        writer.write(chunk)
        await writer.drain()


class Network:
    """The event loop of all links, in a separate thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._links: list[Link] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def link(self, target_port: int, *, delay_s: float = 0.0) -> Link:
        """A new link to a port of this machine."""
        link = Link(self, target_port, delay_s)
        self.run(link.open())
        self._links.append(link)
        return link

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and return its result."""
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result(ANSWER_S)

    def close(self) -> None:
        """Close all links."""
        for link in self._links:
            self.run(link.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_S)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
