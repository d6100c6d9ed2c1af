"""The store of a shard in memory: the same results as on disk, and the same losses in a crash.

For tests and simulation: `crash()` returns the store as a disk would have kept it, with everything
that was flushed and nothing else. It has no size limit and is never damaged."""

from bisect import bisect_left, insort
from collections.abc import Sequence
from pathlib import Path

import msgspec

from chronos.errors import ConfigurationError, Retry

ROWS = "rows"
"""The one file of a checkpoint."""


SKIPPED_MAX = 10_000
"""Deleted rows that a scan passes over before it ends as a part."""


class MemoryStore:
    """Rows in a dict, with a sorted list of its keys. See `ports.Store`. For one thread."""

    def __init__(self, *, skipped_max: int = SKIPPED_MAX) -> None:
        self._rows: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        self._deleted: list[bytes] = []
        """Keys of rows that were deleted one by one and not compacted, in order."""
        self._skipped_max = skipped_max
        self._flushed: dict[bytes, bytes] = {}
        self._closed = False

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of the keys, in their order; None for a missing key."""
        self._check_open()
        return [self._rows.get(key) for key in keys]

    def scan(
        self, start: bytes, stop: bytes, count_max: int, bytes_max: int
    ) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """See `ports.Store`."""
        self._check_open()
        last = bisect_left(self._deleted, start) + self._skipped_max
        part = min(stop, self._deleted[last]) if last < len(self._deleted) else stop
        rows: list[tuple[bytes, bytes]] = []
        size = 0
        for at in range(bisect_left(self._keys, start), len(self._keys)):
            key = self._keys[at]
            if key >= part:
                break
            value = self._rows[key]
            size += len(key) + len(value)
            if len(rows) >= count_max or (size > bytes_max and rows):
                return rows, key
            rows.append((key, value))
        return rows, part if start < part < stop else None

    def write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> None:
        """Apply the deletes, then the puts."""
        self._check_open()
        for key in deletes:
            if self._rows.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]
                insort(self._deleted, key)
        for key, value in puts:
            if key not in self._rows:
                insort(self._keys, key)
                at = bisect_left(self._deleted, key)
                if self._deleted[at : at + 1] == [key]:
                    del self._deleted[at]
            self._rows[key] = value

    def delete_range(self, start: bytes, stop: bytes) -> None:
        """Delete `start <= key < stop`."""
        self._check_open()
        first, end = bisect_left(self._keys, start), bisect_left(self._keys, stop)
        for key in self._keys[first:end]:
            del self._rows[key]
        del self._keys[first:end]

    def compact(self) -> bool:
        """Forget which rows were deleted."""
        self._check_open()
        had, self._deleted = bool(self._deleted), []
        return had

    def snapshot(self) -> "MemoryStore":
        """Return a copy."""
        self._check_open()
        copy = MemoryStore()
        copy._rows, copy._keys = dict(self._rows), list(self._keys)
        return copy

    def flush(self) -> None:
        """Make what was written so far survive a crash."""
        self._check_open()
        self._flushed = dict(self._rows)

    def crash(self) -> "MemoryStore":
        """Close this store without flushing, and return what a disk would hold if the process had
        been killed now."""
        survivor = MemoryStore()
        survivor.write(list(self._flushed.items()), [])
        survivor.flush()
        self._closed = True
        return survivor

    def checkpoint(self, path: Path) -> None:
        """Flush, and write all rows to one file in a new folder; `restored` opens it."""
        self.flush()
        if path.exists():
            raise ConfigurationError(
                [f"{path} is there already: a checkpoint goes into a folder of its own"]
            )
        path.mkdir(parents=True)
        (path / ROWS).write_bytes(msgspec.msgpack.encode(list(self._rows.items())))

    @classmethod
    def restored(cls, path: Path) -> "MemoryStore":
        """Open a checkpoint; an empty store where there is none."""
        store = cls()
        if (path / ROWS).exists():
            store.write(
                msgspec.msgpack.decode((path / ROWS).read_bytes(), type=list[tuple[bytes, bytes]]),
                [],
            )
            store.flush()
        return store

    def verify(self) -> int:
        """Return the number of rows; memory has no checksums."""
        self._check_open()
        return len(self._rows)

    def size_bytes(self) -> int:
        """Return the bytes of all keys and values."""
        return sum(len(key) + len(value) for key, value in self._rows.items())

    def background_error(self) -> str | None:
        """Return None: a store in memory takes every write."""
        return None

    @property
    def is_open(self) -> bool:
        """Whether it is open."""
        return not self._closed

    def open(self) -> None:
        """Open it again, with what was flushed."""
        self._rows, self._keys = dict(self._flushed), sorted(self._flushed)
        self._closed = False

    def reopen(self) -> None:
        """Nothing to do: writes never fail."""

    def unflushed_bytes(self) -> int:
        """Return the bytes that a crash would lose."""
        changed = self._rows.items() ^ self._flushed.items()
        return sum(len(key) + len(value) for key, value in changed)

    def close(self) -> None:
        """Flush and close."""
        if not self._closed:
            self.flush()
            self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise Retry("the store is closed")
