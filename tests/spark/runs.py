"""An archive of many runs, written without Spark: thousands of them in minutes.

Each run adds a commit to each table, as `chronos archive` does, with all rows of `offsets` last.
Of every fifty records of a shard one cancels a message and one moves one; some messages are
delivered at the second attempt, expired or refused, and no other end is missing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from deltalake import DeltaTable

from chronos.core.keys import OFFSET_MAX
from chronos.spark import schema
from chronos.spark.archive.commits import OFFSETS_FILES, create_tables
from chronos.spark.schema import Table
from chronos.spark.storage import ArchiveStorage
from tests.spark.written import Columns, add, append, create_archive, nothing

END_MS = 1_893_456_000_000
"""When the last run reads the logs, epoch ms."""

HOUR_MS = 3_600_000
DELAY, PROGRESS, TARGET = "chronos.delay", "chronos.progress", "orders"
SHARDS = 4
ACTIONS_EACH = 50
"""Records of a shard of which one cancels and one moves a message."""

RUNS_MAX = 100_000

PART_RUNS = 50
"""Runs written to tables of their own, whose commits are then moved: `deltalake` takes a
millisecond for each hundred files that a table has before a commit."""

ACTED_AFTER = 20
"""Records of a shard from a message to the action on it, at most; each message is due later."""

DELAY_SHARE = 0.8
"""Longest delay, as a share of the time from one run to the next."""


class Runs:
    """The logs of a cluster, in parts of a run each, from `END_MS` backwards."""

    def __init__(self, runs: int, *, every_ms: int = HOUR_MS, records: int = 100) -> None:
        """`records`: those of a shard in a run, a multiple of `ACTIONS_EACH`; there are twice as
        many steps."""
        self.runs, self.every_ms, self.records = runs, every_ms, records
        self.start_ms = END_MS - runs * every_ms
        # What becomes of a record depends on its time alone, not on the number of runs before.
        self._first = (RUNS_MAX - runs) * records
        self._deliveries = [0] * SHARDS
        self._ends: list[tuple[int, Table, dict[str, Any]]] = []

    def write(self, folder: Path) -> None:
        """Write the archive."""
        topics = {"delay": DELAY, "progress": PROGRESS, "rejected": "r", "dead_letter": "d"}
        create_archive(folder, "runs", topics)
        offsets = DeltaTable(folder / "offsets")
        for first in range(0, self.runs, PART_RUNS):
            runs = range(first, min(first + PART_RUNS, self.runs))
            with TemporaryDirectory(dir=folder) as part:
                self._write_part(Path(part), runs, offsets)
                for name in schema.TABLES.keys() - {"offsets"}:
                    _move_commits(Path(part, name), folder / name, after=first)
        for name in schema.TABLES:
            DeltaTable(folder / name).create_checkpoint()

    def _write_part(self, folder: Path, runs: range, offsets: DeltaTable) -> None:
        """Write some runs to new tables of `folder`, and their rows of `offsets`."""
        create_tables(ArchiveStorage(str(folder)))
        tables = {name: DeltaTable(folder / name) for name in schema.TABLES}
        for run in runs:
            written, reads = self._run(run)
            for table, columns in written:
                append(tables[table.name], table, columns, f"runs/{table.name}/{run}")
            names = {table.name for table, _ in written}
            versions = [
                (name, run + 1 if name in names else 0) for name in tables if name != "offsets"
            ]
            count = len(reads["topic"])
            own: Columns = {"sequence": [run + 1] * count, "versions": [versions] * count}
            append(offsets, schema.OFFSETS, reads | own, f"runs/offsets/{run}")
            if not offsets.version() % OFFSETS_FILES:
                offsets.optimize.compact()

    def _run(self, run: int) -> tuple[list[tuple[Table, Columns]], Columns]:
        """The rows of each table that a run writes, and those of `offsets`."""
        before = list(self._deliveries)
        messages, decisions, deliveries = self._records(run)
        steps = self._steps(run)
        reads = {
            ("progress", PROGRESS): [(run * self.records * 2, (run + 1) * self.records * 2)]
            * SHARDS,
            ("deliveries", TARGET): list(zip(before, self._deliveries, strict=True)),
            ("messages", DELAY): [(run * self.records, (run + 1) * self.records)] * SHARDS,
        }
        rows = _reads(reads, self.start_ms + (run + 1) * self.every_ms)
        tables = (schema.PROGRESS, schema.DECISIONS, schema.DELIVERIES, schema.MESSAGES)
        columns = (steps, decisions, deliveries, messages)
        return list(zip(tables, columns, strict=True)), rows

    def _sent_ms(self, number: int) -> int:
        return self.start_ms + number * self.every_ms // self.records

    def _records(self, run: int) -> tuple[Columns, Columns, Columns]:
        """The rows of `messages`, `decisions` and `deliveries`."""
        messages, decisions, deliveries = (
            nothing(table) for table in (schema.MESSAGES, schema.DECISIONS, schema.DELIVERIES)
        )
        for shard in range(SHARDS):
            for number in range(run * self.records, (run + 1) * self.records):
                add(messages, self._record(shard, number))
        end_ms = self._sent_ms((run + 1) * self.records)
        ends, self._ends = sorted(self._ends, key=lambda end: end[0]), []
        for at_ms, table, row in ends:
            if at_ms >= end_ms:
                self._ends.append((at_ms, table, row))
            elif table is schema.DECISIONS:
                add(decisions, row)
            else:
                shard = row["shard"]
                add(deliveries, row | {"offset": self._deliveries[shard]})
                self._deliveries[shard] += 1
        return messages, decisions, deliveries

    def _record(self, shard: int, number: int) -> dict[str, Any]:
        """A row of `messages`; its end is noted."""
        at = number % ACTIONS_EACH
        sent_ms, due_ms = self._sent_ms(number), self._due_ms(number)
        verb, of = "schedule", number
        if at == ACTIONS_EACH - 1:
            verb, of = "cancel", number - ACTED_AFTER
        elif at == ACTIONS_EACH - 2:
            verb, of = "reschedule", number - ACTED_AFTER // 2
        is_message = verb == "schedule"
        if is_message and at != ACTIONS_EACH - 1 - ACTED_AFTER:
            is_moved = at == ACTIONS_EACH - 2 - ACTED_AFTER // 2
            end_ms = self._due_ms(number + ACTED_AFTER // 2) if is_moved else due_ms
            self._end(shard, number, sent_ms, end_ms)
        asked_ms = None if verb == "cancel" else due_ms
        message_id = b"order-%d-%d" % (shard, of)
        return {
            "shard": shard,
            "offset": number,
            "timestamp_ms": sent_ms,
            "key": message_id,
            "value": b"payload %d" % number,
            "verb": verb,
            "id": message_id,
            "target": TARGET if is_message else None,
            "requested_due_ms": asked_ms,
            "due_ms": asked_ms,
            "on_conflict": "reject" if is_message else None,
        }

    def _due_ms(self, number: int) -> int:
        first_ms = self.every_ms * (ACTED_AFTER + 5) // self.records
        spread_ms = int(self.every_ms * DELAY_SHARE) - first_ms
        return (
            self._sent_ms(number) + first_ms + (self._first + number) * 7_919 * 104_729 % spread_ms
        )

    def _end(self, shard: int, number: int, sent_ms: int, due_ms: int) -> None:
        """Note how a message that is not cancelled ends."""
        case = self._first + number
        if case % 211 == 9:
            self._decide(shard, number, sent_ms, "refused", reason="conflict")
        elif case % 101 == 7:
            self._decide(shard, number, due_ms, "expired")
        elif case % 97 == 5:
            self._decide(shard, number, due_ms, "retry", next_due_ms=due_ms + 1_000)
            self._deliver(shard, number, due_ms, due_ms + 1_005, 2)
        else:
            self._deliver(shard, number, due_ms, due_ms + 5, 1)

    def _decide(self, shard: int, number: int, at_ms: int, outcome: str, **more: Any) -> None:
        step = (at_ms - self.start_ms) * self.records * 2 // self.every_ms + 1
        row: dict[str, Any] = {
            "shard": shard,
            "progress_offset": step,
            "decided_ms": self._step_ms(step),
            "position_due_ms": None if outcome == "refused" else at_ms,
            "source_offset": number,
            "outcome": outcome,
            "occurrence": 1,
            "attempt": 2 if outcome == "retry" else 1,
        }
        self._ends.append((row["decided_ms"], schema.DECISIONS, row | more))

    def _deliver(self, shard: int, number: int, due_ms: int, at_ms: int, attempt: int) -> None:
        row = {
            "topic": TARGET,
            "partition": shard,
            "timestamp_ms": at_ms,
            "value": b"payload %d" % number,
            "id": b"order-%d-%d" % (shard, number),
            "due_at_ms": due_ms,
            "source_topic": DELAY,
            "shard": shard,
            "source_offset": number,
            "occurrence": 1,
            "attempt": attempt,
        }
        self._ends.append((at_ms, schema.DELIVERIES, row))

    def _step_ms(self, step: int) -> int:
        return self.start_ms + step * self.every_ms // (self.records * 2)

    def _steps(self, run: int) -> Columns:
        """The rows of `progress`: each step settles what was due before it."""
        steps = nothing(schema.PROGRESS)
        for shard in range(SHARDS):
            for step in range(run * self.records * 2, (run + 1) * self.records * 2):
                row = {
                    "shard": shard,
                    "offset": step,
                    "timestamp_ms": self._step_ms(step),
                    "role_epoch": 1,
                    "log_epoch": 1,
                    "node": "n",
                    "instance": "i",
                    "cursor_due_ms": self._step_ms(step) - 1,
                    "cursor_offset": str(OFFSET_MAX),
                    "pull_offset": (step + 1) // 2,
                    "value": b"step",
                }
                add(steps, row | dict.fromkeys((*schema.COUNTS, "refused"), 0))
        return steps


def _reads(reads: Mapping[tuple[str, str], list[tuple[int, int]]], read_ms: int) -> Columns:
    """Rows of `offsets` without the columns of the commit: before anything is read, and after."""
    rows = nothing(schema.OFFSETS)
    for (table, topic), partitions in reads.items():
        for number, (begin, end) in enumerate(partitions):
            row = {
                "table": table,
                "topic": topic,
                "partition": number,
                "topic_id": "id",
                "from_offset": begin,
                "log_start": 0,
                "stable_end": end,
                "high_watermark": end,
                "read_ms": read_ms,
                "gap": False,
                "broker_ms": read_ms,
                "compacted": False,
            }
            for until in (begin, end):
                add(rows, row | {"until_offset": until})
    return rows


def _move_commits(part: Path, table: Path, *, after: int) -> None:
    """Move the files and commits of one table to the end of another one, which has this version."""
    for file in part.rglob("*.parquet"):
        to = table / file.relative_to(part)
        to.parent.mkdir(exist_ok=True)
        file.rename(to)
    for commit in sorted(part.joinpath("_delta_log").glob("*.json"))[1:]:
        commit.rename(table / "_delta_log" / f"{after + int(commit.stem):020}.json")
