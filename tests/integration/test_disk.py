"""A disk that fills up: nothing is lost, the service reports what to do, and continues once there
is space.

The tests mount a small tmpfs, which takes root; where that is not allowed they fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rocksdict import Cache, WriteBatch

from chronos.adapters.rocksdb import Database, tuned
from chronos.errors import NoSpace
from tests.harness.broker import Broker
from tests.harness.disk import fill, small_disk
from tests.harness.service import Service
from tests.integration.flow import SHARDS, HttpFlow, KafkaFlow, now_ms

RESERVE_MB = 48
SMALL: dict[str, object] = {"chronos.node.opening.MEMTABLE_BYTES": 1 << 20}
OFTEN = {"store.flush_every": "500ms"}
"""A small memtable and frequent flushes, so that a full disk is noticed soon."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system small enough to be filled."""
    place = tmp_path / "disk"
    with small_disk(place):
        yield place


def reasons(service: Service) -> str:
    """The reasons in the answer of `/readyz`; empty if the node is ready."""
    status, answer = service.ask("GET", "/readyz")
    return "" if status == 200 else str(answer["detail"])


def paused(service: Service) -> list[str]:
    """The reasons of the shards that are paused."""
    return [shard["paused"] for shard in service.shards() if shard["paused"]]


def post(service: Service, due_ms: int) -> tuple[int, object]:
    """Try to schedule a message outside the flow."""
    return service.ask(
        "POST", "/v1/messages", {"target": {"topic": "other"}, "value": "x", "deliver_at": due_ms}
    )


# ------------------------------------------------------------------------------------------ reserve


def test_below_the_disk_reserve_a_node_pauses_and_above_it_continues_on_kafka(
    broker: Broker, disk: Path
) -> None:
    """No step starts, HTTP answers, `paused` names the setting; once there is space again nothing
    has been lost."""
    flow = KafkaFlow(broker, 1)
    settings = {**flow.settings(), "limits.disk_reserve": f"{RESERVE_MB}MiB"}
    with Service(disk / "node", bootstrap=broker.bootstrap, settings=settings) as service:
        service.start()
        flow.write(1_000, now_ms(), now_ms() + 3_000)
        flow.flush()
        service.wait_until(lambda: service.pending() > 0, "accept some messages")
        ballast = fill(disk, RESERVE_MB / 2)
        service.wait_until(lambda: len(paused(service)) == SHARDS, "report why it waits")
        assert all("limits.disk_reserve" in text and str(disk) in text for text in paused(service))
        assert "limits.disk_reserve" in reasons(service)
        before = [shard["pull_offset"] for shard in service.shards()]
        flow.write(1_000, now_ms(), now_ms() + 1_000)
        flow.flush()
        service.wait_until(
            lambda: now_ms() > max(message.due_ms or 0 for message in flow.sent),
            "reach the last due time",
        )
        assert [shard["pull_offset"] for shard in service.shards()] == before
        ballast.unlink()
        service.wait_ready()
        flow.wait_settled(service)
        assert flow.complaints() == []


@pytest.mark.process
def test_below_the_disk_reserve_a_node_pauses_and_above_it_continues_on_the_embedded_log(
    disk: Path,
) -> None:
    """Here the log is on the full disk too: requests are refused with 507, and none of their
    messages is kept."""
    with Service(disk / "node", settings={"limits.disk_reserve": f"{RESERVE_MB}MiB"}) as service:
        flow = HttpFlow(service, 2)
        service.start()
        flow.write(1_000, now_ms(), now_ms() + 3_000)
        ballast = fill(disk, RESERVE_MB / 2)
        service.wait_until(lambda: len(paused(service)) == SHARDS, "report why it waits")
        assert all("limits.disk_reserve" in text for text in paused(service))
        status, problem = post(service, now_ms())
        assert status == 507, problem
        assert "make room" in str(problem)
        ballast.unlink()
        service.wait_ready()
        flow.write(1_000, now_ms(), now_ms() + 1_000)
        flow.wait_settled(service)
        assert flow.complaints() == []
        assert "other" not in {topic["topic"] for topic in service.get("/v1/topics")["topics"]}


