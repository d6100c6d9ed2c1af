"""The stall judge: an alarm after 30 s without a move, and none while there is nothing to do or
something moves."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from chronos.workers.replica.state import ReplicaState
from chronos.workers.watch.stall import (
    INTERVAL_MS_MAX,
    JUDGE_EVERY_MS,
    STALLED_MS,
    STEP_MS_MAX,
    Facts,
    StallJudge,
)
from tests.harness.table import table

S = ReplicaState
NOW_MS = 1_800_000_000_000

IDLE = Facts(
    role=S.MASTER,
    now_ms=NOW_MS,
    cursor=(NOW_MS - 9, 7),
    due_ms=None,
    watermark_ms=NOW_MS - 5_000,
    pulled=50,
    delay_end=50,
    applied=80,
    replayed=None,
    applying=False,
    progress_end=None,
    pulls=True,
    pushes=True,
)
"""A master with nothing to do."""

DUE = replace(IDLE, due_ms=NOW_MS - 1)
READABLE = replace(IDLE, delay_end=51)
FOLLOWING = replace(IDLE, role=S.FOLLOWER, replayed=81, progress_end=81)
BEHIND = replace(FOLLOWING, progress_end=83)


class Judged:
    """A judge that is stepped every second."""

    def __init__(self) -> None:
        self.judge = StallJudge()
        self.ms = 0

    def for_s(self, seconds: int, facts: Facts, *, by: int = 0, **moves: Any) -> bool:
        """Step for so many seconds; every `by` seconds the facts get the next value of each of
        `moves`."""
        stalled = False
        for at in range(seconds * 1_000 // JUDGE_EVERY_MS):
            self.ms += JUDGE_EVERY_MS
            changed = {
                name: (lambda value: (value, 0) if name == "cursor" else value)(start + at // by)
                for name, start in moves.items()
            }
            stalled = self.judge.step(self.ms, replace(facts, now_ms=NOW_MS + self.ms, **changed))
        return stalled


LIMIT_S = STALLED_MS // 1_000


@pytest.mark.parametrize(
    "facts", [DUE, READABLE, BEHIND, replace(BEHIND, progress_end=81, applying=True)]
)
def test_work_without_a_move_for_thirty_seconds_is_a_stall(facts: Facts) -> None:
    judged = Judged()
    assert not judged.for_s(LIMIT_S, facts)
    assert judged.for_s(1, facts)
    assert judged.judge.stalled_ms == STALLED_MS
    assert judged.judge.since_ms == NOW_MS + 1_000
    assert judged.for_s(60, facts)
    assert judged.judge.stalled_ms == STALLED_MS + 60_000
    assert judged.judge.since_ms == NOW_MS + 1_000


@table(
    "facts",
    [
        IDLE,
        replace(IDLE, due_ms=NOW_MS + 3_600_000),
        replace(IDLE, delay_end=None),
        replace(DUE, pushes=False),
        replace(READABLE, pulls=False),
        replace(DUE, role=S.FOLLOWER),
        FOLLOWING,
        replace(DUE, role=S.RESTORING),
        replace(DUE, role=S.TAKING_OVER),
        replace(DUE, role=S.NONE),
        replace(FOLLOWING, role=S.WAITING),
    ],
)
def test_a_replica_without_work_of_its_own_is_not_stalled(facts: Facts) -> None:
    assert not Judged().for_s(600, facts)


def test_a_message_is_due_by_the_watermark_only() -> None:
    """Before the end of the log was read, a later message must wait; then the reading is judged,
    not the delivery."""
    behind = replace(IDLE, due_ms=IDLE.watermark_ms + 1, delay_end=10_000)
    assert not Judged().for_s(600, behind, by=20, pulled=50)
    assert Judged().for_s(40, replace(behind, due_ms=IDLE.watermark_ms), by=20, pulled=50)
    assert Judged().for_s(40, replace(behind, pulls=False))


@pytest.mark.parametrize("moves", [{"cursor": NOW_MS}, {"pulled": 50}])
def test_a_long_backlog_is_not_a_stall_as_long_as_it_moves(moves: dict[str, int]) -> None:
    facts = replace(
        DUE if "cursor" in moves else READABLE, delay_end=50 if "cursor" in moves else 10**9
    )
    assert not Judged().for_s(3_600, facts, by=LIMIT_S - 1, **moves)


def test_a_stall_ends_with_the_first_move() -> None:
    judged = Judged()
    assert judged.for_s(60, DUE)
    assert not judged.for_s(1, replace(DUE, cursor=(NOW_MS, 0)))
    assert judged.judge.stalled_ms == 0
    assert not judged.for_s(LIMIT_S - 1, replace(DUE, cursor=(NOW_MS, 0)))
    assert judged.for_s(2, replace(DUE, cursor=(NOW_MS, 0)))


def test_only_the_time_of_a_master_counts_and_a_take_over_neither_adds_nor_forgets_it() -> None:
    """A master that loses its producer again and again stands still; a take-over alone does not."""
    judged = Judged()
    for _ in range(2):
        assert not judged.for_s(11, DUE)
        assert not judged.for_s(25, replace(DUE, role=S.STEPPED_DOWN))
        assert not judged.for_s(25, replace(DUE, role=S.TAKING_OVER))
    assert judged.for_s(11, DUE)
    judged.for_s(1, replace(FOLLOWING, due_ms=DUE.due_ms))
    assert not judged.for_s(LIMIT_S, DUE), "what a master of before did not do is forgotten"


def test_time_in_which_the_process_was_frozen_does_not_count() -> None:
    judged = Judged()
    judged.for_s(10, DUE)
    judged.ms += 3_600_000
    assert not judged.judge.step(judged.ms, DUE)
    assert not judged.for_s((STALLED_MS - 10_000 - INTERVAL_MS_MAX) // 1_000, DUE)
    assert judged.for_s(2, DUE)


@pytest.mark.parametrize(
    ("began_ms", "trouble", "words"),
    [
        (NOW_MS - STEP_MS_MAX, "refused", "a step has been running since 20"),
        (
            NOW_MS - STEP_MS_MAX + 1,
            "refused",
            "its transactions fail, the last one because: refused",
        ),
        (None, None, "its steps report no error"),
    ],
)
def test_the_reason_names_the_best_known_cause_and_stays_the_same(
    began_ms: int | None, trouble: str | None, words: str
) -> None:
    judged = Judged()
    judged.for_s(LIMIT_S + 1, DUE)
    text = judged.judge.reason(now_ms=NOW_MS, step_began_ms=began_ms, trouble=trouble)
    assert words in text
    assert text.startswith("no progress since 20")
    assert "although messages are due" in text
    judged.for_s(60, DUE)
    assert judged.judge.reason(now_ms=NOW_MS, step_began_ms=began_ms, trouble=trouble) == text
