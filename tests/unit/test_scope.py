"""What one step may do: each case that `scope_of` tells apart, by the laws that it keeps."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from chronos.workers.step.planned import Limits
from chronos.workers.step.scope import Pull, Room, Scope, Times, scope_of

LIMITS = Limits(messages=5_000, bytes=1 << 20, linger_ms=2, pull=True, push=True)

NOW = 10_000
IDLE = Times(now_ms=NOW, due_ms=None, reached_ms=0, watermark_ms=0)
DUE = replace(IDLE, due_ms=9_000)
"""A message is due, and records may change it that are not pulled yet."""
PROVEN = replace(DUE, reached_ms=9_000)

NEXT, TO_END = Scope(pull=Pull.NEXT), Scope(pull=Pull.TO_END)
NOTHING, TURN = Scope(pull=Pull.NOTHING), Scope(pull=Pull.NOTHING, is_delivery_turn=True)
STOPPED = Scope(pull=Pull.NOTHING, is_paused=True)
BLIND = replace(STOPPED, is_blind=True)

OTHERWISE: dict[str, Any] = {
    "room": Room.FREE,
    "is_heartbeat": False,
    "has_open_lane": False,
    "has_written_letters": False,
}


def scope(times: Times, limits: Limits = LIMITS, **more: Any) -> Scope:
    """The scope of a step, with the given differences from an ordinary one."""
    return scope_of(limits, times, **(OTHERWISE | more))


@pytest.mark.parametrize(
    ("times", "more", "expected"),
    [
        (IDLE, {}, NEXT),
        (replace(DUE, due_ms=NOW + 1), {}, NEXT),
        (IDLE, {"is_heartbeat": True}, TO_END),
        # Law 6: the end of the log is asked for once for all that is due by then.
        (DUE, {}, TO_END),
        (replace(DUE, due_ms=NOW), {}, TO_END),
        (PROVEN, {}, NEXT),
        (replace(DUE, watermark_ms=9_000), {}, TO_END),
        # A lane that is open.
        (IDLE, {"has_open_lane": True}, TO_END),
        # After records were rejected or forwarded, messages that nothing can change come first.
        (PROVEN, {"has_written_letters": True}, TURN),
        (replace(DUE, watermark_ms=9_000), {"has_written_letters": True}, TURN),
        (IDLE, {"has_written_letters": True, "has_open_lane": True}, TURN),
        (DUE, {"has_written_letters": True}, TO_END),
        (PROVEN, {"has_written_letters": True, "is_heartbeat": True}, TO_END),
        (replace(PROVEN, due_ms=NOW + 1, reached_ms=NOW + 2), {"has_written_letters": True}, NEXT),
        # Law 8 before law 6, once the queues are full for long.
        (DUE, {"room": Room.FULL}, STOPPED),
        (DUE, {"room": Room.STUCK}, BLIND),
        (PROVEN, {"room": Room.STUCK, "is_heartbeat": True, "has_written_letters": True}, BLIND),
    ],
)
def test_the_scope_of_a_step(times: Times, more: dict[str, Any], expected: Scope) -> None:
    assert scope(times, **more) == expected


def test_a_switch_that_is_off_stops_its_half_of_a_step() -> None:
    off = replace(LIMITS, pull=False)
    assert scope(DUE, off, is_heartbeat=True) == BLIND
    off = replace(LIMITS, push=False)
    assert scope(DUE, off) == NEXT
    assert scope(PROVEN, off, has_written_letters=True) == NEXT
