"""A run of a backfill on the real broker: each message is sent once, after kills at any point."""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from confluent_kafka import TopicPartition
from msgspec import Struct, structs

from chronos.adapters.kafka.connection import BATCH_BYTES
from chronos.adapters.kafka.log import KafkaLog
from chronos.cli.output import Format
from chronos.cli.spark.backfill import (
    RunOptions,
    _end,
    _replay,
    change_rate,
    other_modes,
    run_named,
)
from chronos.client import NotFound
from chronos.core.timefmt import parse_time_ms
from chronos.errors import ArchiveFailed, ArchiveInUse, LogUnavailable, ProducerLost
from chronos.spark import ledger
from chronos.spark.archive.expire import expire
from chronos.spark.audit.job import audit
from chronos.spark.backfill import job as module
from chronos.spark.backfill.job import Backfill
from chronos.spark.backfill.pace import AHEAD_MS, Pace
from chronos.spark.backfill.sending import (
    SendingJob,
    records_of,
    send_parts,
)
from chronos.spark.ledger import Attempt, BackfillReport, BackfillRun
from chronos.spark.request import BackfillRequest
from chronos.spark.session import ignore
from chronos.spark.storage import ArchiveStorage
from tests.harness.waiting import wait_until
from tests.integration.flow import now_ms, read_committed
from tests.integration.foreign import alter_topic
from tests.spark.backfills import backfill_of, opener_of
from tests.spark.conftest import conf, small
from tests.spark.kills import kill_when
from tests.spark.logs import SHARDS, Logs
from tests.spark.lost import GAP_MS, START_MS, expected, last_json, write_lost

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.harness.broker import Broker

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

T = START_MS

# --- exactly once


MARKERS_S = 30.0
"""A coordinator writes the markers of a transaction after it has acknowledged the commit: within
milliseconds, if it has a processor."""


class PlanMade(Struct, frozen=True):
    """A plan of lost messages, which every archive with the same messages can take: it names
    neither cluster nor delay topic."""

    target: str
    folder: Path
    report: BackfillReport


class Lost:
    """An archive of lost messages, and the delay topic that they are sent to again."""

    def __init__(
        self,
        spark: SparkSession,
        broker: Broker,
        directory: Path,
        messages: int,
        plan: PlanMade | None = None,
        dead: int = 0,
    ) -> None:
        self.logs = Logs(broker)
        if plan is not None:
            self.logs.target = plan.target
        self.plan_made = plan
        self.messages = messages
        self.spark = spark
        self.storage = ArchiveStorage(str(directory / "archive"))
        write_lost(
            directory / "archive",
            cluster=self.logs.cluster,
            delay=self.logs.delay,
            target=self.logs.target,
            messages=messages,
            shards=SHARDS,
            dead=dead,
        )
        self.brokers = self.logs.brokers()
        self.opener = opener_of(broker.bootstrap)
        self.request = BackfillRequest(mode="missing", from_ms=T, to_ms=T + messages * GAP_MS)

    def job(self) -> Backfill:
        """A new driver: it knows only the archive and the log."""
        return backfill_of(self.spark, self.storage, self.brokers, self.logs.broker.bootstrap)

    def plan(self) -> BackfillReport:
        """Plan all messages, or take the plan that was made; nothing is sent."""
        if self.plan_made is not None:
            shutil.copytree(self.plan_made.folder, self.folder(self.plan_made.report))
            return self.plan_made.report
        planned = self.job().plan(self.request)
        assert planned.messages == self.messages
        return planned

    def folder(self, planned: BackfillReport) -> Path:
        """The folder of a plan."""
        return Path(self.storage.path(ledger.run_folder(planned.run)).removeprefix("file://"))

    def begin(self) -> tuple[Backfill, BackfillRun]:
        """Plan all messages, and begin to send them."""
        planned, job = self.plan(), self.job()
        return job, job.begin(planned)

    def first_attempt(self, run: BackfillRun, files: list[str]) -> SendingJob:
        """The parameters of the tasks of a first attempt."""
        return SendingJob(
            location=self.storage.uri,
            cluster=self.logs.cluster,
            topic=self.logs.delay,
            to=self.logs.delay,
            to_topic=None,
            run=run.run,
            purpose="backfill",
            mode="missing",
            direct=False,
            expired=False,
            attempt=1,
            files=files,
            done=[0] * len(files),
            pace=Pace(base_ms=T),
            ahead_ms=None,
            opener=self.opener,
            batch_bytes=BATCH_BYTES,
        )

    def command(self) -> list[str]:
        """The command that plans and sends the same."""
        command = [
            sys.executable,
            "-m",
            "chronos",
            "backfill",
            "-l",
            self.storage.uri,
            "--yes",
            "-o",
            "json",
            "--from",
            str(T),
            "--to",
            str(T + self.messages * GAP_MS),
            "--master",
            "local[2]",
        ]
        return [*command, *self.logs.settings(), *conf(small())]

    def in_log(self) -> int:
        """Number of offsets of the delay topic, transaction markers included."""
        return sum(self.brokers.watermarks(self.logs.delay, shard).high for shard in range(SHARDS))

    def complaints(self) -> list[str]:
        """Messages that a `read_committed` reader of the delay topic finds missing, duplicated or
        changed."""
        broker, delay = self.logs.broker, self.logs.delay
        wait_until(lambda: not broker.open_transactions(delay), timeout_s=MARKERS_S)
        times: Counter[bytes] = Counter()
        wrong = []
        for message in read_committed(broker.bootstrap, delay):
            pairs: Any = message.headers() or []
            headers = dict(pairs)
            source = headers["x-chronos-replay-of"].removeprefix(f"{delay}/".encode())
            shard, offset, _ = (int(each) for each in source.split(b"/"))
            number = offset * SHARDS + shard
            times[source] += 1
            _, value, key = expected(number, self.logs.target, SHARDS)
            if (message.value(), headers.get("chronos-target-key"), pairs[0]) != (
                value,
                key,
                ("trace", b"%d" % number),
            ):
                wrong.append(f"changed: {message.value()!r} {pairs}")
        wanted = {expected(number, self.logs.target, SHARDS)[0] for number in range(self.messages)}
        wrong += [
            f"{source!r} is there {count} times" for source, count in times.items() if count != 1
        ]
        wrong += [f"{source!r} is lost" for source in wanted - times.keys()]
        return wrong[:10]


