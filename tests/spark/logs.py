"""The topics of a cluster with records in them, and readers of their archive."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from deltalake import DeltaTable

from chronos.adapters.kafka.log import KafkaLog
from chronos.core.shard.progress import NO_OUTCOMES, Progress, pack_progress
from chronos.spark.archive.job import ArchivePlan
from tests.harness.broker import Broker
from tests.harness.waiting import check_deadline

SHARDS = 2
Headers = Sequence[tuple[str, bytes | None]]


class Logs:
    """The topics of a cluster of its own on the tests' broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.cluster = f"spark-{uuid.uuid4().hex[:8]}"
        self.delay, self.progress, self.rejected, self.dead_letter, self.target = (
            f"{self.cluster}.{name}"
            for name in ("delay", "progress", "rejected", "dead-letter", "target")
        )
        for topic in (self.delay, self.progress, self.rejected, self.dead_letter, self.target):
            self.create(topic)
        self._producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "linger.ms": 2, "log_level": 2}
        )

    def create(self, topic: str) -> None:
        """Create a topic with Chronos's settings."""
        self.broker.create_topic(
            topic, partitions=SHARDS, config={"message.timestamp.type": "LogAppendTime"}
        )

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait until the broker no longer lists it."""
        admin = self.broker.admin()
        for future in admin.delete_topics([topic]).values():
            future.result(30)
        deadline = time.monotonic() + 30
        while topic in admin.list_topics(timeout=10).topics:
            check_deadline(deadline)

    def write(
        self,
        topic: str,
        value: bytes | None,
        headers: Headers = (),
        *,
        key: bytes | None = None,
        partition: int = 0,
    ) -> None:
        """Send a record; it is in the log after `flush`."""
        self._producer.produce(topic, value, key, partition, headers=list(headers))

    def step(self) -> bytes:
        """A progress record of the cluster, before anything was pulled."""
        return pack_progress(
            Progress(
                role_epoch=1,
                log_epoch=1,
                cluster=self.cluster,
                node="n",
                instance="i",
                shards=SHARDS,
                cursor_due_ms=0,
                cursor_offset=0,
                pull_offset=0,
                counts=(0, *NO_OUTCOMES),
            )
        )

    def schedule(self, count: int, due_ms: int) -> None:
        """`count` messages, one ms apart, and the delivery of each in the target."""
        for at in range(count):
            headers = [
                ("chronos-deliver-at", b"%d" % (due_ms + at)),
                ("chronos-target-topic", self.target.encode()),
            ]
            self.write(self.delay, b"%d" % at, headers, partition=at % SHARDS)
            self.write(
                self.target,
                b"%d" % at,
                self.receipt(at % SHARDS, at // SHARDS, due_ms + at),
                partition=at % SHARDS,
            )
        self.flush()

    def receipt(self, shard: int, offset: int, due_ms: int) -> Headers:
        """The headers that Chronos adds to a delivered message."""
        return [
            ("chronos-id", b"%d-%d-%d" % (shard, due_ms, offset)),
            ("chronos-due-at", b"%d" % due_ms),
            ("chronos-source", f"{self.delay}/{shard}/{offset}".encode()),
        ]

    def flush(self) -> None:
        """Wait until everything is in the log."""
        assert self._producer.flush(60) == 0

    def plan(self, **changes: Any) -> ArchivePlan:
        """The plan to archive these topics."""
        wanted: dict[str, Any] = {"targets": [self.target], **changes}
        return ArchivePlan(
            cluster=self.cluster,
            bootstrap_servers=self.broker.bootstrap,
            delay=self.delay,
            progress=self.progress,
            rejected=self.rejected,
            dead_letter=self.dead_letter,
            **wanted,
        )

    def settings(self) -> list[str]:
        """The same settings as options of the command line."""
        own = {
            "cluster": self.cluster,
            "log.kind": "kafka",
            "log.kafka.bootstrap_servers": self.broker.bootstrap,
            "topics.delay": self.delay,
            "topics.progress": self.progress,
            "topics.rejected": self.rejected,
            "topics.dead_letter": self.dead_letter,
        }
        return [word for name, value in own.items() for word in ("--set", f"{name}={value}")]

    def brokers(self, adapter: type[KafkaLog] = KafkaLog) -> KafkaLog:
        """The adapter that answers the archive's questions."""
        return adapter(
            bootstrap_servers=self.broker.bootstrap,
            properties={},
            progress_topic=self.progress,
            transaction_timeout_s=10,
            request_timeout_s=30,  # beside other tests, on a machine that is overloaded
        )


def table(folder: Path, name: str) -> pa.Table:
    """A table as another reader of Delta reads it."""
    return pa.table(DeltaTable(folder / name).to_pyarrow_table())


def positions_in(folder: Path, name: str, partition: str) -> list[tuple[Any, ...]]:
    """`(partition, offset)` of every row, in order; with the topic where there is one."""
    rows = table(folder, name)
    columns = [column for column in ("topic", partition, "offset") if column in rows.schema.names]
    return sorted(zip(*(rows.column(column).to_pylist() for column in columns), strict=True))
