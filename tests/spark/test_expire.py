"""Expiry: what was settled before a time goes, and every audit counts as before."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from chronos.spark import schema
from chronos.spark.archive.commits import Commits
from chronos.spark.archive.expire import expire
from chronos.spark.archive.forget import forget
from chronos.spark.archive.verify import verify
from chronos.spark.audit.coverage import coverage
from chronos.spark.audit.job import judge
from chronos.spark.audit.outcomes import WRONG, Span
from chronos.spark.session import ignore
from chronos.spark.storage import ArchiveStorage
from tests.spark.cases import (
    PULLED,
    READ_MS,
    SETTLED_MS,
    JudgedShard,
    T,
    rows_of,
    write_archive,
)
from tests.spark.drill import COUNT, Drill
from tests.spark.erasing import Killed, counts, kill_at, letter, rows_archived, tables_of
from tests.spark.histories import DELAY, EVERYTHING, HOUR_MS, frame, played, token
from tests.spark.histories import rows_of as rows_of_histories
from tests.spark.kills import command, ended, kill_at_step
from tests.unit.histories import USER_IDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.harness.broker import Broker

pytestmark = pytest.mark.spark

DAY_MS = 24 * HOUR_MS
LIMIT = T + HOUR_MS + 1
"""Behind the second step of a case, whose cursor is at T, and before the third."""


def column(folder: Path, table: str, name: str) -> list[Any]:
    """The values of a column, in order."""
    return sorted(DeltaTable(folder / table).to_pyarrow_table().column(name).to_pylist())


def archived(folder: Path, *cases: JudgedShard) -> ArchiveStorage:
    """An archive of these shards."""
    return ArchiveStorage(str(write_archive(rows_of(cases), folder / "archive")))


def test_what_was_settled_before_the_limit_goes(spark: SparkSession, tmp_path: Path) -> None:
    """By the time it was settled, not by its due time: a message that is due in years, and was
    cancelled, goes with its cancel; what was settled later, waits or is missing stays."""
    case = JudgedShard("", {})
    case.send(0, T).deliver(0, T, T)
    case.send(1, T + 365 * DAY_MS, id=b"off").act("cancel", 2, b"off", at_ms=T - 50_000)
    case.send(3, T + HOUR_MS + 60_000).deliver(3, T + HOUR_MS + 60_000, T + HOUR_MS + 60_000)
    case.send(4, SETTLED_MS + HOUR_MS, id=b"moved")
    case.act("reschedule", 5, b"moved", at_ms=T - 50_000, due_ms=SETTLED_MS + 2 * HOUR_MS)
    case.send(6, T)
    storage = archived(tmp_path, case)
    folder = tmp_path / "archive"
    before = {"delivered": 2, "cancelled": 1, "pending": 1, "missing": 1}
    assert counts(spark, folder) == before
    done = expire(spark, storage, LIMIT, ignore)
    assert (done.erased, done.rows["messages"], done.rows["deliveries"]) == (2, 3, 1)
    assert column(folder, "messages", "offset") == [3, 4, 5, 6]
    assert column(folder, "deliveries", "source_offset") == [3]
    assert column(folder, "erased", "outcome") == ["cancelled", "delivered"]
    assert counts(spark, folder) == {"delivered": 1, "erased": 2, "pending": 1, "missing": 1}
    assert verify(spark, storage, ignore).problems == []
    after = rows_archived(folder)
    again = expire(spark, storage, LIMIT, ignore)
    assert (again.erased, set(again.rows.values())) == (0, {0})
    assert rows_archived(folder) == after
    assert expire(spark, storage, READ_MS, ignore).erased == 1
    assert counts(spark, folder) == {"erased": 3, "pending": 1, "missing": 1}


def test_the_newest_of_a_series_stays(spark: SparkSession, tmp_path: Path) -> None:
    """With its record and its decisions; the deliveries of earlier occurrences go. Once it is
    cancelled, all of it goes, or is forgotten."""
    case = JudgedShard("", {})
    case.send(0, T, id=b"daily").deliver(0, T, T, id=b"daily")
    case.decide("again", 0, T, next_due_ms=T + DAY_MS, occurrence=2)
    case.send(1, T).deliver(1, T, T)
    storage = archived(tmp_path, case)
    folder = tmp_path / "archive"
    assert counts(spark, folder) == {"delivered": 2, "pending": 1}
    done = expire(spark, storage, READ_MS, ignore)
    assert (done.erased, done.rows["messages"], done.rows["deliveries"]) == (2, 1, 2)
    assert column(folder, "messages", "offset") == [0]
    assert counts(spark, folder) == {"erased": 2, "pending": 1}
    assert expire(spark, storage, READ_MS, ignore).erased == 0
    assert forget(spark, storage, [b"daily"], ignore).pending == [b"daily"]


def test_letters_steps_and_decisions_go_by_the_day(spark: SparkSession, tmp_path: Path) -> None:
    """Steps and decisions stay from the day before the oldest record that does."""

    def shard(waits_ms: int | None) -> JudgedShard:
        case = JudgedShard("", {}).send(0, T, timestamp_ms=T - 60_000)
        case.decide("dead-letter", 0, T + HOUR_MS, in_step=3, position_due_ms=T)
        if waits_ms is not None:
            case.send(1, T + 90 * DAY_MS, timestamp_ms=waits_ms)
        for day in range(-3, 9):
            case.step(T + day * DAY_MS + HOUR_MS, T + day * DAY_MS + HOUR_MS, PULLED * (day > -3))
        return case.read_plainly("messages", "progress", "deliveries")

    for name, waits_ms, steps in (("all", None, 4), ("since", T - 60_000, 11)):
        case = shard(waits_ms)
        for row in case.offsets:
            row["read_ms"] = T + 10 * DAY_MS
        storage = archived(tmp_path / name, case)
        commits = Commits(spark, storage, "cases")
        rows = [
            letter(schema.REJECTED, day, b"x", 0, timestamp_ms=T + day * DAY_MS) for day in range(8)
        ]
        commits.write(
            schema.REJECTED, frame(spark, schema.REJECTED, rows), run="r", stream="s", number=0
        )
        commits.note("letters")
        done = expire(spark, storage, T + 6 * DAY_MS + 2 * HOUR_MS, ignore)
        folder = tmp_path / name / "archive"
        assert column(folder, "rejected", "offset") == [6, 7]
        assert len(column(folder, "progress", "offset")) == steps
        assert len(column(folder, "decisions", "progress_offset")) == (waits_ms is not None)
        assert (done.erased, done.rows["rejected"]) == (1, 6)


def test_what_belongs_to_messages_that_are_archived_later_stays(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The first run of the archive, which reads the delay topic last, was killed before it did; the
    service had executed its messages, and trimmed its first steps."""
    case = JudgedShard("", {}).send(0, T).deliver(0, T, T).send(1, T)
    case.decide("expired", 1, T, in_step=0, reason="expired")
    case.step(T, T, 2).step(SETTLED_MS, SETTLED_MS, 2)
    rows = rows_of(
        [case.read_plainly("progress", "deliveries").read("messages", 0, high_watermark=2)]
    )
    storage = ArchiveStorage(str(write_archive(rows | {"messages": []}, tmp_path / "archive")))
    done = expire(spark, storage, T + 90 * DAY_MS, ignore)
    assert (done.erased, set(done.rows.values())) == (0, {0})


