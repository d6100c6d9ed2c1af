"""A node that holds no replica of a shard, and asks others for actions and parts of jobs."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from chronos.admin.cluster import peers
from chronos.admin.cluster.peers import PeerClient
from chronos.admin.messages import jobs, messages
from chronos.core.cluster.roles import Member
from chronos.errors import NoSpace
from tests.harness.inside import Inside
from tests.harness.joined import holder, join, leave
from tests.harness.ports import free_port
from tests.harness.serving import Handler, serving
from tests.harness.waiting import wait_until

FIRE = "/v1/messages/daily/fire"

QUICK_S = 0.3


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Inside]]:
    """A node without replicas, and two that hold shard 0 with a series; the first of them is asked
    first. Each has a log of its own, which shows what was asked of it."""
    with ExitStack() as stack:
        started = [
            stack.enter_context(Inside(tmp_path / name, node__id=name))
            for name in ("n1", "n2", "n3")
        ]
        asked, *others = started
        for other in others:
            series = {"target": {"topic": "t"}, "value": "v", "id": "daily", "delay": "1h"}
            answer = other.ask("POST", "/v1/messages?wait=5s", series | {"repeat": "every 1d"})
            assert answer.json()["result"] == "scheduled"
        leave(asked)
        first, second = (each.server.url for each in others)
        join(asked, holder("n2", first, applied=2), holder("n3", second))
        yield started


def written(node: Inside) -> int:
    """Records of the delay topic."""
    return node.node.log.watermarks("chronos.delay", 0).high


@contextmanager
def syncing(node: Inside, instead: Callable[[Callable[[], None]], None]) -> Iterator[None]:
    """A log whose disk syncs in this way: `instead` takes the real sync."""
    database = node.node.log._journal.db  # type: ignore[attr-defined]
    sync = database.sync
    database.sync = partial(instead, sync)
    try:
        yield
    finally:
        database.sync = sync


@contextmanager
def slow_disk(node: Inside, takes_s: float) -> Iterator[None]:
    """A log whose disk takes this long to sync, or until the end of the block."""
    ended = threading.Event()

    def slowly(sync: Callable[[], None]) -> None:
        ended.wait(takes_s)
        sync()

    with syncing(node, slowly):
        try:
            yield
        finally:
            ended.set()


def failing(_: Callable[[], None]) -> None:
    """A disk that fails after a write and before its sync."""
    raise NoSpace("full")


def quick_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other nodes are to answer within QUICK_S, unless a request says otherwise."""
    defaults = PeerClient.ask_member.__kwdefaults__ or {}
    monkeypatch.setattr(PeerClient.ask_member, "__kwdefaults__", defaults | {"answer_s": QUICK_S})


def test_an_action_that_the_first_holder_may_have_written_is_sent_to_no_other(
    nodes: list[Inside],
) -> None:
    """Its answer is passed on; otherwise two occurrences of the series would be fired."""
    asked, first, second = nodes
    with syncing(first, failing):
        answer = asked.ask("POST", FIRE)
    assert (answer.status, answer.problem) == (503, "unavailable")
    assert answer.json()["hint"] == messages.ACT_AGAIN
    wait_until(lambda: written(first) == 2)
    assert written(second) == 1


def test_an_action_that_is_not_answered_in_time_may_have_been_executed(
    nodes: list[Inside], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer says to look the message up."""
    monkeypatch.setattr(messages, "FORWARDED_S", QUICK_S)
    asked, first, second = nodes
    with slow_disk(first, 60.0):
        answer = asked.ask("POST", FIRE)
    assert (answer.status, answer.problem) == (503, "no-holder")
    assert answer.json()["detail"] == "node n2 did not answer in time"
    assert answer.json()["hint"] == messages.ACT_AGAIN
    wait_until(lambda: written(first) == 2)
    assert written(second) == 1


def test_an_action_has_the_time_that_the_log_of_the_other_node_may_take(
    nodes: list[Inside], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than other requests to a node."""
    quick_answers(monkeypatch)
    asked, first, _ = nodes
    with slow_disk(first, 3 * QUICK_S):
        answer = asked.ask("POST", FIRE)
    assert (answer.status, answer.json()["result"]) == (200, "fired")


def test_an_action_goes_on_to_a_node_that_holds_the_shard(
    nodes: list[Inside], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From one that cannot be reached, and from one that does not hold the shard any more."""
    monkeypatch.setattr(peers, "CONNECT_S", QUICK_S)
    asked, first, second = nodes
    leave(first)
    join(first)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as stack:
        port = full.getsockname()[1]
        # A listener whose queue is full takes no connection, and refuses none.
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", port))
        join(
            asked,
            holder("n5", f"http://127.0.0.1:{port}", applied=4),
            holder("n4", f"http://127.0.0.1:{free_port()}", applied=3),
            holder("n2", first.server.url, applied=2),
            holder("n3", second.server.url),
        )
        answer = asked.ask("POST", FIRE)
    assert (answer.status, answer.json()["result"]) == (200, "fired")
    assert (written(first), written(second)) == (1, 2)


COUNT = {"action": "count", "filter": {}}


def nothing_goes_on(asked: Inside, *others: Member) -> tuple[bool, str]:
    """Whether a job that cannot be started says so, and the reason that it gives."""
    join(asked, *others)
    answer = asked.ask("POST", "/v1/jobs", COUNT)
    assert (answer.status, answer.problem) == (503, "no-holder")
    hint = answer.json()["hint"]
    assert hint in (jobs.PART_AGAIN, "try again: nothing goes on")
    return hint != jobs.PART_AGAIN, answer.json()["detail"]


def test_a_job_that_cannot_be_started_tells_whether_parts_of_it_may_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a node that did not answer in time, and on one that cannot be told to stop its part."""
    quick_answers(monkeypatch)
    with Inside(tmp_path, node__id="n1", shards=2) as asked:
        part = asked.ask("POST", "/v1/jobs", COUNT).body

        class Beginning(Handler):
            """A node that begins its part and then answers nothing."""

            def do_POST(self) -> None:  # noqa: N802
                self.rfile.read(int(self.headers["Content-Length"]))
                self.reply(202, part)

            def do_DELETE(self) -> None:  # noqa: N802
                self.close_connection = True

        leave(asked)
        gone = f"http://127.0.0.1:{free_port()}"
        is_over, why = nothing_goes_on(asked, holder("n2", gone), holder("n3", gone, shard=1))
        assert is_over
        assert why.startswith("node n2 does not answer: ")
        with socket.create_server(("127.0.0.1", 0)) as mute:
            address = f"http://127.0.0.1:{mute.getsockname()[1]}"
            assert nothing_goes_on(asked, holder("n2", address)) == (
                False,
                "node n2 did not answer in time",
            )
        with serving(ThreadingHTTPServer(("127.0.0.1", 0), Beginning)) as address:
            is_over, why = nothing_goes_on(
                asked, holder("n2", address), holder("n3", gone, shard=1)
            )
        assert not is_over
        assert why.startswith("node n3 does not answer: ")
        assert why.endswith("; node n2 does not answer; it may go on with its part")
