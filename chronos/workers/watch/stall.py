"""The stall judge: whether a replica stands still although there is work for it, and what is known
about the reason.

It is stepped outside the shard's thread, which may be the very thing that hangs, from facts that
need no request and no lock. Keeps its part of law 8: nothing stops a shard in silence."""

from msgspec import Struct

from chronos.core.shard.wheel import Position
from chronos.core.timefmt import format_time
from chronos.workers.replica.replica import Replica
from chronos.workers.replica.state import ReplicaState

STALLED_MS = 30_000
"""Standing still for this long with work to do is a stall: longer than Kafka needs to replace a
broker, or a transaction to time out."""

JUDGE_EVERY_MS = 1_000
"""Time between two judgements."""

INTERVAL_MS_MAX = 5_000
"""Most time that counts between two judgements: a replica could not have moved while its process
was frozen."""

STEP_MS_MAX = 5_000
"""A step that has been running for longer is named as the reason of a stall."""

UNDECIDED = frozenset(
    {
        ReplicaState.STARTING,
        ReplicaState.RESTORING,
        ReplicaState.RECOVERING,
        ReplicaState.TAKING_OVER,
        ReplicaState.STEPPED_DOWN,
    }
)
"""States on the way to another one, in which the time of a master is neither counted nor forgotten:
a master whose producer is lost again and again passes through them, and stands still all the
same."""

REPLAYING = frozenset(
    {
        ReplicaState.RECOVERING,
        ReplicaState.FOLLOWER,
        ReplicaState.WAITING,
        ReplicaState.TAKING_OVER,
    }
)
"""States in which the progress log is applied as it can be read."""


WORK_DUE = "messages are due"
"""The work of a master whose cursor does not move."""


class Facts(Struct, frozen=True, kw_only=True):
    """The facts for one judgement."""

    role: ReplicaState
    now_ms: int
    """Wall clock (epoch ms)."""
    cursor: Position
    due_ms: int | None
    """Due time (epoch ms) of the next message as of the master's last step; None: nothing is
    pending, or it is not known."""
    watermark_ms: int
    """Greatest broker timestamp that was pulled (epoch ms)."""
    pulled: int
    """Offset in the delay partition up to which a master has executed everything."""
    delay_end: int | None
    """The delay partition could be read up to here when it was last asked; None: not asked yet."""
    applied: int
    """Offset in the progress partition up to which everything is applied."""
    replayed: int | None
    """Offset up to which a replica that is not master has read the progress partition; None: it
    reads none."""
    applying: bool
    """Progress records were read and are being applied."""
    progress_end: int | None
    """The progress partition could be read up to here when it was last asked; None: not asked
    yet."""
    pulls: bool
    """The pull worker is switched on."""
    pushes: bool
    """The push worker is switched on."""


def facts_of(
    replica: Replica, *, now_ms: int, delay_end: int | None, progress_end: int | None
) -> Facts:
    """Return the facts about a replica, from any thread: every value is read once, and none waits
    for the replica."""
    state = replica.state
    return Facts(
        role=replica.role,
        now_ms=now_ms,
        cursor=state.cursor,
        due_ms=replica.due_ms,
        watermark_ms=state.watermark_ms,
        pulled=replica.pulled,
        delay_end=delay_end,
        applied=state.applied,
        replayed=replica.replayed,
        applying=replica.applying,
        progress_end=progress_end,
        pulls=replica.limits.pull,
        pushes=replica.limits.push,
    )


class _Standstill:
    """How long a position has not moved while there was work."""

    def __init__(self, work: str) -> None:
        self.work = work
        """The work, for people."""
        self.ms = 0
        self._position: object = None

    def step(self, passed_ms: int, waiting: bool | None, position: object) -> None:
        """`waiting`: there is work to do; None: this moment counts for nothing."""
        if waiting is None:
            return
        if not waiting or position != self._position:
            self.ms = 0
        else:
            self.ms += passed_ms
        self._position = position if waiting else None


