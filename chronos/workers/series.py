"""Series: the time of the next occurrence, and the decision about one that was missed. Computed by a master only.

An occurrence is missed if a later one of its series is due as well when it is selected for the first time. One that was
retried, deferred, parked, or moved by an action is not judged: it is late for a reason of its own. All that were missed
together count as one: `fire-once` delivers the last of them, `skip` none.
"""

from collections.abc import Sequence

from msgspec import Struct

from chronos.core.cron import next_cron
from chronos.core.message import Entry, LatePolicy, Reason, Repeat
from chronos.core.progress import Decision, Outcome
from chronos.core.repetition import following, following_after, last_until, planned_ms, shift_ms
from chronos.core.timefmt import MS_MAX


class Turn(Struct, frozen=True, gc=False):
    """One occurrence of a series that was selected."""

    next_ms: int = 0
    """The due time (epoch ms) of the occurrence that follows it; 0: it is the last one, or no series."""
    skipped: Decision | None = None
    """The decision that moves the series on without a delivery; None: the occurrence is to be delivered."""
    ended: tuple[Reason, str] | None = None
    """Why the series ends without a delivery, and its explanation; None: it does not."""


NO_SERIES = Turn()

EXPRESSIONS_MAX = 200
"""Different cron expressions of which one step computes times: up to 1 ms each after an outage, and 0.02 ms else."""

EVERY, CRON = int(Repeat.EVERY), int(Repeat.CRON)


def within_cron(entries: Sequence[Entry]) -> int:
    """Return how many leading entries, at least one, have at most EXPRESSIONS_MAX different cron expressions."""
    seen: set[tuple[str, str]] = set()
    for at, entry in enumerate(entries):
        options = entry.options
        if options is None or options.repetition is None or options.repetition.kind != CRON:
            continue
        seen.add((options.repetition.cron, options.repetition.zone))
        if len(seen) > EXPRESSIONS_MAX:
            return at
    return len(entries)


def next_in_time(entry: Entry, now_ms: int) -> int:
    """Return `Turn.next_ms` of a series at an interval, or of no series, if the occurrence is plainly to be delivered; else -1.

    The short way for almost every occurrence, with the result of `turn_of`.
    """
    options = entry.options
    repetition = None if options is None else options.repetition
    if repetition is None:
        return 0
    if repetition.kind != EVERY or repetition.planned_ms:
        return -1
    if repetition.times and entry.occurrence >= repetition.times:
        return 0
    next_ms = entry.due_ms + repetition.values[0]
    if repetition.until_ms and next_ms > repetition.until_ms:
        return 0
    return next_ms if now_ms < next_ms <= MS_MAX else -1


def turn_of(entry: Entry, due_ms: int, offset: int, shard: int, now_ms: int) -> Turn:
    """Return the turn of a selected message, at the position `(due_ms, offset)`."""
    options = entry.options
    repetition = None if options is None else options.repetition
    if repetition is None:
        return NO_SERIES
    # The time to which the rhythm has come: positions are later than it by the spread.
    reached_ms = now_ms - shift_ms(entry, shard, offset)
    planned, occurrence = planned_ms(entry, repetition), entry.occurrence
    try:
        next_ms = following(repetition, planned, occurrence, next_cron)
        if occurrence == 0:
            if next_ms is None:
                return Turn(ended=(Reason.EXPIRED, "the series ends before its first time"))
            return Turn(skipped=Decision(due_ms, offset, Outcome.SKIPPED, 0, next_ms, 1, 1))
        if next_ms is None:
            return NO_SERIES
        if next_ms > reached_ms or repetition.late_policy == LatePolicy.FIRE_ALL:
            return Turn(next_ms)
        after_ms = following_after(repetition, planned, occurrence, reached_ms, next_cron) or 0
        if repetition.planned_ms:
            return Turn(after_ms)
        if repetition.late_policy == LatePolicy.FIRE_ONCE:
            last_ms = last_until(repetition, planned, occurrence, reached_ms, next_cron)
            return Turn(skipped=Decision(due_ms, offset, Outcome.SKIPPED, 0, last_ms, occurrence, 1))
        if not after_ms:
            return Turn(ended=(Reason.EXPIRED, "the last occurrences were missed, and chronos-late-policy is skip"))
        return Turn(skipped=Decision(due_ms, offset, Outcome.SKIPPED, 0, after_ms, occurrence + 1, 1))
    except ValueError as error:
        return Turn(ended=(Reason.BAD_VALUE, f"the next time cannot be computed: {error}"))
