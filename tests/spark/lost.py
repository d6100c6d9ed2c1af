"""An archive of lost messages: all settled long ago, and none in its target. Written without a
broker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from chronos.core.keys import OFFSET_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession

    from chronos.spark.archive.commits import Commits
    from chronos.spark.delta import Commit
    from chronos.spark.storage import ArchiveStorage

START_MS = 1_790_000_000_000
"""Due time of the first message, epoch ms."""

GAP_MS = 7
"""Ms from one due time to the next."""

HOUR_MS = 3_600_000


def expected(number: int, target: str, shards: int) -> tuple[bytes, bytes, bytes | None]:
    """Source without its topic, payload and target key of a message."""
    source = b"%d/%d/1" % (number % shards, number // shards)
    return (
        source,
        b"payload %d of %b" % (number, target.encode()),
        b"key-%d" % number if number % 3 else None,
    )


def write_lost(
    spark: SparkSession,
    storage: ArchiveStorage,
    *,
    cluster: str,
    delay: str,
    target: str,
    messages: int,
    shards: int,
    dead: int = 0,
) -> None:
    """Write the archive. `messages` is a multiple of `shards`; every fifth message has an id of its
    own. The first `dead` messages were dead-lettered, and the dead letter of the first one was
    discarded."""
    from pyspark.sql import functions as f

    from chronos.spark import schema

    topics = {name: f"{cluster}.{name}" for name in ("progress", "rejected", "dead_letter")} | {
        "delay": delay
    }
    storage.write_json(
        "archive.json",
        {"format": schema.FORMAT, "id": "lost", "cluster": cluster, "topics": topics},
    )
    n, none = f.col("id"), f.lit(None)
    number, due_ms = n.cast("string"), n * GAP_MS + START_MS
    shard, offset = (n % shards).cast("int"), f.floor(n / shards)
    own = f.concat(f.lit("order-"), number).cast("binary")
    address = f.concat_ws("-", shard, due_ms, offset).cast("binary")
    target_key = f.when(n % 3 != 0, f.concat(f.lit("key-"), number).cast("binary"))

    def pair(name: str, value: Any) -> Any:
        return f.struct(f.lit(name).alias("name"), value.cast("binary").alias("value"))

    headers = f.array(
        pair("chronos-deliver-at", due_ms.cast("string")),
        pair("trace", number),
        pair("chronos-target-topic", f.lit(target)),
        pair("trace", none),
    )
    rows = spark.range(0, messages, 1, 2).select(
        shard.alias("shard"),
        offset.alias("offset"),
        (due_ms - HOUR_MS).alias("timestamp_ms"),
        f.when(n % 5 == 0, own).alias("key"),
        f.concat(f.lit("payload "), number, f.lit(f" of {target}")).cast("binary").alias("value"),
        headers.alias("headers"),
        f.lit("schedule").alias("verb"),
        f.when(n % 5 == 0, own).otherwise(address).alias("id"),
        f.lit(target).alias("target"),
        target_key.alias("target_key"),
        due_ms.alias("requested_due_ms"),
        due_ms.alias("due_ms"),
        none.alias("expire_at_ms"),
        none.alias("on_conflict"),
        none.alias("reason"),
        none.alias("first_ms"),
    )
    commits = begin_commits(spark, storage)
    written = {schema.MESSAGES.name: write_table(rows, schema.MESSAGES, commits)}
    end_ms = START_MS + messages * GAP_MS + 24 * HOUR_MS
    each = messages // shards
    steps = [
        {
            "shard": number,
            "offset": at,
            "timestamp_ms": end_ms + (at - 3) * HOUR_MS,
            "role_epoch": 1,
            "log_epoch": 1,
            "node": "n",
            "instance": "i",
            "cursor_due_ms": cursor_ms,
            "cursor_offset": str(OFFSET_MAX),
            "pull_offset": pulled,
            **dict.fromkeys(schema.COUNTS, 0),
            "refused": 0,
            "value": b"",
        }
        for number in range(shards)
        for at, (cursor_ms, pulled) in enumerate(
            [(0, 0), (end_ms - 3 * HOUR_MS, each), (end_ms - HOUR_MS, each)]
        )
    ]
    progress = spark.createDataFrame(steps, schema.columns_of(schema.PROGRESS))
    written[schema.PROGRESS.name] = write_table(progress, schema.PROGRESS, commits)
    if dead:
        written |= write_dead(spark, commits, delay, shards, dead, end_ms)
    read = [("messages", delay, number, each) for number in range(shards)]
    read += [("progress", f"{cluster}.progress", number, 3) for number in range(shards)]
    read += [("deliveries", target, number, 0) for number in range(shards)]
    write_reads(commits, written, read, end_ms)


def write_dead(
    spark: SparkSession, commits: Commits, delay: str, shards: int, dead: int, end_ms: int
) -> dict[str, Commit]:
    """Write the decisions and the letters of the first messages."""
    from pyspark.sql.types import StructType

    from chronos.spark import schema

    decided_ms = end_ms - 3 * HOUR_MS
    tokens = [(number % shards, number // shards, 1) for number in range(dead)]
    decisions = spark.createDataFrame(
        [
            (*token, 1, decided_ms, START_MS + at * GAP_MS, "dead-letter", "target-missing", 1)
            for at, token in enumerate(tokens)
        ],
        "shard int, source_offset long, occurrence int, progress_offset long, decided_ms long,"
        " position_due_ms long, outcome string, reason string, attempt int",
    )
    marker = [("chronos-resolution", b"discarded"), ("chronos-resolved", b"0")]
    rows: list[tuple[Any, ...]] = [
        ("dead", 0, at, decided_ms, None, delay, *token, 1) for at, token in enumerate(tokens)
    ]
    rows.append(("dead", 0, dead, decided_ms, marker, None, None, None, 1, 1))
    names = "topic partition offset timestamp_ms headers source_topic shard source_offset"
    names += " occurrence attempt"
    columns = schema.columns_of(schema.DEAD_LETTERS)
    letters = spark.createDataFrame(rows, StructType([columns[name] for name in names.split()]))
    tables = ((decisions, schema.DECISIONS), (letters, schema.DEAD_LETTERS))
    return {table.name: write_table(rows, table, commits) for rows, table in tables}


def begin_commits(spark: SparkSession, storage: ArchiveStorage) -> Commits:
    """The writer of a new archive."""
    from chronos.spark.archive.commits import Commits, create_tables

    create_tables(storage)
    return Commits(spark, storage, "lost")


def write_reads(
    commits: Commits,
    written: dict[str, Commit],
    ends: Iterable[tuple[str, str, int, int]],
    read_ms: int,
) -> None:
    """Commit what was written, with rows of table `offsets`: each `(table, topic, partition, end)`
    was read once, to its end."""
    from chronos.spark import schema

    nothing = dict.fromkeys(name for name, *_ in schema.OFFSETS.columns)
    rows = [
        {
            **nothing,
            "table": table,
            "topic": topic,
            "partition": number,
            "topic_id": "id",
            "from_offset": 0,
            "until_offset": end,
            "log_start": 0,
            "stable_end": end,
            "high_watermark": end,
            "read_ms": read_ms,
            "gap": False,
        }
        for table, topic, number, end in ends
    ]
    commits.commit(rows, written, run="lost", stream="offsets", number=0)


def write_table(rows: DataFrame, table: Any, commits: Commits) -> Commit:
    """Write a table as `chronos archive` does; columns that may be null and are not given are
    null."""
    from pyspark.sql import functions as f

    from chronos.spark.schema import columns_of

    given = set(rows.columns)
    rows = rows.select(
        *(
            (f.lit(None) if field.nullable and field.name not in given else rows[field.name])
            .cast(field.dataType)
            .alias(field.name)
            for field in columns_of(table).fields
        )
    )
    return commits.write(table, rows, run="lost", stream="lost", number=0)


def last_json(output: str) -> dict[str, Any]:
    """The JSON on the last line of a command's output."""
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found
