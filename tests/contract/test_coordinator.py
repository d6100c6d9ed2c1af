"""The contract of every coordinator: the adapters on a real ZooKeeper, a real Kafka and three
voters, and that of the simulator.

Each node reaches the servers over a link of its own that can be cut. Simulated time passes only
inside `wait`, so the same test runs in real time on the adapters and in simulated time in the
simulator."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec
import pytest
from kazoo.client import KazooClient
from msgspec.structs import replace

from chronos.adapters.kafka.cluster.coordinator import KafkaCoordinator
from chronos.adapters.kafka.cluster.reader import TopicEntry
from chronos.adapters.kafka.cluster.topic import ClusterTopic
from chronos.adapters.kafka.connection import Connection
from chronos.adapters.kafka.writer import KafkaWriter, Throttling
from chronos.adapters.raft.coordinator import RaftCoordinator, VoterClients
from chronos.adapters.zookeeper.coordinator import ZooKeeperCoordinator
from chronos.adapters.zookeeper.servers import ZooKeeperServers
from chronos.core.cluster.kafka.records import (
    HEARTBEATS,
    ROLES,
    LeaveRecord,
    MemberHeartbeat,
    RolesRecord,
    pack_record,
    unpack_record,
    unpack_roles,
)
from chronos.core.cluster.roles import (
    ClusterState,
    ReplicaReport,
    Request,
    Roles,
    ShardRoles,
)
from chronos.core.cluster.timing import GRACE_TIMEOUTS, Timing
from chronos.errors import CoordinatorUnavailable, NodeIdTaken
from chronos.ports import Coordinator, TopicSpec
from tests.harness.broker import FORGETFUL, Broker
from tests.harness.plans import plan_for
from tests.harness.ports import free_port
from tests.harness.proxy import Link, Network
from tests.harness.voters import HEARTBEAT_MS, SECRET, Voters
from tests.harness.zookeeper import SESSION_S, Ensemble, member
from tests.sim.coordinator import Ensemble as SimulatedEnsemble
from tests.sim.coordinator import SimCoordinator
from tests.sim.world import World

PATIENCE_S = 20.0
"""Bound of every wait; the longest takes a session's time."""

SHARDS = 2
plan = plan_for(SHARDS)

TICK_MS = 300
"""Interval between two heartbeats of a simulated coordinator."""

TIMING = Timing(heartbeat_ms=200, timeout_ms=1_000)
"""Of the coordinators on Kafka: shorter than the default, for the tests."""

PATIENT = Timing(heartbeat_ms=500, timeout_ms=3_000)
"""Of the same, where a test shows that something does not wait for the timeout."""

RAFT_TIMEOUT_MS = 3_000
"""Of the coordinators on voters: a busy machine does not stand still for so long."""

RAFT_PATIENT_MS = 8_000
"""Of the same, where a test shows that something does not wait for the timeout, or happens before
it."""

RAFT_JOIN_S = 8.0
"""How long they wait for a leader."""

DOORS = 4
"""Links to the broker: most coordinators of one test."""


class Cluster(Protocol):
    """Coordinators of one cluster, and the faults around them."""

    refused_s: float
    """Least time until a second data directory with the same id is refused."""

    has_sessions: bool
    """A node that was away for long has to join again."""

    at_once_s: float
    """Longest time for what does not wait until a node is lost, after `be_patient`."""

    def be_patient(self) -> None:
        """Before the first coordinator is made: nodes are lost so late that this can be told from
        what does not wait for it."""

    def coordinator(self, node: str) -> Coordinator:
        """Make a coordinator that has not joined."""

    def now_s(self) -> float:
        """Return the time by which sessions expire."""

    def soon(self, call: Callable[[], None]) -> None:
        """Call it a moment later, while the test waits."""

    def cut(self, node: str) -> None:
        """Cut the links between the node's coordinators and the servers."""

    def mend(self, node: str) -> None:
        """Mend the links of the node."""

    def expel(self, node: str) -> None:
        """Remove the node's place at the servers; the node is not notified."""

    def publish(self, roles: Roles) -> None:
        """Publish roles as another controller would."""


