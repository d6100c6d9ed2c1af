"""Sizes of records and batches in bytes: the batch format v2 of Kafka (KIP-98, `DefaultRecord.sizeInBytes`), and limits."""

from collections.abc import Mapping, Sequence
from itertools import accumulate

BATCH_OVERHEAD = 61
"""Bytes of a batch's own fields (`DefaultRecordBatch.RECORD_BATCH_OVERHEAD`)."""


def batch_bytes(
    key: bytes | None,
    value: bytes | None,
    headers: Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]],
) -> int:
    """Return the bytes of an uncompressed batch that holds only this record: the broker compares them with `max.message.bytes`."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    body = 3 + _field(key) + _field(value) + _varint(len(headers))  # attributes, timestamp delta, offset delta
    for name, content in pairs:
        body += _field(name.encode()) + _field(content)
    return BATCH_OVERHEAD + _varint(body) + body


def _field(data: bytes | None) -> int:
    return 1 if data is None else _varint(len(data)) + len(data)


def _varint(number: int) -> int:
    """Return the length in bytes of a number >= 0 as a zigzag varint."""
    return max(1, ((number << 1).bit_length() + 6) // 7)


def count_within(sizes: Sequence[int], bytes_max: int) -> int:
    """Return how many leading elements, at least one if there is one, add up to at most `bytes_max` bytes."""
    if sum(sizes) <= bytes_max:
        return len(sizes)
    return max(1, sum(total <= bytes_max for total in accumulate(sizes)))
