"""The end of an archive: an audit and a backfill prove nothing about messages that are due behind
it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer
from msgspec import structs

from chronos.adapters.kafka.log import KafkaLog
from chronos.cli.output import Format
from chronos.cli.spark.audit import _publish
from chronos.cli.spark.backfill import RunOptions, _replay, check_end
from chronos.errors import ArchiveFailed
from chronos.spark.archive.job import archive
from chronos.spark.audit.job import EmptyWindow, audit
from chronos.spark.backfill.job import Backfill
from chronos.spark.request import BackfillRequest
from chronos.spark.session import Step
from chronos.spark.storage import ArchiveStorage
from tests.integration.flow import now_ms
from tests.spark.backfills import backfill_of
from tests.spark.cases import (
    PULLED,
    READ_MS,
    SETTLED_MS,
    JudgedShard,
    T,
    rows_of,
    write_archive,
)
from tests.spark.histories import HOUR_MS
from tests.spark.logs import Logs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.harness.broker import Broker

pytestmark = pytest.mark.spark


WHOLE = {"stable_end": PULLED, "high_watermark": PULLED}


@pytest.fixture
def logs(broker: Broker) -> Logs:
    """Topics with one progress record in them."""
    made = Logs(broker)
    made.write(made.progress, made.step())
    made.flush()
    return made


@pytest.fixture
def brokers(logs: Logs) -> Iterator[KafkaLog]:
    """The adapter that the archive asks."""
    log = logs.brokers()
    yield log
    log.close()


def written(folder: Path, *cases: JudgedShard) -> ArchiveStorage:
    """The archive of the cases on disk."""
    return ArchiveStorage(str(write_archive(rows_of(cases), folder / "archive")))


def test_a_delay_topic_that_was_only_looked_at_proves_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The first run notes the ends of all topics before it reads; none of the messages is in the
    archive then."""
    case = JudgedShard("", {}).read_plainly("progress", "deliveries").read("messages", 0, **WHOLE)
    storage = written(tmp_path, case)
    found = audit(spark, storage, from_ms=READ_MS - HOUR_MS, to_ms=None, now_ms=READ_MS)
    assert (found.overall.counts, found.clean, found.broken) == ({}, False, False)
    assert found.not_proved == ["the archive does not hold every partition of the delay topic yet"]
    with pytest.raises(typer.Exit) as ended:
        _publish(found, Format.text, None)
    assert ended.value.exit_code == 6
    # Without a window there is none to choose.
    with pytest.raises(ArchiveFailed, match="does not hold every partition of the delay topic yet"):
        audit(spark, storage, from_ms=None, to_ms=None, now_ms=READ_MS)


