"""The contract of every store, over each row of `STORES` in `tests/contract/implementations.py`;
and tests of RocksDB alone."""

from __future__ import annotations

import itertools
import random
import re
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rocksdict import Options, Rdict, ReadOptions

from chronos.adapters import rocksdb
from chronos.adapters.rocksdb import RocksStore, shared_cache, tuned
from chronos.adapters.rocksdb_scan import SKIPPED_MAX
from chronos.core.keys import entry_key, lane_key
from chronos.errors import (
    ConfigurationError,
    LogMismatch,
    NoSpace,
    Retry,
    StoreCorrupt,
    StoreInUse,
)
from chronos.ports import Store
from tests.contract.implementations import BLOB_BYTES_MIN, STORES, StoreKind, rocks_store
from tests.harness.files import no_more_files
from tests.harness.memory import MemoryStore
from tests.harness.rows import rows_of

NO_LIMIT = 10**9


@pytest.fixture(params=STORES)
def kind(request: pytest.FixtureRequest) -> StoreKind:
    """Each kind of store of the table."""
    return STORES[request.param]


@pytest.fixture
def make_store(kind: StoreKind, tmp_path: Path) -> Iterator[Callable[[], Store]]:
    """Makes a new store each time it is called."""
    made: list[Store] = []

    def make() -> Store:
        made.append(kind.make(tmp_path / str(len(made))))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture
def store(make_store: Callable[[], Store]) -> Store:
    """A new store of each kind."""
    return make_store()


def everything(store: Store) -> list[tuple[bytes, bytes]]:
    return rows_of(store)


# -------------------------------------------------------------------------------------- Every store


def test_a_snapshot_keeps_the_rows_of_its_moment(store):
    """Later puts, deletes, range deletes and flushes do not change it, in any thread; a closed one,
    and one of a closed store, says so."""
    store.write([(b"e%03d" % n, b"v%d" % n) for n in range(100)] + [(b"m", b"old")], [])
    kept, other = store.snapshot(), store.snapshot()
    store.write([(b"e050", b"new"), (b"e999", b"late"), (b"m", b"new")], [b"e001"])
    store.delete_range(b"e060", b"e090")
    store.flush()
    store.write([(b"e002", b"later")], [])
    with ThreadPoolExecutor(1) as other_thread:
        rows, _ = other_thread.submit(kept.scan, b"e", b"f", NO_LIMIT, NO_LIMIT).result()
    assert rows == [(b"e%03d" % n, b"v%d" % n) for n in range(100)]
    first = (b"e010", b"v10")
    assert kept.scan(b"e010", b"f", 2, NO_LIMIT) == ([first, (b"e011", b"v11")], b"e012")
    assert kept.scan(b"e010", b"f", NO_LIMIT, 1) == ([first], b"e011")
    assert kept.scan(b"e010", b"e011", NO_LIMIT, NO_LIMIT) == ([first], None)
    assert kept.get([b"m", b"e999", b"e001"]) == [b"old", None, b"v1"]
    kept.close()
    with pytest.raises(Retry):
        kept.get([b"m"])
    assert other.get([b"m"]) == [b"old"]


def test_a_store_closes_its_snapshots_and_can_be_opened_again(kind, tmp_path):
    """An open one would keep the directory locked."""
    store = kind.make(tmp_path / "s")
    store.write([(b"a", b"1")], [])
    kept = store.snapshot()
    store.close()
    if kind.open_copy is rocks_store:
        with pytest.raises(Retry):
            kept.get([b"a"])
        again = rocks_store(tmp_path / "s")
        assert again.get([b"a"]) == [b"1"]
        again.close()


def test_values_come_back_in_the_order_of_the_keys_asked_for(store):
    """A missing key gives None, a repeated one its value twice, no keys an empty list."""
    store.write([(b"a", b"1"), (b"b", b"")], [])
    assert store.get([b"b", b"x", b"a", b"b"]) == [b"", None, b"1", b""]
    assert store.get([]) == []


