"""Commits of an archive: what is not committed is not read and goes, and what was lost is named."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from chronos.errors import ArchiveFailed, ArchiveUnusable
from chronos.spark import schema
from chronos.spark.archive.commits import Commits
from chronos.spark.archive.compact import compact
from chronos.spark.archive.verify import verify
from chronos.spark.audit.job import audit
from chronos.spark.delta import LOG, append, create, last_version, read
from chronos.spark.session import ignore, one_line
from chronos.spark.storage import ArchiveStorage
from chronos.spark.tables import open_tables, pinned, read_table
from tests.spark.cases import JudgedShard, T, add_batch, archive_of, begin_archive
from tests.spark.erasing import counts
from tests.spark.histories import HOUR_MS
from tests.spark.kills import command, ended, kill_at_step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from chronos.spark.tables import Tables

pytestmark = pytest.mark.spark

COUNT = 6


def batch(spark: SparkSession, first: int) -> Tables:
    """Messages that were delivered, in the order of their times backwards."""
    case = JudgedShard("", {})
    for at in reversed(range(first, first + COUNT)):
        case.send(at, T + at).deliver(at, T + at, T + at)
    return archive_of(spark, [case])


@pytest.fixture(scope="module")
def origin(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of one batch."""
    folder = begin_archive(tmp_path_factory.mktemp("commits") / "archive")
    add_batch(batch(spark, 0), folder, "first")
    return folder


@pytest.fixture
def archived(origin: Path, tmp_path: Path) -> ArchiveStorage:
    """A copy of it."""
    return ArchiveStorage(str(shutil.copytree(origin, tmp_path / "archive")))


def messages(spark: SparkSession, storage: ArchiveStorage) -> list[int]:
    """Offsets of the messages that are archived."""
    return sorted(row["offset"] for row in open_tables(spark, storage)[0].messages.collect())


def newest(storage: ArchiveStorage, name: str) -> int:
    """Rows of the newest version of a table, by another reader."""
    return DeltaTable(storage.path(name)).to_pyarrow_table().num_rows


def test_what_a_job_did_not_commit_is_not_read_and_is_removed_by_the_next(
    spark: SparkSession, archived: ArchiveStorage, tmp_path: Path
) -> None:
    """Also if that was killed in turn; a batch is there once after it was written again."""
    add_batch(batch(spark, COUNT), tmp_path / "archive", "killed", commit=False)
    assert messages(spark, archived) == list(range(COUNT))
    assert newest(archived, "messages") == 2 * COUNT
    for _ in range(2):
        commits = Commits(spark, archived, "cases")
        assert newest(archived, "messages") == newest(archived, "deliveries") == COUNT
    assert commits.read(schema.MESSAGES).count() == COUNT
    add_batch(batch(spark, COUNT), tmp_path / "archive", "next")
    assert messages(spark, archived) == list(range(2 * COUNT))
    assert newest(archived, "messages") == newest(archived, "deliveries") == 2 * COUNT


class Unreachable(ArchiveStorage):
    """An archive whose storage does not answer as a commit of `offsets` is looked for."""

    looks = 0

    def files(self, below: str, *, recursive: bool = False) -> list[tuple[str, int]]:
        """The files; not for the second look at that log."""
        if below == f"{schema.OFFSETS.name}/{LOG}":
            self.looks += 1
            if self.looks == 2:
                raise ArchiveFailed("the storage does not answer")
        return super().files(below, recursive=recursive)


