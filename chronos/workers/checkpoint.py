"""The checkpoint worker: copies a shard's store to another place every hour, and trims the logs behind those copies.

Trimming is the one thing Chronos does that cannot be taken back: the logs are the only other copy of what is pending.
So a log is trimmed only behind everything that could still ask for it, and where one of them is not known, not at all.
It may take minutes with a large store: it runs in a thread of its own, never in that of its shard.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct

from chronos.core.codec import Identity
from chronos.core.roles import ReplicaReport, ShardRoles
from chronos.errors import ChronosError
from chronos.ports import Checkpoint, Checkpoints, ClusterSnapshot, Store, TopicLog

CHECKPOINTS_MIN = 3
"""Whole checkpoints without which nothing is trimmed: one may be damaged, and another lost on the same day."""

AGAIN_MS = 60_000
"""After a failure, until the next attempt."""

LOOK_MS = 600_000
"""How often to look whether the logs can be trimmed, and whether somebody else made a checkpoint."""

AWAY_MS = 7 * 86_400_000
"""A node that was away for so long is not waited for with trimming: when it comes back it begins with a checkpoint."""


class LogPosition(Struct, frozen=True, kw_only=True):
    """From where on a replica needs the two logs of its shard: as of its last flush, which is what a crash leaves."""

    applied: int
    """Offset in the progress partition."""
    pull_offset: int
    """Offset in the delay partition."""


def needed_from(
    snapshot: ClusterSnapshot, shard: int, *, node: str, kept: LogPosition, now_ms: int, away_ms: int = AWAY_MS
) -> list[LogPosition | None]:
    """From where on each registered replica of the shard needs the logs; None: not known.

    `node`: this one, and `kept`: where its own store stood at its last flush. `away_ms`: how long one is waited for.
    """
    if snapshot.roles is None or not snapshot.confirmed:
        return [None]
    positions: list[LogPosition | None] = [kept]
    listed = snapshot.roles.shards.get(shard, ShardRoles()).replicas
    for member in snapshot.members.values():
        replica = member.replicas.get(shard, ReplicaReport(role="none"))
        # One that was given the shard just now begins with what it held before.
        if member.node == node or (replica.role == "none" and member.node not in listed):
            continue
        if replica.kept_applied is None or replica.kept_pull_offset is None:
            positions.append(None)
        else:
            positions.append(LogPosition(applied=replica.kept_applied, pull_offset=replica.kept_pull_offset))
    if any(
        now_ms - snapshot.roles.away.get(other, now_ms) < away_ms for other in listed if other not in snapshot.members
    ):
        positions.append(None)
    return positions


def trim_to(
    *, checkpoints: Sequence[int], replicas: Sequence[int | None], archived: int | None, by_age: int, start: int
) -> int:
    """Before which offset a partition may be trimmed; `start`, where it begins, when it may not be.

    `checkpoints`: positions of the whole ones. `replicas`: of every registered replica, None where it is not known.
    `archived`: where the archive stands, None without one. `by_age`: the first offset young enough to be kept.
    """
    known = [position for position in replicas if position is not None]
    if len(checkpoints) < CHECKPOINTS_MIN or not replicas or len(known) < len(replicas):
        return start
    needed = min(*checkpoints, *known, by_age)
    if archived is not None:
        needed = min(needed, archived)
    return max(start, needed)


class Checkpointer:
    """Makes the checkpoints of one shard, on this node."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        log: TopicLog,
        store: Store,
        *,
        shard: int,
        identity: Identity,
        every_ms: int,
        keep: int,
        keep_logs_ms: int,
        replicas: Callable[[], Sequence[LogPosition | None]],
        archived: Callable[[str, int], int | None] = lambda topic, partition: None,
        trims: Callable[[], bool] = lambda: True,
    ) -> None:
        """`replicas`: where every registered replica of the shard stands, this one included; None: not known.

        `archived`: up to which offset a topic's partition is archived; None without an archive. `trims`: whether this
        node is the one that trims, as its master may be; never on the embedded log, which is trimmed behind the flush.
        """
        assert keep >= CHECKPOINTS_MIN, "the logs would never be trimmed"
        self._checkpoints = checkpoints
        self._log = log
        self._store = store
        self._shard = shard
        self._identity = identity
        self._every_ms = every_ms
        self._keep = keep
        self._keep_logs_ms = keep_logs_ms
        self._replicas = replicas
        self._archived = archived
        self._trims = trims
        self._asked = False
        self._wanted = False
        """Asked for and not made yet."""
        self._look_ms = 0
        self._archived_last: dict[str, int] = {}
        """By topic, where the archive stood: Kafka forgets a group that was silent for a week, and it is still one."""
        self.kept: Sequence[Checkpoint] = ()
        """Those there are, the furthest first, as last seen."""
        self.problem: str | None = None
        """Why the last attempt failed, for people; None when it did not."""

    def ask(self) -> None:
        """Make one with the next step, whenever the last one was made. Any thread may call."""
        self._asked = True

    def step(self, now_ms: int) -> int:
        """1. make a checkpoint if one is due, 2. remove what is more than is kept, 3. trim; when to come again.

        Raises Retry when it could not; called again, it tries again when a minute is over.
        """
        if self._asked:
            self._asked, self._wanted = False, True
        elif 0 < self._look_ms - now_ms <= LOOK_MS:  # further away only by a clock that was ahead
            return self._look_ms
        self._look_ms = now_ms + AGAIN_MS
        try:
            self._look_ms = self._step(now_ms)
        except ChronosError as error:
            self.problem = str(error)
            raise
        self.problem = None
        return self._look_ms

    def _step(self, now_ms: int) -> int:
        shard, identity = self._shard, self._identity
        self.kept = self._checkpoints.kept(shard, identity)
        due_ms = self._due_ms(now_ms)
        if self._wanted or now_ms >= due_ms:
            made = self._checkpoints.save(shard, self._store, now_ms)
            self._wanted = False
            assert made.identity == identity, "a checkpoint of another shard"
            self._checkpoints.prune(shard, identity, self._keep)
            self.kept = self._checkpoints.kept(shard, identity)
            due_ms = now_ms + self._every_ms
        if self._trims():
            self._trim(now_ms)
        return min(due_ms, now_ms + LOOK_MS)

    def _due_ms(self, now_ms: int) -> int:
        """By the youngest there is, whoever made it: nodes take turns instead of all making the same."""
        # One that will be made in ten years, by its own account, must not hold up the others until then.
        made_ms = [kept.made_at_ms for kept in self.kept if kept.made_at_ms <= now_ms + self._every_ms]
        return max(made_ms) + self._every_ms if made_ms else now_ms

    def _trim(self, now_ms: int) -> None:
        whole = [checkpoint for checkpoint in self.kept if self._checkpoints.is_intact(checkpoint)]
        if len(whole) < CHECKPOINTS_MIN:
            return
        # Taken before anything is asked of the log, so that what moves meanwhile only moves on.
        replicas = self._replicas()
        identity, kept_from_ms = self._identity, now_ms - self._keep_logs_ms
        for topic, checkpoints, positions in (
            (
                identity.delay_topic,
                [checkpoint.pull_offset for checkpoint in whole],
                [None if replica is None else replica.pull_offset for replica in replicas],
            ),
            (
                identity.progress_topic,
                [checkpoint.applied for checkpoint in whole],
                [None if replica is None else replica.applied for replica in replicas],
            ),
        ):
            start = self._log.watermarks(topic, self._shard).start
            to = trim_to(
                checkpoints=checkpoints,
                replicas=positions,
                archived=self._archive_at(topic),
                by_age=self._log.offset_at(topic, self._shard, kept_from_ms),
                start=start,
            )
            if to > start:
                self._log.trim(topic, self._shard, to)

    def _archive_at(self, topic: str) -> int | None:
        found = self._archived(topic, self._shard)
        if found is not None:
            self._archived_last[topic] = found
        return self._archived_last.get(topic)
