"""Time, luck and order: one clock that is the truth, one source of randomness, one heap of events, one trace.

Everything runs in one thread. Code under test is interrupted only where it calls a port: there the others may run
(`World.pass_time`), and there its process may be killed. The same seed gives the same trace, byte for byte.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from hashlib import blake2b
from random import Random
from typing import Any

START_MS = 1_700_000_000_000
CRASH, LIVENESS, CORRECTNESS = 127, 128, 129
"""Exit codes: the code under test failed by itself, stood still, or broke a law."""


class Crashed(BaseException):
    """The process this code runs in was killed; nothing in the code under test may catch it."""


class Finding(BaseException):
    """What the simulator was built to find."""

    def __init__(self, exit_code: int, text: str) -> None:
        self.exit_code = exit_code
        super().__init__(text)


def broken(law: str, text: str) -> Finding:
    """A law that does not hold."""
    return Finding(CORRECTNESS, f"law {law}: {text}")


class World:
    """The simulated world of one seed."""

    def __init__(self, seed: int, *, lines: list[str] | None = None) -> None:
        self.random = Random(seed)
        self.now_ms = START_MS
        self.faulty = True
        """Anything may fail: the first phase."""
        self.events = 0
        self.lines = lines
        self._heap: list[tuple[int, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._order = 0
        self._digest = blake2b(digest_size=16)

    def at(self, when_ms: int, do: Callable[..., Any], *arguments: Any) -> None:
        """Do it then; what is planned for the same moment happens in the order it was planned."""
        self._order += 1
        heapq.heappush(self._heap, (max(when_ms, self.now_ms), self._order, do, arguments))

    def after(self, wait_ms: int, do: Callable[..., Any], *arguments: Any) -> None:
        """Do it in a while."""
        self.at(self.now_ms + wait_ms, do, *arguments)

    def pass_time(self, wait_ms: int) -> None:
        """Let the others run for so long. May be called by what runs: whoever waits is not run meanwhile."""
        until_ms = self.now_ms + wait_ms
        heap = self._heap
        while heap and heap[0][0] <= until_ms:
            when_ms, _, do, arguments = heapq.heappop(heap)
            # Somebody further in may have let more time pass than this one wanted.
            self.now_ms = max(self.now_ms, when_ms)
            self.events += 1
            do(*arguments)
        self.now_ms = max(self.now_ms, until_ms)

    def chance(self, probability: float) -> bool:
        """Whether it happens this time."""
        return probability > 0 and self.random.random() < probability

    def tell(self, text: str) -> None:
        """One line of the trace."""
        line = f"{self.now_ms - START_MS:>7} {text}"
        self._digest.update(line.encode())
        if self.lines is not None:
            self.lines.append(line)

    def digest(self) -> str:
        """The trace so far in 32 characters."""
        return self._digest.hexdigest()
