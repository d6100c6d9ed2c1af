"""The embedded log and the store when the process is killed, and when the disk is full.

Nothing acknowledged is lost, no transaction is torn, and a full disk costs nothing but time.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chronos.adapters.clock import SystemClock
from chronos.adapters.embedded.log import MEMTABLE_BYTES, EmbeddedLog
from chronos.adapters.rocksdb import RocksStore
from chronos.errors import LogUnavailable, NoSpace, ProducerLost, Retry
from chronos.ports import Outgoing, TopicSpec
from tests.harness.files import no_more_files
from tests.harness.rows import rows_of
from tests.harness.waiting import check_deadline

KILLS = [3, pytest.param(30, marks=pytest.mark.slow)]
ACKED_MIN = 20
"""Acknowledgements to wait for before a kill, so that there is something to lose."""

NO_LIMIT = 10**9
TARGETS = ("a", "b", "c")


def open_log(
    path: Path, *, disk_reserve_bytes: int = 0, memtable_bytes: int = MEMTABLE_BYTES
) -> EmbeddedLog:
    log = EmbeddedLog(
        path,
        clock=SystemClock(),
        disk_reserve_bytes=disk_reserve_bytes,
        memtable_bytes=memtable_bytes,
    )
    own = [TopicSpec(name=name, partitions=2, settings={}) for name in ("chronos.progress", "own")]
    log.prepare(own, create=True)
    return log


# A process that appends in two threads, commits in a third, trims, and prints what was
# acknowledged. Small memtables, so that kills also hit flushes and changes of the write-ahead log.
WRITE = """
import itertools, sys, threading
from pathlib import Path
from tests.node.test_embedded_crash import TARGETS, open_log

log = open_log(Path(sys.argv[1]), memtable_bytes=128 << 10)
run = sys.argv[2]
told = threading.Lock()

def tell(*words):
    with told:
        print(*words, flush=True)

def append(thread):
    for turn in itertools.count():
        value = f"{run}-{thread}-{turn}".encode()
        for each in log.append([("own", None, value, [], -1)] * 3, 30.0):
            tell("append", each.partition, each.offset, value.decode())

def commit():
    writer = log.writer(0)
    for turn in itertools.count():
        value = f"{run}-{turn}".encode()
        writer.send([(target, None, value * 9, [], 0) for target in TARGETS for _ in range(5)], value)
        done = writer.commit(lambda timestamp_ms, others: None)
        tell("commit", done.partition, done.offset, value.decode())
        if turn % 10 == 9:
            log.trim("c", 0, log.watermarks("c", 0).stable - 7)
            tell("trim", 0, log.watermarks("c", 0).start, "-")

for work in (lambda: append(1), lambda: append(2), commit):
    threading.Thread(target=work, daemon=True).start()
