"""The outcome of every promised delivery: transformations of DataFrames, tables of the archive in,
one row for each promised delivery out.

A promised delivery is a message, one occurrence of a series, or a record that was rejected;
`(shard, source_offset, occurrence)` is its token, from `chronos-source` and `chronos-occurrence`.

    promised_deliveries   what was promised, and how it ended other than by delivery     (messages, decisions, progress)
    stepped_over          the same of records that could not be read                     (decisions, offsets)
    received              the deliveries that were archived from the targets             (deliveries)
    outcomes              all joined and judged, as far as the archive proves            (`coverage`)
    with_erased           outcomes with those that were erased                           (`erased`)
    with_replays          outcomes corrected by what backfills sent                      (`ledger`)

What a message of the window with neither actions nor decisions promised follows from Spark's own
expressions; so does a record that was refused or is not executed yet. The other messages of the
window, and those that an action or a decision moved into it, go through `events` and `timeline`, in
the order of the logs."""  # noqa: E501

from collections.abc import Iterator
from functools import reduce

import pyarrow as pa
from msgspec import Struct
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from chronos.core.clock import CLOCK_TOLERANCE_MS
from chronos.core.keys import REJECTED
from chronos.core.message import (
    DELAY,
    DELIVER_AT,
    REPEAT,
    ConditionalSchedule,
    Entry,
    OnConflict,
    Reason,
    Record,
)
from chronos.core.series import repetition_of, rhythm
from chronos.core.shard.parsing import parse
from chronos.core.shard.rules import NO_LIMIT_MS, Rules
from chronos.core.timefmt import MS_MAX
from chronos.spark.audit.coverage import is_settled, recent
from chronos.spark.audit.events import (
    events,
    follow_all,
)
from chronos.spark.audit.reach import (
    NARROW,
    NONE_MS,
    AuditReach,
    decided_since,
    is_carried,
    is_message,
    may_act,
    sent_since,
)
from chronos.spark.codec import LEFT_LANE, PLANNED_AGAIN, WRITTEN_ON, partition_of
from chronos.spark.delta import once
from chronos.spark.ledger import SETTLED, TOKEN
from chronos.spark.runs import UNREADABLE
from chronos.spark.schema import DECISIONS, DELIVERIES, ERASED, MESSAGES, Table

OUTCOMES = (
    "delivered",
    "missing",
    "duplicated",
    "early",
    "cancelled",
    "replaced",
    "expired",
    "dead-lettered",
    "rejected",
    "skipped",
    "pending",
    "unknown",
    "erased",
)
"""Every outcome, in the order it is shown. `skipped`: an occurrence of a series left out because it
was late."""

WRONG = ("missing", "duplicated", "early")
"""Outcomes that break a law."""


_PARTITION_SHIFT = 48
"""Bits for the offset in a number made of partition and offset: 281 trillion records a
partition."""


HOUR_MS = 3_600_000


