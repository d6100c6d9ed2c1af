"""The scheduler: the true clock, one source of randomness, one heap of events, one trace.

Everything runs in one thread. Code under test is interrupted only where it calls a port: other
threads may run then (`World.pass_time`), and its process may be killed. The same seed gives the
same trace, byte for byte."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from hashlib import blake2b
from random import Random
from typing import Any

START_MS = 1_700_000_000_000
CRASH, LIVENESS, CORRECTNESS = 127, 128, 129
"""Exit codes: the code under test failed by itself, made no progress, or broke a law."""


class Crashed(BaseException):
    """The process was killed. The code under test must not catch it."""


class Finding(BaseException):
    """An error that the simulator found."""

    def __init__(self, exit_code: int, text: str) -> None:
        self.exit_code = exit_code
        super().__init__(text)


def finds(simulate: Callable[[int], object], seed: int) -> bool:
    """Run a seed and return whether it found an error."""
    try:
        simulate(seed)
    except Finding:
        return True
    return False


def broken(law: str, text: str) -> Finding:
    """A finding: a law was broken."""
    return Finding(CORRECTNESS, f"law {law}: {text}")


class World:
    """The simulated world of one seed."""

    def __init__(self, seed: int, *, lines: list[str] | None = None) -> None:
        self.random = Random(seed)
        self.now_ms = START_MS
        self.faulty = True
        """True in the first phase, in which anything may fail."""
        self.events = 0
        self.lines = lines
        self._heap: list[tuple[int, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._order = 0
        self._digest = blake2b(digest_size=16)

    def at(self, when_ms: int, do: Callable[..., Any], *arguments: Any) -> None:
        """Schedule a call; calls scheduled for the same moment run in the order in which they were
        scheduled."""
        self._order += 1
        heapq.heappush(self._heap, (max(when_ms, self.now_ms), self._order, do, arguments))

    def after(self, wait_ms: int, do: Callable[..., Any], *arguments: Any) -> None:
        """Schedule a call after a delay."""
        self.at(self.now_ms + wait_ms, do, *arguments)

    def pass_time(self, wait_ms: int) -> None:
        """Run all events of the next `wait_ms`. Events may call it too: they go on after the time
        has passed."""
        until_ms = self.now_ms + wait_ms
        heap = self._heap
        while heap and heap[0][0] <= until_ms:
            when_ms, _, do, arguments = heapq.heappop(heap)
            # An event may have passed more time than this call asked for.
            self.now_ms = max(self.now_ms, when_ms)
            self.events += 1
            do(*arguments)
        self.now_ms = max(self.now_ms, until_ms)

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return probability > 0 and self.random.random() < probability

    def trace(self, text: str) -> None:
        """Add one line to the trace."""
        line = f"{self.now_ms - START_MS:>7} {text}"
        self._digest.update(line.encode())
        if self.lines is not None:
            self.lines.append(line)

    def digest(self) -> str:
        """A digest of the trace so far, 32 characters."""
        return self._digest.hexdigest()
