"""One node, killed with SIGKILL again and again at random moments while messages are written,
cancelled and delivered.

`./scripts/chaos --tests` kills it some tens of times on each log, `./scripts/chaos --kills` as
often as asked. Each function raises an AssertionError if a message was lost, duplicated, early, or
delivered although it was cancelled in time."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from chronos.core.timefmt import parse_time_ms
from tests.harness.broker import Clients
from tests.harness.service import Service
from tests.integration.flow import SHARDS, Flow, HttpFlow, now_ms
from tests.integration.mixture import MixedFlow

MESSAGES_PER_KILL = 500

PLAIN_PER_KILL, MIXED_PER_KILL = 400, 40
"""The same on Kafka: plain messages, and messages with all features at random."""

LIMITED = 400
"""Messages for a target with a rate that are due at one moment."""

CANCELLED = 0.03
"""Share of the messages for which a cancel is sent."""

PAST_MS, AHEAD_MS = 2_000, 10_000
"""Messages are due from `PAST_MS` before to `AHEAD_MS` after they are written."""

STARTING = 0.3
"""Share of the kills during the start: imports, the claim of the directory, recovery, fencing."""

START_S = 0.9
"""About how long a start takes, imports included."""

RUN_S = 0.6
"""The other kills come within this time after the node is ready."""

FIRST_FILES_S = 0.06
"""About how long a node takes to create its files at its first start."""

UNKNOWN_MAX = 0.1
"""Share of the HTTP requests whose answer may be lost with the node: more would leave too little to
check."""


def kill_on_kafka(broker: Clients, directory: Path, *, kills: int, seed: int) -> None:
    """Kill a node on a Kafka broker; the producer and the consumer are Kafka clients, dead letters
    are replayed over HTTP.

    Half of the plain records with an id come to any partition, and are forwarded.
    """
    flow = MixedFlow(broker, seed, misplaced=0.5)
    dice = random.Random(seed + 1)
    killed_ms = []
    with Service(
        directory / "node", bootstrap=broker.bootstrap, settings=flow.settings()
    ) as service:
        flow.begin(service)
        flow.write_limited(LIMITED, now_ms() + AHEAD_MS // 2)
        killed_ms.append(now_ms())
        service.kill()
        with flow.replaying(service):
            for number in range(kills):
                if number == kills // 2:
                    flow.repair()
                written = flow.write(PLAIN_PER_KILL, now_ms() - PAST_MS, now_ms() + AHEAD_MS)
                flow.write_mixed(MIXED_PER_KILL, now_ms() - PAST_MS, now_ms() + AHEAD_MS)
                killed_ms.append(run_until_killed(service, dice))
                flow.poll()
                flow.cancel(message for message in written if dice.random() < CANCELLED)
            flow.flush()
        service.start()
        flow.replay_all(service)
        flow.held_back = held_back(service, killed_ms)
        check_outcome(flow, service)


def held_back(service: Service, killed_ms: list[int]) -> list[tuple[int, int]]:
    """Return for each kill when it was, and when each shard had a master again: no transaction of
    the killed node was open then."""
    masters = [
        (parse_time_ms(event["timestamp"]), event["shard"]) for event in service.events("master")
    ]
    spans = []
    for began_ms in killed_ms:
        first: dict[int, int] = {}
        for led_ms, shard in masters:
            if led_ms >= began_ms:
                first.setdefault(shard, led_ms)
        assert len(first) == SHARDS, f"not every shard had a master after {began_ms}: {first}"
        spans.append((began_ms, max(first.values())))
    return spans


def kill_on_embedded_log(directory: Path, *, kills: int, seed: int) -> None:
    """Kill a node on the embedded log; the client uses the HTTP interface of the node that is
    killed."""
    dice = random.Random(seed + 1)
    with Service(directory / "node") as service:
        flow = HttpFlow(service, seed)
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(_write_and_cancel, flow, kills, random.Random(seed + 2))
            done = 0
            while done < kills or not writing.done():
                run_until_killed(service, dice)
                done += 1
            writing.result()
        unknown = sum(message.accepted is None for message in flow.sent)
        assert unknown < UNKNOWN_MAX * len(flow.sent), (
            f"{unknown} of {len(flow.sent)} answers were lost"
        )
        service.start()
        flow.wait_settled(service)
        check_outcome(flow, service)


def _write_and_cancel(flow: HttpFlow, kills: int, dice: random.Random) -> None:
    for _ in range(kills):
        written = flow.write(MESSAGES_PER_KILL, now_ms() - PAST_MS, now_ms() + AHEAD_MS)
        flow.cancel(message for message in written if dice.random() < CANCELLED)


def kill_at_first_start(directory: Path, *, kills: int, seed: int) -> None:
    """Kill nodes on the embedded log while they create their files, and start each of them
    again."""
    dice = random.Random(seed)
    for number in range(kills):
        with Service(directory / f"node-{number}") as service:
            service.launch()
            service.wait_until((service.data_dir / "LOCK").exists, "claim its directory")
            time.sleep(dice.uniform(0.0, FIRST_FILES_S))
            service.kill()
            service.start()


def run_until_killed(service: Service, dice: random.Random) -> int:
    """Start the node and kill it, either during its start or some time after it is ready; return
    when, in epoch ms."""
    service.launch()
    if dice.random() < STARTING:
        time.sleep(dice.uniform(0.0, START_S))
    else:
        service.wait_ready()
        time.sleep(dice.uniform(0.0, RUN_S))
    killed_ms = now_ms()
    service.kill()
    return killed_ms


def check_outcome(flow: Flow, service: Service) -> None:
    """Compare the target topics, once everything is settled, with what was sent and with what the
    node has counted."""
    totals = [shard["totals"] for shard in service.shards()]
    complaints = flow.complaints()
    assert not complaints, complaints
    counted = (
        sum(each["delivered"] for each in totals),
        sum(each["dead"] + each["expired"] for each in totals),
    )
    assert counted == (ends := flow.ends()), f"counted {counted}, found {ends}"
    assert (code := service.stop()) == 0, code