class Span(Struct, frozen=True, kw_only=True):
    """The window of due times in epoch ms, `from_ms` included and `to_ms` excluded."""

    from_ms: int
    to_ms: int

    def holds(self, column: str) -> Column:
        """True if the time in the column is within the window."""
        return (f.col(column) >= self.from_ms) & (f.col(column) < self.to_ms)

    def within(self, table: Table) -> Column:
        """True for the rows of a table whose time is in an hour of the window: it selects
        partitions, and files by their statistics."""
        return self._in_partitions(table) & self._in_hours(table)

    def outside(self, table: Table) -> Column:
        """True for such rows in another partition than that of their time: `within` leaves them
        out."""
        return self._in_hours(table) & ~self._in_partitions(table)

    def _hours(self) -> tuple[int, int]:
        """The whole hours that hold the window, in epoch ms, the end excluded."""
        end_ms = -(-max(1, self.to_ms) // HOUR_MS) * HOUR_MS
        return max(0, self.from_ms) // HOUR_MS * HOUR_MS, end_ms

    def _in_partitions(self, table: Table) -> Column:
        assert table.partition is not None
        from_ms, to_ms = self._hours()
        first, last = partition_of(table, from_ms), partition_of(table, to_ms - 1)
        return f.col(table.partition).between(first, last)

    def _in_hours(self, table: Table) -> Column:
        """The time is the record's timestamp where the table's is null or out of range, and 0 where
        that is out of range too, as in `codec.stored`."""
        from_ms, to_ms = self._hours()
        time = f.col(table.time)
        found = (time >= from_ms) & (time < to_ms)
        if table.time != "timestamp_ms" and any(
            name == "timestamp_ms" for name, *_ in table.columns
        ):
            stamp = f.col("timestamp_ms")
            instead = (stamp >= from_ms) & (stamp < to_ms)
            if not from_ms:
                instead |= (stamp < 0) | (stamp > MS_MAX)
            found |= (time.isNull() | (time < 0) | (time > MS_MAX)) & instead
        return found


# --- what was promised


def with_accepted_ms(messages: DataFrame) -> DataFrame:
    """Table `messages` -> the same with `accepted_ms`: the timestamp that counts for the place of a
    record.

    The first timestamp of a forwarded one may be ahead of its own, by the difference of two
    brokers' clocks."""
    return messages.withColumn("accepted_ms", f.least("first_ms", "timestamp_ms"))


def scheduled(messages: DataFrame, span: Span) -> DataFrame:
    """Table `messages` -> the records that schedule a message with a due time within the window."""
    return messages.where(
        span.within(MESSAGES) & f.col("verb").isin("schedule", "replace") & span.holds("due_ms")
    )


def _executed(records: DataFrame, refusals: DataFrame, pulled: DataFrame) -> DataFrame:
    """Those of the records that were executed: pulled, and not refused."""
    return (
        records.join(pulled, "shard")
        .where("offset < pulled")
        .drop("pulled")
        .join(refusals, ["shard", "offset"], "left_anti")
    )


def pulled_below(progress: DataFrame) -> DataFrame:
    """`shard`, `pulled`: the offset below which delay records were executed; records beyond it have
    no effect yet."""
    return progress.groupBy("shard").agg(f.max("pull_offset").alias("pulled"))


def relevant_decisions(decisions: DataFrame, span: Span, moved: DataFrame) -> DataFrame:
    """Table `decisions` -> the decisions about promised deliveries due within the window, made then
    or before.

    `moved` are the records of messages that an action moved: all their decisions are needed, as of
    those that new zone data moved into the window. A retry or deferral may be why the action found
    them pending, even one before the window: an earlier action may have moved the message out of
    the window; and only the decisions before say which occurrence was moved."""
    carried_there = is_carried(span)
    since = f.col("decided_ms") >= span.from_ms - CLOCK_TOLERANCE_MS
    # An occurrence may have moved out of the window before it began.
    moves = f.col("outcome") == PLANNED_AGAIN
    is_here = f.coalesce(since | carried_there | moves, f.lit(False))
    known = decisions.where(_is_about_message())
    of_moved = moved.select("shard", f.col("offset").alias("source_offset")).unionByName(
        known.where(moves & span.holds("next_due_ms")).select("shard", "source_offset")
    )
    before = known.where(~is_here).join(of_moved, ["shard", "source_offset"], "left_semi")
    return known.where(is_here).unionByName(before)


def _is_about_message() -> Column:
    """True for the decision about an accepted message, or about the messages of a lane."""
    return ~f.col("outcome").isin("refused", WRITTEN_ON)


class _Related(Struct, frozen=True, kw_only=True):
    """The records besides the messages due in the window that decide about them, or are moved into
    it; whether they were executed is not known."""

    acting: DataFrame
    """The actions on the ids of all these messages, and messages that may take over."""
    acted: DataFrame
    """The messages due in the window with such an id."""
    others: DataFrame | None
    """Messages due outside the window, with `is_moved`: moved into it by an action, or carried by a
    decision."""
    registered: DataFrame | None
    """The messages of ids that an upsert names, with all columns, whenever they are due: it may
    keep the time of the pending one. None: there is no upsert."""
    has_actions: bool
    has_fired: bool
    """True if there is a `fire-now`."""
    since_ms: int
    """No record of these that may have been refused was sent before."""
    oldest_ms: int
    """No record of these was sent before."""


def _related(messages: DataFrame, span: Span, reached: AuditReach) -> _Related:
    columns = (*NARROW, "timestamp_ms")
    records = messages.select(*columns)
    moved_ms = carried_ms = NONE_MS
    history = _history(records, reached)
    if history is not None:
        history = once(history)
        sent_ms = f.col("timestamp_ms")
        first = history.agg(
            f.min(f.when(f.col("is_moved") | f.col("is_planned"), sent_ms)).alias("moved_ms"),
            f.min(f.when(f.col("is_carried"), sent_ms)).alias("carried_ms"),
        ).first()
        assert first is not None
        moved_ms = _or_none(first["moved_ms"])
        carried_ms = _or_none(first["carried_ms"])
    acts = sent_since(records, min(reached.since_ms, carried_ms)).where(may_act())
    acts = once(acts)
    ids = acts.select("shard", "id").distinct()
    acted = scheduled(messages, span).select(*NARROW).join(ids, ["shard", "id"], "left_semi")
    acted = once(acted)
    wanted = acted.select("shard", "id")
    if history is not None:
        wanted = wanted.unionByName(history.where("is_carried").select("shard", "id"))
    acting = acts.join(wanted.distinct(), ["shard", "id"], "left_semi")
    if history is not None:
        of_moved = history.where(f.col("is_moved") & may_act()).select(*columns)
        acting = acting.unionByName(of_moved).dropDuplicates(["shard", "offset"])
    acting = once(acting)
    counts = acting.agg(
        f.count("*").alias("actions"),
        f.count_if(f.col("on_conflict") == "upsert").alias("upserts"),
        f.count_if(f.col("verb") == "fire-now").alias("fired"),
        f.min("timestamp_ms").alias("first_ms"),
    ).first()
    assert counts is not None
    since_ms, registered = min(_or_none(counts["first_ms"]), moved_ms), None
    if counts["upserts"]:
        named = acting.where(f.col("on_conflict") == "upsert").select("shard", "id").distinct()
        found = messages.where(is_message()).join(f.broadcast(named), ["shard", "id"], "left_semi")
        registered = once(found)
        first = registered.agg(f.min("timestamp_ms").alias("first_ms")).first()
        assert first is not None
        since_ms = min(since_ms, _or_none(first["first_ms"]))
    return _Related(
        acting=acting.select(*NARROW),
        acted=acted,
        others=None
        if history is None
        else history.where(is_message() & ~span.holds("due_ms")).select(*NARROW, "is_moved"),
        registered=registered,
        has_actions=bool(counts["actions"]),
        has_fired=bool(counts["fired"]),
        since_ms=since_ms,
        oldest_ms=min(since_ms, carried_ms),
    )


def _history(records: DataFrame, reached: AuditReach) -> DataFrame | None:
    """The records of the whole archive with an id that moves into the window (`is_moved`), and the
    messages that are carried into it (`is_carried`); None if there are neither."""
    if reached.moved is None and reached.carried is None:
        return None
    found = records.where(is_message() | may_act())
    none = f.lit(False)
    if reached.moved is None:
        found = found.withColumn("is_moved", none)
    else:
        moved = reached.moved.withColumn("is_moved", f.lit(True))
        found = found.join(moved, ["shard", "id"], "left")
    if reached.carried is None:
        found = found.withColumns({"is_carried": none, "is_planned": none})
    else:
        carried = reached.carried.withColumn("is_carried", f.lit(True))
        found = found.join(carried, ["shard", "offset"], "left")
    return found.fillna(False, ["is_moved", "is_carried", "is_planned"]).where(
        "is_moved OR is_carried"
    )


def _or_none(ms: int | None) -> int:
    return NONE_MS if ms is None else ms


def promised_deliveries(
    messages: DataFrame,
    decisions: DataFrame,
    progress: DataFrame,
    span: Span,
    reached: AuditReach,
) -> DataFrame:
    """Tables of the archive -> `PROMISED` due within the window. `messages` has `accepted_ms`;
    `progress` is limited to the usable records."""
    related = _related(messages, span, reached)
    since_ms = min(reached.since_ms, related.since_ms)
    decisions = decisions.where(decided_since(since_ms) | is_carried(span))
    refusals = once(refused(decisions))
    # A forwarded record promises nothing where it came to: it is judged in its own shard.
    is_own = f.coalesce(f.col("refused_for") != Reason.FORWARDED.label, f.lit(True))
    here = (
        scheduled(messages, span)
        .select(*NARROW)
        .join(refusals, ["shard", "offset"], "left")
        .where(is_own)
    )
    unreadable = _unreadable(messages, refusals, span)
    none = related.acting.where(f.lit(False))
    others = none if related.others is None else related.others
    moved = none if related.others is None else others.where("is_moved").drop("is_moved")
    registered = none
    if related.registered is not None:
        registered = related.registered.where(~span.holds("due_ms")).select(*NARROW)
    all_decided = _all([moved, registered, related.acted])
    decided = once(relevant_decisions(decisions, span, all_decided))
    counts = decided.agg(
        f.count("*").alias("decisions"), f.min("decided_ms").alias("first_ms")
    ).first()
    assert counts is not None
    if not (counts["decisions"] or related.has_actions or related.others is not None):
        return _plain_deliveries(here).unionByName(unreadable)
    steps = recent(progress, span.from_ms)
    pulled = once(pulled_below(steps))
    found = _all([related.acting, others.select(*NARROW), registered])
    ordered = once(
        _executed(found.dropDuplicates(["shard", "offset"]), refusals, f.broadcast(pulled))
    )
    upserted = ordered.where(f.col("on_conflict") == "upsert").select("shard", "id").distinct()
    acted_ids = ordered.where(may_act()).select("shard", "id").distinct()
    decided_offsets = (
        decided.where(f.col("outcome") != LEFT_LANE)
        .select("shard", f.col("source_offset").alias("offset"))
        .distinct()
    )
    marked = (
        here.join(acted_ids.withColumn("has_action", f.lit(True)), ["shard", "id"], "left")
        .join(decided_offsets.withColumn("is_decided", f.lit(True)), ["shard", "offset"], "left")
        .join(f.broadcast(pulled), "shard", "left")
    )
    is_executed = f.coalesce(f.col("offset") < f.col("pulled"), f.lit(False))
    needs_timeline = f.coalesce("has_action", "is_decided", f.lit(False)) & is_executed
    plain = marked.where(f.col("refused_for").isNotNull() | ~needs_timeline)
    own = marked.where(f.col("refused_for").isNull() & needs_timeline).select(*NARROW)
    ordered = own.unionByName(ordered).dropDuplicates(["shard", "offset"])
    sent = sent_since(messages, min(since_ms, related.oldest_ms))
    ordered = _described(ordered, sent, has_fired=related.has_fired)
    if related.registered is not None:
        accepted = _executed(related.registered, refusals, f.broadcast(pulled))
        compared = _compared(accepted.join(f.broadcast(upserted), ["shard", "id"], "left_semi"))
        ordered = ordered.join(compared, ["shard", "offset"], "left").withColumn(
            "occurrence", f.coalesce("occurrence", "first_occurrence")
        )
        # The predecessor of an upsert may have ended before the window, which only an old cursor
        # shows.
        steps = progress
    known_steps = recent(progress, min(span.from_ms, _or_none(counts["first_ms"])))
    in_order = events(ordered, decided, known_steps, steps)
    followed = follow_all(in_order).where(span.holds("window_ms"))
    return _all([_plain_deliveries(plain), followed, unreadable])


def _all(frames: list[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, frames)


def _described(ordered: DataFrame, messages: DataFrame, *, has_fired: bool) -> DataFrame:
    """Records in the order of the logs -> the same with `occurrence`, 0 for a series without a
    first time."""
    if not has_fired:
        return ordered.withColumn("occurrence", f.lit(None).cast("int"))
    untimed = _untimed(messages, ordered.where(may_act()))
    return ordered.join(untimed, ["shard", "offset"], "left")


def _untimed(messages: DataFrame, acting: DataFrame) -> DataFrame:
    """`shard`, `offset`, `occurrence` 0: series whose first time is left to their cron expression,
    as far as a `fire-now` names them."""
    fired = acting.where(f.col("verb") == "fire-now").select("shard", "id").distinct()
    is_series = f.expr(
        f"exists(headers, header -> {_FOLDED} = '{REPEAT}' AND ltrim(decode(header.value, "
        "'UTF-8')) LIKE 'cron%')"
    )
    has_time = f.expr(f"exists(headers, header -> {_FOLDED} IN ('{DELIVER_AT}', '{DELAY}'))")
    records = messages.where(f.col("verb").isin("schedule", "replace")).join(
        f.broadcast(fired), ["shard", "id"], "left_semi"
    )
    return records.where(is_series & ~has_time).select(
        "shard", "offset", f.lit(0).alias("occurrence")
    )


_FOLDED = "replace(lower(header.name), '_', '-')"


def _compared(registered: DataFrame) -> DataFrame:
    """What an upsert compares of these records, for `timeline.Event`."""
    return registered.mapInArrow(
        _compare_batches,
        "shard int, offset long, upserts boolean, is_at boolean, rhythm string, "
        "is_series boolean, key_of_target binary, first_occurrence int",
    )


_COMPARED_TYPES = (
    ("shard", pa.int32()),
    ("offset", pa.int64()),
    ("upserts", pa.bool_()),
    ("is_at", pa.bool_()),
    ("rhythm", pa.string()),
    ("is_series", pa.bool_()),
    ("key_of_target", pa.binary()),
    ("first_occurrence", pa.int32()),
)


def _compare_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        names = ("shard", "offset", "timestamp_ms", "key", "value", "headers")
        rows = []
        for shard, offset, timestamp_ms, key, value, headers in zip(
            *(batch.column(name).to_pylist() for name in names), strict=True
        ):
            pairs = [(pair["name"], pair["value"]) for pair in headers]
            rules = Rules(shard=shard, shards=shard + 1, max_delay_ms=NO_LIMIT_MS)
            command = parse(Record(offset, timestamp_ms, key, value, pairs), rules)
            assert isinstance(command, Entry | ConditionalSchedule), "an accepted message"
            is_plain = isinstance(command, Entry)
            entry = command if isinstance(command, Entry) else command.entry
            rows.append(
                (
                    shard,
                    offset,
                    not is_plain and command.on_conflict is OnConflict.UPSERT,  # type: ignore[union-attr]
                    not is_plain and command.is_at,  # type: ignore[union-attr]
                    repr(rhythm(entry)),
                    repetition_of(entry) is not None,
                    entry.key,
                    entry.occurrence,
                )
            )
        columns = zip(*rows, strict=True) if rows else ((),) * len(_COMPARED_TYPES)
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(list(column), kind)
                for column, (_, kind) in zip(columns, _COMPARED_TYPES, strict=True)
            ],
            names=[name for name, _ in _COMPARED_TYPES],
        )


