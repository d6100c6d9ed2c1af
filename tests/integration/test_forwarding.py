"""Records that come to another partition than that of their id are forwarded, on a real broker."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from chronos.core.keys import partition_of
from tests.harness.broker import Broker
from tests.harness.service import Service
from tests.integration.foreign import Sent, Tail, Topics, produce, read_all, schedule

SHARDS = 3
CLIENTS = {
    "java": {"partitioner": "murmur2_random"},
    "librdkafka": {"partitioner": "consistent_random"},
    "sarama": {"partitioner": "fnv1a_random"},
    "round-robin": None,
}
"""Partitioners by the client that has them by default; None: any partition, as kafka-go chooses it."""

EACH = 8
"""Messages of each pair of clients that are cancelled; as many more are delivered."""

DUE_MS = 10_000
"""Time from the first message to the moment at which all are due: the broker, the service and this process share two cores."""


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


pytestmark = pytest.mark.xdist_group("forwarding")


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


def test_the_cancel_of_every_client_finds_the_message_of_every_other(chronos: Chronos) -> None:
    """Of each pair of clients all cancelled messages are cancelled, and all others are delivered once."""
    target, due_ms = chronos.target(), time.time_ns() // 1_000_000 + DUE_MS
    aim = [("chronos-target-topic", target.encode()), ("chronos-deliver-at", b"%d" % due_ms)]
    kept: set[bytes] = set()
    before = chronos.forwarded()
    for producer in CLIENTS:
        names = {canceller: [f"{producer}-{canceller}-{at}" for at in range(EACH)] for canceller in CLIENTS}
        gone = [f"{name}-{target}".encode() for group in names.values() for name in group]
        left = [b"kept-" + name for name in gone]
        kept |= set(left)
        chronos.write(producer, *(Sent(name, aim, name) for name in [*gone, *left]))
    for canceller in CLIENTS:
        names_of = [f"{producer}-{canceller}-{at}-{target}".encode() for producer in CLIENTS for at in range(EACH)]
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
    """A message that was forwarded takes its id in the whole service; the rejection of the second one has no hop."""
    target = chronos.target()
    name = f"twice-{target}".encode()
    home = partition_of(name, SHARDS)
    other = (home + 1) % SHARDS
    accepted, before_ms = chronos.service.accepted(), time.time_ns() // 1_000_000
    produce(chronos.broker.bootstrap, chronos.topics.delay, [Sent(b"first", schedule(target, delay="2s"), name, other)])
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
    """Messages are in other partitions, their cancels in those of the ids, before the messages get there. Both are rejected."""
    target, due_ms = chronos.target(), time.time_ns() // 1_000_000 + 4_000
    aim = [("chronos-target-topic", target.encode()), ("chronos-deliver-at", b"%d" % due_ms)]
    names = [f"{at}-{target}".encode() for at in range(30)]
    homes = [partition_of(name, SHARDS) for name in names]
    messages = [Sent(name, aim, name, (home + 1) % SHARDS) for name, home in zip(names, homes, strict=True)]
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
    assert refused == Counter({(None, "unknown"): len(cancels)}) + Counter((name, "too-late") for name in names[1:])


def test_a_generated_id_is_cancelled_through_any_partition(chronos: Chronos) -> None:
    target, at_ms = chronos.target(), time.time_ns() // 1_000_000 + 4_000
    aim = [("chronos-target-topic", target.encode()), ("chronos-deliver-at", b"%d" % at_ms)]
    places = produce(
        chronos.broker.bootstrap, chronos.topics.delay, [Sent(b"%d" % at, aim, None, at % SHARDS) for at in range(6)]
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