def test_nothing_is_committed_behind_a_commit_that_failed_and_may_count(
    spark: SparkSession, archived: ArchiveStorage, tmp_path: Path
) -> None:
    """It would name versions of the tables without the rows that the first one counts."""
    storage = Unreachable(str(tmp_path / "archive"))
    commits, rows = Commits(spark, storage, "cases"), batch(spark, COUNT)
    columns = [column for column, *_ in schema.OFFSETS.columns]
    reads = [row.asDict() for row in rows.offsets.select(*columns).collect()]
    written = commits.write(schema.MESSAGES, rows.messages, run="r", stream="s", number=0)
    storage.looks = 0
    with pytest.raises(ArchiveFailed, match="does not answer"):
        commits.commit(reads, {"messages": written}, run="r", stream="s", number=0)
    with pytest.raises(ArchiveFailed, match="may have been made: run the command again"):
        commits.write(schema.DELIVERIES, rows.deliveries, run="r", stream="t", number=0)
    Commits(spark, archived, "cases")
    assert messages(spark, archived) == list(range(2 * COUNT))


def test_a_batch_that_delta_skips_is_an_error(
    spark: SparkSession, archived: ArchiveStorage
) -> None:
    """A number that is not greater than the last one of its writer would be lost silently."""
    rows = read(spark, archived, "messages", last_version(archived, "messages") or 0)
    assert append(archived, "messages", rows, writer="a", number=3).rows == COUNT
    for number in (3, 2):
        with pytest.raises(ArchiveFailed, match=rf"wrote batch {number} of a to .*not there"):
            append(archived, "messages", rows, writer="a", number=number)
    assert append(archived, "messages", rows, writer="b", number=0).rows == COUNT


def test_rows_are_sorted_by_time_in_files_with_statistics(archived: ArchiveStorage) -> None:
    """So that readers leave out files, and parts of files, by their times, shards and offsets."""
    for name, time in (("messages", "due_ms"), ("deliveries", "due_at_ms")):
        table = DeltaTable(archived.path(name))
        for file in table.file_uris():
            times = pq.read_table(file.removeprefix("file://")).column(time).to_pylist()
            assert times == sorted(times)
            assert len(times) == COUNT
        (added,) = table.get_add_actions(flatten=True).to_struct_array().to_pylist()
        assert (added[f"min.{time}"], added[f"max.{time}"]) == (T, T + COUNT - 1)
        assert (added["min.shard"], added["min.offset"], added["max.offset"]) == (0, 0, COUNT - 1)


def test_a_lost_file_is_named_and_is_no_missing_message(
    spark: SparkSession, archived: ArchiveStorage
) -> None:
    """An audit that needs it ends with an error; so does one whose table lost its newest
    version."""
    whole = verify(spark, archived, ignore)
    assert (whole.problems, whole.rows > 2 * COUNT) == ([], True)
    (file,) = DeltaTable(archived.path("deliveries")).file_uris()
    lost = Path(file.removeprefix("file://"))
    lost.rename(lost.with_suffix(".away"))
    found = verify(spark, archived, ignore)
    (problem,) = found.problems
    assert problem == f"deliveries/date=2030-01-01/{lost.name} is missing"
    with pytest.raises((PySparkException, Py4JJavaError)) as error:
        audit(spark, archived, from_ms=T, to_ms=T + HOUR_MS)
    assert "a file of the archive is missing" in str(one_line(error.value))
    lost.write_bytes(b"PAR1")
    (problem,) = verify(spark, archived, ignore).problems
    assert problem.startswith("deliveries cannot be read: ")
    lost.with_suffix(".away").rename(lost)
    log = Path(archived.path("deliveries").removeprefix("file://"), "_delta_log")
    (log / f"{last_version(archived, 'deliveries'):020}.json").unlink()
    with pytest.raises(ArchiveUnusable, match="table deliveries lost its version 1"):
        audit(spark, archived, from_ms=T, to_ms=T + HOUR_MS)


def test_an_archive_that_lost_its_offsets_is_not_continued(
    spark: SparkSession, archived: ArchiveStorage, tmp_path: Path
) -> None:
    """The next run would archive everything once more."""
    shutil.rmtree(tmp_path / "archive" / "offsets")
    with pytest.raises(ArchiveUnusable, match="the offsets that are archived are not known"):
        add_batch(batch(spark, COUNT), tmp_path / "archive", "next")
    assert newest(archived, "messages") == COUNT


