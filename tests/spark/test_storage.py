"""Where an archive may lie, and what is said of where it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronos.errors import ArchiveFailed, ArchiveUnusable
from chronos.spark.storage import ArchiveStorage


@pytest.mark.parametrize("name", ["with blanks", "Bücher", "a&b=c+d~e@f,g;h"])
def test_a_folder_may_have_any_name_that_spark_reads(tmp_path: Path, name: str) -> None:
    """As a path, and as the URI it is handed to Spark and to other processes by."""
    storage = ArchiveStorage(str(tmp_path / name))
    storage.write("table/file", b"1")
    assert (tmp_path / name / "table" / "file").read_bytes() == b"1"
    assert ArchiveStorage(storage.uri).read("table/file") == b"1"


@pytest.mark.parametrize(
    "location", ["nothing://here", "/a#b", "file:///a%20b", "s3://bucket/a?region=b", "/x/*", "/x/{a}"]
)
def test_what_can_be_no_place_ends_the_command(location: str) -> None:
    """To try it again would not help."""
    with pytest.raises(ArchiveUnusable, match="cannot hold an archive"):
        ArchiveStorage(location)


def test_what_cannot_be_reached_now_may_be_tried_again(tmp_path: Path) -> None:
    """Whatever the file system says, `--continuous` goes on."""
    (tmp_path / "file").touch()
    storage = ArchiveStorage(str(tmp_path / "file"))
    with pytest.raises(ArchiveFailed, match="Not a directory"):
        storage.write("table/file", b"")


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_spark_and_arrow_each_get_the_name_they_know_s3_by(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From either spelling. With an endpoint Arrow asks nobody for the bucket's region."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    storage = ArchiveStorage(f"{scheme}://bucket/a/")
    assert storage.path("messages") == "s3a://bucket/a/messages"
    assert ArchiveStorage(storage.uri).uri == storage.uri


def test_a_folder_is_moved_where_there_was_none(tmp_path: Path) -> None:
    """File by file, on a file system of which nothing more is known."""
    storage = ArchiveStorage("mock:///archive")
    storage.write("table/_making/hour=1/file", b"1")
    storage.move("table/_making", "table/batch=c1")
    assert storage.files("table", recursive=True) == [("batch=c1/hour=1/file", 1)]
    assert not storage.exists("table/_making")
