"""The checkpoint worker: copies a shard's store to another location, at intervals and on request,
removes the checkpoints beyond the number to keep, and, on the master's node, trims the two logs.

Trimming cannot be undone: what is trimmed remains in stores, checkpoints and the archive only. So a
log is trimmed only up to the first position that a checkpoint, a replica or the archive may still
need, never a record younger than `keep_logs_ms`, and not at all while the position of a replica is
unknown, or while there are fewer than CHECKPOINTS_MIN intact checkpoints (law 7). A checkpoint of a
large store takes minutes: the workers of all shards share a thread (`node.checkpoints`), which runs
no shard. Checkpoints are restored in `node.bootstrap`."""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from chronos.core.cluster.roles import AWAY_MS, ReplicaReport, ShardRoles
from chronos.core.shard.codec import Identity, State
from chronos.errors import ChronosError
from chronos.ports import Checkpoint, Checkpoints, ClusterSnapshot, Store, TopicLog
from chronos.workers.replica.state import ReplicaState

CHECKPOINTS_MIN = 3
"""Intact checkpoints without which nothing is trimmed: one may be damaged, and another lost on the
same day."""

RETRY_MS = 60_000
"""Time from a failure to the next attempt."""

CHECK_EVERY_MS = 600_000
"""How often to check whether the logs can be trimmed, and whether another node made a
checkpoint."""


class LogPosition(Struct, frozen=True, kw_only=True):
    """The first offsets of the two logs that a replica still needs: those of its last flush, from
    which it replays after a crash."""

    applied: int
    """Offset in the progress partition."""
    pull_offset: int
    """Offset in the delay partition."""

    @classmethod
    def of(cls, state: State) -> "LogPosition":
        """Return the position of a store that holds this state."""
        return cls(applied=state.applied, pull_offset=state.pull_offset)


def needed_from(
    snapshot: ClusterSnapshot,
    shard: int,
    *,
    node: str,
    flushed: LogPosition,
    now_ms: int,
    away_ms: int = AWAY_MS,
) -> list[LogPosition | None]:
    """Return the position from which each registered replica of the shard needs the logs; None: not
    known.

    `node`: this node. `flushed`: the position of its own store at its last flush. `away_ms`: how
    long the logs are kept for a node that is away."""
    if snapshot.roles is None or not snapshot.confirmed:
        return [None]
    positions: list[LogPosition | None] = [flushed]
    registered = snapshot.roles.shards.get(shard, ShardRoles()).replicas
    for member in snapshot.members.values():
        replica = member.replicas.get(shard, ReplicaReport(role=ReplicaState.NONE))
        # A node that has just been assigned the shard starts from the store that it held before.
        if member.node == node or (
            replica.role == ReplicaState.NONE and member.node not in registered
        ):
            continue
        if replica.kept_applied is None or replica.kept_pull_offset is None:
            positions.append(None)
        else:
            positions.append(
                LogPosition(applied=replica.kept_applied, pull_offset=replica.kept_pull_offset)
            )
    if any(
        now_ms - snapshot.roles.away.get(other, now_ms) < away_ms
        for other in registered
        if other not in snapshot.members
    ):
        positions.append(None)
    return positions


def trim_to(
    *,
    checkpoints: Sequence[int],
    replicas: Sequence[int | None],
    archived: int | None,
    by_age: int,
    start: int,
) -> int:
    """Return the offset before which a partition may be trimmed; `start`, its first offset, if it
    must not be trimmed.

    `checkpoints`: positions of the intact checkpoints. `replicas`: positions of all registered
    replicas, None: not known. `archived`: position of the archive, None without one. `by_age`: the
    first offset that is too young to be trimmed."""
    known = [position for position in replicas if position is not None]
    if len(checkpoints) < CHECKPOINTS_MIN or not replicas or len(known) < len(replicas):
        return start
    needed = min(*checkpoints, *known, by_age)
    if archived is not None:
        needed = min(needed, archived)
    return max(start, needed)


class CheckpointSettings(Struct, frozen=True, kw_only=True):
    """The settings of all checkpointers of a node."""

    every_ms: int
    keep: int
    """Checkpoints kept of each shard."""
    keep_logs_ms: int
    """Records younger than this are never trimmed."""


class Trimming(Struct, frozen=True, kw_only=True):
    """The facts on which the trimming of a shard's logs depends."""

    replicas: Callable[[], Sequence[LogPosition | None]]
    """Returns the positions of all registered replicas of the shard, this one included; None: not
    known."""
    archived: Callable[[str, int], int | None] = lambda topic, partition: None
    """Returns the offset up to which a topic's partition is archived, as the log knows it; None
    without an archive, and once the log has forgotten it: therefore the checkpoints keep it too."""
    trims: Callable[[], bool] = lambda: True
    """Returns True if this node trims the shard's logs: its master does, except on the embedded
    log, which is trimmed at the flush."""


