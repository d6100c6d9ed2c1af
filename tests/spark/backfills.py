"""The backfills of an archive, without the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronos.adapters.kafka.writer import BulkOpener
from chronos.spark.backfill.job import Backfill
from chronos.spark.backfill.sending import BackfillContext, KafkaSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from chronos.adapters.kafka.log import KafkaLog
    from chronos.spark.storage import ArchiveStorage


def opener_of(bootstrap: str) -> BulkOpener:
    """Opens producers for a cluster."""
    return BulkOpener(bootstrap_servers=bootstrap, properties={}, timeout_s=30.0)


def source_of(brokers: KafkaLog, bootstrap: str) -> KafkaSource:
    """A cluster that is read."""
    return KafkaSource(brokers=brokers, options={"kafka.bootstrap.servers": bootstrap})


def backfill_of(
    spark: SparkSession,
    storage: ArchiveStorage,
    brokers: KafkaLog,
    bootstrap: str,
    *,
    delay_topic: str | None = None,
    to: tuple[KafkaLog, str] | None = None,
) -> Backfill:
    """A new driver, which knows only the archive and the log. `to`: brokers and address of another
    cluster to send to."""
    archived = source_of(brokers, bootstrap)
    context = BackfillContext(
        spark=spark,
        storage=storage,
        archived=archived,
        to=archived if to is None else source_of(*to),
        opener=opener_of(bootstrap if to is None else to[1]),
    )
    return Backfill(context, delay_topic=delay_topic)
