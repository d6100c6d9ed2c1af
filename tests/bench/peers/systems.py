"""The services that are compared: how each is started, its version, and its driver.

Each keeps its messages in a file, as it does by default or as its manual recommends; none waits for
the disk with each message."""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version as version_of
from pathlib import Path
from typing import NamedTuple

import msgspec

from tests.bench.peers.kafka import TARGET
from tests.clients.programs import go_environ, made, run_step
from tests.harness.broker import Broker, wait_until
from tests.harness.java import pinned_version
from tests.harness.ports import free_port
from tests.harness.service import Service

HERE = Path(__file__).parent
CACHE = HERE.parents[2] / ".cache" / "peers"
DEBIAN = CACHE / "tree"
"""Where `set_up_peers` of scripts/lib.sh unpacks beanstalkd and Redis."""

BEANSTALKD, REDIS = DEBIAN / "usr/bin/beanstalkd", DEBIAN / "usr/bin/redis-server"

START_S = 20.0
STOP_S = 10.0
NATS = "github.com/nats-io/nats-server/v2"


class System(NamedTuple):
    """One service."""

    name: str
    keeps: str
    """How it keeps its messages."""
    version: Callable[[], str]
    run: Callable[[Path], AbstractContextManager[str]]
    """Runs it with its data in a directory; the address for the driver."""
    driver: Callable[[], Sequence[str | Path]]
    lead_s: int
    """How long before their time the messages of a burst are written."""


def _environ() -> dict[str, str]:
    """The environment of programs out of unpacked packages."""
    folders = [*DEBIAN.glob("usr/lib/*-linux-gnu"), *DEBIAN.glob("lib/*-linux-gnu")]
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(map(str, folders))}


@contextmanager
def _server(command: Sequence[str], port: int, directory: Path) -> Iterator[None]:
    directory.mkdir(parents=True)
    with (directory / "log").open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=_environ()
        )
    try:
        if not wait_until(lambda: _is_open(port), deadline=time.monotonic() + START_S):
            raise RuntimeError(
                f"{command[0]} did not start\n{(directory / 'log').read_text()[-2_000:]}"
            )
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def _chronos(directory: Path) -> Iterator[str]:
    with Broker(heap_mb=1024, for_load=True) as broker:
        broker.create_topic(TARGET)
        service = Service(directory, bootstrap=broker.bootstrap, settings={"shards": 1})
        service.start()
        try:
            yield broker.bootstrap
        finally:
            service.stop()


def _built() -> Path:
    def make(into: Path) -> None:
        for name, package in (("peers", "."), ("nats-server", NATS)):
            run_step(["go", "build", "-o", into / name, package], HERE / "go", **go_environ(CACHE))

    return made(CACHE, "go", sorted((HERE / "go").iterdir()), make)


@contextmanager
def _nats(directory: Path) -> Iterator[str]:
    port = free_port()
    command = [str(_built() / "nats-server"), "-a", "127.0.0.1", "-p", str(port), "-js"]
    with _server([*command, "-sd", str(directory / "data")], port, directory):
        yield f"nats://127.0.0.1:{port}"


@contextmanager
def _beanstalkd(directory: Path) -> Iterator[str]:
    port = free_port()
    data = directory / "data"
    data.mkdir(parents=True)
    command = [str(BEANSTALKD), "-l", "127.0.0.1", "-p", str(port), "-b", str(data)]
    with _server(command, port, directory / "server"):
        yield f"127.0.0.1:{port}"


@contextmanager
def _redis(directory: Path) -> Iterator[str]:
    port = free_port()
    data = directory / "data"
    data.mkdir(parents=True)
    command = [str(REDIS), "--bind", "127.0.0.1", "--port", str(port)]
    settings = ["--dir", str(data), "--appendonly", "yes", "--save", ""]
    with _server([*command, *settings], port, directory / "server"):
        yield f"127.0.0.1:{port}"


def _node() -> Path:
    sources = [HERE / "node" / name for name in ("main.js", "package.json", "package-lock.json")]

    def make(into: Path) -> None:
        for source in sources:
            (into / source.name).write_bytes(source.read_bytes())
        run_step(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], into)

    return made(CACHE, "node", sources, make)


def _output(*command: str | Path) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, env=_environ(), check=True)
    return ran.stdout.strip()


def _bullmq_version() -> str:
    package = msgspec.json.decode((_node() / "node_modules/bullmq/package.json").read_bytes())
    redis = _output(REDIS, "--version").split("v=")[1].split()[0]
    return f"{package['version']}, Redis {redis}"


SYSTEMS = (
    System(
        "Chronos",
        "Kafka's log, exactly once",
        lambda: f"Kafka {pinned_version('kafka')}, confluent-kafka {version_of('confluent-kafka')}",
        _chronos,
        lambda: ["python", "-m", "tests.bench.peers.kafka", "chronos"],
        20,
    ),
    System(
        "NATS",
        "JetStream, file storage",
        lambda: _output(_built() / "nats-server", "--version").removeprefix("nats-server: v"),
        _nats,
        lambda: [_built() / "peers", "nats"],
        20,
    ),
    System(
        "beanstalkd",
        "binlog, delays in whole seconds",
        lambda: _output(BEANSTALKD, "-v").removeprefix("beanstalkd "),
        _beanstalkd,
        lambda: [_built() / "peers", "beanstalkd"],
        20,
    ),
    System(
        "BullMQ",
        "Redis, append-only file",
        _bullmq_version,
        _redis,
        lambda: ["node", _node() / "main.js", "bullmq"],
        60,
    ),
)
