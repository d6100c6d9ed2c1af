"""Threads for work that blocks, which the tokens use in turns: however much one of them asks for, the others are not slower for long.

A thread that is free takes work of the token that has used the least time so far, of those that have work waiting. No token has more than a
part of the threads at a time: threads that compute wait for each other, and for the event loop.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, TypeVar

from msgspec import Struct, field

T = TypeVar("T")

asker: ContextVar[str | None] = ContextVar("asker", default=None)
"""Name of the token of the request that is served, also in the tasks that it began; None: without a token."""


class _Account(Struct):
    """One token."""

    name: str | None
    used_s: float = 0.0
    """Time that its work took, at least as much as that of the token whose turn it was when its own work began to wait."""
    running: int = 0
    waiting: deque[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]] = field(default_factory=deque)


class Turns:
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
                each for each in self._accounts.values()
                if each.waiting and (each.name is None or each.running < self._share)
            ]  # fmt: skip
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
        self, account: _Account, future: asyncio.Future[Any], work: Callable[..., Any], arguments: tuple[Any, ...]
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
                    future.set_result(done.result()) if error is None else future.set_exception(error)
            elif not future.done():
                future.cancel()
            self._begin()

        running.add_done_callback(end)

    def _forget_idle(self, account: _Account) -> None:
        if not account.running and not account.waiting:
            self._accounts.pop(account.name, None)

    def close(self) -> None:
        """Begin nothing more; work that still blocks ends by its own timeout."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for account in self._accounts.values():
            for future, *_ in account.waiting:
                future.cancel()
            account.waiting.clear()
