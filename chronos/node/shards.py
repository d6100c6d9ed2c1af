"""The shards of a node: the replica of each, the thread that drives it, its description, and the
watch that judges all of them.

The driver is the only place where a shard's work meets a thread and a wait. Other threads read the
shard, and wait for it, through the driver.

One trouble is one line, however many shards have it. The judgement of the watch needs no request,
because a request would wait for the very brokers that may have caused the stall. The maintenance
thread asks for the ends of the partitions, with `look`."""

import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
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
from chronos.core.timefmt import MS_MAX
from chronos.core.values import shards_text
from chronos.errors import ChronosError
from chronos.node.opening import own_topics
from chronos.node.outcomes import LATENESS_S, STEP_S, Histogram, Outcomes
from chronos.ports import Clock, Log, Store, TopicLog, Tracing
from chronos.workers.cluster.observer import Look
from chronos.workers.push.lanes import RateLimits, ShardRates
from chronos.workers.push.planned import Limits
from chronos.workers.push.push import Pusher, PushSettings
from chronos.workers.push.targets import Retries
from chronos.workers.replica.checkpoint import LogPosition
from chronos.workers.replica.master import ReplicaContext, ReplicaSettings
from chronos.workers.replica.recovery import RecoveryCost
from chronos.workers.replica.replica import CATCHING_UP, Replica
from chronos.workers.replica.state import Assignment, ReplicaState
from chronos.workers.watch.stall import JUDGE_EVERY_MS, REPLAYING, STEP_MS_MAX, StallJudge, facts_of

log = structlog.get_logger("chronos.shard")

WAIT_MAX_S = 0.2
"""Longest wait of a replica that waits for something else than a record, and for a reader whose
waits cannot be ended, so that a stop or another assignment is noticed."""

STEP_EVERY_S = 5.0
"""Longest time between two steps of a replica with nothing to do: each costs some 0.5 ms, and tells
that the disk is full."""

STARTS_AT_ONCE = 64
"""Replicas of a node that take a step of their start, or of a takeover, at a time; and those that
poll for something as often as they want. Where hundreds do, their threads hinder each other until
requests time out and all begin again, for ever (measured: 512 shards on three nodes with two
cores)."""

STARTS = CATCHING_UP | {ReplicaState.NONE, ReplicaState.STEPPED_DOWN}
"""States from which a replica starts, or goes on starting."""

QUEUED = f"waits for its turn: {STARTS_AT_ONCE} shards of a node start at a time"

QUEUED_S = 5.0
"""How long a replica waits for its turn before it says so."""

REFUSALS_REMEMBERED = 20_000
"""Refusals kept for HTTP requests that wait for the outcome of their action."""


def run_guarded(name: str, run: Callable[[], None], failed: Callable[[ChronosError], None]) -> None:
    """The target of a thread: `failed` is called with any error that ends `run`, so that no thread
    ends unnoticed."""
    try:
        run()
    except ChronosError as error:
        failed(error)
    except Exception as error:
        log.exception("thread failed", name=name)
        failed(ChronosError(f"{name} failed: {error!r}; this is a bug in Chronos"))


def join_until(thread: threading.Thread, deadline_s: float) -> None:
    """Wait for the end of a thread that may not have been started, until the deadline (of
    `time.monotonic()`)."""
    if thread.is_alive():
        thread.join(max(0.0, deadline_s - time.monotonic()))


class StartTurns:
    """Bounds the steps of starting replicas that run at a time, and gives the turns in the order in
    which they were asked for, but takeovers come first: their shard has no master meanwhile. A
    thread that waits costs nothing, however many do."""

    def __init__(self, at_once: int = STARTS_AT_ONCE) -> None:
        self._lock = threading.Lock()
        self._at_once = self._free = at_once
        self._resting = 0
        self._takeovers: deque[threading.Event] = deque()
        self._others: deque[threading.Event] = deque()

    @property
    def waiting(self) -> int:
        """Threads that wait for their turn."""
        return len(self._takeovers) + len(self._others)

    def take(self, called: threading.Event, *, takeover: bool = False) -> bool:
        """Wait for a turn; False if `called` was set by another than this object."""
        queue = self._takeovers if takeover else self._others
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            queue.append(called)
        called.wait()
        with self._lock:
            if called in queue:
                queue.remove(called)
                return False
        return True

    def end(self) -> None:
        """End a turn: the next thread has it."""
        with self._lock:
            if queue := self._takeovers or self._others:
                queue.popleft().set()
            else:
                self._free += 1

    def rest(self, called: threading.Event, timeout_s: float) -> None:
        """Wait until `called` is set, or for the time; longer where more threads rest than have a
        turn at a time, so that hundreds that poll cost what these do."""
        with self._lock:
            self._resting += 1
            timeout_s *= max(1.0, self._resting / self._at_once)
        called.wait(timeout_s)
        with self._lock:
            self._resting -= 1


