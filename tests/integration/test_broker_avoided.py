"""A frozen broker of three: its shards wait for Kafka's failover and say so, and messages without a
key avoid it afterwards."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import ElectionType, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from chronos.adapters.kafka.log import KafkaLog
from chronos.core.keys import partition_of
from chronos.errors import LogUnavailable
from chronos.ports import TopicSpec
from tests.harness.broker import Cluster
from tests.harness.service import Service
from tests.harness.waiting import check_deadline, wait_until
from tests.integration.flow import SHARDS, TARGET_PARTITIONS, KafkaFlow, now_ms, read_committed

pytestmark = pytest.mark.kafka

Headers = dict[str, str | bytes | None]
Done = Callable[[Message], None]

BROKERS = 3
COORDINATORS = 4
"""Partitions of the brokers' own topic of transactions."""

TRANSACTION_S = 5

CLIENTS = 4
"""More of them would load the machine; one that asks the frozen broker is enough."""

SETTLED_S = 12.0
"""By then every client has sent a request to the frozen broker, if it uses it."""

GIVEN_UP_S = 50.0
"""The failover and one request of 5 s, on a loaded machine; without a limit it is more than a
minute."""

FAILOVER_S = 60.0
"""Kafka needs 3 s to notice, and an election; the bound is for a loaded machine."""

AFTER_FAILOVER_S = 75.0
"""The transaction's time-out and the taking over of a shard, on a loaded machine. A coordinator
that was writing markers to the frozen broker waits 30 s for it (`request.timeout.ms` of the
brokers)."""


@pytest.fixture(scope="module")
def kafka() -> Iterator[Cluster]:
    settings = {
        "broker.session.timeout.ms": 3_000,
        "transaction.state.log.num.partitions": COORDINATORS,
    }
    with Cluster(BROKERS, settings) as cluster:
        yield cluster


class KeyedFlow(KafkaFlow):
    """A flow whose messages are delivered with `target_key`, unless that is None."""

    target_key: str | None = None

    def _produce(
        self, key: str | None, value: str | None, headers: Headers, partition: int, done: Done
    ) -> None:
        named: Headers = {} if self.target_key is None else {"chronos-target-key": self.target_key}
        super()._produce(key, value, {**headers, **named}, partition, done)


def key_of(partition: int) -> str:
    """A key that belongs to the partition of the target."""
    return next(
        key
        for key in map(str, range(1_000))
        if partition_of(key.encode(), TARGET_PARTITIONS) == partition
    )


def leaders(kafka: Cluster, topic: str) -> list[int]:
    """The leader of each partition."""
    found = kafka.admin().list_topics(topic, timeout=10).topics[topic].partitions
    return [found[number].leader for number in sorted(found)]


def balance(kafka: Cluster, topics: list[str]) -> None:
    """Have every partition led by its preferred replica, as after the creation of its topic, to the
    knowledge of every broker."""
    admin = kafka.admin()
    kafka.wait_in_sync()
    found = admin.list_topics(timeout=10).topics
    parts = [
        TopicPartition(topic, number) for topic in topics for number in found[topic].partitions
    ]
    preferred = {
        (topic, number): part.replicas[0]
        for topic in topics
        for number, part in found[topic].partitions.items()
    }

    def is_balanced() -> bool:
        admin.elect_leaders(ElectionType.PREFERRED, parts).result(30)
        return all(map(is_known_to, kafka.admins()))

    def is_known_to(one: AdminClient) -> bool:
        now = one.list_topics(timeout=10).topics
        return all(
            now[topic].partitions[number].leader == leader
            for (topic, number), leader in preferred.items()
        )

    wait_until(is_balanced, timeout_s=FAILOVER_S)


def coordinators(kafka: Cluster, flow: KafkaFlow) -> list[int]:
    """The broker that coordinates the transactions of each shard."""
    progress = f"{flow.prefix}.progress"
    admin = kafka.admin()
    described = admin.describe_topics(TopicCollection([progress]))[progress].result(30)
    ids = [f"chronos-{described.topic_id}-{shard}" for shard in range(SHARDS)]
    led = leaders(kafka, "__transaction_state")
    return [led[java_hash(name) % COORDINATORS] for name in ids]


