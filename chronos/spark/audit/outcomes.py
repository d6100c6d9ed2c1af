"""What became of every scheduled message: pure transformations, tables of the archive in, one row a unit out.

A unit is one delivery that was promised: a message, or one occurrence of a series; `(shard, source_offset,
occurrence)` is the token of `chronos-source` and `chronos-occurrence`. Three steps, the first two without the targets:

    units     what was promised, and how it ended other than by delivery     (messages, decisions, progress)
    received  what the targets hold of it                                    (deliveries)
    fates     the two side by side, judged as far as is proved               (`coverage`)

The plain case, a message that nobody touched and the progress log is silent about, stays inside Spark's own
expressions. The others, found by two small joins, are followed by `timeline` in the order of the logs.
"""

from collections.abc import Iterator
from functools import reduce
from itertools import groupby
from typing import Any

import pyarrow as pa
from msgspec import Struct
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from chronos.core.keys import OFFSET_MAX
from chronos.core.timefmt import format_time
from chronos.spark.audit.coverage import CLOCK_TOLERANCE_MS, is_settled, recent
from chronos.spark.audit.timeline import AGAIN, OFFSET_END, SKIPPED, Event, follow

OUTCOMES = (
    "delivered", "missing", "duplicated", "early", "cancelled", "replaced", "expired", "dead-lettered", "rejected",
    "skipped", "pending", "unknown",
)  # fmt: skip
"""Every fate, as it is shown. `skipped`: an occurrence of a series that was left out because it was late."""

WRONG = ("missing", "duplicated", "early")
"""Fates that break a law."""

UNITS = (
    "shard int, source_offset long, occurrence int, attempt int, id binary, target string, accepted_ms long,"
    " requested_due_ms long, due_ms long, place_ms long, ended string, reason string"
)

_PARTITION_SHIFT = 48
"""Bits of an offset beside its partition in one number: 281 billion records a partition."""


class Span(Struct, frozen=True, kw_only=True):
    """The window of due times, `from_ms` included and `to_ms` not."""

    from_ms: int
    to_ms: int

    def holds(self, column: str) -> Column:
        """Whether the time in the column lies within."""
        return (f.col(column) >= self.from_ms) & (f.col(column) < self.to_ms)

    def hours(self) -> Column:
        """The folders that hold it: what Spark prunes by. Of whole dates, and of hours on the first and the last."""
        first, last = format_time(max(0, self.from_ms)), format_time(max(0, self.to_ms - 1))
        date, hour = f.col("due_date"), f.col("due_hour").cast("int")
        after = (date > first[:10]) | ((date == first[:10]) & (hour >= int(first[11:13])))
        before = (date < last[:10]) | ((date == last[:10]) & (hour <= int(last[11:13])))
        return (date >= first[:10]) & (date <= last[:10]) & after & before


# --- what was promised


def scheduled(messages: DataFrame, span: Span) -> DataFrame:
    """Table `messages` -> those that were to be scheduled with a due time within the window."""
    return messages.where(span.hours() & f.col("verb").isin("schedule", "replace") & span.holds("due_ms"))


def refused(decisions: DataFrame) -> DataFrame:
    """Table `decisions` -> `shard`, `offset`, `refused_for`: the delay records that masters refused."""
    found = decisions.where(f.col("outcome") == "refused")
    return found.groupBy("shard", f.col("source_offset").alias("offset")).agg(
        f.coalesce(f.first("reason"), f.lit("refused")).alias("refused_for")
    )


def touches(messages: DataFrame, decisions: DataFrame, progress: DataFrame) -> DataFrame:
    """Table `messages` -> the records that may have ended or moved another message of their id, and were executed."""
    acting = f.col("verb").isin("cancel", "reschedule", "fire-now", "replace")
    taking_over = (f.col("verb") == "schedule") & (f.col("on_conflict") == "replace")
    return (
        messages.where(acting | taking_over)
        .join(_pulled(progress), "shard")
        .where("offset < pulled")
        .drop("pulled")
        .join(refused(decisions).drop("refused_for"), ["shard", "offset"], "left_anti")
    )


