"""The horizon: how far a shard forgets, from what it and the other shards have read."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from chronos.core.keys import MINUTE_MS, OFFSET_MAX
from chronos.core.shard.codec import DELIVERED, FRESH, IdState, State
from chronos.core.shard.order import is_forgotten, kept_from_ms, with_cancel
from chronos.core.timefmt import MS_MAX
from chronos.workers.step.horizon import UNPULLED_BEFORE_MS, Elsewhere, Horizon

HOUR_MS = 60 * MINUTE_MS
NOW_MS = 500_000 * HOUR_MS
NO_LOG: Any = None
"""No shard is held elsewhere, so that no log is read."""

READ = State(cursor_due_ms=NOW_MS, cursor_offset=OFFSET_MAX, progress_ms=NOW_MS)
"""A shard that had read everything a moment ago."""


def at(minutes: int, **changes: int) -> State:
    """The same some minutes later."""
    now_ms = NOW_MS + minutes * MINUTE_MS
    return replace(READ, cursor_due_ms=now_ms, progress_ms=now_ms, **changes)


def test_ids_are_kept_for_their_time_and_for_as_long_as_a_record_may_still_come() -> None:
    horizon = Horizon(kept_ms=6 * HOUR_MS, elsewhere=lambda: MS_MAX)
    found = [horizon.at(at(minutes), NOW_MS + minutes * MINUTE_MS) for minutes in range(4)]
    assert found[0] == 0, "the other shards are not known yet"
    assert found[3] == NOW_MS + 3 * MINUTE_MS - UNPULLED_BEFORE_MS - 6 * HOUR_MS


def test_a_shard_that_has_not_read_its_backlog_forgets_nothing_that_the_backlog_may_name() -> None:
    """It was down for seven hours; its cursor shows what it has read, whatever the time is."""
    horizon = Horizon(kept_ms=6 * HOUR_MS, elsewhere=lambda: MS_MAX)
    behind = replace(READ, cursor_offset=41, watermark_ms=NOW_MS - 7 * HOUR_MS)
    for minutes in range(9):
        now_ms = NOW_MS + minutes * MINUTE_MS
        assert horizon.at(replace(behind, progress_ms=now_ms), now_ms) == 0


def test_a_shard_forgets_nothing_that_another_shard_may_still_forward() -> None:
    """What the others had read counts once everything that they had forwarded by then has
    arrived."""
    elsewhere_ms = [NOW_MS - 9 * HOUR_MS]
    horizon = Horizon(kept_ms=HOUR_MS, elsewhere=lambda: elsewhere_ms[0])
    for minutes in range(5):
        found = horizon.at(at(minutes), NOW_MS + minutes * MINUTE_MS)
    assert found == NOW_MS - 10 * HOUR_MS
    elsewhere_ms[0] = NOW_MS + HOUR_MS
    look = horizon.at(at(5), NOW_MS + 5 * MINUTE_MS)
    assert look == NOW_MS - 10 * HOUR_MS, "it may have forwarded a record a moment ago"
    # Its clock goes on, and it reads nothing: what was forwarded may be among what it has not read.
    for minutes in range(6, 12):
        behind = replace(
            at(5, horizon_ms=look), cursor_offset=1, progress_ms=NOW_MS + minutes * MINUTE_MS
        )
        assert horizon.at(behind, behind.progress_ms) == NOW_MS - 10 * HOUR_MS
    assert (
        horizon.at(at(12, horizon_ms=look), NOW_MS + 12 * MINUTE_MS)
        == NOW_MS + 12 * MINUTE_MS - UNPULLED_BEFORE_MS - HOUR_MS
    )


def test_the_horizon_never_goes_back_and_follows_a_clock_that_was_set_back() -> None:
    horizon = Horizon(kept_ms=0, elsewhere=lambda: MS_MAX)
    for minutes in range(4):
        found = horizon.at(at(minutes), NOW_MS + minutes * MINUTE_MS)
    assert horizon.at(at(2, horizon_ms=found), NOW_MS - HOUR_MS) == found
    for minutes in range(60, 64):
        found = max(
            found, horizon.at(at(minutes, horizon_ms=found), NOW_MS - HOUR_MS + minutes * MINUTE_MS)
        )
    assert found == NOW_MS + 63 * MINUTE_MS - UNPULLED_BEFORE_MS


def test_a_node_without_a_delete_worker_forgets_nothing() -> None:
    horizon = Horizon(kept_ms=None, elsewhere=lambda: MS_MAX)
    assert {horizon.at(at(minutes), NOW_MS + minutes * MINUTE_MS) for minutes in range(9)} == {0}


@pytest.mark.parametrize(
    ("cancel_ms", "kept_ms"),
    [(None, 0), (-9, 0), (400, 0), (501, 501), (HOUR_MS, HOUR_MS)],
    ids=str,
)
def test_a_settled_id_is_forgotten_at_one_horizon_whatever_was_noted_since(
    cancel_ms: int | None, kept_ms: int
) -> None:
    state = IdState(DELIVERED, NOW_MS, 1, NOW_MS, None, NOW_MS - 5)
    if cancel_ms is not None:
        state = with_cancel(state, NOW_MS + cancel_ms, 2)
    assert kept_from_ms(state) == NOW_MS + kept_ms
    assert not is_forgotten(state, NOW_MS + kept_ms)
    assert is_forgotten(state, NOW_MS + kept_ms + 1)


def test_the_state_of_a_replica_tells_how_far_its_shard_has_read() -> None:
    """The shard itself is not asked: it forwards nothing to itself."""
    states = {0: FRESH, 1: READ, 2: replace(READ, cursor_offset=3, watermark_ms=NOW_MS - HOUR_MS)}
    elsewhere = Elsewhere(NO_LOG, "progress", lambda: states)
    assert elsewhere.read_ms(0) == NOW_MS - HOUR_MS - UNPULLED_BEFORE_MS
    assert elsewhere.read_ms(1) == 0, "nothing is known of the first one"
    assert Elsewhere(NO_LOG, "progress", lambda: {0: FRESH}).read_ms(0) == MS_MAX
