"""The delete worker: deletes settled messages once their retention is over.

Keeps law 7, nothing pending is ever deleted: entries are deleted by range, up to the cursor of the time one retention
ago, and an id's state only if it is still the settled one that its expiry entry was written for, and forgotten: older than the horizon
that the master recorded (`horizon`), so that it decides nothing any more, whether or not this worker has run (law 9). The worker runs in the thread of its shard, between steps, one bounded batch at
a time.
"""

from chronos.core.codec import unpack_id_state
from chronos.core.keys import (
    CURSOR_HISTORY,
    ENTRY,
    EXPIRY,
    MINUTE_MS,
    cursor_history_key,
    entry_key,
    id_key,
    key_number,
)
from chronos.core.order import is_forgotten
from chronos.core.shard import Shard
from chronos.ports import Store
from chronos.workers.horizon import unpulled_ms

BATCH_KEYS = 1_000
"""Keys read in one step: a few milliseconds, so that no due message waits for the deletion."""

BATCH_BYTES = 1_000_000
"""Bytes of keys and values read in one step."""

ID_STATES_LONGER_MS = 3 * MINUTE_MS
"""Id states outlive their entries, which are deleted by whole minutes: an expired message must not be found as delivered."""

DELETE_EVERY_MS = 60_000
"""How often the worker looks for something to delete."""


def id_states_kept_ms(delivered_ms: int, deduplication_ms: int) -> int:
    """Return the shortest time for which an id's state is kept after it was settled: the deduplication window, and longer than its
    entry. It is kept for longer while records are not pulled."""
    return max(delivered_ms + ID_STATES_LONGER_MS, deduplication_ms)


class Deleter:
    """Deletes from the store of one shard."""

    def __init__(self, store: Store, shard: Shard, *, delivered_ms: int, deduplication_ms: int) -> None:
        self._store = store
        self._shard = shard
        self._delivered_ms = delivered_ms
        self.id_states_ms = id_states_kept_ms(delivered_ms, deduplication_ms)
        self._start = EXPIRY
        """Where the next batch of id states begins: a scan over what the batches before it deleted costs more than the batch."""

    def step(self, now_ms: int) -> int:
        """Delete one batch; return when to be called again, in epoch ms."""
        state = self._shard.state
        now_ms = min(now_ms, state.progress_ms)
        self._drop_entries(now_ms - self._delivered_ms)
        horizon_ms = state.horizon_ms
        if state.rules == 1:
            horizon_ms = min(now_ms, unpulled_ms(state)) - self.id_states_ms
        more = self._drop_id_states(horizon_ms)
        return now_ms if more else now_ms + DELETE_EVERY_MS

    def _drop_entries(self, before_ms: int) -> None:
        """Delete every entry at or before the cursor of that time.

        A minute has a row of the history if a record was applied in it: with the cursor at its beginning, and of all minutes since
        the row before. So what was settled before an outage goes by the first row after it, and not later than its id state.
        """
        if before_ms <= 0:
            return
        minute = before_ms // MINUTE_MS
        history = self._store.scan(CURSOR_HISTORY, cursor_history_key(minute + 1), BATCH_KEYS, BATCH_BYTES)
        if not history:
            return
        history_key, cursor_key = history[-1]
        through = history_key
        if key_number(history_key) < minute:
            through += b"\x00"
            later = self._store.scan(through, bytes([CURSOR_HISTORY[0] + 1]), 1, BATCH_BYTES)
            cursor_key = later[0][1] if later else cursor_key
        assert cursor_key <= entry_key(*self._shard.state.cursor), "the cursor history is ahead of the cursor"
        self._store.delete_range(ENTRY, cursor_key + b"\x00")
        self._store.delete_range(CURSOR_HISTORY, through)

    def _drop_id_states(self, before_ms: int) -> bool:
        """Delete a batch of id states that are forgotten at that horizon; return True if there may be more."""
        if before_ms <= 0:
            return False
        stop = EXPIRY + before_ms.to_bytes(8, "big")
        rows = self._store.scan(self._start, stop, BATCH_KEYS, BATCH_BYTES) if self._start < stop else []
        self._start = EXPIRY
        if not rows:
            return False
        ids = [key[9:] for key, _ in rows]
        id_states = self._store.get([id_key(message_id) for message_id in ids])
        deletes = [key for key, _ in rows]
        for (key, _), message_id, data in zip(rows, ids, id_states, strict=True):
            id_state = None if data is None else unpack_id_state(data)
            # One that was settled again, or a cancel noted, later than this row says has a row with that time.
            if id_state is not None and id_state.settled_ms <= key_number(key) and is_forgotten(id_state, before_ms):
                deletes.append(id_key(message_id))
        self._store.write([], deletes)
        if len(rows) < BATCH_KEYS:
            return False
        self._start = rows[-1][0] + b"\x00"
        return True
