"""Waiting requests: for a thread, which the tokens use in turns; for a position of a shard; for a
topic or a record of the embedded log; and for a value that is looked for again and again (`poll`).

A free thread takes the waiting work of the token with the least time used. A token without work is
forgotten; with its next work it begins at the time of the token whose turn it was last. A token has
at most a fixed share of the threads at a time, so that it leaves some to others: threads that
compute take turns with each other and with the event loop. Work without a token may have all. The
number of long polls is bounded, for each token and in all."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar, cast

from msgspec import Struct, field

from chronos.admin.http.problems import ProblemError, beyond_limits
from chronos.admin.http.tokens import Sender
from chronos.ports import Log, TopicInfo

T = TypeVar("T")

asker: ContextVar[str | None] = ContextVar("asker", default=None)
"""Name of the token of the request that is served, also in the tasks that it began; None: without a
token."""

CHECK_S = 0.1
"""Longest sleep of the thread that waits for a position, so that requests that gave up do not keep
it busy."""

POLL_S = 0.02
"""How often `poll` looks again."""

POLLS_MAX = 500
"""Requests that may wait at a time; further ones are refused."""

TOPIC_CHECK_S = 0.02
"""How often to look for new topics; the log has no notification for it."""


class _Account(Struct):
    """One token."""

    name: str | None
    used_s: float = 0.0
    """Time that its work took, at least as much as that of the token whose turn it was when its own
    work began to wait."""
    running: int = 0
    waiting: deque[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]] = field(
        default_factory=deque
    )


class ThreadTurns:
    """One pool of threads. For one event loop."""

    def __init__(self, threads: int, name: str, *, share: int) -> None:
        """`share`: threads that one token has at a time. Work without a token may have all."""
        self._threads = ThreadPoolExecutor(threads, name)
        self._free = threads
        self._share = share
        self._now_s = 0.0
        """`used_s` of the token whose turn it was last."""
        self._accounts: dict[str | None, _Account] = {}
        """Those with work that waits or runs."""

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run work in a thread, once it is the turn of the token that asks for it."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        name = asker.get()
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = _Account(name=name, used_s=self._now_s)
        account.waiting.append((future, work, arguments))
        self._begin()
        return await future

    def _begin(self) -> None:
        """Give the free threads to those whose turn it is."""
        while self._free:
            ready = [
                each
                for each in self._accounts.values()
                if each.waiting and (each.name is None or each.running < self._share)
            ]
            if not ready:
                return
            account = min(ready, key=lambda each: each.used_s)
            self._now_s = max(self._now_s, account.used_s)
            future, work, arguments = account.waiting.popleft()
            if not future.done():  # otherwise its request ended while it waited
                self._free -= 1
                account.running += 1
                self._start(account, future, work, arguments)
            self._forget_idle(account)

    def _start(
        self,
        account: _Account,
        future: asyncio.Future[Any],
        work: Callable[..., Any],
        arguments: tuple[Any, ...],
    ) -> None:
        began_s = time.monotonic()
        running = asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

        def end(done: asyncio.Future[Any]) -> None:
            self._free += 1
            account.running -= 1
            account.used_s += time.monotonic() - began_s
            self._forget_idle(account)
            if not done.cancelled():
                error = done.exception()
                if not future.done():
                    future.set_result(done.result()) if error is None else future.set_exception(
                        error
                    )
            elif not future.done():
                future.cancel()
            self._begin()

        running.add_done_callback(end)

    def _forget_idle(self, account: _Account) -> None:
        if not account.running and not account.waiting:
            self._accounts.pop(account.name, None)

    def close(self) -> None:
        """Start no more work; work that still blocks ends by its own timeout."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for account in self._accounts.values():
            for future, *_ in account.waiting:
                future.cancel()
            account.waiting.clear()