def test_a_compaction_keeps_what_readers_have_begun_to_read(
    spark: SparkSession, archived: ArchiveStorage, tmp_path: Path
) -> None:
    """The rows stay, in fewer files; a killed one counts for nothing, and the next completes
    it."""
    for at in (1, 2):
        add_batch(batch(spark, at * COUNT), tmp_path / "archive", f"run-{at}")
    before, _, _ = open_tables(spark, archived)
    archived_versions = dict(before.versions)

    def kill(step: object) -> None:
        if "decisions" in str(step):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compact(spark, archived, 1 << 30, kill)
    now = pinned(spark, archived)
    assert now is not None
    assert now.versions == archived_versions
    found = {each.table: each for each in compact(spark, archived, 1 << 30, ignore)}
    assert (found["messages"].files_before, found["messages"].files_after) == (3, 1)
    assert messages(spark, archived) == list(range(3 * COUNT))
    assert before.messages.count() == 3 * COUNT
    assert newest(archived, "messages") == 3 * COUNT
    again = {each.table: each for each in compact(spark, archived, 1 << 30, ignore)}
    assert (again["messages"].files_before, again["messages"].files_after) == (1, 1)
    clean = audit(spark, archived, from_ms=T, to_ms=T + HOUR_MS)
    assert clean.overall.counts == {"delivered": 3 * COUNT}


@pytest.mark.campaign
def test_a_compaction_that_is_killed_changes_no_outcome_and_the_next_one_completes_it(
    spark: SparkSession, archived: ArchiveStorage, tmp_path: Path
) -> None:
    """kill -9 of the process while it merges files, and while it removes the old ones."""
    for at in (1, 2):
        add_batch(batch(spark, at * COUNT), tmp_path / "archive", f"run-{at}")
    line = command("compact", tmp_path / "archive", [])
    for step in ("compacting decisions", "removing old files of messages"):
        kill_at_step(line, step, tmp_path / "killed.log")
        assert counts(spark, tmp_path / "archive") == {"delivered": 3 * COUNT}
        assert messages(spark, archived) == list(range(3 * COUNT))
    done = ended(line)
    assert done.returncode == 0, done.stderr
    assert counts(spark, tmp_path / "archive") == {"delivered": 3 * COUNT}
    assert len(DeltaTable(tmp_path / "archive" / "messages").file_uris()) == 1
    assert verify(spark, archived, ignore).problems == []


def test_a_row_outside_its_partition_is_an_error_of_the_audit(
    spark: SparkSession, archived: ArchiveStorage
) -> None:
    """The audit of its time would not find it, and call a message missing."""
    rows = open_tables(spark, archived)[0].deliveries
    moved = rows.withColumn("date", f.date_add("date", 1))
    commits = Commits(spark, archived, "cases")
    commit = append(archived, "deliveries", moved, writer="foreign", number=0)
    reads = [row.asDict() for row in commits.read(schema.OFFSETS).limit(1).collect()]
    commits.commit(reads, {"deliveries": commit}, run="r", stream="s", number=0)
    with pytest.raises(ArchiveFailed, match="a row of table deliveries is in another partition"):
        audit(spark, archived, from_ms=T, to_ms=T + HOUR_MS)


def test_a_column_of_a_later_version_is_null_before_it_was_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    """And is added by the first batch that has it."""
    storage = ArchiveStorage(str(tmp_path))
    kinds = schema.table_schema(schema.DECISIONS)
    older = StructType([field for field in kinds if field.name != "destination"])
    create(storage, "decisions", older, partition="date")
    rows = batch(spark, 0).decisions
    assert read_table(spark, storage, schema.DECISIONS, {"decisions": 0}).columns == kinds.names
    commit = append(storage, "decisions", rows, writer="a", number=0)
    assert read(spark, storage, "decisions", commit.version).columns[-1] == "destination"
