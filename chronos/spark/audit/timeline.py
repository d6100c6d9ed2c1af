"""What happened to the messages of one id, in order: a small state machine over what the logs say.

Most messages need none of this: nobody touched them, and the progress log has nothing to say about them. For those
that were cancelled, replaced, moved, retried or repeated, this follows `core.shard` in the order of the two logs, by
the same placement rule; but it decides nothing, and it needs only the records of that id.

It may begin in the middle: a message that is not among the events (it lies outside the window) is one that an action
passes by, because what stood before the cursor when the action was staged was settled by then.
"""

from collections.abc import Iterable, Iterator

from msgspec import Struct

SCHEDULE, REPLACE, RESCHEDULE, CANCEL, FIRE_NOW = "schedule", "replace", "reschedule", "cancel", "fire-now"
RETRY, DEFERRED, AGAIN, SKIPPED, EXPIRED, DEAD_LETTER = (
    "retry", "deferred", "again", "skipped", "expired", "dead-letter",
)  # fmt: skip

CANCELLED, REPLACED = "cancelled", "replaced"

OFFSET_END = 2**63 - 1
"""Instead of the cursor's greatest offset, which no signed column holds: behind everything due then."""


class Event(Struct, frozen=True, gc=False):
    """A delay record that was not refused, or a decision; in the order in which the shard executed them."""

    verb: str
    """What the record asks for, or the outcome that was decided."""
    offset: int
    """Of the delay record; for a decision, of the record that brought the message."""
    timestamp_ms: int
    """When the broker took the delay record; for a decision, the progress record."""
    due_ms: int | None
    """The time asked for; for a decision, the next one."""
    cursor_due_ms: int
    """The cursor before the step that staged the record; for a decision, after its step."""
    cursor_offset: int
    target: str | None = None
    requested_due_ms: int | None = None
    takes_over: bool = False
    """A `replace`, or a `schedule` that replaces what is pending."""
    reason: str | None = None
    occurrence: int = 1
    attempt: int = 1


class Unit(Struct, frozen=True, gc=False):
    """One delivery that was promised: a message, or one occurrence of a series, and what is known of its end."""

    source_offset: int
    occurrence: int
    target: str | None
    accepted_ms: int
    requested_due_ms: int
    due_ms: int
    place_ms: int
    """Its place's due time: once the cursor is past it, it must have been delivered unless it ended otherwise."""
    attempt: int
    ended: str | None
    """How it ended other than by delivery; None: a delivery must be found."""
    reason: str | None


class _Held(Struct):
    """The message the id stands for now."""

    offset: int
    target: str | None
    accepted_ms: int
    requested_due_ms: int
    due_ms: int
    place_ms: int
    occurrence: int = 1
    attempt: int = 1

    def is_behind(self, cursor_due_ms: int, cursor_offset: int) -> bool:
        """Whether it was settled when the cursor stood there."""
        return (self.place_ms, self.offset) <= (cursor_due_ms, cursor_offset)

    def unit(self, ended: str | None = None, reason: str | None = None) -> Unit:
        """As it is now."""
        return Unit(self.offset, self.occurrence, self.target, self.accepted_ms, self.requested_due_ms, self.due_ms,
                    self.place_ms, self.attempt, ended, reason)  # fmt: skip


def follow(events: Iterable[Event]) -> Iterator[Unit]:
    """The units of one id out of its events in order: by delay offset, and a decision behind what its step staged."""
    held: _Held | None = None
    for event in events:
        if event.verb in (SCHEDULE, REPLACE):
            if held is not None:
                took_over = event.takes_over and not held.is_behind(event.cursor_due_ms, event.cursor_offset)
                yield held.unit(REPLACED if took_over else None)
            assert event.due_ms is not None
            held = _Held(
                event.offset, event.target, event.timestamp_ms,
                event.due_ms if event.requested_due_ms is None else event.requested_due_ms,
                event.due_ms, _placed(event, event.due_ms),
            )  # fmt: skip
        elif held is None:
            continue
        elif event.verb in (CANCEL, RESCHEDULE, FIRE_NOW):
            if held.is_behind(event.cursor_due_ms, event.cursor_offset):
                continue
            if event.verb == CANCEL:
                yield held.unit(CANCELLED)
                held = None
            else:
                _move(held, event)
        elif event.offset == held.offset:
            unit, goes_on = _decide(held, event)
            if unit is not None:
                yield unit
            if not goes_on:
                held = None
    if held is not None:
        yield held.unit()


def _placed(event: Event, due_ms: int) -> int:
    """The placement rule for a delay record."""
    return max(due_ms, event.timestamp_ms, event.cursor_due_ms + 1)


def _move(held: _Held, event: Event) -> None:
    if event.verb == FIRE_NOW and held.place_ms <= max(event.timestamp_ms, event.cursor_due_ms + 1):
        return
    due_ms = event.timestamp_ms if event.verb == FIRE_NOW or event.due_ms is None else event.due_ms
    held.due_ms = held.requested_due_ms = due_ms
    held.place_ms = _placed(event, due_ms)


def _decide(held: _Held, event: Event) -> tuple[Unit | None, bool]:
    """The unit that ended with the decision, if one did, and whether the message goes on."""
    if event.verb in (EXPIRED, DEAD_LETTER):
        return held.unit(event.verb, event.reason), False
    unit: Unit | None = None
    if event.verb == AGAIN:
        unit = held.unit()
    elif event.verb == SKIPPED and event.occurrence != held.occurrence:
        # A series without a first time is given one by `skipped`: then nothing was left out.
        unit = held.unit(EXPIRED if event.reason == EXPIRED else SKIPPED, event.reason)
    assert event.due_ms is not None
    if event.verb in (AGAIN, SKIPPED):
        held.due_ms = held.requested_due_ms = event.due_ms
    held.place_ms = max(event.due_ms, event.cursor_due_ms + 1)
    held.occurrence, held.attempt = event.occurrence, event.attempt
    return unit, True