class RealCluster:
    """Coordinators that reach real servers over links, in real time."""

    def __init__(self) -> None:
        self._links: dict[str, list[Link]] = {}
        self._timers: list[threading.Timer] = []
        self._coordinators: list[Coordinator] = []

    def _made(self, node: str, coordinator: Coordinator, links: list[Link]) -> Coordinator:
        self._links.setdefault(node, []).extend(links)
        self._coordinators.append(coordinator)
        return coordinator

    def now_s(self) -> float:
        return time.monotonic()

    def soon(self, call: Callable[[], None]) -> None:
        self._timers.append(threading.Timer(0.1, call))
        self._timers[-1].start()

    def cut(self, node: str) -> None:
        for link in self._links[node]:
            link.cut(silent=False)

    def mend(self, node: str) -> None:
        for link in self._links[node]:
            link.mend()

    def close(self) -> None:
        for timer in self._timers:
            timer.join()
        for node in self._links:
            self.mend(node)
        for coordinator in self._coordinators:
            coordinator.leave()


class ZooKeeperCluster(RealCluster):
    """Coordinators on a real ZooKeeper."""

    refused_s = SESSION_S
    has_sessions = True
    at_once_s = SESSION_S / 2

    def __init__(self, zookeeper: Ensemble, network: Network, raw: KazooClient) -> None:
        self._zookeeper = zookeeper
        self._network = network
        self._raw = raw
        self._name = f"c-{uuid.uuid4().hex[:8]}"
        super().__init__()

    def coordinator(self, node: str) -> Coordinator:
        link = self._network.link(self._zookeeper[0].port)
        made = ZooKeeperCoordinator(
            ZooKeeperServers(hosts=link.address, session_timeout_s=SESSION_S),
            cluster=self._name,
            node=node,
        )
        return self._made(node, made, [link])

    def be_patient(self) -> None:
        pass

    def expel(self, node: str) -> None:
        self._raw.delete(f"/chronos/{self._name}/members/{node}")

    def publish(self, roles: Roles) -> None:
        self._raw.set(f"/chronos/{self._name}/roles", msgspec.json.encode(roles))


class KafkaCluster(RealCluster):
    """Coordinators on a real Kafka."""

    refused_s = (GRACE_TIMEOUTS + 1) * TIMING.timeout_ms / 1_000
    has_sessions = False
    at_once_s = 2.5

    def __init__(self, broker: Broker, doors: list[Link]) -> None:
        self._bootstrap = broker.bootstrap
        self._doors = iter(doors)
        self._spec = TopicSpec(
            name=f"cluster.{uuid.uuid4().hex[:8]}", partitions=2, settings={"retention.ms": "-1"}
        )
        self._timing = TIMING
        super().__init__()

    def coordinator(self, node: str) -> Coordinator:
        link = next(self._doors)
        return self._made(node, self._connected(node, link.address), [link])

    def direct(self, node: str) -> Coordinator:
        """A coordinator that needs no link to the broker."""
        return self._made(node, self._connected(node, self._bootstrap), [])

    def _connected(self, node: str, bootstrap: str) -> Coordinator:
        return KafkaCoordinator(
            Connection(bootstrap, {}),
            self._spec,
            create_topic=True,
            cluster="test",
            node=node,
            timing=self._timing,
        )

    def be_patient(self) -> None:
        self._timing = PATIENT

    def expel(self, node: str) -> None:
        """As another client of the topic could: end its transactions, and write a leave record in
        its name."""
        incarnations = [
            record
            for entry in self._entries()
            if entry.partition == HEARTBEATS
            and isinstance(record := unpack_record(entry.value), MemberHeartbeat)
            and record.member.node == node
        ]
        incarnation = incarnations[-1]
        self._write(
            HEARTBEATS,
            pack_record(
                LeaveRecord(
                    node=node,
                    incarnation=incarnation.incarnation,
                    generation=incarnation.generation,
                )
            ),
        )

    def publish(self, roles: Roles) -> None:
        last = [unpack_roles(entry.value) for entry in self._entries() if entry.partition == ROLES][
            -1
        ]
        record = RolesRecord(
            incarnation="other", version=last.version + 1, answered=last.answered, roles=roles
        )
        self._write(ROLES, pack_record(record))

    def _topic(self) -> ClusterTopic:
        topic = ClusterTopic(Connection(self._bootstrap, {}), self._spec, create=False)
        topic.open()
        return topic

    def _entries(self) -> list[TopicEntry]:
        topic = self._topic()
        reader = topic.reader()
        try:
            return reader.read_all(PATIENCE_S)
        finally:
            reader.close()
            topic.close()

    def _write(self, partition: int, value: bytes) -> None:
        """Write a record as the controller, which fences the one that there is."""
        topic = self._topic()
        writer = KafkaWriter(
            topic.connection,
            transactional_id=f"chronos-{topic.id}-controller",
            progress_topic=topic.name,
            shard=partition,
            throttling=Throttling(PATIENCE_S),
            small_batch_topics={},
        )
        writer.send([], value)
        writer.commit(lambda timestamp_ms, others: None)
        writer.close()
        topic.close()


