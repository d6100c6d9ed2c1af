"""The clock of this machine, and the steps of its wall clock."""

import time


class SystemClock:
    """The wall clock, compared with the boot clock, which cannot be set and never stops."""

    def __init__(self) -> None:
        self._difference_ns = self._wall_minus_boot_ns()

    def now_ms(self) -> int:
        """Return epoch milliseconds, rounded down."""
        return self._wall_ns() // 1_000_000

    def stepped_ms(self) -> int:
        """Return the milliseconds by which the wall clock was stepped against the boot clock since the start."""
        return int((self._wall_minus_boot_ns() - self._difference_ns) / 1_000_000)

    def _wall_ns(self) -> int:
        return time.time_ns()

    def _wall_minus_boot_ns(self) -> int:
        return self._wall_ns() - _boot_ns()


class ShiftedClock(SystemClock):
    """A clock that can be stepped at run time, as an operator or NTP would: for tests and drills."""

    def __init__(self, shift_ms: int = 0) -> None:
        self._shift_ns = shift_ms * 1_000_000
        super().__init__()

    def shift(self, by_ms: int) -> None:
        """Step the wall clock, forwards or back; the boot clock is not changed."""
        self._shift_ns += by_ms * 1_000_000

    def _wall_ns(self) -> int:
        return time.time_ns() + self._shift_ns


def _boot_ns() -> int:
    # Only Linux has a boot clock. The monotonic one, which stops while the machine sleeps, is the next best.
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
