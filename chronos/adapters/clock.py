"""The clock of this machine (`ports.Clock`), and how far it was stepped since this object was made.

The wall clock is compared with the boot clock, which cannot be set: so a change of the difference
between the two is a step of the wall clock, as by NTP or an operator. Where there is no boot clock,
as on macOS, the monotonic clock stands in for it, which may stop while the machine sleeps."""

import time


class SystemClock:
    """The wall clock, compared with the boot clock, which cannot be set and never stops."""

    def __init__(self) -> None:
        self._difference_ns = self._wall_minus_boot_ns()

    def now_ms(self) -> int:
        return self._wall_ns() // 1_000_000

    def stepped_ms(self) -> int:
        return int((self._wall_minus_boot_ns() - self._difference_ns) / 1_000_000)

    def _wall_ns(self) -> int:
        return time.time_ns()

    def _wall_minus_boot_ns(self) -> int:
        return self._wall_ns() - _boot_ns()


def _boot_ns() -> int:
    # Only Linux has a boot clock. The monotonic one, which stops while the machine sleeps, is the
    # next best.
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
