"""Targets that are set aside: which messages a step may select, and what each refusal and each
success changes."""

from __future__ import annotations

from msgspec.structs import replace

from chronos.core.message import Entry
from chronos.core.shard.codec import pack_entry
from chronos.core.shard.step import Leaving, Selection, selection_of
from chronos.workers.step.targets import (
    PROVEN_AT,
    REFUSED_MAX,
    TURN_MS,
    AttemptStage,
    Refusals,
    Retries,
    SetAside,
)

NOW_MS = 1_800_000_000_000
MESSAGES = 100
RETRIES = Retries(attempts_max=5, base_ms=1_000, cap_ms=300_000)


def selected(*targets: str, first: int = 0, attempt: int = 1) -> Selection:
    """Messages for these targets, in order."""
    entries = [
        Entry(None, NOW_MS, target, None, {}, b"v", NOW_MS, attempt=attempt) for target in targets
    ]
    items = [(NOW_MS, first + at, pack_entry(entry)) for at, entry in enumerate(entries)]
    return selection_of(items, entries, items[-1][:2], complete=True)


def refusing(*, first: int = 0) -> Refusals:
    """The target `bad` was just set aside; its poison records are decided."""
    refusals = Refusals()
    for at in range(first, first + REFUSED_MAX):
        assert not refusals.set_aside
        refusals.refuse(selected("bad", first=at), NOW_MS, RETRIES)
    refusals.committed(selected("bad", first=at), NOW_MS, MESSAGES, delivered=False)
    return refusals


def target(refusals: Refusals) -> SetAside:
    return refusals.set_aside["bad"]


def test_an_attempt_has_messages_of_one_target_only_and_others_come_first() -> None:
    refusals = refusing()
    assert refusals.within_step(selected("good", "bad", "good", first=50), NOW_MS) == 1
    run = selected("bad", "bad", "bad", "good", "bad", first=50)
    assert refusals.attempted(run, NOW_MS) is target(refusals)
    for size in (1, 2, 3, 3):
        assert refusals.within_step(run, NOW_MS) == size
        target(refusals).messages_max *= 2
    assert refusals.within_step(selected("good", "good"), NOW_MS) == 2


def test_between_attempts_a_step_has_all_messages() -> None:
    refusals = refusing()
    refusals.refuse(selected("bad", first=50), NOW_MS, RETRIES)
    run = selected("bad", "good", "bad", first=50)
    assert (refusals.within_step(run, NOW_MS), refusals.attempted(run, NOW_MS)) == (3, None)
    end_ms = target(refusals).next_ms
    # The message that was refused is decided, not attempted.
    assert refusals.within_step(run, end_ms) == 2
    refusals.committed(run, end_ms, MESSAGES, delivered=True)
    assert refusals.within_step(run, end_ms) == 1


def test_a_refused_message_that_an_action_moved_is_attempted_at_its_new_time() -> None:
    """Its refusal is not decided yet. Once the message is decided, nothing of the mark is left."""
    refusals = refusing()
    before = selected("bad", first=50)
    refusals.refuse(before, NOW_MS, RETRIES)
    now_ms = target(refusals).next_ms
    assert refusals.attempted(before, now_ms) is None
    moved = replace(before, items=[(NOW_MS + 1, *before.items[0][1:])])
    assert refusals.attempted(moved, now_ms) is target(refusals)
    refusals.committed(moved, now_ms, MESSAGES, delivered=False)
    assert target(refusals).attempts == {}


def test_a_step_with_messages_that_leave_a_lane_is_no_attempt() -> None:
    refusals, run = refusing(), selected("bad", first=50)
    assert refusals.attempted(run, NOW_MS) is target(refusals)
    leaving = Leaving(lane=("bad", 0), items=run.items, entries=run.entries, is_all=True)
    assert refusals.attempted(replace(run, leaving=(leaving,)), NOW_MS) is None