def java_hash(text: str) -> int:
    """Java's `String.hashCode` without its sign, as the brokers place transactional ids."""
    value = 0
    for letter in text:
        value = (31 * value + ord(letter)) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


def serving(kafka: Cluster, flow: KafkaFlow, data_dir: Path) -> Service:
    settings = {**flow.settings(), "delivery.transaction_timeout": f"{TRANSACTION_S}s"}
    return Service(data_dir, bootstrap=kafka.bootstrap, settings=settings)


def delivered(service: Service) -> list[int]:
    return [shard["totals"]["delivered"] for shard in service.shards()]


def texts(service: Service) -> str:
    """Why the shards wait, by `/readyz`, which asks no broker."""
    status, answer = service.ask("GET", "/readyz")
    return str(answer["detail"] if status >= 300 else answer.get("details", ""))


def deliver(kafka: Cluster, service: Service, flow: KafkaFlow, count: int) -> Counter[int]:
    """Deliver messages that are due now; return how many each partition of the target took."""
    before = Counter(
        message.partition() for message in read_committed(kafka.bootstrap, flow.target)
    )
    flow.write(count, now_ms() - 500, now_ms(), keyed=0.0, delays=0.0)
    flow.flush()
    flow.wait_settled(service)
    after = Counter(message.partition() for message in read_committed(kafka.bootstrap, flow.target))
    after.subtract(before)
    return Counter(
        {partition: taken for partition, taken in after.items() if taken and partition is not None}
    )


def avoided(service: Service) -> set[int]:
    """The brokers that messages without a key avoid, by `/v1/nodes`."""
    (node,) = service.get("/v1/nodes")["nodes"]
    return {found["broker"] for found in node["brokers"] if found["unavailable_until"]}


def test_a_client_gives_up_a_frozen_broker_after_one_request(kafka: Cluster) -> None:
    """By itself librdkafka waits a minute for the answer of a frozen broker, and knows no new
    leader meanwhile."""
    topic = kafka.create_topic("asked", partitions=BROKERS)
    logs = [
        KafkaLog(
            bootstrap_servers=kafka.bootstrap,
            properties={},
            progress_topic=topic,
            transaction_timeout_s=5,
        )
        for _ in range(CLIENTS)
    ]
    for log in logs:
        log.prepare([TopicSpec(name=topic, partitions=BROKERS, settings={})], create=False)
    kafka.node(2).freeze()
    try:
        frozen_s = time.monotonic()
        answered: dict[int, float] = {}

        def ask(number: int) -> None:
            # A request that was answered before the client noticed proves nothing.
            while time.monotonic() < frozen_s + GIVEN_UP_S:
                with suppress(LogUnavailable):
                    info = logs[number].describe([topic])[topic]
                    if (
                        info is not None
                        and 2 not in info.leaders
                        and time.monotonic() > frozen_s + SETTLED_S
                    ):
                        answered[number] = time.monotonic() - frozen_s
                        return
                time.sleep(0.2)

        asking = [threading.Thread(target=ask, args=(number,)) for number in range(CLIENTS)]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
    finally:
        kafka.node(2).thaw()
    for log in logs:
        log.close()
    assert len(answered) == CLIENTS, answered
    kafka.wait_in_sync()


