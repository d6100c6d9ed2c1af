"""The digest of a shard: one short text, equal for any two replicas at the same progress record if
it is computed with the same `remembered_ms`, whatever their other settings are (law 9).

It covers the state, every pending message and every lane, every held record, the counts, the index
of occurrences that keep a wall-clock time, the states of pending ids, and, with `remembered_ms`,
the states of ids that were settled in that time, with their expiry rows. It does not cover what the
delete worker may drop at any moment (settled entries, forgotten id states, the cursor history), so
it does not depend on when that worker ran. Digests are only compared: any change of the computation
takes the next version."""

import hashlib
from collections.abc import Iterator

import msgspec

from chronos.core.keys import (
    COUNT,
    ENTRY,
    EXPIRY,
    HELD,
    ID_STATE,
    LANE,
    LANE_STATE,
    OFFSET_MAX,
    PARKED,
    QUEUE_STATE,
    STATE_KEY,
    WALL_CLOCK,
    entry_key,
    expiry_key,
)
from chronos.core.shard.codec import (
    FRESH,
    PENDING,
    pack_state,
    unpack_id_state,
    unpack_state,
)
from chronos.core.shard.order import kept_from_ms
from chronos.core.shard.step import StoreView, portions

VERSION = b"\x01"

DIGEST_BYTES = 16
"""Long enough that different stores never have the same digest by accident; no protection against
forgery."""

PORTION_ROWS, PORTION_BYTES = 200, 1_000_000
"""Rows and bytes of one scan: it bounds the memory and the time for which the GIL is held."""

_pack = msgspec.msgpack.Encoder().encode
"""Encodes a row as self-delimiting bytes, so that no two lists of rows have the same encoding."""


def digest(view: StoreView, *, remembered_ms: int = 0) -> str:
    """Return the digest, in hexadecimal, of a store that does not change meanwhile.

    Settled id states count if they are not forgotten, and are kept from a time at most
    `remembered_ms` before the last progress record. Replicas are compared with the same value.
    With 0 only pending messages have to be equal."""
    (data,) = view.get([STATE_KEY])
    state = FRESH if data is None else unpack_state(data)
    from_ms = max(state.horizon_ms, state.progress_ms - remembered_ms)
    raw_state = pack_state(FRESH) if data is None else data
    hashed = hashlib.blake2b(VERSION + raw_state, digest_size=DIGEST_BYTES)
    due_ms, offset = state.cursor
    after_cursor = (
        entry_key(due_ms, offset + 1) if offset < OFFSET_MAX else entry_key(due_ms + 1, 0)
    )
    for rows in _portions(view, after_cursor, _beyond(ENTRY)):
        hashed.update(b"".join(map(_pack, rows)))
    for rows in _portions(view, ID_STATE, _beyond(ID_STATE)):
        id_states = [unpack_id_state(data) for _, data in rows]
        counted = [
            _pack(row)
            for row, id_state in zip(rows, id_states, strict=True)
            if id_state.state == PENDING or kept_from_ms(id_state) >= from_ms
        ]
        hashed.update(b"".join(counted))
    # The expiry list is covered too: an id state that is missing from it would never be dropped.
    for rows in _portions(view, expiry_key(max(0, from_ms), b""), _beyond(EXPIRY)):
        hashed.update(b"".join(map(_pack, rows)))
    for rows in _portions(view, COUNT, _beyond(COUNT)):
        hashed.update(b"".join(map(_pack, rows)))
    for space in (LANE, PARKED, LANE_STATE, HELD, QUEUE_STATE, WALL_CLOCK):
        for rows in _portions(view, space, _beyond(space)):
            hashed.update(b"".join(map(_pack, rows)))
    return hashed.hexdigest()


def _beyond(space: bytes) -> bytes:
    """Return the first key after all keys with this prefix."""
    return bytes([space[0] + 1])


def _portions(view: StoreView, start: bytes, stop: bytes) -> Iterator[list[tuple[bytes, bytes]]]:
    return portions(view, start, stop, PORTION_ROWS, PORTION_BYTES)
