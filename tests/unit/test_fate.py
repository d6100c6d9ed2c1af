"""The fates of messages, and the times of a step at which they are the same."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from chronos.core.cron import ZONE_DATA
from chronos.core.message import Entry, LatePolicy, Options, Reason, Repetition
from chronos.core.series import parse_repetition
from chronos.core.shard.fate import Dead, Fates, Fires, fate_of, fates_of
from chronos.core.shard.step import Selection, selection_of

T = 1_700_000_000_000
SHARD = 3


def every_second(late_policy: LatePolicy = LatePolicy.FIRE_ALL) -> Options:
    parsed = parse_repetition("every 1s")
    return Options(repetition=Repetition(parsed.kind, parsed.values, late_policy=late_policy))


def selected(*entries: Entry) -> Selection:
    items = [(T, at, b"") for at in range(len(entries))]
    return selection_of(items, list(entries), (T, len(items)), complete=True)


def message(expire_at_ms: int | None = None, options: Options | None = None) -> Entry:
    return Entry(b"id", T, "orders", None, {}, b"v", T, expire_at_ms, options=options)


def fates(selection: Selection, now_ms: int) -> Fates:
    return fates_of(selection, SHARD, now_ms, ZONE_DATA)


def test_a_message_without_terms_has_no_fate_and_one_with_them_may_have_none() -> None:
    selection = selected(message(), message(T + 9), message(options=Options(attempts_max=2)))
    assert selection.with_terms == [1, 2]
    assert fates(selection, T).of == {}


def test_an_expired_occurrence_is_dead_and_its_series_goes_on() -> None:
    """The expiry counts first, also before an occurrence that is in time."""
    entry = message(T + 100, every_second())
    assert fate_of(entry, 7, SHARD, T + 100) == Fires(T + 1_000)
    dead = fate_of(entry, 7, SHARD, T + 101)
    assert isinstance(dead, Dead)
    assert (dead.reason, dead.next_ms) == (Reason.EXPIRED, T + 1_000)


def test_an_occurrence_that_is_skipped_does_not_expire() -> None:
    """What was missed is one occurrence, at the time of the last one that was missed."""
    entry = message(T + 100, every_second(LatePolicy.FIRE_ONCE))
    assert type(fate_of(entry, 7, SHARD, T + 5_000)).__name__ == "Skips"


@given(
    st.lists(st.none() | st.integers(T - 20, T + 20), min_size=1, max_size=6),
    st.integers(T - 25, T + 25),
)
def test_fates_hold_at_exactly_the_times_at_which_the_same_messages_have_expired(
    expiries: list[int | None], made_ms: int
) -> None:
    selection = selected(*(message(at_ms) for at_ms in expiries))
    made = fates(selection, made_ms)
    for now_ms in range(T - 30, T + 30):
        assert made.hold(now_ms) == (fates(selection, now_ms).of == made.of)


def test_fates_with_a_series_hold_at_their_own_time_only() -> None:
    selection = selected(message(), message(options=every_second()), message(T + 9))
    made = fates(selection, T)
    assert [made.hold(now_ms) for now_ms in (T - 1, T, T + 1)] == [False, True, False]


def test_an_expiry_beside_a_series_never_widens_the_times_at_which_fates_hold() -> None:
    """Whichever of the two comes first in the selection."""
    one, other = message(options=every_second()), message(T - 9)
    for pair in ((one, other), (other, one)):
        made = fates(selected(*pair), T)
        assert made.hold(T)
        assert not any(made.hold(T + by) for by in (-9, -8, -1, 1, 9))


def test_the_bounds_of_a_window_of_fates_touch_those_of_the_next() -> None:
    selection = selected(*(message(T + at) for at in (0, 5, 9)))
    windows = [fates(selection, now_ms) for now_ms in (T, T + 1, T + 6, T + 10)]
    for one, next_one in pairwise(windows):
        assert one.until_ms + 1 == next_one.from_ms
