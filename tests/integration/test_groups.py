"""The places of consumer groups, asked of brokers whose coordinator has hardly begun."""

import subprocess
import sys

import pytest

from chronos.adapters.kafka.log import KafkaLog
from tests.harness.broker import Broker

ASK = """
import sys
from chronos.adapters.kafka.log import KafkaLog
log = KafkaLog(bootstrap_servers=sys.argv[1], properties={}, cluster="c", progress_topic="p", transaction_timeout_s=10)
for number in range(5):
    assert log.committed(f"group-{sys.argv[2]}-{number}", "topic", 0) is None
log.close()
"""


@pytest.mark.timeout(180)
def test_asking_for_groups_that_never_were_does_not_end_the_process(own_broker: Broker) -> None:
    """Several processes are the first to ask: the offsets' own topic is not made yet, then not loaded."""
    own_broker.create_topic("topic")
    asking = [
        subprocess.Popen([sys.executable, "-X", "faulthandler", "-c", ASK, own_broker.bootstrap, str(number)],
                         stderr=subprocess.PIPE, text=True)
        for number in range(3)
    ]  # fmt: skip
    said = [process.communicate(timeout=120)[1] for process in asking]
    assert [process.returncode for process in asking] == [0, 0, 0], said
    log = KafkaLog(
        bootstrap_servers=own_broker.bootstrap, properties={}, cluster="c", progress_topic="p", transaction_timeout_s=10
    )
    log.commit_offsets("archive", {("topic", 0): 7})
    assert log.committed("archive", "topic", 0) == 7
    log.close()
