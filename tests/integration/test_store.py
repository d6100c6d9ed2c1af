"""The store of a real node is old, missing or damaged: it is rebuilt from the logs, or an error
says what to do."""

import shutil
from pathlib import Path

import pytest

from chronos.errors import StoreCorrupt
from tests.harness.broker import Broker
from tests.harness.command import Done, run
from tests.harness.service import Service
from tests.integration.flow import SHARDS, KafkaFlow, now_ms

pytestmark = pytest.mark.kafka

AHEAD_MS = 6_000
"""Messages are due within this time: some are delivered before the store is changed, some after."""


@pytest.fixture
def flow(broker: Broker) -> KafkaFlow:
    """The same messages in every run, through the shared broker."""
    return KafkaFlow(broker, seed=11)


def served(flow: KafkaFlow, broker: Broker, directory: Path) -> Service:
    return Service(directory / "node", bootstrap=broker.bootstrap, settings=flow.settings())


def settle_partly(flow: KafkaFlow, service: Service) -> None:
    """Write messages and wait until some of them are delivered and others are not."""
    service.start()
    flow.write(3_000, now_ms() - 1_000, now_ms() + AHEAD_MS)
    flow.flush()
    service.wait_until(lambda: service.delivered() > 500, "deliver some")


def test_a_stale_copy_of_the_store_catches_up_from_the_logs(
    flow: KafkaFlow, broker: Broker, tmp_path: Path
) -> None:
    with served(flow, broker, tmp_path) as service:
        settle_partly(flow, service)
        service.stop()
        shutil.copytree(service.data_dir, tmp_path / "copy")
        service.start()
        flow.write(2_000, now_ms(), now_ms() + AHEAD_MS)
        flow.wait_settled(service)
        totals = [each["totals"] for each in service.shards()]
        service.stop()
        shutil.rmtree(service.data_dir)
        shutil.copytree(tmp_path / "copy", service.data_dir)
        service.start()
        flow.wait_settled(service)
        assert [each["totals"] for each in service.shards()] == totals
        assert flow.complaints() == []


@pytest.mark.smoke
def test_a_store_that_was_removed_is_rebuilt_from_the_logs(
    flow: KafkaFlow, broker: Broker, tmp_path: Path
) -> None:
    with served(flow, broker, tmp_path) as service:
        settle_partly(flow, service)
        service.kill()
        shutil.rmtree(service.data_dir / "shards")
        service.start()
        flow.wait_settled(service)
        keyed = next(
            message
            for message in flow.sent
            if message.id is not None and message.id.startswith("order-")
        )
        assert service.get(f"/v1/messages/{keyed.id}")["state"] == "delivered"
        assert flow.complaints() == []


@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing"])
def test_a_damaged_store_ends_the_node_with_a_remedy_that_works(
    flow: KafkaFlow, broker: Broker, tmp_path: Path, damage: str
) -> None:
    with served(flow, broker, tmp_path) as service:
        service.start()
        flow.write(4_000, now_ms() + 3_000, now_ms() + 9_000)
        flow.flush()
        service.wait_until(lambda: service.accepted() >= 3_000, "accept most of them")
        assert service.stop() == 0
        for table in (service.data_dir / "shards").glob("*/*.sst"):
            spoil(table, damage)

        doctor = run_doctor(service)
        assert doctor.code == StoreCorrupt.exit_code
        assert "rebuilt from the logs" in doctor.out + doctor.err

        service.launch()
        assert service.wait_exit() == StoreCorrupt.exit_code
        assert "rebuilt from the logs" in service.tail()

        for shard in range(SHARDS):
            shutil.rmtree(service.data_dir / "shards" / str(shard))
        service.start()
        flow.wait_settled(service)
        assert flow.complaints() == []


def spoil(table: Path, damage: str) -> None:
    """Damage a file as disks and operators do."""
    if damage == "missing":
        table.unlink()
        return
    data = bytearray(table.read_bytes())
    if damage == "truncated":
        del data[len(data) // 2 :]
    else:
        for at in range(0, len(data) * 3 // 4, 512):
            data[at] ^= 0x40
    table.write_bytes(data)


def run_doctor(service: Service) -> Done:
    """`chronos doctor` with the settings of the service."""
    settings = [
        part for path, value in service.settings.items() for part in ("--set", f"{path}={value}")
    ]
    return run("doctor", *settings)
