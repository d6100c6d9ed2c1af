"""Records to rows of the archive's tables: Arrow batches and DataFrames in, the same out.

Delay and progress records are parsed by the parsers of `core`, without the settings of a service;
receipts are read with Spark's column functions. The outcome of a message follows from several
tables and is judged in `audit/`."""

from collections.abc import Callable, Iterator, Mapping
from datetime import date, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from chronos.core.keys import generated_id
from chronos.core.message import (
    ATTEMPT,
    DETAIL,
    DUE_AT,
    ID,
    OCCURRENCE,
    REASON,
    SOURCE,
    Action,
    ConditionalSchedule,
    Entry,
    OnConflict,
    Reason,
    Record,
    Rejection,
    Verb,
)
from chronos.core.series import shift_ms
from chronos.core.shard.parsing import parse
from chronos.core.shard.progress import Outcome, Progress, unpack_progress
from chronos.core.shard.rules import NO_LIMIT_MS, Rules
from chronos.core.timefmt import MS_MAX
from chronos.spark import schema
from chronos.spark.schema import Table

OUTCOMES = {
    Outcome.AGAIN: "again",
    Outcome.RETRY: "retry",
    Outcome.DEFERRED: "deferred",
    Outcome.SKIPPED: "skipped",
    Outcome.EXPIRED: "expired",
    Outcome.DEAD: "dead-letter",
    Outcome.PARKED: "parked",
}
"""Name of each outcome that a progress record lists; plain deliveries are not listed."""

LEFT_LANE = "left-lane"
"""Name of the rows that hold the cursors of lanes: every message parked in the lane before, up to
this position, left it."""

PLANNED_AGAIN = "planned-again"
"""Name of the rows of pending occurrences that newer zone data moved to another time."""

WRITTEN_ON = "written-on"
"""Name of the rows that hold the ends of what left queues of held records: every record held for
the destination, up to this offset, was written to it in the transaction of the step, but for those
that the same step refuses."""


Batches = Iterator[pa.RecordBatch]

RANGE_OFFSETS_MAX = 2_000_000
"""Offsets listed of one range that was stepped over: more than a batch of 1 MiB holds unless it
exists only to be large."""

REFUSED = "refused"
"""The verb of a record that asks for nothing that can be done."""

PARSED = (
    "verb",
    "id",
    "target",
    "target_key",
    "requested_due_ms",
    "due_ms",
    "expire_at_ms",
    "on_conflict",
    "reason",
    "first_ms",
)
"""Columns that `parse_messages` adds to those of the record, in the order of the table
`messages`."""

_PARSED_TYPES = (
    pa.string(),
    pa.binary(),
    pa.string(),
    pa.binary(),
    pa.int64(),
    pa.int64(),
    pa.int64(),
    pa.string(),
    pa.string(),
    pa.int64(),
)

Parsed = tuple[
    str,
    bytes | None,
    str | None,
    bytes | None,
    int | None,
    int | None,
    int | None,
    str | None,
    str | None,
    int | None,
]


def parse_messages(shards: int) -> Callable[[Batches], Batches]:
    """Records of the delay topic `(shard, offset, timestamp_ms, key, value, headers)` -> the same
    and `PARSED`.

    Parsed by the rules of replay, which depend on no settings. The refusals of a master are in the
    progress records."""

    def parsed(batches: Batches) -> Batches:
        rules: dict[int, Rules] = {}
        for batch in batches:
            yield _parse_batch(batch, rules, shards)

    return parsed


def _parse_batch(batch: pa.RecordBatch, rules: dict[int, Rules], shards: int) -> pa.RecordBatch:
    rows: list[Parsed] = []
    headers = batch.column("headers")
    ends = headers.offsets.to_pylist()
    pairs = list(
        zip(headers.values.field(0).to_pylist(), headers.values.field(1).to_pylist(), strict=True)
    )
    columns = (
        batch.column(name).to_pylist()
        for name in ("shard", "offset", "timestamp_ms", "key", "value")
    )
    for begin, end, shard, offset, timestamp_ms, key, value in zip(
        ends, ends[1:], *columns, strict=False
    ):
        record = Record(offset, timestamp_ms, key, value, pairs[begin:end])
        rows.append(_parsed(record, _rules(rules, shard, shards)))
    made = zip(*rows, strict=True) if rows else ((),) * len(PARSED)
    added = [pa.array(column, kind) for column, kind in zip(made, _PARSED_TYPES, strict=True)]
    return pa.RecordBatch.from_arrays(
        [*batch.columns, *added], names=[*batch.schema.names, *PARSED]
    )


