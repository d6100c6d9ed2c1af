"""The rate of a writer that quotas of the brokers slow down."""

from __future__ import annotations

import pytest
from confluent_kafka import ThrottleEvent

from chronos.adapters.kafka import writer
from chronos.adapters.kafka.writer import THROTTLE_GROWTH, UNTHROTTLED_BYTES, Throttling
from chronos.core.size import batch_bytes
from chronos.ports import Outgoing

MESSAGES: list[Outgoing] = [("orders", None, b"v" * 1_000, {}, -1)] * 100
BYTES = 100 * batch_bytes(None, b"v" * 1_000, {})


class HandTime:
    """A monotonic clock that the test sets."""

    now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandTime:
    hand = HandTime()
    monkeypatch.setattr(writer, "time", hand)
    return hand


def told(throttling: Throttling, seconds: float) -> None:
    throttling.told(ThrottleEvent("broker", 1, seconds))


def ended(clock: HandTime, throttling: Throttling, took_s: float) -> None:
    clock.now_s += took_s
    throttling.ended(MESSAGES)


def test_a_step_has_the_bytes_of_half_the_time_out_at_the_rate_seen(clock):
    """The time for which a broker takes nothing more counts as time that the transaction took."""
    quiet, throttling = Throttling(10.0), Throttling(10.0)
    quiet.begun()
    ended(clock, quiet, 1.0)
    assert quiet.throttle is None
    assert throttling.begun() == clock.now_s + 10.0
    told(throttling, 4.0)
    assert throttling.is_told
    ended(clock, throttling, 1.0)
    found = throttling.throttle
    assert found is not None
    assert found.rate == BYTES // 4
    assert found.bytes_max == pytest.approx(5 * BYTES / 4, abs=1)
    assert found.pause_ms == 0


def test_a_transaction_waits_while_brokers_take_nothing_for_longer_than_half_its_time_out(clock):
    """And no longer than the heartbeat of the master permits."""
    throttling = Throttling(10.0)
    throttling.begun()
    told(throttling, 8.0)
    ended(clock, throttling, 0.0)
    assert throttling.throttle is not None
    assert throttling.throttle.pause_ms == 3_000
    clock.now_s += 2.9
    assert 0 < throttling.throttle.pause_ms <= 100
    clock.now_s += 1.0
    assert throttling.throttle.pause_ms == 0
    told(throttling, 1_000.0)
    assert throttling.throttle.pause_ms == 10_000


def test_the_rate_grows_slowly_and_falls_at_once(clock):
    """A burst that a broker lets pass does not raise it by more than a quarter."""
    throttling = Throttling(10.0)
    rates = []
    for seconds in (4.0, 0.001, 8.0):
        throttling.begun()
        told(throttling, seconds)
        ended(clock, throttling, seconds)
        assert throttling.throttle is not None
        rates.append(throttling.throttle.rate)
    assert rates == [BYTES // 4, int(BYTES / 4 * THROTTLE_GROWTH), BYTES // 8]


def test_without_quotas_steps_become_as_large_again_as_before(clock):
    throttling = Throttling(10.0)
    throttling.begun()
    told(throttling, 4.0)
    ended(clock, throttling, 0.0)
    sizes = []
    while (found := throttling.throttle) is not None:
        sizes.append(found.bytes_max)
        ended(clock, throttling, 0.01)
    assert sizes == sorted(set(sizes))
    assert UNTHROTTLED_BYTES / THROTTLE_GROWTH <= sizes[-1] <= UNTHROTTLED_BYTES
