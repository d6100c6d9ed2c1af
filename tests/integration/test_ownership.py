"""A directory has one process and a shard one master: a second one waits or is refused, and reports
the reason."""

from pathlib import Path

import pytest

from tests.chaos.fleet import Node
from tests.harness.broker import Broker
from tests.harness.service import Service
from tests.integration.flow import SHARDS, KafkaFlow, now_ms
from tests.integration.nodes import SILENCE_S, paused, taken_over


@pytest.mark.process
def test_a_second_process_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    """Exit code 1, and an error that names the directory and its process and node; the first one
    keeps running."""
    with (
        Service(tmp_path / "node", settings={"node.id": "first"}) as first,
        Service(
            tmp_path / "node", settings={"node.id": "second"}, output=tmp_path / "second.log"
        ) as second,
    ):
        first.start()
        second.launch()
        assert second.wait_exit() == 1
        text = second.log_path.read_text()
        assert (
            f"{tmp_path / 'node'} is in use by another Chronos (process {first.pid}, node first)"
            in text
        )
        assert "Traceback" not in text
        assert first.is_ready()
        # The lock ends with its process, also when that is killed.
        first.kill()
        second.start()


def test_a_second_node_waits_for_the_silence_of_the_first_and_the_first_gives_way(
    broker: Broker, tmp_path: Path
) -> None:
    """Another directory, the same topics: it names the node it waits for, and takes over from a
    frozen master.

    The second node judges the silence by its own clock. The test steps that clock forward by the
    silence instead of waiting; the node must still deliver nothing before the clock is right again.
    """
    flow = KafkaFlow(broker, 1)
    settings = {**flow.settings(), "delivery.transaction_timeout": "5s"}
    with (
        Service(
            tmp_path / "a", bootstrap=broker.bootstrap, settings={**settings, "node.id": "node-a"}
        ) as first,
        Node(
            tmp_path / "b", bootstrap=broker.bootstrap, settings={**settings, "node.id": "node-b"}
        ) as second,
    ):
        first.start()
        flow.write(20_000, now_ms() - 500, now_ms() + 4_000)
        flow.write(2_000, now_ms() + 20_000, now_ms() + 25_000)
        flow.flush()
        second.launch()
        second.wait_until(
            lambda: paused(second).count("node node-a") == SHARDS, "name the node it waits for"
        )
        assert "waiting" in reasons(second)
        second.wait_until(
            lambda: "this node takes over once it was silent" in second.log_path.read_text(),
            "log why it waits",
        )
        first.freeze()
        second.set_clock(SILENCE_S * 1_000)
        second.wait_until(lambda: {"node-a"} == taken_over(second, SHARDS), "take over every shard")
        second.wait_until(lambda: paused(second).count("NTP") == SHARDS, "report its wrong clock")
        assert not second.is_ready()
        second.set_clock(0)
        second.wait_ready()
        first.thaw()
        assert first.wait_exit() == 1
        assert "node-b" in first.tail(3)
        assert "took over shard" in first.tail(3)
        flow.wait_settled(second)
        assert flow.complaints() == []


def reasons(service: Service) -> str:
    """The reasons in the answer of `/readyz`; empty when the node is ready or does not answer."""
    try:
        status, problem = service.ask("GET", "/readyz")
    except OSError:
        return ""
    return "" if status == 200 else str(problem["detail"])


def test_a_node_of_another_cluster_on_the_same_topics_is_refused(
    broker: Broker, tmp_path: Path
) -> None:
    """Exit code 1, and an error that names both clusters; the first cluster delivers every message
    once."""
    flow = KafkaFlow(broker, 1)
    with (
        Service(
            tmp_path / "a",
            bootstrap=broker.bootstrap,
            settings={**flow.settings(), "cluster": "shop"},
        ) as first,
        Service(
            tmp_path / "b",
            bootstrap=broker.bootstrap,
            settings={**flow.settings(), "cluster": "store"},
        ) as other,
    ):
        first.start()
        epochs = [shard["epoch"] for shard in first.shards()]
        flow.write(1_000, now_ms(), now_ms() + 4_000)
        flow.flush()
        other.launch()
        assert other.wait_exit() == 1
        assert "has a progress record of the cluster 'shop'" in other.tail(3)
        assert "this node belongs to 'store'" in other.tail(3)
        flow.wait_settled(first)
        assert flow.complaints() == []
        assert [shard["epoch"] for shard in first.shards()] == epochs, (
            "the other cluster fenced the first one"
        )
