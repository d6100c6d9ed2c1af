"""Locations of an archive, and the errors of locations that cannot hold one."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronos.errors import ArchiveFailed, ArchiveUnusable
from chronos.spark.storage import ArchiveStorage


@pytest.mark.parametrize("name", ["with blanks", "Bücher", "a&b=c+d~e@f,g;h"])
def test_a_folder_may_have_any_name_that_spark_reads(tmp_path: Path, name: str) -> None:
    """Given as a path, and as the URI that Spark and other processes get."""
    storage = ArchiveStorage(str(tmp_path / name))
    storage.write("table/file", b"1")
    assert (tmp_path / name / "table" / "file").read_bytes() == b"1"
    assert ArchiveStorage(storage.uri).read("table/file") == b"1"


@pytest.mark.parametrize(
    "location",
    ["nothing://here", "/a#b", "file:///a%20b", "s3://bucket/a?region=b", "/x/*", "/x/{a}"],
)
def test_a_location_that_can_never_hold_an_archive_is_unusable(location: str) -> None:
    """`--follow` does not try it again."""
    with pytest.raises(ArchiveUnusable, match="cannot hold an archive"):
        ArchiveStorage(location)


def test_an_unreachable_location_may_be_tried_again(tmp_path: Path) -> None:
    """An error of the file system is one that `--follow` survives."""
    (tmp_path / "file").touch()
    storage = ArchiveStorage(str(tmp_path / "file"))
    with pytest.raises(ArchiveFailed, match="Not a directory"):
        storage.write("table/file", b"")


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_spark_and_arrow_each_get_their_name_of_s3(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From either spelling. With an endpoint set, Arrow does not look up the bucket's region."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    storage = ArchiveStorage(f"{scheme}://bucket/a/")
    assert storage.path("messages") == "s3a://bucket/a/messages"
    assert ArchiveStorage(storage.uri).uri == storage.uri
