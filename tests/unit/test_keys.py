"""Keys: the order of the bytes is the order of time, and ids land where Kafka's own clients put
them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chronos.core import keys
from chronos.core.keys import (
    OFFSET_MAX,
    entry_key,
    entry_position,
    generated_id,
    murmur2,
    parse_generated_id,
    partition_of,
)
from tests.harness.table import table

numbers = st.one_of(st.integers(0, 300), st.integers(0, OFFSET_MAX))
positions = st.tuples(numbers, numbers)


def test_every_key_has_the_layout_of_existing_stores() -> None:
    assert entry_key(0x0102, 0x03) == b"e" + bytes.fromhex("0000000000000102 0000000000000003")
    assert keys.id_key(b"order-7") == b"iorder-7"
    assert (
        keys.expiry_key(0x0102, b"order-7") == b"x" + bytes.fromhex("0000000000000102") + b"order-7"
    )
    assert keys.count_key(0x0102) == b"c" + bytes.fromhex("0000000000000102")
    assert keys.cursor_history_key(0x0102) == b"t" + bytes.fromhex("0000000000000102")
    lane = bytes.fromhex("6f7264657273 00 00000004")
    assert keys.pack_lane(("orders", 2)) == lane
    assert keys.pack_lane(("orders", keys.WHOLE_TOPIC)).hex()[-8:] == "00000001"
    assert keys.pack_lane(("orders", keys.LIMITED)).hex()[-8:] == "ffffffff"
    assert keys.lane_key(("orders", 2), 0x0102, 0x03) == b"l" + lane + entry_key(0x0102, 0x03)[1:]
    assert keys.parked_key(0x0102, 0x03) == b"p" + entry_key(0x0102, 0x03)[1:]
    assert keys.lane_state_key(("orders", 2)) == b"n" + lane
    assert keys.held_key(2, 0x03) == b"h" + bytes.fromhex("00000002 0000000000000003")
    assert keys.held_key(keys.REJECTED, 0x03) == b"h" + bytes.fromhex("ffffffff 0000000000000003")
    assert keys.queue_state_key(2) == b"q" + bytes.fromhex("00000002")
    assert keys.queue_state_key(keys.REJECTED) == b"q" + bytes.fromhex("ffffffff")
    assert keys.wall_clock_key(0x01, 0x02) == b"z" + bytes.fromhex(
        "0000000000000001 0000000000000002"
    )
    assert keys.STATE_KEY == b"mstate"
    assert keys.IDENTITY_KEY == b"midentity"


def test_the_spaces_of_the_store_do_not_overlap() -> None:
    spaces = [
        keys.ENTRY,
        keys.ID_STATE,
        keys.EXPIRY,
        keys.COUNT,
        keys.CURSOR_HISTORY,
        keys.META,
        keys.LANE,
        keys.PARKED,
        keys.LANE_STATE,
        keys.HELD,
        keys.QUEUE_STATE,
        keys.WALL_CLOCK,
    ]
    assert len({space[0] for space in spaces}) == len(spaces)
    assert {len(space) for space in spaces} == {1}


@given(st.sampled_from([keys.REJECTED, 0, 1, 255, 256, 2**31 - 1]), numbers)
def test_the_key_of_a_held_record_tells_its_destination_and_its_offset(
    destination: int, offset: int
) -> None:
    assert keys.held_offset(keys.held_key(destination, offset)) == offset
    assert keys.queue_of(keys.queue_state_key(destination)) == destination
    assert keys.held_key(destination, offset)[1:5] == keys.queue_state_key(destination)[1:]


topics = st.sampled_from(["a", "ab", "a.b", "orders"])
lanes = st.tuples(
    topics,
    st.sampled_from([keys.LIMITED, keys.UNCREATED, keys.WHOLE_TOPIC, 0, 1, 255, 256, 2**31 - 1]),
)


@given(lanes, positions, lanes, positions)
def test_messages_of_a_lane_sort_by_due_time_and_no_other_lane_is_between_them(
    one: keys.Lane, at: tuple[int, int], other: keys.Lane, then: tuple[int, int]
) -> None:
    assert (keys.lane_key(one, *at) < keys.lane_key(other, *then)) == (
        (keys.pack_lane(one), at) < (keys.pack_lane(other), then)
    )
    assert not keys.pack_lane(one).startswith(keys.pack_lane(other)) or one == other
    assert keys.unpack_lane(keys.pack_lane(one)) == one
    assert (
        keys.lane_position(keys.lane_key(one, *at))
        == at
        == keys.parked_position(keys.parked_key(*at))
    )


@given(positions, positions)
def test_entries_sort_by_due_time_and_then_by_offset(
    one: tuple[int, int], other: tuple[int, int]
) -> None:
    assert (entry_key(*one) < entry_key(*other)) == (one < other)
    assert entry_position(entry_key(*one)) == one


@given(numbers, st.binary(max_size=4), numbers, st.binary(max_size=4))
def test_expiries_sort_by_time_and_then_by_id(
    one: int, one_id: bytes, other: int, other_id: bytes
) -> None:
    keys_in_order = keys.expiry_key(one, one_id) < keys.expiry_key(other, other_id)
    assert keys_in_order == ((one, one_id) < (other, other_id))


@given(numbers, numbers)
def test_counts_and_cursor_history_sort_by_minute(one: int, other: int) -> None:
    assert (keys.count_key(one) < keys.count_key(other)) == (one < other)
    assert (keys.cursor_history_key(one) < keys.cursor_history_key(other)) == (one < other)


@given(numbers, st.binary(max_size=4))
def test_the_number_after_a_prefix_is_read_back(number: int, message_id: bytes) -> None:
    for key in (
        keys.count_key(number),
        keys.cursor_history_key(number),
        keys.expiry_key(number, message_id),
    ):
        assert keys.key_number(key) == number


@given(st.integers(0, 9999), st.integers(0, 10**15 - 1), st.integers(0, 2**63 - 1))
def test_a_generated_id_names_shard_time_and_offset(shard: int, due_ms: int, offset: int) -> None:
    assert parse_generated_id(generated_id(shard, due_ms, offset), shard + 1) == (
        shard,
        due_ms,
        offset,
    )
    assert parse_generated_id(generated_id(shard, due_ms, offset), shard) is None


@table(
    "message_id",
    [
        b"",
        b"-",
        b"--",
        b"1-2",
        b"1-2-3-4",
        b"1-2-3 ",
        b" 1-2-3",
        b"1-2-3\n",
        b"+1-2-3",
        (b"1--2-3"),
        b"-1-2-3",
        b"01-2-3",
        b"1-02-3",
        b"1-2-03",
        b"1-2-",
        b"1-2-x",
        b"1_2_3",
        "1-2-٣".encode(),
        b"1-2-3\0",
        b"4-2-3",
        b"10000-2-3",
        b"1-1000000000000000-3",
        b"1-2-10000000000000000000",
        (b"order-1-2-3"),
    ],
)
def test_an_id_that_only_resembles_a_generated_id_is_an_ordinary_id(message_id: bytes) -> None:
    assert parse_generated_id(message_id, 4) is None


@given(st.from_regex(rb"[0-9]{1,5}-[0-9]{1,16}-[0-9]{1,20}", fullmatch=True))
def test_a_parsed_generated_id_is_written_the_same_way_and_fits_a_key(message_id: bytes) -> None:
    parsed = parse_generated_id(message_id, 10_000)
    if parsed is not None:
        assert generated_id(*parsed) == message_id
        assert entry_position(entry_key(*parsed[1:])) == parsed[1:]


@table(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
        # Bytes above 127 are negative in Java; these lengths reach every branch of the tail.
        # Computed by kafka-clients 4.1.1.
        (b"", 275646681),
        (b"\xff", -311467685),
        (b"\xff\x80", -442788720),
        (b"\xff\x80\x90", -2003941180),
        (b"\xff\x80\x90\xfe", 1067021183),
    ],
)
def test_keys_are_hashed_as_java_clients_hash_them(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


@given(st.binary(max_size=40), st.integers(1, 100))
def test_a_partition_is_the_hash_without_its_sign_modulo_their_number(
    key: bytes, partitions: int
) -> None:
    assert partition_of(key, partitions) == (murmur2(key) & 0x7FFFFFFF) % partitions
    assert 0 <= partition_of(key, partitions) < partitions
