"""The timeline of an id agrees with the shard: after random histories both have the same end of
every message."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given

from chronos.core.keys import OFFSET_MAX
from chronos.core.message import Action, ConditionalSchedule, Record, Rejection
from chronos.core.message import OnConflict as Policy
from chronos.core.series import repetition_of, rhythm, shift_ms
from chronos.core.shard.parsing import parse
from chronos.core.shard.progress import Outcome, Progress, unpack_progress
from chronos.core.shard.rules import Rules
from chronos.core.timefmt import MS_MAX
from chronos.spark.audit.timeline import NEVER, OFFSET_END, Event, PromisedDelivery, follow
from chronos.spark.codec import LEFT_LANE, OUTCOMES, PLANNED_AGAIN
from tests.unit.drivers import Master
from tests.unit.histories import SHARD, SHARDS, START_MS, Sent, Step, histories
from tests.unit.settings import examples

pytestmark = pytest.mark.slow

RULES = Rules(shard=SHARD, shards=SHARDS, max_delay_ms=2 * MS_MAX)


def events_by_id(master: Master) -> dict[bytes, list[Event]]:
    """The events of a history's logs by id, in order: records that were pulled and not refused, and
    decisions."""
    steps = [unpack_progress(value, SHARDS) for _, _, value in master.progress]
    found: dict[bytes, list[Event]] = defaultdict(list)
    owners: dict[int, bytes] = {}
    records = iter(master.producers.records)
    record = next(records, None)
    cursor = (0, OFFSET_END)
    parked: set[tuple[int, int, int]] = set()
    for step in steps:
        refused, first = step.rejections(), 0 if record is None else record.offset
        while record is not None and record.offset < step.pull_offset:
            if record.offset not in refused:
                _take(record, cursor, found, owners)
            record = next(records, None)
        cursor = step.cursor_due_ms, min(step.cursor_offset, OFFSET_END)
        # An upsert of this step may have the place of a parked message, which it cannot leave yet.
        in_place = {
            (due_ms, upsert, lane)
            for due_ms, offset, lane in parked
            for upsert in owners
            if upsert >= first and owners[upsert] == owners[offset]
        }
        for decided in [*_left_lanes(step, cursor, parked), *_decisions(step, cursor)]:
            found[owners[decided.offset]].append(decided)
        parked |= {
            (made.due_ms, made.offset, made.lane)
            for made in step.decisions
            if made.outcome is Outcome.PARKED
        }
        parked |= in_place
    return found


def _take(
    record: Record,
    cursor: tuple[int, int],
    found: dict[bytes, list[Event]],
    owners: dict[int, bytes],
) -> None:
    command = parse(record, RULES)
    assert not isinstance(command, Rejection)
    if isinstance(command, Action):
        verb = command.verb.name.lower().replace("_", "-")
        if verb != "probe":
            first_ms = (
                record.timestamp_ms
                if command.first_ms is None
                else min(command.first_ms, record.timestamp_ms)
            )
            found[command.id].append(Event(verb, record.offset, first_ms, command.due_ms, *cursor))
        return
    if isinstance(command, ConditionalSchedule):
        entry, policy, is_at = command.entry, command.on_conflict, command.is_at
    else:
        entry, policy, is_at = command, Policy.REJECT, False
    message_id = entry.id or b"%d-%d-%d" % (SHARD, entry.due_ms, record.offset)
    upserts = policy is Policy.UPSERT
    takes_over = upserts or policy is Policy.REPLACE
    owners[record.offset] = message_id
    placed_ms = entry.due_ms + shift_ms(entry, SHARD, record.offset)
    found[message_id].append(
        Event(
            "schedule",
            record.offset,
            min(entry.timestamp_ms, record.timestamp_ms),
            placed_ms,
            *cursor,
            entry.target,
            entry.due_ms,
            takes_over,
            occurrence=entry.occurrence,
            upserts=upserts,
            is_at=is_at,
            rhythm=repr(rhythm(entry)),
            is_series=repetition_of(entry) is not None,
            target_key=entry.key,
        )
    )


def _decisions(step: Progress, cursor: tuple[int, int]) -> Iterator[Event]:
    assert cursor[1] != OFFSET_END or step.cursor_offset == OFFSET_MAX
    for made in step.decisions:
        verb = OUTCOMES[made.outcome]  # type: ignore[index]
        is_parked = made.outcome is Outcome.PARKED
        yield Event(
            verb,
            made.offset,
            0,
            made.due_ms if is_parked else made.next_due_ms,
            *cursor,
            occurrence=made.occurrence,
            attempt=made.attempt,
            lane=made.lane if is_parked else None,
        )


def _left_lanes(
    step: Progress, cursor: tuple[int, int], parked: set[tuple[int, int, int]]
) -> Iterator[Event]:
    """For each message parked before, the first step in which the cursor of its lane reaches it."""
    for lane in step.lanes:
        for place in sorted(parked):
            due_ms, offset, partition = place
            if partition == lane.partition and (due_ms, offset) <= (lane.due_ms, lane.offset):
                parked.discard(place)
                yield Event(LEFT_LANE, offset, 0, due_ms, *cursor, lane=partition)


def promised_by(master: Master) -> list[PromisedDelivery]:
    """The promised deliveries of all ids."""
    return [promised for events in events_by_id(master).values() for promised in follow(events)]


@given(histories)
@examples(400)
def test_each_message_ends_as_the_shard_ended_it(history: Sequence[Step]) -> None:
    """A message that did not end otherwise was delivered if it is behind the cursor, each
    occurrence once; else it is pending."""
    master = Master()
    master.play(history)
    check_ends(master)


def check_ends(master: Master) -> None:
    """The timeline has the end of every message that the shard has."""
    model = master.model
    found = promised_by(master)
    ended = Counter(promised.ended for promised in found)
    assert ended["cancelled"] == model.totals["cancelled"]
    assert ended["replaced"] == model.totals["replaced"]
    assert ended["expired"] == model.totals["expired"]
    assert ended["dead-letter"] == model.totals["dead"]
    open_ = [promised for promised in found if promised.ended is None]
    # What left a lane counts as settled once the cursor is past that step; here the cursor may
    # still be among what was due then.
    left = {(message.offset, message.occurrence) for message in model.left}
    behind = [
        promised
        for promised in open_
        if (promised.place_ms, promised.source_offset) <= model.cursor
        or (
            promised.place_ms <= model.cursor[0] + 1
            and (promised.source_offset, promised.occurrence) in left
        )
    ]
    assert Counter((promised.source_offset, promised.occurrence) for promised in behind) == Counter(
        (message.offset, message.occurrence) for message in [*master.delivered, *model.left]
    )
    ahead = {promised.source_offset: promised for promised in open_ if promised not in behind}
    assert ahead.keys() == model.pending.keys()
    for offset, promised in ahead.items():
        message = model.pending[offset]
        if message.intent.first_is_left:
            continue  # the events do not tell whether its first time is decided
        assert (
            promised.place_ms,
            promised.requested_due_ms,
            promised.occurrence,
            promised.attempt,
        ) == (
            message.place_ms if message.lane is None else NEVER,
            message.due_ms,
            message.occurrence,
            message.attempt,
        )


@given(histories)
@examples(200)
def test_settled_messages_may_be_left_out_of_the_events(history: Sequence[Step]) -> None:
    """An action on a message that is not among the events has no effect on messages settled when it
    was staged."""
    master = Master()
    master.play(history)
    master.drain(START_MS + 3_600_000)
    for events in events_by_id(master).values():
        scheduled = {event.offset for event in events if event.verb == "schedule"}
        whole = {
            (promised.source_offset, promised.occurrence): promised for promised in follow(events)
        }
        for left_out in scheduled:
            if any(event.takes_over for event in events if event.offset == left_out):
                continue  # a record that takes over is always among the events
            rest = [
                event for event in events if event.verb != "schedule" or event.offset != left_out
            ]
            for promised in follow(rest):
                assert whole[promised.source_offset, promised.occurrence] == promised


def step(*sent: Sent, waited_ms: int = 0) -> Step:
    """A step that delivers everything that is due."""
    return Step(sent, waited_ms, 100, 1_000_000, (("delivered", 0),), (), False, False)


def sent(
    verb: str,
    in_ms: int = 0,
    *,
    hop_ms: int | None = None,
    hop_from: int = 0,
    policy: str = "reject",
) -> Sent:
    """A record of one id, of the same millisecond as the record before it unless time has
    passed."""
    return Sent(verb, 0, in_ms, 0, policy, hop_ms=hop_ms, hop_from=hop_from)


def test_a_forwarded_message_is_placed_by_its_first_timestamp() -> None:
    """A record that takes its id over does not replace it if it was settled, though its hop is
    later than the cursor."""
    master = Master()
    # The broker's clock is 3 ms ahead.
    master.play(
        [
            step(sent("schedule", -5, hop_ms=5), waited_ms=-3),
            step(sent("schedule", 900, policy="replace")),
        ]
    )
    check_ends(master)
    assert [promised.ended for promised in promised_by(master)] == [None, None]


@pytest.mark.parametrize(("hop_from", "ended"), [(2, ["cancelled"]), (0, ["cancelled", None])])
def test_a_cancel_of_the_same_millisecond_ends_a_forwarded_message(
    hop_from: int, ended: list[str | None]
) -> None:
    """The shard refuses a message that came to another partition than the cancel; from one
    partition their order holds."""
    master = Master()
    cancelled = sent("schedule", 50), sent("cancel", hop_ms=0, hop_from=0)
    master.play([step(*cancelled, sent("schedule", 60, hop_ms=0, hop_from=hop_from))])
    check_ends(master)
    assert [promised.ended for promised in promised_by(master)] == ended


def schedule(
    offset: int, due_ms: int, cursor_ms: int = 0, *, takes_over: bool = False, at: int = OFFSET_END
) -> Event:
    """A record with timestamp 10 ms."""
    return Event("schedule", offset, 10, due_ms, cursor_ms, at, "t", due_ms, takes_over)


def ends(*events: Event) -> list[tuple[int, int, str | None]]:
    """Source offset, due time and end of each promised."""
    return [
        (promised.source_offset, promised.due_ms, promised.ended) for promised in follow(events)
    ]


def test_a_message_at_the_cursor_is_settled() -> None:
    """Exact to the offset: a message at the cursor can no longer be replaced, cancelled or
    rescheduled; one beyond it can."""
    first = schedule(1, 100)
    for at, ended in ((0, "replaced"), (1, None), (2, None)):
        assert ends(first, schedule(5, 900, 100, takes_over=True, at=at))[0] == (1, 100, ended)
    for at, ended in ((0, "cancelled"), (1, None)):
        assert ends(first, Event("cancel", 5, 99, None, 100, at)) == [(1, 100, ended)]
    for at, due_ms in ((0, 900), (1, 100)):
        assert ends(first, Event("reschedule", 5, 99, 900, 100, at)) == [(1, due_ms, None)]


def test_firing_a_message_that_is_already_next_changes_nothing() -> None:
    """It is next if its position is not later than the record that fires it, or directly behind the
    cursor."""
    first = schedule(1, 100)
    for at_ms, cursor_ms, due_ms in (
        (99, 0, 99),
        (100, 0, 100),
        (101, 0, 100),
        (50, 99, 100),
        (50, 98, 50),
    ):
        assert ends(first, Event("fire-now", 5, at_ms, None, cursor_ms, OFFSET_END)) == [
            (1, due_ms, None)
        ]


def test_firing_a_series_without_a_first_time_gives_it_one() -> None:
    """The time of the action is its first time, though the series stands directly behind the
    cursor."""
    series = Event("schedule", 1, 10, 10, 0, OFFSET_END, "t", 10, occurrence=0)
    (fired,) = follow([series, Event("fire-now", 5, 12, None, 9, OFFSET_END)])
    assert (fired.due_ms, fired.place_ms, fired.occurrence) == (12, 12, 1)
    given = Event("skipped", 1, 11, 60, 10, OFFSET_END)
    (timed,) = follow([series, given, Event("fire-now", 5, 61, None, 59, OFFSET_END)])
    assert (timed.due_ms, timed.place_ms, timed.occurrence) == (60, 60, 1)


def test_an_occurrence_that_moves_with_the_zone_data_is_promised_at_its_new_time() -> None:
    at = (OFFSET_END,)
    series = Event("schedule", 1, 10, 10, 0, *at, "t", 10)
    again = Event("again", 1, 0, 500, 10, *at, occurrence=2)
    for next_ms, place_ms in ((900, 900), (100, 201)):
        moves = Event(PLANNED_AGAIN, 1, 0, next_ms, 200, *at)
        first, second = follow([series, again, moves])
        assert (first.due_ms, first.occurrence) == (10, 1)
        assert (second.due_ms, second.place_ms) == (next_ms, place_ms)
        assert (second.window_ms, second.occurrence, second.ended) == (next_ms, 2, None)


def test_an_occurrence_that_moved_with_the_zone_data_is_not_paused() -> None:
    """An upsert with another rhythm brings it forward."""
    at = (OFFSET_END,)
    series = Event("schedule", 1, 10, 500, 0, *at, "t", 500, rhythm="a", is_series=True)
    moves = Event(PLANNED_AGAIN, 1, 0, 900, 200, *at)
    upsert = Event(
        "schedule", 2, 250, 700, 200, *at, "t", 700, True, upserts=True, rhythm="b", is_series=True
    )
    _, new = follow([series, moves, upsert])
    assert (new.due_ms, new.place_ms) == (700, 700)


def test_the_latest_first_time_goes_on_from_upsert_to_upsert() -> None:
    """A cron series whose first time is not decided yet stands between the two."""
    at = (OFFSET_END,)
    series = Event("schedule", 1, 10, 500, 0, *at, "t", 500, rhythm="a", is_series=True)
    cron = Event(
        "schedule",
        2,
        20,
        20,
        0,
        *at,
        "t",
        20,
        True,
        occurrence=0,
        upserts=True,
        rhythm="b",
        is_series=True,
    )
    later = Event(
        "schedule", 3, 21, 900, 0, *at, "t", 900, True, upserts=True, rhythm="c", is_series=True
    )
    assert [each.due_ms for each in follow([series, cron, later])][-1] == 500


def test_an_action_older_than_its_message_keeps_its_own_time() -> None:
    """A forwarded action may be: the clocks of two brokers differ."""
    first = schedule(1, 100)
    assert ends(first, Event("fire-now", 5, 4, None, 0, OFFSET_END)) == [(1, 4, None)]
    for due_ms, place_ms in ((7, 7), (3, 4)):
        (moved,) = follow([first, Event("reschedule", 5, 4, due_ms, 0, OFFSET_END)])
        assert (moved.due_ms, moved.place_ms) == (due_ms, place_ms)


def test_a_decision_concerns_only_the_message_it_names() -> None:
    """A later message with the same id is not concerned."""
    replaced = schedule(1, 100), schedule(5, 900, takes_over=True)
    assert ends(*replaced, Event("dead-letter", 1, 0, None, 200, OFFSET_END)) == [
        (1, 100, "replaced"),
        (5, 900, None),
    ]
    assert ends(*replaced, Event("dead-letter", 5, 0, None, 950, OFFSET_END))[1] == (
        5,
        900,
        "dead-letter",
    )
