"""The drivers of a node's shards: the replica of each, the thread that runs it, and its report to
the cluster.

The driver of a shard runs the steps of its replica in a thread, and waits between them. Other
threads read the shard through the driver, and wait for what it applies (`AppliedRecords`)."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import structlog
from msgspec import Struct, field

from chronos.config import Config
from chronos.core.cluster.health import Verdict
from chronos.core.cluster.roles import ReplicaReport
from chronos.core.cron import ZONE_DATA, ZoneData
from chronos.core.rates import Rate, parse_rate
from chronos.core.selector import Selector
from chronos.core.shard.codec import State
from chronos.core.shard.rules import NO_LIMIT_MS, Rules
from chronos.core.shard.shard import Shard
from chronos.core.size import STEP_MESSAGES, step_bytes
from chronos.core.timefmt import MS_MAX
from chronos.errors import ChronosError
from chronos.node.applied import AppliedRecords
from chronos.node.histogram import LATENESS_S, STEP_S, Histogram
from chronos.node.outcomes import Outcomes
from chronos.node.start_turns import ShardTurns, StartTurns
from chronos.node.threads import join_until
from chronos.node.topics import own_topics
from chronos.ports import Clock, Log, Store, Tracing
from chronos.workers.cluster.observer import MasterPosition
from chronos.workers.replica.checkpoint import LogPosition
from chronos.workers.replica.context import ReplicaContext, ReplicaSettings
from chronos.workers.replica.leadership import Assignment
from chronos.workers.replica.phases import ReplicaTurn
from chronos.workers.replica.recovery import RecoveryCost
from chronos.workers.replica.replica import Replica
from chronos.workers.replica.state import CATCHING_UP, ReplicaState
from chronos.workers.step.lanes import RateLimits, ShardRates
from chronos.workers.step.planned import Limits
from chronos.workers.step.push import Pusher, PushSettings
from chronos.workers.step.targets import Retries
from chronos.workers.watch.stall import STEP_MS_MAX, ShardStall

log = structlog.get_logger("chronos.shard")

WAIT_MAX_S = 0.2
"""Longest wait of a replica that waits for something other than a record, and for a reader whose
waits cannot be ended, so that a stop or another assignment is noticed."""

STEP_EVERY_S = 5.0
"""Longest time between two steps of a replica with nothing to do: each costs some 0.5 ms, and
notices a full disk."""

STARTS = CATCHING_UP | {ReplicaState.NONE, ReplicaState.STEPPED_DOWN}
"""States from which a replica starts, or goes on starting."""


class Shared(Struct, frozen=True, kw_only=True):
    """The parts of a node that all its shards use."""

    config: Config
    log: Log
    clock: Clock
    instance: str
    """The id of the data directory."""
    guard: Callable[[], str | None]
    """Returns why no step may begin now; None if one may."""
    failed: Callable[[ChronosError], None]
    """Called with the error that ended the thread of a shard."""
    changed: Callable[[], None] = lambda: None
    """Called after a step that changed the state of a replica."""
    outcomes: Outcomes = field(default_factory=Outcomes)
    """Where the outcomes of steps are counted."""
    turns: StartTurns = field(default_factory=StartTurns)
    """The turns of starting replicas."""
    limits: RateLimits | None = None
    """The rate limits in force; None: those of the configuration."""
    selector: Selector | None = None
    elsewhere: Callable[[int], int] = lambda shard: MS_MAX
    """See `workers.replica.context.ReplicaContext`."""
    tracing: Tracing | None = None
    """Observes the committed steps; None: tracing is off."""
    zone_data: ZoneData = ZONE_DATA


class ShardDriver:
    """The driver of one shard of this node; it has a thread only while the node holds the shard."""

    def __init__(
        self, replica: Replica, shared: Shared, assigned: Callable[[], Assignment]
    ) -> None:
        """`assigned`: returns the assignment as of now."""
        self.replica = replica
        self.applied = AppliedRecords()
        self.lateness = Histogram(LATENESS_S)
        """Lateness of the delivered messages."""
        self.steps = Histogram(STEP_S)
        """Duration of the steps that have a report, see `Stepped.report`."""
        self.stall = ShardStall()
        """Whether the replica stands still, where it gives no reason itself; judged by
        `ShardWatch`."""
        self.step_began_ms: int | None = None
        """When the thread began its last step (epoch ms); None without a thread, or while it waits
        for its turn."""
        self.turns = ShardTurns(shared.turns)
        """The turns of its start."""
        self.outcomes = shared.outcomes
        self._clock = shared.clock
        self._assigned = assigned
        self._failed = shared.failed
        self._changed = shared.changed
        self._shown: tuple[ReplicaState, str | None] | None = None
        """State of the replica, and why it is paused, after the last step."""
        self._soon = threading.Event()
        """Set when the thread is to step soon, or to stop."""
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    # --- read by other threads

    @property
    def number(self) -> int:
        """The number of the shard."""
        return self.replica.number

    @property
    def store(self) -> Store:
        """The shard's store; read-only for other threads."""
        return self.replica.store

    @property
    def role(self) -> ReplicaState:
        """The current state of the replica."""
        return self.replica.role

    @property
    def paused(self) -> str | None:
        """Why the replica is paused, reads its log slowly, waits for its turn, or stands still, for
        people; None if it works."""
        replica = self.replica
        return replica.paused or replica.delayed or self.turns.queued or self.stall.why

    @property
    def commits(self) -> int:
        """Transactions committed by this process, without heartbeats."""
        return self.replica.commits

    @property
    def aborts(self) -> int:
        """Transactions of this process that failed: aborted, lost, or not applied."""
        return self.replica.aborts

    @property
    def state(self) -> State:
        """The shard's state as of the last step."""
        return self.replica.state

    @property
    def pulled(self) -> int:
        """Offset in the delay partition up to which everything is executed, transaction markers
        included."""
        return self.applied.pulled

    @property
    def shard(self) -> Shard:
        """The shard itself; read-only for other threads."""
        return self.replica.shard

    def waits_for(self, now_ms: int) -> str | None:
        """Return what the current transaction waits for, for people; None if it does not wait."""
        return self.replica.waits_for(now_ms)

    @property
    def is_running(self) -> bool:
        """Whether it has a thread."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def lacks_thread(self) -> bool:
        """Whether it has no thread although there is something to do: the replica has not begun, or
        the shard was assigned to this node again."""
        role = self.role
        return (
            role in (ReplicaState.STARTING, ReplicaState.NONE)
            and not self.is_running
            and not self._stopping.is_set()
            and (role == ReplicaState.STARTING or self._assigned().kind != "none")
        )

    def step_soon(self) -> None:
        """Have the thread step within WAIT_MAX_S: its assignment, a limit or the wall clock may
        have changed."""
        self._soon.set()
        # A step that changes the reader comes before the thread looks at `_soon`.
        waker = self.replica.waker
        if waker is not None:
            waker()

    def start(self) -> None:
        """Start a thread; there must be none."""
        self._thread = threading.Thread(target=self._run, name=f"shard-{self.number}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end after its step."""
        self._stopping.set()
        self.turns.stop()
        self.step_soon()

    def join(self, deadline_s: float) -> None:
        """Wait for the end of the thread, until the deadline (of `time.monotonic()`)."""
        if self._thread is not None:
            join_until(self._thread, deadline_s)

    # --- the thread

    def _run(self) -> None:
        """Step until `stop`, or until the node no longer holds the shard. Any other end is
        reported, so that no thread ends unnoticed."""
        replica = self.replica
        try:
            while True:
                # `stop` sets both, the flag first.
                self._soon.clear()
                if self._stopping.is_set():
                    break
                # A replica that reads in bounded memory waits for its turn to read in its steps.
                is_starting = replica.role in STARTS and replica.delayed is None
                if is_starting and not self._take_turn():
                    break
                try:
                    started, now_ms = time.perf_counter(), self._clock.now_ms()
                    self.step_began_ms = now_ms
                    turn = replica.step(now_ms)
                finally:
                    if is_starting:
                        self.turns.end()
                self._record(turn, time.perf_counter() - started)
                if replica.role == ReplicaState.NONE:
                    return
                self._wait(turn)
        except ChronosError as error:
            self._fail(str(error), error)
        except Exception as error:
            log.exception("shard failed", shard=self.number)
            self._fail(
                repr(error),
                ChronosError(f"shard {self.number} failed: {error!r}; this is a bug in Chronos"),
            )
        else:
            replica.close()
        finally:
            self.step_began_ms = None

    def _take_turn(self) -> bool:
        """Wait for the turn of a step of the start; False if the thread is to end."""
        self.step_began_ms = None
        return self.turns.take(takeover=self.replica.role == ReplicaState.TAKING_OVER)

    def _fail(self, why: str, error: ChronosError) -> None:
        self.replica.fail(why)
        self._failed(error)

    def _wait(self, turn: ReplicaTurn) -> None:
        """Wait for the time of the next step, for records, or for `step_soon`."""
        until_s = time.monotonic() + STEP_EVERY_S
        while not self._soon.is_set():
            wake_s = (turn.wake_ms - self._clock.now_ms()) / 1_000
            timeout_s = min(wake_s, until_s - time.monotonic())
            if timeout_s <= 0:
                return
            short_s = min(timeout_s, WAIT_MAX_S)
            if not turn.is_timed:
                if self.replica.wait(short_s if self.replica.waker is None else timeout_s):
                    return
            elif self.replica.role == ReplicaState.MASTER:
                self._soon.wait(short_s)  # until a message is due
                return
            else:
                self.turns.rest(self._soon, short_s)
                return

    def _record(self, turn: ReplicaTurn, took_s: float) -> None:
        """Publish the step's duration, lateness, refusals and position to the other threads."""
        shown = self.replica.role, self.replica.paused
        if shown != self._shown:
            self._shown = shown
            self._changed()
        report = turn.report
        if report is not None:
            self.steps.observe(took_s)
            if report.due_ms:
                self.lateness.observe_late(report.due_ms, report.committed_ms)
            self.outcomes.count(self.number, report)
        self.applied.note(turn, self.replica.pulled)


