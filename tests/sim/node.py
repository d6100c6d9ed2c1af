"""Simulated nodes, with a clock and a disk, and the processes that start, freeze and die on them.

A process does what `chronos/node` does with real threads: it steps replicas (`thread`), reports to
the coordinator, controls while it is the controller, and flushes, checkpoints and trims
(`checkpoints`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Literal

from msgspec import Struct

from chronos.core.cluster import assignment
from chronos.core.cluster.roles import OK, ClusterState, Member, ReplicaReport, Roles
from chronos.core.rates import Rate, parse_rate
from chronos.core.timefmt import MS_MAX
from chronos.errors import NodeIdTaken, StoreCorrupt
from chronos.node.cluster import HAND_OVER_S
from chronos.node.node import STOP_S
from chronos.node.shards import look
from chronos.workers.cluster.in_sync import InSyncWatch
from chronos.workers.cluster.membership import Membership
from chronos.workers.cluster.observer import MasterPosition
from chronos.workers.cluster.steadiness import Steadiness
from chronos.workers.replica.leadership import STANDALONE, Assignment
from chronos.workers.replica.recovery import RecoveryCost
from chronos.workers.step.horizon import unpulled_ms
from chronos.workers.step.lanes import RateLimits
from chronos.workers.step.planned import Limits
from chronos.workers.watch.reachability import LogReachability
from chronos.workers.watch.stall import JUDGE_EVERY_MS
from tests.sim.broker import Brokers
from tests.sim.checker import Checker
from tests.sim.checkpoints import CheckpointStorage, Maintenance, SeedCheckpoints
from tests.sim.coordinator import Ensemble, SimCoordinator
from tests.sim.log import Faults
from tests.sim.observers import HealthSettings, ObserverThread
from tests.sim.store import Disk, SimStore
from tests.sim.thread import REFUSED_MS, ReplicaThread
from tests.sim.world import START_MS, Crashed, World, broken

TICK_MS = 300
"""Interval at which a process sends a heartbeat to the coordinator, pings the brokers and
reports."""

LOOK_MS = 20
"""Interval at which a stopping process checks whether it may go on stopping."""

UNREACHABLE_MS = 1_500
"""Time without an answer of any broker after which a node reports the log as unreachable."""


class Settings(Struct, frozen=True, kw_only=True):
    """Settings that all nodes of a seed share."""

    shards: int
    limits: Limits
    attempts_max: int
    retry_base_ms: int
    delivered_ms: int | None
    deduplication_ms: int
    max_delay_ms: int
    max_past_ms: int
    misplaced: Literal["forward", "reject"]
    poll_ms: int
    """Longest sleep of a thread."""


class SimClock:
    """See `ports.Clock`: the brokers' time, plus this node's skew and drift."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.skew_ms = 0
        self.began_ms = 0
        """The skew at the start."""
        self.drift = 0.0
        self.stood_ms = 0
        """How long all clocks of the machine stood still, as those of a virtual one may: none of
        them tells."""

    def now_ms(self) -> int:
        now_ms = self._world.now_ms - self.stood_ms
        return now_ms + self.skew_ms + int((now_ms - START_MS) * self.drift)

    def stepped_ms(self) -> int:
        return self.skew_ms - self.began_ms


