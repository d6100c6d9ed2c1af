"""A drill: constant load, a reader that records the lateness of every message, and faults.

Each fault has a window, from the moment before it until the cluster has recovered; the worst
lateness of the messages due in that window is counted for the fault."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from tests.harness.broker import Clients

LOWEST_MS, HIGHEST_MS = 3_000, 6_000
"""Bounds of the delay of the load's messages."""

GAP_S = 4.0
"""Time without a fault after each fault."""

READ_S = 120.0
"""How long the reader waits for the remaining messages after the end of the load."""

WARM_S = 8.0
"""Load before the first fault: the brokers' JVMs are slow at first, and no message is due in the
first seconds."""

ANSWER_S = 300.0
"""How long a process of the drill may take to end after its input has ended."""


@dataclass
class Window:
    """The time of one fault, and the worst lateness in it."""

    name: str
    start_ms: int
    end_ms: int = 0
    worst_ms: float = 0.0
    reference_ms: float | None = None
    """The same of a bare transactional producer; None where there is none."""


@dataclass
class Result:
    """The outcome of a drill."""

    messages: int
    early: int
    lost: int
    duplicated: int
    windows: list[Window] = field(default_factory=list)
    worst_ms: float = 0.0


class Drill:
    """Load and reader, and a bare transactional producer if wanted, each in a separate process,
    around the faults of a `with` block."""

    def __init__(
        self,
        kafka: Clients,
        delay_topic: str,
        target: str,
        *,
        rate: int,
        seconds_max: float,
        warm_s: float = WARM_S,
        gap_s: float = GAP_S,
        reference: bool = False,
    ) -> None:
        """The load ends with `result`, or with an error after `seconds_max`.

        Shorter times than the defaults are for drills whose lateness is not judged.
        """
        self._warm_s, self._gap_s = warm_s, gap_s
        self.windows: list[Window] = []
        kafka.create_topic(target)
        reading = {"bootstrap": kafka.bootstrap, "topic": target, "rest_s": READ_S}
        self._reader = _launch("trace", reading)
        writing = {
            "bootstrap": kafka.bootstrap,
            "topic": delay_topic,
            "target": target,
            "rate": rate,
            "seconds_max": seconds_max,
            "lowest_ms": LOWEST_MS,
            "highest_ms": HIGHEST_MS,
        }
        self._load = _launch("write", writing)
        self._reference: subprocess.Popen[str] | None = None
        if reference:
            topic = kafka.create_topic(f"{target}-reference")
            committing = {"bootstrap": kafka.bootstrap, "topic": topic}
            self._reference = _launch("commit", committing)

    def fault(self, name: str, act: Callable[[], None]) -> None:
        """Run a fault in a new window; the window is kept if the fault raises."""
        window = Window(name=name, start_ms=time.time_ns() // 1_000_000)
        self.windows.append(window)
        try:
            act()
        finally:
            window.end_ms = time.time_ns() // 1_000_000
        # Messages that one fault makes late must not be counted for the next.
        time.sleep(self._gap_s)

    def result(self) -> Result:
        """End the load, wait until the reader has read all of it, and assign the lateness to the
        windows."""
        count = _output(self._load, "")["count"]
        found = _output(self._reader, f"{count}\n")
        worst = _by_second(found)
        for window in self.windows:
            window.worst_ms = _worst(worst, window)
        if self._reference is not None:
            reference = _by_second(_output(self._reference, ""))
            for window in self.windows:
                window.reference_ms = _worst(reference, window)
        return Result(
            messages=count,
            early=found["early"],
            lost=found["lost"],
            duplicated=found["duplicated"],
            windows=self.windows,
            worst_ms=max(worst.values(), default=0.0),
        )

    def __enter__(self) -> Self:
        time.sleep(self._warm_s)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in (self._load, self._reader, self._reference):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()


def _by_second(found: dict[str, Any]) -> dict[int, float]:
    return {int(second): late for second, late in found["worst_ms"].items()}


def _worst(worst_ms: dict[int, float], window: Window) -> float:
    seconds = range(window.start_ms // 1_000, window.end_ms // 1_000 + 2)
    return max((worst_ms.get(second, 0.0) for second in seconds), default=0.0)


def _launch(function: str, arguments: dict[str, Any]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.chaos.load", function, json.dumps(arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _output(process: subprocess.Popen[str], text_in: str) -> Any:
    text, _ = process.communicate(text_in, timeout=ANSWER_S)
    assert process.returncode == 0, f"a process of the drill ended with {process.returncode}"
    return json.loads(text)
