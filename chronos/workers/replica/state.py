"""The states of a replica, and which of them may follow which.

    state          may become
    starting       none, restoring, recovering, stopped, failed
    none           restoring, recovering, stopped, failed
    restoring      none, recovering, stopped, failed
    recovering     none, restoring, follower, waiting, taking over, stopped, failed
    follower       none, restoring, recovering, taking over, stopped, failed
    waiting        restoring, recovering, taking over, stopped, failed
    taking over    none, restoring, recovering, waiting, master, stepped down, stopped, failed
    master         stepped down, failed
    stepped down   none, restoring, recovering, stopped, failed
    stopped
    failed

The usual paths: `starting, recovering, follower` on a node that holds the shard, `follower, taking
over, master` when it becomes the master, `master, stepped down, recovering, follower` when another
node becomes the master.

A replica that meets a Retry before it is master keeps its state, closes what it has open and begins
again from its store; `Replica.paused` holds the reason meanwhile. So none of the states promises
that anything is open."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Literal

import structlog
from msgspec import Struct

from chronos.core.shard.codec import State
from chronos.core.shard.lanes import cursors
from chronos.core.shard.progress import Decision, Progress, count_outcomes
from chronos.core.shard.queues import holds, written
from chronos.core.shard.step import Selection, Staged
from chronos.errors import Deposed, LogUnavailable, RoleStale


class ReplicaState(StrEnum):
    """The current state of a replica. The values are public: HTTP, the coordinator and the metrics
    show them."""

    STARTING = "starting"
    """Nothing was read from the logs yet. The shard's state is the one the store held when the
    process opened it. Nothing has to be closed on leaving."""
    NONE = "none"
    """The controller gave the shard to other nodes. The store is closed, kept as it is, and falls
    behind. On leaving, it is opened, and the state is loaded from it again."""
    RESTORING = "restoring"
    """The store is empty or behind the start of the logs, and a checkpoint is fetched to replace
    it. The store must not be read, and its position must not be reported. On leaving, the state is
    loaded from the store again."""
    RECOVERING = "recovering"
    """The logs are replayed into the store, which holds a committed state that is behind the end of
    the logs. It answers queries about that state. On leaving, the progress log was read to its end
    once."""
    FOLLOWER = "follower"
    """The store had every progress record that could be read at the last step, and deletes what is
    past its retention. On leaving for `taking over`, records that came since are applied first."""
    WAITING = "waiting"
    """Standalone only: another node committed less than 90 s ago and may still be running. The
    store is kept up to date as that of a follower. Nothing may be fenced before the silence is long
    enough."""
    TAKING_OVER = "taking over"
    """A writer of this node is being opened or has fenced every earlier master, and nothing may be
    delivered yet: the rest of the progress log is applied, then the epoch record is committed. The
    writer is closed on leaving for any state but `master`."""
    MASTER = "master"
    """The epoch record is committed: everything this replica commits comes after every commit of an
    earlier master, and no other node can commit. The only state in which messages are delivered. On
    leaving, reader and writer are closed; a transaction that is open is left for the next master to
    resolve."""
    STEPPED_DOWN = "stepped down"
    """The leadership ended, by a new assignment, a lost producer or a failed write to the store.
    Memory may be ahead of the store or behind the log: the state is loaded from the store again
    before anything else."""
    STOPPED = "stopped"
    """Everything is closed, by `Replica.close`. Final."""
    FAILED = "failed"
    """A step raised an error that a retry cannot fix. The shard's thread has ended and the process
    is about to. Final."""


_S = ReplicaState

TRANSITIONS: Mapping[ReplicaState, frozenset[ReplicaState]] = {
    _S.STARTING: frozenset({_S.NONE, _S.RESTORING, _S.RECOVERING, _S.STOPPED, _S.FAILED}),
    _S.NONE: frozenset({_S.RESTORING, _S.RECOVERING, _S.STOPPED, _S.FAILED}),
    _S.RESTORING: frozenset({_S.NONE, _S.RECOVERING, _S.STOPPED, _S.FAILED}),
    _S.RECOVERING: frozenset(
        {
            _S.NONE,
            _S.RESTORING,
            _S.FOLLOWER,
            _S.WAITING,
            _S.TAKING_OVER,
            _S.STOPPED,
            _S.FAILED,
        }
    ),
    _S.FOLLOWER: frozenset(
        {_S.NONE, _S.RESTORING, _S.RECOVERING, _S.TAKING_OVER, _S.STOPPED, _S.FAILED}
    ),
    _S.WAITING: frozenset({_S.RESTORING, _S.RECOVERING, _S.TAKING_OVER, _S.STOPPED, _S.FAILED}),
    _S.TAKING_OVER: frozenset(
        {
            _S.NONE,
            _S.RESTORING,
            _S.RECOVERING,
            _S.WAITING,
            _S.MASTER,
            _S.STEPPED_DOWN,
            _S.STOPPED,
            _S.FAILED,
        }
    ),
    _S.MASTER: frozenset({_S.STEPPED_DOWN, _S.FAILED}),
    _S.STEPPED_DOWN: frozenset({_S.NONE, _S.RESTORING, _S.RECOVERING, _S.STOPPED, _S.FAILED}),
    _S.STOPPED: frozenset(),
    _S.FAILED: frozenset(),
}
"""State -> states that may follow it; a replica checks every change against it."""

IN_PLACE = frozenset({ReplicaState.MASTER, ReplicaState.FOLLOWER, ReplicaState.NONE})
"""States of a replica that has nothing left to do before its node is ready."""

NOT_READABLE = frozenset({ReplicaState.NONE, ReplicaState.FAILED, ReplicaState.STOPPED})
"""States of a replica whose store must not be queried."""


class Assignment(Struct, frozen=True, kw_only=True):
    """The role of a replica at the moment, as the controller wants it."""

    kind: Literal["master", "follower", "none"]
    """`none`: this node does not hold the shard."""
    epoch: int | None = None
    """The role epoch of the shard as of the roles that were read; 0: they know no master, or none
    were read. None: the node is standalone."""
    confirmed: bool = True
    """The coordinator confirms the assignment now. False: continue, but begin no leadership."""
    predecessor_active: bool = False
    """The previous master may still be finishing its step; do not fence it yet."""

    def continues(self, other: "Assignment | None") -> bool:
        """Return whether a leadership that began under `other` goes on.

        It is still assigned, or the roles are older than it: the coordinator lost them, was
        restored to an older state, or gave none to this session yet."""
        if other is None:
            return False
        if self.epoch is not None and other.epoch is not None and self.epoch < other.epoch:
            return True
        return self.kind == other.kind and self.epoch == other.epoch


STANDALONE = Assignment(kind="master")
"""The assignment of every replica of a standalone node."""


class WriterEpoch(Struct, frozen=True, kw_only=True):
    """The part of a progress record that names its writer."""

    cluster: str
    node: str
    instance: str
    shards: int
    role_epoch: int
    log_epoch: int

    def progress(
        self,
        staged: Staged,
        selection: Selection,
        decisions: Sequence[Decision] = (),
        details: Sequence[str] = (),
        *,
        held_forwards: int = 0,
        zone_data: str = "",
    ) -> Progress:
        """Return the progress record of a step; `details`: the texts that the decisions number.

        `held_forwards`: held records that wait for another partition before this step. `zone_data`:
        `Progress.zone_data`.
        """
        texts = list(details)
        held = holds(staged.held, texts)
        return Progress(
            role_epoch=self.role_epoch,
            log_epoch=self.log_epoch,
            cluster=self.cluster,
            node=self.node,
            instance=self.instance,
            shards=self.shards,
            cursor_due_ms=selection.cursor[0],
            cursor_offset=selection.cursor[1],
            pull_offset=staged.pull_offset,
            counts=count_outcomes(len(selection.items), decisions),
            refused=tuple(staged.refused),
            decisions=tuple(decisions),
            probes=staged.probes,
            unreadable=tuple(staged.unreadable),
            lanes=cursors(selection.leaving),
            details=tuple(texts),
            horizon_ms=staged.horizon_ms,
            held=held,
            written=written(staged.written),
            held_forwards=held_forwards + staged.held_forwards,
            replans=tuple(staged.replans),
            zone_data=zone_data,
        )


log = structlog.get_logger("chronos.shard")

FOREIGN_SILENCE_MS = 90_000
"""A standalone node takes over from another one after this long without a progress record: one and
a half heartbeats."""


class Claim(Struct, frozen=True, kw_only=True):
    """One node's claim to one shard."""

    shard: int
    node: str
    instance: str
    """Id of this node's data directory."""
    led_epoch: int | None
    """The log epoch of this process's last leadership; None before the first."""
    ended: str | None = None
    """Why that leadership ended, for people; None: no error ended it."""

    def wait_ms(self, state: State, assignment: Assignment, now_ms: int) -> int:
        """Return the time after which this node may lead: 0 for at once. Raises RoleStale,
        Deposed."""
        is_own = state.instance in ("", self.instance)
        if assignment.epoch is not None:
            # Its own role it takes again after a restart, and no earlier one.
            if state.role_epoch >= assignment.epoch + is_own:
                raise RoleStale(
                    f"node {state.node} was master of shard {self.shard} with role epoch "
                    f"{state.role_epoch}, and this node was given {assignment.epoch}: it waits "
                    "for a later role"
                )
            return 0
        if is_own:
            return 0
        if self.led_epoch is not None and state.log_epoch > self.led_epoch:
            why = "" if self.ended is None else f" (here the leadership ended: {self.ended})"
            raise Deposed(
                f"node {state.node} (instance {state.instance}) took over shard {self.shard} from "
                f"this one{why}: two standalone nodes serve the same cluster. Stop one of them, or "
                "give each its own `cluster` and topics."
            )
        left_ms = state.progress_ms + FOREIGN_SILENCE_MS - now_ms
        if left_ms <= 0:
            log.warning("taking over from a silent node", shard=self.shard, node=state.node)
        return max(0, left_ms)

    def waiting(self, state: State, wait_ms: int) -> LogUnavailable:
        """Return the reason for the wait, for people."""
        return LogUnavailable(
            f"node {state.node} (instance {state.instance}) was master of shard {self.shard} until"
            f" {FOREIGN_SILENCE_MS - wait_ms} ms ago; this node takes over once it was silent for"
            f" {FOREIGN_SILENCE_MS // 1_000} s"
        )
