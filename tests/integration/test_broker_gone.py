"""What a broker that is gone costs those that ask for it."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import pytest

from chronos.adapters.kafka.log import KafkaLog
from chronos.errors import LogUnavailable
from chronos.ports import TopicSpec
from tests.harness.broker import Cluster, wait_until

pytestmark = pytest.mark.integration

BROKERS = 3
NODES = 4
"""Each is told another broker as controller, by chance."""

ASKED_S = 5.0
BACK_S = 30.0


def log_on(kafka: Cluster) -> KafkaLog:
    """As a node has it: the topics checked."""
    log = KafkaLog(
        bootstrap_servers=kafka.bootstrap,
        properties={},
        cluster="c",
        progress_topic="topic",
        transaction_timeout_s=10,
    )
    log.prepare([TopicSpec(name="topic", partitions=BROKERS, settings={})], create=True)
    return log


@pytest.mark.timeout(180)
def test_while_a_broker_is_gone_nobody_spins_and_then_all_is_answered() -> None:
    """The client's own way to wait for one is to connect as fast as it can: a core for each node, when all need it."""
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
        asking = [threading.Thread(target=ask, args=(log, partition)) for log in logs for partition in range(BROKERS)]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
        assert time.process_time() - spent_s < ASKED_S / 2, "somebody waits in a busy loop"

        deadline = time.monotonic() + BACK_S
        for log in logs:
            for partition in range(BROKERS):
                while True:
                    try:
                        assert log.stable_end("topic", partition) == 0
                        break
                    except LogUnavailable:
                        assert time.monotonic() < deadline
            log.close()


@pytest.mark.timeout(180)
def test_once_the_others_know_that_a_broker_is_gone_so_does_a_client_that_was_told_it_is_the_controller() -> None:
    """A third of the clients were, and none of them asks for anything in the meantime."""
    with Cluster(BROKERS, {"broker.session.timeout.ms": 3_000}) as kafka:
        logs = [log_on(kafka) for _ in range(3 * NODES)]
        admin = kafka.admin()
        kafka.brokers[0].kill()
        down = kafka.brokers[0].node_id
        assert wait_until(
            lambda: down not in admin.list_topics("topic", timeout=10).brokers, deadline=time.monotonic() + BACK_S
        )
        for log in logs:
            info = log.describe(["topic"])["topic"]
            assert info is not None
            assert info.partitions == BROKERS
            log.close()
