"""Selection of the messages to replay: pure transformations, outcomes of the audit in, rows of a
plan out.

It sends nothing and asks no broker. Law: a message and its replays count as one message.
"""

from collections.abc import Callable, Mapping, Sequence
from fnmatch import translate

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from chronos.core.clock import CLOCK_TOLERANCE_MS
from chronos.core.message import (
    DUE_AT,
    ID,
    OCCURRENCE,
    PREFIX,
    REPEAT,
    REPLAYED,
    RESOLUTION,
    RESOLVED,
    SOURCE,
    Reason,
)
from chronos.spark.audit.outcomes import Span, pulled_below
from chronos.spark.codec import header, header_number, header_text
from chronos.spark.ledger import (
    KEPT,
    OWN,
    REPLAY_OF,
    REPLAY_POSITION,
    SERIES,
    SETTLED,
    TOKEN,
)
from chronos.spark.request import BackfillRequest
from chronos.spark.schema import MESSAGES

ALL = ("delivered", "missing", "duplicated", "early", "unknown")
"""Outcomes of messages that were, or should have been, delivered; a message that ended otherwise is
not replayed."""

DELIVERY = (*TOKEN, "id", "target", "requested_due_ms", "due_ms", "outcome")
"""Columns that a plan has of a promised delivery. `due_ms` is later than the requested time by the
spread."""

PLAN = (*DELIVERY, "key", "value", "headers", "target_key", "expire_at_ms", "bytes")
"""Columns of a plan: the promised delivery, and the record that scheduled it."""

ADDED_BYTES_MAX = 480
"""Most bytes of a replay besides its variable texts: header names, numbers, lengths, and the batch
around it."""

HEADER_BYTES = 8
"""Most bytes for the lengths of a header's name and value."""


def requested(outcomes: DataFrame, request: BackfillRequest) -> DataFrame:
    """`outcomes` -> those of the requested targets and ids, whatever the outcome."""
    return outcomes.where(_target(request) & has_id(request))


def selected(
    outcomes: DataFrame, request: BackfillRequest, lost_below: Mapping[int, int]
) -> DataFrame:
    """`outcomes` -> `DELIVERY` of the requested messages, by outcome, target and id.

    Mode `pending` selects messages that the archive does not prove settled, or that were held to be
    forwarded, and whose records are no longer in the delay topic: `lost_below` is the offset each
    shard's log begins at now. Records still in it Chronos reads itself."""
    return requested(outcomes, request).where(_outcome(request, lost_below)).select(*DELIVERY)


def restored(outcomes: DataFrame, request: BackfillRequest, archived_ms: int) -> DataFrame:
    """`outcomes` -> `DELIVERY` of a restore, from an archive that holds what was settled up to
    `archived_ms`.

    With the outcome `pending`, what was not settled at the archive's end; with `unknown`, what was
    due by the loss, so that it may have been delivered after that end; with SETTLED, ids delivered
    within the deduplication window, each once."""
    assert request.lost_ms is not None, "only a restore is selected so"
    outcome, reason = f.col("outcome"), f.col("reason")
    may_be_delivered = f.lit(request.lost_ms > archived_ms) & (
        f.col("due_ms") <= request.lost_ms + CLOCK_TOLERANCE_MS
    )
    waits = (outcome == "pending") & reason.isin("not-settled", Reason.HELD.label)
    pending = outcomes.where(waits).withColumn(
        "outcome", f.when(may_be_delivered, "unknown").otherwise("pending")
    )
    # The shard took these as delivered, whether the target is known to hold them or not.
    ended = outcome.isin(*ALL) | ((outcome == "pending") & (reason == "target-not-read-so-far"))
    ended_ms = f.coalesce("delivered_ms", f.greatest("due_ms", "accepted_ms"))
    since_ms = request.lost_ms - request.deduplication_ms
    last = f.max_by(f.struct(*DELIVERY), f.struct("ended_ms", *TOKEN)).alias("last")
    settled = (
        outcomes.where(ended & (ended_ms >= since_ms))
        .join(pending.select("id").distinct(), "id", "left_anti")
        .withColumns({"outcome": f.lit(SETTLED), "ended_ms": ended_ms})
        .groupBy(f.col("id").alias("of"))
        .agg(last)
        .select("last.*")
    )
    return pending.select(*DELIVERY).unionByName(settled.select(*DELIVERY))


