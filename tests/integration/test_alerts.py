"""Alerts of real nodes that need Kafka, several nodes or a full disk: each fires when its trouble
is there, and no other one does. tests/node/test_alerts.py has the others.

An open transaction counts from one minute on, and a broker has to hang for half a minute: both
begin before other tests, and the last two wait for what is left of the time."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer

from chronos.core.keys import partition_of
from tests.chaos.fleet import Fleet, Node
from tests.harness.broker import Broker, BrokerClock, Cluster, cluster
from tests.harness.disk import fill, small_disk
from tests.harness.prometheus import Prometheus
from tests.harness.service import Service
from tests.integration.flow import SHARDS, KafkaFlow, now_ms
from tests.integration.foreign import Sent, Topics, produce, schedule
from tests.integration.health import FAST, give

pytestmark = pytest.mark.kafka

BEHIND, AHEAD = 1, 2
"""Node ids of the brokers."""

CLOCKS = {BEHIND: BrokerClock(-350), AHEAD: BrokerClock(350)}
"""Each is near enough to the machine's, and they are 0.7 s apart."""

SLOW = {"ChronosBrokerSlow"}
"""A scrape of these tests counts as one interval, however soon it comes: a broker that the machine
slows for a few seconds counts as slow for minutes."""

FROZEN_S = 28.0
"""A send of 15 s makes its broker avoided for ten minutes; it begins some 10 s after the freeze."""

FOR_S = 300
"""How long a broker must be avoided."""

OF_AN_OUTAGE = {
    "ChronosMasterUnhealthy",
    "ChronosNoFollower",
    "ChronosNoMaster",
    "ChronosPaused",
    "ChronosStalled",
}
"""What else may fire while no broker answers, by how long that takes and which node was master."""

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
    settings = topics.settings(shards=SHARDS, delivery__transaction_timeout="10m")
    folder: Path = tmp_path_factory.mktemp("alerts")
    with (
        cluster(2, heap_mb=320, clocks=CLOCKS) as kafka,
        Service(folder / "node", bootstrap=kafka.bootstrap, settings=settings) as service,
    ):
        service.start()
        prometheus = prometheus_of(service)
        prometheus.scrape_for(6)
        assert prometheus.ever <= SLOW
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


class Hanging(NamedTuple):
    """A broker that hangs, with a message on its way that needs it."""

    since_s: float
    """Of `time.monotonic`."""
    delivered: int
    """How many messages were delivered before."""


@pytest.fixture(scope="module")
def hanging(place: Place) -> Iterator[Hanging]:
    """The broker that is ahead; the other one leads what the message is written to, and waits for
    its replica."""
    service, broker = place.service, place.kafka.node(AHEAD)
    names = (f"late-{at}" for at in range(10_000))
    near = (name for name in names if partition_of(name.encode(), SHARDS) in place.homes)
    target = place.kafka.create_topic(f"{place.topics.delay}.late")
    for _ in range(10):
        before = delivered(service)
        body = {"id": next(near), "target": {"topic": target}, "value": "v", "delay": "2s"}
        assert service.ask("POST", "/v1/messages?wait=5s", body)[0] in (200, 202)
        broker.freeze()
        since_s = time.monotonic()
        if delivered(service) == before:
            break
        broker.thaw()  # The machine is busy: it was delivered before.
    else:
        raise AssertionError("every message was delivered before the broker was frozen")
    try:
        yield Hanging(since_s, before)
    finally:
        broker.thaw()


def delivered(service: Service) -> int:
    return sum(int(shard["totals"]["delivered"]) for shard in service.shards())


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


@pytest.fixture
def flow(own_broker: Broker) -> KafkaFlow:
    """Messages on separate topics."""
    return KafkaFlow(own_broker, 1)


@pytest.fixture
def fleet(own_broker: Broker, flow: KafkaFlow, tmp_path: Path) -> Iterator[Fleet]:
    """Three nodes that name a stuck master and leave it in place, and whose shards need two
    followers in sync."""
    settings: dict[str, object] = {
        **flow.settings(),
        **FAST,
        "delivery.transaction_timeout": "4s",
        "failover.on_unhealthy": "armed",
        "replication.mode": "sync",
        "replication.min_in_sync": 2,
    }
    with Fleet(
        tmp_path, bootstrap=own_broker.bootstrap, zookeeper=None, shards=SHARDS, settings=settings
    ) as nodes:
        yield nodes.start()


def settle(fleet: Fleet) -> None:
    """Wait until n1 is master of every shard, to the knowledge of all, and nothing is wrong.

    Masters that were just spread evenly, a minute after a node joined, are given to it again."""
    fleet.wait_placed()
    first = fleet.nodes["n1"]

    def are_ours() -> bool:
        if set(fleet.masters(asked=first).values()) != {"n1"}:
            give(fleet, "n1")
        return all(
            is_settled(fleet, node, 2) and set(fleet.masters(asked=node).values()) == {"n1"}
            for node in fleet.nodes.values()
        )

    first.wait_until(are_ours, "be settled", timeout_s=GONE_S)


