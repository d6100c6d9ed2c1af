"""A backfill: its plan, its attempts at sending, and its end.

    plan      the requested messages that can be sent and were not sent before, put into the archive
    send      the attempts at sending: one task of a Spark job for each part of the plan
    finish    the ledger's rows and the report; the plan is removed

The messages are selected in `selection`; a task and the reconciliation with the log are in
`sending`, and the rate in `pace`. One query counts the rows of a plan, by all the columns that a
report distinguishes; it is repeated over the whole archive if records were first due outside the
window. A run can also be cancelled: nothing more is sent, and what is in the delay topic is
cancelled by id. Through the delay topic no message is sent twice for the same purpose: see
`ledger`."""

import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

import pyarrow.parquet as pq
import structlog
from msgspec import convert as from_builtins
from msgspec import structs, to_builtins
from pyspark.sql import DataFrame, Observation, Row
from pyspark.sql import functions as f

from chronos.core.clock import CLOCK_TOLERANCE_MS
from chronos.errors import ArchiveFailed, ChronosError, LogUnavailable
from chronos.spark import ledger
from chronos.spark.archive.job import check_cluster_id
from chronos.spark.audit.coverage import coverage, usable
from chronos.spark.audit.job import Judgement, archive_end, default_span, judge
from chronos.spark.audit.outcomes import OUTCOMES, Span
from chronos.spark.backfill import selection
from chronos.spark.backfill.pace import READ_MS, Pace, ahead_ms
from chronos.spark.backfill.sending import (
    CANCELS_COLUMNS,
    SENT_COLUMNS,
    BackfillContext,
    Reconciliation,
    SendingJob,
    rows_of,
    send_parts,
    write_cancels,
)
from chronos.spark.delta import is_empty, once
from chronos.spark.ledger import (
    PLANNED_COLUMNS,
    BackfillReport,
    BackfillRun,
    GonePartition,
    PlanSample,
)
from chronos.spark.request import BackfillRequest
from chronos.spark.runs import DELETED, RECREATED, TRUNCATED, check_format
from chronos.spark.schema import DEAD_LETTERS, DELIVERIES
from chronos.spark.session import Step, running_tasks
from chronos.spark.tables import open_tables, read_table

TARGETS_MAX = 1_000
"""Most targets that a report counts by name; the ones with most messages."""


def counts_of(rows: DataFrame) -> list[Row]:
    """Rows of `selection.PLAN`, with `is_requested` and `left_out` -> the numbers of those that
    have the same of both, outcome and target."""
    by = rows.groupBy("is_requested", "left_out", "outcome", "target")
    found: list[Row] = by.agg(
        f.count("*").alias("messages"),
        f.sum("bytes").alias("bytes"),
        f.min("due_ms").alias("first"),
        f.max("due_ms").alias("last"),
    ).collect()
    return found


def counted(report: BackfillReport, cells: Iterable[Row]) -> BackfillReport:
    """The report with the numbers of `counts_of`: the messages of the plan, and those that are left
    out of it by reason."""
    requested = [cell for cell in cells if cell["is_requested"]]
    planned = [cell for cell in requested if cell["left_out"] is None]
    sent = [cell for cell in planned if cell["outcome"] != ledger.SETTLED]
    left_out = _by("left_out", requested)
    outcomes = _by("outcome", planned)
    targets = sorted(_by("target", sent).items(), key=lambda each: (-each[1], each[0]))
    return structs.replace(
        report,
        messages=sum(cell["messages"] for cell in planned),
        bytes=sum(cell["bytes"] for cell in planned),
        expired=left_out["expired"],
        too_large=left_out["too-large"],
        no_target=left_out["no-target"],
        compacted=left_out["compacted"],
        first_due_ms=min((cell["first"] for cell in sent), default=None),
        last_due_ms=max((cell["last"] for cell in sent), default=None),
        outcomes=dict(outcomes),
        targets=dict(targets[:TARGETS_MAX]),
        settled=outcomes[ledger.SETTLED],
        unknown=_by("outcome", requested)["unknown"] if report.request.is_restore else 0,
        unknown_left_out=left_out["unknown"],
    )


