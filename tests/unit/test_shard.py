"""What a shard does in the cases somebody will ask about, one by one; the model agrees with each."""

from __future__ import annotations

import pytest

from chronos.core.keys import OFFSET_MAX
from chronos.core.message import Reason
from chronos.core.progress import unpack_progress
from chronos.core.shard import READ_AHEAD_BYTES
from chronos.core.step import Selection
from chronos.errors import LogMismatch
from tests.unit.drivers import OTHER_RULES, Master, Replica, opened
from tests.unit.histories import DEDUPLICATION_MS, SHARD, START_MS, Step, render
from tests.unit.model import Ask

T = START_MS
CONFLICT, IGNORED, TOO_LATE, UNKNOWN = Reason.CONFLICT, Reason.IGNORED, Reason.TOO_LATE, Reason.UNKNOWN


class Story(Master):
    """A master whose producers say exactly what the test says."""

    def send(self, verb: str, message_id: bytes | None = None, due_ms: int = 0, *, at: int = T, **more: object) -> int:
        """One record; its offset."""
        asks = self.producers.asks
        offset = asks[-1].offset + 1 if asks else 1
        asks.append(Ask(offset=offset, timestamp_ms=at, verb=verb, id=message_id, due_ms=due_ms, **more))
        self.producers.records.append(render(asks[-1]))
        return offset

    def run(self, now_ms: int, *fates: tuple[str, int], messages_max: int = 100, bytes_max: int = 10**6) -> Selection:
        """One step."""
        self.now_ms = now_ms
        return self.step(
            Step((), 0, messages_max, bytes_max, fates or (("delivered", 0),), (), behind=False, aborted=False)
        )

    def places(self, selection: Selection) -> list[tuple[int, int]]:
        return [item[:2] for item in selection.items]

    def refused(self) -> list[tuple[int, int]]:
        """What the last step refused."""
        return list(self.last_progress.refused)


def generated_id(due_ms: int, offset: int) -> bytes:
    return b"%d-%d-%d" % (SHARD, due_ms, offset)


@pytest.fixture
def story() -> Story:
    return Story()


def test_messages_are_delivered_by_due_time_and_then_by_arrival(story: Story) -> None:
    late = story.send("schedule", None, T + 5)
    first = story.send("schedule", b"a", T + 3)
    second = story.send("schedule", None, T + 3)
    assert story.run(T + 2).items == []
    assert story.places(story.run(T + 5)) == [(T + 3, first), (T + 3, second), (T + 5, late)]


def test_what_is_due_in_the_past_is_next_and_never_behind_the_cursor(story: Story) -> None:
    story.run(T + 100)
    ancient = story.send("schedule", None, 7, at=T + 50)
    recent = story.send("schedule", None, T + 60, at=T + 50)
    selection = story.run(T + 101)
    assert story.places(selection) == [(T + 101, ancient), (T + 101, recent)]
    assert [entry.due_ms for entry in selection.entries] == [7, T + 60]


def test_more_in_one_millisecond_than_a_step_may_take_is_taken_in_order_by_the_next(story: Story) -> None:
    offsets = [story.send("schedule", None, T + 1) for _ in range(7)]
    taken = []
    for expected in (offsets[:3], offsets[3:6], offsets[6:]):
        selection = story.run(T + 1, messages_max=3)
        assert [item[1] for item in selection.items] == expected
        taken.append(selection.cursor)
    assert taken == [(T + 1, offsets[2]), (T + 1, offsets[5]), (T + 1, OFFSET_MAX)]


def test_what_arrives_for_a_millisecond_that_is_half_settled_comes_behind_it(story: Story) -> None:
    old = [story.send("schedule", None, T + 1) for _ in range(3)]
    story.run(T + 1, messages_max=1)
    new = story.send("schedule", None, T + 1, at=T + 1)
    assert story.places(story.run(T + 1)) == [(T + 1, old[1]), (T + 1, old[2])]
    assert story.places(story.run(T + 2)) == [(T + 2, new)]


@pytest.fixture
def backlog(story: Story) -> tuple[Story, list[int]]:
    """Two of eight messages are delivered, and the next two were selected before that was committed."""
    offsets = [story.send("schedule", b"%d" % at, T + 10 * at) for at in range(1, 9)]
    story.run(T + 1)
    assert [item[1] for item in story.run(T + 100, messages_max=2).items] == offsets[:2]
    return story, offsets


def test_what_was_selected_ahead_is_not_delivered_once_it_is_cancelled(backlog: tuple[Story, list[int]]) -> None:
    story, offsets = backlog
    story.send("cancel", b"3", at=T + 50)
    assert [item[1] for item in story.run(T + 100, messages_max=2).items] == [offsets[3]]


