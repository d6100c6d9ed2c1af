"""The messages of an archive that have an id, a target or headers, each with its outcome as an
audit judges it."""

from msgspec import Struct
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f

from chronos.spark import ledger
from chronos.spark.audit.job import archive_end, default_span, judge
from chronos.spark.audit.outcomes import Span, with_replays
from chronos.spark.backfill.selection import has_headers, requested
from chronos.spark.ledger import Request
from chronos.spark.session import Step, Watch, ignore
from chronos.spark.storage import ArchiveStorage
from chronos.spark.tables import open_tables

DAYS = 30
"""The window ends where the archive does, and begins so many days before."""


class FoundDelivery(Struct, frozen=True, kw_only=True):
    """One promised delivery: a message, or an occurrence of a series."""

    id: bytes | None
    """None: the record could not be read."""
    target: str | None
    outcome: str
    """As `chronos audit` names it."""
    reason: str | None
    shard: int
    offset: int
    """Where its record is in the delay topic."""
    occurrence: int
    attempt: int
    accepted_ms: int | None
    due_ms: int
    delivered_ms: int | None


class Found(Struct, frozen=True, kw_only=True):
    """What was found, earliest due first."""

    span: Span
    deliveries: list[FoundDelivery]
    has_more: bool


def find(
    spark: SparkSession,
    storage: ArchiveStorage,
    request: Request,
    *,
    id_prefix: str = "",
    limit: int,
    now_ms: int = 0,
    watch: Watch = ignore,
) -> Found:
    """Find the deliveries of the request's window, targets, ids and headers, at most `limit` of
    them.

    ArchiveFailed if there is no archive; EmptyWindow.
    """
    tables, _, delay_topic = open_tables(spark, storage)
    archived_ms = archive_end(
        tables, storage.uri, needs_window=request.from_ms is None and request.to_ms is None
    )
    span = default_span(archived_ms, request.from_ms, request.to_ms, now_ms, days=DAYS)
    watch(Step(name="reading the coverage of the archive"))
    rows = judge(tables, delay_topic, span).outcomes
    if ledger.runs(storage):
        rows = with_replays(rows, ledger.sent_rows(spark, storage))
    rows = requested(rows, request).where(_begins_with(id_prefix))
    if request.headers:
        records = tables.messages.where(has_headers(request)).select(
            "shard", f.col("offset").alias("source_offset")
        )
        rows = rows.join(records, ["shard", "source_offset"], "left_semi")
    watch(Step(name="looking for the messages"))
    found = (
        rows.orderBy("due_ms", "shard", "source_offset", "occurrence").limit(limit + 1).collect()
    )
    deliveries = [
        FoundDelivery(
            id=None if row["id"] is None else bytes(row["id"]),
            target=row["target"],
            outcome=row["outcome"],
            reason=row["reason"],
            shard=row["shard"],
            offset=row["source_offset"],
            occurrence=row["occurrence"],
            attempt=row["attempt"],
            accepted_ms=row["accepted_ms"],
            due_ms=row["due_ms"],
            delivered_ms=row["delivered_ms"],
        )
        for row in found[:limit]
    ]
    return Found(span=span, deliveries=deliveries, has_more=len(found) > limit)


def _begins_with(id_prefix: str) -> Column:
    return f.hex("id").startswith(id_prefix.encode().hex().upper()) if id_prefix else f.lit(True)