def without_cancelled(deliveries: DataFrame, messages: DataFrame, progress: DataFrame) -> DataFrame:
    """`DELIVERY`, and tables `messages` and `progress` -> those without the pending messages that a
    cancel names which came later, and which no step has executed.

    Other actions of that kind do not count: the service might have refused them."""
    waiting = (
        messages.where(f.col("verb") == "cancel")
        .join(f.broadcast(pulled_below(progress)), "shard", "left")
        .where(f.col("offset") >= f.coalesce("pulled", f.lit(0)))
        .groupBy("shard", "id")
        .agg(f.max("offset").alias("cancelled_at"))
    )
    is_cancelled = f.coalesce(f.col("cancelled_at") > f.col("source_offset"), f.lit(False))
    return (
        deliveries.join(waiting, ["shard", "id"], "left")
        .where(~is_cancelled | (f.col("outcome") == SETTLED))
        .select(*DELIVERY)
    )


def _outcome(request: BackfillRequest, lost_below: Mapping[int, int]) -> Column:
    mode, outcome, reason = request.mode, f.col("outcome"), f.col("reason")
    if mode == "dead-letters":
        if not request.reasons:
            return outcome == "dead-lettered"
        # An occurrence that expired has that outcome, and perhaps no reason.
        why = f.when(outcome == "expired", "expired").otherwise(reason)
        return outcome.isin("dead-lettered", "expired") & why.isin(request.reasons)
    if mode == "rejected":
        # A record that is no valid command has no target.
        is_valid = (outcome == "rejected") & f.col("target").isNotNull()
        return is_valid & reason.isin(request.reasons)
    if mode == "missing":
        return outcome == "missing"
    if mode in ("all", "gone"):
        return outcome.isin(*ALL) | ((outcome == "pending") & (reason == "target-not-read-so-far"))
    assert mode == "pending"
    lost = f.lit(False)
    for shard, start in lost_below.items():
        lost |= (f.col("shard") == shard) & (f.col("source_offset") < start)
    return (outcome == "pending") & reason.isin("not-settled", Reason.HELD.label) & lost


def _target(request: BackfillRequest) -> Column:
    found = f.lit(not request.targets)
    for pattern in request.targets:
        found |= f.col("target").rlike(f"^{translate(pattern)}")
    return found


def has_id(request: BackfillRequest) -> Column:
    """True for a row with one of the requested ids."""
    return (
        f.lit(True) if not request.ids else f.hex("id").isin([each.upper() for each in request.ids])
    )


def in_targets(
    records: DataFrame, delay_topic: str, replay_of: Column | None = None, **kept: Column
) -> DataFrame:
    """Records of targets, with `headers` -> `target` and token of each message they hold, originals
    and replays.

    `kept`: further columns. `replay_of`: the message that a record replays, by default as its
    header names it."""
    numbers = r"^(.*)/([0-9]+)/([0-9]+)/([0-9]+)$"
    own = f.concat_ws("/", header_text(SOURCE), f.coalesce(header_text(OCCURRENCE), f.lit("1")))
    found = records.select(
        f.col("topic").alias("target"),
        f.explode(
            f.array(
                own,
                f.coalesce(header_text(REPLAY_OF) if replay_of is None else replay_of, f.lit("")),
            )
        ).alias("of"),
        *(column.alias(name) for name, column in kept.items()),
    ).where(f.regexp_extract("of", numbers, 1) == delay_topic)
    part = [
        f.regexp_extract("of", numbers, at).try_cast(kind)
        for at, kind in ((2, "int"), (3, "long"), (4, "int"))
    ]
    tokens = found.select(
        "target", *(each.alias(name) for each, name in zip(part, TOKEN, strict=True)), *kept
    )
    return tokens.dropna().distinct()  # a number out of range is the token of no message


def without_present(
    deliveries: DataFrame, records: DataFrame, delay_topic: str, *, runs: Sequence[str] | None
) -> DataFrame:
    """`DELIVERY` -> those that the records of the targets, with `headers`, do not hold, neither
    themselves nor as a replay.

    `runs`: None if receipts name the messages of the archive. Otherwise the delay topic was created
    again: the same token may name another message, so that the id and the due time must agree too,
    and a replay must be one of these runs."""
    if runs is None:
        return deliveries.join(in_targets(records, delay_topic), ["target", *TOKEN], "left_anti")
    receipts = in_targets(
        records,
        delay_topic,
        id=header(ID),
        requested_due_ms=header_number(DUE_AT),
        replay_of=f.lit(None).cast("string"),
    )
    run = f.substring_index(header_text(REPLAY_POSITION), "/", 1)
    replayed = in_targets(records.where(run.isin(list(runs))), delay_topic)
    left = deliveries.join(receipts, ["target", *TOKEN, "id", "requested_due_ms"], "left_anti")
    return left.join(replayed, ["target", *TOKEN], "left_anti")


