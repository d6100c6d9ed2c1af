"""The archive's tables: their columns, types and units, and where they lie.

    <location>/archive.json                                              what it is an archive of
    <location>/<table>/batch=<batch>/due_date=<date>/due_hour=<hour>/    Parquet files
    <location>/_runs/...                                                 Spark's checkpoints: not data, readers skip it

`batch` is the run and the micro-batch that wrote the rows: a batch that is written again is written over, so each
record is there exactly once. All times are milliseconds since the epoch, by the broker's clock, unless said otherwise.
Columns are only ever added, nullable and at the end: an older archive stays readable by `table_schema`.
"""

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
"""Of `archive.json`. A change of meaning is a new format; one that is not known is refused."""

HEADERS = ArrayType(
    StructType([StructField("name", StringType(), False), StructField("value", BinaryType(), True)]), False
)
"""Headers in order, as Spark's Kafka source reads them: a name that is not UTF-8 holds U+FFFD, values are bytes."""

DUE = (
    ("due_date", StringType(), False, "UTC date of the table's partitioning time, `YYYY-MM-DD`"),
    ("due_hour", IntegerType(), False, "UTC hour of it, 0 to 23"),
)

Column = tuple[str, DataType, bool, str]
"""Name, type, whether it may be null, meaning with unit."""


