"""A shard in the cases that readers ask about, one by one; the model agrees with each."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from chronos.core.keys import OFFSET_MAX
from chronos.core.message import Reason
from chronos.core.series import parse_repetition
from chronos.core.shard.progress import unpack_progress
from chronos.core.shard.shard import READ_AHEAD_BYTES
from chronos.errors import LogMismatch
from tests.unit.drivers import OTHER_RULES, Replica, Scenario, opened
from tests.unit.histories import DEDUPLICATION_MS, SHARD, SHARDS, START_MS, Step

T = START_MS
CONFLICT, IGNORED, TOO_LATE, UNKNOWN = (
    Reason.CONFLICT,
    Reason.IGNORED,
    Reason.TOO_LATE,
    Reason.UNKNOWN,
)


def generated_id(due_ms: int, offset: int) -> bytes:
    return b"%d-%d-%d" % (SHARD, due_ms, offset)


@pytest.fixture
def scenario() -> Scenario:
    return Scenario()


def test_messages_are_delivered_by_due_time_and_then_by_arrival(scenario: Scenario) -> None:
    late = scenario.send("schedule", None, T + 5)
    first = scenario.send("schedule", b"a", T + 3)
    second = scenario.send("schedule", None, T + 3)
    assert scenario.run(T + 2).items == []
    assert scenario.places(scenario.run(T + 5)) == [(T + 3, first), (T + 3, second), (T + 5, late)]


def test_a_message_due_in_the_past_is_next_and_never_before_the_cursor(scenario: Scenario) -> None:
    scenario.run(T + 100)
    ancient = scenario.send("schedule", None, 7, at=T + 50)
    recent = scenario.send("schedule", None, T + 60, at=T + 50)
    selection = scenario.run(T + 101)
    assert scenario.places(selection) == [(T + 101, ancient), (T + 101, recent)]
    assert [entry.due_ms for entry in selection.entries] == [7, T + 60]


def test_messages_of_one_millisecond_beyond_the_batch_limit_are_taken_in_order_by_the_next_steps(
    scenario: Scenario,
) -> None:
    offsets = [scenario.send("schedule", None, T + 1) for _ in range(7)]
    taken = []
    for expected in (offsets[:3], offsets[3:6], offsets[6:]):
        selection = scenario.run(T + 1, messages_max=3)
        assert [item[1] for item in selection.items] == expected
        taken.append(selection.cursor)
    assert taken == [(T + 1, offsets[2]), (T + 1, offsets[5]), (T + 1, OFFSET_MAX)]


def test_a_message_for_a_partly_settled_millisecond_is_placed_after_it(scenario: Scenario) -> None:
    old = [scenario.send("schedule", None, T + 1) for _ in range(3)]
    scenario.run(T + 1, messages_max=1)
    new = scenario.send("schedule", None, T + 1, at=T + 1)
    assert scenario.places(scenario.run(T + 1)) == [(T + 1, old[1]), (T + 1, old[2])]
    assert scenario.places(scenario.run(T + 2)) == [(T + 2, new)]


@pytest.fixture
def backlog(scenario: Scenario) -> tuple[Scenario, list[int]]:
    """Two of eight messages are delivered, and the next two were selected before that was
    committed."""
    offsets = [scenario.send("schedule", b"%d" % at, T + 10 * at) for at in range(1, 9)]
    scenario.run(T + 1)
    assert [item[1] for item in scenario.run(T + 100, messages_max=2).items] == offsets[:2]
    return scenario, offsets


def test_a_message_selected_ahead_is_not_delivered_once_it_is_cancelled(
    backlog: tuple[Scenario, list[int]],
) -> None:
    scenario, offsets = backlog
    scenario.send("cancel", b"3", at=T + 50)
    assert [item[1] for item in scenario.run(T + 100, messages_max=2).items] == [offsets[3]]


def test_a_late_message_goes_before_later_ones_that_were_selected_ahead(
    backlog: tuple[Scenario, list[int]],
) -> None:
    scenario, offsets = backlog
    new = scenario.send("schedule", None, T + 35, at=T + 22)
    assert [item[1] for item in scenario.run(T + 100, messages_max=2).items] == [offsets[2], new]


def test_messages_selected_ahead_wait_when_the_clock_steps_back(
    backlog: tuple[Scenario, list[int]],
) -> None:
    scenario, offsets = backlog
    assert [item[1] for item in scenario.run(T + 35, messages_max=2).items] == [offsets[2]]


def test_a_step_takes_one_message_even_when_it_is_larger_than_the_limit(scenario: Scenario) -> None:
    for _ in range(2):
        scenario.send("schedule", None, T + 1, value=b"x" * 500)
    assert len(scenario.run(T + 1, bytes_max=10).items) == 1
    assert len(scenario.run(T + 1, bytes_max=10).items) == 1
    assert scenario.run(T + 1, bytes_max=10).complete


def test_a_clock_that_steps_back_moves_nothing_back(scenario: Scenario) -> None:
    scenario.send("schedule", None, T + 50)
    scenario.run(T + 20)
    selection = scenario.run(T - 500)
    assert (selection.items, selection.cursor, selection.complete) == (
        [],
        (T + 20, OFFSET_MAX),
        True,
    )
    new = scenario.send("schedule", None, T - 400, at=T - 500)
    assert scenario.run(T + 20).items == []
    assert scenario.places(scenario.run(T + 21)) == [(T + 21, new)]


def test_a_pending_id_is_refused_ignored_or_replaced_as_its_policy_says(scenario: Scenario) -> None:
    scenario.send("schedule", b"a", T + 10)
    again = scenario.send("schedule", b"a", T + 11)
    ignored = scenario.send("schedule", b"a", T + 12, policy="ignore")
    new = scenario.send("schedule", b"a", T + 13, policy="replace")
    scenario.run(T)
    assert scenario.refused() == [(again, CONFLICT), (ignored, IGNORED)]
    assert scenario.places(scenario.run(T + 20)) == [(T + 13, new)]


def test_an_id_is_free_again_exactly_at_the_end_of_the_deduplication_window(
    scenario: Scenario,
) -> None:
    scenario.send("schedule", b"a", T + 1)
    scenario.run(T + 2)
    within = scenario.send("schedule", b"a", T + 99, at=T + 2 + DEDUPLICATION_MS - 1)
    beyond = scenario.send("schedule", b"a", T + 99, at=T + 2 + DEDUPLICATION_MS)
    scenario.run(T + 40)
    assert scenario.refused() == [(within, CONFLICT)]
    assert scenario.places(scenario.run(T + 99)) == [(T + 99, beyond)]


def test_a_settled_id_counts_as_delivered_at_the_time_of_its_record(scenario: Scenario) -> None:
    taken = scenario.send("settled", b"a", at=T + 2)
    again = scenario.send("settled", b"a", at=T + 3)
    within = scenario.send("schedule", b"a", T + 99, at=T + 2 + DEDUPLICATION_MS - 1)
    cancelled = scenario.send("cancel", b"a", at=T + 2 + DEDUPLICATION_MS - 1)
    beyond = scenario.send("schedule", b"a", T + 99, at=T + 2 + DEDUPLICATION_MS)
    scenario.run(T + 60)
    assert scenario.refused() == [(again, IGNORED), (within, CONFLICT), (cancelled, TOO_LATE)]
    assert scenario.places(scenario.run(T + 99)) == [(T + 99, beyond)]
    assert taken < again
    totals = scenario.shard.state.totals
    assert (totals.accepted, totals.delivered) == (1, 1), "a settled id is counted nowhere"


@pytest.mark.parametrize(
    ("policy", "refused"), [("reject", CONFLICT), ("ignore", IGNORED), ("replace", None)]
)
def test_a_message_with_a_settled_id_is_treated_as_after_a_delivery(
    scenario: Scenario, policy: str, refused: int | None
) -> None:
    scenario.send("settled", b"a", at=T + 2)
    scenario.run(T + 3)
    new = scenario.send("schedule", b"a", T + 9, at=T + 4, policy=policy)
    scenario.run(T + 4)
    assert scenario.refused() == ([] if refused is None else [(new, refused)])
    assert scenario.places(scenario.run(T + 9)) == ([] if refused else [(T + 9, new)])


def test_a_settled_id_that_is_pending_is_refused_and_its_message_delivered(
    scenario: Scenario,
) -> None:
    pending = scenario.send("schedule", b"a", T + 9)
    settled = scenario.send("settled", b"a", at=T + 2)
    scenario.run(T + 3)
    assert scenario.refused() == [(settled, CONFLICT)]
    assert scenario.places(scenario.run(T + 9)) == [(T + 9, pending)]


@pytest.mark.parametrize("ends", ["cancel", "expired", "dead"])
def test_a_settled_takes_an_id_that_is_free_again(scenario: Scenario, ends: str) -> None:
    scenario.send("schedule", b"a", T + 1)
    if ends == "cancel":
        scenario.send("cancel", b"a")
    scenario.run(T + 1, ("delivered" if ends == "cancel" else ends, 0))
    scenario.send("settled", b"a", at=T + 2)
    new = scenario.send("schedule", b"a", T + 9, at=T + 3)
    scenario.run(T + 4)
    assert scenario.refused() == [(new, CONFLICT)]


@pytest.mark.parametrize("choice", ["expired", "dead"])
def test_the_id_of_a_dead_lettered_message_is_free_at_once(scenario: Scenario, choice: str) -> None:
    scenario.send("schedule", b"a", T + 1)
    scenario.run(T + 1, (choice, 0))
    new = scenario.send("schedule", b"a", T + 2)
    assert scenario.places(scenario.run(T + 2)) == [(T + 2, new)]


def test_a_cancelled_id_is_free_in_the_same_batch(scenario: Scenario) -> None:
    scenario.send("schedule", b"a", T + 1)
    scenario.send("cancel", b"a")
    new = scenario.send("schedule", b"a", T + 2)
    assert scenario.places(scenario.run(T + 9)) == [(T + 2, new)]
    assert scenario.refused() == []


@pytest.mark.parametrize("batches", [1, 2])
def test_a_message_without_a_key_is_cancelled_and_moved_by_its_generated_id(
    scenario: Scenario, batches: int
) -> None:
    gone, moved = scenario.send("schedule", None, T + 5), scenario.send("schedule", None, T + 6)
    if batches == 2:
        scenario.run(T)
    scenario.send("cancel", generated_id(T + 5, gone))
    scenario.send("reschedule", generated_id(T + 6, moved), T + 8)
    again = scenario.send("cancel", generated_id(T + 5, gone))
    late = scenario.send("fire-now", generated_id(T + 5, gone))
    scenario.run(T + 1)
    assert scenario.refused() == [(again, IGNORED), (late, TOO_LATE)]
    # It keeps the id it was given, wherever it stands.
    scenario.send("reschedule", generated_id(T + 6, moved), T + 9)
    never = scenario.send("cancel", generated_id(T + 8, moved))
    assert scenario.places(scenario.run(T + 9)) == [(T + 9, moved)]
    assert scenario.refused() == [(never, UNKNOWN)]


@pytest.mark.parametrize("batches", [1, 2])
def test_a_message_with_a_key_is_found_by_its_key_and_not_by_its_position(
    scenario: Scenario, batches: int
) -> None:
    keyed = scenario.send("schedule", b"a", T + 5)
    if batches == 2:
        scenario.run(T)
    wrong = scenario.send("cancel", generated_id(T + 5, keyed))
    scenario.run(T + 1)
    assert scenario.refused() == [(wrong, UNKNOWN)]
    # Had the cancel taken the entry away, this would find an id state without an entry.
    scenario.send("reschedule", b"a", T + 7)
    assert scenario.places(scenario.run(T + 7)) == [(T + 7, keyed)]


def test_an_action_on_a_message_taken_by_an_earlier_step_is_too_late(scenario: Scenario) -> None:
    plain, keyed = scenario.send("schedule", None, T + 1), scenario.send("schedule", b"a", T + 1)
    scenario.run(T + 1)
    expected = []
    for verb in ("cancel", "fire-now", "reschedule"):
        for message_id in (b"a", generated_id(T + 1, plain)):
            expected.append((scenario.send(verb, message_id, T + 50, at=T + 1), TOO_LATE))
    expected.append((scenario.send("replace", b"a", T + 50, at=T + 1), TOO_LATE))
    scenario.run(T + 60)
    assert scenario.refused() == expected
    assert keyed == plain + 1


def test_fire_now_never_makes_a_message_later(scenario: Scenario) -> None:
    offset = scenario.send("schedule", b"a", T + 1)
    scenario.run(T)
    scenario.send("fire-now", b"a", at=T + 5)
    assert scenario.places(scenario.run(T + 5)) == [(T + 1, offset)]


def test_fire_now_does_not_move_a_message_that_is_due_at_that_moment(scenario: Scenario) -> None:
    offset = scenario.send("schedule", None, T + 5)
    scenario.run(T)
    scenario.send("fire-now", generated_id(T + 5, offset), at=T + 5)
    selection = scenario.run(T + 5)
    assert scenario.places(selection) == [(T + 5, offset)]
    assert selection.entries[0].id is None
    assert scenario.shard.state.totals.changed == 1


def test_fire_now_is_delivered_by_the_step_that_reads_it(scenario: Scenario) -> None:
    plain = scenario.send("schedule", None, T + 60_000)
    scenario.run(T)
    scenario.send("fire-now", generated_id(T + 60_000, plain), at=T + 2)
    keyed = scenario.send("schedule", b"a", T + 70_000, at=T + 2)
    scenario.send("fire-now", b"a", at=T + 3)
    assert scenario.places(scenario.run(T + 3)) == [(T + 2, plain), (T + 3, keyed)]


def test_a_message_rescheduled_to_its_own_time_is_delivered_once(scenario: Scenario) -> None:
    offset = scenario.send("schedule", b"a", T + 5)
    scenario.run(T)
    for _ in range(2):
        scenario.send("reschedule", b"a", T + 5)
    scenario.run(T + 1)
    scenario.send("reschedule", b"a", T + 5, at=T + 1)
    assert scenario.places(scenario.run(T + 5)) == [(T + 5, offset)]


def test_a_message_moved_away_and_back_is_delivered_once(scenario: Scenario) -> None:
    offset = scenario.send("schedule", None, T + 5)
    scenario.run(T)
    for due_ms in (T + 9, T + 5, T + 7, T + 5):
        scenario.send("reschedule", generated_id(T + 5, offset), due_ms)
        scenario.run(T + 1)
    assert scenario.places(scenario.run(T + 9)) == [(T + 5, offset)]


@pytest.mark.parametrize("choice", ["again", "retry", "deferred", "skipped"])
def test_a_rescheduled_message_can_still_be_cancelled_and_changed(
    scenario: Scenario, choice: str
) -> None:
    series = parse_repetition("every 100ms")
    plain = scenario.send("schedule", None, T + 1, repetition=series)
    keyed = scenario.send("schedule", b"a", T + 1, repetition=series)
    scenario.run(T + 1, (choice, 30))
    scenario.send("cancel", generated_id(T + 1, plain), at=T + 2)
    scenario.send("reschedule", b"a", T + 10, at=T + 2)
    scenario.run(T + 2)
    assert scenario.refused() == []
    assert scenario.places(scenario.run(T + 40)) == [(T + 10, keyed)]


def test_a_message_rescheduled_into_the_past_is_placed_right_after_the_cursor(
    scenario: Scenario,
) -> None:
    offset = scenario.send("schedule", b"a", T + 1)
    scenario.run(T + 5, ("retry", -100))
    assert scenario.places(scenario.run(T + 6)) == [(T + 6, offset)]


def test_a_step_that_finds_only_cancelled_messages_still_moves_the_cursor(
    scenario: Scenario,
) -> None:
    for _ in range(4):
        scenario.send("schedule", b"a%d" % len(scenario.producers.intents), T + 5)
    kept = scenario.send("schedule", b"kept", T + 6)
    scenario.run(T)
    for intent in scenario.producers.intents[:4]:
        scenario.send("cancel", intent.id, at=T + 1)
    selection = scenario.run(T + 6, messages_max=2)
    assert (selection.items, selection.complete) == ([], False)
    assert selection.cursor > (T, OFFSET_MAX)
    assert scenario.places(scenario.run(T + 6, messages_max=2)) == [(T + 6, kept)]


def test_a_new_message_does_not_overtake_stored_ones_that_were_not_scanned_yet(
    scenario: Scenario,
) -> None:
    old = [scenario.send("schedule", b"a%d" % number, T + 5) for number in range(3)]
    scenario.run(T)
    scenario.send("cancel", b"a0")
    new = scenario.send("schedule", None, T + 5)
    # The limit is spent on one that was cancelled and one that was not: the third is stored, but no
    # step has read it.
    assert scenario.places(scenario.run(T + 5, messages_max=2)) == [(T + 5, old[1])]
    assert scenario.places(scenario.run(T + 5, messages_max=2)) == [(T + 5, old[2]), (T + 5, new)]


def test_an_aborted_step_leaves_no_trace(scenario: Scenario) -> None:
    scenario.send("schedule", b"a", T + 1)
    scenario.run(T)
    scenario.send("cancel", b"a")
    scenario.send("schedule", None, T + 1)
    before = scenario.shard.state
    for _ in range(3):
        scenario.now_ms = T + 2
        scenario.step(Step((), 0, 1, 1, (("dead", 0),), (), behind=False, aborted=True))
    assert scenario.shard.state == before
    assert [item[1] for item in scenario.run(T + 2).items] == [3]


def test_reading_ahead_resumes_where_a_scan_stopped_at_its_limit_of_bytes(
    scenario: Scenario,
) -> None:
    """Three messages of which two fit into one read: a read that ends below its limit is not the
    end."""
    offsets = [
        scenario.send("schedule", None, T + 1, value=b"x" * (READ_AHEAD_BYTES * 2 // 5))
        for _ in range(3)
    ]
    scenario.run(T)
    scenario.shard = opened(scenario.store)
    selection = scenario.run(T + 1, bytes_max=10**9)
    assert [item[1] for item in selection.items] == offsets
    assert selection.complete


def test_large_messages_are_not_all_read_into_memory_to_find_the_first(scenario: Scenario) -> None:
    for _ in range(40):
        scenario.send("schedule", None, T + 1, value=b"x" * 1_000_000)
    scenario.run(T)
    scenario.shard = opened(scenario.store)
    selection = scenario.shard.select(scenario.shard.stage([]), T + 1, 5_000, 2_000_000)
    assert len(selection.items) == 1
    assert scenario.shard.wheel.bytes <= READ_AHEAD_BYTES


def test_a_shard_knows_when_to_wake_although_a_step_for_part_of_a_millisecond_was_aborted(
    scenario: Scenario,
) -> None:
    for key in (b"a", b"b"):
        scenario.send("schedule", key, T + 5)
    scenario.run(T)
    while scenario.shard.read_ahead(T + 10, 100):
        pass
    scenario.shard.wheel.shrink(1)
    assert scenario.shard.next_due_ms() == T + 5
    scenario.send("cancel", b"a")
    scenario.run(T + 1)
    # The wheel holds nothing any more, but is complete only up to the middle of that millisecond.
    assert scenario.shard.wheel.messages == 0
    assert scenario.shard.next_due_ms() == T + 5


def test_a_shard_without_pending_messages_has_no_next_due_time(scenario: Scenario) -> None:
    assert scenario.shard.next_due_ms() is None
    scenario.send("schedule", None, T + 5)
    scenario.run(T)
    assert scenario.shard.next_due_ms() is not None
    scenario.run(T + 5)
    assert scenario.shard.next_due_ms() is None


def test_a_probe_changes_nothing_but_its_count(scenario: Scenario) -> None:
    scenario.send("probe", None)
    selection = scenario.run(T)
    assert (selection.items, scenario.refused()) == ([], [])
    assert scenario.shard.state.totals.probes == 1


def test_a_refused_record_is_counted_and_an_ignored_one_is_not_copied_to_the_rejected_topic(
    scenario: Scenario,
) -> None:
    scenario.send("schedule", b"a", T + 9)
    scenario.send("cancel", b"nobody")
    scenario.send("schedule", b"a", T + 9, policy="ignore")
    staged = scenario.shard.stage(scenario.producers.records)
    assert [
        (record.offset, rejection.reason) for record, rejection in staged.letters.rejections
    ] == [(2, UNKNOWN)]
    scenario.run(T)
    assert (scenario.shard.state.totals.rejected, scenario.shard.state.totals.ignored) == (1, 1)


def test_a_replica_stops_at_a_record_that_it_must_execute_and_cannot(scenario: Scenario) -> None:
    scenario.send("cancel", b"nobody")
    scenario.run(T)
    replica = Replica(scenario, 0, scenario.shard.rules, 1_000_000)
    with pytest.raises(LogMismatch, match="but the master executed it"):
        replica.shard.replay_stage(
            scenario.producers.records, replace(scenario.last_progress, refused=())
        )


def test_a_replica_does_not_repeat_decisions_that_depend_on_settings(scenario: Scenario) -> None:
    scenario.send("schedule", b"a", T + 1)
    scenario.run(T + 1)
    scenario.send("schedule", b"a", T + 60, at=T + 50)
    scenario.run(T + 60)
    assert scenario.refused() == []
    for rules in OTHER_RULES:
        replica = Replica(scenario, 0, rules, 1_000_000)
        for offset, timestamp_ms, data in scenario.progress:
            replica.follow(unpack_progress(data, SHARDS), offset, timestamp_ms)
        assert replica.store.rows == scenario.store.rows


def test_a_second_cancel_is_dropped_and_counted_as_ignored_not_as_rejected(
    scenario: Scenario,
) -> None:
    scenario.send("schedule", b"a", T + 5)
    scenario.send("cancel", b"a")
    scenario.run(T + 1)
    again = scenario.send("cancel", b"a")
    scenario.run(T + 2)
    assert scenario.refused() == [(again, IGNORED)]
    totals = scenario.shard.state.totals
    assert (totals.cancelled, totals.ignored, totals.rejected) == (1, 1, 0)


def test_a_dead_message_is_replayed_once_however_often_it_is_asked_for(scenario: Scenario) -> None:
    first = scenario.send("schedule", None, T + 1)
    scenario.send("schedule", b"a", T + 1)
    scenario.run(T + 1, ("dead", 0))
    for at, message_id in ((T + 2, generated_id(T + 1, first)), (T + 200, b"a")):
        replayed = scenario.send("replay", message_id, at, at=at, replayed=b"one")
        repeated = scenario.send("replay", message_id, at, at=at, replayed=b"one")
        other = scenario.send("replay", message_id, at, at=at, replayed=b"two")
        (entry,) = scenario.run(at + 1).entries
        assert (entry.id, entry.headers) == (message_id, {"chronos-replayed": b"one"})
        assert scenario.refused() == [(repeated, IGNORED), (other, CONFLICT)]
        assert scenario.delivered[-1].offset == replayed
        late = scenario.send("replay", message_id, at + 2, at=at + 2, replayed=b"one")
        fresh = scenario.send("schedule", b"b", at + 2, at=at + 2)
        newer = scenario.send("replay", b"b", at + 2, at=at + 2, replayed=b"one")
        assert [entry.id for entry in scenario.run(at + 2).entries] == [b"b"]
        assert scenario.refused() == [(late, IGNORED), (newer, CONFLICT)]
        assert scenario.delivered[-1].offset == fresh
        scenario.run(at + 100)


def test_an_action_in_the_same_batch_does_not_keep_a_forgotten_dead_message_from_its_replay(
    scenario: Scenario,
) -> None:
    """The entry at the position that the id names is still there, and does not say that the message
    was not delivered."""
    scenario.kept_ms = 10
    dead = generated_id(T + 1, scenario.send("schedule", None, T + 1))
    scenario.run(T + 1, ("dead", 0))
    scenario.send("schedule", None, T + 50, at=T + 50)
    scenario.run(T + 50)
    cancel = scenario.send("cancel", dead, at=T + 51)
    replayed = scenario.send("replay", dead, T + 51, at=T + 51, replayed=b"one")
    scenario.run(T + 52)
    assert scenario.refused() == [(cancel, TOO_LATE)]
    assert scenario.delivered[-1].offset == replayed


def test_a_message_that_is_pending_or_delivered_at_its_address_is_not_replayed(
    scenario: Scenario,
) -> None:
    pending = scenario.send("schedule", None, T + 9)
    delivered = scenario.send("schedule", None, T + 1)
    scenario.run(T + 2)
    refused = [
        (
            scenario.send("replay", generated_id(T + 9, pending), T + 3, at=T + 3, replayed=b"one"),
            CONFLICT,
        ),
        (
            scenario.send(
                "replay", generated_id(T + 1, delivered), T + 3, at=T + 3, replayed=b"one"
            ),
            CONFLICT,
        ),
    ]
    assert scenario.run(T + 4).items == []
    assert scenario.refused() == refused