def _plain_deliveries(marked: DataFrame) -> DataFrame:
    """Promised deliveries of records that were refused, or are to be delivered once as
    requested."""
    return marked.select(
        "shard",
        f.col("offset").alias("source_offset"),
        f.lit(1).alias("occurrence"),
        f.lit(1).alias("attempt"),
        "id",
        "target",
        "accepted_ms",
        f.coalesce("requested_due_ms", "due_ms").alias("requested_due_ms"),
        "due_ms",
        f.greatest("due_ms", "accepted_ms").alias("place_ms"),
        f.when(f.col("refused_for").isNotNull(), _refused_end()).alias("ended"),
        f.col("refused_for").alias("reason"),
        f.col("due_ms").alias("window_ms"),
    )


def _refused_end() -> Column:
    """The end of a refused record; a record held to be forwarded has none yet, whatever the logs
    prove to be settled."""
    return f.when(f.col("waits"), "pending").otherwise("rejected")


def _unreadable(messages: DataFrame, refusals: DataFrame, span: Span) -> DataFrame:
    """Records that could not be parsed; they have no due time, so their timestamp stands for it."""
    found = messages.where(
        span.within(MESSAGES) & (f.col("verb") == "refused") & span.holds("timestamp_ms")
    )
    # An action on a generated id of another shard is no command here.
    elsewhere = f.col("refused_for").isin(Reason.FORWARDED.label, Reason.HELD.label)
    found = found.join(refusals, ["shard", "offset"], "left").where(
        ~f.coalesce(elsewhere, f.lit(False))
    )
    moment = f.col("timestamp_ms")
    return found.select(
        "shard",
        f.col("offset").alias("source_offset"),
        f.lit(1).alias("occurrence"),
        f.lit(1).alias("attempt"),
        "id",
        f.lit(None).cast("string").alias("target"),
        moment.alias("accepted_ms"),
        moment.alias("requested_due_ms"),
        moment.alias("due_ms"),
        moment.alias("place_ms"),
        _refused_end().alias("ended"),
        f.coalesce("refused_for", "reason").alias("reason"),
        moment.alias("window_ms"),
    )


