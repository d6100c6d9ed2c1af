"""The timeline of an id follows the shard: whatever a random history did to a message is what it says became of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from hypothesis import given, settings

from chronos.core.keys import OFFSET_MAX
from chronos.core.message import Action, ConditionalSchedule, Record
from chronos.core.message import OnConflict as Policy
from chronos.core.parsing import parse
from chronos.core.progress import Progress, unpack_progress
from chronos.core.rules import Rules
from chronos.core.timefmt import MS_MAX
from chronos.spark.audit.timeline import OFFSET_END, Event, PromisedDelivery, follow
from chronos.spark.decisions import OUTCOMES
from tests.unit.drivers import Master
from tests.unit.histories import SHARD, SHARDS, START_MS, Step, scripts

RULES = Rules(shard=SHARD, shards=SHARDS, max_delay_ms=2 * MS_MAX)


def events_by_id(master: Master) -> dict[bytes, list[Event]]:
    """What a history's logs say, in order: the records that were pulled and not refused, and the decisions."""
    steps = [unpack_progress(value) for _, _, value in master.progress]
    found: dict[bytes, list[Event]] = defaultdict(list)
    owners: dict[int, bytes] = {}
    records = iter(master.producers.records)
    record = next(records, None)
    cursor = (0, OFFSET_END)
    for step in steps:
        refused = step.rejections()
        while record is not None and record.offset < step.pull_offset:
            if record.offset not in refused:
                _take(record, cursor, found, owners)
            record = next(records, None)
        cursor = step.cursor_due_ms, min(step.cursor_offset, OFFSET_END)
        for decided in _decisions(step, cursor):
            found[owners[decided.offset]].append(decided)
    return found


def _take(record: Record, cursor: tuple[int, int], found: dict[bytes, list[Event]], owners: dict[int, bytes]) -> None:
    asked = parse(record, RULES)
    if type(asked) is Action:
        verb = asked.verb.name.lower().replace("_", "-")
        if verb != "probe":
            found[asked.id].append(Event(verb, record.offset, record.timestamp_ms, asked.due_ms, *cursor))
        return
    entry = asked.entry if type(asked) is ConditionalSchedule else asked
    named = entry.id or b"%d-%d-%d" % (SHARD, entry.due_ms, record.offset)
    takes_over = type(asked) is ConditionalSchedule and asked.on_conflict is Policy.REPLACE
    owners[record.offset] = named
    found[named].append(
        Event("schedule", record.offset, record.timestamp_ms, entry.due_ms, *cursor, entry.target, entry.due_ms, takes_over)
    )  # fmt: skip


def _decisions(step: Progress, cursor: tuple[int, int]) -> Iterator[Event]:
    assert cursor[1] != OFFSET_END or step.cursor_offset == OFFSET_MAX
    for made in step.decisions:
        verb = OUTCOMES[made.outcome]  # type: ignore[index]
        yield Event(verb, made.offset, 0, made.next_due_ms, *cursor, occurrence=made.occurrence, attempt=made.attempt)


def promised_deliveries(master: Master) -> list[PromisedDelivery]:
    """Of all ids."""
    return [unit for happened in events_by_id(master).values() for unit in follow(happened)]


@given(scripts)
@settings(max_examples=400)
def test_each_message_ends_as_the_shard_ended_it(script: Sequence[Step]) -> None:
    """What did not end otherwise and stands behind the cursor was delivered, each occurrence once; the rest is pending."""
    master = Master()
    master.play(script)
    model = master.model
    found = promised_deliveries(master)
    ended = Counter(unit.ended for unit in found)
    assert ended["cancelled"] == model.totals["cancelled"]
    assert ended["replaced"] == model.totals["replaced"]
    assert ended["expired"] == model.totals["expired"]
    assert ended["dead-letter"] == model.totals["dead"]
    open_ = [unit for unit in found if unit.ended is None]
    behind = [unit for unit in open_ if (unit.place_ms, unit.source_offset) <= model.cursor]
    assert Counter((unit.source_offset, unit.occurrence) for unit in behind) == Counter(
        (message.offset, message.occurrence) for message in master.delivered
    )
    ahead = {unit.source_offset: unit for unit in open_ if unit not in behind}
    assert ahead.keys() == model.pending.keys()
    for offset, unit in ahead.items():
        message = model.pending[offset]
        assert (unit.place_ms, unit.due_ms, unit.occurrence, unit.attempt) == (
            message.place_ms, message.due_ms, message.occurrence, message.attempt,
        )  # fmt: skip


@given(scripts)
@settings(max_examples=200)
def test_what_came_before_may_be_left_out(script: Sequence[Step]) -> None:
    """An action that was meant for a message outside the events passes by those that were settled when it came."""
    master = Master()
    master.play(script)
    master.drain(START_MS + 3_600_000)
    for happened in events_by_id(master).values():
        scheduled = {event.offset for event in happened if event.verb == "schedule"}
        whole = {(unit.source_offset, unit.occurrence): unit for unit in follow(happened)}
        for left_out in scheduled:
            if any(event.takes_over for event in happened if event.offset == left_out):
                continue  # those are always among the events
            rest = [event for event in happened if event.verb != "schedule" or event.offset != left_out]
            for unit in follow(rest):
                assert whole[unit.source_offset, unit.occurrence] == unit


def schedule(offset: int, due_ms: int, cursor_ms: int = 0, *, takes_over: bool = False, at: int = OFFSET_END) -> Event:
    """A record that was taken at ms 10."""
    return Event("schedule", offset, 10, due_ms, cursor_ms, at, "t", due_ms, takes_over)


def watermarks(*events: Event) -> list[tuple[int, int, str | None]]:
    """Source offset, due time and end of each unit."""
    return [(unit.source_offset, unit.due_ms, unit.ended) for unit in follow(events)]


def test_what_stands_at_the_cursor_is_settled() -> None:
    """To the offset: at the cursor it was delivered before it could be replaced or cancelled, behind it it was not."""
    first = schedule(1, 100)
    for at, ended in ((0, "replaced"), (1, None), (2, None)):
        assert watermarks(first, schedule(5, 900, 100, takes_over=True, at=at))[0] == (1, 100, ended)
    for at, ended in ((0, "cancelled"), (1, None)):
        assert watermarks(first, Event("cancel", 5, 99, None, 100, at)) == [(1, 100, ended)]
    for at, due_ms in ((0, 900), (1, 100)):
        assert watermarks(first, Event("reschedule", 5, 99, 900, 100, at)) == [(1, due_ms, None)]


def test_firing_what_is_next_anyway_changes_nothing() -> None:
    """By its storage: not later than the record that fires it, or right behind the cursor."""
    first = schedule(1, 100)
    for at_ms, cursor_ms, due_ms in ((99, 0, 99), (100, 0, 100), (101, 0, 100), (50, 99, 100), (50, 98, 50)):
        assert watermarks(first, Event("fire-now", 5, at_ms, None, cursor_ms, OFFSET_END)) == [(1, due_ms, None)]


def test_a_decision_concerns_the_message_it_names() -> None:
    """Not another one of the same id that took its storage."""
    replaced = schedule(1, 100), schedule(5, 900, takes_over=True)
    assert watermarks(*replaced, Event("dead-letter", 1, 0, None, 200, OFFSET_END)) == [
        (1, 100, "replaced"),
        (5, 900, None),
    ]
    assert watermarks(*replaced, Event("dead-letter", 5, 0, None, 950, OFFSET_END))[1] == (5, 900, "dead-letter")
