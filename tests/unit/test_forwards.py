"""The partitions that records are forwarded to, and the records that they do not take."""

from __future__ import annotations

import pytest

from chronos.core.keys import REJECTED
from chronos.core.message import Reason, Record, Rejection
from chronos.core.shard.letters import Letters
from chronos.core.shard.step import Staged
from chronos.workers.step.letter_topics import UNBOUNDED, Refusal
from chronos.workers.step.letters import Forwards
from chronos.workers.step.targets import DESCRIBE_EVERY_MS
from tests.sim.broker import Brokers
from tests.sim.log import SimLog
from tests.sim.simulation import Observer
from tests.sim.world import World

TOPIC = "delay"
SMALL, LARGE = (
    Record(at, 7 + at, b"id", b"x" * size, [("own", b"o")]) for at, size in enumerate((10, 400))
)


@pytest.fixture
def brokers() -> Brokers:
    brokers = Brokers(World(1), lambda transaction: None)
    brokers.create(TOPIC, 3, 300)
    return brokers


def forwards_on(brokers: Brokers) -> Forwards:
    return Forwards(SimLog(Observer(brokers.world), brokers), TOPIC, 2)


FORWARDS = [(SMALL, 0), (LARGE, 0)]


def staged() -> Staged:
    """A small and a large record for partition 0, one for partition 1, and a record that is
    rejected."""
    other = Record(3, 10, b"other", b"", [])
    staged = Staged(
        pull_offset=4, watermark_ms=10, letters=Letters(forwards=[*FORWARDS, (other, 1)])
    )
    for offset, reason in (
        (0, Reason.FORWARDED),
        (1, Reason.FORWARDED),
        (2, Reason.NO_TARGET),
        (3, Reason.FORWARDED),
    ):
        staged.letters.refuse(offset, reason)
    staged.letters.rejections.append(
        (Record(2, 9, None, None, []), Rejection(Reason.NO_TARGET, "there is none"))
    )
    return staged


def test_a_record_is_forwarded_unchanged_behind_its_source_and_time(brokers: Brokers) -> None:
    (made,) = forwards_on(brokers).records([(SMALL, 1)])
    assert made == (
        TOPIC,
        b"id",
        b"x" * 10,
        [("own", b"o"), ("chronos-forwarded", b"delay/2/0;7")],
        1,
    )


def test_a_partition_without_a_leader_takes_no_records_until_it_has_one(brokers: Brokers) -> None:
    """The reason names it; other partitions do not matter."""
    forwards, now_ms = forwards_on(brokers), brokers.world.now_ms
    assert forwards.refusals({0}, now_ms) == {}
    brokers.leaderless["delay/1"] = now_ms + 60_000
    assert forwards.refusals({0}, now_ms + DESCRIBE_EVERY_MS) == {}
    brokers.leaderless["delay/0"] = now_ms + 60_000
    refusals = forwards.refusals({0, 2}, now_ms + 2 * DESCRIBE_EVERY_MS)
    assert refusals == {
        0: Refusal(why="delay/0 has no leader with enough in-sync replicas", passing=True)
    }
    brokers.leaderless.clear()
    assert forwards.refusals({0, 1}, now_ms + 2 * DESCRIBE_EVERY_MS + 1) == {}


def test_a_topic_that_is_missing_takes_no_records(brokers: Brokers) -> None:
    forwards = Forwards(SimLog(Observer(brokers.world), brokers), "other", 2)
    assert forwards.refusals({0, 1}, 0) == dict.fromkeys(
        (0, 1), Refusal(why="other does not exist", passing=False)
    )
    assert forwards.too_large(FORWARDS, {0: UNBOUNDED}, 0) == {}


def test_a_record_that_is_too_large_with_its_hop_is_rejected(brokers: Brokers) -> None:
    """It is counted as rejected, and the others are forwarded."""
    forwards, step = forwards_on(brokers), staged()
    too_large = forwards.too_large(
        step.letters.forwards, {0: UNBOUNDED, 1: UNBOUNDED}, brokers.world.now_ms
    )
    assert list(too_large) == [1]
    assert too_large[1].endswith("bytes with its hop; delay takes 300")
    step.letters.reject_forwards(too_large)
    assert [record.offset for record, _ in step.letters.forwards] == [0, 3]
    assert [(record.offset, rejection.reason) for record, rejection in step.letters.rejections] == [
        (1, Reason.TOO_LARGE),
        (2, Reason.NO_TARGET),
    ]
    assert step.letters.refused == [
        (0, Reason.FORWARDED),
        (1, Reason.TOO_LARGE),
        (2, Reason.NO_TARGET),
        (3, Reason.FORWARDED),
    ]
    assert step.letters.forwarded == 2


def test_a_bound_that_refusals_have_shown_counts_for_its_partition_too(brokers: Brokers) -> None:
    found = forwards_on(brokers).too_large(
        [*FORWARDS, (Record(5, 9, b"id", b"x", []), 1)],
        {0: 20, 1: UNBOUNDED},
        brokers.world.now_ms,
    )
    assert sorted(found) == [0, 1]


def test_a_held_record_is_neither_forwarded_nor_rejected() -> None:
    """Those for one partition wait, in order; the others go on."""
    step = staged()
    step.letters.hold_forwards({0})
    assert step.letters.refused == [
        (0, Reason.HELD),
        (1, Reason.HELD),
        (2, Reason.NO_TARGET),
        (3, Reason.FORWARDED),
    ]
    assert [(held.record, held.destination, held.reason) for held in step.letters.held] == [
        (SMALL, 0, 0),
        (LARGE, 0, 0),
    ]
    assert [record.offset for record, _ in step.letters.forwards] == [3]
    assert (step.letters.forwarded, step.letters.held_forwards, len(step.letters.rejections)) == (
        1,
        2,
        1,
    )
    step.letters.hold_rejections()
    assert [
        (held.record.offset, held.destination, held.reason, held.detail)
        for held in step.letters.held[2:]
    ] == [(2, REJECTED, Reason.NO_TARGET, "there is none")]
    assert (step.letters.rejections, step.letters.held_forwards) == ([], 2)
