"""Times and durations as people write them, as integer milliseconds, always rounded up (law 2).

Not a calendar: a time without an offset is refused rather than guessed.
"""

import re
from datetime import UTC, datetime, timedelta

MS_MAX = 10**15 - 1
"""Greatest time or duration accepted, in ms: the year 33658. Keeps every key far inside 64 bits."""

BARE_MS_MIN = 1_000
"""A smaller number without a unit, but for 0, was most likely meant as seconds or minutes."""

UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}

EARLIEST_PLAUSIBLE_MS = 978_307_200_000
"""2001-01-01T00:00:00Z. Epoch seconds stay below this number until the year 32971."""

_NUMBER_AND_UNIT = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,9}))?(ms|s|m|h|d|w)", re.ASCII)
_SEVERAL_UNITS = re.compile(
    r"(?:[0-9]{1,15}w)?(?:[0-9]{1,15}d)?(?:[0-9]{1,15}h)?(?:[0-9]{1,15}m(?!s))?(?:[0-9]{1,15}s)?(?:[0-9]{1,15}ms)?",
    re.ASCII,
)
_BARE_NUMBER = re.compile(r"[0-9]{1,15}", re.ASCII)
_LONG_NUMBER = re.compile(r"(?<![0-9.])[0-9]{16,}", re.ASCII)
_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,30}))?"
    r"([Zz]|([+-])([0-9]{2}):([0-9]{2}))",
    re.ASCII,
)
_EPOCH_START = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


class BeyondAll(ValueError):
    """A time or a duration is greater than MS_MAX; its text is for users."""


def lacks_unit(text: str) -> bool:
    """Return whether a duration is a number without a unit that is too small to be meant as
    milliseconds."""
    return (
        text.isdigit() and _BARE_NUMBER.fullmatch(text) is not None and 0 < int(text) < BARE_MS_MIN
    )


def check_unit(text: str) -> None:
    """Raise ValueError, with a text for users, for a duration that lacks its unit."""
    if lacks_unit(text):
        raise ValueError(f"{text} has no unit; write {text}s or {text}ms")


def parse_duration_ms(text: str) -> int:
    """Return the milliseconds of `250ms`, `1.5s`, `90s`, `15m`, `2h`, `7d`, `2w`, `1h30m`, or of a
    bare number of milliseconds.

    Several units must be in order from the largest to the smallest, each at most once; only a
    single unit takes a fraction. Raises ValueError, with a text for users, for anything else, and
    BeyondAll for what is too long."""
    if _BARE_NUMBER.fullmatch(text):
        return int(text)
    match = _NUMBER_AND_UNIT.fullmatch(text)
    if match is not None:
        whole, fraction, unit = match.groups()
        unit_ms = UNIT_MS[unit]
        duration_ms = int(whole) * unit_ms
        if fraction:
            duration_ms += -(-int(fraction) * unit_ms // 10 ** len(fraction))
    elif text and _SEVERAL_UNITS.fullmatch(text):
        duration_ms = sum(
            int(whole) * UNIT_MS[unit] for whole, _, unit in _NUMBER_AND_UNIT.findall(text)
        )
    elif _LONG_NUMBER.search(text) and _is_duration(_LONG_NUMBER.sub("1", text)):
        duration_ms = MS_MAX + 1
    else:
        raise ValueError(
            f"{text[:80]!r} is not a duration; write 250ms, 1.5s, 90s, 15m, 2h, 1h30m, 7d or 2w"
        )
    if duration_ms > MS_MAX:
        raise BeyondAll(f"{text[:80]!r} is longer than the longest duration, {MS_MAX} ms")
    return duration_ms


def _is_duration(text: str) -> bool:
    return any(each.fullmatch(text) for each in (_BARE_NUMBER, _NUMBER_AND_UNIT, _SEVERAL_UNITS))


def parse_time_ms(text: str) -> int:
    """Return the epoch milliseconds of an RFC 3339 time with an offset, or of a number that is
    taken as epoch milliseconds.

    Raises ValueError, with a text for users, for anything else, and BeyondAll for a number that is
    too great."""
    if _BARE_NUMBER.fullmatch(text):
        return int(text)
    match = _RFC3339.fullmatch(text)
    if match is None and _LONG_NUMBER.fullmatch(text):
        raise BeyondAll(f"{text[:80]} {beyond_all(text)}")
    if match is None:
        raise ValueError(
            f"{text[:80]!r} is not a time; write RFC 3339 with an offset, as "
            "2030-01-31T09:00:00+01:00"
        )
    *fields, fraction, _, sign, offset_hours, offset_minutes = match.groups()
    year, month, day, hour, minute, second = (int(field) for field in fields)
    leap_second = 1 if second == 60 else 0
    try:
        moment = datetime(year, month, day, hour, minute, second - leap_second, tzinfo=UTC)
    except ValueError as error:
        raise ValueError(f"{text[:80]!r} is not a time: {error}") from None
    time_ms = (moment - _EPOCH_START) // _MS + leap_second * 1_000
    if sign:
        if int(offset_hours) > 23 or int(offset_minutes) > 59:
            raise ValueError(
                f"{text[:80]!r} is not a time: no zone has the offset "
                f"{sign}{offset_hours}:{offset_minutes}"
            )
        offset_ms = (int(offset_hours) * 60 + int(offset_minutes)) * 60_000
        time_ms += offset_ms if sign == "-" else -offset_ms
    if fraction:
        time_ms += -(-int(fraction) * 1_000 // 10 ** len(fraction))
    if time_ms < 0:
        raise ValueError(f"{text[:80]!r} lies before 1970")
    return time_ms


def beyond_all(digits: str) -> str:
    """Return what is wrong with a number of more than 15 digits that was given as a time."""
    unit = {16: "microseconds", 19: "nanoseconds"}.get(len(digits))
    return (
        f"looks like {unit}; a number is taken as epoch milliseconds"
        if unit
        else "is later than any time"
    )


def looks_like_seconds(time_ms: int) -> bool:
    """True for a number of epoch milliseconds before 2001: it was most likely meant as epoch
    seconds."""
    return time_ms < EARLIEST_PLAUSIBLE_MS


def format_time(time_ms: int) -> str:
    """Return the time as RFC 3339 in UTC with milliseconds; after the year 9999, the number
    itself."""
    try:
        moment = _EPOCH_START + timedelta(milliseconds=time_ms)
    except OverflowError:
        return str(time_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_duration(duration_ms: int) -> str:
    """Return the shortest exact text with one unit, days at most: `90s`, never `1.5m`; `14d`, never
    `2w`."""
    for unit in ("d", "h", "m", "s"):
        if duration_ms and duration_ms % UNIT_MS[unit] == 0:
            return f"{duration_ms // UNIT_MS[unit]}{unit}"
    return f"{duration_ms}ms"