def _rules(rules: dict[int, Rules], shard: int, shards: int) -> Rules:
    """The rules of one shard, made once."""
    found = rules.get(shard)
    if found is None:
        found = rules[shard] = Rules(
            shard=shard, shards=max(shards, shard + 1), max_delay_ms=NO_LIMIT_MS
        )
    return found


def _parsed(record: Record, rules: Rules) -> Parsed:
    command = parse(record, rules)
    if type(command) is Entry:
        message_id = command.id or generated_id(rules.shard, command.due_ms, record.offset)
        policy = None if command.id is None else _label(OnConflict.REJECT.name)
        placed_ms = command.due_ms + shift_ms(command, rules.shard, record.offset)
        return (
            "schedule",
            message_id,
            command.target,
            command.key,
            command.due_ms,
            placed_ms,
            command.expire_at_ms,
            policy,
            None,
            _first_ms(record, command.timestamp_ms),
        )
    if type(command) is ConditionalSchedule:
        entry = command.entry
        first_ms = _first_ms(record, entry.timestamp_ms)
        if command.verb is Verb.REPLAY:
            # An ordinary schedule, but for its id: a generated one stands for no policy.
            policy = None if record.key is None else _label(OnConflict.REJECT.name)
            return (
                "schedule",
                entry.id,
                entry.target,
                entry.key,
                entry.due_ms,
                entry.due_ms,
                entry.expire_at_ms,
                policy,
                None,
                first_ms,
            )
        placed_ms = entry.due_ms + shift_ms(entry, rules.shard, record.offset)
        return (
            _label(command.verb.name),
            entry.id,
            entry.target,
            entry.key,
            entry.due_ms,
            placed_ms,
            entry.expire_at_ms,
            _label(command.on_conflict.name),
            None,
            first_ms,
        )
    if type(command) is Action:
        verb, due_ms = _label(command.verb.name), command.due_ms
        first_ms = _first_ms(record, command.first_ms)
        return verb, command.id or None, None, None, due_ms, due_ms, None, None, None, first_ms
    assert type(command) is Rejection
    return REFUSED, record.key, None, None, None, None, None, None, command.reason.label, None


def _first_ms(record: Record, first_ms: int | None) -> int | None:
    """The first timestamp of a forwarded record; None if it is that of the record."""
    return None if first_ms == record.timestamp_ms else first_ms


def _label(name: str) -> str:
    return name.lower().replace("_", "-")


def unpack_steps(shards: int) -> Callable[[Batches], Batches]:
    """Progress records `(shard, offset, timestamp_ms, value)` -> the table `progress`, without its
    hours."""
    return partial(_unpack_steps, shards)


def _unpack_steps(shards: int, batches: Batches) -> Batches:
    for batch in batches:
        steps = [(*key, unpack_progress(value, shards), value) for *key, value in _rows(batch)]
        yield _columns(
            [
                [
                    shard,
                    offset,
                    timestamp_ms,
                    step.role_epoch,
                    step.log_epoch,
                    step.node,
                    step.instance,
                    step.cursor_due_ms,
                    str(step.cursor_offset),
                    step.pull_offset,
                    *step.counts,
                    len(step.refused),
                    value,
                    [{"first": first, "last": last} for first, last in step.unreadable] or None,
                ]
                for shard, offset, timestamp_ms, step, value in steps
            ],
            _STEP_TYPES,
        )