def test_what_arrives_late_goes_before_what_was_selected_ahead(backlog: tuple[Story, list[int]]) -> None:
    story, offsets = backlog
    new = story.send("schedule", None, T + 35, at=T + 22)
    assert [item[1] for item in story.run(T + 100, messages_max=2).items] == [offsets[2], new]


def test_what_was_selected_ahead_waits_when_the_clock_steps_back(backlog: tuple[Story, list[int]]) -> None:
    story, offsets = backlog
    assert [item[1] for item in story.run(T + 35, messages_max=2).items] == [offsets[2]]


def test_a_step_takes_one_message_even_when_that_is_more_than_it_may(story: Story) -> None:
    for _ in range(2):
        story.send("schedule", None, T + 1, value=b"x" * 500)
    assert len(story.run(T + 1, bytes_max=10).items) == 1
    assert len(story.run(T + 1, bytes_max=10).items) == 1
    assert story.run(T + 1, bytes_max=10).complete


def test_a_clock_that_steps_back_moves_nothing_back(story: Story) -> None:
    story.send("schedule", None, T + 50)
    story.run(T + 20)
    selection = story.run(T - 500)
    assert (selection.items, selection.cursor, selection.complete) == ([], (T + 20, OFFSET_MAX), True)
    new = story.send("schedule", None, T - 400, at=T - 500)
    assert story.run(T + 20).items == []
    assert story.places(story.run(T + 21)) == [(T + 21, new)]


def test_an_id_that_is_pending_is_refused_ignored_or_replaced_as_asked(story: Story) -> None:
    story.send("schedule", b"a", T + 10)
    again = story.send("schedule", b"a", T + 11)
    ignored = story.send("schedule", b"a", T + 12, policy="ignore")
    new = story.send("schedule", b"a", T + 13, policy="replace")
    story.run(T)
    assert story.refused() == [(again, CONFLICT), (ignored, IGNORED)]
    assert story.places(story.run(T + 20)) == [(T + 13, new)]


def test_an_id_is_free_again_when_the_deduplication_window_is_over_and_not_a_moment_before(
    story: Story,
) -> None:
    story.send("schedule", b"a", T + 1)
    story.run(T + 2)
    within = story.send("schedule", b"a", T + 99, at=T + 2 + DEDUPLICATION_MS - 1)
    beyond = story.send("schedule", b"a", T + 99, at=T + 2 + DEDUPLICATION_MS)
    story.run(T + 40)
    assert story.refused() == [(within, CONFLICT)]
    assert story.places(story.run(T + 99)) == [(T + 99, beyond)]


@pytest.mark.parametrize("fate", ["expired", "dead"])
def test_an_id_whose_message_was_given_up_is_free_at_once(story: Story, fate: str) -> None:
    story.send("schedule", b"a", T + 1)
    story.run(T + 1, (fate, 0))
    new = story.send("schedule", b"a", T + 2)
    assert story.places(story.run(T + 2)) == [(T + 2, new)]


def test_an_id_that_was_cancelled_is_free_in_the_same_batch(story: Story) -> None:
    story.send("schedule", b"a", T + 1)
    story.send("cancel", b"a")
    new = story.send("schedule", b"a", T + 2)
    assert story.places(story.run(T + 9)) == [(T + 2, new)]
    assert story.refused() == []


@pytest.mark.parametrize("batches", [1, 2])
def test_a_message_without_a_key_is_cancelled_and_moved_by_its_address(story: Story, batches: int) -> None:
    gone, moved = story.send("schedule", None, T + 5), story.send("schedule", None, T + 6)
    if batches == 2:
        story.run(T)
    story.send("cancel", generated_id(T + 5, gone))
    story.send("reschedule", generated_id(T + 6, moved), T + 8)
    again = story.send("cancel", generated_id(T + 5, gone))
    late = story.send("fire-now", generated_id(T + 5, gone))
    story.run(T + 1)
    assert story.refused() == [(again, IGNORED), (late, TOO_LATE)]
    # It keeps the id it was given, wherever it stands.
    story.send("reschedule", generated_id(T + 6, moved), T + 9)
    never = story.send("cancel", generated_id(T + 8, moved))
    assert story.places(story.run(T + 9)) == [(T + 9, moved)]
    assert story.refused() == [(never, UNKNOWN)]


@pytest.mark.parametrize("batches", [1, 2])
def test_a_message_with_a_key_is_known_by_its_key_alone_and_not_by_its_place(story: Story, batches: int) -> None:
    keyed = story.send("schedule", b"a", T + 5)
    if batches == 2:
        story.run(T)
    wrong = story.send("cancel", generated_id(T + 5, keyed))
    story.run(T + 1)
    assert story.refused() == [(wrong, UNKNOWN)]
    # Had the cancel taken the entry away, this would find a word that points at nothing.
    story.send("reschedule", b"a", T + 7)
    assert story.places(story.run(T + 7)) == [(T + 7, keyed)]


