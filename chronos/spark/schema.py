"""The archive's tables: their columns with types and units, and their layout.

    <location>/archive.json      the cluster, topics, format and id of the archive
    <location>/<table>/          a Delta table (`delta`)
    <location>/sent/...          the ledger of backfills (`ledger`)

Times are milliseconds since the epoch by the broker's clock, unless a column names another clock;
`timestamp_ms` is by the producer's in a topic with `CreateTime`, Kafka's default.

A table as it is stored has further columns, which `codec.stored` derives: a TIMESTAMP for each time
in ms, the first value of each header, and the date or month that the table is partitioned by. Law:
columns are only ever added, nullable and at the end, so that an older archive stays readable by
`table_schema`."""

from collections.abc import Mapping

from msgspec import Struct
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
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

DATE, MONTH = "date", "month"
"""Columns that tables are partitioned by: the UTC date of the table's time, and the first day of
its UTC month."""

FIRST_HEADERS = "first_headers"
"""Column beside `headers` with the first value of each name."""

VERSIONS = MapType(StringType(), LongType())
"""The version of each table of the archive, by its name."""

Column = tuple[str, DataType, bool, str]
"""Name, type, whether it may be null, meaning with unit."""


class Table(Struct, frozen=True, kw_only=True):
    """One table of the archive."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    time: str
    """The column with the table's time: its rows are sorted by it in each file."""
    partition: str | None
    """`DATE` or `MONTH` of that time, which the table is partitioned by; None: it is not."""


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
    time="due_ms",
    partition=MONTH,
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
                "`schedule`, `replace`, `reschedule`, `cancel`, `fire-now`, `settled`, "
                "`probe`, or `refused` if the record is not valid"
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
    time="due_at_ms",
    partition=DATE,
    columns=(*RAW, *RECEIPT),
)

REJECTED = Table(
    name="rejected",
    meaning="Every record of the rejected topic.",
    time="timestamp_ms",
    partition=DATE,
    columns=(*RAW, *RECEIPT, *WHY),
)

DEAD_LETTERS = Table(
    name="dead_letters",
    meaning="Every record of the dead-letter topic.",
    time="timestamp_ms",
    partition=DATE,
    columns=(*RAW, *RECEIPT, *WHY),
)

COUNTS = ("delivered", "again", "retried", "deferred", "skipped", "expired", "dead", "parked")
"""Columns of `progress` for `core.shard.progress.Progress.counts`, in the order of
`core.shard.progress.Outcome`."""

PROGRESS = Table(
    name="progress",
    meaning="Every progress record: what one step of a master committed.",
    time="timestamp_ms",
    partition=DATE,
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
    time="decided_ms",
    partition=DATE,
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

ERASED = Table(
    name="erased",
    meaning=(
        "Every promised delivery that `chronos archive expire` or `forget` erased: what is left of "
        "it."
    ),
    time="window_ms",
    partition=DATE,
    columns=(
        ("shard", IntegerType(), False, "partition of the delay topic"),
        ("source_offset", LongType(), False, "offset in it"),
        ("occurrence", IntegerType(), False, "occurrence of a series, from 1"),
        ("outcome", StringType(), False, "outcome that an audit found before"),
        ("accepted_ms", LongType(), True, "when the message was accepted"),
        ("requested_due_ms", LongType(), True, "requested due time"),
        ("due_ms", LongType(), True, "due time, which lateness counts from"),
        ("window_ms", LongType(), False, "due time by which the window of an audit selects it"),
        ("delivered_ms", LongType(), True, "timestamp of the first record in its target"),
        ("erased_ms", LongType(), False, "when it was erased, by the clock of that machine"),
    ),
)

OFFSETS = Table(
    name="offsets",
    meaning=(
        "The offsets of each partition that each batch archived, and the log's ends at that time."
    ),
    time="read_ms",
    partition=None,
    columns=(
        (
            "table",
            StringType(),
            False,
            "the table the batch was written to; `compact`, `expire`, `forget`: that command; "
            "`vacuum`: the files of what was forgotten are removed",
        ),
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
        (
            "leader_epoch",
            IntegerType(),
            True,
            "a leader epoch in which the log had all records before `until_offset`; null: not "
            "known",
        ),
        (
            "targets",
            ArrayType(StringType(), False),
            True,
            "target topics that the messages of the batch name; null: those of another row",
        ),
        (
            "sequence",
            LongType(),
            False,
            "number of the commit: the rows that were written together have the same one, later "
            "rows a greater one",
        ),
        (
            "versions",
            VERSIONS,
            False,
            "version of each table with all that was archived up to this commit, and nothing else",
        ),
    ),
)

TABLES: Mapping[str, Table] = {
    table.name: table
    for table in (
        MESSAGES,
        DELIVERIES,
        DECISIONS,
        PROGRESS,
        REJECTED,
        DEAD_LETTERS,
        ERASED,
        OFFSETS,
    )
}


def columns_of(table: Table) -> StructType:
    """The table's columns, without those that are derived from them."""
    return StructType(
        [StructField(name, kind, nullable) for name, kind, nullable, _ in table.columns]
    )


def times(table: Table) -> list[tuple[str, str]]:
    """For each time in ms of the table its column and that of the TIMESTAMP: `due_ms` and `due_at`,
    `due_at_ms` and `due_at`, `timestamp_ms` and `timestamp`."""
    return [(name, _time(name)) for name, *_ in table.columns if name.endswith("_ms")]


def _time(name: str) -> str:
    name = name.removesuffix("_ms")
    return name if name == "timestamp" or name.endswith("_at") else f"{name}_at"


def derived(table: Table) -> StructType:
    """The columns that are derived from the table's own."""
    fields = [StructField(name, TimestampType()) for _, name in times(table)]
    if any(name == "headers" for name, *_ in table.columns):
        fields.append(StructField(FIRST_HEADERS, MapType(StringType(), BinaryType())))
    if table.partition is not None:
        fields.append(StructField(table.partition, DateType()))
    return StructType(fields)


def table_schema(table: Table) -> StructType:
    """The table as it is stored: every column nullable, so that a column of a later version reads
    as null."""
    fields = [*columns_of(table).fields, *derived(table).fields]
    return StructType([StructField(field.name, _nullable(field.dataType)) for field in fields])


def _nullable(kind: DataType) -> DataType:
    """The type with values that may be null in it, as Delta stores arrays."""
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType))
    if isinstance(kind, StructType):
        return StructType([StructField(each.name, _nullable(each.dataType)) for each in kind])
    return kind


