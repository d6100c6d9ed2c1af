"""The targets of the oracle's messages, their faults, and which outcomes of a delivery these
permit."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tests.sim.broker import DELAY, REJECTED, Brokers
from tests.sim.log import POISON
from tests.sim.oracle_values import Facts, Message, Step
from tests.sim.world import World

if TYPE_CHECKING:
    from tests.sim.oracle import Spans

TINY_BYTES = 900
"""Largest record of the target `tiny`."""

KNOWN_MS = 15_000
"""How long a master may go on with what it last learned about a target, before it looks again."""

WHOLE_TOPIC, UNCREATED, LIMITED = -1, -2, -3


class Targets(Facts):
    """All targets: `keyed` is compacted, `tiny` takes small records, `limited` has a rate, `flaky`
    comes and goes."""

    def __init__(self, world: World, brokers: Brokers, dice: Random) -> None:
        self.world = world
        self.brokers = brokers
        self.dice = dice
        self.partitions = {
            "a": dice.choice([1, 3]),
            "b": 1,
            "keyed": 1,
            "tiny": 1,
            "limited": dice.choice([1, 2]),
            "flaky": 2,
        }
        for topic, partitions in self.partitions.items():
            brokers.create(topic, partitions, TINY_BYTES if topic == "tiny" else 0)
        brokers.compacted.add("keyed")
        self.missing_ms = -1
        """When `flaky` existed last, before now."""
        self.leaderless_ms: dict[str, int] = {}
        """Until when a partition of each topic has no leader, as far as it ever had none."""
        self.refusing_ms: dict[str, int] = {}
        """Until when a topic refused records. A refusal may be decided at the next step only,
        however much later that is."""
        self.closed_ms: dict[int, int] = {}
        """Until when a partition of the delay topic, or the rejected topic (-1), took no
        records."""
        self.disturbs_own = dice.random() < 0.5
        self.poisoned: set[str] = set()
        """Targets for which a poison record was sent."""

    def disturb(self) -> None:
        """Begin or end a fault of a target."""
        dice, now_ms, brokers = self.dice, self.world.now_ms, self.brokers
        kind = dice.choice(["exists", "leader", "leader", "refuses"])
        until_ms = now_ms + dice.choice([500, 3_000, 20_000])
        if kind == "exists":
            self.missing_ms = now_ms
            if "flaky" in brokers.topics:
                brokers.delete("flaky")
            else:
                brokers.create("flaky", 2)
        elif kind == "leader":
            topic = dice.choice(["a", "b", "limited"])
            partition = dice.choice(brokers.topics[topic])
            brokers.leaderless[partition.name] = until_ms
            self.leaderless_ms[topic] = max(until_ms, self.leaderless_ms.get(topic, 0))
        else:
            topic = dice.choice(["a", "b"])
            brokers.refuse(topic, until_ms)
            self.refusing_ms[topic] = max(until_ms, self.refusing_ms.get(topic, 0))
        self.world.trace(f"target: {kind}")

    def close_own(self) -> None:
        """Let a partition of the delay topic, or the rejected topic, take no records for a time."""
        until_ms = self.world.now_ms + self.dice.choice([500, 3_000, 20_000])
        partition = self.dice.choice([None, *self.brokers.topics[DELAY]])
        if partition is None:
            self.brokers.refuse(REJECTED, until_ms)
        else:
            self.brokers.leaderless[partition.name] = until_ms
        destination = -1 if partition is None else partition.number
        self.closed_ms[destination] = max(until_ms, self.closed_ms.get(destination, 0))

    def heal(self) -> None:
        """End all faults."""
        if "flaky" not in self.brokers.topics:
            self.brokers.create("flaky", 2)
            self.missing_ms = self.world.now_ms

    def now(self, spans: Spans) -> None:
        """Note the moment of a transaction."""

    def may_die(self, message: Message, reason: str, step: Step) -> str:
        command = message.command
        if reason == "too-large":
            return (
                ""
                if command.target == "tiny" and len(command.value or b"") > TINY_BYTES
                else "it is small"
            )
        if reason == "no-key":
            return (
                ""
                if command.target == "keyed" and command.target_key is None
                else "it has a key, or needs none"
            )
        if reason == "target-missing":
            missed = (
                "flaky" not in self.brokers.topics
                or self.missing_ms > self.world.now_ms - 10 * KNOWN_MS
            )
            return "" if command.target == "flaky" and missed else "its target exists"
        if reason == "refused-by-broker":
            # What shares a transaction with a refused message is tried again alone, and is no
            # poison then.
            if (
                command.value == POISON
                or command.target in self.refusing_ms
                or command.target == "flaky"
            ):
                return ""
            return "its target takes it"
        if reason in ("no-leader", "rate-limited"):
            return ""
        return f"{reason} is no reason for it"

    def may_wait(self, message: Message, reason: str, step: Step) -> str:
        # A target with poison records is set aside: its other messages wait too. So does a dead
        # letter after a transaction that failed: the dead-letter topic may be the cause.
        topic = message.command.target
        if reason == "expired" and (
            message.expire_at_ms is not None or message.command.rhythm is not None
        ):
            return ""
        if reason == "refused-by-broker" and (
            topic in self.poisoned or topic in self.refusing_ms or topic == "flaky"
        ):
            return ""
        return self.may_die(message, reason, step)

    def may_hold(self, destination: int) -> str:
        # A master that did not look since may still take it for closed. A transaction that a
        # message made fail, or the rejected topic, may look as if its destination had refused it.
        failed = self.poisoned or self.refusing_ms or self.missing_ms >= 0 or -1 in self.closed_ms
        return "" if destination in self.closed_ms or failed else "it takes records"

    def may_park(self, message: Message, lane: int, step: Step) -> str:
        topic = message.command.target
        if lane == LIMITED:
            return "" if topic == "limited" else "its target has no rate"
        if lane == UNCREATED:
            return "topics are not created"
        # A master that did not step since may still take the partition for one without a leader.
        return "" if topic in self.leaderless_ms else "its partition has a leader"
