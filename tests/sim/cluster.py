"""The cluster of one seed: nodes and their settings, brokers, coordinator, producers, checkpoints,
all drawn at random.

`fault_injection` makes it fail; `simulation` runs it and checks how it ends.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import partial

from chronos.core.cluster.roles import (
    AWAY_MS,
    REBALANCE_AFTER_MS,
    Request,
    ShardRoles,
)
from chronos.workers.replica.checkpoint import CHECKPOINTS_MIN
from chronos.workers.step.planned import Limits
from tests.sim.broker import DEAD_LETTER, DELAY, PROGRESS, REJECTED, Brokers, Partition
from tests.sim.checker import Checker
from tests.sim.checkpoints import CheckpointStorage, SeedCheckpoints
from tests.sim.coordinator import Ensemble
from tests.sim.moves import Moves
from tests.sim.node import Settings, SimulatedNode
from tests.sim.observers import HealthSettings
from tests.sim.replays import Replays
from tests.sim.workload import MAX_DELAY_MS, MAX_PAST_MS, Producers
from tests.sim.world import World, broken

HOUR_MS = 3_600_000

CLOCK_OFF_MS = 300
"""Difference to the brokers' clock up to which a master surely delivers."""

STANDING_MS, STANDINGS = 120_000, 3
"""How much longer the faults last each time that a node stands still for longer than a leadership
may, and how often one does."""

OBSERVED = 0.05
"""Share of the clusters with a coordinator whose masters are observed."""


