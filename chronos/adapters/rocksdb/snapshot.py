"""A consistent view of a database: one iterator, which sees the rows as they were when it was opened.

The client has snapshots too, but measured: their iterators see later writes. An iterator keeps the tables and memtables of
its moment, and the directory locked, until it is closed.
"""

import threading
from collections.abc import Callable, Sequence

from rocksdict import DbClosedError, RdictIter


class DatabaseSnapshot:
    """See `ports.StoreSnapshot`. The database closes it before it closes itself."""

    def __init__(
        self, iterator: RdictIter, lock: threading.Lock, translated: Callable[[Exception, str], Exception]
    ) -> None:
        """`lock`: that of the database, held while it is closed."""
        self._iterator: RdictIter | None = iterator
        self._lock = lock
        self._translated = translated

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of the keys, in their order; None for a missing key."""
        values: list[bytes | None] = []
        for key in keys:
            rows = self.scan(key, key + b"\0", 1, 0)
            values.append(rows[0][1] if rows else None)
        return values

    def scan(self, start: bytes, stop: bytes, count_max: int, bytes_max: int) -> list[tuple[bytes, bytes]]:
        """Return rows with `start <= key < stop` in order, within both limits but at least one if there is one."""
        try:
            with self._lock:
                return self._scan(start, stop, count_max, bytes_max)
        except Exception as error:
            raise self._translated(error, "reading") from error

    def _scan(self, start: bytes, stop: bytes, count_max: int, bytes_max: int) -> list[tuple[bytes, bytes]]:
        iterator = self._iterator
        if iterator is None:
            raise DbClosedError
        rows: list[tuple[bytes, bytes]] = []
        size = 0
        valid, key_of, value_of, step = iterator.valid, iterator.key, iterator.value, iterator.next
        iterator.seek(start)
        while valid():
            key = key_of()
            if key >= stop or len(rows) >= count_max:
                return rows
            value = value_of()
            size += len(key) + len(value)
            if size > bytes_max and rows:
                return rows
            rows.append((key, value))
            step()
        # It ends at a damaged block as it does after the last row.
        iterator.status()
        return rows

    def close(self) -> None:
        """Release the iterator."""
        with self._lock:
            self.release()

    def release(self) -> None:
        """Close it; the caller holds the lock."""
        self._iterator = None
