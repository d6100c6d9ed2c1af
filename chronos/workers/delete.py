"""The delete worker: drops what the cursor left behind once its retention is over.

Law 7: nothing pending is ever deleted. Entries go by range, up to where the cursor stood when the retention began;
a word goes only if it is still the settled one that the expiry entry was written for. It runs in the thread of its
shard, between steps, a bounded portion at a time.
"""

from chronos.core.codec import PENDING, unpack_id_state
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
from chronos.core.shard import Shard
from chronos.ports import Store

PORTION = 1_000
"""Words looked at in one step: a few milliseconds, so that nothing due waits for the cleaning."""

ID_STATES_LONGER_MS = 3 * MINUTE_MS
"""Words outlive their entries, which go by whole minutes: an expired message must not be found as a delivered one."""

EVERY_MS = 60_000
"""How often to look for something to drop."""


def id_states_kept_ms(delivered_ms: int, deduplication_ms: int) -> int:
    """How long a settled word is kept at the least, after it was settled."""
    return max(delivered_ms + ID_STATES_LONGER_MS, deduplication_ms)


class Deleter:
    """Cleans the store of one shard."""

    def __init__(self, store: Store, shard: Shard, *, delivered_ms: int, deduplication_ms: int) -> None:
        self._store = store
        self._shard = shard
        self._delivered_ms = delivered_ms
        self._words_ms = id_states_kept_ms(delivered_ms, deduplication_ms)

    def step(self, now_ms: int) -> int:
        """Drop one portion; when to come again."""
        now_ms = min(now_ms, self._shard.state.progress_ms)
        self._drop_entries(now_ms - self._delivered_ms)
        more = self._drop_words(now_ms - self._words_ms)
        return now_ms if more else now_ms + EVERY_MS

    def _drop_entries(self, before_ms: int) -> None:
        """Everything at or behind where the cursor stood at that time."""
        if before_ms <= 0:
            return
        history = self._store.scan(CURSOR_HISTORY, cursor_history_key(before_ms // MINUTE_MS + 1), PORTION, 1_000_000)
        if not history:
            return
        stood = history[-1][1]
        assert stood <= entry_key(*self._shard.state.cursor), "the trail runs ahead of the cursor"
        self._store.delete_range(ENTRY, stood + b"\x00")
        self._store.delete_range(CURSOR_HISTORY, history[-1][0] + b"\x00")

    def _drop_words(self, before_ms: int) -> bool:
        """One portion of settled words; whether there is more."""
        if before_ms <= 0:
            return False
        stop = EXPIRY + before_ms.to_bytes(8, "big")
        rows = self._store.scan(EXPIRY, stop, PORTION, 1_000_000)
        if not rows:
            return False
        ids = [key[9:] for key, _ in rows]
        id_states = self._store.get([id_key(message_id) for message_id in ids])
        deletes = [key for key, _ in rows]
        for (key, _), message_id, data in zip(rows, ids, id_states, strict=True):
            id_state = None if data is None else unpack_id_state(data)
            if id_state is not None and id_state.state != PENDING and id_state.settled_ms == key_number(key):
                deletes.append(id_key(message_id))
        self._store.write([], deletes)
        return len(rows) == PORTION
