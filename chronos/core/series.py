"""The rhythm of a series: its text, the times of its occurrences, and what becomes of its entry
when it is carried on, moved, paused or scheduled once more; and the spread of messages that are due
at the same time.

The next occurrence is computed from the time of the pending one, never from its delivery, so a
series does not drift. A master computes times by a cron expression and records them, so replay
calls no function with a `NextCron` (law 9). The HTTP interface computes such times too, for its
answers and for series that go on after a pause."""

import re
from array import array
from bisect import bisect_right
from functools import lru_cache
from typing import Protocol

from msgspec.structs import replace

from chronos.core.message import Entry, LatePolicy, Options, Reason, Repeat, Repetition
from chronos.core.shard.progress import Decision, Outcome
from chronos.core.timefmt import MS_MAX, check_unit, format_duration, parse_duration_ms

INTERVAL_MS_MIN = 100
"""Shortest interval of a series."""

CRON_CHARACTERS_MAX = 200
"""Longest cron expression."""

STEPS_MAX = 8
"""Occurrences that are tried one by one before the last one up to a time is searched for by
halving."""

CRON_SHORTHANDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
"""Those of Vixie cron, but for `@reboot`."""

REPETITIONS_MAX = 200
"""Most different cron expressions and backoffs whose times one step computes. An expression takes
up to 1 ms after an outage, and 0.02 ms otherwise; a backoff up to 10 ms, once."""

FACTOR_UNIT = 1_000
"""A factor is kept in thousandths."""


class NextCron(Protocol):
    """`core.cron.ZoneData.next_cron`."""

    def __call__(
        self, expression: str, zone_name: str, after_ms: int, wall_ms: int | None = None, /
    ) -> int | None:
        """Return the first time (epoch ms) after `after_ms`, of those whose wall-clock time is
        later than `wall_ms`; None if there is none. Raises ValueError."""


_WEEKDAY_NUMBER = re.compile(r"(?<![#/])[0-9]", re.ASCII)
_FACTOR = re.compile(r"([0-9]{1,4})(?:\.([0-9]{1,3}))?", re.ASCII)


# --- parsing


def parse_repetition(text: str) -> Repetition:
    """Return the repetition that `every 30s`, `backoff 1s 2 1h` or `cron 0 9 * * 1-5` names; a cron
    expression is not checked.

    Raises ValueError, with a text for users.
    """
    kind, *words = text.split()[:8] or [""]
    given = " ".join(words)[:80]
    if kind == "every":
        if len(words) != 1:
            raise ValueError(f"{given!r} is not an interval; write every 30s")
        return Repetition(Repeat.EVERY, (_interval_ms(words[0]),))
    if kind == "backoff":
        if len(words) != 3:
            raise ValueError(f"{given!r} is not base, factor and cap; write backoff 1s 2 1h")
        base_ms, factor, cap_ms = _interval_ms(words[0]), _factor(words[1]), _interval_ms(words[2])
        if cap_ms < base_ms:
            raise ValueError(f"the cap {words[2]} is shorter than the base {words[0]}")
        return Repetition(Repeat.BACKOFF, (base_ms, factor, cap_ms))
    if kind == "cron":
        try:
            words = _cron_fields(words)
        except ValueError as error:
            raise ValueError(f"{given!r} is not a cron expression: {error}") from None
        if len(text) > CRON_CHARACTERS_MAX:
            raise ValueError(
                f"{given!r} is not a cron expression: it has more than {CRON_CHARACTERS_MAX} "
                "characters"
            )
        return Repetition(Repeat.CRON, cron=" ".join(words))
    if len(words) in (4, 5):
        raise ValueError(
            f"{text[:80]!r} is not a repetition; begin with every, backoff or cron: write "
            f"cron {text[:80]}"
        )
    raise ValueError(
        f"{text[:80]!r} is not a repetition; begin with every, backoff or cron: every 30s, "
        "backoff 1s 2 1h (base, factor, cap), cron 0 9 * * 1-5"
    )


