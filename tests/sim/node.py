"""Machines with a clock and a disk; processes that start, freeze and die on them; threads that step replicas.

What `chronos/node.py` and `chronos/node/driver.py` do with real threads: step a replica when it asked for it or when
records came, report to the coordinator, control when it is this node's turn.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from chronos.core import assignment
from chronos.core.roles import OK, Member, ReplicaReport
from chronos.core.rules import Rules
from chronos.errors import Deposed, NodeIdTaken, Stop, StoreCorrupt
from chronos.node.cluster import HAND_OVER_S
from chronos.node.node import STOP_S
from chronos.workers.checkpoint import AWAY_MS
from chronos.workers.master import Limits
from chronos.workers.membership import Membership
from chronos.workers.push import Pusher
from chronos.workers.reachability import LogReachability
from chronos.workers.replica import STANDALONE, Assignment, RecoveryCost, Replica
from tests.sim.broker import DEAD_LETTER, DELAY, PROGRESS, REJECTED, Brokers
from tests.sim.checker import Checker
from tests.sim.checkpoints import CheckpointScheduler, Depot, Keeper
from tests.sim.coordinator import Ensemble, SimCoordinator
from tests.sim.log import Faults, SimLog, Trimmed
from tests.sim.store import Disk, SimStore
from tests.sim.world import CRASH, START_MS, Crashed, Finding, World, broken

TICK_MS = 300
"""How often a process hears from its coordinator, asks its brokers and reports."""

REFUSED_MS = 2_000
"""When a node whose id was taken is started again."""

LOOK_MS = 20
"""How often a process that stops looks whether it may."""

SILENT_MS = 1_500
"""How long no broker answers a node until it gives way."""


class Setting(Struct, frozen=True, kw_only=True):
    """What all nodes of a seed have in common."""

    shards: int
    limits: Limits
    attempts_max: int
    retry_base_ms: int
    delivered_ms: int | None
    deduplication_ms: int
    max_delay_ms: int
    poll_ms: int
    """How long a thread sleeps at most when nothing wakes it."""


class SimClock:
    """See `ports.Clock`: the brokers' time, and what is wrong with this machine's."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.skew_ms = 0
        self.began_ms = 0
        """How far the clock was off in the beginning."""
        self.drift = 0.0

    def now_ms(self) -> int:
        now_ms = self._world.now_ms
        return now_ms + self.skew_ms + int((now_ms - START_MS) * self.drift)

    def stepped_ms(self) -> int:
        return self.skew_ms - self.began_ms


class Machine:
    """What outlives a process: a name, a clock, a disk with a store for each shard, and the faults around it."""

    def __init__(self, name: str, world: World, brokers: Brokers, ensemble: Ensemble | None, checker: Checker,
                 setting: Setting, *, node: str = "") -> None:  # fmt: skip
        self.name = name
        self.node = node or name
        """Its node id, which another machine may have too."""
        self.instance = name
        """Id of its data directory."""
        self.doubled = False
        """Another machine may have its id, also itself before it lost its disk."""
        self.world = world
        self.brokers = brokers
        self.ensemble = ensemble
        self.checker = checker
        self.setting = setting
        self.clock = SimClock(world)
        self.disk = Disk()
        self.faults = Faults()
        self.stores: dict[int, SimStore] = {}
        self.trap: tuple[str, str, int] | None = None
        """`(what, where, ms)`: kill or freeze the process where it next passes there."""
        self.process: Process | None = None
        self.depot: Depot | None = None
        """Where checkpoints are kept; None: nowhere, and no log is trimmed."""
        self.keeping: CheckpointScheduler | None = None
        self.is_registered: Callable[[int], bool] = lambda shard: True
        """Whether others count on it to hold the shard."""
        self.peers: list[Machine] = []
        """All machines, this one too: who may be asked for a copy of a store."""
        self.gone = False
        """Broken for good: nobody starts it any more."""
        self.frozen_ms = 0
        self.log_cut_ms = 0
        """Until when no broker can be reached from here."""

    def store(self, shard: int) -> SimStore:
        if shard not in self.stores:
            self.stores[shard] = SimStore(self.world, self.disk, lambda store: self.checker.wrote(shard, store))
            self.stores[shard].path = Path("simulated") / self.name / str(shard)
        return self.stores[shard]

    @property
    def frozen(self) -> bool:
        return self.frozen_ms > self.world.now_ms

    def start(self) -> None:
        if self.process is None and not self.gone:
            self.world.tell(f"{self.name} starts")
            self.process = Process(self)

    def crash(self, down_ms: int) -> None:
        """The process is gone; whatever it was in the middle of ends where it next calls a port."""
        if self.process is None:
            return
        self.world.tell(f"{self.name} is killed")
        self.end(down_ms)

    @property
    def joined(self) -> bool:
        """Whether it has a place in the cluster, as far as it knows."""
        return self.process is not None and self.process.coordinator is not None and self.process.coordinator.joined

    def role_of(self, shard: int) -> str | None:
        """The role that its replica of the shard says it has; None: nothing runs here."""
        threads = [] if self.process is None else self.process.threads
        return next((thread.replica.role for thread in threads if thread.shard == shard), None)

    def leave(self, down_ms: int) -> None:
        """Stop in order, as for an upgrade, and start again after a while."""
        if self.process is not None:
            self.process.leave(down_ms)

    def end(self, down_ms: int) -> None:
        """The process is gone; on the disk is what was flushed."""
        process = self.process
        assert process is not None
        self.process, process.dead = None, True
        self.stores = {shard: store.crash() for shard, store in self.stores.items()}
        self.world.after(down_ms, self.start)

    def die(self) -> None:
        """The machine breaks, and is never mended."""
        self.world.tell(f"{self.name} is gone for good")
        self.gone = True
        self.crash(0)

    def lose_stores(self) -> None:
        """Somebody removes the data."""
        self.crash(1_000)
        self.stores.clear()
        if self.doubled:
            self.instance += "'"

    def heal(self) -> None:
        self.trap, self.frozen_ms, self.log_cut_ms = None, 0, 0
        self.clock.skew_ms, self.clock.drift = 0, 0.0
        self.disk.full = self.disk.low = self.disk.failing = False
        self.disk.unread_chance = 0.0
        self.faults = Faults()
        if self.process is not None:
            for thread in self.process.threads:
                thread.log.faults = self.faults
            if self.process.coordinator is not None:
                self.process.coordinator.cut_ms = 0


