"""Kafka records to rows of the archive's tables: pure transformations, DataFrame to DataFrame; nothing is read or written."""

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from chronos.core.message import ATTEMPT, DETAIL, DUE_AT, ID, OCCURRENCE, REASON, SOURCE
from chronos.core.timefmt import MS_MAX
from chronos.spark import schema
from chronos.spark.codec import (
    header,
    header_number,
    header_text,
    parse_messages,
    source_parts,
    unpack_decisions,
    unpack_steps,
)
from chronos.spark.schema import Table


def raw(records: DataFrame) -> DataFrame:
    """Spark's Kafka columns -> those of every table: times in ms, headers with `name` and `value`."""
    return records.select(
        "topic",
        "partition",
        "offset",
        f.unix_millis("timestamp").alias("timestamp_ms"),
        "key",
        "value",
        f.col("headers").cast("array<struct<name:string,value:binary>>").alias("headers"),
    )


def messages_of(shards: int) -> Callable[[DataFrame], DataFrame]:
    """Records of the delay topic -> `messages`. Headers keep Spark's structure: the table's schema names their fields."""
    columns = schema.columns_of(schema.MESSAGES)

    def made(records: DataFrame) -> DataFrame:
        columns_read = records.select(f.col("partition").alias("shard"), "offset", f.unix_millis("timestamp").alias("timestamp_ms"),
                               "key", "value", "headers")  # fmt: skip
        return columns_read.mapInArrow(parse_messages(shards), columns)

    return made


def steps_of(records: DataFrame) -> DataFrame:
    """Progress records -> `progress`."""
    return _progress(records).mapInArrow(unpack_steps, schema.columns_of(schema.PROGRESS))


def decisions_of(records: DataFrame) -> DataFrame:
    """Progress records -> `decisions`."""
    return _progress(records).mapInArrow(unpack_decisions, schema.columns_of(schema.DECISIONS))


def _progress(records: DataFrame) -> DataFrame:
    return raw(records).select(f.col("partition").alias("shard"), "offset", "timestamp_ms", "value")


def with_receipt(records: DataFrame) -> DataFrame:
    """Records of a target, rejected or dead-letter topic -> the same with the columns of their receipt."""
    received = raw(records).select("*", header(ID).alias("id"), header_number(DUE_AT).alias("due_at_ms"),
                                   header_text(SOURCE).alias("source"))  # fmt: skip
    source_topic, shard, source_offset = source_parts("source")
    return received.select(
        *received.columns[:-1],
        source_topic.alias("source_topic"),
        shard.alias("shard"),
        source_offset.alias("source_offset"),
        f.coalesce(header_text(OCCURRENCE).try_cast("int"), f.lit(1)).alias("occurrence"),
        f.coalesce(header_text(ATTEMPT).try_cast("int"), f.lit(1)).alias("attempt"),
    )


def deliveries_of(*, all_records: bool) -> Callable[[DataFrame], DataFrame]:
    """Records of target topics -> `deliveries`: those with a receipt, or all."""
    has_receipt = f.array_contains(f.col("headers").getField("key"), SOURCE)

    def made(records: DataFrame) -> DataFrame:
        return with_receipt(records if all_records else records.where(has_receipt))

    return made


def with_reason(records: DataFrame) -> DataFrame:
    """Records of the rejected or dead-letter topic -> the table of that name."""
    return with_receipt(records).select("*", header_text(REASON).alias("reason"), header_text(DETAIL).alias("detail"))


def in_hours(rows: DataFrame, table: Table) -> DataFrame:
    """Rows with `due_date` and `due_hour` in UTC: of the table's time, or of the record's timestamp if that is null or out of range.

    A producer's timestamp (`CreateTime`) may be out of range itself: such a row is in the first hour of 1970.
    """
    assert table.partitioned_by is not None
    when: Column = f.col(table.partitioned_by)
    if table.partitioned_by != "timestamp_ms" and "timestamp_ms" in rows.columns:
        when = f.when(when.between(0, MS_MAX), when).otherwise(f.col("timestamp_ms"))
    moment = f.timestamp_millis(f.when(when.between(0, MS_MAX), when).otherwise(f.lit(0)))
    return rows.withColumn("due_date", moment.cast("date").cast("string")).withColumn("due_hour", f.hour(moment))