def stepped_over(decisions: DataFrame, offsets: DataFrame, span: Span) -> DataFrame:
    """Tables `decisions` and `offsets` -> `PROMISED` for the records that could not be read, and
    are not in `messages`.

    Their due times are not known, so the time of the decision stands for them.
    """
    found = decisions.where(
        span.within(DECISIONS) & (f.col("outcome") == "refused") & span.holds("decided_ms")
    ).alias("made")
    decisions = decisions.where(decided_since(span.from_ms))
    ranges = f.broadcast(offsets.where(f.col("gap_reason") == UNREADABLE)).alias("gap")
    is_in = f.expr(
        "made.shard = gap.partition AND made.source_offset >= gap.from_offset AND "
        "made.source_offset < gap.until_offset"
    )
    moment = f.col("decided_ms")
    waiting = held(decisions).where("waits").select("shard", "source_offset", "waits")
    judged = found.join(ranges, is_in, "left_semi").join(
        waiting, ["shard", "source_offset"], "left"
    )
    return judged.select(
        "shard",
        "source_offset",
        "occurrence",
        "attempt",
        f.lit(None).cast("binary").alias("id"),
        f.lit(None).cast("string").alias("target"),
        moment.alias("accepted_ms"),
        moment.alias("requested_due_ms"),
        moment.alias("due_ms"),
        moment.alias("place_ms"),
        _refused_end().alias("ended"),
        "reason",
        moment.alias("window_ms"),
    )


