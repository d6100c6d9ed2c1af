"""The replica: one node's copy of a shard, which follows the shard's master or is the master.

It is a step machine: `step(now_ms)` does a turn of the current phase, see `phases`, and returns
when the next one is due. A Retry that a phase raises ends it: what is open is closed, and the
replica starts again from its store after a pause. A Stop is raised.

Other threads and nodes see the `role` of the replica, a `ReplicaState`. Other threads may read its
properties during a step, which replaces the phase: so a property reads `_phase` once."""

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from chronos.core.shard.codec import State
from chronos.core.shard.shard import Shard
from chronos.errors import LogMismatch, Retry
from chronos.ports import Store
from chronos.workers.replica.context import ReplicaContext
from chronos.workers.replica.parts import ReplicaParts
from chronos.workers.replica.phases import LeadingPhase, Phase, ReplicaTurn, StartPhase
from chronos.workers.replica.recovery import RecoveryCost
from chronos.workers.replica.state import ReplicaState
from chronos.workers.replica.stored import StoredShard
from chronos.workers.step.planned import Limits


class Replica:
    """One shard on this node."""

    def __init__(self, context: ReplicaContext, stored: StoredShard | None = None) -> None:
        """`stored`: the shard in the store of the context; None: it is made."""
        self._parts = ReplicaParts.of(context, stored or StoredShard(context))
        self._phase: Phase = StartPhase(self._parts)

    # --- what other threads read

    @property
    def number(self) -> int:
        """The number of the shard."""
        return self._parts.number

    @property
    def store(self) -> Store:
        """The shard's store."""
        return self._parts.context.store

    @property
    def limits(self) -> Limits:
        """The limits of a step."""
        return self._parts.context.settings.limits

    @property
    def role(self) -> ReplicaState:
        """The current state of the replica."""
        return self._parts.status.role

    @property
    def paused(self) -> str | None:
        """Why the replica is paused, for people; None if it is not."""
        return self._parts.status.paused

    @property
    def commits(self) -> int:
        """Transactions committed by this process, without heartbeats."""
        return self._parts.counts.commits

    @property
    def aborts(self) -> int:
        """Transactions of this process that failed: aborted, lost, or not applied."""
        return self._parts.counts.aborts

    @property
    def trouble(self) -> str | None:
        """Why the last transaction failed; None once one was committed after it."""
        return self._parts.counts.trouble

    @property
    def shard(self) -> Shard:
        """The shard itself."""
        return self._parts.stored.shard

    @property
    def state(self) -> State:
        """The shard's state as of the last step."""
        return self._parts.stored.state

    @property
    def known(self) -> bool:
        """True if the state is that of the store; False: it must not be reported."""
        return self._parts.stored.known

    @property
    def delayed(self) -> str | None:
        """Why a replica that has not caught up, or a master, reads its log slowly or waits to read
        it; None if it does neither."""
        return self._phase.delayed

    @property
    def pulled(self) -> int:
        """Offset in the delay partition up to which everything is executed, transaction markers
        included."""
        return self._phase.pulled

    @property
    def replayed(self) -> int | None:
        """Offset up to which the progress partition was read; None for a master, which does not
        read it."""
        return self._phase.replayed

    @property
    def applying(self) -> bool:
        """Progress records were read and are being applied."""
        return self._phase.applying

    @property
    def due_ms(self) -> int | None:
        """Due time (epoch ms) of the next message as of a master's last step; None if it is
        not known."""
        master = self._phase.master
        return None if master is None else master.due_ms

    def waits_for(self, now_ms: int) -> str | None:
        """Return the records whose acknowledgement a master's transaction waits for, for people;
        None if it does not wait."""
        pusher = self._phase.pusher
        return None if pusher is None else pusher.partitions.waits_for(now_ms)

    @property
    def quota_rate(self) -> int:
        """Bytes a second to which a quota of the brokers slows a master down; 0: none does."""
        master = self._phase.master
        throttle = None if master is None else master.throttle
        return 0 if throttle is None else throttle.rate

    def target_partitions(self, topic: str) -> int | None:
        """Return the number of partitions that a master last found the target to have; None if it
        is not known."""
        pusher = self._phase.pusher
        known = None if pusher is None else pusher.targets.known([topic]).get(topic)
        return None if known is None or known.info is None else known.info.partitions

    @property
    def waiting(self) -> Mapping[str, int]:
        """Limited target -> number of messages that wait for its rate; empty if this replica is not
        the master."""
        master = self._phase.master
        return {} if master is None else master.lanes.waiting

    @property
    def waker(self) -> Callable[[], None] | None:
        """Ends a `wait`, see `ports.Reader`. Any thread may read and call it."""
        return self._phase.waker

    # --- a turn

    def step(self, now_ms: int) -> ReplicaTurn:
        """Do one turn, or two that belong together, and return the last. A Retry pauses and starts
        again; a Stop is raised."""
        turn = ReplicaTurn(wake_ms=now_ms, goes_on=True)
        try:
            while turn.goes_on:
                phase, turn = self._turn(now_ms)
                self._enter(phase)
        except Retry as error:
            turn = ReplicaTurn(wake_ms=now_ms, failure=error)
        if turn.failure is None:
            return turn
        self._parts.status.paused = str(turn.failure)
        if self.role == ReplicaState.MASTER:
            self._parts.claim.ended(str(turn.failure))
        self._enter(StartPhase(self._parts))
        return replace(turn, wake_ms=now_ms + self._parts.backoff.take(), is_timed=True)

    def _turn(self, now_ms: int) -> tuple[Phase, ReplicaTurn]:
        """Do one turn of the phase. Raises Retry if a log was trimmed ahead of the store, so that
        the next start restores a checkpoint: the node that trims the logs may not know this replica
        yet, or may have given it up."""
        try:
            return self._phase.turn(now_ms)
        except LogMismatch as error:
            # `StartPhase` has looked for a checkpoint already.
            if isinstance(self._phase, StartPhase):
                raise
            if RecoveryCost.of(self.state, *self._parts.watermarks()).logs_complete:
                raise
            raise Retry(f"shard {self.number} starts again from a checkpoint: {error}") from error

    def _enter(self, phase: Phase) -> None:
        """Make a phase the current one, and close what it does not use."""
        before, self._phase = self._phase, phase
        if isinstance(before, LeadingPhase) and not isinstance(phase, LeadingPhase):
            self._parts.status.become(ReplicaState.STEPPED_DOWN)
        self._parts.open.keep(phase.open)

    def wait(self, timeout_s: float) -> bool:
        """Wait for records or for the time to pass; return whether there may be records. Only after
        a turn whose wait records may end."""
        return self._phase.wait(timeout_s)

    def close(self) -> None:
        """Close everything for good; an open transaction is left for the next master to resolve."""
        self._enter(StartPhase(self._parts))
        self._parts.status.become(ReplicaState.STOPPED)

    def fail(self, why: str) -> None:
        """Mark the replica as failed after a step that raised; open clients are left to the end of
        the process."""
        self._parts.status.become(ReplicaState.FAILED)
        self._parts.status.paused = why
