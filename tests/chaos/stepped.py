"""`chronos` with a wall clock that can be stepped while it runs, as NTP or an operator would do,
and with commits that can hang.

The file named by STEPPED_CLOCK contains the error of this process's wall clock in milliseconds; it
is read again at each SIGUSR1. Monotonic and boot clocks are not changed, as on a real machine.

While a file of the same name and `.hang` exists, the threads of the shards stop where they commit,
with the transaction open and its messages sent, as under a debugger. All other threads run on."""

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.harness.constants import change_constants

if TYPE_CHECKING:
    from chronos.ports import Appended, Verify

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


def hang_commits(path: Path) -> None:
    """Make every commit of a step wait while the file exists."""
    from chronos.adapters.kafka.writer import KafkaWriter

    finish = KafkaWriter._finish

    def hang(writer: "KafkaWriter", verify: "Verify") -> "Appended":
        while path.exists():
            time.sleep(0.02)
        return finish(writer, verify)

    KafkaWriter._finish = hang  # type: ignore[assignment,method-assign]


if __name__ == "__main__":
    change_constants()
    step_clock(Path(os.environ[ENVIRONMENT]))
    hang_commits(Path(os.environ[ENVIRONMENT] + ".hang"))
    from chronos.cli import main

    main()
