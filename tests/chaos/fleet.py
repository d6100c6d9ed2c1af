"""Several nodes of one cluster, each in a separate process, and the roles they report."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.chaos.stepped import ENVIRONMENT
from tests.harness.ports import free_port
from tests.harness.service import Service, ServiceError

SESSION_S = 4
"""The session timeout (s) unless a test names another one."""
SETTLED_S = 60.0
DIGESTS_S = 120.0


class Node(Service):
    """A node whose wall clock can be set, and whose commits can hang."""

    def __init__(
        self,
        data_dir: Path,
        *,
        bootstrap: str,
        settings: dict[str, object],
        constants: dict[str, object] | None = None,
    ) -> None:
        self._clock_path = data_dir.with_name(data_dir.name + ".clock")
        super().__init__(
            data_dir,
            bootstrap=bootstrap,
            settings=settings,
            environ={ENVIRONMENT: str(self._clock_path)},
            constants=constants,
            module="tests.chaos.stepped",
        )

    def set_clock(self, wrong_ms: int) -> None:
        """Step its wall clock so that it is wrong by `wrong_ms`."""
        fresh = self._clock_path.with_suffix(".new")
        fresh.write_text(str(wrong_ms))
        fresh.replace(self._clock_path)
        os.kill(self.pid, signal.SIGUSR1)

    def hang(self) -> None:
        """Stop the threads of its shards where they commit; everything else in the process runs
        on."""
        self._hang_path.touch()

    def unhang(self) -> None:
        """Let them go on."""
        self._hang_path.unlink(missing_ok=True)

    @property
    def _hang_path(self) -> Path:
        return Path(f"{self._clock_path}.hang")


def coordinator_settings(
    zookeeper: str | None, session_s: int, voters: list[str]
) -> dict[str, object]:
    """Return the settings of a node's coordinator. `voters`: of a coordinator in the nodes
    themselves; empty: it is another."""
    if voters:
        return {
            "coordinator.kind": "raft",
            "coordinator.secret": "a secret of the tests, long enough",
            "coordinator.raft.peers": f"[{', '.join(voters)}]",
            "coordinator.raft.host": "127.0.0.1",
        }
    if zookeeper is None:
        return {"coordinator.kind": "kafka"}
    return {
        "coordinator.kind": "zookeeper",
        "coordinator.zookeeper.hosts": zookeeper,
        "coordinator.zookeeper.session_timeout": f"{session_s}s",
    }


class Fleet:
    """`count` nodes on the same topics. Their data stays in `directory` across restarts.

    `zookeeper`: its servers; None: the coordinator is Kafka. `raft`: the nodes themselves vote.
    """

    def __init__(
        self,
        directory: Path,
        *,
        bootstrap: str,
        zookeeper: str | None,
        raft: bool = False,
        count: int = 3,
        shards: int = 4,
        session_s: int = SESSION_S,
        settings: dict[str, object] | None = None,
        constants: dict[str, object] | None = None,
        node_settings: Callable[[str], dict[str, object]] = lambda _: {},
    ) -> None:
        self.shards = shards
        self.session_s = session_s
        names = [f"n{at}" for at in range(1, count + 1)]
        voters = [f"{name}=127.0.0.1:{free_port()}" for name in names] if raft else []
        self.nodes = {
            name: Node(
                directory / name,
                bootstrap=bootstrap,
                settings={
                    "node.id": name,
                    "shards": shards,
                    **coordinator_settings(zookeeper, session_s, voters),
                    **(settings or {}),
                    **node_settings(name),
                },
                constants=constants,
            )
            for name in names
        }

    def start(self) -> Self:
        """Start all nodes, and wait until each is ready and every shard has a master."""
        for node in self.nodes.values():
            node.launch()
        for node in self.nodes.values():
            node.wait_ready()
        self.wait_led()
        return self

    @property
    def running(self) -> dict[str, Node]:
        """The nodes whose process runs."""
        return {name: node for name, node in self.nodes.items() if node.running}

    def any(self) -> Node:
        """Some running node."""
        return next(iter(self.running.values()))

    def masters(self, *, asked: Service | None = None) -> dict[int, str]:
        """The master of each shard, where that node itself reports that it is master."""
        found: dict[int, str] = {}
        for shard in (asked or self.any()).shards():
            confirmed = [each["node"] for each in shard["replicas"] if each["role"] == "master"]
            if shard["master"] in confirmed:
                found[shard["shard"]] = shard["master"]
        return found

    def busiest(self) -> str:
        """The node that is master of most shards, once every shard has a master."""
        masters = list(self.wait_led().values())
        return max(set(masters), key=lambda name: (masters.count(name), name))

    def wait_led(
        self, *, without: str | None = None, timeout_s: float = SETTLED_S
    ) -> dict[int, str]:
        """Wait until every shard has a confirmed master, other than the node `without`."""
        deadline = time.monotonic() + timeout_s
        while True:
            asked = next(node for name, node in self.running.items() if name != without)
            masters = self.masters(asked=asked)
            if len(masters) == self.shards and without not in masters.values():
                return masters
            if time.monotonic() > deadline:
                raise ServiceError(
                    f"not every shard has a master within {timeout_s:g} s: "
                    f"{masters}\n{asked.tail()}"
                )
            time.sleep(0.05)

    def transfer(self, shard: int, to: str) -> None:
        """Make the node master of the shard."""
        self.any().post_until_done(f"/v1/shards/{shard}/transfer?to={to}")

    def take_overs(self) -> list[dict[str, int]]:
        """The log lines of the nodes about the shards that they became master of."""
        return [event for node in self.nodes.values() for event in node.events("master")]

    def wait_placed(self, *, timeout_s: float = SETTLED_S) -> None:
        """Wait until every node is ready, has a confirmed session, and lists every other running
        node."""
        deadline = time.monotonic() + timeout_s
        running = self.running
        for node in running.values():

            def is_placed(node: Node = node) -> bool:
                if not node.is_ready():
                    return False
                seen = node.get("/v1/nodes")
                there = {each["node"] for each in seen["nodes"]}
                return bool(
                    seen["sure"] and there >= set(running) and seen["controller"] in running
                )

            node.wait_until(
                is_placed,
                "be ready with a confirmed session",
                timeout_s=max(1.0, deadline - time.monotonic()),
                every_s=0.05,
            )

    def wait_agreed(self, *, timeout_s: float = SETTLED_S) -> None:
        """Wait until all nodes name the same controller and the same masters."""
        deadline = time.monotonic() + timeout_s
        while True:
            seen = [node.get("/v1/nodes") for node in self.running.values()]
            found = {(each["controller"], each["controller_epoch"]) for each in seen}
            masters = [self.masters(asked=node) for node in self.running.values()]
            if len(found) == 1 and all(each == masters[0] for each in masters):
                return
            if time.monotonic() > deadline:
                raise ServiceError(
                    f"the nodes do not agree after {timeout_s:g} s: {found}, {masters}"
                )
            time.sleep(0.05)

    def wait_alike(self, *, timeout_s: float = SETTLED_S) -> None:
        """Wait until all replicas of every shard have applied the same progress record."""
        deadline = time.monotonic() + timeout_s
        while True:
            applied = [
                [node.shards()[at]["applied"] for node in self.running.values()]
                for at in range(self.shards)
            ]
            if all(len(set(each)) == 1 for each in applied):
                return
            if time.monotonic() > deadline:
                raise ServiceError(
                    f"the replicas do not stand at the same record after {timeout_s:g} s: {applied}"
                )
            time.sleep(0.05)

    def digest_complaints(self, *, timeout_s: float = DIGESTS_S) -> list[str]:
        """Shards whose replicas have different digests; all messages must be settled."""
        self.wait_alike()
        found = []
        for shard in range(self.shards):
            digests: dict[int, dict[str, str]] = {}
            for name, node in self.running.items():
                answer = node.ask("GET", f"/v1/shards/{shard}/digest", timeout_s=timeout_s)[1]
                digests.setdefault(answer["applied"], {})[name] = answer["digest"]
            # A heartbeat in between moves some replicas on: those at the same record are compared.
            found += [
                f"shard {shard} at {at}: {each}"
                for at, each in digests.items()
                if len(set(each.values())) > 1
            ]
        return found

    def nodes_seen(self) -> dict[str, Any]:
        """`/v1/nodes` of some running node."""
        return dict(self.any().get("/v1/nodes"))

    def close(self) -> None:
        """Kill all nodes in any state."""
        for node in self.nodes.values():
            node.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
