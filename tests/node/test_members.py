"""The members of a cluster as a node shows them, and the wait of a request for a node that this
node does not see yet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from copy import copy
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from msgspec.structs import replace
from rich.console import Console

from chronos.admin.cluster.cluster import ClusterHandlers as Handlers
from chronos.admin.cluster.cluster import wait_for_member
from chronos.admin.cluster.overview import replicas_of
from chronos.admin.http.context import silence
from chronos.admin.http.waiting import poll
from chronos.cli.service.doctor_cluster import _roles
from chronos.cli.service.findings import of_cluster, of_nodes
from chronos.cli.service.status import _screen
from chronos.config import load
from chronos.core.cluster.health import HealthRules
from chronos.core.cluster.roles import ClusterState, Member, ReplicaReport, Roles, ShardRoles
from chronos.core.shard.codec import State
from chronos.errors import ConfigurationError, CoordinatorFull
from chronos.node.cluster import health_rules, heartbeat_ms
from chronos.ports import ClusterInspection, ClusterSnapshot
from chronos.workers.cluster.membership import Membership
from chronos.workers.replica.leadership import FOREIGN_SILENCE_MS
from chronos.zones import VERSION
from tests.harness.inside import Inside
from tests.harness.plans import plan_for
from tests.harness.waiting import wait_until
from tests.sim.coordinator import Ensemble, SimCoordinator
from tests.sim.world import World


class Cluster(NamedTuple):
    """The part of a node that has its membership."""

    membership: Membership
    in_sync: None = None

    def verdict(self, _: int) -> None:
        """The node observes no master."""


def member(node: str) -> Member:
    """A node without replicas."""
    return Member(
        node=node, instance=f"i-{node}", address=f"http://{node}", version="1.0", started_ms=0
    )


def test_the_replicas_of_a_shard_are_those_held_and_those_to_be_held() -> None:
    """Each with its distance from the furthest."""
    roles = {"a": ("master", 9), "b": ("none", None), "c": ("none", None), "d": ("replica", 4)}
    members = {
        node: replace(member(node), replicas={1: ReplicaReport(role=role, applied=applied)})
        for node, (role, applied) in roles.items()
    }
    found = replicas_of(members | {"e": member("e")}, 1, ["a", "b", "e"])
    assert [(each.node, each.role, each.applied, each.lag) for each in found] == [
        ("a", "master", 9, 0),
        ("b", "none", None, None),
        ("d", "replica", 4, 5),
    ]


def snapshots(*nodes: tuple[str, ...]) -> Iterator[ClusterSnapshot]:
    """One snapshot for each tuple of node names, then the last one for ever."""
    for names in nodes:
        yield ClusterSnapshot(
            roles=Roles(), members={name: member(name) for name in names}, confirmed=True
        )
    while True:
        yield ClusterSnapshot(
            roles=Roles(), members={name: member(name) for name in nodes[-1]}, confirmed=True
        )


def wait(
    sequence: Iterator[ClusterSnapshot], node: str, *, timeout_s: float, stopped: bool = False
) -> Member | None:
    """`wait_for_member` over a sequence of snapshots."""

    async def run() -> Member | None:
        stopping = asyncio.Event()
        if stopped:
            stopping.set()
        return await wait_for_member(lambda: next(sequence), node, stopping, timeout_s=timeout_s)

    return asyncio.run(run())


def test_a_node_that_appears_in_a_later_snapshot_is_found():
    """A request for a node that has just joined is not answered with 404."""
    found = wait(snapshots(("n1", "n2"), ("n1", "n2"), ("n1", "n2", "n3")), "n3", timeout_s=30)
    assert found is not None
    assert found.node == "n3"


def test_a_node_that_is_there_is_found_without_waiting():
    """The first snapshot is enough, also without any time to wait."""
    found = wait(snapshots(("n1", "n2")), "n2", timeout_s=0)
    assert found is not None
    assert found.node == "n2"


def test_a_node_that_does_not_appear_is_not_waited_for_longer_than_the_time():
    """The answer is then 404."""
    assert wait(snapshots(("n1", "n2")), "n3", timeout_s=0.05) is None


def test_a_stop_of_the_server_ends_the_wait():
    """The time of the wait does not delay the stop."""
    assert wait(snapshots(("n1",), ("n1", "n3")), "n3", timeout_s=30, stopped=True) is None


def test_a_node_that_joins_is_found_through_a_client_of_the_coordinator():
    """A client of the coordinator sees a session of another node only after its notification."""
    world = World(1)
    ensemble = Ensemble(world, shards=1, replication=None, session_ms=6_000)
    first, third = (SimCoordinator(ensemble, node, lambda _: None) for node in ("n1", "n3"))
    first.join(member("n1"))
    third.join(member("n3"))
    assert "n3" not in first.look().members
    looks = 0

    def look() -> Member | None:
        nonlocal looks
        looks += 1
        world.pass_time(20)
        return first.look().members.get("n3")

    async def run() -> Member | None:
        return await poll(look, 30, asyncio.Event(), every_s=0)

    found = asyncio.run(run())
    assert found is not None
    assert found.node == "n3"
    assert looks <= 4


def test_a_node_says_that_roles_do_not_change_and_is_ready(tmp_path: Path) -> None:
    """In the details of `/readyz`: the coordinator cannot store the roles, or does not answer. The
    node works."""
    with Inside(tmp_path, node__id="n1", shards=1) as service:
        service.wait_ready()
        world = World(0)
        ensemble = Ensemble(world, shards=1, replication=None, session_ms=5_000)
        ensemble.published = Roles(shards={0: ShardRoles(master="n1", epoch=99)})
        coordinator = SimCoordinator(ensemble, "n1", lambda _: None)
        coordinator.join(member("n1"))
        context = copy(service.server._context)
        assert context is not None
        node = copy(service.node)
        context.node = node

        def refused(_: ClusterState) -> Roles:
            raise CoordinatorFull("the roles are too large")

        membership = Membership(
            coordinator,
            node="n1",
            clock=node.clock,
            describe=lambda: member("n1"),
            plan=refused,
        )
        node._parts = replace(node._built, cluster=Cluster(membership))
        while not coordinator.look().confirmed:
            world.pass_time(20)
        assert (context.reasons(), context.details()) == ([], [])
        membership.step(node.clock.now_ms())
        assert (context.reasons(), context.details()) == (
            [],
            ["roles do not change: the roles are too large"],
        )
        coordinator.cut_ms = world.now_ms + 60_000
        coordinator.tick()
        assert context.reasons() == []
        assert context.details() == [
            "the coordinator does not answer this node: its roles do not change"
        ]


def test_people_see_the_nodes_of_the_cluster_and_those_that_are_away(tmp_path: Path) -> None:
    """Over HTTP, by `chronos status`, and by the doctor."""
    members, roles = {node: member(node) for node in ("n1", "n2")}, Roles(away={"n3": 5})
    found = seen_by_n1(tmp_path, members, roles)
    assert [node["node"] for node in found["nodes"]] == ["n1", "n2"]
    assert [node["node"] for node in found["away"]] == ["n3"]
    lines = screen(found)
    versions = {node["node"]: node["version"] for node in found["nodes"]}
    for name, version in versions.items():
        (line,) = [line for line in lines if line.startswith(f"{name} ") and "version" in line]
        assert f", version {version}, " in line
    assert [line.split()[0] for line in lines if "away since" in line] == ["n3"]
    findings = [
        finding.text
        for finding in _roles(ClusterInspection(checked="", members=members, roles=roles))
    ]
    assert len([text for text in findings if "node n3 holds replicas" in text]) == 1


def test_nodes_with_different_zone_data_are_a_problem(tmp_path: Path) -> None:
    """`GET /v1/nodes`, `chronos status` and the doctor show the zone data of each node."""
    members = {
        "n1": replace(member("n1"), zone_data="2026f"),
        "n2": replace(member("n2"), zone_data="2025b"),
        "n3": member("n3"),
    }
    found = seen_by_n1(tmp_path, members, Roles())
    shown = {node["node"]: node["zone_data"] for node in found["nodes"]}
    assert shown == {"n1": f"IANA {VERSION}", "n2": "IANA 2025b", "n3": None}
    lines = screen(found)
    for name, text in shown.items():
        assert any(
            line.startswith(f"{name} ") and f", {text or 'unknown zone data'}, up" in line
            for line in lines
        )
    texts = [each.text for each in of_cluster(found) if each.verdict == "problem"]
    assert [f"n1 IANA {VERSION}, n2 IANA 2025b" in text for text in texts] == [True]
    members["n2"] = replace(members["n2"], zone_data=VERSION)
    found = seen_by_n1(tmp_path, members, Roles())
    assert [each for each in of_cluster(found) if each.verdict == "problem"] == []


def test_a_master_with_older_zone_data_leads_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the details of `/readyz`, over HTTP, in `chronos status` and by the doctor."""
    with Inside(tmp_path, shards=1) as service:
        body = {"target": {"topic": "t"}, "value": "v", "id": "s", "repeat": "cron 0 9 * * *"}
        assert service.ask("POST", "/v1/messages?wait=5s", body).status in (200, 201, 202)
        wait_until(lambda: service.node.shards[0].replica.state.newest_zone_data == VERSION)
        assert service.node.older_zone_data is None
        monkeypatch.setattr("chronos.zones.VERSION", "2025b")
        ready = service.ask("GET", "/readyz")
        assert ready.status == 200
        text = f"zone data IANA 2025b, and times of series were planned by IANA {VERSION}"
        assert text in ready.body.decode()
        found = service.ask("GET", "/v1/nodes").json()
        assert text in found["nodes"][0]["older_zone_data"]
        assert any("zone data IANA 2025b" in line for line in screen(found))
        problems = [each.text for each in of_nodes(found) if each.verdict == "problem"]
        assert [text in problem for problem in problems] == [True]


