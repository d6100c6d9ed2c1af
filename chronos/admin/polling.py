"""Long polls of the embedded log: however many requests wait, one thread waits for each partition, one task for all topics."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Protocol, cast

from chronos.admin.problems import ProblemError, beyond_limits
from chronos.admin.tokens import Sender
from chronos.admin.waiting import Waiter
from chronos.ports import Log, TopicInfo

POLLS_MAX = 500
"""Requests that may wait at a time; further ones are refused."""

TOPIC_CHECK_S = 0.02
"""How often to look for new topics; the log has no notification for it."""


class Browsable(Protocol):
    """What the embedded log can do besides `ports.Log`."""

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
        """Count one request that may wait. ProblemError with status 429 when its token has too many, 503 when all together do."""
        name, limits = sender.name, sender.limits
        if limits is not None and self._of_tokens[name] >= limits.polls:
            raise beyond_limits(name, f"{limits.polls} requests that wait for records")
        if self._count >= POLLS_MAX:
            raise ProblemError(503, "busy", f"{self._count} requests wait for records", hint="try again later")
        self._count += 1
        self._of_tokens[name] += 1
        try:
            yield
        finally:
            self._count -= 1
            self._of_tokens[name] -= 1
            self._of_tokens += Counter()  # without those that have none left

    async def wait_for_record(self, topic: str, partition: int, offset: int, timeout_s: float) -> None:
        """Wait until the partition holds the offset, the time is over, or the server stops."""
        key = (topic, partition)
        waiter = self._ends.get(key)
        if waiter is None:
            waiter = self._ends[key] = self._end_waiter(topic, partition)
        try:
            await waiter.wait(offset + 1, timeout_s)
        finally:
            if waiter.is_idle:
                self._ends.pop(key, None)

    def _end_waiter(self, topic: str, partition: int) -> Waiter:
        reader = self._log.reader(topic, partition, self._log.stable_end(topic, partition))

        def wait_beyond(end: int, timeout_s: float) -> None:
            reader.seek(end)
            reader.wait(timeout_s)

        return Waiter(lambda: self._log.stable_end(topic, partition), wait_beyond, self._executor, self._stopping)

    async def wait_for_topic(self, topic: str, timeout_s: float) -> bool:
        """Wait until the topic exists, the time is over, or the server stops; return whether there is nothing to wait for any more."""
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