class SimulatedNode:
    """A node, which outlives its processes: a name, a clock, a disk with a store for each shard,
    and its faults."""

    def __init__(
        self,
        name: str,
        world: World,
        brokers: Brokers,
        ensemble: Ensemble | None,
        checker: Checker,
        settings: Settings,
        *,
        node_id: str = "",
    ) -> None:
        self.name = name
        self.node_id = node_id or name
        """Another node may have the same one."""
        self.instance = name
        """Id of its data directory."""
        self.duplicated = False
        """Another node has the same id, and a lost disk gives this node a new data directory."""
        self.world = world
        self.brokers = brokers
        self.ensemble = ensemble
        self.checker = checker
        self.settings = settings
        self.clock = SimClock(world)
        self.disk = Disk()
        self.faults = Faults()
        self.stores: dict[int, SimStore] = {}
        self.trap: tuple[str, str, int] | None = None
        """`(fault, place, ms)`: kill, freeze or stall the process when it next calls a port at that
        place."""
        self.process: Process | None = None
        self.storage: CheckpointStorage | None = None
        """None: no checkpoints, and no log is trimmed."""
        self.checkpoint_settings: SeedCheckpoints | None = None
        self.is_registered: Callable[[int], bool] = lambda shard: True
        """Return whether the cluster counts on its replica of the shard."""
        self.peers: list[SimulatedNode] = []
        """All nodes, this one included: sources of a copy of a store."""
        self.limited: dict[str, str] = {}
        """Rate limits set at run time, where there is no coordinator."""
        self.delete_share: float | None = None
        """How many of a replica's steps are followed by one of its delete worker; None: it runs at
        its own times."""
        self.delete_dice = Random(0)
        self.gone = False
        """Broken for good: never started again."""
        self.frozen_ms = 0
        self.log_cut_ms = 0
        """Until when no broker can be reached from here."""
        self.copied_epochs: dict[int, int] | None = None
        """See `SimLog.copied_epochs`."""
        self.lost_broker = self.lost_broker_ms = 0
        """A broker that cannot be reached from here, and until when."""
        self.health: HealthSettings | None = None
        """None: no observers, and `failover.on_unhealthy` is off."""
        self.health_dice = Random(0)

    def store(self, shard: int) -> SimStore:
        if shard not in self.stores:
            self.stores[shard] = SimStore(
                self.world, self.disk, lambda store: self.checker.wrote(shard, store)
            )
            self.stores[shard].path = Path("simulated") / self.name / str(shard)
        return self.stores[shard]

    def deletes(self) -> bool | None:
        """Return whether the delete worker of a replica runs now; None: at its own times."""
        return None if self.delete_share is None else self.delete_dice.random() < self.delete_share

    @property
    def frozen(self) -> bool:
        return self.frozen_ms > self.world.now_ms

    def start(self) -> None:
        if self.process is None and not self.gone:
            self.world.trace(f"{self.name} starts")
            self.process = Process(self)

    def crash(self, down_ms: int) -> None:
        """Kill the process; a call that is under way ends at the next port."""
        if self.process is None:
            return
        self.world.trace(f"{self.name} is killed")
        self.end(down_ms)

    @property
    def joined(self) -> bool:
        """True if the process is a member of the cluster, as far as it knows."""
        return (
            self.process is not None
            and self.process.coordinator is not None
            and self.process.coordinator.joined
        )

    def role_of(self, shard: int) -> str | None:
        """The role of its replica of the shard; None: no replica runs."""
        threads = [] if self.process is None else self.process.threads
        return next((thread.replica.role for thread in threads if thread.shard == shard), None)

    def leave(self, down_ms: int) -> None:
        """Shut down in order, as for an upgrade, and start again after a while."""
        if self.process is not None:
            self.process.leave(down_ms)

    def end(self, down_ms: int) -> None:
        """End the process; the disk keeps what was flushed."""
        process = self.process
        assert process is not None
        self.process, process.dead = None, True
        self.stores = {shard: store.crash() for shard, store in self.stores.items()}
        self.world.after(down_ms, self.start)

    def die(self) -> None:
        """Break the node for good."""
        self.world.trace(f"{self.name} is gone for good")
        self.gone = True
        self.crash(0)

    def lose_stores(self) -> None:
        """Remove the data directory."""
        self.crash(1_000)
        self.stores.clear()
        if self.duplicated:
            self.instance += "'"

    @property
    def is_quiet(self) -> bool:
        """True if its process is in no step, and no transaction of its shards is open."""
        opened = self.brokers.open.values()
        return (
            self.process is not None
            and len(self.process.threads) == self.settings.shards
            and not any(thread.is_busy for thread in self.process.threads)
            and not any(each.state == "open" or each.unmarked for each in opened)
        )

    def copied(self) -> SimulatedNode:
        """Return another machine with the memory and the disk of this one, whose process begins
        anew and whose writers are those of this one."""
        other = SimulatedNode(
            self.name, self.world, self.brokers, None, self.checker, self.settings
        )
        other.instance, other.faults, other.disk = self.instance, self.faults, self.disk
        other.clock = self.clock
        other.stores = {shard: store.copied() for shard, store in self.stores.items()}
        other.copied_epochs = dict(self.brokers.epochs)
        other.delete_dice, other.delete_share = self.delete_dice, self.delete_share
        other.limited = self.limited
        return other

    def heal(self) -> None:
        self.trap, self.frozen_ms, self.log_cut_ms, self.lost_broker_ms = None, 0, 0, 0
        self.clock.skew_ms, self.clock.drift, self.clock.stood_ms = 0, 0.0, 0
        self.disk.full = self.disk.low = self.disk.failing = False
        self.disk.unread_chance = 0.0
        self.faults = Faults()
        if self.process is not None:
            for thread in self.process.threads:
                thread.log.faults = self.faults
                thread.release()
            if self.process.observer is not None:
                self.process.observer.log.faults = self.faults
                self.process.observer.paused_ms = 0
            if self.process.coordinator is not None:
                self.process.coordinator.cut_ms = 0