def seen_by_n1(tmp_path: Path, members: dict[str, Member], roles: Roles) -> dict[str, Any]:
    """The answer of node n1 to `/v1/nodes` in a cluster whose coordinator has these members and
    roles."""
    with Inside(tmp_path, node__id="n1", shards=1) as service:
        world = World(0)
        ensemble = Ensemble(world, shards=1, replication=None, session_ms=5_000)
        clients = {node: SimCoordinator(ensemble, node, lambda _: None) for node in members}
        for node, client in clients.items():
            client.join(members[node])
        ensemble.publish(roles, 0)
        while (
            len(clients["n1"].look().members) < len(members) or clients["n1"].look().roles is None
        ):
            world.pass_time(20)
        context = copy(service.server._context)
        assert context is not None
        context.node = copy(service.node)
        clock = service.node.clock
        membership = Membership(
            clients["n1"],
            node="n1",
            clock=clock,
            describe=service.node.describe,
            plan=plan_for(1),
        )
        context.node._parts = replace(service.node._built, cluster=Cluster(membership))
        _, shown = asyncio.run(Handlers(context).nodes(None))  # type: ignore[arg-type]
        return dict(msgspec.to_builtins(shown))


def screen(found: dict[str, Any]) -> list[str]:
    """The lines of `chronos status` for an answer to `/v1/nodes`, without shards."""
    shown = Console(width=200, file=StringIO())
    shown.print(
        _screen({**found, "shards": [], "timeline": {"intervals": [], "start": None, "end": None}})
    )
    assert isinstance(shown.file, StringIO)
    return shown.file.getvalue().splitlines()


