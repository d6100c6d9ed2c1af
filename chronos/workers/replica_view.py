"""What other threads read of a replica while its own thread steps it.

Every property reads each attribute once: the replica may open and close what it has at any moment.
"""

from collections.abc import Mapping

from chronos.core.codec import State
from chronos.core.shard import Shard
from chronos.workers.follow import Follower
from chronos.workers.master import Master
from chronos.workers.push import Pusher
from chronos.workers.replica_state import ReplicaState


class ReplicaView:
    """The base of `replica.Replica`: its readable side."""

    shard: Shard
    _role: ReplicaState
    _follower: Follower | None
    _master: Master | None
    _paused: str | None
    _pusher: Pusher | None

    @property
    def role(self) -> ReplicaState:
        """The present state of the replica."""
        return self._role

    @property
    def paused(self) -> str | None:
        """Why the replica is paused, for people; None if it is not."""
        return self._paused

    @property
    def state(self) -> State:
        """The shard's state as of the last step."""
        return self.shard.state

    @property
    def pulled(self) -> int:
        """Offset in the delay partition up to which everything is executed, transaction markers included."""
        master, follower = self._master, self._follower
        if master is not None:
            return master.pulled
        return self.state.pull_offset if follower is None else follower.pulled

    @property
    def due_ms(self) -> int | None:
        """Due time (epoch ms) of the next message as of the last look of a master; None if it is not known."""
        master = self._master
        return None if master is None else master.due_ms

    def waits_for(self, now_ms: int) -> str | None:
        """Return the records whose acknowledgement a master's transaction waits for, for people; None if it does not wait."""
        pusher = self._pusher
        return None if pusher is None else pusher.partitions.waits_for(now_ms)

    def target_partitions(self, topic: str) -> int | None:
        """Return the number of partitions that a master last found the target to have; None if it is not known."""
        pusher = self._pusher
        known = None if pusher is None else pusher.targets.known([topic]).get(topic)
        return None if known is None or known.info is None else known.info.partitions

    @property
    def waiting(self) -> Mapping[str, int]:
        """Limited target -> number of messages that wait for its rate; empty if this replica is not the master."""
        master = self._master
        return {} if master is None else master.lanes.waiting

    @property
    def replayed(self) -> int | None:
        """Offset up to which the progress partition was read; None for a master, which does not read it."""
        follower = self._follower
        return None if follower is None else follower.position

    @property
    def applying(self) -> bool:
        """Progress records were read and are being applied."""
        follower = self._follower
        return follower is not None and follower.applying