class Shared(Struct, frozen=True, kw_only=True):
    """What all shards of a node share."""

    config: Config
    log: Log
    clock: Clock
    instance: str
    """Of the data directory."""
    guard: Callable[[], str | None]
    """Returns why no step may begin now; None if one may."""
    failed: Callable[[ChronosError], None]
    """Called once, with the error that ended the thread of a shard."""
    changed: Callable[[], None] = lambda: None
    """Called after a step that changed the state of a replica."""
    outcomes: Outcomes = field(default_factory=Outcomes)
    """Where the outcomes of steps are counted."""
    turns: StartTurns = field(default_factory=StartTurns)
    """For the steps of starting replicas."""
    limits: RateLimits | None = None
    """The rate limits in force; None: those of the configuration."""
    selector: Selector | None = None
    elsewhere: Callable[[int], int] = lambda shard: MS_MAX
    """See `workers.replica.master.ReplicaContext`."""
    tracing: Tracing | None = None
    """Observes the committed steps; None: tracing is off."""
    zone_data: ZoneData = ZONE_DATA


class ShardDriver:
    """Runs one shard of this node, in a thread that it has only while the node holds the shard."""

    def __init__(
        self, replica: Replica, shared: Shared, assigned: Callable[[], Assignment]
    ) -> None:
        """`assigned`: returns the assignment as of now."""
        self.number = replica.number
        self.replica = replica
        self.lateness = Histogram(LATENESS_S)
        """Lateness of the delivered messages."""
        self.steps = Histogram(STEP_S)
        """Duration of the steps that committed a transaction."""
        self.stall: str | None = None
        """Why the replica stands still, where it gives no reason itself; None if it moves. Set by
        `ShardWatch`."""
        self.stalled_ms = 0
        """For how long it has stood still; 0 if it moves. Set by `ShardWatch`."""
        self.stalls = 0
        """How often it has stood still since the start. Set by `ShardWatch`."""
        self.step_began_ms: int | None = None
        """When the thread began the current step (epoch ms); None without a thread."""
        self.outcomes = shared.outcomes
        self._clock = shared.clock
        self._assigned = assigned
        self._failed = shared.failed
        self._changed = shared.changed
        self._shown: tuple[ReplicaState, str | None] | None = None
        """State of the replica, and why it is paused, after the last step."""
        self._soon = threading.Event()
        """It shall step soon, or stop."""
        self._turns = shared.turns
        self._called = threading.Event()
        """It is its turn, or it shall stop."""
        self._queued_s: float | None = None
        """Since when it waits for its turn (`time.monotonic()`); None: it does not."""
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._moved = threading.Condition()
        self._pulled = 0
        self._refusals: OrderedDict[int, int] = OrderedDict()
        self._refusals_from: int | None = None
        """Offset from which all refusals are remembered; None before the first step."""

    # --- read by other threads

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
        """Why the replica is paused, reads its log slowly, or stands still, for people; None if it
        works."""
        return self.replica.paused or self.replica.delayed or self.queued or self.stall

    @property
    def awaits_turn(self) -> bool:
        """Whether it waits for its turn to start."""
        return self._queued_s is not None

    @property
    def queued(self) -> str | None:
        """That it waits for its turn to start, for people; None if it does not, or not for long."""
        since_s = self._queued_s
        return QUEUED if since_s is not None and time.monotonic() - since_s > QUEUED_S else None

    @property
    def commits(self) -> int:
        """Transactions committed by this process."""
        return self.replica.commits

    @property
    def aborts(self) -> int:
        """Transactions aborted or lost by this process."""
        return self.replica.aborts

    @property
    def state(self) -> State:
        """The shard's state as of the last step."""
        return self.replica.state

    @property
    def pulled(self) -> int:
        """Offset in the delay partition up to which everything is executed, transaction markers
        included."""
        return self._pulled

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
        """Have the thread step within WAIT_MAX_S: its assignment, a limit or the wall clock may be
        another one."""
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
        self._called.set()
        self.step_soon()

    def join(self, deadline_s: float) -> None:
        """Wait for the end of the thread, until the deadline (of `time.monotonic()`)."""
        if self._thread is not None:
            join_until(self._thread, deadline_s)

    def wait_pulled(self, offset: int, timeout_s: float) -> bool:
        """Wait until the delay partition is executed up to `offset`, markers included; False if the
        time passes first."""
        with self._moved:
            return self._moved.wait_for(lambda: self._pulled >= offset, timeout_s)

    def refusal(self, offset: int) -> int | None:
        """Return the `Reason` for which the delay record at the offset was refused; None: not
        refused, or too long ago."""
        return self._refusals.get(offset)

    def remembers(self, offset: int) -> bool:
        """Return whether `refusal` would know of a refusal of the delay record at the offset, which
        was applied."""
        since = self._refusals_from
        return since is not None and offset >= since

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
                # One that reads in bounded memory waits for a turn of that in its steps.
                is_starting = replica.role in STARTS and replica.delayed is None
                if is_starting and not self._take_turn():
                    break
                try:
                    started, now_ms = time.perf_counter(), self._clock.now_ms()
                    self.step_began_ms = now_ms
                    wake_ms = replica.step(now_ms)
                finally:
                    if is_starting:
                        self._turns.end()
                self._record(time.perf_counter() - started)
                if replica.role == ReplicaState.NONE:
                    return
                self._wait(wake_ms)
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
        self._queued_s = time.monotonic()
        self._called.clear()
        if self._stopping.is_set():
            return False
        takes_over = self.replica.role == ReplicaState.TAKING_OVER
        has_turn = self._turns.take(self._called, takeover=takes_over)
        self._queued_s = None
        return has_turn

    def _fail(self, why: str, error: ChronosError) -> None:
        self.replica.fail(why)
        self._failed(error)

    def _wait(self, wake_ms: int) -> None:
        """Wait for the time of the next step, for records, or for `step_soon`."""
        until_s = time.monotonic() + STEP_EVERY_S
        while not self._soon.is_set():
            wake_s = (wake_ms - self._clock.now_ms()) / 1_000
            timeout_s = min(wake_s, until_s - time.monotonic())
            if timeout_s <= 0:
                return
            short_s = min(timeout_s, WAIT_MAX_S)
            arrived = self.replica.wait(short_s if self.replica.waker is None else timeout_s)
            if arrived is None and self.replica.role == ReplicaState.MASTER:
                self._soon.wait(short_s)  # until a message is due
            elif arrived is None:
                self._turns.rest(self._soon, short_s)
            if arrived is not False:
                return

    def _record(self, took_s: float) -> None:
        """Publish the step's duration, lateness, refusals and position to the other threads."""
        shown = self.replica.role, self.replica.paused
        if shown != self._shown:
            self._shown = shown
            self._changed()
        stepped = self.replica.last
        if stepped is not None:
            self.steps.observe(took_s)
            if stepped.due_ms:
                self.lateness.observe_late(stepped.due_ms, stepped.committed_ms)
            self.outcomes.count(self.number, stepped)
        for offset, reason in self.replica.refused:
            self._refusals[offset] = reason
        while len(self._refusals) > REFUSALS_REMEMBERED:
            self._refusals_from = self._refusals.popitem(last=False)[0] + 1
        # The refusals come first: a thread that sees the position must find the refusals before it.
        pulled = self.replica.pulled
        if self._refusals_from is None:
            self._refusals_from = pulled
        if pulled != self._pulled:
            with self._moved:
                self._pulled = pulled
                self._moved.notify_all()


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
    `workers.replica.master.ReplicaContext`."""
    config, clock = shared.config, shared.clock
    topics, delivery = config.topics, config.delivery
    rules = Rules(
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
        attempts_max=delivery.attempts_max,
        next_cron=shared.zone_data.next_cron,
        zone_data=shared.zone_data,
    )

    rate_limits = shared.limits or RateLimits(configured_rates(config))

    def pusher() -> Pusher:
        return Pusher(
            shared.log,
            rules,
            PushSettings(
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
            ),
            rates=ShardRates(number, rate_limits, began_ms=clock.now_ms()),
            selector=shared.selector if config.delivery_faults.enabled else None,
        )

    replica = Replica(
        ReplicaContext(
            log=shared.log,
            store=store,
            clock=clock,
            rules=rules,
            settings=ReplicaSettings(
                limits=Limits(
                    messages=delivery.batch_messages,
                    bytes=delivery.batch_bytes,
                    linger_ms=delivery.linger,
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
            ),
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
        reason=shard.replica.paused or shard.replica.delayed or shard.stall,
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


def look(shard: Shown, *, leads: bool, now_ms: int) -> Look | None:
    """Return how far the shard's master has come, as this node's replica shows it; None if it does
    not show that now.

    `leads`: the master is this node. A follower that is paused, or whose thread hangs, stands still
    by itself; so does a deposed master that has not noticed it."""
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
    return Look(cursor=state.cursor, pull_offset=state.pull_offset)


CLOCK_STEP_MS = 10
"""Step of the wall clock after which shards look at it again; they may sleep for STEP_EVERY_S."""

LOG_EVERY_MS = 60_000
"""Time between two log lines about the same trouble."""

OVER_MS = 5_000
"""A trouble that has been absent for this long is over: one that comes and goes with each attempt
is one trouble."""

DIGITS = re.compile(r"\d+")


class _Trouble(Struct):
    """What shards report with the same text, but for its numbers."""

    since_ms: int
    seen_ms: int
    logged_ms: int | None = None
    shards: set[int] = field(default_factory=set)
    """Those that had it since its last line."""
    told: set[int] = field(default_factory=set)
    """Those that a line has named."""
    is_stall: bool = False


class TroubleLog:
    """Logs a trouble when it begins, when it has reached more shards, once in LOG_EVERY_MS while it
    lasts, and when it is over."""

    def __init__(self) -> None:
        self._troubles: dict[str, _Trouble] = {}

    def step(self, now_ms: int, reasons: Mapping[int, str], stalled: Mapping[int, int]) -> None:
        """`now_ms`: monotonic time. `reasons`: why shards are paused. `stalled`: for how long those
        of them stand still (ms)."""
        texts: dict[str, str] = {}
        for shard, text in reasons.items():
            kind = DIGITS.sub("", text)
            texts[kind] = text
            trouble = self._troubles.setdefault(kind, _Trouble(since_ms=now_ms, seen_ms=now_ms))
            trouble.seen_ms = now_ms
            trouble.shards.add(shard)
        for kind, trouble in list(self._troubles.items()):
            if kind in texts:
                self._tell(now_ms, trouble, texts[kind], stalled)
            elif now_ms - trouble.seen_ms >= OVER_MS:
                del self._troubles[kind]
                if still := trouble.told - reasons.keys():
                    seconds = (trouble.seen_ms - trouble.since_ms) // 1_000
                    log.info("resumed", shards=shards_text(still), seconds=seconds)

    @staticmethod
    def _tell(now_ms: int, trouble: _Trouble, text: str, stalled: Mapping[int, int]) -> None:
        is_stall = not trouble.shards.isdisjoint(stalled)
        every_ms = LOG_EVERY_MS if trouble.shards <= trouble.told else OVER_MS
        is_upgraded = is_stall and not trouble.is_stall
        if (
            trouble.logged_ms is not None
            and now_ms - trouble.logged_ms < every_ms
            and not is_upgraded
        ):
            return
        seconds = (
            max(
                [
                    now_ms - trouble.since_ms,
                    *(stalled[shard] for shard in trouble.shards & stalled.keys()),
                ]
            )
            // 1_000
        )
        write = log.error if is_stall else log.warning
        write(
            "stalled" if is_stall else "paused",
            shards=shards_text(trouble.shards),
            seconds=seconds,
            why=text,
        )
        trouble.logged_ms, trouble.is_stall = now_ms, is_stall
        trouble.told |= trouble.shards
        trouble.shards = set()


class ShardWatch:
    """Judges all shards of a node, from `start` to `stop`."""

    def __init__(
        self,
        shards: Sequence[ShardDriver],
        log_port: TopicLog,
        *,
        progress_topic: str,
        clock: Clock,
        failed: Callable[[ChronosError], None],
        outage: Callable[[], str | None],
    ) -> None:
        """`failed`: called with the error that ended the thread. `outage`: why no broker is
        reached; what shards report meanwhile has that cause, and is not logged."""
        self._shards = shards
        self._log = log_port
        self._progress_topic = progress_topic
        self._clock = clock
        self._judges = {shard.number: StallJudge() for shard in shards}
        self._outage = outage
        self._quiet_until_ms = 0
        """Monotonic time before which troubles are not logged: they are those of the outage, or
        what is left of it."""
        self._troubles = TroubleLog()
        self._stepped_ms = clock.stepped_ms()
        """`Clock.stepped_ms` when the shards last looked at the clock because of it."""
        self._delay_ends: dict[int, int] = {}
        self._progress_ends: dict[int, int] = {}
        self._stopping = threading.Event()
        self.thread = threading.Thread(
            target=run_guarded, args=("watch", self._run, failed), name="watch", daemon=True
        )

    def look(self, delay_ends: Mapping[int, int]) -> None:
        """Note the ends of the delay partitions that masters read, and ask for those of the
        progress partitions that are replayed; the ends known so far remain true. For the
        maintenance thread: it may take seconds."""
        replaying = [shard.number for shard in self._shards if shard.role in REPLAYING]
        self._delay_ends |= delay_ends
        self._progress_ends |= self._log.stable_ends(self._progress_topic, replaying)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def stop(self) -> None:
        """Ask the thread to end."""
        self._stopping.set()

    def _run(self) -> None:
        while True:
            self.step(time.monotonic_ns() // 1_000_000)
            if self._stopping.wait(JUDGE_EVERY_MS / 1_000):
                return

    def step(self, monotonic_ms: int) -> None:
        """Judge all shards, and log their troubles; wake them when the wall clock was stepped:
        messages may be due."""
        stepped_ms = self._clock.stepped_ms()
        is_stepped = abs(stepped_ms - self._stepped_ms) >= CLOCK_STEP_MS
        if is_stepped:
            self._stepped_ms = stepped_ms
        for shard in self._shards:
            if is_stepped:
                shard.step_soon()
            self._judge(shard, monotonic_ms)
        if self._outage() is not None:
            self._quiet_until_ms = monotonic_ms + OVER_MS
        elif monotonic_ms >= self._quiet_until_ms:
            reasons = {
                shard.number: why for shard in self._shards if (why := shard.paused) is not None
            }
            stalled = {shard.number: shard.stalled_ms for shard in self._shards if shard.stalled_ms}
            self._troubles.step(monotonic_ms, reasons, stalled)

    def _judge(self, shard: ShardDriver, monotonic_ms: int) -> None:
        number, judge, now_ms = shard.number, self._judges[shard.number], self._clock.now_ms()
        facts = facts_of(
            shard.replica,
            now_ms=now_ms,
            delay_end=self._delay_ends.get(number),
            progress_end=self._progress_ends.get(number),
        )
        stalled = judge.step(monotonic_ms, facts, counts=not shard.awaits_turn)
        # A shard that reads slowly says so itself.
        if not stalled or shard.replica.delayed is not None:
            shard.stalled_ms, shard.stall = 0, None
            return
        if not shard.stalled_ms:
            shard.stalls += 1
        shard.stalled_ms = judge.stalled_ms
        replica = shard.replica
        shard.stall = judge.reason(
            now_ms=now_ms, step_began_ms=shard.step_began_ms, trouble=replica.trouble
        )