class RaftCluster(RealCluster):
    """Coordinators whose voters are three servers of their own."""

    refused_s = RAFT_TIMEOUT_MS / 1_000
    has_sessions = True
    at_once_s = 5.0

    def __init__(self, network: Network, directory: Path) -> None:
        self._network = network
        self._directory = directory
        self._timeout_ms = RAFT_TIMEOUT_MS
        self._voters: Voters | None = None
        super().__init__()

    @property
    def voters(self) -> Voters:
        """The voters; they start with the first coordinator."""
        if self._voters is None:
            self._voters = Voters(self._directory, timeout_ms=self._timeout_ms)
        return self._voters

    def coordinator(self, node: str) -> Coordinator:
        links = {name: self._network.link(port) for name, port in self.voters.ports.items()}
        peers = {name: f"http://{link.address}" for name, link in links.items()}
        made = RaftCoordinator(
            VoterClients(peers=peers, secret=SECRET),
            cluster="test",
            node=node,
            timing=Timing(heartbeat_ms=HEARTBEAT_MS, timeout_ms=self._timeout_ms),
            join_s=RAFT_JOIN_S,
        )
        return self._made(node, made, list(links.values()))

    def be_patient(self) -> None:
        self._timeout_ms = RAFT_PATIENT_MS

    def expel(self, node: str) -> None:
        self.voters.expel(node)

    def publish(self, roles: Roles) -> None:
        self.voters.publish(roles)

    def close(self) -> None:
        super().close()
        if self._voters is not None:
            self._voters.close()


class SimulatedCluster:
    """Coordinators of the simulator."""

    refused_s = SESSION_S
    has_sessions = True
    at_once_s = SESSION_S / 2

    def __init__(self) -> None:
        self._world = World(0)
        self._servers = SimulatedEnsemble(
            self._world, shards=SHARDS, replication=None, session_ms=int(SESSION_S * 1_000)
        )
        self._made: dict[str, list[SimCoordinator]] = {}

    def coordinator(self, node: str) -> Coordinator:
        made = SimCoordinator(self._servers, node, lambda where: None)
        self._made.setdefault(node, []).append(made)

        def tick() -> None:
            made.tick()
            self._world.after(TICK_MS, tick)

        tick()
        return made

    def be_patient(self) -> None:
        pass

    def now_s(self) -> float:
        return self._world.now_ms / 1_000

    def soon(self, call: Callable[[], None]) -> None:
        self._world.after(100, call)

    def cut(self, node: str) -> None:
        for coordinator in self._made[node]:
            coordinator.cut_ms = self._world.now_ms + 10**9

    def mend(self, node: str) -> None:
        for coordinator in self._made[node]:
            coordinator.cut_ms = 0

    def expel(self, node: str) -> None:
        self._servers.end(self._servers.sessions()[node])

    def publish(self, roles: Roles) -> None:
        assert self._servers.publish(roles, self._servers.version)


