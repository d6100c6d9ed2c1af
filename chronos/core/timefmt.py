"""Times and durations as people write them, turned into integer milliseconds, always rounded up (law 2).

Not a calendar: a time without an offset is refused rather than guessed, and so are seconds.
"""

import re
from datetime import UTC, datetime, timedelta

MS_MAX = 10**15 - 1
"""Greatest time or duration accepted, in ms: the year 33658. Keeps every key far inside 64 bits."""

UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

_DURATION = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,9}))?(ms|s|m|h|d)", re.ASCII)
_EPOCH = re.compile(r"[0-9]{1,15}", re.ASCII)
_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,30}))?"
    r"([Zz]|([+-])([0-9]{2}):([0-9]{2}))",
    re.ASCII,
)
_EPOCH_START = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def parse_duration_ms(text: str) -> int:
    """Milliseconds of `250ms`, `1.5s`, `90s`, `15m`, `2h`, `7d`, or of a bare number of milliseconds.

    Raises ValueError, with a text for users, for anything else.
    """
    if _EPOCH.fullmatch(text):
        return int(text)
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:80]!r} is not a duration; write 250ms, 1.5s, 90s, 15m, 2h or 7d")
    whole, fraction, unit = match.groups()
    unit_ms = UNIT_MS[unit]
    duration_ms = int(whole) * unit_ms
    if fraction:
        duration_ms += -(-int(fraction) * unit_ms // 10 ** len(fraction))
    if duration_ms > MS_MAX:
        raise ValueError(f"{text[:80]!r} is longer than any time Chronos can hold")
    return duration_ms


def parse_time_ms(text: str) -> int:
    """Epoch milliseconds of an RFC 3339 time with an offset, or of a number that is taken as epoch milliseconds.

    Raises ValueError, with a text for users, for anything else.
    """
    if _EPOCH.fullmatch(text):
        return int(text)
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text[:80]!r} is not a time; write epoch milliseconds or RFC 3339 with an offset, as 2030-01-31T09:00:00+01:00"
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
                f"{text[:80]!r} is not a time: no zone has the offset {sign}{offset_hours}:{offset_minutes}"
            )
        offset_ms = (int(offset_hours) * 60 + int(offset_minutes)) * 60_000
        time_ms += offset_ms if sign == "-" else -offset_ms
    if fraction:
        time_ms += -(-int(fraction) * 1_000 // 10 ** len(fraction))
    if time_ms < 0:
        raise ValueError(f"{text[:80]!r} lies before 1970")
    return time_ms


def format_time(time_ms: int) -> str:
    """RFC 3339 in UTC with milliseconds, as shown to people; beyond the year 9999 the number itself."""
    try:
        moment = _EPOCH_START + timedelta(milliseconds=time_ms)
    except OverflowError:
        return str(time_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