@pytest.mark.campaign
def test_a_frozen_broker_costs_no_more_than_the_failover_and_is_avoided_afterwards(
    kafka: Cluster, tmp_path: Path
) -> None:
    flow = KeyedFlow(kafka, 1)
    with serving(kafka, flow, tmp_path / "node") as service:
        service.start()
        assert set(deliver(kafka, service, flow, 400)) == set(range(TARGET_PARTITIONS)), (
            "all partitions take turns"
        )

        # Each shard can do without one broker at least, apart from the target.
        balance(kafka, [flow.target, f"{flow.prefix}.progress", "__transaction_state"])
        assert len(set(leaders(kafka, flow.target))) == BROKERS
        places = list(
            zip(coordinators(kafka, flow), leaders(kafka, f"{flow.prefix}.progress"), strict=True)
        )
        frozen = max(
            leaders(kafka, flow.target), key=lambda one: sum(one not in place for place in places)
        )
        free = [shard for shard, place in enumerate(places) if frozen not in place]
        assert free, "no broker leaves a shard its coordinator and its progress partition"
        led = [
            partition
            for partition, leader in enumerate(leaders(kafka, flow.target))
            if leader == frozen
        ]

        # With a key, so that every step writes to the partition, however the selector finds the
        # brokers now.
        flow.target_key = key_of(led[0])
        flow.write(6_000, now_ms(), now_ms() + 20_000, delays=0.0)
        flow.target_key = None
        flow.flush()
        before = delivered(service)
        service.wait_until(
            lambda: all(now > then for now, then in zip(delivered(service), before, strict=True)),
            "deliver",
        )
        kafka.node(frozen).freeze()
        frozen_s = time.monotonic()
        name = f"{flow.target}/{led[0]}"
        service.wait_until(
            lambda: name in texts(service), "name what it waits for", timeout_s=FAILOVER_S
        )
        others = [broker.node_id for broker in kafka.brokers if broker.node_id != frozen]
        admin = kafka.node(others[0]).admin()

        def has_moved() -> bool:
            found = (
                admin.list_topics(flow.target, timeout=10).topics[flow.target].partitions.values()
            )
            return all(partition.leader in others for partition in found)

        wait_until(
            has_moved,
            lambda: "Kafka elects other leaders",
            timeout_s=frozen_s + FAILOVER_S - time.monotonic(),
        )
        moved_s, before = time.monotonic(), delivered(service)
        service.wait_until(
            lambda: (
                all(now > then for now, then in zip(delivered(service), before, strict=True))
                or service.pending() == 0
            ),
            "deliver again",
            timeout_s=AFTER_FAILOVER_S,
        )
        print(
            f"failover {moved_s - frozen_s:.1f} s, deliveries {time.monotonic() - frozen_s:.1f} s "
            "after the fault"
        )
        flow.wait_settled(service)
        assert frozen in avoided(service)
        metrics = service.get("/metrics")
        assert f'chronos_broker_unavailable_seconds{{broker="{frozen}"}}' in str(metrics)

        kafka.node(frozen).thaw()
        kafka.wait_in_sync()
        balance(kafka, [flow.target])
        assert leaders(kafka, flow.target)[led[0]] == frozen

        # Each shard learns within 10 s that the broker leads again. So many messages would use
        # every partition by chance.
        deadline = time.monotonic() + FAILOVER_S
        while set(taken := deliver(kafka, service, flow, 3_000)) & set(led):
            check_deadline(deadline, f"the frozen broker is not avoided: {taken}")
        assert sum(taken.values()) == 3_000
        service.wait_ready()
        assert flow.dead_letters() == []
        assert flow.complaints() == []


@pytest.mark.campaign
def test_a_target_with_one_replica_on_a_frozen_broker_waits_until_the_broker_is_back(
    kafka: Cluster, tmp_path: Path
) -> None:
    """The log warns of it at the start, before any message is due; then nothing is lost, duplicated
    or dead-lettered."""
    flow = KafkaFlow(kafka, 2)
    flow.target = f"{flow.prefix}.lone"
    lone = NewTopic(
        flow.target,
        num_partitions=1,
        replica_assignment=[[1]],
        config={"message.timestamp.type": "LogAppendTime"},
    )
    admin = kafka.admin()
    admin.create_topics([lone])[flow.target].result(30)
    with serving(kafka, flow, tmp_path / "node") as service:
        service.start()
        flow.write(2_000, now_ms() + 25_000, now_ms() + 35_000, delays=0.0)
        flow.flush()
        service.wait_until(lambda: service.pending() == 2_000, "accept the messages")
        service.stop()
        service.start()
        service.wait_until(
            lambda: "topic has one replica" in service.log_path.read_text(),
            "warn of the target",
            timeout_s=60,
        )
        service.wait_until(lambda: sum(delivered(service)) > 100, "deliver the first messages")
        kafka.node(1).freeze()
        service.wait_until(
            lambda: f"{flow.target}/0" in texts(service),
            "name what it waits for",
            timeout_s=FAILOVER_S,
        )
        kafka.node(1).thaw()
        flow.wait_settled(service)
        service.wait_ready()
        assert flow.dead_letters() == []
        assert flow.complaints() == []
