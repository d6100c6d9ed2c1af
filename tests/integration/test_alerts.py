"""Alerts of real nodes that need Kafka, several nodes or a full disk: each fires when its trouble
is there, and no other one does. tests/node/test_alerts.py has the others.

An open transaction counts from one minute on: it is opened before the other tests, and the last
test waits for what is left of the minute."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer

from chronos.core.keys import partition_of
from tests.chaos.fleet import Fleet, Node
from tests.harness.broker import Broker, BrokerClock, Cluster, cluster
from tests.harness.prometheus import Prometheus
from tests.harness.service import Service
from tests.integration.flow import SHARDS, KafkaFlow, now_ms
from tests.integration.foreign import Sent, Topics, produce, schedule
from tests.integration.test_disk import fill
from tests.integration.test_health import FAST, give, small_disk

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

BEHIND, AHEAD = 1, 2
"""Node ids of the brokers."""

CLOCKS = {BEHIND: BrokerClock(-350), AHEAD: BrokerClock(350)}
"""Each is near enough to the machine's, and they are 0.7 s apart."""

FROZEN_S = 16.0
"""A send of 15 s makes its broker avoided for ten minutes."""

GONE_S = 60.0
"""Time for a node to notice what has happened to others: seconds, on a machine that is busy
more."""


def prometheus_of(*services: Service) -> Prometheus:
    """A Prometheus that scrapes these nodes."""
    return Prometheus(
        targets={
            service.data_dir.name: lambda service=service: str(service.get("/metrics"))  # type: ignore[misc]
            for service in services
        }
    )


class Place(NamedTuple):
    """A node on two brokers whose clocks differ, and an open transaction."""

    kafka: Cluster
    service: Service
    topics: Topics
    held: int
    """The partition of the delay topic that the transaction holds back."""
    source: int
    """Another partition, which the broker that is ahead leads."""
    homes: set[int]
    """The partitions that the broker leads that is behind."""
    transaction: Producer
    prometheus: Prometheus


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    topics = Topics.of(f"a{uuid.uuid4().hex[:8]}")
    folder: Path = tmp_path_factory.mktemp("alerts")
    with (
        cluster(2, heap_mb=320, clocks=CLOCKS) as kafka,
        Service(
            folder / "node", bootstrap=kafka.bootstrap, settings=topics.settings(shards=SHARDS)
        ) as service,
    ):
        service.start()
        prometheus = prometheus_of(service)
        prometheus.scrape_for(6)
        assert prometheus.ever == set()
        found = kafka.admin().list_topics(topics.delay, timeout=10).topics[topics.delay].partitions
        held, source = [at for at, each in found.items() if each.leader == AHEAD][:2]
        transaction = Producer(
            {
                "bootstrap.servers": kafka.bootstrap,
                "transactional.id": uuid.uuid4().hex,
                "transaction.timeout.ms": 600_000,
            }
        )
        transaction.init_transactions(30)
        transaction.begin_transaction()
        transaction.produce(topics.delay, b"never", partition=held)
        assert transaction.flush(30) == 0
        homes = {at for at, each in found.items() if each.leader == BEHIND}
        yield Place(kafka, service, topics, held, source, homes, transaction, prometheus)


def test_brokers_whose_clocks_differ_fire_at_the_first_record(place: Place) -> None:
    """A record that is forwarded from the one that is ahead; the counter of both was there
    before."""
    target = place.kafka.create_topic(f"{place.topics.delay}.target")
    names = (f"id-{at}".encode() for at in range(10_000))
    away = (name for name in names if partition_of(name, SHARDS) in place.homes)
    place.prometheus.scrape()

    def is_counted() -> bool:
        """One more record: on a busy machine it may be forwarded too late to be ahead."""
        record = Sent(b"v", schedule(target, delay="1h"), next(away), place.source)
        produce(place.kafka.bootstrap, place.topics.delay, [record])
        return "ChronosClocks" in place.prometheus.scrape()

    place.service.wait_until(is_counted, "count a record that is ahead", timeout_s=GONE_S)
    assert place.prometheus.scrape() - {"ChronosHeldBack"} == {"ChronosClocks"}
    assert place.prometheus.fired["ChronosClocks"] == [
        {"job": "chronos", "instance": "node", "broker": str(AHEAD), "home_broker": str(BEHIND)}
    ]


