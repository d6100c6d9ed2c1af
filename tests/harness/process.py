"""Servers for tests in processes of their own: their life in a `with` statement, and the end of
those that are left over."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.harness.waiting import check_deadline

CLOSE_S = 60.0
"""The watchdog kills a process and removes a directory: milliseconds, on a loaded machine
seconds."""

FREEZE_S = 30.0
"""Every thread of a process stops in milliseconds, on a loaded machine in a second."""


def freeze(pid: int) -> None:
    """Send SIGSTOP, and wait until no thread of the process runs any more: until then it may still
    answer."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + FREEZE_S
    while any(is_running(task) for task in Path(f"/proc/{pid}/task").iterdir()):
        check_deadline(deadline, f"process {pid} does not stop")
        time.sleep(0.001)


def is_running(task: Path) -> bool:
    """Return whether a thread or process, by its folder under /proc, neither is stopped nor has
    ended; one that ended and was not waited for has ended."""
    try:
        state = (task / "stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return False  # it has ended
    return state not in "TtZX"


class Startable:
    """A server, or several, for a `with` statement."""

    def start(self) -> None:
        """Start, and wait until it answers."""
        raise NotImplementedError

    def close(self) -> None:
        """End it, and remove its data."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Watchdog:
    """A temporary directory and a process beside it: when this process ends, also by a kill, it
    kills the server and removes the directory."""

    def __init__(self, prefix: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=prefix))
        # Each line of its input is the id of the running server, or empty if none runs.
        script = (
            'while read -r line; do pid=$line; done; [ -z "$pid" ] || kill -9 "$pid"; rm -rf -- '
            '"$0"'
        )
        self._process = subprocess.Popen(
            ["sh", "-c", script, str(self.directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self, pid: int | None) -> None:
        """Name the server that runs now; None: none does."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n" if pid is None else b"%d\n" % pid)
        self._process.stdin.flush()

    def close(self) -> None:
        """Kill the server, if one runs, and remove the directory."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(CLOSE_S)
