"""The archive's tables: their columns with types and units, and their folders.

    <location>/archive.json                                              the cluster, topics and format of the archive
    <location>/<table>/batch=<batch>/due_date=<date>/due_hour=<hour>/    Parquet files
    <location>/_runs/...                                                 `run.json`, lists and Spark's checkpoints of the last runs: no rows
    <location>/sent/...                                                  the ledger of backfills (`ledger`)
    <location>/_files/...                                                the files of each batch (`inventory`)

The table `offsets` has no folders by due time. `batch` names the run and the micro-batch that wrote
the rows, or the compaction that merged several. The next run removes the batches that a killed run
did not commit, so each record is there exactly once. Times are milliseconds since the epoch by the
broker's clock, unless a column names another clock; `timestamp_ms` is by the producer's in a topic
with `CreateTime`, Kafka's default. Law: columns are only ever added, nullable and at the end, so
that an older archive stays readable by `table_schema`."""  # noqa: E501

from collections.abc import Mapping

from msgspec import Struct
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

FORMAT = 1
"""Format in `archive.json`. A change of meaning is a new format; an unknown format is refused."""

HEADERS = ArrayType(
    StructType(
        [StructField("name", StringType(), False), StructField("value", BinaryType(), True)]
    ),
    False,
)
"""Headers in order, as Spark's Kafka source reads them: invalid UTF-8 in a name becomes U+FFFD,
values are bytes."""

RANGES = ArrayType(StructType([StructField("first", LongType()), StructField("last", LongType())]))
"""Ranges of offsets, both ends included."""

DUE = (
    ("due_date", StringType(), False, "UTC date of the table's partitioning time, `YYYY-MM-DD`"),
    ("due_hour", IntegerType(), False, "UTC hour of that time, 0 to 23"),
)

Column = tuple[str, DataType, bool, str]
"""Name, type, whether it may be null, meaning with unit."""


