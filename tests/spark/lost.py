"""An archive of lost messages: all settled long ago, and none in its target. Written without a broker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from chronos.core.keys import OFFSET_MAX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from chronos.spark.storage import ArchiveStorage

START_MS = 1_790_000_000_000
"""Due time of the first message, epoch ms."""

GAP_MS = 7
"""Ms from one due time to the next."""

HOUR_MS = 3_600_000


def expected(number: int, target: str, shards: int) -> tuple[bytes, bytes, bytes | None]:
    """Source without its topic, payload and target key of a message."""
    source = b"%d/%d/1" % (number % shards, number // shards)
    return source, b"payload %d of %b" % (number, target.encode()), b"key-%d" % number if number % 3 else None


def write_lost(
    spark: SparkSession, storage: ArchiveStorage, *, cluster: str, delay: str, target: str, messages: int, shards: int
) -> None:
    """Write the archive. `messages` is a multiple of `shards`; every fifth message has an id of its own."""
    from pyspark.sql import functions as f

    from chronos.spark import schema

    topics = {name: f"{cluster}.{name}" for name in ("progress", "rejected", "dead_letter")} | {"delay": delay}
    storage.write_json("archive.json", {"format": schema.FORMAT, "cluster": cluster, "topics": topics})
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
        shard.alias("shard"), offset.alias("offset"), (due_ms - HOUR_MS).alias("timestamp_ms"),
        f.when(n % 5 == 0, own).alias("key"),
        f.concat(f.lit("payload "), number, f.lit(f" of {target}")).cast("binary").alias("value"),
        headers.alias("headers"), f.lit("schedule").alias("verb"), f.when(n % 5 == 0, own).otherwise(address).alias("id"),
        f.lit(target).alias("target"), target_key.alias("target_key"), due_ms.alias("requested_due_ms"),
        due_ms.alias("due_ms"), none.alias("expire_at_ms"), none.alias("on_conflict"), none.alias("reason"),
        none.alias("first_ms"),
    )  # fmt: skip
    _write(rows, schema.MESSAGES, storage)
    end_ms = START_MS + messages * GAP_MS + 24 * HOUR_MS
    each = messages // shards
    steps = [
        (
            number,
            at,
            end_ms + (at - 3) * HOUR_MS,
            1,
            1,
            "n",
            "i",
            cursor_ms,
            str(OFFSET_MAX),
            pulled,
            *[0] * (len(schema.COUNTS) + 1),
            b"",
            None,
        )
        for number in range(shards)
        for at, (cursor_ms, pulled) in enumerate([(0, 0), (end_ms - 3 * HOUR_MS, each), (end_ms - HOUR_MS, each)])
    ]
    _write(spark.createDataFrame(steps, schema.columns_of(schema.PROGRESS)), schema.PROGRESS, storage)
    read = [("messages", delay, number, each) for number in range(shards)]
    read += [("progress", f"{cluster}.progress", number, 3) for number in range(shards)]
    read += [("deliveries", target, number, 0) for number in range(shards)]
    offsets = [
        (table, topic, number, "id", 0, end, 0, end, end, end_ms, False, None) for table, topic, number, end in read
    ]
    _write(spark.createDataFrame(offsets, schema.columns_of(schema.OFFSETS)), schema.OFFSETS, storage)


def _write(rows: DataFrame, table: Any, storage: ArchiveStorage) -> None:
    from chronos.spark.rows import in_hours
    from chronos.spark.schema import columns_of

    rows = rows.select(*(rows[field.name].cast(field.dataType) for field in columns_of(table).fields))
    where = storage.path(table.name, "batch=00000001-000000")
    if table.partitioned_by is None:
        rows.coalesce(1).write.parquet(where)
    else:
        in_hours(rows, table).write.partitionBy("due_date", "due_hour").parquet(where)


def last_json(output: str) -> dict[str, Any]:
    """The JSON on the last line of a command's output."""
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found