async def poll(
    look: Callable[[], T | None],
    timeout_s: float,
    stopping: asyncio.Event,
    *,
    every_s: float = POLL_S,
) -> T | None:
    """Return the first value of `look` that is not None; None after the time, or when the server
    stops.

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
    """Waits for a position that only grows with one thread, however many requests wait. For one
    event loop, which owns its state."""

    def __init__(
        self,
        reached: Callable[[], int],
        wait_beyond: Callable[[int, float], object],
        executor: Executor,
        stopping: asyncio.Event | None = None,
        ended: Callable[[], object] = lambda: None,
    ) -> None:
        """`reached`: the position now. `wait_beyond(position, timeout_s)`: returns once it is
        greater, or after the time.

        `stopping`: ends every wait. `ended` is called once no request waits any more.
        """
        self._reached = reached
        self._wait_beyond = wait_beyond
        self._executor = executor
        self._stopping = stopping
        self._ended = ended
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._watching: asyncio.Task[None] | None = None

    async def wait(self, position: int, timeout_s: float) -> bool:
        """Wait until the position is reached; False after the time."""
        is_reached = self._reached() >= position
        if is_reached or timeout_s <= 0:
            if self._watching is None:
                self._ended()
            return is_reached
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
                # Read before the waiters are looked at: a step after this moment ends the wait at
                # once.
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
            self._ended()


class Browsable(Protocol):
    """The methods of the embedded log besides those of `ports.Log`."""

    def topics(self) -> dict[str, TopicInfo]:
        """The topics that exist."""


class Polls:
    """For one event loop, which owns its state."""

    def __init__(self, log: Log, executor: Executor, stopping: asyncio.Event) -> None:
        self._log = log
        self._executor = executor
        self._stopping = stopping
        self._count = 0
        self._of_tokens: Counter[str | None] = Counter()
        self._ends: dict[tuple[str, int], Waiter] = {}
        self._topics: dict[str, list[asyncio.Future[None]]] = {}
        self._watching: asyncio.Task[None] | None = None

    @contextmanager
    def waiting(self, sender: Sender) -> Iterator[None]:
        """Count one request that may wait. ProblemError with status 429 when its token has too
        many, 503 when all together do."""
        name, limits = sender.name, sender.limits
        if limits is not None and self._of_tokens[name] >= limits.polls:
            raise beyond_limits(name, f"{limits.polls} requests that wait for records")
        if self._count >= POLLS_MAX:
            raise ProblemError(
                503, "busy", f"{self._count} requests wait for records", hint="try again later"
            )
        self._count += 1
        self._of_tokens[name] += 1
        try:
            yield
        finally:
            self._count -= 1
            self._of_tokens[name] -= 1
            self._of_tokens += Counter()  # without those that have none left

    async def wait_for_record(
        self, topic: str, partition: int, offset: int, timeout_s: float
    ) -> None:
        """Wait until the partition holds the offset, the time is over, or the server stops."""
        key = (topic, partition)
        waiter = self._ends.get(key)
        if waiter is None:
            waiter = self._ends[key] = self._end_waiter(topic, partition)
        await waiter.wait(offset + 1, timeout_s)

    def _end_waiter(self, topic: str, partition: int) -> Waiter:
        reader = self._log.reader(topic, partition, self._log.stable_end(topic, partition))

        def wait_beyond(end: int, timeout_s: float) -> None:
            reader.seek(end)
            reader.wait(timeout_s)

        return Waiter(
            lambda: self._log.stable_end(topic, partition),
            wait_beyond,
            self._executor,
            self._stopping,
            lambda: self._ends.pop((topic, partition), None),
        )

    async def wait_for_topic(self, topic: str, timeout_s: float) -> bool:
        """Wait until the topic exists, the time is over, or the server stops; return whether there
        is nothing to wait for any more."""
        if timeout_s <= 0 or topic in self._browsable().topics():
            return True
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._topics.setdefault(topic, []).append(future)
        if self._watching is None:
            self._watching = loop.create_task(self._watch_topics())
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        return True

    async def _watch_topics(self) -> None:
        try:
            while self._topics:
                there = self._browsable().topics()
                for topic, futures in list(self._topics.items()):
                    waiting = [future for future in futures if not future.done()]
                    if topic in there or self._stopping.is_set():
                        for future in waiting:
                            future.set_result(None)
                        waiting = []
                    if waiting:
                        self._topics[topic] = waiting
                    else:
                        del self._topics[topic]
                await asyncio.sleep(TOPIC_CHECK_S)
        finally:
            self._watching = None

    def _browsable(self) -> Browsable:
        return cast(Browsable, self._log)
