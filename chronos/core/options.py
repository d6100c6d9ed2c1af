"""The parser of the headers that few messages have: attempts, repetition and spread. Part of `parsing`.

A master checks what depends on its settings, on the zone data and on the cron library; replay repeats none of it (law 9).
"""

from collections.abc import Mapping

from msgspec.structs import replace

from chronos.core.message import (
    ATTEMPTS,
    DELAY,
    DELIVER_AT,
    EXPIRE_AT,
    LATE_POLICIES,
    LATE_POLICY,
    REPEAT,
    REPEAT_TIMES,
    REPEAT_UNTIL,
    SPREAD,
    TARGET_TOPIC,
    TIME_ZONE,
    Command,
    ConditionalSchedule,
    Entry,
    Options,
    Reason,
    Record,
    Rejection,
    Repeat,
    Repetition,
)
from chronos.core.repetition import longest_ms, parse_repetition
from chronos.core.rules import ATTEMPTS_MAX, Rules
from chronos.core.timefmt import format_duration, lacks_unit, parse_duration_ms
from chronos.core.values import bad_value, names, shown, text_of, time_of

TIMES_MAX = 1_000_000_000
"""Greatest `chronos-repeat-times`."""

ZONE_CHARACTERS_MAX = 100
"""Longest name of a time zone."""

_OF_A_SERIES = (REPEAT_TIMES, REPEAT_UNTIL, TIME_ZONE, LATE_POLICY)


def has_cron(command: Command) -> bool:
    """Return whether a cron expression was checked for the command, whatever came of it."""
    if type(command) is Rejection:
        return command.detail.startswith((REPEAT, TIME_ZONE))
    entry = command.entry if type(command) is ConditionalSchedule else command
    options = entry.options if type(entry) is Entry else None
    return options is not None and options.repetition is not None and options.repetition.kind == Repeat.CRON


def repeats_by_cron(control: Mapping[str, bytes | None]) -> bool:
    """Return whether the message is a series whose first time may be left to its cron expression."""
    return (control.get(REPEAT) or b"").lstrip()[:4] == b"cron"


def has_time(control: Mapping[str, bytes | None]) -> bool:
    """Return whether the headers give a due time."""
    return DELIVER_AT in control or DELAY in control


def parse_options(
    record: Record, control: Mapping[str, bytes | None], due_ms: int, expire_at_ms: int | None, rules: Rules
) -> Options | Rejection | None:
    """Return what the message asks for besides its time and target; None for a plain one."""
    attempts_max, spread_ms, repetition = 0, 0, None
    if ATTEMPTS in control:
        try:
            attempts_max = _attempts(control[ATTEMPTS], rules)
        except ValueError as error:
            return Rejection(Reason.BAD_VALUE, f"{ATTEMPTS}: {error}")
    if SPREAD in control:
        try:
            spread = text_of(control[SPREAD])
            spread_ms = parse_duration_ms(spread)
        except ValueError as error:
            return bad_value(SPREAD, error)
        if lacks_unit(spread):
            rules.count_unitless(control.get(TARGET_TOPIC))
        if spread_ms > rules.max_delay_ms:
            return _beyond(SPREAD, rules)
        if expire_at_ms is not None and expire_at_ms < due_ms + spread_ms:
            return Rejection(Reason.CONTRADICTORY_HEADERS, f"{EXPIRE_AT} is before the end of {SPREAD}")
    if REPEAT in control:
        parsed = _parse_repetition(record, control, due_ms, rules)
        if isinstance(parsed, Rejection):
            return parsed
        rejection = _check_first_time(parsed, control, record, expire_at_ms, rules)
        if rejection is not None:
            return rejection
        repetition = parsed
    else:
        stray = next((name for name in _OF_A_SERIES if name in control), None)
        if stray is not None:
            return Rejection(Reason.CONTRADICTORY_HEADERS, f"{stray} without {REPEAT}")
    if not attempts_max and not spread_ms and repetition is None:
        return None
    return Options(attempts_max=attempts_max, spread_ms=spread_ms, repetition=repetition)