class Table(Struct, frozen=True, kw_only=True):
    """One folder of the archive."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    partitioned_by: str | None
    """The column whose date and hour are folders; None: the table has no such folders."""


RAW: tuple[Column, ...] = (
    ("topic", StringType(), False, "topic the record was read from"),
    ("partition", IntegerType(), False, "partition the record was read from"),
    ("offset", LongType(), False, "offset in that partition"),
    ("timestamp_ms", LongType(), False, "timestamp of the record"),
    ("key", BinaryType(), True, "key of the record, byte for byte"),
    ("value", BinaryType(), True, "value of the record, byte for byte"),
    ("headers", HEADERS, True, "headers of the record in order; null if it has none"),
)

RECEIPT: tuple[Column, ...] = (
    ("id", BinaryType(), True, "`chronos-id`"),
    (
        "due_at_ms",
        LongType(),
        True,
        "`chronos-due-at`: the requested due time, or that of the occurrence",
    ),
    ("source_topic", StringType(), True, "topic in `chronos-source`"),
    ("shard", IntegerType(), True, "partition in `chronos-source`"),
    ("source_offset", LongType(), True, "offset in `chronos-source`"),
    ("occurrence", IntegerType(), False, "`chronos-occurrence`, 1 if absent"),
    ("attempt", IntegerType(), False, "`chronos-attempt`, 1 if absent"),
)

WHY: tuple[Column, ...] = (
    ("reason", StringType(), True, "`chronos-reason`"),
    ("detail", StringType(), True, "`chronos-detail`, a text for people"),
)

MESSAGES = Table(
    name="messages",
    meaning="Every record of the delay topic, with the command it carries.",
    partitioned_by="due_ms",
    columns=(
        ("shard", IntegerType(), False, "partition of the delay topic"),
        ("offset", LongType(), False, "offset in it"),
        ("timestamp_ms", LongType(), False, "broker's timestamp of the record"),
        ("key", BinaryType(), True, "the record's key, byte for byte"),
        ("value", BinaryType(), True, "the payload, byte for byte"),
        ("headers", HEADERS, True, "all headers in order, control headers included"),
        (
            "verb",
            StringType(),
            False,
            (
                "`schedule`, `replace`, `reschedule`, `cancel`, `fire-now`, `probe`, or `refused` "
                "if the record is not valid"
            ),
        ),
        (
            "id",
            BinaryType(),
            True,
            "the message's id; without a key its generated id `<shard>-<due_ms>-<offset>`",
        ),
        ("target", StringType(), True, "target topic"),
        ("target_key", BinaryType(), True, "key of the delivered record"),
        (
            "requested_due_ms",
            LongType(),
            True,
            (
                "requested due time; a delay counts from `first_ms`, or from `timestamp_ms` where "
                "that is null"
            ),
        ),
        ("due_ms", LongType(), True, "due time, which lateness counts from"),
        ("expire_at_ms", LongType(), True, "time after which the message is not delivered"),
        (
            "on_conflict",
            StringType(),
            True,
            "`reject`, `replace`, `ignore` or `upsert`, for a message with an id of its own",
        ),
        ("reason", StringType(), True, "why the record is `refused`"),
        (
            "first_ms",
            LongType(),
            True,
            (
                "timestamp that a forwarded record had in the partition it came to first; null: "
                "`timestamp_ms`"
            ),
        ),
    ),
)

DELIVERIES = Table(
    name="deliveries",
    meaning=(
        "Every record of an archived target topic that carries Chronos's receipt; with "
        "`--all-records` every record."
    ),
    partitioned_by="due_at_ms",
    columns=(*RAW, *RECEIPT),
)

REJECTED = Table(
    name="rejected",
    meaning="Every record of the rejected topic.",
    partitioned_by="timestamp_ms",
    columns=(*RAW, *RECEIPT, *WHY),
)

DEAD_LETTERS = Table(
    name="dead_letters",
    meaning="Every record of the dead-letter topic.",
    partitioned_by="timestamp_ms",
    columns=(*RAW, *RECEIPT, *WHY),
)

COUNTS = ("delivered", "again", "retried", "deferred", "skipped", "expired", "dead", "parked")
"""Columns of `progress` for `core.shard.progress.Progress.counts`, in the order of
`core.shard.progress.Outcome`."""

PROGRESS = Table(
    name="progress",
    meaning="Every progress record: what one step of a master committed.",
    partitioned_by="timestamp_ms",
    columns=(
        ("shard", IntegerType(), False, "partition of the progress topic"),
        ("offset", LongType(), False, "offset in it"),
        ("timestamp_ms", LongType(), False, "broker's timestamp of the record"),
        ("role_epoch", LongType(), False, "epoch of the role of master"),
        ("log_epoch", LongType(), False, "epoch of the log"),
        ("node", StringType(), False, "name of the master's node"),
        ("instance", StringType(), False, "id of its data directory"),
        ("cursor_due_ms", LongType(), False, "due time of the cursor after the step"),
        (
            "cursor_offset",
            StringType(),
            False,
            "source offset of the cursor, a decimal up to 2^64 - 1",
        ),
        (
            "pull_offset",
            LongType(),
            False,
            "offset in the delay partition up to which all records are executed",
        ),
        *(
            (name, LongType(), False, f"messages of the step with outcome {name}")
            for name in COUNTS
        ),
        ("refused", LongType(), False, "delay records refused in the step"),
        ("value", BinaryType(), False, "value of the progress record, byte for byte"),
        (
            "unreadable",
            RANGES,
            True,
            (
                "ranges of offsets of the delay partition that the step stepped over, because "
                "their batches cannot be read"
            ),
        ),
    ),
)

DECISIONS = Table(
    name="decisions",
    meaning=(
        "Every refusal, every outcome other than delivery, every cursor of a lane, and what left "
        "queues of held records, from the progress records."
    ),
    partitioned_by="decided_ms",
    columns=(
        ("shard", IntegerType(), False, "partition of the progress topic"),
        ("progress_offset", LongType(), False, "offset of the progress record"),
        ("decided_ms", LongType(), False, "broker's timestamp of the progress record"),
        (
            "position_due_ms",
            LongType(),
            True,
            "due time of the position the message was selected at; null for `refused`",
        ),
        ("source_offset", LongType(), False, "offset in the delay partition"),
        (
            "outcome",
            StringType(),
            False,
            "`refused`, `again`, `retry`, `deferred`, `skipped`, `expired`, `dead-letter` or "
            "`parked`; `planned-again`: newer zone data moved a pending occurrence, and its "
            "`occurrence` is not recorded; `left-lane`: the cursor of a lane, up to which its "
            "messages left it; `written-on`: the offset up to which the records held for "
            "`destination` were forwarded or rejected, but for those that the same step refuses as "
            "`too-large`",
        ),
        ("reason", StringType(), True, "reason, as in `chronos-reason`"),
        ("next_due_ms", LongType(), True, "next due time of a message that stays pending"),
        ("occurrence", IntegerType(), False, "occurrence of a series, from 1"),
        ("attempt", IntegerType(), False, "attempt at a delivery, from 1"),
        (
            "lane",
            IntegerType(),
            True,
            "partition of the target whose lane it is, of `parked` and `left-lane`; -1: the topic "
            "as a whole; -2: a topic that could not be created; -3: a topic with a rate limit",
        ),
        ("target", StringType(), True, "topic of the lane, of `left-lane`"),
        (
            "destination",
            IntegerType(),
            True,
            "what a `refused` record is held for, and what a `written-on` queue was written to: a"
            " partition of the delay topic, or -1, the rejected topic; null: not held",
        ),
    ),
)

OFFSETS = Table(
    name="offsets",
    meaning=(
        "The offsets of each partition that each batch archived, and the log's ends at that time."
    ),
    partitioned_by=None,
    columns=(
        ("table", StringType(), False, "the table the batch was written to"),
        ("topic", StringType(), False, "topic that was read"),
        ("partition", IntegerType(), False, "partition that was read"),
        ("topic_id", StringType(), True, "the topic's id; a topic created again has another one"),
        ("from_offset", LongType(), False, "first offset of the batch"),
        ("until_offset", LongType(), False, "offset after the last one of the batch"),
        ("log_start", LongType(), False, "the log's first offset when the run began"),
        ("stable_end", LongType(), False, "the last stable offset when the run began"),
        ("high_watermark", LongType(), False, "the high watermark when the run began"),
        (
            "read_ms",
            LongType(),
            False,
            (
                "when the run read these ends, by the clock of its machine, but not before "
                "`broker_ms`, and after the run before it"
            ),
        ),
        (
            "gap",
            BooleanType(),
            False,
            (
                "true if records before `from_offset`, or of an earlier topic of this name, were "
                "deleted before they were archived, or those of the row cannot be read"
            ),
        ),
        (
            "gap_reason",
            StringType(),
            True,
            (
                "`trimmed`; `recreated`: the topic was deleted and created again; `deleted`: it "
                "does not exist; `truncated`: the log lost archived records and may have others "
                "at their offsets (a lost disk, an unclean leader election); `unreadable`: the "
                "service rejected the records at the offsets of the row, and their batch cannot "
                "be read, or has a timestamp that Spark cannot hold"
            ),
        ),
        (
            "broker_ms",
            LongType(),
            True,
            (
                "newest timestamp in the progress topic when the run read these ends, by the "
                "brokers' clocks; null: not known"
            ),
        ),
        (
            "compacted",
            BooleanType(),
            True,
            (
                "true if `compact` was in the topic's `cleanup.policy` when the run read it; "
                "null: not known"
            ),
        ),
        (
            "oldest_ms",
            LongType(),
            True,
            (
                "timestamp of the partition's first record when a run looked at a target for the "
                "first time, or `broker_ms` if it had none or a newer one: what was delivered "
                "before may have been in an earlier topic of this name; null: in other reads, or "
                "not known"
            ),
        ),
        (
            "loss_from_ms",
            LongType(),
            True,
            (
                "with `loss_until_ms`: a leader of the target's partition was elected, so that "
                "records delivered between these times may have been lost before they were "
                "archived; null: no election"
            ),
        ),
        ("loss_until_ms", LongType(), True, "see `loss_from_ms`"),
    ),
)

TABLES: Mapping[str, Table] = {
    table.name: table
    for table in (MESSAGES, DELIVERIES, DECISIONS, PROGRESS, REJECTED, DEAD_LETTERS, OFFSETS)
}


UNIQUE = (
    "offset",
    "timestamp_ms",
    "value",
    "headers.list.element.value",
    "id",
    "requested_due_ms",
    "due_ms",
    "due_at_ms",
    "source_offset",
)
"""Columns whose values hardly repeat: Parquet would build a dictionary and discard it, a quarter of
the time of a write."""

WRITING = {f"parquet.enable.dictionary#{name}": "false" for name in UNIQUE}
"""Options for writing any of the tables."""


def columns_of(table: Table, *, with_hours: bool = False, with_batch: bool = False) -> StructType:
    """The table's columns; with `due_date` and `due_hour`, and with `batch`, if asked for."""
    columns: list[Column] = list(table.columns)
    if with_hours and table.partitioned_by is not None:
        columns += DUE
    fields = [StructField(name, kind, nullable) for name, kind, nullable, _ in columns]
    if with_batch:
        fields.append(StructField("batch", StringType(), False))
    return StructType(fields)


