"""The voters of `coordinator.kind: raft`, over their real connections: strangers, restarts, a new
leader, and a damaged file."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp.web
import pytest

from chronos.adapters.raft.coordinator import RaftCoordinator, VoterClients
from chronos.adapters.raft.voter import CONNECTIONS_MAX, election_timing, read_file, write_file
from chronos.adapters.raft.wire import (
    BODY_BYTES_MAX,
    CHALLENGE,
    CHALLENGE_S,
    PATH,
    REGISTER_BYTES_MAX,
    ROLES_BYTES_MAX,
    SIGNATURE,
    Ask,
    Batch,
    Challenges,
    Inspect,
    NotLeader,
    Signer,
    StateUpdate,
    Unanswered,
    VoterClient,
    decode_answer,
    encode,
    open_session,
)
from chronos.core.cluster.raft.register import Disk, RegisterEntry
from chronos.core.cluster.raft.values import ElectionTiming, Incarnation, LogEnd, Saved, VoteRequest
from chronos.core.cluster.roles import ClusterState, Request, Roles
from chronos.core.cluster.timing import Timing
from chronos.errors import CoordinatorFull, CoordinatorUnavailable, Stop
from tests.harness.plans import plan_for
from tests.harness.voters import HEARTBEAT_MS, SECRET, Voters
from tests.harness.waiting import check_deadline
from tests.harness.zookeeper import member

pytestmark = pytest.mark.slow

plan = plan_for(2)

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


def coordinator(
    voters: Voters,
    made: list[RaftCoordinator],
    node: str,
    *,
    secret: str = SECRET,
    voters_too: Mapping[str, str] = MappingProxyType({}),
) -> RaftCoordinator:
    """A coordinator that has not joined. `voters_too`: more voters in its configuration."""
    made.append(
        RaftCoordinator(
            VoterClients(peers={**voters.peers, **voters_too}, secret=secret),
            cluster="test",
            node=node,
            timing=Timing(heartbeat_ms=HEARTBEAT_MS, timeout_ms=TIMEOUT_MS),
            join_s=2.0 if secret != SECRET or voters_too else PATIENCE_S,
        )
    )
    return made[-1]


def until(condition: Callable[[], object], *coordinators: RaftCoordinator) -> None:
    """Let these coordinators control and wait until the condition holds."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        check_deadline(deadline_s, "the condition did not hold in time")
        for each in coordinators:
            each.control(plan)
            each.wait(0.02)


REQUEST = encode(Ask(id="x", request=Request(kind="drain", node="a")))
"""A request that the leader stores."""


def signer(voters: Voters) -> Signer:
    """The seal of these voters."""
    return Signer(SECRET, "test", voters.peers)


class Wire:
    """Requests to one voter, as any client can send them."""

    def __init__(self, url: str) -> None:
        self._url = url + PATH

    def send(self, *requests: tuple[str, bytes]) -> list[int]:
        """Send requests with these headers and contents, one after the other; return their
        statuses."""

        async def send() -> list[int]:
            found = []
            async with aiohttp.ClientSession() as session:
                for header, body in requests:
                    headers = {SIGNATURE: header} if header else {}
                    async with session.post(self._url, data=body, headers=headers) as answer:
                        found.append(answer.status)
            return found

        return asyncio.run(send())

    def challenge(self) -> str:
        """The challenge that the voter gives out."""

        async def ask() -> str:
            async with aiohttp.ClientSession() as session, session.post(self._url) as answer:
                assert answer.status == 401
                return answer.headers[CHALLENGE]

        return asyncio.run(ask())


def call(voters: Voters, name: str, *bodies: bytes) -> list[Any]:
    """The answers of a voter to calls that are sent at the same time; of one that gives none the
    error."""

    async def ask() -> list[Any]:
        session = open_session()
        try:
            client = VoterClient(session, name, voters.peers[name], signer(voters), None)
            return await asyncio.gather(
                *(client.post(body, PATIENCE_S) for body in bodies), return_exceptions=True
            )
        finally:
            await session.close()

    return [
        found if isinstance(found, BaseException) else decode_answer(found)
        for found in asyncio.run(ask())
    ]


