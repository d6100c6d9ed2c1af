"""A drill: even load, a reader that writes down how late everything comes, and faults in between.

Each fault is given a window, from the moment before it until the cluster is whole again; the worst lateness of what was
due in that window belongs to it.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from tests.broker import Clients

LOWEST_MS, HIGHEST_MS = 3_000, 6_000
"""How far ahead messages of the load are due."""

GAP_S = 4.0
"""Quiet after each fault."""

READ_S = 120.0
"""How long the reader waits for the rest once the load has ended."""


@dataclass
class Window:
    """One fault."""

    name: str
    start_ms: int
    end_ms: int = 0
    worst_ms: float = 0.0


@dataclass
class Result:
    """What a drill found."""

    messages: int
    early: int
    lost: int
    doubled: int
    windows: list[Window] = field(default_factory=list)
    worst_ms: float = 0.0


class Drill:
    """Load and reader, each a process of its own, around the faults of a `with` block."""

    def __init__(self, kafka: Clients, delay_topic: str, target: str, *, rate: int, seconds: float) -> None:
        self.windows: list[Window] = []
        self._count = int(rate * seconds)
        self._ends_s = time.monotonic() + seconds
        kafka.create_topic(target)
        arguments = {"bootstrap": kafka.bootstrap, "topic": target, "count": self._count,
                     "timeout_s": seconds + HIGHEST_MS / 1_000 + READ_S}  # fmt: skip
        self._reader = _launch("trace", arguments)
        self._load = _launch(
            "generate",
            {"bootstrap": kafka.bootstrap, "topic": delay_topic, "target": target, "rate": rate, "seconds": seconds,
             "lowest_ms": LOWEST_MS, "highest_ms": HIGHEST_MS},
        )  # fmt: skip

    @property
    def over(self) -> bool:
        """Whether the load has been written."""
        return time.monotonic() > self._ends_s

    def fault(self, name: str, act: Callable[[], None]) -> None:
        """Do it, in a window of its own."""
        window = Window(name=name, start_ms=time.time_ns() // 1_000_000)
        act()
        window.end_ms = time.time_ns() // 1_000_000
        self.windows.append(window)
        # So that what one fault makes late is not put down to the next.
        time.sleep(GAP_S)

    def result(self) -> Result:
        """Wait for the load and the reader to end."""
        _output(self._load)
        found = _output(self._reader)
        worst = {int(second): late for second, late in found["worst_ms"].items()}
        for window in self.windows:
            seconds = range(window.start_ms // 1_000, window.end_ms // 1_000 + 2)
            window.worst_ms = max((worst.get(second, 0.0) for second in seconds), default=0.0)
        return Result(
            messages=self._count,
            early=found["early"],
            lost=found["lost"],
            doubled=found["doubled"],
            windows=self.windows,
            worst_ms=max(worst.values(), default=0.0),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in (self._load, self._reader):
            if process.poll() is None:
                process.kill()
                process.wait()


def _launch(function: str, arguments: dict[str, Any]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.bench.load", function, json.dumps(arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _output(process: subprocess.Popen[str]) -> Any:
    text, _ = process.communicate(timeout=1_800)
    assert process.returncode == 0, f"a process of the drill ended with {process.returncode}"
    return json.loads(text)
