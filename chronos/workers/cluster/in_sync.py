"""The followers in sync, as one node sees them: `core.cluster.replication` applied to the reports
of all members.

Every node knows them, because each accepts messages for all shards, and may be the controller,
which prefers them as masters. Reports that the coordinator has not confirmed for `max_lag_ms` do
not count: no failover is possible without the coordinator. Safety does not depend on it: a message
is durable in the log before any follower has it."""

from collections.abc import Callable, Mapping

import structlog

from chronos.core.cluster.replication import (
    ProgressWindows,
    ReplicationRules,
    followers_in_sync,
    machines_in_sync,
    too_few,
)
from chronos.core.cluster.roles import Member
from chronos.ports import Clock, ClusterSnapshot, steady_ms

log = structlog.get_logger("chronos.cluster")

OBSERVE_MS = 200
"""Time between two readings of the reports, which come at least every 500 ms."""


class InSyncWatch:
    """Knows the followers in sync of all shards, and logs when a shard of this node has too few.
    One thread calls `step`; any thread may call the rest."""

    def __init__(
        self,
        rules: ReplicationRules,
        *,
        node: str,
        clock: Clock,
        snapshot: Callable[[], ClusterSnapshot],
    ) -> None:
        self.rules = rules
        self._node = node
        self._clock = clock
        self._snapshot = snapshot
        self._windows = ProgressWindows(rules.max_lag_ms)
        self._observed_ms: int | None = None
        self._confirmed_ms: int | None = None
        """When the coordinator last confirmed the reports of the members; None before the first
        time."""
        self._short: frozenset[int] = frozenset()
        """Shards of this node that had too few followers in sync at the last step: only changes are
        logged."""

    @property
    def needed(self) -> Mapping[int, int]:
        """Shard -> progress that a replica in sync has at the least."""
        return self._windows.needed

    def step(self) -> None:
        """Take in what the members report, at most every OBSERVE_MS."""
        now_ms = steady_ms(self._clock)
        if self._observed_ms is not None and now_ms - self._observed_ms < OBSERVE_MS:
            return
        self._observed_ms = now_ms
        snapshot = self._snapshot()
        self._windows.observe(snapshot.members, snapshot.roles, now_ms)
        if snapshot.confirmed:
            self._confirmed_ms = now_ms
        if self.rules.needed:
            self._log_changes(snapshot)

    def _log_changes(self, snapshot: ClusterSnapshot) -> None:
        own = (
            []
            if snapshot.roles is None
            else [n for n, given in snapshot.roles.shards.items() if given.master == self._node]
        )
        short = frozenset(shard for shard in own if self.shortage(shard) is not None)
        for shard in sorted(short - self._short):
            log.warning(
                "too few followers in sync",
                shard=shard,
                in_sync=self.counted(shard),
                needed=self.rules.needed,
            )
        for shard in sorted((self._short - short).intersection(own)):
            log.info(
                "enough followers in sync",
                shard=shard,
                in_sync=self.counted(shard),
                needed=self.rules.needed,
            )
        self._short = short

    def followers(self, shard: int) -> tuple[str, ...]:
        """Return the nodes with a follower in sync, by name; none without roles, or without a
        coordinator that answers."""
        return self._in_sync(shard)[0]

    def counted(self, shard: int) -> int:
        """Return how many followers in sync count: one for each machine but the master's."""
        return machines_in_sync(*self._in_sync(shard))

    def _in_sync(self, shard: int) -> tuple[tuple[str, ...], str | None, Mapping[str, Member]]:
        """Return the followers in sync, the master, and the members."""
        snapshot = self._snapshot()
        if snapshot.roles is None or not self._is_current():
            return (), None, {}
        given = snapshot.roles.shards.get(shard)
        master = None if given is None else given.master
        followers = followers_in_sync(
            snapshot.members, shard, master=master, needed=self.needed.get(shard)
        )
        return followers, master, snapshot.members

    def shortage(self, shard: int) -> str | None:
        """Return the text for people that the shard has too few followers in sync; None if it has
        enough or needs none."""
        needed, missing = self.rules.needed, self.missing(shard)
        if not missing:
            return None
        why = ""
        if not self._is_current():
            why = "; the coordinator does not answer"
        elif len(self.followers(shard)) > needed - missing:
            why = "; of those on one machine one counts, and of the master's none"
        return too_few(needed, missing, why)

    def missing(self, shard: int) -> int:
        """Return how many followers in sync the shard lacks; 0 if it needs none."""
        needed = self.rules.needed
        return max(0, needed - self.counted(shard)) if needed else 0

    def _is_current(self) -> bool:
        confirmed_ms = self._confirmed_ms
        return (
            confirmed_ms is not None
            and steady_ms(self._clock) - confirmed_ms < self.rules.max_lag_ms
        )
