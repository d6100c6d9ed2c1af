"""The replica: one node's copy of a shard, from its store through following, taking over and reigning, and back.

A step machine: `step(now_ms)` does what is due in the present phase and says when it wants to be called again.

    start ──▶ follow ──▶ resolve ──▶ begin ──▶ reign        the numbers of DESIGN section 2, "A new master":
      ▲          1          2, 3        4         5          follow 1, resolve 2 and 3, begin 4, reign 5
      └──────────┴──────────┴───────────┴─────────┘
       a lost producer, a role that ended, anything that must be tried again: start from what the store holds

Keeps laws 3 and 5: whoever believes to be master fences first, reads everything that was committed, and commits only
with the epoch record in front. What a failure means is decided here, by the branch of `errors` it belongs to.
"""

import re
from collections.abc import Callable

import structlog
from msgspec import Struct

from chronos.core.codec import FRESH, State, unpack_state
from chronos.core.keys import STATE_KEY
from chronos.core.rules import Rules
from chronos.core.shard import Shard
from chronos.errors import (
    ApplyFailed,
    ClockDisagrees,
    Deposed,
    LogMismatch,
    LogUnavailable,
    NoSpace,
    ProducerLost,
    Retry,
    RoleStale,
    TransactionAborted,
)
from chronos.ports import Clock, Log, Reader, Store, Writer
from chronos.workers.delete import EVERY_MS, Deleter
from chronos.workers.follow import Follower
from chronos.workers.master import Limits, Master, PoisonSearch, StepResult, WriterEpoch
from chronos.workers.pull import Puller
from chronos.workers.push import Pusher

log = structlog.get_logger("chronos.shard")

FOREIGN_SILENCE_MS = 90_000
"""A standalone node takes over from another one after so long without a progress record: one and a half heartbeats."""

LOOK_MS = 200
"""How often a replica that waits for others looks whether anything changed."""

PAUSE_MS = 500
"""Pause after a failure that only time can mend."""

ABORT_PAUSE_MS = 50
"""Pause after an aborted transaction without a culprit, doubled each time up to PAUSE_MS."""

REPLAYED_FLUSH = 200
"""A replay of so many progress records (tenths of a second) is kept: killed again, a node must not repeat it."""

HALVINGS_MAX = 20
"""Aborted transactions in a row that the search for a culprit may take: log2 of a batch, and some more."""

DIGITS = re.compile(r"\d+")


class Assignment(Struct, frozen=True, kw_only=True):
    """What a replica is to be at the moment."""

    kind: str
    """`master`, `follower`, or `none`: this node does not hold the shard."""
    epoch: int | None = None
    """The role epoch that came with the role of master; None: nobody gives out roles (standalone)."""
    confirmed: bool = True
    """The coordinator confirms it now. False: go on, but begin nothing."""
    predecessor_active: bool = False
    """The master before this one may still be finishing its step: give it a moment."""

    def continues(self, other: "Assignment | None") -> bool:
        """Whether a mastership that began under `other` is still the same."""
        return other is not None and self.kind == other.kind and self.epoch == other.epoch


STANDALONE = Assignment(kind="master")
"""The role of every replica where there is nobody else."""


class RecoveryCost(Struct, frozen=True, kw_only=True):
    """What it would take to go on with the logs from what a store holds."""

    empty: bool
    """It holds nothing yet."""
    whole: bool
    """The logs reach back to it."""
    records: int
    """How many records of both logs would be read."""
    applied_min: int
    """Where the progress partition begins: what is behind that is of no use."""
    pull_offset_min: int
    """Where the delay partition begins."""


