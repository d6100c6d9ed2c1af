"""RocksDB: one column family of raw bytes, with its errors translated (`Database`), and the store
of a shard on it (`RocksStore`, a `ports.Store`).

`Database` is shared by the store and the embedded log (`embedded.journal`); it does not interpret
the rows. It keeps two promises that the client, rocksdict, does not: a read never ends early
without an error at a damaged block, and no write waits for a flush or a compaction while it holds
the GIL.

`RocksStore` has no write-ahead log. Its rows reach the disk when a memtable is full, and on
`flush`, `checkpoint` and `close`, always as a prefix of what was written, because there is one
column family and every write is one batch. So after a crash the store is an earlier state of
itself, and the positions in that state say where to replay from.

The log files of RocksDB, WAL and MANIFEST, consist of blocks of 32 KiB; a record in them is crc
u32, length u16, type u8 (little-endian), payload. RocksDB checks the crc itself, but misses two
kinds of single flipped bits (measured): a type it does not expect makes it loop for ever, and a
length that points beyond the end of the file makes the rest of the file look like a write torn by a
power cut, which it drops without an error. `check_records` finds both, except such a length in the
last record of a file: that record cannot be told from a torn one. A power cut may also leave a file
that has grown to its new size, with zeros where the end of the write was to be; RocksDB takes that
for damage, so `drop_torn_tail` cuts it off.

RocksDB's own snapshots are not used: their iterators see later writes (measured). An iterator keeps
the tables and memtables of its moment, and the directory locked, until it is closed."""

import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