def test_a_shard_whose_master_has_been_silent_is_named_by_the_time_of_its_last_record() -> None:
    """A master commits a record every minute, so it may be down after one and a half."""
    state = State(node="n2", progress_ms=1_000_000)
    assert silence(3, state, 1_000_000 + FOREIGN_SILENCE_MS - 1) is None
    assert silence(3, State(), 1_000_000) is None
    assert silence(3, state, 1_000_000 + FOREIGN_SILENCE_MS) == (
        "shard 3: this node has read no progress of the master, n2, since "
        "1970-01-01T00:16:40.000Z; this node cannot take over before the coordinator answers"
    )


def test_a_long_timeout_does_not_slow_the_heartbeats_down() -> None:
    """A node joins, and hears of new roles, within a few of them."""
    assert [heartbeat_ms(timeout) for timeout in (200, 1_200, 1_500, 60_000)] == [33, 200, 250, 250]


def test_a_shard_is_observed_no_more_often_than_a_probe_may_take() -> None:
    shortest = HealthRules().timeout_ms
    assert health_rules(load(None, {}, [f"failover.every={shortest}ms"])).every_ms == shortest
    with pytest.raises(ConfigurationError, match="is not within 500ms"):
        load(None, {}, [f"failover.every={shortest - 1}ms"])
