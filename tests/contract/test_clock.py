"""The contract of every clock, over each row of `CLOCKS` in `tests/contract/implementations.py`."""

from __future__ import annotations

import pytest

from tests.contract.implementations import CLOCKS, ClockCase, wall_ms
from tests.harness.clock import ShiftedClock

SLACK_MS = 50
"""Two clocks are read one after the other, on a machine that may be busy."""


@pytest.fixture(params=CLOCKS)
def case(request: pytest.FixtureRequest) -> ClockCase:
    """Each clock of the table."""
    return CLOCKS[request.param]()


def test_an_untouched_clock_shows_the_true_time(case):
    """In whole milliseconds, rounded down, and not stepped."""
    before_ms = case.true_ms()
    now_ms = case.clock.now_ms()
    assert before_ms <= now_ms <= case.true_ms()
    assert abs(case.clock.stepped_ms()) <= SLACK_MS


@pytest.mark.parametrize("by_ms", [-3_600_000, -700, 700, 3_600_000])
def test_a_step_of_the_wall_clock_is_measured_by_the_boot_clock(case, by_ms):
    """Forwards and back; stepping back again undoes it."""
    if case.shift is None:
        pytest.skip("a test cannot step this clock")
    before_ms = case.true_ms()
    case.shift(by_ms)
    assert before_ms + by_ms <= case.clock.now_ms() <= case.true_ms() + by_ms
    assert abs(case.clock.stepped_ms() - by_ms) <= SLACK_MS
    case.shift(-by_ms)
    assert abs(case.clock.stepped_ms()) <= SLACK_MS


def test_a_clock_that_starts_shifted_was_not_stepped():
    """A wrong time from the start is not a step."""
    clock = ShiftedClock(shift_ms=-5_000)
    assert abs(clock.now_ms() + 5_000 - wall_ms()) <= SLACK_MS
    assert abs(clock.stepped_ms()) <= SLACK_MS
