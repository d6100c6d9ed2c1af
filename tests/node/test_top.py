"""`chronos top` against a real service: a snapshot in a pipe, and the screen of a terminal with its
keys."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.harness.command import run
from tests.harness.ports import free_port
from tests.harness.service import Service
from tests.harness.waiting import check_deadline

pytestmark = pytest.mark.process

WAIT_S = 30.0
"""Longest wait for a text on the screen."""

SEQUENCES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
"""What moves the cursor or sets a colour."""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """One node with a message that is due in an hour."""
    with Service(tmp_path / "data", settings={"shards": 2}) as running:
        running.start()
        running.post("/v1/messages", {"target": {"topic": "t"}, "value": "x", "delay": "1h"})
        running.wait_until(lambda: running.pending() == 1, "take the message in")
        yield running


class Terminal:
    """A verb in a terminal of 80 columns and 24 lines."""

    def __init__(self, *arguments: str) -> None:
        self._mine, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(self.theirs)
        self._seen = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "chronos", *arguments],
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            env={**os.environ, "TERM": "xterm", "TZ": "UTC", "NO_COLOR": "1"},
            start_new_session=True,
            # A shell has its commands in the background ignore the signal.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )

    def wait_for(self, text: str) -> None:
        """Wait until the text is written after what was waited for before."""
        deadline = time.monotonic() + WAIT_S
        while (at := SEQUENCES.sub("", self._seen).find(text)) < 0:
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"{text!r} is not on the screen:\n{self._seen[-4_000:]}"
            if select.select([self._mine], [], [], left_s)[0]:
                self._seen += os.read(self._mine, 65_536).decode(errors="replace")
        self._seen = SEQUENCES.sub("", self._seen)[at + len(text) :]

    def press(self, key: str) -> None:
        """Type one key."""
        os.write(self._mine, key.encode())

    def end(self) -> int:
        """Return the exit code; the screen is that of before, and the keys are echoed again."""
        deadline = time.monotonic() + WAIT_S
        raw = self._seen
        while self.process.poll() is None:
            check_deadline(deadline, "the verb does not end")
            if select.select([self._mine], [], [], 0.05)[0]:
                raw += os.read(self._mine, 65_536).decode(errors="replace")
        while select.select([self._mine], [], [], 0)[0]:
            raw += os.read(self._mine, 65_536).decode(errors="replace")
        assert "\x1b[?1049l" in raw
        assert "Traceback" not in raw
        assert termios.tcgetattr(self.theirs) == self.before
        return self.process.returncode

    def close(self) -> None:
        """Kill the verb in any state."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._mine)
        os.close(self.theirs)


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    """A terminal with a verb, which is ended afterwards."""
    opened = Terminal(*arguments)
    try:
        yield opened
    finally:
        opened.close()


def test_a_pipe_gets_one_state_without_sequences(service: Service):
    """Rates included, and nothing of the keys."""
    for options in ((), ("--once",), ("--every", "200ms")):
        done = run("top", *options, server=service.url)
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith("chronos top  cluster chronos  ")
        assert re.search(r"^pending +1 +next due  in (60|59) min$", done.out, re.M)
        assert re.search(r"^delivered +0, 0\.0 deliveries/s", done.out, re.M)
        assert re.search(r"^ +1  master", done.out, re.M)
        assert "\x1b" not in done.out
        assert "quit" not in done.out


def test_a_snapshot_without_a_service_fails_as_every_verb(tmp_path: Path):
    """Exit code 3."""
    done = run("top", server=f"http://127.0.0.1:{free_port()}")
    assert (done.code, done.out) == (3, "")
    assert "no answer from" in done.err


@pytest.mark.parametrize("every", ["1", "soon", "50ms", "-1s"])
def test_an_interval_that_makes_no_sense_is_refused(every: str):
    """Exit code 2, with the option."""
    done = run("top", f"--every={every}", server="http://127.0.0.1:1")
    assert done.code == 2
    assert "--every" in done.err


def test_the_screen_survives_a_service_that_goes_away_and_comes_back(service: Service):
    """The last state stays, with the time since when there is no answer; p pauses, q quits."""
    with terminal("top", "--every", "200ms", "--server", service.url) as shown:
        shown.wait_for("pending      1")
        shown.wait_for("q quit  p pause  every 200 ms")
        service.kill()
        shown.wait_for("no answer since ")
        shown.wait_for(" UTC; last state below")
        shown.wait_for("pending      1")
        service.start()
        service.post("/v1/messages", {"target": {"topic": "t"}, "value": "x", "delay": "1h"})
        shown.wait_for("pending      2")
        shown.press("p")
        shown.wait_for("paused at ")
        shown.press("p")
        shown.wait_for("p pause")
        shown.press("q")
        assert shown.end() == 0


@pytest.mark.parametrize(("ending", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_signal_leaves_the_terminal_as_it_was(ending: signal.Signals, code: int):
    """Also before the first answer."""
    with terminal("top", "--server", f"http://127.0.0.1:{free_port()}") as shown:
        shown.wait_for("there is no earlier state")
        shown.process.send_signal(ending)
        assert shown.end() == code


def test_the_screen_ends_if_the_token_is_refused(tmp_path: Path):
    """With the error, as every verb."""
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text("tokens:\n  - {name: a, sha256: '" + "0" * 64 + "', roles: [read]}\n")
    settings: dict[str, object] = {"shards": 1, "admin.tokens": tokens}
    with Service(tmp_path / "data", settings=settings) as running:
        running.start()
        with terminal("top", "--server", running.url) as shown:
            assert shown.end() == run("status", server=running.url).code
