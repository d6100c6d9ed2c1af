"""The counts of pending messages by minute: the rows that a step writes, a cache of them in memory,
and the search for the next minute with pending messages.

A burst touches one minute. Messages that are due at random times of a year touch nearly as many
minutes in one step as there are messages in it: without the cache their ingest falls to a fifth
(measured with 20 million). The cache is an array for each day with a count that changed, 4 bytes a
minute, because a dictionary of minutes takes 25 times as much; before it would have more than
DAYS_MAX days it is emptied.

Keeps its part of law 1: no count is below 0."""

from array import array
from collections.abc import Mapping

from chronos.core.keys import MINUTE_MS, count_key, entry_key, entry_position, key_number
from chronos.core.shard.step import KeyValue, StoreView

DAY = 24 * 60
"""Minutes of a day."""

DAYS_MAX = 3_000
"""Days that are cached, 17 MB: eight years."""

UNREAD = 2**32 - 1
"""In place of a count that must be read from the store; one that is not smaller is never cached."""

COUNT_BYTES = 17
"""Bytes of a count with its key."""

_UNREAD_DAY = array("I", [UNREAD]) * DAY


def next_counted(view: StoreView, key: bytes, stop: bytes) -> bytes | None:
    """Return a key from `key` on before which no entry is pending, by the counts; None: none is
    before `stop`. Both are keys of entries after the cursor.

    A scan that met deleted entries only goes on there: it does not pass over those of minutes in
    which nothing is pending."""
    first = entry_position(key[:17])[0] // MINUTE_MS
    last = entry_position(stop[:17])[0] // MINUTE_MS
    rows, rest = view.scan(count_key(first), count_key(last + 1), 1, COUNT_BYTES)
    if not rows and rest is None:
        return None
    minute = key_number(rows[0][0] if rows else rest)  # type: ignore[arg-type]
    counted = max(key, entry_key(minute * MINUTE_MS, 0))
    return counted if counted < stop else None


class MinuteCounts:
    """Pending messages by minute of the epoch: those of the store, and those of them that are
    cached."""

    def __init__(self, view: StoreView) -> None:
        self._view = view
        self._days: dict[int, array[int]] = {}

    def changed(
        self, delta: Mapping[int, int], puts: list[KeyValue], deletes: list[bytes]
    ) -> dict[int, int]:
        """Return the new count of every minute that changes, and add its row to the write.

        `delta`: minute -> by how much its count changes."""
        days = self._days
        counts: dict[int, int] = {}
        unread: list[int] = []
        for minute, change in delta.items():
            if change:
                day = days.get(minute // DAY)
                count = UNREAD if day is None else day[minute % DAY]
                if count == UNREAD:
                    unread.append(minute)
                else:
                    counts[minute] = count + change
        if unread:
            rows = self._view.get([count_key(minute) for minute in unread])
            for minute, data in zip(unread, rows, strict=True):
                counts[minute] = delta[minute] + (
                    0 if data is None else int.from_bytes(data, "big")
                )
        for minute, count in counts.items():
            assert count >= 0, "a minute holds fewer messages than were settled in it"
            if count:
                puts.append((count_key(minute), count.to_bytes(8, "big")))
            else:
                deletes.append(count_key(minute))
        return counts

    def install(self, counts: Mapping[int, int]) -> None:
        """Remember counts that were written to the store."""
        days = self._days
        for minute, count in counts.items():
            number = minute // DAY
            day = days.get(number)
            if day is None:
                if len(days) >= DAYS_MAX:
                    days.clear()
                day = days[number] = _UNREAD_DAY[:]
            day[minute % DAY] = min(count, UNREAD)
