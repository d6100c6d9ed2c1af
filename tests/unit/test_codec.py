"""Bytes of the store: golden ones, which stores on disk already have, and bytes that are not
understood."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronos.core.message import Entry, IdOrder, LatePolicy, Options, Repeat, Repetition
from chronos.core.shard import codec
from chronos.core.shard.codec import (
    FRESH,
    RULES,
    Failure,
    HeldRecord,
    Identity,
    IdState,
    LaneState,
    QueueState,
    State,
    Totals,
)
from chronos.errors import LogMismatch, StoreCorrupt
from tests.harness.table import table

ENTRY = Entry(
    id=b"order-7",
    due_ms=1_700_000_001_000,
    target="orders",
    key=b"\xff",
    headers={"traceparent": b"00-1", "empty": None},
    value=b"payload",
    timestamp_ms=1_700_000_000_000,
    expire_at_ms=1_700_000_002_000,
    occurrence=3,
    attempt=2,
    order=IdOrder(1, ((1_700_000_000_100, 2), (1_700_000_000_001, 0))),
)
PLAIN = Entry(
    id=None,
    due_ms=5,
    target="t",
    key=None,
    headers=[("a", b"1"), ("a", None)],
    value=None,
    timestamp_ms=4,
)
SERIES = Entry(
    b"s",
    5,
    "t",
    None,
    {},
    b"v",
    4,
    occurrence=2,
    options=Options(
        attempts_max=3,
        spread_ms=60_000,
        repetition=Repetition(
            Repeat.CRON,
            (),
            "0 9 * * *",
            "Europe/Lisbon",
            times=10,
            until_ms=1_700_000_000_000,
            late_policy=LatePolicy.SKIP,
            planned_ms=6,
            offset_s=-3_600,
        ),
    ),
)
ID_STATE = IdState(
    codec.CANCELLED,
    1_700_000_001_000,
    41,
    1_700_000_000_500,
    first_ms=1_700_000_000_001,
    order=IdOrder(None, ((1_700_000_000_400, 2),), b"call-one"),
)
DEAD = IdState(codec.DEAD, 300, 7, 400, Failure(33, 2, 400, "two looks did not find the topic"))
STATE = State(
    applied=1,
    pull_offset=2,
    cursor_due_ms=3,
    cursor_offset=4,
    watermark_ms=5,
    pending=6,
    role_epoch=7,
    log_epoch=8,
    instance="i",
    node="n",
    progress_ms=9,
    history_minute=10,
    totals=Totals(11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24),
    parked=3,
    horizon_ms=25,
    held=27,
    held_bytes=26,
    held_forwards=2,
    zone_data="2026e",
    newest_zone_data="2026f",
)
IDENTITY = Identity(
    cluster="c",
    shard=1,
    shards=4,
    delay_topic="d",
    delay_topic_id="di",
    progress_topic="p",
    progress_topic_id="pi",
)

# Never edit these bytes: whoever changes a format adds to them, and a decoder for the old ones
# stays.
GOLDEN: list[tuple[str, Any, str]] = [
    (
        "entry",
        ENTRY,
        "019cc4076f726465722d37cf0000018bcfe56be8a66f7264657273c401ff82ab7472616365706172656e74c40430302d31a5656d707479c0c4077061796c6f6164cf0000018bcfe56800cf0000018bcfe56fd00302c093019292cf0000018bcfe568640292cf0000018bcfe5680100c0",
    ),
    (
        "entry",
        SERIES,
        "019cc4017305a174c080c4017604c002019303cdea60990390a9302039202a202a202aad4575726f70652f4c6973626f6e0acf0000018bcfe568000306d1f1f0c0",
    ),
    ("entry", PLAIN, "019cc005a174c09292a161c4013192a161c0c004c00101c0c0"),
    (
        "id_state",
        ID_STATE,
        "019703cf0000018bcfe56be829cf0000018bcfe569f4c0cf0000018bcfe5680193c09192cf0000018bcfe5699002c40863616c6c2d6f6e65",
    ),
    ("id_state", IdState(codec.PENDING, 300, 70_000), "019701cd012cce0001117000c000c0"),
    (
        "id_state",
        IdState(codec.ABSENT, 0, 0, 400, None, 0, IdOrder(None, ((300, 1),))),
        "0197060000cd0190c00093c09192cd012c01c0",
    ),
    (
        "id_state",
        DEAD,
        "019705cd012c07cd0190942102cd0190d92074776f206c6f6f6b7320646964206e6f742066696e642074686520746f70696300c0",
    ),
    (
        "state",
        STATE,
        "0101dc00140102030405060708a169a16e090a9e0b0c0d0e0f10111213141516171803191b1a02a53230323665a53230323666",
    ),
    (
        "state",
        FRESH,
        "0101dc0014000000cfffffffffffffffff00000000a0a000009e00000000000000000000000000000000000000a0a0",
    ),
    ("lane_state", LaneState(3, 1_700_000_001_000, 41), "019303cf0000018bcfe56be829"),
    (
        "held",
        HeldRecord(b"id", b"v", [("a", b"o"), ("b", None)], 1_700_000_001_000),
        "0196c4026964c401769292a161c4016f92a162c0cf0000018bcfe56be800a0",
    ),
    (
        "held",
        HeldRecord(None, None, None, 0, 21, "offsets 5 to 9"),
        "0196c0c0c00015ae6f666673657473203520746f2039",
    ),
    ("queue_state", QueueState(3, 4_000, 41), "019303cd0fa029"),
    ("identity", IDENTITY, "0197a1630104a164a26469a170a27069"),
]

# How many of the last fields have a default.
DEFAULTS = {
    "entry": 5,
    "id_state": 4,
    "lane_state": 0,
    "held": 2,
    "queue_state": 0,
    "state": 20,
    "identity": 0,
}


def packer(name: str) -> Callable[[Any], bytes]:
    return getattr(codec, f"pack_{name}")


def unpacker(name: str) -> Callable[[bytes], Any]:
    return getattr(codec, f"unpack_{name}")


def split(name: str, data: bytes) -> tuple[bytes, bytes]:
    """The bytes before the array of the fields, and the array."""
    at = 2 if name == "state" else 1
    return data[:at], data[at:]


HEADS = {name: split(name, bytes.fromhex(data))[0] for name, _, data in GOLDEN}


@table(("name", "value", "data"), GOLDEN)
def test_values_have_the_bytes_of_existing_stores(name: str, value: Any, data: str) -> None:
    assert packer(name)(value).hex() == data
    assert unpacker(name)(bytes.fromhex(data)) == value


@table(("name", "value", "data"), GOLDEN)
def test_truncated_bytes_are_a_named_error(name: str, value: Any, data: str) -> None:
    whole = bytes.fromhex(data)
    for length in range(len(whole)):
        with pytest.raises(StoreCorrupt):
            unpacker(name)(whole[:length])
    with pytest.raises(StoreCorrupt, match="cannot be decoded"):
        unpacker(name)(whole + b"\x00")


@table(("name", "value", "data"), GOLDEN)
def test_an_unknown_version_is_named_with_what_to_do(name: str, value: Any, data: str) -> None:
    whole = bytes.fromhex(data)
    for version in {*range(256)} - {whole[0]}:
        with pytest.raises(StoreCorrupt, match=f"format version {version}, which this version"):
            unpacker(name)(bytes([version]) + whole[1:])
    with pytest.raises(StoreCorrupt, match="format version none"):
        unpacker(name)(b"")


@pytest.mark.parametrize("number", [RULES + 1, 255])
def test_a_state_of_newer_rules_is_named_before_anything_of_it_is_decoded(number: int) -> None:
    head, fields = split("state", codec.pack_state(STATE))
    for rest in (fields, b"\xc1", b""):
        with pytest.raises(
            LogMismatch, match=f"by rules {number}, .* knows rules up to {RULES}: .* Upgrade"
        ):
            codec.unpack_state(head[:1] + bytes([number]) + rest)
    with pytest.raises(LogMismatch, match="names rules 0, which there never were"):
        codec.unpack_state(head[:1] + b"\0" + fields)


@table(("name", "value", "data"), GOLDEN)
def test_the_fields_of_a_newer_version_are_ignored(name: str, value: Any, data: str) -> None:
    head, fields = split(name, bytes.fromhex(data))
    newer = [*msgspec.msgpack.decode(fields), {"new": 1}]
    assert unpacker(name)(head + msgspec.msgpack.encode(newer)) == value


@table(("name", "value", "data"), GOLDEN)
def test_a_value_without_its_last_fields_has_their_defaults(
    name: str, value: Any, data: str
) -> None:
    head, array = split(name, bytes.fromhex(data))
    fields = msgspec.msgpack.decode(array)
    for missing in range(1, DEFAULTS[name] + 1):
        read = unpacker(name)(head + msgspec.msgpack.encode(fields[:-missing]))
        by_name = {field.name: field.default for field in msgspec.structs.fields(type(value))}
        for number, (field, default) in enumerate(by_name.items()):
            kept = number < len(fields) - missing
            assert getattr(read, field) == (getattr(value, field) if kept else default)
    if DEFAULTS[name] < len(fields):
        with pytest.raises(StoreCorrupt, match="cannot be decoded"):
            unpacker(name)(head + msgspec.msgpack.encode(fields[: -DEFAULTS[name] - 1]))


@given(st.sampled_from(sorted(DEFAULTS)), st.binary(max_size=60))
def test_any_bytes_are_a_value_or_a_named_error(name: str, data: bytes) -> None:
    try:
        unpacker(name)(HEADS[name] + data)
    except StoreCorrupt as error:
        assert "cannot be decoded" in str(error)  # noqa: PT017 - most damage still decodes


@given(st.sampled_from(GOLDEN), st.integers(1, 10_000), st.integers(0, 255))
def test_one_wrong_byte_is_a_value_or_a_named_error(
    golden: tuple[str, Any, str], at: int, byte: int
) -> None:
    name, _, data = golden
    head, fields = split(name, bytes.fromhex(data))
    damaged = bytearray(fields)
    damaged[at % len(damaged)] = byte
    try:
        unpacker(name)(head + damaged)
    except StoreCorrupt as error:
        assert "cannot be decoded" in str(error)  # noqa: PT017 - most damage still decodes


@pytest.mark.parametrize("name", sorted(DEFAULTS))
def test_endless_nesting_is_damage_and_not_a_crash(name: str) -> None:
    array = next(split(name, bytes.fromhex(data))[1] for known, _, data in GOLDEN if known == name)
    fields = msgspec.msgpack.decode(array)
    longer = b"\xdc" + (len(fields) + 1).to_bytes(2, "big")
    appended = b"".join(msgspec.msgpack.encode(field) for field in fields) + b"\x91" * 100_000
    with pytest.raises(StoreCorrupt, match="cannot be decoded"):
        unpacker(name)(HEADS[name] + longer + appended)


headers = st.one_of(
    st.dictionaries(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=5)), max_size=3),
    st.lists(
        st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=5))), max_size=3
    ),
)


@given(
    headers,
    st.one_of(st.none(), st.binary()),
    st.one_of(st.none(), st.binary()),
    st.integers(0, 2**63),
)
def test_an_entry_comes_back_as_it_went_in(
    own: Any, key: bytes | None, value: bytes | None, due_ms: int
) -> None:
    entry = Entry(key, due_ms, "orders", value, own, value, due_ms, None)
    assert codec.unpack_entry(codec.pack_entry(entry)) == entry


def test_every_id_state_has_a_name() -> None:
    states = [codec.PENDING, codec.DELIVERED, codec.CANCELLED, codec.EXPIRED, codec.DEAD]
    assert [codec.STATE_NAMES[state] for state in states] == [
        "pending",
        "delivered",
        "cancelled",
        "expired",
        "dead",
    ]
    assert len(codec.STATE_NAMES) == len(states)
