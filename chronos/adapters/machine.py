"""This machine: its clock and the steps of it, and files that are there as a whole after a
crash."""

import os
import stat
import time
from pathlib import Path

from chronos.errors import NoSpace


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file durably, by the old or the new content: new file, fsync, rename, fsync of the
    directory. Raises OSError."""
    new = path.with_suffix(".new")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync(path.parent)


def keep(path: Path, data: bytes) -> None:
    """The same, for what a node keeps of its own. Raises NoSpace."""
    try:
        replace_file(path, data)
    except OSError as error:
        raise NoSpace(
            f"{path} could not be written ({error.strerror}). Make room on that disk; nothing is "
            "lost"
        ) from error


def sync(path: Path) -> None:
    """Write what the system still holds of a file or directory. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def keep_private(path: Path) -> bool:
    """Take all permissions of others from a file or directory of this process's user; return
    whether others have none now.

    Those of another user's are left as they are. Raises OSError if there is none.
    """
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid == os.geteuid() and mode & 0o077:
        path.chmod(mode & 0o700)
        return True
    return not mode & 0o007


class SystemClock:
    """The wall clock, compared with the boot clock, which cannot be set and never stops."""

    def __init__(self) -> None:
        self._difference_ns = self._wall_minus_boot_ns()

    def now_ms(self) -> int:
        """Return epoch milliseconds, rounded down."""
        return self._wall_ns() // 1_000_000

    def stepped_ms(self) -> int:
        """Return the milliseconds by which the wall clock was stepped against the boot clock since
        the start."""
        return int((self._wall_minus_boot_ns() - self._difference_ns) / 1_000_000)

    def _wall_ns(self) -> int:
        return time.time_ns()

    def _wall_minus_boot_ns(self) -> int:
        return self._wall_ns() - _boot_ns()


class ShiftedClock(SystemClock):
    """A clock that can be stepped at run time, as an operator or NTP would: for tests and
    drills."""

    def __init__(self, shift_ms: int = 0) -> None:
        self._shift_ns = shift_ms * 1_000_000
        super().__init__()

    def shift(self, by_ms: int) -> None:
        """Step the wall clock, forwards or back; the boot clock is not changed."""
        self._shift_ns += by_ms * 1_000_000

    def _wall_ns(self) -> int:
        return time.time_ns() + self._shift_ns


def _boot_ns() -> int:
    # Only Linux has a boot clock. The monotonic one, which stops while the machine sleeps, is the
    # next best.
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
