"""One seed from beginning to end: draw a world, let it fail, heal it, and see that nothing is left undone.

Phase one is about safety: anything may fail, the checker watches. Phase two is about liveness: everything is mended,
and within a bounded time whatever is due must have come to its end, on every replica alike.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
from msgspec import Struct

from chronos.core.codec import FRESH
from chronos.core.message import Rules
from chronos.core.roles import REBALANCE_AFTER_MS, Assignment, Request, Roles
from chronos.core.shard import Shard
from chronos.workers.checkpoint import AWAY_MS, CHECKPOINTS_MIN
from chronos.workers.follow import Follower
from chronos.workers.master import Limits
from tests.sim.broker import BROKERS, DEAD_LETTER, DELAY, PROGRESS, REJECTED, Brokers, Partition
from tests.sim.checker import Checker
from tests.sim.checkpoints import Depot, Keeping
from tests.sim.coordinator import Ensemble
from tests.sim.log import SimLog
from tests.sim.machine import Faults, Machine, Setting
from tests.sim.store import Disk, SimStore
from tests.sim.workload import MAX_DELAY_MS, Producers
from tests.sim.world import CRASH, LIVENESS, START_MS, Finding, World, broken

HEALED_MS_MAX = 120_000
"""How long everything due may take to come to its end once all is mended: a session, a take-over, every attempt."""

ALONE_MS_MAX = 300_000
"""The same where nobody gives out roles: a node that was deposed waits for 90 s of silence, and may be so twice."""

RESTARTED_MS_MAX = 60_000
"""How long all nodes may take to be back in their places after one of them was started again."""

AWAKE_MS = 13_000
"""More than the longest freeze: who was frozen when all was mended hears only then that its session is over."""

TURN_MS = 15_000
"""More than it takes until a session is over, and somebody who was refused tries again."""

LOOK_MS = 2_000
"""How often the second phase looks whether it is over."""

EVENTS_MAX = 60_000
"""More than this is no progress but a loop without a pause."""

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


class Result(Struct, frozen=True, kw_only=True):
    """What a seed did that found nothing."""

    seed: int
    digest: str
    events: int
    sent: int
    commits: int
    deliveries: int


class Simulation:
    """The world of one seed."""

    def __init__(self, seed: int, *, lines: list[str] | None = None) -> None:
        self.seed = seed
        self._cuts = random.Random(-1 - seed)
        self._strains = random.Random(f"strains {seed}")
        self._jumps = random.Random(f"jumps {seed}")
        self._holds = random.Random(f"holders {seed}")
        self._leaves = random.Random(f"leaving {seed}")
        self._doubles = random.Random(f"doubles {seed}")
        self._trims = random.Random(f"trimming {seed}")
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
        holds = self._holds
        self.replication: int | None = None
        """How many nodes hold a shard; None: all of them."""
        if holds.random() < 0.15:
            nodes, self.replication = holds.choice([3, 4]), holds.choice([1, 2, 2])
        doubles = self._doubles
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
        if self._trims.random() < 0.2 and (self.ensemble is not None or nodes == 1):
            self._keep_checkpoints()
        self.producers = Producers(world, brokers, checker, shards=self.shards)
        self._draw_faults()

    def _keep_checkpoints(self) -> None:
        """From now on checkpoints are kept, and the logs trimmed behind them."""
        draw = self._trims
        self.depot = Depot(self.world)
        keeping = Keeping(
            every_ms=draw.choice([1_000, 3_000]),
            keep=CHECKPOINTS_MIN + draw.choice([0, 1]),
            keep_logs_ms=draw.choice([0, 2_000]),
            flush_every_ms=draw.choice([500, 4_000]),
            away_ms=draw.choice([1_000, AWAY_MS]),
            copying_ms=draw.choice([2, 300, 2_000]),
        )
        for machine in self.machines:
            machine.depot, machine.keeping, machine.peers = self.depot, keeping, self.machines
        self.brokers.trimming = self._check_trimmed

    def _check_trimmed(self, partition: Partition) -> None:
        """Law 1: whoever is counted on still finds in the log what it would need after a crash."""
        assert self.depot is not None
        self.depot.check(partition, CHECKPOINTS_MIN)
        roles = Roles() if self.ensemble is None else self.ensemble.roles
        listed = roles.shards.get(partition.number, Assignment()).replicas
        for machine in self._there():
            store = machine.stores.get(partition.number)
            counted = self.ensemble is None or (machine.node in listed and machine.node not in roles.away)
            if store is None or not counted:
                continue
            needed = store.kept.pull_offset if partition.topic == DELAY else store.kept.applied
            if store.kept.applied and needed < partition.start:
                raise broken(
                    "1", f"{partition.name} begins at {partition.start}; {machine.name} needs it from {needed}"
                )

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

    # --- phase one

    def _draw_faults(self) -> None:
        """Each kind of fault is absent from some seeds, so that none hides what another would show."""
        world, draw = self.world, self.world.random
        some = lambda *rates: draw.choice([0.0, 0.0, *rates])  # noqa: E731
        rates = {
            "aborts": some(0.02, 0.2),
            "unclear": some(0.02, 0.2),
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
        # By dice of its own, so that the seeds that know nothing of it stay what they are.
        cuts = self._cuts
        if cuts.random() < 0.3:
            for _ in range(cuts.choice([1, 3, 8])):
                world.after(cuts.randrange(500, self.fault_ms), self._strike, self._cut_log)
        strains = self._strains
        if strains.random() < 0.2:
            for _ in range(strains.choice([1, 3])):
                world.after(strains.randrange(500, self.fault_ms), self._strike, self._use_up_files)
        jumps = self._jumps
        if jumps.random() < 0.3:
            for _ in range(jumps.choice([3, 12, 30])):
                world.after(jumps.randrange(500, self.fault_ms), self._strike, self._set_clock)
        holds = self._holds
        if self.replication is not None:
            for machine in holds.sample(self.machines, holds.choice([0, 1, 1, len(self.machines) - 1])):
                world.after(holds.randrange(500, self.fault_ms), machine.die)
        trims = self._trims
        if self.depot is not None:
            for _ in range(trims.choice([0, 3, 10])):
                kind = trims.choice([self._lose_disk, self._damage_checkpoint, self._part_depot, self._trap_keeper])
                world.after(trims.randrange(500, self.fault_ms), self._strike, kind)
        leaves = self._leaves
        self.leavers = 0
        """How many nodes leave in peace, one after the other."""
        if leaves.random() < 0.2:
            self.leavers = leaves.choice([1, 1, len(self.machines)])
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
        self._leaves.choice(self.machines).leave(self._leaves.choice([100, 2_000, 8_000]))

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
        machine = self._strains.choice(self.machines)
        self.world.tell(f"{machine.name} has no file descriptors left")
        machine.disk.unread_chance = self._strains.choice([0.05, 0.3, 0.8])
        self.world.after(self._strains.choice([500, 4_000]), setattr, machine.disk, "unread_chance", 0.0)

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
        machine = self._trims.choice(self.machines)
        self.world.tell(f"{machine.name} loses its disk")
        machine.lose_stores()

    def _damage_checkpoint(self) -> None:
        assert self.depot is not None
        self.depot.damage(self._trims.randrange(self.shards), self._trims.choice)

    def _part_depot(self) -> None:
        assert self.depot is not None
        wait_ms = self._trims.choice([500, 5_000])
        self.world.tell(f"the place of the checkpoints cannot be reached for {wait_ms}")
        self.depot.away_ms = self.world.now_ms + wait_ms

    def _trap_keeper(self) -> None:
        draw = self._trims
        what = draw.choice(["kill", "kill", "freeze"])
        draw.choice(self.machines).trap = (what, draw.choice(KEEPER_PLACES), draw.choice([5, 2_000, 7_000]))

    def _cut(self) -> None:
        machine, wait_ms = self._machine(), self.world.random.choice([500, 3_000, 15_000])
        if machine.process is not None and machine.process.coordinator is not None:
            self.world.tell(f"{machine.name} is cut off for {wait_ms}")
            machine.process.coordinator.cut_ms = self.world.now_ms + wait_ms

    def _cut_log(self) -> None:
        machine, wait_ms = self._cuts.choice(self.machines), self._cuts.choice([500, 2_000, 4_000, 12_000])
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
            self._ask(kind, node, shard)

    def _ask(self, kind: str, node: str, shard: int = -1) -> None:
        if self.ensemble is not None:
            self.ensemble.requests.append(Request(kind=kind, node=node, shard=shard, at_ms=self.world.now_ms))

    def _topic_goes(self) -> None:
        if "flaky" in self.brokers.topics:
            self.world.tell("topic flaky goes")
            self.brokers.delete("flaky")
            self.world.after(self.world.random.choice([500, 6_000]), self._topic_comes)

    def _refuse_rejects(self) -> None:
        wait_ms = self.world.random.choice([500, 4_000])
        self.world.tell(f"topic {REJECTED} takes nothing for {wait_ms}")
        self.brokers.refusing_ms[REJECTED] = self.world.now_ms + wait_ms

    def _topic_comes(self) -> None:
        if "flaky" not in self.brokers.topics:
            self.brokers.create("flaky", 2)

    # --- phase two

    def run(self) -> Result:
        """Both phases; a Finding is raised."""
        world = self.world
        world.pass_time(self.fault_ms)
        self.checker.unfinished(self.shards, 0)
        self._heal()
        self._settle()
        there = self._there()
        for machine in self._leaves.sample(there, min(self.leavers, len(there))):
            self._leave_in_peace(machine)
            self._settle()
        if self.doubled:
            self._take_turns()
            self._settle()
        if self.depot is not None:
            self._lose_every_disk()
            self._settle()
        self._replay()
        commits = sum(len(steps) for steps in self.checker.steps.values())
        return Result(
            seed=self.seed,
            digest=world.digest(),
            events=world.events,
            sent=self.producers.sent,
            commits=commits,
            deliveries=self.checker.deliveries,
        )

    def _settle(self) -> None:
        """Let time pass until whatever is due has come to its end, on all who are to know of it."""
        world = self.world
        last_due_ms = world.now_ms + self.producers.spread_ms
        give_up_ms = last_due_ms + (HEALED_MS_MAX if self.ensemble is not None else ALONE_MS_MAX)
        while True:
            left = self.checker.unfinished(self.shards, last_due_ms)
            left += [] if left else self._misplaced() + self._behind()
            if not left:
                break
            if world.now_ms >= give_up_ms:
                raise Finding(LIVENESS, f"after {give_up_ms - last_due_ms} ms of peace: {'; '.join(left[:5])}")
            if world.events > EVENTS_MAX:
                raise Finding(LIVENESS, f"no end after {EVENTS_MAX} events: {'; '.join(left[:5])}")
            world.pass_time(LOOK_MS)

    def _all_up(self) -> bool:
        """Whether every node that is not gone runs, and every replica is in its place where somebody gives them out."""
        if self.ensemble is None:
            return all(machine.process is not None for machine in self.machines)
        members, given = self.ensemble.members(), self.ensemble.roles.shards
        return all(machine.gone or machine.node in members for machine in self.machines) and all(
            machine.says(shard) == ("master" if given[shard].master == machine.node else "follower")
            for shard in range(self.shards)
            for machine in self._holders(shard)
        )

    def _wait_for_all(self) -> None:
        world = self.world
        up_ms = world.now_ms + RESTARTED_MS_MAX
        world.pass_time(AWAKE_MS)
        while not self._all_up():
            if world.now_ms >= up_ms:
                raise Finding(LIVENESS, f"a node is not in its place after {RESTARTED_MS_MAX} ms")
            world.pass_time(LOOK_MS)

    def _take_turns(self) -> None:
        """Of two nodes with one id the first is left in its place while it is there; then the second takes it."""
        self._wait_for_all()
        pairs = [(one, other) for one in self.machines for other in self.machines
                 if one is not other and one.node == other.node and one.joined and not other.gone]  # fmt: skip
        for first, second in pairs:
            self.world.pass_time(TURN_MS)
            if second.joined or not first.joined:
                raise broken("5", f"{second.name} took the place of {first.name}, which was there")
            first.crash(TURN_MS)
            self._settle()
            self.world.pass_time(2 * TURN_MS)
            if first.joined or not second.joined:
                raise broken("5", f"{first.name} took the place of {second.name}, which was there")

    def _lose_every_disk(self) -> None:
        """At one moment all stores are gone: whatever is pending is in the checkpoints, and in the logs behind them."""
        for _ in range(self._trims.choice([0, 10])):
            self.world.after(self._trims.randrange(10_000), self.producers.send)
        self.world.pass_time(AWAKE_MS)
        for machine in self._there():
            machine.lose_stores()

    def _leave_in_peace(self, machine: Machine) -> None:
        """A node that leaves while all is well is master of nothing that another could have taken over."""
        world = self.world
        self._wait_for_all()
        process = machine.process
        assert process is not None
        shared = [shard for shard in range(self.shards) if self.ensemble is not None and len(self._holders(shard)) > 1]
        for _ in range(self._leaves.choice([0, 3, 10])):
            world.after(self._leaves.randrange(3_000), self.producers.send)
        world.after(self._leaves.randrange(1_000), machine.leave, self._leaves.choice([100, 3_000, 10_000]))
        while not process.dead:
            world.pass_time(LOOK_MS)
        kept = [shard for shard in process.kept if shard in shared]
        if kept:
            raise Finding(LIVENESS, f"{machine.name} leaves and is still master of shard {kept[0]}")

    def _heal(self) -> None:
        self.world.tell("all is well again")
        self.world.faulty = False
        self.brokers.heal()
        self._topic_comes()
        for machine in self.machines:
            machine.heal()
            self._ask("undrain", machine.node)
        if self.ensemble is not None:
            self.ensemble.down_ms = self.world.now_ms
        if self.depot is not None:
            self.depot.away_ms = 0

    def _there(self) -> list[Machine]:
        """Machines that have a place: all that are not gone, and of those with one id the one that has taken it."""
        there = [machine for machine in self.machines if not machine.gone]
        ids = Counter(machine.node for machine in there)
        return [machine for machine in there if ids[machine.node] == 1 or machine.joined]

    def _holders(self, shard: int) -> list[Machine]:
        """Machines that are to hold the shard, of those that are there."""
        there = self._there()
        if self.ensemble is None or self.replication is None:
            return there
        given = self.ensemble.roles.shards.get(shard, Assignment())
        return [machine for machine in there if machine.node in given.replicas]

    def _misplaced(self) -> list[str]:
        """Ids whose place nobody has taken; shards that too few or too many nodes hold, or somebody has not let go."""
        ids = {machine.node for machine in self.machines if not machine.gone}
        vacant = sorted(ids - {machine.node for machine in self._there()})
        if vacant:
            return [f"nobody has the place of {node}" for node in vacant]
        if self.ensemble is None or self.replication is None:
            return []
        there = self._there()
        misplaced = []
        for shard in range(self.shards):
            holders = self._holders(shard)
            given = self.ensemble.roles.shards.get(shard, Assignment())
            if not len(holders) == len(given.replicas) == min(self.replication, len(there)):
                misplaced.append(f"shard {shard} is held by {', '.join(given.replicas) or 'nobody'}")
            misplaced += [
                f"{machine.name} does not let go of shard {shard}"
                for machine in there
                if machine not in holders and machine.says(shard) != "none"
            ]
        return misplaced

    def _behind(self) -> list[str]:
        """Replicas that have not applied everything."""
        behind = []
        for shard in range(self.shards):
            for machine in self._holders(shard):
                store, partition = machine.stores.get(shard), self.brokers.topics[PROGRESS][shard]
                state = None if store is None else store.state
                last = self.checker.steps[shard][-1].offset if self.checker.steps[shard] else -1
                if state is None or state.applied <= last or partition.held:
                    behind.append(f"{machine.name}/{shard} has not applied everything")
        return behind

    def _replay(self) -> None:
        """Law 9: who reads both logs from the beginning comes to the same state, at every record and in the end."""
        for shard in range(self.shards):
            store = SimStore(self.world, Disk(), lambda store, shard=shard: self.checker.wrote(shard, store))
            rules = Rules(shard=shard, shards=self.shards, own_topics=("a", "b"), max_delay_ms=1, deduplication_ms=0)
            shard_state = Shard(rules=rules, state=FRESH, view=store)
            log = SimLog(Onlooker(self.world), self.brokers)  # type: ignore[arg-type]
            log.remembers = True
            follower = Follower(log, store, shard_state, delay_topic=DELAY, progress_topic=PROGRESS)
            while follower.step():
                pass
            steps = self.checker.steps[shard]
            if store.state is None or store.state.applied <= steps[-1].offset:
                raise broken("9", f"a replay of shard {shard} ended before the log")
            delay = self.brokers.topics[DELAY][shard]
            pulled = steps[-1].progress.pull_offset
            pending = self.checker.account(shard, [it for it in delay.committed() if it.offset < pulled])
            if store.state.pending != len(pending):
                raise broken("1", f"shard {shard} holds {store.state.pending} messages, {len(pending)} are pending")


class Onlooker:
    """Reads the logs in peace: the thread of nobody."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.machine = self
        self.faults = Faults()
        self.name = "onlooker"
        self.log_cut_ms = 0

    def touch(self, where: str) -> None:
        """Nothing happens here."""

    def sleep(self, wait_ms: int) -> None:
        """Nothing is waited for."""

    def nudge(self) -> None:
        """Nobody is woken."""


@contextmanager
def quiet() -> Iterator[None]:
    """Without the log lines of the code under test."""
    known = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50), cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**known)


def simulate(seed: int, *, lines: list[str] | None = None) -> Result:
    """Run one seed; raises a Finding."""
    with quiet():
        simulation = Simulation(seed, lines=lines)
        try:
            return simulation.run()
        except Finding as finding:
            simulation.world.tell(f"found: {finding}")
            raise
        except Exception as error:
            raise Finding(CRASH, f"the simulator itself failed: {error!r}") from error


__all__ = ["START_MS", "Result", "Simulation", "simulate"]
