"""Rate limits on a real Kafka: accuracy, a change at run time, and a master that is killed with
messages in its lanes."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.fleet import Fleet
from tests.harness.broker import Broker
from tests.harness.zookeeper import Ensemble
from tests.integration.flow import SHARDS, KafkaFlow
from tests.integration.foreign import Sent, Tail, produce, schedule

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]

MESSAGES = 4_000
RATE, BURST = 100, 50
SLACK = 1.35
"""Most messages in a window relative to the rate: shares are adjusted twice a second."""
LEAST = 0.05
"""Least: on a machine with many other processes a shard makes a step a second, which takes at most
one burst. How exact the rate is otherwise is tested by a clock of the test's own
(tests/unit/test_rates.py, tests/node/test_rates.py)."""


@pytest.fixture
def flow(broker: Broker) -> KafkaFlow:
    """Topics of their own."""
    return KafkaFlow(broker, 1)


@pytest.fixture
def fleet(broker: Broker, zookeeper: Ensemble, flow: KafkaFlow, tmp_path: Path) -> Iterator[Fleet]:
    """Three nodes, not started yet."""
    settings = {
        **flow.settings(),
        "delivery.transaction_timeout": "4s",
        "delivery.rates": '{"*.limited": 1/s}',
    }
    with Fleet(
        tmp_path,
        bootstrap=broker.bootstrap,
        zookeeper=zookeeper.hosts,
        shards=SHARDS,
        settings=settings,
    ) as nodes:
        yield nodes


def most_within(times_ms: list[int], window_ms: int) -> int:
    """The greatest number of messages in any window of this length."""
    return max(bisect_left(times_ms, at + window_ms) - number for number, at in enumerate(times_ms))


def test_a_cluster_keeps_a_rate_through_a_change_and_a_kill(
    fleet: Fleet, flow: KafkaFlow, broker: Broker
) -> None:
    """Each message is parked once at most and arrives once; messages for another target do not wait
    behind them."""
    fleet.start()
    limited = broker.create_topic(f"{flow.prefix}.limited", partitions=3)
    free = broker.create_topic(f"{flow.prefix}.free")
    node = fleet.any()
    assert node.ask("PUT", f"/v1/rates/{limited}", {"rate": f"{RATE}/s burst {BURST}"})[0] == 200
    for other in fleet.nodes.values():
        other.wait_until(
            lambda other=other: (
                other.get("/v1/rates", topic=limited)["rates"][0]["source"] == "run-time"
            ),  # type: ignore[misc]
            "know the limit",
        )
    delay = f"{flow.prefix}.delay"
    produce(
        broker.bootstrap, delay, [Sent(b"%d" % at, schedule(limited)) for at in range(MESSAGES)]
    )
    began_s = time.monotonic()
    produce(broker.bootstrap, delay, [Sent(b"free %d" % at, schedule(free)) for at in range(100)])
    with Tail(broker.bootstrap, limited, free) as tail:
        tail.take(free, 100, timeout_s=30.0)
        while time.monotonic() < began_s + 15.0:
            tail.read(0.1)
        steady = sorted(got.timestamp_ms for got in tail.records[limited])
        assert most_within(steady, 10_000) <= (RATE * 10 + BURST) * SLACK
        in_time = bisect_left(steady, steady[-1] - 1_000) - bisect_left(steady, steady[-1] - 11_000)
        assert in_time >= RATE * 10 * LEAST
        # The master with the most messages in its lanes is killed.
        killed = fleet.busiest()
        fleet.nodes[killed].kill()
        alive = next(other for name, other in fleet.nodes.items() if name != killed)
        at_kill = len(tail.records[limited])
        tail.take(limited, at_kill + 200, timeout_s=60.0)
        assert alive.ask("PUT", f"/v1/rates/{limited}", {"rate": "1000/s"})[0] in (200, 202)
        tail.take(limited, MESSAGES, timeout_s=90.0)
        found = tail.settle().records[limited]
    times_ms = sorted(got.timestamp_ms for got in found)
    assert most_within(times_ms[: at_kill + 200], 10_000) <= (RATE * 10 + BURST) * SLACK
    assert sorted(int(got.value or b"") for got in found) == list(range(MESSAGES))
    shards = alive.shards()
    assert sum(shard["parked"] for shard in shards) == 0
    assert MESSAGES * 0.9 <= sum(shard["totals"]["parked"] for shard in shards) <= MESSAGES
