"""The followers in sync of every shard, as this node sees them, and the shards that have too few of them.

What `core.replication` decides from the reports of all members. Every node knows it, because each accepts messages for all shards.
Reports that the coordinator has not confirmed for `max_lag` count for nothing: no failover is possible then, whatever they say.
"""

from collections.abc import Callable, Mapping

import structlog

from chronos.core.replication import ProgressWindows, ReplicationRules, followers_in_sync
from chronos.ports import Clock, ClusterSnapshot, steady_ms

log = structlog.get_logger("chronos.cluster")

OBSERVE_MS = 200
"""Time between two looks at the reports, which come at least every 500 ms."""


class InSyncWatch:
    """One thread calls `step`; any thread may call the rest."""

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
        """When the coordinator last confirmed what the members report; None before the first time."""
        self._short: frozenset[int] = frozenset()
        """Shards of this node that had too few followers in sync at the last look: only changes are logged."""

    @property
    def needed(self) -> Mapping[int, int]:
        """Shard -> progress that a replica in sync has at the least."""
        return self._windows.needed

    def step(self) -> None:
        """Look at what the members report, at most every OBSERVE_MS."""
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
                "too few followers in sync", shard=shard, in_sync=len(self.followers(shard)), needed=self.rules.needed
            )
        for shard in sorted((self._short - short).intersection(own)):
            log.info(
                "enough followers in sync", shard=shard, in_sync=len(self.followers(shard)), needed=self.rules.needed
            )
        self._short = short

    def followers(self, shard: int) -> tuple[str, ...]:
        """Return the nodes with a follower in sync, by name; none of them is known without roles or a coordinator that answers."""
        snapshot = self._snapshot()
        if snapshot.roles is None or not self._is_current():
            return ()
        given = snapshot.roles.shards.get(shard)
        master = None if given is None else given.master
        return followers_in_sync(snapshot.members, shard, master=master, needed=self.needed.get(shard))

    def shortage(self, shard: int) -> str | None:
        """Return that the shard has too few followers in sync, for people; None if it has enough or needs none."""
        found = len(self.followers(shard)) if self.rules.needed else 0
        if found >= self.rules.needed:
            return None
        unknown = "" if self._is_current() else "; the coordinator does not answer"
        return f"{found} of {self.rules.needed} followers in sync (replication.min_in_sync{unknown})"

    def _is_current(self) -> bool:
        confirmed_ms = self._confirmed_ms
        return confirmed_ms is not None and steady_ms(self._clock) - confirmed_ms < self.rules.max_lag_ms
