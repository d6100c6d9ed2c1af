"""Rate limits: their texts, which of them a topic has, the shares of shards, and the bucket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronos.core.keys import LIMITED, WHOLE_TOPIC
from chronos.core.rates import Rate, RateTable, check_pattern, parse_rate, rate_text
from chronos.workers.step.lanes import BUCKETS_MAX, REPORTED_MAX, RateLimits, ShardRates
from tests.harness.table import table


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("200/s", Rate(200, 100)),
        ("50/s burst 100", Rate(50, 100)),
        (" 0.5 / s ", Rate(0.5, 1)),
        ("0/s", Rate(0, 1)),
        ("1000/s burst 100", Rate(1000, 100)),
        ("unlimited", None),
    ],
)
def test_a_rate_is_read_and_written_as_users_write_it(text: str, rate: Rate | None) -> None:
    assert parse_rate(text) == rate
    assert parse_rate(rate_text(rate)) == rate


@pytest.mark.parametrize(
    "text", ["", "200", "200/m", "-1/s", "1e3/s", "200/s burst", "9999999/s", "off"]
)
def test_a_text_that_is_no_rate_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"200/s|greatest rate"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["1000/s burst 99", "5/s burst 0", "5/s burst 1000001"])
def test_a_burst_that_cannot_keep_up_the_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="burst out of bounds"):
        parse_rate(text)


@given(st.integers(0, 1_000_000_000), st.integers(0, 1_000_000))
def test_every_rate_survives_its_text(thousandths: int, burst: int) -> None:
    rate = Rate(thousandths / 1_000, max(burst, thousandths // 10_000, 1))
    assert parse_rate(rate_text(rate)) == rate


@pytest.mark.parametrize("pattern", ["", "a b", "a/b", "x" * 250])
def test_a_pattern_that_can_match_no_topic_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="nor a pattern"):
        check_pattern(pattern)


def test_the_most_specific_limit_is_in_force_and_one_set_at_run_time_comes_first() -> None:
    rates = {
        text: parse_rate(f"{at}/s")
        for at, text in enumerate(["*", "orders.*", "orders.e*", "orders.eu", "[a-z]*"], 1)
    }
    table = RateTable(rates, {"mail*": parse_rate("9/s"), "orders.uk": None})
    found = {
        topic: table.rate(topic)
        for topic in ("orders.eu", "orders.es", "orders.us", "mail", "orders.uk", "x")
    }
    assert {topic: None if rate is None else int(rate.per_s) for topic, rate in found.items()} == {
        "orders.eu": 4,
        "orders.es": 3,
        "orders.us": 2,
        "mail": 9,
        "orders.uk": None,
        "x": 1,
    }
    assert table.of("mail").changed  # type: ignore[union-attr]
    assert RateTable({}, {}).of("x") is None


def limits_of(text: str, lengths: list[int] | None = None) -> RateLimits:
    return RateLimits({"t": parse_rate(text)}, lengths=lambda topic: lengths or [0])


runs = st.lists(
    st.tuples(st.one_of(st.integers(0, 40), st.integers(0, 2_000)), st.integers(0, 500)),
    min_size=5,
    max_size=60,
)


@given(
    runs, st.sampled_from(["7/s", "100/s", "1000/s burst 100", "0.5/s", "0/s", "20/s burst 300"])
)
def test_no_window_has_more_messages_than_the_rate_and_one_burst(
    run: list[tuple[int, int]], text: str
) -> None:
    """However the calls fall; each takes as many as it wants and may."""
    rate = parse_rate(text)
    assert rate is not None
    rates, now_ms, sent = ShardRates(0, limits_of(text), began_ms=0), 0, []
    for passed_ms, wanted in run:
        now_ms += passed_ms
        taken = min(wanted, rates.allowed(["t"], now_ms)["t"])
        rates.spend({"t": taken})
        sent.append((now_ms, taken))
    for at, (from_ms, _) in enumerate(sent):
        total = 0
        for to_ms, taken in sent[at:]:
            total += taken
            assert total <= rate.per_s * (to_ms - from_ms) / 1_000 + rate.burst + 1e-3


@table("text", ["3/s", "100/s", "1000/s", "5000/s burst 500"])
@table("step_ms", [1, 7, 90])
def test_a_backlog_leaves_at_the_rate_to_within_five_percent_over_ten_seconds(
    text: str, step_ms: int
) -> None:
    rate = parse_rate(text)
    assert rate is not None
    lane = ("t", LIMITED)
    rates, now_ms, taken = ShardRates(0, limits_of(text), began_ms=0), 0, 0
    first = 0
    while now_ms < 20_000:
        found = rates.openings({lane: 10**6}, {lane}, set(), set(), now_ms)
        rates.spend(found.allowed)
        taken += found.allowed.get("t", 0)
        if now_ms < 10_000:
            first = taken
        now_ms = max(now_ms + step_ms, found.next_ms or 0)
    assert taken - first == pytest.approx(rate.per_s * 10, rel=0.05)


def test_a_new_bucket_is_empty_and_one_of_a_long_leadership_is_full() -> None:
    rates = ShardRates(0, limits_of("100/s"), began_ms=1_000)
    assert rates.allowed(["t", "other"], 1_000) == {"t": 0}
    assert rates.allowed(["t"], 1_100) == {"t": 10}
    assert ShardRates(0, limits_of("100/s"), began_ms=1_000).allowed(["t"], 9_000) == {"t": 50}


@pytest.mark.parametrize("stopped", ["0/s", "0/s burst 100"])
def test_a_target_that_is_stopped_takes_nothing_that_was_saved_before(stopped: str) -> None:
    """A rate set later begins anew."""
    limits: dict[str, Rate | None] = {"t": parse_rate("100/s")}
    rates = ShardRates(0, RateLimits({}, changed=lambda: limits), began_ms=0)
    assert rates.allowed(["t"], 10_000) == {"t": 50}
    limits = {"t": parse_rate(stopped)}
    assert rates.allowed(["t"], 10_001) == {"t": 0}
    lane = ("t", LIMITED)
    assert not rates.openings({lane: 100}, {lane}, set(), set(), 99_000).lanes
    limits = {"t": parse_rate("100/s")}
    assert rates.allowed(["t"], 99_100) == {"t": 10}


def test_a_clock_that_is_set_gives_one_burst_at_most_and_does_not_stop_the_rate() -> None:
    rates = ShardRates(0, limits_of("100/s"), began_ms=10**6)
    assert rates.allowed(["t"], 10**9) == {"t": 50}
    rates.spend({"t": 50})
    assert rates.allowed(["t"], 10**6) == {"t": 0}
    assert rates.allowed(["t"], 10**6 + 200) == {"t": 20}


def test_shares_follow_the_lengths_of_the_lanes_and_make_up_the_whole_rate() -> None:
    limits = limits_of("100/s", [0, 0, 999, 2_999])
    shares = [limits.share("t", shard) for shard in range(4)]
    assert sum(shares) == pytest.approx(1)
    assert shares[3] == pytest.approx(0.75, rel=0.01)
    assert all(limits_of("1/s", [0] * 4).share("t", shard) == 0.25 for shard in range(4))


def test_what_waits_for_a_partition_leaves_before_what_waits_for_the_rate() -> None:
    """The first is older. A topic whose messages can only be dead-lettered has no rate."""
    rates = ShardRates(0, limits_of("100/s"), began_ms=0)
    lanes = {("t", LIMITED): 5, ("t", 0): 3, ("free", WHOLE_TOPIC): 2}
    found = rates.openings(lanes, lanes.keys(), set(), set(), 1_000)
    assert found.lanes == {("t", 0), ("free", WHOLE_TOPIC)}
    assert found.allowed == {"t": 50}
    assert found.waiting == {"t": 8}
    closed = rates.openings(lanes, {("t", LIMITED)}, set(), set(), 1_000)
    assert closed.lanes == {("t", LIMITED)}
    rates.spend({"t": 50})
    empty = rates.openings(lanes, lanes.keys(), set(), set(), 1_000)
    assert empty.lanes == {("free", WHOLE_TOPIC)}
    assert not empty.allowed
    assert empty.next_ms == pytest.approx(1_050, abs=1)
    assert rates.openings(lanes, lanes.keys(), {"t"}, set(), 1_000).lanes == {
        ("t", 0),
        ("free", WHOLE_TOPIC),
    }


def test_what_waits_for_a_partition_of_a_target_that_is_set_aside_does_not_wait_for_the_rate() -> (
    None
):
    """Messages that leave such a lane are deferred: one at a time they would enter it again for
    ever."""
    rates = ShardRates(0, limits_of("100/s"), began_ms=0)
    lanes = {("t", LIMITED): 5, ("t", 0): 3}
    aside = rates.openings(lanes, lanes.keys(), set(), {"t"}, 1)
    assert aside.lanes == {("t", 0)}
    assert not aside.allowed
    assert not rates.openings(lanes, {("t", LIMITED)}, set(), {"t"}, 1).lanes


def test_a_lane_shorter_than_a_burst_does_not_wait_for_more_tokens_than_it_needs() -> None:
    rates = ShardRates(0, limits_of("100/s"), began_ms=0)
    rates.spend(rates.allowed(["t"], 10_000))
    lane = ("t", LIMITED)
    assert rates.openings({lane: 100}, {lane}, set(), set(), 10_010).next_ms == pytest.approx(
        10_050, abs=1
    )
    assert rates.openings({lane: 1}, {lane}, set(), set(), 10_010).allowed == {"t": 1}


def test_the_memory_and_the_reports_of_many_limited_topics_are_bounded() -> None:
    rates = ShardRates(0, RateLimits({"*": parse_rate("10/s")}), began_ms=0)
    for number in range(BUCKETS_MAX + 5):
        rates.allowed([f"t{number}"], 10_000)
    assert len(rates._buckets) <= BUCKETS_MAX
    assert rates.allowed(["t0"], 10_000) == {"t0": 0}, "a bucket that was dropped begins empty"
    lanes = {(f"t{number}", LIMITED): number + 1 for number in range(200)}
    waiting = rates.openings(lanes, lanes.keys(), set(), set(), 10_000).waiting
    assert len(waiting) == REPORTED_MAX
    assert min(waiting.values()) == 200 - REPORTED_MAX + 1