def test_an_action_on_what_was_taken_by_an_earlier_step_is_too_late(story: Story) -> None:
    plain, keyed = story.send("schedule", None, T + 1), story.send("schedule", b"a", T + 1)
    story.run(T + 1)
    expected = []
    for verb in ("cancel", "fire-now", "reschedule"):
        for message_id in (b"a", generated_id(T + 1, plain)):
            expected.append((story.send(verb, message_id, T + 50, at=T + 1), TOO_LATE))
    expected.append((story.send("replace", b"a", T + 50, at=T + 1), TOO_LATE))
    story.run(T + 60)
    assert story.refused() == expected
    assert keyed == plain + 1


def test_fire_now_makes_nothing_later_than_it_is(story: Story) -> None:
    offset = story.send("schedule", b"a", T + 1)
    story.run(T)
    story.send("fire-now", b"a", at=T + 5)
    assert story.places(story.run(T + 5)) == [(T + 1, offset)]


def test_fire_now_leaves_alone_what_is_due_at_that_very_moment(story: Story) -> None:
    offset = story.send("schedule", None, T + 5)
    story.run(T)
    story.send("fire-now", generated_id(T + 5, offset), at=T + 5)
    selection = story.run(T + 5)
    assert story.places(selection) == [(T + 5, offset)]
    assert selection.entries[0].id is None
    assert story.shard.state.totals.changed == 1


def test_fire_now_is_delivered_by_the_step_that_reads_it(story: Story) -> None:
    plain = story.send("schedule", None, T + 60_000)
    story.run(T)
    story.send("fire-now", generated_id(T + 60_000, plain), at=T + 2)
    keyed = story.send("schedule", b"a", T + 70_000, at=T + 2)
    story.send("fire-now", b"a", at=T + 3)
    assert story.places(story.run(T + 3)) == [(T + 2, plain), (T + 3, keyed)]


def test_a_message_moved_to_the_time_it_has_stays_there_once(story: Story) -> None:
    offset = story.send("schedule", b"a", T + 5)
    story.run(T)
    for _ in range(2):
        story.send("reschedule", b"a", T + 5)
    story.run(T + 1)
    story.send("reschedule", b"a", T + 5, at=T + 1)
    assert story.places(story.run(T + 5)) == [(T + 5, offset)]


def test_a_message_moved_away_and_back_is_delivered_once(story: Story) -> None:
    offset = story.send("schedule", None, T + 5)
    story.run(T)
    for due_ms in (T + 9, T + 5, T + 7, T + 5):
        story.send("reschedule", generated_id(T + 5, offset), due_ms)
        story.run(T + 1)
    assert story.places(story.run(T + 9)) == [(T + 5, offset)]


@pytest.mark.parametrize("fate", ["again", "retry", "deferred", "skipped"])
def test_what_goes_on_can_still_be_cancelled_and_changed(story: Story, fate: str) -> None:
    plain, keyed = story.send("schedule", None, T + 1), story.send("schedule", b"a", T + 1)
    story.run(T + 1, (fate, 30))
    story.send("cancel", generated_id(T + 1, plain), at=T + 2)
    story.send("reschedule", b"a", T + 10, at=T + 2)
    story.run(T + 2)
    assert story.refused() == []
    assert story.places(story.run(T + 40)) == [(T + 10, keyed)]


def test_what_goes_on_at_a_time_that_is_over_comes_right_behind_the_cursor(story: Story) -> None:
    offset = story.send("schedule", b"a", T + 1)
    story.run(T + 5, ("retry", -100))
    assert story.places(story.run(T + 6)) == [(T + 6, offset)]


def test_a_step_that_only_finds_cancelled_messages_still_moves_on(story: Story) -> None:
    for _ in range(4):
        story.send("schedule", b"a%d" % len(story.producers.asks), T + 5)
    kept = story.send("schedule", b"kept", T + 6)
    story.run(T)
    for ask in story.producers.asks[:4]:
        story.send("cancel", ask.id, at=T + 1)
    selection = story.run(T + 6, messages_max=2)
    assert (selection.items, selection.complete) == ([], False)
    assert selection.cursor > (T, OFFSET_MAX)
    assert story.places(story.run(T + 6, messages_max=2)) == [(T + 6, kept)]


def test_what_arrives_does_not_overtake_what_was_not_looked_at(story: Story) -> None:
    old = [story.send("schedule", b"a%d" % number, T + 5) for number in range(3)]
    story.run(T)
    story.send("cancel", b"a0")
    new = story.send("schedule", None, T + 5)
    # The limit is spent on one that was cancelled and one that was not: the third is stored, but nobody saw it.
    assert story.places(story.run(T + 5, messages_max=2)) == [(T + 5, old[1])]
    assert story.places(story.run(T + 5, messages_max=2)) == [(T + 5, old[2]), (T + 5, new)]