# -------------------------------------------------------------------------------------- really full


def test_a_completely_full_disk_loses_nothing_on_kafka(broker: Broker, disk: Path) -> None:
    """Without a reserve the store itself fails to write: the node reports it, and continues by
    itself once there is space."""
    flow = KafkaFlow(broker, 3)
    settings = {**flow.settings(), **OFTEN, "limits.disk_reserve": "0"}
    with Service(
        disk / "node", bootstrap=broker.bootstrap, settings=settings, constants=SMALL
    ) as service:
        service.start()
        ballast = fill(disk, 0)
        for _ in range(2):
            flow.write(20_000, now_ms(), now_ms() + 5_000)
            flow.flush()
            # A shard that does not need to write at this moment is not paused.
            service.wait_until(
                lambda: "No space left on device" in reasons(service), "report why it waits"
            )
            ballast.unlink()
            service.wait_ready()
            service.wait_until(lambda: service.pending() < 20_000, "deliver again")
            ballast = fill(disk, 0)
        ballast.unlink()
        flow.wait_settled(service)
        assert flow.complaints() == []


@pytest.mark.process
def test_a_completely_full_disk_loses_nothing_on_the_embedded_log(disk: Path) -> None:
    """Acknowledged messages are delivered once, those refused with 507 or 503 at most once."""
    with Service(
        disk / "node", settings={**OFTEN, "limits.disk_reserve": "0"}, constants=SMALL
    ) as service:
        flow = HttpFlow(service, 4)
        service.start()
        for _ in range(2):
            # Some are due after the disk is full: a shard that has nothing to write is not paused.
            flow.write(2_000, now_ms(), now_ms() + 12_000)
            ballast = fill(disk, 0)
            service.wait_until(
                lambda: post(service, now_ms())[0] == 507, "refuse for lack of space"
            )
            service.wait_until(lambda: bool(paused(service)), "report why it waits")
            assert service.ask("GET", "/livez")[0] == 200
            ballast.unlink()
            service.wait_ready()
        flow.write(1_000, now_ms(), now_ms() + 1_000)
        flow.wait_settled(service)
        assert flow.complaints() == []


def test_a_sync_after_a_write_that_found_the_disk_full_asks_for_space_too(disk: Path) -> None:
    """As when another thread writes: the database is not damaged."""

    def batch() -> WriteBatch:
        made = WriteBatch(raw_mode=True)
        made.put(b"k", bytes(8_000))
        return made

    options = tuned(cache=Cache(2**20), memtable_bytes=2**20, blob_bytes_min=2**20)
    log = Database(disk / "log", options, wal=True, remedy="none")
    log.write(batch)
    ballast = fill(disk, 0)
    for action in (lambda: log.write(batch), log.sync, log.close):
        with pytest.raises(NoSpace, match="Make room on that disk; nothing is lost"):
            action()
    ballast.unlink()
    again = Database(disk / "log", options, wal=True, remedy="none")
    again.write(batch)
    again.sync()
    again.close()


@pytest.mark.process
@pytest.mark.parametrize("reserve", ["0", f"{RESERVE_MB}MiB"])
def test_a_start_on_a_full_disk_reports_it_and_loses_nothing(disk: Path, reserve: str) -> None:
    """It may exit or wait, but reports the reason; with space the next start delivers every
    accepted message."""
    with Service(
        disk / "node", settings={**OFTEN, "limits.disk_reserve": reserve}, constants=SMALL
    ) as service:
        flow = HttpFlow(service, 5)
        service.start()
        flow.write(2_000, now_ms() + 2_000, now_ms() + 3_000)
        service.kill()
        ballast = fill(disk, 0)
        service.launch()
        service.wait_until(lambda: reported_full(service), "report that the disk is full")
        assert "Traceback" not in service.log_path.read_text()
        service.close()
        ballast.unlink()
        service.start()
        flow.wait_settled(service)
        assert flow.complaints() == []


def reported_full(service: Service) -> bool:
    """Return whether the log of the process names the full disk or the setting."""
    text = service.log_path.read_text()
    return "No space left on device" in text or "limits.disk_reserve" in text
