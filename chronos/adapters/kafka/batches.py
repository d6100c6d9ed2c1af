"""The header of one record batch, read by a Fetch request on a socket of its own.

Of a batch that it cannot decompress, librdkafka reports the first offset only. The request asks
the leader for one batch and reads no more than its header, so that nothing is decompressed and
little memory is taken. The connection follows the operator's properties: plain or TLS, with SASL
PLAIN or SCRAM where they ask for it."""

import secrets
import socket
import ssl
import struct
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from msgspec import Struct

from chronos.adapters.kafka.scram import SCRAM_HASHES, Scram
from chronos.core import certificates
from chronos.errors import LogUnavailable

FETCH, FETCH_VERSION = 1, 4
"""Version 4 is the oldest that Kafka 4 accepts; everything used here is in it."""

SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36

HEADER_BYTES = 51
"""The start of a batch, up to the producer's id (KIP-98)."""

MAGIC = 2
"""The only batch format since Kafka 4."""

ANSWER_BYTES_MAX = 65_536
"""Longest answer read as a whole: those of SASL."""

READ_COMMITTED = 1

CODEC_BITS, APPEND_TIME_BIT, TRANSACTIONAL_BIT, CONTROL_BIT = 0x07, 0x08, 0x10, 0x20

ABORTED_MAX = 100_000
"""Most aborted transactions in an answer."""

RATIOS: Mapping[int, int] = {0: 1, 1: 1_100, 2: 32, 3: 260, 4: 40_000}
"""Codec -> bytes that a byte can become, rounded up: none, gzip, snappy, lz4, zstd."""

RECORD_BYTES = 500
"""Memory that the client takes for a record, apart from its bytes, rounded up (measured: 400)."""

TLS_PROPERTIES = frozenset(
    "ssl." + name
    for name in (
        "ca.location",
        "ca.pem",
        "certificate.location",
        "key.location",
        "key.password",
        "endpoint.identification.algorithm",
    )
)
"""Properties of TLS that a connection of this module follows; with any other one there is none."""


class BatchHeader(Struct, frozen=True, kw_only=True):
    """A batch, as its own header describes it."""

    first: int
    """Offset of its first record."""
    last: int
    """Offset of its last record."""
    bytes: int
    """Its size, compressed."""
    codec: int
    """Number of its compression."""
    leader_epoch: int = 0
    """Epoch of the leader that appended it."""
    timestamp_ms: int = 0
    """Its greatest timestamp (epoch ms)."""
    create_time: bool = False
    """Its timestamps are those of the producer."""
    hidden: bool = False
    """It is a marker, or part of an aborted transaction: no `read_committed` consumer gets records
    of it."""

    @property
    def memory_bytes_max(self) -> int:
        """The memory that its bytes and its records can take at most when it is read: each format
        has a greatest ratio."""
        records = self.last - self.first + 1
        return self.bytes * RATIOS.get(self.codec, max(RATIOS.values())) + records * RECORD_BYTES


def batch_header(
    address: tuple[str, int],
    properties: Mapping[str, Any],
    topic: str,
    partition: int,
    offset: int,
    timeout_s: float,
) -> BatchHeader:
    """Return the header of the batch that holds `offset`, or of the next one behind it.

    `address`: host and port of the partition's leader. Raises LogUnavailable, also when the
    properties ask for something that is not supported here."""
    try:
        with closing(_connected(address, properties, timeout_s)) as connection:
            _authenticate(connection, properties)
            return _fetch(connection, topic, partition, offset)
    except (OSError, ValueError, struct.error) as error:
        raise LogUnavailable(
            f"the batch at offset {offset} of {topic}/{partition} could not be asked for at "
            f"{address[0]}:{address[1]}: {certificates.reason(error)}"
        ) from error


def _connected(
    address: tuple[str, int], properties: Mapping[str, Any], timeout_s: float
) -> socket.socket:
    plain = socket.create_connection(address, timeout_s)
    if not str(properties.get("security.protocol", "plaintext")).lower().endswith("ssl"):
        return plain
    try:
        return _tls(properties).wrap_socket(plain, server_hostname=address[0])
    except BaseException:
        plain.close()
        raise


def _tls(properties: Mapping[str, Any]) -> ssl.SSLContext:
    unsupported = [
        name for name in properties if name.startswith("ssl.") and name not in TLS_PROPERTIES
    ]
    if unsupported:
        raise ValueError(f"{', '.join(unsupported)} is not supported for this request")
    context = ssl.create_default_context(
        cafile=properties.get("ssl.ca.location"), cadata=properties.get("ssl.ca.pem")
    )
    if str(properties.get("ssl.endpoint.identification.algorithm", "https")).lower() == "none":
        context.check_hostname = False
    if str(properties.get("enable.ssl.certificate.verification", "true")).lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate = properties.get("ssl.certificate.location")
    if certificate is not None:
        context.load_cert_chain(
            certificate, properties.get("ssl.key.location"), properties.get("ssl.key.password")
        )
    return context