def _cron_fields(words: list[str]) -> list[str]:
    """Return the 5 or 6 fields of a cron expression without shorthands and without Quartz's `?`.

    Raises ValueError, with the form that can be written, for what other schedulers take and the
    fields cannot express."""
    if len(words) == 1 and words[0] in CRON_SHORTHANDS:
        return CRON_SHORTHANDS[words[0]].split()
    if words and words[0].startswith("@"):
        every = "; write every and the interval" if words[0] == "@every" else ""
        raise ValueError(f"the shorthands are {', '.join(CRON_SHORTHANDS)}{every}")
    if len(words) == 7:
        raise ValueError("it has 7 fields, and years cannot be given; leave the year out")
    if len(words) not in (5, 6):
        raise ValueError("it does not have 5 or 6 fields")
    day, month, weekday = words[-3:]
    if "?" in (*words[:-3], month):
        raise ValueError(
            "? stands for the day of the month or the weekday only; the fields are (second) "
            "minute hour day month weekday, without a year"
        )
    if day == "?" and _WEEKDAY_NUMBER.search(weekday):
        # Quartz and EventBridge count weekdays from Sunday = 1, cron from Sunday = 0.
        raise ValueError(
            "beside ? a weekday is written by its name, as MON, MON-FRI or MON#1; with * in place "
            "of ?, Sunday is 0 or 7"
        )
    if day.upper() != "LW" and "W" in day.upper():
        raise ValueError("the weekday nearest to a day (W) cannot be given; write the day, or LW")
    if "L-" in day.upper():
        raise ValueError("days before the last (L-3) cannot be given; write L, LW or the day")
    return [*words[:-3], "*" if day == "?" else day, month, "*" if weekday == "?" else weekday]


def check_units(text: str) -> None:
    """Raise ValueError, with a text for users, for a repetition with an interval that has no unit
    and is too small to be meant so."""
    kind, *words = text.split()[:8] or [""]
    for at, word in enumerate(words):
        if kind == "every" or (kind == "backoff" and at != 1):
            check_unit(word)


def _interval_ms(text: str) -> int:
    interval_ms = parse_duration_ms(text)
    if interval_ms < INTERVAL_MS_MIN:
        raise ValueError(
            f"{text[:80]!r} is shorter than the shortest interval, {INTERVAL_MS_MIN}ms"
        )
    return interval_ms


def _factor(text: str) -> int:
    match = _FACTOR.fullmatch(text)
    factor = (
        0 if match is None else int(match[1]) * FACTOR_UNIT + int((match[2] or "").ljust(3, "0"))
    )
    if not FACTOR_UNIT <= factor <= 1_000 * FACTOR_UNIT:
        raise ValueError(
            f"{text[:80]!r} is not a factor; write a number from 1 to 1000, with at most 3 decimals"
        )
    return factor


def format_repetition(repetition: Repetition) -> str:
    """Return the text that `parse_repetition` takes."""
    if repetition.kind == Repeat.CRON:
        return f"cron {repetition.cron}"
    if repetition.kind == Repeat.EVERY:
        return f"every {format_duration(repetition.values[0])}"
    base_ms, factor, cap_ms = repetition.values
    return f"backoff {format_duration(base_ms)} {factor / FACTOR_UNIT:g} {format_duration(cap_ms)}"


def longest_ms(repetition: Repetition) -> int:
    """Return the longest interval (ms) that a repetition by intervals can have; 0 for a cron
    expression."""
    return repetition.values[-1] if repetition.values else 0


# --- times