def test_a_request_without_the_secret_gets_401_and_changes_nothing(
    voters: Voters, made: list[RaftCoordinator]
) -> None:
    """Neither without a signature, nor with one of another secret, cluster, list of voters,
    receiver, challenge or content."""
    a = coordinator(voters, made, "a")
    a.join(member("a"))
    until(lambda: a.control(plan), a)
    name = voters.leader()
    wire, names = Wire(voters.peers[name]), list(voters.peers)
    challenge = wire.challenge()
    headers = (
        "",
        "\xe9",
        Signer("another secret", "test", names).request(name, challenge, REQUEST),
        Signer(SECRET, "other", names).request(name, challenge, REQUEST),
        Signer(SECRET, "test", [*names, "v4"]).request(name, challenge, REQUEST),
        signer(voters).request("another", challenge, REQUEST),
        signer(voters).request(name, "0" * 32, REQUEST),
        signer(voters).request(name, challenge, REQUEST + b"x"),
    )
    assert wire.send(*((header, REQUEST) for header in headers)) == [401] * len(headers)
    assert a.look().roles is not None
    assert voters.running[name].requests == ()
    with pytest.raises(CoordinatorUnavailable, match=r"has another coordinator\.secret"):
        coordinator(voters, made, "b", secret="another secret of the tests").join(member("b"))
    with pytest.raises(CoordinatorUnavailable, match=r"other names in coordinator\.raft\.peers"):
        coordinator(voters, made, "c", voters_too={"v4": voters.peers["v1"]}).join(member("c"))
    assert set(a.look().members) == {"a"}


def test_a_recorded_request_is_refused(voters: Voters) -> None:
    """It is as it was, and counts once."""
    wire = Wire(voters.peers["v1"])
    body = encode(Inspect())
    header = signer(voters).request("v1", wire.challenge(), body)
    assert wire.send((header, body), (header, body)) == [200, 401]


def test_a_challenge_is_taken_for_a_time_and_a_request_once() -> None:
    """It is given out for CHALLENGE_S, and taken for as long again."""
    signs = Signer(SECRET, "test", ["a"])
    found = Challenges(0.0)
    first = found.current(0.0)
    signature = signs.read("a", signs.request("a", first, b"x"))
    assert signature is not None
    assert found.take(signature, 1.0)
    assert not found.take(signature, 1.0)
    assert found.current(CHALLENGE_S - 0.1) == first != found.current(CHALLENGE_S)
    for now_s, is_taken in ((2 * CHALLENGE_S - 0.1, True), (2 * CHALLENGE_S, False)):
        another = signs.read("a", signs.request("a", first, b"x"))
        assert another is not None
        assert not found.take(signature, now_s)
        assert found.take(another, now_s) == is_taken
    unused = Challenges(0.0)
    late = signs.read("a", signs.request("a", unused.current(0.0), b"x"))
    assert late is not None
    assert not unused.take(late, 2 * CHALLENGE_S)


def test_a_voter_reads_nothing_of_a_request_without_the_secret(voters: Voters) -> None:
    """It is answered while its content is still to come."""
    with socket.create_connection(
        ("127.0.0.1", voters.ports["v1"]), timeout=PATIENCE_S
    ) as connection:
        connection.sendall(
            f"POST {PATH} HTTP/1.1\r\nHost: v1\r\nContent-Length: {BODY_BYTES_MAX}\r\n\r\n".encode()
        )
        assert connection.recv(64).startswith(b"HTTP/1.1 401 ")
    body = b"x" * (BODY_BYTES_MAX + 1)
    wire = Wire(voters.peers["v1"])
    assert wire.send((signer(voters).request("v1", wire.challenge(), body), body)) == [413]


