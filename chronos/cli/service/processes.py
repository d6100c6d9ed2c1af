"""Several nodes of a cluster on one machine (`chronos serve --processes 3`), each in a process of
its own, and the process that starts them, restarts them and ends with them.

    the first process
    ├── process 1/3    the node of the configuration
    ├── process 2/3    node.id_2, data_dir/processes/2, admin.port + 1
    ├── process 3/3    node.id_3, data_dir/processes/3, admin.port + 2
    └── process 4/3    was started before, with a greater number: retires, and its directory is deleted

A Python process uses one core. The nodes tell each other that they share a machine (`node.host`),
so that replicas of a shard lie on different machines first."""  # noqa: E501

import asyncio
import ctypes
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import structlog
from msgspec import Struct

from chronos.cli.service.serve import ORDERLY
from chronos.config import Config
from chronos.errors import ConfigurationError, LogUnavailable, StoreCorrupt
from chronos.logs import set_up

log = structlog.get_logger("chronos.processes")

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


class Place(Struct, frozen=True):
    """Which of the nodes of a machine a process is: `2/3`."""

    at: int
    of: int

    @classmethod
    def parse(cls, text: str) -> "Place":
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
    config: Config, command: Sequence[str], places: Sequence[Place], *, from_checkpoint: bool
) -> int:
    """Run these nodes until a signal, or until all have ended for good; return the exit code.
    `command`: runs the first one alone."""
    set_up(config.logging.level, config.logging.format)
    supervisor = _Supervisor(config, command, places, from_checkpoint=from_checkpoint)
    return asyncio.run(supervisor.run())


def check(config: Config, places: Sequence[Place]) -> None:
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
        places: Sequence[Place],
        *,
        from_checkpoint: bool,
    ) -> None:
        """See `supervise`."""
        self._first = ["--from-checkpoint"] if from_checkpoint else []
        """Further arguments of each process until a start of it has found the log."""
        self._config = config
        self._command = command
        self._places = places
        self._running: dict[Place, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        """Return the exit code: 0 after a signal, else the greatest of the nodes."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        names = {place: name(self._config, place.at) for place in self._places}
        log.info("starting nodes", nodes=[names[it] for it in self._places if not it.retires])
        if left := [names[place] for place in self._places if place.retires]:
            log.info(
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

    async def _keep(self, place: Place) -> int:
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
                log.error("process ended for good", node=node, code=code - STOPPED)
                return code - STOPPED
            failures = 0 if loop.time() - started_s >= STEADY_S else failures
            pause_s = PAUSES_S[min(failures, len(PAUSES_S) - 1)]
            failures += 1
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            log.error("process ended", node=node, how=how, restarted_in_s=pause_s)
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
            log.error("retired, but its directory stays", node=node, why=str(error))
        else:
            log.info("retired, and its directory is deleted", node=node, path=str(path))

    async def _run(self, place: Place, arguments: Sequence[str]) -> int:
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
