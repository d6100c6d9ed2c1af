"""The driver of one shard: a thread that calls the replica's `step` at the times that it returns.

The only place where a shard's work meets a thread and a wait. Other threads read the shard, and wait for it, through the
driver.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

import structlog

from chronos.core.codec import State
from chronos.core.histogram import LATENESS_S, STEP_S, Histogram
from chronos.core.shard import Shard
from chronos.errors import ChronosError
from chronos.node.outcomes import Outcomes
from chronos.ports import Clock, Store
from chronos.workers.replica import Replica
from chronos.workers.replica_state import ReplicaState

log = structlog.get_logger("chronos.shard")

WAIT_MAX_S = 0.2
"""Longest single wait, so that a stop or another assignment is noticed."""

REFUSALS_REMEMBERED = 20_000
"""Refusals kept for HTTP requests that wait for the outcome of their action."""


def run_guarded(name: str, run: Callable[[], None], failed: Callable[[ChronosError], None]) -> None:
    """The target of a thread: `failed` is called with any error that ends `run`, so that no thread ends unnoticed."""
    try:
        run()
    except ChronosError as error:
        failed(error)
    except Exception as error:
        log.exception("thread failed", name=name)
        failed(ChronosError(f"{name} failed: {error!r}; this is a bug in Chronos"))


def join_until(thread: threading.Thread, deadline_s: float) -> None:
    """Wait for the end of a thread that may not have been started, until the deadline (of `time.monotonic()`)."""
    if thread.is_alive():
        thread.join(max(0.0, deadline_s - time.monotonic()))


class ShardDriver(threading.Thread):
    """Runs one shard of this node."""

    def __init__(
        self,
        replica: Replica,
        *,
        clock: Clock,
        failed: Callable[[ChronosError], None],
        outcomes: Outcomes | None = None,
    ) -> None:
        """`outcomes`: where the node counts the outcomes of its steps."""
        super().__init__(name=f"shard-{replica.number}", daemon=True)
        self.number = replica.number
        self.replica = replica
        self.lateness = Histogram(LATENESS_S)
        """Lateness of the delivered messages."""
        self.steps = Histogram(STEP_S)
        """Duration of the steps that committed a transaction."""
        self.stall: str | None = None
        """Why the replica stands still, where it gives no reason itself; None if it moves. Set by `ShardWatch`."""
        self.stalled_ms = 0
        """For how long it has stood still; 0 if it moves. Set by `ShardWatch`."""
        self.stalls = 0
        """How often it has stood still since the start. Set by `ShardWatch`."""
        self.step_began_ms: int | None = None
        """When the thread began the present step (epoch ms); None before the first and after the last one."""
        self.outcomes = Outcomes() if outcomes is None else outcomes
        self._clock = clock
        self._failed = failed
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
        """The present state of the replica."""
        return self.replica.role

    @property
    def paused(self) -> str | None:
        """Why the replica is paused, reads its log slowly, or stands still, for people; None if it works."""
        return self.replica.paused or self.replica.delayed or self.stall

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
        """Offset in the delay partition up to which everything is executed, transaction markers included."""
        return self._pulled

    @property
    def shard(self) -> Shard:
        """The shard itself; read-only for other threads."""
        return self.replica.shard

    def waits_for(self, now_ms: int) -> str | None:
        """Return what the present transaction waits for, for people; None if it does not wait."""
        return self.replica.waits_for(now_ms)

    def stop(self) -> None:
        """Ask the thread to end after its step."""
        self._stopping.set()

    def wait_pulled(self, offset: int, timeout_s: float) -> bool:
        """Wait until the delay partition is executed up to `offset`, markers included; False if the time passes first."""
        with self._moved:
            return self._moved.wait_for(lambda: self._pulled >= offset, timeout_s)

    def refusal(self, offset: int) -> int | None:
        """Return the `Reason` for which the delay record at the offset was refused; None: not refused, or too long ago."""
        return self._refusals.get(offset)

    def remembers(self, offset: int) -> bool:
        """Return whether `refusal` would know of a refusal of the delay record at the offset, which was applied."""
        since = self._refusals_from
        return since is not None and offset >= since

    # --- the thread

    def run(self) -> None:
        """Step until `stop`; any other end is reported, so that no thread ends unnoticed."""
        replica = self.replica
        try:
            while not self._stopping.is_set():
                started, now_ms = time.perf_counter(), self._clock.now_ms()
                self.step_began_ms = now_ms
                wake_ms = replica.step(now_ms)
                self._record(time.perf_counter() - started)
                self._wait(wake_ms)
        except ChronosError as error:
            self._fail(str(error), error)
        except Exception as error:
            log.exception("shard failed", shard=self.number)
            self._fail(repr(error), ChronosError(f"shard {self.number} failed: {error!r}; this is a bug in Chronos"))
        else:
            replica.close()

    def _fail(self, why: str, error: ChronosError) -> None:
        self.replica.fail(why)
        self._failed(error)

    def _wait(self, wake_ms: int) -> None:
        timeout_s = min((wake_ms - self._clock.now_ms()) / 1_000, WAIT_MAX_S)
        if timeout_s > 0 and not self.replica.wait(timeout_s):
            self._stopping.wait(timeout_s)

    def _record(self, took_s: float) -> None:
        """Publish the step's duration, lateness, refusals and position to the other threads."""
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
