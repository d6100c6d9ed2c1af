"""Parsing records of the delay topic: what each header, verb and mistake means."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronos.core.message import (
    PREFIX,
    RECEIPT,
    SCHEDULING,
    Action,
    ConditionalSchedule,
    Entry,
    OnConflict,
    Options,
    Reason,
    Record,
    Rejection,
    Verb,
)
from chronos.core.shard.parsing import parse
from chronos.core.shard.rules import NAMES_SEEN_MAX, UNITLESS_TARGETS_MAX, Rules
from tests.harness.table import table
from tests.unit.records import AT, GENERATED_ID, IN, NOW_MS, RULES, TO, action, message, parsed
from tests.unit.settings import examples

DAY_MS = 86_400_000
FEW_ATTEMPTS = Rules(shard=0, shards=1, attempts_max=3)


def test_a_message_needs_only_a_time_and_a_target() -> None:
    assert parsed(AT, TO) == Entry(
        id=None,
        due_ms=NOW_MS + 1_000,
        target="orders",
        key=None,
        headers={},
        value=b"v",
        timestamp_ms=NOW_MS,
    )


def test_the_key_of_a_record_is_the_id_of_its_message_and_not_the_key_of_the_delivery() -> None:
    result = parsed(AT, TO, key=b"order-7")
    assert isinstance(result, Entry)
    assert (result.id, result.key) == (b"order-7", None)
    assert parsed(AT, TO, ("chronos-on-conflict", b"reject"), key=b"order-7") == result


@pytest.mark.parametrize(("value", "attempts"), [(b"1", 1), (b"3", 3)])
def test_a_message_may_ask_for_fewer_attempts_than_the_configuration_allows(
    value: bytes, attempts: int
) -> None:
    entry = parse(
        Record(7, NOW_MS, None, b"v", [AT, TO, ("chronos-attempts", value)]), FEW_ATTEMPTS
    )
    assert isinstance(entry, Entry)
    assert entry.options == Options(attempts_max=attempts)


def test_more_attempts_than_the_configuration_allows_are_refused_but_not_on_replay() -> None:
    record = Record(7, NOW_MS, None, b"v", [AT, TO, ("chronos-attempts", b"4")])
    assert parse(record, FEW_ATTEMPTS) == Rejection(
        Reason.BAD_VALUE,
        "chronos-attempts: 4 is more than 3, the limit set by delivery.attempts_max",
    )
    replayed = parse(record, FEW_ATTEMPTS.for_replay())
    assert isinstance(replayed, Entry)
    assert replayed.options == Options(attempts_max=4)


def test_every_header_of_a_message_is_kept() -> None:
    result = parsed(
        IN,
        TO,
        action("schedule"),
        ("chronos-target-key", b"\xff\x00"),
        ("chronos-on-conflict", b"ignore"),
        ("chronos-expire-at", b"2023-11-14T22:15:00Z"),
        ("traceparent", b"00-1-2-3"),
        key=b"\x80\xff",
        value=b"\x00",
    )
    assert result == ConditionalSchedule(
        Entry(
            id=b"\x80\xff",
            due_ms=NOW_MS + 90_000,
            target="orders",
            key=b"\xff\x00",
            headers={"traceparent": b"00-1-2-3"},
            value=b"\x00",
            timestamp_ms=NOW_MS,
            expire_at_ms=1_700_000_100_000,
        ),
        Verb.SCHEDULE,
        OnConflict.IGNORE,
    )


@table(
    ("header", "due_ms"),
    [
        (("chronos-deliver-at", b"1700000000001"), NOW_MS + 1),
        (("chronos-deliver-at", b"2023-11-14T22:13:20.0001Z"), NOW_MS + 1),
        (("chronos-deliver-at", b"2023-11-14T23:13:21+01:00"), NOW_MS + 1_000),
        # Seconds are never guessed: a number is milliseconds, however small.
        (("chronos-deliver-at", b"978307200000"), 978_307_200_000),
        (("chronos-deliver-at", b"2000-12-31T23:59:59Z"), 978_307_199_000),
        (("chronos-delay", b"0"), NOW_MS),
        (("chronos-delay", b"1.5s"), NOW_MS + 1_500),
        (("chronos-delay", b"86400000"), NOW_MS + 86_400_000),
        (("chronos-delay", b"1d"), NOW_MS + 86_400_000),
    ],
)
def test_a_message_is_due_at_its_time_or_after_its_delay_from_the_brokers_timestamp(
    header: tuple[str, bytes], due_ms: int
) -> None:
    assert message(header, TO).due_ms == due_ms
    result = parsed(header, action("reschedule"), key=b"order-7")
    assert result == Action(Verb.RESCHEDULE, b"order-7", due_ms)


def test_a_message_may_expire_at_the_moment_it_is_due() -> None:
    assert message(AT, TO, ("chronos-expire-at", AT[1])).expire_at_ms == NOW_MS + 1_000


@pytest.mark.parametrize("policy", [OnConflict.REPLACE, OnConflict.IGNORE])
def test_a_schedule_names_its_policy_for_a_taken_id(policy: OnConflict) -> None:
    result = parsed(AT, TO, ("chronos-on-conflict", policy.name.lower().encode()), key=b"order-7")
    assert isinstance(result, ConditionalSchedule)
    assert (result.verb, result.on_conflict) == (Verb.SCHEDULE, policy)


def test_a_replace_replaces() -> None:
    result = parsed(AT, TO, action("replace"), key=b"order-7")
    assert isinstance(result, ConditionalSchedule)
    assert (result.verb, result.on_conflict) == (Verb.REPLACE, OnConflict.REPLACE)


@table("named_by", ["key", "header", "both"])
@table(("verb", "extra"), [("cancel", []), ("fire-now", []), ("reschedule", [AT])])
@table("message_id", [b"order-7", GENERATED_ID, b"\xff\xfe", b"x" * 1024])
def test_an_action_names_its_message_by_key_or_by_header(
    message_id: bytes, verb: str, extra: list[tuple[str, bytes]], named_by: str
) -> None:
    by_header = [("chronos-id", message_id)] if named_by != "key" else []
    result = parsed(
        action(verb), *extra, *by_header, key=message_id if named_by != "header" else None
    )
    assert result == Action(
        Verb[verb.upper().replace("-", "_")], message_id, NOW_MS + 1_000 if extra else None
    )


@table("named_by", ["key", "header", "both"])
def test_a_settled_names_an_id_by_key_or_by_header(named_by: str) -> None:
    by_header = [("chronos-id", b"order-7")] if named_by != "key" else []
    key = b"order-7" if named_by != "header" else None
    assert parsed(action("settled"), *by_header, key=key) == Action(Verb.SETTLED, b"order-7")


@pytest.mark.parametrize("headers", [[], [("traceparent", b"1")], [("chronos-source", b"t/0/1")]])
def test_a_key_without_value_and_time_is_a_cancel(headers: list[tuple[str, bytes]]) -> None:
    assert parsed(*headers, key=b"order-7", value=None) == Action(Verb.CANCEL, b"order-7")


def test_a_key_without_value_but_with_a_time_is_a_message_whose_payload_is_null() -> None:
    for when in (AT, IN):
        assert message(when, TO, key=b"order-7", value=None).value is None
    assert message(AT, TO, value=None).value is None


def test_an_empty_value_is_a_payload_and_not_a_cancel() -> None:
    assert parsed(key=b"order-7", value=b"").reason is Reason.NO_TARGET
    assert message(AT, TO, key=b"order-7", value=b"").value == b""


def test_a_null_value_with_a_schedule_is_never_a_cancel() -> None:
    assert parsed(action("schedule"), TO, key=b"order-7", value=None).reason is Reason.NO_TIME


def test_a_probe_is_accepted_from_any_producer() -> None:
    assert parsed(action("probe")).verb is Verb.PROBE
    assert parsed(action("probe"), key=b"order-7", value=None).verb is Verb.PROBE


# --- headers that pass through


def test_the_producers_headers_pass_through_in_order_with_null_and_empty_values() -> None:
    own = [
        ("b", b"1"),
        ("a", None),
        ("", b""),
        ("x-chronos-delay", b"\xff"),
        ("chronos", b"2"),
        ("é", b"3"),
    ]
    entry = message(own[0], AT, own[1], TO, *own[2:])
    assert isinstance(entry.headers, dict)
    assert list(entry.headers.items()) == own


def test_repeated_headers_of_the_producer_stay_repeated_and_in_order() -> None:
    own = [("a", b"1"), ("b", None), ("a", b"1"), ("a", None)]
    entry = message(own[0], own[1], AT, own[2], TO, own[3])
    assert entry.headers == own


@pytest.mark.parametrize("name", sorted(RECEIPT))
def test_receipts_of_an_earlier_delivery_are_dropped_even_when_they_repeat(name: str) -> None:
    entry = message((name, b"1"), AT, TO, (name, None), ("a", b"1"))
    assert entry.headers == {"a": b"1"}
    assert message(AT, TO, (name, b"\xff"), key=b"order-7").headers == {}


# --- names


def _spellings(name: str) -> list[str]:
    return [name.title(), name.upper(), name.replace("-", "_"), name.title().replace("-", "_")]


@pytest.mark.parametrize("spelling", range(4))
def test_a_header_means_the_same_in_any_case_and_with_underscores(spelling: int) -> None:
    headers = [
        AT,
        TO,
        action("schedule"),
        ("chronos-target-key", b"k"),
        ("chronos-on-conflict", b"ignore"),
        ("chronos-expire-at", b"2023-11-14T22:15:00Z"),
        ("chronos-attempts", b"3"),
        ("chronos-repeat", b"every 1h"),
        ("chronos-repeat-times", b"3"),
        ("chronos-repeat-until", b"2023-11-15T00:00:00Z"),
        ("chronos-late-policy", b"skip"),
        ("chronos-source", b"a/0/1"),
        ("trace", b"1"),
    ]
    spelled = [
        (_spellings(name)[spelling] if name.startswith("chronos-") else name, value)
        for name, value in headers
    ]
    expected = parsed(*headers, key=b"order-7")
    assert isinstance(expected, ConditionalSchedule)
    assert parsed(*spelled, key=b"order-7") == expected
    cancel = [
        (_spellings(name)[spelling], value)
        for name, value in (action("cancel"), ("chronos-id", b"order-7"))
    ]
    assert parsed(*cancel) == Action(Verb.CANCEL, b"order-7")


@table("name", sorted(SCHEDULING | RECEIPT))
def test_a_name_that_is_one_edit_away_from_a_header_is_refused_with_the_right_name(
    name: str,
) -> None:
    moved = name[:9] + name[10] + name[9] + name[11:] if len(name) > 10 else name
    for near in (
        name[:8] + "x" + name[8:],
        name[1:],
        name[:7] + name[8:],
        name.replace("-", ".", 1),
        moved.title(),
        name + "s",
    ):
        if near.lower() in SCHEDULING | RECEIPT:
            continue
        result = parsed(AT, TO, (near, b"1"))
        assert isinstance(result, Rejection)
        assert result.reason is Reason.UNKNOWN_HEADER
        meant = result.detail.partition("did you mean ")[2].rstrip("?")
        assert meant == name or name in ("chronos-attempt", "chronos-attempts"), result.detail


@pytest.mark.parametrize(
    "name",
    [
        "x-chronos-id",
        "chrono",
        "chronos",
        "content-type",
        "chronograph-delay",
        "delay",
        "",
        "chrönös-delay",
    ],
)
def test_other_names_are_the_producers_own_also_the_second_time(name: str) -> None:
    for _ in range(2):
        assert message(AT, TO, (name, b"1")).headers == {name: b"1"}


def test_names_of_producers_are_remembered_within_a_bound() -> None:
    rules = Rules(shard=0, shards=1)
    for number in range(NAMES_SEEN_MAX + 10):
        parse(Record(1, NOW_MS, None, b"v", [AT, TO, (f"trace-{number}", b"1")]), rules)
    assert len(rules.names_seen) <= NAMES_SEEN_MAX
    parse(Record(1, NOW_MS, None, b"v", [AT, TO, ("x" * 1_000, b"1")]), rules)
    assert max(map(len, rules.names_seen)) < 1_000


# --- the past

PAST = Rules(shard=2, shards=4, max_past_ms=30 * DAY_MS)
LONG_AGO = ("chronos-deliver-at", b"%d" % (NOW_MS - 30 * DAY_MS - 1))
AGO = ("chronos-deliver-at", b"%d" % (NOW_MS - 30 * DAY_MS))


@pytest.mark.parametrize(
    "extra",
    [
        [],
        [action("schedule")],
        [action("replace")],
        [("chronos-attempts", b"2")],
        [("trace", b"1")],
    ],
)
def test_a_time_that_is_too_long_ago_is_refused_by_a_master_and_not_on_replay(
    extra: list[tuple[str, bytes]],
) -> None:
    for _ in range(2):  # the second record has a target that was seen before
        refused = parsed(LONG_AGO, TO, *extra, key=b"order-7", rules=PAST)
        assert refused == Rejection(
            Reason.PAST,
            (
                "due at 2023-10-15T22:13:19.999Z, more than 30d in the past, the limit set by "
                "limits.max_past"
            ),
        )
        assert isinstance(
            parsed(AGO, TO, *extra, key=b"order-7", rules=PAST), Entry | ConditionalSchedule
        )
    replayed = parsed(LONG_AGO, TO, *extra, key=b"order-7", rules=PAST.for_replay())
    assert isinstance(replayed, Entry | ConditionalSchedule)


def test_a_change_to_a_time_that_is_too_long_ago_is_refused() -> None:
    assert parsed(LONG_AGO, action("reschedule"), key=b"a", rules=PAST).reason is Reason.PAST
    assert isinstance(parsed(AGO, action("reschedule"), key=b"a", rules=PAST), Action)
    assert isinstance(
        parsed(LONG_AGO, action("reschedule"), key=b"a", rules=PAST.for_replay()), Action
    )


def test_the_first_timestamp_of_a_forwarded_record_counts_for_the_past() -> None:
    first_ms = NOW_MS - 5_000
    hop = ("chronos-forwarded", b"chronos.delay/1/7;%d" % first_ms)
    for due_ms, is_refused in ((first_ms - 30 * DAY_MS - 1, True), (first_ms - 30 * DAY_MS, False)):
        found = parsed(("chronos-deliver-at", b"%d" % due_ms), TO, hop, key=b"a", rules=PAST)
        assert isinstance(found, Rejection) == is_refused


@pytest.mark.parametrize(
    "extra",
    [
        [action("backfill")],
        [("chronos-repeat", b"every 1h")],
        [action("replay"), ("chronos-replayed", b"chronos.delay/2/7")],
    ],
    ids=["backfill", "series", "replay"],
)
def test_series_replays_and_backfills_may_be_due_at_any_time(
    extra: list[tuple[str, bytes]],
) -> None:
    found = parsed(LONG_AGO, TO, *extra, key=b"order-7", rules=PAST)
    assert isinstance(found, Entry | ConditionalSchedule)


def test_a_backfill_is_a_schedule_otherwise() -> None:
    ignore = ("chronos-on-conflict", b"ignore")
    assert parsed(AT, TO, ignore, action("backfill"), key=b"a") == parsed(
        AT, TO, ignore, action("schedule"), key=b"a"
    )
    assert parsed(AT, TO, action("backfill")) == parsed(AT, TO, action("schedule"))


# --- numbers without a unit


def test_small_numbers_without_a_unit_are_milliseconds_and_counted_by_target() -> None:
    rules = Rules(shard=0, shards=1)
    for header in (
        ("chronos-delay", b"5"),
        ("chronos-delay", b"999"),
        ("chronos-delay", b"0"),
        ("chronos-delay", b"5ms"),
        ("chronos-delay", b"1000"),
        ("chronos-delay", b"90s"),
    ):
        assert isinstance(parsed(header, TO, rules=rules), Entry)
    assert parsed(("chronos-delay", b"5"), TO, rules=rules).due_ms == NOW_MS + 5
    assert rules.unitless == {"orders": 3}
    assert parsed(AT, TO, ("chronos-spread", b"30"), rules=rules).options == Options(spread_ms=30)
    assert isinstance(
        parsed(("chronos-delay", b"30"), action("reschedule"), key=b"a", rules=rules), Action
    )
    assert rules.unitless == {"orders": 4, "": 1}
    for number in range(200):
        parsed(("chronos-delay", b"5"), ("chronos-target-topic", b"t%d" % number), rules=rules)
    assert len(rules.unitless) == UNITLESS_TARGETS_MAX


# --- refusals


def _refusals() -> list[tuple[Reason, Sequence[tuple[str, bytes | None]], bytes | None]]:
    key, long = b"order-7", b"x" * 1025
    delay, at, to, do = (
        "chronos-delay",
        "chronos-deliver-at",
        "chronos-target-topic",
        "chronos-action",
    )
    bad, contradictory, repeated = (
        Reason.BAD_VALUE,
        Reason.CONTRADICTORY_HEADERS,
        Reason.REPEATED_HEADER,
    )
    return [
        (Reason.UNKNOWN_HEADER, [AT, TO, ("chronos-wish", b"1")], None),
        (Reason.UNKNOWN_HEADER, [AT, TO, ("chronos-", b"1")], None),
        (contradictory, [AT, TO, ("chronos-Delay", b"1s")], None),
        (Reason.UNKNOWN_HEADER, [action("cancel"), ("chronos-wish", b"1")], key),
        (bad, [TO, ("chronos-deliver_at", b"1")], None),
        *(
            (repeated, [AT, TO, (name, b"1"), (name.title(), b"1")], key)
            for name in sorted(SCHEDULING)
        ),
        (repeated, [AT, TO, ("CHRONOS_SPREAD", b"1s"), ("chronos_spread", b"1s")], key),
        (repeated, [action("cancel"), ("chronos-id", key), ("Chronos-Id", key)], key),
        (bad, [AT, TO, ("Chronos-Forwarded", b"chronos.delay/0/7;1700000000000")], None),
        *((repeated, [AT, TO, (name, b"1"), (name, b"1")], key) for name in sorted(SCHEDULING)),
        (Reason.UNKNOWN_HEADER, [AT, TO, ("chronos-wish", b"1"), ("chronos-wish", b"1")], None),
        (Reason.UNKNOWN_HEADER, [AT, TO, ("CHRONOS_" + "x" * 5_000, b"1")], None),
        (Reason.UNKNOWN_HEADER, [AT, TO, ("chronos-" + "x" * 5_000, b"1")], None),
        (repeated, [action("cancel"), ("chronos-id", key), ("chronos-id", b"another")], None),
        (repeated, [action("cancel"), ("chronos-id", key), ("chronos-id", key)], key),
        (contradictory, [AT, IN, TO], None),
        (contradictory, [(at, None), IN, TO], None),
        (contradictory, [AT, (delay, None), TO], None),
        (contradictory, [AT, TO, ("chronos-expire-at", b"1700000000999")], None),
        (contradictory, [AT, TO, ("chronos-on-conflict", b"ignore")], None),
        (contradictory, [AT, TO, action("replace"), ("chronos-on-conflict", b"replace")], key),
        (contradictory, [action("cancel"), TO], key),
        (contradictory, [action("cancel"), AT], key),
        (contradictory, [action("fire-now"), AT], key),
        (contradictory, [action("settled"), AT], key),
        (contradictory, [action("settled"), TO], key),
        (contradictory, [action("fire-now"), ("chronos-on-conflict", b"ignore")], key),
        (contradictory, [action("reschedule"), AT, ("chronos-target-key", b"k")], key),
        (contradictory, [action("reschedule"), AT, ("chronos-expire-at", b"1700000005000")], key),
        (contradictory, [action("cancel"), ("chronos-id", b"another")], key),
        *(
            (bad, [TO, (at, value)], None)
            for value in (
                None,
                b"",
                b" ",
                b"now",
                b"-0",
                b"-1",
                b"+1",
                b"1.5",
                b"1_7",
                b"1e12",
                b"\xff",
                b"1700000001000 ",
                b"\x001",
                "١٧".encode(),
                "１７００００００００００１".encode(),
                b"2030-01-31T09:00:00",
            )
        ),
        *(
            (bad, [TO, (delay, value)], None)
            for value in (
                None,
                b"",
                b"-0",
                b"-1s",
                b"1 s",
                b"30m1h",
                b"\xff",
                "³s".encode(),
                b"9" * 16 + b" s",
            )
        ),
        *(
            (Reason.BEYOND_MAX_DELAY, [TO, (at, value)], None)
            for value in (b"1700000001000000", b"9" * 19, b"9" * 5_000)
        ),
        *(
            (Reason.BEYOND_MAX_DELAY, [TO, (delay, value)], None)
            for value in (
                b"9" * 16,
                b"999999999999999d",
                b"9" * 5_000 + b"s",
                b"1h" + b"9" * 20 + b"m",
            )
        ),
        *(
            (bad, [AT, (to, value)], None)
            for value in (
                b"",
                b".",
                b"..",
                b"a b",
                b"a/b",
                b"\xff",
                "é".encode(),
                b"x" * 250,
                b"x" * 100_000,
                b"orders\n",
                b"orders\0",
            )
        ),
        *(
            (bad, [AT, TO, (do, value)], key)
            for value in (None, b"", b"Schedule", b"delete", b" cancel", b"\xff")
        ),
        *(
            (bad, [AT, TO, ("chronos-on-conflict", value)], key)
            for value in (None, b"", b"REPLACE", b"skip", b"\xff")
        ),
        *(
            (bad, [AT, TO, ("chronos-attempts", value)], None)
            for value in (None, b"", b"0", b"-1", b"1001", b"two", b"1.5", b"\xff")
        ),
        *(
            (bad, [AT, TO, ("chronos-expire-at", value)], None)
            for value in (None, b"", b"-1", b"1h", b"\xff")
        ),
        (bad, [action("cancel"), ("chronos-id", None)], key),
        (bad, [action("reschedule"), (at, b"later")], key),
        (Reason.BEYOND_MAX_DELAY, [TO, (at, b"1700086400001")], None),
        (Reason.BEYOND_MAX_DELAY, [TO, (at, b"170000000100000")], None),
        (Reason.BEYOND_MAX_DELAY, [TO, (delay, b"86400001")], None),
        (Reason.BEYOND_MAX_DELAY, [TO, (delay, b"999999999999999")], None),
        (Reason.BEYOND_MAX_DELAY, [action("reschedule"), (delay, b"2d")], key),
        (Reason.NO_TIME, [TO], None),
        (Reason.NO_TIME, [TO, ("chronos-repeat", b"every 5s")], None),
        (Reason.BAD_VALUE, [TO, ("chronos-repeat", b"0 9 * * 1-5")], None),
        (Reason.NO_TIME, [TO, action("schedule"), ("chronos-target-key", b"k")], None),
        (Reason.NO_TIME, [action("reschedule")], key),
        (Reason.NO_TARGET, [AT], None),
        (Reason.NO_TARGET, [AT, action("schedule")], None),
        (Reason.NO_TARGET, [AT, (to, None)], None),
        (Reason.NO_TARGET, [], None),
        (Reason.NO_TARGET, [], key),
        (Reason.RESERVED_TARGET, [AT, (to, b"chronos.delay")], None),
        (Reason.RESERVED_TARGET, [AT, (to, b"chronos.progress")], None),
        (Reason.RESERVED_TARGET, [AT, (to, b"__consumer_offsets")], None),
        (Reason.FORBIDDEN_TARGET, [AT, (to, b"payments")], None),
        (Reason.FORBIDDEN_TARGET, [AT, (to, b"secret")], None),
        (Reason.FORBIDDEN_TARGET, [AT, (to, b"orders.private")], None),
        (Reason.FORBIDDEN_TARGET, [AT, (to, b"Orders")], None),
        (Reason.BAD_ID, [AT, TO], b""),
        (Reason.BAD_ID, [AT, TO], long),
        (Reason.BAD_ID, [action("cancel")], b""),
        (Reason.BAD_ID, [action("cancel"), ("chronos-id", b"")], None),
        (Reason.BAD_ID, [action("cancel"), ("chronos-id", long)], None),
        (Reason.RESERVED_ID, [AT, TO], GENERATED_ID),
        (Reason.RESERVED_ID, [AT, TO], b"0-0-0"),
        (Reason.RESERVED_ID, [AT, TO, action("replace")], GENERATED_ID),
        (Reason.NO_ID, [AT, TO, action("replace")], None),
        (Reason.NO_ID, [action("cancel")], None),
        (Reason.NO_ID, [action("fire-now")], None),
        (Reason.NO_ID, [action("settled")], None),
        (Reason.BAD_ID, [action("settled")], long),
        (Reason.RESERVED_ID, [action("settled")], GENERATED_ID),
        (Reason.RESERVED_ID, [action("settled"), ("chronos-id", GENERATED_ID)], None),
        (Reason.NO_ID, [action("reschedule"), AT], None),
        (Reason.WRONG_SHARD, [action("cancel")], b"1-1700000001000-41"),
        (Reason.WRONG_SHARD, [action("cancel"), ("chronos-id", b"0-1-1")], None),
    ]


@table(("reason", "headers", "key"), _refusals())
def test_a_malformed_record_is_refused_with_the_right_reason(
    reason: Reason, headers: Sequence[tuple[str, bytes | None]], key: bytes | None
) -> None:
    result = parsed(*headers, key=key)
    assert isinstance(result, Rejection), result
    assert result.reason is reason
    assert 0 < len(result.detail) < 400


def test_a_cancel_with_a_target_is_refused_and_the_detail_names_the_header() -> None:
    result = parsed(TO, key=b"order-7", value=None)
    assert result == Rejection(
        Reason.CONTRADICTORY_HEADERS, "chronos-target-topic does not go with 'cancel'"
    )


def test_headers_that_cannot_be_read_are_refused() -> None:
    result = parse(Record(1, NOW_MS, b"order-7", None, None), RULES)
    assert isinstance(result, Rejection)
    assert result.reason is Reason.UNREADABLE_HEADERS


def test_an_empty_record_is_refused() -> None:
    assert parsed(value=None).reason is Reason.NO_TARGET


_names = st.one_of(
    st.sampled_from([*sorted(SCHEDULING | RECEIPT), PREFIX, "chronos-wish", "a", ""]),
    st.text(max_size=6),
)


_values = st.one_of(
    st.none(),
    st.binary(max_size=8),
    st.text(max_size=8).map(lambda text: text.encode(errors="surrogatepass")),
    st.sampled_from(
        [
            b"schedule",
            b"replace",
            b"reschedule",
            b"cancel",
            b"fire-now",
            b"settled",
            b"probe",
            b"ignore",
            b"orders",
        ]
    ),
    st.sampled_from([b"1700000001000", b"1s", b"2030-01-31T09:00:00Z", GENERATED_ID, b"order-7"]),
)


@examples(1_500)
@given(
    st.one_of(st.none(), st.lists(st.tuples(_names, _values), max_size=6)),
    st.one_of(st.none(), st.binary(max_size=6), st.sampled_from([GENERATED_ID, b"x" * 1025])),
    st.one_of(st.none(), st.binary(max_size=3)),
    st.integers(0, 2**63 - 1),
)
def test_any_record_is_parsed_to_a_message_an_action_or_a_rejection(
    headers: list[tuple[str, bytes | None]] | None,
    key: bytes | None,
    value: bytes | None,
    timestamp_ms: int,
) -> None:
    result = parse(Record(7, timestamp_ms, key, value, headers), RULES)
    assert isinstance(result, Entry | ConditionalSchedule | Action | Rejection)
    entry = result.entry if isinstance(result, ConditionalSchedule) else result
    if isinstance(entry, Entry):
        own = [header for header in headers or [] if not header[0].startswith(PREFIX)]
        kept = list(entry.headers.items()) if isinstance(entry.headers, dict) else entry.headers
        assert kept == own
        assert entry.value == value
        assert entry.id == key
        assert 0 <= entry.due_ms <= timestamp_ms + RULES.max_delay_ms


@pytest.mark.parametrize("header", ["chronos-deliver-at", "chronos-expire-at"])
@pytest.mark.parametrize("number", [b"1700000000", b"0001700000000", b"0", b"978307199999"])
def test_a_number_that_looks_like_seconds_is_rejected_by_a_master_and_not_on_replay(
    header: str, number: bytes
) -> None:
    record = Record(
        7,
        NOW_MS,
        None,
        b"v",
        [(header, number), TO, *([AT] if header == "chronos-expire-at" else [])],
    )
    rejection = parse(record, RULES)
    assert isinstance(rejection, Rejection)
    assert rejection.reason is Reason.BAD_VALUE
    assert "looks like seconds" in rejection.detail
    if header == "chronos-deliver-at":
        assert isinstance(parse(record, RULES.for_replay()), Entry)
