"""The voters of `coordinator.kind: raft`, over their real connections: strangers, restarts, a new leader, and a damaged file."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp.web
import pytest

from chronos.adapters.raft import file
from chronos.adapters.raft.coordinator import RaftCoordinator
from chronos.adapters.raft.links import Unanswered, open_session, post
from chronos.adapters.raft.voter import timing_of
from chronos.adapters.raft.wire import PATH, SIGNATURE, Ask, Inspect, Seal, encode
from chronos.core.assignment import plan
from chronos.core.raft.register import Disk, Entry
from chronos.core.raft.values import LogEnd, Saved, Timing
from chronos.core.roles import Request
from chronos.errors import CoordinatorUnavailable, Stop
from tests.harness.voters import HEARTBEAT_MS, SECRET, Voters
from tests.harness.zookeeper import member

PATIENCE_S = 20.0

TIMEOUT_MS = 3_000


@pytest.fixture
def voters(tmp_path: Path) -> Iterator[Voters]:
    """Three voters."""
    found = Voters(tmp_path, timeout_ms=TIMEOUT_MS)
    yield found
    found.close()


@pytest.fixture
def made() -> Iterator[list[RaftCoordinator]]:
    """Coordinators that leave at the end."""
    found: list[RaftCoordinator] = []
    yield found
    for coordinator in found:
        coordinator.leave()


def coordinator(voters: Voters, made: list[RaftCoordinator], node: str, *, secret: str = SECRET) -> RaftCoordinator:
    """A coordinator that has not joined."""
    made.append(
        RaftCoordinator(
            peers=voters.peers,
            secret=secret,
            cluster="test",
            node=node,
            instance=f"i-{node}",
            shards=2,
            heartbeat_ms=HEARTBEAT_MS,
            timeout_ms=TIMEOUT_MS,
            join_s=2.0 if secret != SECRET else PATIENCE_S,
        )
    )
    return made[-1]


def until(condition: Callable[[], object], *coordinators: RaftCoordinator) -> None:
    """Let these coordinators control and wait until the condition holds."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "the condition did not hold in time"
        for each in coordinators:
            each.control(plan)
            each.wait(0.02)


def test_a_request_without_the_secret_gets_401_and_changes_nothing(voters: Voters, made: list[RaftCoordinator]) -> None:
    """Neither without a signature, nor with one of another secret, receiver or content; nor can such a node join."""
    a = coordinator(voters, made, "a")
    a.join(member("a"))
    until(lambda: a.control(plan), a)
    name = voters.leader()
    url = voters.peers[name]
    body = encode(Ask(id="x", request=Request(kind="drain", node="a")))
    seal = Seal(SECRET, "test")
    signatures = (
        "",
        "é",
        Seal("another secret", "test").request(name, body),
        Seal(SECRET, "other").request(name, body),
    )

    async def statuses() -> list[int]:
        found = []
        async with aiohttp.ClientSession() as session:
            for signature in (*signatures, seal.request("another", body), seal.request(name, body + b"x")):
                headers = {SIGNATURE: signature}
                async with session.post(url + PATH, data=body, headers=headers) as answer:
                    found.append(answer.status)
        return found

    assert asyncio.run(statuses()) == [401] * 6
    assert a.look().roles is not None
    assert voters.running[name].requests == ()
    with pytest.raises(CoordinatorUnavailable, match=r"has another coordinator\.secret"):
        coordinator(voters, made, "b", secret="another secret of the tests").join(member("b"))
    assert set(a.look().members) == {"a"}


def test_an_answer_without_the_secret_is_not_believed(voters: Voters) -> None:
    """A server that does not know the secret cannot answer for a voter."""

    async def ask() -> None:
        async def answer(request: aiohttp.web.BaseRequest) -> aiohttp.web.Response:
            return aiohttp.web.Response(body=b"x", headers={SIGNATURE: request.headers[SIGNATURE]})

        runner = aiohttp.web.ServerRunner(aiohttp.web.Server(answer))
        await runner.setup()
        site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        session = open_session(None)
        try:
            port = runner.addresses[0][1]
            await post(session, f"http://127.0.0.1:{port}", "v1", Seal(SECRET, "test"), encode(Inspect()), 5.0)
        finally:
            await session.close()
            await runner.cleanup()

    with pytest.raises(Unanswered, match="does not know"):
        asyncio.run(ask())


def test_a_new_leader_has_the_roles_and_the_requests_and_members_keep_their_sessions(
    voters: Voters, made: list[RaftCoordinator]
) -> None:
    """The leader stops: no member joins again, and a request that no controller has answered is there."""
    a, b = (coordinator(voters, made, node) for node in "ab")
    a.join(member("a"))
    b.join(member("b"))
    until(lambda: (roles := a.look().roles) is not None and roles.nodes == {"a", "b"}, a)
    before = a.look().roles
    b.request(Request(kind="drain", node="a"))
    name = voters.leader()
    voters.stop(name)
    assert voters.leader() != name
    until(lambda: a.look().confirmed and b.look().confirmed)
    assert a.look().roles == before
    # A leader waits for the nodes of the roles only.
    until(lambda: a.look().members == b.look().members == {"a": member("a"), "b": member("b")})
    until(lambda: "a" in (a.look().roles or pytest.fail("no roles")).drained, a)
    assert not b.control(plan)


def test_roles_survive_a_restart_of_all_voters(voters: Voters, made: list[RaftCoordinator]) -> None:
    """They are in the files of the voters."""
    a = coordinator(voters, made, "a")
    a.join(member("a"))
    a.request(Request(kind="limit", node="", pattern="orders", rate="5/s"))
    until(lambda: (roles := a.look().roles) is not None and roles.limited == {"orders": "5/s"}, a)
    for name in list(voters.running):
        voters.stop(name)
    until(lambda: not a.look().confirmed)
    for name in voters.ports:
        voters.start(name)
    until(lambda: a.look().confirmed)
    roles = a.look().roles
    assert roles is not None
    assert roles.limited == {"orders": "5/s"}


def test_an_inspection_shows_members_and_roles_without_joining(voters: Voters, made: list[RaftCoordinator]) -> None:
    """As `chronos doctor` does it."""
    a = coordinator(voters, made, "a")
    a.join(member("a"))
    until(lambda: a.look().roles is not None, a)
    found = coordinator(voters, made, "b").inspect()
    assert (found.members, found.roles) == ({"a": member("a")}, a.look().roles)
    assert "leads the voters" in found.checked


def test_the_file_of_a_voter_reads_back_and_a_damaged_one_stops_the_node(tmp_path: Path) -> None:
    path = tmp_path / "vote.raft"
    assert file.read(path, "a") == Disk()
    disk = Disk(saved=Saved(term=3, incarnation=2), entry=Entry(stamp=LogEnd(3, 7), value=b"x"))
    file.write(path, "a", disk)
    assert file.read(path, "a") == disk
    assert [found.name for found in tmp_path.iterdir()] == ["vote.raft"]
    with pytest.raises(Stop, match="is of node a"):
        file.read(path, "b")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Stop, match="holds the vote of this node"):
        file.read(path, "a")


def test_the_intervals_of_dledger_are_those_of_two_and_six_seconds() -> None:
    """DL-01 to DL-06: `heartbeat: 2s` and `timeout: 6s`."""
    assert timing_of(2_000, 6_000) == Timing()