def _attempts(raw: bytes | None, rules: Rules) -> int:
    """Return a number of attempts. Raises ValueError, with a text for users."""
    text = text_of(raw)
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= ATTEMPTS_MAX):
        raise ValueError(f"{shown(raw)} is not a number from 1 to {ATTEMPTS_MAX}")
    if int(text) > rules.attempts_max:
        raise ValueError(f"{text} is more than {rules.attempts_max}, the limit set by delivery.attempts_max")
    return int(text)


def _parse_repetition(
    record: Record, control: Mapping[str, bytes | None], due_ms: int, rules: Rules
) -> Repetition | Rejection:
    name = REPEAT
    try:
        repetition = parse_repetition(text_of(control[REPEAT]))
        if longest_ms(repetition) > rules.max_delay_ms:
            return _beyond(REPEAT, rules)
        times, until_ms, zone, policy = 0, 0, "", repetition.late_policy
        if (name := REPEAT_TIMES) in control:
            times = _times(text_of(control[REPEAT_TIMES]))
        if (name := REPEAT_UNTIL) in control:
            until_ms = time_of(control[REPEAT_UNTIL], record.timestamp_ms, rules.min_time_ms)
            if until_ms < due_ms:
                return Rejection(Reason.CONTRADICTORY_HEADERS, f"{REPEAT_UNTIL} is before the first due time")
        if (name := TIME_ZONE) in control:
            zone = text_of(control[TIME_ZONE])
            if repetition.kind != Repeat.CRON:
                return Rejection(Reason.CONTRADICTORY_HEADERS, f"{TIME_ZONE} goes with a cron expression only")
            if not 0 < len(zone) <= ZONE_CHARACTERS_MAX:
                raise ValueError(f"{zone[:80]!r} is not a time zone")
        if (name := LATE_POLICY) in control:
            found = LATE_POLICIES.get(control[LATE_POLICY] or b"")
            if found is None:
                raise ValueError(f"{shown(control[LATE_POLICY])} is not one of {names(LATE_POLICIES)}")
            policy = found
    except ValueError as error:
        return bad_value(name, error)
    return replace(repetition, times=times, until_ms=until_ms, zone=zone, late_policy=policy)


def _times(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and 1 <= int(text) <= TIMES_MAX):
        raise ValueError(f"{text[:80]!r} is not a number from 1 to {TIMES_MAX}")
    return int(text)


def _check_first_time(
    repetition: Repetition,
    control: Mapping[str, bytes | None],
    record: Record,
    expire_at_ms: int | None,
    rules: Rules,
) -> Rejection | None:
    """Check a cron expression, as a master does, and the first time that is left to it."""
    if repetition.kind != Repeat.CRON:
        return None
    first_is_left = not has_time(control)
    if first_is_left and expire_at_ms is not None:
        return Rejection(
            Reason.CONTRADICTORY_HEADERS,
            f"{EXPIRE_AT} of a series is counted from its first due time, which is not given",
        )
    if rules.next_cron is None:
        return None
    try:
        first_ms = rules.next_cron(repetition.cron, repetition.zone, record.timestamp_ms)
    except ValueError as error:
        name = TIME_ZONE if "is not a time zone" in str(error) else REPEAT
        return Rejection(Reason.BAD_VALUE, f"{name}: {error}")
    if first_ms is None:
        return Rejection(Reason.BAD_VALUE, f"{REPEAT}: {repetition.cron!r} never fires")
    if not first_is_left:
        return None
    if repetition.until_ms and first_ms > repetition.until_ms:
        return Rejection(Reason.CONTRADICTORY_HEADERS, f"{REPEAT_UNTIL} is before the first due time")
    return _beyond(REPEAT, rules) if first_ms > record.timestamp_ms + rules.max_delay_ms else None


def _beyond(name: str, rules: Rules) -> Rejection:
    limit = format_duration(rules.max_delay_ms)
    return Rejection(Reason.BEYOND_MAX_DELAY, f"{name}: longer than {limit}, the limit set by limits.max_delay")
