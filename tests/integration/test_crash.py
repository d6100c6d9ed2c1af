"""The node is killed again and again, at any moment, and every message is still delivered exactly once."""

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.broker import Broker
from tests.integration.flow import Flow, HttpFlow, KafkaFlow, now_ms
from tests.service import Service

KILLS = 100
MESSAGES = 50_000
CANCELLED = 0.03
"""Share of the messages that somebody tries to cancel."""

PAST_MS, AHEAD_MS = 2_000, 15_000
"""Messages are due from so long ago to so far ahead of their being written."""

STARTING = 0.3
"""Share of the kills that come while the node still starts: while it imports, claims, recovers, fences."""

START_S = 0.9
"""About what a start takes, imports included."""

RUN_S = 0.6
"""A node that got ready is killed within so much longer."""


def seeded() -> int:
    """The seed of this run: of the environment, to repeat one, or fresh; printed either way."""
    seed = int(os.environ.get("CHRONOS_SEED", random.randrange(2**32)))
    print(f"CHRONOS_SEED={seed}")
    return seed


def live_and_die(service: Service, dice: random.Random) -> None:
    """One life: started, and killed either while it starts or some time after it got ready."""
    service.launch()
    if dice.random() < STARTING:
        time.sleep(dice.uniform(0.0, START_S))
    else:
        service.wait_ready()
        time.sleep(dice.uniform(0.0, RUN_S))
    service.kill()


def judge(flow: Flow, service: Service) -> None:
    """Once more started, the service brings everything to its end; then the targets are compared with the plan."""
    service.start()
    flow.wait_settled(service)
    totals = [shard["totals"] for shard in service.shards()]
    assert flow.complaints() == []
    assert sum(each["delivered"] for each in totals) == len(flow.delivered())
    assert sum(each["dead"] + each["expired"] for each in totals) == 0
    # An instance that says 0 for the exit proves that it was stopped in order, and not ended by a fault.
    assert service.stop() == 0


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_a_hundred_kills_lose_and_double_nothing_on_kafka(broker: Broker, tmp_path: Path) -> None:
    """kill -9 at 100 moments under 50,000 messages: each is found once, none early, none of those cancelled in time."""
    seed = seeded()
    flow = KafkaFlow(broker, seed)
    dice = random.Random(seed + 1)
    with Service(tmp_path / "node", bootstrap=broker.bootstrap, settings=flow.settings()) as service:
        for _ in range(KILLS):
            written = flow.write(MESSAGES // KILLS, now_ms() - PAST_MS, now_ms() + AHEAD_MS)
            live_and_die(service, dice)
            flow.poll()
            flow.cancel(message for message in written if dice.random() < CANCELLED)
        flow.flush()
        judge(flow, service)


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(420)
def test_a_hundred_kills_lose_and_double_nothing_on_the_embedded_log(tmp_path: Path) -> None:
    """The same, with everything written and cancelled through the HTTP interface of the node that dies."""
    seed = seeded()
    dice = random.Random(seed + 1)
    with Service(tmp_path / "node") as service:
        flow = HttpFlow(service, seed)
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(_write_and_cancel, flow, random.Random(seed + 2))
            kills = 0
            while kills < KILLS or not writing.done():
                live_and_die(service, dice)
                kills += 1
            writing.result()
        unsure = sum(message.accepted is None for message in flow.sent)
        assert unsure < MESSAGES // 10
        judge(flow, service)


def _write_and_cancel(flow: HttpFlow, dice: random.Random) -> None:
    while len(flow.sent) < MESSAGES:
        written = flow.write(MESSAGES // KILLS, now_ms() - PAST_MS, now_ms() + AHEAD_MS)
        flow.cancel(message for message in written if dice.random() < CANCELLED)
