"""Times and durations: accepted texts, refused texts, and rounding, which is never down."""

from __future__ import annotations

import csv
import re
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronos.core.timefmt import (
    DURATION_PATTERN,
    MS_MAX,
    UNIT_MS,
    BeyondAll,
    check_unit,
    format_duration,
    format_time,
    lacks_unit,
    looks_like_seconds,
    parse_duration_ms,
    parse_time_ms,
)
from tests.harness.table import table


@table(
    ("text", "ms"),
    [
        ("0", 0),
        ("250", 250),
        ("007", 7),
        ("999999999999999", MS_MAX),
        ("250ms", 250),
        ("1.5s", 1_500),
        ("90s", 90_000),
        ("15m", 900_000),
        ("2h", 7_200_000),
        (("7d"), 604_800_000),
        ("0s", 0),
        ("0.0s", 0),
        ("1.000s", 1_000),
        ("0.25h", 900_000),
        ("0.5d", 43_200_000),
        ("2w", 1_209_600_000),
        ("0.5w", 302_400_000),
        ("1h30m", 5_400_000),
        ("1w2d3h4m5s6ms", 788_645_006),
        ("1m500ms", 60_500),
        ("1d1ms", 86_400_001),
        ("0h0m", 0),
        ("1h90m", 9_000_000),
        ("0.1ms", 1),
        ("1.0001s", 1_001),
        ("1.0000000s", 1_000),
        ("0.000000001s", 1),
        (("0.000000001d"), 1),
        ("1m30.5s", 90_500),
        ("1h1.5m", 3_690_000),
        ("1ns", 1),
        ("1us", 1),
        ("1\u00b5s", 1),
        ("1\u03bcs", 1),
        ("1500us", 2),
        # One sum, rounded up once.
        ("400us599999.5ns", 1),
        ("400us600000.5ns", 2),
        ("1s0.1ns", 1_001),
        ("PT0S", 0),
        ("P2W", 1_209_600_000),
        ("P1DT12H", 129_600_000),
        ("P1W2DT3H4M5.006S", 788_645_006),
        ("PT1M30.5S", 90_500),
        ("PT0.000000001S", 1),
    ],
)
def test_a_duration_is_milliseconds_rounded_up(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@table(
    "text",
    [
        "",
        " ",
        "s",
        "ms",
        ".5s",
        "1.s",
        "1.5",
        "-1",
        "-0",
        "-1s",
        "+1s",
        "1 s",
        " 1s",
        "1s ",
        ("1s\n"),
        "1S",
        "1H",
        "1W",
        "1M",
        "1y",
        "30m1h",
        "1h1h",
        "1h 30m",
        "1h30",
        "1.5h30m",
        "-1h30m",
        "1ms1s",
        ("1e3"),
        "1e3s",
        "0x10",
        "1_000",
        "1,5s",
        "inf",
        "nan",
        "infs",
        "٣s",
        "１s",
        "³s",
        "1.0000000001s",
        "1h1.5m1s",
        "1ns1us",
        "1Ms",
        "P",
        "PT",
        "P1DT",
        "1D",
        "PT1S1M",
        "PT1.5M",
        "P1H",
        "PT1D",
        "pt1s",
        "PT1,5S",
        "P1Y",
        "P1M",
        "P1Y2M3D",
        "PT-6H",
        "-PT6H",
        "0:01:30",
        "1 day, 0:00:00",
        "1000000000000000",
        "1000000000000000ms",
        "999999999999999s",
        ("999999999999999d1ms"),
        "1653439153w3d",
        "9" * 5_000,
        "9" * 5_000 + "s",
    ],
)
def test_text_that_is_not_a_duration_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration|longer than the longest"):
        parse_duration_ms(text)


@pytest.mark.parametrize(
    "text",
    [
        "1000000000000000",
        "1000000000000000ms",
        "1h1000000000000000m",
        "999999999999999d1ms",
        "9" * 5_000,
        "9" * 5_000 + ".5s",
    ],
)
def test_a_duration_that_is_too_long_is_called_so(text: str) -> None:
    with pytest.raises(BeyondAll, match="longer than the longest"):
        parse_duration_ms(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1700000000000000", "looks like microseconds; a number is taken as epoch milliseconds"),
        ("1700000000000000000", "looks like nanoseconds; a number is taken as epoch milliseconds"),
        ("9" * 5_000, "is later than any time"),
    ],
)
def test_a_time_in_another_unit_is_called_so(text: str, says: str) -> None:
    with pytest.raises(BeyondAll, match=says):
        parse_time_ms(text)


@pytest.mark.parametrize("text", ["1", "5", "999", "0005"])
def test_a_small_number_without_a_unit_lacks_it(text: str) -> None:
    assert lacks_unit(text)
    with pytest.raises(ValueError, match=f"{text} has no unit; write {text}s or {text}ms"):
        check_unit(text)


