"""A plugin of pytest that writes where a run of the tests spends its time, and a table of it.

    ./scripts/test full --profile FILE       writes FILE
    python -m tests.harness.profile FILE     prints it by folder of tests

The processor time of a test is that of its worker and of all processes below it, those included
that serve several tests: brokers, JVMs and browsers."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest


def cpu_s() -> float:
    """Processor time of this process and of all below it, those included that have ended, in s.
    Without /proc, those that still run are left out."""
    below: dict[int, list[int]] = defaultdict(list)
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = stat.read_text().rpartition(") ")[2].split()
            process = int(stat.parent.name)
            below[int(fields[1])].append(process)
            # utime, stime, cutime and cstime of proc_pid_stat(5)
            ticks[process] = sum(map(int, fields[11:15]))
    used, todo = 0, below[os.getpid()]
    while todo:
        process = todo.pop()
        used += ticks[process]
        todo += below[process]
    return sum(os.times()[:4]) + used / os.sysconf("SC_CLK_TCK")


class Profile:
    """The times of the tests of one process: a worker, or the only one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began_s = time.monotonic()
        self._tests: list[dict[str, Any]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Measure a test with its fixtures."""
        wall_s, began_s = time.monotonic(), cpu_s()
        try:
            return (yield)
        finally:
            self._tests.append(
                {
                    "test": item.nodeid,
                    "wall_s": round(time.monotonic() - wall_s, 3),
                    "cpu_s": round(cpu_s() - began_s, 3),
                }
            )

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the result of a worker that has ended; one that crashed has none."""
        self._tests += getattr(node, "workeroutput", {}).get("profile", [])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hand the result over, or write that of all workers."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["profile"] = self._tests
            return
        self._path.write_text(
            json.dumps(
                {
                    "wall_s": round(time.monotonic() - self._began_s, 1),
                    "cpu_s": round(sum(test["cpu_s"] for test in self._tests), 1),
                    "tests": self._tests,
                },
                indent=1,
            )
        )


def add_option(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--profile", type=Path, help="write the times of all tests to this file")


def begin(config: pytest.Config) -> None:
    """Measure, if that is asked for."""
    path = config.getoption("--profile")
    if path is not None:
        config.pluginmanager.register(Profile(path.absolute()), "profile of the tests")


def table(profile: dict[str, Any]) -> str:
    """The times by folder, for people."""
    folders: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for test in profile["tests"]:
        folders[test["test"].partition("::")[0].rpartition("/")[0]].append(test)
    rows = [
        (
            folder,
            len(tests),
            sum(test["wall_s"] for test in tests),
            sum(test["cpu_s"] for test in tests),
        )
        for folder, tests in folders.items()
    ]
    lines = ["| folder | tests | wall s | CPU s |", "|---|---|---|---|"]
    lines += [
        f"| {folder} | {count} | {wall_s:.0f} | {used_s:.0f} |"
        for folder, count, wall_s, used_s in sorted(rows, key=lambda row: -row[3])
    ]
    lines.append(
        f"| all | {len(profile['tests'])} | {profile['wall_s']:.0f} | {profile['cpu_s']:.0f} |"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(json.loads(Path(sys.argv[1]).read_text())))
