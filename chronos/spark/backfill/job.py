"""Backfill: replays archived messages in bulk, and nothing twice. `ledger` says how that is kept.

plan      what is asked for, less what was sent before, written to the archive whole      (nothing is sent)
send      the attempts at sending it: by the tasks of a Spark job, a part of the plan each
finish    the ledger's rows, the report; the plan is removed
"""

import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

import pyarrow.parquet as pq
import structlog
from msgspec import convert as from_builtins
from msgspec import structs, to_builtins
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from chronos.errors import ArchiveFailed, ChronosError, LogUnavailable
from chronos.spark import ledger
from chronos.spark.audit.job import default_span, judge, last_read_ms, open_tables
from chronos.spark.audit.outcomes import Span
from chronos.spark.backfill import selection
from chronos.spark.backfill.reconciliation import Brokers, Stock
from chronos.spark.backfill.sending import SENT_COLUMNS, Job, Opener, rows_before, rows_of, send_parts
from chronos.spark.ledger import UNIT_COLUMNS, Report, Request, Run, Sample
from chronos.spark.storage import Place

log = structlog.get_logger("chronos.backfill")

PART_ROWS = 50_000
"""Rows of a part of the plan: what one task sends with one producer."""

PARTS_MAX = 10_000

TARGETS_MAX = 1_000
"""Targets that a report counts by name; the largest ones."""

SAMPLES = 10

ATTEMPTS_MAX = 3
"""Tries at sending before it is given up; the same command goes on later."""

LEDGER_FILES_MAX = 200

POLL_S = 0.5

CAUSE_CHARS = 500

RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception)\b: ")
"""The last line of a traceback, which names what was raised."""

EVERYTHING = Span(from_ms=0, to_ms=253_402_300_800_000)
"""All due times, to the end of the calendar."""

Watch = Callable[[str], None]
"""Told what is being done now, in a few words."""


