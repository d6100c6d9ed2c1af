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
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import structlog
from msgspec import Struct

from chronos.config import Config
from chronos.errors import ConfigurationError
from chronos.logs import set_up

log = structlog.get_logger("chronos.processes")

AUTO = "auto"

PROCESSES_MAX = 64
"""Most nodes on one machine: each is a member of the cluster, with its own ports and clients."""

RETIRED = 99
"""Exit code of a node that gave all its replicas away."""

STOPPED = 100
"""Added to the exit code of an error that a restart does not help against (`errors.Stop`)."""

PAUSES_S = (1, 2, 5, 10, 30)
"""Before each restart of a process; the last one again and again."""

STEADY_S = 60.0
"""A process that ran for so long is restarted after the first pause again."""

FOLDER = "processes"

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
    found = folder(config).glob("[0-9]*")
    return sorted(at for path in found if path.name.isdigit() and (at := int(path.name)) > count)


def count_of(text: str, config: Config) -> int:
    """Return the number of nodes to start. Raises ConfigurationError."""
    if text == AUTO:
        return max(1, min(len(os.sched_getaffinity(0)), config.shards, PROCESSES_MAX))
    if not text.isdigit() or not 1 <= int(text) <= PROCESSES_MAX:
        raise ConfigurationError(
            [f"--processes: {text!r} is no number; write 1 to {PROCESSES_MAX}, or auto"]
        )
    return int(text)


def supervise(
    config: Config,
    command: Sequence[str],
    count: int,
    left: Sequence[int],
    *,
    from_checkpoint: bool,
) -> int:
    """Run so many nodes until a signal, or until all have ended for good; return the exit code.

    `command`: runs the first one alone. `left`: the nodes that retire. Raises
    ConfigurationError."""
    _check(config, count)
    set_up(config.logging.level, config.logging.format)
    supervisor = _Supervisor(config, command, count, left, from_checkpoint=from_checkpoint)
    return asyncio.run(supervisor.run())


def _check(config: Config, count: int) -> None:
    lacks = [
        f"{name} is {kind}"
        for name, kind in (
            ("log.kind", config.log.kind),
            ("coordinator.kind", config.coordinator.kind),
        )
        if kind in ("embedded", "standalone")
    ]
    if lacks:
        raise ConfigurationError(
            [
                "--processes: several nodes share a Kafka cluster and a coordinator, and "
                f"{' and '.join(lacks)}; set log.kind: kafka and, for example, coordinator.kind: "
                "kafka"
            ]
        )
    if config.admin.port + count - 1 > 65_535:
        raise ConfigurationError(
            [f"--processes: {count} ports from admin.port ({config.admin.port}) on go beyond 65535"]
        )


class _Supervisor:
    """Keeps the processes running, from `run` to its end."""

    def __init__(
        self,
        config: Config,
        command: Sequence[str],
        count: int,
        left: Sequence[int],
        *,
        from_checkpoint: bool,
    ) -> None:
        """See `supervise`."""
        self._first = ["--from-checkpoint"] if from_checkpoint else []
        """Further arguments of the first start of each process."""
        self._config = config
        self._command = command
        self._count = count
        self._left = left
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        """Return the exit code: 0 after a signal, else the greatest of the nodes."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        if self._left:
            log.info(
                "fewer processes than before: these nodes give their replicas away",
                nodes=[name(self._config, at) for at in self._left],
            )
        codes = await asyncio.gather(*map(self._keep, [*range(1, self._count + 1), *self._left]))
        return 0 if self._stopping.is_set() else max(codes)

    def _stop(self) -> None:
        """Pass a signal on: the first one stops all nodes in order, a second one at once."""
        self._stopping.set()
        for process in self._running.values():
            process.terminate()

    async def _keep(self, at: int) -> int:
        """Run one node, and again after each end that a restart may help against; return its last
        exit code."""
        node, arguments = name(self._config, at), self._first
        loop, failures = asyncio.get_running_loop(), 0
        while not self._stopping.is_set():
            started_s = loop.time()
            code = await self._run(at, arguments)
            arguments = []
            if self._stopping.is_set():
                return code
            if code == RETIRED:
                shutil.rmtree(folder(self._config) / str(at), ignore_errors=True)
                log.info("retired", node=node)
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

    async def _run(self, at: int, arguments: Sequence[str]) -> int:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            "--process",
            f"{at}/{self._count}",
            *arguments,
            # Ctrl-C in a terminal reaches this process only, which passes it on.
            process_group=0,
            preexec_fn=_dying_with(os.getpid()),
        )
        self._running[at] = process
        if self._stopping.is_set():
            process.terminate()
        try:
            return await process.wait()
        finally:
            del self._running[at]


def _dying_with(parent: int) -> Callable[[], None] | None:
    """Return what a child does first, so that it stops in order when this process is killed; None
    where the system does not offer it."""
    if sys.platform != "linux":
        return None
    return partial(_follow_parent, ctypes.CDLL(None).prctl, parent)


def _follow_parent(prctl: Callable[[int, int], int], parent: int) -> None:
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)