# --- the deliveries in the targets


def received(deliveries: DataFrame, delay_topic: str, span: Span) -> DataFrame:
    """Table `deliveries` -> for each token and topic the number of records and the time of the
    first.

    `span` is a window of requested times. A record that is in the archive twice counts once.
    """
    ours = deliveries.where(
        span.within(DELIVERIES) & span.holds("due_at_ms") & (f.col("source_topic") == delay_topic)
    )
    address = f.shiftleft(f.col("partition").cast("long"), _PARTITION_SHIFT) + f.col("offset")
    found = ours.groupBy(
        "shard", "source_offset", "occurrence", f.col("topic").alias("target")
    ).agg(
        f.count("*").alias("records"),
        f.min(address).alias("first_address"),
        f.max(address).alias("last_address"),
        f.min("timestamp_ms").alias("delivered_ms"),
    )
    count = f.when(
        f.col("first_address") == f.col("last_address"), f.lit(1).cast("long")
    ).otherwise(f.col("records"))
    return found.select(
        "shard", "source_offset", "occurrence", "target", count.alias("deliveries"), "delivered_ms"
    )


# --- the judgement


def outcomes(
    promised: DataFrame, found: DataFrame, evidence: DataFrame, any_frontier: DataFrame
) -> DataFrame:
    """`PROMISED`, `received`, `coverage.EVIDENCE` and each shard's last frontier -> each delivery
    with outcome and reason.

    The first that holds, in this order: duplicated, early, delivered, how it ended otherwise,
    pending, unknown, missing. A message that was delivered although it had ended otherwise has two
    ends, and counts as duplicated."""
    token = ["shard", "source_offset", "occurrence", "target"]
    joined = (
        promised.join(found, token, "left")
        .join(f.broadcast(evidence), ["shard", "target"], "left")
        .join(f.broadcast(any_frontier), "shard", "left")
    )
    deliveries = f.coalesce("deliveries", f.lit(0).cast("long"))
    is_early = f.col("delivered_ms") < f.col("due_ms") - CLOCK_TOLERANCE_MS
    ends = deliveries + f.col("ended").isNotNull().cast("int")
    settled = (f.col("source_offset") < f.col("last_offset")) & (
        f.col("place_ms") <= f.col("last_due_ms")
    )
    # A deleted record may have been the delivery of a message due, or an action on one accepted,
    # before the gap was seen.
    may_hide = _not_after("due_ms", "target_gap_ms") | _not_after("accepted_ms", "shard_gap_ms")
    # Before the target is known to have existed, a topic of its name may have held the delivery,
    # and have been deleted since.
    earliest_ms = f.greatest("due_ms", "accepted_ms")
    may_be_older = f.coalesce(
        earliest_ms < f.col("target_born_ms") + CLOCK_TOLERANCE_MS, f.lit(False)
    )
    # An election may have cost records that were delivered before it, but none that were appended
    # before the last one that is there.
    may_be_lost = f.exists(
        f.coalesce("losses", f.array()),
        lambda loss: (
            (earliest_ms <= loss["until_ms"])
            & ~((f.col("source_offset") < loss["offset"]) & (f.col("place_ms") <= loss["due_ms"]))
        ),
    )
    may_remove = _not_after("due_ms", "target_compacted_ms")
    archived = f.col("covered_offset").isNotNull()
    late_ms = f.col("delivered_ms") - earliest_ms
    cases: list[tuple[Column, str, Column | None]] = [
        ((deliveries > 0) & (ends > 1), "duplicated", f.col("ended")),
        ((deliveries > 0) & is_early, "early", None),
        (deliveries > 0, "delivered", None),
        (~f.coalesce(settled, f.lit(False)), "pending", f.lit("not-settled")),
        (~archived, "unknown", f.lit("target-not-archived")),
        (may_hide & ~is_settled("before_gap"), "unknown", f.lit("gap")),
        (may_be_older, "unknown", f.lit("gap")),
        (may_be_lost, "unknown", f.lit("gap")),
        (may_remove & ~is_settled("before_gap"), "unknown", f.lit("compacted")),
        (is_settled("covered"), "missing", None),
        (f.col("unresolved"), "unknown", f.lit("open-transaction")),
    ]
    return joined.select(
        *token[:3],
        "attempt",
        "id",
        "target",
        "accepted_ms",
        "requested_due_ms",
        "due_ms",
        _first(cases, 1, f.lit("pending")).alias("outcome"),
        f.coalesce(_first(cases, 2, f.lit("target-not-read-so-far")), "reason").alias("reason"),
        deliveries.alias("deliveries"),
        "delivered_ms",
        f.when(f.col("delivered_ms").isNotNull(), f.greatest(late_ms, f.lit(0))).alias(
            "lateness_ms"
        ),
        "window_ms",
        (
            f.coalesce(settled, f.lit(False))
            | f.coalesce(f.col("ended") != "pending", f.lit(False))
        ).alias("settled"),
    )