@pytest.mark.parametrize(
    "step",
    ["committing", "removing old files of messages"],
)
def test_a_killed_expiry_is_completed_by_the_next(
    spark: SparkSession, tmp_path: Path, step: str
) -> None:
    """Before its commit it counts for nothing, and behind it nothing is lost."""
    case = JudgedShard("", {}).send(0, T).deliver(0, T, T).send(1, T, id=b"b").deliver(1, T, T)
    storage = archived(tmp_path, case)
    folder = tmp_path / "archive"
    before = rows_archived(folder)
    with pytest.raises(Killed):
        expire(spark, storage, READ_MS, kill_at(step))
    is_committed = step.startswith("removing")
    found = rows_archived(folder)
    assert (found == before) != is_committed
    assert len(found["erased"]) == (2 if is_committed else 0)
    assert expire(spark, storage, READ_MS, ignore).erased == (0 if is_committed else 2)
    assert counts(spark, folder) == {"erased": 2}
    assert column(folder, "messages", "offset") == []


def test_the_command_expires_what_is_older_than_asked(tmp_path: Path) -> None:
    """Nothing of messages of later years; with JSON on stdout."""
    case = JudgedShard("", {}).send(0, T).deliver(0, T, T)
    archived(tmp_path, case)
    folder = tmp_path / "archive"
    before = rows_archived(folder)
    done = ended(command("expire", folder, ["--older-than", "1d", "--yes", "-o", "json"]))
    assert done.returncode == 0, done.stderr
    names = ("messages", "deliveries", "rejected", "dead_letters", "decisions", "progress")
    assert json.loads(done.stdout) == {"rows": dict.fromkeys(names, 0), "erased": 0}
    assert rows_archived(folder) == before


