"""A frozen broker of three: clients that ask for topics and offsets give it up."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from chronos.adapters.kafka.log import KafkaLog
from chronos.errors import LogUnavailable
from chronos.ports import TopicSpec
from tests.harness.broker import Cluster

pytestmark = [pytest.mark.integration, pytest.mark.slow]

BROKERS = 3

CLIENTS = 9
"""Of three brokers each is asked by three of them, on average."""

SETTLED_S = 12.0
"""By then every client has sent a request to the frozen broker, if it uses it."""

GIVEN_UP_S = 45.0
"""The failover and one request of 5 s, on a loaded machine; without a limit it is more than a minute."""


@pytest.fixture(scope="module")
def kafka() -> Iterator[Cluster]:
    with Cluster(BROKERS, {"broker.session.timeout.ms": 3_000}) as cluster:
        yield cluster


@pytest.mark.timeout(300)
def test_a_client_gives_up_a_frozen_broker_after_one_request(kafka: Cluster) -> None:
    """By itself librdkafka waits a minute for the answer of a frozen broker, and knows no new leader meanwhile."""
    topic = kafka.create_topic("asked", partitions=BROKERS)
    logs = [
        KafkaLog(bootstrap_servers=kafka.bootstrap, properties={}, progress_topic=topic, transaction_timeout_s=5)
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
                    if info is not None and 2 not in info.leaders and time.monotonic() > frozen_s + SETTLED_S:
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
