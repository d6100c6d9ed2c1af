"""Keys of the store, generated ids, and the partition of a key.

Layout of the store: a one-byte space prefix, then the fields, with integers in big-endian, so that
the order of bytes is the order of times.

    e  due_ms u64  offset u64     entry: a message, pending after the cursor, settled at or before it
    i  id bytes                   id state: the last known state of an id
    x  kept_ms u64  id bytes      expiry: settled id states, by the time from which they are kept, for the delete worker
    c  minute u64                 count: pending messages due in that minute of the epoch
    l  lane  due_ms u64  offset u64   lane: a parked message
    p  due_ms u64  offset u64     parked: the lane of the parked message at that position
    n  lane                       lane state: the number of messages in a lane that is not empty, and where it begins
    h  destination u32  offset u64    held record: a refused record that waits for its destination
    z  due_ms u64  offset u64     wall clock: the pending occurrence at that position moves with the zone data
    q  destination u32            queue state: the number and bytes of the held records for a destination, if there are any
    t  minute u64                 cursor history: the cursor when that minute began
    m  name                       meta: the state of the shard, and the identity of the store

The bytes of a lane are its topic, a zero byte (no topic name contains one), and its partition plus
two, u32; LIMITED is the greatest u32. The destination of held records is a partition of the delay
topic, or REJECTED, the greatest u32."""  # noqa: E501

import re
from struct import Struct

ENTRY, ID_STATE, EXPIRY, COUNT, CURSOR_HISTORY, META = b"e", b"i", b"x", b"c", b"t", b"m"
LANE, PARKED, LANE_STATE = b"l", b"p", b"n"
HELD, QUEUE_STATE = b"h", b"q"
WALL_CLOCK = b"z"

Lane = tuple[str, int]
"""A queue of parked messages: its target topic, and a partition of it, WHOLE_TOPIC, UNCREATED or
LIMITED."""

WHOLE_TOPIC = -1
"""Partition of the lane of messages without a key, whose topic has no partition with a leader."""

UNCREATED = -2
"""Partition of the lane of all messages for a topic that could not be created so far."""

LIMITED = -3
"""Partition of the lane of all messages for a topic that has a rate limit."""

REJECTED = -1
"""Destination of held records that wait for the rejected topic."""

OFFSET_MAX = 2**64 - 1
"""The offset of a position after every message that is due at its time (`u64`)."""

ID_BYTES_MAX = 1024
"""Longest id, in bytes (docs/reference/headers.md)."""

MINUTE_MS = 60_000

MURMUR2_MULTIPLIER, MURMUR2_SEED = 0x5BD1E995, 0x9747B28C
"""The constants of Kafka's MurmurHash2."""

_PARTITIONS = 2**32
_position = Struct(">cQQ")
_position_alone = Struct(">xQQ")
_number = Struct(">cQ")
_lane_partition = Struct(">xI")
_lane_position = Struct(">QQ")
_held = Struct(">cIQ")
_held_offset = Struct(">Q")
_queue = Struct(">cI")
_GENERATED_ID = re.compile(rb"(0|[1-9][0-9]{0,3})-(0|[1-9][0-9]{0,14})-(0|[1-9][0-9]{0,18})")

STATE_KEY = META + b"state"
IDENTITY_KEY = META + b"identity"


def entry_key(due_ms: int, offset: int) -> bytes:
    """Return the key of an entry: 17 bytes, ordered by due time, then by source offset."""
    return _position.pack(ENTRY, due_ms, offset)


entry_position = _position_alone.unpack
"""Return `(due_ms, offset)` of an entry's key. A bound method: a function around it would cost 0.05
us a message."""


def position_before(key: bytes) -> tuple[int, int]:
    """Return the last position `(due_ms, offset)` that an entry before this key can have."""
    due_ms, offset = entry_position(key[:17])
    if len(key) > 17:
        return due_ms, offset
    return (due_ms, offset - 1) if offset else (due_ms - 1, OFFSET_MAX)


def wall_clock_key(due_ms: int, offset: int) -> bytes:
    """Return the key under which a pending occurrence stands that newer zone data move."""
    return _position.pack(WALL_CLOCK, due_ms, offset)


def id_key(message_id: bytes) -> bytes:
    """Return the key of the state of an id."""
    return ID_STATE + message_id


