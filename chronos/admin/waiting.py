"""Lets requests wait: for a shard to apply what they sent, and for a change of the cluster."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from chronos.node.driver import ShardDriver

CHECK_S = 0.1
"""Longest sleep of the thread that watches a shard, so that requests that gave up do not keep it busy."""

POLL_S = 0.02
"""How often `poll` looks again."""

T = TypeVar("T")


async def poll(
    look: Callable[[], T | None], timeout_s: float, stopping: asyncio.Event, *, every_s: float = POLL_S
) -> T | None:
    """What `look` returns, once that is something; None after the time, or when the server stops.

    `look` is called at once, then every `every_s` seconds, and once more at the end of the time.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    while True:
        is_last = loop.time() >= deadline_s
        found = look()
        if found is not None or is_last or stopping.is_set():
            return found
        await asyncio.sleep(min(every_s, max(0.0, deadline_s - loop.time())))


class PullWaiter:
    """Waits for one shard with one thread, however many requests wait. For one event loop, which owns all of its state."""

    def __init__(self, shard: ShardDriver, executor: Executor) -> None:
        self._shard = shard
        self._executor = executor
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._watching: asyncio.Task[None] | None = None

    async def pulled(self, offset: int, timeout_s: float) -> bool:
        """Wait until the delay record before `offset` was applied; False after the time."""
        if self._shard.pulled >= offset:
            return True
        if timeout_s <= 0:
            return False
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiters.append((offset, future))
        if self._watching is None:
            self._watching = loop.create_task(self._watch())
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        return True

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                # Read before the waiters are looked at: a step after this moment ends the wait at once.
                reached = self._shard.pulled
                remaining = []
                for offset, future in self._waiters:
                    if future.done():
                        continue
                    if offset <= reached:
                        future.set_result(None)
                    else:
                        remaining.append((offset, future))
                self._waiters = remaining
                if not remaining:
                    return
                await loop.run_in_executor(self._executor, self._shard.wait_pulled, reached + 1, CHECK_S)
        finally:
            self._watching = None