@pytest.mark.campaign
def test_a_command_that_is_killed_expires_everything_or_nothing_and_the_next_one_the_rest(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """kill -9 of the process before its commit, at it, and while it removes files: an audit finds
    all messages delivered, or all erased; the files that are left are whole."""
    drill = Drill(spark, broker, tmp_path)
    drill.begin()
    drill.send()
    drill.deliver()
    drill.settle()
    drill.archive()
    line = command("expire", drill.directory, ["--older-than", "1s", "--yes"])
    before, after = {"delivered": COUNT}, {"erased": COUNT}

    def outcomes() -> dict[str, int]:
        return {name: count for name, count in drill.audit().overall.counts.items() if count}

    assert outcomes() == before
    steps = {
        "expiring deliveries": [before],
        "committing": [before, after],
        "removing old files of messages": [after],
    }
    for at, (step, states) in enumerate(steps.items()):
        kill_at_step(line, step, tmp_path / f"{at}.log")
        assert outcomes() in states, step
    done = ended(line)
    assert done.returncode == 0, done.stderr
    assert outcomes() == after
    assert verify(spark, drill.storage, ignore).problems == []
    drill.brokers.close()


def judged(spark: SparkSession, storage: ArchiveStorage, span: Span) -> dict[Any, tuple[str, str]]:
    """The outcome and the reason of each promised delivery of a window."""
    archive = tables_of(spark, storage)
    rows = judge(archive, coverage(archive.offsets), DELAY, span).outcomes.collect()
    found = {token(row): (row["outcome"], row["reason"]) for row in rows}
    assert len(found) == len(rows)
    return found


def check(before: dict[Any, tuple[str, str]], after: dict[Any, tuple[str, str]]) -> int:
    """What was erased has its former outcome as its reason, and nothing else has changed; the
    number of erased deliveries."""
    assert after.keys() == before.keys()
    for each, (outcome, reason) in after.items():
        is_erased = outcome == "erased"
        assert is_erased or (outcome, reason) == before[each], each
        assert not is_erased or reason == before[each][0], each
    return sum(outcome == "erased" for outcome, _ in after.values())


@pytest.mark.campaign
def test_random_histories_are_judged_as_before(spark: SparkSession, tmp_path: Path) -> None:
    """The real shard decides. Expiry at two times in the middle of the histories, then forgetting
    two ids, then expiry of everything change no outcome, in the whole and in windows."""
    seed = int(os.environ.get("TEST_SEED", random.randrange(2**32)))
    print(f"TEST_SEED={seed}")
    histories = played(seed, drained=True)
    folder = write_archive(rows_of_histories(histories), tmp_path / "archive")
    storage = ArchiveStorage(str(folder))
    times = sorted(step[1] for history in histories for step in history.master.progress)
    before = judged(spark, storage, EVERYTHING)
    assert not {outcome for outcome, _ in before.values()} & {*WRONG, "pending", "unknown"}
    numbers = [0]
    for third in (1, 2):
        expire(spark, storage, times[third * len(times) // 3], ignore)
        numbers.append(check(before, judged(spark, storage, EVERYTHING)))
    middle = times[len(times) // 2]
    first = judged(spark, storage, Span(from_ms=EVERYTHING.from_ms, to_ms=middle))
    second = judged(spark, storage, Span(from_ms=middle, to_ms=EVERYTHING.to_ms))
    assert not first.keys() & second.keys()
    assert check(before, first | second) == numbers[-1]
    forget(spark, storage, USER_IDS[:2], ignore)
    numbers.append(check(before, judged(spark, storage, EVERYTHING)))
    expire(spark, storage, times[-1] + 1, ignore)
    numbers.append(check(before, judged(spark, storage, EVERYTHING)))
    assert numbers == sorted({*numbers})
    assert numbers[-1] == len(before)
    assert [column(folder, name, "offset") for name in ("messages", "deliveries")] == [[], []]
