"""`chronos serve`: one node in this process; or several nodes of a cluster on one machine, each in
a process of its own, with `--processes 3`, or while an earlier start with more processes has left
nodes whose replicas are still to be given away.

A node starts in this order: 1. settings and logs, 2. the node, 3. HTTP. Then it waits for a signal,
for the node to fail, or for the node to have given all its replicas away, if it is to. HTTP stops
first, then the node.

    chronos serve --processes 3    starts the processes below, restarts those that fail, and ends when all have ended for good
    ├── process 1/3    the node of the configuration
    ├── process 2/3    node.id_2, data_dir/processes/2, admin.port + 1
    ├── process 3/3    node.id_3, data_dir/processes/3, admin.port + 2
    └── process 4/3    left by an earlier start with more processes: gives its replicas away, then its directory is deleted

Several processes use several cores, because the Python code of one process uses one. Each of the
three has a third of `store.block_cache`. The nodes tell each other that they share a machine
(`node.host`): the replicas of a shard are placed on different machines where that is possible."""  # noqa: E501

import asyncio
import ctypes
import faulthandler
import gc
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import structlog
from msgspec import Struct

from chronos.cli.output import complain
from chronos.client import SERVER
from chronos.config import Config, load
from chronos.errors import ConfigurationError, LogUnavailable, Stop, StoreCorrupt
from chronos.logs import set_up

if TYPE_CHECKING:
    from chronos.admin import Server
    from chronos.node import Node

log = structlog.get_logger("chronos.serve")
supervisor_log = structlog.get_logger("chronos.processes")

SWITCH_S = 0.0005
"""How long a thread may hold the GIL: shards and HTTP share it, and wait for milliseconds."""

GC_THRESHOLDS = (200_000, 20, 100)
"""A step makes thousands of short-lived values and no cycles: collections are rare."""

ORDERLY = signal.SIGUSR2
"""The signal that the first of several processes sends to the others: the system, or an operator,
may send SIGTERM to all of them besides, in any order, which is no second request."""

FAILURE_LOOK_S = 0.2
"""How often to check for a failure of the node."""

AUTO = "auto"

PROCESSES_MAX = 64
"""Most nodes on one machine: each is a member of the cluster, with its own ports and clients."""

RETIRED = 99
"""Exit code of a node that gave all its replicas away."""

FINAL_CODES = frozenset({ConfigurationError.exit_code, StoreCorrupt.exit_code})
"""Exit codes of errors that no restart helps against; other ones may pass, such as a directory that
is in use for another moment."""

STOPPED = 100
"""Added to them: other programs, such as the interpreter, have exit codes of their own."""

PAUSES_S = (1, 2, 5, 10, 30)
"""Before each restart of a process; the last one again and again."""

STEADY_S = 60.0
"""A process that ran for so long is restarted after the first pause again."""

FOLDER = "processes"

NUMBER = re.compile("[1-9][0-9]{0,3}")

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""`QUOTA PERIOD` in us, or `max PERIOD` (cgroups(7), version 2)."""

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when the thread that started it ends."""


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
    see `count_of`; with several this process only starts them."""
    config = load(path, os.environ, overrides)
    count = count_of(processes, config)
    left = retiring(config, count)
    if count == 1 and not left:
        _run(config, from_checkpoint=from_checkpoint)
        return
    places = [ProcessPlace(at, count) for at in [*range(1, count + 1), *left]]
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
    """Serve as one of several nodes of this machine, and exit with RETIRED, or with the code of
    the error, plus STOPPED if no restart helps."""
    place = ProcessPlace.parse(process)
    try:
        config = load(path, os.environ, overrides)
        config = load(path, os.environ, [*overrides, *place.settings(config)])
        is_retired = _run(config, from_checkpoint=from_checkpoint, place=place)
    except Stop as error:
        complain(f"process {process}: {error}")
        sys.exit(error.exit_code + (STOPPED if error.exit_code in FINAL_CODES else 0))
    if is_retired:
        sys.exit(RETIRED)


def _run(config: "Config", *, from_checkpoint: bool, place: "ProcessPlace | None" = None) -> bool:
    """Serve until a signal, or until the node is retired, and return whether it is. `place`: which
    of the nodes of this machine it is."""
    if not __debug__:
        raise ConfigurationError(
            ["python -O switches off the assertions that keep the guarantees; run without -O"]
        )
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
    print(
        f"""