import structlog
from rocksdict import (
    AccessType,
    BlockBasedIndexType,
    BlockBasedOptions,
    BottommostLevelCompaction,
    Cache,
    Checkpoint,
    CompactOptions,
    DbClosedError,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from chronos.adapters.disk import free_bytes
from chronos.adapters.rocksdb_scan import SKIPPED_MAX, DatabaseSnapshot, KeyValue, Scan
from chronos.core.keys import EXPIRY, ID_STATE
from chronos.errors import (
    ChronosError,
    ConfigurationError,
    NoSpace,
    Retry,
    Stop,
    StoreCorrupt,
    StoreInUse,
)

log = structlog.get_logger("chronos.store")

BLOCK_BYTES = 32 * 1024
HEADER_BYTES = 7
TYPES = range(1, 5)
"""Full, first, middle, last. The other types belong to features that Chronos does not use."""
UNFINISHED = (2, 3)
"""First and middle: the record goes on."""

SECTOR_BYTES = 512
"""The least that a disk writes or leaves unwritten."""


def check_records(file: Path, remedy: str) -> None:
    """Raise StoreCorrupt if the file holds a record that RocksDB would misread."""
    with file.open("rb") as log:
        block_at = 0
        while block := log.read(BLOCK_BYTES):
            at = _first_bad(block)
            if at is not None:
                raise StoreCorrupt(f"{file} is damaged at byte {block_at + at}. {remedy}")
            block_at += len(block)


def drop_torn_tail(file: Path) -> None:
    """Cut off the last write of a write-ahead log if the file ends with zeros in its place. Any
    other file stays as it is."""
    with file.open("r+b") as wal:
        size = wal.seek(0, os.SEEK_END)
        wal.seek(max(0, size - SECTOR_BYTES))
        if size < SECTOR_BYTES or any(wal.read()):
            return
        wal.seek(0)
        content = wal.read()
        zeros_at = len(content.rstrip(b"\0"))
        start = end = kind = 0
        while True:
            # No header fits into the last bytes of a block.
            left = -end % BLOCK_BYTES
            at = end + left if left < HEADER_BYTES else end
            header = content[at : at + HEADER_BYTES]
            if len(header) < HEADER_BYTES or header[6] not in TYPES:
                break
            start = at
            kind, end = _header(content, start)
        if kind and zeros_at < end and not _is_sound(content[start:end]):
            torn_at = start
        elif at < zeros_at < at + HEADER_BYTES or (kind in UNFINISHED and zeros_at <= end):
            torn_at = end
        else:
            return
        wal.truncate(torn_at)
    log.warning("a write that a power cut tore was dropped", path=str(file), bytes=size - torn_at)


def _first_bad(block: bytes) -> int | None:
    at = 0
    while at + HEADER_BYTES <= len(block):
        kind, end = _header(block, at)
        if kind == 0 and not any(block[at:]):
            return None  # space reserved and not used
        if kind not in TYPES:
            return at
        if end > len(block):
            # Nothing is ever written after a torn record.
            return at if _holds_a_record(block, at + 1) else None
        at = end
    return None


def _header(block: bytes, at: int) -> tuple[int, int]:
    """Type of a record, and its end."""
    length = block[at + 4] | block[at + 5] << 8
    return block[at + 6], at + HEADER_BYTES + length


def _holds_a_record(block: bytes, start: int) -> bool:
    for at in range(start, len(block) - HEADER_BYTES + 1):
        kind, end = _header(block, at)
        if kind in TYPES and end <= len(block) and _is_sound(block[at:end]):
            return True
    return False


def _is_sound(record: bytes) -> bool:
    return int.from_bytes(record[:4], "little") == _masked(_crc32c(record[6:]))


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _table_entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_TABLE = [_table_entry(byte) for byte in range(256)]


KEYS_MAX = 1_000
"""Keys of one multi-get, which holds the GIL for 0.7 µs a key."""

STALL_MAX_S = 30.0
"""How long a write waits for RocksDB to flush or compact before it fails with nothing written."""

STALL_POLL_S = 0.002
"""Pause before RocksDB is tried again after a write stall; it has no notification."""

VERIFY_ROWS, VERIFY_BYTES = 1_000, 4_000_000
"""Rows and bytes read at a time while verifying, so that other threads run in between."""

OPEN_FILES_MAX = 256
"""Open tables per database. Each costs a file descriptor and some memory."""

TABLE_BYTES = 128 << 20
"""Size of a table: with OPEN_FILES_MAX, 32 GB can be searched without opening one."""

FILTER_PART_BYTES = 16 * 1024
"""Size of a part of a table's index or filter, as that of a block."""

MEMTABLE_FILTER_SHARE = 0.01
"""Share of a memtable's memory that its filter takes: ten bits a row of 100 bytes."""

L0_FILES_MAX = 40
"""Tables in level 0, each of which every read must search, at which writes stall. Compaction begins
at 4."""

FIRST_MANIFEST = "MANIFEST-000001"
"""Written before the first CURRENT and removed soon after it: alone, it is the remains of a kill
while creating a database."""

# Parts of RocksDB's error texts; the client raises one class for all errors.
NO_SPACE = (
    "No space left on device",
    "Disk quota exceeded",
    "File too large",
    "Writer has previous error",
)
"""The last one is of a thread that syncs or closes the WAL after a write of another thread has
failed, which reported the reason: a disk that is damaged, and not only full, ends the process with
that first error."""
NOT_WRITABLE = (
    "Permission denied",
    "Read-only file system",
    "Not a directory",
    "Operation not permitted",
)
TOO_MANY_FILES = "Too many open files"
SHUTDOWN = "Shutdown in progress"
STALLED = "Write stall"


def tuned(*, cache: Cache, memtable_bytes: int, blob_bytes_min: int) -> Options:
    """Options that bound memory by the cache and two memtables, for any number of rows."""
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_block_size(16 * 1024)
    table.set_format_version(5)
    table.set_bloom_filter(10, False)
    # Filters in parts: the filter of a whole table has more than a megabyte, for which a shard of
    # the cache may be too small, so that each look-up of an id would read it again (measured).
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_metadata_block_size(FILTER_PART_BYTES)
    table.set_pin_top_level_index_and_filter(True)
    # By default the indexes and filters of every open table stay in memory, without a bound.
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)

    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_paranoid_checks(True)
    options.set_max_open_files(OPEN_FILES_MAX)
    options.set_target_file_size_base(TABLE_BYTES)
    # An id that is new is in no table and no memtable; without a filter, the search in a memtable
    # takes longer than that in all tables (measured).
    options.set_memtable_prefix_bloom_ratio(MEMTABLE_FILTER_SHARE)
    options.set_memtable_whole_key_filtering(True)
    # A torn record at the very end was never acknowledged; damage anywhere else must not be taken
    # for the end.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    _bound_memory(options, memtable_bytes)
    _use_blob_files(options, blob_bytes_min)
    _bound_info_log(options)
    return options


