"""Health of masters against DDMQ's rules HA-*: windows, quorum, permission and the choice of a
candidate."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronos.core.cluster.health import (
    ARMED,
    ARMED_MS,
    AUTO,
    OFF,
    Candidate,
    HealthRules,
    Observations,
    Verdict,
    Window,
    armed_until,
    choose,
    is_unhealthy,
    may_switch,
    quorum,
)
from tests.unit.settings import examples

NOW_MS = 1_800_000_000_000
RULES = HealthRules()


def test_the_constants_are_those_of_the_rules() -> None:
    """HA-02, HA-14, HA-20, HA-22, HA-24, HA-31."""
    assert (RULES.every_ms, RULES.timeout_ms, RULES.window, RULES.failures, RULES.in_a_row) == (
        5_000,
        500,
        10,
        7,
        5,
    )
    assert (RULES.forgotten_ms, ARMED_MS) == (25_000, 15_000)


def test_shards_are_observed_no_more_often_and_windows_kept_no_shorter_than_the_rules_say() -> None:
    """Steps and periods are whole numbers, rounded up."""
    for every_ms, timeout_ms, slots in (
        (5_000, 500, 10),
        (1_000, 300, 4),
        (1_000, 999, 2),
        (1_000, 1_000, 1),
    ):
        assert HealthRules(every_ms=every_ms, timeout_ms=timeout_ms).slots == slots
        assert slots * timeout_ms >= every_ms
    assert [HealthRules(window=window).forgotten_ms for window in (4, 5, 10, 11)] == [
        10_000,
        15_000,
        25_000,
        30_000,
    ]


# --- Windows --------------------------------------------------------------------------------------


def verdict_after(results: tuple[bool, ...], rules: HealthRules = RULES) -> bool | None:
    """The verdict at the time of the last of these observations, one a period."""
    window = Window(rules)
    for at, healthy in enumerate(results):
        window.add(healthy=healthy, now_ms=NOW_MS + at * rules.every_ms)
    return window.verdict(NOW_MS + (len(results) - 1) * rules.every_ms)


def test_seven_failures_of_ten_or_the_five_latest_make_a_master_unhealthy() -> None:
    """HA-20, HA-22: all windows there are, also those that are not full yet."""
    for length in range(1, 11):
        for results in itertools.product((True, False), repeat=length):
            many = results.count(False) >= 7
            in_a_row = length >= 5 and not any(results[-5:])
            assert verdict_after(results) is not (many or in_a_row), results


def test_the_latest_failures_count_by_time_wherever_the_window_begins() -> None:
    """HA-23 mended: the rule of the five latest holds after every number of healthy observations,
    and is over with the next one."""
    for healthy in range(25):
        assert verdict_after((True,) * healthy + (False,) * 4) is True
        assert verdict_after((True,) * healthy + (False,) * 5) is False
        assert verdict_after((True,) * healthy + (False,) * 5 + (True,)) is True


def test_the_first_observation_counts() -> None:
    """HA-19 mended: five failures are enough for a master that was never observed before."""
    assert verdict_after((False,) * 5) is False


def test_observations_leave_the_window_in_their_order() -> None:
    """HA-20: an old failure counts no longer than ten observations."""
    six = (False, True) * 6
    assert verdict_after((*six, False)) is True
    assert verdict_after((False, False, True) * 5) is True
    assert verdict_after((False, False, True) * 5 + (False,)) is False
    assert verdict_after((False, False, True) * 5 + (False, True)) is True


def test_a_window_without_recent_observations_gives_no_verdict_and_starts_again() -> None:
    """HA-18, HA-21, HA-24: forgotten after 25 s."""
    window = Window(RULES)
    assert window.verdict(NOW_MS) is None
    for at in range(5):
        window.add(healthy=False, now_ms=NOW_MS + at)
    assert window.verdict(NOW_MS + 4 + 24_999) is False
    assert window.verdict(NOW_MS + 4 + 25_000) is None
    window.add(healthy=False, now_ms=NOW_MS + 4 + 25_000)
    assert window.verdict(NOW_MS + 4 + 25_000) is True


@examples(500)
@given(
    st.integers(4, 8),
    st.integers(1, 8),
    st.integers(1, 8),
    st.lists(st.booleans(), min_size=1, max_size=20).map(tuple),
)
def test_every_window_follows_the_rule(
    size: int, failures: int, in_a_row: int, results: tuple[bool, ...]
) -> None:
    """The ring of DDMQ, written down a second time, with the five latest taken by time."""
    rules = HealthRules(window=size, failures=min(failures, size), in_a_row=min(in_a_row, size))
    ring = [True] * size
    for at, healthy in enumerate(results):
        ring[at % size] = healthy
    latest = [ring[at % size] for at in range(max(0, len(results) - rules.in_a_row), len(results))]
    is_bad = ring.count(False) >= rules.failures or (
        len(latest) == rules.in_a_row and not any(latest)
    )
    assert verdict_after(results, rules) is not is_bad


def test_a_new_role_epoch_begins_a_new_window() -> None:
    """HA-44: what was observed of a master says nothing about its successor; each shard has its
    own."""
    seen = Observations(RULES)
    for _ in range(5):
        seen.add(3, 7, healthy=False, now_ms=NOW_MS)
    seen.add(4, 7, healthy=True, now_ms=NOW_MS)
    assert seen.verdict(3, NOW_MS) == Verdict(epoch=7, healthy=False)
    assert seen.verdict(4, NOW_MS) == Verdict(epoch=7, healthy=True)
    assert seen.verdict(5, NOW_MS) is None
    for _ in range(4):
        seen.add(3, 8, healthy=False, now_ms=NOW_MS)
        assert seen.verdict(3, NOW_MS) == Verdict(epoch=8, healthy=True)
    seen.add(3, 8, healthy=False, now_ms=NOW_MS)
    assert seen.verdict(3, NOW_MS) == Verdict(epoch=8, healthy=False)
    assert seen.verdict(3, NOW_MS + 25_000) is None


# --- Quorum ---------------------------------------------------------------------------------------


def test_the_quorum_is_two_thirds_of_the_observers_rounded_up() -> None:
    """HA-28, HA-29: the table, and no multiple of 3 is one more, as in floating point."""
    assert [quorum(n) for n in (2, 3, 4, 5, 6, 7, 9)] == [2, 2, 3, 4, 4, 5, 6]
    assert [quorum(n) for n in range(2, 31)] == [math.ceil(n * 2 / 3) for n in range(2, 31)]


@pytest.mark.parametrize("observers", range(8))
def test_a_master_is_unhealthy_if_a_quorum_of_two_or_more_observers_says_so(observers: int) -> None:
    """HA-25, HA-27, HA-28: all votes there are."""
    for votes in itertools.product((True, False), repeat=observers):
        assert is_unhealthy(votes) == (observers >= 2 and 3 * votes.count(False) >= 2 * observers)


# --- The gate -------------------------------------------------------------------------------------


def test_the_gate_is_open_in_auto_and_while_a_permission_is_valid() -> None:
    """HA-03, HA-31, HA-32."""
    valid = (NOW_MS + 1, NOW_MS + ARMED_MS)
    for until_ms in (None, NOW_MS, *valid, NOW_MS + ARMED_MS + 1):
        assert may_switch(AUTO, until_ms, NOW_MS)
        assert not may_switch(OFF, until_ms, NOW_MS)
        assert may_switch(ARMED, until_ms, NOW_MS) == (until_ms in valid)


def test_a_permission_is_valid_for_fifteen_seconds_from_the_request() -> None:
    """HA-31; a clock that is ahead gives no more."""
    assert armed_until(NOW_MS, NOW_MS) == NOW_MS + 15_000
    assert armed_until(NOW_MS - 14_999, NOW_MS) == NOW_MS + 1
    assert armed_until(NOW_MS - 15_000, NOW_MS) is None
    assert armed_until(NOW_MS + 60_000, NOW_MS) == NOW_MS + 15_000


# --- The candidate --------------------------------------------------------------------------------


def candidates(*applied: int | None) -> list[Candidate]:
    return [Candidate(node=f"n{at}", applied=each) for at, each in enumerate(applied)]


def test_the_most_advanced_candidate_wins_and_unknown_progress_never() -> None:
    """HA-34, HA-36: a tie goes to the first."""
    assert choose(candidates(5, 9, 7)) == "n1"
    assert choose(candidates(None, 0, None)) == "n1"
    assert choose(candidates(None, 3, 3)) == "n1"
    assert choose(candidates(None, None)) is None
    assert choose([]) is None


def test_a_tie_goes_to_the_node_with_the_fewest_masters() -> None:
    tied = [Candidate(node="a", applied=3, masters=2), Candidate(node="b", applied=3, masters=1)]
    assert choose(tied) == choose(tied[::-1]) == "b"
    assert choose([*tied, Candidate(node="c", applied=4, masters=9)]) == "c"
