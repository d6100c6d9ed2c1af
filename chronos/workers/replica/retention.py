"""The delete worker: deletes settled messages from a shard's store once their retention is over.

Keeps law 7, nothing pending is ever deleted: entries are deleted by range, up to the cursor of the
time one retention ago. The state of an id is deleted only if it is still the settled one that its
expiry entry was written for, and is older than the horizon that the master recorded
(`workers.step.horizon`): then no decision depends on it any more, whether or not this worker has
run (law 9). The worker runs in the thread of its shard, between steps, one bounded batch at a time.
"""

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
from chronos.core.shard.codec import unpack_id_state
from chronos.core.shard.order import is_forgotten
from chronos.core.shard.shard import Shard
from chronos.ports import Store

BATCH_KEYS = 1_000
"""Keys read in one step: a few milliseconds, so that no due message waits for the deletion."""

BATCH_BYTES = 1_000_000
"""Bytes of keys and values read in one step."""

ID_STATES_LONGER_MS = 3 * MINUTE_MS
"""How much longer the state of an id is kept than its entry. Entries are deleted by whole minutes,
and a message whose entry is left without a state reads as delivered, also if it expired."""

DELETE_EVERY_MS = 60_000
"""Pause of the worker when there is nothing to delete."""


def id_states_kept_ms(delivered_ms: int, deduplication_ms: int) -> int:
    """Return the shortest time for which the state of an id is kept after it was settled: the
    deduplication window, and longer than its entry. It is kept for longer while there are records
    that are not pulled."""
    return max(delivered_ms + ID_STATES_LONGER_MS, deduplication_ms)


class Deleter:
    """The delete worker of one shard."""

    def __init__(
        self, store: Store, shard: Shard, *, delivered_ms: int, deduplication_ms: int
    ) -> None:
        self._store = store
        self._shard = shard
        self._delivered_ms = delivered_ms
        self.id_states_ms = id_states_kept_ms(delivered_ms, deduplication_ms)
        self._start = EXPIRY
        """Where the next batch of id states begins: a scan over what the batches before it deleted
        costs more than the batch."""

    def step(self, now_ms: int) -> int:
        """Delete one batch; return when to be called again, in epoch ms."""
        state = self._shard.state
        now_ms = min(now_ms, state.progress_ms)
        self._drop_entries(now_ms - self._delivered_ms)
        more = self._drop_id_states(state.horizon_ms)
        return now_ms if more else now_ms + DELETE_EVERY_MS

    def _drop_entries(self, before_ms: int) -> None:
        """Delete every entry at or before the cursor of that time.

        The cursor history has a row for each minute in which a record was applied: the cursor at
        the beginning of that minute, and of all minutes since the row before. So the entries that
        were settled before an outage are deleted by the first row after it, and not later than
        their id states."""
        if before_ms <= 0:
            return
        minute = before_ms // MINUTE_MS
        history, _ = self._store.scan(
            CURSOR_HISTORY, cursor_history_key(minute + 1), BATCH_KEYS, BATCH_BYTES
        )
        if not history:
            return
        history_key, cursor_key = history[-1]
        through = history_key
        if key_number(history_key) < minute:
            through += b"\x00"
            later, _ = self._store.scan(through, bytes([CURSOR_HISTORY[0] + 1]), 1, BATCH_BYTES)
            cursor_key = later[0][1] if later else cursor_key
        assert cursor_key <= entry_key(*self._shard.state.cursor), (
            "the cursor history is ahead of the cursor"
        )
        self._store.delete_range(ENTRY, cursor_key + b"\x00")
        self._store.delete_range(CURSOR_HISTORY, through)

    def _drop_id_states(self, before_ms: int) -> bool:
        """Delete a batch of id states that are forgotten at this horizon; return whether there may
        be more."""
        if before_ms <= 0:
            return False
        stop = EXPIRY + before_ms.to_bytes(8, "big")
        rows, rest = (
            self._store.scan(self._start, stop, BATCH_KEYS, BATCH_BYTES)
            if self._start < stop
            else ([], None)
        )
        self._start = rest or EXPIRY
        if not rows:
            return rest is not None
        ids = [key[9:] for key, _ in rows]
        id_states = self._store.get([id_key(message_id) for message_id in ids])
        deletes = [key for key, _ in rows]
        for (key, _), message_id, data in zip(rows, ids, id_states, strict=True):
            id_state = None if data is None else unpack_id_state(data)
            # A state that was settled again later, or noted a later cancel, has another row.
            if (
                id_state is not None
                and id_state.settled_ms <= key_number(key)
                and is_forgotten(id_state, before_ms)
            ):
                deletes.append(id_key(message_id))
        self._store.write([], deletes)
        return rest is not None
