"""Which messages are to be replayed: pure transformations, fates of the audit in, tokens and whole records out."""

from collections.abc import Callable, Mapping
from fnmatch import translate

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from chronos.core.message import OCCURRENCE, PREFIX, SOURCE
from chronos.spark.audit.outcomes import Span
from chronos.spark.codec import header_text
from chronos.spark.ledger import OWN, REPLAY_OF, TOKEN, Request

ALL = ("delivered", "missing", "duplicated", "early", "unknown")
"""What was, or should have been, delivered in the window; what ended otherwise is not replayed."""

UNIT = (*TOKEN, "id", "target", "due_ms", "outcome")

PLAN = (*UNIT, "key", "value", "headers", "target_key", "expire_at_ms", "bytes")
"""Columns of a plan: the unit, and the record that asked for it."""

ADDED_BYTES_MAX = 450
"""What a replay has beside texts of any length: names of headers, numbers, lengths, and the batch around it."""

HEADER_BYTES = 8
"""Most bytes that say how long a header's name and value are."""


def wanted(fates: DataFrame, request: Request, lost_below: Mapping[int, int]) -> DataFrame:
    """`fates` -> `UNIT` of what is asked for, by outcome, target and id.

    `pending` are those not settled by what was archived whose records are in the delay topic no more: `lost_below` is
    where each shard's log begins now. What is still in it, Chronos reads there itself.
    """
    return fates.where(_outcome(request.mode, lost_below) & _target(request) & _id(request)).select(*UNIT)


def _outcome(mode: str, lost_below: Mapping[int, int]) -> Column:
    outcome, reason = f.col("outcome"), f.col("reason")
    if mode == "missing":
        return outcome == "missing"
    if mode in ("all", "gone"):
        return outcome.isin(*ALL) | ((outcome == "pending") & (reason == "target-not-read-so-far"))
    assert mode == "pending"
    lost = f.lit(False)
    for shard, start in lost_below.items():
        lost |= (f.col("shard") == shard) & (f.col("source_offset") < start)
    return (outcome == "pending") & (reason == "not-settled") & lost


def _target(request: Request) -> Column:
    found = f.lit(not request.targets)
    for pattern in request.targets:
        found |= f.col("target").rlike(f"^{translate(pattern)}")
    return found


def _id(request: Request) -> Column:
    return f.lit(True) if not request.ids else f.hex("id").isin([each.upper() for each in request.ids])


def held(records: DataFrame, delay_topic: str) -> DataFrame:
    """Records of targets, with `headers` -> `target` and tokens of what they hold, be it as a replay."""
    numbers = r"^(.*)/([0-9]+)/([0-9]+)/([0-9]+)$"
    own = f.concat_ws("/", header_text(SOURCE), f.coalesce(header_text(OCCURRENCE), f.lit("1")))
    found = records.select(
        f.col("topic").alias("target"),
        f.explode(f.array(own, f.coalesce(header_text(REPLAY_OF), f.lit("")))).alias("of"),
    ).where(f.regexp_extract("of", numbers, 1) == delay_topic)
    part = [f.regexp_extract("of", numbers, at).try_cast(kind) for at, kind in ((2, "int"), (3, "long"), (4, "int"))]
    tokens = found.select("target", *(each.alias(name) for each, name in zip(part, TOKEN, strict=True)))
    return tokens.dropna().distinct()  # a number no column holds is nobody's


def replays(messages: DataFrame, span: Span) -> DataFrame:
    """Table `messages` -> `shard`, `source_offset`, and `of`: those that are replays, of what."""
    own = f.filter("headers", lambda pair: pair["name"] == REPLAY_OF)
    seen = messages.where(span.hours()).select("shard", f.col("offset").alias("source_offset"), own.alias("own"))
    return seen.where(f.size("own") > 0).select(
        "shard", "source_offset", f.col("own")[0]["value"].cast("string").alias("of")
    )


def without_copies(units: DataFrame, copies: DataFrame, delay_topic: str) -> DataFrame:
    """Units and `replays` -> the units without the replays of what is among them itself, or is replayed before."""
    of = units.select(f.concat_ws("/", f.lit(delay_topic), *TOKEN).alias("of")).distinct()
    found = units.select(*TOKEN).join(copies, ["shard", "source_offset"])
    of_present = found.join(of, "of", "left_semi").select(*TOKEN)
    first = found.groupBy("of").agg(f.min(f.struct("shard", "source_offset")).alias("first"))
    later = found.join(first, "of").where(f.struct("shard", "source_offset") != f.col("first")).select(*TOKEN)
    return units.join(of_present.unionByName(later), list(TOKEN), "left_anti")


def marked(units: DataFrame, ledger: DataFrame, purpose: str) -> DataFrame:
    """Units -> the same with `is_sent`: whether the ledger holds them for the purpose."""
    sent = ledger.where(f.col("purpose") == purpose).select(*TOKEN).distinct().withColumn("_sent", f.lit(True))
    return units.join(sent, list(TOKEN), "left").withColumn("is_sent", f.coalesce("_sent", f.lit(False))).drop("_sent")


def with_records(units: DataFrame, messages: DataFrame, span: Span | None) -> DataFrame:
    """Units and table `messages` -> `PLAN`. With a span: of those that were due in it from the beginning."""
    here = messages if span is None else messages.where(span.hours())
    records = here.select(
        "shard", f.col("offset").alias("source_offset"), "key", "value", "headers", "target_key", "expire_at_ms"
    )
    size = f.coalesce(f.length("value"), f.lit(0)).cast("long")
    return units.join(records, ["shard", "source_offset"]).withColumn("bytes", size).select(*PLAN)


def left_out(request: Request, planned_ms: int, topic: str) -> Column:
    """Why a row of `PLAN` is not sent; null: it is. `bytes_max` and `compacted` are of the topic it goes to.

    One record that its topic does not take would keep all behind it from ever being sent.
    """
    is_expired = f.lit(not request.expired) & (f.col("expire_at_ms") < planned_ms)
    is_untaken = f.col("bytes_max").isNull() | (f.col("keyed_only") & f.col("target_key").isNull())
    is_large = replay_bytes(request, topic) > f.col("bytes_max")
    return f.when(is_expired, "expired").when(is_untaken, "no-target").when(is_large, "too-large")


def replay_bytes(request: Request, topic: str) -> Column:
    """At most so many bytes a batch takes that holds nothing but the replay of a row: see `core.size`."""

    def size(column: str | Column) -> Column:
        return f.coalesce(f.octet_length(column), f.lit(0))

    kept = f.filter("headers", lambda pair: ~pair["name"].startswith(PREFIX) & ~pair["name"].isin(*OWN))
    headers = f.aggregate(
        kept, f.lit(0), lambda total, pair: total + size(pair["name"]) + size(pair["value"]) + HEADER_BYTES
    )
    texts = size("value") + size("target_key") + size("target") + 2 * size("id") + f.coalesce(headers, f.lit(0))
    return texts + 2 * len(topic) + len(request.purpose) + ADDED_BYTES_MAX


def has_headers(request: Request) -> Column:
    """Whether a record has all headers that are asked for."""
    found = f.lit(True)
    for name, value in request.headers:
        found &= f.coalesce(f.exists("headers", _is_header(name, f.lit(value).cast("binary"))), f.lit(False))
    return found


def _is_header(name: str, value: Column) -> Callable[[Column], Column]:
    return lambda pair: (pair["name"] == name) & (pair["value"] == value)
