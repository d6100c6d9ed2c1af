"""The phases of a replica, from its store to the end of its leadership. A phase is an object: it has
the parts that are open in it; `turn` does one turn and returns the next phase, usually itself.

    Start ──▶ FenceFirst ──▶ Follow ──▶ Resolve ──▶ Begin ──▶ Lead
      ▲            2           1, 2        3          4        5
      └────────────┴───────────┴───────────┴──────────┴────────┘
                    everything is closed

Each is a class, such as `StartPhase`. The numbers are those of docs/concepts/flow.md, "A new
master". FenceFirst is for a store far behind its log: a node that was the last master itself does
2 there, and 1 in Resolve. Any other store goes from Start to Follow.

A phase opens parts and closes none: the replica closes the parts that the next phase does not use.
So those that are handed over in the middle of a turn, such as writer and reader from Resolve to
Begin, are closed if the turn breaks off. After a Retry in a turn the replica begins with Start; only
Begin and Lead repeat the turn, unless their producer is lost or a write to the store failed.

Other threads read the properties of a phase during a turn, even during one that hangs.

Keeps its part of laws 3 and 5: a replica that is assigned master first fences every earlier master,
then applies everything they committed, and commits only after an epoch record of its own."""  # noqa: E501

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import structlog
from msgspec import Struct
from msgspec.structs import replace

from chronos.core.clock import Arrivals
from chronos.core.shard.codec import State
from chronos.core.shard.progress import Progress
from chronos.core.shard.record import WriterEpoch
from chronos.errors import (
    ApplyFailed,
    ClockDisagrees,
    LogMismatch,
    LogUnavailable,
    ProducerLost,
    Retry,
    TransactionAborted,
)
from chronos.ports import READING_BOUNDED, Writer
from chronos.workers.replica.follow import Follower
from chronos.workers.replica.leadership import Assignment
from chronos.workers.replica.parts import PAUSE_MS, Closing, ReplicaParts
from chronos.workers.replica.recovery import RecoveryCost, Replay, check_positions
from chronos.workers.replica.state import CATCHING_UP, ReplicaState
from chronos.workers.step.foreign import ForeignRecords
from chronos.workers.step.horizon import Horizon
from chronos.workers.step.master import Master, MasterParts, Stepped
from chronos.workers.step.pull import Puller
from chronos.workers.step.push import Pusher
from chronos.workers.step.report import StepReport
from chronos.workers.step.tenure import SURE_MS

log = structlog.get_logger("chronos.shard")

POLL_MS = 200
"""Time between the checks of a replica that waits for another node or for the coordinator."""

FOLLOWING_MS = 5_000
"""Longest time between two steps of a follower whose master writes nothing."""

PREDECESSOR_POLL_MS = POLL_MS // 10
"""Time between the checks while the previous master may still finish its step."""

NEAR_OFFSETS = 100
"""Offsets of the progress partition that are applied at once: fencing first would save no time."""

HALVINGS_MAX = 20
"""Aborted transactions in a row that are repeated at once to isolate a poison record: log2 of a
batch, with a margin."""


class ReplicaTurn(Struct, frozen=True, kw_only=True):
    """The result of one turn of a replica."""

    wake_ms: int
    """When the next turn is due (epoch ms)."""
    goes_on: bool = False
    """The next turn is part of the same step. A shard that starts may have to wait between two
    steps, and does not wait between these turns."""
    is_timed: bool = False
    """Only time ends the wait for the next turn; False: records that arrive end it too."""
    report: StepReport | None = None
    """The report of a master's step; None: it has none, see `Stepped.report`."""
    refused: Sequence[tuple[int, int]] = ()
    """`(offset, Reason)` of the refused delay records in the progress records that were committed
    or applied."""
    upserts: Mapping[int, str] = {}
    """As `Staged.upserts`, of the same progress records."""
    failure: Retry | None = None
    """The error that ends the phase, although the rest of the turn holds."""


