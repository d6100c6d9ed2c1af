"""The fate of a message: what becomes of it in a step by its own expiry and by the rhythm of its
series, regardless of its target (`workers.step.decisions` decides about that afterwards).

An occurrence of a series is missed if a later one is due as well when it is selected for the first
time, and so are the later ones that are due then. One that was retried, deferred, parked, or moved
by an action is late for a reason of its own, and not missed. With `fire-all` every missed
occurrence is delivered. Otherwise all that were missed together count as one: `fire-once` delivers
the last of them, `skip` none.

Keeps its part of law 8: a rhythm whose next time cannot be computed on this machine makes a dead
letter of its message. Only a master computes fates; replay takes the outcomes from the progress
record (law 9)."""

from collections.abc import Mapping

from msgspec import Struct

from chronos.core.cron import ZONE_DATA, ZoneData
from chronos.core.message import Entry, LatePolicy, Reason, Repeat, Repetition
from chronos.core.series import (
    REPETITIONS_MAX,
    expires_ms,
    following,
    following_after,
    last_until,
    planned_ms,
    repetition_of,
    shift_ms,
)
from chronos.core.shard.step import Selection
from chronos.core.timefmt import format_time

NEVER_MS = 1 << 62
"""Later than any time of a step."""


class Fires(Struct, frozen=True, gc=False):
    """An occurrence is delivered, and its series goes on."""

    next_ms: int
    """The due time (epoch ms) of the next occurrence."""


class Skips(Struct, frozen=True, gc=False):
    """No message is delivered, and the series goes on."""

    next_ms: int
    """The due time (epoch ms) of the occurrence that is pending next."""
    occurrence: int
    """Its number."""


class Dead(Struct, frozen=True, gc=False):
    """The message, or this occurrence, becomes a dead letter."""

    reason: Reason
    detail: str
    next_ms: int = 0
    """The due time (epoch ms) of the next occurrence of its series; 0: there is none."""


Fate = Fires | Skips | Dead
"""None in place of a fate: the message is delivered, once."""


class Fates(Struct, frozen=True, kw_only=True):
    """The fates of the messages of one selection."""

    of: Mapping[int, Fate]
    """Fate by source offset; a message without a fate is delivered, once."""
    from_ms: int = 0
    """With `until_ms`: first and last time of a step (epoch ms) for which these fates hold."""
    until_ms: int = NEVER_MS

    def hold(self, now_ms: int) -> bool:
        """Return whether these fates hold in a step at this time (epoch ms)."""
        return self.from_ms <= now_ms <= self.until_ms


NO_FATES = Fates(of={})


def fates_of(selection: Selection, shard: int, now_ms: int, zone_data: ZoneData) -> Fates:
    """Return the fates of the selected messages of a shard in a step at this time."""
    of: dict[int, Fate] = {}
    from_ms, until_ms = 0, NEVER_MS
    for at in selection.with_terms:
        entry, offset = selection.entries[at], selection.items[at][1]
        fate = fate_of(entry, offset, shard, now_ms, zone_data)
        if fate is not None:
            of[offset] = fate
        if from_ms == until_ms:
            continue  # a series is among them: the fates hold at this time only
        if repetition_of(entry) is not None:
            from_ms = until_ms = now_ms
        elif (expire_at_ms := expires_ms(entry)) is None:
            continue
        elif now_ms > expire_at_ms:
            from_ms = max(from_ms, expire_at_ms + 1)
        else:
            until_ms = min(until_ms, expire_at_ms)
    return Fates(of=of, from_ms=from_ms, until_ms=until_ms)


def fate_of(
    entry: Entry, offset: int, shard: int, now_ms: int, zone_data: ZoneData = ZONE_DATA
) -> Fate | None:
    """Return the fate of one message; None if it is delivered, once."""
    repetition, fate = repetition_of(entry), None
    if repetition is not None:
        fate = _of_series(entry, repetition, now_ms - shift_ms(entry, shard, offset), zone_data)
        if entry.expire_at_ms is None or not (fate is None or isinstance(fate, Fires)):
            return fate
    expire_at_ms = expires_ms(entry)
    if expire_at_ms is None or now_ms <= expire_at_ms:
        return fate
    detail = f"expired at {format_time(expire_at_ms)}"
    return Dead(Reason.EXPIRED, detail, 0 if fate is None else fate.next_ms)


def _of_series(
    entry: Entry, repetition: Repetition, reached_ms: int, zone_data: ZoneData
) -> Fate | None:
    """Return the fate of an occurrence by the rhythm of its series alone; None if it is delivered
    as the last one.

    `reached_ms`: the latest planned time that is over (epoch ms); the position of a message is
    later by the spread.
    """
    planned, occurrence = planned_ms(entry, repetition), entry.occurrence
    next_cron = zone_data.next_cron
    try:
        next_ms = following(repetition, planned, occurrence, next_cron)
        if occurrence == 0:
            if next_ms is None:
                return Dead(Reason.EXPIRED, "the series ends before its first time")
            return Skips(min(next_ms, repetition.planned_ms or next_ms), 1)
        if next_ms is None:
            return None
        if next_ms > reached_ms or repetition.late_policy == LatePolicy.FIRE_ALL:
            return Fires(next_ms)
        after_ms = following_after(repetition, planned, occurrence, reached_ms, next_cron) or 0
        if repetition.planned_ms:
            return Fires(after_ms) if after_ms else None
        if repetition.late_policy == LatePolicy.FIRE_ONCE:
            return Skips(
                last_until(repetition, planned, occurrence, reached_ms, next_cron), occurrence
            )
        if not after_ms:
            return Dead(
                Reason.EXPIRED, "the last occurrences were missed, and chronos-late-policy is skip"
            )
        return Skips(after_ms, occurrence + 1)
    except ValueError as error:
        return Dead(Reason.BAD_VALUE, f"the next time cannot be computed: {error}")


def within_repetitions(selection: Selection) -> int:
    """Return how many leading messages, at least one, have at most REPETITIONS_MAX different cron
    expressions and backoffs."""
    seen: set[tuple[object, ...]] = set()
    for at in selection.with_terms:
        repetition = repetition_of(selection.entries[at])
        if repetition is None or repetition.kind == Repeat.EVERY:
            continue
        is_cron = repetition.kind == Repeat.CRON
        seen.add((repetition.cron, repetition.zone) if is_cron else repetition.values)
        if len(seen) > REPETITIONS_MAX:
            return at
    return len(selection.entries)