def test_more_keys_than_one_request_holds_are_all_answered(store):
    """Large multi-gets are split into portions."""
    rows = [(b"%05d" % n, b"%d" % n) for n in range(3_500)]
    store.write(rows, [])
    asked = [key for key, _ in reversed(rows)] + [b"none"]
    assert store.get(asked) == [value for _, value in reversed(rows)] + [None]


def test_a_key_deleted_and_put_in_one_write_is_there(store):
    """Deletes come first."""
    store.write([(b"a", b"old")], [])
    store.write([(b"a", b"new")], [b"a", b"never there"])
    assert store.get([b"a"]) == [b"new"]


def test_the_last_of_two_puts_of_one_key_wins(store):
    """In one write and across writes."""
    store.write([(b"a", b"1"), (b"a", b"2")], [])
    assert everything(store) == [(b"a", b"2")]


@pytest.mark.parametrize(
    ("start", "stop", "count_max", "bytes_max", "expected"),
    [
        (b"", b"z", 9, 99, "abcd"),
        (b"b", b"d", 9, 99, "bc"),
        (b"a\0", b"c\0", 9, 99, "bc"),
        (b"", b"z", 2, 99, "ab"),
        (b"", b"z", 9, 9, "abc"),  # rows of three bytes
        (b"", b"z", 9, 8, "ab"),
        (b"", b"z", 9, 1, "a"),  # at least one
        (b"x", b"z", 9, 99, ""),
        (b"c", b"c", 9, 99, ""),
        (b"d", b"a", 9, 99, ""),
    ],
)
def test_a_scan_keeps_its_bounds(store, start, stop, count_max, bytes_max, expected):
    """Start included, stop excluded, limits in rows and bytes, at least one row; it tells whether
    there are more."""
    names = (b"d", b"b", b"a", b"c")
    store.write([(name, b"vv") for name in names], [])
    found, rest = store.scan(start, stop, count_max, bytes_max)
    assert found == [(name.encode(), b"vv") for name in expected]
    later = [name for name in names if start <= name < stop and name.decode() not in expected]
    assert rest == min(later, default=None)


def test_a_deleted_range_includes_its_start_and_excludes_its_stop(store):
    """An empty or inverted range deletes nothing."""
    store.write([(bytes([n]), b"v") for n in range(10)], [])
    store.delete_range(b"\x03", b"\x06")
    store.delete_range(b"\x08", b"\x08")
    store.delete_range(b"\x09", b"\x01")
    assert [key[0] for key, _ in everything(store)] == [0, 1, 2, 6, 7, 8, 9]
    assert store.get([b"\x02", b"\x03", b"\x05", b"\x06"]) == [b"v", None, None, b"v"]


def test_large_values_come_back_like_small_ones(store):
    """Also those in blob files."""
    rows = [
        (b"%d" % n, bytes([n]) * size) for n, size in enumerate((0, 10, BLOB_BYTES_MIN, 300_000))
    ]
    store.write(rows, [])
    store.flush()
    assert everything(store) == rows
    assert store.get([key for key, _ in rows]) == [value for _, value in rows]


def test_verify_counts_the_rows_in_memory_and_rocks_store(store):
    """Rows that were overwritten or deleted, also by range, do not count."""
    store.write([(b"%05d" % n, b"v") for n in range(2_500)], [])
    store.flush()
    store.write([(b"%05d" % n, b"w") for n in range(10)], [b"00020"])
    store.delete_range(b"01000", b"01500")
    assert store.verify() == 1_999


def test_a_closed_store_raises_retry(store):
    """A second close does nothing."""
    store.close()
    store.close()
    with pytest.raises(Retry, match="closed"):
        store.get([b"a"])
    with pytest.raises(Retry, match="closed"):
        store.write([(b"a", b"b")], [])


