"""Waiting for a state with a deadline, in tests.

A wait that ends by its deadline raises NotInTime, which says something else than a wrong result:
the machine may have been busy. `./scripts/test full` runs a test that failed by it once more
(tests/harness/reruns.py)."""

from __future__ import annotations

import time
from collections.abc import Callable

POLL_S = 0.01

LONGEST_S: float | None = None
"""Bound of each wait in s, which the tiers `fast` and `smoke` set; None: none."""


class NotInTime(AssertionError):
    """A state was not reached before its deadline."""


def is_in_time(
    condition: Callable[[], bool], *, deadline_s: float, every_s: float = POLL_S
) -> bool:
    """Poll until the condition is true; return False if it is not by the deadline, of
    `time.monotonic()`."""
    if LONGEST_S is not None:
        deadline_s = min(deadline_s, time.monotonic() + LONGEST_S)
    while not condition():
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(every_s)
    return True


def wait_until(
    condition: Callable[[], bool],
    what: Callable[[], object] = lambda: "not in time",
    timeout_s: float = 30.0,
) -> None:
    """Poll until the condition is true. `what`: returns what NotInTime shows."""
    if not is_in_time(condition, deadline_s=time.monotonic() + timeout_s):
        raise NotInTime(what())


def check_deadline(deadline_s: float, what: object = "not in time") -> None:
    """Raise NotInTime after the deadline, of `time.monotonic()`: for loops that do more than
    wait."""
    if time.monotonic() >= deadline_s:
        raise NotInTime(what)
