"""Two real brokers whose clocks differ, each by less than the tolerance from the machine's: the
order of the records of an id holds."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer

from chronos.core.keys import partition_of
from tests.harness.broker import BrokerClock, Cluster, cluster
from tests.harness.service import Service
from tests.integration.foreign import READ_TIMEOUT_S, Sent, Tail, Topics, produce, read_all

pytestmark = pytest.mark.kafka

SHARDS = 4
BEHIND, AHEAD = 1, 2
"""Node ids of the brokers."""

CLOCKS = {BEHIND: BrokerClock(-190, drift_ppm=-200), AHEAD: BrokerClock(210, drift_ppm=200)}
"""400 ms apart, and some more with every second."""

EACH = 15
"""Ids of each kind."""

ROUNDS = 5
"""Rounds in which the clocks of the brokers are compared."""

DUE_MS = 3_600_000
"""Time from the first record to the moment at which messages are due that are cancelled or fired
before."""


class Place(NamedTuple):
    """A running service on both brokers."""

    kafka: Cluster
    service: Service
    topics: Topics
    led: dict[int, list[int]]
    """The delay partitions that each broker leads."""

    def target(self) -> str:
        """A new target topic."""
        return self.kafka.create_topic(f"t.{uuid.uuid4().hex[:10]}")

    def names(self, broker: int, suffix: str) -> list[bytes]:
        """EACH ids whose partition this broker leads."""
        made = (f"{at}-{suffix}".encode() for at in range(1_000))
        return [name for name in made if partition_of(name, SHARDS) in self.led[broker]][:EACH]

    def through(self, broker: int, records: list[Sent]) -> list[Sent]:
        """The records, each for a partition that this broker leads: that of its id, if it can
        be."""
        led = self.led[broker]
        homes = [partition_of(record.key or b"", SHARDS) for record in records]
        return [
            record._replace(partition=home if home in led else led[0])
            for record, home in zip(records, homes, strict=True)
        ]

    def write(self, records: list[Sent]) -> None:
        """Write records to the delay topic, at almost the same moment."""
        produce(self.kafka.bootstrap, self.topics.delay, records)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    topics = Topics.of(f"w{uuid.uuid4().hex[:8]}")
    settings = topics.settings(shards=SHARDS)
    folder: Path = tmp_path_factory.mktemp("clocks")
    with (
        cluster(2, heap_mb=320, clocks=CLOCKS) as kafka,
        Service(folder / "node", bootstrap=kafka.bootstrap, settings=settings) as service,
    ):
        service.start()
        partitions = (
            kafka.admin().list_topics(topics.delay, timeout=10).topics[topics.delay].partitions
        )
        led = {
            node: [at for at, each in partitions.items() if each.leader == node] for node in CLOCKS
        }
        assert all(led.values()), "one broker leads all delay partitions"
        yield Place(kafka, service, topics, led)
        assert service.running, service.tail()
        assert service.stop() == 0


def aimed(target: str, due_ms: int, names: list[bytes]) -> list[Sent]:
    """Messages for a target, each with its id as payload."""
    aim = [("chronos-target-topic", target.encode()), ("chronos-deliver-at", b"%d" % due_ms)]
    return [Sent(name, aim, name) for name in names]


def cancels(names: list[bytes]) -> list[Sent]:
    """Cancels of these ids."""
    return [Sent(None, [], name) for name in names]


def fired(names: list[bytes]) -> list[Sent]:
    """Actions that make the messages of these ids due at once."""
    return [Sent(None, [("chronos-action", b"fire-now")], name) for name in names]


def refused(place: Place, names: list[bytes]) -> Counter[tuple[bytes | None, str | None]]:
    """Payload and reason of the rejected records of these ids."""
    found = read_all(place.kafka.bootstrap, place.topics.rejected)
    return Counter((got.value, got.reason) for got in found if got.key in names)


def test_the_clocks_of_the_brokers_differ(place: Place) -> None:
    """Else the other tests prove nothing: a record that is written after another one has an earlier
    timestamp.

    Each round writes through the one broker, the other one and the first again: the difference of
    the clocks lies between those of the timestamps. A slow write only widens what a round allows.
    """
    producer = Producer({"bootstrap.servers": place.kafka.bootstrap, "linger.ms": 0})
    rounds = [[f"clock-{at}-{part}".encode() for part in range(3)] for at in range(ROUNDS)]
    for names in rounds:
        for broker, name in zip((BEHIND, AHEAD, BEHIND), names, strict=True):
            producer.produce(
                place.topics.delay, key=name, value=b"", partition=place.led[broker][0]
            )
            assert producer.flush(READ_TIMEOUT_S) == 0

    with Tail(place.kafka.bootstrap, place.topics.delay) as tail:
        records = tail.records[place.topics.delay]
        wanted = {name for names in rounds for name in names}
        tail.until(lambda: wanted.issubset(got.key for got in records), "the records")
    times_ms = {got.key: got.timestamp_ms for got in records}
    at_least_ms = max(times_ms[ahead] - times_ms[after] for _, ahead, after in rounds)
    at_most_ms = min(times_ms[ahead] - times_ms[before] for before, ahead, _ in rounds)
    assert 0 < at_least_ms <= at_most_ms < 1_000


def test_actions_through_a_broker_with_another_clock_are_obeyed(place: Place) -> None:
    """Cancels and actions `fire-now` are written to the other broker than that of their ids, and
    all are forwarded."""
    target, due_ms = place.target(), time.time_ns() // 1_000_000 + DUE_MS
    names = {broker: place.names(broker, f"{broker}-{target}") for broker in CLOCKS}
    kept = {broker: place.names(broker, f"kept-{broker}-{target}") for broker in CLOCKS}
    before = place.service.pending()
    for broker in CLOCKS:
        place.write(place.through(broker, aimed(target, due_ms, [*names[broker], *kept[broker]])))
    # The actions are written when all messages are there, so that none overtakes its message.
    place.service.wait_until(
        lambda: place.service.pending() == before + 4 * EACH, "accept the messages"
    )
    for through, home in ((AHEAD, BEHIND), (BEHIND, AHEAD)):
        place.write(place.through(through, cancels(names[home])))
        place.write(place.through(through, fired(kept[home])))

    with Tail(place.kafka.bootstrap, target) as tail:
        tail.take(target, 2 * EACH)
        found = tail.settle().records[target]
    assert sorted(got.value or b"" for got in found) == sorted([*kept[AHEAD], *kept[BEHIND]])
    place.service.wait_until(lambda: place.service.pending() == before, "cancel the others")
    assert refused(place, [*names[AHEAD], *names[BEHIND], *kept[AHEAD], *kept[BEHIND]]) == Counter()


@pytest.mark.parametrize("through", [AHEAD, BEHIND])
def test_a_cancel_that_overtakes_its_message_wins_under_both_clocks(
    place: Place, through: int
) -> None:
    """Messages come through one broker and are forwarded; their cancels, written at the same
    moment, are in the partitions of the ids before they arrive."""
    home = BEHIND if through == AHEAD else AHEAD
    target, due_ms = place.target(), time.time_ns() // 1_000_000 + 4_000
    names, kept = place.names(home, target), place.names(home, f"kept-{target}")
    place.service.freeze()
    try:
        messages = place.through(through, aimed(target, due_ms, [*names, *kept]))
        place.write([*messages, *place.through(home, cancels(names))])
    finally:
        place.service.thaw()

    with Tail(place.kafka.bootstrap, target) as tail:
        tail.take(target, len(kept))
        assert sorted(got.value or b"" for got in tail.settle().records[target]) == sorted(kept)
    expected = Counter({(None, "unknown"): len(names)}) + Counter(
        (name, "too-late") for name in names
    )
    assert refused(place, [*names, *kept]) == expected