class Fence(Struct, frozen=True, kw_only=True):
    """The fence of one leadership."""

    writer: Writer
    assignment: Assignment
    """The assignment under which the writer was opened."""
    began_ms: int
    """When taking over began (epoch ms)."""
    fenced_ms: int
    """When every earlier master was fenced (epoch ms)."""


class Phase(ABC):
    """A phase of a replica; this base class has nothing open."""

    def __init__(self, parts: ReplicaParts) -> None:
        self._parts = parts

    @property
    def open(self) -> tuple[Closing, ...]:
        """The parts that this phase uses."""
        return ()

    @property
    def _state(self) -> State:
        return self._parts.state

    # --- what other threads read

    @property
    def delayed(self) -> str | None:
        """See `Replica.delayed`."""
        is_bounded = self._parts.context.bounded
        return READING_BOUNDED if is_bounded and self._parts.status.role in CATCHING_UP else None

    @property
    def pulled(self) -> int:
        """See `Replica.pulled`."""
        return self._state.pull_offset

    @property
    def replayed(self) -> int | None:
        """See `Replica.replayed`."""
        return None

    @property
    def applying(self) -> bool:
        """See `Replica.applying`."""
        return False

    @property
    def master(self) -> Master | None:
        """The master of the leadership; None outside one."""
        return None

    @property
    def pusher(self) -> Pusher | None:
        """The pusher of the leadership; None outside one."""
        return None

    @property
    def waker(self) -> Callable[[], None] | None:
        """Ends a `wait`, see `ports.Reader`."""
        return None

    # --- a turn

    @abstractmethod
    def turn(self, now_ms: int) -> "tuple[Phase, ReplicaTurn]":
        """Do one turn; return the phase that follows, and the result. Raises Retry to start
        again."""

    def wait(self, timeout_s: float) -> bool:
        """Wait for records or for the time to pass; return whether there may be records."""
        return False

    def _restart(self, wake_ms: int) -> "tuple[Phase, ReplicaTurn]":
        return StartPhase(self._parts), ReplicaTurn(wake_ms=wake_ms, is_timed=True)

    def _has_ended(self, leadership: Assignment) -> bool:
        """Return whether the leadership is no longer assigned."""
        assignment = self._parts.context.assigned()
        if assignment.continues(leadership):
            return False
        log.info(
            "no longer master",
            shard=self._parts.number,
            role=assignment.kind,
            epoch=assignment.epoch,
        )
        return True


class StartPhase(Phase):
    """The store is opened and loaded, and the follower is opened at its positions; the logs must
    hold everything from there on."""

    def turn(self, now_ms: int) -> tuple[Phase, ReplicaTurn]:
        context, stored, status = self._parts.context, self._parts.stored, self._parts.status
        stored.mend()
        if context.assigned().kind == "none":
            stored.close()
            status.become(ReplicaState.NONE)
            status.paused = None
            return self, ReplicaTurn(wake_ms=now_ms + POLL_MS, is_timed=True)
        stored.open()
        progress, delay = self._parts.watermarks()
        stored.begin_at(progress, delay)
        cost = RecoveryCost.of(self._state, progress, delay)
        if progress.high and self._restore(cost) and self._state.applied:
            # The restore may have taken long enough for the logs to be trimmed beyond it: check
            # again.
            return self, ReplicaTurn(wake_ms=now_ms)
        # If the logs are trimmed from here on, the first read finds it, and this turn is repeated
        # with a checkpoint.
        settings = context.settings
        check_positions(
            self._state,
            progress,
            delay,
            self._parts.number,
            settings.progress_topic,
            settings.delay_topic,
        )
        follower = self._parts.open.add(
            Follower(
                context.log,
                context.store,
                stored.shard,
                cluster=settings.cluster,
                delay_topic=settings.delay_topic,
                progress_topic=settings.progress_topic,
                bounded=context.bounded,
            )
        )
        status.become(ReplicaState.RECOVERING)
        is_far = progress.stable - self._state.applied > NEAR_OFFSETS
        following = FenceFirstPhase if is_far else FollowPhase
        phase = following(self._parts, follower, Replay(progress.stable))
        return phase, ReplicaTurn(wake_ms=now_ms, goes_on=is_far)

    def _restore(self, cost: RecoveryCost) -> bool:
        """Return whether a checkpoint replaced the contents of the store."""
        if cost.replaces_store:
            self._parts.status.become(ReplicaState.RESTORING)
        return self._parts.stored.restore(cost)