def test_a_closed_store_can_be_opened_again(store):
    """With everything that was written before it was closed."""
    store.write([(b"a", b"1")], [])
    store.close()
    assert not store.is_open
    store.open()
    assert store.is_open
    assert store.get([b"a"]) == [b"1"]
    store.write([(b"b", b"2")], [])
    assert store.get([b"b"]) == [b"2"]


def test_a_store_that_is_not_opened_at_once_is_created_when_it_is_opened(tmp_path):
    """Nothing is on disk before, and its size is nothing; each opening is checked."""
    opened: list[int] = []
    store = RocksStore(
        tmp_path / "s", opened=False, check=lambda store: opened.append(store.times_opened)
    )
    assert not (tmp_path / "s").exists()
    assert store.size_bytes() == 0
    store.open()
    store.close()
    store.open()
    store.reopen()
    assert opened == [1, 2, 3]
    store.close()


def test_a_store_that_fails_its_check_is_closed(tmp_path):
    """So that another process can open it."""

    def refuse(store: RocksStore) -> None:
        raise LogMismatch("another topic")

    with pytest.raises(LogMismatch):
        RocksStore(tmp_path / "s", check=refuse)
    again = rocks_store(tmp_path / "s")
    assert again.is_open
    again.close()


def test_a_healthy_store_has_no_background_error(store):
    """The check is an empty write and changes nothing."""
    store.write([(b"a", b"1")], [])
    assert store.background_error() is None
    assert everything(store) == [(b"a", b"1")]


def test_unflushed_bytes_are_known(store):
    """They grow with writes and fall with a flush."""
    store.flush()
    before = store.unflushed_bytes()
    store.write([(b"%d" % n, b"v" * 900) for n in range(300)], [])
    assert store.unflushed_bytes() > before + 200_000
    store.flush()
    assert store.unflushed_bytes() <= before


def test_a_checkpoint_is_the_store_at_that_moment(kind, store, tmp_path):
    """It includes what was not flushed and excludes later writes; the store goes on."""
    rows = [(b"%05d" % n, b"v" * (n % 7)) for n in range(500)] + [
        (b"large", b"x" * 3 * BLOB_BYTES_MIN)
    ]
    store.write(rows[:200], [])
    store.flush()
    store.write(rows[200:], [])
    path = tmp_path / "copies" / "one"
    store.checkpoint(path)
    assert store.unflushed_bytes() <= kind.flushed_bytes_max
    store.write([(b"later", b"1")], [b"00000"])
    store.delete_range(b"00100", b"00200")
    copy = kind.open_copy(path)
    assert everything(copy) == rows
    copy.write([(b"later", b"2")], [])
    assert store.get([b"later"]) == [b"1"]
    copy.close()


def test_a_checkpoint_of_an_empty_store_is_an_empty_store(kind, store, tmp_path):
    """A shard without messages has one too."""
    store.checkpoint(tmp_path / "copy")
    copy = kind.open_copy(tmp_path / "copy")
    assert everything(copy) == []
    copy.close()


def test_a_checkpoint_needs_a_new_folder(store, tmp_path):
    """An existing one keeps its content."""
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "file").write_text("somebody's")
    with pytest.raises(ConfigurationError, match="is there already"):
        store.checkpoint(tmp_path / "copy")
    assert (tmp_path / "copy" / "file").read_text() == "somebody's"


def test_a_closed_store_makes_no_checkpoint(store, tmp_path):
    """The error names the reason: the store is closed."""
    store.close()
    with pytest.raises(Retry, match="closed"):
        store.checkpoint(tmp_path / "copy")


keys = st.binary(max_size=3)
operations = st.lists(
    st.one_of(
        st.tuples(
            st.just("write"), st.lists(st.tuples(keys, st.binary(max_size=9))), st.lists(keys)
        ),
        st.tuples(st.just("delete_range"), keys, keys),
        st.tuples(st.just("flush")),
    ),
    max_size=12,
)


