"""Fault injection: what fails in the first phase, and when. All of it is drawn before the
simulation starts."""

from __future__ import annotations

from collections.abc import Callable

from chronos.workers.step.tenure import SURE_MS
from tests.sim.broker import BROKERS, DEAD_LETTER, DELAY, PROGRESS, REJECTED
from tests.sim.cluster import STANDING_MS, STANDINGS, Cluster, ClusterPart
from tests.sim.log import Faults
from tests.sim.node import SimulatedNode
from tests.sim.world import START_MS

PLACES = (
    "control",
    "send",
    "sent",
    "commit",
    "flushed",
    "verified",
    "committed",
    "writer",
    "fenced",
    "ends",
    "end",
    "read",
    "look",
)

STUCK_PLACES = ("read", "send", "sent", "commit", "flushed", "verified", "committed")
"""Ports at which a master gets stuck."""

CLOCKS_APART_MS = 485
"""Most by which the clock of a broker and that of a node differ while messages are delivered: the
tolerance, less the steps of a call."""

STEPPED_MS = 200
"""Most by which the clock of a healthy master is set where masters are observed."""

COPY_ENDS_MS = 100
"""How long before its copy goes on a machine ends at the latest."""

MAINTENANCE_PLACES = ("save", "restore", "fetch", "offset", "trim", "trimmed")


