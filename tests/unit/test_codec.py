"""Bytes of the store: golden ones, which stores on disk already have, and bytes that are not
understood."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronos.core.message import Entry, LatePolicy, Options, Repeat, Repetition
from chronos.core.shard import codec
from chronos.core.shard.codec import (
    FRESH,
    Failure,
    HeldRecord,
    Identity,
    IdState,
    LaneState,
    QueueState,
    State,
    Totals,
)
from chronos.errors import StoreCorrupt

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
        ),
    ),
)
ID_STATE = IdState(
    codec.CANCELLED,
    1_700_000_001_000,
    41,
    1_700_000_000_500,
    first_ms=1_700_000_000_001,
    cancel_shard=2,
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
    totals=Totals(11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23),
    parked=3,
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
        "019bc4076f726465722d37cf0000018bcfe56be8a66f7264657273c401ff82ab7472616365706172656e74c40430302d31a5656d707479c0c4077061796c6f6164cf0000018bcfe56800cf0000018bcfe56fd00302c0",
    ),
    (
        "entry",
        SERIES,
        "019bc4017305a174c080c4017604c002019303cdea60980390a9302039202a202a202aad4575726f70652f4c6973626f6e0acf0000018bcfe568000306",
    ),
    ("entry", PLAIN, "019bc005a174c09292a161c4013192a161c0c004c00101c0"),
    ("id_state", ID_STATE, "019703cf0000018bcfe56be829cf0000018bcfe569f4c0cf0000018bcfe5680102"),
    ("id_state", IdState(codec.PENDING, 300, 70_000), "019701cd012cce0001117000c000c0"),
    ("id_state", IdState(codec.ABSENT, 0, 0, 400, None, 300), "0197060000cd0190c0cd012cc0"),
    (
        "id_state",
        DEAD,
        "019705cd012c07cd0190942102cd0190d92074776f206c6f6f6b7320646964206e6f742066696e642074686520746f70696300c0",
    ),
    ("state", STATE, "019e0102030405060708a169a16e090a9d0b0c0d0e0f101112131415161703"),
    ("state", FRESH, "019e000000cfffffffffffffffff00000000a0a000009d0000000000000000000000000000"),
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

# How many of the last fields may be missing, because they were added or have a default.
DEFAULTS = {
    "entry": 4,
    "id_state": 4,
    "lane_state": 0,
    "held": 2,
    "queue_state": 0,
    "state": 14,
    "identity": 0,
}


def packer(name: str) -> Callable[[Any], bytes]:
    return getattr(codec, f"pack_{name}")


def unpacker(name: str) -> Callable[[bytes], Any]:
    return getattr(codec, f"unpack_{name}")


@pytest.mark.parametrize(("name", "value", "data"), GOLDEN)
def test_values_have_the_bytes_of_existing_stores(name: str, value: Any, data: str) -> None:
    assert packer(name)(value).hex() == data
    assert unpacker(name)(bytes.fromhex(data)) == value


@pytest.mark.parametrize(("name", "value", "data"), GOLDEN)
def test_truncated_bytes_are_a_named_error(name: str, value: Any, data: str) -> None:
    whole = bytes.fromhex(data)
    for length in range(len(whole)):
        with pytest.raises(StoreCorrupt):
            unpacker(name)(whole[:length])
    with pytest.raises(StoreCorrupt, match="cannot be decoded"):
        unpacker(name)(whole + b"\x00")


@pytest.mark.parametrize(("name", "value", "data"), GOLDEN)
def test_an_unknown_version_is_named_with_what_to_do(name: str, value: Any, data: str) -> None:
    whole = bytes.fromhex(data)
    for version in {*range(256)} - {whole[0]}:
        with pytest.raises(StoreCorrupt, match=f"format version {version}, which this version"):
            unpacker(name)(bytes([version]) + whole[1:])
    with pytest.raises(StoreCorrupt, match="format version none"):
        unpacker(name)(b"")


@pytest.mark.parametrize(("name", "value", "data"), GOLDEN)
def test_a_value_from_before_a_field_was_added_has_that_fields_default(
    name: str, value: Any, data: str
) -> None:
    whole = bytes.fromhex(data)
    fields = msgspec.msgpack.decode(whole[1:])
    for missing in range(1, DEFAULTS[name] + 1):
        older = whole[:1] + msgspec.msgpack.encode(fields[:-missing])
        read = unpacker(name)(older)
        by_name = {field.name: field.default for field in msgspec.structs.fields(type(value))}
        for number, (field, default) in enumerate(by_name.items()):
            kept = number < len(fields) - missing
            assert getattr(read, field) == (getattr(value, field) if kept else default)
    if DEFAULTS[name] < len(fields):
        with pytest.raises(StoreCorrupt, match="cannot be decoded"):
            unpacker(name)(whole[:1] + msgspec.msgpack.encode(fields[: -DEFAULTS[name] - 1]))


@given(st.sampled_from(sorted(DEFAULTS)), st.binary(max_size=60))
def test_any_bytes_are_a_value_or_a_named_error(name: str, data: bytes) -> None:
    try:
        unpacker(name)(b"\x01" + data)
    except StoreCorrupt as error:
        assert "cannot be decoded" in str(error)  # noqa: PT017 - most damage still decodes


@given(st.sampled_from(GOLDEN), st.integers(1, 10_000), st.integers(0, 255))
def test_one_wrong_byte_is_a_value_or_a_named_error(
    golden: tuple[str, Any, str], at: int, byte: int
) -> None:
    name, _, data = golden
    damaged = bytearray.fromhex(data)
    damaged[1 + at % (len(damaged) - 1)] = byte
    try:
        unpacker(name)(bytes(damaged))
    except StoreCorrupt as error:
        assert "cannot be decoded" in str(error)  # noqa: PT017 - most damage still decodes


@pytest.mark.parametrize("name", sorted(DEFAULTS))
def test_endless_nesting_is_damage_and_not_a_crash(name: str) -> None:
    golden = next(bytes.fromhex(data) for known, _, data in GOLDEN if known == name)
    fields = msgspec.msgpack.decode(golden[1:])
    longer = b"\xdc" + (len(fields) + 1).to_bytes(2, "big")
    appended = b"".join(msgspec.msgpack.encode(field) for field in fields) + b"\x91" * 100_000
    with pytest.raises(StoreCorrupt, match="cannot be decoded"):
        unpacker(name)(golden[:1] + longer + appended)


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
