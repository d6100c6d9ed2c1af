"""Processor time of an audit of ten minutes in an archive of many runs, and of the same in one of
few."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from chronos.core.timefmt import format_time

if TYPE_CHECKING:
    from tests.bench.figures import Bench

RUNS = 2_190
"""Hourly runs: a quarter of a year."""

RUNS_ALONE = 48
"""Those of the last two days, which the window needs."""

SMALL = 100_000
"""Messages below which there are few runs: the benchmark is only to run."""

ROUNDS = 3
RATIO = 1.5
WINDOW_MS = 600_000
BEFORE_END_MS = 3 * 3_600_000 + 1_800_000
"""The window begins so long before the end of the archive."""

SET_CHILD_SUBREAPER = 36
"""Option of Linux's prctl: descendants whose parent has ended become children of this process."""


def window_figure(bench: Bench, messages: int = SMALL) -> None:
    """Add the figure: both audits in turns."""
    from tests.spark.runs import END_MS, Runs

    is_small = messages < SMALL
    runs = RUNS_ALONE + 12 if is_small else RUNS
    folders = {}
    for count in (RUNS_ALONE, runs):
        bench.say(f"     making an archive of {count:,} runs")
        folders[count] = bench.directory / f"runs-{count}"
        Runs(count).write(folders[count])
    measured: dict[int, list[float]] = {count: [] for count in folders}
    outcomes: list[object] = []
    for _ in range(1 if is_small else ROUNDS):
        for count, folder in folders.items():
            seconds, counts = processor_s(folder, bench.directory, END_MS - BEFORE_END_MS)
            measured[count].append(seconds)
            outcomes.append(counts)
            bench.say(f"     beside {count:,} runs {seconds:.1f} s")
    alone, beside = (statistics.median(measured[count]) for count in (RUNS_ALONE, runs))
    exact = all(counts == outcomes[0] for counts in outcomes)
    bench.add(
        f"an audit of ten minutes beside {runs:,} runs",
        f"{beside:.1f} s of processor time, {beside / alone:.2f} of that beside {RUNS_ALONE}"
        f"{'' if exact else ', other counts'}",
        f"<= {RATIO}",
        beside <= RATIO * alone and exact,
        alone=measured[RUNS_ALONE],
        beside=measured[runs],
        exact=exact,
    )


def processor_s(folder: Path, directory: Path, from_ms: int) -> tuple[float, object]:
    """Seconds of processor time of the command, its JVM and its workers, and the counts by
    outcome."""
    command = [sys.executable, "-m", "chronos", "audit", "--location", str(folder), "-o", "json"]
    command += ["--from", format_time(from_ms), "--to", format_time(from_ms + WINDOW_MS)]
    command += ["--master", "local[2]", "--conf", f"spark.local.dir={directory}"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.spark_window", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the audit failed: {done.stderr[-2_000:]}")
    answer, seconds = done.stdout.rstrip().rsplit("\n", 1)
    return float(seconds), json.loads(answer)["counts"]


def main() -> int:
    """Run a command, and print the processor time of it and of all its descendants."""
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    code = subprocess.run(sys.argv[1:], check=False).returncode
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"\n{used.ru_utime + used.ru_stime:.3f}")
    return code if code not in (0, 6) else 0


if __name__ == "__main__":
    sys.exit(main())
