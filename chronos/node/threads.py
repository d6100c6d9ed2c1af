"""Threads of a node: an error that ends one is reported, and the wait for their ends has a
deadline."""

import threading
import time
from collections.abc import Callable

import structlog

from chronos.errors import ChronosError

log = structlog.get_logger("chronos.shard")


def run_guarded(name: str, run: Callable[[], None], failed: Callable[[ChronosError], None]) -> None:
    """The target of a thread: `failed` is called with any error that ends `run`, so that no thread
    ends unnoticed."""
    try:
        run()
    except ChronosError as error:
        failed(error)
    except Exception as error:
        log.exception("thread failed", name=name)
        failed(ChronosError(f"{name} failed: {error!r}; this is a bug in Chronos"))


def join_until(thread: threading.Thread, deadline_s: float) -> None:
    """Wait for the end of a thread that may not have been started, until the deadline (of
    `time.monotonic()`)."""
    if thread.is_alive():
        thread.join(max(0.0, deadline_s - time.monotonic()))


def guarded_thread(
    name: str, run: Callable[[], None], failed: Callable[[ChronosError], None]
) -> threading.Thread:
    """Return a thread of this name that runs guarded, not started yet."""
    return threading.Thread(target=run_guarded, args=(name, run, failed), name=name, daemon=True)
