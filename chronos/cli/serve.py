"""`chronos serve`: settings, node, HTTP; and the same backwards when told to stop.

    1. settings and logs    2. the node    3. HTTP, last    4. wait for a signal, or for the node to fail
    5. HTTP, first          6. the node
"""

import asyncio
import gc
import os
import signal
import sys
from typing import NoReturn

import structlog

from chronos.cli.output import complain
from chronos.errors import ChronosError

log = structlog.get_logger("chronos.serve")

SWITCH_S = 0.0005
"""How long a thread may keep the interpreter from the others: shards and HTTP share it, and wait for milliseconds."""

GC_THRESHOLDS = (200_000, 20, 100)
"""A step makes thousands of short-lived values and no cycles: look for those seldom."""

FAILURE_LOOK_S = 0.2
"""How often to look whether the node has failed."""


def run(path: str | None, overrides: list[str]) -> None:
    """Serve until a signal; a failure of the node is raised."""
    from chronos.config import load
    from chronos.logs import set_up

    config = load(path, os.environ, overrides)
    set_up(config.logging.level, config.logging.format)
    from chronos.node import Node

    sys.setswitchinterval(SWITCH_S)
    node = Node(config)
    # SIGTERM before the event loop runs: leave through the same door.
    signal.signal(signal.SIGTERM, _leave)
    try:
        node.start()
    except ChronosError:
        raise
    except KeyboardInterrupt:
        node.stop()
        return
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        asyncio.run(_serve(node))
    finally:
        node.stop()
    if node.failure is not None:
        raise node.failure


def _leave(number: int, _: object) -> NoReturn:
    raise KeyboardInterrupt


async def _serve(node: "object") -> None:
    from chronos.admin import Server
    from chronos.node import Node

    assert isinstance(node, Node)
    server = Server(node)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def told(name: str) -> None:
        if stop.is_set():
            complain("stopped at once: what was under way is finished at the next start")
            os._exit(1)
        log.info("stopping", signal=name)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told, number.name)
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


def _welcome(node: "object", url: str) -> None:
    """Where it listens, and three lines to try."""
    from chronos.node import Node

    assert isinstance(node, Node)
    config = node.config
    print(f"\nChronos listens on {url}  (the page of the service, the API, metrics)")
    print(f"  {config.log.kind} log, {config.shards} shards, data in {config.node.data_dir}")
    option = "" if url == "http://127.0.0.1:7700" else f" --server {url}"
    print("\nTry in another terminal:")
    print(f"  chronos send{option} --to hello --in 5s 'hello, later'")
    print(f"  chronos tail{option} hello --from beginning" if config.log.kind == "embedded"
          else f"  chronos list{option}")  # fmt: skip
    print(f"  chronos status{option} --watch")
    print("\nCtrl-C stops it in order.\n", flush=True)