@pytest.fixture(scope="module")
def doors() -> Iterator[tuple[Broker, list[Link]]]:
    """A broker, and links through which it can be reached."""
    with Network() as network:
        ports = [free_port() for _ in range(DOORS)]
        links = [network.link(port) for port in ports]
        named = {
            f"DOOR{at}": (port, link.port)
            for at, (port, link) in enumerate(zip(ports, links, strict=True))
        }
        with Broker(doors=named, heap_mb=256) as broker:
            yield broker, links


@pytest.fixture(
    params=[
        pytest.param("zookeeper", marks=pytest.mark.zookeeper),
        pytest.param("kafka", marks=pytest.mark.kafka),
        pytest.param("raft", marks=pytest.mark.slow),
        "simulated",
    ]
)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """A new cluster on each coordinator."""
    if request.param == "raft":
        with Network() as network:
            on_raft = RaftCluster(network, tmp_path)
            yield on_raft
            on_raft.close()
        return
    if request.param == "simulated":
        yield SimulatedCluster()
        return
    if request.param == "kafka":
        on_kafka = KafkaCluster(*request.getfixturevalue("doors"))
        yield on_kafka
        on_kafka.close()
        return
    zookeeper: Ensemble = request.getfixturevalue("zookeeper")
    raw = KazooClient(hosts=zookeeper.hosts)
    raw.start()
    with Network() as network:
        real = ZooKeeperCluster(zookeeper, network, raw)
        yield real
        real.close()
    raw.stop()
    raw.close()


def joined(cluster: Cluster, node: str, instance: str = "", place: str = "") -> Coordinator:
    """A coordinator that has joined. `place`: of the data directory."""
    coordinator = cluster.coordinator(node)
    registered = replace(member(node, instance=instance), place=place)
    # A busy server may be too late with an answer; a node tries again, too.
    until(cluster, lambda: not is_refused(lambda: coordinator.join(registered)), plan=None)
    return coordinator


def pair(cluster: Cluster) -> tuple[Coordinator, Coordinator]:
    """Nodes a and b; both have joined and see each other."""
    a = joined(cluster, "a")
    until_controls(cluster, a)
    both = a, joined(cluster, "b")
    until(cluster, lambda: all(len(each.look().members) == 2 for each in both), *both, plan=None)
    return both


def until(
    cluster: Cluster,
    condition: Callable[[], object],
    *coordinators: Coordinator,
    plan: Callable[[ClusterState], Roles] | None = plan,
) -> None:
    """Let these coordinators wait, and control unless `plan` is None, until the condition holds."""
    deadline_s = cluster.now_s() + PATIENCE_S
    while not condition():
        assert cluster.now_s() < deadline_s, "the condition did not hold in time"
        for coordinator in coordinators:
            if plan is not None:
                with suppress(CoordinatorUnavailable):
                    coordinator.control(plan)
            coordinator.wait(0.02)


class Controls(Exception):
    """A node was asked to plan."""


def until_controls(cluster: Cluster, coordinator: Coordinator) -> None:
    """Let this node wait until it is the controller; it plans nothing yet."""

    def planning(view: ClusterState) -> Roles:
        raise Controls

    deadline_s = cluster.now_s() + PATIENCE_S
    with suppress(Controls):
        while True:
            assert cluster.now_s() < deadline_s, "the node did not become controller in time"
            with suppress(CoordinatorUnavailable):
                coordinator.control(planning)
            coordinator.wait(0.02)


def masters(coordinator: Coordinator) -> set[str | None]:
    """The masters, as this node knows them."""
    roles = coordinator.look().roles
    return set() if roles is None else {given.master for given in roles.shards.values()}


def is_refused(verb: Callable[[], None]) -> bool:
    """Return whether the coordinator refuses it."""
    try:
        verb()
    except CoordinatorUnavailable:
        return True
    return False


def request(cluster: Cluster, coordinator: Coordinator, request: Request) -> None:
    """Leave a request; the servers may take a moment to answer."""
    until(
        cluster,
        lambda: not is_refused(lambda: coordinator.request(request)),
        coordinator,
        plan=None,
    )


def known_roles(coordinator: Coordinator) -> Roles:
    """Return the roles that this node knows; fail if there are none."""
    roles = coordinator.look().roles
    assert roles is not None
    return roles