def test_a_step_that_was_given_up_leaves_no_trace(story: Story) -> None:
    story.send("schedule", b"a", T + 1)
    story.run(T)
    story.send("cancel", b"a")
    story.send("schedule", None, T + 1)
    before = story.shard.state
    for _ in range(3):
        story.now_ms = T + 2
        story.step(Step((), 0, 1, 1, (("dead", 0),), (), behind=False, aborted=True))
    assert story.shard.state == before
    assert [item[1] for item in story.run(T + 2).items] == [3]


def test_reading_ahead_goes_on_where_the_store_stopped_for_the_size_of_the_messages(story: Story) -> None:
    """Three messages of which two fit into one read: a read that ends below its limit is not the end."""
    offsets = [story.send("schedule", None, T + 1, value=b"x" * (READ_AHEAD_BYTES * 2 // 5)) for _ in range(3)]
    story.run(T)
    story.shard = opened(story.store)
    selection = story.run(T + 1, bytes_max=10**9)
    assert [item[1] for item in selection.items] == offsets
    assert selection.complete


def test_large_messages_are_not_all_read_into_memory_to_find_the_first(story: Story) -> None:
    for _ in range(40):
        story.send("schedule", None, T + 1, value=b"x" * 1_000_000)
    story.run(T)
    story.shard = opened(story.store)
    selection = story.shard.select(story.shard.stage([]), T + 1, 5_000, 2_000_000)
    assert len(selection.items) == 1
    assert story.shard.wheel.bytes <= READ_AHEAD_BYTES


def test_a_shard_knows_when_to_wake_although_part_of_a_millisecond_was_given_up(story: Story) -> None:
    for key in (b"a", b"b"):
        story.send("schedule", key, T + 5)
    story.run(T)
    while story.shard.read_ahead(T + 10, 100):
        pass
    story.shard.wheel.shrink(1)
    assert story.shard.next_due_ms() == T + 5
    story.send("cancel", b"a")
    story.run(T + 1)
    # The wheel holds nothing any more, but is complete only up to the middle of that millisecond.
    assert story.shard.wheel.messages == 0
    assert story.shard.next_due_ms() == T + 5


def test_a_shard_with_nothing_pending_waits_for_nothing(story: Story) -> None:
    assert story.shard.next_due_ms() is None
    story.send("schedule", None, T + 5)
    story.run(T)
    assert story.shard.next_due_ms() is not None
    story.run(T + 5)
    assert story.shard.next_due_ms() is None


def test_a_probe_changes_nothing_but_its_count(story: Story) -> None:
    story.send("probe", None)
    selection = story.run(T)
    assert (selection.items, story.refused()) == ([], [])
    assert story.shard.state.totals.probes == 1


def test_a_refused_record_is_counted_and_passed_over_and_an_ignored_one_is_not_sent_on(story: Story) -> None:
    story.send("schedule", b"a", T + 9)
    story.send("cancel", b"nobody")
    story.send("schedule", b"a", T + 9, policy="ignore")
    staged = story.shard.stage(story.producers.records)
    assert [(record.offset, rejection.reason) for record, rejection in staged.rejections] == [(2, UNKNOWN)]
    story.run(T)
    assert (story.shard.state.totals.rejected, story.shard.state.totals.ignored) == (1, 1)


def test_a_replica_finds_out_that_a_record_it_must_execute_cannot_be(story: Story) -> None:
    story.send("cancel", b"nobody")
    story.run(T)
    replica = Replica(story, 0, story.shard.rules, 1_000_000)
    with pytest.raises(LogMismatch, match="but the master executed it"):
        replica.shard.replay_stage(story.producers.records, {})


def test_a_replica_does_not_decide_again_what_a_setting_decided(story: Story) -> None:
    story.send("schedule", b"a", T + 1)
    story.run(T + 1)
    story.send("schedule", b"a", T + 60, at=T + 50)
    story.run(T + 60)
    assert story.refused() == []
    for rules in OTHER_RULES:
        replica = Replica(story, 0, rules, 1_000_000)
        for offset, timestamp_ms, data in story.progress:
            replica.follow(unpack_progress(data), offset, timestamp_ms)
        assert replica.store.rows == story.store.rows


def test_a_second_cancel_is_dropped_and_counted_as_ignored_not_as_rejected(story: Story) -> None:
    story.send("schedule", b"a", T + 5)
    story.send("cancel", b"a")
    story.run(T + 1)
    again = story.send("cancel", b"a")
    story.run(T + 2)
    assert story.refused() == [(again, IGNORED)]
    totals = story.shard.state.totals
    assert (totals.cancelled, totals.ignored, totals.rejected) == (1, 1, 0)