def is_settled(fleet: Fleet, node: Node, followers: int) -> bool:
    """Return whether every shard has a healthy master and so many followers, to the knowledge of
    the node."""
    return (
        len(fleet.masters(asked=node)) == SHARDS
        and {len(shard["in_sync"]) for shard in node.shards()} == {followers}
        and not any(unhealthy(node))
        and node.is_ready()
    )


def unhealthy(node: Node) -> list[list[str]]:
    """For each shard, the nodes that find its master unhealthy."""
    return [shard["unhealthy"] for shard in node.get("/v1/failover")["shards"]]


@pytest.mark.usefixtures("hanging")
def test_a_cluster_that_loses_its_broker_and_a_node(
    own_broker: Broker, flow: KafkaFlow, fleet: Fleet
) -> None:
    """Nothing fires while roles move and a node restarts. Then a master is stuck, and it is lost
    while the only broker is frozen."""
    first, second, third = fleet.nodes.values()
    prometheus = prometheus_of(first, second, third)
    # Normal work of a cluster.
    settle(fleet)
    prometheus.scrape_for(6)
    flow.write(20, now_ms(), now_ms() + 100)
    flow.flush()
    prometheus.scrape()
    third.stop()
    prometheus.scrape(2)
    third.start()
    settle(fleet)
    prometheus.scrape_for(11)
    assert prometheus.ever <= SLOW

    # A master that is stuck.
    first.hang()
    flow.write(100, now_ms(), now_ms() + 1_000)
    flow.flush()
    second.wait_until(
        lambda: any(len(names) >= 2 for names in unhealthy(second)),
        "name the stuck master",
        timeout_s=GONE_S,
    )
    fired = prometheus.scrape_for(1)
    allowed = {"ChronosStalled"}
    if set(fleet.masters(asked=second).values()) != {"n1"}:
        # A minute after they joined, the others are given shards; a node that hangs follows none.
        allowed.add("ChronosNoFollower")
    assert fired - allowed == {"ChronosMasterUnhealthy"}
    first.unhang()
    settle(fleet)

    # The only broker is frozen, and the master is lost meanwhile.
    own_broker.freeze()
    try:
        for node in fleet.nodes.values():
            node.wait_until(lambda node=node: not node.is_ready(), "notice it", timeout_s=GONE_S)  # type: ignore[misc]
        prometheus.forget()
        first.kill()
        fired = prometheus.scrape_for(1)
        assert {"ChronosDown", "ChronosNoMaster"} <= fired <= {"ChronosDown", *OF_AN_OUTAGE}
    finally:
        own_broker.thaw()

    # The others go on, with one follower too few.
    fleet.wait_placed()
    for node in (second, third):
        node.wait_until(lambda node=node: is_settled(fleet, node, 1), "go on", timeout_s=GONE_S)  # type: ignore[misc]

    def fired_in_a_minute() -> set[str]:
        prometheus.forget()
        return prometheus.scrape_for(1)

    second.wait_until(
        lambda: fired_in_a_minute() == {"ChronosDown", "ChronosNoFollower"},
        "fire for nothing but the node that is gone",
        timeout_s=GONE_S,
    )


def test_a_broker_that_answers_late_fires_after_five_minutes(
    place: Place, hanging: Hanging
) -> None:
    """It is avoided for ten minutes."""
    service, prometheus = place.service, place.prometheus
    service.wait_until(lambda: time.monotonic() > hanging.since_s + FROZEN_S, "wait for the broker")
    place.kafka.node(AHEAD).thaw()
    service.wait_until(
        lambda: delivered(service) > hanging.delivered, "deliver the message", timeout_s=GONE_S
    )
    service.wait_ready()
    (avoided,) = re.findall(
        r"^chronos_broker_unavailable_seconds\{.*\} (\S+)$", service.get("/metrics"), re.MULTILINE
    )
    assert float(avoided) > FOR_S
    prometheus.forget()
    assert prometheus.scrape() <= {"ChronosHeldBack"}
    assert prometheus.scrape_for(5) - {"ChronosHeldBack"} == {"ChronosBrokerSlow"}


def test_an_open_transaction_of_a_producer_fires_after_a_minute(place: Place) -> None:
    service, prometheus = place.service, place.prometheus

    def held_s() -> float:
        name = rf'^chronos_held_back_seconds{{shard="{place.held}"}} (\S+)$'
        (found,) = re.findall(name, service.get("/metrics"), re.MULTILINE)
        return float(found)

    service.wait_until(lambda: held_s() > 60, "hold records back", timeout_s=2 * GONE_S)
    prometheus.forget()
    assert prometheus.scrape() == {"ChronosHeldBack"}
    assert [each["shard"] for each in prometheus.fired["ChronosHeldBack"]] == [str(place.held)]
    place.transaction.abort_transaction(30)
    service.wait_until(lambda: held_s() == 0, "read on")
    assert prometheus.scrape() == set()