def _bound_memory(options: Options, memtable_bytes: int) -> None:
    options.set_write_buffer_size(memtable_bytes)
    options.set_max_write_buffer_number(2)
    # A slowed write would sleep inside RocksDB while it holds the GIL: take it at once, or refuse
    # it.
    options.set_level_zero_slowdown_writes_trigger(L0_FILES_MAX)
    options.set_level_zero_stop_writes_trigger(L0_FILES_MAX)
    options.set_soft_pending_compaction_bytes_limit(0)
    options.set_hard_pending_compaction_bytes_limit(0)
    options.set_max_background_jobs(2)
    options.set_compaction_readahead_size(1 << 20)


def _use_blob_files(options: Options, blob_bytes_min: int) -> None:
    options.set_enable_blob_files(True)
    options.set_min_blob_size(blob_bytes_min)
    options.set_blob_compression_type(DBCompressionType.lz4())
    options.set_blob_file_size(64 << 20)
    options.set_enable_blob_gc(True)


def _bound_info_log(options: Options) -> None:
    options.set_max_log_file_size(1 << 20)
    options.set_keep_log_file_num(3)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)


class Database:
    """An open RocksDB. Any thread may call; every call but `sync`, `flush`, `checkpoint` and
    `compact` is short.

    One lock around the short calls costs nothing, because they hold the GIL anyway. It ensures that
    no iterator is open when the database is closed, which would keep the directory locked."""

    def __init__(
        self,
        path: Path,
        options: Options,
        *,
        wal: bool,
        remedy: str,
        read_only: bool = False,
        opened: bool = True,
    ) -> None:
        """`remedy`: advice for an error about damage. `read_only` changes no file; no other process
        may write to these files. `opened`: open it at once."""
        self.path = path
        self._read_only = read_only
        self._access = AccessType.read_only() if read_only else AccessType.read_write()
        self._remedy = remedy
        self._lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._compact_lock = threading.Lock()
        self._unlogged = _write_options(wal=False)
        self._write_options = _write_options(wal=wal)
        self._options = options
        self._snapshots: WeakSet[DatabaseSnapshot] = WeakSet()
        self.times_opened = 0
        """Number of times it was opened: writes that were not flushed before the last one may be
        lost."""
        self._not_opened: ChronosError | None = None
        """Why it could not be opened: the reason why every call fails until it is open."""
        self._db: Rdict = _CLOSED
        if opened:
            self.open()

    @property
    def is_open(self) -> bool:
        """Whether it is open."""
        return self._db is not _CLOSED

    def open(self) -> None:
        """Open the files, which are created if there are none."""
        self.times_opened += 1
        try:
            self._check_complete()
            self.path.mkdir(parents=True, exist_ok=True)
            # Without the column family the client takes the options of the last process from the
            # folder: no filters, a cache of 8 MB for each database, and the settings of that time.
            self._db = Rdict(
                str(self.path),
                self._options,
                column_families={"default": self._options},
                access_type=self._access,
            )
            self._check_blobs()
            self._not_opened = None
        except ChronosError as error:
            self._not_opened = error
            raise
        except Exception as error:
            self._not_opened = self._translated(error, "opening")
            raise self._not_opened from error

    def reopen(self) -> None:
        """Close and open again, as after a crash: without a WAL, what was not flushed is lost."""
        with suppress(ChronosError):  # closing fails to flush, as known before
            self.close()
        self.open()

    def replace(self, folder: Path) -> None:
        """Replace this database by the one in `folder`, which is moved here; the old content is
        deleted. If it raises before the move, the old content is here. After a kill,
        `finish_replacement` does the rest."""
        replaced = _replaced(self.path)
        try:
            shutil.rmtree(replaced, ignore_errors=True)
            with suppress(ChronosError):
                self.close()
            self.path.rename(replaced)
            try:
                folder.rename(self.path)
            except OSError:
                replaced.rename(self.path)
                raise
        except OSError as error:
            raise self._translated(error, "replacing") from error
        self.open()
        shutil.rmtree(replaced, ignore_errors=True)

    def _check_complete(self) -> None:
        if not self.path.is_dir():
            return
        logs = [*self.path.glob("MANIFEST-*"), *self.path.glob("*.log")]
        # Without CURRENT RocksDB takes the directory for a new one and deletes what is in it.
        if not (self.path / "CURRENT").exists():
            if all(log.name == FIRST_MANIFEST for log in logs) and not any(self.path.glob("*.sst")):
                return
            raise StoreCorrupt(f"{self.path}/CURRENT is missing. {self._remedy}")
        wal = max(self.path.glob("*.log"), default=None)
        if wal is not None and not self._read_only:
            drop_torn_tail(wal)
        for log in logs:
            check_records(log, self._remedy)

    def _check_blobs(self) -> None:
        # RocksDB checks tables when it opens them, but blob files only when a value in them is
        # read.
        sizes = [blob.stat().st_size for blob in self.path.glob("*.blob")]
        count = self._property("num-blob-files")
        size = self._property("total-blob-file-size")
        if len(sizes) < count or sum(sizes) < size:
            self.close()
            raise StoreCorrupt(
                f"{self.path}: {count} blob files of {size} bytes should be there,"
                f" {len(sizes)} of {sum(sizes)} are. {self._remedy}"
            )

    def _property(self, name: str) -> int:
        return self._db.property_int_value(f"rocksdb.{name}") or 0

    # --- reading

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of the keys, in their order; None for a missing key."""
        values: list[bytes | None] = []
        for at in range(0, len(keys), KEYS_MAX):
            try:
                with self._lock:
                    values += self._db.get(list(keys[at : at + KEYS_MAX]))  # type: ignore[arg-type]
            except Exception as error:
                raise self._translated(error, "reading") from error
        return values

    def scan(
        self,
        start: bytes,
        stop: bytes | None,
        count_max: int,
        bytes_max: int,
        *,
        fill_cache: bool = True,
    ) -> tuple[list[KeyValue], bytes | None]:
        """See `ports.Store`."""
        try:
            with self._lock:
                return Scan(self._db, start, stop, count_max, bytes_max, fill_cache).run()
        except Exception as error:
            raise self._translated(error, "reading") from error

    def rows(
        self,
        start: bytes,
        stop: bytes | None,
        count_max: int,
        bytes_max: int,
        *,
        fill_cache: bool = True,
    ) -> list[KeyValue]:
        """Return the first rows with `start <= key < stop` in order, within both limits, at least
        one if there is one; other calls come in between while it passes over deleted rows."""
        position: bytes | None = start
        while position is not None:
            rows, position = self.scan(position, stop, count_max, bytes_max, fill_cache=fill_cache)
            if rows:
                return rows
        return []

    def snapshot(self) -> DatabaseSnapshot:
        """Return a view of the rows as they are now. It keeps files and memory until it is
        closed."""
        options = ReadOptions()
        options.fill_cache(False)  # type: ignore[call-arg]
        try:
            with self._lock:
                found = DatabaseSnapshot(self._db.iter(options), self._lock, self._translated)
                self._snapshots.add(found)
        except Exception as error:
            raise self._translated(error, "reading") from error
        return found

    def last_key(self, start: bytes, stop: bytes) -> bytes | None:
        """Return the greatest key with `start <= key < stop`; None where there is none."""
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(stop)
        try:
            with self._lock:
                iterator = self._db.iter(bounds)
                iterator.seek_to_last()
                if iterator.valid():
                    key: bytes = iterator.key()
                    return key if key >= start else None
                iterator.status()
                return None
        except Exception as error:
            raise self._translated(error, "reading") from error

    def verify(self) -> int:
        """Read every row, check every checksum without filling the cache, and return the number of
        rows."""
        count, start = 0, b""
        while rows := self.rows(start, None, VERIFY_ROWS, VERIFY_BYTES, fill_cache=False):
            count += len(rows)
            start = rows[-1][0] + b"\0"
        return count

    # --- writing

    def write(self, make: Callable[[], WriteBatch]) -> None:
        """Write a whole batch or nothing; it is durable after `sync` (with a WAL) or `flush`.

        `make` is called for every attempt, because the client consumes a batch even when it does
        not write it."""
        while True:
            batch = make()
            try:
                with self._lock:
                    self._db.write(batch, self._write_options)
                return
            except Exception as error:
                if STALLED not in str(error):
                    raise self._translated(error, "writing") from error
            self._wait_while_stalled()

    def _wait_while_stalled(self) -> None:
        deadline = time.monotonic() + STALL_MAX_S
        while (refusal := self._refusal()) is not None and STALLED in refusal:
            if time.monotonic() > deadline:
                raise NoSpace(
                    f"{self.path}: the disk does not keep up: no write in {STALL_MAX_S:g} s"
                )
            time.sleep(STALL_POLL_S)

    def _refusal(self) -> str | None:
        # An empty write changes nothing and is refused like any other. RocksDB's counter of errors
        # does not help: it never falls.
        try:
            with self._lock:
                self._db.write(WriteBatch(raw_mode=True), self._unlogged)
        except Exception as error:
            return str(error)
        return None

    def sync(self) -> None:
        """Sync the WAL. Other threads may read and write meanwhile."""
        self._slowly(self._sync_lock, "syncing", lambda: self._db.flush_wal(True))

    def flush(self) -> None:
        """Write the memtables to tables. Other threads may read and write meanwhile."""
        self._slowly(self._sync_lock, "flushing", lambda: self._db.flush())

    def checkpoint(self, path: Path) -> None:
        """Copy what was written to a folder that must not exist yet, with hard links on the same
        disk."""
        if path.exists():
            raise ConfigurationError(
                [f"{path} is there already: a checkpoint goes into a folder of its own"]
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        # Measured: it holds the GIL while it flushes. After this flush there is next to nothing
        # left.
        self.flush()
        self._slowly(self._sync_lock, "copying", lambda: self._checkpoint(path))

    def _checkpoint(self, path: Path) -> None:
        if self._db is _CLOSED:
            raise DbClosedError
        Checkpoint(self._db).create_checkpoint(str(path))

    def compact(self, start: bytes, stop: bytes) -> None:
        """Compact a range, which frees the space of what was deleted in it."""
        # By default RocksDB moves a file with deletions down a level as it is where nothing lies
        # below it, and they stay in it.
        options = CompactOptions()
        options.set_bottommost_level_compaction(BottommostLevelCompaction.force_optimized())
        self._slowly(
            self._compact_lock,
            "compacting",
            lambda: self._db.compact_range(start, stop, options),
        )

    def _slowly(self, lock: threading.Lock, doing: str, do: Callable[[], None]) -> None:
        try:
            # The GIL is free meanwhile, and the database must not be closed during the call.
            with lock:
                do()
        except Exception as error:
            raise self._translated(error, doing) from error

    def background_error(self) -> str | None:
        """Return why RocksDB refuses all writes at the moment; None when it takes them or
        stalls."""
        refusal = self._refusal()
        return None if refusal is not None and STALLED in refusal else refusal

    def unflushed_bytes(self) -> int:
        """Return about how many bytes would be lost, or read from the WAL again, if the process
        ended now."""
        return self._property("cur-size-all-mem-tables")

    def size_bytes(self) -> int:
        """Return the bytes on disk."""
        size = 0
        for file in self.path.glob("*"):
            try:
                size += file.stat().st_size
            except FileNotFoundError:
                continue  # compaction has just removed it
        return size

    def close(self) -> None:
        """Flush and close; closed even if this raises. A second call does nothing. A compaction
        that is running is cancelled, after the flush: RocksDB refuses to flush then."""
        is_cancelled = self._compact_lock.locked()
        if is_cancelled:
            with suppress(ChronosError):
                self.flush()
            with suppress(DbClosedError):
                self._db.cancel_all_background(False)
        with self._compact_lock, self._sync_lock, self._lock:
            for snapshot in self._snapshots:
                snapshot.release()
            try:
                self._db.close()
            except DbClosedError:
                return
            except Exception as error:
                if not (is_cancelled and SHUTDOWN in str(error)):
                    raise self._translated(error, "closing") from error
            finally:
                # Dropping the last reference closes it even where `close` failed.
                self._db = _CLOSED

    # --- errors

    def _translated(self, error: Exception, doing: str) -> ChronosError:
        """Translate an error of RocksDB, by its text: the client has one class for all of them."""
        text = str(error)
        where = f"{doing} {self.path}: {text}"
        if isinstance(error, DbClosedError):
            return self._not_opened or Retry(f"{self.path} is closed")
        if any(part in text for part in NO_SPACE):
            return NoSpace(f"{where}. Make room on that disk; nothing is lost.")
        if f"{self.path}/LOCK" in text or "lock hold by current process" in text:
            return StoreInUse(
                f"{self.path} is in use by another process: stop it, or use another directory."
            )
        if any(part in text for part in NOT_WRITABLE) or isinstance(error, FileExistsError):
            return ConfigurationError([f"{where}. This process must be able to write there."])
        if TOO_MANY_FILES in text:
            return Retry(f"{where}. Raise the limit of open files (ulimit -n) to 4096 or more.")
        return StoreCorrupt(f"{where}. {self._remedy}")


def finish_replacement(path: Path, folder: Path) -> None:
    """Finish the `Database.replace` of the database at `path` by the one in `folder`, if a kill
    broke it off: between its two moves there is none at `path`. Raises Stop."""
    replaced = _replaced(path)
    if replaced.exists() and not path.exists():
        complete = folder if folder.exists() else replaced
        try:
            complete.rename(path)
        except OSError as error:
            raise Stop(f"{complete} cannot be moved to {path}: {error.strerror}") from error
    shutil.rmtree(replaced, ignore_errors=True)


def _replaced(path: Path) -> Path:
    """Where `Database.replace` keeps the old content; operators call a folder of theirs `.old`."""
    return path.with_name(f"{path.name}.replaced")


class _Closed:
    """Takes the place of a closed database: every call raises DbClosedError."""

    def __getattr__(self, name: str) -> Any:
        raise DbClosedError


_CLOSED: Any = _Closed()


def _write_options(*, wal: bool) -> WriteOptions:
    options = WriteOptions()
    options.disable_wal = not wal  # type: ignore[method-assign, assignment]
    options.no_slowdown = True
    return options


MEMTABLE_BYTES = 32 << 20
BLOCK_CACHE_BYTES = 64 << 20
L0_FILES_COMPACTED = 8
"""Flushes until level 0 is merged into level 1; RocksDB's default is 4. A shard is flushed by time
too, so that its restart has little to replay: with twice as many flushes, twice as many are merged
at once, and the same bytes are rewritten."""
BLOB_BYTES_MIN = 16 << 10
"""Values of this size or more are kept in blob files."""

SETTLED_IDS = (ID_STATE, EXPIRY)
"""Spaces in which the delete worker deletes all the time, and which no list scans: they are
compacted when RocksDB finds it useful."""

BlockCache = Cache


def shared_cache(size_bytes: int) -> BlockCache:
    """Return a block cache for the stores of all shards: one bound for the process, used where it
    is needed."""
    return Cache(size_bytes)


class _Deleted:
    """The rows of a space that were deleted since it was compacted."""

    def __init__(self, key: bytes) -> None:
        self.count = 0
        self.first = self.last = key

    def add(self, key: bytes) -> None:
        self.count += 1
        if key < self.first:
            self.first = key
        elif key > self.last:
            self.last = key


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
        opened: bool = True,
        check: Callable[["RocksStore"], None] | None = None,
    ) -> None:
        """`remedy`: advice for an error about damage; by default to have the store rebuilt from the
        logs.

        `read_only` is for checkpoints: it changes no file. `opened`: open it at once. `check`:
        called each time it was opened; an error that it raises closes it again.
        """
        cache = Cache(block_cache) if isinstance(block_cache, int) else block_cache
        options = tuned(cache=cache, memtable_bytes=memtable_bytes, blob_bytes_min=blob_bytes_min)
        options.set_level_zero_file_num_compaction_trigger(L0_FILES_COMPACTED)
        remedy = (
            remedy or f"Remove {path}: it is rebuilt from the logs. `chronos doctor` tells more."
        )
        self._db = Database(
            path, options, wal=False, remedy=remedy, read_only=read_only, opened=False
        )
        self._check = check
        self.path = path
        self.replace = self._db.replace
        self._reopen_bytes = 2 * memtable_bytes
        self._deleted: dict[bytes, _Deleted] = {}
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
        if opened:
            self.open()

    @property
    def is_open(self) -> bool:
        """Whether it is open: calls fail with Retry while it is not."""
        return self._db.is_open

    @property
    def times_opened(self) -> int:
        """Number of times it was opened: writes that were not flushed before the last one may be
        lost."""
        return self._db.times_opened

    def open(self) -> None:
        """Open the files, which are created if there are none."""
        self._db.open()
        self._checked()

    def _checked(self) -> None:
        if self._check is None:
            return
        try:
            self._check(self)
        except BaseException:
            self.close()
            raise

    def reopen(self) -> None:
        """Reopen a store that failed to write, with what was flushed.

        RocksDB recovers from a full disk by itself, but not always: one of several stores still
        refused all writes minutes after there was space again (measured)."""
        if free_bytes(self._db.path) < self._reopen_bytes:
            raise NoSpace(
                f"{self._db.path} could not be written ({self.background_error()}). Make room on "
                f"that disk: with {self._reopen_bytes >> 20} MiB it goes on by itself, and "
                "nothing is lost."
            )
        self._db.reopen()
        self._checked()

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
        for key in deletes:
            space = key[:1]
            if space not in SETTLED_IDS:
                deleted = self._deleted.get(space)
                if deleted is None:
                    deleted = self._deleted[space] = _Deleted(key)
                deleted.add(key)

    def compact(self) -> bool:
        """See `ports.Store`. The compaction drops the deleted rows, which scans then do not pass
        over any more."""
        found = [
            space for space, deleted in list(self._deleted.items()) if deleted.count > SKIPPED_MAX
        ]
        for space in found:
            deleted = self._deleted.pop(space)
            self._db.compact(deleted.first, deleted.last + b"\0")
        return bool(found)

    def delete_range(self, start: bytes, stop: bytes) -> None:
        """Delete `start <= key < stop` with one range tombstone; compaction frees the space."""

        def make() -> WriteBatch:
            batch = WriteBatch(raw_mode=True)
            batch.delete_range(start, stop)
            return batch

        if start < stop:
            self._db.write(make)