INNER = ("window_ms", "settled")
"""Columns of `outcomes` for what is erased, which no audit shows: the due time by which a window
selects a delivery, and whether the shard had settled it."""


def _not_after(column: str, read: str) -> Column:
    """True if the time in the column may not be after that read: two clocks differ."""
    return f.coalesce(f.col(read) + CLOCK_TOLERANCE_MS >= f.col(column), f.lit(False))


def _first(cases: list[tuple[Column, str, Column | None]], at: int, otherwise: Column) -> Column:
    """The outcome (`at` 1) or reason (`at` 2) of the first case that holds; `ended` is tested after
    the delivered cases."""
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


_REFUSED = ("shard", "source_offset", "progress_offset", "decided_ms", "reason", "waits")


def refused(decisions: DataFrame) -> DataFrame:
    """Table `decisions` -> `shard`, `offset`, `refused_for`, `refused_ms`, `waits`: the delay
    records that masters refused.

    A held record waits until a step writes it on: from that step on it was forwarded, or rejected
    for the reason it has."""
    found = decisions.where((f.col("outcome") == "refused") & f.col("destination").isNull())
    refusals = (
        found.withColumn("waits", f.lit(False)).select(*_REFUSED).unionByName(held(decisions))
    )
    # A held record may be refused by the step that writes on the others.
    last = f.max_by(f.struct("reason", "decided_ms", "waits"), "progress_offset")
    by_offset = refusals.groupBy("shard", f.col("source_offset").alias("offset")).agg(
        last.alias("last")
    )
    reason = f.coalesce("last.reason", f.lit("refused"))
    return by_offset.select(
        "shard",
        "offset",
        reason.alias("refused_for"),
        f.col("last.decided_ms").alias("refused_ms"),
        f.col("last.waits").alias("waits"),
    )


