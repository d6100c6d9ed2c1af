"""Progress records: their bytes, what is refused, and how large one can become."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chronos.config import load
from chronos.core.message import Headers, Reason, Record
from chronos.core.shard.codec import RULES
from chronos.core.shard.progress import (
    DETAIL_BYTES_MAX,
    DETAILS_MAX,
    LANES_MAX,
    REPLANS_MAX,
    VERSION,
    Decision,
    Hold,
    LaneCursor,
    Outcome,
    Progress,
    Replan,
    Written,
    detail_number,
    is_foreign,
    pack_progress,
    progress_bytes_max,
    unpack_progress,
)
from chronos.core.size import STEP_MESSAGES, batch_bytes
from chronos.core.timefmt import MS_MAX
from chronos.errors import LogMismatch
from chronos.node.topics import own_topics

SHARDS = 4
HEAD = VERSION + bytes([RULES])
DECISIONS = Progress.__struct_fields__.index("decisions")
SMALL = Progress(
    role_epoch=3,
    log_epoch=4,
    cluster="shop",
    node="one",
    instance="i-1",
    shards=SHARDS,
    cursor_due_ms=1_700_000_000_000,
    cursor_offset=41,
    pull_offset=50,
    counts=(2, 0, 0, 0, 0, 0, 0, 0),
)
FULL = replace(
    SMALL,
    counts=(0, 1, 1, 0, 0, 0, 1, 1),
    probes=1,
    refused=((42, Reason.CONFLICT), (44, Reason.HELD), (45, Reason.UNREADABLE)),
    unreadable=((45, 48),),
    decisions=(
        Decision(1_700_000_000_000, 40, Outcome.RETRY, Reason.NO_LEADER, 1_700_000_001_000, 1, 2),
        Decision(1_700_000_000_000, 41, Outcome.DEAD, Reason.TOO_LARGE, detail=1),
        Decision(1_700_000_000_000, 43, Outcome.PARKED, Reason.NO_LEADER, lane=2),
        Decision(
            1_700_000_000_000, 46, Outcome.AGAIN, 0, 1_700_000_009_000, 2, 1, offset_s=-12_600
        ),
    ),
    lanes=(LaneCursor("orders", 1, 1_700_000_000_000, 39),),
    details=("1200 bytes; orders takes 1000",),
    horizon_ms=1_699_999_000_000,
    held=(Hold(42, -1, 1), Hold(44, 2)),
    written=(Written(3, 31, (30,)),),
    held_forwards=1,
    replans=(Replan(1_700_000_001_000, 38, 1_700_003_601_000, 3_600),),
    zone_data="2026f",
)

# Never edit these bytes: progress records are kept for ever where there are no checkpoints.
GOLDEN = [
    (
        SMALL,
        "0101dc00160304a473686f70a36f6e65a3692d3104cf0000018bcfe5680029329802000000000000009090009090900090900090a0",
    ),
    (
        FULL,
        "0101dc00160304a473686f70a36f6e65a3692d3104cf0000018bcfe56800293298000101000000010193922a0f922c19922d15949acf0000018bcfe56800280324cf0000018bcfe56be801020000c09acf0000018bcfe568002907220001010001c09acf0000018bcfe568002b08240001010200c09acf0000018bcfe568002e0200cf0000018bcfe58b2802010000d1cec80191922d309194a66f726465727301cf0000018bcfe568002791bd313230302062797465733b206f72646572732074616b65732031303030cf0000018bcfd625c092932aff01932c02009193031f911e019194cf0000018bcfe56be826cf0000018bd01c5a68cd0e10a53230323666",
    ),
]


@pytest.mark.parametrize(("progress", "data"), GOLDEN)
def test_progress_records_have_the_bytes_of_existing_logs(progress: Progress, data: str) -> None:
    assert pack_progress(progress).hex() == data
    assert unpack_progress(bytes.fromhex(data), SHARDS) == progress


def test_outcomes_and_reasons_keep_their_numbers() -> None:
    assert {outcome.name: int(outcome) for outcome in Outcome} == {
        "DELIVERED": 1,
        "AGAIN": 2,
        "RETRY": 3,
        "DEFERRED": 4,
        "SKIPPED": 5,
        "EXPIRED": 6,
        "DEAD": 7,
        "PARKED": 8,
    }
    numbers = {reason.name: int(reason) for reason in Reason}
    expected = {
        "UNREADABLE_HEADERS": 1,
        "UNKNOWN_HEADER": 2,
        "REPEATED_HEADER": 3,
        "CONTRADICTORY_HEADERS": 4,
        "BAD_VALUE": 5,
        "BEYOND_MAX_DELAY": 6,
        "NO_TIME": 7,
        "NO_TARGET": 8,
        "RESERVED_TARGET": 9,
        "FORBIDDEN_TARGET": 10,
        "BAD_ID": 11,
        "RESERVED_ID": 12,
        "NO_ID": 13,
        "WRONG_SHARD": 14,
        "CONFLICT": 15,
        "IGNORED": 16,
        "TOO_LATE": 17,
        "UNKNOWN": 18,
        "FORWARDED": 20,
        "UNREADABLE": 21,
        "EXPIRED": 32,
        "TARGET_MISSING": 33,
        "TOO_LARGE": 34,
        "REFUSED_BY_BROKER": 35,
        "NO_LEADER": 36,
    }
    assert {name: numbers[name] for name in expected} == expected


@pytest.mark.parametrize(("progress", "data"), GOLDEN)
def test_a_truncated_progress_record_stops_the_replica_with_a_named_error(
    progress: Progress, data: str
) -> None:
    whole = bytes.fromhex(data)
    for length in range(len(whole)):
        with pytest.raises(LogMismatch):
            unpack_progress(whole[:length], SHARDS)
    with pytest.raises(LogMismatch):
        unpack_progress(whole + b"\x00", SHARDS)


@pytest.mark.parametrize("data", [None, b"", b"\x00", b"\x02" + pack_progress(SMALL)[1:], b"hello"])
def test_a_record_of_an_unknown_version_stops_the_replica_with_a_named_error(
    data: bytes | None,
) -> None:
    with pytest.raises(LogMismatch, match="which this version of Chronos does not know"):
        unpack_progress(data, SHARDS)


@pytest.mark.parametrize("number", [RULES + 1, 255])
def test_a_record_of_newer_rules_is_named_before_anything_of_it_is_decoded(number: int) -> None:
    for rest in (pack_progress(FULL)[2:], b"\xc1", b""):
        with pytest.raises(
            LogMismatch, match=f"by rules {number}, .* knows rules up to {RULES}: .* Upgrade"
        ):
            unpack_progress(VERSION + bytes([number]) + rest, SHARDS)
    with pytest.raises(LogMismatch, match="names rules 0, which there never were"):
        unpack_progress(VERSION + b"\0" + pack_progress(FULL)[2:], SHARDS)


@pytest.mark.parametrize("shards", [1, SHARDS + 1])
def test_a_record_of_another_number_of_shards_stops_the_replica_with_a_named_error(
    shards: int,
) -> None:
    with pytest.raises(
        LogMismatch,
        match=f"names {SHARDS} as the number of shards, and it is {shards} now: partitions were",
    ):
        unpack_progress(pack_progress(SMALL), shards)


def fields_of(progress: Progress) -> list[Any]:
    fields: list[Any] = msgspec.msgpack.decode(pack_progress(progress)[2:])
    return fields


def read(fields: list[Any]) -> Progress:
    return unpack_progress(HEAD + msgspec.msgpack.encode(fields), SHARDS)


def test_an_unknown_outcome_is_a_named_error() -> None:
    fields = fields_of(FULL)
    fields[DECISIONS][0][2] = 99
    with pytest.raises(LogMismatch, match=r"cannot be decoded .*Invalid enum value 99"):
        read(fields)


@pytest.mark.parametrize("progress", [SMALL, FULL])
def test_the_fields_of_a_newer_version_are_ignored(progress: Progress) -> None:
    """In the record, and in its decisions."""
    fields = [*fields_of(progress), {"new": 1}]
    fields[DECISIONS] = [[*decision, "new"] for decision in fields[DECISIONS]]
    assert read(fields) == progress


def test_a_record_without_its_last_fields_has_their_defaults() -> None:
    fields = fields_of(FULL)
    without = FULL
    for missing, (name, default) in enumerate(
        {
            "zone_data": "",
            "replans": (),
            "held_forwards": 0,
            "written": (),
            "held": (),
            "horizon_ms": 0,
            "details": (),
            "lanes": (),
            "unreadable": (),
            "probes": 0,
            "decisions": (),
            "refused": (),
        }.items(),
        start=1,
    ):
        without = replace(without, **{name: default})
        assert read(fields[:-missing]) == without


def test_a_decision_without_its_last_fields_has_neither_a_text_nor_an_offset() -> None:
    fields = fields_of(FULL)
    fields[DECISIONS] = [decision[:-2] for decision in fields[DECISIONS]]
    assert read(fields).decisions == tuple(
        replace(decision, detail=0, offset_s=None) for decision in FULL.decisions
    )


@pytest.mark.parametrize(
    ("key", "headers", "expected"),
    [
        (None, None, False),
        (None, [], False),
        (b"", None, True),
        (b"k", [], True),
        (None, [("a", None)], True),
    ],
)
def test_a_record_with_a_key_or_headers_is_of_another_program(
    key: bytes | None, headers: Headers | None, expected: bool
) -> None:
    assert is_foreign(Record(0, 0, key, pack_progress(SMALL), headers)) == expected


def test_texts_of_decisions_are_few_and_short() -> None:
    details: list[str] = []
    assert detail_number(details, "") == 0
    assert [detail_number(details, text) for text in ("a", "b", "a")] == [1, 2, 1]
    assert detail_number(details, "\N{GREEK SMALL LETTER ALPHA}" * DETAIL_BYTES_MAX) == 3
    assert len(details[-1].encode()) == DETAIL_BYTES_MAX
    assert detail_number(details, "x" + "\N{GREEK SMALL LETTER ALPHA}" * DETAIL_BYTES_MAX) == 4
    assert len(details[-1].encode()) == DETAIL_BYTES_MAX - 1
    numbers = [detail_number(details, f"text {number}") for number in range(DETAILS_MAX)]
    assert numbers == [*range(5, DETAILS_MAX + 1), 0, 0, 0, 0]
    assert detail_number(details, "b") == 2


@given(st.binary(max_size=80))
def test_any_bytes_are_a_progress_record_or_a_named_error(data: bytes) -> None:
    with suppress(LogMismatch):
        unpack_progress(HEAD + data, SHARDS)


def test_refusals_are_looked_up_by_offset() -> None:
    assert FULL.rejections() == {42: Reason.CONFLICT, 44: Reason.HELD, 45: Reason.UNREADABLE}
    assert SMALL.rejections() == {}


@pytest.mark.parametrize("messages", [1, 5_000, 100_000])
def test_the_largest_progress_record_fits_its_topic(messages: int) -> None:
    """Every message refused, and as many dead-lettered, with the longest names and the greatest
    numbers there can be."""
    offset, most = 2**63 - 1, 2**63 - 1
    worst = Decision(
        MS_MAX, offset, Outcome.DEAD, 255, MS_MAX, most, 2**32 - 1, 2**31 - 1, DETAILS_MAX, -86_400
    )
    largest = replace(
        SMALL,
        role_epoch=most,
        log_epoch=most,
        cluster="c" * 200,
        node="n" * 200,
        instance="i" * 200,
        cursor_due_ms=MS_MAX,
        cursor_offset=2**64 - 1,
        pull_offset=offset,
        counts=(messages,) * len(Outcome),
        refused=tuple((offset - number, 255) for number in range(messages, 0, -1)),
        decisions=(worst,) * messages,
        probes=messages,
        lanes=(LaneCursor("t" * 249, 2**31 - 1, MS_MAX, offset),) * LANES_MAX,
        details=("d" * DETAIL_BYTES_MAX,) * DETAILS_MAX,
        horizon_ms=MS_MAX,
        held_forwards=most,
        replans=(Replan(MS_MAX, offset, MS_MAX, -86_400),) * REPLANS_MAX,
        zone_data="2026f",
    )
    data = pack_progress(largest)
    assert batch_bytes(None, data, []) <= progress_bytes_max(messages)
    config = load(None, {}, [])
    (limit,) = (
        int(spec.settings["max.message.bytes"])
        for spec in own_topics(config)
        if spec.name == config.topics.progress
    )
    assert 10 * progress_bytes_max(STEP_MESSAGES) <= limit
    assert unpack_progress(data, SHARDS) == largest