def _pulled(progress: DataFrame) -> DataFrame:
    """`shard`, `pulled`: the offset below which delay records were executed. What lies beyond has no effect yet."""
    return f.broadcast(progress.groupBy("shard").agg(f.max("pull_offset").alias("pulled")))


def outcomes(decisions: DataFrame, span: Span, moved: DataFrame) -> DataFrame:
    """Table `decisions` -> what was decided about units due within the window: when they were due, or before.

    `moved` are the records of those that were moved there by their id: of them everything, since whether an action
    found them pending depends on what had put them off.
    """
    carried_there = f.col("outcome").isin(AGAIN, SKIPPED) & span.holds("next_due_ms")
    since = f.col("decided_ms") >= span.from_ms - CLOCK_TOLERANCE_MS
    is_here = f.coalesce(since | carried_there, f.lit(False))
    known = decisions.where(f.col("outcome") != "refused")
    of_moved = moved.select("shard", f.col("offset").alias("source_offset"))
    before = known.where(~is_here).join(of_moved, ["shard", "source_offset"], "left_semi")
    return known.where(is_here).unionByName(before)


def units(messages: DataFrame, decisions: DataFrame, progress: DataFrame, span: Span) -> DataFrame:
    """Tables of the archive -> `UNITS` due within the window; `progress` as far as usable."""
    here, steps = scheduled(messages, span), recent(progress, span.from_ms)
    touched, refusals = touches(messages, decisions, steps), refused(decisions)
    moved = _moved_here(messages, refusals, touched, span)
    decided = outcomes(decisions, span, moved)
    touched_ids = touched.select("shard", "id").distinct().withColumn("is_touched", f.lit(True))
    decided_offsets = decided.select("shard", f.col("source_offset").alias("offset")).distinct()
    marked = (
        here.select(*_NARROW)
        .join(refusals, ["shard", "offset"], "left")
        .join(touched_ids, ["shard", "id"], "left")
        .join(decided_offsets.withColumn("is_decided", f.lit(True)), ["shard", "offset"], "left")
        .join(_pulled(steps), "shard", "left")
    )
    is_executed = f.coalesce(f.col("offset") < f.col("pulled"), f.lit(False))
    in_order = f.coalesce("is_touched", "is_decided", f.lit(False)) & is_executed
    plain = marked.where(f.col("refused_for").isNotNull() | ~in_order)
    entangled = marked.where(f.col("refused_for").isNull() & in_order).select(*_NARROW)
    carried = _carried_here(messages, refusals, decided, span)
    entangled = _all([entangled, touched.select(*_NARROW), moved, carried])
    happened = events(entangled.dropDuplicates(["shard", "offset"]), decided, progress, steps)
    return _all([_plain_units(plain), follow_all(happened).where(span.holds("due_ms")), _unreadable(messages, span)])


_NARROW = (
    "shard", "offset", "timestamp_ms", "verb", "id", "target", "requested_due_ms", "due_ms", "on_conflict",
)  # fmt: skip


