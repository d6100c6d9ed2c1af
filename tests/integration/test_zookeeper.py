"""The coordinator on a real ZooKeeper: its znodes, servers and processes that fail, and access.

The contract that it shares with the simulator's coordinator is
`tests/contract/test_coordinator.py`."""

from __future__ import annotations

import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from kazoo.client import KazooClient
from kazoo.protocol.states import WatchedEvent
from msgspec.structs import replace
from structlog.testing import capture_logs

from chronos.adapters.zookeeper.coordinator import ZooKeeperCoordinator
from chronos.adapters.zookeeper.servers import ZooKeeperServers
from chronos.adapters.zookeeper.session import REQUESTS_MAX
from chronos.core.cluster.roles import ClusterState, Request, Roles
from chronos.errors import ConfigurationError, CoordinatorUnavailable
from tests.harness.plans import plan_for
from tests.harness.ports import free_port
from tests.harness.proxy import Network
from tests.harness.waiting import check_deadline
from tests.harness.zookeeper import SESSION_S, Ensemble, Process, Server, member

plan = plan_for(2)

WAIT_S = 30.0
"""Bound of every wait; the longest is for the end of a session."""

LONG_SESSION_S = 10.0
"""Where a test shows that something does not wait for the end of a session."""

AT_ONCE_S = LONG_SESSION_S / 2
"""Far less than a session, and far more than the milliseconds it takes, for a machine that does
other work."""


class Nodes:
    """Coordinators of one cluster; they leave it at the end of the test."""

    def __init__(self, hosts: str) -> None:
        self.hosts = hosts
        self.cluster = f"c-{uuid.uuid4().hex[:8]}"
        self.made: list[ZooKeeperCoordinator] = []

    def coordinator(self, node: str, **more: object) -> ZooKeeperCoordinator:
        """A coordinator that has not joined."""
        settings = {"hosts": self.hosts, "session_timeout_s": SESSION_S} | more
        servers = ZooKeeperServers(**settings)  # type: ignore[arg-type]
        made = ZooKeeperCoordinator(servers, cluster=self.cluster, node=node)
        self.made.append(made)
        return made

    def joined(self, node: str, **more: object) -> ZooKeeperCoordinator:
        """A coordinator that has joined."""
        made = self.coordinator(node, **more)
        made.join(member(node))
        return made


@pytest.fixture
def nodes(zookeeper: Ensemble) -> Iterator[Nodes]:
    """Nodes of a separate cluster on the shared server."""
    made = Nodes(zookeeper.hosts)
    yield made
    for coordinator in made.made:
        coordinator.leave()


@pytest.fixture
def raw(zookeeper: Ensemble) -> Iterator[KazooClient]:
    """A plain ZooKeeper client."""
    client = KazooClient(hosts=zookeeper.hosts)
    client.start()
    yield client
    client.stop()
    client.close()


