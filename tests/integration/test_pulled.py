"""A shard judges by what it pulled: records that it must not, cannot, or does not yet read stop
nothing else.

Open transactions of producers, records with a producer's timestamp, and pulling switched off, on a
real broker."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.harness.broker import Broker
from tests.harness.command import run
from tests.harness.service import Service
from tests.integration.foreign import Sent, Tail, Topics, alter_topic, produce, read_all, schedule

pytestmark = pytest.mark.kafka


class Place:
    """Topics of their own on the shared broker, and services on them that share one data
    directory."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.broker = broker
        self.topics = Topics.of(f"p{uuid.uuid4().hex[:8]}")
        self.target = broker.create_topic(f"{self.topics.delay}.target")
        self.folder = folder

    @contextmanager
    def service(self, **settings: object) -> Iterator[Service]:
        """A running service."""
        settings = self.topics.settings(**settings)
        with Service(
            self.folder / "node", bootstrap=self.broker.bootstrap, settings=settings
        ) as service:
            yield service.start()
            service.stop()

    def send(
        self,
        value: bytes | None,
        *,
        delay: str = "0ms",
        key: bytes | None = None,
        cancel: bool = False,
    ) -> None:
        """Write a message for the target, or a cancel."""
        headers = [] if cancel else schedule(self.target, delay=delay)
        produce(
            self.broker.bootstrap, self.topics.delay, [Sent(value, headers, key=key, partition=0)]
        )

    def transaction(self) -> Producer:
        """A producer with an open transaction that has written a message to the delay topic."""
        producer = Producer(
            {"bootstrap.servers": self.broker.bootstrap, "transactional.id": uuid.uuid4().hex}
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        headers: Any = schedule(self.target)
        producer.produce(self.topics.delay, b"in the transaction", headers=headers, partition=0)
        assert producer.flush(30) == 0
        return producer

    def arrived(self, count: int) -> list[bytes]:
        """The values in the target, once there are so many, sorted."""
        with Tail(self.broker.bootstrap, self.target) as tail:
            tail.take(self.target, count)
            return sorted(got.value or b"" for got in tail.settle().records[self.target])


@pytest.fixture
def place(broker: Broker, tmp_path: Path) -> Place:
    return Place(broker, tmp_path)


def shard(service: Service) -> dict[str, Any]:
    return service.shards()[0]


def test_an_open_transaction_of_a_producer_is_named_and_holds_no_delivery_back(
    place: Place,
) -> None:
    """A cancel in the log 3 s before the due time, behind the transaction, is too late."""
    with place.service() as service:
        place.send(b"cancelled", delay="4s", key=b"order-17")
        place.send(b"kept", delay="4s")
        transaction = place.transaction()
        place.send(None, key=b"order-17", cancel=True)
        service.wait_until(
            lambda: shard(service)["held_back"] is not None, "report what is held back"
        )
        found = shard(service)
        assert found["held_back"]["records"] == found["lag"] == 2
        (detail,) = service.get("/readyz")["details"]
        assert f"{place.topics.delay}/0: 2 records from offset 2 on are held back" in detail
        metrics = service.get("/metrics")
        assert 'chronos_held_back_records{shard="0"} 2.0' in metrics
        assert 'chronos_pull_lag_records{shard="0"} 2.0' in metrics
        status = run("status", server=service.url)
        assert status.code == 0, status.err
        assert "shard 0: 2 records are held back by an open transaction" in status.out
        assert place.arrived(2) == [b"cancelled", b"kept"]
        assert shard(service)["paused"] is None
        transaction.commit_transaction(30)
        service.wait_until(
            lambda: shard(service)["held_back"] is None, "see the end of the transaction"
        )
        service.wait_until(lambda: shard(service)["pending"] == 0, "settle every message")
        service.wait_until(lambda: shard(service)["lag"] == 0, "pass the marker of the transaction")
        assert "details" not in service.get("/readyz")
        assert place.arrived(3) == [b"cancelled", b"in the transaction", b"kept"]
        reasons = [got.reason for got in read_all(place.broker.bootstrap, place.topics.rejected)]
        assert reasons == ["too-late"]


def test_a_record_from_before_the_timestamps_were_the_brokers_is_refused_and_stops_nothing(
    place: Place,
) -> None:
    """A timestamp in microseconds: what is pending is delivered, and so is what was written after
    it."""
    with place.service() as service:
        place.send(b"pending", delay="3s")
        service.wait_until(lambda: shard(service)["pending"] == 1, "accept a message")
    alter_topic(
        place.broker,
        place.topics.delay,
        message_timestamp_type="CreateTime",
        message_timestamp_after_max_ms=str(2**63 - 1),
    )
    producer = Producer({"bootstrap.servers": place.broker.bootstrap})
    headers: Any = schedule(place.target)
    stamp_us: Any = time.time_ns() // 1_000
    producer.produce(
        place.topics.delay, b"by CreateTime", partition=0, timestamp=stamp_us, headers=headers
    )
    assert producer.flush(30) == 0
    alter_topic(place.broker, place.topics.delay, message_timestamp_type="LogAppendTime")
    place.send(b"after it")
    with place.service() as service:
        assert place.arrived(2) == [b"after it", b"pending"]
        (refused,) = read_all(place.broker.bootstrap, place.topics.rejected)
        assert (refused.value, refused.reason) == (b"by CreateTime", "create-time")
        assert b"message.timestamp.type" in (refused.header("chronos-detail") or b"")
        assert shard(service)["paused"] is None
        assert shard(service)["cursor"]["due_ms"] <= time.time_ns() // 1_000_000


def test_without_pulling_what_is_pending_is_delivered_whatever_lies_behind(place: Place) -> None:
    """A record and the marker of its transaction are left unread."""
    with place.service() as service:
        place.send(b"pending", delay="3s")
        service.wait_until(lambda: shard(service)["pending"] == 1, "accept a message")
    place.transaction().commit_transaction(30)
    with place.service(workers__pull="off") as service:
        assert place.arrived(1) == [b"pending"]
        assert (shard(service)["pull_offset"], shard(service)["paused"], shard(service)["lag"]) == (
            1,
            None,
            2,
        )
