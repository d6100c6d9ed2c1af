"""The cluster of one seed, as its dice draw it: nodes and their settings, brokers, coordinator, producers, checkpoints.

What goes wrong in it is `trouble`, and what must come of it in the end is `simulation`.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import partial

from chronos.core.roles import REBALANCE_AFTER_MS, Request, Roles, ShardRoles
from chronos.workers.checkpoint import AWAY_MS, CHECKPOINTS_MIN
from chronos.workers.master import Limits
from tests.sim.broker import DEAD_LETTER, DELAY, PROGRESS, REJECTED, Brokers, Partition
from tests.sim.checker import Checker
from tests.sim.checkpoints import CheckpointScheduler, Depot
from tests.sim.coordinator import Ensemble
from tests.sim.node import Machine, Setting
from tests.sim.workload import MAX_DELAY_MS, Producers
from tests.sim.world import World, broken


class Cluster:
    """Everything there is in the world of one seed."""

    def __init__(self, seed: int, *, lines: list[str] | None = None) -> None:
        # A kind of trouble that came later has dice of its own, so that the seeds that know nothing of it stay what they are.
        self.cuts = random.Random(-1 - seed)
        self.strains = random.Random(f"strains {seed}")
        self.jumps = random.Random(f"jumps {seed}")
        self.holds = random.Random(f"holders {seed}")
        self.leaves = random.Random(f"leaving {seed}")
        self.doubles = random.Random(f"doubles {seed}")
        self.trims = random.Random(f"trimming {seed}")
        world = self.world = World(seed, lines=lines)
        draw = world.random
        self.checker = checker = Checker(world)
        self.brokers = brokers = checker.brokers = Brokers(world, checker.committed)
        self.shards = draw.choice([1, 1, 2, 3])
        nodes = draw.choice([1, 2, 3, 3])
        self.fault_ms = draw.randrange(5_000, 40_000)
        self.setting = self._draw_setting()
        checker.settled_too = self.setting.delivered_ms is None
        self.ensemble: Ensemble | None = None
        holds = self.holds
        self.replication: int | None = None
        """How many nodes hold a shard; None: all of them."""
        if holds.random() < 0.15:
            nodes, self.replication = holds.choice([3, 4]), holds.choice([1, 2, 2])
        doubles = self.doubles
        self.doubled = doubles.random() < 0.15
        """Two machines have one node id, and a machine that lost its disk comes back as another."""
        # Two nodes that know of no coordinator: whoever finds the other one silent for long takes over.
        if (nodes > 1 and draw.random() < 0.95) or self.replication is not None or self.doubled:
            self.ensemble = Ensemble(
                world, shards=self.shards, replication=self.replication, session_ms=draw.choice([2_000, 4_000])
            )
        if self.ensemble is not None and self.replication is not None:
            self.ensemble.rebalance_after_ms = holds.choice([2_000, REBALANCE_AFTER_MS])
            self.ensemble.replace_after_ms = holds.choice([1_000, 5_000, 20_000])
        for topic, partitions in ((DELAY, self.shards), (PROGRESS, self.shards), (REJECTED, 1), (DEAD_LETTER, 1)):
            brokers.create(topic, partitions)
        for topic in ("a", "b", "flaky"):
            brokers.create(topic, draw.choice([1, 3]))
        self.machines = [
            Machine(f"n{number}", world, brokers, self.ensemble, checker, self.setting) for number in range(nodes)
        ]
        if self.doubled:
            node = doubles.choice(self.machines).node
            self.machines.append(
                Machine("double", world, brokers, self.ensemble, checker, self.setting, node=node),
            )
            for machine in self.machines:
                machine.doubled = True
        self.depot: Depot | None = None
        # Two nodes that know of no coordinator do not know either what the other one needs of the logs.
        if self.trims.random() < 0.2 and (self.ensemble is not None or nodes == 1):
            self._keep_checkpoints()
        self.leavers = 0
        """How many nodes leave in peace, one after the other; if any, others have left before."""
        if self.leaves.random() < 0.2:
            self.leavers = self.leaves.choice([1, 1, len(self.machines)])
        self.producers = Producers(world, brokers, checker, shards=self.shards)

    def _draw_setting(self) -> Setting:
        draw = self.world.random
        messages = draw.choice([1, 2, 5, 100])
        return Setting(
            shards=self.shards,
            limits=Limits(
                messages=messages,
                bytes=draw.choice([1, 300, 1_000_000]),
                wheel_messages=draw.choice([2, 5, 1_000]),
                wheel_bytes=draw.choice([200, 1_000_000]),
                wheel_horizon_ms=draw.choice([100, 3_000]),
                pull=True,
                push=True,
            ),
            attempts_max=draw.choice([1, 3]),
            retry_base_ms=200,
            delivered_ms=draw.choice([None, None, 3_000, 60_000]),
            deduplication_ms=draw.choice([2_000, 3_600_000]),
            max_delay_ms=MAX_DELAY_MS,
            poll_ms=draw.choice([200, 1_000, 3_000]),
        )

    def _keep_checkpoints(self) -> None:
        """From now on checkpoints are kept, and the logs trimmed behind them."""
        draw = self.trims
        self.depot = Depot(self.world)
        keeping = CheckpointScheduler(
            every_ms=draw.choice([1_000, 3_000]),
            keep=CHECKPOINTS_MIN + draw.choice([0, 1]),
            keep_logs_ms=draw.choice([0, 2_000]),
            flush_every_ms=draw.choice([500, 4_000]),
            away_ms=draw.choice([1_000, AWAY_MS]),
            copying_ms=draw.choice([2, 300, 2_000]),
        )
        for machine in self.machines:
            machine.depot, machine.keeping, machine.peers = self.depot, keeping, self.machines
            machine.is_registered = partial(self._is_registered, machine)
        self.brokers.trimming = self._check_trimmed

    def _check_trimmed(self, partition: Partition, by: str) -> None:
        """Law 1: whoever is counted on still finds in the log what it would need after a crash."""
        assert self.depot is not None
        self.depot.check(partition, CHECKPOINTS_MIN)
        (keeper,) = [each.process.keeper for each in self.machines if each.name == by and each.process is not None]
        assert keeper is not None
        # Whoever was given the shard since then looks where the logs begin before it goes on.
        heard = keeper.heard.get(partition.number, Roles()).shards.get(partition.number, ShardRoles())
        for machine in self.there():
            store = machine.stores.get(partition.number)
            counted = self.ensemble is None or machine.node in heard.replicas
            if store is None or not counted or not machine.is_registered(partition.number):
                continue
            needed = store.kept.pull_offset if partition.topic == DELAY else store.kept.applied
            if store.kept.applied and needed < partition.start:
                raise broken(
                    "1", f"{partition.name} begins at {partition.start}; {machine.name} needs it from {needed}"
                )

    def _is_registered(self, machine: Machine, shard: int) -> bool:
        """Whether others know that it holds the shard, and it is not away nor is another there under its id."""
        if self.ensemble is None:
            return True
        roles, member = self.ensemble.roles, self.ensemble.members().get(machine.node)
        listed = roles.shards.get(shard, ShardRoles()).replicas
        is_there = machine.node not in roles.away if member is None else member.instance == machine.instance
        return machine.node in listed and is_there

    def there(self) -> list[Machine]:
        """Machines that have a place: all that are not gone, and of those with one id the one that has taken it."""
        there = [machine for machine in self.machines if not machine.gone]
        ids = Counter(machine.node for machine in there)
        return [machine for machine in there if ids[machine.node] == 1 or machine.joined]

    def holders(self, shard: int) -> list[Machine]:
        """Machines that are to hold the shard, of those that are there."""
        there = self.there()
        if self.ensemble is None or self.replication is None:
            return there
        given = self.ensemble.roles.shards.get(shard, ShardRoles())
        return [machine for machine in there if machine.node in given.replicas]

    def ask(self, kind: str, node: str, shard: int = -1) -> None:
        if self.ensemble is not None:
            self.ensemble.requests.append(Request(kind=kind, node=node, shard=shard, at_ms=self.world.now_ms))

    def bring_topic_back(self) -> None:
        if "flaky" not in self.brokers.topics:
            self.brokers.create("flaky", 2)


class Part:
    """What has to do with everything in a cluster, under the names it has there."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.brokers = cluster.brokers
        self.checker = cluster.checker
        self.ensemble = cluster.ensemble
        self.machines = cluster.machines
        self.producers = cluster.producers
        self.shards = cluster.shards