Chronos listens on {url}  (console, HTTP interface, metrics)
  {config.log.kind} log, {config.shards} shards, data in {config.node.data_dir}

Try in another terminal:
  {commands}

Ctrl-C stops it in order.
""",
        flush=True,
    )


class ProcessPlace(Struct, frozen=True):
    """Which of the nodes of a machine a process is: `2/3`."""

    at: int
    of: int

    @classmethod
    def parse(cls, text: str) -> "ProcessPlace":
        """Read the value of the option of a child."""
        at, _, of = text.partition("/")
        return cls(int(at), int(of))

    @property
    def retires(self) -> bool:
        """The machine has fewer nodes now."""
        return self.at > self.of

    def settings(self, config: Config) -> list[str]:
        """Return the settings of this node over those of the first one, as `--set` has them."""
        host = config.node.host or config.node.id
        cache = max(1 << 20, config.store.block_cache // self.of)
        settings = [f"node.host={host}", f"store.block_cache={cache}"]
        if self.at == 1:
            return settings
        port = config.admin.port and config.admin.port + self.at - 1
        settings += [
            f"node.id={name(config, self.at)}",
            f"node.data_dir={folder(config) / str(self.at)}",
            f"admin.port={port}",
        ]
        if config.admin.advertised is not None:
            settings.append(f"admin.advertised={_moved(config.admin.advertised, self.at - 1)}")
        return settings


def _moved(url: str, by: int) -> str:
    """Return the URL with a greater port."""
    parts = urlsplit(url)
    if parts.port is None:
        raise ConfigurationError(
            [
                f"admin.advertised: {url} has no port, and the nodes of `--processes` listen on "
                "consecutive ports: write the port of the first one"
            ]
        )
    place = parts.netloc.removesuffix(f":{parts.port}")
    return parts._replace(netloc=f"{place}:{parts.port + by}").geturl()


def name(config: Config, at: int) -> str:
    """Return `node.id` of a node; no host has such a name."""
    return config.node.id if at == 1 else f"{config.node.id}_{at}"


def folder(config: Config) -> Path:
    """Return the directory of the data directories of all nodes but the first."""
    return Path(config.node.data_dir) / FOLDER


def retiring(config: Config, count: int) -> list[int]:
    """Return the nodes beyond so many that have data directories, from an earlier start."""
    names = [path.name for path in folder(config).glob("*") if NUMBER.fullmatch(path.name)]
    return sorted(at for at in map(int, names) if at > count)


def count_of(text: str, config: Config) -> int:
    """Return the number of nodes to start. Raises ConfigurationError."""
    if text == AUTO:
        return max(1, min(cores(), config.shards, PROCESSES_MAX))
    if not NUMBER.fullmatch(text) or int(text) > PROCESSES_MAX:
        raise ConfigurationError(
            [f"--processes: {text!r} is no number; write 1 to {PROCESSES_MAX}, or auto"]
        )
    return int(text)


def cores() -> int:
    """Return how many cores this process may use: its affinity, and the quota of its cgroup."""
    if sys.platform != "linux":
        return os.cpu_count() or 1
    found = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):  # no cgroup of version 2, or no quota: "max 100000"
        quota, period = map(int, CPU_QUOTA.read_text().split())
        found = min(found, -(-quota // period))
    return found


def supervise(
    config: Config, command: Sequence[str], places: Sequence[ProcessPlace], *, from_checkpoint: bool
) -> int:
    """Run these nodes until a signal, or until all have ended for good; return the exit code.
    `command`: runs the first one alone."""
    set_up(config.logging.level, config.logging.format)
    supervisor = _Supervisor(config, command, places, from_checkpoint=from_checkpoint)
    return asyncio.run(supervisor.run())


def check(config: Config, places: Sequence[ProcessPlace]) -> None:
    """Check that there can be several nodes. Raises ConfigurationError."""
    lacks = [
        f"{path} is {kind}"
        for path, kind in (
            ("log.kind", config.log.kind),
            ("coordinator.kind", config.coordinator.kind),
        )
        if kind in ("embedded", "standalone")
    ]
    if lacks:
        why = (
            "--processes: several nodes share a Kafka cluster and a coordinator, and "
            f"{' and '.join(lacks)}; set log.kind: kafka and, for example, coordinator.kind: kafka"
        )
        if earlier := [str(folder(config) / str(each.at)) for each in places if each.retires]:
            why = (
                f"{', '.join(earlier)}: from an earlier start with --processes, whose nodes have "
                f"to give their replicas away, and {' and '.join(lacks)}. Start once with the "
                "configuration of then, or delete it if that cluster is gone"
            )
        raise ConfigurationError([why])
    voters = {peer.partition("=")[0] for peer in config.coordinator.raft.peers}
    if others := sorted(voters.intersection(name(config, place.at) for place in places[1:])):
        raise ConfigurationError(
            [
                f"--processes: {', '.join(others)} cannot be a voter (coordinator.raft.peers), "
                "because its directory is deleted when there are fewer processes; the first node "
                "can"
            ]
        )


class _Supervisor:
    """Keeps the processes running, from `run` to its end."""

    def __init__(
        self,
        config: Config,
        command: Sequence[str],
        places: Sequence[ProcessPlace],
        *,
        from_checkpoint: bool,
    ) -> None:
        """See `supervise`."""
        self._first = ["--from-checkpoint"] if from_checkpoint else []
        """Further arguments of each process until a start of it has found the log."""
        self._config = config
        self._command = command
        self._places = places
        self._running: dict[ProcessPlace, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        """Return the exit code: 0 after a signal, else the greatest of the nodes."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        names = {place: name(self._config, place.at) for place in self._places}
        supervisor_log.info(
            "starting nodes", nodes=[names[it] for it in self._places if not it.retires]
        )
        if left := [names[place] for place in self._places if place.retires]:
            supervisor_log.info(
                "fewer processes than before: nodes give their replicas away, then their "
                "directories are deleted",
                nodes=left,
            )
        codes = await asyncio.gather(*map(self._keep, self._places))
        return 0 if self._stopping.is_set() else max(codes)

    def _stop(self) -> None:
        """Pass a signal on: the first one stops all nodes in order, a second one at once, also
        those that hang."""
        for process in self._running.values():
            if self._stopping.is_set():
                process.kill()
            else:
                process.send_signal(ORDERLY)
        self._stopping.set()

    async def _keep(self, place: ProcessPlace) -> int:
        """Run one node, and again after each end that a restart may help against; return its last
        exit code."""
        node, arguments = name(self._config, place.at), self._first
        loop, failures = asyncio.get_running_loop(), 0
        while not self._stopping.is_set():
            started_s = loop.time()
            code = await self._run(place, arguments)
            if code != LogUnavailable.exit_code:
                arguments = []
            if self._stopping.is_set():
                return code
            if code == RETIRED:
                self._delete(folder(self._config) / str(place.at), node)
                return 0
            if code > STOPPED:
                supervisor_log.error("process ended for good", node=node, code=code - STOPPED)
                return code - STOPPED
            failures = 0 if loop.time() - started_s >= STEADY_S else failures
            pause_s = PAUSES_S[min(failures, len(PAUSES_S) - 1)]
            failures += 1
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            supervisor_log.error("process ended", node=node, how=how, restarted_in_s=pause_s)
            try:
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
            except TimeoutError:
                continue
        return 0

    def _delete(self, path: Path, node: str) -> None:
        try:
            shutil.rmtree(path)
        except OSError as error:
            supervisor_log.error("retired, but its directory stays", node=node, why=str(error))
        else:
            supervisor_log.info("retired, and its directory is deleted", node=node, path=str(path))

    async def _run(self, place: ProcessPlace, arguments: Sequence[str]) -> int:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            "--process",
            f"{place.at}/{place.of}",
            *arguments,
            # Ctrl-C in a terminal reaches this process only, which passes it on.
            process_group=0,
            preexec_fn=_dying_with(os.getpid()),
        )
        self._running[place] = process
        if self._stopping.is_set():
            process.send_signal(ORDERLY)
        try:
            return await process.wait()
        finally:
            del self._running[place]


def _dying_with(parent: int) -> Callable[[], None] | None:
    """Return what a child does first, so that it stops in order when this process is killed; None
    where the system does not offer it."""
    if sys.platform != "linux":
        return None
    return partial(_follow_parent, ctypes.CDLL(None).prctl, parent)


def _follow_parent(prctl: Callable[[int, int], int], parent: int) -> None:
    # Several times, perhaps: once for each thread of the parent that the child is left to.
    prctl(PR_SET_PDEATHSIG, ORDERLY)
    if os.getppid() != parent:
        os._exit(1)