def without_resolved(
    deliveries: DataFrame, letters: DataFrame, messages: DataFrame, delay_topic: str
) -> DataFrame:
    """`DELIVERY`, tables `dead_letters` and `messages` -> those whose dead letter was neither
    replayed nor discarded. The marker of a replay may be missing: its message is there before."""
    place = ["topic", "partition"]
    part = f.explode(f.split(header_text(RESOLVED), ","))
    markers = letters.where(header(RESOLUTION).isNotNull()).select(*place, part.alias("part"))
    ranges = markers.select(
        *place,
        f.substring_index("part", "-", 1).try_cast("bigint").alias("first"),
        f.substring_index("part", "-", -1).try_cast("bigint").alias("last"),
    )
    own = letters.where(f.col("source_topic") == delay_topic).select(*place, "offset", *TOKEN)
    marked = own.join(ranges, place).where("offset BETWEEN first AND last").select(*TOKEN)
    of = header_text(REPLAYED)
    name = f.concat_ws("/", f.lit(delay_topic), *TOKEN)
    # Of a message that is no series, the header has no occurrence.
    whole = f.when(f.size(f.split(of, "/")) == 3, f.concat(of, f.lit("/1"))).otherwise(of)
    replayed = messages.where(of.isNotNull()).select(whole.alias("of")).distinct()
    left = deliveries.join(marked, list(TOKEN), "left_anti").withColumn("of", name)
    return left.join(replayed, "of", "left_anti").drop("of")


def gone_from(deliveries: DataFrame, archived: DataFrame, partitions: DataFrame) -> DataFrame:
    """`DELIVERY` of gone messages, table `deliveries` and `target`, `partition`, `log_start` (null:
    another topic, or none) -> for each target and partition the messages `deleted` before the log's
    start, and those `lost`."""
    held = archived.groupBy(f.col("topic").alias("target"), *TOKEN).agg(
        f.max(f.struct("offset", "partition")).alias("at")
    )
    placed = deliveries.join(held, ["target", *TOKEN], "left").select(
        "target", f.col("at.partition").alias("partition"), f.col("at.offset").alias("offset")
    )
    found = placed.join(f.broadcast(partitions), ["target", "partition"], "left")
    is_deleted = f.coalesce(f.col("offset") < f.col("log_start"), f.lit(False))
    return found.groupBy("target", "partition").agg(
        f.count(f.when(is_deleted, 1)).alias("deleted"),
        f.count(f.when(~is_deleted, 1)).alias("lost"),
        f.max("log_start").alias("log_start"),
    )


def replays(messages: DataFrame, span: Span) -> DataFrame:
    """Table `messages` -> `shard`, `source_offset` of the replays, and `of`: the message each one
    repeats."""
    own = f.filter("headers", lambda pair: pair["name"] == REPLAY_OF)
    seen = messages.where(span.within(MESSAGES)).select(
        "shard", f.col("offset").alias("source_offset"), own.alias("own")
    )
    return seen.where(f.size("own") > 0).select(
        "shard", "source_offset", f.col("own")[0]["value"].cast("string").alias("of")
    )


def without_copies(deliveries: DataFrame, copies: DataFrame, delay_topic: str) -> DataFrame:
    """`DELIVERY` and `replays` -> the deliveries without replays whose original, or an earlier
    replay of it, is among them."""
    of = deliveries.select(f.concat_ws("/", f.lit(delay_topic), *TOKEN).alias("of")).distinct()
    found = deliveries.select(*TOKEN).join(copies, ["shard", "source_offset"])
    of_present = found.join(of, "of", "left_semi").select(*TOKEN)
    first = found.groupBy("of").agg(f.min(f.struct("shard", "source_offset")).alias("first"))
    later = (
        found.join(first, "of")
        .where(f.struct("shard", "source_offset") != f.col("first"))
        .select(*TOKEN)
    )
    return deliveries.join(of_present.unionByName(later), list(TOKEN), "left_anti")


def marked(deliveries: DataFrame, ledger: DataFrame, purpose: str) -> DataFrame:
    """`DELIVERY` -> the same with `is_sent`: true if the ledger holds it for the purpose."""
    sent = (
        ledger.where(f.col("purpose") == purpose)
        .select(*TOKEN)
        .distinct()
        .withColumn("_sent", f.lit(True))
    )
    return (
        deliveries.join(sent, list(TOKEN), "left")
        .withColumn("is_sent", f.coalesce("_sent", f.lit(False)))
        .drop("_sent")
    )


