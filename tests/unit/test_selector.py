"""The fault-aware selector against RocketMQ's rules, written down a second time."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronos.core.selector import FAILED_MS, Selector, penalty_ms
from tests.harness.table import table
from tests.unit.settings import examples

NOW_MS = 1_800_000_000_000
NONE_CLOSED: frozenset[int] = frozenset()
SECOND_MS = 1_000


@table(
    ("latency_ms", "penalty_s"),
    [
        (0, 0),
        (49, 0),
        (50, 0),
        (99, 0),
        (100, 0),
        (549, 0),
        (550, 30),
        (999, 30),
        (1_000, 60),
        (1_999, 60),
        (2_000, 120),
        (2_999, 120),
        (3_000, 180),
        (14_999, 180),
        (15_000, 600),
        (30_000, 600),
        (10**9, 600),
    ],
)
def test_a_send_makes_its_broker_unavailable_for_the_time_in_the_table(
    latency_ms: int, penalty_s: int
) -> None:
    """And not a millisecond longer: it gets its second chance."""
    assert penalty_ms(latency_ms) == penalty_s * SECOND_MS
    selector = Selector()
    selector.report("t", 0, 1, latency_ms, NOW_MS)
    end_ms = NOW_MS + penalty_s * SECOND_MS
    assert selector.is_available(1, NOW_MS) == (penalty_s == 0)
    assert selector.is_available(1, end_ms - 1) == (penalty_s == 0)
    assert selector.is_available(1, end_ms)


@pytest.mark.parametrize(
    ("leaders", "after_s", "found"),
    [
        ((1, 2), 1, []),
        ((1, 3), 1, [(1, 2)]),
        ((1, 3), 119, [(1, 2)]),
        ((1, 3), 120, []),
        ((1, 3), -1, []),
        ((1, -1), 1, []),
        ((1,), 1, []),
    ],
)
def test_a_suspected_leader_has_failed_if_it_is_replaced_in_time(
    leaders: tuple[int, ...], after_s: int, found: list[tuple[int, int]]
) -> None:
    selector = Selector()
    selector.suspect("t", 1, 2, NOW_MS)
    selector.suspect("t", 0, 1, NOW_MS)
    at_ms = NOW_MS + after_s * SECOND_MS
    assert selector.replaced("other", leaders, at_ms) == []
    assert selector.replaced("t", leaders, at_ms) == found
    assert selector.replaced("t", leaders, at_ms) == [], "once"


def test_a_failed_send_counts_as_one_of_30_s() -> None:
    failed, slow = Selector(), Selector()
    failed.report("t", 0, 1, None, NOW_MS)
    slow.report("t", 0, 1, 30_000, NOW_MS)
    assert failed.brokers() == slow.brokers()
    assert failed.brokers()[1].available_ms == NOW_MS + 600_000


@pytest.mark.parametrize("before", [None, 15_000, 550])
def test_a_good_send_makes_a_broker_available_at_once(before: int | None) -> None:
    """Also one that failed: RocketMQ 5 only ever extends a penalty, RocketMQ 4 replaces it."""
    selector = Selector()
    assert selector.report("t", 0, 1, before, NOW_MS)
    assert not selector.report("t", 0, 1, 549, NOW_MS + 1)
    assert selector.is_available(1, NOW_MS + 1)


def test_a_shorter_penalty_replaces_a_longer_one() -> None:
    selector = Selector()
    selector.report("t", 0, 1, 15_000, NOW_MS)
    selector.report("t", 0, 1, 600, NOW_MS)
    assert selector.is_available(1, NOW_MS + 30_000)


def test_a_clock_that_is_set_back_does_not_lengthen_a_penalty() -> None:
    selector = Selector()
    selector.report("t", 0, 1, 550, NOW_MS)
    assert selector.is_available(1, NOW_MS - 3_600_000)


def test_unknown_brokers_are_available_and_partitions_take_turns() -> None:
    selector = Selector()
    assert [selector.choose("t", [1, 2, 3], NONE_CLOSED, NOW_MS) for _ in range(6)] == [
        0,
        1,
        2,
        0,
        1,
        2,
    ]
    assert selector.choose("u", [1, 2, 3], NONE_CLOSED, NOW_MS) == 0, (
        "each topic has a rotation of its own"
    )


def test_partitions_of_unavailable_brokers_are_passed_over_until_the_penalty_ends() -> None:
    selector, leaders = Selector(), [1, 2, 3, 2]
    selector.report("t", 1, 2, 600, NOW_MS)
    assert {selector.choose("t", leaders, NONE_CLOSED, NOW_MS + 29_999) for _ in range(8)} == {0, 2}
    assert {selector.choose("t", leaders, NONE_CLOSED, NOW_MS + 30_000) for _ in range(8)} == {
        0,
        1,
        2,
        3,
    }


def test_with_all_brokers_unavailable_the_better_half_takes_turns() -> None:
    """By latency, then by the end of the penalty; of three brokers the better half is one."""
    selector = Selector()
    for broker, latency_ms in ((1, 3_000), (2, 600), (3, 1_000), (4, 15_000)):
        selector.report("t", 0, broker, latency_ms, NOW_MS)
    assert selector.ranked([4, 3, 2, 1], NOW_MS) == [2, 3, 1, 4]
    assert {selector.choose("t", [1, 2, 3, 4], NONE_CLOSED, NOW_MS) for _ in range(8)} == {1, 2}
    assert {selector.choose("t", [1, 2, 3], NONE_CLOSED, NOW_MS) for _ in range(8)} == {1}
    assert {selector.choose("t", [4], NONE_CLOSED, NOW_MS) for _ in range(2)} == {0}, (
        "a send is never refused"
    )
    selector.report("t", 0, 1, 600, NOW_MS - 1)
    assert selector.ranked([1, 2], NOW_MS) == [1, 2], "the penalty that ends first"
    assert selector.ranked([3, 4, 9], NOW_MS) == [9, 3, 4], "available ones first"


def test_the_partition_that_failed_last_is_avoided_until_a_send_succeeds() -> None:
    """Also where its broker is available, or all are not: RocketMQ 4.2 to 4.7 forced the retry onto
    it."""
    selector, leaders = Selector(), [1, 1, 1]
    selector.report("t", 1, 1, None, NOW_MS)
    assert {selector.choose("t", leaders, NONE_CLOSED, NOW_MS) for _ in range(6)} == {0, 2}
    assert {selector.choose("t", leaders, NONE_CLOSED, NOW_MS + 600_000) for _ in range(6)} == {
        0,
        2,
    }
    assert {selector.choose("t", leaders, {0, 2}, NOW_MS) for _ in range(2)} == {1}, (
        "the only one is used"
    )
    assert {selector.choose("u", leaders, NONE_CLOSED, NOW_MS) for _ in range(6)} == {0, 1, 2}, (
        "another topic"
    )
    selector.report("t", 0, 1, 5, NOW_MS)
    assert {selector.choose("t", leaders, NONE_CLOSED, NOW_MS) for _ in range(6)} == {0, 1, 2}


def test_closed_partitions_are_never_chosen() -> None:
    selector = Selector()
    assert {selector.choose("t", [1, 2, 3], {0, 2}, NOW_MS) for _ in range(3)} == {1}
    assert selector.choose("t", [1, 2, 3], {0, 1, 2}, NOW_MS) is None
    selector.report("t", 1, 2, None, NOW_MS)
    assert {selector.choose("t", [1, 2, 3], {0, 2}, NOW_MS) for _ in range(3)} == {1}


def test_choices_are_outdated_by_a_changed_penalty_only() -> None:
    selector = Selector()
    selector.report("t", 0, 1, 3, NOW_MS)
    assert selector.changes == 0
    selector.report("t", 0, 1, 700, NOW_MS)
    selector.report("t", 0, 1, 800, NOW_MS)
    assert selector.changes == 1
    selector.report("t", 0, 1, 3, NOW_MS)
    assert selector.changes == 2


# --- a model of RocketMQ's rules


def usable_by_the_rules(
    sends: dict[int, tuple[int, int]],
    failed: int | None,
    leaders: list[int],
    closed: set[int],
    now_ms: int,
) -> set[int]:
    """The partitions that may be chosen. `sends`: by broker, when its last send was reported, and
    its latency in ms."""
    bounds = [50, 100, 550, 1_000, 2_000, 3_000, 15_000]
    seconds = [0, 0, 30, 60, 120, 180, 600]

    def free_ms(broker: int) -> int:
        if broker not in sends:
            return 0
        at_ms, latency_ms = sends[broker]
        reached = [index for index, bound in enumerate(bounds) if bound <= latency_ms]
        return at_ms + (1_000 * seconds[max(reached)] if reached else 0)

    open_ones = {at for at in range(len(leaders)) if at not in closed}
    candidates = open_ones - {failed} or open_ones
    available = {at for at in candidates if free_ms(leaders[at]) <= now_ms}
    if available:
        return available
    order = sorted(
        {leaders[at] for at in candidates}, key=lambda one: (sends[one][1], free_ms(one), one)
    )
    half = len(order) // 2
    better = order[:half] if half > 0 else order[:1]
    return {at for at in candidates if leaders[at] in better}


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int, int | None, set[int]]]]:
    """Leaders of the partitions, and events: time that passes, partition reported, latency (None:
    failed), closed ones."""
    leaders = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    partition = st.integers(0, len(leaders) - 1)
    latency = st.none() | st.sampled_from(
        [0, 60, 549, 550, 999, 1_000, 1_999, 2_000, 2_999, 3_000, 14_999, 15_000]
    )
    event = st.tuples(st.integers(0, 200_000), partition, latency, st.sets(partition))
    return leaders, draw(st.lists(event, max_size=30))


@examples(300)
@given(history=histories())
def test_every_choice_is_one_that_the_rules_allow_and_all_of_those_take_turns(
    history: tuple[list[int], list[tuple[int, int, int | None, set[int]]]],
) -> None:
    leaders, events = history
    selector, now_ms, failed = Selector(), NOW_MS, None
    sends: dict[int, tuple[int, int]] = {}
    for passed_ms, partition, latency_ms, closed in events:
        now_ms += passed_ms
        selector.report("t", partition, leaders[partition], latency_ms, now_ms)
        sends[leaders[partition]] = now_ms, FAILED_MS if latency_ms is None else latency_ms
        failed = partition if latency_ms is None else None
        usable = usable_by_the_rules(sends, failed, leaders, closed, now_ms)
        if not usable:
            assert selector.choose("t", leaders, closed, now_ms) is None
            continue
        rounds = 2
        chosen = Counter(
            selector.choose("t", leaders, closed, now_ms) for _ in range(rounds * len(usable))
        )
        assert chosen == dict.fromkeys(usable, rounds), (
            "each usable partition is chosen equally often"
        )
