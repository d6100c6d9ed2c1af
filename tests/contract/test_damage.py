"""Damaged disks: every read returns the right rows or raises StoreCorrupt; never fewer rows, other
rows or a hang."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from chronos.adapters.clock import SystemClock
from chronos.adapters.embedded.log import EmbeddedLog
from chronos.adapters.rocksdb import (
    BLOCK_BYTES,
    HEADER_BYTES,
    RocksStore,
    _crc32c,
    _masked,
    drop_torn_tail,
)
from chronos.core.message import Record
from chronos.errors import StoreCorrupt
from chronos.ports import TopicSpec
from tests.harness.rows import rows_of

BLOB_BYTES_MIN = 1_000
NO_LIMIT = 10**9
ROWS = 1_500
LARGE_ROWS = 20
FLIPS = [4, pytest.param(60, marks=pytest.mark.slow)]
"""Places per file where a bit is flipped; after each, everything is read in several ways."""


def open_store(path: Path) -> RocksStore:
    return RocksStore(path, memtable_bytes=1 << 20, blob_bytes_min=BLOB_BYTES_MIN)


def open_log(path: Path) -> EmbeddedLog:
    return EmbeddedLog(path, clock=SystemClock(), disk_reserve_bytes=0)


@pytest.fixture(scope="module")
def rows() -> list[tuple[bytes, bytes]]:
    generator = random.Random(1)
    small = [(b"e%08d" % n, generator.randbytes(100)) for n in range(ROWS)]
    return small + [(b"f%08d" % n, generator.randbytes(3_000)) for n in range(LARGE_ROWS)]


@pytest.fixture(scope="module")
def sound_store(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[bytes, bytes]]) -> Path:
    """A closed store of two tables, two blob files."""
    path = tmp_path_factory.mktemp("store") / "sound"
    store = open_store(path)
    for part in (rows[::2], rows[1::2]):
        store.write(part, [])
        store.flush()
    store.close()
    return path


# Incompressible, so that a table has several blocks and the last one is read by itself.
VALUES = [random.Random(n).randbytes(900) for n in range(120)]


@pytest.fixture(scope="module")
def sound_log(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A closed log, and one as a kill leaves it, with everything in the write-ahead log."""
    base = tmp_path_factory.mktemp("log")
    log = open_log(base / "closed")
    specs = [TopicSpec(name=name, partitions=1, settings={}) for name in ("t", "chronos.progress")]
    log.prepare(specs, create=True)
    for at in range(0, len(VALUES), 3):
        log.append([("t", None, value, [], 0) for value in VALUES[at : at + 3]], 30.0)
    shutil.copytree(base / "closed", base / "killed")
    log.close()
    return {"closed": base / "closed", "killed": base / "killed"}


