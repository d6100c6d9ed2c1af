"""The rhythm of a series by intervals, its bounds, its texts, and the spread of bursts."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronos import headers as client_headers
from chronos.core.cron import next_cron
from chronos.core.message import LatePolicy, Options, Reason, Repeat, Repetition
from chronos.core.series import (
    backoff_ms,
    following,
    following_after,
    format_repetition,
    last_until,
    parse_repetition,
    spread_shift_ms,
)
from chronos.core.shard.rules import Rules
from tests.harness.table import table
from tests.unit.records import AT, NOW_MS, TO, action, parsed
from tests.unit.settings import examples

T = 1_700_000_000_000
CHECKING = Rules(shard=0, shards=1, max_delay_ms=86_400_000, next_cron=next_cron)


def test_the_exponential_loop_grows_by_its_factor_up_to_its_cap() -> None:
    values = parse_repetition("backoff 1s 2 10s").values
    assert [backoff_ms(values, n) for n in range(1, 7)] == [
        1_000,
        2_000,
        4_000,
        8_000,
        10_000,
        10_000,
    ]
    assert backoff_ms(values, 10**9) == 10_000
    assert [
        backoff_ms(parse_repetition("backoff 100ms 1.005 1h").values, n) for n in (1, 2, 3)
    ] == [100, 101, 102]
    assert backoff_ms(parse_repetition("backoff 3s 1 7s").values, 99) == 3_000


@pytest.mark.parametrize(
    ("text", "kind", "values"),
    [
        ("every 100ms", Repeat.EVERY, (100,)),
        ("every  1h30m", Repeat.EVERY, (5_400_000,)),
        ("every 30000", Repeat.EVERY, (30_000,)),
        ("backoff 1s 1.5 1h", Repeat.BACKOFF, (1_000, 1_500, 3_600_000)),
        ("cron 0 9 * * 1-5", Repeat.CRON, ()),
        ("cron */10 0 9 * * 1-5", Repeat.CRON, ()),
    ],
)
def test_the_texts_of_repetitions(text: str, kind: Repeat, values: tuple[int, ...]) -> None:
    repetition = parse_repetition(text)
    assert (repetition.kind, repetition.values) == (kind, values)
    assert parse_repetition(format_repetition(repetition)) == repetition


@table(
    "text",
    [
        "",
        " ",
        "every",
        "every 99ms",
        "every 1s 2s",
        "hourly",
        "EVERY 1s",
        "backoff 1s 2",
        ("backoff 1s 0.5 1h"),
        "backoff 1s 2.0001 1h",
        "backoff 1h 2 1s",
        "backoff 1s -2 1h",
        "backoff 1s 1001 1h",
        ("backoff 50ms 2 1h"),
        "cron",
        "cron * * * *",
        "cron * * * * * * *",
        "cron " + "1," * 100 + "1 * * * *",
        "every 1x",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(
        ValueError,
        match=(
            r"not a repetition|is not an interval|is not base, factor|is not a cron|shorter "
            r"than|not a factor|not a duration"
        ),
    ):
        parse_repetition(text)


@table(
    ("given", "fields"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("0 0 12 * * ?", "0 0 12 * * *"),
        ("0 0 12 ? * MON-FRI", "0 0 12 * * MON-FRI"),
        ("0 0 12 ? * MON#1", "0 0 12 * * MON#1"),
        ("0 12 LW * ?", "0 12 LW * *"),
    ],
)
def test_the_shorthands_of_cron_and_the_question_mark_of_quartz(given: str, fields: str) -> None:
    assert parse_repetition(f"cron {given}").cron == fields
    assert next_cron(fields, "UTC", T) is not None


@table(
    ("given", "says"),
    [
        ("@every 1h", "write every and the interval"),
        ("@reboot", "the shorthands are @hourly"),
        ("0 0 12 15W * ?", "write the day, or LW"),
        ("0 12 L-3 * *", "write L, LW or the day"),
        ("0 0 12 * * ? 2030", "leave the year out"),
        # EventBridge: the last field is the year.
        ("0 10 * * ? *", "without a year"),
        ("0 10 ? * MON-FRI *", "without a year"),
        # Monday in Quartz, Tuesday in cron.
        ("0 0 12 ? * 2", "by its name, as MON"),
        ("0 0 12 ? * 2#1", "by its name, as MON"),
    ],
)
def test_the_cron_of_other_schedulers_is_refused_with_the_form_to_write(
    given: str, says: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        parse_repetition(f"cron {given}")


series = st.one_of(
    st.integers(100, 5_000).map(lambda interval: Repetition(Repeat.EVERY, (interval,))),
    st.tuples(st.integers(100, 2_000), st.integers(1_000, 3_000), st.integers(2_000, 9_000)).map(
        lambda values: Repetition(Repeat.BACKOFF, values)
    ),
    st.sampled_from(["* * * * * *", "*/7 * * * * *", "* * * * *"]).map(
        lambda cron: Repetition(Repeat.CRON, cron=cron, zone="Europe/Lisbon")
    ),
)


@examples(2_000)
@given(series, st.integers(1, 9), st.integers(0, 400_000), st.sampled_from([0, 30_000]))
def test_the_next_and_the_last_time_are_those_found_one_by_one(
    repetition: Repetition, occurrence: int, later_ms: int, lasts_ms: int
) -> None:
    """From an occurrence at T, after an outage: against counting through all occurrences."""
    repetition = Repetition(
        repetition.kind,
        repetition.values,
        repetition.cron,
        repetition.zone,
        until_ms=T + lasts_ms if lasts_ms else 0,
    )
    at, number, times = T, occurrence, [T]
    while at <= T + later_ms:
        found = following(repetition, at, number, next_cron)
        if found is None:
            break
        at, number = found, number + 1
        times.append(at)
    now_ms = T + later_ms
    expected = next((time for time in times if time > now_ms), None)
    assert (
        following_after(repetition, T, occurrence, now_ms, next_cron) == expected or len(times) == 1
    )
    assert last_until(repetition, T, occurrence, now_ms, next_cron) == max(
        t for t in times if t <= now_ms
    )


def test_a_series_ends_with_its_times_or_its_end() -> None:
    every = parse_repetition("every 1s")
    assert following(Repetition(every.kind, every.values, times=3), T, 2, next_cron) == T + 1_000
    assert following(Repetition(every.kind, every.values, times=3), T, 3, next_cron) is None
    assert (
        following(Repetition(every.kind, every.values, until_ms=T + 1_000), T, 1, next_cron)
        == T + 1_000
    )
    assert (
        following(Repetition(every.kind, every.values, until_ms=T + 999), T, 1, next_cron) is None
    )


def test_a_spread_fills_its_window_evenly_and_follows_from_shard_and_offset_alone() -> None:
    window_ms = 60_000
    shifts = [spread_shift_ms(3, offset, window_ms) for offset in range(60_000)]
    assert shifts == [spread_shift_ms(3, offset, window_ms) for offset in range(60_000)]
    assert min(shifts) >= 0
    assert max(shifts) < window_ms
    by_second = Counter(shift // 1_000 for shift in shifts)
    assert all(800 < by_second[second] < 1_200 for second in range(60)), "the burst is not smooth"
    assert shifts[:100] != [spread_shift_ms(4, offset, window_ms) for offset in range(100)]
    assert spread_shift_ms(3, 7, 0) == 0


def test_the_spread_of_a_position_stays_as_it_is() -> None:
    """Positions in existing stores and the audit of older archives depend on it."""
    found = [
        spread_shift_ms(shard, offset, 60_000)
        for shard, offset in [(0, 0), (0, 1), (3, 41), (7, 2**62)]
    ]
    assert found == [46604, 14229, 38952, 8552]


SERIES = ("chronos-repeat", b"every 30s")


@table(
    ("reason", "headers"),
    [
        (Reason.BAD_VALUE, [AT, TO, ("chronos-repeat", b"every 99ms")]),
        (Reason.BAD_VALUE, [AT, TO, ("chronos-repeat", None)]),
        (Reason.BAD_VALUE, [AT, TO, SERIES, ("chronos-repeat-times", b"0")]),
        (Reason.BAD_VALUE, [AT, TO, SERIES, ("chronos-repeat-times", b"1.5")]),
        (Reason.BAD_VALUE, [AT, TO, SERIES, ("chronos-repeat-until", b"tomorrow")]),
        (Reason.BAD_VALUE, [AT, TO, SERIES, ("chronos-late-policy", b"later")]),
        (Reason.BAD_VALUE, [TO, ("chronos-repeat", b"cron 0 25 * * *")]),
        (Reason.BAD_VALUE, [TO, ("chronos-repeat", b"cron 0 0 31 2,4 *")]),
        (
            Reason.BAD_VALUE,
            [
                TO,
                ("chronos-repeat", b"cron 0 9 * * *"),
                ("chronos-time-zone", (b"Europe/Atlantis")),
            ],
        ),
        *(
            (
                Reason.BAD_VALUE,
                [TO, ("chronos-repeat", b"cron 0 9 * * *"), ("chronos-time-zone", zone)],
            )
            for zone in (b"localtime", b"posixrules", b"Factory", b"right/UTC", b"europe/lisbon")
        ),
        (Reason.BAD_VALUE, [AT, TO, ("chronos-spread", b"-5s")]),
        (Reason.CONTRADICTORY_HEADERS, [AT, TO, ("chronos-repeat-times", b"3")]),
        (Reason.CONTRADICTORY_HEADERS, [AT, TO, ("chronos-late-policy", b"skip")]),
        (Reason.CONTRADICTORY_HEADERS, [AT, TO, SERIES, ("chronos-time-zone", b"UTC")]),
        (
            Reason.CONTRADICTORY_HEADERS,
            [AT, TO, SERIES, ("chronos-repeat-until", b"1700000000999")],
        ),
        (
            Reason.CONTRADICTORY_HEADERS,
            [TO, ("chronos-repeat", b"cron 0 9 * * *"), (("chronos-expire-at"), b"1800000000000")],
        ),
        (
            Reason.CONTRADICTORY_HEADERS,
            [AT, TO, ("chronos-spread", b"5s"), ("chronos-expire-at", (b"1700000005999"))],
        ),
        (Reason.CONTRADICTORY_HEADERS, [action("cancel"), SERIES]),
        (Reason.BEYOND_MAX_DELAY, [AT, TO, ("chronos-repeat", b"every 2d")]),
        (Reason.BEYOND_MAX_DELAY, [AT, TO, ("chronos-spread", b"2d")]),
        (Reason.BEYOND_MAX_DELAY, [TO, ("chronos-repeat", b"cron 0 0 29 2 *")]),
        (Reason.NO_TIME, [TO, SERIES]),
    ],
)
def test_a_series_that_cannot_be_executed_is_refused_by_name(reason: Reason, headers: list) -> None:
    assert parsed(*headers, key=b"a", rules=CHECKING).reason is reason


def test_a_replica_checks_neither_the_expression_nor_the_zone() -> None:
    """Its zone data and library may be others than those of the master that accepted the record."""
    headers = [
        TO,
        ("chronos-repeat", b"cron 0 25 * * *"),
        ("chronos-time-zone", b"Europe/Atlantis"),
    ]
    entry = parsed(*headers, key=b"a", rules=CHECKING.for_replay())
    assert (entry.occurrence, entry.options.repetition.zone) == (0, "Europe/Atlantis")
    headers[-1] = ("chronos-time-zone", b"localtime")
    assert parsed(*headers, key=b"a", rules=CHECKING).reason is Reason.BAD_VALUE
    assert parsed(*headers, key=b"a", rules=CHECKING.for_replay()).options is not None


def test_the_headers_of_the_library_say_what_they_were_given() -> None:
    made = client_headers(
        target="orders",
        delay="1s",
        repeat="every 30s",
        repeat_times=3,
        late_policy="skip",
        spread="5s",
        attempts=2,
    )
    entry = parsed(*made, rules=CHECKING)
    repetition = Repetition(Repeat.EVERY, (30_000,), times=3, late_policy=LatePolicy.SKIP)
    assert entry.options == Options(attempts_max=2, spread_ms=5_000, repetition=repetition)
    cron = parsed(
        *client_headers(target="orders", repeat="cron 0 9 * * *", time_zone="Europe/Lisbon"),
        rules=CHECKING,
    )
    assert (cron.occurrence, cron.due_ms) == (0, NOW_MS)
    with pytest.raises(ValueError, match="is not a repetition"):
        client_headers(target="orders", delay="1s", repeat="hourly")
    with pytest.raises(ValueError, match="repeat_times without repeat"):
        client_headers(target="orders", delay="1s", repeat_times=3)