def table_schema(table: Table) -> StructType:
    """The schema for reading the table: every column nullable, so that a column of a later version
    reads as null."""
    fields = columns_of(table, with_hours=True, with_batch=True).fields
    return StructType([StructField(field.name, field.dataType, True) for field in fields])


_HEAD = f"""\
# The archive's tables

<!-- Generated by `python -m chronos.spark`; change `chronos/spark/schema.py` instead. -->

The tables that `chronos archive` writes ([how](../how-to/archive.md)). Each table is a folder of Parquet files, format {FORMAT}:

```
<location>/archive.json                                              cluster, topics, format, id of the Kafka cluster
<location>/<table>/batch=<batch>/due_date=<date>/due_hour=<hour>/    Parquet files
<location>/_runs/                                                    Spark's checkpoints; readers skip this folder
<location>/_files/<table>/batch=<batch>.json                         the files of each batch, with bytes and rows
```

Times are milliseconds since the epoch by the broker's clock, unless a column names another clock; `timestamp_ms` is the producer's in a topic with
`CreateTime`. `batch` names the run and the micro-batch that wrote the rows; the next run removes the batches that a killed run did not commit, so each record
is there exactly once. `due_date` (`YYYY-MM-DD`) and `due_hour` (0 to 23) are in UTC: of the column
that the table is partitioned by, or of the record's timestamp if that column is null or out of range (a foreign header may hold anything).

Columns are only ever added, as nullable columns: in an older archive a later column reads as null. A change of meaning is a new `format`; a version that does
not know the format refuses the archive.

`headers` are in order and may repeat; their values are bytes. Spark reads invalid UTF-8 in a header's name as U+FFFD.
"""  # noqa: E501


def reference() -> str:
    """The page in Markdown."""
    rows = [
        f"| [`{table.name}`](#{table.name}) | {_hours(table)} | {table.meaning} |\n"
        for table in TABLES.values()
    ]
    listed = "\n| table | by the hour of | rows |\n|---|---|---|\n" + "".join(rows)
    return _HEAD + listed + "".join(map(_section, TABLES.values()))


def _hours(table: Table) -> str:
    return "" if table.partitioned_by is None else f"`{table.partitioned_by}`"


def _section(table: Table) -> str:
    rows = [
        f"| `{name}` | `{kind.simpleString()}` | {'yes' if nullable else ''} | {meaning} |\n"
        for name, kind, nullable, meaning in table.columns
    ]
    head = (
        f"\n## {table.name}\n\n{table.meaning}\n\n| column | type | null | meaning "
        "|\n|---|---|---|---|\n"
    )
    return head + "".join(rows)
