"""Commands about an archive that are killed with kill -9 as a step begins."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.harness.waiting import wait_until
from tests.spark.conftest import conf, small

STEP_S = 400.0
"""Most seconds from the start of a command to a step of it, or to its end."""


def command(verb: str, folder: Path, options: Sequence[str]) -> list[str]:
    """The command line of a verb of `chronos archive`, with small jobs."""
    begin = [sys.executable, "-m", "chronos", "archive", verb, "--location", str(folder)]
    return [*begin, *options, *conf(small())]


def kill_when(line: Sequence[str], moment: Callable[[], bool], log: Path) -> bool:
    """Run a command, and kill it with kill -9 at a moment, unless it has ended before: false. Its
    JVM ends by itself."""
    with log.open("ab") as output:
        process = subprocess.Popen(line, stdout=output, stderr=output, start_new_session=True)
    try:
        wait_until(
            lambda: moment() or process.poll() is not None,
            lambda: log.read_text()[-4_000:],
            STEP_S,
        )
        return process.poll() is None
    finally:
        process.kill()
        process.wait()


def kill_at_step(line: Sequence[str], step: str, log: Path) -> None:
    """Run a command, and kill it with kill -9 when it shows that this step begins."""
    assert kill_when(line, lambda: step in log.read_text(), log), log.read_text()[-3_000:]


def ended(line: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(line, capture_output=True, text=True, timeout=STEP_S, check=False)
