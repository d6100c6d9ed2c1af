"""The states of a replica, which state may follow which, and the status that a replica shows.

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

A replica that meets a Retry while it has no `Master` keeps its state, closes what it has open and
begins again from its store; `ReplicaStatus.paused` holds the reason meanwhile. So no state but
`master` promises that anything is open. Once it has one, the end of its leadership makes it
`stepped down`, even if it was still `taking over`."""

from collections.abc import Mapping
from enum import StrEnum


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

CATCHING_UP = frozenset({ReplicaState.STARTING, ReplicaState.RECOVERING, ReplicaState.TAKING_OVER})
"""States of a replica that may not have applied its log to the end."""

IN_PLACE = frozenset({ReplicaState.MASTER, ReplicaState.FOLLOWER, ReplicaState.NONE})
"""States of a replica that has nothing left to do before its node is ready."""

NOT_READABLE = frozenset({ReplicaState.NONE, ReplicaState.FAILED, ReplicaState.STOPPED})
"""States of a replica whose store must not be queried; one that is `restoring` is known by its
position, which is not reported then."""


class ReplicaStatus:
    """The status of a replica: its state, and why it is paused. Any thread may read it."""

    def __init__(self) -> None:
        self.role = ReplicaState.STARTING
        self.paused: str | None = None
        """Why the replica is paused, for people; None if it is not."""

    def become(self, role: ReplicaState) -> None:
        """Change the state to one that may follow it."""
        if role != self.role:
            assert role in TRANSITIONS[self.role], (
                f"a replica that is {self.role} cannot become {role}"
            )
            self.role = role
