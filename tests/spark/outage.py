"""A cluster that delivers, its archive, and backfills from it: the parts of the outage drills."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any, Self

from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession

from chronos.adapters.kafka.log import KafkaLog
from chronos.core.clock import CLOCK_TOLERANCE_MS
from chronos.spark.archive.job import ArchivePlan, archive
from chronos.spark.audit.job import Audit, audit
from chronos.spark.backfill.job import Backfill
from chronos.spark.ledger import BackfillReport
from chronos.spark.request import BackfillRequest
from chronos.spark.session import ignore
from chronos.spark.storage import ArchiveStorage
from tests.harness.broker import Broker
from tests.harness.service import Service
from tests.harness.waiting import check_deadline
from tests.integration.flow import (
    SHARDS,
    TARGET_PARTITIONS,
    Found,
    KafkaFlow,
    Sent,
    Watermarks,
    now_ms,
    read_committed,
)
from tests.spark.backfills import backfill_of


class Outage:
    """Messages of a flow, one node that delivers them, and an archive of all of it."""

    def __init__(self, spark: SparkSession, broker: Broker, directory: Path, seed: int) -> None:
        self.spark = spark
        self.broker = broker
        self.flow = KafkaFlow(broker, seed)
        self.directory = directory
        self.storage = ArchiveStorage(str(directory / "archive"))
        self.service = Service(
            directory / "node", bootstrap=broker.bootstrap, settings=self.flow.settings()
        )
        self.brokers = KafkaLog(
            bootstrap_servers=broker.bootstrap,
            properties={},
            progress_topic=f"{self.flow.prefix}.progress",
            transaction_timeout_s=10,
        )
        self.delay = self.flow.delay
        self.later: list[Sent] = []
        """Messages sent only to prove that the earlier ones are settled."""

    def __enter__(self) -> Self:
        self.service.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.service.close()
        self.brokers.close()

    # --- the cluster

    def deliver(self, count: int, over_ms: int = 500) -> list[Sent]:
        """Write `count` messages due about now, and wait until all are settled."""
        start_ms = now_ms()
        written = self.flow.write(count, start_ms, start_ms + over_ms, delays=0)
        self.settle()
        return written

    def settle(self) -> None:
        """Wait until all messages have ended and the progress log proves it: later messages are
        delivered."""
        self.flow.flush()
        self.flow.wait_settled(self.service)
        for _ in range(2):
            due_ms = now_ms() + 5
            self.later += self.flow.write(SHARDS, due_ms, due_ms, keyed=0, delays=0)
            self.flow.flush()
            self.flow.wait_settled(self.service)

    def delete_target(self) -> None:
        """Delete the target and create it again, empty."""
        self.delete(self.flow.target)
        self.broker.create_topic(
            self.flow.target,
            partitions=TARGET_PARTITIONS,
            config={"message.timestamp.type": "LogAppendTime"},
        )

    def delete(self, *topics: str) -> None:
        """Delete topics, and wait until they are gone."""
        admin = self.broker.admin()
        for gone in admin.delete_topics(list(topics)).values():
            gone.result(30)
        deadline = time.monotonic() + 30
        while not set(topics).isdisjoint(admin.list_topics(timeout=10).topics):
            check_deadline(deadline)

    def trim(self, name: str) -> None:
        """Delete all records of one of the cluster's own topics."""
        topic = f"{self.flow.prefix}.{name}"
        watermarks = [
            TopicPartition(topic, shard, self.brokers.watermarks(topic, shard).high)
            for shard in range(SHARDS)
        ]
        admin = self.broker.admin()  # a reference is kept: the futures need the client
        for future in admin.delete_records(watermarks).values():
            future.result(30)

    # --- the archive

    def archive(self) -> None:
        """Archive all present records, once they are older than the tolerance of clocks."""
        deadline_ms = now_ms() + CLOCK_TOLERANCE_MS + 50
        while now_ms() < deadline_ms:
            time.sleep(0.02)
        prefix = self.flow.prefix
        plan = ArchivePlan(
            cluster=prefix,
            bootstrap_servers=self.broker.bootstrap,
            targets=[self.flow.target],
            delay=f"{prefix}.delay",
            progress=f"{prefix}.progress",
            rejected=f"{prefix}.rejected",
            dead_letter=f"{prefix}.dead_letter",
        )
        archive(self.spark, self.brokers, self.storage, plan, ignore)

    def audit(self, **window: Any) -> Audit:
        """An audit of all messages, those due later included."""
        return audit(
            self.spark, self.storage, **{"from_ms": 1, "to_ms": now_ms() + 10_000_000, **window}
        )

    def backfill(self) -> Backfill:
        """The backfills of this archive and cluster."""
        return backfill_of(
            self.spark, self.storage, self.brokers, self.broker.bootstrap, delay_topic=self.delay
        )

    def replay(self, mode: str, **asked: Any) -> BackfillReport:
        """Plan a replay and send it."""
        window = {} if mode == "pending" else {"from_ms": 1, "to_ms": now_ms()}
        job = self.backfill()
        with job.locked():
            assert job.unfinished() is None
            planned = job.plan(BackfillRequest(mode=mode, **{**window, **asked}))
            if not planned.messages:
                job.discard(planned)
                return planned
            return job.send(job.begin(planned))

    def settle_replays(self, *, timeout_s: float = 90.0) -> None:
        """Wait until the node has pulled all replays, and no message is pending."""
        for shard in range(SHARDS):
            self.flow.watermarks.offsets[shard] = max(
                self.flow.watermarks.offsets.get(shard, 0), self.last(self.delay, shard)
            )
        self.flow.wait_settled(self.service, timeout_s=timeout_s)

    def is_pulled(self) -> bool:
        """True if the node has executed every acknowledged record."""
        offsets = self.flow.watermarks.offsets
        return all(
            shard["pull_offset"] >= offsets.get(shard["shard"], 0)
            for shard in self.service.shards()
        )

    def new_settings(self) -> dict[str, object]:
        """The settings of a service that begins anew, with topics of its own."""
        names = {
            f"topics.{name}": f"{self.flow.prefix}.new.{name}" for name in ("delay", "progress")
        }
        return self.flow.settings() | names

    def begin_anew(self, *, creates: bool = True) -> None:
        """Disk and logs are lost: an empty node starts on empty topics, or on those that were
        created."""
        self.service.close()
        self.delay = self.flow.delay = f"{self.flow.prefix}.new.delay"
        if creates:
            self.broker.create_topic(
                self.delay, partitions=SHARDS, config={"message.timestamp.type": "LogAppendTime"}
            )
        self.flow.watermarks = Watermarks()
        self.service = Service(
            self.directory / "new-node",
            bootstrap=self.broker.bootstrap,
            settings=self.new_settings(),
        )
        self.service.start()

    def last(self, topic: str, partition: int) -> int:
        """The offset behind the last record of a partition, transaction markers not counted."""
        watermarks = self.brokers.watermarks(topic, partition)
        reader = self.brokers.reader(topic, partition, watermarks.start)
        last, deadline = watermarks.start, time.monotonic() + 30
        try:
            while reader.position < watermarks.stable:
                check_deadline(deadline)
                if reader.wait(0.05):
                    records = reader.read(10_000, 1 << 24)
                    last = records[-1].offset + 1 if records else last
        finally:
            reader.close()
        return last

    # --- what consumers read

    def times(self) -> Counter[int]:
        """Number of times each message is in the target."""
        return Counter(found.number for found in self.flow.delivered())

    def replays(self) -> list[Found]:
        """The deliveries that are replays."""
        return [found for found in self.flow.delivered() if "x-chronos-replay-of" in found.headers]

    def records(self) -> list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]]:
        """The records of the target: key, value and the headers that are not Chronos's."""
        found = []
        for message in read_committed(self.broker.bootstrap, self.flow.target):
            pairs: Any = message.headers() or ()
            own = [pair for pair in pairs if not pair[0].startswith(("chronos-", "x-chronos-"))]
            found.append((message.key(), message.value(), own))
        return found
