"""Cron expressions with a time zone: the next time, as a pure function of expression, zone and time.

`cronsim` reads the expression and computes on wall-clock times; this module decides about the nights on which a zone
changes its offset from UTC. An expression whose hour field begins with `*` counts real time: it fires whenever the wall
clock shows a matching time, also in both passes of an hour that is repeated. Every other expression names wall-clock times:
one that does not exist on a day (a gap) fires once, at the first moment after the gap; one that exists twice (an overlap) fires
once, the first time.

The zone data is the machine's, so only a master computes with it; replicas execute what it recorded (law 9). It needs
the extra `server`: nothing that clients import may import it.
"""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from chronos.core.timefmt import MS_MAX

TIMES_CACHED_MAX = 10_000
"""Results that are remembered: series with one expression are usually due at the same time."""

_EPOCH_START = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)


def zone_of(name: str) -> ZoneInfo:
    """Return the time zone; UTC if the name is empty. Raises ValueError, with a text for users, if it is not known here."""
    try:
        return ZoneInfo(name or "UTC")
    except (KeyError, ValueError, OSError):
        raise ValueError(
            f"{name[:80]!r} is not a time zone; write a name of the IANA database, as Europe/Lisbon"
        ) from None


@lru_cache(maxsize=TIMES_CACHED_MAX)
def next_cron(expression: str, zone_name: str, after_ms: int) -> int | None:
    """Return the first time (epoch ms) after `after_ms` at which the expression fires; None if it never does.

    Raises ValueError, with a text for users.
    """
    zone = zone_of(zone_name)
    try:
        after = _EPOCH_START + timedelta(milliseconds=after_ms)
        # Times of an expression are whole seconds, so a fraction of `after` does not matter.
        local = after.replace(microsecond=0).astimezone(zone)
        if _hours(expression).startswith("*"):
            found = next(CronSim(expression, local), None)
        else:
            times = CronSim(expression, local.replace(tzinfo=None, fold=0))
            instants = (_instant(naive, zone) for naive in times)
            found = next((instant for instant in instants if instant > after), None)
    except CronSimError as error:
        raise ValueError(f"{expression[:80]!r} is not a cron expression: {str(error).lower()}") from None
    except OverflowError:
        return None
    if found is None:
        return None
    found_ms = (found - _EPOCH_START) // _SECOND * 1_000
    return found_ms if found_ms <= MS_MAX else None


def _hours(expression: str) -> str:
    """Return the hour field: the third from the right of the five that every expression has."""
    fields = expression.split()
    return fields[-4] if len(fields) >= 5 else ""


def _instant(naive: datetime, zone: ZoneInfo) -> datetime:
    """Return the instant of a wall-clock time: the first of two, and the end of the gap for one that does not exist."""
    local = naive.replace(tzinfo=zone)
    instant = local.astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None, fold=0) == naive:
        return instant
    before, behind = naive.replace(tzinfo=zone, fold=1).astimezone(UTC), instant
    offset = zone.utcoffset(behind.astimezone(zone))
    while behind - before > _SECOND:
        middle = before + (behind - before) // 2
        middle = middle.replace(microsecond=0)
        if zone.utcoffset(middle.astimezone(zone)) == offset:
            behind = middle
        else:
            before = middle
    return behind