# Each example gets a new store; the fixture only cleans up at the end.
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    operations=operations,
    scans=st.lists(st.tuples(keys, keys, st.integers(1, 9), st.integers(1, 40))),
)
def test_a_store_behaves_like_a_sorted_dict(make_store, operations, scans):
    """Any sequence of writes, range deletions and flushes; then any scans and gets."""
    store = make_store()
    model: dict[bytes, bytes] = {}
    for name, *arguments in operations:
        getattr(store, name)(*arguments)
        if name == "write":
            puts, deletes = arguments
            for key in deletes:
                model.pop(key, None)
            model.update(puts)
        elif name == "delete_range":
            start, stop = arguments
            model = {key: value for key, value in model.items() if not start <= key < stop}
    assert everything(store) == sorted(model.items())
    for start, stop, count_max, bytes_max in scans:
        expected: list[tuple[bytes, bytes]] = []
        size = 0
        for key, value in sorted(model.items()):
            if start <= key < stop:
                size += len(key) + len(value)
                if len(expected) == count_max or (expected and size > bytes_max):
                    break
                expected.append((key, value))
        assert rows_of(store, start, stop, count_max, bytes_max) == expected
    asked = [key for key, *_ in scans]
    assert store.get(asked) == [model.get(key) for key in asked]
    assert store.verify() == len(model)
    store.close()


@pytest.mark.parametrize("flushed", [True, False], ids=["of a file", "of memory"])
def test_a_scan_over_many_deleted_rows_ends_as_a_part(store, flushed):
    """The parts together hold every row once, in order; each goes on where the one before ended.
    After a compaction there is nothing to pass over."""
    left = (0, 15_000, 30_000, 40_000)
    store.write([(b"e%08d" % at, b"v") for at in range(45_000)], [])
    if flushed:
        store.flush()
    store.write([], [b"e%08d" % at for at in range(45_000) if at not in left])
    parts = 0
    found: list[bytes] = []
    position: bytes | None = b"e"
    while position is not None:
        rows, rest = store.scan(position, b"f", NO_LIMIT, NO_LIMIT)
        found += [key for key, _ in rows]
        assert rest is None or rest > max([position, *(key for key, _ in rows)])
        parts, position = parts + 1, rest
    assert found == [b"e%08d" % at for at in left]
    assert parts > 2
    assert store.compact()
    assert not store.compact()
    assert store.scan(b"e00000001", b"e00030001", 9, 99)[0] == [
        (b"e%08d" % at, b"v") for at in left[1:3]
    ]


# ------------------------------------------------------------------------------------------ A crash


def test_a_crash_of_a_memory_store_keeps_what_was_flushed_and_nothing_else():
    """It loses what a disk without a write-ahead log loses."""
    store = MemoryStore()
    store.write([(b"a", b"1"), (b"b", b"1")], [])
    store.flush()
    store.write([(b"a", b"2"), (b"c", b"2")], [b"b"])
    survivor = store.crash()
    assert everything(survivor) == [(b"a", b"1"), (b"b", b"1")]
    with pytest.raises(Retry):
        store.get([b"a"])


