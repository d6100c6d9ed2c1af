"""Clocks for tests: one that they set themselves, and the machine's, which they step."""

import time

from chronos.adapters.clock import SystemClock

START_MS = 1_800_000_000_000


class HandClock:
    """Stands still until `now` is changed; `stepped`: by how much of that it was set."""

    def __init__(self) -> None:
        self.now = START_MS
        self.stepped = 0

    def now_ms(self) -> int:
        return self.now

    def stepped_ms(self) -> int:
        return self.stepped


class ShiftedClock(SystemClock):
    """The clock of this machine, which can be stepped at run time as an operator or NTP would."""

    def __init__(self, shift_ms: int = 0) -> None:
        self._shift_ns = shift_ms * 1_000_000
        super().__init__()

    def shift(self, by_ms: int) -> None:
        """Step the wall clock, forwards or back; the boot clock is not changed."""
        self._shift_ns += by_ms * 1_000_000

    def _wall_ns(self) -> int:
        return time.time_ns() + self._shift_ns