def backoff_ms(values: tuple[int, ...], occurrence: int) -> int:
    """Return the interval (ms) after an occurrence, from 1 on: base x factor^(occurrence - 1), at
    most the cap."""
    base_ms, factor, cap_ms = values
    try:
        interval_ms = base_ms * (factor / FACTOR_UNIT) ** (occurrence - 1)
    except OverflowError:
        return cap_ms
    return cap_ms if interval_ms >= cap_ms else -int(-interval_ms // 1)


@lru_cache(REPETITIONS_MAX)
def _growing(values: tuple[int, ...]) -> "array[int]":
    """The times (ms) of the occurrences after the first one, which is at 0, as long as the interval
    grows; at most 22,000."""
    times, cap_ms = array("q", [0]), values[2]
    while values[1] > FACTOR_UNIT and (interval_ms := backoff_ms(values, len(times))) < cap_ms:
        times.append(times[-1] + interval_ms)
    return times


def _next_backoff_ms(
    values: tuple[int, ...], planned_ms: int, occurrence: int, after_ms: int
) -> int:
    """The first time behind an occurrence and after `after_ms`."""
    times = _growing(values)
    if occurrence < len(times):
        begin_ms = planned_ms - times[occurrence - 1]
        at = bisect_right(times, after_ms - begin_ms, occurrence)
        if at < len(times):
            return begin_ms + times[at]
        planned_ms, occurrence = begin_ms + times[-1], len(times)
    interval_ms = backoff_ms(values, occurrence)
    if after_ms < planned_ms:
        return planned_ms + interval_ms
    return after_ms + interval_ms - (after_ms - planned_ms) % interval_ms


def following(
    repetition: Repetition, planned_ms: int, occurrence: int, next_cron: NextCron
) -> int | None:
    """Return the time (epoch ms) of the occurrence after the one at `planned_ms`; None if that is
    the last one. It is not later than that one if other zone data have moved it so.

    Raises ValueError if the cron expression or its zone is not known on this machine.
    """
    # Behind a wall-clock time, a later one may be an earlier moment.
    after_ms = planned_ms if repetition.offset_s is None else 0
    return following_after(repetition, planned_ms, occurrence, after_ms, next_cron)


def following_after(
    repetition: Repetition, planned_ms: int, occurrence: int, after_ms: int, next_cron: NextCron
) -> int | None:
    """Return the time (epoch ms) of the first occurrence behind the one at `planned_ms` and after
    `after_ms`. Behind a wall-clock time come later wall-clock times.

    None if the series ends before. Raises ValueError if the cron expression or its zone is not
    known on this machine."""
    if repetition.times and occurrence >= repetition.times:
        return None
    values, kind = repetition.values, repetition.kind
    if kind == Repeat.EVERY:
        interval_ms = values[0]
        next_ms = planned_ms + interval_ms
        if next_ms <= after_ms:
            next_ms = after_ms + interval_ms - (after_ms - planned_ms) % interval_ms
    elif kind == Repeat.CRON:
        # As `core.cron` writes it.
        offset_s = repetition.offset_s
        wall_ms = None if offset_s is None else planned_ms + offset_s * 1_000
        cron_ms = next_cron(
            repetition.cron,
            repetition.zone,
            max(planned_ms, after_ms) if wall_ms is None else after_ms,
            wall_ms,
        )
        if cron_ms is None:
            return None
        next_ms = cron_ms
    else:
        next_ms = _next_backoff_ms(values, planned_ms, occurrence, after_ms)
    if next_ms > MS_MAX or (repetition.until_ms and next_ms > repetition.until_ms):
        return None
    return next_ms


def last_until(
    repetition: Repetition, planned_ms: int, occurrence: int, until_ms: int, next_cron: NextCron
) -> int:
    """Return the time (epoch ms) of the last occurrence at or before `until_ms`, the one at
    `planned_ms` or a later one.

    Raises ValueError if the cron expression or its zone is not known on this machine.
    """
    if repetition.until_ms:
        until_ms = min(until_ms, repetition.until_ms)
    last_ms, behind_ms = planned_ms, until_ms

    def after(time_ms: int) -> int | None:
        found = following_after(repetition, planned_ms, occurrence, time_ms, next_cron)
        return None if found is None or found > until_ms else found

    for _ in range(STEPS_MAX):
        next_ms = after(last_ms)
        if next_ms is None:
            return last_ms
        last_ms = next_ms
    # Nothing occurs from `behind_ms` to `until_ms`, and something at `last_ms`.
    while behind_ms - last_ms > 1:
        middle_ms = (last_ms + behind_ms) // 2
        next_ms = after(middle_ms)
        if next_ms is None:
            behind_ms = middle_ms
        else:
            last_ms = next_ms
    return last_ms


def repetition_of(entry: Entry) -> Repetition | None:
    """Return the repetition of a series; None for a message that is delivered once."""
    return None if entry.options is None else entry.options.repetition


def upcoming(entry: Entry, now_ms: int, count: int, next_cron: NextCron) -> list[int]:
    """Return the times (epoch ms) of at most `count` next occurrences of a pending series.

    The first is the due time of the pending occurrence, whatever it was changed to. Occurrences
    that are missed at `now_ms`, or at that time, are there only if all of them are delivered: those
    that come before a pending one that was moved ahead are delivered with it, at its time. Raises
    ValueError if the cron expression or its zone is not known on this machine.
    """
    repetition = repetition_of(entry)
    if repetition is None:
        return []
    occurrence, last_ms = entry.occurrence, planned_ms(entry, repetition)
    times = [] if occurrence == 0 else [entry.due_ms]
    all_missed = repetition.late_policy == LatePolicy.FIRE_ALL
    reached_ms = 0 if all_missed else max(now_ms, entry.due_ms)
    while len(times) < count:
        next_ms = following_after(
            repetition, last_ms, occurrence, max(last_ms, reached_ms), next_cron
        )
        if next_ms is None:
            break
        times.append(max(next_ms, entry.due_ms))
        occurrence, last_ms = occurrence + 1, next_ms
        # From here on one version of the zone data gives all times.
        repetition = replace(repetition, offset_s=None)
    return times[:count]


def planned_ms(entry: Entry, repetition: Repetition) -> int:
    """Return the time (epoch ms) of the pending occurrence in the rhythm, whatever its due time was
    changed to."""
    return (repetition.planned_ms if entry.occurrence else 0) or entry.due_ms


def expires_ms(entry: Entry) -> int | None:
    """Return the time (epoch ms) after which a pending message is not delivered; None: at any time.

    The expiry of a series is counted from the time in the rhythm, so an occurrence that is moved
    to a later time takes it along."""
    expire_at_ms, repetition = entry.expire_at_ms, repetition_of(entry)
    if expire_at_ms is None or repetition is None:
        return expire_at_ms
    return expire_at_ms + max(0, entry.due_ms - planned_ms(entry, repetition))


# --- pauses: a paused series is one whose pending occurrence is moved over others


def resumed_ms(entry: Entry, from_ms: int, next_cron: NextCron) -> int | None:
    """Return the time (epoch ms) to which the pending occurrence of a series is moved so that it
    goes on at `from_ms`: the first time of the rhythm from then on; None if the rhythm ends before.

    Growing intervals count from one occurrence to the next, so that such a series has no times of
    its own after a pause: it goes on at `from_ms`. Raises ValueError if the cron expression or its
    zone is not known on this machine."""
    repetition = repetition_of(entry)
    assert repetition is not None, "a message without a repetition has no rhythm"
    planned = planned_ms(entry, repetition)
    if entry.occurrence and planned >= from_ms:
        return planned
    if repetition.kind == Repeat.BACKOFF:
        return None if repetition.until_ms and from_ms > repetition.until_ms else from_ms
    return _next_ms(entry, replace(repetition, times=0), planned, from_ms - 1, next_cron)


def is_paused(entry: Entry, now_ms: int, next_cron: NextCron) -> bool:
    """Return whether the pending occurrence of a series was moved so far that one which is still to
    come is left out.

    Raises ValueError if the cron expression or its zone is not known on this machine."""
    repetition = repetition_of(entry)
    if repetition is None or not repetition.planned_ms:
        return False
    planned = repetition.planned_ms
    if entry.due_ms <= max(planned, now_ms):
        return False
    endless = replace(repetition, times=0, until_ms=0)
    found = _next_ms(entry, endless, planned, now_ms, next_cron)
    if found is None:
        return False
    # While its own time is still to come, that is the one that is left out.
    return found < entry.due_ms or (found == entry.due_ms and planned > now_ms)


def _next_ms(
    entry: Entry, repetition: Repetition, planned: int, after_ms: int, next_cron: NextCron
) -> int | None:
    """Return the first time of the rhythm behind `planned` and after `after_ms`. The pending
    occurrence moves there, so that it counts once, whichever of the times it takes."""
    return following_after(repetition, planned, entry.occurrence, max(planned, after_ms), next_cron)


# --- what becomes of an entry


def carried(entry: Entry, decision: Decision, message_id: bytes, shard: int) -> tuple[int, Entry]:
    """Return a message that stays pending by a decision, and the earliest time (epoch ms) of its
    position."""
    next_ms = decision.next_due_ms
    assert next_ms > 0, "a message stays pending without a time"
    if decision.outcome in (Outcome.RETRY, Outcome.DEFERRED):
        # What was missed is still to become a dead letter: out of its rhythm it would be delivered.
        is_missed = decision.reason == Reason.EXPIRED and entry.expire_at_ms is None
        return next_ms, replace(
            entry,
            id=message_id,
            occurrence=decision.occurrence,
            attempt=decision.attempt,
            options=entry.options if is_missed else aside(entry),
        )
    # Missed occurrences are delivered as one, at the time of the last of them: the pending one
    # moves there.
    moves = decision.outcome is Outcome.SKIPPED and decision.occurrence == entry.occurrence
    options = entry.options
    assert options is not None
    repetition = options.repetition
    assert repetition is not None, "a message that is not a series is delivered once"
    expire_at_ms = entry.expire_at_ms
    if expire_at_ms is not None:
        # An expiry is counted from the time in the rhythm, so it moves along.
        expire_at_ms += next_ms - planned_ms(entry, repetition)
    if moves or repetition.planned_ms or repetition.offset_s != decision.offset_s:
        # One that moves is not judged as late again.
        options = replace(
            options,
            repetition=replace(
                repetition, planned_ms=next_ms if moves else 0, offset_s=decision.offset_s
            ),
        )
    if options.spread_ms:
        next_place_ms = next_ms + spread_shift_ms(shard, decision.offset, options.spread_ms)
    else:
        next_place_ms = next_ms
    return next_place_ms, Entry(
        message_id,
        next_ms,
        entry.target,
        entry.key,
        entry.headers,
        entry.value,
        entry.timestamp_ms,
        expire_at_ms,
        decision.occurrence,
        1,
        options,
        entry.order,
    )


def keeps_wall_clock(entry: Entry) -> bool:
    """Return whether new zone data move the pending occurrence: the rhythm gave its time, by a
    wall-clock time, and nothing has moved it since."""
    repetition = repetition_of(entry)
    return repetition is not None and repetition.offset_s is not None and repetition.planned_ms == 0


def planned_again(entry: Entry, next_ms: int, offset_s: int) -> Entry:
    """Return an entry that `keeps_wall_clock` at the time that other zone data give it."""
    options, expire_at_ms = entry.options, entry.expire_at_ms
    assert options is not None
    assert options.repetition is not None
    assert options.repetition.planned_ms == 0, "an occurrence that was moved keeps its time"
    return replace(
        entry,
        due_ms=next_ms,
        expire_at_ms=None if expire_at_ms is None else expire_at_ms + next_ms - entry.due_ms,
        options=replace(options, repetition=replace(options.repetition, offset_s=offset_s)),
    )


def moved(entry: Entry, message_id: bytes, due_ms: int) -> Entry:
    """Return the entry of a message that an action moves to `due_ms`: a series keeps its rhythm."""
    return replace(
        entry,
        id=message_id,
        due_ms=due_ms,
        occurrence=max(1, entry.occurrence),
        options=aside(entry),
    )


def aside(entry: Entry) -> Options | None:
    """Return the options of an entry whose pending occurrence leaves its time in the rhythm, which
    they keep."""
    options = entry.options
    if options is None or options.repetition is None:
        return options
    planned = planned_ms(entry, options.repetition)
    return replace(options, repetition=replace(options.repetition, planned_ms=planned))


# --- upsert: a pending message is scheduled once more


def is_unchanged(entry: Entry, pending: Entry) -> bool:
    """Return whether an upsert asks for what is pending already. Its due time is not compared."""
    return (
        entry.target == pending.target
        and entry.key == pending.key
        and entry.value == pending.value
        and entry.headers == pending.headers
        and _attempts_max(entry) == _attempts_max(pending)
        and rhythm(entry) == rhythm(pending)
    )


def upserted(entry: Entry, pending: Entry, *, is_at: bool) -> Entry:
    """Return the entry of an upsert that takes the place of a pending message.

    With the same rhythm it goes on where the pending one is. With another rhythm it begins at
    `chronos-deliver-at` (`is_at`), or at its own first time or the time of the pending one,
    whichever is earlier, so that repeated upserts do not put a message off for ever. A pending
    occurrence that a pause, or a `reschedule`, moved to a later time is not brought forward. All of
    this follows from the two entries (law 9)."""
    repetition, of_pending = repetition_of(entry), repetition_of(pending)
    if rhythm(entry) == rhythm(pending):
        options = entry.options
        if options is not None:
            options = replace(options, repetition=of_pending)
        return replace(
            entry,
            due_ms=pending.due_ms,
            expire_at_ms=pending.expire_at_ms,
            occurrence=pending.occurrence,
            options=options,
        )
    if is_at:
        return entry
    latest_ms, is_late = pending.due_ms, False
    if of_pending is not None and pending.occurrence == 0:
        latest_ms = of_pending.planned_ms or MS_MAX
    elif of_pending is not None and repetition is not None:
        is_late = 0 < of_pending.planned_ms < pending.due_ms
    if repetition is None or (entry.due_ms >= latest_ms and not is_late):
        return _begun(entry, min(entry.due_ms, latest_ms))
    if is_late:
        return _begun(entry, latest_ms, planned=min(entry.due_ms, latest_ms))
    if entry.occurrence == 0 and latest_ms < MS_MAX:
        return _planned(entry, latest_ms)
    return entry


def _begun(entry: Entry, due_ms: int, planned: int = 0) -> Entry:
    """Return the entry of a message whose first time is moved to `due_ms`; `planned`: its time
    (epoch ms) in the rhythm, if that is another one."""
    repetition, expire_at_ms = repetition_of(entry), entry.expire_at_ms
    if repetition is None:
        return replace(entry, due_ms=due_ms)
    if expire_at_ms is not None:
        expire_at_ms += (planned or due_ms) - entry.due_ms
    begun = replace(entry, due_ms=due_ms, expire_at_ms=expire_at_ms, occurrence=1)
    return _planned(begun, planned if planned != due_ms else 0)


def _planned(entry: Entry, planned: int) -> Entry:
    """Return the entry of a series with this `Repetition.planned_ms`."""
    options = entry.options
    assert options is not None
    assert options.repetition is not None, "a message without a repetition has no rhythm"
    return replace(
        entry, options=replace(options, repetition=replace(options.repetition, planned_ms=planned))
    )


def _attempts_max(entry: Entry) -> int:
    return 0 if entry.options is None else entry.options.attempts_max


def rhythm(entry: Entry) -> tuple[object, ...]:
    """Return what makes the rhythm of a message: its repetition without its state, its spread, and
    its expiry, which a series counts from each time."""
    repetition, expire_ms = repetition_of(entry), entry.expire_at_ms
    spread_ms = 0 if entry.options is None else entry.options.spread_ms
    if repetition is None:
        return spread_ms, expire_ms
    if expire_ms is not None:
        expire_ms -= planned_ms(entry, repetition)
    return (
        spread_ms,
        expire_ms,
        repetition.kind,
        repetition.values,
        repetition.cron,
        repetition.zone,
        repetition.times,
        repetition.until_ms,
        repetition.late_policy,
    )


# --- spread


def spread_shift_ms(shard: int, offset: int, spread_ms: int) -> int:
    """Return how much later (ms) than its due time a message is delivered whose spread is
    `spread_ms`: less than that.

    It follows from the shard and the source offset alone, so all occurrences of a series have the
    same."""
    if spread_ms <= 0:
        return 0
    # The finalizer of MurmurHash3 (64 bits): neighbouring offsets are far apart.
    mixed = (offset * 0x9E3779B97F4A7C15 + shard + 1) & 0xFFFFFFFFFFFFFFFF
    mixed = (mixed ^ mixed >> 33) * 0xFF51AFD7ED558CCD & 0xFFFFFFFFFFFFFFFF
    mixed = (mixed ^ mixed >> 33) * 0xC4CEB9FE1A85EC53 & 0xFFFFFFFFFFFFFFFF
    return (mixed ^ mixed >> 33) % spread_ms


def shift_ms(entry: Entry, shard: int, offset: int) -> int:
    """Return how much later (ms) than its due time the message is to be delivered."""
    options = entry.options
    return (
        0
        if options is None or not options.spread_ms
        else spread_shift_ms(shard, offset, options.spread_ms)
    )