WRITE_AND_DIE = """
import os, sys
from pathlib import Path
from chronos.adapters.rocksdb import RocksStore
store = RocksStore(Path(sys.argv[1]), memtable_bytes=256 << 10)
for step in range(int(sys.argv[2])):
    rows = [(b"e%08d" % (step * 100 + n), os.urandom(100)) for n in range(100)]
    store.write([*rows, (b"state", b"%d" % step)], [])
    if step == 20:
        store.flush()
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("steps", [21, 22, 150, 311])
@pytest.mark.process
def test_a_killed_store_is_an_earlier_state_of_itself(tmp_path, steps):
    """It holds what was flushed, whole writes only, and each with all writes before it."""
    killed = subprocess.run(
        [sys.executable, "-c", WRITE_AND_DIE, tmp_path / "s", str(steps)], check=False
    )
    assert killed.returncode == -9
    store = rocks_store(tmp_path / "s")
    (stored,) = store.get([b"state"])
    assert stored is not None
    state = int(stored)
    assert 20 <= state < steps
    found = [key for key, _ in rows_of(store, b"e", b"f")]
    assert found == [b"e%08d" % n for n in range((state + 1) * 100)]
    store.close()


# ------------------------------------------------------------------------------------- On disk only


def test_closing_a_store_flushes_it(tmp_path):
    """Its size on disk is more than 0."""
    store = rocks_store(tmp_path / "s")
    store.write([(b"a", b"1")], [])
    store.close()
    again = rocks_store(tmp_path / "s")
    assert everything(again) == [(b"a", b"1")]
    assert again.size_bytes() > 100
    again.close()


def test_a_checkpoint_opened_read_only_keeps_its_files_unchanged(tmp_path):
    """So the digests of its files hold before and after."""
    store = rocks_store(tmp_path / "s")
    store.write([(b"%05d" % n, b"v" * 200) for n in range(2_000)], [])
    store.checkpoint(tmp_path / "copy")
    before = {file.name: file.read_bytes() for file in (tmp_path / "copy").iterdir()}
    copy = RocksStore(tmp_path / "copy", read_only=True)
    assert copy.verify() == 2_000
    copy.close()
    after = {file.name: file.read_bytes() for file in (tmp_path / "copy").iterdir()}
    assert after == before
    store.close()


def test_checkpoints_hold_whole_writes_while_another_thread_writes(tmp_path):
    """None holds only one of two rows that were written together."""
    store = RocksStore(tmp_path / "s", memtable_bytes=256 << 10)
    stop = threading.Event()

    def write() -> int:
        for step in itertools.count():
            store.write(
                [
                    (b"a%06d" % step, b"v" * 90),
                    (b"b%06d" % step, b"v" * 90),
                    (b"state", b"%d" % step),
                ],
                [],
            )
            if stop.is_set():
                return step
        raise AssertionError

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(write)
        for number in range(8):
            store.checkpoint(tmp_path / f"c{number}")
        stop.set()
        writer.result()
    states = []
    for number in range(8):
        copy = RocksStore(tmp_path / f"c{number}", read_only=True)
        data = copy.get([b"state"])[0]
        states.append(-1 if data is None else int(data))
        names = [
            b"%s%06d" % (kind, step) for kind in (b"a", b"b") for step in range(states[-1] + 1)
        ]
        assert [key for key, _ in rows_of(copy, b"a", b"c")] == names
        copy.close()
    assert states == sorted(states)
    store.close()


def test_an_open_store_cannot_be_opened_a_second_time(tmp_path):
    """Not by this process and not by another; the error names the directory."""
    store = rocks_store(tmp_path / "s")
    with pytest.raises(StoreInUse, match=str(tmp_path)):
        rocks_store(tmp_path / "s")
    command = [sys.executable, "-c", WRITE_AND_DIE, tmp_path / "s", "1"]
    other = subprocess.run(command, check=False, capture_output=True, text=True)
    assert "StoreInUse" in other.stderr
    store.close()
    rocks_store(tmp_path / "s").close()


def test_a_store_that_found_no_file_descriptor_is_reopened_once_there_is_one(tmp_path):
    """The error is Retry: the process need not stop."""
    store = rocks_store(tmp_path / "store")
    store.write([(b"a", b"1")], [])
    store.flush()
    with no_more_files():
        for _ in range(2):
            with pytest.raises(Retry, match="Raise the limit of open files"):
                store.reopen()
    store.reopen()
    assert store.get([b"a"]) == [b"1"]
    store.close()


def test_a_store_that_failed_cannot_be_flushed_until_it_is_reopened(tmp_path):
    """Not even once its disk works again; what was flushed before is there."""
    store = rocks_store(tmp_path / "store")
    store.write([(b"a", b"1")], [])
    store.flush()
    store.write([(b"b", random.Random(1).randbytes(100_000))], [])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(NoSpace, match="File too large"):
            store.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(NoSpace, match="File too large"):
        store.flush()
    assert "File too large" in (store.background_error() or "")
    store.reopen()
    assert store.background_error() is None
    assert everything(store) == [(b"a", b"1")]
    store.flush()
    store.close()


def test_a_directory_that_cannot_be_written_is_a_configuration_error(tmp_path):
    """The error does not speak of damage and does not advise to remove anything."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigurationError, match="file"):
        rocks_store(tmp_path / "file")
    with pytest.raises(ConfigurationError, match="file"):
        rocks_store(tmp_path / "file" / "below")


