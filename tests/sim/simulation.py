"""One seed from start to end: draw a cluster, inject faults, remove them, and check that every due
message is settled.

Phase one is about safety: anything may fail while the checker watches. Phase two is about liveness:
all faults are removed, and within a bounded time every message that is due must be settled, on
every replica alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import structlog
from msgspec import Struct

from chronos.core.cluster.roles import ShardRoles
from chronos.core.keys import MINUTE_MS
from chronos.core.rates import Rate, parse_rate
from chronos.core.shard.codec import FRESH
from chronos.core.shard.rules import Rules
from chronos.core.shard.shard import Shard
from chronos.workers.replica.follow import Follower
from chronos.workers.replica.state import IN_PLACE
from tests.sim.broker import CLUSTER, DELAY, PROGRESS
from tests.sim.checker import RateBound
from tests.sim.cluster import HOUR_MS, Cluster, ClusterPart
from tests.sim.fault_injection import FaultInjection
from tests.sim.log import Faults, SimLog
from tests.sim.node import SimulatedNode
from tests.sim.store import Disk, SimStore
from tests.sim.thread import RETRY_CAP_MS
from tests.sim.trials import Trials
from tests.sim.world import CRASH, LIVENESS, START_MS, Finding, World, broken

HEALED_MS_MAX = 120_000
"""Longest time until everything due is settled once all faults are gone: a session, a take-over,
every attempt."""

ALONE_MS_MAX = 300_000
"""The same without a coordinator: a deposed node waits for 90 s of silence, and may be deposed
twice."""

RESTARTED_MS_MAX = 60_000
"""Longest time until all nodes are members again after one of them was restarted."""

AWAKE_MS = 13_000
"""More than the longest freeze: a node frozen at the end of phase one learns only then that its
session is over."""

HORIZON_MS = 3 * MINUTE_MS + 10_000
"""Time in which a master looks twice at the other shards, and then forgets: three heartbeats."""

FORGOTTEN_MS = 25 * MINUTE_MS
"""How much longer than an id is taken the nodes are down until its state is deleted."""

TURN_MS = 15_000
"""More than a session lasts and a refused node waits before it tries again."""

LOOK_MS = 2_000
"""Interval at which the second phase checks whether it is over."""

PROBED_LOOK_MS = 2_137
"""The same where observers send probes at intervals of whole seconds: each look must not find one
on its way."""

LIMITED_AFTER_MS = 20_000
"""Time until every node has a limit that was set: a frozen one thaws, and one that was cut off
joins again."""

LIMITED_MESSAGES = 60
"""Messages that are sent then."""

EVENTS_MAX = 60_000
"""More than this is a loop without a pause."""

PROBED_EVENTS_MAX = 200_000
"""The same where observers send probes all the time."""

STEP_EVENTS = 10
"""Events of a step, at most, but for faults."""


class Result(Struct, frozen=True, kw_only=True):
    """The counts of a seed without a finding."""

    seed: int
    digest: str
    events: int
    sent: int
    commits: int
    deliveries: int


class Simulation(ClusterPart):
    """Runs one seed."""

    def __init__(
        self, seed: int, *, lines: list[str] | None = None, observed: bool = False
    ) -> None:
        super().__init__(Cluster(seed, lines=lines, observed=observed))
        self.seed = seed
        self.limits: dict[str, Rate] = {}
        """The limits without faults."""
        is_probed = self.cluster.moves is not None
        self.look_ms = PROBED_LOOK_MS if is_probed else LOOK_MS
        self.events_max = PROBED_EVENTS_MAX if is_probed else EVENTS_MAX
        FaultInjection(self.cluster)

    def run(self) -> Result:
        """Run both phases; raises a Finding."""
        world = self.world
        world.pass_time(self.cluster.fault_ms)
        self.checker.unsettled(self.shards, 0)
        self._heal()
        self._settle()
        if self.cluster.replays is not None:
            self.cluster.replays.all()
            self._settle()
        if self.limits and self.shards == 1 and self.producers.share_poison < 0.2:
            self._keep_rates()
            self._settle()
        # A node that waits for its id holds the simulated time of other threads, and a master could
        # look stuck.
        if self.cluster.moves is not None and not self.cluster.duplicated:
            Trials(self.cluster, self._wait_for_all).run()
            self._settle()
        if self.cluster.sleeps:
            self._sleep()
            self._settle()
        if self.cluster.forgets:
            self._forget()
        present = self.cluster.present()
        for node in self.cluster.leave_dice.sample(
            present, min(self.cluster.leavers, len(present))
        ):
            self._leave_while_healthy(node)
            self._settle()
        if self.cluster.duplicated:
            self._swap_duplicates()
            self._settle()
        if self.cluster.storage is not None:
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
        self.world.trace("all faults are gone")
        self.world.faulty = False
        self.brokers.heal()
        self.cluster.bring_topic_back()
        for node in self.nodes:
            node.heal()
            self.cluster.ask("undrain", node.node_id)
        for topic in sorted(self.cluster.limited):
            text = self.cluster.rate_dice.choice(["", "10/s", "20/s burst 40"])
            self.cluster.limit(topic, text)
            if text and (rate := parse_rate(text)) is not None:
                self.limits[topic] = rate
        if self.ensemble is not None:
            self.ensemble.down_ms = self.world.now_ms
        if self.cluster.storage is not None:
            self.cluster.storage.unreachable_ms = 0

    def _keep_rates(self) -> None:
        """A shard that is alone keeps the last limits once every node has them, also under load."""
        self.world.pass_time(LIMITED_AFTER_MS)
        for topic, rate in self.limits.items():
            self.checker.rates[topic] = RateBound(rate.per_s, rate.burst, self.world.now_ms)
        for _ in range(LIMITED_MESSAGES):
            self.producers.send()

    def _settle(self) -> None:
        """Let time pass until everything due is settled and every replica has applied it."""
        world = self.world
        last_due_ms = world.now_ms + self.producers.spread_ms
        give_up_ms = last_due_ms + (HEALED_MS_MAX if self.ensemble is not None else ALONE_MS_MAX)
        # A target that is set aside is attempted with one message at a time, after pauses of up to
        # RETRY_CAP_MS.
        poison = self.checker.poison_pending()
        give_up_ms += poison * self.checker.attempts_max * RETRY_CAP_MS
        # Each attempt defers all other messages of the target, in the worst case one in a step.
        events_max = (
            world.events
            + self.events_max
            + poison * self.checker.attempts_max * poison * STEP_EVENTS
        )
        while True:
            left = self.checker.unsettled(self.shards, last_due_ms)
            left += [] if left else self._misplaced() + self._behind()
            if not left:
                break
            if world.now_ms >= give_up_ms:
                alarm = "reported" if self._is_stall_reported() else "not reported by any node"
                raise Finding(
                    LIVENESS,
                    (
                        f"after {give_up_ms - last_due_ms} ms without faults, {alarm}: "
                        f"{'; '.join(left[:5])}"
                    ),
                )
            if world.events > events_max:
                raise Finding(LIVENESS, f"no end after {events_max} events: {'; '.join(left[:5])}")
            world.pass_time(self.look_ms)

    def _is_stall_reported(self) -> bool:
        """Return whether some replica is called stalled, or is not in its place: no node that has
        one is ready."""
        threads = [
            thread
            for node in self.nodes
            if node.process is not None
            for thread in node.process.threads
        ]
        return any(
            thread.judge.stalled_ms or thread.replica.paused or thread.replica.role not in IN_PLACE
            for thread in threads
        )

    def _misplaced(self) -> list[str]:
        """Node ids without a member; shards with too few or too many holders, or with one that did
        not give it up."""
        ids = {node.node_id for node in self.nodes if not node.gone}
        vacant = sorted(ids - {node.node_id for node in self.cluster.present()})
        if vacant:
            return [f"no node has joined as {node_id}" for node_id in vacant]
        if self.ensemble is None or self.cluster.replication is None:
            return []
        present = self.cluster.present()
        misplaced = []
        for shard in range(self.shards):
            holders = self.cluster.holders(shard)
            given = self.ensemble.roles.shards.get(shard, ShardRoles())
            if (
                not len(holders)
                == len(given.replicas)
                == min(self.cluster.replication, len(present))
            ):
                misplaced.append(
                    f"shard {shard} is held by {', '.join(given.replicas) or 'no node'}"
                )
            misplaced += [
                f"{node.name} does not give up shard {shard}"
                for node in present
                if node not in holders and node.role_of(shard) != "none"
            ]
        return misplaced

    def _behind(self) -> list[str]:
        """Replicas that have not applied every progress record."""
        behind = []
        for shard in range(self.shards):
            for node in self.cluster.holders(shard):
                store, partition = node.stores.get(shard), self.brokers.topics[PROGRESS][shard]
                state = None if store is None else store.state
                last = self.checker.steps[shard][-1].offset if self.checker.steps[shard] else -1
                if state is None or state.applied <= last or partition.held:
                    behind.append(f"{node.name}/{shard} has not applied everything")
        return behind

    def _all_up(self) -> bool:
        """Return whether every node that is not gone runs, and every replica has its role where a
        controller assigns them."""
        if self.ensemble is None:
            return all(node.process is not None for node in self.nodes)
        members, given = self.ensemble.members(), self.ensemble.roles.shards
        return all(node.gone or node.node_id in members for node in self.nodes) and all(
            node.role_of(shard) == ("master" if given[shard].master == node.node_id else "follower")
            for shard in range(self.shards)
            for node in self.cluster.holders(shard)
        )

    def _wait_for_all(self) -> None:
        world = self.world
        up_ms = world.now_ms + RESTARTED_MS_MAX
        world.pass_time(AWAKE_MS)
        while not self._all_up():
            if world.now_ms >= up_ms:
                raise Finding(
                    LIVENESS, f"a node has not taken up its role after {RESTARTED_MS_MAX} ms"
                )
            world.pass_time(self.look_ms)

    def _leave_while_healthy(self, node: SimulatedNode) -> None:
        """A node that leaves a healthy cluster hands over every shard that another node holds."""
        world = self.world
        self._wait_for_all()
        process = node.process
        if process is None:
            assert self.cluster.duplicated
            return  # another node with its id is a member: it is refused, and begins again later
        shared = [
            shard
            for shard in range(self.shards)
            if self.ensemble is not None and len(self.cluster.holders(shard)) > 1
        ]
        for _ in range(self.cluster.leave_dice.choice([0, 3, 10])):
            world.after(self.cluster.leave_dice.randrange(3_000), self.producers.send)
        world.after(
            self.cluster.leave_dice.randrange(1_000),
            node.leave,
            self.cluster.leave_dice.choice([100, 3_000, 10_000]),
        )
        while not process.dead:
            world.pass_time(self.look_ms)
        kept = [shard for shard in process.still_master_of if shard in shared]
        if kept:
            raise Finding(LIVENESS, f"{node.name} leaves and is still master of shard {kept[0]}")

    def _swap_duplicates(self) -> None:
        """Of two nodes with one id, the second is refused while the first is a member, and takes
        its place afterwards."""
        self._wait_for_all()
        pairs = [
            (one, other)
            for one in self.nodes
            for other in self.nodes
            if one is not other and one.node_id == other.node_id and one.joined and not other.gone
        ]
        for first, second in pairs:
            self.world.pass_time(TURN_MS)
            if self._joined(first, second) != (True, False):
                raise broken(
                    "5", f"{second.name} took the place of {first.name}, which was a member"
                )
            first.crash(TURN_MS)
            self._settle()
            self.world.pass_time(2 * TURN_MS)
            if self._joined(first, second) != (False, True):
                raise broken(
                    "5", f"{first.name} took the place of {second.name}, which was a member"
                )

    @staticmethod
    def _joined(first: SimulatedNode, second: SimulatedNode) -> tuple[bool, bool]:
        return first.joined, second.joined

    def _sleep(self) -> None:
        """All nodes are down for longer than an id is taken, and read what was written in the
        middle of that time."""
        for node in self.nodes:
            node.crash(HOUR_MS + 10 * MINUTE_MS)
        self.world.pass_time(HOUR_MS // 2)
        for _ in range(self.cluster.sleep_dice.choice([5, 20])):
            self.producers.send()
        self.world.pass_time(HOUR_MS // 2 + 10 * MINUTE_MS)

    def _forget(self) -> None:
        """Ids grow old, and are named again while the replicas delete their states at different
        times."""
        dice = self.cluster.delete_dice
        old_ms = (
            max(self.cluster.settings.delivered_ms or 0, self.cluster.settings.deduplication_ms)
            + FORGOTTEN_MS
        )
        for _ in range(dice.choice([1, 2, 3])):
            for node in self.nodes:
                node.crash(old_ms + dice.randrange(2_000))
            self.world.pass_time(old_ms)
            self.cluster.draw_deleters()
            self.world.pass_time(HORIZON_MS)
            for _ in range(dice.choice([3, 10])):
                self.world.after(
                    dice.randrange(AWAKE_MS),
                    dice.choice([self.producers.tangle, self.producers.send, self.producers.act]),
                )
            for node in dice.sample(self.nodes, dice.choice([0, 1, len(self.nodes)])):
                self.world.after(dice.randrange(AWAKE_MS), node.crash, dice.choice([100, 3_000]))
            self.world.pass_time(AWAKE_MS)
            self._settle()

    def _lose_every_disk(self) -> None:
        """All stores are lost at one moment: every pending message is in the checkpoints, or in the
        logs after them."""
        for _ in range(self.cluster.trim_dice.choice([0, 10])):
            self.world.after(self.cluster.trim_dice.randrange(10_000), self.producers.send)
        self.world.pass_time(AWAKE_MS)
        for node in self.cluster.present():
            node.lose_stores()

    def _replay(self) -> None:
        """Law 9: a replay of both logs from their start gives the same state at every progress
        record."""
        for shard in range(self.shards):
            store = SimStore(self.world, Disk(), partial(self.checker.wrote, shard))
            rules = Rules(
                shard=shard,
                shards=self.shards,
                own_topics=("a", "b"),
                max_delay_ms=1,
                deduplication_ms=0,
            )
            shard_state = Shard(rules=rules, state=FRESH, view=store)
            log = SimLog(Observer(self.world), self.brokers)
            log.reads_trimmed = True
            follower = Follower(
                log, store, shard_state, cluster=CLUSTER, delay_topic=DELAY, progress_topic=PROGRESS
            )
            while follower.step().records:
                pass
            steps = self.checker.steps[shard]
            if store.state is None or store.state.applied <= steps[-1].offset:
                raise broken("9", f"a replay of shard {shard} ended before the end of the log")
            delay = self.brokers.topics[DELAY][shard]
            pulled = steps[-1].progress.pull_offset
            pending = self.checker.account(
                shard, [it for it in delay.committed() if it.offset < pulled]
            )
            if store.state.pending != len(pending):
                raise broken(
                    "1",
                    (
                        f"shard {shard} holds {store.state.pending} messages, {len(pending)} are "
                        "pending"
                    ),
                )


class Observer:
    """The caller of a log's client outside every node: no fault happens to it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.node = self
        self.faults = Faults()
        self.name = "onlooker"
        self.log_cut_ms = self.lost_broker = self.lost_broker_ms = 0

    def touch(self, where: str) -> None:
        """No fault."""

    def misused(self, text: str) -> None:
        """The port raises its own error for it."""

    def trimmed(self, text: str) -> None:
        """The port raises its own error for it."""

    def sleep(self, wait_ms: int) -> None:
        """No time passes."""

    def nudge(self) -> None:
        """No thread to wake."""


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the log lines of the code under test."""
    known = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(50), cache_logger_on_first_use=False
    )
    try:
        yield
    finally:
        structlog.configure(**known)


def simulate(seed: int, *, lines: list[str] | None = None, observed: bool = False) -> Result:
    """Run one seed; raises a Finding."""
    with quiet():
        simulation = Simulation(seed, lines=lines, observed=observed)
        try:
            return simulation.run()
        except Finding as finding:
            simulation.world.trace(f"found: {finding}")
            raise
        except Exception as error:
            raise Finding(CRASH, f"the simulator itself failed: {error!r}") from error


def simulate_observed(seed: int, *, lines: list[str] | None = None) -> Result:
    """Run one seed with observers of masters; raises a Finding."""
    return simulate(seed, lines=lines, observed=True)


def summary(results: Sequence[Result]) -> str:
    """Describe many seeds without a finding."""
    names = {
        "sent": "records",
        "commits": "commits",
        "deliveries": "deliveries",
        "events": "events",
    }
    return ", ".join(
        f"{sum(getattr(result, name) for result in results)} {noun}" for name, noun in names.items()
    )


__all__ = ["START_MS", "Result", "Simulation", "simulate", "simulate_observed", "summary"]
