"""Records that come to another partition than that of their id are forwarded, on real brokers."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from chronos.config import load
from chronos.core.keys import partition_of
from chronos.node.topics import own_topics
from tests.harness.broker import Broker, Cluster, cluster
from tests.harness.service import Service
from tests.harness.waiting import wait_until
from tests.integration.foreign import Sent, Tail, Topics, produce, read_all, schedule

SHARDS = 3
CLIENTS = {
    "java": {"partitioner": "murmur2_random"},
    "librdkafka": {"partitioner": "consistent_random"},
    "sarama": {"partitioner": "fnv1a_random"},
    "round-robin": None,
}
"""Partitioners by the client that has them by default; None: any partition, as kafka-go chooses
it."""

EACH = 8
"""Messages of each pair of clients that are cancelled; as many more are delivered."""

DUE_MS = 10_000
"""Time from the first message to the moment at which all are due: the broker, the service and this
process share two cores."""


class Chronos:
    """A running service, and clients with different partitioners."""

    def __init__(self, broker: Broker, service: Service, topics: Topics) -> None:
        self.broker = broker
        self.service = service
        self.topics = topics
        self._turn = 0

    def target(self) -> str:
        """A new target topic."""
        return self.broker.create_topic(f"t.{uuid.uuid4().hex[:10]}", partitions=2)

    def write(self, client: str, *records: Sent) -> list[tuple[int, int]]:
        """Write records to the delay topic as this client places them."""
        settings = CLIENTS[client]
        if settings is None:
            records = tuple(record._replace(partition=self._next()) for record in records)
        return produce(self.broker.bootstrap, self.topics.delay, records, **(settings or {}))

    def _next(self) -> int:
        self._turn += 1
        return self._turn % SHARDS

    def forwarded(self) -> int:
        """Records that were forwarded so far."""
        return sum(shard["totals"]["forwarded"] for shard in self.service.shards())


@pytest.fixture(scope="module")
def chronos(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chronos]:
    topics = Topics.of(f"w{uuid.uuid4().hex[:8]}")
    folder: Path = tmp_path_factory.mktemp("forwarding")
    settings = topics.settings(shards=SHARDS)
    with Service(folder / "node", bootstrap=broker.bootstrap, settings=settings) as service:
        service.start()
        yield Chronos(broker, service, topics)
        assert service.running, service.tail()
        assert service.stop() == 0


@pytest.mark.smoke
def test_the_cancel_of_every_client_finds_the_message_of_every_other(chronos: Chronos) -> None:
    """Of each pair of clients all cancelled messages are cancelled, and all others are delivered
    once."""
    target, due_ms = chronos.target(), time.time_ns() // 1_000_000 + DUE_MS
    aim = [("chronos-target-topic", target.encode()), ("chronos-deliver-at", b"%d" % due_ms)]
    kept: set[bytes] = set()
    before = chronos.forwarded()
    for producer in CLIENTS:
        names = {
            canceller: [f"{producer}-{canceller}-{at}" for at in range(EACH)]
            for canceller in CLIENTS
        }
        gone = [f"{name}-{target}".encode() for group in names.values() for name in group]
        left = [b"kept-" + name for name in gone]
        kept |= set(left)
        chronos.write(producer, *(Sent(name, aim, name) for name in [*gone, *left]))
    for canceller in CLIENTS:
        names_of = [
            f"{producer}-{canceller}-{at}-{target}".encode()
            for producer in CLIENTS
            for at in range(EACH)
        ]
        chronos.write(canceller, *(Sent(None, [], name) for name in names_of))
    cancelled_ms = time.time_ns() // 1_000_000
    assert cancelled_ms < due_ms - 1_000, "the machine is too slow for this"

    with Tail(chronos.broker.bootstrap, target) as tail:
        tail.take(target, len(kept))
        found = tail.settle().records[target]

    assert sorted(got.value or b"" for got in found) == sorted(kept)
    for got in found:
        home = partition_of(got.header("chronos-id") or b"", SHARDS)
        assert (got.source or b"").startswith(f"{chronos.topics.delay}/{home}/".encode())
        assert got.header("chronos-forwarded") is None
    assert chronos.forwarded() > before


def test_a_delay_counts_from_the_first_timestamp_and_an_id_is_unique(chronos: Chronos) -> None:
    """A message that was forwarded takes its id in the whole service; the rejection of the second
    one has no hop."""
    target = chronos.target()
    name = f"twice-{target}".encode()
    home = partition_of(name, SHARDS)
    other = (home + 1) % SHARDS
    accepted, before_ms = chronos.service.accepted(), time.time_ns() // 1_000_000
    produce(
        chronos.broker.bootstrap,
        chronos.topics.delay,
        [Sent(b"first", schedule(target, delay="2s"), name, other)],
    )
    after_ms = time.time_ns() // 1_000_000
    chronos.service.wait_until(lambda: chronos.service.accepted() > accepted, "accept the message")
    produce(
        chronos.broker.bootstrap,
        chronos.topics.delay,
        [Sent(b"second", schedule(target, delay="2s"), name, (home + 2) % SHARDS)],
    )

    with Tail(chronos.broker.bootstrap, target) as tail:
        tail.take(target, 1)
        (got,) = tail.settle().records[target]
    assert got.value == b"first"
    assert before_ms + 2_000 <= int(got.header("chronos-due-at") or b"0") <= after_ms + 2_000
    with Tail(chronos.broker.bootstrap, chronos.topics.rejected) as tail:
        rejected = tail.records[chronos.topics.rejected]
        tail.until(lambda: b"second" in {found.value for found in rejected}, "the rejection")
    (second,) = [found for found in rejected if found.value == b"second"]
    assert (second.reason, second.header("chronos-forwarded")) == ("conflict", None)
    assert (second.source or b"").startswith(f"{chronos.topics.delay}/{home}/".encode())


def test_a_cancel_that_overtakes_its_message_wins(chronos: Chronos) -> None:
    """Messages are in other partitions, their cancels in those of the ids, before the messages get
    there. Both are rejected."""
    target, due_ms = chronos.target(), time.time_ns() // 1_000_000 + 4_000
    aim = [("chronos-target-topic", target.encode()), ("chronos-deliver-at", b"%d" % due_ms)]
    names = [f"{at}-{target}".encode() for at in range(30)]
    homes = [partition_of(name, SHARDS) for name in names]
    messages = [
        Sent(name, aim, name, (home + 1) % SHARDS) for name, home in zip(names, homes, strict=True)
    ]
    cancels = [Sent(None, [], name, home) for name, home in zip(names[1:], homes[1:], strict=True)]
    chronos.service.freeze()
    try:
        produce(chronos.broker.bootstrap, chronos.topics.delay, messages)
        produce(chronos.broker.bootstrap, chronos.topics.delay, cancels)
    finally:
        chronos.service.thaw()

    with Tail(chronos.broker.bootstrap, target) as tail:
        tail.take(target, 1)
        assert [got.value for got in tail.settle().records[target]] == [names[0]]
    refused = Counter(
        (got.value, got.reason)
        for got in read_all(chronos.broker.bootstrap, chronos.topics.rejected)
        if got.key in names
    )
    assert refused == Counter({(None, "unknown"): len(cancels)}) + Counter(
        (name, "too-late") for name in names[1:]
    )


def test_a_generated_id_is_cancelled_through_any_partition(chronos: Chronos) -> None:
    target, at_ms = chronos.target(), time.time_ns() // 1_000_000 + 4_000
    aim = [("chronos-target-topic", target.encode()), ("chronos-deliver-at", b"%d" % at_ms)]
    places = produce(
        chronos.broker.bootstrap,
        chronos.topics.delay,
        [Sent(b"%d" % at, aim, None, at % SHARDS) for at in range(6)],
    )
    generated = [b"%d-%d-%d" % (partition, at_ms, offset) for partition, offset in places]
    cancels = [
        Sent(None, [("chronos-action", b"cancel"), ("chronos-id", name)], None, (at + 1) % SHARDS)
        for at, name in enumerate(generated[:4])
    ]
    produce(chronos.broker.bootstrap, chronos.topics.delay, cancels)

    with Tail(chronos.broker.bootstrap, target) as tail:
        tail.take(target, 2)
        assert sorted(got.value or b"" for got in tail.settle().records[target]) == [b"4", b"5"]


def create(kafka: Cluster, topics: Topics, places: dict[str, list[int]]) -> None:
    """Create topics of Chronos with the settings that it gives them, each partition on one
    broker."""
    config = load(None, {}, [f"topics.{name}={topic}" for name, topic in topics._asdict().items()])
    settings = {
        spec.name: {
            name: value for name, value in spec.settings.items() if name != "replication.factor"
        }
        for spec in own_topics(config)
    }
    made = [
        NewTopic(
            topic,
            len(nodes),
            replica_assignment=[[node] for node in nodes],
            config=settings.get(topic, {}),
        )
        for topic, nodes in places.items()
    ]
    admin = kafka.admin()
    for future in admin.create_topics(made).values():
        future.result(30)


@pytest.mark.kafka
def test_a_record_for_a_partition_without_a_leader_delays_no_other_record(tmp_path: Path) -> None:
    """Every cancel behind it wins; when the leader is back, the record arrives and acts."""
    topics, there, lost = Topics.of(f"h{uuid.uuid4().hex[:8]}"), 1, 2
    target = f"{topics.delay}.target"
    ids = [b"%d-%s" % (at, target.encode()) for at in range(200)]
    own, away = ([name for name in ids if partition_of(name, SHARDS) == home] for home in (0, 2))
    with cluster(3, heap_mb=320) as kafka:
        create(
            kafka,
            topics,
            {
                topics.delay: [there, there, lost],
                topics.progress: [there] * SHARDS,
                topics.rejected: [there],
                topics.dead_letter: [there],
                target: [there],
            },
        )

        def is_leaderless() -> bool:
            try:
                found = kafka.admin().list_topics(topics.delay, timeout=10).topics[topics.delay]
            except KafkaException:
                return False
            return len(found.partitions) == SHARDS and found.partitions[2].leader < 0

        settings = topics.settings(shards=SHARDS, delivery__transaction_timeout="5s")
        with Service(tmp_path / "node", bootstrap=kafka.bootstrap, settings=settings) as service:
            service.start()
            produce(
                kafka.bootstrap,
                topics.delay,
                [Sent(b"late", schedule(target, delay="3h"), away[0], 2)],
            )
            service.wait_until(
                lambda: service.accepted() == 1, "accept the message whose partition is lost later"
            )
            kafka.node(lost).kill()
            wait_until(is_leaderless, timeout_s=30)
            # The brokers' own partitions fail over too: that is over once a message is delivered.
            produce(
                kafka.bootstrap,
                topics.delay,
                [Sent(b"first", schedule(target, delay="1s"), own[0], 0)],
            )
            with Tail(kafka.bootstrap, target) as tail:
                tail.take(target, 1)
                messages = [
                    Sent(name, schedule(target, delay="20s"), name, 0) for name in own[1:22]
                ]
                produce(kafka.bootstrap, topics.delay, messages)
                produce(kafka.bootstrap, topics.delay, [Sent(None, [], away[0], 0)])
                produce(
                    kafka.bootstrap, topics.delay, [Sent(None, [], name, 0) for name in own[1:21]]
                )
                service.wait_until(
                    lambda: service.shards()[0]["held"] == 1,
                    "hold the record that cannot be forwarded",
                )
                tail.take(target, 2)
                assert [got.value for got in tail.settle().records[target]] == [b"first", own[21]]
            shard = service.shards()[0]
            assert (shard["totals"]["cancelled"], shard["totals"]["forwarded"], shard["held"]) == (
                20,
                0,
                1,
            )
            assert f"1 records wait to be forwarded to {topics.delay}/2" in shard["paused"]
            kafka.node(lost).start()
            service.wait_until(
                lambda: service.shards()[2]["totals"]["cancelled"] == 1,
                "execute the record that was held",
            )
            shard = service.shards()[0]
            assert (shard["totals"]["forwarded"], shard["held"], shard["totals"]["held"]) == (
                1,
                0,
                1,
            )
            service.wait_ready()
