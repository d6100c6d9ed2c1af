"""The node is killed, stopped, or down for long, and every message is still delivered exactly
once."""

import os
import random
import time
from pathlib import Path

import pytest

from tests.chaos.kills import kill_at_first_start, kill_on_embedded_log, kill_on_kafka
from tests.harness.broker import Broker
from tests.harness.service import Service
from tests.harness.waiting import NotInTime
from tests.integration.flow import IN_TIME_MS, SHARDS, Flow, KafkaFlow, LogFlow, now_ms

pytestmark = pytest.mark.kafka

HOUR_MS = 3_600_000
KILLS = 10
"""On the embedded log; `./scripts/chaos --kills 300` does hundreds on each log."""

KILLS_ON_KAFKA = 6
"""Fewer, because each takes several times as long beside a broker and with all features."""


def fresh_seed() -> int:
    """The seed of this run, printed: TEST_SEED to repeat a run, else a random one."""
    seed = int(os.environ.get("TEST_SEED", random.randrange(2**32)))
    print(f"TEST_SEED={seed}")
    return seed


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start is one of a new Python: some of the kills fall into it."""
    monkeypatch.setattr(Service, "forked", False)


@pytest.mark.campaign
@pytest.mark.usefixtures("anew")
def test_kills_at_random_moments_lose_and_double_nothing_on_kafka(
    broker: Broker, tmp_path: Path
) -> None:
    """Every message is found once, none early, none of those cancelled in time."""
    kill_on_kafka(broker, tmp_path, kills=KILLS_ON_KAFKA, seed=fresh_seed())


@pytest.mark.campaign
@pytest.mark.usefixtures("anew")
def test_kills_at_random_moments_lose_and_double_nothing_on_the_embedded_log(
    tmp_path: Path,
) -> None:
    """The same, with everything written and cancelled through the HTTP interface of the node that
    is killed."""
    kill_on_embedded_log(tmp_path, kills=KILLS, seed=fresh_seed())


# ------------------------------------------------------------------------------- stops and downtime

BACKLOG = 50_000

SMALL_STEPS: dict[str, object] = {"chronos.core.size.STEP_MESSAGES": 200}
STOP_S = 10.0
"""A stop waits for one step, which takes less than a second."""


def stop_while_draining(flow: KafkaFlow | LogFlow, service: Service) -> None:
    """SIGTERM within the backlog; the next start continues at that position, with nothing to
    replay."""
    service.start()
    service.wait_until(
        lambda: service.delivered() > BACKLOG * 0.1, "begin to drain", timeout_s=60.0
    )
    begun_s = time.monotonic()
    assert service.stop() == 0
    assert time.monotonic() - begun_s < STOP_S
    assert BACKLOG * 0.1 < count_delivered(flow) < BACKLOG
    service.start()
    masters = service.events("master")[-SHARDS:]
    assert sorted(str(entry["shard"]) for entry in masters) == [
        str(shard) for shard in range(SHARDS)
    ]
    assert [entry["replayed"] for entry in masters] == [0] * SHARDS
    flow.wait_settled(service)
    assert flow.complaints() == []


def count_delivered(flow: KafkaFlow | LogFlow) -> int:
    """Records in the target topic, while the service does not run."""
    if isinstance(flow, KafkaFlow):
        return len(flow.delivered())
    with flow.open():
        return flow.end_of_target()


@pytest.mark.smoke
def test_a_stop_amid_a_backlog_is_quick_and_nothing_is_replayed_after_it_on_kafka(
    broker: Broker, tmp_path: Path
) -> None:
    """50,000 overdue messages, and a SIGTERM while they are delivered, in small transactions: in
    large ones they would be delivered too soon."""
    flow = KafkaFlow(broker, 5)
    flow.write(BACKLOG, now_ms() - HOUR_MS, now_ms(), keyed=0.1, delays=0)
    flow.flush()
    with Service(
        tmp_path / "node",
        bootstrap=broker.bootstrap,
        settings=flow.settings(),
        constants=SMALL_STEPS,
    ) as service:
        stop_while_draining(flow, service)


def test_a_stop_amid_a_backlog_is_quick_and_nothing_is_replayed_after_it_on_the_embedded_log(
    tmp_path: Path,
) -> None:
    """The same without Kafka."""
    with Service(tmp_path / "node", constants=SMALL_STEPS) as service:
        flow = LogFlow(service, 5)
        service.start()
        service.stop()
        with flow.open():
            flow.write(BACKLOG, now_ms() - HOUR_MS, now_ms(), keyed=0.1)
        stop_while_draining(flow, service)


AFTERWARDS = 30_000
"""Messages in the log between the first ones and their cancels."""

CANCELS = 2_000

SAMPLE = 10_000
"""Messages written first, to see how fast this machine writes at the moment."""

MARGIN = 6
"""The downtime begins after this multiple of the estimated time to write the rest."""


def write_for_the_downtime(flow: KafkaFlow | LogFlow) -> None:
    """Write messages due during the downtime, many more, and then cancels of some of the first, all
    in time."""
    begun_ms = now_ms()
    flow.write(SAMPLE, begun_ms - 1_000, begun_ms, keyed=0.1)
    if isinstance(flow, KafkaFlow):
        flow.flush()
    sample_ms = now_ms() - begun_ms
    due_ms = now_ms() + 2_000 + MARGIN * sample_ms * (CANCELS * 2 + AFTERWARDS) // SAMPLE
    first = flow.write(CANCELS * 2, due_ms, due_ms + 2_000, keyed=0.5)
    flow.write(AFTERWARDS, due_ms, due_ms + 2_000, keyed=0.1)
    if isinstance(flow, KafkaFlow):
        flow.flush()
    flow.cancel(first[::2])
    if isinstance(flow, KafkaFlow):
        flow.flush()
    last_ms = max(message.cancel_ms or 0 for message in first)
    if last_ms >= due_ms - IN_TIME_MS:
        raise NotInTime(f"the last cancel was written {last_ms - due_ms:+} ms from the due time")


def wait_for_the_end_of_the_downtime(flow: Flow) -> None:
    """Wait until all messages are overdue."""
    last_ms = max(message.due_ms or 0 for message in flow.sent)
    time.sleep(max(0, last_ms + 1_000 - now_ms()) / 1_000)


def test_a_cancel_at_the_end_of_a_backlog_wins_after_a_downtime_on_kafka(
    broker: Broker, tmp_path: Path
) -> None:
    """Every cancel that was in the log before its message was due wins, 30,000 records behind
    it."""
    flow = KafkaFlow(broker, 6)
    write_for_the_downtime(flow)
    wait_for_the_end_of_the_downtime(flow)
    with Service(
        tmp_path / "node", bootstrap=broker.bootstrap, settings=flow.settings()
    ) as service:
        service.start()
        flow.wait_settled(service)
        assert flow.complaints() == []
        assert len(flow.delivered()) == len(flow.sent) - CANCELS


def test_a_cancel_at_the_end_of_a_backlog_wins_after_a_downtime_on_the_embedded_log(
    tmp_path: Path,
) -> None:
    """The same without Kafka."""
    with Service(tmp_path / "node") as service:
        flow = LogFlow(service, 6)
        service.start()
        service.stop()
        with flow.open():
            write_for_the_downtime(flow)
        wait_for_the_end_of_the_downtime(flow)
        service.start()
        flow.wait_settled(service)
        assert flow.complaints() == []
        assert len(flow.delivered()) == len(flow.sent) - CANCELS


# -------------------------------------------------------------------------------------- first start

FIRST_KILLS = 4


def test_a_node_killed_while_it_creates_its_files_starts_again(tmp_path: Path) -> None:
    """The next start continues with the existing files: an incomplete directory is not a damaged
    one."""
    kill_at_first_start(tmp_path, kills=FIRST_KILLS, seed=fresh_seed())


def test_a_store_without_a_complete_manifest_is_created_again(tmp_path: Path) -> None:
    """A manifest that no CURRENT file names, complete or torn: nothing was written to such a
    store."""
    for name, manifest in (("log", b""), ("shards/0", b"torn"), ("shards/1", b"")):
        place = tmp_path / "node" / name
        place.mkdir(parents=True)
        (place / "MANIFEST-000001").write_bytes(manifest)
        (place / "IDENTITY").write_bytes(b"x")
    with Service(tmp_path / "node") as service:
        service.start()