class Noted:
    """The plan of the controller, which keeps every view that it was given."""

    def __init__(self) -> None:
        self.views: list[ClusterState] = []

    def __call__(self, view: ClusterState) -> Roles:
        self.views.append(view)
        return plan(view)


# ----------------------------------------------------------------------------- Membership and roles


def test_a_node_that_has_not_joined_or_has_left_knows_nothing_and_publishes_nothing(
    cluster: Cluster,
) -> None:
    """A report or a request is refused until it joins."""
    coordinator = cluster.coordinator("a")
    for _ in range(2):
        snapshot = coordinator.look()
        assert (snapshot.roles, snapshot.members, snapshot.confirmed) == (None, {}, False)
        assert not coordinator.control(plan)
        for verb in (
            lambda: coordinator.report(member("a")),
            lambda: coordinator.request(Request(kind="x", node="a")),
        ):
            with pytest.raises(CoordinatorUnavailable, match="has to join again"):
                verb()
        coordinator.join(member("a"))
        until(cluster, lambda: coordinator.look().confirmed, coordinator, plan=None)
        coordinator.leave()


def test_a_node_that_joined_is_a_member_at_once_and_knows_no_roles_before_the_first_are_published(
    cluster: Cluster,
) -> None:
    """Its own snapshot holds all members; `roles` is None, and confirmed."""
    joined(cluster, "a")
    b = joined(cluster, "b")
    until(
        cluster,
        lambda: b.look().confirmed and b.look().members == {"a": member("a"), "b": member("b")},
        b,
        plan=None,
    )
    assert b.look().roles is None


def test_the_first_node_to_join_is_the_only_controller_and_all_nodes_learn_its_roles(
    cluster: Cluster,
) -> None:
    """Members and roles are the same on all nodes."""
    a, b = pair(cluster)
    until(cluster, lambda: a.control(plan), a, plan=None)
    assert not b.control(plan)
    until(cluster, lambda: masters(b) == {"a", "b"}, a, b)
    until(cluster, lambda: a.look() == b.look(), a, b)
    assert a.look().members == {"a": member("a"), "b": member("b")}
    roles = known_roles(a)
    assert roles.controller == "a"
    assert roles.controller_epoch >= 1


def test_the_controller_knows_what_it_published(cluster: Cluster) -> None:
    """It knows its roles before any notification."""
    a = joined(cluster, "a")
    until(cluster, lambda: a.control(plan) and masters(a) == {"a"}, a, plan=None)


@pytest.mark.kafka
def test_a_controller_on_kafka_whose_transactional_id_was_forgotten_begins_a_new_epoch() -> None:
    """It fences, and reads the roles again, which another one may have published meanwhile."""
    with Broker(FORGETFUL) as broker:
        cluster = KafkaCluster(broker, [])
        cluster.be_patient()
        a = cluster.direct("a")
        a.join(member("a"))
        until(cluster, lambda: masters(a) == {"a"}, a)
        before = known_roles(a)
        broker.wait_forgotten()
        until(
            cluster,
            lambda: len(known_roles(a).shards) == SHARDS + 1,
            a,
            plan=plan_for(SHARDS + 1),
        )
        assert known_roles(a).controller_epoch > before.controller_epoch
        cluster.close()


def test_a_report_wakes_a_node_that_waits_and_is_seen_by_it(cluster: Cluster) -> None:
    """Without a question to the servers from outside."""
    a, b = pair(cluster)
    until(cluster, lambda: masters(a) == {"a", "b"}, a, b)
    cluster.soon(lambda: a.report(member("a", leaving=True)))
    deadline_s = cluster.now_s() + PATIENCE_S
    while not b.look().members["a"].leaving:
        remaining_s = deadline_s - cluster.now_s()
        assert remaining_s > 0
        assert b.wait(remaining_s), "the wait ended with its time, not with the report"
    until(cluster, lambda: masters(b) == {"b"}, a, b)


