"""The deliveries promised by the messages of one id: a small state machine over the events of the
two logs.

Most messages do not need it: no record acted on them, and the progress log has no decision about
them. For those that were cancelled, replaced, rescheduled, retried or repeated, it repeats what
`core.shard` did, in the order of the two logs, by the same placement rule. It takes each
decision from the progress log and makes none of its own, and it needs only the records of that id.

The events may begin in the middle: an action on a message that is not among them (it lies outside
the window) has no effect on the others, because everything before the cursor was settled when the
action was staged."""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from chronos.core.shard.step import placed_ms
from chronos.spark.codec import LEFT_LANE, PLANNED_AGAIN

SCHEDULE, REPLACE, RESCHEDULE, CANCEL, FIRE_NOW = (
    "schedule",
    "replace",
    "reschedule",
    "cancel",
    "fire-now",
)
RETRY, DEFERRED, AGAIN, SKIPPED, EXPIRED, DEAD_LETTER, PARKED = (
    "retry",
    "deferred",
    "again",
    "skipped",
    "expired",
    "dead-letter",
    "parked",
)

CANCELLED, REPLACED = "cancelled", "replaced"

NEVER = 2**62
"""Stands for the place of a message that waits in a lane: no cursor of the shard passes it."""

OFFSET_END = 2**63 - 1
"""Stands for the cursor's greatest offset, which no signed column holds: behind everything due
then."""


class Event(Struct, frozen=True, gc=False):
    """A delay record that was not refused, or a decision of a progress record."""

    verb: str
    """The verb of the record, or the outcome that was decided."""
    offset: int
    """Offset of the delay record; for a decision, of the record that brought the message."""
    timestamp_ms: int
    """Broker's timestamp of the delay record, or the first one if that is smaller; for a decision,
    of the progress record."""
    due_ms: int | None
    """The requested due time; for a decision, the next one; for `parked` and `left-lane`, that of
    its position."""
    cursor_due_ms: int
    """The cursor before the step that staged the record; for a decision, after its step, but
    before it for `planned-again`."""
    cursor_offset: int
    target: str | None = None
    requested_due_ms: int | None = None
    takes_over: bool = False
    """True for a `replace`, and for a `schedule` that replaces a pending message."""
    reason: str | None = None
    occurrence: int = 1
    """0 for a record of a series whose first time was left to its cron expression."""
    attempt: int = 1
    lane: int | None = None
    """The partition whose lane the message entered, or left (`parked`, `left-lane`)."""
    upserts: bool = False
    """True for an upsert; it takes over too."""
    is_at: bool = False
    """The due time of an upsert is given as `chronos-deliver-at`."""
    rhythm: str | None = None
    """What an upsert compares of a record; of records of other ids it is not needed."""
    is_series: bool = False
    target_key: bytes | None = None


class PromisedDelivery(Struct, frozen=True, gc=False):
    """One delivery that was promised, a message or one occurrence of a series, and how it ended."""

    source_offset: int
    occurrence: int
    target: str | None
    accepted_ms: int
    requested_due_ms: int
    due_ms: int
    place_ms: int
    """Due time of its position: once the cursor is past it, it was delivered unless it ended
    otherwise."""
    attempt: int
    ended: str | None
    """How it ended other than by delivery; None: the target must hold it."""
    reason: str | None
    window_ms: int
    """The due time by which a window selects it: with its spread as its record requested it,
    otherwise as an action or the rhythm of its series set it, so that the record and the decisions
    of a window name all that belong to it."""


class _Current(Struct):
    """The message that the id stands for now."""

    offset: int
    target: str | None
    accepted_ms: int
    requested_due_ms: int
    due_ms: int
    place_ms: int
    occurrence: int = 1
    attempt: int = 1
    lane: int | None = None
    """The partition in whose lane the message waits."""
    shift_ms: int = 0
    """How much later than its due time it is placed: its spread."""
    left_ms: int = 0
    """A due time that the cursor reached only after the message left a lane."""
    is_as_sent: bool = True
    """Its due time is that of its record."""
    is_untimed: bool = False
    """Its series has no first time yet."""
    latest_ms: int = NEVER
    """The latest that the first time may be, while it is not decided."""
    planned_ms: int = 0
    """Time of the occurrence in the rhythm."""
    rhythm: str | None = None
    is_series: bool = False
    target_key: bytes | None = None

    def is_behind(self, cursor_due_ms: int, cursor_offset: int) -> bool:
        """Return whether a cursor at this position had settled the message."""
        return self.lane is None and (self.place_ms, self.offset) <= (cursor_due_ms, cursor_offset)

    def promised(self, ended: str | None = None, reason: str | None = None) -> PromisedDelivery:
        """The promised delivery, as the message is now."""
        place_ms = max(self.place_ms, self.left_ms) if self.lane is None else NEVER
        return PromisedDelivery(
            self.offset,
            self.occurrence,
            self.target,
            self.accepted_ms,
            self.requested_due_ms,
            self.due_ms,
            place_ms,
            self.attempt,
            ended,
            reason,
            self.due_ms if self.is_as_sent else self.requested_due_ms,
        )


