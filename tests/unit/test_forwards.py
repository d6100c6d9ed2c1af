"""The partitions that records are forwarded to, and the records that they do not take."""

from __future__ import annotations

import pytest

from chronos.core.message import Reason, Record
from chronos.core.step import Staged
from chronos.workers.forwards import Forwards
from chronos.workers.letters import UNBOUNDED
from chronos.workers.targets import DESCRIBE_EVERY_MS
from tests.sim.broker import Brokers
from tests.sim.log import SimLog
from tests.sim.simulation import Observer
from tests.sim.world import World

TOPIC = "delay"
SMALL, LARGE = (Record(at, 7 + at, b"id", b"x" * size, [("own", b"o")]) for at, size in enumerate((10, 400)))


@pytest.fixture
def brokers() -> Brokers:
    brokers = Brokers(World(1), lambda transaction: None)
    brokers.create(TOPIC, 3, 300)
    return brokers


def forwards_on(brokers: Brokers) -> Forwards:
    return Forwards(SimLog(Observer(brokers.world), brokers), TOPIC, 2)


def staged() -> Staged:
    """A small and a large record for partition 0, and a record that is rejected."""
    staged = Staged(pull_offset=3, watermark_ms=9, forwards=[(SMALL, 0), (LARGE, 0)])
    for offset, reason in ((0, Reason.FORWARDED), (1, Reason.FORWARDED), (2, Reason.NO_TARGET)):
        staged.refuse(offset, reason)
    return staged


def test_a_record_is_forwarded_unchanged_behind_its_source_and_time(brokers: Brokers) -> None:
    (made,) = forwards_on(brokers).records([(SMALL, 1)])
    assert made == (TOPIC, b"id", b"x" * 10, [("own", b"o"), ("chronos-forwarded", b"delay/2/0;7")], 1)


def test_a_partition_without_a_leader_takes_no_records_until_it_has_one(brokers: Brokers) -> None:
    """The reason names it; other partitions do not matter."""
    forwards, now_ms = forwards_on(brokers), brokers.world.now_ms
    assert forwards.refusal(staged(), now_ms) is None
    brokers.leaderless["delay/1"] = now_ms + 60_000
    assert forwards.refusal(staged(), now_ms + DESCRIBE_EVERY_MS) is None
    brokers.leaderless["delay/0"] = now_ms + 60_000
    refusal = forwards.refusal(staged(), now_ms + 2 * DESCRIBE_EVERY_MS)
    assert refusal is not None
    assert (refusal.passing, refusal.why) == (True, "delay/0 has no leader with enough in-sync replicas")
    brokers.leaderless.clear()
    assert forwards.refusal(staged(), now_ms + 2 * DESCRIBE_EVERY_MS + 1) is None


def test_a_record_that_is_too_large_with_its_hop_is_rejected(brokers: Brokers) -> None:
    """It is counted as rejected, and the others are forwarded."""
    step = staged()
    forwards_on(brokers).reject_too_large(step, UNBOUNDED, brokers.world.now_ms)
    assert step.forwards == [(SMALL, 0)]
    assert [(record.offset, rejection.reason) for record, rejection in step.rejections] == [(1, Reason.TOO_LARGE)]
    assert step.refused == [(0, Reason.FORWARDED), (1, Reason.TOO_LARGE), (2, Reason.NO_TARGET)]
    assert step.forwarded == 1


def test_a_bound_that_refusals_have_shown_counts_too(brokers: Brokers) -> None:
    step = staged()
    forwards_on(brokers).reject_too_large(step, 20, brokers.world.now_ms)
    assert (step.forwards, step.forwarded) == ([], 0)