class Cluster:
    """All parts of the world of one seed."""

    def __init__(
        self, seed: int, *, lines: list[str] | None = None, observed: bool = False
    ) -> None:
        """`observed`: two nodes at least, a coordinator, and observers of masters; else they are
        drawn."""
        # A fault that was added later has dice of its own, so that seeds without it stay what they
        # were.
        self.cut_dice = random.Random(-1 - seed)
        self.file_dice = random.Random(f"strains {seed}")
        self.clock_dice = random.Random(f"jumps {seed}")
        self.holder_dice = random.Random(f"holders {seed}")
        self.leave_dice = random.Random(f"leaving {seed}")
        self.duplicate_dice = random.Random(f"doubles {seed}")
        self.trim_dice = random.Random(f"trimming {seed}")
        self.sleep_dice = random.Random(f"sleeping {seed}")
        self.bulk_dice = random.Random(f"bulk {seed}")
        self.letter_dice = random.Random(f"letters {seed}")
        self.leader_dice = random.Random(f"leaders {seed}")
        self.rate_dice = random.Random(f"rates {seed}")
        self.replay_dice = random.Random(f"letter-replays {seed}")
        self.place_dice = random.Random(f"misplaced {seed}")
        self.health_dice = random.Random(f"watching {seed}")
        self.time_dice = random.Random(f"clocks of brokers {seed}")
        self.delete_dice = random.Random(f"deleting {seed}")
        self.late_dice = random.Random(f"late logs {seed}")
        self.foreign_dice = random.Random(f"foreign {seed}")
        self.silence_dice = random.Random(f"silent logs {seed}")
        self.held_dice = random.Random(f"held records {seed}")
        self.fence_dice = random.Random(f"fences {seed}")
        self.step_dice = random.Random(f"steps of clocks {seed}")
        self.memory_dice = random.Random(f"lost memory {seed}")
        self.takeover_dice = random.Random(f"delayed fences {seed}")
        world = self.world = World(seed, lines=lines)
        draw = world.random
        self.checker = checker = Checker(world)
        self.brokers = brokers = checker.brokers = Brokers(world, checker.committed)
        self.shards = draw.choice([1, 1, 2, 3])
        node_count = draw.choice([1, 2, 3, 3])
        self.fault_ms = draw.randrange(5_000, 40_000)
        self.settings = self._draw_settings()
        checker.shards, checker.rejects_misplaced = self.shards, self.settings.misplaced == "reject"
        checker.settled_too = self.settings.delivered_ms is None
        checker.attempts_max = self.settings.attempts_max
        checker.deduplication_ms = self.settings.deduplication_ms
        self.ensemble: Ensemble | None = None
        holder_dice = self.holder_dice
        self.replication: int | None = None
        """Number of nodes that hold a shard; None: all of them."""
        if holder_dice.random() < 0.15:
            node_count, self.replication = holder_dice.choice([3, 4]), holder_dice.choice([1, 2, 2])
        elif observed:
            node_count = max(2, node_count)
        self.duplicated = self.duplicate_dice.random() < 0.15
        """Two nodes have one id, and a node that lost its disk comes back with another data
        directory."""
        # Without a coordinator, a node takes over when the other one has been silent for long.
        is_clustered = node_count > 1 and draw.random() < 0.95
        if is_clustered or self.replication is not None or self.duplicated or observed:
            self.ensemble = Ensemble(
                world,
                shards=self.shards,
                replication=self.replication,
                session_ms=draw.choice([2_000, 4_000]),
            )
        if self.ensemble is not None and self.replication is not None:
            self.ensemble.rebalance_after_ms = holder_dice.choice([2_000, REBALANCE_AFTER_MS])
            self.ensemble.replace_after_ms = holder_dice.choice([1_000, 5_000, 20_000])
        # A node that another one can replace is fenced by it when it goes on.
        self.stands_still = self.fence_dice.random() < (0.3 if self.ensemble is None else 0.03)
        """A node is frozen for longer than another one waits for it, and its clocks stand still."""
        if self.stands_still:
            self.fault_ms += STANDINGS * STANDING_MS
        for topic, partitions in (
            (DELAY, self.shards),
            (PROGRESS, self.shards),
            (REJECTED, 1),
            (DEAD_LETTER, 1),
        ):
            brokers.create(topic, partitions)
        if self.late_dice.random() < 0.2:
            for partition in brokers.topics[DELAY]:
                brokers.begin_late(partition, self.late_dice.choice([0, 1, 7]))
        for topic in ("a", "b", "flaky"):
            brokers.create(topic, draw.choice([1, 3]))
        self.nodes = [
            SimulatedNode(f"n{number}", world, brokers, self.ensemble, checker, self.settings)
            for number in range(node_count)
        ]
        if self.duplicated:
            node_id = self.duplicate_dice.choice(self.nodes).node_id
            self.nodes.append(
                SimulatedNode(
                    "double", world, brokers, self.ensemble, checker, self.settings, node_id=node_id
                ),
            )
            for node in self.nodes:
                node.duplicated = True
        self.moves: Moves | None = None
        """The changes of roles, where masters are observed."""
        if self.ensemble is not None and (observed or self.health_dice.random() < OBSERVED):
            self._observe_masters(self.ensemble)
        self.storage: CheckpointStorage | None = None
        # Without a coordinator, two nodes do not know what the other one needs of the logs.
        if self.trim_dice.random() < 0.2 and (self.ensemble is not None or node_count == 1):
            self._keep_checkpoints()
        can_sleep = self.settings.deduplication_ms == HOUR_MS and not self.duplicated
        self.sleeps = can_sleep and self.sleep_dice.random() < 0.2
        """All nodes are down for longer than an id is taken after its delivery."""
        self.forgets = (
            self.settings.delivered_ms is not None
            and not self.duplicated
            and self.delete_dice.random() < 0.3
        )
        """Ids grow old enough to be forgotten, and are named again."""
        self.leavers = 0
        """Number of nodes that leave once the cluster is healthy; if any, others leave during the
        fault phase."""
        if self.leave_dice.random() < 0.2:
            self.leavers = self.leave_dice.choice([1, 1, len(self.nodes)])
        self.limited: set[str] = set()
        """Topics that have a rate limit at some time."""
        self.draw_deleters()
        self.producers = Producers(world, brokers, checker, shards=self.shards, seed=seed)
        self.replays: Replays | None = None
        """Operators who replay dead letters."""
        if self.replay_dice.random() < 0.2:
            self.replays = Replays(self.producers, self.replay_dice)
        if self.bulk_dice.random() < 0.2:
            self.producers.share_poison = self.bulk_dice.choice([0.3, 0.6, 0.9])
        if self.bulk_dice.random() < 0.2:
            brokers.compacted.add("b")

    def draw_deleters(self) -> None:
        """Let the delete worker of each node run often, seldom, never or at its own times."""
        for node in self.nodes:
            node.delete_dice = self.delete_dice
            node.delete_share = self.delete_dice.choice([None, 0.0, 0.02, 0.5])

    def _draw_settings(self) -> Settings:
        draw = self.world.random
        messages = draw.choice([1, 2, 5, 100])
        return Settings(
            shards=self.shards,
            limits=Limits(
                messages=messages,
                bytes=draw.choice([1, 300, 1_000_000]),
                wheel_messages=draw.choice([2, 5, 1_000]),
                wheel_bytes=draw.choice([200, 1_000_000]),
                wheel_horizon_ms=draw.choice([100, 3_000]),
                linger_ms=8,
                pull=True,
                push=True,
            ),
            attempts_max=draw.choice([1, 3]),
            retry_base_ms=200,
            delivered_ms=draw.choice([None, None, 3_000, 60_000]),
            deduplication_ms=draw.choice([2_000, HOUR_MS]),
            max_delay_ms=MAX_DELAY_MS,
            max_past_ms=MAX_PAST_MS,
            misplaced="reject" if self.place_dice.random() < 0.1 else "forward",
            poll_ms=draw.choice([200, 1_000, 3_000]),
        )

    def _observe_masters(self, ensemble: Ensemble) -> None:
        """Run an observer in each node."""
        settings = HealthSettings.draw(self.health_dice)
        self.moves = Moves(self.world, settings)
        ensemble.planned.append(self.moves.published)
        self.moves.is_disturbed = self._is_disturbed
        for node in self.nodes:
            node.health, node.health_dice = settings, self.health_dice

    def _is_disturbed(self, node_id: str | None) -> bool:
        """Return whether a node with this id has a disk without room, or a clock with which masters
        pause deliveries."""
        return any(
            node.disk.low or abs(node.clock.skew_ms) > CLOCK_OFF_MS
            for node in self.nodes
            if node.node_id == node_id
        )

    def _keep_checkpoints(self) -> None:
        """Keep checkpoints, and trim the logs up to them."""
        draw = self.trim_dice
        self.storage = CheckpointStorage(self.world)
        settings = SeedCheckpoints(
            every_ms=draw.choice([1_000, 3_000]),
            keep=CHECKPOINTS_MIN + draw.choice([0, 1]),
            keep_logs_ms=draw.choice([0, 2_000]),
            flush_every_ms=draw.choice([500, 4_000]),
            away_ms=draw.choice([1_000, AWAY_MS]),
            copying_ms=draw.choice([2, 300, 2_000]),
        )
        for node in self.nodes:
            node.storage, node.checkpoint_settings, node.peers = self.storage, settings, self.nodes
            node.is_registered = partial(self._is_registered, node)
        self.brokers.trimming = self._check_trimmed

    def _check_trimmed(self, partition: Partition, by: str) -> None:
        """Law 1: every registered replica still finds in the log what it would replay after a
        crash."""
        assert self.storage is not None
        self.storage.check(partition, CHECKPOINTS_MIN)
        (process,) = [
            each.process for each in self.nodes if each.name == by and each.process is not None
        ]
        assert process.maintenance is not None
        for node in self.present():
            store = node.stores.get(partition.number)
            if store is None or not node.is_registered(partition.number):
                continue
            if self.ensemble is not None and not process.maintenance.counted(
                partition.number, node.node_id
            ):
                continue
            needed = (
                store.durable.pull_offset if partition.topic == DELAY else store.durable.applied
            )
            if store.durable.applied and needed < partition.start:
                raise broken(
                    "1",
                    (
                        f"{partition.name} starts at {partition.start}; {node.name} needs it from "
                        f"{needed}"
                    ),
                )

    def _is_registered(self, node: SimulatedNode, shard: int) -> bool:
        """Return whether the cluster counts on the node's replica: listed, not away, and no other
        node has its id."""
        if self.ensemble is None:
            return True
        roles, member = self.ensemble.roles, self.ensemble.members().get(node.node_id)
        listed = roles.shards.get(shard, ShardRoles()).replicas
        is_there = (
            node.node_id not in roles.away if member is None else member.instance == node.instance
        )
        return node.node_id in listed and is_there

    def present(self) -> list[SimulatedNode]:
        """Nodes with a place: all that are not gone; of two nodes with one id, the one that has
        joined."""
        alive = [node for node in self.nodes if not node.gone]
        ids = Counter(node.node_id for node in alive)
        return [node for node in alive if ids[node.node_id] == 1 or node.joined]

    def holders(self, shard: int) -> list[SimulatedNode]:
        """Present nodes that the controller assigned the shard to."""
        present = self.present()
        if self.ensemble is None or self.replication is None:
            return present
        given = self.ensemble.roles.shards.get(shard, ShardRoles())
        return [node for node in present if node.node_id in given.replicas]

    def ask(self, kind: str, node_id: str, shard: int = -1) -> None:
        if self.ensemble is not None:
            self.ensemble.requests.append(
                Request(kind=kind, node=node_id, shard=shard, at_ms=self.world.now_ms)
            )

    def arm(self, shard: int, asked_ms: int) -> None:
        """Permit one failover of the shard. `asked_ms`: the time of the request by the clock of the
        node that was asked."""
        assert self.ensemble is not None
        assert self.moves is not None
        self.world.trace(f"arm {shard}")
        self.moves.armed_now(shard)
        self.ensemble.requests.append(Request(kind="arm", node="", shard=shard, at_ms=asked_ms))

    def limit(self, topic: str, rate: str) -> None:
        """Set the rate limit of a topic at run time, or remove it."""
        self.world.trace(f"rate of {topic}: {rate or 'off'}")
        if self.ensemble is not None:
            request = Request(
                kind="limit", node="", pattern=topic, rate=rate, at_ms=self.world.now_ms
            )
            self.ensemble.requests.append(request)
        for node in self.nodes:
            node.limited.pop(topic, None)
            if rate:
                node.limited[topic] = rate

    def bring_topic_back(self) -> None:
        if "flaky" not in self.brokers.topics:
            self.brokers.create("flaky", 2)


class ClusterPart:
    """Base of classes that work on a whole cluster: its members under the same names."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.brokers = cluster.brokers
        self.checker = cluster.checker
        self.ensemble = cluster.ensemble
        self.nodes = cluster.nodes
        self.producers = cluster.producers
        self.shards = cluster.shards
