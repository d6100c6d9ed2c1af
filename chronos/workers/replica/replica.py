"""The replica: one node's copy of a shard, which follows the shard's master or is the master.

It is a step machine: `step(now_ms)` does one step of the phase that follows from what is open, and
returns the time of the next step:

    start ──▶ follow ──▶ resolve ──▶ begin ──▶ lead     the numbers of docs/concepts/flow.md, "A new master"
      ▲        1, 2         3          4         5
      └──────────┴──────────┴──────────┴─────────┘
       close everything, start from the store

Everything is closed at the end of the assignment, after a lost producer or a failed write to the
store, and after any Retry before `begin`. After another Retry in `begin` or `lead`, wherever in the
step, the step is repeated, mostly after a pause. A node that was the last master itself may do 2 in
`start`.

Other threads and nodes see the `role` of the replica, a `ReplicaState`. Other threads may read its
properties during a step, which opens and closes parts: so a property reads each attribute once.

Keeps its part of laws 3 and 5: a replica that is assigned master first fences every earlier master,
then applies everything they committed, and commits only after an epoch record of its own. The
reaction to a failure depends on its branch of `errors`."""  # noqa: E501

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

import structlog

from chronos.core.clock import Arrivals
from chronos.core.keys import STATE_KEY
from chronos.core.shard.codec import FRESH, State, unpack_state
from chronos.core.shard.progress import Progress
from chronos.core.shard.shard import Shard
from chronos.errors import (
    ApplyFailed,
    ClockDisagrees,
    LogMismatch,
    LogUnavailable,
    NoSpace,
    ProducerLost,
    Retry,
    TransactionAborted,
)
from chronos.ports import READING_BOUNDED, Watermarks, Writer
from chronos.workers.push.letter_topics import LetterTopics
from chronos.workers.push.push import Pusher
from chronos.workers.replica.follow import Follower
from chronos.workers.replica.horizon import Horizon
from chronos.workers.replica.leadership import Assignment, Claim, WriterEpoch
from chronos.workers.replica.master import Master, MasterParts, ReplicaContext
from chronos.workers.replica.poison import PoisonSearch
from chronos.workers.replica.pull import Puller
from chronos.workers.replica.recovery import (
    RecoveryCost,
    Replay,
    begun,
    check_positions,
)
from chronos.workers.replica.report import StepReport
from chronos.workers.replica.retention import DELETE_EVERY_MS, Deleter
from chronos.workers.replica.state import TRANSITIONS, ReplicaState
from chronos.workers.replica.tenure import SURE_MS

PAUSE_MS = 500
"""Pause after a failure that an immediate retry cannot fix."""

ABORT_PAUSE_MS = 50
"""Pause after an aborted transaction without a poison record, doubled each time up to
PAUSE_MS."""


class Backoff:
    """Pauses of growing length: from ABORT_PAUSE_MS on, doubled each time, up to PAUSE_MS."""

    def __init__(self) -> None:
        self._next_ms = ABORT_PAUSE_MS

    def take(self) -> int:
        """Return the length of the pause that begins now (ms)."""
        taken_ms, self._next_ms = self._next_ms, min(2 * self._next_ms, PAUSE_MS)
        return taken_ms

    def reset(self) -> None:
        """Begin again with the shortest pause."""
        self._next_ms = ABORT_PAUSE_MS


CATCHING_UP = frozenset({ReplicaState.STARTING, ReplicaState.RECOVERING, ReplicaState.TAKING_OVER})
"""States of a replica that may not have applied its log to the end."""


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