def test_a_wait_without_a_change_ends_with_its_time(cluster: Cluster) -> None:
    """The wait returns False; earlier changes are reported by earlier waits."""
    a = joined(cluster, "a")
    until(cluster, lambda: masters(a) == {"a"}, a)
    for _ in range(100):
        started_s = cluster.now_s()
        if not a.wait(0.5):
            break
    else:
        pytest.fail("every wait ended before its time")
    assert cluster.now_s() - started_s >= 0.49


def test_a_look_asks_no_server(cluster: Cluster) -> None:
    """It returns what was read last, also while no server can be reached."""
    a = joined(cluster, "a")
    until(cluster, lambda: masters(a) == {"a"}, a)
    before = a.look()
    cluster.cut("a")
    after = a.look()
    assert (after.roles, after.members) == (before.roles, before.members)
    cluster.mend("a")


# ----------------------------------------------------------------------------------------- Requests


def test_a_request_left_with_any_node_reaches_the_controller(cluster: Cluster) -> None:
    """The controller answers it with its next plan."""
    a, b = pair(cluster)
    until(cluster, lambda: masters(b) == {"a", "b"}, a, b)
    request(cluster, b, Request(kind="drain", node="a"))
    until(cluster, lambda: masters(b) == {"b"}, a, b)
    assert known_roles(b).drained == ("a",)


def test_what_is_set_at_run_time_reaches_every_member_and_survives_the_controller(
    cluster: Cluster,
) -> None:
    """Rate limits, and the configuration of the registries. Also the lengths of the lanes that the
    members report."""
    a, b = pair(cluster)
    until(cluster, lambda: masters(b) == {"a", "b"}, a, b)
    request(cluster, b, Request(kind="limit", node="", pattern="orders.*", rate="5/s burst 9"))
    until(
        cluster,
        lambda: known_roles(a).limited == known_roles(b).limited == {"orders.*": "5/s burst 9"},
        a,
        b,
    )
    request(
        cluster,
        b,
        Request(kind="configure", node="", namespace="shop", key="currency", value="EUR"),
    )
    until(
        cluster,
        lambda: (
            known_roles(a).configured == known_roles(b).configured == {"shop": {"currency": "EUR"}}
        ),
        a,
        b,
    )
    waits = replace(member("b"), replicas={0: ReplicaReport(applied=1, waiting={"orders.eu": 7})})
    until(cluster, lambda: not is_refused(lambda: b.report(waits)), a, b)
    until(cluster, lambda: a.look().members["b"].replicas[0].waiting == {"orders.eu": 7}, a, b)
    a.leave()
    until(cluster, lambda: masters(b) == {"b"}, b)
    assert known_roles(b).limited == {"orders.*": "5/s burst 9"}
    assert known_roles(b).configured == {"shop": {"currency": "EUR"}}
    request(cluster, b, Request(kind="configure", node="", namespace="shop", key="currency"))
    until(cluster, lambda: known_roles(b).configured == {}, b)
    request(cluster, b, Request(kind="limit", node="", pattern="orders.*"))
    until(cluster, lambda: known_roles(b).limited == {}, b)


def test_requests_are_given_to_one_plan_in_their_order_and_are_then_gone(cluster: Cluster) -> None:
    """This includes requests that change nothing."""
    a = joined(cluster, "a")
    until(cluster, lambda: masters(a) == {"a"}, a)
    requests = (
        Request(kind="transfer", node="a", shard=0),
        Request(kind="transfer", node="a", shard=1),
    )
    for request in requests:
        a.request(request)
    noted = Noted()
    deadline_s = cluster.now_s() + PATIENCE_S
    while not any(view.requests for view in noted.views) or noted.views[-1].requests:
        assert cluster.now_s() < deadline_s
        a.control(noted)
        a.wait(0.02)
    assert [request for view in noted.views for request in view.requests] == list(requests)


