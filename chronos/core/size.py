"""Sizes in bytes of records and batches, as Kafka's batch format v2 has them, without compression
(KIP-98, `DefaultRecord.sizeInBytes`), and roughly as memory has them; and the bounds of one step.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate

Headers = Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]]

BATCH_OVERHEAD = 61
"""Bytes of a batch's own fields (`DefaultRecordBatch.RECORD_BATCH_OVERHEAD`)."""

RESPONSE_OVERHEAD = 1 << 20
"""Bytes by which a response to a fetch may exceed the batch in it, rounded up: a client that
accepts less never reads it."""

STEP_MESSAGES = 5_000
"""Most messages of one step, and so of one transaction. More hardly increase throughput, and
readers of the targets wait for open transactions."""

STEP_BYTES = 8_000_000
"""Most bytes of one step, unless a single record may be larger: they bound the memory of each shard
and the time that readers wait."""

ONE_BYTE = 64
"""A smaller number is a varint of one byte."""


def step_bytes(record_bytes_max: int) -> int:
    """Return the most bytes of one step where a record may have `record_bytes_max`."""
    return max(STEP_BYTES, record_bytes_max)


def batch_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return the bytes of an uncompressed batch that holds only this record: the broker compares
    them with `max.message.bytes`."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    body = (
        3 + _field(key) + _field(value) + _varint(len(headers))
    )  # attributes, timestamp delta, offset delta
    # `_field` written out: two calls for each header would be most of the cost.
    for name, content in pairs:
        size = len(name) if name.isascii() else len(name.encode())
        body += size + 1 if size < ONE_BYTE else size + _varint(size)
        size = 0 if content is None else len(content)
        body += size + 1 if size < ONE_BYTE else size + _varint(size)
    return BATCH_OVERHEAD + _varint(body) + body


def batch_bytes_max(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return an upper bound of `batch_bytes`, for a record below 256 MiB, at a fifth of its cost.

    61 bytes of the batch, 3 of deltas and attributes, 5 varints of at most 5 bytes, and for each
    header two of them and a name of at most 4 bytes a character (UTF-8). Rounded up to 100 and
    10."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    size = 100 + len(key or b"") + len(value or b"")
    for name, content in pairs:
        size += 10 + 4 * len(name) + len(content or b"")
    return size


def memory_bytes(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]] | None
) -> int:
    """Return roughly what a record takes in memory."""
    size = 64 + len(key or b"") + len(value or b"")
    for name, content in headers or ():
        size += 16 + len(name) + len(content or b"")
    return size


def _field(data: bytes | None) -> int:
    return 1 if data is None else _varint(len(data)) + len(data)


def _varint(number: int) -> int:
    """Return the length in bytes of a number >= 0 as a zigzag varint."""
    return max(1, ((number << 1).bit_length() + 6) // 7)


def count_within(sizes: Sequence[int], bytes_max: int) -> int:
    """Return how many leading elements, at least one if there is one, add up to at most `bytes_max`
    bytes."""
    if sum(sizes) <= bytes_max:
        return len(sizes)
    return max(1, sum(total <= bytes_max for total in accumulate(sizes)))
