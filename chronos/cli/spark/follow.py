"""`chronos archive --follow`: runs of the archive with pauses between them, the first signal that
ends them, and the HTTP server that shows how they go.

    1. the HTTP server listens: `/readyz` answers 503 until a run has ended
    2. Spark starts, and the end of the archive is read
    3. a run, its counts, the end of the archive, a pause; again

Law: an error that another run may not meet is counted and shown, and the runs go on. Any other one
ends the process."""

import os
import re
import select
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING

import typer
from msgspec import Struct

from chronos.admin.archive.server import ArchiveServer
from chronos.admin.archive.status import ArchiveStatus
from chronos.cli.options import SparkOptions, check_delay
from chronos.cli.output import Format, note
from chronos.cli.spark.archive import show_done
from chronos.client.requests import delay_ms
from chronos.config import Config

if TYPE_CHECKING:
    from chronos.spark.archive.job import ArchivePlan, TableResult

STREAMS = ("progress", "deliveries", "rejected", "dead_letters", "messages")
"""Tables that a run counts, in the order of reading."""

ADDRESS = re.compile(r"(?:\[([^\[\]]+)\]|([^:]+)):([0-9]{1,5})")
"""`HOST:PORT`, with an IPv6 address in brackets."""

PORT_MAX = 65_535


class FollowOptions(Struct, frozen=True, kw_only=True):
    """The options of `--follow`."""

    every: str
    """The pause as it was given."""
    pause_s: float
    host: str
    port: int
    """0: any free one."""


def follow_options(every: str, listen: str) -> FollowOptions:
    """The options as values; typer.BadParameter names the wrong one."""
    check_delay(every, "--every")
    found = ADDRESS.fullmatch(listen)
    if found is None or int(found[3]) > PORT_MAX:
        raise typer.BadParameter(f"--listen {listen}: write HOST:PORT, such as 127.0.0.1:7790")
    return FollowOptions(
        every=every, pause_s=delay_ms(every) / 1_000, host=found[1] or found[2], port=int(found[3])
    )


class Stopping:
    """SIGINT and SIGTERM while the archive is followed. Before `begin_runs`, and from the second
    one on, they raise KeyboardInterrupt in the main thread."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._interrupt: Callable[[int, FrameType | None], object] = signal.default_int_handler
        self._is_stopping = self._runs = False
        signal.signal(signal.SIGTERM, self._handle)

    def begin_runs(self) -> None:
        """From now on the first signal only asks to stop; the second one does what SIGINT did."""
        before = signal.getsignal(signal.SIGINT)
        assert callable(before)
        self._interrupt, self._runs = before, True
        signal.signal(signal.SIGINT, self._handle)

    def close(self) -> None:
        """End the process at the next SIGTERM."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.close(self._read)
        os.close(self._write)

    def is_stopping(self) -> bool:
        """Whether a signal has come."""
        return self._is_stopping

    def pause(self, seconds: float) -> None:
        """Wait for so long, or until a signal comes."""
        select.select([self._read], [], [], seconds)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._runs or self._is_stopping:
            self._interrupt(number, frame)
            return
        self._is_stopping = True
        # A lock could be held by the thread that this handler interrupts; a pipe has none.
        with suppress(BlockingIOError):
            os.write(self._write, b"\0")


def follow_logs(
    output: Format,
    options: SparkOptions,
    config: Config,
    plan: "ArchivePlan",
    follow: FollowOptions,
) -> None:
    """Run the archive again and again until a signal."""
    from chronos.cli.spark.jobs import spark_job, was_interrupted
    from chronos.node.opening import open_kafka
    from chronos.spark.archive.job import RunObserver, archive, passing_error
    from chronos.spark.audit.coverage import archived_until
    from chronos.spark.storage import ArchiveStorage

    storage = ArchiveStorage(options.location)
    status = ArchiveStatus(
        STREAMS, cluster=config.cluster, location=storage.uri, pause_s=follow.pause_s
    )
    server = ArchiveServer(status, config)
    stopping = Stopping()

    class Observer(RunObserver):
        def committed(self, counts: "Sequence[TableResult]") -> None:
            status.committed({each.table: (each.records, each.gaps) for each in counts})

        def is_stopping(self) -> bool:
            return stopping.is_stopping()

    brokers = open_kafka(config)
    try:
        note(f"listening on {server.start(follow.host, follow.port)}")  # 1
        with spark_job("archive", options) as (spark, display, log):  # 2
            stopping.begin_runs()
            status.archived_until(archived_until(spark, storage))
            while not stopping.is_stopping():  # 3
                status.run_began()
                try:
                    done = archive(spark, brokers, storage, plan, display, Observer())
                    status.archived_until(archived_until(spark, storage))
                except Exception as error:
                    known = passing_error(error)
                    if known is None or was_interrupted(error):
                        raise
                    status.run_failed(known)
                    display.pause()
                    log.keep()
                    note(f"{known}\ntrying again in {follow.every}")
                else:
                    if not stopping.is_stopping():
                        status.run_succeeded()
                    display.pause()
                    show_done(done, output)
                    log.empty()
                stopping.pause(follow.pause_s)
        note("stopped after a commit; the next run continues here")
    except KeyboardInterrupt:
        note("stopped; the next run continues here")
    finally:
        server.stop()
        brokers.close()
        stopping.close()