def test_a_directory_without_current_is_not_taken_for_an_empty_database(tmp_path):
    """RocksDB would delete the remaining files and start empty."""
    store = rocks_store(tmp_path / "s")
    store.write([(b"a", b"1")], [])
    store.close()
    (tmp_path / "s" / "CURRENT").unlink()
    left = sorted((tmp_path / "s").iterdir())
    with pytest.raises(StoreCorrupt, match="CURRENT"):
        rocks_store(tmp_path / "s")
    assert sorted((tmp_path / "s").iterdir()) == left


def test_a_store_writes_no_write_ahead_log(tmp_path):
    """The delay and the progress partition are its WAL; a second one would cost half the speed."""
    store = rocks_store(tmp_path / "s")
    store.write([(b"a", b"1" * 900)], [])
    assert [log.stat().st_size for log in (tmp_path / "s").glob("*.log")] == [0]
    store.close()


def test_stores_share_one_block_cache(tmp_path):
    """The bound holds for the process, not for each shard."""
    cache = shared_cache(8 << 20)
    stores = [RocksStore(tmp_path / str(n), block_cache=cache) for n in range(2)]
    for store in stores:
        store.write([(b"%05d" % n, b"v" * 500) for n in range(20_000)], [])
        store.flush()
        everything(store)
    assert 1 << 20 < cache.get_usage() <= 9 << 20
    for store in stores:
        store.close()


def test_a_reopened_store_has_the_filters_and_the_cache_that_it_is_given(tmp_path):
    # rocksdict restores the options of an existing database from its folder, without the filters
    # and with a small cache of its own, unless they are given for the column family.
    RocksStore(tmp_path / "store").close()
    cache = shared_cache(32 << 20)
    store = RocksStore(tmp_path / "store", block_cache=cache, memtable_bytes=3 << 20)
    store.write([(b"i%d" % number, b"v") for number in range(10_000)], [])
    store.flush()
    found = store._db._db.property_value("rocksdb.aggregated-table-properties")
    assert found is not None
    (filters,) = re.findall(r"filter block size=(\d+)", found)
    assert int(filters) > 10_000
    before = cache.get_usage()
    store.get([b"i%d" % number for number in range(10_000)])
    assert cache.get_usage() > before
    written = (tmp_path / "store" / "LOG").read_text()
    assert f"write_buffer_size: {3 << 20}" in written, "a changed setting is not in force"
    store.close()


def test_a_write_during_a_write_stall_waits_outside_rocksdb(tmp_path):
    """With memtables far smaller than the writes every one waits for flushes, and all rows
    arrive."""
    store = RocksStore(tmp_path / "s", memtable_bytes=64 << 10)
    for step in range(200):
        store.write([(b"%03d-%03d" % (step, n), b"v" * 900) for n in range(200)], [])
    assert store.verify() == 40_000
    store.close()