class ReplayingPhase(Phase):
    """A phase in which the follower applies progress records."""

    def __init__(self, parts: ReplicaParts, follower: Follower, replay: Replay) -> None:
        super().__init__(parts)
        self._follower = follower
        self._replay = replay

    @property
    def open(self) -> tuple[Closing, ...]:
        return (self._follower,)

    @property
    def delayed(self) -> str | None:
        reader = self._follower.delay_reader
        if reader is None or self._parts.status.role not in CATCHING_UP:
            return super().delayed
        return reader.delayed

    @property
    def pulled(self) -> int:
        return self._follower.pulled

    @property
    def replayed(self) -> int | None:
        return self._follower.position

    @property
    def applying(self) -> bool:
        return self._follower.applying

    @property
    def waker(self) -> Callable[[], None] | None:
        return self._follower.waker

    def wait(self, timeout_s: float) -> bool:
        return self._follower.wait(timeout_s)

    def _catch_up(self, now_ms: int) -> ReplicaTurn | None:
        """Apply the progress records that can be read now; None if there were none."""
        self._parts.stored.check_writable()
        applied = self._follower.step()
        if not applied.records:
            return None
        self._replay.records += applied.records
        if self._parts.status.role == ReplicaState.RECOVERING:
            self._replay.log_position(self._parts.number, self._state, now_ms)
        return ReplicaTurn(wake_ms=now_ms, refused=applied.refused, upserts=applied.upserts)

    def _fenced(self, assignment: Assignment) -> "ResolvePhase":
        """2. Open the writer, which fences every earlier one; return the phase after that."""
        context = self._parts.context
        began_ms = context.clock.now_ms()
        writer = self._parts.open.add(context.log.writer(self._parts.number))
        fence = Fence(
            writer=writer,
            assignment=assignment,
            began_ms=began_ms,
            fenced_ms=context.clock.now_ms(),
        )
        return ResolvePhase(self._parts, self._follower, self._replay, fence)

    def _may_lead(self, assignment: Assignment, now_ms: int) -> bool:
        """Return whether the last progress record allows this node to lead. Raises RoleStale,
        Deposed."""
        claim, status = self._parts.claim, self._parts.status
        wait_ms = claim.wait_ms(self._state, assignment, now_ms)
        if wait_ms == 0:
            return True
        status.become(ReplicaState.WAITING)
        status.paused = str(claim.waiting(self._state, wait_ms))
        return False


class FenceFirstPhase(ReplayingPhase):
    """Many records are to be applied, and nothing was read yet: 2 is done before 1, if this node is
    to lead and was the last master itself. Another node that was the last master may still be one.

    The transaction that its last process left open hides records in every partition that it wrote
    to, so that a cancel in another shard cannot be read; and the replay of a long log takes its
    time."""

    def turn(self, now_ms: int) -> tuple[Phase, ReplicaTurn]:
        turn = ReplicaTurn(wake_ms=now_ms)
        assignment = self._parts.context.assigned()
        if (
            assignment.kind == "master"
            and assignment.confirmed
            and not assignment.predecessor_active
        ):
            # What fails here is tried again once the log is applied, or found by applying it.
            with suppress(LogUnavailable, LogMismatch):
                if self._is_own(self._follower.last_ahead(self._replay.end)):
                    return self._fenced(assignment), turn
        return FollowPhase(self._parts, self._follower, self._replay), turn

    def _is_own(self, last: Progress | None) -> bool:
        settings = self._parts.context.settings
        return (
            last is not None
            and last.instance == settings.instance
            and last.cluster == settings.cluster
        )