def held(decisions: DataFrame) -> DataFrame:
    """Table `decisions` -> the held records: each left its queue in the first step after it was
    held that wrote on as far as its offset.

    As `forwarded` from that step on, if it has the reason `held`; `waits` is true if there is no
    such step."""
    is_end = f.col("outcome") == WRITTEN_ON
    # Records enter a queue in the order of their offsets, so that no earlier step wrote on as far;
    # but one that was too large for its partition comes to the queue of the rejected topic later.
    is_late = (f.col("destination") == REJECTED) & (f.col("reason") == Reason.TOO_LARGE.label)
    end = f.struct("progress_offset", "decided_ms")
    from_end = (
        Window.partitionBy("shard", "destination")
        .orderBy(f.desc("source_offset"), is_end.desc())
        .rowsBetween(Window.unboundedPreceding, 0)
    )
    rows = decisions.where(f.col("destination").isNotNull())
    in_order = (
        rows.withColumn("_end", f.min(f.when(is_end, end)).over(from_end))
        .where(~is_end & ~f.coalesce(is_late, f.lit(False)))
        .withColumn("_written_ms", f.col("_end.decided_ms"))
        .drop("_end")
    )
    late, ends = (
        rows.where(~is_end & is_late).alias("late"),
        rows.where(is_end & (f.col("destination") == REJECTED)).alias("ends"),
    )
    left = (
        (f.col("late.shard") == f.col("ends.shard"))
        & (f.col("late.source_offset") <= f.col("ends.source_offset"))
        & (f.col("late.progress_offset") < f.col("ends.progress_offset"))
    )
    first = f.min(f.struct("ends.progress_offset", "ends.decided_ms")).alias("_end")
    of_late = [f.col(f"late.{name}") for name in rows.columns]
    out_of_order = (
        late.join(ends, left, "left")
        .groupBy(*of_late)
        .agg(first)
        .withColumn("_written_ms", f.col("_end.decided_ms"))
        .drop("_end")
    )
    queued = in_order.unionByName(out_of_order)
    waits = f.col("_written_ms").isNull()
    goes_on = ~waits & (f.col("reason") == Reason.HELD.label)
    changed = {
        "reason": f.when(goes_on, Reason.FORWARDED.label).otherwise(f.col("reason")),
        "decided_ms": f.coalesce("_written_ms", "decided_ms"),
        "waits": waits,
    }
    return queued.withColumns(changed).select(*_REFUSED)