def make_shard(
    shared: Shared,
    number: int,
    *,
    store: Store,
    assigned: Callable[[], Assignment],
    restore: Callable[[RecoveryCost], bool],
    bounded: bool = False,
) -> ShardDriver:
    """Return the driver, not started yet. `assigned`, `restore`, `bounded`: see
    `workers.replica.context.ReplicaContext`."""
    rules = _rules(shared, number)
    rate_limits = shared.limits or RateLimits(configured_rates(shared.config))

    def pusher() -> Pusher:
        return Pusher(
            shared.log,
            rules,
            _push_settings(shared.config),
            rates=ShardRates(number, rate_limits, began_ms=shared.clock.now_ms()),
            selector=shared.selector if shared.config.delivery_faults.enabled else None,
        )

    replica = Replica(
        ReplicaContext(
            log=shared.log,
            store=store,
            clock=shared.clock,
            rules=rules,
            settings=_replica_settings(shared),
            pusher=pusher,
            guard=shared.guard,
            assigned=assigned,
            restore=restore,
            bounded=bounded,
            elsewhere=shared.elsewhere,
            tracing=shared.tracing,
        )
    )
    return ShardDriver(replica, shared, assigned)


def _rules(shared: Shared, number: int) -> Rules:
    config, topics = shared.config, shared.config.topics
    return Rules(
        shard=number,
        shards=config.shards,
        own_topics=(
            topics.delay,
            topics.progress,
            topics.rejected,
            topics.dead_letter,
            topics.cluster,
        ),
        allow=config.targets.allow,
        deny=config.targets.deny,
        max_delay_ms=config.limits.max_delay,
        max_past_ms=config.limits.max_past or NO_LIMIT_MS,
        deduplication_ms=config.retention.deduplication,
        misplaced=topics.misplaced,
        delay_topic=topics.delay,
        attempts_max=config.delivery.attempts_max,
        next_cron=shared.zone_data.next_cron,
        zone_data=shared.zone_data,
    )


