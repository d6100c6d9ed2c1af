"""A real ZooKeeper for tests: one server or an ensemble that can be started, killed, frozen and
restarted.

Each server is one JVM on free ports of the loopback interface, with a temporary data directory.
There is also a node to kill and freeze: `python -m tests.harness.zookeeper` joins a cluster,
controls it while it can, and prints the events.

This is not a fixture, and never a reason to skip a test: where Java or ZooKeeper is missing,
`start()` raises `ZooKeeperError`, which says what to install.

    with Ensemble(3) as zookeeper:
        zookeeper[0].freeze()
        zookeeper.leader().kill()

A server does not outlive the process that started it: a watchdog process kills it and removes its
directory when the pipe from that process closes."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kazoo.client import KazooClient

from chronos.core.cluster.roles import Member, ReplicaReport
from tests.harness.broker import JAVA_OPTIONS
from tests.harness.java import ROOT, jars
from tests.harness.ports import free_port
from tests.harness.process import Startable, Watchdog, freeze
from tests.harness.waiting import is_in_time

START_TIMEOUT_S = 60.0
"""From `start()` to a server that answers. Usually 1 s; the bound is for a loaded machine."""

STOP_TIMEOUT_S = 15.0
"""A killed process ends at once."""

TICK_MS = 500
"""ZooKeeper's unit of time: session timeouts are at least two ticks."""

SESSION_MAX_S = 40.0
"""The longest session timeout that a server grants."""

SESSION_S = 2.0
"""The session timeout of the tests: four ticks."""

TRANSACTIONS = 1_000
"""Far more than the nodes of a test make when they join."""

SERVER_OPTIONS = (
    *JAVA_OPTIONS,
    "-Xmx96m",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    # The data of a test need not survive a power cut.
    "-Dzookeeper.forceSync=no",
)


def member(
    node: str,
    *,
    applied: int | None = 1,
    instance: str = "",
    leaving: bool = False,
    shards: int = 2,
) -> Member:
    """The report of a node that holds all shards."""
    return Member(
        node=node,
        instance=instance or f"i-{node}",
        address=f"http://{node}:7700",
        version="1",
        started_ms=0,
        leaving=leaving,
        replicas={shard: ReplicaReport(applied=applied) for shard in range(shards)},
    )


class ZooKeeperError(Exception):
    """ZooKeeper could not be started; the message gives the reason."""


