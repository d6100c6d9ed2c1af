"""The files of an archive: a lost one is named before anything is judged or sent, and no moment
shows offsets without their rows."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from chronos.adapters.kafka.log import KafkaLog
from chronos.adapters.kafka.writer import BulkOpener
from chronos.core.shard.progress import NO_OUTCOMES, Progress, pack_progress
from chronos.errors import ArchiveUnusable
from chronos.spark import inventory, schema
from chronos.spark.archive.compact import compact
from chronos.spark.archive.job import archive
from chronos.spark.audit.job import audit
from chronos.spark.backfill.job import Backfill
from chronos.spark.backfill.sending import BackfillContext
from chronos.spark.runs import batch_begin, remove_uncommitted
from chronos.spark.session import Step, ignore
from chronos.spark.storage import ArchiveStorage
from tests.integration.flow import now_ms
from tests.spark.histories import HOUR_MS
from tests.spark.killed import Doomed, Killed
from tests.spark.logs import SHARDS, Logs, positions_in, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.harness.broker import Broker

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture(scope="module")
def logs(broker: Broker) -> Logs:
    """Topics with 40 messages, their deliveries and a progress record."""
    made = Logs(broker)
    step = Progress(
        role_epoch=1,
        log_epoch=1,
        cluster=made.cluster,
        node="n",
        instance="i",
        shards=SHARDS,
        cursor_due_ms=0,
        cursor_offset=0,
        pull_offset=0,
        counts=(0, *NO_OUTCOMES),
    )
    made.write(made.progress, pack_progress(step))
    made.schedule(40, now_ms() - HOUR_MS)
    return made


@pytest.fixture(scope="module")
def brokers(logs: Logs) -> Iterator[KafkaLog]:
    """The adapter that the archive asks."""
    log = logs.brokers()
    yield log
    log.close()


@pytest.fixture(scope="module")
def origin(
    spark: SparkSession, logs: Logs, brokers: KafkaLog, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The archive of the topics, in several batches."""
    folder = tmp_path_factory.mktemp("inventory") / "archive"
    archive(spark, brokers, ArchiveStorage(str(folder)), logs.plan(batch_records=20), ignore)
    return folder


@pytest.fixture
def copied(origin: Path, tmp_path: Path) -> Path:
    """A copy of the archive."""
    return shutil.copytree(origin, tmp_path / "archive")


def files_of(folder: Path, name: str) -> list[Path]:
    """The Parquet files of a table, those without rows left out."""
    return sorted(
        path for path in (folder / name).rglob("*.parquet") if pq.read_metadata(path).num_rows
    )


