"""Spark jobs on the command line: their session, their progress on stderr, their interruption by
Ctrl-C, and the file that takes Spark's own output.

On a terminal the current step of a job is shown as a bar with elapsed time and rate; elsewhere as a
line when the step begins and one every few seconds.

Law: Spark and its JVM write nothing to the terminal, unless spark-submit started the JVM. Their
output and Python's warnings go to a file. If the job fails with an error and the file is not empty,
its name is printed and it stays; otherwise it is removed."""

import os
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, TextIO

import typer

from chronos.cli.options import SparkOptions
from chronos.cli.output import note, number, span
from chronos.cli.spark.archive import pairs
from chronos.errors import ChronosError
from chronos.spark.session import Step, running_tasks

LINE_EVERY_S = 5.0
"""Seconds between two lines of progress where stderr is not a terminal."""

BAR_EVERY_S = 0.5
"""Seconds between two looks at Spark's tasks where it is one."""

INTERRUPT_S = 3.0
"""Seconds from an interrupt to the next one, if the job has not ended."""

JOIN_S = 5.0
"""Seconds the end of a job waits for the thread that reads Spark's task counts."""


def describe(step: Step, first: int, seconds: float, tasks: tuple[int, int] = (0, 0)) -> str:
    """One line: the step's name, its count, elapsed time, rate, and the tasks that Spark runs now.

    `first` is the count the step began with: a resumed run has a rate of its own.
    """
    parts = [span(seconds)] if seconds >= 1 else []
    if step.total is not None:
        total = max(step.done, step.total)
        share = f" ({step.done / total:.0%})" if total else ""
        parts.insert(0, f"{number(step.done)} of {number(total)} {step.unit}{share}")
        if step.done > first and seconds >= 1:
            parts.append(f"{number(round((step.done - first) / seconds))} {step.unit}/s")
    ended, there = tasks
    if there:
        parts.append(f"{number(ended)} of {number(there)} tasks")
    return f"{step.name}: {', '.join(parts)}" if parts else step.name


