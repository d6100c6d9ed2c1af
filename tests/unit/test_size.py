"""Sizes of records, compared with a plain encoder of Kafka's format."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chronos.core.size import batch_bytes, batch_bytes_max, count_within, memory_bytes

contents = st.none() | st.binary(max_size=300)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
headers = st.lists(st.tuples(names, contents), max_size=80)


def encoded(key: bytes | None, value: bytes | None, pairs: list[tuple[str, bytes | None]]) -> bytes:
    """A record as KIP-98 writes it, with both deltas 0."""

    def varint(number: int) -> bytes:
        zigzag, out = (number << 1) ^ (number >> 31), bytearray()
        while zigzag > 0x7F:
            out.append(zigzag & 0x7F | 0x80)
            zigzag >>= 7
        return bytes([*out, zigzag])

    def field(data: bytes | None) -> bytes:
        return varint(-1) if data is None else varint(len(data)) + data

    body = b"\0" + varint(0) + varint(0) + field(key) + field(value) + varint(len(pairs))
    body += b"".join(field(name.encode()) + field(content) for name, content in pairs)
    return varint(len(body)) + body


@given(key=contents, value=contents, pairs=headers)
def test_a_batch_of_one_record_has_its_exact_size(key, value, pairs):
    """61 bytes of the batch and the record itself; headers as pairs or as a mapping."""
    assert batch_bytes(key, value, pairs) == 61 + len(encoded(key, value, pairs))
    mapping = dict(pairs)
    assert batch_bytes(key, value, mapping) == batch_bytes(key, value, list(mapping.items()))


@given(key=contents, value=contents, pairs=headers)
@example(key=None, value=None, pairs=[("\U0001f4b3" * 40, None)])
def test_the_upper_bound_is_never_below_the_exact_size(key, value, pairs):
    """Headers as pairs or as a mapping."""
    assert batch_bytes_max(key, value, pairs) >= batch_bytes(key, value, pairs)
    assert batch_bytes_max(key, value, dict(pairs)) >= batch_bytes(key, value, dict(pairs))


def test_a_record_in_memory_weighs_its_fields_and_a_little_more():
    """A record without headers that can be read counts as one without headers."""
    assert memory_bytes(None, None, None) == 64
    assert (
        memory_bytes(b"k", b"v" * 10, [("name", b"content"), ("n", None)])
        == 64 + 11 + 16 + 11 + 16 + 1
    )


@pytest.mark.parametrize(
    ("sizes", "bytes_max", "count"),
    [
        ([], 10, 0),
        ([4, 6, 1], 10, 2),
        ([4, 6, 1], 9, 1),
        ([4, 6, 1], 11, 3),
        ([20, 1], 10, 1),
        ([20, 1], 0, 1),
        ([0, 0, 5], 0, 2),
    ],
)
def test_records_are_counted_up_to_a_limit_in_bytes(sizes, bytes_max, count):
    """At least one if there is one, however large it is."""
    assert count_within(sizes, bytes_max) == count