class Process:
    """One life of a node."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.world = machine.world
        self.dead = False
        self.leaving = False
        self.stopping = False
        """No step begins any more."""
        self.kept: list[int] = []
        """The shards it was still master of when it stopped."""
        self.started_ms = machine.world.now_ms
        self.threads: list[Thread] = []
        self.coordinator: SimCoordinator | None = None
        self.membership: Membership | None = None
        self.reach: LogReachability | None = None
        self._threads_wanted = range(machine.setting.shards)
        if machine.ensemble is not None:
            self.coordinator = SimCoordinator(machine.ensemble, machine.node, self.touch)
            self.coordinator.asleep = lambda: self.dead or machine.frozen
            self.membership = Membership(
                self.coordinator, node=machine.node, clock=machine.clock, describe=self._member, plan=assignment.plan
            )
        self.keeper: Keeper | None = None
        self.world.after(1, self._open)

    def _open(self) -> None:
        if self.dead:
            return
        try:
            for shard in self._threads_wanted:
                self.threads.append(Thread(self, shard))
        except Crashed:
            return
        except StoreCorrupt:
            self.machine.lose_stores()
            return
        for thread in self.threads:
            thread.wake(self.world.now_ms + 1)
        if self.machine.depot is not None:
            self.keeper = Keeper(self)
        if self.coordinator is not None:
            self.reach = LogReachability(self.threads[0].log, unreachable_ms=SILENT_MS, clock=self.machine.clock)
            self.world.after(1, self._tick)

    def _tick(self) -> None:
        """The node's own thread: heartbeat, report, control."""
        machine = self.machine
        if self.dead or self.coordinator is None or self.membership is None:
            return
        if machine.frozen:
            # Awake again, a process believes what it knew until it hears.
            self.world.at(machine.frozen_ms + self.world.random.randrange(1, TICK_MS), self._tick)
            return
        self.coordinator.tick()
        assert self.reach is not None
        self.reach.step(machine.clock.now_ms())
        try:
            self.membership.step(machine.clock.now_ms())
        except Crashed:
            return
        except NodeIdTaken as error:
            if not machine.doubled:
                raise broken("5", f"{machine.name} was refused: {error}") from error
            self.world.tell(f"{machine.name} is refused")
            self.leave(REFUSED_MS)
        self.world.after(TICK_MS, self._tick)

    # --- leaving, as `Node.stop` does it

    def leave(self, down_ms: int) -> None:
        """1. Ask for others to take over."""
        if not self.leaving:
            self.world.tell(f"{self.machine.name} leaves")
            self.leaving = True
            self._hand_over(self.world.now_ms + int(HAND_OVER_S * 1_000), down_ms)

    def _hand_over(self, until_ms: int, down_ms: int) -> None:
        """2. Wait until they have, as long as there are others; then let no step begin."""
        now_ms = self.world.now_ms
        if self.dead:
            return
        if self.machine.frozen:
            self.world.at(self.machine.frozen_ms, self._hand_over, until_ms, down_ms)
            return
        mastered = [thread.shard for thread in self.threads if thread.replica.role == "master"]
        others = self.membership is not None and len(self.membership.snapshot().members) > 1
        if mastered and others and now_ms < until_ms:
            self.world.after(LOOK_MS, self._hand_over, until_ms, down_ms)
            return
        self.kept, self.stopping = mastered, True
        for thread in self.threads:
            thread.end()
        self._end(now_ms + int(STOP_S * 1_000), down_ms)

    def _end(self, until_ms: int, down_ms: int) -> None:
        """3. When all steps have ended, give the place back and close the stores; those under a step are left alone."""
        if self.dead:
            return
        ended = all(thread.ended for thread in self.threads)
        if self.machine.frozen or not (ended or self.world.now_ms >= until_ms):
            self.world.after(LOOK_MS, self._end, until_ms, down_ms)
            return
        if self.coordinator is not None:
            self.coordinator.leave()
        if ended:
            for shard in sorted(self.machine.stores):
                self.machine.stores[shard].close()
        self.world.tell(f"{self.machine.name} has left")
        self.machine.end(down_ms)

    def touch(self, where: str) -> None:
        """Between a look and what follows from it, the node's own thread may freeze or die too."""
        machine, trap = self.machine, self.machine.trap
        if trap is not None and trap[1] == where:
            machine.trap = None
            self.world.tell(f"{machine.name} {trap[0]} at {where} {trap[2]}")
            if trap[0] == "kill":
                machine.crash(trap[2])
            else:
                machine.frozen_ms = self.world.now_ms + trap[2]
        while machine.frozen and not self.dead:
            self.world.pass_time(machine.frozen_ms - self.world.now_ms)
        if self.dead:
            raise Crashed

    def _member(self) -> Member:
        machine = self.machine
        return Member(
            node=machine.node,
            instance=machine.instance,
            address="",
            version="",
            started_ms=self.started_ms,
            leaving=self.leaving,
            log=OK if self.reach is None else self.reach.verdict,
            replicas={thread.shard: self._said(thread) for thread in self.threads},
        )

    def _said(self, thread: Thread) -> ReplicaReport:
        """As `node.shards.described`."""
        replica, state = thread.replica, thread.replica.state
        kept = None if self.keeper is None else self.keeper.flushed[thread.shard]
        return ReplicaReport(
            applied=state.applied if replica.known else None,
            pull_offset=state.pull_offset,
            role_epoch=state.role_epoch,
            role_node=state.node,
            role_instance=state.instance,
            log_epoch=state.log_epoch,
            role=replica.role,
            kept_applied=None if kept is None else kept.applied,
            kept_pull_offset=None if kept is None else kept.pull_offset,
        )

    def begin(self, shard: int, replay: RecoveryCost) -> bool:
        """Whether a store was given another beginning than the logs."""
        return self.keeper is not None and self.keeper.begin(self.machine.stores[shard], replay)

    def role(self, shard: int) -> Assignment:
        """What this node is to be for a shard."""
        return STANDALONE if self.membership is None else self.membership.role(shard)