def follow(events: Iterable[Event]) -> Iterator[PromisedDelivery]:
    """The promised deliveries of one id.

    Events are in the order the shard executed them: by delay offset, a decision behind the records
    its step staged."""
    current: _Current | None = None
    for event in events:
        if event.verb in (SCHEDULE, REPLACE):
            before = None
            if current is not None:
                took_over = event.takes_over and not current.is_behind(
                    event.cursor_due_ms, event.cursor_offset
                )
                yield current.promised(REPLACED if took_over else None)
                before = current if took_over and event.upserts else None
            assert event.due_ms is not None
            current = _Current(
                event.offset,
                event.target,
                event.timestamp_ms,
                event.due_ms if event.requested_due_ms is None else event.requested_due_ms,
                event.due_ms,
                placed_ms(event.due_ms, event.timestamp_ms, event.cursor_due_ms),
            )
            current.shift_ms, current.is_untimed = (
                current.due_ms - current.requested_due_ms,
                not event.occurrence,
            )
            current.planned_ms, current.rhythm = current.requested_due_ms, event.rhythm
            current.is_series, current.target_key = event.is_series, event.target_key
            if before is not None:
                _succeed(current, before, event)
        elif current is None:
            continue
        elif event.verb in (CANCEL, RESCHEDULE, FIRE_NOW):
            if current.is_behind(event.cursor_due_ms, event.cursor_offset):
                continue
            if event.verb == CANCEL:
                yield current.promised(CANCELLED)
                current = None
            else:
                _move(current, event)
        elif event.offset == current.offset:
            promised, continues = _apply(current, event)
            if promised is not None:
                yield promised
            if not continues:
                current = None
    if current is not None:
        yield current.promised()


def _succeed(current: _Current, before: _Current, event: Event) -> None:
    """The message of an upsert takes the place of the pending one, as in `core.series.upserted`."""
    if current.rhythm == before.rhythm:
        current.requested_due_ms, current.planned_ms = before.requested_due_ms, before.planned_ms
        current.occurrence, current.is_untimed = before.occurrence, before.is_untimed
        current.latest_ms = before.latest_ms
    elif event.is_at:
        return
    else:
        own_ms = current.requested_due_ms
        latest_ms = before.latest_ms if before.is_untimed else before.requested_due_ms
        is_late = (
            current.is_series and before.is_series and before.planned_ms < before.requested_due_ms
        )
        if own_ms < latest_ms and not is_late:
            current.latest_ms = latest_ms
            return
        current.planned_ms = min(own_ms, latest_ms)
        current.requested_due_ms, current.is_untimed = latest_ms, False
    current.is_as_sent = False
    current.due_ms = current.requested_due_ms + current.shift_ms
    current.place_ms = placed_ms(current.due_ms, event.timestamp_ms, event.cursor_due_ms)
    if before.lane is not None and (
        current.requested_due_ms == before.requested_due_ms
        and current.target == before.target
        and current.target_key == before.target_key
    ):
        current.lane, current.place_ms = before.lane, before.place_ms


def _move(current: _Current, event: Event) -> None:
    acted_ms = event.timestamp_ms
    is_next = current.place_ms <= max(acted_ms, event.cursor_due_ms + 1)
    if event.verb == FIRE_NOW and is_next and not current.is_untimed:
        return
    due_ms = acted_ms if event.verb == FIRE_NOW or event.due_ms is None else event.due_ms
    current.requested_due_ms, current.is_as_sent = due_ms, False
    current.due_ms = due_ms if event.verb == FIRE_NOW else due_ms + current.shift_ms
    current.place_ms = placed_ms(current.due_ms, acted_ms, event.cursor_due_ms)
    current.lane, current.is_untimed = None, False


def _apply(current: _Current, event: Event) -> tuple[PromisedDelivery | None, bool]:
    """Apply a decision: the delivery it ended, if any, and whether the message stays pending."""
    if event.verb == PARKED:
        assert event.due_ms is not None
        current.lane, current.place_ms = event.lane, event.due_ms
        return None, True
    if event.verb == LEFT_LANE:
        # A step may decide otherwise about a message that leaves a lane; then it is not in that
        # lane any more.
        if (current.lane, current.place_ms) == (event.lane, event.due_ms):
            current.lane, current.left_ms = None, event.cursor_due_ms + 1
        return None, True
    if event.verb == PLANNED_AGAIN:
        assert event.due_ms is not None
        current.requested_due_ms, current.due_ms = event.due_ms, event.due_ms + current.shift_ms
        current.planned_ms, current.is_as_sent = event.due_ms, False
        current.place_ms = max(current.due_ms, event.cursor_due_ms + 1)
        return None, True
    if current.lane is not None:  # it leaves its lane in this step
        current.lane, current.left_ms = None, event.cursor_due_ms + 1
    if event.verb in (EXPIRED, DEAD_LETTER) and not event.due_ms:
        return current.promised(event.verb, event.reason), False
    promised: PromisedDelivery | None = None
    if event.verb == AGAIN:
        promised = current.promised()
    elif event.verb in (EXPIRED, DEAD_LETTER):
        promised = current.promised(event.verb, event.reason)  # and its series goes on
    elif event.verb == SKIPPED and event.occurrence != current.occurrence:
        # `skipped` also gives a series its first time; then no occurrence was left out.
        promised = current.promised(EXPIRED if event.reason == EXPIRED else SKIPPED, event.reason)
    assert event.due_ms is not None
    if event.verb in (AGAIN, SKIPPED, EXPIRED, DEAD_LETTER):
        current.requested_due_ms, current.due_ms = event.due_ms, event.due_ms + current.shift_ms
        current.planned_ms, current.is_as_sent = event.due_ms, False
        current.place_ms, current.attempt = max(current.due_ms, event.cursor_due_ms + 1), 1
    else:
        current.place_ms, current.attempt = (
            max(event.due_ms, event.cursor_due_ms + 1),
            event.attempt,
        )
    current.occurrence, current.is_untimed = event.occurrence, False
    return promised, True
