"""Cron expressions with a time zone: the next time, as a pure function of expression, zone and
time.

`cronsim` reads the expression; this module searches, in a bounded number of steps. An expression
whose hour field begins with `*` counts real time: it fires whenever the wall clock shows a matching
time, also in both passes of an hour that is repeated. Every other expression names wall-clock
times: one that does not exist on a day (a gap) fires once, at the first moment after the gap; one
that exists twice (an overlap) fires once, the first time.

Which days match depends only on the length of a month and on the weekday of its first day. So an
expression is known never to fire from at most 28 months, and one that does fire has a time within
YEARS_MAX.

The zone data are those of the package `tzdata` that is installed (`chronos.zones`), so no replica
computes with them to execute a step: a master records the times, and replicas carry them out
(law 9). The HTTP interface computes with them too, for checks, answers and series that go on.

Zone data change, so an entry keeps the zone's offset from UTC at its time. Its wall-clock time
(`wall_ms`) is the instant plus the offset: the milliseconds of the epoch at which UTC shows it."""

from bisect import bisect_left, bisect_right
from calendar import monthrange
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache

from cronsim import CronSim, CronSimError

from chronos.core.timefmt import MS_MAX
from chronos.zones import VERSION, zone_of

TIMES_CACHED_MAX = 10_000
"""Results that are remembered: series with one expression are usually due at the same time."""

EXPRESSIONS_CACHED_MAX = 4_000
"""Expressions that are remembered, those that were refused and those that never fire included: at
most about 10 MB."""

YEARS_MAX = 41
"""Years that are searched: 29 February falls on the same weekday again after at most 40, around a
year like 2100."""

TURNS_MAX = 100
"""Days and changes of the zone that are tried: one is almost always enough."""

GAP_MAX = timedelta(hours=26)
"""More than the longest gap: zones have left out a day."""

_EPOCH_START = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
_MONTH_LENGTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


class ZoneData:
    """Zone data of one version, and the times of cron expressions by them.

    Every method raises ValueError, with a text for users, for an expression or a zone that is
    none."""

    def __init__(self, version: str, zone_of: Callable[[str], tzinfo]) -> None:
        """`zone_of`: returns the zone of a name, UTC for an empty one. Raises ValueError."""
        self.version = version
        self._zone_of = zone_of
        self.next_cron = lru_cache(maxsize=TIMES_CACHED_MAX)(self._next_cron)

    def _next_cron(
        self, expression: str, zone_name: str, after_ms: int, wall_ms: int | None = None
    ) -> int | None:
        """Return the first time (epoch ms) after `after_ms` at which the expression fires; None if
        it never does.

        `wall_ms`: only times of which the wall-clock time is later than that count, for an
        expression that names wall-clock times."""
        zone, fields = self._zone_of(zone_name), _fields(expression)
        if fields.fires_never:
            return None
        try:
            after = _EPOCH_START + timedelta(milliseconds=after_ms)
            next_time = (
                _next_real(fields, zone, after)
                if fields.is_real
                else _next_named(fields, zone, after, None if wall_ms is None else _naive(wall_ms))
            )
        except OverflowError:
            return None
        return None if next_time is None else _time_ms(next_time)

    def offset_s(self, expression: str, zone_name: str, time_ms: int) -> int | None:
        """Return the offset of the zone from UTC in seconds at a time of the expression; None for
        an expression that counts real time, whose times no zone data change."""
        if _fields(expression).is_real:
            return None
        try:
            local = (_EPOCH_START + timedelta(milliseconds=time_ms)).astimezone(
                self._zone_of(zone_name)
            )
        except OverflowError:
            return None
        offset = local.utcoffset()
        assert offset is not None
        return offset // _SECOND

    def time_at(self, expression: str, zone_name: str, wall_ms: int) -> int | None:
        """Return the time (epoch ms) at which the occurrence fires that had this wall-clock time by
        other zone data, for an expression that names wall-clock times."""
        zone, fields, naive = self._zone_of(zone_name), _fields(expression), _naive(wall_ms)
        at = fields.time_from(naive.time()) if fields.matches(naive.date()) else None
        if at != naive.time():
            # It was the end of a gap, for the last time before.
            naive = _naive_before(fields, naive) or naive
        try:
            return _time_ms(_instant(naive, zone))
        except OverflowError:
            return None


