"""Progress of Spark jobs on stderr: the text of a step, the lines where stderr is not a terminal,
Spark's log file."""

from __future__ import annotations

import io
import os
import signal
import threading
import warnings
from pathlib import Path

import pytest

from chronos.cli.spark import jobs
from chronos.cli.spark.jobs import ProgressDisplay, SparkLog, describe
from chronos.spark.session import Step

TIMEOUT_S = 30.0


@pytest.mark.parametrize(
    ("step", "first", "seconds", "tasks", "text"),
    [
        (Step(name="starting Spark"), 0, 0.0, (0, 0), "starting Spark"),
        (Step(name="starting Spark"), 0, 12.4, (0, 0), "starting Spark: 12 s"),
        (Step(name="writing the plan"), 0, 5.0, (3, 8), "writing the plan: 5 s, 3 of 8 tasks"),
        (
            Step(name="archiving messages", total=4_000, unit="offsets"),
            0,
            0.2,
            (0, 0),
            "archiving messages: 0 of 4,000 offsets (0%)",
        ),
        (
            Step(name="archiving messages", done=1_000, total=4_000, unit="offsets"),
            0,
            10.0,
            (1, 2),
            "archiving messages: 1,000 of 4,000 offsets (25%), 10 s, 100 offsets/s, 1 of 2 tasks",
        ),
        (
            Step(name="sending", done=3_000, total=4_000, unit="messages"),
            2_000,
            10.0,
            (0, 0),
            "sending: 3,000 of 4,000 messages (75%), 10 s, 100 messages/s",
        ),
        (
            Step(name="archiving messages", done=5, total=4, unit="offsets"),
            0,
            0.0,
            (0, 0),
            "archiving messages: 5 of 5 offsets (100%)",
        ),
        (
            Step(name="archiving rejected", total=0, unit="offsets"),
            0,
            0.0,
            (0, 0),
            ("archiving rejected: 0 of 0 offsets"),
        ),
    ],
)
def test_a_line_names_the_step_with_count_time_rate_and_tasks(
    step: Step, first: int, seconds: float, tasks: tuple[int, int], text: str
) -> None:
    """The rate counts from where the step began; records written meanwhile raise the total."""
    assert describe(step, first, seconds, tasks) == text


class Lines(io.StringIO):
    """A stream that is not a terminal and reports when it holds enough lines."""

    def __init__(self, enough: int) -> None:
        super().__init__()
        self._enough = enough
        self.is_full = threading.Event()

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.getvalue().count("\n") >= self._enough:
            self.is_full.set()
        return written

    def lines(self) -> list[str]:
        return self.getvalue().splitlines()


def test_a_step_that_says_nothing_is_shown_again_and_again() -> None:
    """A long step leaves a line every interval, although its job reports nothing."""
    stream = Lines(4)
    display = ProgressDisplay(stream, line_every_s=0.01)
    display(Step(name="auditing"))
    assert stream.is_full.wait(TIMEOUT_S)
    display.close()
    assert {line.partition(":")[0] for line in stream.lines()} == {"auditing"}


def test_each_step_has_a_line_at_its_beginning_and_a_counted_one_at_its_end() -> None:
    """Counts in between are left to the interval; after a pause nothing is shown."""
    stream = Lines(1)
    display = ProgressDisplay(stream, line_every_s=3_600)
    display(Step(name="starting Spark"))
    for done in (0, 5, 10):
        display(Step(name="archiving messages", done=done, total=10, unit="offsets"))
    display.pause()
    display(Step(name="archiving rejected", total=0, unit="offsets"))
    display.close()
    assert stream.lines() == [
        "starting Spark",
        "archiving messages: 0 of 10 offsets (0%)",
        "archiving messages: 10 of 10 offsets (100%)",
        "archiving rejected: 0 of 0 offsets",
        "archiving rejected: 0 of 0 offsets",
    ]


class Terminal(io.StringIO):
    """A stream that calls itself a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar_and_keeps_the_final_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar is drawn with the step's text and removed at the end of the step."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    display = ProgressDisplay(stream)
    display(Step(name="sending", done=0, total=10, unit="messages"))
    display(Step(name="sending", done=10, total=10, unit="messages"))
    display.close()
    shown = stream.getvalue()
    assert "━" in shown
    assert shown.endswith("sending: 10 of 10 messages (100%)\n")


def test_spark_s_log_is_named_when_a_job_fails_and_removed_when_it_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An empty log is not named; a job that runs for days keeps the log of its last run."""
    failed, succeeded, empty = SparkLog("archive"), SparkLog("archive compact"), SparkLog("audit")
    for log in (failed, succeeded):
        os.write(log.file.fileno(), b"WARN of an earlier run\n")
        log.empty()
        os.write(log.file.fileno(), b"WARN of this run\n")
    failed.keep()
    empty.keep()
    for log in (failed, succeeded, empty):
        log.close()
    assert capsys.readouterr().err == f"Spark's own log is in {failed.file.name}\n"
    kept = Path(failed.file.name)
    assert kept.read_bytes() == b"WARN of this run\n"
    assert not os.path.exists(succeeded.file.name)
    assert not os.path.exists(empty.file.name)
    kept.unlink()


def test_warnings_of_a_job_are_written_to_its_log_only(capsys: pytest.CaptureFixture[str]) -> None:
    """PySpark warns of a JVM that it could not end; the one line about the job's end stands alone
    on the terminal."""
    before = warnings.showwarning
    log = SparkLog("audit")
    with log.take_warnings():
        warnings.warn("Unable to cleanly shutdown Spark JVM process.", RuntimeWarning, stacklevel=1)
    assert warnings.showwarning is before
    assert capsys.readouterr().err == ""
    assert "RuntimeWarning: Unable to cleanly shutdown" in Path(log.file.name).read_text()
    log.close()


def test_an_interrupt_that_is_dropped_comes_again_until_the_job_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The interpreter drops what a finalizer raises; without another interrupt the job would go on
    to its end."""
    monkeypatch.setattr(jobs, "INTERRUPT_S", 0.1)
    before = signal.getsignal(signal.SIGINT)
    ended = threading.Event()
    dropped = 0

    def job() -> None:
        nonlocal dropped
        while True:
            try:
                if not dropped:
                    os.kill(os.getpid(), signal.SIGINT)
                assert not ended.wait(30), "no interrupt"
            except KeyboardInterrupt:
                dropped += 1
                if dropped == 3:
                    raise

    try:
        with pytest.raises(KeyboardInterrupt), jobs._interruptible():
            job()
        assert dropped == 3
        assert not ended.wait(0.3)  # an interrupt after the end of the job would be raised here
    finally:
        signal.signal(signal.SIGINT, before)
