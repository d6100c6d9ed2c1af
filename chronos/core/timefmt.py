"""Times and durations as people write them: parsed into integer milliseconds, always rounded up
(law 2), and formatted.

A time without an offset from UTC is refused: its time zone is not guessed."""

import re
from datetime import UTC, datetime, timedelta

MS_MAX = 10**15 - 1
"""Greatest time or duration accepted, in ms: the year 33658. Keeps every key far inside 64 bits."""

BARE_MS_MIN = 1_000
"""A smaller number without a unit, but for 0, was most likely meant as seconds or minutes."""

UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}

EARLIEST_PLAUSIBLE_MS = 978_307_200_000
"""2001-01-01T00:00:00Z. Epoch seconds stay below this number until the year 32971."""

_FRACTION = r"(?:\.[0-9]{1,9})?"


def _duration_pattern(digits: str) -> str:
    """Return the regular expression of a duration whose numbers have so many digits."""
    units = ("w", "d", "h", "m", "s", "ms", "[u\u00b5\u03bc]s", "ns")
    leading = [f"({digits}{unit})?" for unit in units]
    several = (f"{''.join(leading[:at])}{digits}{_FRACTION}{unit}" for at, unit in enumerate(units))
    day, minute = (f"({digits}{unit})?" for unit in "DM")
    second = f"{digits}{_FRACTION}S"
    clock = f"T({digits}H{minute}({second})?|{digits}M({second})?|{second})"
    iso_8601 = f"P({digits}W{day}({clock})?|{digits}D({clock})?|{clock})"
    return f"^({digits}|{'|'.join(several)}|{iso_8601})$"


DURATION_PATTERN = _duration_pattern("[0-9]+")
"""Durations of any length, as a regular expression in the dialect of JSON Schema."""

