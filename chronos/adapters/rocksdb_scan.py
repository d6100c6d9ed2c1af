"""Scans of a RocksDB, and its snapshots. For `rocksdb` only, whose lock is held during each of them
and whose translation of errors applies.

A deleted row stays in memtables and tables until a compaction drops it, and an iterator passes over
it at 0.1 to 0.3 µs each while it holds the GIL. So a scan passes over about SKIPPED_MAX deleted
rows and then ends as a part (`set_max_skippable_internal_keys`). The iterator that gives up does
not tell where it is; `_stretches` finds how far a scan can go. Each stretch has a bound of its own,
so a scan passes over more than SKIPPED_MAX where deleted rows become rarer from one stretch to the
next. Two scans have no bound: one over thousands of deleted keys that begin alike, and one of a
snapshot, which has a single iterator."""

import threading
from collections.abc import Callable, Iterator, Sequence

from rocksdict import DbClosedError, Rdict, RdictIter, ReadOptions

KeyValue = tuple[bytes, bytes]

SKIPPED_MAX = 10_000
"""Deleted rows that one scan passes over, which takes one to three milliseconds."""

GAP_MAX = 1_000
"""Deleted rows in a row that a scan passes over before it measures stretches."""

STRETCH_BYTES = 17
"""Bytes after the common prefix of its bounds by which the stretches of a scan differ: enough for
an entry's due time and offset."""

SKIPPED = "Too many internal keys skipped"


