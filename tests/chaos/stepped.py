"""`chronos` with a wall clock that can be stepped while it runs, as NTP or an operator would do.

The file named by STEPPED_CLOCK contains the error of this process's wall clock in milliseconds; it is read again at
each SIGUSR1. Monotonic and boot clocks are not changed, as on a real machine.
"""

import os
import signal
import time
from pathlib import Path

ENVIRONMENT = "STEPPED_CLOCK"


def step_clock(path: Path) -> None:
    """Make `time.time` and `time.time_ns` of this process wrong by the number in the file."""
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