def test_a_request_is_kept_when_the_roles_of_its_plan_are_not_published(cluster: Cluster) -> None:
    """Somebody published meanwhile, so the next plan is given the request again."""
    a = joined(cluster, "a")
    until(cluster, lambda: masters(a) == {"a"}, a)
    request = Request(kind="drain", node="a")
    a.request(request)
    noted = Noted()

    def overtaken(view: ClusterState) -> Roles:
        if view.requests:
            cluster.publish(replace(view.roles, controller="other", controller_epoch=7))
        return noted(view)

    deadline_s = cluster.now_s() + PATIENCE_S
    while not any(view.requests for view in noted.views):
        assert cluster.now_s() < deadline_s
        a.control(overtaken)
        a.wait(0.02)
    until(cluster, lambda: known_roles(a).drained == ("a",), a)


# ----------------------------------------------------------------------------------- One controller


def test_a_node_that_leaves_gives_up_its_place_and_the_control_at_once(cluster: Cluster) -> None:
    """Its shards and the control are with the other node long before a session would have
    expired."""
    cluster.be_patient()
    a, b = pair(cluster)
    until(cluster, lambda: masters(b) == {"a", "b"}, a, b)
    left_s = cluster.now_s()
    a.leave()
    until(cluster, lambda: masters(b) == {"b"}, b)
    assert cluster.now_s() - left_s < cluster.at_once_s
    roles = known_roles(b)
    assert roles.controller == "b"
    assert roles.controller_epoch >= 2
    assert set(b.look().members) == {"b"}


def test_roles_are_published_only_over_those_that_the_plan_was_made_from(cluster: Cluster) -> None:
    """Somebody publishes while the controller plans: its plan is thrown away, and made again from
    the newer roles."""
    a = joined(cluster, "a")
    until_controls(cluster, a)

    def overtaken(view: ClusterState) -> Roles:
        shards = {0: ShardRoles(master="other", epoch=3)}
        cluster.publish(
            Roles(controller="other", controller_epoch=7, shards=shards, drained=("c",))
        )
        return plan(view)

    a.control(overtaken)
    until(cluster, lambda: a.look().roles is not None, a, plan=None)
    assert known_roles(a).controller == "other"
    until(cluster, lambda: masters(a) == {"a"}, a)
    assert known_roles(a).controller_epoch >= 8


def test_a_node_that_lost_its_place_while_it_planned_publishes_nothing(cluster: Cluster) -> None:
    """It has to join again, and controls again after that."""
    a, b = pair(cluster)

    def deposed(view: ClusterState) -> Roles:
        cluster.expel("a")
        return plan(view)

    a.control(deposed)
    until(cluster, lambda: "a" not in b.look().members, b, plan=None)
    assert b.look().roles is None
    assert not a.control(plan)
    until(cluster, lambda: is_refused(lambda: a.report(member("a"))), a, plan=None)
    assert a.look().roles is None
    b.leave()
    a.join(member("a"))
    until(cluster, lambda: masters(a) == {"a"}, a)


# ----------------------------------------------------------------------------------------- Node ids


@pytest.mark.parametrize(("instance", "place"), [("another", ""), ("", "a copy")])
def test_a_second_data_directory_with_the_same_id_is_refused_after_a_sessions_time(
    cluster: Cluster, instance: str, place: str
) -> None:
    """The error names the node that has the id, which goes on undisturbed. A copy of its directory
    is a second one too."""
    a = joined(cluster, "a", place="the first")
    started_s = cluster.now_s()
    with pytest.raises(NodeIdTaken, match=r"node\.id a is taken: the node at http://a:7700"):
        joined(cluster, "a", instance, place)
    assert cluster.refused_s <= cluster.now_s() - started_s < cluster.refused_s + PATIENCE_S
    until(cluster, lambda: a.look().confirmed, a, plan=None)
    until_controls(cluster, a)


def test_another_data_directory_gets_the_id_once_the_session_of_the_first_is_over(
    cluster: Cluster,
) -> None:
    """As when a machine was replaced."""
    joined(cluster, "a")
    cluster.cut("a")
    another = joined(cluster, "a", instance="another")
    until(cluster, lambda: another.look().confirmed, another, plan=None)


