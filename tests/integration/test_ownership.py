"""One directory, one process; one shard, one master: who comes second waits or is sent away, and is told why."""

import json
from pathlib import Path

import pytest

from tests.harness.broker import Broker
from tests.harness.service import Service
from tests.integration.flow import SHARDS, KafkaFlow, now_ms

SILENCE_S = 90.0
"""A node takes over from another directory's after so long without a word of it."""


@pytest.mark.integration
def test_a_second_process_on_the_same_directory_is_sent_away(tmp_path: Path) -> None:
    """Exit code 1, and a text with the directory, the process and the node that hold it; the first stays."""
    with (
        Service(tmp_path / "node", settings={"node.id": "first"}) as first,
        Service(tmp_path / "node", settings={"node.id": "second"}, output=tmp_path / "second.log") as second,
    ):
        first.start()
        second.launch()
        assert second.wait_exit() == 1
        said = second.log_path.read_text()
        assert f"{tmp_path / 'node'} is in use by another Chronos (process {first.pid}, node first)" in said
        assert "Traceback" not in said
        assert first.is_ready()
        # The lock ends with its process, however that ends.
        first.kill()
        second.start()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_second_node_waits_for_the_silence_of_the_first_and_the_first_gives_way(
    broker: Broker, tmp_path: Path
) -> None:
    """Another directory, the same topics: it says for whom it waits, and takes over a master that is frozen."""
    flow = KafkaFlow(broker, 1)
    settings = {**flow.settings(), "delivery.transaction_timeout": "5s"}
    with (
        Service(tmp_path / "a", bootstrap=broker.bootstrap, settings={**settings, "node.id": "node-a"}) as first,
        Service(tmp_path / "b", bootstrap=broker.bootstrap, settings={**settings, "node.id": "node-b"}) as second,
    ):
        first.start()
        flow.write(20_000, now_ms() - 500, now_ms() + 4_000)
        flow.write(2_000, now_ms() + 80_000, now_ms() + 95_000)
        flow.flush()
        second.launch()
        second.wait_until(lambda: reasons(second).count("node node-a") == SHARDS, "say for whom it waits")
        assert "waiting" in reasons(second)
        assert "this node takes over once it was silent" in second.log_path.read_text()
        first.freeze()
        second.wait_ready(timeout_s=SILENCE_S + 40)
        took_over = [entry for entry in events(second) if entry["event"] == "taking over from a silent node"]
        assert {entry["node"] for entry in took_over} == {"node-a"}
        first.thaw()
        assert first.wait_exit() == 1
        assert "node-b" in first.tail(3)
        assert "took over shard" in first.tail(3)
        flow.wait_settled(second)
        assert flow.complaints() == []


def reasons(service: Service) -> str:
    """What `/readyz` says; nothing while nobody answers."""
    try:
        status, problem = service.ask("GET", "/readyz")
    except OSError:
        return ""
    return "" if status == 200 else str(problem["detail"])


def events(service: Service) -> list[dict[str, object]]:
    """The log of the service, line by line."""
    lines = service.log_path.read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]