def test_others_take_their_turn_although_attempts_deliver_nothing() -> None:
    """Every message of them was parked, or expired: this neither ends nor lengthens the pauses of
    the target."""
    refusals = refusing()
    for now_ms, ready in ((NOW_MS, True), (NOW_MS + TURN_MS, False)):
        refusals.committed(selected("bad", first=50), now_ms, MESSAGES, delivered=False)
        assert target(refusals).is_ready(now_ms) == ready
    assert target(refusals).is_ready(NOW_MS + 2 * TURN_MS)
    assert target(refusals).messages_max == 1


def test_pauses_grow_up_to_the_longest_one() -> None:
    pauses = [RETRIES.target_pause_ms(refused) for refused in range(1, PROVEN_AT + 10)]
    assert pauses == sorted(pauses)
    assert pauses[:4] == [125, 250, 500, 1_000]
    assert pauses[PROVEN_AT - 1] == RETRIES.base_ms
    assert pauses[-1] == RETRIES.cap_ms


def test_a_pause_that_another_clock_computed_does_not_count() -> None:
    refusals = refusing()
    refusals.refuse(selected("bad", first=50), NOW_MS + 86_400_000, RETRIES)
    assert target(refusals).is_ready(NOW_MS)


def test_successes_end_it() -> None:
    refusals, now_ms, attempts = refusing(), NOW_MS, 0
    while refusals.set_aside:
        run = selected(*["bad"] * MESSAGES, first=50)
        assert refusals.within_step(run, now_ms) == min(2**attempts, MESSAGES)
        refusals.committed(run, now_ms, MESSAGES, delivered=True)
        attempts += 1
    assert attempts == MESSAGES.bit_length()


def test_others_take_their_turn_although_every_attempt_succeeds() -> None:
    refusals = refusing()
    run = selected("bad", first=50)
    refusals.committed(run, NOW_MS + TURN_MS - 1, MESSAGES, delivered=True)
    assert target(refusals).is_ready(NOW_MS + TURN_MS - 1)
    refusals.committed(run, NOW_MS + TURN_MS, MESSAGES, delivered=True)
    assert not target(refusals).is_ready(NOW_MS + TURN_MS)
    assert target(refusals).is_ready(NOW_MS + 2 * TURN_MS)


def test_messages_share_an_attempt_only_after_many_different_ones_were_refused_for_long() -> None:
    refusals, now_ms = refusing(), NOW_MS
    for at in range(3 * PROVEN_AT):
        refusals.refuse(selected("bad", first=50 + at, attempt=2), now_ms, RETRIES)
        now_ms += RETRIES.base_ms
    assert target(refusals).stage is not AttemptStage.SHARED
    for at in range(PROVEN_AT):
        assert target(refusals).stage is not AttemptStage.SHARED
        refusals.refuse(selected("bad", first=200 + at), now_ms, RETRIES)
    assert target(refusals).stage is AttemptStage.SHARED
    run = selected(*["bad"] * 50, "good", first=300)
    assert refusals.within_step(run, target(refusals).next_ms) == 50

    refusals.committed(run, target(refusals).next_ms, MESSAGES, delivered=True)
    assert target(refusals).stage is not AttemptStage.SHARED
    for at in range(PROVEN_AT):
        refusals.refuse(selected("bad", first=400 + at), now_ms, RETRIES)
    assert target(refusals).stage is not AttemptStage.SHARED, (
        "not for as long as the retries of one message take"
    )


def test_a_target_is_proven_by_different_messages() -> None:
    """One that an action moved is attempted as at first, and counts once."""
    refusals, later_ms = refusing(), NOW_MS + RETRIES.total_ms()
    for at in range(PROVEN_AT - 1):
        refusals.refuse(selected("bad", first=50 + at), NOW_MS, RETRIES)
    refusals.refuse(selected("bad", first=50), later_ms, RETRIES)
    assert target(refusals).stage is AttemptStage.ALONE
    refusals.refuse(selected("bad", first=500), later_ms, RETRIES)
    assert target(refusals).stage is AttemptStage.SHARED