class StallJudge:
    """Judges one replica again and again."""

    def __init__(self) -> None:
        self._due = _Standstill(WORK_DUE)
        self._pull = _Standstill("records of the delay topic can be read")
        self._replay = _Standstill("progress records can be applied")
        self._judged_ms: int | None = None
        self.stalled_ms = 0
        """For how long the replica has stood still, from STALLED_MS on; 0: it is not stalled."""
        self.since_ms = 0
        """Since when it is stalled, by the wall clock (epoch ms)."""
        self.work = ""
        """The work that is not done, for people."""

    def step(self, monotonic_ms: int, facts: Facts, *, counts: bool = True) -> bool:
        """Judge; return whether the replica is stalled. Call it every JUDGE_EVERY_MS.

        `counts`: whether the time since the last call counts; it does not while the replica waits
        for its turn."""
        before_ms, self._judged_ms = self._judged_ms, monotonic_ms
        passed_ms = (
            min(monotonic_ms - before_ms, INTERVAL_MS_MAX)
            if counts and before_ms is not None
            else 0
        )
        self._due.step(passed_ms, _in_time(facts, _is_due(facts)), facts.cursor)
        self._pull.step(passed_ms, _in_time(facts, _is_readable(facts)), facts.pulled)
        self._replay.step(passed_ms, _is_behind(facts), facts.applied)
        longest = max((self._due, self._pull, self._replay), key=lambda still: still.ms)
        was_stalled = self.stalled_ms > 0
        self.stalled_ms = longest.ms if longest.ms >= STALLED_MS else 0
        if self.stalled_ms:
            self.work = longest.work
            if not was_stalled:
                self.since_ms = facts.now_ms - longest.ms
        return self.stalled_ms > 0

    def reason(self, *, now_ms: int, step_began_ms: int | None, trouble: str | None) -> str:
        """Return the text for a stalled replica that gives no reason itself.

        `step_began_ms`: when the current step of its thread began (epoch ms). `trouble`: why its
        last transaction failed. The text changes only with the reason: it is compared, and reported
        to the cluster."""
        if step_began_ms is not None and now_ms - step_began_ms >= STEP_MS_MAX:
            cause = f"a step has been running since {format_time(step_began_ms)}"
        elif trouble is not None:
            cause = f"its transactions fail, the last one because: {trouble}"
        else:
            cause = "its steps report no error"
        return f"no progress since {format_time(self.since_ms)}, although {self.work}: {cause}"


class ShardStall:
    """The stall of one shard, as judged from outside its thread. Any thread may read it."""

    def __init__(self) -> None:
        self._judge = StallJudge()
        self.why: str | None = None
        """Why the replica stands still, where it gives no reason itself; None if it moves."""
        self.ms = 0
        """For how long it has stood still; 0 if it moves."""
        self.count = 0
        """How often it has stood still since the start."""

    def judge(
        self,
        monotonic_ms: int,
        facts: Facts,
        *,
        counts: bool,
        is_slow: bool,
        step_began_ms: int | None,
        trouble: str | None,
    ) -> None:
        """Judge once more, every JUDGE_EVERY_MS; `counts`, `step_began_ms`, `trouble`: see
        `StallJudge`. `is_slow`: the replica says itself that it reads slowly."""
        if not self._judge.step(monotonic_ms, facts, counts=counts) or is_slow:
            self.ms, self.why = 0, None
            return
        if not self.ms:
            self.count += 1
        self.ms = self._judge.stalled_ms
        self.why = self._judge.reason(
            now_ms=facts.now_ms, step_began_ms=step_began_ms, trouble=trouble
        )


def _in_time(facts: Facts, waiting: bool | None) -> bool | None:
    """Return whether a master has this work now; None while it is undecided whether the replica is
    the master."""
    return None if facts.role in UNDECIDED else facts.role == ReplicaState.MASTER and waiting


def _is_due(facts: Facts) -> bool:
    """Return whether a message is due at the watermark; once everything in the delay partition is
    pulled, the watermark is the current time."""
    if facts.due_ms is None or not facts.pushes:
        return False
    at_end = not facts.pulls or facts.delay_end is None or facts.pulled >= facts.delay_end
    return facts.due_ms <= (facts.now_ms if at_end else min(facts.now_ms, facts.watermark_ms))


def _is_readable(facts: Facts) -> bool | None:
    if not facts.pulls:
        return False
    return None if facts.delay_end is None else facts.delay_end > facts.pulled


def _is_behind(facts: Facts) -> bool | None:
    if facts.role not in REPLAYING or facts.replayed is None:
        return False
    return facts.applying or (
        None if facts.progress_end is None else facts.progress_end > facts.replayed
    )