class Replica:
    """One shard on this node."""

    def __init__(self, context: ReplicaContext) -> None:
        self.number = context.rules.shard
        self.store = context.store
        self.commits = 0
        """Transactions committed by this process."""
        self.aborts = 0
        """Transactions aborted or lost by this process."""
        self.last: StepReport | None = None
        """The result of the last step as master; None if it committed nothing."""
        self.refused: list[tuple[int, int]] = []
        """`(offset, Reason)` of the refused delay records in the progress records that the last
        step committed or applied."""
        self.upserts: Mapping[int, str] = {}
        """As `Staged.upserts`, of the same progress records."""
        self.trouble: str | None = None
        """Why the last transaction was aborted or lost; None once one was committed after it."""
        self.limits = context.settings.limits
        self.known = False
        """The state is that of the store; False: it must not be reported."""
        self._role = ReplicaState.STARTING
        self._paused: str | None = None
        self._context = context
        self._settings = context.settings
        self._log = context.log
        self._clock = context.clock
        self._poison_search = PoisonSearch(messages_max=self.limits.messages)
        self._letters = LetterTopics()
        self._backoff = Backoff()
        self._sleeping = False
        """True if records that arrive do not end the wait after the last step, but only time
        does."""
        self._led_epoch: int | None = None
        """The log epoch of this process's last leadership; None before the first."""
        self._ended: str | None = None
        """Why that leadership ended, for people; None: no error ended it."""
        self._forget()
        # A store that is not open holds nothing yet: it is created with the first assignment.
        self.shard = self._load() if self.store.is_open else self._make_shard(FRESH)

    def _forget(self) -> None:
        """Reset what belongs to one run from `_start` on: nothing is open, nothing is under way."""
        self._follower: Follower | None = None
        self._writer: Writer | None = None
        self._master: Master | None = None
        self._pusher: Pusher | None = None
        self._leadership: Assignment | None = None
        """The assignment under which the writer was opened."""
        self._take_over_ms: list[int] = []
        """Epoch ms at which taking over began, at which earlier masters were fenced, and at which
        the log was applied to its end."""
        self._replay = Replay()
        self._arrivals = Arrivals()
        self._arrived: Progress | None = None
        """The last record that this replica has waited for."""
        self._aborts_in_a_row = 0
        self._delete_ms = 0

    # --- what other threads read

    @property
    def role(self) -> ReplicaState:
        """The current state of the replica."""
        return self._role

    @property
    def paused(self) -> str | None:
        """Why the replica is paused, for people; None if it is not."""
        return self._paused

    @property
    def delayed(self) -> str | None:
        """Why a replica that has not caught up, or a master, reads its log slowly or waits to read
        it; None if it does neither."""
        master, follower = self._master, self._follower
        if master is not None:
            return master.delayed
        if self._role not in CATCHING_UP:
            return None
        reader = None if follower is None else follower.delay_reader
        if reader is not None:
            return reader.delayed
        return READING_BOUNDED if self._context.bounded else None

    @property
    def state(self) -> State:
        """The shard's state as of the last step."""
        return self.shard.state

    @property
    def pulled(self) -> int:
        """Offset in the delay partition up to which everything is executed, transaction markers
        included."""
        master, follower = self._master, self._follower
        if master is not None:
            return master.pulled
        return self.state.pull_offset if follower is None else follower.pulled

    @property
    def due_ms(self) -> int | None:
        """Due time (epoch ms) of the next message as of a master's last step; None if it is
        not known."""
        master = self._master
        return None if master is None else master.due_ms

    def waits_for(self, now_ms: int) -> str | None:
        """Return the records whose acknowledgement a master's transaction waits for, for people;
        None if it does not wait."""
        pusher = self._pusher
        return None if pusher is None else pusher.partitions.waits_for(now_ms)

    @property
    def quota_rate(self) -> int:
        """Bytes a second to which a quota of the brokers slows a master down; 0: none does."""
        master = self._master
        throttle = None if master is None else master.throttle
        return 0 if throttle is None else throttle.rate

    def target_partitions(self, topic: str) -> int | None:
        """Return the number of partitions that a master last found the target to have; None if it
        is not known."""
        pusher = self._pusher
        known = None if pusher is None else pusher.targets.known([topic]).get(topic)
        return None if known is None or known.info is None else known.info.partitions

    @property
    def waiting(self) -> Mapping[str, int]:
        """Limited target -> number of messages that wait for its rate; empty if this replica is not
        the master."""
        master = self._master
        return {} if master is None else master.lanes.waiting

    @property
    def replayed(self) -> int | None:
        """Offset up to which the progress partition was read; None for a master, which does not
        read it."""
        follower = self._follower
        return None if follower is None else follower.position

    @property
    def applying(self) -> bool:
        """Progress records were read and are being applied."""
        follower = self._follower
        return follower is not None and follower.applying

    # --- a turn

    def step(self, now_ms: int) -> int:
        """Do one turn; return when to be called again, in epoch ms. A Retry pauses and starts
        again; a Stop is raised."""
        self.last, self.refused, self.upserts, self._sleeping = None, [], {}, False
        try:
            return self._turn_or_restore(now_ms)
        except Retry as error:
            self._paused = str(error)
            if self._role == ReplicaState.MASTER:
                self._ended = str(error)
            self._restart()
            return now_ms + self._backoff.take()

    def _turn_or_restore(self, now_ms: int) -> int:
        """Do one turn. Raises Retry if a log was trimmed ahead of the store, so that the next start
        restores a checkpoint: the node that trims the logs may not know this replica yet, or may
        have given it up."""
        try:
            return self._turn(now_ms)
        except LogMismatch as error:
            # With nothing open, `_start` has looked for a checkpoint already.
            if self._follower is None and self._master is None:
                raise
            if RecoveryCost.of(self.state, *self._watermarks()).logs_complete:
                raise
            raise Retry(f"shard {self.number} starts again from a checkpoint: {error}") from error

    def _turn(self, now_ms: int) -> int:
        """Do one turn of the current phase, which follows from what is open."""
        if self._master is not None:
            return self._lead(now_ms) if self._role == ReplicaState.MASTER else self._begin(now_ms)
        if self._follower is None:
            return self._start(now_ms)
        return self._follow(now_ms) if self._writer is None else self._resolve(now_ms)

    def wait(self, timeout_s: float) -> bool | None:
        """Wait for records or for the time to pass, and return whether there may be records; None,
        at once, if no record could end the wait."""
        if self._sleeping:
            return None
        if self._master is not None:
            return None if self._master.lingering else self._master.wait(timeout_s)
        return None if self._follower is None else self._follower.wait(timeout_s)

    @property
    def waker(self) -> Callable[[], None] | None:
        """Ends a `wait`, see `ports.Reader`. Any thread may read and call it."""
        waiting = self._master or self._follower
        return None if waiting is None else waiting.waker

    def close(self) -> None:
        """Close everything for good; an open transaction is left for the next master to resolve."""
        self._restart()
        self._become(ReplicaState.STOPPED)

    def fail(self, why: str) -> None:
        """Mark the replica as failed after a step that raised; open clients are left to the end of
        the process."""
        self._become(ReplicaState.FAILED)
        self._paused = why

    def _become(self, role: ReplicaState) -> None:
        if role != self._role:
            assert role in TRANSITIONS[self._role], (
                f"a replica that is {self._role} cannot become {role}"
            )
            self._role = role

    def _sleep_until(self, wake_ms: int) -> int:
        self._sleeping = True
        return wake_ms

    def _restart(self) -> None:
        """Close everything and start again from the store."""
        self._sleeping = True
        follower, master, writer = self._follower, self._master, self._writer
        self._forget()
        if follower is not None:
            follower.close()
        if master is not None:
            self._become(ReplicaState.STEPPED_DOWN)
            master.close()
        elif writer is not None:
            writer.close()

    # --- the phases

    def _start(self, now_ms: int) -> int:
        """Open the follower at the store's positions; the logs must hold everything from there
        on."""
        if self.store.is_open and self.store.background_error() is not None:
            # Until then it takes no write and no flush, even if its disk works again.
            self.store.reopen()
            self.shard = self._load()
        if self._context.assigned().kind == "none":
            if self.store.is_open:
                # Closing flushes too, but a store that it could not flush would be closed.
                self.store.flush()
                self.store.close()
            self._become(ReplicaState.NONE)
            self._paused = None
            return self._sleep_until(now_ms + POLL_MS)
        if not self.store.is_open:
            self.store.open()
        self.shard = self._load()
        progress, delay = self._watermarks()
        self.shard.state = begun(
            self.state,
            self._log,
            self.number,
            self._context.rules.shards,
            self._settings.progress_topic,
            progress,
            delay,
        )
        if self._restore_store(RecoveryCost.of(self.state, progress, delay), progress):
            self.shard = self._load()
            if self.state.applied:
                # The restore may have taken long enough for the logs to be trimmed beyond it: check
                # again.
                return now_ms
        # If the logs are trimmed from here on, the first read finds it, and this turn is repeated
        # with a checkpoint.
        check_positions(
            self.state,
            progress,
            delay,
            self.number,
            self._settings.progress_topic,
            self._settings.delay_topic,
        )
        self._replay.end = progress.stable
        self._follower = Follower(
            self._log,
            self.store,
            self.shard,
            cluster=self._settings.cluster,
            delay_topic=self._settings.delay_topic,
            progress_topic=self._settings.progress_topic,
            bounded=self._context.bounded,
        )
        self._become(ReplicaState.RECOVERING)
        if progress.stable - self.state.applied > NEAR_OFFSETS:
            self._fence_first(self._follower, progress.stable)
        return now_ms

    def _fence_first(self, follower: Follower, stable: int) -> None:
        """Do 2 before 1, if this node is to lead, and was the last master itself.

        The transaction that its last process left open hides records in every partition that it
        wrote to, so that a cancel in another shard cannot be read; and the replay of a long log
        takes its time. Any other node may still be master."""
        assignment = self._context.assigned()
        if assignment.kind != "master" or not assignment.confirmed or assignment.predecessor_active:
            return
        # What fails here is tried again when the log was applied, or found by applying it.
        with suppress(LogUnavailable, LogMismatch):
            last = follower.last_ahead(stable)
            if (
                last is not None
                and last.instance == self._settings.instance
                and last.cluster == self._settings.cluster
            ):
                self._fence(assignment)

    def _fence(self, assignment: Assignment) -> None:
        """Open the writer, which fences every earlier one."""
        self._take_over_ms = [self._clock.now_ms()]
        self._writer = self._log.writer(self.number)
        self._leadership = assignment
        self._take_over_ms.append(self._clock.now_ms())

    def _follow(self, now_ms: int) -> int:
        """1. Apply everything that can be read. Records after an open transaction are left to
        `_resolve`."""
        follower = self._follower
        assert follower is not None
        if self._catch_up(follower, now_ms):
            return now_ms
        assignment = self._context.assigned()
        if assignment.kind == "none":
            self._restart()
            return now_ms
        if assignment.kind == "follower":
            return self._keep_following(follower, now_ms)
        if not assignment.confirmed:
            return self._sleep_until(now_ms + POLL_MS)
        if assignment.predecessor_active:
            return self._sleep_until(now_ms + PREDECESSOR_POLL_MS)
        if not follower.has_reached(
            self._log.watermarks(self._settings.progress_topic, self.number).stable
        ):
            follower.set_patient(False)
            return now_ms + POLL_MS
        if not self._may_lead(assignment, now_ms):
            return now_ms + POLL_MS
        # 2. Fence every earlier master, and have its last transaction resolved.
        self._become(ReplicaState.TAKING_OVER)
        self._fence(assignment)
        return now_ms

    def _keep_following(self, follower: Follower, now_ms: int) -> int:
        """Delete what is past its retention, and wait for more progress records: the follower has
        caught up."""
        if follower.has_reached(self._replay.end):
            # Before, a read that finds nothing yet is the first one.
            follower.set_patient(True)
        if self._role != ReplicaState.FOLLOWER:
            self._become(ReplicaState.FOLLOWER)
            log.info(
                "follower",
                shard=self.number,
                applied=self.state.applied,
                replayed=self._replay.records,
            )
        elif follower.last is not self._arrived:
            self._arrivals.add(follower.written_ms, self._clock.now_ms(), self._clock.stepped_ms())
        self._arrived = follower.last
        self._paused = self._arrivals.problem(self._clock.stepped_ms())
        self._delete(now_ms)
        return now_ms + FOLLOWING_MS

    def _resolve(self, now_ms: int) -> int:
        """3. Apply what the fence resolved: the end of the log counts only when no open transaction
        lies before it."""
        follower, writer, leadership = self._follower, self._writer, self._leadership
        assert follower is not None
        assert writer is not None
        assert leadership is not None
        if self._catch_up(follower, now_ms):
            return now_ms
        if self._leadership_ended():
            return now_ms
        watermarks = self._log.watermarks(self._settings.progress_topic, self.number)
        if watermarks.stable < watermarks.high or not follower.has_reached(watermarks.high):
            if watermarks.stable < watermarks.high and follower.has_reached(watermarks.stable):
                self._paused = (
                    f"{self._settings.progress_topic}/{self.number} ends in a transaction that is "
                    "not resolved yet"
                )
            follower.set_patient(False)
            return now_ms + POLL_MS
        if not self._may_lead(leadership, now_ms):
            # Another node took over with a later role between 1 and 2, and this fence hit that
            # node: step back.
            self._restart()
            return now_ms + POLL_MS
        self._become(ReplicaState.TAKING_OVER)
        if self._replay.needs_flush:
            self.store.flush()
        puller = Puller(
            self._log,
            self._settings.delay_topic,
            self.number,
            self.state.pull_offset,
            mode="bounded" if self._context.bounded else "patient",
            # A bounded reader begins anew with its batch: what it failed at for the follower, the
            # master may read.
            begun=(None, []) if self._context.bounded else follower.leave_delay_reader(),
        )
        self._follower = None
        follower.close()
        writer.begin_at(watermarks.high)
        self._make_master(writer, puller, leadership)
        self._take_over_ms.append(self._clock.now_ms())
        return now_ms

    def _make_master(self, writer: Writer, puller: Puller, leadership: Assignment) -> None:
        self._pusher = self._context.pusher()
        settings = self._settings
        parts = MasterParts(
            writer=writer,
            puller=puller,
            pusher=self._pusher,
            epoch=WriterEpoch(
                cluster=settings.cluster,
                node=settings.node,
                instance=settings.instance,
                shards=self._context.rules.shards,
                role_epoch=self.state.role_epoch + 1
                if leadership.epoch is None
                else leadership.epoch,
                log_epoch=self.state.log_epoch + 1,
            ),
            horizon=Horizon(
                kept_ms=None if self._deleter is None else self._deleter.id_states_ms,
                elsewhere=partial(self._context.elsewhere, self.number),
            ),
        )
        self._master = Master(
            self._context,
            self.shard,
            parts,
            poison_search=self._poison_search,
            letters=self._letters,
        )

    def _begin(self, now_ms: int) -> int:
        """4. Commit the epoch record; while the clocks disagree, pause and try again."""
        master = self._master
        assert master is not None
        if self._leadership_ended():
            return now_ms
        # The first epoch record names where the shard begins: it must not name records that were
        # deleted since `_start`.
        if not self.state.applied and self._watermarks()[1].start > self.state.pull_offset:
            self._restart()
            return now_ms
        try:
            self._check_guard()
            master.begin()
        except (ProducerLost, ApplyFailed):
            raise
        except Retry as error:
            self._count_abort(error)
            self._paused = str(error)
            return self._sleep_until(now_ms + PAUSE_MS)
        epoch, pending = self.state.log_epoch, self.state.pending
        self._led_epoch = epoch
        self._become(ReplicaState.MASTER)
        self._paused = None
        begun_ms, fenced_ms, resolved_ms = self._take_over_ms
        ended, self._ended = self._ended, None
        log.info(
            "master",
            shard=self.number,
            epoch=epoch,
            pending=pending,
            replayed=self._replay.records,
            fence_ms=fenced_ms - begun_ms,
            resolve_ms=resolved_ms - fenced_ms,
            commit_ms=self._clock.now_ms() - resolved_ms,
            **({} if ended is None else {"after": ended}),
        )
        return now_ms

    def _lead(self, now_ms: int) -> int:
        """5. Step until the leadership ends."""
        master = self._master
        assert master is not None
        if self._leadership_ended():
            return now_ms
        try:
            self._check_guard()
            wake_ms = master.step(now_ms)
        except (ProducerLost, ApplyFailed) as error:
            self.aborts += 1
            self.trouble = str(error)
            raise
        except TransactionAborted as error:
            return self._step_again(master, error, now_ms)
        except Retry as error:
            if isinstance(error, LogUnavailable) and self._pusher is not None:
                self._pusher.targets.forget_all()
            self._count_abort(error)
            self._paused = str(error)
            return self._sleep_until(now_ms + PAUSE_MS)
        if master.last is not None:
            self.last = master.last
            self.refused, self.upserts = master.last.refused, master.last.upserts
            self.commits += 1
            self.trouble = None
            self._aborts_in_a_row = 0
            self._backoff.reset()
        self._paused = master.degraded()
        delete_ms = self._delete(now_ms)
        return min(wake_ms, delete_ms)

    def _count_abort(self, error: Retry) -> None:
        if isinstance(error, ClockDisagrees) and error.aborted:
            self.aborts += 1

    def _step_again(self, master: Master, error: TransactionAborted, now_ms: int) -> int:
        """Nothing was written: repeat at once while a poison record is being isolated, else after a
        growing pause. Raises ProducerLost if the brokers may have forgotten the transactional
        id."""
        self.aborts += 1
        self.trouble = str(error)
        log.warning("transaction aborted", shard=self.number, why=str(error))
        silent_ms = master.tenure.silent_ms
        if silent_ms > SURE_MS:
            raise ProducerLost(
                f"{error}; nothing was committed for {silent_ms // 1_000} s before, so that the "
                "fence may have been lost with it"
            ) from error
        self._aborts_in_a_row += 1
        if self._aborts_in_a_row > HALVINGS_MAX:
            self._paused = str(error)
        if error.poison_likely and self._aborts_in_a_row <= HALVINGS_MAX:
            return now_ms
        return self._sleep_until(now_ms + self._backoff.take())

    # --- parts of phases

    def _load(self) -> Shard:
        """Return the shard as the store holds it, and make its delete worker. Raises
        LogMismatch."""
        (data,) = self.store.get([STATE_KEY])
        state = FRESH if data is None else unpack_state(data)
        return self._make_shard(state)

    def _make_shard(self, state: State) -> Shard:
        self.known = True
        shard = Shard(rules=self._context.rules, state=state, view=self.store)
        self._deleter = None
        if self._settings.delivered_ms is not None:
            self._deleter = Deleter(
                self.store,
                shard,
                delivered_ms=self._settings.delivered_ms,
                deduplication_ms=self._settings.deduplication_ms,
            )
        return shard

    def _delete(self, now_ms: int) -> int:
        """Step the delete worker if it is due; return when it is due next."""
        if self._deleter is None:
            return now_ms + DELETE_EVERY_MS
        # A time further away than the interval was set by a clock that was ahead then.
        if not 0 < self._delete_ms - now_ms <= DELETE_EVERY_MS:
            self._delete_ms = self._deleter.step(now_ms)
        return self._delete_ms

    def _catch_up(self, follower: Follower, now_ms: int) -> int:
        """Apply the progress records that can be read now; return how many."""
        self._check_guard()
        applied = follower.step()
        self.refused, self.upserts = follower.refused, follower.upserts
        self._replay.records += applied
        if self._role == ReplicaState.RECOVERING and applied:
            self._replay.log_position(self.number, self.state, now_ms)
        return applied

    def _leadership_ended(self) -> bool:
        """Return whether the leadership is no longer assigned; if so, everything is closed."""
        assignment = self._context.assigned()
        if assignment.continues(self._leadership):
            return False
        log.info(
            "no longer master", shard=self.number, role=assignment.kind, epoch=assignment.epoch
        )
        self._restart()
        self._sleeping = False
        return True

    def _watermarks(self) -> tuple[Watermarks, Watermarks]:
        """Return the watermarks of the progress and of the delay partition."""
        watermarks = self._log.watermarks
        return watermarks(self._settings.progress_topic, self.number), watermarks(
            self._settings.delay_topic, self.number
        )

    def _restore_store(self, cost: RecoveryCost, progress: Watermarks) -> bool:
        """Return whether a checkpoint replaced the contents of the store."""
        if progress.high == 0:
            return False
        if cost.store_empty or not cost.logs_complete:
            self._become(ReplicaState.RESTORING)
            self.known = False
        restored = self._context.restore(cost)
        self.known = True
        return restored

    def _may_lead(self, assignment: Assignment, now_ms: int) -> bool:
        """Return whether the last progress record allows this node to lead. Raises RoleStale,
        Deposed."""
        claim = Claim(
            shard=self.number,
            node=self._settings.node,
            instance=self._settings.instance,
            led_epoch=self._led_epoch,
            ended=self._ended,
        )
        wait_ms = claim.wait_ms(self.state, assignment, now_ms)
        if wait_ms == 0:
            return True
        self._become(ReplicaState.WAITING)
        self._paused = str(claim.waiting(self.state, wait_ms))
        return False

    def _check_guard(self) -> None:
        why = self._context.guard()
        if why is not None:
            raise NoSpace(why)
        error = self.store.background_error()
        if error is not None:
            raise ApplyFailed(
                f"the store takes no writes: {error}. Make room on its disk, or look at the disk "
                "itself"
            )
