"""The services that are compared: how each is started, its version, and its driver.

Each keeps its messages in a file, as it does by default or as its manual recommends; none waits for
the disk with each message."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version as version_of
from pathlib import Path
from typing import NamedTuple

import msgspec

from tests.bench.peers.kafka import TARGET
from tests.clients.programs import go_environ, made, node_packages, run_step
from tests.harness.broker import Broker
from tests.harness.java import compiled, jars, java, pinned_version
from tests.harness.ports import free_port
from tests.harness.service import Service
from tests.harness.waiting import is_in_time

HERE = Path(__file__).parent
CACHE = HERE.parents[2] / ".cache" / "peers"
DEBIAN = CACHE / "tree"
"""Where `set_up_peers` of scripts/lib.sh unpacks beanstalkd and Redis. Maven fetches RocketMQ."""

BEANSTALKD, REDIS = DEBIAN / "usr/bin/beanstalkd", DEBIAN / "usr/bin/redis-server"

START_S = 60.0
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
def _server(directory: Path, command: Callable[[str, str], Sequence[str]]) -> Iterator[str]:
    """Run a server on a port of the loopback interface; its address. `command`: for the port and an
    empty directory for its data."""
    data, log, port = directory / "data", directory / "log", free_port()
    data.mkdir(parents=True)
    program = command(str(port), str(data))
    with log.open("wb") as output:
        process = subprocess.Popen(
            program, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=_environ()
        )
    try:
        if not is_in_time(lambda: _is_open(port), deadline_s=time.monotonic() + START_S):
            raise RuntimeError(f"{program[0]} did not start\n{log.read_text()[-2_000:]}")
        yield f"127.0.0.1:{port}"
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


def _nats(directory: Path) -> AbstractContextManager[str]:
    def command(port: str, data: str) -> list[str]:
        return [str(_built() / "nats-server"), "-a", "127.0.0.1", "-p", port, "-js", "-sd", data]

    return _server(directory, command)


def _beanstalkd(directory: Path) -> AbstractContextManager[str]:
    def command(port: str, data: str) -> list[str]:
        return [str(BEANSTALKD), "-l", "127.0.0.1", "-p", port, "-b", data]

    return _server(directory, command)


def _redis(directory: Path) -> AbstractContextManager[str]:
    def command(port: str, data: str) -> list[str]:
        settings = ["--dir", data, "--appendonly", "yes", "--save", ""]
        return [str(REDIS), "--bind", "127.0.0.1", "--port", port, *settings]

    return _server(directory, command)


def _rocketmq(settings: str) -> Callable[[Path], AbstractContextManager[str]]:
    """Runs RocketMQ, a name server and a broker, with further settings of the broker."""

    @contextmanager
    def run(directory: Path) -> Iterator[str]:
        def names(port: str, data: str) -> list[str]:
            settings = f"listenPort={port}\nbindAddress=127.0.0.1\n"
            return _java("256m", "namesrv.NamesrvStartup", data, settings)

        with _server(directory / "names", names) as server:

            def broker(port: str, data: str) -> list[str]:
                own = (
                    f"brokerName=broker\nnamesrvAddr={server}\nlistenPort={port}\n"
                    f"haListenPort={free_port()}\nbindAddress=127.0.0.1\nbrokerIP1=127.0.0.1\n"
                    f"brokerIP2=127.0.0.1\nstorePathRootDir={data}/store\n"
                )
                return _java("2g", "broker.BrokerStartup", data, own + settings)

            with _server(directory / "broker", broker) as address:
                tool = _java("256m", "tools.command.MQAdminStartup", str(directory))

                def said(verb: str, *options: str) -> str:
                    return _output(*tool, verb, "-n", server, "-t", "bench", *options)

                # Both answer with 0 whatever became of it, and the broker listens before it is
                # known to the name server.
                deadline = time.monotonic() + START_S
                while "success" not in said("updateTopic", "-b", address) or (
                    "brokerDatas" not in said("topicRoute")
                ):
                    if time.monotonic() > deadline:
                        raise RuntimeError("RocketMQ did not create the topic")
                yield server

    return run


def _java(heap: str, program: str, data: str, settings: str | None = None) -> list[str]:
    """The command for a program of RocketMQ, whose settings are written into its directory."""
    jars_of, java_dir = jars("rocketmq"), HERE / "java"
    classes = os.pathsep.join((str(java_dir), f"{jars_of}/*"))
    homes = (f"-Duser.home={data}", f"-Drocketmq.home.dir={data}")
    command = [java(), f"-Xms{heap}", f"-Xmx{heap}", *homes, "-cp", classes]
    command.append(f"org.apache.rocketmq.{program}")
    if settings is None:
        return command
    file = Path(data) / "settings"
    file.write_text(settings)
    return [*command, "-c", str(file)]


def _rocketmq_driver() -> list[str | Path]:
    jars_of = jars("rocketmq")
    classes = compiled(HERE / "java" / "RocketMq.java", str(jars_of))
    path = os.pathsep.join((str(classes), str(HERE / "java"), f"{jars_of}/*"))
    return [java(), "-cp", path, "RocketMq"]


def _node() -> Path:
    return node_packages(CACHE, HERE / "node")


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
        lambda: [sys.executable, "-m", "tests.bench.peers.kafka", "chronos"],
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
    System(
        "RocketMQ",
        "commit log, timer wheel of 0.1 s",
        lambda: pinned_version("rocketmq"),
        _rocketmq("timerPrecisionMs=100\n"),
        _rocketmq_driver,
        60,
    ),
    System(
        "RocketMQ-RocksDB",
        "commit log, timers in RocksDB",
        lambda: pinned_version("rocketmq"),
        _rocketmq("timerRocksDBEnable=true\n"),
        _rocketmq_driver,
        60,
    ),
)
