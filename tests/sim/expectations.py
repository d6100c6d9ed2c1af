"""Trouble: the first phase, in which anything may fail. What does, and when, is drawn before the world begins to move."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.broker import BROKERS, REJECTED
from tests.sim.cluster import Cluster, Part
from tests.sim.log import Faults
from tests.sim.node import Machine

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

KEEPER_PLACES = ("save", "restore", "fetch", "offset", "trim", "trimmed")


class Trouble(Part):
    """What goes wrong in one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.fault_ms = cluster.fault_ms
        self._draw_faults()

    def _draw_faults(self) -> None:
        """Each kind of fault is absent from some seeds, so that none hides what another would show."""
        world, draw = self.world, self.world.random
        some = lambda *rates: draw.choice([0.0, 0.0, *rates])  # noqa: E731
        rates = {
            "aborts": some(0.02, 0.2),
            "unclear": some(0.02, 0.2),
            "lost_on_abort": 0.1,
            "fenced_by_nobody": some(0.02, 0.1),
            "short_reads": some(0.1, 0.5),
            "no_answer": some(0.01, 0.1),
            "jitter": some(0.01, 0.1),
        }
        self.brokers.slow_markers = some(0.05, 0.4)
        for machine in self.machines:
            machine.faults = Faults(**rates)
            machine.disk.flush_chance = draw.choice([0.0, 0.1, 0.5])
            machine.clock.skew_ms = machine.clock.began_ms = draw.randint(-200, 200)
            machine.clock.drift = draw.uniform(-1e-4, 1e-4)
            world.after(draw.randrange(500), machine.start)
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
                self._kill, self._freeze, self._trap, self._trap, self._trap, self._pause_broker, self._set_clock, self._spoil_disk,
                self._damage, self._cut, self._pause_ensemble, self._transfer, self._topic_goes, self._refuse_rejects,
            )
            if draw.random() < 0.5
        ]  # fmt: skip
        if kinds:
            for _ in range(draw.choice([0, 3, 8, 20])):
                world.after(draw.randrange(500, self.fault_ms), self._strike, draw.choice(kinds))
        self._draw_later_kinds()

    def _draw_later_kinds(self) -> None:
        """What has dice of its own."""
        world = self.world
        cuts = self.cluster.cuts
        if cuts.random() < 0.3:
            for _ in range(cuts.choice([1, 3, 8])):
                world.after(cuts.randrange(500, self.fault_ms), self._strike, self._cut_log)
        strains = self.cluster.strains
        if strains.random() < 0.2:
            for _ in range(strains.choice([1, 3])):
                world.after(strains.randrange(500, self.fault_ms), self._strike, self._use_up_files)
        jumps = self.cluster.jumps
        if jumps.random() < 0.3:
            for _ in range(jumps.choice([3, 12, 30])):
                world.after(jumps.randrange(500, self.fault_ms), self._strike, self._set_clock)
        holds = self.cluster.holds
        if self.cluster.replication is not None:
            for machine in holds.sample(self.machines, holds.choice([0, 1, 1, len(self.machines) - 1])):
                world.after(holds.randrange(500, self.fault_ms), machine.die)
        trims = self.cluster.trims
        if self.cluster.depot is not None:
            for _ in range(trims.choice([0, 3, 10])):
                kind = trims.choice([self._lose_disk, self._damage_checkpoint, self._part_depot, self._trap_keeper])
                world.after(trims.randrange(500, self.fault_ms), self._strike, kind)
        leaves = self.cluster.leaves
        if self.cluster.leavers:
            for _ in range(leaves.choice([1, 3, 8])):
                world.after(leaves.randrange(500, self.fault_ms), self._strike, self._leave)

    def _strike(self, kind: Callable[[], None]) -> None:
        if self.world.faulty:
            kind()

    def _machine(self) -> Machine:
        return self.world.random.choice(self.machines)

    def _kill(self) -> None:
        self._machine().crash(self.world.random.choice([100, 2_000, 8_000]))

    def _leave(self) -> None:
        self.cluster.leaves.choice(self.machines).leave(self.cluster.leaves.choice([100, 2_000, 8_000]))

    def _freeze(self) -> None:
        machine = self._machine()
        wait_ms = self.world.random.choice([200, 3_000, 12_000])
        self.world.tell(f"{machine.name} freezes for {wait_ms}")
        machine.frozen_ms = max(machine.frozen_ms, self.world.now_ms + wait_ms)

    def _trap(self) -> None:
        draw = self.world.random
        what = draw.choice(["kill", "freeze", "stall", "stall"])
        self._machine().trap = (what, draw.choice(PLACES), draw.choice([5, 300, 2_000, 7_000, 12_000]))

    def _pause_broker(self) -> None:
        draw = self.world.random
        broker, wait_ms = draw.randrange(BROKERS), draw.choice([100, 1_500, 8_000])
        self.world.tell(f"broker {broker} pauses for {wait_ms}")
        self.brokers.paused[broker] = max(self.brokers.paused[broker], self.world.now_ms + wait_ms)

    def _set_clock(self) -> None:
        draw = self.world.random
        machine, skew_ms = self._machine(), draw.choice([450, 900, 10_000, 3_600_000])
        skew_ms = draw.choice([skew_ms, -skew_ms])
        self.world.tell(f"{machine.name} clock is {skew_ms} off")
        machine.clock.skew_ms = skew_ms
        self.checker.clocks_jump = True
        self.world.after(draw.choice([300, 3_000, 10_000]), self._mend_clock, machine)

    def _mend_clock(self, machine: Machine) -> None:
        machine.clock.skew_ms = 0

    def _spoil_disk(self) -> None:
        draw = self.world.random
        machine, what = self._machine(), draw.choice(["full", "low", "failing"])
        self.world.tell(f"{machine.name} disk {what}")
        setattr(machine.disk, what, True)
        self.world.after(draw.choice([500, 4_000]), setattr, machine.disk, what, False)

    def _use_up_files(self) -> None:
        machine = self.cluster.strains.choice(self.machines)
        self.world.tell(f"{machine.name} has no file descriptors left")
        machine.disk.unread_chance = self.cluster.strains.choice([0.05, 0.3, 0.8])
        self.world.after(self.cluster.strains.choice([500, 4_000]), setattr, machine.disk, "unread_chance", 0.0)

    def _damage(self) -> None:
        draw = self.world.random
        machine = self._machine()
        if draw.random() < 0.5 or not machine.stores:
            machine.lose_stores()
        else:
            shard = draw.choice(sorted(machine.stores))
            self.world.tell(f"{machine.name}/{shard} is damaged")
            machine.stores[shard].damaged = True

    def _lose_disk(self) -> None:
        machine = self.cluster.trims.choice(self.machines)
        self.world.tell(f"{machine.name} loses its disk")
        machine.lose_stores()

    def _damage_checkpoint(self) -> None:
        assert self.cluster.depot is not None
        self.cluster.depot.damage(self.cluster.trims.randrange(self.shards), self.cluster.trims.choice)

    def _part_depot(self) -> None:
        assert self.cluster.depot is not None
        wait_ms = self.cluster.trims.choice([500, 5_000])
        self.world.tell(f"the place of the checkpoints cannot be reached for {wait_ms}")
        self.cluster.depot.away_ms = self.world.now_ms + wait_ms

    def _trap_keeper(self) -> None:
        draw = self.cluster.trims
        what = draw.choice(["kill", "kill", "freeze"])
        draw.choice(self.machines).trap = (what, draw.choice(KEEPER_PLACES), draw.choice([5, 2_000, 7_000]))

    def _cut(self) -> None:
        machine, wait_ms = self._machine(), self.world.random.choice([500, 3_000, 15_000])
        if machine.process is not None and machine.process.coordinator is not None:
            self.world.tell(f"{machine.name} is cut off for {wait_ms}")
            machine.process.coordinator.cut_ms = self.world.now_ms + wait_ms

    def _cut_log(self) -> None:
        machine, wait_ms = (
            self.cluster.cuts.choice(self.machines),
            self.cluster.cuts.choice([500, 2_000, 4_000, 12_000]),
        )
        self.world.tell(f"{machine.name} reaches no broker for {wait_ms}")
        machine.log_cut_ms = max(machine.log_cut_ms, self.world.now_ms + wait_ms)

    def _pause_ensemble(self) -> None:
        if self.ensemble is not None:
            self.world.tell("coordination pauses")
            self.ensemble.pause(self.world.random.choice([1_000, 10_000]))

    def _transfer(self) -> None:
        if self.ensemble is not None:
            node, shard = self._machine().node, self.world.random.randrange(self.shards)
            kind = self.world.random.choice(["transfer", "transfer", "drain", "undrain"])
            self.world.tell(f"{kind} {node} {shard}")
            self.cluster.ask(kind, node, shard)

    def _topic_goes(self) -> None:
        if "flaky" in self.brokers.topics:
            self.world.tell("topic flaky goes")
            self.brokers.delete("flaky")
            self.world.after(self.world.random.choice([500, 6_000]), self.cluster.bring_topic_back)

    def _refuse_rejects(self) -> None:
        wait_ms = self.world.random.choice([500, 4_000])
        self.world.tell(f"topic {REJECTED} takes nothing for {wait_ms}")
        self.brokers.refusing_ms[REJECTED] = self.world.now_ms + wait_ms