@table("text", ["0", "000", "1000", "90000", "5ms", "30s", "1h30m", "٣", "", "soon"])
def test_other_texts_do_not_lack_a_unit(text: str) -> None:
    assert not lacks_unit(text)
    check_unit(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1h 30m", "write it without spaces, as 1h30m"),
        ("0:01:30.5", "write units in place of colons"),
        ("-90s", "a duration is 0 or more"),
        ("PT-6H", "a duration is 0 or more"),
        ("P1Y", "years and months differ in length; write days, as P30D or 30d"),
        ("P1Y6MT1S", "years and months differ in length"),
        ("soon", "write 250ms, 1.5s, 90s"),
    ],
)
def test_a_text_that_is_no_duration_is_refused_with_the_form_to_write(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        parse_duration_ms(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("2030-01-31T09:00", "no offset from UTC; write 2030-01-31T09:00Z, or"),
        ("2030-01-31T09:00:00[Europe/Berlin]", "no offset from UTC; write 2030-01-31T09:00:00Z"),
        ("Thu, 31 Jan 2030 09:00:00 GMT", "names of days and months are not read"),
        ("2030-01-31 09:00:00 +0100", "it has spaces between its parts"),
        ("31.01.2030", "write RFC 3339 with an offset"),
    ],
)
def test_a_text_that_is_no_time_is_refused_with_the_form_to_write(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        parse_time_ms(text)


def test_times_and_durations_of_standard_libraries_are_read_as_their_values() -> None:
    """`python -m tests.clients.literals` wrote the table with the libraries that it names."""
    with (Path(__file__).parent / "literals.tsv").open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert {row["library"].split()[0] for row in rows} == {"Java", "Go", "Node", "Rust", "Python"}
    for row in rows:
        if row["kind"] == "refused":
            for parse in (parse_time_ms, parse_duration_ms):
                with pytest.raises(ValueError, match="is not a"):
                    parse(row["text"])
        else:
            parse = parse_time_ms if row["kind"] == "time" else parse_duration_ms
            assert parse(row["text"]) == int(row["ms"]), row


@given(st.text(alphabet="0123456789.wdhmsunPTWDHMS", max_size=12))
def test_the_published_pattern_of_durations_is_what_is_read(text: str) -> None:
    try:
        parse_duration_ms(text)
    except BeyondAll:
        read = True
    except ValueError:
        read = False
    else:
        read = True
    assert (re.search(DURATION_PATTERN, text) is not None) == read


@given(
    st.integers(0, 10**9),
    st.integers(0, 10**9 - 1),
    st.integers(1, 9),
    st.sampled_from(sorted(UNIT_MS)),
)
def test_a_duration_is_less_than_a_millisecond_above_the_exact_one(
    whole: int, fraction: int, digits: int, unit: str
) -> None:
    shown = f"{fraction % 10**digits:0{digits}d}"
    exact = (whole + Fraction(fraction % 10**digits, 10**digits)) * UNIT_MS[unit]
    if exact > MS_MAX:
        return
    assert 0 <= parse_duration_ms(f"{whole}.{shown}{unit}") - exact < 1


@table(
    ("text", "ms"),
    [
        ("0", 0),
        ("1700000000000", 1_700_000_000_000),
        ("1700000000", 1_700_000_000),
        ("999999999999999", MS_MAX),
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01t00:00:00z", 0),
        ("1970-01-01 00:00:00Z", 0),
        ("1970-01-01T00:00:00-00:00", 0),
        ("2030-01-31T09:00:00+01:00", 1_896_076_800_000),
        ("2030-01-31T08:00:00Z", 1_896_076_800_000),
        ("2030-01-31T02:30:00-05:30", 1_896_076_800_000),
        ("2024-02-29T00:00:00Z", 1_709_164_800_000),
        ("2030-01-31T08:00Z", 1_896_076_800_000),
        ("2030-01-31 09:00+01:00", 1_896_076_800_000),
        ("2030-01-31T09:00:00+01", 1_896_076_800_000),
        ("2030-01-31T09:00+0100", 1_896_076_800_000),
        ("2030-01-31T09:00+01:00[Europe/Berlin]", 1_896_076_800_000),
        ("2030-01-31T08:00:00.000Z[UTC]", 1_896_076_800_000),
        # The offset counts, not the zone.
        ("2030-01-31T09:00:00+01:00[America/New_York][u-ca=iso8601]", 1_896_076_800_000),
        ("1969-12-31T20:00:00-04:00", 0),
        ("1970-01-01T23:59:00+23:59", 0),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
        ("1970-01-01T00:00:00.001Z", 1),
        ("1970-01-01T00:00:00.0001Z", 1),
        (("1970-01-01T00:00:00.1Z"), 100),
        ("1970-01-01T00:00:00.000000000000000000000000000001Z", 1),
        (("1970-01-01T00:00:00.0010000Z"), 1),
        ("1970-01-01T00:00:00.9991Z", 1_000),
        # A leap second is the first one of the next minute.
        ("2016-12-31T23:59:60Z", 1_483_228_800_000),
        ("2017-01-01T00:59:60.5+01:00", 1_483_228_800_500),
        ("1969-12-31T23:59:60Z", 0),
        ("9999-12-31T23:59:60Z", 253_402_300_800_000),
        ("1969-12-31T23:59:59.9991Z", 0),
    ],
)
def test_a_time_is_epoch_milliseconds_rounded_up(text: str, ms: int) -> None:
    assert parse_time_ms(text) == ms


@table(
    "text",
    [
        "",
        " ",
        "now",
        "tomorrow",
        "-1",
        "-0",
        "+1",
        "1.5",
        "1e12",
        "1_700_000_000_000",
        " 0",
        ("0\n"),
        "0x0",
        "٣",
        "１７",
        "2030-01-31T09:00:00",
        "2030-01-31",
        "2030-01-31T09:00:00+1:00",
        "2030-01-31T09:00:00+1",
        "2030-01-31T09:00:00+01000",
        "2030-01-31T09Z",
        "2030-01-31T09:00.5Z",
        "2030-01-31T09:00:00 +01:00",
        "2030-01-31T09:00:00[Europe/Berlin]",
        "2030-01-31T09:00:00Z[Europe/Berlin",
        "2030-01-31T09:00:00Z[]",
        "2030-01-31T09:00:00Z[!Europe/Berlin]",
        "2030-01-31T09:00:00+24:00",
        "2030-01-31T09:00:00+00:60",
        "2030-01-31T09:00:00.Z",
        "2030-01-31T09:00:00,5Z",
        "2030-02-30T09:00:00Z",
        "2023-02-29T00:00:00Z",
        "2030-13-01T00:00:00Z",
        ("2030-00-01T00:00:00Z"),
        "2030-01-00T00:00:00Z",
        "2030-01-31T24:00:00Z",
        "2030-01-31T09:60:00Z",
        ("2030-01-31T09:00:61Z"),
        "0000-01-01T00:00:00Z",
        "1969-12-31T23:59:59Z",
        "1969-12-31T23:59:59.999Z",
        "1970-01-01T00:00:00+00:01",
        "2030-01-31T09:00:00Z ",
        "2030-01-31T09:00:00ZZ",
        "٢٠٣٠-01-31T09:00:00Z",
        ("20300-01-31T09:00:00Z"),
        "2030-01-31T09:00:00." + "0" * 31 + "Z",
    ],
)
def test_text_that_is_not_a_time_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time|before 1970"):
        parse_time_ms(text)


@given(
    st.datetimes(min_value=datetime(1971, 1, 1), max_value=datetime(9998, 1, 1)),
    st.integers(-23 * 60 - 59, 23 * 60 + 59),
)
def test_a_time_is_less_than_a_millisecond_above_the_exact_one(
    moment: datetime, offset_minutes: int
) -> None:
    there = moment.replace(tzinfo=timezone(timedelta(minutes=offset_minutes)))
    exact = Fraction((there - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1), 1_000)
    assert 0 <= parse_time_ms(there.isoformat()) - exact < 1


@given(st.integers(0, 253_402_300_799_999))
def test_a_time_that_was_shown_is_read_as_the_same_time(time_ms: int) -> None:
    assert parse_time_ms(format_time(time_ms)) == time_ms


def test_times_are_shown_in_utc_with_milliseconds() -> None:
    assert format_time(0) == "1970-01-01T00:00:00.000Z"
    assert format_time(1_896_076_800_007) == "2030-01-31T08:00:00.007Z"


def test_a_time_beyond_the_calendar_is_shown_as_its_number() -> None:
    assert format_time(253_402_300_800_000) == "253402300800000"
    assert format_time(MS_MAX) == str(MS_MAX)
    assert format_time(10**25) == str(10**25)


@given(st.text(max_size=40))
def test_any_text_is_a_time_and_a_duration_or_a_value_error(text: str) -> None:
    for parse in (parse_time_ms, parse_duration_ms):
        try:
            assert 0 <= parse(text) <= MS_MAX
        except ValueError as error:
            assert str(error)  # noqa: PT017 - some texts are times


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (1, "1ms"),
        (1_500, "1500ms"),
        (90_000, "90s"),
        (5_400_000, "90m"),
        (86_400_000, ("1d")),
        (1_209_600_000, "14d"),
        (315_360_000_000, "3650d"),
    ],
)
def test_a_duration_is_shown_in_its_largest_exact_unit(ms: int, text: str) -> None:
    assert format_duration(ms) == text


@given(st.integers(0, MS_MAX))
def test_a_duration_that_was_shown_is_read_as_the_same_duration(duration_ms: int) -> None:
    assert parse_duration_ms(format_duration(duration_ms)) == duration_ms


def test_epoch_seconds_are_distinguished_from_epoch_milliseconds() -> None:
    assert looks_like_seconds(1_798_000_000)
    assert looks_like_seconds(parse_time_ms("2000-12-31T23:59:59.999Z"))
    assert not looks_like_seconds(parse_time_ms("2001-01-01T00:00:00Z"))