def _all(frames: list[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, frames)


def _moved_here(messages: DataFrame, refusals: DataFrame, touched: DataFrame, span: Span) -> DataFrame:
    """Messages first due elsewhere whose id was moved into the window."""
    moves = f.col("verb").isin("reschedule", "fire-now")
    when = f.coalesce(f.when(f.col("verb") == "fire-now", f.col("timestamp_ms")), f.col("due_ms"))
    by_id = touched.where(moves & (when >= span.from_ms) & (when < span.to_ms)).select("shard", "id").distinct()
    return _elsewhere(messages, refusals, span).join(by_id, ["shard", "id"], "left_semi").select(*_NARROW)


def _carried_here(messages: DataFrame, refusals: DataFrame, decided: DataFrame, span: Span) -> DataFrame:
    """Messages first due elsewhere that a decision of their series moved into the window."""
    carried = decided.where(f.col("outcome").isin(AGAIN, SKIPPED) & span.holds("next_due_ms"))
    by_offset = carried.select("shard", f.col("source_offset").alias("offset")).distinct()
    return _elsewhere(messages, refusals, span).join(by_offset, ["shard", "offset"], "left_semi").select(*_NARROW)


def _elsewhere(messages: DataFrame, refusals: DataFrame, span: Span) -> DataFrame:
    found = messages.where(f.col("verb").isin("schedule", "replace") & ~span.holds("due_ms")).select(*_NARROW)
    return found.join(refusals.drop("refused_for"), ["shard", "offset"], "left_anti")


def _plain_units(marked: DataFrame) -> DataFrame:
    """Messages that are what their record says: refused, or to be delivered once."""
    is_refused = f.col("refused_for").isNotNull()
    return marked.select(
        "shard",
        f.col("offset").alias("source_offset"),
        f.lit(1).alias("occurrence"),
        f.lit(1).alias("attempt"),
        "id",
        "target",
        f.col("timestamp_ms").alias("accepted_ms"),
        f.coalesce("requested_due_ms", "due_ms").alias("requested_due_ms"),
        "due_ms",
        f.greatest("due_ms", "timestamp_ms").alias("place_ms"),
        f.when(is_refused, f.lit("rejected")).alias("ended"),
        f.col("refused_for").alias("reason"),
    )


def _unreadable(messages: DataFrame, span: Span) -> DataFrame:
    """Records that ask for nothing that can be done: due, for want of anything else, when they were written."""
    found = messages.where(span.hours() & (f.col("verb") == "refused") & span.holds("timestamp_ms"))
    moment = f.col("timestamp_ms")
    return found.select(
        "shard", f.col("offset").alias("source_offset"), f.lit(1).alias("occurrence"), f.lit(1).alias("attempt"), "id",
        f.lit(None).cast("string").alias("target"), moment.alias("accepted_ms"), moment.alias("requested_due_ms"),
        moment.alias("due_ms"), moment.alias("place_ms"), f.lit("rejected").alias("ended"), "reason",
    )  # fmt: skip


# --- what is to be followed in order


def with_cursor_before(records: DataFrame, progress: DataFrame) -> DataFrame:
    """Delay records -> the same with `cursor_due_ms` and `cursor_offset` as they were before the step that staged them.

    That of the last progress record whose pull offset is not beyond the record: by shard, in order of offsets. Before
    the first one that is given the cursor counts as 0.
    """
    steps = progress.select(
        "shard", f.col("pull_offset").alias("offset"), f.lit(0).alias("_kind"), f.col("offset").alias("_seq"),
        f.struct(f.col("cursor_due_ms").alias("due_ms"), _signed("cursor_offset").alias("offset")).alias("_cursor"),
    )  # fmt: skip
    both = steps.unionByName(records.withColumn("_kind", f.lit(1)), allowMissingColumns=True)
    until_here = (
        Window.partitionBy("shard").orderBy("offset", "_kind", "_seq").rowsBetween(Window.unboundedPreceding, 0)
    )
    seen = both.withColumn("_before", f.last("_cursor", ignorenulls=True).over(until_here)).where("_kind = 1")
    return seen.select(
        *records.columns,
        f.coalesce("_before.due_ms", f.lit(0)).alias("cursor_due_ms"),
        f.coalesce("_before.offset", f.lit(OFFSET_END)).alias("cursor_offset"),
    )


def _signed(column: str) -> Column:
    return f.when(f.col(column) == str(OFFSET_MAX), f.lit(OFFSET_END)).otherwise(f.col(column).cast("long"))


def events(records: DataFrame, decided: DataFrame, progress: DataFrame, steps: DataFrame) -> DataFrame:
    """Delay records of some ids, and decisions -> rows of `timeline.Event` with their id and their order.

    `steps` are the recent ones of `progress`; a decision may be of an older one, and lies in the folder of its hour. It
    comes behind the records that its step staged: order `at` is the offset of a record, and of a decision the pull
    offset of its step, before the record that has it.
    """
    known_steps = progress.select(
        "due_date", "due_hour", "shard", f.col("offset").alias("progress_offset"), "cursor_due_ms",
        _signed("cursor_offset").alias("cursor_offset"), "pull_offset",
    )  # fmt: skip
    owners = records.where(f.col("verb").isin("schedule", "replace")).select(
        "shard", f.col("offset").alias("source_offset"), "id"
    )
    decisions = (
        decided.join(owners, ["shard", "source_offset"])
        .join(known_steps, ["due_date", "due_hour", "shard", "progress_offset"])
        .select(
            "shard", "id", f.col("pull_offset").alias("at"), f.lit(0).alias("kind"), f.col("progress_offset").alias("seq"),
            f.col("outcome").alias("verb"), f.col("source_offset").alias("offset"),
            f.col("decided_ms").alias("timestamp_ms"), f.col("next_due_ms").alias("due_ms"), "cursor_due_ms",
            "cursor_offset", f.lit(False).alias("takes_over"), "reason", "occurrence", "attempt",
        )
    )  # fmt: skip
    staged = with_cursor_before(records, steps).select(
        "shard", "id", f.col("offset").alias("at"), f.lit(1).alias("kind"), f.lit(0).cast("long").alias("seq"), "verb",
        "offset", "timestamp_ms", "due_ms", "cursor_due_ms", "cursor_offset", "target", "requested_due_ms",
        (f.coalesce(f.col("on_conflict") == "replace", f.lit(False)) | (f.col("verb") == "replace")).alias("takes_over"),
        f.lit(1).alias("occurrence"), f.lit(1).alias("attempt"),
    )  # fmt: skip
    return staged.unionByName(decisions, allowMissingColumns=True)


_EVENT = (
    "verb", "offset", "timestamp_ms", "due_ms", "cursor_due_ms", "cursor_offset", "target", "requested_due_ms",
    "takes_over", "reason", "occurrence", "attempt",
)  # fmt: skip


def follow_all(happened: DataFrame) -> DataFrame:
    """Rows of `events` -> `UNITS`. Spread by id and sorted, so that any number of them streams through `timeline`."""
    in_order = happened.repartition("shard", "id").sortWithinPartitions("shard", "id", "at", "kind", "seq")
    return in_order.select("shard", "id", *_EVENT).mapInArrow(_follow_batches, UNITS)


def _follow_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = (row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))
    ended: list[tuple[Any, ...]] = []
    for (shard, message_id), of_id in groupby(rows, key=lambda row: row[:2]):
        for unit in follow(Event(*row[2:]) for row in of_id):
            ended.append(
                (shard, unit.source_offset, unit.occurrence, unit.attempt, message_id, unit.target, unit.accepted_ms,
                 unit.requested_due_ms, unit.due_ms, unit.place_ms, _ENDED.get(unit.ended, unit.ended), unit.reason)
            )  # fmt: skip
            if len(ended) >= _ROWS_TOGETHER:
                yield _batch(ended)
                ended.clear()
    if ended:
        yield _batch(ended)