class FollowPhase(ReplayingPhase):
    """1. Everything that can be read is applied. Records after an open transaction are left to
    `ResolvePhase`."""

    def __init__(self, parts: ReplicaParts, follower: Follower, replay: Replay) -> None:
        super().__init__(parts, follower, replay)
        self._arrivals = Arrivals()
        self._arrived: Progress | None = None
        """The last record that this replica has waited for."""

    def turn(self, now_ms: int) -> tuple[Phase, ReplicaTurn]:
        if (caught_up := self._catch_up(now_ms)) is not None:
            return self, caught_up
        assignment = self._parts.context.assigned()
        if assignment.kind == "none":
            return self._restart(now_ms)
        if assignment.kind == "follower":
            return self, self._keep_following(now_ms)
        if not assignment.confirmed:
            return self, ReplicaTurn(wake_ms=now_ms + POLL_MS, is_timed=True)
        if assignment.predecessor_active:
            return self, ReplicaTurn(wake_ms=now_ms + PREDECESSOR_POLL_MS, is_timed=True)
        if not self._follower.has_reached(self._parts.progress_watermarks().stable):
            self._follower.set_patient(False)
            return self, ReplicaTurn(wake_ms=now_ms + POLL_MS)
        if not self._may_lead(assignment, now_ms):
            return self, ReplicaTurn(wake_ms=now_ms + POLL_MS)
        self._parts.status.become(ReplicaState.TAKING_OVER)
        return self._fenced(assignment), ReplicaTurn(wake_ms=now_ms)

    def _keep_following(self, now_ms: int) -> ReplicaTurn:
        """Delete what is past its retention, and wait for more progress records: the follower has
        caught up."""
        follower, status, clock = self._follower, self._parts.status, self._parts.context.clock
        if follower.has_reached(self._replay.end):
            # Until then, a read that finds nothing may be the first one, which finds nothing yet.
            follower.set_patient(True)
        if status.role != ReplicaState.FOLLOWER:
            status.become(ReplicaState.FOLLOWER)
            log.info(
                "follower",
                shard=self._parts.number,
                applied=self._state.applied,
                replayed=self._replay.records,
            )
        elif follower.last is not self._arrived:
            self._arrivals.add(follower.written_ms, clock.now_ms(), clock.stepped_ms())
        self._arrived = follower.last
        status.paused = self._arrivals.problem(clock.stepped_ms())
        self._parts.stored.delete(now_ms)
        return ReplicaTurn(wake_ms=now_ms + FOLLOWING_MS)


