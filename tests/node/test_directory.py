"""The data directory: what it tells a process about the end of the one before."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from chronos.node import data_directory as module
from chronos.node.data_directory import UNKNOWN, DataDirectory, killed_for_memory


def directory(path: Path) -> DataDirectory:
    """The directory as the next process finds it."""
    return DataDirectory(path, node="n")


def start(path: Path, shard: int, offset: int) -> bool:
    """A process begins to read; returns what it is told of the one before."""
    made = directory(path)
    told = made.ended_reading(shard, offset)
    made.begin_reading(shard, offset)
    return told


class Kernel:
    """The number that the kernel tells."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.kills: str = "3"
        patch.setattr(module, "killed_for_memory", lambda: self.kills)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """A kernel that has killed three processes."""
    return Kernel(monkeypatch)


def test_a_directory_has_one_id_and_an_empty_one_is_none(tmp_path: Path) -> None:
    """A file without content is what a power cut leaves of one that was not synced."""
    (tmp_path / module.INSTANCE).touch()
    found = []
    for _ in range(2):
        made = directory(tmp_path)
        made.claim()
        found.append(made.instance)
        made.release()
    assert len(found[0]) == 32
    assert found[0] == found[1] == directory(tmp_path).known_instance()


def test_a_process_is_told_of_an_unclean_end_at_its_offset_and_of_two_in_a_row_at_any(
    tmp_path: Path, kernel: Kernel
) -> None:
    """A flush between two ends moves the offset at which the next process begins; an orderly stop
    ends the count."""
    kernel.kills = UNKNOWN
    began = [start(tmp_path, 0, offset) for offset in (10, 20, 30, 40)]
    assert began == [False, False, True, True]
    assert not start(tmp_path, 1, 40)
    directory(tmp_path).end_reading()
    assert [start(tmp_path, 0, offset) for offset in (40, 40)] == [False, True]


def test_a_process_that_was_killed_otherwise_than_for_memory_is_not_told(
    tmp_path: Path, kernel: Kernel
) -> None:
    """But for the second end in a row at one offset: something in the topic may crash it."""
    assert [start(tmp_path, 0, offset) for offset in (10, 10, 20, 30)] == [False] * 4
    assert start(tmp_path, 0, 30)
    kernel.kills = "4"
    assert not start(tmp_path, 1, 10)
    kernel.kills = "5"
    assert start(tmp_path, 1, 10)


def test_a_note_without_a_number_counts_as_one_whose_number_is_unknown(
    tmp_path: Path, kernel: Kernel
) -> None:
    """The end of the process, or of the machine, may have cut it off."""
    folder = tmp_path / "reading"
    folder.mkdir()
    (folder / "0").write_text("10 \n")
    (folder / "1").write_text("10 again\n")
    assert directory(tmp_path).ended_reading(0, 10)
    assert not directory(tmp_path).ended_reading(0, 11)
    assert directory(tmp_path).ended_reading(1, 11)


def test_a_process_that_ends_before_it_reads_changes_nothing(
    tmp_path: Path, kernel: Kernel
) -> None:
    """Its start failed: no broker answered, or the coordinator did not."""
    start(tmp_path, 0, 10)
    kernel.kills = "4"
    for _ in range(3):
        assert directory(tmp_path).ended_reading(0, 10)
    assert not directory(tmp_path).ended_reading(0, 11)


def test_the_kernel_tells_how_many_it_killed(tmp_path: Path) -> None:
    """Not where it does not count, or where this process has a limit of its own."""
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("nr_free_pages 7\noom_kill 12\n")
    assert killed_for_memory(vmstat) == "12"
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (2**40, limits[1]))
    try:
        assert killed_for_memory(vmstat) == UNKNOWN
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, limits)
    vmstat.write_text("nr_free_pages 7\n")
    assert killed_for_memory(vmstat) == UNKNOWN
    assert killed_for_memory(tmp_path / "none") == UNKNOWN
