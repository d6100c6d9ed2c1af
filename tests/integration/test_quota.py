"""Quotas of the brokers make deliveries slow, and nothing else."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pytest

from tests.harness.broker import Broker
from tests.harness.service import Service
from tests.integration.foreign import Sent, Tail, Topics, produce

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

MESSAGES, VALUE_BYTES, EVERY_MS, QUOTA = 200, 4_800, 100, 20_000
"""Due at more than twice the quota, which takes 50 s for them."""


def test_a_quota_makes_deliveries_slow_and_aborts_nothing(tmp_path: Path) -> None:
    """After the first transaction, of which no rate was known, each fits into its time-out: none is
    aborted, the writer stays the same, and hardly a record is written twice."""
    with Broker() as broker:
        topics = Topics.of(f"q{uuid.uuid4().hex[:8]}")
        target = broker.create_topic(f"{topics.delay}.target")
        broker.limit_producers("chronos", QUOTA)
        with Service(
            tmp_path / "node", bootstrap=broker.bootstrap, settings=topics.settings()
        ) as service:
            service.start()
            produce(
                broker.bootstrap,
                topics.delay,
                [
                    Sent(
                        uuid.uuid4().bytes * (VALUE_BYTES // 16),
                        [
                            ("chronos-target-topic", target.encode()),
                            ("chronos-delay", b"%dms" % (3_000 + at * EVERY_MS)),
                        ],
                    )
                    for at in range(MESSAGES)
                ],
            )
            seen: set[str] = set()

            def is_delivered() -> bool:
                (shard,) = service.shards()
                seen.add(str(shard["paused"]))
                return int(shard["totals"]["delivered"]) == MESSAGES

            service.wait_until(is_delivered, "deliver", timeout_s=180, every_s=0.2)
            (shard,) = service.shards()
            _, metrics = service.ask("GET", "/metrics")
        with Tail(broker.bootstrap, target, isolation="read_uncommitted") as tail:
            written = len(tail.settle().records[target])
        with Tail(broker.bootstrap, target) as tail:
            delivered = len(tail.settle().records[target])
    assert delivered == MESSAGES
    assert written <= 1.05 * MESSAGES
    assert shard["epoch"]["log"] == 1, "the writer was replaced"
    (aborted,) = re.findall(r"^chronos_transactions_aborted_total\{.*\} ([0-9.]+)$", metrics, re.M)
    assert float(aborted) <= 1
    assert any("a quota of the brokers" in text for text in seen), seen
