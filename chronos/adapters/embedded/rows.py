"""The rows of the embedded log as bytes, of the kind that the first byte names; integers big-endian, so that rows sort by number.

    v                                          version of this layout
    t  name                                    topic: version byte, msgpack [number, id, partitions, own]
    s  number u32, partition u32               start offset u64, written by the first trim
    r  number u32, partition u32, offset u64   record: version byte, timestamp_ms u64,
                                               msgpack [key, value, [[header name, header value], ...]]

A change follows the rules of `core.codec`.
"""

from collections.abc import Mapping, Sequence
from struct import Struct as Layout

import msgspec
from msgspec import Struct

from chronos.core.message import Record
from chronos.errors import StoreCorrupt

LAYOUT_KEY = b"v"
LAYOUT_VERSION, TOPIC_VERSION, RECORD_VERSION = b"\x01", b"\x01", b"\x01"

OFFSET_MAX = 2**64 - 1

Headers = Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]]

_record_key = Layout(">cIIQ").pack
_start_key = Layout(">cII").pack
_u64 = Layout(">Q")


class TopicRow(Struct, frozen=True, array_like=True):
    """A topic as stored. The order of fields is the layout."""

    number: int
    """Stands for the name in the other rows; never reused."""
    id: str
    """Topic id."""
    partitions: int
    """Number of partitions."""
    own: bool
    """One of Chronos's own topics, created by `prepare`: its records expire only if its settings say so."""


class _Body(Struct, frozen=True, array_like=True, gc=False):
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


_encode = msgspec.msgpack.Encoder().encode
_decode_body = msgspec.msgpack.Decoder(_Body).decode
_decode_topic = msgspec.msgpack.Decoder(TopicRow).decode


def topic_key(name: str) -> bytes:
    """Key of a topic."""
    return b"t" + name.encode()


def topic_name(key: bytes) -> str:
    """Name in a topic's key."""
    return key[1:].decode()


def record_key(number: int, partition: int, offset: int) -> bytes:
    """Key of a record: 17 bytes."""
    return _record_key(b"r", number, partition, offset)


def record_offset(key: bytes) -> int:
    """Offset in a record's key."""
    return int.from_bytes(key[9:])


def start_key(number: int, partition: int) -> bytes:
    """Key of a partition's start offset."""
    return _start_key(b"s", number, partition)


def pack_offset(offset: int) -> bytes:
    """Bytes of a start offset."""
    return _u64.pack(offset)


def unpack_offset(data: bytes) -> int:
    """Start offset in the bytes."""
    return int.from_bytes(data)


def pack_body(key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    """Key, value and headers of a record: the part known before it is written. Raises UnicodeEncodeError for a header name."""
    return _encode((key, value, list(headers.items()) if isinstance(headers, Mapping) else headers))


def pack_stamp(timestamp_ms: int) -> bytes:
    """The part of a record in front of its body."""
    return RECORD_VERSION + _u64.pack(timestamp_ms)


def unpack_record(offset: int, data: bytes) -> Record:
    """Record in the bytes. Raises StoreCorrupt when they are damaged or of another version."""
    if data[:1] != RECORD_VERSION:
        raise _unknown("a record", data)
    try:
        body = _decode_body(memoryview(data)[9:])
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(f"a record of the embedded log cannot be decoded: {error}") from error
    return Record(offset, _u64.unpack_from(data, 1)[0], body.key, body.value, body.headers)


def pack_topic(topic: TopicRow) -> bytes:
    """Bytes of a topic."""
    return TOPIC_VERSION + _encode(topic)


def unpack_topic(data: bytes) -> TopicRow:
    """Topic in the bytes. Raises StoreCorrupt when they are damaged or of another version."""
    if data[:1] != TOPIC_VERSION:
        raise _unknown("a topic", data)
    try:
        return _decode_topic(data[1:])
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(f"a topic of the embedded log cannot be decoded: {error}") from error


def _unknown(what: str, data: bytes) -> StoreCorrupt:
    version = data[0] if data else "none"
    return StoreCorrupt(
        f"{what} of the embedded log has format version {version}, which this version of Chronos does not"
        " know: was the data directory written by a newer one?"
    )