def test_idle_connections_of_strangers_do_not_keep_the_members_out(
    voters: Voters, made: list[RaftCoordinator]
) -> None:
    """The oldest connection without a valid request is closed for a new one."""
    a = coordinator(voters, made, "a")
    a.join(member("a"))
    name = voters.leader()
    with ExitStack() as stack:
        for _ in range(CONNECTIONS_MAX + 20):
            stranger = socket.create_connection(
                ("127.0.0.1", voters.ports[name]), timeout=PATIENCE_S
            )
            stack.enter_context(stranger)
        assert isinstance(call(voters, name, encode(Inspect()))[0], StateUpdate)
        until(lambda: a.look().confirmed)
        assert voters.connections(name) <= CONNECTIONS_MAX


def test_messages_of_a_node_that_is_not_a_voter_are_ignored(voters: Voters) -> None:
    """They end no voter, and get no answer."""
    name = voters.leader()
    for sender in ("stranger", name):
        request = VoteRequest(
            sender=Incarnation(sender, 1), to=name, term=10**6, end=LogEnd(10**6, 0), round=1
        )
        body = encode(Batch((request,)))
        wire = Wire(voters.peers[name])
        assert wire.send((signer(voters).request(name, wire.challenge(), body), body)) == [200]
    assert isinstance(call(voters, name, encode(Inspect()))[0], StateUpdate)


def test_calls_to_a_voter_that_an_error_has_ended_get_503_and_the_others_go_on(
    voters: Voters, made: list[RaftCoordinator]
) -> None:
    a = coordinator(voters, made, "a")
    a.join(member("a"))
    name = voters.leader()
    voters.end(name)
    (found,) = call(voters, name, encode(Inspect()))
    assert isinstance(found, Unanswered)
    assert "status 503" in str(found)
    assert voters.leader() != name
    until(lambda: a.look().confirmed, a)


def test_a_repeated_request_is_answered_once_a_quorum_has_it(voters: Voters) -> None:
    """The leader alone can write neither."""
    name = voters.leader()
    for other in set(voters.running) - {name}:
        voters.stop(other)
    assert call(voters, name, REQUEST, REQUEST) == [NotLeader(), NotLeader()]


def test_an_answer_without_the_secret_is_not_believed() -> None:
    """A server that does not know the secret cannot answer for a voter."""

    async def ask() -> None:
        async def answer(request: aiohttp.web.BaseRequest) -> aiohttp.web.Response:
            if SIGNATURE not in request.headers:
                return aiohttp.web.Response(status=401, headers={CHALLENGE: "0" * 32})
            return aiohttp.web.Response(body=b"x", headers={SIGNATURE: request.headers[SIGNATURE]})

        runner = aiohttp.web.ServerRunner(aiohttp.web.Server(answer))
        await runner.setup()
        site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        session = open_session()
        try:
            url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            await VoterClient(session, "v1", url, Signer(SECRET, "test", ["v1"]), None).post(
                encode(Inspect()), 5.0
            )
        finally:
            await session.close()
            await runner.cleanup()

    with pytest.raises(Unanswered, match="does not know"):
        asyncio.run(ask())


def test_a_new_leader_has_the_roles_and_the_requests_and_members_keep_their_sessions(
    voters: Voters, made: list[RaftCoordinator]
) -> None:
    """The leader stops: no member joins again, and a request that no controller has answered is
    there."""
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