def _by(column: str, cells: Iterable[Row]) -> Counter[str]:
    """The number of messages for each value of a column."""
    found: Counter[str] = Counter()
    for cell in cells:
        found[cell[column]] += cell["messages"]
    return found


log = structlog.get_logger("chronos.backfill")

PART_ROWS = 50_000
"""Rows of a part of the plan, which one task sends with one producer."""

PARTS_MAX = 10_000
"""Most parts of a plan."""

GONE_MAX = 10_000
"""Most partitions that a report of mode `gone` counts by name."""

SAMPLES = 10
"""Messages that a plan shows."""

ATTEMPTS_MAX = 3
"""Attempts at sending before the command fails; the same command continues later."""

LEDGER_FILES_MAX = 200
"""Most files of the ledger's rows of one run."""

POLL_S = 0.5
"""Seconds between two counts of the messages sent."""

CAUSE_CHARS = 500
"""Most characters of a task's error that are repeated."""

RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception)\b: ")
"""The last line of a traceback, which names the exception."""

EVERYTHING = Span(from_ms=0, to_ms=253_402_300_800_000)
"""All due times, to the end of the calendar."""


class Backfill:
    """Backfills of one archive to one cluster. `unfinished`, `plan`, `send` and `cancel` are
    called under `locked`."""

    def __init__(
        self,
        context: BackfillContext,
        *,
        delay_topic: str | None = None,
        other_cluster: bool = False,
        not_created: Any = None,
    ) -> None:
        """`delay_topic`: the one to send to, if not that which was archived. `not_created`: the
        `TopicInfo` that it will have, for a plan before it is there. ArchiveUnusable if
        the brokers are of another Kafka cluster than the archive, unless `other_cluster` accepts
        it."""
        self._spark = context.spark
        self._storage = storage = context.storage
        self._brokers = context.archived.brokers
        self._to_brokers = context.to.brokers
        self._opener = context.opener
        self._watch = context.watch
        self._context = context
        self._open()
        self.to = delay_topic or self.topic
        self._not_created = not_created
        claim = check_format(storage) or {}
        kafka_id = self._brokers.cluster_id()
        check_cluster_id(storage.uri, claim, kafka_id, any_cluster=other_cluster)
        to_id = kafka_id if context.to is context.archived else self._to_brokers.cluster_id()
        self.to_cluster = None if to_id == kafka_id else to_id
        self._origin = self.topic if self.to_cluster is None else f"{kafka_id}/{self.topic}"

    def _open(self) -> None:
        self._tables, self.cluster, self.topic = open_tables(self._spark, self._storage)
        self._reconciliation = Reconciliation(self._context, self._tables, cluster=self.cluster)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other backfills of this archive out, and jobs that erase; ArchiveInUse if one runs.

        The tables are opened again: what an expiry has erased meanwhile is not in the ledger any
        more, and would be sent once more."""
        with ledger.locked(self._storage):
            self._open()
            yield

    def unfinished(self) -> BackfillRun | None:
        """The run that began to send and has not ended; None if there is none."""
        return ledger.unfinished(self._storage)

    # --- plan

    def plan(self, request: BackfillRequest) -> BackfillReport:
        """Write the plan of a request; nothing is sent. EmptyWindow if the window ends before it
        begins."""
        request = structs.replace(request, to_cluster=self.to_cluster)
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
        planned_ms = _now_ms()
        needs_window = (
            request.mode != "pending" and request.to_ms is None and request.from_ms is None
        )
        self._watch(Step(name="reading the coverage of the archive"))
        covered = coverage(self._tables.offsets)
        archived_ms = archive_end(covered, self._storage.uri, needs_window=needs_window)
        span = self._span(request, archived_ms)
        self._watch(Step(name="auditing the window"))
        judgement = judge(self._tables, covered, self.topic, span)
        deliveries, numbers, judged = self._deliveries(
            request, span, name, judgement.outcomes, covered.settled_end_ms
        )
        targets = {target: count for (target, is_sent), count in numbers.items() if not is_sent}
        self._watch(Step(name="writing the plan"))
        report = BackfillReport(
            run=name,
            state="planned",
            request=structs.replace(request, from_ms=span.from_ms, to_ms=span.to_ms),
            messages=0,
            bytes=0,
            sent_before=sum(numbers.values()) - sum(targets.values()),
            expired=0,
            first_due_ms=None,
            last_due_ms=None,
            outcomes={},
            targets={},
            absent_targets=[],
            samples=[],
            planned_ms=planned_ms,
            judged=judged,
            archived_ms=archived_ms,
            changed_targets=self._changed_targets(request, judgement),
            gone=self._gone(deliveries, sorted(targets), span) if request.mode == "gone" else [],
        )
        report = self._write_plan(report, deliveries, targets, span)
        if request.is_restore:
            waiting = {row["target"] for row in _waiting(deliveries).collect()}
            unarchived = sorted(waiting - covered.targets.keys())[:TARGETS_MAX]
            report = structs.replace(report, unarchived_targets=unarchived)
        self._storage.remove(f"{ledger.run_folder(name)}/_selected")
        self._storage.write_json(f"{ledger.run_folder(name)}/report.json", to_builtins(report))
        return report

    def _span(self, request: BackfillRequest, archived_ms: int) -> Span:
        if request.mode == "pending":
            return Span(from_ms=request.from_ms or 0, to_ms=request.to_ms or EVERYTHING.to_ms)
        return default_span(archived_ms, request.from_ms, request.to_ms)

    def _deliveries(
        self,
        request: BackfillRequest,
        span: Span,
        name: str,
        outcomes: DataFrame,
        settled_ms: int,
    ) -> tuple[DataFrame, dict[tuple[str, bool], int], dict[str, int]]:
        """The deliveries to replay, their number by target and whether they were sent before, and
        all messages by outcome.

        They are written and read again, so that the audit is computed once.
        """
        counted = Observation()
        counts = [
            f.count(f.when(f.col("outcome") == outcome, 1)).alias(outcome) for outcome in OUTCOMES
        ]
        outcomes = selection.requested(outcomes, request).observe(counted, *counts)
        if request.is_restore:
            deliveries = selection.restored(outcomes, request, settled_ms)
        else:
            deliveries = selection.selected(
                outcomes, request, self._log_starts() if request.mode == "pending" else {}
            )
        selected = self._storage.path(ledger.run_folder(name), "_selected")
        if request.mode == "dead-letters":
            deliveries = self._without_resolved(deliveries, span)
        if request.mode == "pending":
            deliveries = selection.without_cancelled(
                deliveries,
                self._tables.messages,
                usable(self._tables.progress, self._tables.offsets),
            )
        deliveries.write.mode("overwrite").parquet(selected)
        judged = {outcome: count for outcome, count in counted.get.items() if count}
        deliveries = self._spark.read.parquet(selected)
        if request.mode == "gone":
            deliveries = self._without_present(deliveries, request)
        marked = once(self._mark_sent(request, deliveries, span))
        by_target = {
            (row["target"], row["is_sent"]): row["count"]
            for row in marked.groupBy("target", "is_sent").count().collect()
        }
        return marked.where(~f.col("is_sent")), by_target, judged

    def _mark_sent(self, request: BackfillRequest, deliveries: DataFrame, span: Span) -> DataFrame:
        """`DELIVERY` -> `selection.marked`, with each message once where its replays were selected
        too."""
        rows = ledger.sent_rows(self._spark, self._storage, request.destination)
        copies = once(selection.replays(self._tables.messages, span))
        if is_empty(copies):
            return selection.marked(deliveries, rows, request.purpose)
        if request.mode == "all":
            return selection.marked(
                selection.without_copies(deliveries, copies, self.topic), rows, request.purpose
            )
        # A lost replay stands for its original, which the ledger holds.
        marked = selection.marked(deliveries, rows, request.purpose)
        unsent = selection.without_copies(marked.where(~f.col("is_sent")), copies, self.topic)
        return unsent.unionByName(marked.where("is_sent"))

    def _without_resolved(self, deliveries: DataFrame, span: Span) -> DataFrame:
        """The deliveries whose dead letters were neither replayed nor discarded, which happens
        after they were due."""
        letters = read_table(self._spark, self._storage, DEAD_LETTERS, self._tables.versions)
        since = span.from_ms - CLOCK_TOLERANCE_MS
        return selection.without_resolved(
            deliveries,
            letters.where(f.col("timestamp_ms") >= since),
            self._tables.messages.where(f.col("due_ms") >= since),
            self.topic,
        )

    def _without_present(self, deliveries: DataFrame, request: BackfillRequest) -> DataFrame:
        """The deliveries that the targets do not hold now."""
        names = [
            name
            for name in self._brokers.names()
            if any(fnmatchcase(name, each) for each in request.targets)
        ]
        infos = self._brokers.describe(names)
        partitions = {name: info.partitions for name, info in infos.items() if info is not None}
        self._watch(Step(name=f"reading {len(partitions)} targets"))
        runs = (
            None
            if self._is_archived_topic(self._brokers.describe([self.topic])[self.topic])
            else ledger.runs(self._storage)
        )
        if runs is not None:
            log.warning(
                "the delay topic is not the archived one: ids and due times are compared too",
                topic=self.topic,
            )
        return selection.without_present(
            deliveries, self._reconciliation.records(partitions), self.topic, runs=runs
        )

    def _last_of(self, table: str, column: str) -> dict[str, Any]:
        """A column of the table `offsets` for each topic of a table when it was last archived."""
        rows = self._tables.offsets.where(f.col("table") == table).groupBy("topic")
        return {
            row["topic"]: row["last"]
            for row in rows.agg(f.max_by(column, "read_ms").alias("last")).collect()
        }

    def _is_archived_topic(self, info: Any) -> bool:
        """True if the delay topic that the brokers describe is the one in the archive."""
        return info is not None and self._last_of("messages", "topic_id").get(self.topic) == info.id

    def _changed_targets(self, request: BackfillRequest, judgement: Judgement) -> dict[str, str]:
        """The requested targets that no longer hold what was archived from them, and why, as in the
        table `offsets`; none of a restore, whose targets may be other ones."""
        if request.is_restore:
            return {}
        wanted = request.targets or ["*"]
        seen = {
            each.target: each.gap_reason
            for each in judgement.targets
            if any(fnmatchcase(each.target, pattern) for pattern in wanted)
        }
        changed = {name: why for name, why in seen.items() if why in (RECREATED, TRUNCATED)}
        ids, ends = self._last_of("deliveries", "topic_id"), self._archived_ends()
        for name, info in (self._brokers.describe(sorted(seen)) if seen else {}).items():
            if info is None:
                changed[name] = DELETED
            elif info.id != ids.get(name):
                changed[name] = RECREATED
            elif any(
                self._brokers.watermarks(name, partition).high < ends.get((name, partition), 0)
                for partition in set(range(info.partitions)) - info.leaderless
            ):
                changed[name] = TRUNCATED
        return dict(sorted(changed.items())[:TARGETS_MAX])

    def _archived_ends(self) -> dict[tuple[str, int], int]:
        """For each partition of a target the offset up to which it was archived when it was read
        last."""
        rows = self._tables.offsets.where("table = 'deliveries'").groupBy("topic", "partition")
        found = rows.agg(
            f.max_by("until_offset", f.struct("read_ms", "until_offset")).alias("end")
        ).collect()
        return {(row["topic"], row["partition"]): row["end"] for row in found}

    def _gone(
        self, deliveries: DataFrame, targets: Sequence[str], span: Span
    ) -> list[GonePartition]:
        """The messages to send by the partition that held them; records before its first offset
        apart from lost ones."""
        ids = self._last_of("deliveries", "topic_id")
        starts = [
            (name, partition, self._brokers.watermarks(name, partition).start)
            for name, info in self._brokers.describe(targets).items()
            if info is not None and info.id == ids.get(name)
            for partition in range(info.partitions)
        ]
        partitions = self._spark.createDataFrame(
            starts, "target string, partition int, log_start long"
        )
        archived = self._tables.deliveries.where(
            span.within(DELIVERIES) & (f.col("source_topic") == self.topic)
        )
        rows = (
            selection.gone_from(deliveries, archived, partitions)
            .orderBy("target", "partition")
            .limit(GONE_MAX)
        )
        return [GonePartition(**row.asDict()) for row in rows.collect()]

    def _log_starts(self) -> dict[int, int]:
        """The offset each shard's log begins at; greater than any if the cluster no longer reads
        the archived topic."""
        info = self._brokers.describe([self.topic])[self.topic]
        shards = [
            row["shard"] for row in self._tables.messages.select("shard").distinct().collect()
        ]
        if not self._is_archived_topic(info) or self.to != self.topic:
            return dict.fromkeys(shards, 2**62)
        return {shard: self._brokers.watermarks(self.topic, shard).start for shard in shards}

    def _write_plan(
        self, report: BackfillReport, deliveries: DataFrame, targets: Mapping[str, int], span: Span
    ) -> BackfillReport:
        """Write the plan's files; the report with the counts and samples of the plan. `targets`:
        deliveries by target."""
        topics, absent = self._topics(report.request, sorted(targets))
        count = sum(targets.values())
        rows = once(self._records(report, deliveries, topics, span))
        cells = counts_of(rows)
        if sum(cell["messages"] for cell in cells) < count:
            # Some records were first due outside the window.
            rows = once(self._records(report, deliveries, topics, None))
            cells = counts_of(rows)
        least = self._spark.sparkContext.defaultParallelism if count > PART_ROWS else 1
        parts = min(PARTS_MAX, max(least, -(-count // PART_ROWS)))
        order = ["due_ms", *ledger.TOKEN]
        (
            rows.where(f.col("is_requested") & f.col("left_out").isNull())
            .select(*selection.PLAN)
            .repartitionByRange(parts, *order)
            .sortWithinPartitions(*order)
            .write.mode("overwrite")
            .parquet(self._storage.path(ledger.run_folder(report.run), "_plan"))
        )
        report = counted(report, cells)
        found = self._topics_of(report.request, sorted(report.targets))
        absent = absent or _absent(report.request, found)
        return structs.replace(report, absent_targets=absent, samples=self._samples(report.run))

    def _records(
        self, report: BackfillReport, deliveries: DataFrame, topics: DataFrame, span: Span | None
    ) -> DataFrame:
        """`DELIVERY` -> `PLAN` with `is_requested`, true for a record with the requested headers,
        and `left_out`."""
        rows = selection.with_records(deliveries, self._tables.messages, span).join(
            f.broadcast(topics), "target", "left"
        )
        return rows.withColumns(
            {
                "is_requested": selection.has_headers(report.request),
                "left_out": selection.left_out(report.request, report.planned_ms, self._origin),
            }
        )

    def _topics(
        self, request: BackfillRequest, targets: Sequence[str]
    ) -> tuple[DataFrame, list[str]]:
        """For each target `bytes_max` and `compacted` of the topic to send to, and
        `target_compacted`; and the targets that do not exist."""
        there = self._topics_of(request, targets)
        was = self._last_of("deliveries", "compacted")
        found = there if request.direct else dict.fromkeys(targets, self._delay_topic())
        rows = [
            (
                name,
                info and info.bytes_max,
                info and info.compacted,
                now.compacted if now else was.get(request.to_topic or name),
            )
            for name in targets
            for info, now in [(found[name], there[name])]
        ]
        topics = self._spark.createDataFrame(
            rows, "target string, bytes_max long, compacted boolean, target_compacted boolean"
        )
        return topics, _absent(request, found)

    def _topics_of(self, request: BackfillRequest, targets: Sequence[str]) -> dict[str, Any]:
        """For each target `TopicInfo` of the topic that its messages are delivered to; None if it
        does not exist."""
        if not targets:
            return {}
        if request.to_topic is None:
            return dict(self._to_brokers.describe(targets))
        info = self._to_brokers.describe([request.to_topic])[request.to_topic]
        return dict.fromkeys(targets, info)

    def _delay_topic(self) -> Any:
        """`TopicInfo` of the delay topic to send to; LogUnavailable if it does not exist."""
        info = self._to_brokers.describe([self.to])[self.to] or self._not_created
        if info is None:
            raise LogUnavailable(f"the brokers have no {self.to}: is this the right cluster?")
        return info

    def _samples(self, run: str) -> list[PlanSample]:
        for path in ledger.plan_files(self._storage, run):
            with self._storage.open(f"{ledger.run_folder(run)}/_plan/{path}") as stream:
                for batch in pq.ParquetFile(stream).iter_batches(SAMPLES):
                    sizes = batch.column("bytes").to_pylist()
                    outcomes = batch.column("outcome").to_pylist()
                    return [
                        PlanSample(
                            source=f"{self.topic}/{row.shard}/{row.source_offset}",
                            id=row.id,
                            target=row.target,
                            outcome=outcome,
                            due_ms=row.due_ms,
                            bytes=size,
                        )
                        for row, outcome, size in zip(rows_of(batch), outcomes, sizes, strict=True)
                    ]
        return []

    def discard(self, report: BackfillReport) -> None:
        """Remove a plan that is not sent."""
        self._storage.remove(ledger.run_folder(report.run))

    # --- send

    def begin(self, report: BackfillReport) -> BackfillRun:
        """Begin the run of a plan: from here on it is unfinished until it is sent or cancelled."""
        info = self._delay_topic()
        files = ledger.plan_files(self._storage, report.run)
        run = BackfillRun(
            run=report.run,
            state="sending",
            request=report.request,
            planned_ms=report.planned_ms,
            source=self.topic,
            origin=self._origin,
            topic=self.to,
            topic_id=info.id,
            begin={
                str(shard): self._to_brokers.watermarks(self.to, shard).stable
                for shard in range(info.partitions)
            },
            rows=[self._rows(report.run, path) for path in files],
        )
        ledger.save_run(self._storage, run)
        return run

    def _rows(self, run: str, path: str) -> int:
        with self._storage.open(f"{ledger.run_folder(run)}/_plan/{path}") as stream:
            return int(pq.read_metadata(stream).num_rows)

    def send(self, run: BackfillRun) -> BackfillReport:
        """Send the rest of a run. ArchiveFailed after `ATTEMPTS_MAX` attempts, or if the run is to
        be cancelled; it stays unfinished."""
        for left in range(ATTEMPTS_MAX - 1, -1, -1):
            self.check_wanted(run)
            done = self._reconciliation.rows_sent(run)
            if sum(done) == run.total:
                break
            try:
                self._attempt(run, done)
            except ChronosError:
                raise
            except Exception as error:
                # Whatever failed, the log holds what was sent.
                self.check_wanted(run)
                cause = _cause(error)
                if not left:
                    raise ArchiveFailed(
                        f"run {run.run} is unfinished: {cause}. The log records which messages "
                        "were sent: the same command sends the rest"
                    ) from error
                log.warning(
                    "an attempt at sending failed; reconciling with the log",
                    run=run.run,
                    reason=cause,
                )
                continue
            done = run.rows
            break
        return self._finish(run, done, "done")

    def check_cluster(self, run: BackfillRun) -> None:
        """ArchiveFailed if the run sends to another Kafka cluster than this job."""
        if run.request.to_cluster != self.to_cluster:
            raise ArchiveFailed(
                f"run {run.run} sends to the Kafka cluster "
                f"{run.request.to_cluster or 'that was archived'}: give the same --to-cluster"
            )

    def check_wanted(self, run: BackfillRun) -> None:
        """ArchiveFailed if somebody has asked to cancel the run."""
        if ledger.is_to_be_cancelled(self._storage, run):
            raise ArchiveFailed(
                f"run {run.run} is to be cancelled: this command ends, and `chronos backfill "
                f"cancel {run.run}` does the rest"
            )

    def cancel(self, run: BackfillRun) -> BackfillReport:
        """1. end an unfinished run without sending the rest; if the log cannot tell what was sent,
        the ledger counts all of it as sent; 2. cancel what was sent through the delay topic, by its
        ids; 3. record the end. A killed command is completed by the next one."""
        folder = ledger.run_folder(run.run)
        if run.state == "sending":
            try:
                done = self._reconciliation.rows_sent(run)
            except ArchiveFailed as error:
                log.warning("all of the run counts as sent", reason=str(error))
                done = run.rows
            self._finish(run, done, "cancelling")
        elif run.state == "done":
            run.state = "cancelling"
            ledger.save_run(self._storage, run)
        ended = from_builtins(self._storage.read_json(f"{folder}/report.json"), BackfillReport)
        if run.state == "cancelled":
            return ended
        report = structs.replace(ended, state="cancelled", cancels=self._write_cancels(run))
        self._storage.write_json(f"{folder}/report.json", to_builtins(report))
        run.state = "cancelled"
        ledger.save_run(self._storage, run)
        ledger.remove_working_files(self._storage, run.run)
        return report

    def _write_cancels(self, run: BackfillRun) -> int:
        """Cancel the messages of a run by id; their number. Those no longer pending are refused by
        Chronos."""
        info = self._to_brokers.describe([run.topic])[run.topic]
        if info is None or info.id != run.topic_id:
            log.warning(
                "nothing is cancelled: the topic was deleted or created again", topic=run.topic
            )
            return 0
        self._watch(Step(name="cancelling what was sent"))
        ids = ledger.ids_sent(self._spark, self._storage, run.run)
        written = ids.mapInArrow(write_cancels(self._opener, run.topic), CANCELS_COLUMNS)
        return int(written.agg(f.sum("cancels").alias("cancels")).collect()[0]["cancels"] or 0)

    def _attempt(self, run: BackfillRun, done: list[int]) -> None:
        request, left = run.request, run.total - sum(done)
        files = ledger.plan_files(self._storage, run.run)
        rate = request.rate
        if request.over_ms:
            rate = run.total * 1_000 / request.over_ms
        is_paced = request.rate is not None or (request.direct and rate is not None)
        job = SendingJob(
            location=self._storage.uri,
            cluster=self.cluster,
            topic=run.origin,
            to=run.topic,
            to_topic=request.to_topic,
            run=run.run,
            purpose=request.purpose,
            mode=request.mode,
            direct=request.direct,
            expired=request.expired,
            attempt=run.attempts[-1].number,
            files=files,
            done=done,
            pace=Pace(base_ms=_now_ms(), rates=[] if rate is None else [(0, rate)]),
            ahead_ms=ahead_ms(direct=request.direct) if is_paced else None,
            opener=self._opener,
            batch_bytes=self._batch_bytes(run),
        )
        log.info("sending", run=run.run, attempt=job.attempt, messages=left)
        work = self._spark.range(0, len(files), 1, len(files)).mapInArrow(
            send_parts(job, job.rank(run.rows)), SENT_COLUMNS
        )
        with self._reporting(run, sum(done)):
            sent = work.agg(f.sum("rows").alias("rows")).collect()[0]["rows"]
        assert sent == left

    def _batch_bytes(self, run: BackfillRun) -> int:
        """Most bytes of a batch that every topic of the run accepts."""
        topics = [run.topic]
        if run.request.direct and run.request.to_topic is not None:
            topics = [run.request.to_topic]
        elif run.request.direct:
            plan = self._spark.read.parquet(self._storage.path(ledger.run_folder(run.run), "_plan"))
            topics = [row["target"] for row in plan.select("target").distinct().collect()]
        return min(
            (
                info.bytes_max
                for info in self._to_brokers.describe(topics).values()
                if info is not None
            ),
            default=1,
        )

    @contextmanager
    def _reporting(self, run: BackfillRun, before: int) -> Iterator[None]:
        """Report the number of messages sent while the block runs, from a thread of its own."""
        ended = threading.Event()
        step = Step(name=self._step_name(run), done=before, total=run.total, unit="messages")
        self._watch(step)

        def report() -> None:
            nonlocal step
            read_s = time.monotonic()
            while not ended.wait(POLL_S):
                with suppress(ArchiveFailed):  # what cannot be read now is read next time
                    step = structs.replace(step, done=max(step.done, self._sent(run, before)))
                    if time.monotonic() - read_s >= READ_MS / 1_000:
                        step = structs.replace(step, name=self._step_name(run))
                        if ledger.is_to_be_cancelled(self._storage, run):
                            self._spark.sparkContext.cancelAllJobs()  # `send` says why
                        read_s = time.monotonic()
                self._watch(step)

        thread = threading.Thread(target=report, name="backfill-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(5)
        self._watch(structs.replace(step, done=run.total))

    def _step_name(self, run: BackfillRun) -> str:
        """`sending`, with the rate if the run has one."""
        if run.request.rate is None:
            return "sending"
        changes = ledger.rate_changes(self._storage, run.run)
        return f"sending {changes[-1][1] if changes else run.request.rate:g} messages per second"

    def _sent(self, run: BackfillRun, before: int) -> int:
        """Messages sent so far: exact for direct runs and those with a rate, by ended tasks of the
        running stage for others."""
        if run.request.direct or run.request.rate is not None:
            return sum(ledger.rows_recorded(self._storage, run))
        ended, tasks = running_tasks(self._spark)
        return (
            before + round(ended / tasks * (run.total - before))
            if tasks == len(run.rows)
            else before
        )

    # --- finish

    def _finish(self, run: BackfillRun, done: list[int], state: str) -> BackfillReport:
        """1. write the ledger's rows, 2. write the report, 3. record the end of the run, 4. remove
        its working files."""
        path = ledger.run_folder(run.run)
        ledger.write_rows(self._storage, run, self._rows_sent(run, done), sum(done))
        planned = from_builtins(self._storage.read_json(f"{path}/report.json"), BackfillReport)
        report = structs.replace(
            planned, state=state, messages=sum(done), ended_ms=_now_ms(), attempts=len(run.attempts)
        )
        self._storage.write_json(f"{path}/report.json", to_builtins(report))
        run.state = state
        ledger.save_run(self._storage, run)
        ledger.remove_working_files(self._storage, run.run)
        return report

    def _rows_sent(self, run: BackfillRun, done: Sequence[int]) -> DataFrame:
        """`PLANNED_COLUMNS` of the first rows of each part of the plan, by their numbers `done`."""
        files = ledger.plan_files(self._storage, run.run)
        ends = self._spark.createDataFrame(
            list(zip(files, done, strict=True)), "file string, end long"
        )
        plan = self._spark.read.schema(PLANNED_COLUMNS).parquet(
            self._storage.path(ledger.run_folder(run.run), "_plan")
        )
        rows = plan.select("*", f.col("_metadata.file_name").alias("file"), "_metadata.row_index")
        sent = rows.join(f.broadcast(ends), "file").where("row_index < end")
        return sent.select(*plan.columns).coalesce(LEDGER_FILES_MAX)


def _waiting(deliveries: DataFrame) -> DataFrame:
    """`DELIVERY` of a restore -> the targets of its messages."""
    return deliveries.where(f.col("outcome") != ledger.SETTLED).select("target").distinct()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _absent(request: BackfillRequest, found: Mapping[str, Any]) -> list[str]:
    """The topics of `Backfill._topics_of` that do not exist."""
    absent = {request.to_topic or name for name, info in found.items() if info is None}
    return sorted(absent)[:TARGETS_MAX]


def _cause(error: Exception) -> str:
    """The error of the task, taken from Spark's long message."""
    lines = [line.strip() for line in str(error).splitlines()]
    own = [line for line in lines if line.startswith("chronos.errors.")]
    raised = [line for line in lines if RAISED.match(line)]
    if own:
        return own[-1].partition(": ")[2][:CAUSE_CHARS]
    return (raised[-1] if raised else next(filter(None, lines), type(error).__name__))[:CAUSE_CHARS]
