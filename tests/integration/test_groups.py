"""Committed offsets of consumer groups, on a broker whose group coordinator has just started."""

import subprocess
import sys

import pytest

from chronos.adapters.kafka.log import KafkaLog
from tests.harness.broker import Broker

pytestmark = pytest.mark.kafka

QUERY = """
import sys
from chronos.adapters.kafka.log import KafkaLog

log = KafkaLog(bootstrap_servers=sys.argv[1], properties={}, progress_topic="p", transaction_timeout_s=10)
for number in range(5):
    assert log.committed(f"group-{sys.argv[2]}-{number}", "topic", 0) is None
log.close()
"""  # noqa: E501


def test_looking_up_unknown_groups_does_not_crash_the_process(own_broker: Broker) -> None:
    """Several processes ask first: the offsets topic does not exist yet, then is not loaded yet."""
    own_broker.create_topic("topic")
    asking = [
        subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", QUERY, own_broker.bootstrap, str(number)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    errors = [process.communicate(timeout=120)[1] for process in asking]
    assert [process.returncode for process in asking] == [0, 0, 0], errors
    log = KafkaLog(
        bootstrap_servers=own_broker.bootstrap,
        properties={},
        progress_topic="p",
        transaction_timeout_s=10,
    )
    log.commit_offsets("archive", {("topic", 0): 7})
    assert log.committed("archive", "topic", 0) == 7
    log.close()
