"""What all handlers share: the node, the threads that may block, and answers worth keeping for a second."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import structlog
from aiohttp import web
from msgspec import Struct

from chronos.admin.appending import Appender
from chronos.admin.peer_client import PeerClient
from chronos.admin.scheduling import Planner
from chronos.admin.waiting import PullWait
from chronos.core.rules import Rules
from chronos.errors import ChronosError
from chronos.node import IN_PLACE, Node
from chronos.node.driver import ShardDriver

log = structlog.get_logger("chronos.http")

THREADS = 16
"""Threads for questions to stores and to the log."""

WATCHERS = 64
"""Threads that wait, for a shard's next step or for a topic's next record; who finds none free waits its turn."""

ASK_S = 1.0
"""How long a question to the log may hold up an answer that can do without."""

T = TypeVar("T")


class Call(Struct):
    """One request, read and checked as far as its route says how."""

    request: web.Request
    query: Any
    body: bytes


class Context:
    """Lives as long as the server, in its event loop."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.stopping = asyncio.Event()
        """Set once the server stops: whoever waits, ends."""
        self.delay_topic = node.config.topics.delay
        self.rules: list[Rules] = [driver.shard.rules for driver in node.shards]
        self._threads = ThreadPoolExecutor(THREADS, "http")
        self._watchers = ThreadPoolExecutor(WATCHERS, "http-wait")
        self._writer = ThreadPoolExecutor(1, "http-append")
        self.appender = Appender(node.log, self._writer)
        self.watches = [PullWait(driver, self._watchers) for driver in node.shards]
        self.planner = Planner(
            rules=self.rules, delay_topic=self.delay_topic, bytes_max=node.config.topics.message_bytes_max
        )
        self.others = PeerClient(node)
        self._ends: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._refreshed_s = float("-inf")
        self._refreshing: asyncio.Task[None] | None = None

    @property
    def shards(self) -> list[ShardDriver]:
        """The shards of this node, by number."""
        return self.node.shards

    def now_ms(self) -> int:
        """This machine's clock."""
        return self.node.clock.now_ms()

    async def in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Do what may block, or takes a while, beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    async def in_waiting(self, work: Callable[..., T], *arguments: Any) -> T:
        """Do what waits by its nature."""
        return await asyncio.get_running_loop().run_in_executor(self._watchers, work, *arguments)

    async def caught_up(self, shard: int, deadline_s: float) -> bool:
        """Wait until the shard has applied what its delay partition holds now; False when that is not known in time."""
        try:
            async with asyncio.timeout_at(deadline_s):
                end = await self.in_thread(self.node.log.stable_end, self.delay_topic, shard)
        except (TimeoutError, ChronosError):
            return False
        return await self.watches[shard].pulled(end, deadline_s - asyncio.get_running_loop().time())

    # --- what is asked of all shards at once

    async def refresh(self, fresh_s: float = 0.0) -> None:
        """See to it that ends and sizes are no older, but do not wait longer than a moment for a log that is gone."""
        asked_s = time.monotonic()
        deadline_s = asked_s + ASK_S
        while self._refreshed_s < asked_s - fresh_s and (left_s := deadline_s - time.monotonic()) > 0:
            if self._refreshing is None or self._refreshing.done():
                self._refreshing = asyncio.get_running_loop().create_task(self._refresh())
            await asyncio.wait([self._refreshing], timeout=left_s)

    async def _refresh(self) -> None:
        def look(shard: ShardDriver) -> tuple[int | None, int | None]:
            try:
                size = shard.store.size_bytes()
            except ChronosError:
                size = None
            try:
                return self.node.log.stable_end(self.delay_topic, shard.number), size
            except ChronosError:
                return None, size

        began_s = time.monotonic()
        found = await asyncio.gather(*(self.in_thread(look, shard) for shard in self.shards))
        self._ends = {number: end for number, (end, _) in enumerate(found) if end is not None}
        self._sizes = {number: size for number, (_, size) in enumerate(found) if size is not None}
        self._refreshed_s = began_s

    def end_offset(self, shard: int) -> int | None:
        """Where the shard's delay partition ended at the last refresh; None: the log did not answer."""
        end = self._ends.get(shard)
        return None if end is None else max(end, self.shards[shard].state.pull_offset)

    def store_bytes(self, shard: int) -> int:
        """What the shard's store takes on disk."""
        return self._sizes.get(shard, 0)

    def reasons(self) -> list[str]:
        """Why the node is not ready; empty when it is."""
        node = self.node
        if node.failure is not None:
            return [str(node.failure)]
        if self.stopping.is_set():
            return ["the node is stopping"]
        return [
            f"shard {shard.number} is {shard.role}" + (f": {shard.paused}" if shard.paused else "")
            for shard in node.shards
            if shard.role not in IN_PLACE or shard.paused is not None
        ]

    async def close(self) -> None:
        """End the threads that have nothing to do; what still blocks ends by its own time-out."""
        await self.others.close()
        for pool in (self._threads, self._watchers, self._writer):
            pool.shutdown(wait=False, cancel_futures=True)