def _push_settings(config: Config) -> PushSettings:
    topics, delivery = config.topics, config.delivery
    return PushSettings(
        delay_topic=topics.delay,
        rejected_topic=topics.rejected,
        dead_letter_topic=topics.dead_letter,
        create_topics=delivery.create_topics,
        own_topics=own_topics(config)[2:] if topics.create else (),
        retries=Retries(
            attempts_max=delivery.attempts_max,
            base_ms=delivery.retry_base,
            cap_ms=delivery.retry_cap,
        ),
    )


def _replica_settings(shared: Shared) -> ReplicaSettings:
    config, topics = shared.config, shared.config.topics
    return ReplicaSettings(
        limits=Limits(
            messages=STEP_MESSAGES,
            bytes=step_bytes(topics.message_bytes_max),
            linger_ms=config.delivery.linger,
            pull=config.workers.pull,
            push=config.workers.push,
        ),
        delay_topic=topics.delay,
        progress_topic=topics.progress,
        cluster=config.cluster,
        node=config.node.id,
        instance=shared.instance,
        delivered_ms=config.retention.delivered if config.workers.delete else None,
        deduplication_ms=config.retention.deduplication,
    )


def configured_rates(config: Config) -> Mapping[str, Rate | None]:
    """Return the rate limits of the configuration: pattern -> rate; None: not limited."""
    return {pattern: parse_rate(text) for pattern, text in config.delivery.rates.items()}


