"""One seed from beginning to end: draw a world, let it fail, heal it, and see that nothing is left undone.

Phase one is about safety: anything may fail, the checker watches. Phase two is about liveness: everything is mended,
and within a bounded time whatever is due must have come to its end, on every replica alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from msgspec import Struct

from chronos.core.codec import FRESH
from chronos.core.roles import ShardRoles
from chronos.core.rules import Rules
from chronos.core.shard import Shard
from chronos.workers.follow import Follower
from tests.sim.broker import DELAY, PROGRESS
from tests.sim.cluster import Cluster, Part
from tests.sim.expectations import Trouble
from tests.sim.log import Faults, SimLog
from tests.sim.node import Machine
from tests.sim.store import Disk, SimStore
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


class Result(Struct, frozen=True, kw_only=True):
    """What a seed did that found nothing."""

    seed: int
    digest: str
    events: int
    sent: int
    commits: int
    deliveries: int


class Simulation(Part):
    """The world of one seed, and what must come of it."""

    def __init__(self, seed: int, *, lines: list[str] | None = None) -> None:
        super().__init__(Cluster(seed, lines=lines))
        self.seed = seed
        Trouble(self.cluster)

    def run(self) -> Result:
        """Both phases; a Finding is raised."""
        world = self.world
        world.pass_time(self.cluster.fault_ms)
        self.checker.unfinished(self.shards, 0)
        self._heal()
        self._settle()
        there = self.cluster.there()
        for machine in self.cluster.leaves.sample(there, min(self.cluster.leavers, len(there))):
            self._leave_in_peace(machine)
            self._settle()
        if self.cluster.doubled:
            self._take_turns()
            self._settle()
        if self.cluster.depot is not None:
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

    def _heal(self) -> None:
        self.world.tell("all is well again")
        self.world.faulty = False
        self.brokers.heal()
        self.cluster.bring_topic_back()
        for machine in self.machines:
            machine.heal()
            self.cluster.ask("undrain", machine.node)
        if self.ensemble is not None:
            self.ensemble.down_ms = self.world.now_ms
        if self.cluster.depot is not None:
            self.cluster.depot.away_ms = 0

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

    def _misplaced(self) -> list[str]:
        """Ids whose place nobody has taken; shards that too few or too many nodes hold, or somebody has not let go."""
        ids = {machine.node for machine in self.machines if not machine.gone}
        vacant = sorted(ids - {machine.node for machine in self.cluster.there()})
        if vacant:
            return [f"nobody has the place of {node}" for node in vacant]
        if self.ensemble is None or self.cluster.replication is None:
            return []
        there = self.cluster.there()
        misplaced = []
        for shard in range(self.shards):
            holders = self.cluster.holders(shard)
            given = self.ensemble.roles.shards.get(shard, ShardRoles())
            if not len(holders) == len(given.replicas) == min(self.cluster.replication, len(there)):
                misplaced.append(f"shard {shard} is held by {', '.join(given.replicas) or 'nobody'}")
            misplaced += [
                f"{machine.name} does not let go of shard {shard}"
                for machine in there
                if machine not in holders and machine.role_of(shard) != "none"
            ]
        return misplaced

    def _behind(self) -> list[str]:
        """Replicas that have not applied everything."""
        behind = []
        for shard in range(self.shards):
            for machine in self.cluster.holders(shard):
                store, partition = machine.stores.get(shard), self.brokers.topics[PROGRESS][shard]
                state = None if store is None else store.state
                last = self.checker.steps[shard][-1].offset if self.checker.steps[shard] else -1
                if state is None or state.applied <= last or partition.held:
                    behind.append(f"{machine.name}/{shard} has not applied everything")
        return behind

    def _all_up(self) -> bool:
        """Whether every node that is not gone runs, and every replica is in its place where somebody gives them out."""
        if self.ensemble is None:
            return all(machine.process is not None for machine in self.machines)
        members, given = self.ensemble.members(), self.ensemble.roles.shards
        return all(machine.gone or machine.node in members for machine in self.machines) and all(
            machine.role_of(shard) == ("master" if given[shard].master == machine.node else "follower")
            for shard in range(self.shards)
            for machine in self.cluster.holders(shard)
        )

    def _wait_for_all(self) -> None:
        world = self.world
        up_ms = world.now_ms + RESTARTED_MS_MAX
        world.pass_time(AWAKE_MS)
        while not self._all_up():
            if world.now_ms >= up_ms:
                raise Finding(LIVENESS, f"a node is not in its place after {RESTARTED_MS_MAX} ms")
            world.pass_time(LOOK_MS)

    def _leave_in_peace(self, machine: Machine) -> None:
        """A node that leaves while all is well is master of nothing that another could have taken over."""
        world = self.world
        self._wait_for_all()
        process = machine.process
        assert process is not None
        shared = [
            shard for shard in range(self.shards) if self.ensemble is not None and len(self.cluster.holders(shard)) > 1
        ]
        for _ in range(self.cluster.leaves.choice([0, 3, 10])):
            world.after(self.cluster.leaves.randrange(3_000), self.producers.send)
        world.after(
            self.cluster.leaves.randrange(1_000), machine.leave, self.cluster.leaves.choice([100, 3_000, 10_000])
        )
        while not process.dead:
            world.pass_time(LOOK_MS)
        kept = [shard for shard in process.kept if shard in shared]
        if kept:
            raise Finding(LIVENESS, f"{machine.name} leaves and is still master of shard {kept[0]}")

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
        for _ in range(self.cluster.trims.choice([0, 10])):
            self.world.after(self.cluster.trims.randrange(10_000), self.producers.send)
        self.world.pass_time(AWAKE_MS)
        for machine in self.cluster.there():
            machine.lose_stores()

    def _replay(self) -> None:
        """Law 9: who reads both logs from the beginning comes to the same state, at every record and in the end."""
        for shard in range(self.shards):
            store = SimStore(self.world, Disk(), lambda store, shard=shard: self.checker.wrote(shard, store))
            rules = Rules(shard=shard, shards=self.shards, own_topics=("a", "b"), max_delay_ms=1, deduplication_ms=0)
            shard_state = Shard(rules=rules, state=FRESH, view=store)
            log = SimLog(Onlooker(self.world), self.brokers)
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

    def misused(self, text: str) -> None:
        """The port's own error says so."""

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
