"""What a broker that is gone costs those that ask for it."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import pytest

from chronos.adapters.kafka import KafkaLog
from chronos.errors import LogUnavailable
from tests.broker import Cluster

pytestmark = pytest.mark.integration

BROKERS = 3
NODES = 4
"""Each is told another broker as controller, by chance."""

ASKED_S = 5.0
BACK_S = 30.0


@pytest.mark.timeout(180)
def test_while_a_broker_is_gone_nobody_spins_and_then_all_is_answered() -> None:
    """The client's own way to wait for one is to connect as fast as it can: a core for each node, when all need it."""
    with Cluster(BROKERS, {"broker.session.timeout.ms": 3_000}) as kafka:
        kafka.create_topic("topic", partitions=BROKERS)
        logs = [
            KafkaLog(bootstrap_servers=kafka.bootstrap, properties={}, cluster="c", progress_topic="topic",
                     transaction_timeout_s=10)
            for _ in range(NODES)
        ]  # fmt: skip
        for log in logs:
            log.look(["topic"])
            assert [log.stable_end("topic", partition) for partition in range(BROKERS)] == [0, 0, 0]
        kafka.brokers[0].kill()
        ended = time.monotonic() + ASKED_S

        def ask(log: KafkaLog, partition: int) -> None:
            while time.monotonic() < ended:
                with suppress(LogUnavailable):
                    log.look(["topic"])
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
