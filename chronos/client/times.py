"""Times and durations as a Python program gives them. Bare numbers are refused: their unit is never guessed."""

from datetime import UTC, datetime, timedelta

from chronos.core.timefmt import format_time, looks_like_seconds, parse_duration_ms, parse_time_ms

Time = datetime | str
"""A `datetime` with a time zone, or RFC 3339 with an offset: `2030-01-31T09:00:00+01:00`."""

Delay = timedelta | str
"""A `timedelta`, or numbers with units: `250ms`, `1.5s`, `90s`, `15m`, `2h`, `1h30m`, `7d`, `2w`."""

_EPOCH_START = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def time_ms(value: Time) -> int:
    """Epoch milliseconds, rounded up; ValueError for a time without an offset and for a bare number."""
    if isinstance(value, datetime):
        if value.tzinfo is None or value.utcoffset() is None:
            raise ValueError(f"{value.isoformat()} has no time zone; give the datetime a tzinfo")
        return -((_EPOCH_START - value) // _MS)
    text = str(value)
    if _is_number(text):
        number = int(float(text))
        meant = format_time(number * 1_000 if looks_like_seconds(number) else number)
        raise ValueError(f"{text} is a bare number, not a time; write RFC 3339 with an offset, such as {meant}")
    return parse_time_ms(text)


def delay_ms(value: Delay) -> int:
    """Milliseconds, rounded up; ValueError for a negative duration and for a bare number but 0."""
    if isinstance(value, timedelta):
        if value < timedelta():
            raise ValueError(f"{value!r} is negative; a delay is 0 or more")
        return -(-value // _MS)
    text = str(value)
    if _is_number(text) and text != "0":
        raise ValueError(f"{text} has no unit; write {text}s, {text}m or {text}ms")
    return parse_duration_ms(text)


def delay_text(value: Delay) -> str:
    """The duration as the service takes it, with a unit."""
    return f"{delay_ms(value)}ms"


def _is_number(text: str) -> bool:
    return text.removeprefix("-").replace(".", "", 1).isdecimal() and len(text) <= 20
