"""`chronos serve`: settings, node, HTTP; and in the opposite order when it stops.

1. settings and logs    2. the node    3. HTTP, last    4. wait for a signal, or for the node to fail
5. HTTP, first          6. the node
"""  # noqa: E501

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
from chronos.errors import ConfigurationError, Stop

if TYPE_CHECKING:
    from chronos.admin import Server
    from chronos.cli.service.processes import Place
    from chronos.config import Config
    from chronos.node import Node

log = structlog.get_logger("chronos.serve")

SWITCH_S = 0.0005
"""How long a thread may hold the GIL: shards and HTTP share it, and wait for milliseconds."""

GC_THRESHOLDS = (200_000, 20, 100)
"""A step makes thousands of short-lived values and no cycles: collections are rare."""

ORDERLY = signal.SIGUSR2
"""What `processes` sends to its nodes: the system, or an operator, may send SIGTERM to all of them
besides, in any order, which is no second request."""

FAILURE_LOOK_S = 0.2
"""How often to check for a failure of the node."""


class _Signals:
    """SIGINT and SIGTERM, from the start to the very end: the first one stops in order, a second
    one at once. ORDERLY stops in order too, and does not count."""

    def __init__(self) -> None:
        self._stopping = self._was_requested = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        for number in (signal.SIGINT, signal.SIGTERM, ORDERLY):
            signal.signal(number, self._handle)

    def set_event(self, loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
        """From now on the first signal sets the event; before, it raises KeyboardInterrupt."""
        self._loop, self._stop = loop, stop

    def _handle(self, number: int, _: object) -> None:
        if number != ORDERLY:
            if self._was_requested:
                complain("stopped at once; the next start completes the work that was interrupted")
                os._exit(1)
            self._was_requested = True
        if self._stopping:
            return
        self._stopping = True
        if self._loop is None or self._stop is None:
            raise KeyboardInterrupt
        log.info("stopping", signal=signal.Signals(number).name)
        self._loop.call_soon_threadsafe(self._stop.set)


def run(path: str | None, overrides: list[str], *, from_checkpoint: bool, processes: str) -> None:
    """Serve until a signal; raises what made the node fail. `processes`: the nodes on this machine,
    see `processes.count_of`; with several this process only starts them."""
    from chronos.cli.service.processes import Place, check, count_of, retiring, supervise
    from chronos.config import load

    config = load(path, os.environ, overrides)
    count = count_of(processes, config)
    left = retiring(config, count)
    if count == 1 and not left:
        _run(config, from_checkpoint=from_checkpoint)
        return
    places = [Place(at, count) for at in [*range(1, count + 1), *left]]
    check(config, places)
    for place in places:
        load(path, os.environ, [*overrides, *place.settings(config)])
    # The working directory is no source of modules, unless it is that of this process too.
    safe = [] if {"", os.getcwd()} & set(sys.path) else ["-P"]
    command = [sys.executable, *safe, "-m", "chronos", "serve"]
    command += ["--config", path] if path else []
    for setting in overrides:
        command += ["--set", setting]
    sys.exit(supervise(config, command, places, from_checkpoint=from_checkpoint))


def run_process(
    path: str | None, overrides: list[str], process: str, *, from_checkpoint: bool
) -> None:
    """Serve as one of several nodes of this machine, and exit with one of the codes of
    `processes`."""
    from chronos.cli.service.processes import FINAL_CODES, RETIRED, STOPPED, Place
    from chronos.config import load

    place = Place.parse(process)
    try:
        config = load(path, os.environ, overrides)
        config = load(path, os.environ, [*overrides, *place.settings(config)])
        is_retired = _run(config, from_checkpoint=from_checkpoint, place=place)
    except Stop as error:
        complain(f"process {process}: {error}")
        sys.exit(error.exit_code + (STOPPED if error.exit_code in FINAL_CODES else 0))
    if is_retired:
        sys.exit(RETIRED)


def _run(config: "Config", *, from_checkpoint: bool, place: "Place | None" = None) -> bool:
    """Serve until a signal, or until the node is retired, and return whether it is. `place`: which
    of the nodes of this machine it is."""
    if not __debug__:
        raise ConfigurationError(
            ["python -O switches off the assertions that keep the guarantees; run without -O"]
        )
    from chronos.logs import set_up

    set_up(
        config.logging.level,
        config.logging.format,
        process=None if place is None else config.node.id,
    )
    faulthandler.enable()  # a crash inside a native library then shows where it was called from
    # All native libraries are loaded before the threads of any of them run.
    from chronos.admin import Server
    from chronos.node import Node

    sys.setswitchinterval(SWITCH_S)
    signals = _Signals()
    node = Node(
        config, from_checkpoint=from_checkpoint, retires=place is not None and place.retires
    )
    try:
        node.start()
    except KeyboardInterrupt:
        # The node has stopped everything it had started.
        return False
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    is_retired = False
    try:
        shares_terminal = place is not None and place.at > 1
        is_retired = asyncio.run(
            _serve(node, Server(node), signals, shares_terminal=shares_terminal)
        )
    except KeyboardInterrupt:
        log.info("stopping", why="a signal came before it listened")
    finally:
        node.stop()
    if node.failure is not None:
        raise node.failure
    return is_retired


async def _serve(
    node: "Node", server: "Server", signals: _Signals, *, shares_terminal: bool
) -> bool:
    """Serve until a signal or a failure, or until the node is retired, and return whether it is."""
    stop = asyncio.Event()
    signals.set_event(asyncio.get_running_loop(), stop)
    try:
        await server.start()
        if sys.stdout.isatty() and not shares_terminal:
            _welcome(node, server.url)
        while not (stop.is_set() or node.failed.is_set() or node.is_retired):
            try:
                async with asyncio.timeout(FAILURE_LOOK_S):
                    await stop.wait()
            except TimeoutError:
                continue
        return node.is_retired
    finally:
        await server.stop()


def _welcome(node: "Node", url: str) -> None:
    """The address, and three commands to try; each of them works as it is printed."""
    config = node.config
    option = "" if url == SERVER else f" --server {url}"
    lines = [
        f"chronos send{option} --to hello --in 5s 'hello, later'",
        f"chronos tail{option} hello --from beginning",
        f"chronos status{option} --watch",
    ]
    if config.log.kind == "kafka":
        lines[1] = f"chronos list{option}"
        if not config.delivery.create_topics:
            servers = config.log.kafka.bootstrap_servers
            # Chronos creates no targets here: without its topic the message would be dead-lettered.
            lines.insert(0, f"kafka-topics.sh --bootstrap-server {servers} --create --topic hello")
    commands = "\n  ".join(lines)
    print(f"""
Chronos listens on {url}  (console, HTTP interface, metrics)
  {config.log.kind} log, {config.shards} shards, data in {config.node.data_dir}

Try in another terminal:
  {commands}

Ctrl-C stops it in order.
""", flush=True)  # fmt: skip