class Thread:
    """The thread of one replica."""

    def __init__(self, process: Process, shard: int) -> None:
        machine, setting = process.machine, process.machine.setting
        self.process = process
        self.machine = machine
        self.world = process.world
        self.shard = shard
        self.name = f"{machine.name}/{shard}"
        self.log = SimLog(self, machine.brokers)
        self.steps = 0
        self.ended = False
        """It takes no step any more, and has given everything back."""
        self._busy = False
        self._nudged = False
        self._wake_ms: int | None = None
        rules = Rules(
            shard=shard,
            shards=setting.shards,
            own_topics=(DELAY, PROGRESS, REJECTED, DEAD_LETTER),
            deny=("forbidden",),
            max_delay_ms=setting.max_delay_ms,
            deduplication_ms=setting.deduplication_ms,
        )
        self.replica = Replica(
            log_port=self.log,
            store=machine.store(shard),
            clock=machine.clock,
            rules=rules,
            pusher=lambda: Pusher(
                self.log,
                rules,
                delay_topic=DELAY,
                rejected_topic=REJECTED,
                dead_letter_topic=DEAD_LETTER,
                create_topics=False,
                attempts_max=setting.attempts_max,
                retry_base_ms=setting.retry_base_ms,
                retry_cap_ms=5_000,
            ),
            limits=setting.limits,
            delay_topic=DELAY,
            progress_topic=PROGRESS,
            node=machine.node,
            instance=machine.instance,
            delivered_ms=setting.delivered_ms,
            deduplication_ms=setting.deduplication_ms,
            guard=lambda: "the disk is below its reserve" if machine.disk.low else None,
            assigned=lambda: process.role(shard),
            begin=lambda replay: process.begin(shard, replay),
        )

    # --- when it runs

    def nudge(self) -> None:
        """There is something to read."""
        if self._busy:
            self._nudged = True
        elif not self.process.dead:
            self.wake(self.world.now_ms + self.world.random.randrange(1, 6))

    def wake(self, when_ms: int) -> None:
        if self._wake_ms is None or when_ms < self._wake_ms:
            self._wake_ms = when_ms
            self.world.at(when_ms, self._run, when_ms)

    def _run(self, planned_ms: int) -> None:
        if self.process.dead or self.ended or planned_ms != self._wake_ms or self._busy:
            return
        if self.machine.frozen:
            self._wake_ms = None
            self.wake(self.machine.frozen_ms)
            return
        self._busy, self._wake_ms, self._nudged = True, None, False
        try:
            self._step()
        finally:
            self._busy = False
        if self.process.stopping and not self.process.dead:
            self.end()

    def end(self) -> None:
        """Give everything back; under a step that is under way, when it is over."""
        if not self._busy and not self.ended:
            self.replica.close()
            self.ended = True

    def _step(self) -> None:
        machine, clock = self.machine, self.machine.clock
        self.steps += 1
        before = self.replica.role
        try:
            wake_ms = self.replica.step(clock.now_ms())
        except Crashed:
            return
        except StoreCorrupt as error:
            if not machine.stores[self.shard].damaged:
                raise broken("9", f"{self.name}: {error}") from error
            machine.lose_stores()
            return
        except Deposed:
            if machine.ensemble is not None:
                raise
            machine.crash(5_000)
            return
        except Trimmed as error:
            waited_for = machine.keeping is None or machine.keeping.away_ms >= AWAY_MS
            if waited_for and machine.is_registered(self.shard):
                raise broken("9", f"{self.name} stops: {error}") from error
            # Frozen for longer than it is waited for with trimming: the next process begins with a checkpoint.
            self.world.tell(f"{self.name} stops: {error}")
            machine.crash(REFUSED_MS)
            return
        except Stop as error:
            raise broken("9", f"{self.name} stops: {error}") from error
        except Finding:
            raise
        except Exception as error:
            raise Finding(CRASH, f"{self.name} failed: {error!r}") from error
        if self.process.dead:
            return
        if self.replica.role != before:
            self.world.tell(f"{self.name} {self.replica.role} {self.replica.paused or ''}")
        wait_ms = min(wake_ms - clock.now_ms(), machine.setting.poll_ms)
        if self._nudged:
            wait_ms = min(wait_ms, 3)
        self.wake(self.world.now_ms + max(1, wait_ms))

    # --- what happens to it

    def touch(self, where: str) -> None:
        """A port was called: here others may come in between, and here the process may freeze or die."""
        machine = self.machine
        if self.process.dead:
            raise Crashed
        trap = machine.trap
        if trap is not None and trap[1] == where:
            what, _, wait_ms = trap
            machine.trap = None
            self.world.tell(f"{self.name} {what} at {where} {wait_ms}")
            if what == "kill":
                machine.crash(wait_ms)
                raise Crashed
            if what == "freeze":
                machine.frozen_ms = self.world.now_ms + wait_ms
            else:
                self.sleep(wait_ms)
        elif self.world.chance(machine.faults.jitter):
            self.sleep(self.world.random.randrange(1, 40))
        if machine.frozen:
            self._thaw()

    def misused(self, text: str) -> None:
        """The code under test broke a rule of a port."""
        raise Finding(CRASH, f"{self.name}: {text}")

    def sleep(self, wait_ms: int) -> None:
        """Wait inside a call while everybody else goes on."""
        self.world.pass_time(wait_ms)
        if self.process.dead:
            raise Crashed
        if self.machine.frozen:
            self._thaw()

    def _thaw(self) -> None:
        while self.machine.frozen and not self.process.dead:
            self.world.pass_time(self.machine.frozen_ms - self.world.now_ms)
        if self.process.dead:
            raise Crashed