def test_a_restarted_node_takes_its_own_place_at_once_and_keeps_its_shards(
    cluster: Cluster,
) -> None:
    """Its former session still lives, and no node waits for its end."""
    cluster.be_patient()
    a, b = pair(cluster)
    until(cluster, lambda: masters(b) == {"a", "b"}, a, b)
    before = known_roles(b)
    cluster.cut("a")
    started_s = cluster.now_s()
    again = joined(cluster, "a")
    assert cluster.now_s() - started_s < cluster.at_once_s
    until(cluster, lambda: not is_refused(lambda: again.report(member("a", applied=7))), again, b)
    until(cluster, lambda: b.look().members["a"].replicas[0].applied == 7, again, b)
    after = known_roles(b)
    assert {shard: given.master for shard, given in after.shards.items()} == {
        shard: given.master for shard, given in before.shards.items()
    }
    assert not any(change.why == "lost its session" for change in after.history)


# ------------------------------------------------------------------------------ Suspended, and lost


def test_while_no_server_answers_roles_are_kept_and_nothing_is_confirmed(cluster: Cluster) -> None:
    """Masters continue, and the controller decides nothing; if the link is restored in time, the
    session continues."""
    cluster.be_patient()
    a = joined(cluster, "a")
    until(cluster, lambda: masters(a) == {"a"}, a)
    cluster.cut("a")
    until(cluster, lambda: not a.look().confirmed, a)
    assert masters(a) == {"a"}
    assert not a.control(plan)
    for verb in (lambda: a.report(member("a")), lambda: a.request(Request(kind="drain", node="a"))):
        with pytest.raises(CoordinatorUnavailable, match="answers"):
            verb()
    cluster.mend("a")
    until(cluster, lambda: a.look().confirmed, a)
    assert masters(a) == {"a"}
    until_controls(cluster, a)
    until(cluster, lambda: not is_refused(lambda: a.report(member("a", applied=5))), a)


def test_a_node_that_was_away_for_long_learns_it_when_a_server_answers_and_has_no_role(
    cluster: Cluster,
) -> None:
    """Meanwhile control and shards are with the other node. With sessions it has to join again, as
    the youngest."""
    a, b = pair(cluster)
    until(cluster, lambda: masters(b) == {"a", "b"}, a, b)
    cluster.cut("a")
    until(cluster, lambda: masters(b) == {"b"}, b)
    roles = known_roles(b)
    assert roles.controller == "b"
    assert roles.controller_epoch >= 2
    assert masters(a) == {"a", "b"}
    cluster.mend("a")
    if cluster.has_sessions:
        until(cluster, lambda: a.look().roles is None, a)
        assert (a.look().members, a.look().confirmed) == ({}, False)
        with pytest.raises(CoordinatorUnavailable, match="has to join again"):
            a.report(member("a"))
        a.join(member("a"))
    until(
        cluster,
        lambda: a.look().confirmed and masters(a) == {"b"} and set(b.look().members) == {"a", "b"},
        a,
        b,
    )
    assert not a.control(plan)
    until_controls(cluster, b)


def test_a_node_that_joins_while_no_server_answers_gets_an_error_and_has_no_role(
    cluster: Cluster,
) -> None:
    """Its earlier knowledge is discarded: a new session begins without it."""
    a = joined(cluster, "a")
    until(cluster, lambda: masters(a) == {"a"}, a)
    cluster.cut("a")
    with pytest.raises(CoordinatorUnavailable, match="answers"):
        a.join(member("a"))
    assert a.look().roles is None
    cluster.mend("a")
    a.join(member("a"))
    until(cluster, lambda: a.look().confirmed, a, plan=None)


def test_the_controller_counts_a_member_that_joined_again_as_new(cluster: Cluster) -> None:
    """So a node that restarts repeatedly does not get more shards at once."""
    a, b = pair(cluster)
    noted = Noted()
    until(cluster, lambda: a.control(noted), a, plan=None)
    since_ms = noted.views[-1].since_ms["b"]
    until(cluster, lambda: a.control(noted) and noted.views[-1].now_ms > since_ms + 50, a)
    assert noted.views[-1].since_ms["b"] == since_ms
    b.leave()
    b.join(member("b"))
    until(cluster, lambda: a.control(noted) and noted.views[-1].since_ms.get("b", 0) > since_ms, a)
