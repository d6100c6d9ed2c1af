"""The data directory: what it tells a process about the end of the one before."""

from pathlib import Path

from chronos.node.directory import DataDirectory


def directory(path: Path) -> DataDirectory:
    """The directory as the next process finds it."""
    return DataDirectory(path, node="n")


def test_a_process_is_told_of_an_unclean_end_at_its_offset_and_of_two_in_a_row_at_any(tmp_path: Path) -> None:
    """A flush between two ends moves the offset at which the next process begins; an orderly stop ends the count."""
    began = [directory(tmp_path).begin_reading(0, offset) for offset in (10, 20, 30, 40)]
    assert began == [False, False, True, True]
    assert not directory(tmp_path).begin_reading(1, 40)
    directory(tmp_path).end_reading()
    assert [directory(tmp_path).begin_reading(0, offset) for offset in (40, 40)] == [False, True]
