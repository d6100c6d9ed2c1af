"""The followers in sync of a shard, and the modes of replication, one of which needs them.

A message is durable in Kafka before any follower has it, so a follower in sync saves time and does
not add safety: it takes a shard over without first replaying more than `max_lag_ms` of its log.

A replica is in sync if it works, its node can become master, and it has applied everything that the
most advanced replica had applied `max_lag_ms` ago, as Kafka defines it with
`replica.lag.time.max.ms`. A single late report changes nothing. RocketMQ's rules RH-*, and what is
done instead of them, are in docs/contributing/conformance.md."""

from collections import deque
from collections.abc import Iterable, Mapping

from msgspec import Struct

from chronos.core.cluster.roles import UNREACHABLE, Member, Roles

ASYNC, SYNC = "async", "sync"
"""Modes of `replication.mode`."""

WARN, REFUSE = "warn", "refuse"
"""Policies of `replication.on_too_few`."""

WARM = frozenset({"follower", "recovering", "stepped down", "taking over"})
"""States of a replica that may be in sync: its store is open and its position known. A replica that
reports `master` without being assigned may hang."""

SAMPLES = 100
"""Most samples of one window: the lag is exact to a hundredth of `max_lag_ms`."""


class ReplicationRules(Struct, frozen=True, kw_only=True):
    """The settings `replication.*` as a value, and the lag, which is not a setting."""

    mode: str = ASYNC
    """ASYNC or SYNC."""
    min_in_sync: int = 1
    """Followers in sync that a shard needs in the mode SYNC; `minInSyncReplicas` of DLedger
    counts the master too."""
    max_lag_ms: int = 10_000
    """Lag up to which a follower is in sync."""
    on_too_few: str = REFUSE
    """WARN or REFUSE."""

    @property
    def needed(self) -> int:
        """Followers in sync without which a shard has too few."""
        return self.min_in_sync if self.mode == SYNC else 0

    @property
    def refuses(self) -> bool:
        """Return whether messages for such a shard are not accepted over HTTP."""
        return self.mode == SYNC and self.on_too_few == REFUSE


class ProgressWindow:
    """The greatest progress of one shard over the last `max_lag_ms`."""

    def __init__(self, max_lag_ms: int) -> None:
        self._max_lag_ms = max_lag_ms
        self._samples: deque[tuple[int, int]] = deque()
        """`(time, progress)`, oldest first; the first one is the latest that is older than
        `max_lag_ms`, if there is one."""

    def add(self, applied: int, now_ms: int) -> None:
        """Add the greatest progress known at this time, in ms of a clock that does not step."""
        samples = self._samples
        if not samples or (
            applied > samples[-1][1] and now_ms - samples[-1][0] >= self._max_lag_ms // SAMPLES
        ):
            samples.append((now_ms, applied))
        while len(samples) > 1 and now_ms - samples[1][0] >= self._max_lag_ms:
            samples.popleft()

    @property
    def needed(self) -> int:
        """The progress that a replica in sync has at the least: that of `max_lag_ms` ago, or the
        first one that was added."""
        return self._samples[0][1]


class ProgressWindows:
    """The windows of all shards, as one node sees them. One thread calls `observe`; any thread may
    read `needed`."""

    def __init__(self, max_lag_ms: int) -> None:
        self._max_lag_ms = max_lag_ms
        self._windows: dict[int, ProgressWindow] = {}
        self.needed: Mapping[int, int] = {}
        """Shard -> progress that a replica in sync has at the least; a shard without reports is
        missing."""

    def observe(self, members: Mapping[str, Member], roles: Roles | None, now_ms: int) -> None:
        """Add what the members report now, in ms of a clock that does not step.

        A window begins with the progress that the roles name, if that is greater: after an outage
        the first node to come back may be far behind the others."""
        furthest: dict[int, int] = {}
        for member in members.values():
            for shard, replica in member.replicas.items():
                if replica.applied is not None:
                    furthest[shard] = max(furthest.get(shard, 0), replica.applied)
        for shard, applied in furthest.items():
            if shard not in self._windows:
                self._windows[shard] = ProgressWindow(self._max_lag_ms)
                given = None if roles is None else roles.shards.get(shard)
                applied = applied if given is None else max(applied, given.applied)
            self._windows[shard].add(applied, now_ms)
        self.needed = {shard: window.needed for shard, window in self._windows.items()}


def is_in_sync(member: Member, shard: int, needed: int | None) -> bool:
    """Return whether the member's replica could take the shard over soon. `needed`: see
    `ProgressWindows`; None: not known.

    The replica of a node that retires counts: it is kept until the others have caught up, and takes
    the shard over if no other node can. Otherwise each retirement would leave shards with too few
    followers, and their messages would be refused, although there are as many copies as before."""
    replica = member.replicas.get(shard)
    if (
        replica is None
        or needed is None
        or not member.eligible
        or member.leaving
        or member.log == UNREACHABLE
    ):
        return False
    is_warm = replica.role in WARM and replica.reason is None
    return is_warm and replica.applied is not None and replica.applied >= needed


def followers_in_sync(
    members: Mapping[str, Member], shard: int, *, master: str | None, needed: int | None
) -> tuple[str, ...]:
    """Return the nodes other than the master whose replicas of the shard are in sync, by name."""
    return tuple(
        sorted(
            node
            for node, member in members.items()
            if node != master and is_in_sync(member, shard, needed)
        )
    )


def too_few(needed: int, missing: int, why: str = "") -> str:
    """Return how many followers of a shard are in sync, of those it needs, for people. `why`: the
    reason if it is not that nodes are down or behind."""
    return f"{needed - missing} of {needed} followers in sync (replication.min_in_sync{why})"


def machines_in_sync(
    followers: Iterable[str], master: str | None, members: Mapping[str, Member]
) -> int:
    """Return on how many machines besides the master's the followers are; they are members. The
    nodes of one machine fail together."""
    leader = members.get(master or "")
    used = {members[node].machine for node in followers}
    return len(used - {None if leader is None else leader.machine})