class Server(Startable):
    """One server. `start()` after `kill()` restarts it with the same port and data.

    `settings` go into its `zoo.cfg`, `options` to its JVM.
    """

    def __init__(
        self,
        number: int = 1,
        peers: Sequence[str] = (),
        port: int = 0,
        *,
        settings: Mapping[str, object] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.number = number
        self.port = port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._peers = tuple(peers)
        self._settings = dict(settings or {})
        self._options = tuple(options)
        self._watchdog: Watchdog | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.frozen = False

    def start(self) -> None:
        """Start the server and wait until it answers."""
        self.launch()
        self.wait_ready(time.monotonic() + START_TIMEOUT_S)

    def launch(self) -> None:
        """Start the process without waiting: the servers of an ensemble need each other."""
        directory = self._directory()
        config = {
            "tickTime": TICK_MS,
            "maxSessionTimeout": int(SESSION_MAX_S * 1_000),
            "dataDir": directory / "data",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr",
            "maxClientCnxns": 0,
            **self._settings,
        }
        if self._peers:
            config |= {"initLimit": 20, "syncLimit": 6}
        else:
            config |= {"clientPort": self.port, "clientPortAddress": "127.0.0.1"}
        lines = [f"{key}={value}" for key, value in config.items()]
        lines += [f"server.{number}={peer}" for number, peer in enumerate(self._peers, 1)]
        (directory / "zoo.cfg").write_text("\n".join(lines) + "\n")
        (directory / "data").mkdir(exist_ok=True)
        (directory / "data/myid").write_text(f"{self.number}\n")
        classes = (
            "-cp",
            f"{jars('zookeeper')}/*",
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
        )
        with (directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["java", *SERVER_OPTIONS, *self._options, *classes, str(directory / "zoo.cfg")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C must reach only the tests, which then end the server.
                start_new_session=True,
            )
        self._watch(self._process.pid)

    def wait_ready(self, deadline: float) -> None:
        """Wait until the server answers clients; otherwise kill it and raise `ZooKeeperError` with
        the end of its log."""
        if (
            is_in_time(lambda: not self.running or self.mode() is not None, deadline_s=deadline)
            and self.running
        ):
            return
        tail = "\n".join(
            (self._directory() / "server.log").read_text(errors="replace").splitlines()[-40:]
        )
        self.kill()
        raise ZooKeeperError(
            f"ZooKeeper server {self.number} did not start; the end of its log:\n{tail}"
        )

    def mode(self) -> str | None:
        """`standalone`, `leader` or `follower`; None while it does not answer."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as asking:
                asking.sendall(b"srvr")
                answer = b"".join(iter(lambda: asking.recv(4096), b"")).decode()
        except OSError:
            return None
        found = re.search(r"^Mode: (\w+)$", answer, re.MULTILINE)
        return found[1] if found else None

    def kill(self) -> None:
        """Kill the process; the data is kept."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None
            self.frozen = False
            self._watch(None)

    def advance(self) -> None:
        """Make many transactions.

        A server with older data refuses sessions until its own have come as far: the first node
        that registers there must not bring it so far that it ends the sessions of the others.
        """
        client = KazooClient(hosts=self.address)
        client.start()
        client.ensure_path("/advanced")
        for result in [client.set_async("/advanced", b"") for _ in range(TRANSACTIONS)]:
            result.get(START_TIMEOUT_S)
        client.stop()
        client.close()

    def wipe(self) -> None:
        """Remove the data of a killed server."""
        assert not self.running
        shutil.rmtree(self._directory() / "data")

    def save(self) -> None:
        """Keep a copy of the data of a killed server, for `restore`."""
        assert not self.running
        shutil.copytree(self._directory() / "data", self._directory() / "saved")

    def restore(self) -> None:
        """Replace the data of a killed server by the copy."""
        self.wipe()
        shutil.copytree(self._directory() / "saved", self._directory() / "data")

    def freeze(self) -> None:
        """Stop the process with SIGSTOP; its connections stay open."""
        assert self._process is not None
        freeze(self._process.pid)
        self.frozen = True

    def thaw(self) -> None:
        """Continue a frozen server."""
        if self.frozen and self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self.frozen = False

    def close(self) -> None:
        """Kill the server and remove its data and its log."""
        self.kill()
        if self._watchdog is not None:
            self._watchdog.close()
        self._watchdog = None

    @property
    def running(self) -> bool:
        """True if the process exists, frozen or not."""
        return self._process is not None and self._process.poll() is None

    def _directory(self) -> Path:
        if self._watchdog is None:
            self._watchdog = Watchdog("chronos-zookeeper-")
        return self._watchdog.directory

    def _watch(self, pid: int | None) -> None:
        assert self._watchdog is not None
        self._watchdog.watch(pid)


class Ensemble(Startable):
    """A single server, or several with a quorum; for a `with` statement, or `start()` and
    `close()`."""

    def __init__(self, count: int = 1) -> None:
        ports = [(free_port(), free_port(), free_port()) for _ in range(count)]
        peers = [
            f"127.0.0.1:{quorum}:{election};127.0.0.1:{client}"
            for quorum, election, client in ports
        ]
        self.servers = [
            Server(number, peers if count > 1 else (), port=client)
            for number, (_, _, client) in enumerate(ports, 1)
        ]
        self.hosts = ",".join(server.address for server in self.servers)

    def __getitem__(self, index: int) -> Server:
        return self.servers[index]

    def leader(self) -> Server:
        """The leader of the quorum."""
        return next(server for server in self.servers if server.mode() in ("leader", "standalone"))

    def start(self) -> None:
        """Start the servers that are not running, and wait until all answer."""
        deadline = time.monotonic() + START_TIMEOUT_S
        down = [server for server in self.servers if not server.running]
        for server in down:
            server.launch()
        for server in down:
            server.wait_ready(deadline)

    def close(self) -> None:
        """Kill the servers and remove their data and logs."""
        for server in self.servers:
            server.close()


# --------------------------------------------------------------------- A node in a separate process


class Process:
    """`main` below in a separate process that can be killed and frozen; it prints one event per
    line."""

    def __init__(
        self, hosts: str, cluster: str, node: str, *, session_s: float = SESSION_S
    ) -> None:
        arguments = [hosts, cluster, node, str(session_s)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.zookeeper", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def expect(self, kind: str) -> dict[str, Any]:
        """The next event of this kind; other events before it are skipped."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event: dict[str, Any] = json.loads(line)
            if event["event"] == kind:
                return event
        raise AssertionError(f"the process exited without the event {kind}")

    def signal(self, number: signal.Signals) -> None:
        """SIGCONT, SIGKILL."""
        self._process.send_signal(number)

    def freeze(self) -> None:
        """SIGSTOP."""
        freeze(self._process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait(STOP_TIMEOUT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


def main(hosts: str, cluster: str, node: str, session_s: str) -> None:
    """Join, and control while possible, until killed; every plan differs from the one before, so
    each is published."""
    from chronos.adapters.zookeeper.coordinator import ZooKeeperCoordinator
    from chronos.adapters.zookeeper.servers import ZooKeeperServers
    from chronos.core.cluster.roles import ClusterState, Roles
    from chronos.errors import CoordinatorUnavailable
    from chronos.logs import set_up
    from tests.harness.plans import plan_for

    set_up("error", "console")  # On stderr, as the service does.

    def tell(event: str, **more: object) -> None:
        print(json.dumps({"event": event, "at": time.time(), **more}), flush=True)

    plan = plan_for(2)

    def always_different(view: ClusterState) -> Roles:
        planned = plan(view)
        return Roles(
            controller=planned.controller,
            controller_epoch=planned.controller_epoch,
            shards=planned.shards,
            away={"at": view.now_ms},
        )

    instance = f"i-{node}"
    coordinator = ZooKeeperCoordinator(
        ZooKeeperServers(hosts=hosts, session_timeout_s=float(session_s)),
        cluster=cluster,
        node=node,
    )
    address = f"http://127.0.0.1:{sum(node.encode())}"
    replicas = {shard: ReplicaReport(applied=1) for shard in range(2)}
    member = Member(
        node=node, instance=instance, address=address, version="1", started_ms=0, replicas=replicas
    )
    while True:
        try:
            if coordinator.look().roles is None and not coordinator.look().confirmed:
                coordinator.join(member)
                tell("joined")
            if coordinator.control(always_different):
                tell("controls")
        except CoordinatorUnavailable as error:
            tell("unavailable", why=str(error))
        coordinator.wait(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