def expiry_key(settled_ms: int, message_id: bytes) -> bytes:
    """Return the key of an id state in the expiry list, which is ordered by the time at which the
    ids were settled."""
    return _number.pack(EXPIRY, settled_ms) + message_id


def count_key(minute: int) -> bytes:
    """Return the key of the count of pending messages due in a minute of the epoch."""
    return _number.pack(COUNT, minute)


def cursor_history_key(minute: int) -> bytes:
    """Return the key of the cursor at the beginning of a minute of the epoch."""
    return _number.pack(CURSOR_HISTORY, minute)


def key_number(key: bytes) -> int:
    """Return the integer after the prefix of an expiry, count or cursor history key."""
    assert len(key) >= 9, "the key has no number"
    return int.from_bytes(key[1:9], "big")


def pack_lane(lane: Lane) -> bytes:
    """Return the bytes of a lane in keys: no lane's bytes begin another's."""
    topic, partition = lane
    return topic.encode() + _lane_partition.pack((partition + 2) % _PARTITIONS)


def unpack_lane(data: bytes) -> Lane:
    """Return the lane in the bytes."""
    (partition,) = _lane_partition.unpack(data[-5:])
    return data[:-5].decode(), LIMITED if partition == _PARTITIONS - 1 else partition - 2


def lane_key(lane: Lane, due_ms: int, offset: int) -> bytes:
    """Return the key of a parked message; the messages of a lane are ordered by due time, then by
    source offset."""
    return LANE + pack_lane(lane) + _lane_position.pack(due_ms, offset)


def lane_position(key: bytes) -> tuple[int, int]:
    """Return `(due_ms, offset)` of a parked message's key."""
    due_ms, offset = _lane_position.unpack(key[-16:])
    return due_ms, offset


def parked_key(due_ms: int, offset: int) -> bytes:
    """Return the key under which the lane of the parked message at a position is kept."""
    return _position.pack(PARKED, due_ms, offset)


parked_position = _position_alone.unpack
"""Return `(due_ms, offset)` of a key of `parked_key`."""


def lane_state_key(lane: Lane) -> bytes:
    """Return the key of the state of a lane."""
    return LANE_STATE + pack_lane(lane)


def held_key(destination: int, offset: int) -> bytes:
    """Return the key of a held record; those of a destination are ordered by offset."""
    return _held.pack(HELD, destination % _PARTITIONS, offset)


def held_offset(key: bytes) -> int:
    """Return the offset of a held record's key."""
    (offset,) = _held_offset.unpack(key[-8:])
    return int(offset)


def queue_state_key(destination: int) -> bytes:
    """Return the key of the state of the queue of a destination."""
    return _queue.pack(QUEUE_STATE, destination % _PARTITIONS)


def queue_of(key: bytes) -> int:
    """Return the destination of a queue state's key."""
    destination = int.from_bytes(key[1:], "big")
    return REJECTED if destination == _PARTITIONS - 1 else destination


def generated_id(shard: int, due_ms: int, offset: int) -> bytes:
    """Return the id of a message without a key: its shard, requested due time and source offset."""
    return b"%d-%d-%d" % (shard, due_ms, offset)


def parse_generated_id(message_id: bytes, shards: int) -> tuple[int, int, int] | None:
    """Return `(shard, due_ms, offset)` if the id is a generated id of one of `shards` shards, else
    None."""
    match = _GENERATED_ID.fullmatch(message_id)
    if match is None:
        return None
    shard, due_ms, offset = (int(part) for part in match.groups())
    return (shard, due_ms, offset) if shard < shards else None


def murmur2(data: bytes) -> int:
    """Return MurmurHash2, 32 bits unsigned, as `org.apache.kafka.common.utils.Utils.murmur2`
    computes it."""
    multiplier, mask = MURMUR2_MULTIPLIER, 0xFFFFFFFF
    length = len(data)
    hashed = MURMUR2_SEED ^ length
    words_end = length & ~3
    for at in range(0, words_end, 4):
        word = int.from_bytes(data[at : at + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        hashed = hashed * multiplier & mask ^ word
    if words_end < length:
        hashed = (hashed ^ int.from_bytes(data[words_end:], "little")) * multiplier & mask
    hashed = (hashed ^ hashed >> 13) * multiplier & mask
    return hashed ^ hashed >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition in which Java producers, and librdkafka's `murmur2_random`, place a
    key."""
    assert partitions > 0
    return (murmur2(key) & 0x7FFFFFFF) % partitions
