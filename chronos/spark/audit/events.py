"""The events of the messages that records or decisions changed: delay records and decisions of one
id, in the order in which the shard executed them.

`follow_all` gives the events of each id to `timeline.follow`, which makes the promised deliveries
from them. Whether such a delivery is in its target, and in time, is judged in `outcomes`."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from chronos.core.keys import OFFSET_MAX
from chronos.spark.audit.timeline import (
    OFFSET_END,
    PARKED,
    Event,
    follow,
)
from chronos.spark.codec import LEFT_LANE, PLANNED_AGAIN

PROMISED = (
    "shard int, source_offset long, occurrence int, attempt int, id binary, target string, "
    "accepted_ms long, requested_due_ms long, due_ms long, place_ms long, ended string, reason "
    "string, window_ms long"
)
"""Columns of promised deliveries: the fields of `timeline.PromisedDelivery`, with shard and id."""


def takes_over() -> Column:
    """True for a `schedule` that takes the place of a pending message."""
    return f.col("on_conflict").isin("replace", "upsert")


def with_cursor_before(records: DataFrame, progress: DataFrame) -> DataFrame:
    """Delay records -> the same with `cursor_due_ms` and `cursor_offset` before the step that
    staged them.

    That is the cursor of the last progress record of the shard whose pull offset is not beyond the
    record. Before the first given progress record the cursor counts as 0."""
    steps = progress.select(
        "shard",
        f.col("pull_offset").alias("offset"),
        f.lit(0).alias("_kind"),
        f.col("offset").alias("_seq"),
        f.struct(
            f.col("cursor_due_ms").alias("due_ms"), signed("cursor_offset").alias("offset")
        ).alias("_cursor"),
    )
    both = steps.unionByName(records.withColumn("_kind", f.lit(1)), allowMissingColumns=True)
    until_here = (
        Window.partitionBy("shard")
        .orderBy("offset", "_kind", "_seq")
        .rowsBetween(Window.unboundedPreceding, 0)
    )
    seen = both.withColumn("_before", f.last("_cursor", ignorenulls=True).over(until_here)).where(
        "_kind = 1"
    )
    return seen.select(
        *records.columns,
        f.coalesce("_before.due_ms", f.lit(0)).alias("cursor_due_ms"),
        f.coalesce("_before.offset", f.lit(OFFSET_END)).alias("cursor_offset"),
    )


def signed(column: str) -> Column:
    """An offset of a cursor as a signed number; the greatest one is OFFSET_END."""
    return f.when(f.col(column) == str(OFFSET_MAX), f.lit(OFFSET_END)).otherwise(
        f.col(column).cast("long")
    )


def events(
    records: DataFrame, decided: DataFrame, progress: DataFrame, steps: DataFrame
) -> DataFrame:
    """Delay records of some ids, and decisions -> rows of `timeline.Event` with their id and order.

    `steps` are the recent records of `progress`; a decision may belong to an older one, of its
    date. Order `at` is the offset of a record, and the pull offset of its step for a
    decision, which so follows the records that its step staged. `occurrence` of a record is 0 for a
    series without a first time, else null."""
    earlier = Window.partitionBy("shard").orderBy("offset")
    known_steps = progress.select(
        "date",
        "shard",
        f.col("offset").alias("progress_offset"),
        "cursor_due_ms",
        signed("cursor_offset").alias("cursor_offset"),
        f.lag("cursor_due_ms", 1, 0).over(earlier).alias("_before_ms"),
        f.lag(signed("cursor_offset"), 1, OFFSET_END).over(earlier).alias("_before_offset"),
        "pull_offset",
    )
    planned_again = f.col("outcome") == PLANNED_AGAIN
    owners = records.where(f.col("verb").isin("schedule", "replace")).select(
        "shard", f.col("offset").alias("source_offset"), "id", f.col("target").alias("own_target")
    )
    decisions = (
        _with_lanes_left(
            decided.join(owners, ["shard", "source_offset"]),
            decided,
            records,
            progress,
        )
        .join(known_steps, ["date", "shard", "progress_offset"])
        .select(
            "shard",
            "id",
            f.col("pull_offset").alias("at"),
            f.lit(0).alias("kind"),
            _order().alias("seq"),
            f.col("outcome").alias("verb"),
            f.col("source_offset").alias("offset"),
            f.col("decided_ms").alias("timestamp_ms"),
            _next_due_ms().alias("due_ms"),
            f.when(planned_again, f.col("_before_ms"))
            .otherwise(f.col("cursor_due_ms"))
            .alias("cursor_due_ms"),
            f.when(planned_again, f.col("_before_offset"))
            .otherwise(f.col("cursor_offset"))
            .alias("cursor_offset"),
            f.lit(False).alias("takes_over"),
            "reason",
            "occurrence",
            "attempt",
            "lane",
        )
    )
    staged = with_cursor_before(records, steps).select(
        "shard",
        "id",
        f.col("offset").alias("at"),
        f.lit(1).alias("kind"),
        f.lit(0).cast("long").alias("seq"),
        "verb",
        "offset",
        f.col("accepted_ms").alias("timestamp_ms"),
        "due_ms",
        "cursor_due_ms",
        "cursor_offset",
        "target",
        "requested_due_ms",
        (f.coalesce(takes_over(), f.lit(False)) | (f.col("verb") == "replace")).alias("takes_over"),
        f.coalesce("occurrence", f.lit(1)).alias("occurrence"),
        f.lit(1).alias("attempt"),
        *_more_of(records),
    )
    return staged.unionByName(decisions, allowMissingColumns=True)


def _more_of(records: DataFrame) -> list[Column]:
    """What an upsert compares, if there are any upserts."""
    if "upserts" not in records.columns:
        return []
    names = ("upserts", "is_at", "rhythm", "is_series")
    return [*map(f.col, names), f.col("key_of_target").alias("target_key")]


def _order() -> Column:
    """The order of steps; in a step, messages leave their lanes, and move with the zone data,
    before it is decided about them."""
    is_first = f.col("outcome").isin(LEFT_LANE, PLANNED_AGAIN)
    return 2 * f.col("progress_offset") + (~is_first).cast("int")


def _next_due_ms() -> Column:
    """The due time after a decision; a parked message keeps that of its position."""
    return f.when(f.col("outcome") == PARKED, f.col("position_due_ms")).otherwise(
        f.col("next_due_ms")
    )


def _with_lanes_left(
    made: DataFrame, decided: DataFrame, records: DataFrame, progress: DataFrame
) -> DataFrame:
    """Decisions about messages, with `own_target` -> the same, and for each `parked` a row
    `left-lane` of the step in which the lane's cursor first reached the message, with its position
    as `next_due_ms`; the same for each upsert among the records that may have taken the place of
    the parked message."""
    of_messages = made.where(f.col("outcome") != LEFT_LANE).drop("target")
    cursors = decided.where(f.col("outcome") == LEFT_LANE).select(
        "shard",
        "lane",
        f.col("target").alias("own_target"),
        f.col("position_due_ms").alias("_due_ms"),
        f.col("source_offset").alias("_offset"),
        f.col("progress_offset").alias("_at"),
        f.struct("date", "progress_offset", "decided_ms").alias("_step"),
    )
    passed = (f.col("_due_ms") > f.col("position_due_ms")) | (
        (f.col("_due_ms") == f.col("position_due_ms"))
        & (f.col("_offset") >= f.col("source_offset"))
    )
    parked = of_messages.where(f.col("outcome") == PARKED).withColumn("_upsert", f.lit(-1))
    cursors = cursors.withColumn("_pulled_before", f.lit(0))
    if "upserts" in records.columns:
        upserts = records.where("upserts").select("shard", "id", f.col("offset").alias("_upsert"))
        in_place = parked.drop("_upsert").join(upserts, ["shard", "id"])
        in_place = in_place.where("_upsert > source_offset").withColumn(
            "source_offset", f.col("_upsert")
        )
        parked = parked.unionByName(in_place)
        steps = Window.partitionBy("shard").orderBy("offset")
        pulled = progress.select(
            "shard",
            f.col("offset").alias("_at"),
            f.lag("pull_offset", 1, 0).over(steps).alias("_pulled_before"),
        )
        cursors = cursors.drop("_pulled_before").join(pulled, ["shard", "_at"])
    left = (
        parked.join(cursors, ["shard", "lane", "own_target"])
        .where((f.col("_at") > f.col("progress_offset")) & passed)
        .where("_pulled_before > _upsert")
        .groupBy("shard", "source_offset", "id", "lane", "position_due_ms", "progress_offset")
        .agg(f.min_by("_step", "_at").alias("_step"))
        .select(
            "shard",
            "source_offset",
            "id",
            "lane",
            f.lit(LEFT_LANE).alias("outcome"),
            f.col("position_due_ms").alias("next_due_ms"),
            "_step.*",
            f.lit(1).alias("occurrence"),
            f.lit(1).alias("attempt"),
        )
    )
    return of_messages.unionByName(left, allowMissingColumns=True)


_EVENT = (
    "verb",
    "offset",
    "timestamp_ms",
    "due_ms",
    "cursor_due_ms",
    "cursor_offset",
    "target",
    "requested_due_ms",
    "takes_over",
    "reason",
    "occurrence",
    "attempt",
    "lane",
    "upserts",
    "is_at",
    "rhythm",
    "is_series",
    "target_key",
)


def follow_all(in_order: DataFrame) -> DataFrame:
    """Rows of `events` -> `PROMISED`. Partitioned by id and sorted, so that any
    number of them streams through `timeline`."""
    by_id = in_order.repartition("shard", "id").sortWithinPartitions(
        "shard", "id", "at", "kind", "seq"
    )
    known = [name for name in _EVENT if name in by_id.columns]
    return by_id.select("shard", "id", *known).mapInArrow(_follow_batches, PROMISED)


def _follow_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = (
        row
        for batch in batches
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )
    ended: list[tuple[Any, ...]] = []
    for (shard, message_id), of_id in groupby(rows, key=lambda row: row[:2]):
        for promised in follow(Event(*row[2:]) for row in of_id):
            ended.append(
                (
                    shard,
                    promised.source_offset,
                    promised.occurrence,
                    promised.attempt,
                    message_id,
                    promised.target,
                    promised.accepted_ms,
                    promised.requested_due_ms,
                    promised.due_ms,
                    promised.place_ms,
                    _ENDED.get(promised.ended, promised.ended),
                    promised.reason,
                    promised.window_ms,
                )
            )
            if len(ended) >= _ROWS_TOGETHER:
                yield _batch(ended)
                ended.clear()
    if ended:
        yield _batch(ended)


_ROWS_TOGETHER = 10_000


_ENDED: dict[str | None, str] = {"dead-letter": "dead-lettered"}


_PROMISED_TYPES = (
    ("shard", pa.int32()),
    ("source_offset", pa.int64()),
    ("occurrence", pa.int32()),
    ("attempt", pa.int32()),
    ("id", pa.binary()),
    ("target", pa.string()),
    ("accepted_ms", pa.int64()),
    ("requested_due_ms", pa.int64()),
    ("due_ms", pa.int64()),
    ("place_ms", pa.int64()),
    ("ended", pa.string()),
    ("reason", pa.string()),
    ("window_ms", pa.int64()),
)


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [
        pa.array(list(column), kind)
        for column, (_, kind) in zip(columns, _PROMISED_TYPES, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in _PROMISED_TYPES])