class ResolvePhase(ReplayingPhase):
    """3. What the fence resolved is applied: the end of the log counts only when no open
    transaction lies before it."""

    def __init__(
        self, parts: ReplicaParts, follower: Follower, replay: Replay, fence: Fence
    ) -> None:
        super().__init__(parts, follower, replay)
        self._fence = fence

    @property
    def open(self) -> tuple[Closing, ...]:
        return self._follower, self._fence.writer

    def turn(self, now_ms: int) -> tuple[Phase, ReplicaTurn]:
        if (caught_up := self._catch_up(now_ms)) is not None:
            return self, caught_up
        if self._has_ended(self._fence.assignment):
            return self._restart(now_ms)
        follower, status = self._follower, self._parts.status
        watermarks = self._parts.progress_watermarks()
        if watermarks.stable < watermarks.high or not follower.has_reached(watermarks.high):
            if watermarks.stable < watermarks.high and follower.has_reached(watermarks.stable):
                status.paused = (
                    f"{self._parts.context.settings.progress_topic}/{self._parts.number} ends in "
                    "a transaction that is not resolved yet"
                )
            follower.set_patient(False)
            return self, ReplicaTurn(wake_ms=now_ms + POLL_MS)
        if not self._may_lead(self._fence.assignment, now_ms):
            # Another node took over with a later role between 1 and 2, and this fence hit that
            # node: step back.
            return self._restart(now_ms + POLL_MS)
        status.become(ReplicaState.TAKING_OVER)
        if self._replay.needs_flush:
            self._parts.context.store.flush()
        return self._take_over(watermarks.high), ReplicaTurn(wake_ms=now_ms)

    def _take_over(self, end: int) -> "BeginPhase":
        """Return the next phase: the writer goes on at the end of the log, and a puller where the
        follower has read to."""
        parts, fence = self._parts, self._fence
        puller = self._puller()
        fence.writer.begin_at(end)
        pusher = parts.context.pusher()
        leadership = Leadership(
            master=self._master(puller, pusher), pusher=pusher, puller=puller, fence=fence
        )
        return BeginPhase(parts, leadership, self._replay.records)

    def _puller(self) -> Puller:
        context = self._parts.context
        # A new bounded reader reads the batch again: the master may be able to read what the reader
        # of the follower failed at.
        begun = (None, []) if context.bounded else self._follower.read_ahead
        puller = self._parts.open.add(
            Puller(
                context.log,
                context.settings.delay_topic,
                self._parts.number,
                self._state.pull_offset,
                mode="bounded" if context.bounded else "patient",
                begun=begun,
            )
        )
        if not context.bounded:
            self._follower.leave_delay_reader()
        return puller

    def _master(self, puller: Puller, pusher: Pusher) -> Master:
        context, stored, settings = (
            self._parts.context,
            self._parts.stored,
            self._parts.context.settings,
        )
        role_epoch = self._fence.assignment.epoch
        parts = MasterParts(
            writer=self._fence.writer,
            puller=puller,
            pusher=pusher,
            epoch=WriterEpoch(
                cluster=settings.cluster,
                node=settings.node,
                instance=settings.instance,
                shards=context.rules.shards,
                role_epoch=self._state.role_epoch + 1 if role_epoch is None else role_epoch,
                log_epoch=self._state.log_epoch + 1,
            ),
            horizon=Horizon(
                kept_ms=stored.id_states_ms,
                elsewhere=partial(context.elsewhere, self._parts.number),
            ),
            clock=context.clock,
            store=context.store,
            limits=settings.limits,
            foreign=ForeignRecords(settings.progress_topic, self._parts.number),
            tracing=context.tracing,
        )
        return Master(
            stored.shard,
            parts,
            poison_search=self._parts.poison_search,
            letters=self._parts.letters,
        )


class Leadership(Struct, frozen=True, kw_only=True):
    """One leadership, and what is open in it."""

    master: Master
    pusher: Pusher
    puller: Puller
    fence: Fence


class LeadingPhase(Phase):
    """A phase with a master."""

    def __init__(self, parts: ReplicaParts, leadership: Leadership) -> None:
        super().__init__(parts)
        self._leadership = leadership

    @property
    def open(self) -> tuple[Closing, ...]:
        return self._leadership.fence.writer, self._leadership.puller

    @property
    def delayed(self) -> str | None:
        return self._leadership.master.delayed

    @property
    def pulled(self) -> int:
        return self._leadership.master.pulled

    @property
    def master(self) -> Master:
        return self._leadership.master

    @property
    def pusher(self) -> Pusher:
        return self._leadership.pusher

    @property
    def waker(self) -> Callable[[], None] | None:
        return self._leadership.master.waker

    def wait(self, timeout_s: float) -> bool:
        return self._leadership.master.wait(timeout_s)

    def _pause(self, error: Retry, now_ms: int) -> ReplicaTurn:
        """Pause with the reason; the next turn tries the same again."""
        if isinstance(error, ClockDisagrees) and error.aborted:
            self._parts.counts.refused()
        self._parts.status.paused = str(error)
        return ReplicaTurn(wake_ms=now_ms + PAUSE_MS, is_timed=True)


