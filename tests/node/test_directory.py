"""The data directory: what it tells a process about the end of the one before."""

from pathlib import Path

from chronos.node.directory import DataDirectory


def directory(path: Path) -> DataDirectory:
    """The directory as the next process finds it."""
    return DataDirectory(path, node="n")


def start(path: Path, shard: int, offset: int) -> bool:
    """A process begins to read; returns what it is told of the one before."""
    made = directory(path)
    told = made.ended_reading(shard, offset)
    made.begin_reading(shard, offset)
    return told


def test_a_process_is_told_of_an_unclean_end_at_its_offset_and_of_two_in_a_row_at_any(tmp_path: Path) -> None:
    """A flush between two ends moves the offset at which the next process begins; an orderly stop ends the count."""
    began = [start(tmp_path, 0, offset) for offset in (10, 20, 30, 40)]
    assert began == [False, False, True, True]
    assert not start(tmp_path, 1, 40)
    directory(tmp_path).end_reading()
    assert [start(tmp_path, 0, offset) for offset in (40, 40)] == [False, True]


def test_a_process_that_ends_before_it_reads_changes_nothing(tmp_path: Path) -> None:
    """Its start failed: no broker answered, or the coordinator did not."""
    start(tmp_path, 0, 10)
    for _ in range(3):
        assert directory(tmp_path).ended_reading(0, 10)
    assert not directory(tmp_path).ended_reading(0, 11)
