"""The driver of one shard: a thread that makes its replica master and calls `step` when it wants to be called.

The only place where a shard's work meets a thread, a wait and a retry. What a failure means is decided here, by
the branch of `errors` it belongs to: a Retry pauses and says why, losing the producer starts the reign again from
the store, a Stop ends the process.
"""

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

import structlog

from chronos.core.codec import FRESH, State, unpack_state
from chronos.core.histogram import LATENESS_S, STEP_S, Histogram
from chronos.core.keys import STATE_KEY
from chronos.core.message import Rules
from chronos.core.shard import Shard
from chronos.errors import (
    ApplyFailed,
    ChronosError,
    Deposed,
    LogMismatch,
    LogUnavailable,
    NoSpace,
    ProducerLost,
    Retry,
    TransactionAborted,
)
from chronos.ports import Clock, Log, Store
from chronos.workers.delete import Deleter
from chronos.workers.follow import Follower
from chronos.workers.master import Identity, Limits, Master, Stepped, Suspicion
from chronos.workers.pull import Puller
from chronos.workers.push import Pusher

log = structlog.get_logger("chronos.shard")

FOREIGN_SILENCE_MS = 90_000
"""A standalone node takes over from another one after so long without a progress record: one and a half heartbeats."""

WAIT_MAX_S = 0.2
"""Longest single wait, so that a stop is noticed."""

PAUSE_S = 0.5
"""Pause after a failure that only time can mend."""

REPLAYED_FLUSH = 200
"""A replay of so many progress records (tenths of a second) is kept: killed again, a node must not repeat it."""

ABORT_PAUSE_S = 0.05
"""Pause after an aborted transaction without a culprit, doubled each time up to PAUSE_S."""

HALVINGS_MAX = 20
"""Aborted transactions in a row that the search for a culprit may take: log2 of a batch, and some more."""

DIGITS = re.compile(r"\d+")

REFUSALS_REMEMBERED = 20_000
"""Refusals kept for those who wait to learn what became of their action."""