class BeginPhase(LeadingPhase):
    """4. The epoch record is committed; while the clocks disagree, the replica pauses and tries
    again."""

    def __init__(self, parts: ReplicaParts, leadership: Leadership, replayed: int) -> None:
        """`replayed`: number of progress records that were applied since the start."""
        super().__init__(parts, leadership)
        self._replayed = replayed
        self._resolved_ms = parts.context.clock.now_ms()
        """When the log was applied to its end (epoch ms)."""

    def turn(self, now_ms: int) -> tuple[Phase, ReplicaTurn]:
        if self._has_ended(self._leadership.fence.assignment):
            return self._restart(now_ms)
        # The first epoch record names where the shard begins: it must not name records that were
        # deleted since the start.
        if not self._state.applied and self._parts.watermarks()[1].start > self._state.pull_offset:
            return self._restart(now_ms)
        try:
            self._parts.stored.check_writable()
            self._leadership.master.begin()
        except (ProducerLost, ApplyFailed):
            raise
        except Retry as error:
            return self, self._pause(error, now_ms)
        self._note_begin()
        return LeadPhase(self._parts, self._leadership), ReplicaTurn(wake_ms=now_ms)

    def _note_begin(self) -> None:
        status, fence, state = self._parts.status, self._leadership.fence, self._state
        ended = self._parts.claim.began(state.log_epoch)
        status.become(ReplicaState.MASTER)
        status.paused = None
        log.info(
            "master",
            shard=self._parts.number,
            epoch=state.log_epoch,
            pending=state.pending,
            replayed=self._replayed,
            fence_ms=fence.fenced_ms - fence.began_ms,
            resolve_ms=self._resolved_ms - fence.fenced_ms,
            commit_ms=self._parts.context.clock.now_ms() - self._resolved_ms,
            **({} if ended is None else {"after": ended}),
        )


class LeadPhase(LeadingPhase):
    """5. The master steps until its leadership ends."""

    def __init__(self, parts: ReplicaParts, leadership: Leadership) -> None:
        super().__init__(parts, leadership)
        self._aborts_in_a_row = 0

    def turn(self, now_ms: int) -> tuple[Phase, ReplicaTurn]:
        if self._has_ended(self._leadership.fence.assignment):
            return self._restart(now_ms)
        master, counts = self._leadership.master, self._parts.counts
        try:
            self._parts.stored.check_writable()
            stepped = master.step(now_ms)
        except (ProducerLost, ApplyFailed) as error:
            counts.failed(str(error))
            raise
        except TransactionAborted as error:
            return self, self._step_again(error, now_ms)
        except Retry as error:
            if isinstance(error, LogUnavailable):
                self._leadership.pusher.targets.forget_all()
            return self, self._pause(error, now_ms)
        return self, self._after(stepped, now_ms)

    def _after(self, stepped: Stepped, now_ms: int) -> ReplicaTurn:
        """Count what the step committed, and delete what is past its retention."""
        master, report = self._leadership.master, stepped.report
        turn = ReplicaTurn(wake_ms=stepped.wake_ms, is_timed=stepped.is_timed)
        if report is not None:
            turn = replace(turn, report=report, refused=report.refused, upserts=report.upserts)
            self._parts.counts.committed()
            self._parts.backoff.reset()
            self._aborts_in_a_row = 0
        self._parts.status.paused = master.degraded()
        try:
            delete_ms = self._parts.stored.delete(now_ms)
        except Retry as error:
            # What the step committed is reported all the same.
            return replace(turn, failure=error)
        return replace(turn, wake_ms=min(stepped.wake_ms, delete_ms))

    def _step_again(self, error: TransactionAborted, now_ms: int) -> ReplicaTurn:
        """Nothing was written: repeat at once while a poison record is being isolated, else after a
        growing pause. Raises ProducerLost if the brokers may have forgotten the transactional
        id."""
        self._parts.counts.failed(str(error))
        log.warning("transaction aborted", shard=self._parts.number, why=str(error))
        silent_ms = self._leadership.master.tenure.silent_ms
        if silent_ms > SURE_MS:
            raise ProducerLost(
                f"{error}; nothing was committed for {silent_ms // 1_000} s before, so that the "
                "fence may have been lost with it"
            ) from error
        self._aborts_in_a_row += 1
        if self._aborts_in_a_row > HALVINGS_MAX:
            self._parts.status.paused = str(error)
        if error.poison_likely and self._aborts_in_a_row <= HALVINGS_MAX:
            return ReplicaTurn(wake_ms=now_ms)
        return ReplicaTurn(wake_ms=now_ms + self._parts.backoff.take(), is_timed=True)