@pytest.fixture
def make(spark: SparkSession, broker: Broker, tmp_path: Path) -> Iterator[Callable[[int], Lost]]:
    """Makes archives of a number of lost messages."""
    made: list[Lost] = []

    def lost(messages: int) -> Lost:
        made.append(Lost(spark, broker, tmp_path / str(len(made)), messages))
        return made[-1]

    yield lost
    for each in made:
        each.brokers.close()


@pytest.fixture(scope="module")
def plan_of_400(
    spark: SparkSession, broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> PlanMade:
    """The plan of 400 lost messages, made once for tests of what comes after it."""
    lost = Lost(spark, broker, tmp_path_factory.mktemp("planned"), 400)
    planned = lost.plan()
    lost.brokers.close()
    return PlanMade(lost.logs.target, lost.folder(planned), planned)


@pytest.fixture
def planned_400(
    spark: SparkSession, broker: Broker, tmp_path: Path, plan_of_400: PlanMade
) -> Iterator[Lost]:
    """An archive of 400 lost messages with that plan, and topics of its own apart from the
    target."""
    lost = Lost(spark, broker, tmp_path, 400, plan_of_400)
    yield lost
    lost.brokers.close()


def test_a_fenced_producer_writes_no_more_and_its_committed_rows_are_not_sent_again(
    make: Callable[[int], Lost], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first attempt sent one part, half of a second, left a transaction open in a third, and its
    producers still run."""
    monkeypatch.setattr(module, "PART_ROWS", 500)
    lost = make(2_500)
    _, run = lost.begin()
    assert len(run.rows) == 5
    run.attempts.append(Attempt(number=1, began_ms=1))
    ledger.save_run(lost.storage, run)
    files = ledger.plan_files(lost.storage, run.run)
    ghosts = {}
    dead = lost.first_attempt(run, files)
    for part, sent in ((0, run.rows[0]), (1, 190), (2, 0)):
        ledger.record_started(lost.storage, run.run, 1, part)
        ghosts[part] = lost.opener.open(
            ledger.transactional_id(lost.logs.cluster, run.run, 1, part)
        )
        records = list(rows_of_part(lost, dead, part))
        if sent:
            ghosts[part].send(records[:sent])
    hanging = ghosts[2]._producer
    hanging.begin_transaction()
    for topic, key, value, headers in records[:100]:
        hanging.produce(topic, value, key, headers=headers)
    hanging.flush(10)

    report = lost.job().send(lost.job().unfinished() or run)
    assert (report.messages, report.state, report.attempts) == (2_500, "done", 2)
    assert lost.complaints() == []
    for ghost in ghosts.values():
        with pytest.raises((ProducerLost, LogUnavailable)):
            ghost.send(records[:10])
    assert lost.complaints() == []
    assert ledger.sent_rows(lost.spark, lost.storage).distinct().count() == 2_500


def rows_of_part(lost: Lost, job: SendingJob, part: int) -> Iterator[Any]:
    """The records of a part, as its task makes them."""
    first = 0
    with lost.storage.open(f"{ledger.run_folder(job.run)}/_plan/{job.files[part]}") as stream:
        for batch in pq.ParquetFile(stream).iter_batches(1_000):
            yield from records_of(batch, job, part, first, job.pace.due_ms)
            first += batch.num_rows


@pytest.mark.campaign
def test_a_run_survives_the_kill_of_its_python_workers(
    make: Callable[[int], Lost], monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 of workers amid their parts: the log is read before a task is tried again."""
    monkeypatch.setattr(module, "PART_ROWS", 4_000)
    lost = make(40_000)
    job, run = lost.begin()
    killed: list[int] = []

    def kill() -> None:
        deadline = time.monotonic() + 250
        while not killed and time.monotonic() < deadline:
            workers = workers_below(os.getpid()) if lost.in_log() > 10_000 else []
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
                killed.append(worker)

    killer = threading.Thread(target=kill)
    killer.start()
    report = job.send(run)
    killer.join()
    assert killed
    assert report.messages == 40_000
    assert report.attempts >= 2
    assert lost.complaints() == []


def workers_below(pid: int) -> list[int]:
    """Python workers of a Spark session: the processes that its daemon forked."""
    parents = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            command = Path("/proc", entry, "cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        parents[int(entry)] = (int(stat[1]), b"pyspark.worker" in command)
    daemons = {each for each, (_, is_daemon) in parents.items() if is_daemon}
    workers = [
        each for each, (parent, is_daemon) in parents.items() if is_daemon and parent in daemons
    ]

    def is_ours(each: int) -> bool:
        while each in parents:
            if each == pid:
                return True
            each = parents[each][0]
        return False

    return [each for each in workers if is_ours(each)]


@pytest.mark.campaign
def test_the_run_of_a_killed_driver_is_completed_by_the_same_command(
    make: Callable[[int], Lost], tmp_path: Path
) -> None:
    """kill -9 while it plans, at a random point while it sends, and at its end; each message is
    sent once, also later."""
    lost, dice = make(60_000), random.Random(11)
    sent = lost.storage.path(ledger.SENT).removeprefix("file://")
    log_path = tmp_path / "backfill.log"

    def is_planning() -> bool:
        return bool(list(Path(sent).glob("run=*/_plan")))

    def has_sent(share: float) -> Callable[[], bool]:
        return lambda: lost.in_log() > share * lost.messages

    def is_ending() -> bool:
        return Path(sent, "rows").exists()

    moments = [is_planning, has_sent(dice.uniform(0.1, 0.7)), is_ending]
    kills = 0
    for moment in moments:
        kills += kill_when(lost.command(), moment, log_path)
    assert kills >= 2, log_path.read_text()[-4_000:]
    ran = subprocess.run(lost.command(), capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr[-4_000:]
    assert lost.complaints() == []
    assert (last_json(ran.stdout)["messages"], last_json(ran.stdout)["sent_before"]) == (0, 60_000)
    assert ledger.sent_rows(lost.spark, lost.storage).distinct().count() == 60_000


def test_an_unfinished_run_is_not_ended_by_other_options_or_by_guessing(planned_400: Lost) -> None:
    """A command with other options is refused; a trimmed log, which no longer shows what was sent,
    is an error."""
    lost = planned_400
    job, run = lost.begin()
    other = BackfillRequest(mode="all", options=["x"])
    with pytest.raises(typer.BadParameter, match="--resume sends the rest"):
        _end(job, run, other, Format.json, RunOptions(yes=True))
    with (
        lost.job().locked(),
        pytest.raises(ArchiveInUse, match="another process"),
        lost.job().locked(),
    ):
        pass
    job.send(run)
    run.state = "sending"
    ledger.save_run(lost.storage, run)
    watermarks = [
        TopicPartition(lost.logs.delay, shard, lost.brokers.watermarks(lost.logs.delay, shard).high)
        for shard in range(SHARDS)
    ]
    admin = lost.logs.broker.admin()  # kept: a client that is gone answers nobody
    for future in admin.delete_records(watermarks).values():
        future.result(30)
    with pytest.raises(ArchiveFailed, match="trimmed to offset"):
        job._reconciliation.rows_sent(run)


def test_a_backfill_that_waited_for_an_expiry_sends_nothing_twice(planned_400: Lost) -> None:
    """The expiry erases a message that was sent before, and its row in the ledger."""
    lost, waiting = planned_400, planned_400.job()
    job, run = lost.begin()
    job.send(run)
    expired = expire(lost.spark, lost.storage, now_ms(), ignore)
    assert expired.erased == 400
    with waiting.locked():
        assert waiting.plan(lost.request).messages == 0


def test_a_topic_created_again_with_fewer_partitions_is_recognized(planned_400: Lost) -> None:
    """Before a partition that no longer exists is read."""
    lost = planned_400
    job, run = lost.begin()
    run.attempts.append(Attempt(number=1, began_ms=1))
    lost.logs.delete(lost.logs.delay)
    lost.logs.broker.create_topic(lost.logs.delay, partitions=SHARDS - 1)
    with pytest.raises(ArchiveFailed, match="created again"):
        job._reconciliation.rows_sent(run)


def test_batches_fit_the_topic_and_messages_that_are_too_large_are_left_out(
    make: Callable[[int], Lost],
) -> None:
    """Otherwise the broker would refuse the run for ever."""
    lost = make(400)

    def takes(bytes_max: int) -> None:
        alter_topic(lost.logs.broker, lost.logs.delay, max_message_bytes=str(bytes_max))

    takes(300)
    job = lost.job()
    planned = job.plan(lost.request)
    assert (planned.messages, planned.too_large) == (0, 400)
    job.discard(planned)
    takes(3_000)
    job, run = lost.begin()
    assert job.send(run).attempts == 1
    assert lost.complaints() == []


def test_messages_without_a_target_are_not_sent_directly(make: Callable[[int], Lost]) -> None:
    """They are left out and counted, and the target is named; through Chronos they would become
    dead letters."""
    lost = make(400)
    lost.logs.delete(lost.logs.target)
    for direct, messages in ((True, 0), (False, 400)):
        planned = lost.job().plan(structs.replace(lost.request, direct=direct))
        assert (planned.messages, planned.no_target) == (messages, 400 - messages)
        assert planned.absent_targets == [lost.logs.target]
        assert planned.judged == {"missing": 400}
        assert planned.changed_targets == {lost.logs.target: "deleted"}
        assert other_modes(planned)[0].startswith(
            f"{lost.logs.target} does not exist any more: --gone --target"
        )


def test_messages_for_a_compacted_target_are_left_out(make: Callable[[int], Lost]) -> None:
    """A replay would take the place of a newer record of its key. The policy counts that the target
    has now, and had if it is gone."""
    lost = make(400)
    alter_topic(lost.logs.broker, lost.logs.target, cleanup_policy="compact")
    job = lost.job()
    for mode, compacted, messages in (
        ("missing", False, 0),
        ("missing", True, 400),
        ("gone", False, 0),
    ):
        asked = structs.replace(
            lost.request, mode=mode, compacted=compacted, targets=[lost.logs.target]
        )
        planned = job.plan(asked)
        assert (planned.messages, planned.compacted) == (messages, 400 - messages)
        job.discard(planned)


def test_a_part_is_sent_once_in_an_attempt(planned_400: Lost) -> None:
    """Spark may run a stage again, whose tasks count as first attempts: they must not send the part
    twice."""
    lost = planned_400
    _, run = lost.begin()
    run.attempts.append(Attempt(number=1, began_ms=1))
    ledger.save_run(lost.storage, run)
    job = lost.first_attempt(run, ledger.plan_files(lost.storage, run.run))
    part = pa.RecordBatch.from_pydict({"id": [0]})
    assert [batch.column("rows").to_pylist() for batch in send_parts(job, [0])(iter([part]))] == [
        [400]
    ]
    with pytest.raises(ArchiveFailed, match="ended before its time"):
        list(send_parts(job, [0])(iter([part])))
    assert lost.complaints() == []


def half_sent(lost: Lost) -> BackfillRun:
    """A run whose first attempt has sent 150 messages, and whose producer still runs."""
    _, run = lost.begin()
    run.attempts.append(Attempt(number=1, began_ms=1))
    ledger.save_run(lost.storage, run)
    dead = lost.first_attempt(run, ledger.plan_files(lost.storage, run.run))
    ledger.record_started(lost.storage, run.run, 1, 0)
    writer = lost.opener.open(ledger.transactional_id(lost.logs.cluster, run.run, 1, 0))
    writer.send(list(rows_of_part(lost, dead, 0))[:150])
    return run


def cancels(lost: Lost) -> Counter[bytes]:
    """The ids that records of the delay topic cancel, each after its message."""
    seen, found = set(), Counter[bytes]()
    for message in read_committed(lost.logs.broker.bootstrap, lost.logs.delay):
        id_ = message.key()
        assert isinstance(id_, bytes)
        if ("chronos-action", b"cancel") in (message.headers() or []):
            assert (id_ in seen, message.value()) == (True, None)
            found[id_] += 1
        seen.add(id_)
    return found


def test_a_cancelled_run_leaves_what_it_had_sent_in_the_ledger(planned_400: Lost) -> None:
    """What is in the delay topic is cancelled by id, in the partition of its message; the next run
    sends the rest, and no more."""
    lost = planned_400
    run = half_sent(lost)
    report = lost.job().cancel(run)
    assert (report.state, report.messages, report.cancels) == ("cancelled", 150, 150)
    rows = ledger.sent_rows(lost.spark, lost.storage).collect()
    assert cancels(lost) == Counter(bytes(row["replay_id"]) for row in rows)
    assert len(rows) == 150
    assert lost.job().unfinished() is None
    planned = lost.job().plan(lost.request)
    assert (planned.messages, planned.sent_before) == (250, 150)


def test_a_cancel_that_was_killed_is_completed(planned_400: Lost) -> None:
    """Before anything was known, nothing more is sent; after that, the cancels are written again;
    after the end, nothing is left to do."""
    lost = planned_400
    run = half_sent(lost)
    ledger.ask_to_cancel(lost.storage, run.run)
    with pytest.raises(ArchiveFailed, match="is to be cancelled"):
        lost.job().send(lost.job().unfinished() or run)
    with pytest.raises(ArchiveFailed, match="is to be cancelled"):
        _end(lost.job(), run, lost.request, Format.json, RunOptions(yes=True, resume=True))
    lost.job().cancel(run)
    for state, times in (("cancelling", 2), ("cancelled", 2), ("done", 3)):
        run.state = state
        ledger.save_run(lost.storage, run)
        left = lost.job().unfinished()
        assert (left is not None) == (state == "cancelling")
        report = lost.job().cancel(run_named(lost.storage, run.run))
        assert (report.state, report.messages, report.cancels) == ("cancelled", 150, 150)
        assert set(cancels(lost).values()) == {times}
    assert ledger.sent_rows(lost.spark, lost.storage).count() == 150


def test_nothing_is_cancelled_in_a_topic_that_was_created_again(planned_400: Lost) -> None:
    """All of the run counts as sent, because the log no longer shows what was."""
    lost = planned_400
    run = half_sent(lost)
    lost.logs.delete(lost.logs.delay)
    lost.logs.create(lost.logs.delay)
    report = lost.job().cancel(run)
    assert (report.state, report.messages, report.cancels) == ("cancelled", 400, 0)
    assert cancels(lost) == Counter()


def in_background(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """A thread that does the work, and what it returned or raised."""
    ended: list[Any] = []

    def run() -> None:
        try:
            ended.append(work())
        except ArchiveFailed as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, ended


def with_rate(lost: Lost, rate: float) -> tuple[Backfill, BackfillRun]:
    """A run with a rate, which has not sent anything."""
    job, run = lost.begin()
    run.request = structs.replace(run.request, rate=rate)
    ledger.save_run(lost.storage, run)
    return job, run


def test_a_command_that_sends_ends_when_its_run_is_to_be_cancelled(planned_400: Lost) -> None:
    """What it had sent by then is cancelled."""
    lost = planned_400
    job, run = with_rate(lost, 0.5)
    thread, ended = in_background(lambda: job.send(run))
    wait_until(lambda: lost.in_log() > 0, timeout_s=60)
    ledger.ask_to_cancel(lost.storage, run.run)
    thread.join(60)
    assert "is to be cancelled" in str(ended[0])
    report = lost.job().cancel(run_named(lost.storage, run.run))
    assert 5 <= report.messages == report.cancels < 60
    assert sum(cancels(lost).values()) == report.messages


def test_a_run_takes_another_rate_while_it_sends(
    planned_400: Lost, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each message is sent at most `AHEAD_MS` before it is due; those due from the time that the
    command names follow each other at the new rate, the others at the old one."""
    lost = planned_400
    job, run = with_rate(lost, 20.0)
    thread, ended = in_background(lambda: job.send(run))
    wait_until(lambda: lost.in_log() > 0, timeout_s=60)
    change_rate(Format.json, lost.storage.uri, run.run, 200.0)
    from_ms = parse_time_ms(last_json(capsys.readouterr().out)["from"])
    thread.join(120)
    assert (ended[0].messages, ended[0].attempts) == (400, 1)
    assert lost.complaints() == []
    due: list[tuple[int, int]] = []
    for message in read_committed(lost.logs.broker.bootstrap, lost.logs.delay):
        headers: dict[str, bytes] = dict(message.headers() or [])  # type: ignore[arg-type]
        due_ms = int(headers["chronos-deliver-at"])
        assert due_ms - message.timestamp()[1] <= AHEAD_MS
        due.append((int(headers["x-chronos-replay"].split(b"/")[2]), due_ms))
    times = [due_ms for _, due_ms in sorted(due)]
    gaps = {
        is_new: {
            after - before
            for before, after in itertools.pairwise(times)
            if (before >= from_ms) == (after >= from_ms) == is_new
        }
        for is_new in (False, True)
    }
    assert gaps[False] <= {49, 50, 51}
    assert gaps[True] <= {4, 5, 6}
    assert gaps[True]


def test_a_rate_is_refused_for_a_run_that_has_none_or_has_ended(planned_400: Lost) -> None:
    """And for one that is not there, whose name is no path either."""
    lost = planned_400
    job, run = lost.begin()

    def change(name: str = run.run, rate: float = 5.0) -> None:
        change_rate(Format.text, lost.storage.uri, name, rate)

    with pytest.raises(typer.BadParameter, match="not started with --rate"):
        change()
    with pytest.raises(typer.BadParameter, match="more than 0"):
        change(rate=0.0)
    for name in ("nothing", f"../sent/run={run.run}"):
        with pytest.raises(NotFound, match=f"the last ones are {run.run}") as refused:
            change(name)
        assert refused.value.exit_code == 4
    run.request = structs.replace(run.request, rate=200.0)
    ledger.save_run(lost.storage, run)
    change(rate=100_000.0)
    job.send(run)
    with pytest.raises(typer.Exit) as ended:
        change()
    assert ended.value.exit_code == 1


@pytest.mark.parametrize("direct", [False, True])
def test_what_is_sent_to_one_topic_counts_only_there(
    make: Callable[[int], Lost], direct: bool
) -> None:
    """The messages can be sent to their targets for the same purpose, and are still missing."""
    lost = make(400)
    repair = f"{lost.logs.cluster}.repair"
    asked = structs.replace(lost.request, to_topic=repair, direct=direct)
    job = lost.job()
    planned = job.plan(asked)
    assert planned.absent_targets == [repair]
    assert (planned.messages, planned.no_target) == ((0, 400) if direct else (400, 0))
    job.discard(planned)
    lost.logs.create(repair)
    planned = job.plan(asked)
    assert (planned.messages, planned.absent_targets) == (400, [])
    assert planned.targets == {lost.logs.target: 400}
    job.send(job.begin(planned))
    topic = repair if direct else lost.logs.delay
    found = list(read_committed(lost.logs.broker.bootstrap, topic))
    assert len({message.value() for message in found}) == len(found) == 400
    if not direct:
        assert {dict(message.headers() or [])["chronos-target-topic"] for message in found} == {
            repair.encode()
        }
    for request, left in ((asked, 0), (lost.request, 400)):
        planned = job.plan(request)
        assert (planned.messages, planned.sent_before) == (left, 400 - left)
        job.discard(planned)
    rows = ledger.sent_rows(lost.spark, lost.storage, repair).collect()
    assert {(row["destination"], row["target"]) for row in rows} == {(repair, lost.logs.target)}
    audited = audit(lost.spark, lost.storage, from_ms=T, to_ms=T + 400 * GAP_MS)
    assert audited.overall.counts["missing"] == 400


def test_dead_letters_are_sent_again_by_reason(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """But for those that were discarded; and no other mode sends them."""
    lost = Lost(spark, broker, tmp_path, 400, dead=10)
    job = lost.job()
    for mode, reasons, messages in (
        ("missing", [], 390),
        ("dead-letters", ["too-large"], 0),
        ("dead-letters", ["target-missing"], 9),
    ):
        planned = job.plan(structs.replace(lost.request, mode=mode, reasons=reasons))
        assert (mode, planned.messages) == (mode, messages)
        if mode == "missing":
            job.discard(planned)
    assert job.send(job.begin(planned)).outcomes == {"dead-lettered": 9}
    originals = {
        dict(message.headers() or [])["x-chronos-replay-of"]
        for message in read_committed(broker.bootstrap, lost.logs.delay)
    }
    assert originals == {
        f"{lost.logs.delay}/{number % SHARDS}/{number // SHARDS}/1".encode()
        for number in range(1, 10)
    }
    lost.brokers.close()


class Elsewhere:
    """Another Kafka cluster, which has topics of the same names."""

    def __init__(self, lost: Lost, broker: Broker) -> None:
        self.broker, self.delay = broker, lost.logs.delay
        for topic in (lost.logs.delay, lost.logs.target):
            broker.create_topic(topic, partitions=SHARDS)
        self.brokers = KafkaLog(
            bootstrap_servers=broker.bootstrap,
            properties={},
            progress_topic=lost.logs.progress,
            transaction_timeout_s=10,
            request_timeout_s=30,
        )

    def records(self) -> list[Any]:
        """The committed records of its delay topic."""
        return list(read_committed(self.broker.bootstrap, self.delay))

    def originals(self) -> Counter[bytes]:
        """How often each message is there, by the header that names its original."""
        found = Counter[bytes]()
        for message in self.records():
            headers = dict(message.headers())
            if "chronos-action" in headers and headers["chronos-action"] == b"backfill":
                found[headers["x-chronos-replay-of"]] += 1
        return found


@pytest.fixture
def elsewhere(planned_400: Lost, own_broker: Broker) -> Iterator[Elsewhere]:
    """Another cluster than that of `planned_400`."""
    cluster = Elsewhere(planned_400, own_broker)
    yield cluster
    cluster.brokers.close()


def test_a_run_to_another_cluster_is_completed_and_counts_only_there(
    planned_400: Lost, elsewhere: Elsewhere
) -> None:
    """A first attempt sent 150 messages. The names of the originals are in no conflict with those
    of a topic of the same name there."""
    lost = planned_400
    to = elsewhere.brokers, elsewhere.broker.bootstrap
    job = backfill_of(lost.spark, lost.storage, lost.brokers, lost.logs.broker.bootstrap, to=to)
    planned = job.plan(lost.request)
    run = job.begin(planned)
    run.attempts.append(Attempt(number=1, began_ms=1))
    ledger.save_run(lost.storage, run)
    dead = lost.first_attempt(run, ledger.plan_files(lost.storage, run.run))
    ledger.record_started(lost.storage, run.run, 1, 0)
    writer = opener_of(elsewhere.broker.bootstrap).open(
        ledger.transactional_id(lost.logs.cluster, run.run, 1, 0)
    )
    records = list(rows_of_part(lost, structs.replace(dead, topic=run.origin), 0))
    writer.send(records[:150])

    with pytest.raises(ArchiveFailed, match="give the same --to-cluster"):
        _end(lost.job(), run, run.request, Format.json, RunOptions(yes=True))
    report = job.send(job.unfinished() or run)
    assert (report.messages, report.attempts) == (400, 2)
    kafka_id = lost.brokers.cluster_id()
    assert elsewhere.originals() == Counter(
        f"{kafka_id}/{lost.logs.delay}/{number % SHARDS}/{number // SHARDS}/1".encode()
        for number in range(400)
    )
    assert lost.in_log() == 0
    for each, left in ((job, 0), (lost.job(), 400)):
        planned = each.plan(lost.request)
        assert (planned.messages, planned.sent_before) == (left, 400 - left)
        each.discard(planned)
    assert job.cancel(run_named(lost.storage, run.run)).cancels == 400
    ids = Counter(message.key() for message in elsewhere.records())
    assert set(ids.values()) == {2}
    assert len(ids) == 400


@pytest.mark.slow
def test_the_command_sends_to_another_cluster_and_cancels_there(
    planned_400: Lost, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    """The settings of the other service are in a file. A file that names the archived cluster is
    refused."""
    lost = planned_400

    def settings(bootstrap: str) -> str:
        path = tmp_path / f"{uuid.uuid4().hex}.yaml"
        path.write_text(
            f"log: {{kind: kafka, kafka: {{bootstrap_servers: '{bootstrap}'}}}}\n"
            f"topics: {{delay: {elsewhere.delay}}}\n"
        )
        return str(path)

    def ran(command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    same = ran([*lost.command(), "--to-cluster", settings(lost.logs.broker.bootstrap)])
    assert (same.returncode, "names the Kafka cluster of --config" in same.stderr) == (2, True)
    other = ["--to-cluster", settings(elsewhere.broker.bootstrap)]
    sent = ran([*lost.command(), *other, "--over", "10h"])
    assert sent.returncode == 0, sent.stderr[-4_000:]
    run = last_json(sent.stdout)
    assert f"run {run['run']} begins" in sent.stderr
    assert (run["messages"], run["to_cluster"]) == (400, elsewhere.brokers.cluster_id())
    cancel = [sys.executable, "-m", "chronos", "backfill", "cancel", run["run"], "--yes"]
    cancel += ["-l", lost.storage.uri, "-o", "json", "--master", "local[2]"]
    cancel += [*lost.logs.settings(), *conf(small()), *other]
    ended = ran(cancel)
    assert ended.returncode == 0, ended.stderr[-4_000:]
    assert last_json(ended.stdout)["cancels"] == 400
    assert len(elsewhere.originals()) == 400
    assert len(elsewhere.records()) == 800
    assert lost.in_log() == 0


class Operator(io.StringIO):
    """A terminal with somebody in front of it."""

    def isatty(self) -> bool:
        return True


def test_the_time_to_answer_the_question_is_not_counted(
    make: Callable[[int], Lost], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command names the time that planning and sending took."""
    lost, answer_s = make(400), 2.0

    def confirm(question: str, *, err: bool) -> bool:
        assert question == "send 400 messages through the delay topic?"
        time.sleep(answer_s)
        return True

    monkeypatch.setattr(sys, "stdin", Operator())
    monkeypatch.setattr(typer, "confirm", confirm)
    began_s = time.monotonic()
    _replay(lost.job(), lost.request, Format.text, RunOptions())
    whole_s = time.monotonic() - began_s
    (seconds,) = re.findall(r"sent 400 messages in ([0-9.]+) s", capsys.readouterr().out)
    assert 0 < float(seconds) <= whole_s - answer_s + 0.05
    assert lost.complaints() == []


def test_a_direct_replay_carries_the_receipt_of_the_original(make: Callable[[int], Lost]) -> None:
    """It keeps its rate, and does not send again what was recorded as sent."""
    lost = make(600)
    lost.request = BackfillRequest(
        mode="missing", from_ms=T, to_ms=T + 600 * GAP_MS, direct=True, rate=600.0
    )
    job, run = lost.begin()
    ledger.record_sent(lost.storage, run.run, 0, 150)
    run.attempts.append(Attempt(number=1, began_ms=1))
    began_s = time.monotonic()
    report = job.send(run)
    assert time.monotonic() - began_s > 450 / 600 * 0.9
    assert (report.messages, lost.in_log()) == (600, 0)
    found = list(read_committed(lost.logs.broker.bootstrap, lost.logs.target))
    assert len(found) == 450
    for message in found:
        headers: dict[str, bytes] = dict(message.headers() or [])  # type: ignore[arg-type]
        assert headers["chronos-source"] + b"/1" == headers["x-chronos-replay-of"]
        shard, offset = map(int, headers["chronos-source"].split(b"/")[1:])
        number = offset * SHARDS + shard
        assert number >= 150
        _, value, key = expected(number, lost.logs.target, SHARDS)
        assert (message.value(), message.key()) == (value, key)
        assert headers["chronos-due-at"] == b"%d" % (T + number * GAP_MS)
        assert headers["chronos-id"] == (
            b"order-%d" % number
            if number % 5 == 0
            else b"%d-%d-%d" % (shard, T + number * GAP_MS, offset)
        )
    rows = ledger.sent_rows(lost.spark, lost.storage)
    assert (
        rows.where("via = 'direct'").count(),
        json.loads(lost.storage.read(f"{ledger.run_folder(run.run)}/report.json") or b"")["state"],
    ) == (600, "done")