_ROWS_TOGETHER = 10_000

_ENDED: dict[str | None, str] = {"dead-letter": "dead-lettered"}

_UNIT_TYPES = (
    ("shard", pa.int32()), ("source_offset", pa.int64()), ("occurrence", pa.int32()), ("attempt", pa.int32()),
    ("id", pa.binary()), ("target", pa.string()), ("accepted_ms", pa.int64()), ("requested_due_ms", pa.int64()),
    ("due_ms", pa.int64()), ("place_ms", pa.int64()), ("ended", pa.string()), ("reason", pa.string()),
)  # fmt: skip


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(list(column), kind) for column, (_, kind) in zip(columns, _UNIT_TYPES, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in _UNIT_TYPES])


# --- what the targets hold


def received(deliveries: DataFrame, delay_topic: str, span: Span) -> DataFrame:
    """Table `deliveries` -> for each token and topic how many records there are, and when.

    `span` is of times as they were requested. A record that is in the archive twice is still one record.
    """
    ours = deliveries.where(span.hours() & span.holds("due_at_ms") & (f.col("source_topic") == delay_topic))
    place = f.shiftleft(f.col("partition").cast("long"), _PARTITION_SHIFT) + f.col("offset")
    found = ours.groupBy("shard", "source_offset", "occurrence", f.col("topic").alias("target")).agg(
        f.count("*").alias("records"),
        f.min(place).alias("first_place"),
        f.max(place).alias("last_place"),
        f.min("timestamp_ms").alias("delivered_ms"),
    )
    count = f.when(f.col("first_place") == f.col("last_place"), f.lit(1).cast("long")).otherwise(f.col("records"))
    return found.select(
        "shard", "source_offset", "occurrence", "target", count.alias("deliveries"), "delivered_ms"
    )  # fmt: skip


