"""`chronos serve`: settings, node, HTTP; and the same backwards when told to stop.

1. settings and logs    2. the node    3. HTTP, last    4. wait for a signal, or for the node to fail
5. HTTP, first          6. the node
"""

import asyncio
import faulthandler
import gc
import os
import signal
import sys
from typing import TYPE_CHECKING

import structlog

from chronos.cli.output import complain
from chronos.client import SERVER

if TYPE_CHECKING:
    from chronos.admin import Server
    from chronos.node import Node

log = structlog.get_logger("chronos.serve")

SWITCH_S = 0.0005
"""How long a thread may keep the interpreter from the others: shards and HTTP share it, and wait for milliseconds."""

GC_THRESHOLDS = (200_000, 20, 100)
"""A step makes thousands of short-lived values and no cycles: look for those seldom."""

FAILURE_LOOK_S = 0.2
"""How often to look whether the node has failed."""


class _Signals:
    """SIGINT and SIGTERM, from the start to the very end: the first one stops in order, a second one at once."""

    def __init__(self) -> None:
        self._told = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._heed)

    def ring(self, loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
        """From now on the first one sets the event; before, it interrupts what is under way."""
        self._loop, self._stop = loop, stop

    def _heed(self, number: int, _: object) -> None:
        if self._told:
            complain("stopped at once: what was under way is finished at the next start")
            os._exit(1)
        self._told = True
        if self._loop is None or self._stop is None:
            raise KeyboardInterrupt
        log.info("stopping", signal=signal.Signals(number).name)
        self._loop.call_soon_threadsafe(self._stop.set)


def run(path: str | None, overrides: list[str], *, from_checkpoint: bool = False) -> None:
    """Serve until a signal; a failure of the node is raised."""
    from chronos.config import load
    from chronos.logs import set_up

    config = load(path, os.environ, overrides)
    set_up(config.logging.level, config.logging.format)
    faulthandler.enable()  # a crash inside a native library says at least where it was called from
    # All native libraries are loaded before the threads of any of them run.
    from chronos.admin import Server
    from chronos.node import Node

    sys.setswitchinterval(SWITCH_S)
    signals = _Signals()
    node = Node(config, from_checkpoint=from_checkpoint)
    try:
        node.start()
    except KeyboardInterrupt:
        # Whatever was up is down again.
        return
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        asyncio.run(_serve(node, Server(node), signals))
    except KeyboardInterrupt:
        log.info("stopping", why="told so before it listened")
    finally:
        node.stop()
    if node.failure is not None:
        raise node.failure


async def _serve(node: "Node", server: "Server", signals: _Signals) -> None:
    stop = asyncio.Event()
    signals.ring(asyncio.get_running_loop(), stop)
    try:
        await server.start()
        if sys.stdout.isatty():
            _welcome(node, server.url)
        while not stop.is_set() and not node.failed.is_set():
            try:
                async with asyncio.timeout(FAILURE_LOOK_S):
                    await stop.wait()
            except TimeoutError:
                continue
    finally:
        await server.stop()


def _welcome(node: "Node", url: str) -> None:
    """Where it listens, and three lines to try."""
    config = node.config
    kind, data_dir = config.log.kind, config.node.data_dir
    option = "" if url == SERVER else f" --server {url}"
    watch = f"chronos tail{option} hello --from beginning" if kind == "embedded" else f"chronos list{option}"
    print(f"""
Chronos listens on {url}  (the page of the service, the API, metrics)
  {kind} log, {config.shards} shards, data in {data_dir}

Try in another terminal:
  chronos send{option} --to hello --in 5s 'hello, later'
  {watch}
  chronos status{option} --watch

Ctrl-C stops it in order.
""", flush=True)  # fmt: skip