def test_an_archive_ends_where_its_least_read_partition_does(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One partition was read an hour ago, and only looked at since; the default window ends there
    too."""
    ended = READ_MS - HOUR_MS
    behind = JudgedShard("", {}).send(0, T).read_plainly("progress", "deliveries")
    behind.read("messages", read_ms=ended).read(
        "messages", **WHOLE | {"stable_end": PULLED + 1, "high_watermark": PULLED + 1}
    )
    storage = written(tmp_path, JudgedShard("", {}), behind)
    found = audit(spark, storage, from_ms=ended - HOUR_MS, to_ms=READ_MS)
    assert (found.archived_ms, found.clean) == (ended, False)
    assert found.not_proved == [
        "the archive ends at 2030-01-01T02:00:00.000Z, before the window does"
    ]
    assert audit(spark, storage, from_ms=None, to_ms=None).span.to_ms == ended
    assert audit(spark, storage, from_ms=ended - HOUR_MS, to_ms=ended).clean


def test_an_archive_ends_by_the_clock_of_the_brokers(spark: SparkSession, tmp_path: Path) -> None:
    """The archive's machine is 60 s ahead: what was written since the newest record that it saw may
    not be archived."""
    seen_ms = READ_MS - 60_000
    case = (
        JudgedShard("", {})
        .read_plainly("progress", "deliveries")
        .read("messages", broker_ms=seen_ms)
    )
    storage = written(tmp_path, case)
    found = audit(spark, storage, from_ms=READ_MS - HOUR_MS, to_ms=READ_MS)
    assert (found.archived_ms, found.clean) == (seen_ms, False)
    assert audit(spark, storage, from_ms=READ_MS - HOUR_MS, to_ms=seen_ms).clean


def test_an_audit_beside_the_first_run_of_the_archive_is_not_clean(
    spark: SparkSession, logs: Logs, brokers: KafkaLog, tmp_path: Path
) -> None:
    """The run has read all topics but the delay topic, which it reads last."""
    due_ms = now_ms() - HOUR_MS
    logs.schedule(60, due_ms)
    storage, results = ArchiveStorage(str(tmp_path)), []

    def look(step: Step) -> None:
        if step.name == "archiving messages" and not step.done:
            found = audit(spark, storage, from_ms=due_ms, to_ms=due_ms + 60_000)
            results.append((found.overall.counts, found.clean, found.not_proved))

    archive(spark, brokers, storage, logs.plan(), look)
    assert results == [
        ({}, False, ["the archive does not hold every partition of the delay topic yet"])
    ]
    found = audit(spark, storage, from_ms=due_ms, to_ms=due_ms + 60_000)
    assert (found.overall.counts, found.clean) == ({"delivered": 60}, True)


def backfills(
    spark: SparkSession, logs: Logs, brokers: KafkaLog, storage: ArchiveStorage
) -> Backfill:
    """Backfills of an archive to the topics."""
    return backfill_of(spark, storage, brokers, logs.broker.bootstrap, delay_topic=logs.delay)


@pytest.mark.parametrize("lost", [0, 3])
def test_a_backfill_of_a_window_beyond_the_archive_is_refused(
    spark: SparkSession,
    logs: Logs,
    brokers: KafkaLog,
    tmp_path: Path,
    lost: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its plan tells where the archive ends; with the option the rest of the window is left to a
    later backfill."""
    case = JudgedShard("", {})
    for number in range(lost):
        case.send(number, T + number)
    storage = written(tmp_path, case)
    job = backfills(spark, logs, brokers, storage)
    window = BackfillRequest(mode="missing", from_ms=T, to_ms=READ_MS + 1)
    with pytest.raises(
        typer.BadParameter,
        match=r"the archive ends at 2030-01-01T03:00:00\.000Z, .*--beyond-archive",
    ):
        _replay(job, window, Format.text, RunOptions(yes=True))
    assert not storage.folders("sent"), "the plan is removed"
    shown = capsys.readouterr().out
    assert f"to send: {lost}" in shown
    assert "the archive ends at 2030-01-01T03:00:00.000Z, before the window does" in shown
    _replay(job, window, Format.text, RunOptions(yes=True, dry_run=True))
    assert "before the window does" in capsys.readouterr().out
    planned = job.plan(window)
    check_end(planned, beyond_archive=True)
    check_end(
        structs.replace(planned, request=structs.replace(window, mode="pending")),
        beyond_archive=False,
    )
    _replay(
        job,
        structs.replace(window, to_ms=READ_MS),
        Format.text,
        RunOptions(yes=True, dry_run=True),
    )
    assert "before the window does" not in capsys.readouterr().out


def test_a_plan_knows_where_the_archive_ends(
    spark: SparkSession, logs: Logs, brokers: KafkaLog, tmp_path: Path
) -> None:
    """Without --to its window ends there; an archive without the delay topic has no end."""
    whole = backfills(spark, logs, brokers, written(tmp_path / "whole", JudgedShard("", {})))
    planned = whole.plan(BackfillRequest(mode="missing", from_ms=T))
    assert planned.archived_ms == planned.request.to_ms == READ_MS
    seen = JudgedShard("", {}).read_plainly("progress", "deliveries").read("messages", 0, **WHOLE)
    unread = backfills(spark, logs, brokers, written(tmp_path / "unread", seen))
    with pytest.raises(ArchiveFailed, match="does not hold every partition of the delay topic yet"):
        unread.plan(BackfillRequest(mode="missing"))
    with pytest.raises(EmptyWindow):
        unread.plan(BackfillRequest(mode="missing", from_ms=T))
    assert unread.plan(BackfillRequest(mode="missing", from_ms=T, to_ms=READ_MS)).archived_ms == 0


def test_a_restore_knows_what_was_delivered_up_to_the_end_of_the_progress_topic_only(
    spark: SparkSession, logs: Logs, brokers: KafkaLog, tmp_path: Path
) -> None:
    """The last run did not reach it: what was due since then may have been delivered."""
    seen_ms = SETTLED_MS + 60_000
    case = JudgedShard("", {}).send(0, seen_ms - 1).send(1, READ_MS + HOUR_MS)
    case.read_plainly("messages", "deliveries").read("progress", read_ms=seen_ms)
    storage = written(tmp_path, case)
    request = BackfillRequest(
        mode="pending", purpose="restore-1", lost_ms=READ_MS, deduplication_ms=0
    )
    planned = backfills(spark, logs, brokers, storage).plan(request)
    assert (planned.archived_ms, planned.unknown) == (READ_MS, 1)