def test_a_disk_that_becomes_full_fires_before_and_after_the_node_is_paused(
    tmp_path: Path,
) -> None:
    """A disk of 192 MB."""
    with small_disk(tmp_path / "disk"), Service(tmp_path / "disk" / "node") as service:
        service.start()
        prometheus = prometheus_of(service)
        assert prometheus.scrape_for(9) == set()
        assert prometheus.scrape_for(1) == {"ChronosDisk"}
        fill(tmp_path / "disk", 0.5)
        service.wait_until(lambda: not service.is_ready(), "report that the disk is full")
        assert prometheus.scrape() == {"ChronosDisk"}
        assert prometheus.scrape_for(1) == {"ChronosDisk", "ChronosPaused"}
        assert prometheus.scrape_for(5) == {"ChronosDisk", "ChronosNotReady", "ChronosPaused"}


def send(service: Service, due_ms: int, count: int = 1) -> None:
    """Schedule messages without a key."""
    body: list[dict[str, Any]] = [
        {"target": {"topic": "alerts"}, "value": "v", "deliver_at": due_ms} for _ in range(count)
    ]
    service.post("/v1/messages", body)


@pytest.fixture
def fleet(own_broker: Broker, tmp_path: Path) -> Iterator[Fleet]:
    """Three nodes that name a stuck master and leave it in place."""
    settings = {
        **KafkaFlow(own_broker, 1).settings(),
        **FAST,
        "delivery.transaction_timeout": "4s",
        "failover.on_unhealthy": "armed",
        "replication.mode": "sync",
    }
    with Fleet(
        tmp_path, bootstrap=own_broker.bootstrap, zookeeper=None, shards=SHARDS, settings=settings
    ) as nodes:
        yield nodes.start()


def in_sync(node: Node) -> set[int]:
    """How many followers in sync the shards have, as the node sees them."""
    return {len(shard["in_sync"]) for shard in node.shards()}


def test_a_cluster_and_a_frozen_broker(own_broker: Broker, fleet: Fleet, tmp_path: Path) -> None:
    """Nothing fires while roles move and a node restarts. Then a master is stuck, nodes are lost,
    and the only broker is frozen for a while; a further node without a cluster delivers through
    it."""
    first, second, third = fleet.nodes.values()
    prometheus = prometheus_of(first, second, third)
    with ExitStack() as stack:
        alone = stack.enter_context(
            Service(
                tmp_path / "alone",
                bootstrap=own_broker.bootstrap,
                settings={
                    **Topics.of("alone").settings(), "delivery.transaction_timeout": "2m",
                },
            )
        )  # fmt: skip
        alone.start()
        own_broker.create_topic("alerts")

        # Normal work of a cluster.
        for node in fleet.nodes.values():
            node.wait_until(lambda node=node: in_sync(node) == {2}, "see its followers", timeout_s=GONE_S)  # type: ignore[misc]
        prometheus.scrape_for(6)
        send(first, now_ms(), 20)
        prometheus.scrape()
        third.stop()
        prometheus.scrape(2)
        third.start()
        fleet.wait_placed()
        give(fleet, "n1")
        first.wait_until(lambda: in_sync(first) == {2}, "see its followers", timeout_s=GONE_S)
        prometheus.scrape_for(11)
        assert prometheus.ever == set()

        # A master that is stuck.
        first.hang()
        send(second, now_ms(), 20)

        def is_named() -> bool:
            return any(len(shard["unhealthy"]) >= 2 for shard in second.get("/v1/failover")["shards"])

        second.wait_until(is_named, "name the stuck master", timeout_s=GONE_S)
        assert prometheus.scrape_for(1) - {"ChronosStalled"} == {"ChronosMasterUnhealthy"}
        first.unhang()
        fleet.wait_placed()