class ShardDriver(threading.Thread):
    """Runs one shard of this node."""

    def __init__(
        self,
        *,
        log_port: Log,
        store: Store,
        clock: Clock,
        rules: Rules,
        pusher: Callable[[], Pusher],
        limits: Limits,
        delay_topic: str,
        progress_topic: str,
        node: str,
        instance: str,
        delivered_ms: int | None,
        deduplication_ms: int,
        guard: Callable[[], str | None],
        failed: Callable[[ChronosError], None],
    ) -> None:
        super().__init__(name=f"shard-{rules.shard}", daemon=True)
        self.number = rules.shard
        self.store = store
        self.role = "starting"
        self.paused: str | None = None
        """Why nothing moves, for people; None while all is well."""
        self.lateness = Histogram(LATENESS_S)
        self.steps = Histogram(STEP_S)
        self.commits = 0
        self.aborts = 0
        self._log = log_port
        self._clock = clock
        self._rules = rules
        self._make_pusher = pusher
        self._limits = limits
        self._suspicion = Suspicion(messages_max=limits.messages)
        self._delay_topic = delay_topic
        self._progress_topic = progress_topic
        self._node = node
        self._instance = instance
        self._delivered_ms = delivered_ms
        self._deduplication_ms = deduplication_ms
        self._guard = guard
        self._failed = failed
        self._stopping = threading.Event()
        self._moved = threading.Condition()
        self._pulled = 0
        self._refusals: OrderedDict[int, int] = OrderedDict()
        self._reigned_epoch: int | None = None
        self._shard = self._load()

    # --- what others ask

    @property
    def state(self) -> State:
        """The state as of the last step."""
        return self._shard.state

    @property
    def pulled(self) -> int:
        """Offset in the delay partition up to which everything is executed, transaction markers included."""
        return self._pulled

    @property
    def shard(self) -> Shard:
        """The shard itself, to look at."""
        return self._shard

    def stop(self) -> None:
        """Ask the thread to end after its step."""
        self._stopping.set()

    def wait_pulled(self, offset: int, timeout_s: float) -> bool:
        """Wait until the delay partition was executed up to `offset`, markers included; False when the time is over."""
        with self._moved:
            return self._moved.wait_for(lambda: self._pulled >= offset, timeout_s)

    def refusal(self, offset: int) -> int | None:
        """Why the delay record at the offset was refused, if it was, and that is not too long ago."""
        return self._refusals.get(offset)

    # --- the thread

    def run(self) -> None:
        """Reign until told to stop; a thread never ends in silence."""
        try:
            self._reign_on()
        except Exception as error:
            self.role, self.paused = "failed", repr(error)
            log.exception("shard failed", shard=self.number)
            self._failed(ChronosError(f"shard {self.number} failed: {error!r}; this is a bug in Chronos"))

    def _reign_on(self) -> None:
        """Start again from the store whenever a reign ends, until told to stop."""
        pause_s = ABORT_PAUSE_S
        while not self._stopping.is_set():
            try:
                self._reign()
            except Retry as error:
                self._pause(error)
                self._stopping.wait(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S)
            except ChronosError as error:
                self.role, self.paused = "failed", str(error)
                self._failed(error)
                return
        self.role = "stopped"

    def _reign(self) -> None:
        """One mastership, from the store to its end (DESIGN section 2, "A new master")."""
        if self.store.background_error() is not None:
            self.store.reopen()
        self._shard = shard = self._load()
        self._check_positions(shard.state)
        follower = Follower(
            self._log, self.store, shard, delay_topic=self._delay_topic, progress_topic=self._progress_topic
        )
        try:
            # 1. Everything that can be read, and by whom; what hangs behind it is for step 2 to resolve.
            replayed = self._recover(follower, resolved=False)
            if not self._may_reign(follower):
                return
            # 2. Fence every earlier master, and have its last transaction resolved.
            self.role = "taking over"
            writer = self._log.writer(self.number)
            # 3. What that resolved.
            replayed += self._recover(follower, resolved=True)
            if replayed >= REPLAYED_FLUSH:
                self.store.flush()
        finally:
            follower.close()
        reader = self._log.reader(self._delay_topic, self.number, shard.state.pull_offset)
        pusher = self._make_pusher()
        master = Master(
            shard=shard,
            store=self.store,
            writer=writer,
            puller=Puller(self._log, reader, self._delay_topic, self.number),
            pusher=pusher,
            clock=self._clock,
            identity=Identity(
                node=self._node,
                instance=self._instance,
                role_epoch=shard.state.role_epoch + 1,
                log_epoch=shard.state.log_epoch + 1,
            ),
            limits=self._limits,
            suspicion=self._suspicion,
        )
        try:
            # 4. The epoch record.
            self._begin(master)
            # 5. Only now: step.
            self._reigned_epoch = shard.state.log_epoch
            self.role = "master"
            self._resume()
            state = shard.state
            log.info("master", shard=self.number, epoch=state.log_epoch, pending=state.pending, replayed=replayed)
            self._step_on(master, pusher)
        finally:
            self.role = "resigned"
            master.close()

    def _begin(self, master: Master) -> None:
        """Commit the epoch record; a clock that disagrees is waited for."""
        while not self._stopping.is_set():
            try:
                self._check_guard()
                return master.begin()
            except (ProducerLost, ApplyFailed):
                raise
            except Retry as error:
                self._pause(error)
                self._stopping.wait(PAUSE_S)
        raise ProducerLost("stopped before the epoch record")

    def _step_on(self, master: Master, pusher: Pusher) -> None:
        deleter = None
        if self._delivered_ms is not None:
            deleter = Deleter(
                self.store, self._shard, delivered_ms=self._delivered_ms, deduplication_ms=self._deduplication_ms
            )
        clean_ms = 0
        abort_pause_s, aborts_in_a_row = ABORT_PAUSE_S, 0
        while not self._stopping.is_set():
            now_ms = self._clock.now_ms()
            try:
                self._check_guard()
                started = time.perf_counter()
                wake_ms = master.step(now_ms)
                if master.last is not None:
                    self._note(master.last, time.perf_counter() - started)
                    abort_pause_s, aborts_in_a_row = ABORT_PAUSE_S, 0
                self._move_to(master.pulled)
                self._resume()
                if deleter is not None and now_ms >= clean_ms:
                    clean_ms = deleter.step(now_ms)
            except (ProducerLost, ApplyFailed):
                self.aborts += 1
                raise
            except TransactionAborted as error:
                self.aborts += 1
                log.warning("transaction aborted", shard=self.number, why=str(error))
                aborts_in_a_row += 1
                if not error.culprit_likely or aborts_in_a_row > HALVINGS_MAX:
                    self._stopping.wait(abort_pause_s)
                    abort_pause_s = min(2 * abort_pause_s, PAUSE_S)
            except Retry as error:
                if isinstance(error, LogUnavailable):
                    pusher.targets.forget_all()
                self._pause(error)
                self._stopping.wait(PAUSE_S)
            else:
                self._wait(master, wake_ms if deleter is None else min(wake_ms, clean_ms))

    def _wait(self, master: Master, wake_ms: int) -> None:
        timeout_s = min((wake_ms - self._clock.now_ms()) / 1_000, WAIT_MAX_S)
        if timeout_s <= 0:
            return
        if master.lingering:
            self._stopping.wait(timeout_s)
        else:
            master.wait(timeout_s)

    def _note(self, stepped: Stepped, took_s: float) -> None:
        self.commits += 1
        self.steps.observe(took_s)
        if stepped.due_ms:
            self.lateness.observe_late(stepped.due_ms, stepped.committed_ms)
        for offset, reason in stepped.refused:
            self._refusals[offset] = reason
        while len(self._refusals) > REFUSALS_REMEMBERED:
            self._refusals.popitem(last=False)

    def _move_to(self, offset: int) -> None:
        """Tell those who wait how far the delay partition was executed, after its refusals were noted."""
        if offset != self._pulled:
            with self._moved:
                self._pulled = offset
                self._moved.notify_all()

    # --- before a reign

    def _load(self) -> Shard:
        (data,) = self.store.get([STATE_KEY])
        return Shard(rules=self._rules, state=FRESH if data is None else unpack_state(data), view=self.store)

    def _check_positions(self, state: State) -> None:
        """The logs must hold everything from the store's positions on."""
        progress = self._log.ends(self._progress_topic, self.number)
        delay = self._log.ends(self._delay_topic, self.number)
        if state.applied == 0 and progress.high == 0 and delay.start > 0:
            # Nobody ever was master: what the topic lost before Chronos came is not Chronos's to deliver.
            self._shard.state = State(pull_offset=delay.start, cursor_offset=state.cursor_offset)
            return
        for topic, position, ends in (
            (self._progress_topic, state.applied, progress),
            (self._delay_topic, state.pull_offset, delay),
        ):
            if ends.start > position:
                raise LogMismatch(
                    f"{topic}/{self.number} begins at {ends.start}, but the store needs it from {position} on: the topic"
                    " was trimmed ahead of the store. Restore a checkpoint that is newer, or, if what is missing may be"
                    f" lost, remove the store of shard {self.number} and both topics' contents."
                )
            if ends.high < position:
                raise LogMismatch(
                    f"{topic}/{self.number} ends at {ends.high}, but the store has applied it up to {position}: the topic"
                    " was deleted and created again, or this is another cluster. Point Chronos to the right one, or remove"
                    f" the store of shard {self.number}."
                )

    def _recover(self, follower: Follower, *, resolved: bool) -> int:
        """Apply the progress log to its end; how many records. A transaction that hangs there hides what was
        committed: when all of them should be `resolved`, it is waited for."""
        self.role = "recovering"
        replayed = 0
        told_s = time.monotonic()
        while not self._stopping.is_set():
            self._check_guard()
            if applied := follower.step():
                replayed += applied
                if time.monotonic() - told_s > 1.0:
                    told_s = time.monotonic()
                    log.info("replaying", shard=self.number, applied=self.state.applied, pull=self.state.pull_offset)
                continue
            ends = self._log.ends(self._progress_topic, self.number)
            if follower.position >= (ends.high if resolved else ends.stable):
                return replayed
            if ends.stable < ends.high and follower.position >= ends.stable:
                self._pause(LogUnavailable(
                    f"{self._progress_topic}/{self.number} ends in a transaction that is not resolved yet"
                ))  # fmt: skip
            follower.wait(WAIT_MAX_S)
        raise ProducerLost("stopped while recovering")

    def _may_reign(self, follower: Follower) -> bool:
        """Whether the last word in the progress log leaves the shard to us (standalone coordinator)."""
        while not self._stopping.is_set():
            state = self.state
            if state.instance in ("", self._instance):
                return True
            if self._reigned_epoch is not None and state.log_epoch > self._reigned_epoch:
                raise Deposed(
                    f"node {state.node} (instance {state.instance}) took over shard {self.number} from this one:"
                    " two standalone nodes serve the same cluster. Stop one of them, or give each its own `cluster`"
                    " and topics."
                )
            left_ms = state.progress_ms + FOREIGN_SILENCE_MS - self._clock.now_ms()
            if left_ms <= 0:
                log.warning("taking over from a silent node", shard=self.number, node=state.node)
                return True
            self.role = "waiting"
            self._pause(LogUnavailable(
                f"node {state.node} (instance {state.instance}) was master of shard {self.number} until"
                f" {FOREIGN_SILENCE_MS - left_ms} ms ago; this node takes over once it was silent for"
                f" {FOREIGN_SILENCE_MS // 1_000} s"
            ))  # fmt: skip
            self._stopping.wait(WAIT_MAX_S)
            follower.step()
        return False

    # --- pausing

    def _check_guard(self) -> None:
        why = self._guard()
        if why is not None:
            raise NoSpace(why)
        trouble = self.store.background_error()
        if trouble is not None:
            raise ApplyFailed(
                f"the store takes no writes: {trouble}. Make room on its disk, or look at the disk itself"
            )

    def _pause(self, error: Retry) -> None:
        text = str(error)
        # A reason that only counts on, in bytes or milliseconds, is the same reason.
        if self.paused is None or DIGITS.sub("", self.paused) != DIGITS.sub("", text):
            log.warning("paused", shard=self.number, why=text)
        self.paused = text

    def _resume(self) -> None:
        if self.paused is not None:
            log.info("going on", shard=self.number)
            self.paused = None
