"""Commands about an archive that are killed with kill -9 as a step begins."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.harness.waiting import wait_until
from tests.spark.conftest import conf, small

STEP_S = 400.0
"""Most seconds from the start of a command to a step of it, or to its end."""


def command(verb: str, folder: Path, options: Sequence[str]) -> list[str]:
    """The command line of a verb of `chronos archive`, with small jobs."""
    begin = [sys.executable, "-m", "chronos", "archive", verb, "--location", str(folder)]
    return [*begin, *options, *conf(small())]


def kill_at_step(line: Sequence[str], step: str, log: Path) -> None:
    """Run a command, and kill it with kill -9 when it shows that this step begins; its JVM ends by
    itself."""
    with log.open("wb") as output:
        process = subprocess.Popen(line, stdout=output, stderr=output, start_new_session=True)
    try:
        wait_until(lambda: step in log.read_text(), lambda: log.read_text()[-3_000:], STEP_S)
        assert process.poll() is None, log.read_text()[-3_000:]
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def ended(line: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(line, capture_output=True, text=True, timeout=STEP_S, check=False)
