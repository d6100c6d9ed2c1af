"""The pace of a backfill: due times by rank, and what may be sent ahead of them. Needs no Spark."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from chronos.errors import ArchiveFailed
from chronos.spark.backfill.pace import AHEAD_MS, Pace, Rates, SendingTurn, ahead_ms, change_from_ms

T = 1_900_000_000_000

rates = st.floats(0.01, 1e6)


def test_without_a_rate_everything_is_due_at_once() -> None:
    pace = Pace(base_ms=T)
    assert (pace.due_ms(0), pace.due_ms(10**9)) == (T, T)
    assert pace.due_by(T - 1) > 10**9


def test_a_change_moves_only_what_is_due_after_it() -> None:
    """Changes from before the first message, as of an earlier attempt, name the rate to begin
    with."""
    pace = Pace(base_ms=T, rates=[(0, 1.0), (T - 5_000, 500.0), (T - 1, 2.0), (T + 2_250, 10.0)])
    assert [pace.due_ms(rank) - T for rank in range(8)] == [
        0, 500, 1_000, 1_500, 2_000, 2_300, 2_400, 2_500,
    ]  # fmt: skip
    assert [pace.due_by(T + ms) for ms in (-1, 0, 499, 500, 2_299, 2_300)] == [0, 1, 1, 2, 5, 6]


@given(st.lists(st.tuples(st.integers(T - 10**6, T + 10**6), rates), max_size=4), rates)
def test_due_times_rise_and_agree_with_their_number(changes: Rates, first: float) -> None:
    """A message is counted by a time if it is due by then."""
    pace = Pace(base_ms=T, rates=[(0, first), *sorted(changes)])
    due = [pace.due_ms(rank) for rank in range(50)]
    assert due[0] == T
    assert due == sorted(due)
    for rank, due_ms in enumerate(due):
        assert pace.due_by(due_ms + 1) > rank
        assert pace.due_by(due_ms - 1) <= rank + 1


def test_all_tasks_agree_on_a_change() -> None:
    """One that has just read the rates sends nothing that is due when the change begins."""
    now_ms = T
    for direct in (False, True):
        old = Pace(base_ms=T - 60_000, rates=[(0, 50.0)])
        new = Pace(
            base_ms=T - 60_000, rates=[(0, 50.0), (change_from_ms(now_ms, direct=direct), 1)]
        )
        sent = old.due_by(now_ms + 5_000 + ahead_ms(direct=direct))
        assert [old.due_ms(rank) for rank in range(sent)] == [
            new.due_ms(rank) for rank in range(sent)
        ]


def test_a_task_admits_what_is_due_soon_at_the_rate_it_can_read() -> None:
    """A rate that cannot be read now is the last one that was."""
    now_ms = time.time_ns() // 1_000_000

    def unreadable() -> Rates:
        raise ArchiveFailed("no storage")

    turn = SendingTurn(Pace(base_ms=now_ms, rates=[(0, 100.0)]), AHEAD_MS, unreadable)
    assert not turn.admits(0)
    turn.wait(0)
    assert turn.admits(999)
    assert not turn.admits(100_000)
    slow = SendingTurn(
        Pace(base_ms=now_ms, rates=[(0, 100.0)]), AHEAD_MS, lambda: [(now_ms - 1, 1.0)]
    )
    slow.wait(0)
    assert slow.admits(9)
    assert not slow.admits(999)
    assert SendingTurn(Pace(base_ms=now_ms, rates=[(0, 0.001)]), None).admits(10**9)
