"""Rate limits in the steps of a replica, on the embedded log and by a clock that the test sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from chronos.core.keys import LIMITED
from chronos.core.message import Reason
from chronos.core.rates import Rate, parse_rate
from chronos.core.shard.progress import Outcome, Progress, unpack_progress
from chronos.ports import TopicSpec
from chronos.workers.replica.leadership import STANDALONE
from chronos.workers.step.lanes import RateLimits
from tests.harness.replicas import S, SharedShard

TOPICS = ("mail", "orders", "audit")


class Limited(SharedShard):
    """A shard whose master is `other`; limits that can be changed."""

    def __init__(self, path: Path, rates: Mapping[str, str]) -> None:
        self.changed: Mapping[str, Rate | None] = {}
        self.set(**rates)
        super().__init__(path, limits=RateLimits({}, changed=lambda: self.changed))
        self.log.prepare(
            [TopicSpec(name=name, partitions=2, settings={}) for name in TOPICS], create=True
        )
        self.commit()

    def set(self, **rates: str) -> None:
        self.changed = {pattern: parse_rate(text) for pattern, text in rates.items()}

    def send(
        self,
        topic: str,
        count: int,
        *,
        in_ms: int = 0,
        expire_in_ms: int | None = None,
        key: bytes = b"k",
    ) -> None:
        """Send messages that are due `in_ms` from now, numbered in the order of their due times."""
        due_ms = self.clock.now + in_ms
        headers = [("chronos-target-topic", topic.encode()), ("chronos-target-key", key)]
        if expire_in_ms is not None:
            headers.append(("chronos-expire-at", b"%d" % (self.clock.now + expire_in_ms)))
        batch = [
            (self.delay, None, b"%d" % at, [*headers, ("chronos-deliver-at", b"%d" % due_ms)], 0)
            for at in range(count)
        ]
        self.log.append(batch, 10.0)

    def run(self, for_ms: int, *, steps_max: int = 10_000) -> int:
        """Step for some time, as the driver would; return the number of messages delivered."""
        until_ms, delivered = self.clock.now + for_ms, 0
        for _ in range(steps_max):
            turn = self.other.turn()
            wake_ms, report = turn.wake_ms, turn.report
            delivered += 0 if report is None else len(report.due_ms)
            # New records end a wait at once.
            wake_ms = (
                self.clock.now + 1
                if self.log.stable_end(self.delay, 0) > self.other.replica.pulled
                else wake_ms
            )
            if wake_ms > until_ms:
                self.clock.now = until_ms
                return delivered
            self.clock.now = max(self.clock.now, wake_ms)
        raise AssertionError(f"more than {steps_max} steps")

    def read(self, topic: str) -> list[int]:
        """The numbers of the messages in a topic, in the order of each partition."""
        return [
            int(record.value or b"-1")
            for partition in range(2)
            for record in self.log.reader(topic, partition, 0).read(1_000_000, 10**9)
        ]

    def progress_records(self) -> list[Progress]:
        return [
            unpack_progress(record.value, 1)
            for record in self.log.reader(self.progress, 0, 0).read(1_000_000, 10**9)
        ]

    def parked(self) -> Counter[int]:
        """How often the message of each source offset was parked, each time for its rate."""
        found: Counter[int] = Counter()
        for progress in self.progress_records():
            for decision in progress.decisions:
                if decision.outcome is Outcome.PARKED:
                    assert (decision.lane, decision.reason) == (LIMITED, Reason.RATE_LIMITED)
                    found[decision.offset] += 1
        return found


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Limited]:
    made = Limited(tmp_path, {"mail": "100/s burst 20"})
    yield made
    made.log.close()


def test_a_backlog_leaves_at_the_rate_in_order_and_delays_no_other_target(limited: Limited) -> None:
    """Each message is parked once at most; those within the burst are delivered at once."""
    limited.clock.now += 1_000
    limited.send("mail", 2_000)
    limited.run(50)
    assert len(limited.read("mail")) == pytest.approx(20, abs=6)
    limited.send("orders", 500)
    assert limited.run(20) >= 500
    assert limited.read("orders") == list(range(500))
    before = len(limited.read("mail"))
    limited.run(10_000)
    assert len(limited.read("mail")) - before == pytest.approx(1_000, rel=0.05)
    limited.run(11_000)
    assert limited.read("mail") == list(range(2_000))
    parked = limited.parked()
    assert set(parked.values()) == {1}
    assert len(parked) >= 1_980
    assert limited.other.replica.state.parked == 0


def test_a_changed_rate_acts_within_a_second_and_a_lifted_one_lets_everything_leave(
    limited: Limited,
) -> None:
    limited.set(mail="0.5/s")
    limited.send("mail", 3_000)
    limited.run(4_000)
    assert len(limited.read("mail")) <= 3
    limited.set(mail="500/s")
    limited.run(3_000)
    # Three seconds' worth, and what a pause allows at once.
    assert 950 <= len(limited.read("mail")) <= 1_500 + 250
    limited.set()
    limited.run(1_100)
    assert limited.read("mail") == list(range(3_000))
    limited.send("mail", 100)
    assert limited.run(20) == 100
    limited.set(mail="0/s")
    limited.send("mail", 5)
    assert limited.run(30_000) == 0, "a rate of nothing holds everything back"


def test_expired_messages_leave_without_taking_anything_of_the_rate(limited: Limited) -> None:
    limited.send("mail", 50)
    limited.send("mail", 300, in_ms=1, expire_in_ms=300)
    limited.send("mail", 10, in_ms=2)
    limited.run(1_200)
    assert len(limited.read("mail")) >= 60
    assert (
        sum(progress.counts[Outcome.EXPIRED - 1] for progress in limited.progress_records()) >= 200
    )


def test_a_take_over_parks_nothing_again_and_sends_no_burst_of_its_own(limited: Limited) -> None:
    limited.send("mail", 1_000)
    limited.run(2_000)
    before, parked = limited.read("mail"), limited.parked()
    limited.other.replica.close()
    limited.clock.now += 90_001
    limited.other = limited.node
    limited.node.assignment = STANDALONE
    limited.node.until(S.MASTER)
    assert limited.node.replica.state.parked == 1_000 - len(before)
    assert limited.run(100) <= 11
    limited.run(10_000)
    assert limited.read("mail") == list(range(1_000))
    assert limited.parked() == parked


def test_a_parked_message_can_be_cancelled_and_leaves_no_hole_in_the_rate(limited: Limited) -> None:
    limited.send("mail", 1_000)
    limited.run(200)
    cancels = [
        (
            limited.delay,
            b"0-%d-%d" % (limited.clock.now - 200, offset),
            None,
            [("chronos-action", b"cancel")],
            0,
        )
        for offset in range(100, 600)
    ]
    limited.log.append(cancels, 10.0)
    limited.run(2_000)
    found = limited.read("mail")
    assert len(found) == pytest.approx(220, rel=0.1)
    assert found[:100] == list(range(100))
    assert found[100:] == list(range(600, 500 + len(found)))


def test_a_limited_target_with_free_tokens_is_delivered_to_directly(limited: Limited) -> None:
    limited.clock.now += 1_000
    for _ in range(5):
        limited.send("mail", 10)
        assert limited.run(200) == 10
    assert not limited.parked()
    assert limited.read("mail") == [*range(10)] * 5
