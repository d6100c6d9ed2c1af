"""The bytes that order everything: keys of the store, ids, and the partition a key belongs to.

Layout of the store: a one-byte space prefix, then big-endian integers, so that byte order is time order.

    e  due_ms u64  offset u64     entry: a message, pending ahead of the cursor, settled behind it
    i  id bytes                   word: the last word about an id
    x  settled_ms u64  id bytes   expiry: words that may be dropped one day
    c  minute u64                 count: pending messages due in that minute of the epoch
    t  minute u64                 trail: where the cursor stood when that minute began
    m  name                       meta
"""

import re
from struct import Struct

ENTRY, ID_STATE, EXPIRY, COUNT, CURSOR_HISTORY, META = b"e", b"i", b"x", b"c", b"t", b"m"

OFFSET_MAX = 2**64 - 1
"""As the second half of a position: behind every message due at that time."""

ID_BYTES_MAX = 1024
"""Longest id, in bytes (DESIGN section 4)."""

MINUTE_MS = 60_000

_position = Struct(">cQQ")
_position_alone = Struct(">xQQ")
_number = Struct(">cQ")
_GENERATED_ID = re.compile(rb"(0|[1-9][0-9]{0,3})-(0|[1-9][0-9]{0,14})-(0|[1-9][0-9]{0,18})")

STATE_KEY = META + b"state"
IDENTITY_KEY = META + b"identity"


def entry_key(due_ms: int, offset: int) -> bytes:
    """Where a message stands: 17 bytes, ordered by due time, then by offset."""
    return _position.pack(ENTRY, due_ms, offset)


entry_position = _position_alone.unpack
"""`(due_ms, offset)` of an entry's key. Not a function of our own: it is called for every message read."""


def id_key(message_id: bytes) -> bytes:
    """Where the last word about an id stands."""
    return ID_STATE + message_id


def expiry_key(settled_ms: int, message_id: bytes) -> bytes:
    """An entry in the list of words that may be dropped, in the order in which they were settled."""
    return _number.pack(EXPIRY, settled_ms) + message_id


def count_key(minute: int) -> bytes:
    """How many messages are pending in a minute of the epoch."""
    return _number.pack(COUNT, minute)


def cursor_history_key(minute: int) -> bytes:
    """Where the cursor stood when a minute of the epoch began."""
    return _number.pack(CURSOR_HISTORY, minute)


def key_number(key: bytes) -> int:
    """The integer behind the prefix of an expiry, count or trail key."""
    return int.from_bytes(key[1:9], "big")


def generated_id(shard: int, due_ms: int, offset: int) -> bytes:
    """The id of a message without a key: its place is its name."""
    return b"%d-%d-%d" % (shard, due_ms, offset)


def parse_generated_id(message_id: bytes, shards: int) -> tuple[int, int, int] | None:
    """`(shard, due_ms, offset)` when the id is an address among `shards` shards, else None."""
    match = _GENERATED_ID.fullmatch(message_id)
    if match is None:
        return None
    shard, due_ms, offset = (int(part) for part in match.groups())
    return (shard, due_ms, offset) if shard < shards else None


def murmur2(data: bytes) -> int:
    """MurmurHash2, 32 bits unsigned, as `org.apache.kafka.common.utils.Utils.murmur2` computes it."""
    multiplier, mask = 0x5BD1E995, 0xFFFFFFFF
    length = len(data)
    hashed = 0x9747B28C ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        hashed = hashed * multiplier & mask ^ word
    if whole < length:
        hashed = (hashed ^ int.from_bytes(data[whole:], "little")) * multiplier & mask
    hashed = (hashed ^ hashed >> 13) * multiplier & mask
    return hashed ^ hashed >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """The partition in which Java producers, and librdkafka's `murmur2_random`, place a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