class Replica:
    """One shard on this node."""

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
        assigned: Callable[[], Assignment],
        begin: Callable[[RecoveryCost], bool] = lambda replay: False,
    ) -> None:
        """`begin`: put a checkpoint in the place of what the store holds, where that is better than a replay, or the only
        way; whether it did. Raises Retry: it cannot be done yet."""
        self.number = rules.shard
        self.store = store
        self.role = "starting"
        """What it does at the moment, for people and for the controller."""
        self.paused: str | None = None
        """Why nothing moves, for people; None while all is well."""
        self.commits = 0
        self.aborts = 0
        self.last: StepResult | None = None
        """What the last step committed as master."""
        self.refused: list[tuple[int, int]] = []
        """`(offset, Reason)` of the delay records that the last step refused, or saw refused."""
        self.known = False
        """Whether the state is that of the store: what is unknown is not reported."""
        self._log = log_port
        self._clock = clock
        self._rules = rules
        self._make_pusher = pusher
        self._limits = limits
        self._delay_topic = delay_topic
        self._progress_topic = progress_topic
        self._node = node
        self._instance = instance
        self._delivered_ms = delivered_ms
        self._deduplication_ms = deduplication_ms
        self._guard = guard
        self._assigned = assigned
        self._restore = begin
        self._poison_search = PoisonSearch(messages_max=limits.messages)
        self._phase: Callable[[int], int] = self._start
        self._pause_ms = ABORT_PAUSE_MS
        self._resting = False
        self._led_epoch: int | None = None
        self._forget()
        self.shard = self._load()

    def _forget(self) -> None:
        """Nothing is open, nothing is under way."""
        self._follower: Follower | None = None
        self._writer: Writer | None = None
        self._master: Master | None = None
        self._pusher: Pusher | None = None
        self._leadership: Assignment | None = None
        self._replayed = 0
        self._told_ms = 0
        self._aborts_in_a_row = 0
        self._clean_ms = 0

    # --- what others ask

    @property
    def state(self) -> State:
        """The state as of the last step."""
        return self.shard.state

    @property
    def pulled(self) -> int:
        """Offset in the delay partition up to which everything is executed, transaction markers included."""
        if self._master is not None:
            return self._master.pulled
        return self.state.pull_offset if self._follower is None else self._follower.pulled

    # --- a turn

    def step(self, now_ms: int) -> int:
        """One turn of the present phase; when to be called again, in epoch ms. A Stop is raised, a Retry is met."""
        self.last, self.refused, self._resting = None, [], False
        try:
            return self._phase(now_ms)
        except Retry as error:
            self._pause(error)
            self._restart()
            wake_ms = now_ms + self._pause_ms
            self._pause_ms = min(2 * self._pause_ms, PAUSE_MS)
            return wake_ms

    def wait(self, timeout_s: float) -> bool:
        """Wait for records to come, or for the time to pass; False, at once, when there is nothing to wait for."""
        if self._resting:
            return False
        if self._master is not None and not self._master.lingering:
            self._master.wait(timeout_s)
            return True
        if self._master is None and self._follower is not None:
            self._follower.wait(timeout_s)
            return True
        return False

    def close(self) -> None:
        """End whatever is under way; a transaction that is open is the next master's to resolve."""
        self._restart()
        self.role = "stopped"

    def _rest(self, until_ms: int) -> int:
        self._resting = True
        return until_ms

    def _restart(self) -> None:
        """Give everything back and go on from what the store holds."""
        self._resting = True
        self._phase = self._start
        follower, master, writer = self._follower, self._master, self._writer
        self._forget()
        if follower is not None:
            follower.close()
        if master is not None:
            self.role = "resigned"
            master.close()
        elif writer is not None:
            writer.close()

    # --- the phases

    def _start(self, now_ms: int) -> int:
        """From what the store holds; the logs must hold everything from there on."""
        if self._assigned().kind == "none":
            self.role = "none"
            self.paused = None
            return self._rest(now_ms + LOOK_MS)
        if self.store.background_error() is not None:
            self.store.reopen()
        self.shard = self._load()
        if self._restore_store(self.state):
            self.shard = self._load()
            if self.state.applied:
                # It may have taken long, and the logs may begin behind it by now: look again.
                return now_ms
        self._check_positions(self.state)
        self._follower = Follower(
            self._log, self.store, self.shard, delay_topic=self._delay_topic, progress_topic=self._progress_topic
        )
        self.role = "recovering"
        self._phase = self._follow
        return now_ms

    def _follow(self, now_ms: int) -> int:
        """1. Everything that can be read; what hangs behind it is for the next phase to resolve."""
        follower = self._follower
        assert follower is not None
        if self._catch_up(follower, now_ms):
            return now_ms
        role = self._assigned()
        if role.kind == "none":
            self._restart()
            return now_ms
        if role.kind == "follower":
            return self._stay(now_ms)
        if not role.confirmed or role.predecessor_active:
            return self._rest(now_ms + (LOOK_MS if not role.confirmed else LOOK_MS // 10))
        if follower.position < self._log.watermarks(self._progress_topic, self.number).stable:
            return now_ms + LOOK_MS
        if not self._may_lead(role, now_ms):
            return now_ms + LOOK_MS
        # 2. Fence every earlier master, and have its last transaction resolved.
        self.role = "taking over"
        self._leadership = role
        self._writer = self._log.writer(self.number)
        self._phase = self._resolve
        return now_ms

    def _stay(self, now_ms: int) -> int:
        """A follower that has caught up keeps the retention and waits for more."""
        if self.role != "follower":
            self.role = "follower"
            log.info("follower", shard=self.number, applied=self.state.applied, replayed=self._replayed)
        self._resume()
        self._clean(now_ms)
        return now_ms + LOOK_MS

    def _resolve(self, now_ms: int) -> int:
        """3. What that resolved: the end counts only when no transaction hides behind it."""
        follower, writer, role = self._follower, self._writer, self._leadership
        assert follower is not None
        assert writer is not None
        assert role is not None
        if self._catch_up(follower, now_ms):
            return now_ms
        if self._role_ended():
            return now_ms
        watermarks = self._log.watermarks(self._progress_topic, self.number)
        if follower.position < watermarks.high:
            if watermarks.stable < watermarks.high and follower.position >= watermarks.stable:
                self._pause(LogUnavailable(
                    f"{self._progress_topic}/{self.number} ends in a transaction that is not resolved yet"
                ))  # fmt: skip
            return now_ms + LOOK_MS
        if not self._may_lead(role, now_ms):
            # Somebody took over with a later role between 1 and 2: our fence was the mistake, and it ends here.
            self._restart()
            return now_ms + LOOK_MS
        if self._replayed >= REPLAYED_FLUSH:
            self.store.flush()
        reader = self._log.reader(self._delay_topic, self.number, self.state.pull_offset)
        self._follower = None
        follower.close()
        self._make_master(writer, reader, role)
        self._phase = self._begin
        return now_ms

    def _make_master(self, writer: Writer, reader: Reader, role: Assignment) -> None:
        self._pusher = self._make_pusher()
        self._master = Master(
            shard=self.shard,
            store=self.store,
            writer=writer,
            puller=Puller(self._log, reader, self._delay_topic, self.number),
            pusher=self._pusher,
            clock=self._clock,
            writer_epoch=WriterEpoch(
                node=self._node,
                instance=self._instance,
                role_epoch=self.state.role_epoch + 1 if role.epoch is None else role.epoch,
                log_epoch=self.state.log_epoch + 1,
            ),
            limits=self._limits,
            poison_search=self._poison_search,
        )

    def _begin(self, now_ms: int) -> int:
        """4. The epoch record; a clock that disagrees is waited for."""
        master = self._master
        assert master is not None
        if self._role_ended():
            return now_ms
        try:
            self._check_guard()
            master.begin()
        except (ProducerLost, ApplyFailed):
            raise
        except Retry as error:
            self._count(error)
            self._pause(error)
            return self._rest(now_ms + PAUSE_MS)
        self._led_epoch = self.state.log_epoch
        self.role = "master"
        self._resume()
        log.info(
            "master",
            shard=self.number,
            epoch=self.state.log_epoch,
            pending=self.state.pending,
            replayed=self._replayed,
        )
        self._phase = self._lead
        return now_ms

    def _lead(self, now_ms: int) -> int:
        """5. Step, until the role ends."""
        master = self._master
        assert master is not None
        if self._role_ended():
            return now_ms
        try:
            self._check_guard()
            wake_ms = master.step(now_ms)
        except (ProducerLost, ApplyFailed):
            self.aborts += 1
            raise
        except TransactionAborted as error:
            return self._step_again(error, now_ms)
        except Retry as error:
            if isinstance(error, LogUnavailable) and self._pusher is not None:
                self._pusher.targets.forget_all()
            self._count(error)
            self._pause(error)
            return self._rest(now_ms + PAUSE_MS)
        if master.last is not None:
            self.last = master.last
            self.refused = master.last.refused
            self.commits += 1
            self._aborts_in_a_row, self._pause_ms = 0, ABORT_PAUSE_MS
        self._resume()
        clean_ms = self._clean(now_ms)
        return min(wake_ms, clean_ms)

    def _count(self, error: Retry) -> None:
        if isinstance(error, ClockDisagrees) and error.aborted:
            self.aborts += 1

    def _step_again(self, error: TransactionAborted, now_ms: int) -> int:
        """Nothing was written: at once while a culprit is searched for, else after a pause that grows."""
        self.aborts += 1
        log.warning("transaction aborted", shard=self.number, why=str(error))
        self._aborts_in_a_row += 1
        if error.poison_likely and self._aborts_in_a_row <= HALVINGS_MAX:
            return now_ms
        wake_ms = now_ms + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, PAUSE_MS)
        return self._rest(wake_ms)

    # --- parts of phases

    def _load(self) -> Shard:
        (data,) = self.store.get([STATE_KEY])
        self.known = True
        state = FRESH if data is None else unpack_state(data)
        shard = Shard(rules=self._rules, state=state, view=self.store)
        self._deleter = None
        if self._delivered_ms is not None:
            self._deleter = Deleter(
                self.store, shard, delivered_ms=self._delivered_ms, deduplication_ms=self._deduplication_ms
            )
        return shard

    def _clean(self, now_ms: int) -> int:
        """Let the delete worker do what is due; when it wants to be called again."""
        # Also when the clock was ahead for a while, and the next time was put off by as much.
        if self._deleter is not None and not 0 < self._clean_ms - now_ms <= EVERY_MS:
            self._clean_ms = self._deleter.step(now_ms)
        return self._clean_ms if self._deleter is not None else now_ms + 3_600_000

    def _catch_up(self, follower: Follower, now_ms: int) -> int:
        """Apply what the progress log holds now; how many records."""
        self._check_guard()
        applied = follower.step()
        self.refused = follower.refused
        self._replayed += applied
        if self.role == "recovering" and applied and now_ms - self._told_ms >= 1_000:
            if self._told_ms:
                log.info("replaying", shard=self.number, applied=self.state.applied, pull=self.state.pull_offset)
            self._told_ms = now_ms
        return applied

    def _role_ended(self) -> bool:
        """Whether this is no more the mastership that was begun; then everything is given back."""
        role = self._assigned()
        if role.continues(self._leadership):
            return False
        log.info("no longer master", shard=self.number, role=role.kind, epoch=role.epoch)
        self._restart()
        self._resting = False
        return True

    def _restore_store(self, state: State) -> bool:
        """Whether the store was exchanged for one that is further."""
        progress = self._log.watermarks(self._progress_topic, self.number)
        delay = self._log.watermarks(self._delay_topic, self.number)
        if progress.high == 0:
            return False
        replay = RecoveryCost(
            empty=state.applied == 0,
            whole=progress.start <= state.applied and delay.start <= state.pull_offset,
            records=progress.high - state.applied + delay.high - state.pull_offset,
            applied_min=progress.start,
            pull_offset_min=delay.start,
        )
        if replay.empty or not replay.whole:
            self.role, self.known = "restoring", False
        taken = self._restore(replay)
        self.known = True
        return taken

    def _check_positions(self, state: State) -> None:
        """The logs must hold everything from the store's positions on."""
        progress = self._log.watermarks(self._progress_topic, self.number)
        delay = self._log.watermarks(self._delay_topic, self.number)
        if state.applied == 0 and progress.high == 0 and delay.start > 0:
            # Nobody ever was master: what the topic lost before Chronos came is not Chronos's to deliver.
            self.shard.state = State(pull_offset=delay.start, cursor_offset=state.cursor_offset)
            return
        for topic, position, watermarks in (
            (self._progress_topic, state.applied, progress),
            (self._delay_topic, state.pull_offset, delay),
        ):
            if watermarks.start > position:
                raise LogMismatch(
                    f"{topic}/{self.number} begins at {watermarks.start}, but the store needs it from {position} on: the topic"
                    " was trimmed ahead of the store. Restore a checkpoint that is newer, or, if what is missing may be"
                    f" lost, remove the store of shard {self.number} and both topics' contents."
                )
            if watermarks.high < position:
                raise LogMismatch(
                    f"{topic}/{self.number} ends at {watermarks.high}, but the store has applied it up to {position}: the topic"
                    " was deleted and created again, or this is another cluster. Point Chronos to the right one, or remove"
                    f" the store of shard {self.number}."
                )

    def _may_lead(self, role: Assignment, now_ms: int) -> bool:
        """Whether the last word in the progress log leaves the shard to us."""
        state = self.state
        if state.instance in ("", self._instance):
            return True
        if role.epoch is not None:
            if state.role_epoch >= role.epoch:
                raise RoleStale(
                    f"node {state.node} was master of shard {self.number} with role epoch {state.role_epoch}, and this"
                    f" node was given {role.epoch}: it waits for a later role"
                )
            return True
        if self._led_epoch is not None and state.log_epoch > self._led_epoch:
            raise Deposed(
                f"node {state.node} (instance {state.instance}) took over shard {self.number} from this one:"
                " two standalone nodes serve the same cluster. Stop one of them, or give each its own `cluster`"
                " and topics."
            )
        left_ms = state.progress_ms + FOREIGN_SILENCE_MS - now_ms
        if left_ms <= 0:
            log.warning("taking over from a silent node", shard=self.number, node=state.node)
            return True
        self.role = "waiting"
        self._pause(LogUnavailable(
            f"node {state.node} (instance {state.instance}) was master of shard {self.number} until"
            f" {FOREIGN_SILENCE_MS - left_ms} ms ago; this node takes over once it was silent for"
            f" {FOREIGN_SILENCE_MS // 1_000} s"
        ))  # fmt: skip
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