def until(
    condition: Callable[[], object],
    *coordinators: ZooKeeperCoordinator,
    plan: Callable[[ClusterState], Roles] | None = plan,
) -> None:
    """Let the nodes wait, and control unless `plan` is None, until the condition is true."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        check_deadline(deadline, "the condition is not true in time")
        for coordinator in coordinators:
            if plan is not None:
                with suppress(CoordinatorUnavailable):
                    coordinator.control(plan)
            coordinator.wait(0.02)


def share(*coordinators: ZooKeeperCoordinator) -> None:
    """Let nodes a and b have a shard each: the first plan shares the shards among the members that
    the controller sees."""
    until(
        lambda: all(set(each.look().members) == {"a", "b"} for each in coordinators),
        *coordinators,
        plan=None,
    )
    until(lambda: masters(coordinators[-1]) == {"a", "b"}, *coordinators)


def shared(nodes: Nodes) -> dict[str, ZooKeeperCoordinator]:
    """Nodes a and b, which have joined and have a shard each."""
    both = {node: nodes.joined(node) for node in "ab"}
    share(*both.values())
    return both


def masters(coordinator: ZooKeeperCoordinator) -> set[str | None]:
    """The masters that this node knows."""
    roles = coordinator.look().roles
    return set() if roles is None else {given.master for given in roles.shards.values()}


# --- Membership and roles -------------------------------------------------------------------------


def test_a_plan_without_changes_is_not_published(nodes: Nodes, raw: KazooClient) -> None:
    """The znode is not written for progress alone."""
    a = nodes.joined("a")
    until(lambda: masters(a) == {"a"}, a)
    path = f"/chronos/{nodes.cluster}/roles"
    version = raw.get(path)[1].version
    for applied in range(2, 12):
        a.report(member("a", applied=applied))
        assert a.control(plan)
    assert raw.get(path)[1].version == version


def test_publications_leave_no_watches_behind(nodes: Nodes) -> None:
    """kazoo keeps each different one until the node that it watches changes."""
    a = nodes.joined("a")
    until(lambda: masters(a) == {"a"}, a)
    for rate in ("1/s", "2/s", "3/s", "4/s"):

        def limited(view: ClusterState, rate: str = rate) -> Roles:
            return replace(plan(view), limited={"t": rate})

        assert a.control(limited)
        a.look()
    roles = a.look().roles
    assert roles is not None
    assert roles.limited == {"t": "4/s"}
    assert a._session is not None
    client = a._session.client
    for watchers in (client._child_watchers, client._data_watchers):
        assert {path: len(found) for path, found in watchers.items() if len(found) > 1} == {}


def test_a_request_that_cannot_be_read_is_refused_in_the_history(
    nodes: Nodes, raw: KazooClient
) -> None:
    """And removed; requests behind it are answered."""
    a, b = nodes.joined("a"), nodes.joined("b")
    share(a, b)
    raw.create(f"/chronos/{nodes.cluster}/requests/request-", b"nonsense", sequence=True)
    b.request(Request(kind="drain", node="a"))
    until(lambda: masters(b) == {"b"}, a, b)
    assert raw.get_children(f"/chronos/{nodes.cluster}/requests") == []
    roles = b.look().roles
    assert roles is not None
    assert any("refused: there is no such request" in change.why for change in roles.history)


def test_roles_too_large_for_a_znode_are_refused_by_name_and_cost_no_session(
    nodes: Nodes, raw: KazooClient
) -> None:
    """ZooKeeper would end the connection. Once nodes are forgotten, the roles are published."""
    a = nodes.joined("a")
    until(lambda: masters(a) == {"a"}, a)
    session = raw.exists(f"/chronos/{nodes.cluster}/members/a").ephemeralOwner
    gone = {f"pod-{number:032}": 1 for number in range(25_000)}
    for _ in range(2):
        with pytest.raises(CoordinatorUnavailable, match="chronos forget NODE"):
            a.control(lambda view: replace(plan(view), away=gone))
        assert a.look().confirmed
    with pytest.raises(CoordinatorUnavailable, match="znode for member"):
        a.report(replace(member("a"), address="http://" + "a" * 1_100_000))
    a.request(Request(kind="forget", node="pod"))
    assert a.control(lambda view: replace(plan(view), away={"pod": 1}))
    until(lambda: (roles := a.look().roles) is not None and roles.away == {"pod": 1})
    assert raw.exists(f"/chronos/{nodes.cluster}/members/a").ephemeralOwner == session
    until(lambda: raw.get_children(f"/chronos/{nodes.cluster}/requests") == [], a)


def test_a_flood_of_requests_is_answered_in_portions(nodes: Nodes, raw: KazooClient) -> None:
    a = nodes.joined("a")
    until(lambda: masters(a) == {"a"}, a)
    for _ in range(2 * REQUESTS_MAX + 1):
        a.request(Request(kind="undrain", node="a"))
    sizes: list[int] = []

    def counted(view: ClusterState) -> Roles:
        sizes.append(len(view.requests))
        return plan(view)

    deadline = time.monotonic() + WAIT_S
    while raw.get_children(f"/chronos/{nodes.cluster}/requests"):
        check_deadline(deadline, "requests are left")
        a.control(counted)
        a.wait(0.02)
    assert max(sizes) == REQUESTS_MAX


# --- One controller -------------------------------------------------------------------------------


@pytest.mark.smoke
def test_the_end_of_a_session_moves_control_and_shards_at_once(
    nodes: Nodes, raw: KazooClient
) -> None:
    """After kill -9 the new roles are published as soon as the session has expired."""
    with Process(nodes.hosts, nodes.cluster, "a") as killed:
        killed.expect("controls")
        b = nodes.joined("b")
        expired: list[float] = []

        def note(event: WatchedEvent) -> None:
            if event.type == "DELETED":
                expired.append(time.monotonic())

        raw.get(f"/chronos/{nodes.cluster}/members/a", watch=note)
        killed.signal(signal.SIGKILL)
        until(lambda: masters(b) == {"b"}, b)
        moved = time.monotonic()
    until(lambda: bool(expired))
    assert moved - expired[0] < AT_ONCE_S


def test_a_frozen_controller_publishes_nothing_after_its_successor_did(
    nodes: Nodes, raw: KazooClient
) -> None:
    """It would publish at every turn; thawed, it finds its session expired and joins again as the
    last member."""
    with Process(nodes.hosts, nodes.cluster, "a") as frozen:
        frozen.expect("controls")
        b = nodes.joined("b")
        frozen.freeze()
        until(lambda: masters(b) == {"b"}, b)
        path = f"/chronos/{nodes.cluster}/roles"
        seen = []

        @raw.DataWatch(path)
        def watch(data: bytes, _: object) -> None:
            seen.append(msgspec.json.decode(data, type=Roles).controller)

        frozen.signal(signal.SIGCONT)
        frozen.expect("joined")
        until(lambda: "a" in b.look().members, b)
        assert set(seen) == {"b"}


# --- Node ids -------------------------------------------------------------------------------------


def test_a_restarted_node_takes_over_its_own_registration_at_once(
    nodes: Nodes, raw: KazooClient
) -> None:
    """After kill -9 its old session lasts for seconds more: the node does not wait for that, and
    keeps its shards."""
    b = nodes.joined("b")
    with Process(nodes.hosts, nodes.cluster, "a", session_s=LONG_SESSION_S) as killed:
        killed.expect("joined")
        share(b)
        before = b.look().roles
        killed.signal(signal.SIGKILL)
    counts = []
    raw.ChildrenWatch(f"/chronos/{nodes.cluster}/members", lambda names: counts.append(len(names)))
    begun = time.monotonic()
    a = nodes.joined("a")
    assert time.monotonic() - begun < AT_ONCE_S
    until(lambda: b.look().members["a"] == member("a"), a, b)
    after = b.look().roles
    assert before is not None
    assert after is not None
    assert after.shards == before.shards
    assert set(counts) == {2}


# --- Servers that fail ----------------------------------------------------------------------------


def test_without_a_server_no_session_is_confirmed_until_it_is_back(own_zookeeper: Ensemble) -> None:
    """While it is killed, masters continue and no node plans; restarted, the session and the roles
    are the same."""
    nodes = Nodes(own_zookeeper.hosts)
    a = nodes.joined("a", session_timeout_s=10.0)
    until(lambda: masters(a) == {"a"}, a)
    own_zookeeper[0].kill()
    until(lambda: not a.look().confirmed, a)
    assert masters(a) == {"a"}
    assert not a.control(plan)
    for verb in (lambda: a.report(member("a")), lambda: a.request(Request(kind="drain", node="a"))):
        with pytest.raises(CoordinatorUnavailable, match="answers"):
            verb()
    own_zookeeper[0].start()
    until(lambda: a.look().confirmed, a)
    assert a.control(plan)
    a.report(member("a", applied=5))
    a.leave()


def test_a_frozen_server_does_not_block_a_node(own_zookeeper: Ensemble) -> None:
    """Every call fails within seconds; after the freeze the session has expired and a new one
    begins."""
    nodes = Nodes(own_zookeeper.hosts)
    a = nodes.joined("a")
    until(lambda: masters(a) == {"a"}, a)
    own_zookeeper[0].freeze()
    begun = time.monotonic()
    with pytest.raises(CoordinatorUnavailable):
        a.report(member("a", applied=2))
    assert time.monotonic() - begun < 4
    until(lambda: not a.look().confirmed, a)
    begun = time.monotonic()
    with pytest.raises(CoordinatorUnavailable, match="no ZooKeeper server answers within"):
        a.join(member("a"))
    assert time.monotonic() - begun < 8
    assert a.look().roles is None
    own_zookeeper[0].thaw()
    a.join(member("a"))
    until(lambda: masters(a) == {"a"}, a)
    a.leave()


@pytest.mark.zookeeper
def test_a_quorum_of_three_loses_its_leader_and_no_node_loses_a_role() -> None:
    """The leader is killed, and later another server frozen: the ensemble continues with two."""
    with Ensemble(3) as ensemble:
        nodes = Nodes(ensemble.hosts)
        a, b = (nodes.joined(node, session_timeout_s=20.0) for node in "ab")
        share(a, b)
        before = b.look().roles
        leader = ensemble.leader()
        for fail, repair in ((leader.kill, leader.start), (ensemble[0].freeze, ensemble[0].thaw)):
            fail()
            applied = int(time.monotonic() * 1000)

            def is_seen(applied: int = applied) -> bool:
                try:
                    a.report(member("a", applied=applied))
                except CoordinatorUnavailable:
                    return False
                found = b.look().members.get("a")
                return found is not None and found.replicas[0].applied == applied

            until(is_seen, a, b)
            repair()
        after = b.look().roles
        assert before is not None
        assert after is not None
        assert {shard: replace(given, applied=0) for shard, given in after.shards.items()} == {
            shard: replace(given, applied=0) for shard, given in before.shards.items()
        }
        for coordinator in (a, b):
            coordinator.leave()


# --- Data that are lost, or older -----------------------------------------------------------------

BACK_S = 3 * SESSION_S
"""Longest time from the start of the servers until the nodes are members again."""


def shards_of(coordinator: ZooKeeperCoordinator) -> dict[int, tuple[str | None, int]]:
    """Master and role epoch of each shard, as this node knows them."""
    roles = coordinator.look().roles
    assert roles is not None, "the roles are gone"
    return {shard: (given.master, given.epoch) for shard, given in roles.shards.items()}


def until_back(coordinators: dict[str, ZooKeeperCoordinator]) -> None:
    """Let nodes report, but not control, until each has read the members of a session; their roles
    stay meanwhile."""
    before = {node: shards_of(each) for node, each in coordinators.items()}
    begun_s = time.monotonic()
    deadline_s, applied = begun_s + WAIT_S, int(begun_s * 1_000)

    def is_back(coordinator: ZooKeeperCoordinator) -> bool:
        members = coordinator.look().members
        return members.keys() == coordinators.keys() and all(
            (members[node].replicas[0].applied or 0) >= applied for node in coordinators
        )

    while not all(map(is_back, coordinators.values())):
        check_deadline(deadline_s, "the nodes are not back in time")
        for node, coordinator in coordinators.items():
            with suppress(CoordinatorUnavailable):
                coordinator.report(member(node, applied=applied))
            coordinator.wait(0.02)
            assert coordinator.look().confirmed or shards_of(coordinator) == before[node]
    assert time.monotonic() - begun_s < BACK_S


def test_nodes_join_again_after_a_loss_of_all_data_and_keep_their_roles_until_others_are_published(
    own_zookeeper: Ensemble,
) -> None:
    """A server with older data refuses the sessions from before, for ever."""
    nodes, server = Nodes(own_zookeeper.hosts), own_zookeeper[0]
    server.advance()
    both = shared(nodes)
    a, b = both.values()
    before = shards_of(a)
    server.kill()
    server.wipe()
    server.start()
    with capture_logs() as lines:
        until_back(both)
    found = [line["why"] for line in lines if line["event"] == "zookeeper session replaced"]
    assert len(found) == 2
    assert all("lost, or restored from an older state" in why for why in found)
    for each in both.values():
        assert (each.look().confirmed, shards_of(each)) == (False, before)
        assert "ZooKeeper has no roles of this cluster any more" in each.look().why
    empty = {node: each.control(lambda view: Roles()) for node, each in both.items()}
    assert sorted(empty.values()) == [False, True]
    assert all(shards_of(each) == before for each in both.values())
    until(lambda: a.look().confirmed and b.look().confirmed, a, b)
    assert masters(a) == masters(b) == {"a", "b"}
    a.leave()
    until(lambda: masters(b) == {"b"}, b)
    b.leave()


def test_a_node_whose_session_is_unknown_to_a_server_without_data_keeps_its_roles_when_it_joins(
    own_zookeeper: Ensemble,
) -> None:
    """Such a server does not refuse a session whose last transaction it has passed: it ends it."""
    server = own_zookeeper[0]
    with Network() as network:
        link = network.link(server.port)
        a = Nodes(link.address).joined("a")
        until(lambda: masters(a) == {"a"}, a)
        before = shards_of(a)
        link.cut(silent=False)
        server.kill()
        server.wipe()
        server.start()
        raw = KazooClient(hosts=server.address)
        raw.start()
        for number in range(100):
            raw.create(f"/{number}")
        link.mend()
        until(lambda: a.look().roles is None, a, plan=None)
        a.join(member("a"))
        assert (a.look().confirmed, shards_of(a)) == (False, before)
        until(lambda: a.look().confirmed, a)
        a.leave()
        assert a.look().roles is None
        raw.stop()
        raw.close()


def test_nodes_join_again_when_an_older_state_was_restored_and_read_its_roles(
    own_zookeeper: Ensemble,
) -> None:
    """Masters that lead under later roles do not obey these, see tests/unit/test_replica.py."""
    nodes, server = Nodes(own_zookeeper.hosts), own_zookeeper[0]
    both = shared(nodes)
    a, b = both.values()
    older = shards_of(a)
    server.kill()
    server.save()
    server.start()
    until(lambda: a.look().confirmed and b.look().confirmed, a, b, plan=None)
    server.advance()

    def later(view: ClusterState) -> Roles:
        shards = {shard: replace(each, epoch=9) for shard, each in view.roles.shards.items()}
        return replace(view.roles, shards=shards)

    until(
        lambda: all({epoch for _, epoch in shards_of(each).values()} == {9} for each in (a, b)),
        a,
        b,
        plan=later,
    )
    server.kill()
    server.restore()
    server.start()
    until_back(both)
    assert all(each.look().confirmed and shards_of(each) == older for each in both.values())
    for each in both.values():
        each.leave()


@pytest.mark.zookeeper
def test_a_quorum_that_was_away_for_three_session_timeouts_finds_all_roles_unchanged() -> None:
    """The old session or a new one counts, whichever is answered first."""
    with Ensemble(3) as ensemble:
        nodes = Nodes(ensemble.hosts)
        both = shared(nodes)
        before = shards_of(both["a"])
        for server in ensemble.servers[:2]:
            server.kill()
        until(lambda: not any(each.look().confirmed for each in both.values()), *both.values())
        away_s = time.monotonic() + 3 * SESSION_S
        until(lambda: time.monotonic() > away_s, *both.values())
        assert all(shards_of(each) == before for each in both.values())
        ensemble.start()
        until_back(both)
        until(lambda: all(each.look().confirmed for each in both.values()), *both.values())
        assert all(shards_of(each) == before for each in both.values())
        both["a"].leave()
        until(lambda: masters(both["b"]) == {"b"}, both["b"])
        both["b"].leave()


@pytest.mark.zookeeper
def test_one_server_of_three_that_lost_its_data_costs_no_role() -> None:
    """It gets the data from the leader before it answers any node."""
    with Ensemble(3) as ensemble:
        nodes = Nodes(ensemble.hosts)
        both = {node: nodes.joined(node, session_timeout_s=LONG_SESSION_S) for node in "ab"}
        share(*both.values())
        before = shards_of(both["a"])
        for server in ensemble.servers:
            server.kill()
            server.wipe()
            server.start()
            until_back(both)
            until(lambda: all(each.look().confirmed for each in both.values()), *both.values())
            assert all(shards_of(each) == before for each in both.values())
        for each in both.values():
            each.leave()


# --- Access ---------------------------------------------------------------------------------------


def test_with_a_password_only_its_owner_gets_in(nodes: Nodes) -> None:
    """`creator`: znodes are closed to clients with other credentials."""
    settings = {
        "authentication": "digest",
        "username": "me",
        "acl": "creator",
        "path": f"/closed-{uuid.uuid4().hex}",
    }
    a = nodes.joined("a", password="right", **settings)
    assert a.control(plan)
    nodes.joined("b", password="right", **settings)
    with pytest.raises(CoordinatorUnavailable, match="NoAuth"):
        nodes.joined("c", password="wrong", **settings)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA with certificates for a server at 127.0.0.1 and a client, and another CA."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    for authority in ("ca", "other"):
        openssl(
            "req",
            "-x509",
            *new_key,
            "-keyout",
            f"{authority}.key",
            "-out",
            f"{authority}.pem",
            "-subj",
            f"/CN={authority}",
            "-days",
            "2",
        )
    for name in ("server", "client"):
        openssl(
            "req",
            "-x509",
            *new_key,
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.pem",
            "-subj",
            f"/CN={name}",
            "-days",
            "2",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        )
    (folder / "store.pem").write_text(
        (folder / "server.key").read_text() + (folder / "server.pem").read_text()
    )
    return folder


@pytest.mark.zookeeper
def test_over_tls_both_sides_present_a_certificate(certificates: Path) -> None:
    """With the right certificates everything works; a server certificate of another CA is
    refused."""
    port = free_port()
    settings = {
        "secureClientPort": port,
        "secureClientPortAddress": "127.0.0.1",
        "ssl.keyStore.location": certificates / "store.pem",
        "ssl.trustStore.location": certificates / "ca.pem",
    }
    netty = "-Dzookeeper.serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory"
    shown = {
        "tls": True,
        "certfile": str(certificates / "client.pem"),
        "keyfile": str(certificates / "client.key"),
    }
    with Server(settings=settings, options=(netty,)) as server:
        nodes = Nodes(f"127.0.0.1:{port}")
        a = nodes.joined("a", ca=str(certificates / "ca.pem"), **shown)
        until(lambda: masters(a) == {"a"}, a)
        server.freeze()
        until(lambda: not a.look().confirmed, a)
        server.thaw()
        a.join(member("a"))
        assert a.control(plan)
        with pytest.raises(CoordinatorUnavailable, match="no ZooKeeper server answers"):
            nodes.joined("b", ca=str(certificates / "other.pem"), **shown)
        a.leave()


MISSING = {
    "coordinator.zookeeper.ca: nowhere.pem cannot be read": {"tls": True, "ca": "nowhere.pem"},
    "coordinator.zookeeper.authentication: sasl needs the package pure-sasl": {
        "authentication": "sasl"
    },
}


def test_a_stepped_clock_does_not_change_the_age_of_members(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stepped an hour forward, it must not make members that have just come, or gone, an hour
    older."""
    a = nodes.joined("a")
    seen: list[ClusterState] = []

    def recorded(view: ClusterState) -> Roles:
        seen.append(view)
        return plan(view)

    assert a.control(recorded)
    wall_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + 3_600 * 10**9)
    b = nodes.joined("b")
    until(lambda: len(a.look().members) == 2, a, b)
    assert a.control(recorded)
    assert seen[-1].now_ms - seen[0].now_ms < WAIT_S * 1_000
    assert seen[-1].now_ms - seen[-1].since_ms["b"] < WAIT_S * 1_000


@pytest.mark.zookeeper
def test_a_silent_server_costs_no_session_while_others_answer() -> None:
    """Behind a link that drops everything it accepts connections and never answers."""
    with Ensemble(3) as zookeeper, Network() as network:
        links = [network.link(server.port) for server in zookeeper.servers]
        made = Nodes(",".join(link.address for link in links))
        a = made.joined("a", session_timeout_s=4.0)
        until(lambda: a.look().roles is not None, a)
        for cut in links:
            cut.cut(silent=True)
            deadline = time.monotonic() + 6.0
            while time.monotonic() < deadline:
                with suppress(CoordinatorUnavailable):
                    a.control(plan)
                a.wait(0.1)
                assert a.look().roles is not None, "the session was lost"
            until(lambda: a.look().confirmed, a)
            cut.mend()
        a.leave()


@pytest.mark.parametrize(("text", "settings"), MISSING.items())
def test_missing_files_and_packages_are_reported_before_connecting(
    text: str, settings: dict[str, object]
) -> None:
    """kazoo would fail in a background thread, and no caller would get the error."""
    with pytest.raises(ConfigurationError, match=text):
        Nodes("127.0.0.1:1").coordinator("a", **settings)