class ProgressDisplay:
    """Shows the steps of one job; a `Watch` of `chronos.spark.session`."""

    def __init__(self, stream: TextIO | None = None, line_every_s: float = LINE_EVERY_S) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._lock = threading.Lock()
        self._spark: Any = None
        self._step: Step | None = None
        self._first = 0
        self._began_s = 0.0
        self._bar = _Bar(self._stream) if self._stream.isatty() else None
        self._ended = threading.Event()
        every_s = line_every_s if self._bar is None else BAR_EVERY_S
        self._thread = threading.Thread(
            target=self._repeat, args=(every_s,), name="job-progress", daemon=True
        )
        self._thread.start()

    def __call__(self, step: Step) -> None:
        """Show a step that begins, or the new count of the one that runs."""
        with self._lock:
            if self._step is None or self._step.name != step.name:
                self._end_step()
                self._step, self._first, self._began_s = step, step.done, time.monotonic()
                self._show((0, 0))
            else:
                self._step = step
                if self._bar is not None:
                    self._show((0, 0))

    def count_tasks(self, spark: Any) -> None:
        """Show the running tasks of a Spark session too."""
        self._spark = spark

    def pause(self) -> None:
        """End the step that is shown: the job waits for something else, or for somebody."""
        with self._lock:
            self._end_step()

    def close(self) -> None:
        """Show nothing more."""
        self.pause()
        self._ended.set()
        self._thread.join(JOIN_S)

    def _end_step(self) -> None:
        """A counted step leaves a line with its final count; the bar goes."""
        step, self._step = self._step, None
        if self._bar is not None:
            self._bar.clear()
        if step is not None and step.total is not None:
            self._print(describe(step, self._first, time.monotonic() - self._began_s))

    def _repeat(self, every_s: float) -> None:
        while not self._ended.wait(every_s):
            spark = self._spark
            tasks = (0, 0)
            if spark is not None:
                with suppress(Exception):  # the session may end while it is asked
                    tasks = running_tasks(spark)
            with self._lock:
                if self._step is not None and not self._ended.is_set():
                    self._show(tasks)

    def _show(self, tasks: tuple[int, int]) -> None:
        assert self._step is not None
        text = describe(self._step, self._first, time.monotonic() - self._began_s, tasks)
        if self._bar is None:
            self._print(text)
        else:
            self._bar.show(self._step, text)

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class _Bar:
    """One line of a terminal with a spinner, a bar and a text."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._progress: Any = None
        self._task: Any = None

    def show(self, step: Step, text: str) -> None:
        """Draw the bar of a step; without a total it only moves."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        if self._progress is None:
            columns = (
                SpinnerColumn(),
                BarColumn(20),
                TextColumn("{task.description}", markup=False),
            )
            self._progress = Progress(
                *columns, console=Console(file=self._stream, highlight=False), transient=True
            )
            self._task = self._progress.add_task("", total=None)
            self._progress.start()
        self._progress.update(self._task, description=text, completed=step.done, total=step.total)

    def clear(self) -> None:
        """Remove the bar from the terminal."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


class SparkLog:
    """The file that takes the output of Spark's JVM, and Python's warnings, while a job runs."""

    def __init__(self, name: str) -> None:
        descriptor, path = tempfile.mkstemp(
            prefix=f"chronos-{name.replace(' ', '-')}-", suffix=".log"
        )
        os.close(descriptor)
        self.file: IO[bytes] = open(path, "ab")  # noqa: SIM115 - appending, so that `empty` moves every writer's end
        self.is_kept = False

    @contextmanager
    def take_warnings(self) -> Iterator[None]:
        """Write the warnings of the block to the file: PySpark warns of a JVM that it could not
        end, as after an interrupt."""

        def write(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            self.file.write(
                warnings.formatwarning(message, category, filename, lineno, line).encode(
                    errors="replace"
                )
            )
            self.file.flush()

        with warnings.catch_warnings():
            warnings.showwarning = write
            yield

    def keep(self) -> None:
        """Name the file on stderr, if there is anything in it, and keep it."""
        if os.path.getsize(self.file.name) > 0:
            self.is_kept = True
            note(f"Spark's own log is in {self.file.name}")

    def empty(self) -> None:
        """Forget what was written so far: a job that runs for days keeps the log of its last
        run."""
        self.file.truncate(0)

    def close(self) -> None:
        """Remove the file unless it was named."""
        self.file.close()
        if not self.is_kept:
            with suppress(FileNotFoundError):
                os.unlink(self.file.name)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt in the block at SIGINT, again every `INTERRUPT_S` until the block
    ends.

    PySpark's handler asks the JVM to cancel the jobs, over the connection that the signal has
    interrupted, and fails. The interpreter drops a KeyboardInterrupt that is raised while py4j
    releases an object of the JVM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    again: list[threading.Timer] = []
    report = sys.unraisablehook

    def repeat() -> None:
        signal.pthread_kill(
            threading.main_thread().ident or 0, signal.SIGINT
        )  # ends a blocking read too

    def interrupt(*_: object) -> None:
        again.append(threading.Timer(INTERRUPT_S, repeat))
        again[-1].daemon = True
        again[-1].start()
        raise KeyboardInterrupt

    def report_others(dropped: "sys.UnraisableHookArgs") -> None:
        if not isinstance(dropped.exc_value, KeyboardInterrupt):
            report(dropped)

    signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = report_others
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for timer in again:
            timer.cancel()


def was_interrupted(error: BaseException | None) -> bool:
    """True if the error was raised while a KeyboardInterrupt ended the job: a request to the JVM
    that it cut off."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def spark_job(
    name: str, options: SparkOptions, *, kafka: bool = True
) -> Iterator[tuple[Any, ProgressDisplay, SparkLog]]:
    """A session for one job, the display of its progress, and Spark's log, which is named if the
    job fails.

    An error of Spark or its JVM is raised as one line; KeyboardInterrupt is raised once the JVM has
    ended. `kafka`: the job reads or writes a Kafka cluster."""
    from chronos.spark.session import one_line, open_session

    log, display = SparkLog(name), ProgressDisplay()
    try:
        display(Step(name="starting Spark"))
        with log.take_warnings():
            spark = open_session(
                name, options.master, pairs(options.conf, "--conf"), log.file, kafka=kafka
            )
            try:
                display.count_tasks(spark)
                with _interruptible():
                    yield spark, display, log
            finally:
                display.close()
                with suppress(Exception):  # the JVM may be gone; the first error tells why
                    spark.stop()
    except (typer.BadParameter, typer.Exit):
        raise
    except Exception as error:
        display.close()
        if was_interrupted(error):
            raise KeyboardInterrupt from None
        log.keep()
        line = None if isinstance(error, ChronosError) else one_line(error)
        if line is not None:
            raise line from error
        raise
    finally:
        display.close()
        log.close()