def with_records(deliveries: DataFrame, messages: DataFrame, span: Span | None) -> DataFrame:
    """`DELIVERY` and table `messages` -> `PLAN`. With a span: only messages whose record was due
    within it.

    Each occurrence of a series expires as long after its time as the first one, and one that is
    moved to a later time, as in a pause, takes its expiry along (`core.series.expires_ms`).
    """
    here = messages if span is None else messages.where(span.within(MESSAGES))
    records = here.select(
        "shard",
        f.col("offset").alias("source_offset"),
        "key",
        "value",
        "headers",
        "target_key",
        "expire_at_ms",
        f.col("requested_due_ms").alias("first_due_ms"),
    )
    since_first = f.col("requested_due_ms") - f.col("first_due_ms")
    expires_later = (
        f.when(f.col("occurrence") > 1, since_first)
        .when(_is_series(), f.greatest(since_first, f.lit(0)))
        .otherwise(0)
    )
    is_message = f.col("outcome") != SETTLED
    found = deliveries.join(records, ["shard", "source_offset"])
    columns = {
        "bytes": f.when(is_message, f.length("value")),
        "expire_at_ms": f.when(is_message, f.col("expire_at_ms") + expires_later),
        **{name: f.when(is_message, f.col(name)) for name in ("value", "headers", "target_key")},
    }
    columns["bytes"] = f.coalesce(columns["bytes"], f.lit(0)).cast("long")
    return found.withColumns(columns).select(*PLAN)


def _is_series() -> Column:
    """True for a record of a series."""
    # As `core.message.folded_name` spells it.
    is_repeat = lambda pair: f.translate(f.lower(pair["name"]), "_", "-") == REPEAT  # noqa: E731
    return f.coalesce(f.exists("headers", is_repeat), f.lit(False))


def left_out(request: BackfillRequest, planned_ms: int, topic: str) -> Column:
    """The reason why a row of `PLAN` is not sent; null if it is sent. `bytes_max` and `compacted`
    are of the topic it goes to, `target_compacted` of its target.

    A record that its topic refuses would block all records after it for ever. In a compacted
    target a replay of an old message takes the place of a newer record of its key; what was still
    pending is no replay. A series goes on, though its pending occurrence may have been delivered;
    and only an id that is a key can be taken again."""
    is_expired = f.lit(not request.expired) & (f.col("expire_at_ms") < planned_ms)
    has_no_target = f.col("bytes_max").isNull() | (
        f.col("compacted") & f.col("target_key").isNull()
    )
    is_older = f.lit(not request.compacted and request.mode != "pending") & f.coalesce(
        "target_compacted", f.lit(False)
    )
    is_large = replay_bytes(request, topic) > f.col("bytes_max")
    is_unknown = f.lit(request.is_restore and not request.repeat_unknown) & (
        (f.col("outcome") == "unknown") & ~_is_series()
    )
    has_no_id = (f.col("outcome") == SETTLED) & f.col("key").isNull()
    refused = (
        f.when(has_no_id, "no-id")
        .when(is_unknown, "unknown")
        .when(is_expired, "expired")
        .when(has_no_target, "no-target")
    )
    return refused.when(is_older, "compacted").when(is_large, "too-large")


def replay_bytes(request: BackfillRequest, topic: str) -> Column:
    """Most bytes of a batch that holds only the replay of a row: see `core.size`."""

    def size(column: str | Column) -> Column:
        return f.coalesce(f.octet_length(column), f.lit(0))

    kept = f.filter(
        "headers",
        lambda pair: (
            (~pair["name"].startswith(PREFIX) & ~pair["name"].isin(*OWN))
            | pair["name"].isin(*KEPT, *SERIES)
        ),
    )
    headers = f.aggregate(
        kept,
        f.lit(0),
        lambda total, pair: total + size(pair["name"]) + size(pair["value"]) + HEADER_BYTES,
    )
    texts = (
        size("value")
        + size("target_key")
        + size("target")
        + 2 * size("id")
        + f.coalesce(headers, f.lit(0))
    )
    to_topic = "" if request.direct else request.to_topic or ""
    names = 2 * len(topic) + 2 * len(to_topic) + len(request.purpose)
    return texts + names + ADDED_BYTES_MAX


def has_headers(request: BackfillRequest) -> Column:
    """True for a record that has all requested headers."""
    found = f.lit(True)
    for name, value in request.headers:
        found &= f.coalesce(
            f.exists("headers", _is_header(name, f.lit(value).cast("binary"))), f.lit(False)
        )
    return found


def _is_header(name: str, value: Column) -> Callable[[Column], Column]:
    return lambda pair: (pair["name"] == name) & (pair["value"] == value)