class FaultInjection(ClusterPart):
    """The faults of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.fault_ms = cluster.fault_ms
        self._draw_faults()

    def _draw_faults(self) -> None:
        """Each kind of fault is absent from some seeds, so that no fault hides what another one
        would show."""
        world, draw = self.world, self.world.random
        some = lambda *rates: draw.choice([0.0, 0.0, *rates])  # noqa: E731
        rates = {
            "aborts": some(0.02, 0.2),
            "unclear_commits": some(0.02, 0.2),
            "lost_on_abort": 0.1,
            "spurious_fences": some(0.02, 0.1),
            "short_reads": some(0.1, 0.5),
            "no_answer": some(0.01, 0.1),
            "jitter": some(0.01, 0.1),
        }
        self.brokers.slow_markers = some(0.05, 0.4)
        for node in self.nodes:
            node.faults = Faults(**rates)
            node.disk.flush_chance = draw.choice([0.0, 0.1, 0.5])
            node.clock.skew_ms = node.clock.began_ms = draw.randint(-200, 200)
            node.clock.drift = draw.uniform(-1e-4, 1e-4)
            world.after(draw.randrange(500), node.start)
        if draw.random() < 0.3:
            self.producers.targets += ["flaky"]
            self.checker.unreliable.add("flaky")
        if draw.random() < 0.2:
            self.producers.targets += ["gone"]
            self.checker.unreliable.add("gone")
        for _ in range(draw.randint(5, 40)):
            world.after(draw.randrange(self.fault_ms), self.producers.send)
        kinds: list[Callable[[], None]] = [
            kind
            for kind in (
                self._kill,
                self._freeze,
                self._trap,
                self._trap,
                self._trap,
                self._pause_broker,
                self._set_clock,
                self._break_disk,
                self._damage_store,
                self._cut,
                self._pause_ensemble,
                self._transfer,
                self._delete_topic,
                self._block_rejected_topic,
            )
            if draw.random() < 0.5
        ]
        if kinds:
            for _ in range(draw.choice([0, 3, 8, 20])):
                world.after(draw.randrange(500, self.fault_ms), self._inject, draw.choice(kinds))
        self._draw_with_own_dice()

    def _draw_with_own_dice(self) -> None:
        """Faults that were added later."""
        world = self.world
        dice = self.cluster.cut_dice
        if dice.random() < 0.3:
            for _ in range(dice.choice([1, 3, 8])):
                world.after(dice.randrange(500, self.fault_ms), self._inject, self._cut_log)
        dice = self.cluster.file_dice
        if dice.random() < 0.2:
            for _ in range(dice.choice([1, 3])):
                world.after(dice.randrange(500, self.fault_ms), self._inject, self._exhaust_files)
        dice = self.cluster.clock_dice
        if dice.random() < 0.3:
            for _ in range(dice.choice([3, 12, 30])):
                world.after(dice.randrange(500, self.fault_ms), self._inject, self._set_clock)
            if dice.random() < 0.5:
                # A wrong belief that the end of the log was reached shows only where it often is
                # not.
                for node in self.nodes:
                    node.faults.short_reads = 0.8
        dice = self.cluster.holder_dice
        if self.cluster.replication is not None:
            for node in dice.sample(self.nodes, dice.choice([0, 1, 1, len(self.nodes) - 1])):
                world.after(dice.randrange(500, self.fault_ms), node.die)
        dice = self.cluster.trim_dice
        if self.cluster.storage is not None:
            for _ in range(dice.choice([0, 3, 10])):
                kind = dice.choice(
                    [
                        self._lose_disk,
                        self._damage_checkpoint,
                        self._disconnect_storage,
                        self._trap_maintenance,
                    ]
                )
                world.after(dice.randrange(500, self.fault_ms), self._inject, kind)
        dice = self.cluster.bulk_dice
        if self.ensemble is not None and dice.random() < 0.2:
            for _ in range(dice.choice([1, 3])):
                world.after(dice.randrange(500, self.fault_ms), self._inject, self._forget)
        dice = self.cluster.takeover_dice
        if self.ensemble is not None and dice.random() < 0.05:
            for _ in range(8):
                world.after(dice.randrange(500, self.fault_ms), self._inject, self._delay_fence)
        dice = self.cluster.letter_dice
        if dice.random() < 0.2:
            for _ in range(dice.choice([1, 3])):
                world.after(
                    dice.randrange(500, self.fault_ms), self._inject, self._block_dead_letter_topic
                )
        dice = self.cluster.rate_dice
        if dice.random() < 0.3:
            for topic in dice.choice([["a"], ["a", "b"]]):
                for _ in range(dice.choice([1, 2, 4])):
                    self.cluster.limited.add(topic)
                    rate = dice.choice(
                        ["0/s", "0.5/s", "3/s", "30/s burst 3", "30/s burst 300", "unlimited", ""]
                    )
                    world.after(dice.randrange(self.fault_ms), self.cluster.limit, topic, rate)
            # Many poison records take their time without any limit.
            for _ in range(dice.choice([0, 30]) if self.producers.share_poison < 0.2 else 0):
                world.after(dice.randrange(self.fault_ms), self.producers.send)
        dice = self.cluster.leader_dice
        if dice.random() < 0.3:
            for _ in range(dice.choice([1, 2, 6])):
                world.after(dice.randrange(500, self.fault_ms), self._inject, self._lose_leaders)
        dice = self.cluster.held_dice
        if dice.random() < 0.3:
            for _ in range(dice.choice([1, 3, 8])):
                world.after(dice.randrange(500, self.fault_ms), self._inject, self._lose_home)
        dice = self.cluster.replay_dice
        if self.cluster.replays is not None:
            for _ in range(dice.choice([3, 10])):
                world.after(dice.randrange(500, self.fault_ms), self.cluster.replays.one)
        self._draw_broker_clocks()
        self._draw_lost_fences()
        dice = self.producers.place_dice
        for _ in range(
            dice.choice([0, 3, 12]) if self.producers.share_elsewhere and self.shards > 1 else 0
        ):
            world.after(dice.randrange(self.fault_ms), self.producers.race)
        dice = self.cluster.leave_dice
        if self.cluster.leavers:
            for _ in range(dice.choice([1, 3, 8])):
                world.after(dice.randrange(500, self.fault_ms), self._inject, self._leave)

        dice = self.cluster.foreign_dice
        if dice.random() < 0.2:
            for _ in range(dice.choice([1, 5, 30])):
                world.after(dice.randrange(self.fault_ms), self._write_foreign)

        dice = self.cluster.memory_dice
        # The limits and places that others check are lost too.
        if self.ensemble is not None and self.cluster.moves is None and not self.cluster.limited:
            for _ in range(dice.choice([1, 3]) if dice.random() < 0.1 else 0):
                world.after(dice.randrange(500, self.fault_ms), self._inject, self._lose_memory)

        dice = self.cluster.health_dice
        if self.cluster.moves is not None:
            kinds = [
                self._stick,
                self._stick,
                self._stick,
                self._pause_observer,
                self._blind_all_but_one,
                self._lose_broker,
                self._arm,
                self._arm,
                self._set_clock,
            ]
            for _ in range(dice.choice([0, 2, 5, 10])):
                world.after(dice.randrange(500, self.fault_ms), self._inject, dice.choice(kinds))

    def _draw_lost_fences(self) -> None:
        """What ends a fence although no broker failed, and what makes offsets hard to foresee."""
        world, dice = self.world, self.cluster.fence_dice
        self.brokers.offsets_dice = dice
        self.brokers.odd_offsets = dice.choice([0.0, 0.0, 0.0, 0.3])
        if dice.random() < 0.25:
            for _ in range(dice.choice([1, 3, 8])):
                world.after(
                    dice.randrange(500, self.fault_ms), self._inject, self.brokers.forget_ids
                )
        if self.cluster.stands_still:
            for number in range(STANDINGS):
                began_ms = number * STANDING_MS + dice.randrange(500, 10_000)
                world.after(began_ms, self._inject, self._stand_still)
        if self.ensemble is None and len(self.nodes) == 1 and self.cluster.storage is None:
            for _ in range(dice.choice([0, 0, 1])):
                world.after(dice.randrange(500, self.fault_ms), self._inject, self._copy)

    def _write_foreign(self) -> None:
        """Another program writes to a progress partition, perhaps a record of Chronos from another
        topic."""
        dice = self.cluster.foreign_dice
        partition = dice.choice(self.brokers.topics[PROGRESS])
        own = partition.committed()
        value = dice.choice([None, b"\x01\x01", own[-1].value if own else b"text"])
        key, headers = dice.choice([(b"key", []), (None, [("name", b"x")]), (b"", [])])
        offset = self.brokers.append(partition, key, value, headers)
        self.world.trace(f"another program writes {partition.name} at {offset}")

    def _draw_broker_clocks(self) -> None:
        """The clock of each broker, up to the tolerance and in some seeds for a time beyond it;
        leaders move between them."""
        world, dice = self.world, self.cluster.time_dice
        if dice.random() < 0.4:
            return
        if dice.random() < 0.5:
            for node in self.nodes:
                node.clock.skew_ms = node.clock.began_ms = 0
        nodes_off_ms = max(abs(node.clock.skew_ms) for node in self.nodes)
        bound_ms = CLOCKS_APART_MS - max(
            nodes_off_ms, 0 if self.cluster.moves is None else STEPPED_MS
        )
        for clock in self.brokers.clocks:
            clock.bound_ms = bound_ms
            clock.skew_ms = dice.choice([-bound_ms, bound_ms, dice.randint(-bound_ms, bound_ms)])
            clock.drift = dice.choice([0.0, dice.uniform(-5e-3, 5e-3)])
        for _ in range(dice.choice([0, 1, 4, 12])):
            world.after(dice.randrange(500, self.fault_ms), self._inject, self._move_leader)
        if self.cluster.moves is None and dice.random() < 0.2:
            for _ in range(dice.choice([1, 2, 4])):
                world.after(
                    dice.randrange(500, self.fault_ms), self._inject, self._set_broker_clock
                )
        if self.producers.share_elsewhere and self.shards > 1:
            for _ in range(dice.choice([1, 3, 10])):
                world.after(dice.randrange(self.fault_ms), self.producers.tangle)

    def _inject(self, kind: Callable[[], None]) -> None:
        if self.world.faulty:
            kind()

    def _any_node(self) -> SimulatedNode:
        return self.world.random.choice(self.nodes)

    def _kill(self) -> None:
        self._any_node().crash(self.world.random.choice([100, 2_000, 8_000]))

    def _leave(self) -> None:
        self.cluster.leave_dice.choice(self.nodes).leave(
            self.cluster.leave_dice.choice([100, 2_000, 8_000])
        )

    def _freeze(self) -> None:
        node = self._any_node()
        wait_ms = self.world.random.choice([200, 3_000, 12_000])
        self.world.trace(f"{node.name} freezes for {wait_ms}")
        node.frozen_ms = max(node.frozen_ms, self.world.now_ms + wait_ms)

    def _trap(self) -> None:
        draw = self.world.random
        what = draw.choice(["kill", "freeze", "stall", "stall"])
        self._any_node().trap = (
            what,
            draw.choice(PLACES),
            draw.choice([5, 300, 2_000, 7_000, 12_000]),
        )

    def _delay_fence(self) -> None:
        """A process is frozen after it was allowed to lead, and before it fences."""
        dice = self.cluster.takeover_dice
        wait_ms = dice.choice([7_000, 12_000, 20_000, 40_000])
        dice.choice(self.nodes).trap = "freeze", "writer", wait_ms

    def _stand_still(self) -> None:
        """A process is frozen in a step, before it sends anything; or a virtual machine is
        suspended, and its clocks go on from where they stood until NTP sets them."""
        dice = self.cluster.fence_dice
        node, wait_ms = dice.choice(self.nodes), dice.choice([40_000, 95_000, 110_000])
        if dice.random() < 0.5:
            node.trap = "freeze", dice.choice(["read", "end", "send"]), wait_ms
            return
        self.world.trace(f"{node.name} and its clocks stand still for {wait_ms}")
        self.checker.clocks_jump = True
        if self.cluster.moves is not None:
            self.cluster.moves.clocks_step = True
        node.frozen_ms = max(node.frozen_ms, self.world.now_ms + wait_ms)
        if dice.random() < 0.7:
            node.clock.stood_ms += wait_ms
            self.world.after(
                wait_ms + dice.choice([1, 3_000, 10_000]), self._correct_standing, node
            )

    def _correct_standing(self, node: SimulatedNode) -> None:
        node.clock.skew_ms += node.clock.stood_ms
        node.clock.stood_ms = 0

    def _copy(self) -> None:
        """A machine is restored from a snapshot: a copy of its memory and disk goes on after the
        original, whose writers it has."""
        (node,), dice = self.nodes, self.cluster.fence_dice
        wait_ms = dice.choice([1_000, 4_000, 9_000])
        if not node.is_quiet or self.world.now_ms + wait_ms >= START_MS + self.fault_ms:
            return
        self.world.trace(f"{node.name} is copied, and restored from the copy after {wait_ms}")
        original = node.copied()
        node.frozen_ms = max(node.frozen_ms, self.world.now_ms + wait_ms)
        original.start()
        self.world.after(wait_ms - COPY_ENDS_MS, self._end_original, original, node)

    def _end_original(self, original: SimulatedNode, node: SimulatedNode) -> None:
        """End it between two transactions."""
        if original.process is not None and not original.is_quiet:
            node.frozen_ms = max(node.frozen_ms, self.world.now_ms + COPY_ENDS_MS)
            self.world.after(1, self._end_original, original, node)
            return
        original.die()

    def _pause_broker(self) -> None:
        draw = self.world.random
        broker, wait_ms = draw.randrange(BROKERS), draw.choice([100, 1_500, 8_000])
        self.world.trace(f"broker {broker} pauses for {wait_ms}")
        self.brokers.pause(broker, self.world.now_ms + wait_ms)

    # Faults of observed masters, and of their observers

    def _stick(self) -> None:
        """The threads of one or all replicas of a node stand still, in a step or between two; the
        rest of the process goes on."""
        dice = self.cluster.health_dice
        node = dice.choice(self.nodes)
        place = dice.choice([None, *STUCK_PLACES])
        wait_ms = dice.choice([1_000, 6_000, 20_000 if place else 40_000])
        if node.process is not None and node.process.threads:
            threads = node.process.threads
            for thread in dice.choice([threads, [dice.choice(threads)]]):
                thread.stick(wait_ms, place)

    def _pause_observer(self) -> None:
        dice = self.cluster.health_dice
        node, wait_ms = dice.choice(self.nodes), dice.choice([500, 3_000, 10_000, 30_000])
        if node.process is not None and node.process.observer is not None:
            node.process.observer.pause(wait_ms)

    def _blind_all_but_one(self) -> None:
        """All observers but one pause, and some master is stuck."""
        lone = self.cluster.health_dice.choice(self.nodes)
        for node in self.nodes:
            if node is not lone and node.process is not None and node.process.observer is not None:
                node.process.observer.pause(30_000)
        self._stick()

    def _lose_broker(self) -> None:
        """One node reaches all brokers but one."""
        dice = self.cluster.health_dice
        node, broker, wait_ms = (
            dice.choice(self.nodes),
            dice.randrange(BROKERS),
            dice.choice([2_000, 9_000, 20_000]),
        )
        self.world.trace(f"{node.name} does not reach broker {broker} for {wait_ms}")
        node.lost_broker, node.lost_broker_ms = broker, self.world.now_ms + wait_ms
        self.brokers.excuse(broker, node.lost_broker_ms)

    def _arm(self) -> None:
        dice = self.cluster.health_dice
        self.cluster.arm(dice.randrange(self.shards), dice.choice(self.nodes).clock.now_ms())

    def _lose_leaders(self) -> None:
        """Some or all partitions of a target lose their leader; messages for it become due
        meanwhile."""
        dice = self.cluster.leader_dice
        topic = dice.choice(
            [topic for topic in ("a", "b", "flaky") if topic in self.brokers.topics]
        )
        partitions = self.brokers.topics[topic]
        wait_ms = dice.choice([1_000, 8_000, 15_000, 40_000])
        for partition in dice.sample(partitions, dice.choice([1, len(partitions)])):
            self.world.trace(f"{partition.name} has no leader for {wait_ms}")
            self.brokers.leaderless[partition.name] = self.world.now_ms + wait_ms
        for _ in range(dice.choice([0, 5, 20])):
            self.world.after(dice.randrange(wait_ms), self.producers.send)
        for _ in range(dice.choice([0, 20])):
            # Actions while the parked messages leave their lanes, some in the very step.
            self.world.after(wait_ms + dice.randrange(2_000), self.producers.act)

    def _move_leader(self) -> None:
        """A partition that is written to all the time, mostly, gets another leader, and with it
        another clock."""
        dice = self.cluster.time_dice
        topics = [DELAY, DELAY, PROGRESS, dice.choice(sorted(self.brokers.topics))]
        self.brokers.elect(dice.choice(self.brokers.topics[dice.choice(topics)]), dice)

    def _set_broker_clock(self) -> None:
        """Law 2: a shard pauses while the clock of a broker is wrong, and nothing is early."""
        dice = self.cluster.time_dice
        broker, wrong_ms = dice.randrange(BROKERS), dice.choice([600, 1_500, 5_000, 15_000])
        self.brokers.set_wrong(broker, dice.choice([wrong_ms, -wrong_ms]))
        self.world.after(dice.choice([500, 3_000, 10_000]), self.brokers.set_wrong, broker, 0)

    def _lose_home(self) -> None:
        """A delay partition, or all of the rejected topic, loses its leader; records that go there
        come meanwhile."""
        dice = self.cluster.held_dice
        partitions = self.brokers.topics[REJECTED]
        if dice.random() < 0.7:
            partitions = [dice.choice(self.brokers.topics[DELAY])]
        wait_ms = dice.choice([200, 1_000, 8_000, 40_000])
        for partition in partitions:
            self.world.trace(f"{partition.name} has no leader for {wait_ms}")
            self.brokers.leaderless[partition.name] = self.world.now_ms + wait_ms
        for topic in (REJECTED, DELAY):
            until_ms = max(self.brokers.refused_until_ms.get(topic, 0), self.world.now_ms + wait_ms)
            self.brokers.refused_until_ms[topic] = until_ms
        for _ in range(dice.choice([0, 5, 20])):
            self.world.after(dice.randrange(wait_ms), self.producers.send)
        for _ in range(dice.choice([0, 20])):
            # Actions while the held records are written on, some in the very step.
            self.world.after(wait_ms + dice.randrange(2_000), self.producers.act)

    def _set_clock(self) -> None:
        draw = self.world.random
        node, skew_ms = self._any_node(), draw.choice([450, 900, 10_000, 3_600_000])
        if skew_ms > SURE_MS and self.cluster.step_dice.random() < 0.8:
            skew_ms = SURE_MS - self.cluster.step_dice.choice([1_000, 2_000])
        skew_ms = draw.choice([skew_ms, -skew_ms])
        self.world.trace(f"{node.name} clock is {skew_ms} off")
        node.clock.skew_ms = skew_ms
        self.checker.clocks_jump = True
        if self.cluster.moves is not None:
            self.cluster.moves.clocks_step = True
        self.world.after(draw.choice([300, 3_000, 10_000]), self._correct_clock, node)

    def _correct_clock(self, node: SimulatedNode) -> None:
        node.clock.skew_ms = 0

    def _break_disk(self) -> None:
        draw = self.world.random
        node, what = self._any_node(), draw.choice(["full", "low", "failing"])
        self.world.trace(f"{node.name} disk {what}")
        setattr(node.disk, what, True)
        self.world.after(draw.choice([500, 4_000]), setattr, node.disk, what, False)

    def _exhaust_files(self) -> None:
        node = self.cluster.file_dice.choice(self.nodes)
        self.world.trace(f"{node.name} has no file descriptors left")
        node.disk.unread_chance = self.cluster.file_dice.choice([0.05, 0.3, 0.8])
        self.world.after(
            self.cluster.file_dice.choice([500, 4_000]), setattr, node.disk, "unread_chance", 0.0
        )

    def _damage_store(self) -> None:
        draw = self.world.random
        node = self._any_node()
        if draw.random() < 0.5 or not node.stores:
            node.lose_stores()
        else:
            shard = draw.choice(sorted(node.stores))
            self.world.trace(f"{node.name}/{shard} is damaged")
            node.stores[shard].damaged = True

    def _lose_disk(self) -> None:
        node = self.cluster.trim_dice.choice(self.nodes)
        self.world.trace(f"{node.name} loses its disk")
        node.lose_stores()

    def _damage_checkpoint(self) -> None:
        assert self.cluster.storage is not None
        self.cluster.storage.damage(
            self.cluster.trim_dice.randrange(self.shards), self.cluster.trim_dice.choice
        )

    def _disconnect_storage(self) -> None:
        assert self.cluster.storage is not None
        wait_ms = self.cluster.trim_dice.choice([500, 5_000])
        self.world.trace(f"the storage of the checkpoints cannot be reached for {wait_ms}")
        self.cluster.storage.unreachable_ms = self.world.now_ms + wait_ms

    def _trap_maintenance(self) -> None:
        draw = self.cluster.trim_dice
        what = draw.choice(["kill", "kill", "freeze"])
        draw.choice(self.nodes).trap = (
            what,
            draw.choice(MAINTENANCE_PLACES),
            draw.choice([5, 2_000, 7_000]),
        )

    def _cut(self) -> None:
        node, wait_ms = self._any_node(), self.world.random.choice([500, 3_000, 15_000])
        if node.process is not None and node.process.coordinator is not None:
            self.world.trace(f"{node.name} is cut off for {wait_ms}")
            node.process.coordinator.cut_ms = self.world.now_ms + wait_ms

    def _cut_log(self) -> None:
        node, wait_ms = (
            self.cluster.cut_dice.choice(self.nodes),
            self.cluster.cut_dice.choice([500, 2_000, 4_000, 12_000]),
        )
        self.world.trace(f"{node.name} reaches no broker for {wait_ms}")
        node.log_cut_ms = max(node.log_cut_ms, self.world.now_ms + wait_ms)

    def _pause_ensemble(self) -> None:
        if self.ensemble is not None:
            self.world.trace("the coordination service pauses")
            self.ensemble.pause(self.world.random.choice([1_000, 10_000]))

    def _lose_memory(self) -> None:
        """The coordination service loses its data, or is restored to an older state."""
        assert self.ensemble is not None
        self.ensemble.lose_memory(self.cluster.memory_dice.choice([None, *self.ensemble.earlier]))

    def _transfer(self) -> None:
        if self.ensemble is not None:
            node_id, shard = self._any_node().node_id, self.world.random.randrange(self.shards)
            kind = self.world.random.choice(["transfer", "transfer", "drain", "undrain"])
            self.world.trace(f"{kind} {node_id} {shard}")
            self.cluster.ask(kind, node_id, shard)

    def _forget(self) -> None:
        """Forget a node; a member is refused."""
        node_id = self.cluster.bulk_dice.choice(self.nodes).node_id
        self.world.trace(f"forget {node_id}")
        self.cluster.ask("forget", node_id)

    def _delete_topic(self) -> None:
        if "flaky" in self.brokers.topics:
            self.world.trace("topic flaky is deleted")
            self.brokers.delete("flaky")
            self.world.after(self.world.random.choice([500, 6_000]), self.cluster.bring_topic_back)

    def _block_rejected_topic(self) -> None:
        wait_ms = self.world.random.choice([500, 4_000])
        self.world.trace(f"topic {REJECTED} takes no record for {wait_ms}")
        self.brokers.refuse(REJECTED, self.world.now_ms + wait_ms)

    def _block_dead_letter_topic(self) -> None:
        wait_ms = self.cluster.letter_dice.choice([500, 4_000, 20_000])
        self.world.trace(f"topic {DEAD_LETTER} takes no record for {wait_ms}")
        self.brokers.refuse(DEAD_LETTER, self.world.now_ms + wait_ms)
