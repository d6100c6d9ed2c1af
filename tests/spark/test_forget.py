"""Forgetting: an id is in no file of the archive any more, and an audit counts as before."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from msgspec import to_builtins

from chronos.core.message import ID
from chronos.errors import ArchiveFailed
from chronos.spark import ledger, schema
from chronos.spark.archive.commits import Commits
from chronos.spark.archive.compact import compact
from chronos.spark.archive.forget import forget
from chronos.spark.archive.verify import verify
from chronos.spark.audit.job import Audit, audit, find
from chronos.spark.request import BackfillRequest
from chronos.spark.session import ignore
from chronos.spark.storage import ArchiveStorage
from tests.spark.cases import SETTLED_MS, JudgedShard, T, rows_of, write_archive
from tests.spark.erasing import Killed, counts, holders, kill_at, letter, rows_archived
from tests.spark.histories import DELAY, HOUR_MS, frame
from tests.spark.kills import command, ended, kill_at_step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

MINE, DEAD, REFUSED = b"order-17-mine", b"order-18-dead", b"order-19-no"
CALLED_OFF, OTHERS, WAITS = b"order-20-off", b"order-21-kept", b"order-22-waits"
FORGOTTEN = (MINE, DEAD, REFUSED, CALLED_OFF)
REPLAY = b"replay:backfill:%b/0/0/1" % DELAY.encode()
AGAIN = b"replay:again:%b/0/6/1" % DELAY.encode()


def replay_of(offset: int, original: bytes) -> list[dict[str, Any]]:
    """The headers that a backfill adds."""
    of = f"{DELAY}/0/{offset}/1".encode()
    return [
        {"name": ledger.REPLAY_OF, "value": of},
        {"name": ledger.REPLAY_POSITION, "value": b"run-1/0/0"},
        {"name": ledger.REPLAY_ID, "value": original},
    ]


def shard() -> JudgedShard:
    """Messages of each kind, with their deliveries; one is replayed, and so is its replay."""
    case = JudgedShard("", {})
    for offset, own in ((0, MINE), (1, OTHERS)):
        case.send(offset, T, id=own, key=own, value=b"payload of " + own, target_key=own)
        headers = [{"name": ID, "value": own}]
        case.deliver(offset, T, T, id=own, key=own, headers=headers, value=b"payload of " + own)
    case.send(2, T, id=DEAD, key=DEAD).decide("dead-letter", 2, T, attempt=3)
    case.send(3, None, verb="refused", id=REFUSED, key=REFUSED, target=None, reason="no-target")
    case.decide("refused", 3, T - 50_000, reason="no-target")
    case.send(4, T + 1, id=CALLED_OFF, key=CALLED_OFF)
    case.act("cancel", 5, CALLED_OFF, at_ms=T - 50_000)
    case.send(6, T + 2, id=REPLAY, key=REPLAY, headers=replay_of(0, MINE))
    case.deliver(6, T + 2, T + 2, id=REPLAY)
    case.send(7, T + 3, id=AGAIN, key=AGAIN, headers=replay_of(6, REPLAY))
    case.deliver(7, T + 3, T + 3, id=AGAIN)
    case.send(8, SETTLED_MS + HOUR_MS, id=WAITS, key=WAITS)
    return case


def write_letters(spark: SparkSession, storage: ArchiveStorage) -> None:
    """Rows of the topics of letters."""
    commits = Commits(spark, storage, "cases")
    for table, own, source in ((schema.REJECTED, REFUSED, 3), (schema.DEAD_LETTERS, DEAD, 2)):
        rows = [letter(table, 0, own, source), letter(table, 1, OTHERS, 1)]
        rows.append(letter(table, 2, None, source, key=own))
        commits.write(table, frame(spark, table, rows), run="letters", stream="test", number=0)
    commits.note("letters")


def write_run(spark: SparkSession, storage: ArchiveStorage, state: str = "done") -> None:
    """A backfill that sent two messages, by their ids."""
    ids = [each.hex() for each in (MINE, OTHERS)]
    options = ["all", MINE.decode(), OTHERS.decode()]
    request = BackfillRequest(mode="all", ids=ids, options=options)
    run = ledger.BackfillRun(
        run="run-1",
        state=state,
        request=request,
        planned_ms=T,
        source=DELAY,
        origin=DELAY,
        topic=DELAY,
        topic_id="t",
        begin={"0": 0},
        rows=[2],
    )
    ledger.save_run(storage, run)
    samples = [
        ledger.PlanSample(
            source=f"{DELAY}/0/{at}",
            id=own,
            target="target-0",
            outcome="delivered",
            due_ms=T,
            bytes=1,
        )
        for at, own in enumerate((MINE, OTHERS))
    ]
    report = ledger.BackfillReport(
        run="run-1",
        state=state,
        request=request,
        messages=2,
        bytes=2,
        sent_before=0,
        expired=0,
        first_due_ms=T,
        last_due_ms=T,
        outcomes={},
        targets={},
        absent_targets=[],
        samples=samples,
        planned_ms=T,
    )
    storage.write_json(f"{ledger.run_folder('run-1')}/report.json", to_builtins(report))
    sent = spark.createDataFrame(
        [
            (0, at, 1, "delivered", own, own, "target-0", T, 1)
            for at, own in enumerate((MINE, OTHERS))
        ],
        ledger.PLANNED_COLUMNS,
    )
    ledger.write_rows(storage, run, sent, 2)


@pytest.fixture(scope="module")
def origin(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive with messages, letters and a backfill."""
    folder = tmp_path_factory.mktemp("forget") / "archive"
    write_archive(rows_of([shard()]), folder)
    write_letters(spark, ArchiveStorage(str(folder)))
    write_run(spark, ArchiveStorage(str(folder)))
    return folder