# --- the judgement


def fates(promised: DataFrame, found: DataFrame, judges: DataFrame, any_frontier: DataFrame) -> DataFrame:
    """`UNITS`, `received`, `coverage.JUDGES` and each shard's last frontier -> each unit with `outcome` and why.

    In order, the first that holds: duplicated, early, delivered, what ended it otherwise, pending, unknown, missing.
    One that was delivered although it had ended otherwise came to two ends, and counts as duplicated.
    """
    token = ["shard", "source_offset", "occurrence", "target"]
    joined = (
        promised.join(found, token, "left")
        .join(f.broadcast(judges), ["shard", "target"], "left")
        .join(f.broadcast(any_frontier), "shard", "left")
    )
    deliveries = f.coalesce("deliveries", f.lit(0).cast("long"))
    is_early = f.col("delivered_ms") < f.col("due_ms") - CLOCK_TOLERANCE_MS
    ends = deliveries + f.col("ended").isNotNull().cast("int")
    settled = (f.col("source_offset") < f.col("last_offset")) & (f.col("place_ms") <= f.col("last_due_ms"))
    # A record that vanished may have told of whatever was written, or due, before that was noticed.
    may_hide = (f.coalesce(f.col("target_gap_ms") >= f.col("due_ms"), f.lit(False))) | (
        f.coalesce(f.col("shard_gap_ms") >= f.col("accepted_ms"), f.lit(False))
    )
    archived = f.col("covered_offset").isNotNull()
    late_ms = f.col("delivered_ms") - f.greatest("due_ms", "accepted_ms")
    cases: list[tuple[Column, str, Column | None]] = [
        ((deliveries > 0) & (ends > 1), "duplicated", f.col("ended")),
        ((deliveries > 0) & is_early, "early", None),
        (deliveries > 0, "delivered", None),
        (~f.coalesce(settled, f.lit(False)), "pending", f.lit("not-settled")),
        (~archived, "unknown", f.lit("target-not-archived")),
        (may_hide & ~is_settled("before_gap"), "unknown", f.lit("gap")),
        (is_settled("covered"), "missing", None),
        (f.col("unresolved"), "unknown", f.lit("open-transaction")),
    ]
    return joined.select(
        *token[:3], "attempt", "id", "target", "accepted_ms", "due_ms",
        _first(cases, 1, f.lit("pending")).alias("outcome"),
        f.coalesce(_first(cases, 2, f.lit("target-not-read-so-far")), "reason").alias("reason"),
        deliveries.alias("deliveries"),
        "delivered_ms",
        f.when(f.col("delivered_ms").isNotNull(), f.greatest(late_ms, f.lit(0))).alias("lateness_ms"),
    )  # fmt: skip


def _first(cases: list[tuple[Column, str, Column | None]], at: int, otherwise: Column) -> Column:
    """The outcome, or its reason, of the first case that holds; what ended otherwise stands behind the deliveries."""
    none = f.lit(None).cast("string")

    def value(case: tuple[Column, str, Column | None]) -> Column:
        return f.lit(case[1]) if at == 1 else none if case[2] is None else case[2]

    chosen = f.when(cases[0][0], value(cases[0]))
    for case in cases[1:3]:
        chosen = chosen.when(case[0], value(case))
    chosen = chosen.when(f.col("ended").isNotNull(), f.col("ended") if at == 1 else none)
    for case in cases[3:]:
        chosen = chosen.when(case[0], value(case))
    return chosen.otherwise(otherwise)
