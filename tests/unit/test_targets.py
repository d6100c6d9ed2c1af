"""What senders are told of target topics: by descriptions that are kept, with few requests to the
brokers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from chronos.admin.http.waiting import ThreadTurns
from chronos.admin.messages import targets
from chronos.admin.messages.targets import TargetTopics, TopicInfos, objection, planned_bytes
from chronos.core.message import Reason
from chronos.errors import LogUnavailable
from chronos.ports import TopicInfo

PLAIN = TopicInfo(id="1", partitions=1, leaderless=frozenset(), bytes_max=1_000)
COMPACTED = TopicInfo(id="2", partitions=1, leaderless=frozenset(), bytes_max=1_000, compacted=True)
BARRED = TopicInfo(id="3", partitions=1, leaderless=frozenset(), bytes_max=1_000, writable=False)
KNOWN: TopicInfos = {"plain": PLAIN, "compacted": COMPACTED, "barred": BARRED, "missing": None}


class Brokers:
    """Stands for brokers with the topics of KNOWN; counts the requests."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.answers = threading.Event()
        self.answers.set()
        self.fails = False

    def describe(self, topics: Sequence[str]) -> dict[str, TopicInfo | None]:
        self.asked.append(sorted(topics))
        self.answers.wait(30)
        if self.fails:
            raise LogUnavailable("no broker answers")
        return {topic: KNOWN.get(topic) for topic in topics}


def with_topics(test: Callable[[TargetTopics, Brokers], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        brokers, threads = Brokers(), ThreadTurns(2, "test", share=2)
        try:
            await test(TargetTopics(brokers, threads), brokers)  # type: ignore[arg-type]
        finally:
            brokers.answers.set()
            threads.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("topic", "has_key", "size", "reason"),
    [
        ("plain", False, 1_000, None),
        ("plain", True, 1_001, Reason.TOO_LARGE),
        ("compacted", False, 1, Reason.NO_KEY),
        ("compacted", True, 1, None),
        ("barred", True, 1, Reason.FORBIDDEN_TARGET),
        ("missing", True, 1, Reason.TARGET_MISSING),
        ("not described", True, 10**6, None),
    ],
)
def test_a_target_is_named_that_would_not_take_the_message(
    topic: str, has_key: bool, size: int, reason: Reason | None
) -> None:
    found = objection(
        topic, KNOWN, bytes_about=size, has_key=lambda: has_key, size=lambda: size, creates=False
    )
    assert (None if found is None else found[0]) == reason
    assert found is None or topic in found[1]


def test_a_missing_target_that_is_created_on_demand_is_no_trouble() -> None:
    assert objection("missing", KNOWN, bytes_about=1, has_key=bool, size=int, creates=True) is None


def test_the_size_is_that_of_the_delivered_record() -> None:
    """Without control headers, with the receipt."""
    own: dict[str, bytes | None] = {"trace": b"t" * 100}
    control: dict[str, bytes | None] = {
        "chronos-target-topic": b"x" * 249,
        "chronos-target-key": b"k" * 50,
    }
    plain = planned_bytes(("chronos.delay", b"id", b"v" * 500, own, 0))
    assert planned_bytes(("chronos.delay", b"id", b"v" * 500, control | own, 0)) == plain + 50
    assert 700 < plain < 850


def test_a_thousand_messages_for_a_topic_cost_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "WAIT_S", 30.0)

    async def test(topics: TargetTopics, brokers: Brokers) -> None:
        found = await asyncio.gather(*(topics.look({"plain", "missing"}) for _ in range(1_000)))
        assert {tuple(sorted(one)) for one in found} == {("missing", "plain")}
        assert brokers.asked == [["missing", "plain"]]

    with_topics(test)


def test_topics_beyond_one_request_are_described_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(targets, "WAIT_S", 30.0)

    async def test(topics: TargetTopics, brokers: Brokers) -> None:
        names = {f"t{number}" for number in range(targets.TOPICS_ASKED + 1)}
        assert (await topics.look(names)).keys() == names
        assert [len(asked) for asked in brokers.asked] == [targets.TOPICS_ASKED, 1]

    with_topics(test)


def test_brokers_that_do_not_answer_hold_no_answer_back_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each request waits for the rest of WAIT_S, and the later ones not at all."""
    monkeypatch.setattr(targets, "WAIT_S", 0.01)

    async def test(topics: TargetTopics, brokers: Brokers) -> None:
        brokers.answers.clear()
        for _ in range(3):
            assert await topics.look({"plain"}) == {}
        assert brokers.asked == [["plain"]]

    with_topics(test)


def test_after_a_request_that_failed_the_brokers_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(targets, "WAIT_S", 30.0)

    async def test(topics: TargetTopics, brokers: Brokers) -> None:
        brokers.fails = True
        assert await topics.look({"plain"}) == {}
        assert await topics.look({"missing"}) == {}
        assert brokers.asked == [["plain"]]

    with_topics(test)
