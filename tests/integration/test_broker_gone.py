"""The cost of a dead broker for its clients."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import pytest

from chronos.adapters.kafka.log import KafkaLog
from chronos.errors import LogUnavailable
from chronos.ports import TopicSpec
from tests.harness.broker import Cluster
from tests.harness.waiting import check_deadline, wait_until

pytestmark = pytest.mark.kafka

BROKERS = 3
NODES = 4
"""Each is given a random broker as controller."""

ASKED_S = 5.0
BACK_S = 30.0


def log_on(kafka: Cluster) -> KafkaLog:
    """A log as a node uses it, with its topics checked."""
    log = KafkaLog(
        bootstrap_servers=kafka.bootstrap,
        properties={},
        progress_topic="topic",
        transaction_timeout_s=10,
    )
    log.prepare([TopicSpec(name="topic", partitions=BROKERS, settings={})], create=True)
    return log


def test_while_a_broker_is_dead_no_client_busy_waits() -> None:
    """By itself librdkafka reconnects as fast as it can, which would take a core per node.
    Afterwards all calls work."""
    with Cluster(BROKERS, {"broker.session.timeout.ms": 3_000}) as kafka:
        logs = [log_on(kafka) for _ in range(NODES)]
        for log in logs:
            assert [log.stable_end("topic", partition) for partition in range(BROKERS)] == [0, 0, 0]
        kafka.brokers[0].kill()
        ended = time.monotonic() + ASKED_S

        def ask(log: KafkaLog, partition: int) -> None:
            while time.monotonic() < ended:
                with suppress(LogUnavailable):
                    log.describe(["topic"])
                with suppress(LogUnavailable):
                    log.stable_end("topic", partition)
                time.sleep(0.1)

        spent_s = time.process_time()
        asking = [
            threading.Thread(target=ask, args=(log, partition))
            for log in logs
            for partition in range(BROKERS)
        ]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
        assert time.process_time() - spent_s < ASKED_S / 2, "a client waits in a busy loop"

        deadline = time.monotonic() + BACK_S
        for log in logs:
            for partition in range(BROKERS):
                while True:
                    try:
                        assert log.stable_end("topic", partition) == 0
                        break
                    except LogUnavailable:
                        check_deadline(deadline)
            log.close()


def test_a_client_whose_controller_died_finds_the_new_one() -> None:
    """A third of the clients had the dead broker as controller; none of them made a call in the
    meantime."""
    with Cluster(BROKERS, {"broker.session.timeout.ms": 3_000}) as kafka:
        logs = [log_on(kafka) for _ in range(3 * NODES)]
        admin = kafka.admin()
        kafka.brokers[0].kill()
        down = kafka.brokers[0].node_id
        wait_until(
            lambda: down not in admin.list_topics("topic", timeout=10).brokers, timeout_s=BACK_S
        )
        for log in logs:
            info = log.describe(["topic"])["topic"]
            assert info is not None
            assert info.partitions == BROKERS
            log.close()