class Process:
    """One incarnation of a node."""

    def __init__(self, node: SimulatedNode) -> None:
        self.node = node
        self.world = node.world
        self.dead = False
        self.leaving = False
        self.stopping = False
        """No more steps begin."""
        self.still_master_of: list[int] = []
        """Shards it was still master of when it stopped."""
        self.started_ms = node.world.now_ms
        self.threads: list[ReplicaThread] = []
        self.coordinator: SimCoordinator | None = None
        self.membership: Membership | None = None
        self.reach: LogReachability | None = None
        self._threads_wanted = range(node.settings.shards)
        if node.ensemble is not None:
            self.coordinator = SimCoordinator(node.ensemble, node.node_id, self.touch)
            self.coordinator.asleep = lambda: self.dead or node.frozen
            self.steadiness = Steadiness(timeout_ms=UNREACHABLE_MS, clock=node.clock)
            self.membership = Membership(
                self.coordinator,
                node=node.node_id,
                clock=node.clock,
                describe=self._member,
                plan=self._plan,
            )
        self._known: Callable[[], dict[str, object]] = dict
        """What the view of the controller has besides, as in `node.cluster.ClusterNode`."""
        self.observer: ObserverThread | None = None
        self.in_sync: InSyncWatch | None = None
        if self.membership is not None and node.health is not None:
            self._watch_health(self.membership, node.health)
        self.maintenance: Maintenance | None = None
        self._limited: dict[str, str] = {}
        self._changed: dict[str, Rate | None] = {}
        self.rates = RateLimits({}, changed=self._changed_rates, lengths=self._lane_lengths)
        self.world.after(1, self._open)

    def _watch_health(self, membership: Membership, health: HealthSettings) -> None:
        """As `node.cluster.ClusterNode`."""
        node, coordinator = self.node, self.coordinator
        assert coordinator is not None
        in_sync = self.in_sync = InSyncWatch(
            health.replication, node=node.node_id, clock=node.clock, snapshot=membership.snapshot
        )
        coordinator.now_ms = node.clock.now_ms
        self._known = lambda: {"on_unhealthy": health.mode, "in_sync_from": in_sync.needed}
        self.observer = ObserverThread(self, health)

    def look(self, shard: int, master: str) -> MasterPosition | None:
        """How far the master has come, as this node's replica shows it."""
        if shard >= len(self.threads):
            return None
        return look(
            self.threads[shard], leads=master == self.node.node_id, now_ms=self.node.clock.now_ms()
        )

    def read_elsewhere(self, shard: int) -> int:
        """As `node.reading.ReadElsewhere`, of the shards that this process holds."""
        return min(
            (unpulled_ms(thread.state) for thread in self.threads if thread.shard != shard),
            default=MS_MAX,
        )

    def _open(self) -> None:
        if self.dead:
            return
        try:
            for shard in self._threads_wanted:
                self.threads.append(ReplicaThread(self, shard))
        except Crashed:
            return
        except StoreCorrupt:
            self.node.lose_stores()
            return
        for thread in self.threads:
            thread.wake(self.world.now_ms + 1)
        if self.node.storage is not None:
            self.maintenance = Maintenance(self)
        self.world.after(JUDGE_EVERY_MS, self._judge)
        if self.coordinator is not None:
            self.reach = LogReachability(
                self.threads[0].log, unreachable_ms=UNREACHABLE_MS, clock=self.node.clock
            )
            self.world.after(1, self._tick)

    def _judge(self) -> None:
        """The watch of the node."""
        if self.dead:
            return
        if self.node.frozen:
            self.world.at(self.node.frozen_ms, self._judge)
            return
        for thread in self.threads:
            thread.judge_stall()
        self.world.after(JUDGE_EVERY_MS, self._judge)

    def _tick(self) -> None:
        """The node's own thread: heartbeat, report, control."""
        node = self.node
        if self.dead or self.coordinator is None or self.membership is None:
            return
        if node.frozen:
            # A thawed process keeps its last view of the cluster until the next heartbeat.
            self.world.at(node.frozen_ms + self.world.random.randrange(1, TICK_MS), self._tick)
            return
        self.coordinator.tick()
        if self.in_sync is not None:
            self.in_sync.step()
        assert self.reach is not None
        self.reach.step(node.clock.now_ms())
        self.steadiness.step(self.membership.snapshot())
        try:
            self.membership.step(node.clock.now_ms())
        except Crashed:
            return
        except NodeIdTaken as error:
            if not node.duplicated:
                raise broken("5", f"{node.name} was refused: {error}") from error
            self.world.trace(f"{node.name} is refused")
            self.leave(REFUSED_MS)
        self.world.after(TICK_MS, self._tick)

    # An orderly shutdown, in the steps of `Node.stop`

    def leave(self, down_ms: int) -> None:
        """1. Ask the controller to give the shards to other nodes."""
        if not self.leaving:
            self.world.trace(f"{self.node.name} leaves")
            self.leaving = True
            self._hand_over(self.world.now_ms + int(HAND_OVER_S * 1_000), down_ms)

    def _hand_over(self, until_ms: int, down_ms: int) -> None:
        """2. Wait until they have taken over, while there are other nodes; then begin no more
        steps."""
        now_ms = self.world.now_ms
        if self.dead:
            return
        if self.node.frozen:
            self.world.at(self.node.frozen_ms, self._hand_over, until_ms, down_ms)
            return
        mastered = [thread.shard for thread in self.threads if thread.replica.role == "master"]
        others = self.membership is not None and len(self.membership.snapshot().members) > 1
        if mastered and others and now_ms < until_ms:
            self.world.after(LOOK_MS, self._hand_over, until_ms, down_ms)
            return
        self.still_master_of, self.stopping = mastered, True
        for thread in self.threads:
            thread.end()
        self._end(now_ms + int(STOP_S * 1_000), down_ms)

    def _end(self, until_ms: int, down_ms: int) -> None:
        """3. When all steps have ended, leave the cluster and close the stores; a store with a step
        under way stays open."""
        if self.dead:
            return
        ended = all(thread.ended for thread in self.threads)
        if self.node.frozen or not (ended or self.world.now_ms >= until_ms):
            self.world.after(LOOK_MS, self._end, until_ms, down_ms)
            return
        if self.coordinator is not None:
            self.coordinator.leave()
        if ended:
            for shard in sorted(self.node.stores):
                self.node.stores[shard].close()
        self.world.trace(f"{self.node.name} has left")
        self.node.end(down_ms)

    def touch(self, where: str) -> None:
        """The coordinator or the storage was called: the process may freeze or die."""
        node, trap = self.node, self.node.trap
        if trap is not None and trap[1] == where:
            node.trap = None
            self.world.trace(f"{node.name} {trap[0]} at {where} {trap[2]}")
            if trap[0] == "kill":
                node.crash(trap[2])
            else:
                node.frozen_ms = self.world.now_ms + trap[2]
        while node.frozen and not self.dead:
            self.world.pass_time(node.frozen_ms - self.world.now_ms)
        if self.dead:
            raise Crashed

    def _plan(self, state: ClusterState) -> Roles:
        """As the controller does."""
        assert self.coordinator is not None
        view = self.coordinator.completed(state, **self._known())
        view = self.coordinator.view = self.steadiness.completed(view)
        return assignment.plan(view)

    def _member(self) -> Member:
        node = self.node
        return Member(
            node=node.node_id,
            instance=node.instance,
            address="",
            version="",
            started_ms=self.started_ms,
            leaving=self.leaving,
            log=OK if self.reach is None else self.reach.verdict,
            replicas={thread.shard: self._replica_report(thread) for thread in self.threads},
        )

    def _replica_report(self, thread: ReplicaThread) -> ReplicaReport:
        """As the report of `chronos/node/shards.py`."""
        replica, state = thread.replica, thread.replica.state
        kept = None if self.maintenance is None else self.maintenance.flushed[thread.shard]
        verdict = None if self.observer is None else self.observer.observer.verdict(thread.shard)
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
            waiting=replica.waiting,
            reason=None if self.observer is None else thread.paused,
            judged=0 if verdict is None else verdict.epoch,
            unhealthy=verdict is not None and not verdict.healthy,
        )

    def _changed_rates(self) -> dict[str, Rate | None]:
        """As `chronos/node/rates.py`: the limits of the coordinator, or of the node
        alone."""
        roles = None if self.membership is None else self.membership.snapshot().roles
        texts = (
            self.node.limited
            if self.membership is None
            else self._limited
            if roles is None
            else dict(roles.limited)
        )
        if texts != self._limited:
            self._limited = dict(texts)
            self._changed = {pattern: parse_rate(text) for pattern, text in texts.items()}
        return self._changed

    def _lane_lengths(self, topic: str) -> list[int]:
        """As `chronos/node/registry_values.py`."""
        if self.membership is None:
            return [thread.replica.waiting.get(topic, 0) for thread in self.threads]
        lengths = [0] * self.node.settings.shards
        for member in self.membership.snapshot().members.values():
            for shard, replica in member.replicas.items():
                if replica.role == "master":
                    lengths[shard] = replica.waiting.get(topic, 0)
        return lengths

    def restore(self, shard: int, cost: RecoveryCost) -> bool:
        """Return whether a store was restored from a checkpoint."""
        return self.maintenance is not None and self.maintenance.restore(
            self.node.stores[shard], cost
        )

    def role(self, shard: int) -> Assignment:
        """The assignment of this node for a shard."""
        if self.membership is None:
            return STANDALONE
        return self.membership.assignment(shard)
