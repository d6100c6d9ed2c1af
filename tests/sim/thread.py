"""The thread of one replica: when it runs, and what happens to it inside a call of a port."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from chronos.core.cluster.roles import AWAY_MS
from chronos.core.cron import next_cron
from chronos.core.shard.codec import State
from chronos.core.shard.rules import Rules
from chronos.errors import Deposed, Stop, StoreCorrupt
from chronos.workers.replica.context import ReplicaContext, ReplicaSettings
from chronos.workers.replica.leadership import STANDALONE, Assignment
from chronos.workers.replica.replica import Replica
from chronos.workers.replica.retention import DELETE_EVERY_MS
from chronos.workers.replica.state import ReplicaState
from chronos.workers.replica.stored import StoredShard
from chronos.workers.step.lanes import ShardRates
from chronos.workers.step.planned import Limits
from chronos.workers.step.push import Pusher, PushSettings
from chronos.workers.step.targets import Retries
from chronos.workers.watch.stall import STALLED_MS, WORK_DUE, StallJudge, facts_of
from tests.sim.broker import CLUSTER, DEAD_LETTER, DELAY, PROGRESS, REJECTED
from tests.sim.log import SimLog
from tests.sim.world import CRASH, LIVENESS, Crashed, Finding, broken

if TYPE_CHECKING:
    from tests.sim.node import Process

RETRY_CAP_MS = 5_000
"""Longest pause between two attempts."""

STUCK_LOOK_MS = 300
"""Interval at which a stuck thread looks whether it may go on."""

REFUSED_MS = 2_000
"""Time until a node starts again after it was refused or stopped itself."""


PATIENCE_MS = 500
"""As of a real client, see `PATIENT_CONSUMER`."""


class DeletingShard(StoredShard):
    """A shard whose delete worker runs when its node says so: what is decided must not depend on
    it."""

    def __init__(self, context: ReplicaContext, deletes: Callable[[], bool | None]) -> None:
        """`deletes`: returns True for now, False for not now, None for its own times."""
        super().__init__(context)
        self._deletes = deletes

    def delete(self, now_ms: int) -> int:
        deletes = self._deletes()
        if deletes is False:
            return now_ms + DELETE_EVERY_MS
        if deletes:
            self._delete_ms = 0
        return super().delete(now_ms)


def sim_settings(
    limits: Limits, node: str, instance: str, *, delivered_ms: int | None, deduplication_ms: int
) -> ReplicaSettings:
    """The settings of a replica on the simulated brokers."""
    return ReplicaSettings(
        limits=limits,
        delay_topic=DELAY,
        progress_topic=PROGRESS,
        cluster=CLUSTER,
        node=node,
        instance=instance,
        delivered_ms=delivered_ms,
        deduplication_ms=deduplication_ms,
    )


def sim_pusher(log: SimLog, rules: Rules, retries: Retries, rates: ShardRates) -> Pusher:
    """Return a pusher to the simulated topics."""
    return Pusher(
        log,
        rules,
        PushSettings(
            delay_topic=DELAY,
            rejected_topic=REJECTED,
            dead_letter_topic=DEAD_LETTER,
            create_topics=False,
            retries=retries,
        ),
        rates=rates,
    )


class ReplicaThread:
    """The thread of one replica."""

    def __init__(self, process: Process, shard: int) -> None:
        node, settings = process.node, process.node.settings
        self.process = process
        self.node = node
        self.world = process.world
        self.shard = shard
        self.name = f"{node.name}/{shard}"
        self.log = SimLog(self, node.brokers)
        self.log.patience_ms = PATIENCE_MS
        self.log.copied_epochs = node.copied_epochs
        self.judge = StallJudge()
        self.steps = 0
        self.step_began_ms: int | None = None
        """When the present or the last step began, by the node's clock."""
        self.stuck_ms = 0
        """Until when the thread makes no progress, although its process lives."""
        self.stuck_at: str | None = None
        """The port at whose next call it gets stuck; None: it begins no step."""
        self.held_ms: int | None = None
        """Since when it is or was stuck; None: it did not come to that port."""
        self.was_held = False
        """It was stuck in a call."""
        self._has_committed = False
        """A step was committed, and may not be applied yet."""
        self.ended = False
        """The thread makes no further steps and has closed everything."""
        self._given = STANDALONE
        """The assignment as of the last step."""
        self._is_behind = False
        """A log was found trimmed ahead of the replica in this step."""
        self._busy = False
        self._nudged = False
        self._wake_ms: int | None = None
        rules = Rules(
            shard=shard,
            shards=settings.shards,
            own_topics=(DELAY, PROGRESS, REJECTED, DEAD_LETTER),
            deny=("forbidden",),
            max_delay_ms=settings.max_delay_ms,
            max_past_ms=settings.max_past_ms,
            deduplication_ms=settings.deduplication_ms,
            misplaced=settings.misplaced,
            delay_topic=DELAY,
            next_cron=next_cron,
        )
        context = ReplicaContext(
            log=self.log,
            store=node.store(shard),
            clock=node.clock,
            rules=rules,
            settings=sim_settings(
                settings.limits,
                node.node_id,
                node.instance,
                delivered_ms=settings.delivered_ms,
                deduplication_ms=settings.deduplication_ms,
            ),
            pusher=lambda: sim_pusher(
                self.log,
                rules,
                Retries(
                    attempts_max=settings.attempts_max,
                    base_ms=settings.retry_base_ms,
                    cap_ms=RETRY_CAP_MS,
                ),
                ShardRates(shard, process.rates, began_ms=node.clock.now_ms()),
            ),
            guard=lambda: "the disk is below its reserve" if node.disk.low else None,
            assigned=self._assigned,
            restore=lambda cost: process.restore(shard, cost),
            elsewhere=process.read_elsewhere,
        )
        self.replica = Replica(context, DeletingShard(context, node.deletes))

    def judge_stall(self) -> None:
        """Judge as `chronos/node/watch.py` does; law 8: an alarm is true."""
        brokers, replica = self.node.brokers, self.replica
        facts = facts_of(
            replica,
            now_ms=self.node.clock.now_ms(),
            delay_end=brokers.topics[DELAY][self.shard].stable,
            progress_end=brokers.topics[PROGRESS][self.shard].stable,
        )
        # A thread that is held between a commit and its application is behind the log.
        if (
            self.judge.step(self.world.now_ms, facts)
            and replica.role == ReplicaState.MASTER
            and not (self.was_held or self._has_committed)
        ):
            delivers = self.judge.work == WORK_DUE
            moved_ms = self.node.checker.moved_ms(self.shard, self.node.instance, delivers=delivers)
            if self.world.now_ms - moved_ms < STALLED_MS:
                raise broken(
                    "8",
                    (
                        f"{self.name} is called stalled, and moved {self.world.now_ms - moved_ms} "
                        "ms ago"
                    ),
                )

    # What the node shows of it, see `node.shards.Shown`

    @property
    def role(self) -> ReplicaState:
        return self.replica.role

    @property
    def paused(self) -> str | None:
        return self.replica.paused or (
            f"no progress although {self.judge.work}" if self.judge.stalled_ms else None
        )

    @property
    def state(self) -> State:
        return self.replica.state

    @property
    def is_busy(self) -> bool:
        """True during a step."""
        return self._busy

    @property
    def is_stuck(self) -> bool:
        return self.stuck_ms > self.world.now_ms

    def stick(self, wait_ms: int, at: str | None) -> None:
        """Make no progress for a time, from the next call of a port at this place on; None: from
        the next step on."""
        self.world.trace(f"{self.name} is stuck for {wait_ms} {at or ''}")
        self.stuck_ms, self.stuck_at = self.world.now_ms + wait_ms, at
        self.held_ms = self.world.now_ms if at is None else None

    def release(self) -> None:
        """End a stuck state."""
        self.stuck_ms, self.stuck_at = 0, None

    def nudge(self) -> None:
        """There is something to read: step soon."""
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
        if self.node.frozen:
            self._wake_ms = None
            self.wake(self.node.frozen_ms)
            return
        if self.stuck_at is None and self.is_stuck:
            self._wake_ms = None
            self.wake(min(self.stuck_ms, self.world.now_ms + STUCK_LOOK_MS))
            return
        self._busy, self._wake_ms, self._nudged = True, None, False
        try:
            self._step()
        finally:
            self._busy = False
        if self.process.stopping and not self.process.dead:
            self.end()

    def end(self) -> None:
        """Close everything; while a step runs, after that step."""
        if not self._busy and not self.ended:
            self.replica.close()
            self.ended = True

    def _assigned(self) -> Assignment:
        self._given = self.process.role(self.shard)
        return self._given

    def _check_deposed(self) -> None:
        """A role that is older than a running leadership does not end it."""
        given, led = self._given.epoch, self.replica.state.role_epoch
        if given is not None and given < led:
            raise Finding(LIVENESS, f"{self.name} led with epoch {led} and obeyed {given}")

    def _step(self) -> None:
        node, clock = self.node, self.node.clock
        self.steps += 1
        self.step_began_ms = clock.now_ms()
        before, aborts = self.replica.role, self.replica.aborts
        self._is_behind = False
        try:
            wake_ms = self.replica.step(clock.now_ms()).wake_ms
        except Crashed:
            return
        except StoreCorrupt as error:
            if not node.stores[self.shard].damaged:
                raise broken("9", f"{self.name}: {error}") from error
            node.lose_stores()
            return
        except Deposed:
            if node.ensemble is not None:
                raise
            node.crash(5_000)
            return
        except Stop as error:
            raise broken("9", f"{self.name} stops: {error}") from error
        except Finding:
            raise
        except Exception as error:
            raise Finding(CRASH, f"{self.name} failed: {error!r}") from error
        self._has_committed = False
        if self.process.dead:
            return
        if self.replica.role != before:
            self.world.trace(f"{self.name} {self.replica.role} {self.replica.paused or ''}")
            has_failed = self._is_behind or self.replica.aborts > aborts
            if before == ReplicaState.MASTER and not has_failed:
                self._check_deposed()
        wait_ms = min(wake_ms - clock.now_ms(), node.settings.poll_ms)
        if self._nudged:
            wait_ms = min(wait_ms, 3)
        self.wake(self.world.now_ms + max(1, wait_ms))

    def touch(self, where: str) -> None:
        """A port was called: other threads may run now, and the process may freeze or die."""
        node = self.node
        if self.process.dead:
            raise Crashed
        self._has_committed |= where == "committed"
        trap = node.trap
        if trap is not None and trap[1] == where:
            what, _, wait_ms = trap
            node.trap = None
            self.world.trace(f"{self.name} {what} at {where} {wait_ms}")
            if what == "kill":
                node.crash(wait_ms)
                raise Crashed
            if what == "freeze":
                node.frozen_ms = self.world.now_ms + wait_ms
            else:
                self.sleep(wait_ms)
        elif self.world.chance(node.faults.jitter):
            self.sleep(self.world.random.randrange(1, 40))
        if where == self.stuck_at:
            self.held_ms, self.was_held = self.world.now_ms, True
            while self.is_stuck:
                self.sleep(STUCK_LOOK_MS)
            self.stuck_at = None
        if node.frozen:
            self._thaw()

    def misused(self, text: str) -> None:
        """The code under test broke a rule of a port."""
        raise Finding(CRASH, f"{self.name}: {text}")

    def trimmed(self, text: str) -> None:
        """A log was trimmed ahead of this replica: it starts again from a checkpoint."""
        self._is_behind = True
        settings = self.node.checkpoint_settings
        waited_for = settings is None or settings.away_ms >= AWAY_MS
        if self.process.coordinator is not None:
            topics = self.node.brokers.topics
            trimmed_ms = max(topics[topic][self.shard].trimmed_ms for topic in (DELAY, PROGRESS))
            waited_for = waited_for and self.process.coordinator.joined_ms < trimmed_ms
        if waited_for and self.node.is_registered(self.shard):
            raise broken("9", f"{self.name} is still counted on: {text}")
        # Not a member yet, not heard of yet by the node that trims, or frozen for longer than
        # trimming waits for it.
        self.world.trace(f"{self.name} is behind: {text}")

    def sleep(self, wait_ms: int) -> None:
        """Wait inside a call while all other threads run."""
        self.world.pass_time(wait_ms)
        if self.process.dead:
            raise Crashed
        if self.node.frozen:
            self._thaw()

    def _thaw(self) -> None:
        while self.node.frozen and not self.process.dead:
            self.world.pass_time(self.node.frozen_ms - self.world.now_ms)
        if self.process.dead:
            raise Crashed
