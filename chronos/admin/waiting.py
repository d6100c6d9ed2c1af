"""Lets requests wait: for a shard to apply what they sent, and for a change of the cluster."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

CHECK_S = 0.1
"""Longest sleep of the thread that waits for a position, so that requests that gave up do not keep it busy."""

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


class Waiter:
    """Waits for a position that only grows with one thread, however many requests wait. For one event loop, which owns its state."""

    def __init__(
        self,
        reached: Callable[[], int],
        wait_beyond: Callable[[int, float], object],
        executor: Executor,
        stopping: asyncio.Event | None = None,
    ) -> None:
        """`reached`: the position now. `wait_beyond(position, timeout_s)`: returns once it is greater, or after the time.

        `stopping`: ends every wait.
        """
        self._reached = reached
        self._wait_beyond = wait_beyond
        self._executor = executor
        self._stopping = stopping
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._watching: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        """True if nothing waits."""
        return self._watching is None

    async def wait(self, position: int, timeout_s: float) -> bool:
        """Wait until the position is reached; False after the time."""
        if self._reached() >= position:
            return True
        if timeout_s <= 0:
            return False
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiters.append((position, future))
        if self._watching is None:
            self._watching = loop.create_task(self._watch())
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        return self._reached() >= position

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                # Read before the waiters are looked at: a step after this moment ends the wait at once.
                reached = self._reached()
                is_stopping = self._stopping is not None and self._stopping.is_set()
                remaining = []
                for position, future in self._waiters:
                    if future.done():
                        continue
                    if position <= reached or is_stopping:
                        future.set_result(None)
                    else:
                        remaining.append((position, future))
                self._waiters = remaining
                if not remaining:
                    return
                await loop.run_in_executor(self._executor, self._wait_beyond, reached, CHECK_S)
        finally:
            self._watching = None
