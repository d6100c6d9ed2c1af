"""A RocksDB whose writes are synced in groups: the storage of the embedded log.

A write is made under one lock and takes microseconds; then one of the waiting threads syncs
everything written so far, without the lock. A write counts as made, and is acknowledged, only once
it is synced (law 1). After a write or a sync has failed, RocksDB takes no more writes: the database
is reopened before the next one, and what it then holds counts. A thread that waited for a sync that
failed gets LogUnavailable: its write may be there or not."""

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from rocksdict import Cache, WriteBatch

from chronos.adapters.disk import free_bytes
from chronos.adapters.rocksdb import Database, tuned
from chronos.errors import LogUnavailable, NoSpace, Retry

BLOCK_CACHE_BYTES = 16 << 20
"""Readers read what was just written: the memtable and a few blocks."""

BLOB_BYTES_MIN = 16 << 10
"""Values of this size or more are kept in blob files."""

Ticket = tuple[int, int]
"""A write: the number of times the database was reopened before it, and the number of the write."""


class Journal:
    """A database that syncs. `lock` is shared with the owner; the callbacks are called with it
    held."""

    def __init__(
        self,
        path: Path,
        *,
        lock: threading.RLock,
        memtable_bytes: int,
        disk_reserve_bytes: int,
        on_synced: Callable[[int], None],
        on_reopened: Callable[[], None],
    ) -> None:
        """`on_synced` is called with the number of the last write that is synced."""
        self._path = path
        self._lock = lock
        self._memtable_bytes = memtable_bytes
        self._disk_reserve_bytes = disk_reserve_bytes
        self._on_synced = on_synced
        self._on_reopened = on_reopened
        self._changed = threading.Condition(lock)
        self._reopened = 0
        """Times the database was reopened."""
        self._written = 0
        """Writes made."""
        self._synced = 0
        """Writes that a crash would keep."""
        self._syncing = False
        self._failed = False
        self.closed = False
        self.db = self._open()

    def _open(self) -> Database:
        remedy = (
            f"It is the only copy of the log: bring {self._path} back from a backup, or move it "
            "and the stores beside it away to start empty. `chronos doctor` tells what can still "
            "be read."
        )
        options = tuned(
            cache=Cache(BLOCK_CACHE_BYTES),
            memtable_bytes=self._memtable_bytes,
            blob_bytes_min=BLOB_BYTES_MIN,
        )
        return Database(self._path, options, wal=True, remedy=remedy)

    def make_ready(self, *, gives_space: bool = False) -> None:
        """Make sure that a write is possible, before anything is decided about it. May release the
        lock for a while.

        `gives_space`: the caller needs no space, so the disk's reserve is not checked.
        """
        if self._failed:
            self._changed.wait_for(lambda: not self._syncing)
        if self.closed:
            raise LogUnavailable("the embedded log is closed")
        if self._failed:
            self._reopen()
        if not gives_space:
            self._check_space(self._disk_reserve_bytes)

    def _reopen(self) -> None:
        # Opening writes the content of the WAL as tables.
        self._check_space(self._disk_reserve_bytes + self._memtable_bytes)
        self._reopened += 1
        self.db.reopen()
        self._synced = self._written
        self._on_reopened()
        self._failed = False

    def is_short_of_space(self) -> bool:
        """Return whether writes are refused, or would be with one more memtable on the disk."""
        return free_bytes(self._path) < self._disk_reserve_bytes + self._memtable_bytes

    def _check_space(self, reserve_bytes: int) -> None:
        free = free_bytes(self._path)
        if free < reserve_bytes:
            raise NoSpace(
                f"the disk of {self._path} has {free >> 20} MiB left, less than "
                f"{reserve_bytes >> 20} MiB (limits.disk_reserve): make room"
            )

    def write(self, make: Callable[[], WriteBatch]) -> Ticket:
        """Write under the lock, after `make_ready`. If it raises, nothing was written."""
        try:
            self.db.write(make)
        except Retry:
            self._failed = True
            raise
        self._written += 1
        return self._reopened, self._written

    def last(self) -> Ticket:
        """The ticket of the last write."""
        with self._lock:
            return self._reopened, self._written

    def wait_synced(self, ticket: Ticket, timeout_s: float | None = None) -> None:
        """Return once the write is synced, by this thread for all or by another. Raises
        LogUnavailable."""
        reopened, write = ticket
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._lock:
                left_s = None if deadline is None else deadline - time.monotonic()
                in_time = self._changed.wait_for(
                    lambda: self._synced >= write or not self._syncing, left_s
                )
                if reopened == self._reopened and self._synced >= write:
                    return
                if reopened != self._reopened or self._failed:
                    raise LogUnavailable(
                        "the disk failed before a write was synced: it may be there or not"
                    )
                if not in_time:
                    raise LogUnavailable(
                        f"the disk did not sync in {timeout_s:g} s: the write may be there or not"
                    )
                self._syncing = True
                written = self._written
            self._sync(written)

    def _sync(self, written: int) -> None:
        failed = True
        try:
            with suppress(NoSpace):
                self.db.sync()
                failed = False
        finally:
            with self._lock:
                self._syncing = False
                if failed:
                    self._failed = True
                else:
                    self._synced = written
                    self._on_synced(written)
                self._changed.notify_all()

    def close(self) -> None:
        """Flush and close."""
        with self._lock:
            self.closed = True
            self._changed.wait_for(lambda: not self._syncing)
            self.db.close()


def puts(rows: Iterable[tuple[bytes, bytes]]) -> WriteBatch:
    """A batch that writes the rows."""
    batch = WriteBatch(raw_mode=True)
    put = batch.put
    for key, value in rows:
        put(key, value)
    return batch
