"""Three nodes on three brokers of which two have clocks of their own, 400 ms apart and drifting,
while nodes and brokers are killed.

Two clients write, with the partitioners of Java and of librdkafka: half of the ids come to another
partition than their own, and of many an id the message comes to one and its cancel to the other.
All features at random (`tests.integration.mixture`). At the end every message has exactly the ends
that it may have, and all replicas are alike."""

import random
import time
import zlib
from collections.abc import Callable
from pathlib import Path

from tests.chaos.fleet import Fleet
from tests.chaos.world import BROKER_SESSION
from tests.harness.broker import BrokerClock, Cluster, cluster
from tests.integration.flow import SHARDS, Sent, now_ms
from tests.integration.mixture import MixedFlow

CLOCKS = {1: BrokerClock(-200, drift_ppm=-50), 2: BrokerClock(200, drift_ppm=50)}
"""The third broker has the machine's clock. In ten minutes the two are 460 ms apart: less than 0.5
s, within which a cancel wins."""

SKEW_MS = 250
"""Most by which one of the brokers differs from the machine then."""

PLAIN, MIXED = 150, 15
"""Messages of each kind in one round."""

CANCELLED = 0.2
"""Share of the messages for which a cancel is sent."""

PAST_MS, AHEAD_MS = 2_000, 20_000
"""Messages are due from `PAST_MS` before to `AHEAD_MS` after they are written."""

BROKER_DOWN_S = 5.0
"""How long a broker that was killed stays away: longer than its session."""

SETTLED_S = 300.0
"""Bound for the end of everything: of the last series, retries and replays."""


class TwoClients(MixedFlow):
    """The flow of two clients, one of which places keys as librdkafka does by default."""

    skew_ms = SKEW_MS

    def _partition(self, message: Sent) -> int:
        if message.id is None:
            return message.number % SHARDS
        if self.random.random() < 0.5:
            return -1
        message.hops = True
        return zlib.crc32(message.id.encode()) % SHARDS


def kill_under_clocks(
    directory: Path, *, seconds: float, seed: int, say: Callable[[str], None]
) -> None:
    """Kill nodes and brokers for so long; raises AssertionError if a message has not the ends that
    it may have."""
    dice = random.Random(seed + 1)
    with cluster(3, BROKER_SESSION, clocks=CLOCKS) as kafka:
        flow = TwoClients(kafka, seed)
        settings = {**flow.settings(), "delivery.transaction_timeout": "4s"}
        with Fleet(
            directory, bootstrap=kafka.bootstrap, zookeeper=None, shards=SHARDS, settings=settings
        ) as fleet:
            fleet.start()
            first = fleet.nodes["n1"]
            flow.prime(first)
            deadline = time.monotonic() + seconds
            rounds = 0
            with flow.replaying(first):
                while time.monotonic() < deadline:
                    rounds += 1
                    if rounds == 5:
                        flow.repair()
                    written = flow.write(PLAIN, now_ms() - PAST_MS, now_ms() + AHEAD_MS)
                    flow.write_mixed(MIXED, now_ms() - PAST_MS, now_ms() + AHEAD_MS)
                    flow.flush()
                    flow.cancel(message for message in written if dice.random() < CANCELLED)
                    began_ms = now_ms()
                    what = _kill(fleet, kafka, dice)
                    flow.held_back.append((began_ms, now_ms()))
                    flow.flush()
                    say(
                        f"round {rounds}: {what} killed, {len(flow.sent)} plain and "
                        f"{len(flow.mixed)} mixed messages"
                    )
            flow.repair()
            fleet.wait_led()
            flow.wait_settled(first, timeout_s=SETTLED_S)
            flow.replay_all(first)
            complaints = flow.complaints() + fleet.digest_complaints()
            assert not complaints, complaints
            delivered, dead = flow.ends()
            say(
                f"{rounds} kills, {len(flow.sent)} plain and {len(flow.mixed)} mixed messages: "
                f"{delivered} deliveries, {dead} dead letters"
            )


def _kill(fleet: Fleet, kafka: Cluster, dice: random.Random) -> str:
    """Kill a node or a broker and start it again; return its name once everything works."""
    if dice.random() < 0.3:
        broker = dice.choice(kafka.brokers)
        broker.kill()
        time.sleep(BROKER_DOWN_S)
        broker.start()
        kafka.wait_in_sync()
        fleet.wait_led()
        return f"broker {broker.node_id}"
    name = fleet.busiest() if dice.random() < 0.7 else dice.choice(sorted(fleet.nodes))
    node = fleet.nodes[name]
    node.kill()
    if dice.random() < 0.5:
        fleet.wait_led(without=name)
    node.start()
    fleet.wait_led()
    return name
