"""The clocks: what they say, and that a step of the wall clock is seen."""

from __future__ import annotations

import time

import pytest

from chronos.adapters.clock import ShiftedClock, SystemClock


@pytest.mark.parametrize("clock", [SystemClock(), ShiftedClock()])
def test_an_untouched_clock_says_the_time_of_the_machine(clock):
    """In whole milliseconds, rounded down, and not stepped."""
    before_ms = time.time_ns() // 1_000_000
    now_ms = clock.now_ms()
    assert before_ms <= now_ms <= time.time_ns() // 1_000_000
    assert abs(clock.stepped_ms()) <= 50


@pytest.mark.parametrize("by_ms", [-3_600_000, -700, 700, 3_600_000])
def test_a_step_of_the_wall_clock_is_measured_by_the_boot_clock(by_ms):
    """Forwards and back; stepping back again undoes it."""
    clock = ShiftedClock()
    before_ms = time.time_ns() // 1_000_000
    clock.shift(by_ms)
    assert before_ms + by_ms <= clock.now_ms() <= time.time_ns() // 1_000_000 + by_ms
    assert abs(clock.stepped_ms() - by_ms) <= 50
    clock.shift(-by_ms)
    assert abs(clock.stepped_ms()) <= 50


def test_a_clock_that_starts_shifted_was_not_stepped():
    """Being wrong from the start is not a step."""
    clock = ShiftedClock(shift_ms=-5_000)
    assert abs(clock.now_ms() + 5_000 - time.time_ns() // 1_000_000) <= 50
    assert abs(clock.stepped_ms()) <= 50
