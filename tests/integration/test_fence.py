"""A master that was frozen until Kafka had forgotten its transactional id, and with it the fence of
its successor, delivers nothing a second time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.chaos.fleet import Node
from tests.harness.broker import FORGETFUL, Broker
from tests.integration.flow import SHARDS, KafkaFlow, now_ms
from tests.integration.nodes import SILENCE_S, paused

pytestmark = pytest.mark.kafka

MESSAGES = 40


@pytest.fixture
def forgetful() -> Iterator[Broker]:
    """A broker that forgets a transactional id after 12 s instead of 7 days."""
    with Broker({**FORGETFUL, "transactional.id.expiration.ms": 12_000}) as broker:
        yield broker


def nodes(broker: Broker, flow: KafkaFlow, path: Path) -> tuple[Node, Node]:
    first, second = (
        Node(path / name, bootstrap=broker.bootstrap, settings={**flow.settings(), "node.id": name})
        for name in ("node-a", "node-b")
    )
    return first, second


def ends_naming_the_other(first: Node, flow: KafkaFlow) -> None:
    """The woken node exits; what the other one delivered is there once."""
    first.thaw()
    assert first.wait_exit() == 1
    assert "node-b" in first.tail(3)
    assert "took over shard" in first.tail(3)
    assert flow.complaints() == []
    assert len(flow.delivered()) == MESSAGES


def delivered_by_the_other(
    broker: Broker, flow: KafkaFlow, first: Node, second: Node, *, steps_clock: bool
) -> None:
    """The first node is frozen with messages pending; the second one takes over, delivers them and
    stops, and the broker forgets both.

    `steps_clock`: the second node does not wait for the silence, but its clock is stepped by it."""
    first.start()
    flow.write(MESSAGES, now_ms() + 6_000, now_ms() + 7_000, delays=0.0)
    flow.flush()
    first.wait_until(lambda: first.pending() == MESSAGES, "pull everything")
    first.freeze()
    second.launch()
    second.wait_until(
        lambda: paused(second).count("node node-a") == SHARDS, "name the node it waits for"
    )
    if steps_clock:
        second.set_clock(SILENCE_S * 1_000)
        second.wait_until(lambda: paused(second).count("NTP") == SHARDS, "take over every shard")
        second.set_clock(0)
    second.wait_until(lambda: is_settled(flow, second), "deliver everything", timeout_s=150.0)
    second.stop()
    broker.wait_forgotten()


def is_settled(flow: KafkaFlow, node: Node) -> bool:
    with suppress(OSError):
        return flow.is_settled(node)
    return False


@pytest.mark.smoke
def test_a_master_that_wakes_after_its_transactional_id_was_forgotten_delivers_nothing_twice(
    forgetful: Broker, tmp_path: Path
) -> None:
    """It wakes before its own last commit is old, and learns from Kafka that its fence is gone
    (KAFKA-17822)."""
    flow = KafkaFlow(forgetful, 1)
    first, second = nodes(forgetful, flow, tmp_path)
    with first, second:
        delivered_by_the_other(forgetful, flow, first, second, steps_clock=True)
        ends_naming_the_other(first, flow)
        assert "broker 1 has transactional.id.expiration.ms=12000" in str(
            first.events("topic setting")
        )
        assert "have forgotten the transactional id" in first.tail(3)


@pytest.mark.campaign
def test_a_master_that_wakes_after_the_silence_of_a_take_over_sends_nothing(
    forgetful: Broker, tmp_path: Path
) -> None:
    """It asks no broker: its own clock shows how old its last commit is."""
    flow = KafkaFlow(forgetful, 1)
    first, second = nodes(forgetful, flow, tmp_path)
    with first, second:
        delivered_by_the_other(forgetful, flow, first, second, steps_clock=False)
        ends_naming_the_other(first, flow)
        assert "nothing was committed for" in first.tail(3)


OUTAGE_S = 100.0
"""Longest time that a leadership lasts without a commit, and a margin."""

AGAIN_S = 5.0
"""Longest time until every shard is led again."""

MANY = 64


def leading(node: Node) -> int:
    """Number of shards that the node leads without a pause; 0 while it does not answer."""
    with suppress(OSError):
        return sum(shard["role"] == "master" and shard["paused"] is None for shard in node.shards())
    return 0


@pytest.mark.campaign
@pytest.mark.parametrize("how", ["frozen", "killed"])
def test_sixty_four_shards_lead_again_within_five_seconds_of_a_long_outage(
    own_broker: Broker, tmp_path: Path, how: str
) -> None:
    """All of their leaderships have ended meanwhile."""
    broker = own_broker
    prefix = f"outage-{how}"
    settings = {"shards": MANY, "cluster": prefix, "node.id": "node-a"}
    with Node(tmp_path / "node-a", bootstrap=broker.bootstrap, settings=settings) as node:
        node.start(timeout_s=120.0)
        node.wait_until(lambda: leading(node) == MANY, "lead every shard", timeout_s=120.0)
        broker.freeze() if how == "frozen" else broker.kill()
        node.wait_until(
            lambda: leading(node) == 0, "end every leadership", timeout_s=OUTAGE_S, every_s=1.0
        )
        broker.thaw() if how == "frozen" else broker.start()
        began_s = time.monotonic()
        node.wait_until(lambda: leading(node) == MANY, "lead every shard again", timeout_s=60.0)
        took_s = time.monotonic() - began_s
        print(f"{MANY} shards led again {took_s:.1f} s after the broker, {how} before")
        assert took_s <= AGAIN_S