def _naive(wall_ms: int) -> datetime:
    return (_EPOCH_START + timedelta(milliseconds=wall_ms)).replace(tzinfo=None)


def _time_ms(found: datetime) -> int | None:
    found_ms = (found - _EPOCH_START) // _SECOND * 1_000
    return found_ms if found_ms <= MS_MAX else None


def _fields(expression: str) -> "_Fields":
    fields = _read(expression)
    if isinstance(fields, str):
        raise ValueError(fields)
    return fields


@lru_cache(maxsize=EXPRESSIONS_CACHED_MAX)
def _read(expression: str) -> "_Fields | str":
    """Return the fields of an expression, or the text for users if it is none."""
    try:
        return _Fields(expression)
    except CronSimError as error:
        return f"{expression[:80]!r} is not a cron expression: {str(error).lower()}"


class _Fields:
    """The fields of an expression."""

    def __init__(self, expression: str) -> None:
        """Raises CronSimError."""
        read = CronSim(expression, datetime(2000, 1, 1))
        self._times = sorted(read.hours), sorted(read.minutes), sorted(read.seconds)
        self._months = sorted(read.months)
        self._days, self._weekdays, self._both = (
            frozenset(read.days),
            frozenset(read.weekdays),
            read.day_and,
        )
        self._masks: dict[tuple[int, int], int] = {}
        self.is_real = read.parts[2].startswith("*")
        """True if it counts real time."""
        lengths = {_MONTH_LENGTHS[month - 1] for month in self._months} | (
            {28} if 2 in self._months else set()
        )
        self.fires_never = not any(
            self._mask(first, length) for length in lengths for first in range(7)
        )
        """True if no day of any year matches."""

    def _mask(self, first: int, length: int) -> int:
        """Return the matching days of a month, as bits, by the weekday of its first day (0: Monday)
        and its length."""
        mask = self._masks.get((first, length))
        if mask is None:
            by_date, by_weekday = self._by_date(first, length), self._by_weekday(first, length)
            mask = self._masks[first, length] = (
                by_date & by_weekday if self._both else by_date | by_weekday
            )
        return mask

    def _by_date(self, first: int, length: int) -> int:
        mask = 0
        for day in self._days:
            if day == CronSim.LAST:
                mask |= 1 << length
            elif day == CronSim.LAST_WEEKDAY:
                mask |= 1 << length - max(0, (first + length - 1) % 7 - 4)
            elif day <= length:
                mask |= 1 << day
        return mask

    def _by_weekday(self, first: int, length: int) -> int:
        mask = 0
        for item in self._weekdays:
            weekday, which = item if isinstance(item, tuple) else (item, 0)
            earliest = ((weekday - 1) % 7 - first) % 7 + 1
            days = range(earliest, length + 1, 7)
            if which == CronSim.LAST:
                days = days[-1:]
            elif which:
                days = days[which - 1 : which]
            for day in days:
                mask |= 1 << day
        return mask

    def matches(self, day: date) -> bool:
        """Return whether it fires on the day."""
        return (
            day.month in self._months
            and self._mask(*monthrange(day.year, day.month)) >> day.day & 1 == 1
        )

    def day_from(self, day: date) -> date | None:
        """Return the first matching day from this one on; None if there is none within YEARS_MAX,
        or before the year 10000."""
        for year in range(day.year, min(day.year + YEARS_MAX, 9_999) + 1):
            for month in self._months:
                if year == day.year and month < day.month:
                    continue
                mask = self._mask(*monthrange(year, month))
                if year == day.year and month == day.month:
                    mask = mask >> day.day << day.day
                if mask:
                    return date(year, month, (mask & -mask).bit_length() - 1)
        return None

    def time_from(self, at: time) -> time | None:
        """Return the first matching time of a day from this one on; None if it is over for the
        day."""
        hours, minutes, seconds = self._times
        hour = bisect_left(hours, at.hour)
        if hour < len(hours) and hours[hour] == at.hour:
            minute = bisect_left(minutes, at.minute)
            if minute < len(minutes) and minutes[minute] == at.minute:
                second = bisect_left(seconds, at.second)
                if second < len(seconds):
                    return time(hours[hour], minutes[minute], seconds[second])
                minute += 1
            if minute < len(minutes):
                return time(hours[hour], minutes[minute], seconds[0])
            hour += 1
        return time(hours[hour], minutes[0], seconds[0]) if hour < len(hours) else None