class Table(Struct, frozen=True, kw_only=True):
    """One folder of the archive."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    partitioned_by: str | None
    """The column whose hour the files lie under; None: no hours."""


RAW: tuple[Column, ...] = (
    ("topic", StringType(), False, "topic the record was read from"),
    ("partition", IntegerType(), False, "partition it was read from"),
    ("offset", LongType(), False, "its offset there"),
    ("timestamp_ms", LongType(), False, "its timestamp"),
    ("key", BinaryType(), True, "its key, byte for byte"),
    ("value", BinaryType(), True, "its value, byte for byte"),
    ("headers", HEADERS, True, "its headers in order; null when it has none"),
)

RECEIPT: tuple[Column, ...] = (
    ("id", BinaryType(), True, "`chronos-id`"),
    ("due_at_ms", LongType(), True, "`chronos-due-at`: as requested, or of the occurrence"),
    ("source_topic", StringType(), True, "topic of `chronos-source`"),
    ("shard", IntegerType(), True, "partition of `chronos-source`"),
    ("source_offset", LongType(), True, "offset of `chronos-source`"),
    ("occurrence", IntegerType(), False, "`chronos-occurrence`, 1 when absent"),
    ("attempt", IntegerType(), False, "`chronos-attempt`, 1 when absent"),
)

WHY: tuple[Column, ...] = (
    ("reason", StringType(), True, "`chronos-reason`"),
    ("detail", StringType(), True, "`chronos-detail`, for people"),
)

MESSAGES = Table(
    name="messages",
    meaning="Every record of the delay topic, and what it asks for.",
    partitioned_by="due_ms",
    columns=(
        ("shard", IntegerType(), False, "partition of the delay topic"),
        ("offset", LongType(), False, "offset in it"),
        ("timestamp_ms", LongType(), False, "when the broker took it"),
        ("key", BinaryType(), True, "the record's key, byte for byte"),
        ("value", BinaryType(), True, "the payload, byte for byte"),
        ("headers", HEADERS, True, "all headers in order, control headers included"),
        ("verb", StringType(), False,
         "`schedule`, `replace`, `reschedule`, `cancel`, `fire-now`, `probe`, or `refused`: it asks for nothing that can be done"),
        ("id", BinaryType(), True, "the message's id; for one without a key its address `<shard>-<due_ms>-<offset>`"),
        ("target", StringType(), True, "target topic"),
        ("target_key", BinaryType(), True, "key of the delivered record"),
        ("requested_due_ms", LongType(), True, "when it was asked to be delivered; a delay counts from `timestamp_ms`"),
        ("due_ms", LongType(), True, "when it is due: what lateness counts from"),
        ("expire_at_ms", LongType(), True, "not delivered after this"),
        ("on_conflict", StringType(), True, "`reject`, `replace` or `ignore`, for a message with an id of its own"),
        ("reason", StringType(), True, "why it is `refused`"),
    ),
)  # fmt: skip

DELIVERIES = Table(
    name="deliveries",
    meaning="Every record of an archived target topic that carries Chronos's receipt; with `--all-records` the others too.",
    partitioned_by="due_at_ms",
    columns=(*RAW, *RECEIPT),
)

REJECTED = Table(
    name="rejected", meaning="Every record of the rejected topic.", partitioned_by="timestamp_ms",
    columns=(*RAW, *RECEIPT, *WHY),
)  # fmt: skip

DEAD_LETTERS = Table(
    name="dead_letters", meaning="Every record of the dead-letter topic.", partitioned_by="timestamp_ms",
    columns=(*RAW, *RECEIPT, *WHY),
)  # fmt: skip

COUNTS = ("delivered", "again", "retried", "deferred", "skipped", "expired", "dead")
"""Columns of `progress` for `core.progress.Progress.counts`, in the order of `core.progress.Outcome`."""

PROGRESS = Table(
    name="progress",
    meaning="Every progress record: what one step of a master committed.",
    partitioned_by="timestamp_ms",
    columns=(
        ("shard", IntegerType(), False, "partition of the progress topic"),
        ("offset", LongType(), False, "offset in it"),
        ("timestamp_ms", LongType(), False, "when the broker took it"),
        ("role_epoch", LongType(), False, "epoch of the role of master"),
        ("log_epoch", LongType(), False, "epoch of the log"),
        ("node", StringType(), False, "name of the master's node"),
        ("instance", StringType(), False, "id of its data directory"),
        ("cursor_due_ms", LongType(), False, "due time of the cursor after the step"),
        ("cursor_offset", StringType(), False, "source offset of the cursor, a decimal up to 2^64 - 1"),
        ("pull_offset", LongType(), False, "offset in the delay partition up to which everything is executed"),
        *((name, LongType(), False, f"messages of the step with this outcome: {name}") for name in COUNTS),
        ("refused", LongType(), False, "delay records refused in the step"),
        ("value", BinaryType(), False, "the record itself"),
    ),
)

DECISIONS = Table(
    name="decisions",
    meaning="Every refusal and every outcome other than plain delivery, out of the progress records.",
    partitioned_by="decided_ms",
    columns=(
        ("shard", IntegerType(), False, "partition of the progress topic"),
        ("progress_offset", LongType(), False, "offset of the progress record"),
        ("decided_ms", LongType(), False, "when the broker took that record"),
        ("position_due_ms", LongType(), True, "due time of the place the message was selected at; null for `refused`"),
        ("source_offset", LongType(), False, "offset in the delay partition"),
        ("outcome", StringType(), False, "`refused`, `again`, `retry`, `deferred`, `skipped`, `expired` or `dead-letter`"),
        ("reason", StringType(), True, "why, as in `chronos-reason`"),
        ("next_due_ms", LongType(), True, "the next due time of a message that was carried on"),
        ("occurrence", IntegerType(), False, "occurrence of a series, from 1"),
        ("attempt", IntegerType(), False, "attempt at a delivery, from 1"),
    ),
)  # fmt: skip

OFFSETS = Table(
    name="offsets",
    meaning="How far each partition was archived by each batch, and what the log held then.",
    partitioned_by=None,
    columns=(
        ("table", StringType(), False, "the table the batch was written to"),
        ("topic", StringType(), False, "topic"),
        ("partition", IntegerType(), False, "partition"),
        ("topic_id", StringType(), True, "the topic's id: another one is another topic of the same name"),
        ("from_offset", LongType(), False, "first offset of the batch"),
        ("until_offset", LongType(), False, "offset behind the batch's last"),
        ("log_start", LongType(), False, "the log's first offset when the run began"),
        ("stable_end", LongType(), False, "the last stable offset when the run began"),
        ("high_watermark", LongType(), False, "the high watermark when the run began"),
        ("read_ms", LongType(), False, "when the run asked for them, by the clock of the machine it ran on"),
        ("gap", BooleanType(), False, "whether records before `from_offset`, or of a topic that was there before, were gone before they were archived"),
        ("gap_reason", StringType(), True, "`trimmed`, or `recreated`: the topic was deleted and made again"),
    ),
)  # fmt: skip

TABLES: Mapping[str, Table] = {
    table.name: table for table in (MESSAGES, DELIVERIES, DECISIONS, PROGRESS, REJECTED, DEAD_LETTERS, OFFSETS)
}


UNIQUE = ("offset", "timestamp_ms", "value", "headers.list.element.value", "id", "requested_due_ms", "due_ms", "due_at_ms",
          "source_offset")  # fmt: skip
"""Columns whose values hardly repeat: a dictionary of them is built and given up, which costs a quarter of a write."""

WRITING = {f"parquet.enable.dictionary#{name}": "false" for name in UNIQUE}
"""Options to write any of the tables with."""


def columns_of(table: Table, *, with_hours: bool = False, with_batch: bool = False) -> StructType:
    """The table's columns; with those of the folders if they are wanted."""
    columns: list[Column] = list(table.columns)
    if with_hours and table.partitioned_by is not None:
        columns += DUE
    fields = [StructField(name, kind, nullable) for name, kind, nullable, _ in columns]
    if with_batch:
        fields.append(StructField("batch", StringType(), False))
    return StructType(fields)


def table_schema(table: Table) -> StructType:
    """The schema to read the table with, also one that an older version wrote: what it did not know reads as null."""
    fields = columns_of(table, with_hours=True, with_batch=True).fields
    return StructType([StructField(field.name, field.dataType, True) for field in fields])
