"""`chronos` on a machine whose wall clock can be set while it runs, as an operator or NTP would, or libfaketime.

The file that STEPPED_CLOCK names holds by how many milliseconds this process's wall clock is wrong; it is read
again at each SIGUSR1. Monotonic and boot clocks stay as they are, as they do on a real machine.
"""

import os
import signal
import time
from pathlib import Path

ENVIRONMENT = "STEPPED_CLOCK"


def step_clock(path: Path) -> None:
    """From now on `time.time` and `time.time_ns` of this process are wrong by what the file says."""
    wall, wall_ns = time.time, time.time_ns
    wrong_ms = 0

    def read(*_: object) -> None:
        nonlocal wrong_ms
        wrong_ms = int(path.read_text()) if path.exists() else 0

    read()
    signal.signal(signal.SIGUSR1, read)
    time.time = lambda: wall() + wrong_ms / 1_000
    time.time_ns = lambda: wall_ns() + wrong_ms * 1_000_000


if __name__ == "__main__":
    step_clock(Path(os.environ[ENVIRONMENT]))
    from chronos.cli import main

    main()