COUNTED = (
    "shard",
    "partition",
    "offset",
    "progress_offset",
    "source_offset",
    "pull_offset",
    "sequence",
)
"""Columns besides times with a minimum and a maximum for each file."""


def counted(table: Table) -> list[str]:
    """The columns with a minimum and a maximum for each file, by which readers leave files out."""
    own = [name for name, *_ in table.columns if name.endswith("_ms") or name in COUNTED]
    return [*own, *(name for _, name in times(table))]


_HEAD = f"""\
# The archive's tables

<!-- Generated by `python -m chronos.spark`; change `chronos/spark/schema.py` instead. -->

The tables that `chronos archive` writes ([how](../how-to/archive.md)). Each table is a [Delta](https://delta.io) table of reader version 1 and writer version 2,
without table features; the archive has format {FORMAT}:

```
<location>/archive.json      cluster, topics, format, id of the archive, id of the Kafka cluster
<location>/<table>/          the table: Parquet files, and `_delta_log/`
<location>/_checkpoints/     Spark's checkpoints of the run that writes now
<location>/sent/             the ledger of backfills; its rows are the table `sent/rows`
```

Times are milliseconds since the epoch by the broker's clock, unless a column names another clock; `timestamp_ms` is the producer's in a topic with
`CreateTime`. Beside each time in milliseconds is the same as a `timestamp` in UTC, which is null before 1970 and after the year 9999: `due_at` of `due_ms`,
`due_at` of `due_at_ms`, `timestamp` of `timestamp_ms`. `date` is the UTC date of the table's time, `month` the first day of its UTC month: of the record's timestamp if that time is null or
out of range (a foreign header may hold anything), and 1970-01-01 if that is out of range too.

`headers` are in order and may repeat; their values are bytes. Spark reads invalid UTF-8 in a header's name as U+FFFD. `first_headers` is a map of the first
value of each name.

What is archived is what the newest row of `offsets`, by `sequence`, names in `versions`: `chronos audit`, `find` and `backfill` read these versions. The
newest version of a table may have rows beyond that, of a run that writes now or was killed; the next run removes the latter. Each record is there exactly once in both.

Columns are only ever added, as nullable columns: in an older archive a later column reads as null. A change of meaning is a new `format`; a version that does
not know the format refuses the archive.
"""  # noqa: E501


def reference() -> str:
    """The page in Markdown."""
    rows = [
        f"| [`{table.name}`](#{table.name}) | {_partition(table)} | {table.meaning} |\n"
        for table in TABLES.values()
    ]
    listed = "\n| table | partitioned by | rows |\n|---|---|---|\n" + "".join(rows)
    return _HEAD + listed + "".join(map(_section, TABLES.values()))


def _partition(table: Table) -> str:
    return "" if table.partition is None else f"`{table.partition}` of `{table.time}`"


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