def _authenticate(connection: socket.socket, properties: Mapping[str, Any]) -> None:
    if not str(properties.get("security.protocol", "plaintext")).lower().startswith("sasl"):
        return
    mechanism = str(
        properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "GSSAPI"
    )
    name, password = (
        str(properties.get("sasl.username", "")),
        str(properties.get("sasl.password", "")),
    )
    if mechanism != "PLAIN" and mechanism not in SCRAM_HASHES:
        raise ValueError(f"sasl.mechanism {mechanism} is not supported for this request")
    answer = _ask(connection, SASL_HANDSHAKE, 1, _text(mechanism))
    (code,) = struct.unpack_from(">h", answer)
    if code:
        raise ValueError(f"the broker does not take the SASL mechanism {mechanism} (error {code})")
    if mechanism == "PLAIN":
        _exchange(connection, f"\0{name}\0{password}".encode())
        return
    scram = Scram(SCRAM_HASHES[mechanism], name, password, secrets.token_urlsafe(24))
    final = scram.final(_exchange(connection, scram.first()))
    scram.verify(_exchange(connection, final))


def _exchange(connection: socket.socket, token: bytes) -> bytes:
    """Send a SASL token; return the broker's."""
    answer = _ask(connection, SASL_AUTHENTICATE, 0, struct.pack(">i", len(token)) + token)
    code, length = struct.unpack_from(">hh", answer)
    at = 4 + max(0, length)
    if code:
        raise ValueError(f"authentication failed: {answer[4:at].decode('utf-8', 'replace')}")
    (size,) = struct.unpack_from(">i", answer, at)
    return answer[at + 4 : at + 4 + max(0, size)]


def _fetch(connection: socket.socket, topic: str, partition: int, offset: int) -> BatchHeader:
    """Ask for at most one byte: the broker returns the batch that holds the offset, complete, and
    no other one."""
    body = struct.pack(">iiiib", -1, 0, 0, 1, READ_COMMITTED)
    body += struct.pack(">i", 1) + _text(topic) + struct.pack(">iiqi", 1, partition, offset, 1)
    _send(connection, FETCH, FETCH_VERSION, body)
    _read(connection, 4 + 4 + 4 + 4)  # size, correlation, throttle time, number of topics
    (length,) = struct.unpack(">h", _read(connection, 2))
    _read(connection, length + 4 + 4)  # name, number of partitions, partition
    (code,) = struct.unpack(">h", _read(connection, 2))
    if code:
        raise ValueError(f"the broker answered with error {code}")
    _read(connection, 8 + 8)  # high watermark, last stable offset
    (count,) = struct.unpack(">i", _read(connection, 4))
    if count > ABORTED_MAX:
        raise ValueError(f"the broker lists {count} aborted transactions")
    aborted = list(struct.iter_unpack(">qq", _read(connection, 16 * max(0, count))))
    (size,) = struct.unpack(">i", _read(connection, 4))
    if size < HEADER_BYTES:
        raise ValueError("the broker returned no batch")
    header = struct.unpack(">qiibIhiqqq", _read(connection, HEADER_BYTES))
    first, length, leader_epoch, magic, _, attributes, last_delta, _, timestamp_ms, producer = (
        header
    )
    if magic != MAGIC or last_delta < 0:
        raise ValueError(f"the batch has the unknown format {magic}")
    # The broker lists only transactions that reach beyond the offset asked for.
    is_aborted = bool(attributes & TRANSACTIONAL_BIT) and any(
        by == producer and begins <= first + last_delta for by, begins in aborted
    )
    return BatchHeader(
        first=first,
        last=first + last_delta,
        bytes=length,
        codec=attributes & CODEC_BITS,
        leader_epoch=leader_epoch,
        timestamp_ms=timestamp_ms,
        create_time=not attributes & APPEND_TIME_BIT,
        hidden=bool(attributes & CONTROL_BIT) or is_aborted,
    )


def _ask(connection: socket.socket, key: int, version: int, body: bytes) -> bytes:
    _send(connection, key, version, body)
    (size,) = struct.unpack(">i", _read(connection, 4))
    if not 4 <= size <= ANSWER_BYTES_MAX:
        raise ValueError(
            f"the broker answered with {size} bytes; is this a Kafka listener of that "
            "security.protocol?"
        )
    return _read(connection, size)[4:]


def _send(connection: socket.socket, key: int, version: int, body: bytes) -> None:
    request = struct.pack(">hhi", key, version, 0) + _text("chronos") + body
    connection.sendall(struct.pack(">i", len(request)) + request)


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionResetError("the broker closed the connection")
        data += part
    return data


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data