def report(
    shard: ShardDriver, flushed: LogPosition, verdict: Verdict | None = None
) -> ReplicaReport:
    """Return the report of the replica to the cluster.

    `flushed`: the position of its store at its last flush. `verdict`: of this node on the shard's
    master."""
    state = shard.state
    return ReplicaReport(
        applied=state.applied if shard.replica.known else None,
        pull_offset=state.pull_offset,
        role_epoch=state.role_epoch,
        role_node=state.node,
        role_instance=state.instance,
        log_epoch=state.log_epoch,
        role=shard.role,
        # Not that it waits for its turn: it is as able as the others.
        reason=shard.replica.paused or shard.replica.delayed or shard.stall.why,
        kept_applied=flushed.applied,
        kept_pull_offset=flushed.pull_offset,
        waiting=shard.replica.waiting,
        judged=0 if verdict is None else verdict.epoch,
        unhealthy=verdict is not None and not verdict.healthy,
    )


class Shown(Protocol):
    """The part of a replica and its thread that shows how far its master has come."""

    @property
    def role(self) -> ReplicaState: ...

    @property
    def paused(self) -> str | None: ...

    @property
    def step_began_ms(self) -> int | None: ...

    @property
    def state(self) -> State: ...


def look(shard: Shown, *, leads: bool, now_ms: int) -> MasterPosition | None:
    """Return how far the shard's master has come, as this node's replica shows it; None if it does
    not show that now.

    `leads`: the master is this node. A follower that is paused, or whose thread hangs, stands still
    for its own reasons; so does a deposed master that has not noticed it."""
    role, began_ms = shard.role, shard.step_began_ms
    if role not in {ReplicaState.MASTER, ReplicaState.FOLLOWER} or (
        role is ReplicaState.MASTER and not leads
    ):
        return None
    if not leads and (
        shard.paused is not None or began_ms is None or now_ms - began_ms >= STEP_MS_MAX
    ):
        return None
    state = shard.state
    return MasterPosition(cursor=state.cursor, pull_offset=state.pull_offset)
