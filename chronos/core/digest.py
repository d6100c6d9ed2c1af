"""The digest of a shard: one short text that two replicas with the same progress record have in common.

It covers what a shard *means*: its state, everything pending, every word that still counts, and the counts. It does
not cover what the delete worker may drop at any moment (settled entries, words whose time is over, the trail), so
that it does not depend on when that ran. It is compared, never taken apart: a change of it takes the next version.
"""

import hashlib
from collections.abc import Iterator

import msgspec

from chronos.core.codec import FRESH, PENDING, pack_state, unpack_id_state, unpack_state
from chronos.core.keys import COUNT, ENTRY, EXPIRY, ID_STATE, OFFSET_MAX, STATE_KEY, entry_key, expiry_key
from chronos.core.step import StoreView

VERSION = b"\x01"

DIGEST_BYTES = 16
"""Enough to tell two stores apart: nobody makes them alike on purpose."""

PORTION_ROWS, PORTION_BYTES = 200, 1_000_000
"""Read at a time: it bounds the memory, and others get their turn in between."""

_pack = msgspec.msgpack.Encoder().encode
"""A row as bytes that say where they end, so that no two lists of rows look alike."""


def digest(view: StoreView, *, remembered_ms: int = 0) -> str:
    """The digest of a store that does not change meanwhile, in hexadecimal.

    Settled words count while they are not older than `remembered_ms` before the last progress record. That is at most
    what the delete worker keeps (`workers.delete.id_states_kept_ms`); replicas with different settings are compared with the
    least of them. With 0 only what is pending has to be the same.
    """
    (data,) = view.get([STATE_KEY])
    state = FRESH if data is None else unpack_state(data)
    kept_from_ms = max(0, state.progress_ms - remembered_ms)
    found = hashlib.blake2b(VERSION + pack_state(state), digest_size=DIGEST_BYTES)
    due_ms, offset = state.cursor
    behind = entry_key(due_ms, offset + 1) if offset < OFFSET_MAX else entry_key(due_ms + 1, 0)
    for rows in _portions(view, behind, _beyond(ENTRY)):
        found.update(b"".join(map(_pack, rows)))
    for rows in _portions(view, ID_STATE, _beyond(ID_STATE)):
        found.update(b"".join([_pack(row) for row in rows if _counts(row[1], kept_from_ms)]))
    # What the list of words to drop lacks would never be dropped.
    for rows in _portions(view, expiry_key(kept_from_ms, b""), _beyond(EXPIRY)):
        found.update(b"".join(map(_pack, rows)))
    for rows in _portions(view, COUNT, _beyond(COUNT)):
        found.update(b"".join(map(_pack, rows)))
    return found.hexdigest()


def _counts(data: bytes, kept_from_ms: int) -> bool:
    id_state = unpack_id_state(data)
    return id_state.state == PENDING or id_state.settled_ms >= kept_from_ms


def _beyond(space: bytes) -> bytes:
    """The first key behind a space."""
    return bytes([space[0] + 1])


def _portions(view: StoreView, start: bytes, stop: bytes) -> Iterator[list[tuple[bytes, bytes]]]:
    while rows := view.scan(start, stop, PORTION_ROWS, PORTION_BYTES):
        yield rows
        start = rows[-1][0] + b"\0"