class DatabaseSnapshot:
    """See `ports.StoreSnapshot`. The database closes it before it closes itself."""

    def __init__(
        self,
        iterator: RdictIter,
        lock: threading.Lock,
        translated: Callable[[Exception, str], Exception],
    ) -> None:
        """`lock`: that of the database, held while it is closed."""
        self._iterator: RdictIter | None = iterator
        self._lock = lock
        self._translated = translated

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of the keys, in their order; None for a missing key."""
        values: list[bytes | None] = []
        for key in keys:
            rows, _ = self.scan(key, key + b"\0", 1, 0)
            values.append(rows[0][1] if rows else None)
        return values

    def scan(
        self, start: bytes, stop: bytes, count_max: int, bytes_max: int
    ) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """See `ports.Store`. Its one iterator cannot be bounded, so that no scan ends as a part."""
        try:
            with self._lock:
                return self._scan(start, stop, count_max, bytes_max)
        except Exception as error:
            raise self._translated(error, "reading") from error

    def _scan(
        self, start: bytes, stop: bytes, count_max: int, bytes_max: int
    ) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        iterator = self._iterator
        if iterator is None:
            raise DbClosedError
        rows: list[tuple[bytes, bytes]] = []
        size = 0
        valid, key_of, value_of, step = iterator.valid, iterator.key, iterator.value, iterator.next
        iterator.seek(start)
        while valid():
            key = key_of()
            if key >= stop:
                return rows, None
            value = value_of()
            size += len(key) + len(value)
            if len(rows) >= count_max or (size > bytes_max and rows):
                return rows, key
            rows.append((key, value))
            step()
        # It ends at a damaged block as it does after the last row.
        iterator.status()
        return rows, None

    def close(self) -> None:
        """Release the iterator."""
        with self._lock:
            self.release()

    def release(self) -> None:
        """Close it; the caller holds the lock."""
        self._iterator = None


class Scan:
    """One scan, in passes. Each pass has a bound for the deleted rows in front of each of its rows,
    so that all passes together pass over SKIPPED_MAX at most.

    1. Read rows with a bound so small that it holds for every row asked for. Where a pass gives up,
       pass over the gap with a greater bound, and go on, up to half of SKIPPED_MAX.
    2. If no row was found, read ever longer stretches of keys until one gives up, or has a row."""

    def __init__(
        self,
        db: Rdict,
        start: bytes,
        stop: bytes | None,
        count_max: int,
        bytes_max: int,
        fill_cache: bool,
    ) -> None:
        self._db = db
        self._start = start
        self._stop = stop
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._fill_cache = fill_cache
        self._rows: list[KeyValue] = []
        self._bytes = 0
        self._left = SKIPPED_MAX // 2

    def run(self) -> tuple[list[KeyValue], bytes | None]:
        """Return rows, and where the next scan goes on; None at the end."""
        rows, start, gap = self._rows, self._start, 0
        while self._left > 0:
            had, wanted = len(rows), 1 if gap else min(self._count_max - len(rows), self._left)
            skipped_max = gap or max(1, min(GAP_MAX, self._left // (wanted + 2)))
            rest, gave_up = self._pass(start, self._stop, wanted, skipped_max)
            if rest is None or len(rows) >= self._count_max or self._bytes > self._bytes_max:
                return rows, rest
            start = rest
            if not gave_up:
                gap = 0
            elif not gap or len(rows) == had:
                gap = 16 * skipped_max
            if 2 * gap > self._left:
                break
        return (rows, start) if rows else self._leap(start)

    def _leap(self, start: bytes) -> tuple[list[KeyValue], bytes | None]:
        """Return the first row of a stretch that can be read at once, or none and its end."""
        begin, skipped_max = start, (SKIPPED_MAX // 2 + self._left) // 7
        for end in _stretches(start, self._stop):
            rest, gave_up = self._pass(begin, end, 1, skipped_max)
            if gave_up and begin == start and not self._rows:
                # Thousands of deleted ids with the same first bytes: stretches cannot part them.
                rest, gave_up = self._pass(begin, end, 1, 0)
            if gave_up or self._rows:
                return self._rows, end if rest is None else rest
            if end is None or end == self._stop:
                return [], None
            begin = end
        raise AssertionError("the last stretch ends where the scan does")

    def _pass(
        self, start: bytes, stop: bytes | None, wanted: int, skipped_max: int
    ) -> tuple[bytes | None, bool]:
        """Add rows, `wanted` at most; return where the next pass begins, None at `stop`, and
        whether this one gave up. It passes over `skipped_max` deleted rows (0: any number) in front
        of each row and behind the last one."""
        options = ReadOptions()
        options.fill_cache(self._fill_cache)  # type: ignore[call-arg]
        options.set_max_skippable_internal_keys(skipped_max)
        if stop is not None:
            options.set_iterate_upper_bound(stop)
        rows, bytes_max = self._rows, self._bytes_max
        had = len(rows)
        until = had + wanted
        size = self._bytes
        while True:
            # Twice as fast as the raw iterator, but it ends at a damaged block, and where it gives
            # up, as it does after the last row.
            for row in self._db.items(from_key=start, read_opt=options):
                if len(rows) >= until:
                    break
                size += len(row[0]) + len(row[1])  # type: ignore[arg-type]
                if size > bytes_max and rows:
                    break
                rows.append(row)  # type: ignore[arg-type]
            else:
                row = None
            self._bytes = size
            self._left -= skipped_max * (len(rows) - had + 2)
            if row is not None:
                return row[0], False  # type: ignore[return-value]
            if len(rows) > had:
                start = rows[-1][0] + b"\0"
            last = self._db.iter(options)
            last.seek(start)
            if not last.valid():
                try:
                    last.status()
                except Exception as error:
                    if SKIPPED in str(error):
                        return start, True
                    raise
                return None, False
            # A row was added just now, or the error is gone: read on.
            start, had = last.key(), len(rows)


def _stretches(start: bytes, stop: bytes | None) -> Iterator[bytes | None]:
    """Yield ends of ever longer stretches of keys, the first of which begins at `start`, each
    twice as long as the one before it; the last end is `stop`.

    Keys are compared as numbers of the STRETCH_BYTES after the common prefix of the bounds."""
    pairs = enumerate(zip(start, stop or b"", strict=False))
    size = next((at for at, (one, other) in pairs if one != other), 0) + STRETCH_BYTES
    at, step = int.from_bytes(start[:size].ljust(size, b"\0"), "big"), 1
    while (at := at + step) < 256**size:
        end = at.to_bytes(size, "big")
        if stop is not None and end >= stop:
            break
        yield end
        step *= 2
    yield stop