def verify(folder: Path) -> tuple[int, dict[str, Any]]:
    """Exit code and answer of the command."""
    command = [
        sys.executable,
        "-m",
        "chronos",
        "archive",
        "verify",
        "-l",
        str(folder),
        "-o",
        "json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, json.loads(done.stdout)


def test_every_file_with_rows_is_recorded_with_its_rows(origin: Path) -> None:
    """Those of the offsets a run begins at too."""
    code, found = verify(origin)
    recorded = [path for name in schema.TABLES for path in files_of(origin, name)]
    rows = sum(pq.read_metadata(path).num_rows for path in recorded)
    assert (code, found) == (
        0,
        {"files": len(recorded), "rows": rows, "problems": [], "unrecorded": []},
    )


@pytest.mark.parametrize("name", ["messages", "deliveries", "progress", "offsets"])
def test_an_archive_that_lost_a_file_is_refused_by_audit_and_backfill(
    spark: SparkSession, logs: Logs, brokers: KafkaLog, copied: Path, name: str
) -> None:
    """Nothing is called missing that was in the file; the file is named, by `chronos archive
    verify` too."""
    lost = files_of(copied, name)[-1]
    lost.unlink()
    storage, path = ArchiveStorage(str(copied)), str(lost.relative_to(copied))
    with pytest.raises(ArchiveUnusable, match=f"is not whole: {path} is missing"):
        audit(spark, storage, from_ms=1, to_ms=now_ms())
    with pytest.raises(ArchiveUnusable, match=f"is not whole: {path} is missing"):
        Backfill(
            BackfillContext(
                spark=spark,
                storage=storage,
                brokers=brokers,
                opener=BulkOpener(bootstrap_servers="", properties={}, timeout_s=1),
            ),
            bootstrap_servers=logs.broker.bootstrap,
        )
    with pytest.raises(ArchiveUnusable, match="is not whole"):
        compact(spark, storage, 1 << 20, ignore)
    code, found = verify(copied)
    assert (code, len(found["problems"])) == (1, 1)
    assert found["problems"][0].startswith(f"{path} is missing (")


def test_a_file_that_was_cut_exchanged_or_added_is_named(copied: Path) -> None:
    """A cut one by its size, another one of the same size by its rows or because it cannot be
    read."""
    cut, exchanged, *_ = files_of(copied, "messages")
    cut.write_bytes(cut.read_bytes()[:-9])
    exchanged.write_bytes(b"x" * exchanged.stat().st_size)
    shutil.copy(
        files_of(copied, "deliveries")[0],
        files_of(copied, "deliveries")[0].with_name("again.parquet"),
    )
    _, found = verify(copied)
    texts = sorted(line.split(".parquet ")[1].split()[0] for line in found["problems"])
    assert texts == ["cannot", "has", "was"]


def test_a_whole_batch_that_is_gone_is_noticed(copied: Path) -> None:
    """The record is not in the folder of the batch."""
    shutil.rmtree(files_of(copied, "deliveries")[0].parents[2])
    storage = ArchiveStorage(str(copied))
    with pytest.raises(ArchiveUnusable, match=r"deliveries/.* is missing"):
        inventory.need_whole(storage, schema.TABLES)


def test_a_folder_without_a_record_is_told(copied: Path) -> None:
    """As one of a run that has not ended; nothing of it is called lost."""
    gone = min((copied / "_files" / "messages").glob("*.json"))
    gone.unlink()
    code, found = verify(copied)
    assert (code, found["problems"]) == (0, [])
    assert found["unrecorded"] == [f"messages/{gone.stem}"]


def test_compaction_records_what_it_writes(spark: SparkSession, copied: Path) -> None:
    """Afterwards a lost file is noticed."""
    storage = ArchiveStorage(str(copied))
    compact(spark, storage, 1 << 20, ignore)
    assert len(list((copied / "_files").glob("messages/*.json"))) == 1
    assert audit(spark, storage, from_ms=1, to_ms=now_ms()).overall.counts == {"delivered": 40}
    files_of(copied, "messages")[0].unlink()
    with pytest.raises(ArchiveUnusable, match=r"messages/batch=c00000001/.* is missing"):
        audit(spark, storage, from_ms=1, to_ms=now_ms())


def covered(folder: Path) -> int:
    """The number of offsets of the delay topic that the archive says it holds, less the messages
    that it holds; never more than 0."""
    rows = table(folder, "offsets").to_pylist()
    ranges = {
        (row["partition"], at)
        for row in rows
        if row["table"] == "messages"
        for at in range(row["from_offset"], row["until_offset"])
    }
    return len(ranges) - len(set(positions_in(folder, "messages", "shard")) & ranges)


def test_a_killed_removal_of_a_killed_run_never_leaves_offsets_without_their_rows(
    spark: SparkSession, logs: Logs, brokers: KafkaLog, tmp_path: Path
) -> None:
    """The run was killed between its last batch and the commit: batch and offsets are there, and
    both have to go."""
    first = tmp_path / "first"
    archive(spark, brokers, ArchiveStorage(str(first)), logs.plan(batch_records=20), ignore)
    for commit in sorted((first / "_runs/00000001/messages/commits").iterdir()):
        if commit.name.lstrip(".").split(".")[0] != "0":
            commit.unlink()
    assert covered(first) == 0
    done, steps = False, 0
    while not done:
        folder = shutil.copytree(first, tmp_path / str(steps))
        try:
            remove_uncommitted(Doomed(str(folder), steps))
            done = True
        except Killed:
            pass
        assert covered(folder) == 0, "each offset that counts as archived is in `messages`"
        storage = ArchiveStorage(str(folder))
        inventory.need_whole(storage, schema.TABLES)
        if steps % 3 == 0 or done:
            archive(spark, brokers, storage, logs.plan(), ignore)
            assert (
                len(positions_in(folder, "messages", "shard"))
                == len(set(positions_in(folder, "messages", "shard")))
                == 40
            )
        steps += 1
        assert steps < 40
    assert steps > 3


def test_a_run_on_an_archive_without_its_runs_is_refused(
    spark: SparkSession, broker: Broker, brokers: KafkaLog, tmp_path: Path
) -> None:
    """It would overwrite the first batch, whose log may be trimmed; compacted or not. A run that
    was killed as it began is none."""
    logs = Logs(broker)
    for _ in range(2):
        logs.schedule(10, now_ms())
        archive(spark, brokers, ArchiveStorage(str(tmp_path / "origin")), logs.plan(), ignore)
    for kept in ("whole", "compacted", "last"):
        folder = shutil.copytree(tmp_path / "origin", tmp_path / kept)
        storage = ArchiveStorage(str(folder))
        if kept == "compacted":
            compact(spark, storage, 1 << 20, ignore)
        if kept == "last":  # the last of two runs is gone, the one before it is there
            shutil.rmtree(folder / "_runs" / "00000002")
        else:
            shutil.rmtree(folder / "_runs")
        before = {path: path.stat().st_size for path in folder.rglob("*.parquet")}
        with pytest.raises(ArchiveUnusable, match="the offsets that are archived are not known"):
            archive(spark, brokers, storage, logs.plan(), ignore)
        assert {path: path.stat().st_size for path in folder.rglob("*.parquet")} == before

    class Ended(BaseException):
        pass

    class Beginning(ArchiveStorage):
        def write_json(self, path: str, value: Any) -> None:
            if path.endswith("/run.json"):
                raise Ended
            super().write_json(path, value)

    fresh = tmp_path / "fresh"
    with pytest.raises(Ended):
        archive(spark, brokers, Beginning(str(fresh)), logs.plan(), ignore)
    assert (fresh / "offsets" / batch_begin("00000001")).exists()
    archive(spark, brokers, ArchiveStorage(str(fresh)), logs.plan(), ignore)
    inventory.need_whole(ArchiveStorage(str(fresh)), schema.TABLES)


def test_an_audit_beside_a_run_that_removes_a_killed_batch_is_not_refused(
    spark: SparkSession, logs: Logs, brokers: KafkaLog, copied: Path
) -> None:
    """The record goes first; a reader that has read it before looks again."""
    storage = ArchiveStorage(str(copied))
    inventory.record(storage, "messages/batch=00000001-000009", {"a.parquet": (1, 1)})
    with pytest.raises(ArchiveUnusable, match=r"a\.parquet is missing"):
        inventory.need_whole(storage, schema.TABLES)

    class Removing(ArchiveStorage):
        def files(self, below: str, *, recursive: bool = False) -> list[tuple[str, int]]:
            if below == "offsets":
                inventory.forget(ArchiveStorage(str(copied)), "messages/batch=00000001-000009")
            return super().files(below, recursive=recursive)

    inventory.need_whole(Removing(str(copied)), schema.TABLES)


def test_a_watch_sees_each_batch_recorded_before_it_counts(
    spark: SparkSession, logs: Logs, brokers: KafkaLog, tmp_path: Path
) -> None:
    """Whenever a run reports its progress, what is there is whole."""
    storage = ArchiveStorage(str(tmp_path))

    def look(_: Step) -> None:
        found = inventory.take(storage, schema.TABLES, rows=True)
        assert (found.problems, found.unrecorded) == ([], [])

    archive(spark, brokers, storage, logs.plan(batch_records=20), look)