class Backfill:
    """One archive and one cluster. Whoever calls `unfinished`, `plan`, `send` or `abandon` holds `alone`."""

    def __init__(
        self,
        spark: SparkSession,
        place: Place,
        brokers: Brokers,
        opener: Opener,
        *,
        bootstrap_servers: str,
        delay_topic: str | None = None,
        reader: Mapping[str, str] | None = None,
        watch: Watch = lambda _: None,
    ) -> None:
        self._spark = spark
        self._place = place
        self._brokers = brokers
        self._opener = opener
        self._watch = watch
        self._tables, self.cluster, self.topic = open_tables(spark, place)
        self.to = delay_topic or self.topic
        source = {"kafka.bootstrap.servers": bootstrap_servers, **(reader or {})}
        self._stock = Stock(
            spark, place, brokers, opener, self._tables, cluster=self.cluster, source=source, watch=watch
        )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other backfill of this archive runs meanwhile; ArchiveInUse if one does."""
        with Place(self._place.path(ledger.SENT)).alone():
            yield

    def unfinished(self) -> Run | None:
        """The run that was begun and not ended."""
        return ledger.unfinished(self._place)

    # --- plan

    def plan(self, request: Request) -> Report:
        """Write down what is to be sent. EmptyWindow when the window is."""
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
        planned_ms = _now_ms()
        span = self._span(request)
        self._watch("finding out what became of the messages of the window")
        units, sent_before = self._units(request, span, name)
        self._watch("writing down what is to be sent")
        report = Report(
            run=name, state="planned", request=structs.replace(request, from_ms=span.from_ms, to_ms=span.to_ms),
            messages=0, bytes=0, sent_before=sent_before, expired=0, first_due_ms=None, last_due_ms=None, outcomes={},
            targets={}, absent_targets=[], samples=[], planned_ms=planned_ms,
        )  # fmt: skip
        report = self._numbers(self._write_plan(report, units, span))
        self._place.write_json(f"{ledger.folder(name)}/report.json", to_builtins(report))
        return report

    def _span(self, request: Request) -> Span:
        if request.mode == "pending":
            return Span(from_ms=request.from_ms or 0, to_ms=request.to_ms or EVERYTHING.to_ms)
        archived_ms = last_read_ms(self._tables.offsets)
        if archived_ms is None:
            raise ArchiveFailed(
                f"the archive at {self._place.uri} holds nothing of the delay topic yet; run `chronos archive`"
            )
        return default_span(archived_ms, request.from_ms, request.to_ms)

    def _units(self, request: Request, span: Span, name: str) -> tuple[DataFrame, int]:
        """Units to be sent, written and read again: the audit is computed once. And how many were sent before."""
        fates = judge(self._tables, self.topic, span).fates
        units = selection.wanted(fates, request, self._log_starts() if request.mode == "pending" else {})
        if request.mode == "gone":
            units = units.join(self._held(request), ["target", *ledger.TOKEN], "left_anti")
        marked = self._less_sent(request, units, span)
        path = self._place.path(ledger.folder(name), "_units")
        marked.write.mode("overwrite").parquet(path)
        written = self._spark.read.parquet(path)
        return written.where(~f.col("is_sent")), written.where("is_sent").count()

    def _less_sent(self, request: Request, units: DataFrame, span: Span) -> DataFrame:
        """Units -> `selection.marked`, each message once where also its replays were selected."""
        rows = ledger.sent_rows(self._spark, self._place)
        if not ledger.runs(self._place):
            return selection.marked(units, rows, request.purpose)
        copies = selection.replays(self._tables.messages, span)
        if request.mode == "all":
            return selection.marked(selection.without_copies(units, copies, self.topic), rows, request.purpose)
        # A replay that is lost too stands for what was sent.
        marked = selection.marked(units, rows, request.purpose)
        unsent = selection.without_copies(marked.where(~f.col("is_sent")), copies, self.topic)
        return unsent.unionByName(marked.where("is_sent"))

    def _held(self, request: Request) -> DataFrame:
        """What the targets hold now."""
        wanted = [name for name in self._brokers.names() if any(fnmatchcase(name, each) for each in request.targets)]
        infos = self._brokers.describe(wanted)
        partitions = {name: info.partitions for name, info in infos.items() if info is not None}
        self._watch(f"reading {', '.join(sorted(partitions)) or 'no target, none is there'}")
        return selection.held(self._stock.records(partitions), self.topic)

    def _log_starts(self) -> dict[int, int]:
        """Where each shard's log begins; behind everything where nobody reads the topic that was archived any more."""
        info = self._brokers.describe([self.topic])[self.topic]
        last = self._tables.offsets.where("table = 'messages'").agg(f.max_by("topic_id", "read_ms").alias("id")).first()
        shards = [row["shard"] for row in self._tables.messages.select("shard").distinct().collect()]
        if info is None or last is None or last["id"] != info.id or self.to != self.topic:
            return dict.fromkeys(shards, 2**62)
        return {shard: self._brokers.watermarks(self.topic, shard).start for shard in shards}

    def _write_plan(self, report: Report, units: DataFrame, span: Span) -> Report:
        """The plan's files; the report with how many were left out, and why."""
        request, count = report.request, units.count()
        rows = selection.with_records(units, self._tables.messages, span)
        if rows.select("shard").count() < count:
            rows = selection.with_records(units, self._tables.messages, None)  # some were moved into the window
        rows = rows.where(selection.has_headers(request))
        topics, absent = self._topics(request, units)
        rows = rows.join(f.broadcast(topics), "target", "left")
        rows = rows.withColumn("left_out", selection.left_out(request, report.planned_ms, self.topic))
        counts = {row["left_out"]: row["count"] for row in rows.groupBy("left_out").count().collect()}
        least = self._spark.sparkContext.defaultParallelism if count > PART_ROWS else 1
        parts = min(PARTS_MAX, max(least, -(-count // PART_ROWS)))
        order = ["due_ms", *ledger.TOKEN]
        (
            rows.where(f.col("left_out").isNull())
            .select(*selection.PLAN)
            .repartitionByRange(parts, *order)
            .sortWithinPartitions(*order)
            .write.mode("overwrite")
            .parquet(self._place.path(ledger.folder(report.run), "_plan"))
        )
        self._place.remove(f"{ledger.folder(report.run)}/_units")
        return structs.replace(
            report, expired=counts.get("expired", 0), too_large=counts.get("too-large", 0),
            no_target=counts.get("no-target", 0), absent_targets=absent,
        )  # fmt: skip

    def _topics(self, request: Request, units: DataFrame) -> tuple[DataFrame, list[str]]:
        """For each target `bytes_max` and `compacted` of the topic to send to; targets it was looked for in vain."""
        targets = sorted(row["target"] for row in units.select("target").distinct().collect())
        found = self._brokers.describe(targets) if request.direct else dict.fromkeys(targets, self._delay_topic())
        rows = [(name, info.bytes_max, info.compacted) for name, info in found.items() if info is not None]
        topics = self._spark.createDataFrame(rows, "target string, bytes_max long, keyed_only boolean")
        return topics, [name for name in targets if found[name] is None][:TARGETS_MAX]

    def _delay_topic(self) -> Any:
        """`TopicInfo` of the one that is sent to."""
        info = self._brokers.describe([self.to])[self.to]
        if info is None:
            raise LogUnavailable(f"the brokers have no {self.to}: is this the right cluster?")
        return info

    def _numbers(self, report: Report) -> Report:
        """The report with the numbers of the plan."""
        plan = self._spark.read.parquet(self._place.path(ledger.folder(report.run), "_plan"))
        by_outcome = plan.groupBy("outcome").agg(
            f.count("*").alias("messages"), f.sum("bytes").alias("bytes"), f.min("due_ms").alias("first"),
            f.max("due_ms").alias("last"),
        ).collect()  # fmt: skip
        by_target = plan.groupBy("target").count().orderBy(f.desc("count"), "target").limit(TARGETS_MAX).collect()
        targets = {row["target"]: row["count"] for row in by_target}
        found = self._brokers.describe(sorted(targets)) if targets else {}
        return structs.replace(
            report,
            messages=sum(row["messages"] for row in by_outcome),
            bytes=sum(row["bytes"] for row in by_outcome),
            first_due_ms=min((row["first"] for row in by_outcome), default=None),
            last_due_ms=max((row["last"] for row in by_outcome), default=None),
            outcomes={row["outcome"]: row["messages"] for row in by_outcome},
            targets=targets,
            absent_targets=report.absent_targets or sorted(name for name in targets if found[name] is None),
            samples=self._samples(report.run),
        )

    def _samples(self, run: str) -> list[Sample]:
        for path in ledger.parts(self._place, run):
            with self._place.open(f"{ledger.folder(run)}/_plan/{path}") as stream:
                for batch in pq.ParquetFile(stream).iter_batches(SAMPLES):
                    sizes = batch.column("bytes").to_pylist()
                    outcomes = batch.column("outcome").to_pylist()
                    return [
                        Sample(source=f"{self.topic}/{row.shard}/{row.source_offset}", id=row.id, target=row.target,
                               outcome=outcome, due_ms=row.due_ms, bytes=size)
                        for row, outcome, size in zip(rows_of(batch), outcomes, sizes, strict=True)
                    ]  # fmt: skip
        return []

    def discard(self, report: Report) -> None:
        """A plan that is not to be sent."""
        self._place.remove(ledger.folder(report.run))

    # --- send

    def begin(self, report: Report) -> Run:
        """From here on the plan is to be sent, whatever happens."""
        info = self._delay_topic()
        files = ledger.parts(self._place, report.run)
        run = Run(
            run=report.run, state="sending", request=report.request, planned_ms=report.planned_ms, source=self.topic,
            topic=self.to,
            topic_id=info.id,
            begin={str(shard): self._brokers.watermarks(self.to, shard).stable for shard in range(info.partitions)},
            rows=[self._rows(report.run, path) for path in files],
        )  # fmt: skip
        ledger.save_run(self._place, run)
        return run

    def _rows(self, run: str, path: str) -> int:
        with self._place.open(f"{ledger.folder(run)}/_plan/{path}") as stream:
            return int(pq.read_metadata(stream).num_rows)

    def send(self, run: Run) -> Report:
        """Send what is left of a run. ArchiveFailed when it cannot be, after some attempts; the run goes on later."""
        for left in range(ATTEMPTS_MAX - 1, -1, -1):
            done = self._stock.take(run)
            if sum(done) == run.total:
                break
            try:
                self._attempt(run, done)
            except ChronosError:
                raise
            except Exception as error:
                # Whatever Spark says, the log says how much was sent.
                said = _cause(error)
                if not left:
                    raise ArchiveFailed(
                        f"run {run.run} was not ended: {said}. What was sent is known: the same command goes on there"
                    ) from error
                log.warning("an attempt at sending failed; taking stock", run=run.run, reason=said)
                continue
            done = run.rows
            break
        return self._finish(run, done, "done")

    def abandon(self, run: Run) -> Report:
        """Send nothing more of a run; the ledger keeps what was sent. All of it where nobody knows any more."""
        try:
            done = self._stock.take(run)
        except ArchiveFailed as error:
            log.warning("all of the run counts as sent", reason=str(error))
            done = run.rows
        return self._finish(run, done, "abandoned")

    def _attempt(self, run: Run, done: list[int]) -> None:
        request, left = run.request, run.total - sum(done)
        files = ledger.parts(self._place, run.run)
        tasks = min(len(files), self._spark.sparkContext.defaultParallelism)
        pace_ms = 0.0
        if request.rate is not None:
            pace_ms = 1_000 / request.rate
        elif request.over_ms is not None:
            pace_ms = request.over_ms / run.total
        job = Job(
            location=self._place.uri, cluster=self.cluster, topic=self.topic, to=run.topic, run=run.run, purpose=request.purpose,
            mode=request.mode, direct=request.direct, expired=request.expired, attempt=run.attempts[-1].number,
            files=files, done=done, base_ms=_now_ms(), pace_ms=pace_ms * (tasks if request.direct else 1),
            opener=self._opener, batch_bytes=self._batch_bytes(run),
        )  # fmt: skip
        log.info("sending", run=run.run, attempt=job.attempt, messages=left)
        work = self._spark.range(0, len(files), 1, len(files)).mapInArrow(
            send_parts(job, job.rank(run.rows)), SENT_COLUMNS
        )
        with self._watched(run, sum(done)):
            sent = work.agg(f.sum("rows").alias("rows")).collect()[0]["rows"]
        assert sent == left

    def _batch_bytes(self, run: Run) -> int:
        """What every topic that the run sends to takes."""
        topics = [run.topic]
        if run.request.direct:
            plan = self._spark.read.parquet(self._place.path(ledger.folder(run.run), "_plan"))
            topics = [row["target"] for row in plan.select("target").distinct().collect()]
        return min((info.bytes_max for info in self._brokers.describe(topics).values() if info is not None), default=1)

    @contextmanager
    def _watched(self, run: Run, before: int) -> Iterator[None]:
        """Tell how far it is, by the tasks that have ended, while the block runs."""
        tracker, ended = self._spark.sparkContext.statusTracker(), threading.Event()

        def watch() -> None:
            told = before
            while not ended.wait(POLL_S):
                for stage in tracker.getActiveStageIds():
                    seen = tracker.getStageInfo(stage)
                    if seen is None or seen.numTasks != len(run.rows):
                        continue
                    passed = before + round(seen.numCompletedTasks / seen.numTasks * (run.total - before))
                    if passed > told:
                        told = passed
                        self._watch(f"sent {told:,} of {run.total:,}")

        thread = threading.Thread(target=watch, name="backfill-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(5)

    # --- finish

    def _finish(self, run: Run, done: list[int], state: str) -> Report:
        """1. the ledger's rows, 2. the report, 3. the run has ended, 4. what only it needed is removed."""
        path = ledger.folder(run.run)
        files = ledger.parts(self._place, run.run)
        named = self._spark.range(0, len(files), 1, max(1, min(len(files), LEDGER_FILES_MAX)))
        sent = named.mapInArrow(rows_before(self._place.uri, run.run, files, done), UNIT_COLUMNS)
        rows = ledger.rows_of(sent, run)
        rows.write.mode("overwrite").parquet(self._place.path(path, "rows"))
        planned = from_builtins(self._place.read_json(f"{path}/report.json"), Report)
        report = structs.replace(
            planned, state=state, messages=sum(done), ended_ms=_now_ms(), attempts=len(run.attempts)
        )
        self._place.write_json(f"{path}/report.json", to_builtins(report))
        run.state = state
        ledger.save_run(self._place, run)
        ledger.clear(self._place, run.run)
        return report


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _cause(error: Exception) -> str:
    """What went wrong in a task, out of all that Spark says about it."""
    lines = [line.strip() for line in str(error).splitlines()]
    own = [line for line in lines if line.startswith("chronos.errors.")]
    raised = [line for line in lines if RAISED.match(line)]
    if own:
        return own[-1].partition(": ")[2][:CAUSE_CHARS]
    return (raised[-1] if raised else next(filter(None, lines), type(error).__name__))[:CAUSE_CHARS]