def test_voters_that_lost_two_of_three_disks_serve_the_nodes_again(
    voters: Voters, made: list[RaftCoordinator], tmp_path: Path
) -> None:
    """Without the third the roles are lost: the nodes join again and decide them anew. When it
    comes back with its disk, all go on with the longer of the two logs, which may bring the roles
    from before."""
    a, b = (coordinator(voters, made, node) for node in "ab")
    a.join(member("a"))
    b.join(member("b"))

    def is_limited(pattern: str) -> bool:
        roles = a.look().roles
        return roles is not None and pattern in roles.limited

    for pattern in ("refunds", "returns", "reminders"):
        a.request(Request(kind="limit", node="", pattern=pattern, rate="5/s"))
        until(lambda pattern=pattern: is_limited(pattern), a, b)  # type: ignore[misc]
    for name in list(voters.running):
        voters.stop(name)
    until(lambda: not a.look().confirmed and not b.look().confirmed)
    for name in ("v1", "v2"):
        (tmp_path / f"{name}.raft").unlink()
        voters.start(name)

    def serve() -> bool:
        for each, node in ((a, "a"), (b, "b")):
            if each.look().roles is None and not each.look().confirmed:
                each.join(member(node))
        found = [each.look() for each in (a, b)]
        return found[0].roles == found[1].roles and all(
            each.confirmed and each.roles is not None and each.members.keys() == {"a", "b"}
            for each in found
        )

    for pattern in ("orders", "payments"):
        until(serve, a, b)
        a.request(Request(kind="limit", node="", pattern=pattern, rate="5/s"))
        until(lambda pattern=pattern: serve() and is_limited(pattern), a, b)  # type: ignore[misc]
        if "v3" not in voters.running:
            voters.start("v3")
            until(lambda: len({str(each._latest()) for each in voters.running.values()}) == 1)


def test_an_inspection_shows_members_and_roles_without_joining(
    voters: Voters, made: list[RaftCoordinator]
) -> None:
    """As `chronos doctor` does it."""
    a = coordinator(voters, made, "a")
    a.join(member("a"))
    until(lambda: a.look().roles is not None, a)
    found = coordinator(voters, made, "b").inspect()
    assert (found.members, found.roles) == ({"a": member("a")}, a.look().roles)
    assert "leads the voters" in found.checked


def test_the_file_of_a_voter_reads_back_and_a_damaged_one_stops_the_node(tmp_path: Path) -> None:
    path = tmp_path / "vote.raft"
    assert read_file(path, "a") == Disk()
    disk = Disk(
        saved=Saved(term=3, incarnation=2), entry=RegisterEntry(stamp=LogEnd(3, 7), value=b"x")
    )
    write_file(path, "a", disk)
    assert read_file(path, "a") == disk
    assert [found.name for found in tmp_path.iterdir()] == ["vote.raft"]
    with pytest.raises(Stop, match="is of node a"):
        read_file(path, "b")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Stop, match="holds the vote of this node"):
        read_file(path, "a")


def test_the_intervals_of_dledger_are_those_of_two_and_six_seconds() -> None:
    """DL-01 to DL-06: the defaults of DLedger, a heartbeat of 2 s and a time-out of 6 s."""
    assert election_timing(Timing(heartbeat_ms=2_000, timeout_ms=6_000)) == ElectionTiming()


def test_what_the_voters_cannot_replicate_is_refused_and_stops_nothing(
    voters: Voters, made: list[RaftCoordinator]
) -> None:
    """The register is sent as a whole: one that is too large for a message would never be
    committed, nor any change after it."""
    a = coordinator(voters, made, "a")
    a.join(member("a"))
    until(lambda: a.look().roles is not None, a)

    def drained(*nodes: str) -> Callable[[ClusterState], Roles]:
        return lambda view: Roles(controller="a", drained=nodes)

    large = Request(kind="undrain", node="x" * 1_000_000)
    for _ in range(REGISTER_BYTES_MAX // 1_000_000):
        a.request(large)
    too_large = (
        f"bytes, more than the ({ROLES_BYTES_MAX}|{REGISTER_BYTES_MAX}) that the voters store"
    )
    with pytest.raises(CoordinatorFull, match=too_large):
        a.request(large)
    until(lambda: a.control(drained("b")))
    for size in (REGISTER_BYTES_MAX, BODY_BYTES_MAX):
        with pytest.raises(CoordinatorFull, match=too_large):
            a.request(Request(kind="undrain", node="x" * size))
        with pytest.raises(CoordinatorFull, match=too_large):
            a.control(drained("x" * size))
    # The largest roles leave room for the requests that make them smaller.
    until(lambda: a.control(drained("x" * (ROLES_BYTES_MAX - 1_000))))
    a.request(Request(kind="forget", node="b"))
    until(lambda: a.control(drained("c")))
    until(lambda: a.look().roles == Roles(controller="a", drained=("c",)))