class Checkpointer:
    """Makes the checkpoints of one shard, on this node."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        log: TopicLog,
        store: Store,
        *,
        identity: Identity,
        settings: CheckpointSettings,
        trimming: Trimming,
    ) -> None:
        """`identity`: of the store, which names the shard."""
        assert settings.keep >= CHECKPOINTS_MIN, "the logs would never be trimmed"
        self._checkpoints = checkpoints
        self._log = log
        self._store = store
        self._shard = identity.shard
        self._identity = identity
        self._settings = settings
        self._trimming = trimming
        self._asked = False
        """Another thread asked for a checkpoint since the last step."""
        self._wanted = False
        """A checkpoint was asked for and has not been made yet."""
        self._wake_ms = 0
        self.kept: Sequence[Checkpoint] = ()
        """The checkpoints found at the last step, the furthest first."""
        self.problem: str | None = None
        """Why the last attempt failed, for people; None if it succeeded."""

    def ask(self) -> None:
        """Make a checkpoint in the next step, even if none is due. Any thread may call."""
        self._asked = True

    def step(self, now_ms: int) -> int:
        """1. Make a checkpoint if one is due, 2. remove the surplus ones, 3. trim the logs; return
        when to be called again.

        Raises Retry if a part failed; it is tried again after RETRY_MS. Does nothing while the
        store is closed, because this node does not hold the shard.
        """
        if not self._store.is_open:
            self.problem = None
            return now_ms + RETRY_MS
        if self._asked:
            self._asked, self._wanted = False, True
        elif 0 < self._wake_ms - now_ms <= CHECK_EVERY_MS:
            # A time beyond that was set by a clock that was ahead.
            return self._wake_ms
        self._wake_ms = now_ms + RETRY_MS
        try:
            self._wake_ms = self._step(now_ms)
        except Exception as error:
            self.problem = str(error) if isinstance(error, ChronosError) else repr(error)
            raise
        self.problem = None
        return self._wake_ms

    def _step(self, now_ms: int) -> int:
        shard, identity = self._shard, self._identity
        self.kept = self._checkpoints.kept(shard, identity)
        due_ms = self._due_ms(now_ms)
        if self._wanted or now_ms >= due_ms:
            # 1.
            made = self._checkpoints.save(shard, self._store, now_ms)
            self._wanted = False
            assert made.identity == identity, "a checkpoint of another shard"
            # 2.
            self._checkpoints.prune(shard, identity, self._settings.keep)
            self.kept = self._checkpoints.kept(shard, identity)
            due_ms = now_ms + self._settings.every_ms
        # 3.
        if self._trimming.trims():
            self._trim(now_ms)
        return min(due_ms, now_ms + CHECK_EVERY_MS)

    def _due_ms(self, now_ms: int) -> int:
        """Return when a checkpoint is due, counted from the youngest one of any node, so that not
        all nodes make the same one."""
        # A checkpoint with a time far in the future must not hold up the next ones until then.
        made_ms = [
            kept.made_at_ms
            for kept in self.kept
            if kept.made_at_ms <= now_ms + self._settings.every_ms
        ]
        return max(made_ms) + self._settings.every_ms if made_ms else now_ms

    def _trim(self, now_ms: int) -> None:
        # Also before there is anything to trim, while Kafka still has the offsets of the archive.
        archived = self._archived_to()
        intact = [checkpoint for checkpoint in self.kept if self._checkpoints.is_intact(checkpoint)]
        if len(intact) < CHECKPOINTS_MIN:
            return
        # Read before any request to the log: positions that change meanwhile only move forward.
        replicas = self._trimming.replicas()
        # By the logs: a clock that is set a week ahead makes no record older.
        reached_ms = min(now_ms, max(checkpoint.progress_ms for checkpoint in intact))
        identity, kept_from_ms = self._identity, reached_ms - self._settings.keep_logs_ms
        for topic, checkpoints, positions in (
            (
                identity.delay_topic,
                [checkpoint.pull_offset for checkpoint in intact],
                [None if replica is None else replica.pull_offset for replica in replicas],
            ),
            (
                identity.progress_topic,
                [checkpoint.applied for checkpoint in intact],
                [None if replica is None else replica.applied for replica in replicas],
            ),
        ):
            start = self._log.watermarks(topic, self._shard).start
            to = trim_to(
                checkpoints=checkpoints,
                replicas=positions,
                archived=archived.get(topic),
                by_age=self._log.offset_at(topic, self._shard, kept_from_ms),
                start=start,
            )
            if to > start:
                self._log.trim(topic, self._shard, to)

    def _archived_to(self) -> Mapping[str, int]:
        """Return, by topic, the offset up to which the shard is archived, as the archive committed
        it last; empty without an archive."""
        kept = self._checkpoints.archived(self._shard, self._identity)
        offsets = dict(kept)
        for topic in (self._identity.delay_topic, self._identity.progress_topic):
            offset = self._trimming.archived(topic, self._shard)
            if offset is not None:
                offsets[topic] = offset
        if offsets != kept:
            self._checkpoints.keep_archived(self._shard, self._identity, offsets)
        return offsets
