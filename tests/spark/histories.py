"""Random histories of shards, as an archive: the real shard decides, and its decisions are known.

Each history has a shard of its own, so that one Spark job judges a hundred histories.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from chronos.spark import schema
from chronos.spark.audit.outcomes import Span
from chronos.spark.codec import PARSED, parse_messages, stored, unpack_decisions, unpack_steps
from chronos.spark.delta import once
from chronos.spark.tables import Tables
from tests.unit.drivers import Master
from tests.unit.histories import SHARD, SHARDS, START_MS, Sent, Step
from tests.unit.model import MINUTE_MS, Message

DELAY = "chronos.delay"
TARGET = "orders"
HOUR_MS = 60 * MINUTE_MS
READ_MS = START_MS + 24 * HOUR_MS
"""When the archive was made: long after the last event."""

HEADERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
VERBS = ["schedule"] * 6 + [
    "replace",
    "reschedule",
    "reschedule",
    "cancel",
    "cancel",
    "fire-now",
    "probe",
]
OUTCOMES = (
    ["delivered"] * 6
    + ["parked"] * 3
    + ["again", "retry", "deferred", "skipped", "expired", "dead"]
)

Row = dict[str, Any]


def random_history(dice: random.Random) -> list[Step]:
    """Times and ids are close together, so that collisions are frequent."""
    return [_random_step(dice) for _ in range(dice.randint(1, 12))]


def _random_step(dice: random.Random) -> Step:
    return Step(
        sent=tuple(_random_sent(dice) for _ in range(dice.randint(0, 6))),
        waited_ms=dice.choice([dice.randint(-3, 8), dice.randint(-3, 8), MINUTE_MS]),
        messages_max=dice.choice([1, 2, 3, 5, 100]),
        bytes_max=dice.choice([1, 120, 400, 1_000_000]),
        outcomes=tuple((dice.choice(OUTCOMES), _in_ms(dice)) for _ in range(dice.randint(1, 4))),
        disturbances=(),
        behind=dice.random() < 0.5,
        aborted=dice.random() < 0.2,
        lanes=dice.choice([(), (0,), (1, -1), (-1, 0, 1)]),
    )


def _random_sent(dice: random.Random) -> Sent:
    return Sent(
        verb=dice.choice(VERBS),
        id_number=dice.randint(0, 9),
        in_ms=_in_ms(dice),
        after_ms=dice.choice([0, 0, 0, 1, 4]),
        policy=dice.choice(["reject", "replace", "ignore", "upsert"]),
        form=dice.randint(0, 2),
        flaw=dice.choice(["", "", "", "", "", "forbidden", "far", "unknown-header"]),
        gap=dice.choice([1, 1, 1, 2]),
        hop_ms=dice.choice([None] * 6 + [0, 1, 4, 400]),
        hop_from=dice.choice([0, 2]),
    )


def _in_ms(dice: random.Random) -> int:
    return dice.choice([dice.randint(-4, 12), dice.randint(-4, 12), MINUTE_MS, 5 * MINUTE_MS])


class RecordingMaster(Master):
    """A master that records when each delivery was committed."""

    def __init__(self) -> None:
        super().__init__()
        self.deliveries: list[tuple[Message, int]] = []

    def step(self, step: Step) -> Any:
        before, left = len(self.delivered), len(self.model.left)
        selection = super().step(step)
        committed_ms = self.progress[-1][1] if self.progress else 0
        self.deliveries += [(message, committed_ms) for message in self.model.left[left:]]
        self.deliveries += [(message, committed_ms) for message in self.delivered[before:]]
        return selection


@dataclass
class History:
    """The logs of one shard, and the model of its messages."""

    shard: int
    master: RecordingMaster = field(default_factory=RecordingMaster)

    def messages(self) -> Iterator[Row]:
        """Rows of `messages`."""
        records = self.master.producers.records
        batch = pa.RecordBatch.from_pydict(
            {
                "shard": pa.array([SHARD] * len(records), pa.int32()),
                "offset": pa.array([record.offset for record in records], pa.int64()),
                "timestamp_ms": pa.array([record.timestamp_ms for record in records], pa.int64()),
                "key": pa.array([record.key for record in records], pa.binary()),
                "value": pa.array([record.value for record in records], pa.binary()),
                "headers": pa.array(
                    [
                        [{"name": name, "value": value} for name, value in record.headers or ()]
                        for record in records
                    ],
                    HEADERS,
                ),
            }
        )
        (parsed,) = parse_messages(SHARDS)(iter([batch]))
        for row in parsed.select([*batch.schema.names, *PARSED]).to_pylist():
            yield {**row, "shard": self.shard}

    def progress(self) -> Iterator[Row]:
        """Rows of `progress`."""
        yield from _named(unpack_steps(SHARDS)(iter([self._steps()])), schema.PROGRESS)

    def decisions(self) -> Iterator[Row]:
        """Rows of `decisions`."""
        yield from _named(unpack_decisions(SHARDS)(iter([self._steps()])), schema.DECISIONS)

    def _steps(self) -> pa.RecordBatch:
        steps = self.master.progress
        return pa.RecordBatch.from_pydict(
            {
                "shard": pa.array([self.shard] * len(steps), pa.int32()),
                "offset": pa.array([offset for offset, _, _ in steps], pa.int64()),
                "timestamp_ms": pa.array(
                    [timestamp_ms for _, timestamp_ms, _ in steps], pa.int64()
                ),
                "value": pa.array([value for _, _, value in steps], pa.binary()),
            }
        )

    def delivered(self) -> Iterator[Row]:
        """Rows of `deliveries`."""
        for at, (message, committed_ms) in enumerate(self.master.deliveries):
            yield {
                "topic": TARGET,
                "partition": self.shard,
                "offset": at,
                "timestamp_ms": committed_ms,
                "key": None,
                "value": message.intent.value,
                "headers": None,
                "id": message.id,
                "due_at_ms": message.due_ms,
                "source_topic": DELAY,
                "shard": self.shard,
                "source_offset": message.offset,
                "occurrence": message.occurrence,
                "attempt": message.attempt,
            }

    def offsets(self) -> Iterator[Row]:
        """Rows of `offsets`: every topic was read to its end."""
        watermarks = {
            ("messages", DELAY): max(
                (record.offset for record in self.master.producers.records), default=-1
            )
            + 1,
            ("progress", "chronos.progress"): 2 * len(self.master.progress) + 1,
            ("deliveries", TARGET): len(self.master.deliveries),
        }
        for (table, topic), end in watermarks.items():
            yield offsets_row(table, topic, self.shard, end)


def offsets_row(table: str, topic: str, partition: int, end: int, **changed: Any) -> Row:
    """A read of a partition to its end."""
    return {
        "table": table,
        "topic": topic,
        "partition": partition,
        "topic_id": "t",
        "from_offset": 0,
        "until_offset": end,
        "log_start": 0,
        "stable_end": end,
        "high_watermark": end,
        "read_ms": READ_MS,
        "gap": False,
        "gap_reason": None,
        "broker_ms": None,
        "compacted": None,
        "oldest_ms": None,
        "loss_from_ms": None,
        "loss_until_ms": None,
        "leader_epoch": None,
        "targets": None,
        "sequence": 1,
        "versions": {},
        **changed,
    }


def _named(batches: Iterator[pa.RecordBatch], table: schema.Table) -> Iterator[Row]:
    names = [name for name, *_ in table.columns]
    for batch in batches:
        yield from batch.rename_columns(names).to_pylist()


def frame(spark: SparkSession, table: schema.Table, rows: Iterable[Row]) -> DataFrame:
    """Rows as the table of an archive, computed once."""
    columns = schema.columns_of(table)
    kinds = to_arrow_schema(columns)
    made = spark.createDataFrame(
        pa.Table.from_pylist([{name: row[name] for name in kinds.names} for row in rows], kinds)
    )
    return once(stored(made, table))


def frames(spark: SparkSession, rows: Mapping[str, Iterable[Row]]) -> Tables:
    """The tables of an archive with these rows."""
    return Tables(**{name: frame(spark, schema.TABLES[name], rows[name]) for name in rows})


def rows_of(
    histories: Sequence[History], deliveries: Iterable[Row] | None = None
) -> dict[str, list[Row]]:
    """The rows of each table of some histories; with other deliveries than there were, if they are
    given."""
    if deliveries is None:
        deliveries = (row for history in histories for row in history.delivered())
    return {
        "messages": [row for history in histories for row in history.messages()],
        "deliveries": list(deliveries),
        "decisions": [row for history in histories for row in history.decisions()],
        "progress": [row for history in histories for row in history.progress()],
        "offsets": [row for history in histories for row in history.offsets()],
    }


def tables(
    spark: SparkSession, histories: Sequence[History], deliveries: Iterable[Row] | None = None
) -> Tables:
    """The archive of some histories, as `rows_of`."""
    return frames(spark, rows_of(histories, deliveries))


HISTORIES = int(os.environ.get("CHRONOS_TEST_HISTORIES", "80"))
EPOCH_RECORD = Step((), 0, 1, 400, (("delivered", 0),), (), behind=False, aborted=False)
"""Every log begins with a step that settles nothing: the epoch record of its first master."""

EVERYTHING = Span(from_ms=START_MS - 12 * HOUR_MS, to_ms=READ_MS)


def played(seed: int, *, drained: bool) -> list[History]:
    """`HISTORIES` shards, each with a random history."""
    dice = random.Random(seed)
    histories = [History(shard) for shard in range(HISTORIES)]
    for history in histories:
        history.master.step(EPOCH_RECORD)
        history.master.play(random_history(dice))
        if drained:
            history.master.drain(START_MS + HOUR_MS)
            # What left a lane in the last step counts as settled once the cursor is past that step.
            history.master.drain(START_MS + 2 * HOUR_MS)
    return histories


def token(row: Row) -> tuple[int, int, int]:
    """The token of a delivery."""
    return row["shard"], row["source_offset"], row["occurrence"]
