"""The last day of a node: counts fall into the minute in which they were counted, and memory is
bounded."""

from __future__ import annotations

from msgspec.structs import replace

from chronos.core.message import Reason
from chronos.node.histogram import LATENESS_S, Histogram
from chronos.node.history import MINUTES_MAX, History
from chronos.node.outcomes import Outcomes
from chronos.workers.step.planned import LetterCounts
from chronos.workers.step.report import StepReport

MINUTE_MS = 60_000
NOON_MS = 1_800_000_000_000


def report(*, dead: dict[Reason, int], rejected: int = 0) -> StepReport:
    letters, refused = LetterCounts(), LetterCounts()
    for reason, count in dead.items():
        for _ in range(count):
            letters.add(reason, "orders", b"id")
    for _ in range(rejected):
        refused.add(Reason.FORBIDDEN_TARGET, "orders", b"id")
    return StepReport(
        pulled=0,
        due_ms=[],
        committed_ms=NOON_MS,
        refused=[],
        dead=letters,
        rejected=refused,
        delivered={},
        late={},
    )


def test_what_was_done_is_counted_in_its_minute_once() -> None:
    outcomes, first, second = Outcomes(), Histogram(LATENESS_S), Histogram(LATENESS_S)
    history = History(outcomes)
    history.step(NOON_MS, pending=7, lateness=[first, second])
    for _ in range(99):
        first.observe(0.004)
    second.observe(2.0)
    outcomes.count(0, report(dead={Reason.TARGET_MISSING: 2, Reason.EXPIRED: 3}, rejected=4))
    history.step(NOON_MS + 1_000, pending=5, lateness=[first, second])
    history.step(NOON_MS + 59_999, pending=6, lateness=[first, second])
    second.observe(7_200.0)
    history.step(NOON_MS + MINUTE_MS, pending=4, lateness=[first, second])
    one, two = history.minutes(NOON_MS + MINUTE_MS, 60)
    assert (one.start_ms, one.delivered, one.dead, one.expired, one.rejected, one.pending) == (
        NOON_MS,
        100,
        2,
        3,
        4,
        6,
    )
    assert (one.quantile_s(0.99), one.quantile_s(1.0)) == (0.005, 2.5)
    assert (two.delivered, two.dead, two.expired, two.rejected, two.pending) == (1, 0, 0, 0, 4)
    assert two.quantile_s(0.99) is None, "an hour is the last bound"


def test_a_minute_without_deliveries_has_no_lateness() -> None:
    history = History(Outcomes())
    history.step(NOON_MS, pending=0, lateness=[Histogram(LATENESS_S)])
    (minute,) = history.minutes(NOON_MS, 1)
    assert minute.quantile_s(0.5) is None


def test_a_day_is_kept_and_older_minutes_are_not_shown() -> None:
    history, lateness = History(Outcomes()), Histogram(LATENESS_S)
    for at in range(MINUTES_MAX + 10):
        history.step(NOON_MS + at * MINUTE_MS, pending=at, lateness=[lateness])
    now_ms = NOON_MS + (MINUTES_MAX + 9) * MINUTE_MS
    kept = history.minutes(now_ms, 10 * MINUTES_MAX)
    assert [minute.pending for minute in kept] == list(range(10, MINUTES_MAX + 10))
    assert [minute.pending for minute in history.minutes(now_ms, 2)] == [1_448, 1_449]
    # The process did not run for an hour.
    assert history.minutes(now_ms + 60 * MINUTE_MS, 60) == []


def test_a_clock_that_was_ahead_leaves_no_minutes_to_come() -> None:
    history, lateness = History(Outcomes()), Histogram(LATENESS_S)
    history.step(NOON_MS + 90 * MINUTE_MS, pending=1, lateness=[lateness])
    history.step(NOON_MS, pending=2, lateness=[lateness])
    assert [minute.start_ms for minute in history.minutes(NOON_MS, 60)] == [NOON_MS]


def test_a_reader_gets_copies() -> None:
    history, lateness = History(Outcomes()), Histogram(LATENESS_S)
    history.step(NOON_MS, pending=1, lateness=[lateness])
    read = history.minutes(NOON_MS, 1)
    kept = replace(read[0])
    history.step(NOON_MS, pending=9, lateness=[lateness])
    assert read == [kept]