def test_a_store_can_be_closed_while_other_threads_read(tmp_path):
    """A reader never keeps the directory locked: it reads everything, or gets Retry."""
    path = tmp_path / "s"
    for _ in range(5):
        store = rocks_store(path)
        store.write([(b"%05d" % n, b"v") for n in range(5_000)], [])

        def read(store: RocksStore = store) -> int:
            count = 0
            try:
                while True:
                    assert len(everything(store)) == 5_000
                    assert None not in store.get([b"%05d" % n for n in range(0, 5_000, 9)])
                    count += 1
            except Retry:
                return count

        with ThreadPoolExecutor(2) as pool:
            readers = [pool.submit(read) for _ in range(2)]
            everything(store)
            store.close()
            assert all(reader.result() >= 0 for reader in readers)
    rocks_store(path).close()


@pytest.fixture
def skips(monkeypatch) -> Callable[[], int]:
    """Rows that the iterators of the stores opened from now on have passed over since the last
    call, as RocksDB counts them."""
    made: list[Options] = []

    def counting(**settings: object) -> Options:
        made.append(tuned(**settings))  # type: ignore[arg-type]
        made[-1].enable_statistics()
        return made[-1]

    monkeypatch.setattr(rocksdb, "tuned", counting)
    counted = 0

    def skipped() -> int:
        nonlocal counted
        text = "".join(options.get_statistics() or "" for options in made)
        before, counted = counted, sum(map(int, re.findall(r"iter\.skip COUNT : (\d+)", text)))
        return counted - before

    return skipped


ROWS = 60_000

LANE = ("orders.of-a-long-name", 3)

GAPS: dict[str, tuple[Callable[[int], bool], Callable[[int], bytes]]] = {
    "all but the last": (lambda at: at < ROWS - 1, lambda at: b"e%016d" % at),
    "in one millisecond": (lambda at: at < ROWS - 1, lambda at: entry_key(1 << 40, at)),
    "by time": (lambda at: at % 20_000 > 0, lambda at: entry_key((1 << 40) + 7 * at, at)),
    "99 of 100": (lambda at: at % 100 > 0, lambda at: entry_key((1 << 40) + at, at)),
    "two of three": (lambda at: at % 3 > 0, lambda at: entry_key((1 << 40) + at, at)),
    "in a lane": (lambda at: at % 20_000 > 0, lambda at: lane_key(LANE, 1 << 40, at)),
}


@pytest.mark.slow
@pytest.mark.parametrize("count_max", [1, 250, 5_000])
@pytest.mark.parametrize("gaps", GAPS)
def test_one_scan_passes_over_a_bounded_number_of_deleted_rows(tmp_path, skips, gaps, count_max):
    """However they lie between the rows that are left. A count, and no time."""
    is_deleted, key_of = GAPS[gaps]
    start, stop = key_of(0), key_of(ROWS)
    store = RocksStore(tmp_path / "s", memtable_bytes=4 << 20)
    keys = [key_of(at) for at in range(ROWS)]
    store.write([(key, b"v" * 20) for key in keys], [])
    store.flush()
    store.write([], [key for at, key in enumerate(keys) if is_deleted(at)])
    left = [key for at, key in enumerate(keys) if not is_deleted(at)]
    skips()
    most = 0
    found: list[bytes] = []
    position: bytes | None = start
    while position is not None and len(found) < 2_000:
        rows, position = store.scan(position, stop, count_max, NO_LIMIT)
        found += [key for key, _ in rows]
        most = max(most, skips())
    assert found == left[: len(found)]
    assert position is not None or found == left
    assert 0 < most <= SKIPPED_MAX
    store.close()


def test_the_client_bounds_a_scan_above_by_the_upper_bound(tmp_path):
    """The adapter relies on it; `set_iterate_lower_bound` of this client sets the upper bound as
    well."""
    raw = Rdict(str(tmp_path / "s"), Options(raw_mode=True))
    for n in range(5):
        raw[b"%d" % n] = b""
    bounds = ReadOptions()
    bounds.set_iterate_upper_bound(b"3")
    assert [key for key, _ in raw.items(from_key=b"1", read_opt=bounds)] == [b"1", b"2"]
    raw.close()