# Not compiled here: that takes 10 ms of the start of every command, and few texts come so far.
_DURATION = _duration_pattern("[0-9]{1,15}")
_NUMBER_AND_UNIT = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,9}))?(ms|s|m|h|d|w)", re.ASCII)
_PART = re.compile(r"([0-9]+)(?:\.([0-9]+))?([a-zA-Z\u00b5\u03bc]+?)(?=[0-9T]|$)", re.ASCII)
_BARE_NUMBER = re.compile(r"[0-9]{1,15}", re.ASCII)
_LONG_NUMBER = re.compile(r"(?<![0-9.])[0-9]{16,}", re.ASCII)
_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2})"
    r"(?::([0-9]{2})(?:\.([0-9]{1,30}))?)?"
    r"([Zz]|([+-])([0-9]{2})(?::?([0-9]{2}))?)(?:\[[A-Za-z0-9_+./=-]{1,100}\]){0,3}",
    re.ASCII,
)
_NAME = r"\b(?:mon|tue|wed|thu|fri|sat|sun|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)"
_UNIT_NS = (
    {unit: ms * 1_000_000 for unit, ms in UNIT_MS.items()}
    # The micro sign, which Go and Rust write, and the Greek letter.
    | {"us": 1_000, "\u00b5s": 1_000, "\u03bcs": 1_000, "ns": 1}
    | {unit.upper(): UNIT_MS[unit] * 1_000_000 for unit in ("w", "d", "h", "m", "s")}
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
    """Return the milliseconds of `250ms`, `1.5s`, `90s`, `15m`, `2h`, `7d`, `2w`, `1h30m`,
    `1m30.5s`, `100us`, of ISO 8601 without years and months (`PT1M30.5S`, `P1DT12H`), or of a bare
    number of milliseconds.

    Several units must be in order from the largest to the smallest, each at most once; only the
    last one takes a fraction. The sum is rounded up once. These are the texts of Java's
    `Duration.toString`, Go's `Duration.String`, Rust's `Duration` with `{:?}` and JavaScript's
    `Temporal.Duration`. Raises ValueError, with a text for users, for anything else, and BeyondAll
    for what is too long."""
    if _BARE_NUMBER.fullmatch(text):
        return int(text)
    if (match := _NUMBER_AND_UNIT.fullmatch(text)) is not None:
        whole, fraction, unit = match.groups()
        unit_ms = UNIT_MS[unit]
        duration_ms = int(whole) * unit_ms
        if fraction:
            duration_ms += -(-int(fraction) * unit_ms // 10 ** len(fraction))
    elif re.fullmatch(_DURATION, text, re.ASCII):
        # In units of 10^-9 ns, so that every part is a whole number.
        parts = (
            (int(whole) * 10**9 + int(fraction.ljust(9, "0"))) * _UNIT_NS[unit]
            for whole, fraction, unit in _PART.findall(text)
        )
        duration_ms = -(-sum(parts) // 10**15)
    elif re.fullmatch(DURATION_PATTERN, text, re.ASCII):
        duration_ms = MS_MAX + 1
    else:
        raise ValueError(f"{text[:80]!r} is not a duration; {duration_advice(text)}")
    if duration_ms > MS_MAX:
        raise BeyondAll(f"{text[:80]!r} is longer than the longest duration, {MS_MAX} ms")
    return duration_ms


def duration_advice(text: str) -> str:
    """Return the form in which a text that is not a duration can be written."""
    joined = "".join(text.split())
    if joined != text and len(joined) <= 80 and re.fullmatch(_DURATION, joined, re.ASCII):
        return f"write it without spaces, as {joined}"
    if "-" in text:
        return "it has a minus sign, and a duration is 0 or more; write 90s or PT1M30S"
    if ":" in text:
        return "write units in place of colons: 1h30m for 1:30:00, 1m30.5s for 0:01:30.5"
    if re.match(r"P[0-9.,]+Y|P(?:[0-9.,]+Y)?[0-9.,]+M", text, re.ASCII):
        return "years and months differ in length; write days, as P30D or 30d"
    return "write 250ms, 1.5s, 90s, 15m, 2h, 1h30m, 7d, 2w or PT1M30S"


def parse_time_ms(text: str) -> int:
    """Return the epoch milliseconds of an RFC 3339 time with an offset, or of a number that is
    taken as epoch milliseconds.

    Seconds may be left out, as Java's `OffsetDateTime.toString` does where they are zero; the
    offset may be `+01` or `+0100`; a time zone in brackets may follow (RFC 9557), and the offset
    counts. Raises ValueError, with a text for users, for anything else, and BeyondAll for a number
    that is too great."""
    if _BARE_NUMBER.fullmatch(text):
        return int(text)
    match = _RFC3339.fullmatch(text)
    if match is None and _LONG_NUMBER.fullmatch(text):
        raise BeyondAll(f"{text[:80]} {beyond_all(text)}")
    if match is None:
        raise ValueError(f"{text[:80]!r} is not a time; {_time_advice(text)}")
    *fields, fraction, _, sign, offset_hours, offset_minutes = match.groups()
    year, month, day, hour, minute, second = (int(field or 0) for field in fields)
    leap_second = 1 if second == 60 else 0
    try:
        moment = datetime(year, month, day, hour, minute, second - leap_second, tzinfo=UTC)
    except ValueError as error:
        raise ValueError(f"{text[:80]!r} is not a time: {error}") from None
    time_ms = (moment - _EPOCH_START) // _MS + leap_second * 1_000
    if sign:
        offset_minutes = offset_minutes or "00"
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


def _time_advice(text: str) -> str:
    """Return the form in which a text that is not a time can be written."""
    form = "write RFC 3339 with an offset, as 2030-01-31T09:00:00+01:00"
    clock, bracket, zone = text[:200].partition("[")
    if _RFC3339.fullmatch(f"{clock}Z{bracket}{zone}"):
        return f"it has no offset from UTC; write {clock}Z, or {clock}+01:00"
    if re.search(_NAME, text, re.IGNORECASE):
        return f"names of days and months are not read; {form}"
    if " " in text[11:]:
        return f"it has spaces between its parts; {form}"
    return form


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
