"""Lets requests wait until a shard has applied what they sent, one thread per shard however many wait."""

import asyncio
from concurrent.futures import Executor

from chronos.node.driver import ShardDriver

LOOK_S = 0.1
"""Longest sleep of the thread that watches a shard, so that who gave up does not keep it busy."""


class PullWait:
    """Watches one shard while somebody waits for it. For one event loop, which owns all of its state."""

    def __init__(self, shard: ShardDriver, executor: Executor) -> None:
        self._shard = shard
        self._executor = executor
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._watching: asyncio.Task[None] | None = None

    async def pulled(self, offset: int, timeout_s: float) -> bool:
        """Wait until the delay record before `offset` was applied; False when the time is over."""
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
                still = []
                for offset, future in self._waiters:
                    if future.done():
                        continue
                    if offset <= reached:
                        future.set_result(None)
                    else:
                        still.append((offset, future))
                self._waiters = still
                if not still:
                    return
                await loop.run_in_executor(self._executor, self._shard.wait_pulled, reached + 1, LOOK_S)
        finally:
            self._watching = None
