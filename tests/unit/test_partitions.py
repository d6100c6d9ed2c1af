"""The partitions of messages without a key: which one each step gets, and how the answers of the
leaders change that."""

from __future__ import annotations

from collections import Counter
from typing import cast

import pytest
from msgspec.structs import replace

from chronos.core.keys import partition_of
from chronos.core.message import Entry
from chronos.core.selector import Selector
from chronos.core.shard.codec import FRESH
from chronos.core.shard.look_ahead import LookAhead
from chronos.core.shard.rules import Rules
from chronos.core.shard.shard import Shard
from chronos.core.shard.step import Selection, selection_of
from chronos.errors import ProducerLost
from chronos.ports import Log, Sent, TopicInfo, Writer
from chronos.workers.step.partitions import TURN_MESSAGES, WAITS_MS
from chronos.workers.step.planned import PlannedTransaction, StepInputs
from chronos.workers.step.push import Pusher, PushSettings
from chronos.workers.step.targets import Refusals, Retries
from tests.harness.clock import HandClock
from tests.harness.drafts import plan_next, plan_of
from tests.harness.memory import MemoryStore

NOW_MS = 1_800_000_000_000
RULES = Rules(shard=0, shards=1)
ORDERS = TopicInfo(
    id="1", partitions=3, leaderless=frozenset(), bytes_max=1_000_000, leaders=(1, 2, 3)
)


class Topics:
    """The part of a log that a pusher uses: every topic is described alike."""

    def __init__(self, info: TopicInfo) -> None:
        self.info = info

    def describe(self, topics: list[str]) -> dict[str, TopicInfo | None]:
        return dict.fromkeys(topics, self.info)


class Answered:
    """The part of a writer that tells how the leaders answered."""

    def __init__(self, *sent: Sent) -> None:
        self.sent = list(sent)


def sent(partition: int, latency_ms: int | None, topic: str = "orders") -> Sent:
    return Sent(topic=topic, partition=partition, latency_ms=latency_ms, failed=latency_ms is None)


def pusher_of(topics: Topics | TopicInfo = ORDERS, *, selector: Selector | None = None) -> Pusher:
    return Pusher(
        cast("Log", topics if isinstance(topics, Topics) else Topics(topics)),
        RULES,
        PushSettings(
            delay_topic="delay",
            rejected_topic="rejected",
            dead_letter_topic="dead",
            create_topics=False,
            retries=Retries(attempts_max=1, base_ms=1_000, cap_ms=1_000),
        ),
        selector=selector,
    )


def selected(
    count: int, *, targets: int = 1, key: bytes | None = None, expire_at_ms: int | None = None
) -> Selection:
    entries = [
        Entry(None, 1, f"orders{at % targets}", key, {}, b"v", 1, expire_at_ms)
        for at in range(count)
    ]
    items = [(1, at, b"") for at in range(count)]
    return selection_of(items, entries, (1, count), complete=False)


def look_ahead() -> LookAhead[PlannedTransaction]:
    return LookAhead(Shard(rules=RULES, state=FRESH, view=MemoryStore()))


def planned(
    pusher: Pusher, selection: Selection, ahead: LookAhead[PlannedTransaction] | None = None
) -> list[tuple[str, int]]:
    """The topic and the partition of each message."""
    plan = plan_of(
        pusher, selection, StepInputs(now_ms=NOW_MS, refusals=Refusals()), ahead or look_ahead()
    )
    return [(topic, partition) for topic, _, _, _, partition in plan.messages]


def report(pusher: Pusher, *answers: Sent) -> None:
    with pusher.partitions.following(cast("Writer", Answered(*answers)), HandClock()):
        pass


def test_each_step_takes_the_next_partition_of_each_target() -> None:
    pusher = pusher_of(selector=Selector())
    steps = [set(planned(pusher, selected(4, targets=2))) for _ in range(4)]
    assert steps == [{("orders0", at % 3), ("orders1", at % 3)} for at in range(4)]


@pytest.mark.parametrize("expire_at_ms", [None, NOW_MS + 1])
def test_a_large_step_is_spread_over_the_partitions(expire_at_ms: int | None) -> None:
    """Also where each message needs a decision of its own."""
    taken = Counter(
        planned(
            pusher_of(selector=Selector()), selected(5 * TURN_MESSAGES, expire_at_ms=expire_at_ms)
        )
    )
    assert taken == {
        ("orders0", 0): 2 * TURN_MESSAGES,
        ("orders0", 1): 2 * TURN_MESSAGES,
        ("orders0", 2): TURN_MESSAGES,
    }


def test_a_large_step_for_many_targets_writes_to_one_partition_of_each() -> None:
    assert (
        len(set(planned(pusher_of(selector=Selector()), selected(5 * TURN_MESSAGES, targets=50))))
        == 50
    )


@pytest.mark.parametrize("selector", [None, Selector()])
def test_a_message_with_a_key_keeps_its_partition(selector: Selector | None) -> None:
    assert set(planned(pusher_of(selector=selector), selected(3, key=b"k"))) == {("orders0", -1)}


@pytest.mark.parametrize("info", [ORDERS, replace(ORDERS, leaders=())])
def test_the_log_chooses_without_a_selector_or_without_brokers(info: TopicInfo) -> None:
    assert set(planned(pusher_of(info), selected(3))) == {("orders0", -1)}
    without_brokers = replace(info, leaders=())
    assert set(planned(pusher_of(without_brokers, selector=Selector()), selected(3))) == {
        ("orders0", -1)
    }


