"""Small archives written by hand: one shard and one target for each case, so that one Spark job
judges all cases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from chronos.core.keys import OFFSET_MAX
from chronos.spark import schema
from chronos.spark.archive.commits import Commits
from chronos.spark.audit.outcomes import Span
from chronos.spark.storage import ArchiveStorage
from chronos.spark.tables import Tables
from tests.spark.histories import DELAY, HOUR_MS, Row, frames, offsets_row
from tests.spark.written import create_archive, write_batch

T = 1_893_456_000_000
"""Midnight, the beginning of the window, epoch ms."""

WINDOW = Span(from_ms=T, to_ms=T + HOUR_MS)
SETTLED_MS = T + 2 * HOUR_MS
"""Cursor of a case after its last step, unless it has steps of its own."""

READ_MS = T + 3 * HOUR_MS
PULLED = 1_000


class JudgedShard:
    """One shard. `expects` maps `(source offset, occurrence)` of its promised deliveries to
    `(outcome, reason)`."""

    def __init__(self, name: str, expects: dict[tuple[int, int], tuple[str, str | None]]) -> None:
        self.name = name
        self.expects = expects
        self.shard = 0
        self.messages: list[Row] = []
        self.deliveries: list[Row] = []
        self.decisions: list[Row] = []
        self.steps: list[Row] = []
        self.offsets: list[Row] = []
        self._own_steps = False
        self._own_offsets = False

    # --- the delay topic

    def send(self, offset: int, due_ms: int | None, /, **changed: Any) -> JudgedShard:
        """A record; sent a minute before the window begins, without a key."""
        row = {
            "shard": 0,
            "offset": offset,
            "timestamp_ms": T - 60_000 + offset,
            "key": None,
            "value": b"v",
            "headers": None,
            "verb": "schedule",
            "id": b"0-%d-%d" % (due_ms or 0, offset),
            "target": "target",
            "target_key": None,
            "requested_due_ms": due_ms,
            "due_ms": due_ms,
            "expire_at_ms": None,
            "on_conflict": None,
            "reason": None,
            "first_ms": None,
        }
        self.messages.append(row | changed)
        return self

    def act(
        self,
        verb: str,
        offset: int,
        message_id: bytes,
        *,
        at_ms: int,
        due_ms: int | None = None,
        **changed: Any,
    ) -> JudgedShard:
        """A record that acts on an existing message."""
        row = {
            "verb": verb,
            "id": message_id,
            "timestamp_ms": at_ms,
            "target": None,
            "requested_due_ms": due_ms,
        }
        return self.send(offset, due_ms, **row | changed)

    # --- the progress topic

    def step(
        self, at_ms: int, cursor_ms: int, pulled: int, *, cursor_offset: int = OFFSET_MAX
    ) -> JudgedShard:
        """A progress record; the first call replaces the default steps."""
        self._own_steps = True
        return self._step(at_ms, cursor_ms, pulled, cursor_offset)

    def _step(self, at_ms: int, cursor_ms: int, pulled: int, cursor_offset: int) -> JudgedShard:
        self.steps.append(
            {
                "shard": 0,
                "offset": 2 * len(self.steps),
                "timestamp_ms": at_ms,
                "role_epoch": 1,
                "log_epoch": 1,
                "node": "n",
                "instance": "i",
                "cursor_due_ms": cursor_ms,
                "cursor_offset": str(cursor_offset),
                "pull_offset": pulled,
                **dict.fromkeys(schema.COUNTS, 0),
                "refused": 0,
                "value": b"",
                "unreadable": None,
            }
        )
        return self

    def decide(
        self, outcome: str, source_offset: int, at_ms: int, *, in_step: int = 1, **changed: Any
    ) -> JudgedShard:
        """A row of `decisions`, with the time of its step: the second one by default."""
        row = {
            "shard": 0,
            "progress_offset": 2 * in_step,
            "decided_ms": at_ms,
            "position_due_ms": at_ms,
            "source_offset": source_offset,
            "outcome": outcome,
            "reason": None,
            "next_due_ms": None,
            "occurrence": 1,
            "attempt": 1,
            "lane": None,
            "target": None,
            "destination": None,
        }
        self.decisions.append(row | changed)
        return self

    def hold(
        self, source_offset: int, destination: int, reason: str = "held", at_ms: int = T - 50_000
    ) -> JudgedShard:
        """A refused record that begins to wait for a partition of the delay topic, or for the
        rejected topic (-1)."""
        return self.decide("refused", source_offset, at_ms, reason=reason, destination=destination)

    def write_on(
        self, until_offset: int, destination: int, at_ms: int = T, *too_large: int
    ) -> JudgedShard:
        """A step that writes what it held for a destination, up to an offset."""
        for offset in too_large:
            self.decide("refused", offset, at_ms, in_step=2, reason="too-large")
        return self.decide("written-on", until_offset, at_ms, in_step=2, destination=destination)

    # --- the target, and the reads of all topics

    def deliver(self, source_offset: int, due_ms: int, at_ms: int, **changed: Any) -> JudgedShard:
        """A record in the target."""
        row = {
            "topic": "target",
            "partition": 0,
            "offset": len(self.deliveries),
            "timestamp_ms": at_ms,
            "key": None,
            "value": b"v",
            "headers": None,
            "id": b"x",
            "due_at_ms": due_ms,
            "source_topic": DELAY,
            "shard": 0,
            "source_offset": source_offset,
            "occurrence": 1,
            "attempt": 1,
        }
        self.deliveries.append(row | changed)
        return self

    def read(self, table: str, end: int = PULLED, /, **changed: Any) -> JudgedShard:
        """A read of the case's partition of a topic; the first call replaces the default reads."""
        self._own_offsets = True
        row = {"partition": 0, "read_ms": READ_MS} | changed
        self.offsets.append(offsets_row(table, _TOPICS[table], row.pop("partition"), end, **row))
        return self

    def read_plainly(self, *tables: str) -> JudgedShard:
        """Each of these topics was read once to its end, after all other events."""
        for table in tables:
            self.read(table)
        return self

    def put(self, shard: int) -> JudgedShard:
        """Give the case its shard, and the defaults for what it does not define."""
        self.shard = shard
        if not self._own_steps:
            self._step(T - HOUR_MS, 0, 0, OFFSET_MAX)._step(T + HOUR_MS, T, PULLED, OFFSET_MAX)
            self._step(SETTLED_MS, SETTLED_MS, PULLED, OFFSET_MAX)
        if not self._own_offsets:
            self.read_plainly("messages", "progress", "deliveries")
        for rows in (self.messages, self.deliveries, self.decisions, self.steps):
            for row in rows:
                row["shard"] = shard
        for row in self.decisions:
            if row["outcome"] not in ("refused", "written-on"):
                row["decided_ms"] = self.steps[row["progress_offset"] // 2]["timestamp_ms"]
        for row in self.messages:
            row["target"] = self._own(row["target"])
        for row in self.decisions:
            row["target"] = self._own(row["target"])
        for row in self.deliveries:
            row["topic"] = self._own(row["topic"])
        for row in self.offsets:
            if row["table"] == "deliveries":
                row["topic"] = self._own(row["topic"])
            else:
                row["partition"] = shard
        return self

    def _own(self, topic: str | None) -> str | None:
        return topic if topic is None else f"{topic}-{self.shard}"


_TOPICS = {"messages": DELAY, "progress": "chronos.progress", "deliveries": "target"}


def rows_of(cases: Iterable[JudgedShard]) -> dict[str, list[Row]]:
    """The rows of each table with those of all cases."""
    placed = [case.put(shard) for shard, case in enumerate(cases)]
    return {
        "messages": [row for case in placed for row in case.messages],
        "deliveries": [row for case in placed for row in case.deliveries],
        "decisions": [row for case in placed for row in case.decisions],
        "progress": [row for case in placed for row in case.steps],
        "offsets": [row for case in placed for row in case.offsets],
    }


def archive_of(spark: SparkSession, cases: Iterable[JudgedShard]) -> Tables:
    """The tables of all cases."""
    return frames(spark, rows_of(cases))


def begin_archive(folder: Path) -> Path:
    """An archive without rows, for `add_batch`."""
    topics = {"delay": DELAY, "progress": "chronos.progress", "rejected": "r", "dead_letter": "d"}
    create_archive(folder, "cases", topics)
    return folder


def write_archive(rows: Mapping[str, Iterable[Row]], folder: Path) -> Path:
    """An archive with the rows of each table, as one run of `chronos archive` leaves it; Spark has
    no part in it."""
    write_batch(begin_archive(folder), rows, "first")
    return folder


def add_batch(tables: Tables, folder: Path, name: str, *, commit: bool = True) -> None:
    """Write these rows as a run of the archive of that name does: those of `offsets` last, unless
    it does not get so far."""
    spark, storage = tables.offsets.sparkSession, ArchiveStorage(str(folder))
    commits = Commits(spark, storage, "cases")
    written = {
        table.name: commits.write(
            table, getattr(tables, table.name).coalesce(1), run=name, stream="test", number=0
        )
        for table in (schema.MESSAGES, schema.DELIVERIES, schema.DECISIONS, schema.PROGRESS)
    }
    own = [column for column, *_ in schema.OFFSETS.columns]
    rows = [row.asDict() for row in tables.offsets.select(*own).collect()]
    if commit:
        commits.commit(rows, written, run=name, stream="offsets", number=0)
