"""The store of a shard on RocksDB, without a write-ahead log: the delay and the progress partition are its WAL.

Rows reach the disk when a memtable is full and on `flush`, always as a prefix of what was written, because there is one
column family and every write is one batch. So after a crash the store is an earlier state of itself, and the positions in
that state say where to replay from. How rows are read and written safely is in `rocksdb.database`.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from rocksdict import Cache, WriteBatch

from chronos.adapters.rocksdb.database import Database, tuned
from chronos.errors import NoSpace

MEMTABLE_BYTES = 32 << 20
BLOCK_CACHE_BYTES = 64 << 20
BLOB_BYTES_MIN = 16 << 10
"""Values of this size or more are kept in blob files."""

BlockCache = Cache


def shared_cache(size_bytes: int) -> BlockCache:
    """Return a block cache for the stores of all shards: one bound for the process, used where it is needed."""
    return Cache(size_bytes)


class RocksStore:
    """One shard's state on disk. See `ports.Store`. Any thread may read; one writes."""

    def __init__(
        self,
        path: Path,
        *,
        block_cache: Cache | int = BLOCK_CACHE_BYTES,
        memtable_bytes: int = MEMTABLE_BYTES,
        blob_bytes_min: int = BLOB_BYTES_MIN,
        remedy: str | None = None,
        read_only: bool = False,
    ) -> None:
        """`remedy`: advice for an error about damage; by default to have the store rebuilt from the logs.

        `read_only` is for checkpoints: it changes no file.
        """
        cache = Cache(block_cache) if isinstance(block_cache, int) else block_cache
        options = tuned(cache=cache, memtable_bytes=memtable_bytes, blob_bytes_min=blob_bytes_min)
        remedy = remedy or f"Remove {path}: it is rebuilt from the logs. `chronos doctor` tells more."
        self._db = Database(path, options, wal=False, remedy=remedy, read_only=read_only)
        self.path = path
        self.replace = self._db.replace
        self._reopen_bytes = 2 * memtable_bytes
        self.get = self._db.get
        self.scan = self._db.scan
        self.snapshot = self._db.snapshot
        self.verify = self._db.verify
        self.flush = self._db.flush
        self.checkpoint = self._db.checkpoint
        self.size_bytes = self._db.size_bytes
        self.unflushed_bytes = self._db.unflushed_bytes
        self.background_error = self._db.background_error
        self.close = self._db.close

    @property
    def times_opened(self) -> int:
        """Number of times it was opened: writes that were not flushed before the last one may be lost."""
        return self._db.times_opened

    def reopen(self) -> None:
        """Reopen a store that failed to write, with what was flushed.

        RocksDB recovers from a full disk by itself, but not always: one of several stores still refused all writes minutes
        after there was space again (measured).
        """
        disk = os.statvfs(self._db.path)
        if disk.f_bavail * disk.f_frsize < self._reopen_bytes:
            raise NoSpace(
                f"{self._db.path} could not be written ({self.background_error()}). Make room on that disk: with"
                f" {self._reopen_bytes >> 20} MiB it goes on by itself, and nothing is lost."
            )
        self._db.reopen()

    def write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> None:
        """Apply the deletes, then the puts, all or nothing."""

        def make() -> WriteBatch:
            batch = WriteBatch(raw_mode=True)
            delete, put = batch.delete, batch.put
            for key in deletes:
                delete(key)
            for key, value in puts:
                put(key, value)
            return batch

        self._db.write(make)

    def delete_range(self, start: bytes, stop: bytes) -> None:
        """Delete `start <= key < stop` with one range tombstone; compaction frees the space."""

        def make() -> WriteBatch:
            batch = WriteBatch(raw_mode=True)
            batch.delete_range(start, stop)
            return batch

        if start < stop:
            self._db.write(make)
