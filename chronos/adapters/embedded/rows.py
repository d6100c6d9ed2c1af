"""The rows of the embedded log, as bytes: by their first byte, integers big-endian so that order is kept.

    v                                          version of this layout
    t  name                                    topic: version byte, msgpack [number, id, partitions, own]
    s  number u32, partition u32               start offset u64, once something was trimmed
    r  number u32, partition u32, offset u64   record: version byte, timestamp_ms u64,
                                               msgpack [key, value, [[header name, header value], ...]]

Changing one of them follows the rules of `core.codec`.
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
    """A topic as it is kept. Field order is the layout."""

    number: int
    """Stands for the name in the other rows; never given again."""
    id: str
    partitions: int
    own: bool
    """Chronos's own, made by `prepare`: nothing in it expires unless its settings say so."""


class _Body(Struct, frozen=True, array_like=True, gc=False):
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


_encode = msgspec.msgpack.Encoder().encode
_decode_body = msgspec.msgpack.Decoder(_Body).decode
_decode_topic = msgspec.msgpack.Decoder(TopicRow).decode


def topic_key(name: str) -> bytes:
    """Where a topic stands."""
    return b"t" + name.encode()


def topic_name(key: bytes) -> str:
    """The name in a topic's key."""
    return key[1:].decode()


def record_key(number: int, partition: int, offset: int) -> bytes:
    """Where a record stands: 17 bytes."""
    return _record_key(b"r", number, partition, offset)


def record_offset(key: bytes) -> int:
    """The offset in a record's key."""
    return int.from_bytes(key[9:])


def start_key(number: int, partition: int) -> bytes:
    """Where a partition keeps its first offset."""
    return _start_key(b"s", number, partition)


def pack_offset(offset: int) -> bytes:
    """Bytes of a start offset."""
    return _u64.pack(offset)


def unpack_offset(data: bytes) -> int:
    """The start offset in the bytes."""
    return int.from_bytes(data)


def pack_body(key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    """The part of a record that is known before it is written. A header name must be valid Unicode."""
    return _encode((key, value, list(headers.items()) if isinstance(headers, Mapping) else headers))


def pack_stamp(timestamp_ms: int) -> bytes:
    """The part of a record before its body."""
    return RECORD_VERSION + _u64.pack(timestamp_ms)


def unpack_record(offset: int, data: bytes) -> Record:
    """The record in the bytes; StoreCorrupt when they are of another version or damaged."""
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
    """The topic in the bytes; StoreCorrupt when they are of another version or damaged."""
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