_STEP_TYPES: list[tuple[str, Any]] = [
    ("shard", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp_ms", pa.int64()),
    ("role_epoch", pa.int64()),
    ("log_epoch", pa.int64()),
    ("node", pa.string()),
    ("instance", pa.string()),
    ("cursor_due_ms", pa.int64()),
    ("cursor_offset", pa.string()),
    ("pull_offset", pa.int64()),
    *((f"count{at}", pa.int64()) for at in range(len(Outcome))),
    ("refused", pa.int64()),
    ("value", pa.binary()),
    ("unreadable", pa.list_(pa.struct([("first", pa.int64()), ("last", pa.int64())]))),
]

_DECISION_TYPES: list[tuple[str, Any]] = [
    ("shard", pa.int32()),
    ("progress_offset", pa.int64()),
    ("decided_ms", pa.int64()),
    ("position_due_ms", pa.int64()),
    ("source_offset", pa.int64()),
    ("outcome", pa.string()),
    ("reason", pa.string()),
    ("next_due_ms", pa.int64()),
    ("occurrence", pa.int32()),
    ("attempt", pa.int32()),
    ("lane", pa.int32()),
    ("target", pa.string()),
    ("destination", pa.int32()),
]


def unpack_decisions(shards: int) -> Callable[[Batches], Batches]:
    """Progress records `(shard, offset, timestamp_ms, value)` -> the table `decisions`, without its
    hours."""
    return partial(_unpack_decisions, shards)


def _unpack_decisions(shards: int, batches: Batches) -> Batches:
    for batch in batches:
        rows: list[list[Any]] = []
        for shard, offset, timestamp_ms, value in _rows(batch):
            step, at = unpack_progress(value, shards), [shard, offset, timestamp_ms]
            refused = [*step.refused, *_unreadable(step), *_too_large(step)]
            held = {hold.offset: hold.destination for hold in step.held}
            rows += [
                [
                    *at,
                    None,
                    source,
                    "refused",
                    _reason(reason),
                    None,
                    1,
                    1,
                    None,
                    None,
                    held.get(source),
                ]
                for source, reason in refused
            ]
            rows += [
                [
                    *at,
                    made.due_ms,
                    made.offset,
                    OUTCOMES[Outcome(made.outcome)],
                    _reason(made.reason),
                    made.next_due_ms or None,
                    made.occurrence,
                    made.attempt,
                    made.lane if made.outcome is Outcome.PARKED else None,
                    None,
                    None,
                ]
                for made in step.decisions
            ]
            rows += [
                [
                    *at,
                    moved.due_ms,
                    moved.offset,
                    PLANNED_AGAIN,
                    None,
                    moved.next_ms,
                    1,
                    1,
                    None,
                    None,
                    None,
                ]
                for moved in step.replans
            ]
            rows += [
                [
                    *at,
                    lane.due_ms,
                    lane.offset,
                    LEFT_LANE,
                    None,
                    None,
                    1,
                    1,
                    lane.partition,
                    lane.topic,
                    None,
                ]
                for lane in step.lanes
            ]
            rows += [
                [
                    *at,
                    None,
                    queue.offset,
                    WRITTEN_ON,
                    None,
                    None,
                    1,
                    1,
                    None,
                    None,
                    queue.destination,
                ]
                for queue in step.written
            ]
        yield _columns(rows, _DECISION_TYPES)


def _unreadable(step: Progress) -> Iterator[tuple[int, int]]:
    """The offsets of the ranges that were stepped over, after the first of each, which is among the
    refused.

    Kafka's Java client may be able to read such a batch: its records were never accepted, and must
    not look missing."""
    for first, last in step.unreadable:
        for offset in range(first + 1, min(last + 1, first + RANGE_OFFSETS_MAX)):
            yield offset, Reason.UNREADABLE


def _too_large(step: Progress) -> Iterator[tuple[int, int]]:
    """The held records that were refused when the others of their queue were written on."""
    for queue in step.written:
        for offset in queue.too_large:
            yield offset, Reason.TOO_LARGE


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    names = ("shard", "offset", "timestamp_ms", "value")
    return zip(*(batch.column(name).to_pylist() for name in names), strict=True)


def _columns(rows: list[list[Any]], types: list[tuple[str, Any]]) -> pa.RecordBatch:
    made = zip(*rows, strict=True) if rows else ((),) * len(types)
    arrays = [pa.array(list(column), kind) for column, (_, kind) in zip(made, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in types])


def _reason(code: int) -> str | None:
    if not code:
        return None
    try:
        return Reason(code).label
    except ValueError:
        return f"reason-{code}"  # a reason of a newer version


# --- receipts


def header(name: str) -> Column:
    """The value of the last header of this name, as bytes; null if there is none.

    Chronos appends its headers behind those of the rejected record.
    """
    at = f.array_position(f.reverse(f.col("headers").getField("name")), f.lit(name))
    return f.get(f.col("headers").getField("value"), (f.size("headers") - at).cast("int"))


def header_text(name: str) -> Column:
    """The last header of this name as text."""
    return header(name).cast("string")


def header_number(name: str) -> Column:
    """The last header of this name as a number; null if it is not one."""
    return header_text(name).try_cast("bigint")


def source_parts(source: str) -> tuple[Column, Column, Column]:
    """Topic, partition and offset from a column that holds `<topic>/<partition>/<offset>`."""
    address = f.substring_index(source, "/", -2)
    return (
        f.substring_index(source, "/", 1),
        f.substring_index(address, "/", 1).try_cast("int"),
        f.substring_index(address, "/", -1).try_cast("bigint"),
    )


def of_shard(values: Mapping[int, int]) -> Column:
    """The value of the row's `shard`; null if there is none for it."""
    pairs = [f.lit(each) for pair in values.items() for each in pair]
    return f.create_map(*pairs)[f.col("shard")] if pairs else f.lit(None).cast("long")


def raw(records: DataFrame) -> DataFrame:
    """Spark's Kafka columns -> those of every table: times in ms, headers with `name` and
    `value`."""
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
    """Records of the delay topic -> `messages`. Headers keep Spark's structure: the table's schema
    names their fields."""
    columns = schema.columns_of(schema.MESSAGES)

    def made(records: DataFrame) -> DataFrame:
        columns_read = records.select(
            f.col("partition").alias("shard"),
            "offset",
            f.unix_millis("timestamp").alias("timestamp_ms"),
            "key",
            "value",
            "headers",
        )
        return columns_read.mapInArrow(parse_messages(shards), columns)

    return made


def steps_of(shards: int) -> Callable[[DataFrame], DataFrame]:
    """Progress records -> `progress`."""
    columns = schema.columns_of(schema.PROGRESS)
    return lambda records: _progress(records).mapInArrow(unpack_steps(shards), columns)


def decisions_of(shards: int) -> Callable[[DataFrame], DataFrame]:
    """Progress records -> `decisions`."""
    columns = schema.columns_of(schema.DECISIONS)
    return lambda records: _progress(records).mapInArrow(unpack_decisions(shards), columns)


def _progress(records: DataFrame) -> DataFrame:
    """The progress records, without those of other programs (see `progress.is_foreign`)."""
    own = raw(records).where(f.col("key").isNull() & (f.coalesce(f.size("headers"), f.lit(0)) <= 0))
    return own.select(f.col("partition").alias("shard"), "offset", "timestamp_ms", "value")


def with_receipt(records: DataFrame) -> DataFrame:
    """Records of a target, rejected or dead-letter topic -> the same with the columns of their
    receipt."""
    received = raw(records).select(
        "*",
        header(ID).alias("id"),
        header_number(DUE_AT).alias("due_at_ms"),
        header_text(SOURCE).alias("source"),
    )
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
    return with_receipt(records).select(
        "*", header_text(REASON).alias("reason"), header_text(DETAIL).alias("detail")
    )


DAY_MS = 86_400_000

CALENDAR_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999: beyond it many readers know no dates."""


def stored(rows: DataFrame, table: Table) -> DataFrame:
    """Rows with the columns of a table -> the table as it is stored, `schema.table_schema`.

    `date` or `month` is of the table's time, or of the record's timestamp if that is null or out of
    range; a producer's timestamp (`CreateTime`) may be out of range itself: such a row is in 1970.
    A time after the year 9999 is in its last month. They are computed from the number of ms, so
    that no time zone takes part."""
    made: dict[str, Column] = {
        at: f.when(f.col(name).between(0, CALENDAR_MS_MAX), f.timestamp_millis(name))
        for name, at in schema.times(table)
    }
    if "headers" in rows.columns:
        made[schema.FIRST_HEADERS] = _first_headers()
    if table.partition is not None:
        when: Column = f.col(table.time)
        if table.time != "timestamp_ms" and "timestamp_ms" in rows.columns:
            when = f.when(when.between(0, MS_MAX), when).otherwise(f.col("timestamp_ms"))
        ms = f.when(when.between(0, MS_MAX), f.least(when, f.lit(CALENDAR_MS_MAX)))
        ms = f.coalesce(ms, f.lit(0))
        day = f.date_from_unix_date(((ms - ms % DAY_MS) / DAY_MS).cast("int"))
        made[table.partition] = day if table.partition == schema.DATE else _first_of_month(day)
    return rows.withColumns(made).select(*schema.table_schema(table).names)


def _first_of_month(day: Column) -> Column:
    return f.date_sub(day, f.day(day) - 1)


def partition_of(table: Table, ms: int) -> date:
    """The date or month that a time is stored under, of a table that is partitioned."""
    day = date(1970, 1, 1) + timedelta(days=min(ms, CALENDAR_MS_MAX) // DAY_MS)
    return day if table.partition == schema.DATE else day.replace(day=1)


def _first_headers() -> Column:
    """The first value of each header's name; null for a record without headers."""
    names = f.col("headers").getField("name")
    values = f.col("headers").getField("value")
    found = f.array_distinct(names)
    return f.map_from_arrays(
        found,
        f.transform(
            found, lambda name: f.get(values, (f.array_position(names, name) - 1).cast("int"))
        ),
    )
