"""Several nodes on one machine, started by one command."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from chronos.cli.service.serve import ORDERLY
from tests.harness.broker import Broker
from tests.harness.process import is_running
from tests.harness.service import Service, consecutive_ports
from tests.harness.waiting import wait_until
from tests.integration.flow import KafkaFlow, now_ms


def children(service: Service) -> dict[str, int]:
    """The processes that the service started: `2/3` -> process id."""
    pids = Path(f"/proc/{service.pid}/task/{service.pid}/children").read_text().split()
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in pids}
    return {
        command[command.index(b"--process") + 1].decode(): int(pid)
        for pid, command in commands.items()
        if b"--process" in command  # not between fork and exec
    }


def two_processes(
    flow: KafkaFlow, broker: Broker, tmp_path: Path, settings: dict[str, object]
) -> Service:
    """A service of two nodes, for this flow."""
    settings = {**flow.settings(), "coordinator.kind": "kafka", **settings}
    service = Service(tmp_path / "n1", settings=settings, bootstrap=broker.bootstrap)
    consecutive_ports(service, 2)
    service.arguments = ["--processes", "2"]
    return service


def test_processes_share_the_shards_are_restarted_and_retire(
    broker: Broker, tmp_path: Path
) -> None:
    """Each shard lies in one of them only, and what is pending survives that they become fewer."""
    flow = KafkaFlow(broker, 1)
    service = two_processes(flow, broker, tmp_path, {"node.id": "n1"})
    service.start()
    service.wait_until(lambda: service.leaders() == {"n1", "n1_2"}, "spread the shards")
    for shard in service.shards():
        assert [replica["node"] for replica in shard["replicas"]] == [shard["master"]]
    flow.write(500, now_ms() - 500, now_ms() + 8_000)
    pending = flow.write(50, now_ms() + 3_600_000, now_ms() + 3_700_000)
    flow.flush()
    first = children(service)
    assert sorted(first) == ["1/2", "2/2"]
    os.kill(first["2/2"], signal.SIGKILL)
    service.wait_until(
        lambda: children(service).get("2/2", first["2/2"]) != first["2/2"], "restart the process"
    )
    assert children(service)["1/2"] == first["1/2"]
    assert service.events("process ended")[0]["how"] == "SIGKILL"
    service.wait_until(lambda: service.pending() == len(pending), "deliver everything due")
    service.wait_until(
        lambda: len(service.events("listening")) == 3, "start the process again", timeout_s=60
    )

    last = [Path(f"/proc/{pid}") for pid in children(service).values()]
    service.kill()
    wait_until(lambda: not any(map(is_running, last)), timeout_s=30)
    assert len(service.events("stopped")) == 2
    service.arguments = []
    service.start()
    folder = service.data_dir / "processes"
    service.wait_until(lambda: not any(folder.iterdir()), "take over the second node's shards")
    assert sorted(children(service)) == ["1/1"]
    service.wait_until(lambda: service.leaders() == {"n1"}, "lead every shard")
    service.wait_until(lambda: service.pending() == len(pending), "read what the second node held")
    assert service.get("/v1/nodes")["away"] == []
    flow.cancel(pending)
    flow.wait_settled(service)
    assert flow.complaints() == []
    # As systemd does by default: to all processes at once, so that a node may see both signals
    # in either order.
    for pid in children(service).values():
        for number in (signal.SIGSTOP, ORDERLY, signal.SIGTERM, signal.SIGCONT):
            os.kill(pid, number)
    assert service.stop() == 0
    assert "stopped at once" not in service.log_path.read_text()


def test_an_error_that_a_restart_does_not_help_against_ends_the_service(
    broker: Broker, tmp_path: Path
) -> None:
    """Its text is shown once for each process, and the exit code is that of the error."""
    flow = KafkaFlow(broker, 1)
    service = two_processes(flow, broker, tmp_path, {"topics.create": "off"})
    service.launch()
    assert service.wait_exit(timeout_s=60) == 2
    text = service.log_path.read_text()
    for place in ("1/2", "2/2"):
        assert f"error: process {place}: topics.create is off" in text
    assert len(service.events("process ended for good")) == 2
    assert service.events("process ended") == []