@pytest.mark.parametrize("selector", [None, Selector()])
@pytest.mark.parametrize("leaders", [(), (1, 2, 3)])
def test_a_closed_partition_is_never_chosen(
    selector: Selector | None, leaders: tuple[int, ...]
) -> None:
    pusher = pusher_of(replace(ORDERS, short=frozenset({1}), leaders=leaders), selector=selector)
    assert {place for _ in range(4) for place in planned(pusher, selected(1))} == {
        ("orders0", 0),
        ("orders0", 2),
    }


def test_partitions_of_a_broker_that_did_not_answer_are_avoided() -> None:
    selector = Selector()
    pusher = pusher_of(selector=selector)
    planned(pusher, selected(1))
    report(pusher, sent(1, None, "orders0"), sent(0, 3, "orders0"))
    assert not selector.is_available(2, NOW_MS)
    assert {place for _ in range(4) for place in planned(pusher, selected(1))} == {
        ("orders0", 0),
        ("orders0", 2),
    }


def test_a_broker_that_failed_is_available_again_only_once_it_is_known_to_lead_still() -> None:
    """A new leader may have answered: the topic is described again, and the next answer counts."""
    selector, clock = Selector(), HandClock()
    topics = Topics(ORDERS)
    pusher = pusher_of(topics, selector=selector)

    def step(answer: Sent) -> None:
        clock.now += 10
        pusher.targets.describe(["orders0"], clock.now)
        clock.now += 10
        with pusher.partitions.following(
            cast("Writer", Answered(sent(0, 3, "orders0"), answer)), clock
        ):
            pass

    for moves in (True, False):
        topics.info = ORDERS
        step(sent(1, None, "orders0"))
        assert not selector.is_available(2, clock.now)
        topics.info = replace(ORDERS, leaders=(1, 3, 3)) if moves else ORDERS
        step(sent(1, 3, "orders0"))
        assert not selector.is_available(2, clock.now)
        step(sent(1, 3, "orders0"))
        assert selector.is_available(2, clock.now) == (not moves)
        pusher.targets.forget_all()


def test_no_broker_is_blamed_for_a_transaction_that_nobody_acknowledged() -> None:
    """Its coordinator may be the cause."""
    selector = Selector()
    pusher = pusher_of(selector=selector)
    planned(pusher, selected(1))
    report(pusher, *(sent(at, None, "orders0") for at in range(3)))
    assert selector.brokers() == {}


def test_a_silent_leader_is_blamed_once_another_one_leads_in_its_place() -> None:
    """The next leadership of the shard, with a pusher of its own, finds out."""
    selector = Selector()
    before = pusher_of(selector=selector)
    planned(before, selected(1))
    report(before, *(sent(at, None, "orders0") for at in range(3)))
    after = pusher_of(replace(ORDERS, leaders=(1, 3, 3)), selector=selector)
    planned(after, selected(1))
    report(after, sent(0, 5, "orders0"))
    assert {broker: known.penalty_ms for broker, known in selector.brokers().items()} == {
        1: 0,
        2: 600_000,
    }


def test_an_answer_about_an_unknown_partition_is_ignored() -> None:
    selector = Selector()
    pusher = pusher_of(selector=selector)
    planned(pusher, selected(1))
    report(pusher, sent(0, 5, "progress"), sent(-1, 5, "orders0"), sent(3, 5, "orders0"))
    assert selector.brokers() == {}


@pytest.mark.parametrize("latency_ms", [5, 5_000])
def test_a_transaction_planned_early_is_planned_again_once_a_broker_is_avoided(
    latency_ms: int,
) -> None:
    pusher, selection, ahead = pusher_of(selector=Selector()), selected(4), look_ahead()
    planned(pusher, selected(1))
    plan_next(pusher, selection, StepInputs(now_ms=NOW_MS, refusals=Refusals()), ahead)
    report(pusher, sent(1, latency_ms, "orders0"))
    is_slow = latency_ms > 1_000
    assert set(planned(pusher, selection, ahead)) == {("orders0", 2 if is_slow else 1)}


def test_the_partitions_that_have_not_acknowledged_are_named_with_their_leaders() -> None:
    pusher, clock = pusher_of(selector=Selector()), HandClock()
    planned(pusher, selected(1))
    partitions = pusher.partitions
    keyed = Sent(
        topic="orders0",
        partition=-1,
        key=next(key for key in (b"a", b"b", b"c", b"d") if partition_of(key, 3) == 1),
    )
    waiting = [
        keyed,
        *(Sent(topic="orders0", partition=at) for at in (1, 0, 2)),
        sent(2, 5, "orders0"),
    ]
    writer = cast("Writer", Answered(Sent(topic="progress", partition=0), *waiting))
    assert partitions.waits_for(NOW_MS) is None
    with partitions.following(writer, clock):
        assert partitions.waits_for(NOW_MS + WAITS_MS - 1) is None
        assert partitions.waits_for(NOW_MS + 2_500) == (
            "no acknowledgement for 2 s from orders0/0 (leader: broker 1), orders0/1 (leader: "
            "broker 2), orders0/2 (leader: broker 3) and 1 more"
        )
    assert partitions.waits_for(NOW_MS + 9_000) is None


def test_the_error_for_a_late_transaction_names_the_partitions_that_did_not_acknowledge() -> None:
    pusher = pusher_of(selector=Selector())
    planned(pusher, selected(1))
    writer = cast("Writer", Answered(sent(0, 3, "orders0"), sent(1, None, "orders0")))
    following = pusher.partitions.following(writer, HandClock())
    with (
        pytest.raises(
            ProducerLost, match=r"late; no acknowledgement from orders0/1 \(leader: broker 2\)$"
        ),
        following,
    ):
        raise ProducerLost("late")
    following = pusher.partitions.following(
        cast("Writer", Answered(sent(0, 3, "orders0"))), HandClock()
    )
    with pytest.raises(ProducerLost, match=r"^fenced$"), following:
        raise ProducerLost("fenced")