def flipped(sound: Path, copy: Path, file: Path, bit: int) -> Path:
    """A copy of the directory with one bit of one file flipped."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(sound, copy)
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    (copy / file.name).write_bytes(content)
    return copy


def bits(file: Path, count: int) -> list[int]:
    """Spread over the file, and dense at its end, where tables keep their index and logs their last
    record."""
    generator = random.Random(file.name)
    size = file.stat().st_size
    spread = [generator.randrange(size * 8) for _ in range(count)]
    return spread + [
        generator.randrange(max(0, size - 200) * 8, size * 8) for _ in range(count // 2)
    ]


def check_text(damage: StoreCorrupt, path: Path, remedy: str) -> None:
    """The error names the path and the remedy."""
    assert str(path) in str(damage)
    assert remedy in str(damage)
    assert "chronos doctor" in str(damage)


def read_store_in_all_ways(path: Path, rows: list[tuple[bytes, bytes]]) -> int:
    """Count the reads that were refused; every other one must return the right rows."""
    try:
        store = open_store(path)
    except StoreCorrupt as damage:
        check_text(damage, path, "rebuilt from the logs")
        return 1
    keys = [key for key, _ in rows]
    middle = len(rows) // 2
    ways: list[tuple[Callable[[], object], object]] = [
        (lambda: rows_of(store), rows),
        (lambda: rows_of(store, b"e", b"f", 200), rows[:200]),
        (lambda: rows_of(store, keys[middle]), rows[middle:]),
        (lambda: store.scan(b"", b"\xff", NO_LIMIT, 20_000)[0], None),
        (lambda: store.get(keys), [value for _, value in rows]),
        (store.verify, len(rows)),
    ]
    refused = 0
    for way, expected in ways:
        try:
            found = way()
        except StoreCorrupt as damage:
            refused += 1
            check_text(damage, path, "rebuilt from the logs")
        else:
            if expected is None:
                assert isinstance(found, list)
                assert found == rows[: len(found)]
                assert sum(len(key) + len(value) for key, value in rows[: len(found) + 1]) > 20_000
            else:
                assert found == expected
    store.close()
    return refused


@pytest.mark.parametrize("flips", FLIPS)
@pytest.mark.parametrize("pattern", ["*.sst", "*.blob"])
def test_a_flipped_bit_in_a_store_is_found_or_does_no_harm(
    tmp_path, sound_store, rows, pattern, flips
):
    """At many places of every table and blob file, read in six ways."""
    found = tried = 0
    for file in sorted(sound_store.glob(pattern)):
        for bit in bits(file, flips):
            tried += 1
            found += bool(
                read_store_in_all_ways(flipped(sound_store, tmp_path / "s", file, bit), rows)
            )
    assert tried >= 2 * flips
    assert found > 0.8 * tried


def test_an_undamaged_store_passes_the_same_checks(tmp_path, sound_store, rows):
    """The checks of the other tests can be passed."""
    shutil.copytree(sound_store, tmp_path / "s")
    assert read_store_in_all_ways(tmp_path / "s", rows) == 0


@pytest.mark.parametrize("harm", ["missing", "cut", "empty"])
@pytest.mark.parametrize("pattern", ["*.sst", "*.blob", "MANIFEST-*", "CURRENT"])
def test_a_lost_or_cut_file_of_a_store_is_found_on_opening(
    tmp_path, sound_store, rows, pattern, harm
):
    """The error names the directory and the remedy; only a cut MANIFEST may give an earlier
    state."""
    shutil.copytree(sound_store, tmp_path / "s")
    file = next((tmp_path / "s").glob(pattern))
    if harm == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-10] if harm == "cut" else b"")
    if (pattern, harm) == ("MANIFEST-*", "cut"):
        store = open_store(tmp_path / "s")
        assert set(rows_of(store)) <= set(rows)
        store.close()
        return
    with pytest.raises(StoreCorrupt, match=r"Remove .* it is rebuilt from the logs"):
        open_store(tmp_path / "s")


def read_log(path: Path) -> list[Record]:
    log = open_log(path)
    try:
        reader = log.reader("t", 0, 0)
        records: list[Record] = []
        while found := reader.read(50, NO_LIMIT):
            records += found
        assert len(records) == log.watermarks("t", 0).stable
        return records
    finally:
        log.close()


@pytest.mark.parametrize("flips", FLIPS)
@pytest.mark.parametrize(
    ("state", "pattern"),
    [("closed", "*.sst"), ("closed", "MANIFEST-*"), ("killed", "*.log"), ("killed", "MANIFEST-*")],
)
def test_a_flipped_bit_in_a_log_is_found_or_does_no_harm(
    tmp_path, sound_log, state, pattern, flips
):
    """In the tables, in what lists them, and in the write-ahead log that a killed process
    leaves."""
    found = tried = 0
    for file in sound_log[state].glob(pattern):
        for bit in bits(file, 2 * flips):
            tried += 1
            path = flipped(sound_log[state], tmp_path / "log", file, bit)
            try:
                assert [record.value for record in read_log(path)] == VALUES
            except StoreCorrupt as damage:
                found += 1
                check_text(damage, path, "backup")
    assert tried >= 2 * flips
    assert found > 0.5 * tried


def test_every_flipped_bit_in_the_record_headers_of_a_write_ahead_log_is_found(tmp_path, sound_log):
    """A wrong type would hang RocksDB; a wrong length would look like a torn write and lose the
    records after it."""
    (file,) = sound_log["killed"].glob("*.log")
    content = file.read_bytes()
    headers, at = [], 0
    while at < len(content):
        headers.append(at)
        at += 7 + int.from_bytes(content[at + 4 : at + 6], "little")
    for header in headers[-3:-1]:
        for bit in range(header * 8, (header + 7) * 8):
            with pytest.raises(StoreCorrupt, match=str(tmp_path)):
                read_log(flipped(sound_log["killed"], tmp_path / "log", file, bit))


def test_a_write_torn_by_a_power_cut_is_dropped_and_nothing_before_it(tmp_path, sound_log):
    """It was never acknowledged; the log opens with every record that was, and reuses the offsets
    of the torn write."""
    (file,) = sound_log["killed"].glob("*.log")
    for cut in (1, 5, 100, 180):
        shutil.rmtree(tmp_path / "log", ignore_errors=True)
        shutil.copytree(sound_log["killed"], tmp_path / "log")
        with (tmp_path / "log" / file.name).open("r+b") as wal:
            wal.truncate(file.stat().st_size - cut)
        assert [record.value for record in read_log(tmp_path / "log")] == VALUES[:-3]


@pytest.mark.parametrize("kept", [0, 3, 512, 4_096, 32_768, 65_536, 100_000, 163_840])
def test_a_torn_write_whose_file_has_grown_is_dropped_and_nothing_before_it(
    tmp_path, sound_log, kept
):
    """With zeros in place of the end: in the middle of one of the records that such a write is
    divided into, in a header, and between two of them."""
    log = open_log(shutil.copytree(sound_log["killed"], tmp_path / "from"))
    (wal,) = (tmp_path / "from").glob("*.log")
    before = wal.stat().st_size
    log.append([("t", None, random.Random(1).randbytes(200_000), [], 0)], 30.0)
    torn = shutil.copytree(tmp_path / "from", tmp_path / "torn") / wal.name
    log.close()
    content = torn.read_bytes()
    end = before + kept
    torn.write_bytes(content[:end] + bytes(len(content) - end))
    assert [record.value for record in read_log(tmp_path / "torn")] == VALUES


@pytest.mark.parametrize("gap", range(9))
def test_a_sound_record_at_the_end_of_a_block_is_not_taken_for_a_torn_one(tmp_path, gap):
    """In the last bytes of a block, which have no room for a header, are zeros too."""

    def record(size: int) -> bytes:
        body = bytes([1]) + b"x" * (size - HEADER_BYTES)
        crc = _masked(_crc32c(body)).to_bytes(4, "little")
        return crc + (size - HEADER_BYTES).to_bytes(2, "little") + body

    sound = record(1_007) + record(BLOCK_BYTES - 1_007 - gap)
    wal = tmp_path / "000001.log"
    for zeros in (gap + 512, gap + 20_000):
        wal.write_bytes(sound + bytes(zeros))
        drop_torn_tail(wal)
        assert wal.read_bytes()[: len(sound)] == sound


def test_a_record_missing_in_the_middle_of_a_log_is_found(tmp_path, sound_log):
    """Offsets have no gaps, so a gap is damage."""
    shutil.copytree(sound_log["closed"], tmp_path / "log")
    raw = Rdict(str(tmp_path / "log"), Options(raw_mode=True))
    key = next(key for key, value in raw.items() if VALUES[60] in value)
    del raw[key]
    raw.close()
    with pytest.raises(StoreCorrupt, match="missing"):
        read_log(tmp_path / "log")


@pytest.mark.parametrize("prefix", [b"v", b"t", b"r"])
def test_rows_of_an_unknown_version_are_a_named_error(tmp_path, sound_log, prefix):
    """A log of a newer Chronos is refused, not guessed at."""
    shutil.copytree(sound_log["closed"], tmp_path / "log")
    raw = Rdict(str(tmp_path / "log"), Options(raw_mode=True))
    key, value = next((key, value) for key, value in raw.items(from_key=prefix))
    raw[key] = b"\x07" + value[1:]
    raw.close()
    with pytest.raises(StoreCorrupt, match="does not know"):
        read_log(tmp_path / "log")