@pytest.fixture
def folder(origin: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(origin, tmp_path / "archive")


def audited(spark: SparkSession, folder: Path) -> Audit:
    """An audit of all messages."""
    storage = ArchiveStorage(str(folder))
    return audit(spark, storage, from_ms=T - HOUR_MS, to_ms=SETTLED_MS + 2 * HOUR_MS)


def reasons(found: Audit) -> dict[str, int]:
    """The outcomes that erased messages had, with their numbers."""
    return {reason: count for outcome, reason, count in found.reasons if outcome == "erased"}


BEFORE = {"delivered": 4, "dead-lettered": 1, "rejected": 1, "cancelled": 1, "pending": 1}
GONE = {"delivered": 3, "dead-lettered": 1, "rejected": 1, "cancelled": 1}


def test_what_is_forgotten_is_in_no_file(spark: SparkSession, folder: Path) -> None:
    """Neither in rows nor in statistics, logs, the ledger or its reports; others stay, and the
    audit counts as many messages."""
    storage = ArchiveStorage(str(folder))
    assert audited(spark, folder).overall.counts == BEFORE
    assert all(holders(folder, own) for own in (*FORGOTTEN, OTHERS, REPLAY))
    kept = {name: DeltaTable(folder / name).to_pyarrow_table().num_rows for name in schema.TABLES}
    done = forget(spark, storage, FORGOTTEN, ignore)
    assert (done.erased, done.not_found, done.pending) == (6, [], [])
    assert done.rows == {"messages": 7, "deliveries": 3, "rejected": 2, "dead_letters": 2}
    assert [holders(folder, own) for own in (*FORGOTTEN, REPLAY, AGAIN)] == [[]] * 6
    left = {name: DeltaTable(folder / name).to_pyarrow_table().num_rows for name in schema.TABLES}
    for name, count in done.rows.items():
        assert left[name] == kept[name] - count
    assert (left["decisions"], left["progress"]) == (kept["decisions"], kept["progress"])
    assert ledger.sent_rows(spark, storage).select("id").collect() == [(OTHERS,)]
    run = ledger.load_run(storage, "run-1")
    assert run is not None
    assert run.request.ids == [OTHERS.hex()]
    found = audited(spark, folder)
    assert found.overall.counts == {"delivered": 1, "pending": 1, "erased": 6}
    assert reasons(found) == GONE
    assert found.overall.lateness.count == 4
    assert not found.broken
    assert verify(spark, storage, ignore).problems == []
    window = BackfillRequest(mode="all", from_ms=T - HOUR_MS, to_ms=SETTLED_MS, ids=[MINE.hex()])
    assert find(spark, storage, window, limit=10).deliveries == []
    compact(spark, storage, 1 << 30, ignore)
    assert counts(spark, folder) == found.overall.counts


def test_what_stays_are_numbers_outcomes_and_times(spark: SparkSession, folder: Path) -> None:
    """Of each erased delivery."""
    forget(spark, ArchiveStorage(str(folder)), [MINE], ignore)
    rows = DeltaTable(folder / "erased").to_pyarrow_table().to_pylist()
    own = [name for name, *_ in schema.ERASED.columns]
    (first, *_) = sorted(rows, key=lambda row: int(row["source_offset"]))
    assert first.pop("erased_ms") > 0
    assert {name: first[name] for name in own if name in first} == {
        "shard": 0,
        "source_offset": 0,
        "occurrence": 1,
        "outcome": "delivered",
        "accepted_ms": T - 60_000,
        "requested_due_ms": T,
        "due_ms": T,
        "window_ms": T,
        "delivered_ms": T,
    }
    assert [row["source_offset"] for row in sorted(rows, key=lambda row: row["due_ms"])] == [
        0,
        6,
        7,
    ]


def test_a_pending_message_is_not_forgotten(spark: SparkSession, folder: Path) -> None:
    """The next run would archive its delivery, with the id. Nothing is changed."""
    storage, before = ArchiveStorage(str(folder)), rows_archived(folder)
    done = forget(spark, storage, [MINE, WAITS], ignore)
    assert (done.rows, done.erased, done.pending) == ({}, 0, [WAITS])
    assert rows_archived(folder) == before
    assert holders(folder, MINE)


def test_an_id_that_the_archive_does_not_hold_is_named(spark: SparkSession, folder: Path) -> None:
    """The others are forgotten; so is an id that was forgotten before."""
    storage = ArchiveStorage(str(folder))
    done = forget(spark, storage, [b"nobody", DEAD], ignore)
    assert (done.erased, done.not_found) == (1, [b"nobody"])
    assert forget(spark, storage, [DEAD], ignore).not_found == [DEAD]
    assert counts(spark, folder) == {
        **{name: count for name, count in BEFORE.items() if name != "dead-lettered"},
        "erased": 1,
    }


def test_an_unfinished_backfill_keeps_what_it_needs(spark: SparkSession, folder: Path) -> None:
    """It resumes from what is archived."""
    storage = ArchiveStorage(str(folder))
    write_run(spark, storage, state="sending")
    with pytest.raises(ArchiveFailed, match="backfill run-1 is unfinished"):
        forget(spark, storage, [MINE], ignore)


@pytest.mark.parametrize("step", ["forgetting deliveries", "committing"])
def test_a_killed_job_forgets_nothing_and_the_same_command_does(
    spark: SparkSession, folder: Path, step: str
) -> None:
    """Before its commit; the next job takes back what it wrote."""
    storage, before = ArchiveStorage(str(folder)), rows_archived(folder)
    with pytest.raises(Killed):
        forget(spark, storage, [MINE], kill_at(step))
    assert rows_archived(folder) == before
    assert forget(spark, storage, [MINE], ignore).erased == 3
    assert holders(folder, MINE) == []
    assert counts(spark, folder) == BEFORE | {"delivered": 1, "erased": 3}


def test_the_next_job_that_commits_removes_the_files(spark: SparkSession, folder: Path) -> None:
    """If the job was killed after its commit. One that commits while a backfill runs does not."""
    storage = ArchiveStorage(str(folder))
    with pytest.raises(Killed):
        forget(spark, storage, [MINE], kill_at("forgetting rows of the ledger"))
    assert holders(folder, MINE)
    after = rows_archived(folder)
    assert counts(spark, folder) == BEFORE | {"delivered": 1, "erased": 3}
    with ledger.locked(storage):
        Commits(spark, storage, "cases")
    assert holders(folder, MINE)
    Commits(spark, storage, "cases")
    assert holders(folder, MINE) == []
    assert ledger.sent_rows(spark, storage).count() == 1
    assert rows_archived(folder) == after


@pytest.mark.campaign
def test_a_command_that_is_killed_forgets_everything_or_nothing_and_the_next_one_the_rest(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    """kill -9 of the process before its commit, at it, and while it removes files: an audit finds
    the state before or the one after, and in the end the id is in no file."""
    line = command("forget", folder, ["--id", MINE.decode(), "--yes"])
    after = BEFORE | {"delivered": 1, "erased": 3}
    steps = {
        "forgetting deliveries": [BEFORE],
        "committing": [BEFORE, after],
        "removing old files of messages": [after],
    }
    for at, (step, states) in enumerate(steps.items()):
        kill_at_step(line, step, tmp_path / f"{at}.log")
        found = counts(spark, folder)
        assert found in states, step
    done = ended(line)
    assert done.returncode == 4, done.stderr  # the archive holds nothing of the id any more
    assert counts(spark, folder) == after
    assert holders(folder, MINE) == []


def test_the_command_says_what_it_removed_and_what_it_did_not_find(folder: Path) -> None:
    """A table on stdout, the rest on stderr, and exit code 4."""
    done = ended(command("forget", folder, ["--id", MINE.decode(), "--id", "nobody", "--yes"]))
    assert done.returncode == 4, done.stderr
    removed = [line.split() for line in done.stdout.splitlines()[1:]]
    assert {name: int(count) for name, count in removed} == {
        "messages": 3,
        "deliveries": 3,
        "rejected": 0,
        "dead_letters": 0,
    }
    assert "the outcomes and times of 3 deliveries stay" in done.stderr
    assert "the archive holds nothing of nobody" in done.stderr
    assert holders(folder, MINE) == []


def test_the_command_asks_before_it_erases(folder: Path, tmp_path: Path) -> None:
    """Without a terminal it needs --yes; it needs an id, from an option or a file."""

    def forgets(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "chronos", "archive", "forget", "-l", str(folder)]
        done = subprocess.run(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stderr

    wanted = tmp_path / "ids.txt"
    wanted.write_text("\n")
    for arguments, text in (
        (["--id", MINE.decode()], "give --yes"),
        (["--ids-file", str(wanted)], "give --id ID, or --ids-file FILE"),
        (["--ids-file", str(tmp_path)], "Is a directory"),
    ):
        code, shown = forgets(*arguments)
        assert (code, text in " ".join(shown.split())) == (2, True), shown
    assert holders(folder, MINE)