def _next_named(
    fields: _Fields, zone: tzinfo, after: datetime, wall: datetime | None = None
) -> datetime | None:
    """Return the next instant of an expression that names wall-clock times, of those later than
    `wall`."""
    local = after.replace(microsecond=0).astimezone(zone)
    naive = local.replace(tzinfo=None, fold=0)
    if local.fold:
        # The times of an overlap fired in its first pass: they are behind.
        naive = _overlap_end(naive, zone) - _SECOND
    naive = naive if wall is None else max(naive, wall)
    for _ in range(TURNS_MAX):
        next_wall = _naive_after(fields, naive)
        if next_wall is None:
            return None
        instant = _instant(next_wall, zone)
        if instant > after:
            return instant
        naive = next_wall
    return None


def _naive_after(fields: _Fields, naive: datetime) -> datetime | None:
    """Return the first matching wall-clock time after this one."""
    naive += _SECOND
    day = naive.date()
    if fields.matches(day) and (at := fields.time_from(naive.time())) is not None:
        return datetime.combine(day, at)
    found = fields.day_from(day + _DAY)
    at = fields.time_from(time())
    return None if found is None or at is None else datetime.combine(found, at)


def _naive_before(fields: _Fields, naive: datetime) -> datetime | None:
    """Return the last matching wall-clock time within GAP_MAX before this one."""
    seconds = range(GAP_MAX // _SECOND)
    # Ordered by the time that follows: the first second after which none comes before `naive`.
    start = naive - GAP_MAX
    at = bisect_right(
        seconds,
        False,
        key=lambda second: (_naive_after(fields, start + second * _SECOND) or naive) >= naive,
    )
    return None if at == 0 else _naive_after(fields, start + (at - 1) * _SECOND)


def _next_real(fields: _Fields, zone: tzinfo, after: datetime) -> datetime | None:
    """Return the next instant of an expression that counts real time: the first one with a matching
    wall clock."""
    instant = after.replace(microsecond=0) + _SECOND
    for _ in range(TURNS_MAX):
        local = instant.astimezone(zone)
        naive, offset = local.replace(tzinfo=None, fold=0), local.utcoffset()
        at = fields.time_from(naive.time()) if fields.matches(naive.date()) else None
        tomorrow = datetime.combine(naive.date() + _DAY, time())
        # As long as the zone does not change, the wall clock goes on with the instants.
        then = instant + ((tomorrow if at is None else datetime.combine(naive.date(), at)) - naive)
        if then.astimezone(zone).utcoffset() != offset:
            instant = _change(instant, then, zone)
        elif at is not None:
            return then
        else:
            day = fields.day_from(tomorrow.date())
            if day is None:
                return None
            instant = (
                then
                if day == tomorrow.date()
                else max(then, _instant(datetime.combine(day, time()), zone))
            )
    return None


def _change(before: datetime, behind: datetime, zone: tzinfo) -> datetime:
    """Return the first whole second (UTC) at which the zone has the offset from UTC of `behind`,
    and no longer that of `before`."""
    offset = behind.astimezone(zone).utcoffset()
    while behind - before > _SECOND:
        middle = (before + (behind - before) // 2).replace(microsecond=0)
        if middle.astimezone(zone).utcoffset() == offset:
            behind = middle
        else:
            before = middle
    return behind


def _overlap_end(naive: datetime, zone: tzinfo) -> datetime:
    """Return the end of the overlap around a wall-clock time, on the wall clock."""
    first, second = (naive.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    offset = first.utcoffset()
    assert offset is not None
    change = _change(first.astimezone(UTC), second.astimezone(UTC), zone)
    return change.replace(tzinfo=None) + offset


def _instant(naive: datetime, zone: tzinfo) -> datetime:
    """Return the instant of a wall-clock time: the first of two, and the end of the gap for one
    that does not exist."""
    instant = naive.replace(tzinfo=zone).astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None, fold=0) == naive:
        return instant
    return _change(naive.replace(tzinfo=zone, fold=1).astimezone(UTC), instant, zone)


ZONE_DATA = ZoneData(VERSION, zone_of)
"""The zone data of the package `tzdata`."""

next_cron = ZONE_DATA.next_cron
