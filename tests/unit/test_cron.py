"""Cron expressions: the nights on which a zone changes its offset, from published dates, and texts
that are refused."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from cronsim import CronSim, CronSimError
from hypothesis import given
from hypothesis import strategies as st

from chronos.core import cron
from chronos.core.cron import next_cron
from chronos.core.timefmt import MS_MAX, parse_time_ms
from tests.harness.table import table
from tests.unit.settings import examples

# Zone, expression, a time, and the times of the occurrences that follow it, with their offsets
# from UTC.
# fmt: off
TABLE = [
    # Lisbon, 2026-03-29: 01:00 becomes 02:00. 2026-10-25: 02:00 becomes 01:00.
    ("Europe/Lisbon", "30 1 * * *", "2026-03-28T12:00:00Z", ["2026-03-29T02:00:00+01:00", (
        "2026-03-30T01:30:00+01:00"
    )]),
    ("Europe/Lisbon", "30 1 * * *", "2026-10-24T12:00:00Z", ["2026-10-25T01:30:00+01:00", (
        "2026-10-26T01:30:00Z"
    )]),
    ("Europe/Lisbon", "0 9 * * *", "2026-03-28T08:00:00Z", ["2026-03-28T09:00:00Z", (
        "2026-03-29T09:00:00+01:00"
    )]),
    # Berlin, 2026-03-29: 02:00 becomes 03:00. 2026-10-25: 03:00 becomes 02:00.
    ("Europe/Berlin", "*/20 2 * * *", "2026-03-29T00:00:00+01:00",
     ["2026-03-29T03:00:00+02:00", "2026-03-30T02:00:00+02:00"]),
    ("Europe/Berlin", "15,45 2 * * *", "2026-10-25T00:00:00+02:00",
     ["2026-10-25T02:15:00+02:00", "2026-10-25T02:45:00+02:00", "2026-10-26T02:15:00+01:00"]),
    ("Europe/Berlin", "0 * * * *", "2026-10-25T01:30:00+02:00",
     ["2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T03:00:00+01:00"]),
    ("Europe/Berlin", "0 * * * *", "2026-03-29T00:30:00+01:00",
     ["2026-03-29T01:00:00+01:00", "2026-03-29T03:00:00+02:00"]),
    ("Europe/Berlin", "30 15 2 29 3 *", "2026-03-01T00:00:00+01:00",
     ["2026-03-29T03:00:00+02:00", "2027-03-29T02:15:30+02:00"]),
    # New York, 2026-03-08: 02:00 becomes 03:00. 2026-11-01: 02:00 becomes 01:00.
    ("America/New_York", "30 2 * * *", "2026-03-07T12:00:00-05:00",
     ["2026-03-08T03:00:00-04:00", "2026-03-09T02:30:00-04:00"]),
    ("America/New_York", "0 0 2,3 * * *", "2026-03-08T00:00:00-05:00",
     ["2026-03-08T03:00:00-04:00", "2026-03-09T02:00:00-04:00"]),
    ("America/New_York", "*/30 * * * *", "2026-11-01T01:00:00-04:00",
     ["2026-11-01T01:30:00-04:00", "2026-11-01T01:00:00-05:00", "2026-11-01T01:30:00-05:00", (
         "2026-11-01T02:00:00-05:00"
     )]),
    ("America/New_York", "0 30 1 * * *", "2026-11-01T00:00:00-04:00",
     ["2026-11-01T01:30:00-04:00", "2026-11-02T01:30:00-05:00"]),
    ("America/New_York", "45 1 * * *", "2026-11-01T01:10:00-05:00", ["2026-11-02T01:45:00-05:00"]),
    # Lord Howe changes by half an hour. 2026-10-04: 02:00 becomes 02:30. 2026-04-05: 02:00 becomes
    # 01:30.
    ("Australia/Lord_Howe", "15 2 * * *", "2026-10-03T12:00:00+10:30",
     ["2026-10-04T02:30:00+11:00", "2026-10-05T02:15:00+11:00"]),
    ("Australia/Lord_Howe", "45 1 * * *", "2026-04-04T12:00:00+11:00",
     ["2026-04-05T01:45:00+11:00", "2026-04-06T01:45:00+10:30"]),
    # Sao Paulo, 2018-11-04: midnight becomes 01:00. 2018-02-18: midnight became 23:00 of the day
    # before.
    ("America/Sao_Paulo", "0 0 * * *", "2018-11-03T12:00:00-03:00",
     ["2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00"]),
    ("America/Sao_Paulo", "30 23 * * *", "2018-02-17T12:00:00-02:00",
     ["2018-02-17T23:30:00-02:00", "2018-02-18T23:30:00-03:00"]),
    # Cairo, 2024-04-26: midnight becomes 01:00.
    ("Africa/Cairo", "30 0 * * 5", "2024-04-25T12:00:00+02:00",
     ["2024-04-26T01:00:00+03:00", "2024-05-03T00:30:00+03:00"]),
    # Casablanca goes back for Ramadan: 2026-02-15, 03:00 becomes 02:00.
    ("Africa/Casablanca", "0 9 * * *", "2026-02-14T12:00:00+01:00", ["2026-02-15T09:00:00Z", (
        "2026-02-16T09:00:00Z"
    )]),
    ("Africa/Casablanca", "30 2 * * *", "2026-02-14T12:00:00+01:00",
     ["2026-02-15T02:30:00+01:00", "2026-02-16T02:30:00Z"]),
    # Apia had no 2011-12-30.
    ("Pacific/Apia", "0 9 * * *", "2011-12-29T08:00:00-10:00",
     ["2011-12-29T09:00:00-10:00", "2011-12-31T00:00:00+14:00", "2011-12-31T09:00:00+14:00"]),
    # No changes at all, and no zone: UTC.
    ("Asia/Kolkata", "0 9 * * 1-5", "2026-10-23T10:00:00+05:30",
     ["2026-10-26T09:00:00+05:30", "2026-10-27T09:00:00+05:30"]),
    ("", "0 0 29 2 *", "2026-01-01T00:00:00Z", ["2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"]),
    ("", "*/15 * * * * *", "2026-01-01T00:00:40.5Z", ["2026-01-01T00:00:45Z", (
        "2026-01-01T00:01:00Z"
    )]),
    ("", "0 12 L * *", "2026-02-01T00:00:00Z", ["2026-02-28T12:00:00Z", "2026-03-31T12:00:00Z"]),
    ("", "0 9 * * MON#1", "2026-01-01T00:00:00Z", ["2026-01-05T09:00:00Z", "2026-02-02T09:00:00Z"]),
]
# fmt: on


@table(("zone", "expression", "after", "expected"), TABLE)
def test_the_occurrences_of_an_expression_are_those_of_the_table(
    zone: str, expression: str, after: str, expected: list[str]
) -> None:
    """In a gap once, at its end; in an overlap once, the first time; by real time where the hour is
    a `*`."""
    time_ms = parse_time_ms(after)
    for text in expected:
        found = next_cron(expression, zone, time_ms)
        assert found == parse_time_ms(text), (
            text,
            found and datetime.fromtimestamp(found / 1_000).astimezone(),
        )
        time_ms = found


def test_the_table_has_six_zones_that_change() -> None:
    assert len({zone for zone, *_ in TABLE} - {"", "Asia/Kolkata"}) >= 6


@table(
    "expression",
    [
        "",
        "* * * *",
        "* * * * * * *",
        "60 * * * *",
        "0 24 * * *",
        "0 0 0 * *",
        "0 0 * 13 *",
        ("0 0 * * 8"),
        "a * * * *",
        "5-1 * * * *",
        "*/0 * * * *",
        "0 0 30 2 *",
        "@daily",
        "\u0663 * * * *",
        "0 0 31 2,4 *",
    ],
)
def test_an_expression_that_is_wrong_or_never_fires_is_refused(expression: str) -> None:
    try:
        assert next_cron(expression, "", 1_700_000_000_000) is None
    except ValueError as error:
        assert "is not a cron expression" in str(error)  # noqa: PT017 - the other answer is as good


@pytest.mark.parametrize(
    "zone",
    ["Nowhere", "Europe/lisbonne", "../etc/passwd", "/etc/localtime", "a" * 300, "\0", "CET "],
)
def test_an_unknown_zone_is_refused_by_name(zone: str) -> None:
    with pytest.raises(ValueError, match="is not a time zone"):
        next_cron("0 9 * * *", zone, 1_700_000_000_000)


_field = st.one_of(
    st.sampled_from(
        [
            "*",
            "*/2",
            "0",
            "1",
            "5,7",
            "1-4",
            "L",
            "LW",
            "1L",
            "1#2",
            "1#2/3",
            "MON-FRI",
            "JAN",
            "*/61",
            "?",
            "-",
        ]
    ),
    st.text(alphabet="0123456789*/-,#LWMON", max_size=5),
)


@examples(2_000)
@given(
    st.lists(_field, min_size=4, max_size=7),
    st.sampled_from(["", "Europe/Lisbon"]),
    st.integers(0, MS_MAX),
)
def test_any_text_has_a_later_time_or_none_or_is_refused(
    fields: list[str], zone: str, after_ms: int
) -> None:
    try:
        found = next_cron(" ".join(fields), zone, after_ms)
    except ValueError:
        return
    assert found is None or (found > after_ms and found % 1_000 == 0)


@examples(600)
@given(
    st.sampled_from(
        ["30 1 * * *", "15,45 2 * * *", "0 0 * * *", "*/20 1-2 * * *", "30 30 2 * * 0"]
    ),
    st.sampled_from(
        [
            "Europe/Lisbon",
            "Europe/Berlin",
            "America/New_York",
            "Australia/Lord_Howe",
            "Africa/Cairo",
        ]
    ),
    st.integers(1_700_000_000, 1_800_000_000),
)
def test_a_wall_clock_expression_names_each_of_its_times_once(
    expression: str, zone: str, after_s: int
) -> None:
    """The next time from any moment is the same as from the occurrence before it."""
    first = next_cron(expression, zone, after_s * 1_000)
    assert first is not None
    for back in (1, 1_000, int(timedelta(hours=3) / timedelta(milliseconds=1))):
        earlier = next_cron(expression, zone, first - back)
        assert earlier is not None
        assert earlier <= first
    assert next_cron(expression, zone, first - 1) == first


NEVER = ["0 0 */31 * 1#5,2#5", "0 0 */29 2 3#5", "0 0 30 2 */7", "* * */16 * 2#2"]
"""Expressions of which every field is valid, and no day matches all of them."""


@pytest.mark.parametrize("zone", ["", "Europe/Lisbon"])
def test_an_expression_that_never_fires_costs_a_bounded_number_of_steps(
    monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    """Decided once, from the lengths and the first weekdays of months; it is remembered for every
    time that is asked for."""
    steps = 0
    by_date = cron._Fields._by_date

    def counting(fields: cron._Fields, first: int, length: int) -> int:
        nonlocal steps
        steps += 1
        return by_date(fields, first, length)

    monkeypatch.setattr(cron._Fields, "_by_date", counting)
    cron._read.cache_clear()
    for expression in NEVER:
        for after_ms in range(1_700_000_000_000, 1_700_000_001_000):
            try:
                assert next_cron(expression, zone, after_ms) is None
            except ValueError as error:
                assert "bad day-of-month" in str(error)  # noqa: PT017 - the library finds some of them
    assert steps <= len(NEVER) * 28


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("0 0 29 2 */7", "2005-01-01T00:00:00Z", "2032-02-29T00:00:00Z"),
        ("0 0 29 2 */7", "2088-02-29T00:00:00Z", "2128-02-29T00:00:00Z"),
        ("0 12 29 2 *", "2096-03-01T00:00:00Z", "2104-02-29T12:00:00Z"),
        ("59 59 23 31 12 *", "2026-12-31T23:59:59Z", "2027-12-31T23:59:59Z"),
    ],
)
def test_a_rare_time_is_found(expression: str, after: str, expected: str) -> None:
    """29 February on a Sunday comes after up to 40 years."""
    assert next_cron(expression, "", parse_time_ms(after)) == parse_time_ms(expected)


_part = st.sampled_from(["*", "*/7", "3", "0", "1-4", "5,9", "*/13"])


@examples(2_000)
@given(
    st.lists(_part, min_size=3, max_size=3),
    st.sampled_from(["*", "L", "LW", "1", "29", "30,31", "*/31", "15,L", "1-7", "LW,3"]),
    st.sampled_from(["*", "2", "4,6", "1-3", "*/5"]),
    st.sampled_from(["*", "0", "7", "1#1", "5#5", "3L", "MON-FRI", "*/7", "0L,2#5"]),
    st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1)),
)
def test_the_search_finds_what_the_library_finds(
    clock: list[str], days: str, months: str, weekdays: str, after: datetime
) -> None:
    """Without a zone, for every expression that the library finds a time of."""
    expression = " ".join([*clock, days, months, weekdays])
    after = after.replace(microsecond=0)
    try:
        expected = next(CronSim(expression, after), None)
    except CronSimError:
        return
    found = next_cron(expression, "", (after - datetime(1970, 1, 1)) // timedelta(milliseconds=1))
    assert found == (expected and (expected - datetime(1970, 1, 1)) // timedelta(milliseconds=1))


def test_real_time_skips_a_midnight_that_does_not_exist() -> None:
    """Sao Paulo, 2018-11-04: the wall clock goes from 23:59 to 01:00, so hour 0 is not shown, and
    hour 5 is the first that matches."""
    found = next_cron(
        "* */5 * * 0", "America/Sao_Paulo", parse_time_ms("2018-11-03T12:00:00-03:00")
    )
    assert found == parse_time_ms("2018-11-04T05:00:00-02:00")


def test_real_time_shows_both_passes_of_an_hour_before_midnight() -> None:
    """Sao Paulo, 2018-02-18: midnight became 23:00 of the day before."""
    first = next_cron(
        "30 */23 17 2 *", "America/Sao_Paulo", parse_time_ms("2018-02-17T12:00:00-02:00")
    )
    assert first == parse_time_ms("2018-02-17T23:30:00-02:00")
    assert next_cron("30 */23 17 2 *", "America/Sao_Paulo", first) == parse_time_ms(
        "2018-02-17T23:30:00-03:00"
    )


def test_a_zone_that_goes_back_to_the_day_before_stops_nothing() -> None:
    """St. John's, 1993-10-31: at 00:01 the wall clock went back to 23:01 of 30 October. A search by
    days alone never ended there."""
    found = next_cron(
        "20-30 * 31 10,3 *", "America/St_Johns", parse_time_ms("1993-10-30T12:00:00-02:30")
    )
    assert found == parse_time_ms("1993-10-31T00:20:00-03:30")
    later = next_cron(
        "0 */23 30 10 *", "America/St_Johns", parse_time_ms("1993-10-30T22:30:00-02:30")
    )
    assert later == parse_time_ms("1993-10-30T23:00:00-02:30")
