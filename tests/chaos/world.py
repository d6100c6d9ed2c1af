"""The system under test of a drill: Kafka, ZooKeeper, three nodes, and the network between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

from tests.chaos.drill import WARM_S
from tests.chaos.fleet import SESSION_S, Fleet
from tests.harness.broker import Broker, Cluster
from tests.harness.ports import free_port
from tests.harness.proxy import Link, Network
from tests.harness.zookeeper import Ensemble

BROKER_SESSION = {"broker.session.timeout.ms": 3_000, "broker.heartbeat.interval.ms": 500}
"""The time until other brokers take over the partitions of one that died."""

NODES = ("n1", "n2", "n3")


class Scene(Struct, frozen=True, kw_only=True):
    """The servers and links of a cluster."""

    name: str
    brokers: int = 1
    zookeepers: int = 1
    linked: bool = False
    """True if every node reaches Kafka and ZooKeeper through separate links that can be cut."""
    rate_max: int = 5_000
    """Messages per second; lower where more servers share the machine."""
    warm_s: float = WARM_S
    """Seconds of load before the first fault."""
    start_s: int = 0
    """Estimated seconds to start it, and to read the rest of the load at the end."""
    session_s: int = SESSION_S
    """The session timeout of the nodes."""
    reference: bool = False
    """True if a bare transactional producer is measured besides."""


PLAIN = Scene(name="plain", start_s=40)
LINKED = Scene(name="linked", linked=True, start_s=40)
QUORUMS = Scene(name="quorums", brokers=3, zookeepers=3, rate_max=2_000, warm_s=30, start_s=60)
STALLED = Scene(name="stalled", rate_max=50, start_s=40, reference=True)
"""For a broker that freezes: a higher rate would measure how soon what waited is delivered. A
broker that wakes may hold itself for dead first, and serves nobody meanwhile: the reference shows
it."""
EVERYTHING = Scene(name="everything", brokers=3, zookeepers=3, linked=True, session_s=8)
"""For the test, in which one round of each fault shares one cluster. It runs beside other tests: a
session must outlive a server or a node that waits some seconds for a processor, because the test
requires that none ends."""


@dataclass
class Lines:
    """The links of one node."""

    kafka: list[Link] = field(default_factory=list)
    zookeeper: list[Link] = field(default_factory=list)

    def settings(self) -> dict[str, object]:
        """The settings that make the node use the links."""
        found: dict[str, object] = {
            "log.kafka.bootstrap_servers": ",".join(link.address for link in self.kafka)
        }
        if self.zookeeper:
            found["coordinator.zookeeper.hosts"] = ",".join(link.address for link in self.zookeeper)
        return found


@dataclass
class World:
    """A running scene."""

    fleet: Fleet
    kafka: Broker | Cluster
    zookeeper: Ensemble | None
    """None: the coordinator is another."""
    lines: dict[str, Lines] = field(default_factory=dict)
    """By node; empty in a scene without links."""

    def wait_recovered(self) -> None:
        """Wait until every node is a ready member with a confirmed session, and every shard has a
        master."""
        self.fleet.wait_placed()
        self.fleet.wait_led()


@contextmanager
def bring_up(
    directory: Path,
    scene: Scene,
    settings: dict[str, object] | None = None,
    *,
    coordinator: str = "zookeeper",
) -> Iterator[World]:
    """Start Kafka, ZooKeeper and the nodes, and stop them with the block. `settings` apply to every
    node.

    `coordinator`: `zookeeper`; with `kafka` and `raft` there is no ZooKeeper.
    """
    zookeeper = Ensemble(scene.zookeepers) if coordinator == "zookeeper" else None
    doors: dict[int, dict[str, tuple[int, int]]] = {
        number: {} for number in range(1, scene.brokers + 1)
    }
    lines: dict[str, Lines] = {}
    with ExitStack() as stack:
        if scene.linked:
            network = stack.enter_context(Network())
            for name in NODES:
                servers = [] if zookeeper is None else zookeeper.servers
                lines[name] = Lines(zookeeper=[network.link(server.port) for server in servers])
                for number in doors:
                    link = network.link(port := free_port())
                    doors[number][name.upper()] = (port, link.port)
                    lines[name].kafka.append(link)
        kafka: Broker | Cluster
        if scene.brokers == 1:
            kafka = Broker(doors=doors[1])
        else:
            kafka = Cluster(scene.brokers, BROKER_SESSION, doors=doors)
        stack.enter_context(kafka)
        if zookeeper is not None:
            stack.enter_context(zookeeper)
        fleet = Fleet(
            directory,
            bootstrap=kafka.bootstrap,
            zookeeper=None if zookeeper is None else zookeeper.hosts,
            raft=coordinator == "raft",
            count=len(NODES),
            session_s=scene.session_s,
            settings=settings,
            node_settings=lambda name: lines[name].settings() if lines else {},
        )
        stack.enter_context(fleet).start()
        yield World(fleet=fleet, kafka=kafka, zookeeper=zookeeper, lines=lines)