def forwarded(refusals: DataFrame) -> DataFrame:
    """The result of `refused` -> `shard`, `offset`, `refused_ms`: the delay records that masters
    forwarded."""
    return refusals.where(f.col("refused_for") == Reason.FORWARDED.label).select(
        "shard", "offset", "refused_ms"
    )


def with_erased(outcomes: DataFrame, erased: DataFrame, span: Span) -> DataFrame:
    """`outcomes` and table `erased` -> `outcomes` in which what was erased has the outcome
    `erased`, and the one it had as its reason. Of a series that goes on, the logs still promise the
    occurrences that were erased."""
    here = erased.where(span.within(ERASED) & span.holds("window_ms"))
    late_ms = f.col("delivered_ms") - f.greatest("due_ms", "accepted_ms")
    rows = here.select(
        *TOKEN,
        f.lit(1).alias("attempt"),
        "accepted_ms",
        "requested_due_ms",
        "due_ms",
        f.lit("erased").alias("outcome"),
        f.col("outcome").alias("reason"),
        f.lit(0).cast("long").alias("deliveries"),
        "delivered_ms",
        f.when(late_ms.isNotNull(), f.greatest(late_ms, f.lit(0))).alias("lateness_ms"),
        "window_ms",
    )
    left = outcomes.join(here.select(*TOKEN), list(TOKEN), "left_anti")
    return left.unionByName(rows, allowMissingColumns=True)


REPLAYED = "replayed"
"""The reason of an outcome that a replay changed."""


def with_replays(outcomes: DataFrame, sent: DataFrame) -> DataFrame:
    """`outcomes` and `ledger.LEDGER` -> `outcomes` in which a replayed message is neither missing
    nor duplicated. An id that a restore sent as settled brought no message."""
    replays = (
        sent.where(f.col("outcome") != SETTLED)
        .groupBy(*TOKEN)
        .agg(
            f.count(f.when(f.col("via") == "direct", 1)).alias("direct"),
            f.max(f.col("outcome") == "missing").alias("was_missing"),
            f.max(f.col("via") == "delay").alias("by_delay"),
        )
    )
    joined = outcomes.join(replays, list(TOKEN), "left")
    outcome, reason = f.col("outcome"), f.col("reason")
    not_judged = (outcome == "pending") & (reason == "not-settled")
    is_replaced = f.col("by_delay") & ((outcome == "missing") | not_judged)
    wanted = f.col("direct") + f.when(f.col("was_missing"), 0).otherwise(1)
    # A reason names how a delivered message had ended before: that was no replay.
    is_once = (outcome == "duplicated") & reason.isNull() & (f.col("deliveries") <= wanted)
    is_early = f.col("delivered_ms") < f.col("due_ms") - CLOCK_TOLERANCE_MS
    changed = (
        f.when(is_replaced, "replaced").when(is_once & is_early, "early").when(is_once, "delivered")
    )
    return joined.select(
        *(
            f.coalesce(changed, outcome).alias(name)
            if name == "outcome"
            else f.when(changed.isNotNull(), REPLAYED).otherwise(reason).alias(name)
            if name == "reason"
            else f.col(name)
            for name in outcomes.columns
        )
    )