threading.Event().wait()
"""  # noqa: E501


def values(log: EmbeddedLog, topic: str, partition: int) -> dict[int, str]:
    """Offset -> value of everything readable, read as a consumer does."""
    watermarks = log.watermarks(topic, partition)
    reader = log.reader(topic, partition, watermarks.start)
    found: dict[int, str] = {}
    while records := reader.read(1_000, NO_LIMIT):
        found.update((record.offset, (record.value or b"").decode()) for record in records)
    assert list(found) == list(range(watermarks.start, watermarks.stable))
    return found


@pytest.mark.parametrize("kills", KILLS)
@pytest.mark.process
def test_a_log_killed_at_any_moment_keeps_what_it_acknowledged_and_tears_nothing(tmp_path, kills):
    """The same log over many kills: acknowledged records stay at their offsets, transactions are
    whole."""
    dice = random.Random(7)
    acknowledged: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
    trimmed = 0
    for run in range(kills):
        command = [sys.executable, "-c", WRITE, str(tmp_path / "log"), str(run)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            # After so many acknowledgements, and then at no moment in particular of the work that
            # goes on.
            lines = list(itertools.islice(process.stdout, ACKED_MIN + dice.randrange(400)))
            for _ in range(dice.randrange(20_000)):
                pass
            process.kill()
            lines += process.stdout.readlines()
        assert process.returncode == -9
        for line in lines:
            if not line.endswith("\n"):
                continue
            verb, partition, offset, value = line.split()
            if verb == "trim":
                trimmed = int(offset)
                continue
            topic = "own" if verb == "append" else "chronos.progress"
            assert int(offset) not in acknowledged[topic, int(partition)], (
                "an offset was given twice"
            )
            acknowledged[topic, int(partition)][int(offset)] = value
        _check(tmp_path / "log", acknowledged, trimmed)
    assert sum(map(len, acknowledged.values())) > kills * ACKED_MIN / 2
    assert trimmed > 0


def _check(path: Path, acknowledged: dict[tuple[str, int], dict[int, str]], trimmed: int) -> None:
    log = open_log(path)
    for (topic, partition), told in acknowledged.items():
        found = values(log, topic, partition)
        assert told.items() <= found.items()
    committed = values(log, "chronos.progress", 0)
    if not committed:  # killed before the first commit: the targets need not be there
        log.close()
        return
    for target in TARGETS:
        start = log.watermarks(target, 0).start
        expected = [value * 9 for _, value in sorted(committed.items()) for _ in range(5)]
        assert list(values(log, target, 0).values()) == expected[start:]
    assert log.watermarks("c", 0).start >= trimmed
    log.close()


# -------------------------------------------------------------------------------------- A full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, Callable[[int], object]]]:
    """A file system of 16 MiB of its own, and a way to make it larger. It takes root, as in a
    container."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", disk],
        check=False,
        capture_output=True,
        text=True,
    )
    if mounted.returncode != 0:
        pytest.fail(f"no small disk to fill, which takes root: {mounted.stderr}")

    def grow(mib: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={mib}m", disk], check=True)

    yield disk, grow
    subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.slow
def test_a_store_on_a_full_disk_loses_nothing_and_goes_on_once_there_is_room(small_disk):
    """Writes are refused whole, it says why, all rows stay readable, and nobody has to open it
    again."""
    disk, grow = small_disk
    store = RocksStore(disk / "s", block_cache=1 << 20, memtable_bytes=1 << 20)
    dice = random.Random(1)
    written: dict[bytes, bytes] = {}
    refused = None
    for step in range(1_000):
        rows = [(b"%04d-%03d" % (step, n), dice.randbytes(300)) for n in range(100)]
        try:
            store.write(rows, [])
        except NoSpace as error:
            refused = error
            break
        written.update(rows)
    assert refused is not None
    assert str(disk) in str(refused)
    assert "No space" in (store.background_error() or "")
    assert dict(rows_of(store)) == written

    grow(64)
    deadline = time.monotonic() + 60
    while store.background_error() is not None:
        check_deadline(deadline)
        threading.Event().wait(0.05)
    store.write([(b"last", b"row")], [])
    store.flush()
    store.close()
    again = RocksStore(disk / "s", memtable_bytes=1 << 20)
    assert dict(rows_of(again)) == written | {b"last": b"row"}
    again.close()


def fill(log: EmbeddedLog, acknowledged: list[bytes]) -> NoSpace:
    """Commit until there is no space; adds what was acknowledged."""
    dice = random.Random(len(acknowledged))
    try:
        writer = log.writer(0)
        for turn in range(2_000):
            value = b"%d-" % turn + dice.randbytes(50_000)
            messages: list[Outgoing] = [("a", None, value, [], 0)]
            writer.send(messages, b"")
            writer.commit(lambda timestamp_ms, others: None)
            acknowledged.append(value)
    except NoSpace as error:
        return error
    raise AssertionError("the disk was never full")


def readable(log: EmbeddedLog) -> list[bytes | None]:
    reader = log.reader("a", 0, 0)
    found: list[bytes | None] = []
    while records := reader.read(1_000, NO_LIMIT):
        found += [record.value for record in records]
    return found


@pytest.mark.parametrize("memtable_bytes", [1 << 20, 64 << 20], ids=["tables", "write-ahead log"])
def test_a_log_on_a_full_disk_refuses_whole_writes_and_goes_on_once_there_is_room(
    small_disk, memtable_bytes
):
    """Whether it is a table or the write-ahead log that finds the disk full: nothing of a refused
    one is there."""
    disk, grow = small_disk
    log = open_log(disk / "log", memtable_bytes=memtable_bytes)
    acknowledged: list[bytes] = []
    assert str(disk) in str(fill(log, acknowledged))
    assert acknowledged
    assert readable(log) == acknowledged
    # Compaction may have made some room by now: what it made is used, and the end is the same. A
    # log that finds no room to be opened again cannot be read either.
    fill(log, acknowledged)
    with contextlib.suppress(NoSpace):
        assert readable(log) == acknowledged
    waiting = log.reader("a", 0, len(acknowledged))

    grow(256)
    (appended,) = log.append([("a", None, b"again", [], 0)], 30.0)
    assert appended.offset == len(acknowledged)
    # A reader made before the trouble goes on reading.
    assert waiting.wait(30.0)
    assert [record.value for record in waiting.read(9, NO_LIMIT)] == [b"again"]
    log.close()
    log = open_log(disk / "log")
    assert readable(log) == [*acknowledged, b"again"]
    log.close()


def test_a_log_below_its_reserve_refuses_before_it_writes_and_trimming_gives_room(small_disk):
    """Reading goes on; trimming, which frees space, is not refused."""
    disk, _ = small_disk
    log = open_log(disk / "log", disk_reserve_bytes=6 << 20, memtable_bytes=256 << 10)
    acknowledged: list[bytes] = []
    error = fill(log, acknowledged)
    assert "limits.disk_reserve" in str(error)
    assert readable(log) == acknowledged
    log.trim("a", 0, len(acknowledged))
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(NoSpace):
            log.append([("a", None, b"room again", [], 0)], 30.0)
            break
        check_deadline(deadline)
        threading.Event().wait(0.05)
    log.close()


def test_a_log_that_found_no_file_descriptor_goes_on_once_there_is_one(tmp_path):
    """Also for who only wants to take over, or to read: nobody need append anything first."""
    log = open_log(tmp_path / "log", memtable_bytes=128 << 10)
    acknowledged: list[bytes] = []

    def append(count: int = 1) -> None:
        for _ in range(count):
            value = b"%d-" % len(acknowledged) + bytes(20_000)
            log.append([("a", None, value, [], 0)], 30.0)
            acknowledged.append(value)

    for go_on in (append, lambda: log.writer(0), lambda: log.prepare([], create=False)):
        with no_more_files():
            for count in (100, 1):  # It cannot be opened anew either.
                with pytest.raises(Retry, match="Raise the limit of open files"):
                    append(count)
            with pytest.raises(Retry, match="Raise the limit of open files"):
                readable(log)
        go_on()
        assert readable(log) == acknowledged
    log.close()


@pytest.mark.parametrize("failure", [NoSpace, Retry])
def test_a_transaction_whose_sync_fails_is_not_called_undone(tmp_path, monkeypatch, failure):
    """Whether it is there only the log can tell: its writer is lost, whatever the disk had to
    say."""
    log = open_log(tmp_path / "log", memtable_bytes=1 << 20)
    monkeypatch.setattr(log._journal.db, "sync", lambda: (_ for _ in ()).throw(failure("the disk")))
    writer = log.writer(0)
    writer.send([("a", None, b"who knows", [], 0)], b"")
    with pytest.raises(ProducerLost):
        writer.commit(lambda timestamp_ms, others: None)
    log.close()


def test_whoever_waits_when_a_sync_fails_hears_that_nobody_knows(tmp_path, monkeypatch):
    """Neither acknowledged nor called lost; and the log opens itself again for the next one."""
    log = open_log(tmp_path / "log", memtable_bytes=1 << 20)

    def fail_once() -> None:
        monkeypatch.undo()
        raise NoSpace("the disk is full")

    monkeypatch.setattr(log._journal.db, "sync", fail_once)
    with pytest.raises(LogUnavailable, match="may be there or not"):
        log.append([("own", None, b"who knows", [], 0)], 30.0)
    assert log.watermarks("own", 0).stable == 0
    log.append([("own", None, b"known", [], 0)], 30.0)
    found = list(values(log, "own", 0).values())
    assert found in (["known"], ["who knows", "known"])
    log.close()
