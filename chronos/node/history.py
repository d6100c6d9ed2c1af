"""The last day of the node, minute by minute.

Once a second the maintenance thread adds to the current minute what the counts of `outcomes` and
the lateness of the shards have gained. The minutes are kept in memory and begin with the process.
"""

import threading
from collections import deque
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from chronos.core.keys import MINUTE_MS
from chronos.core.message import Reason
from chronos.node.histogram import LATENESS_S, Histogram
from chronos.node.outcomes import Outcomes

MINUTES_MAX = 1_440
"""Minutes that are kept: a day, some 500 kB."""


class Minute(Struct, kw_only=True, gc=False):
    """One minute of one node."""

    start_ms: int
    """Its beginning (epoch ms)."""
    delivered: int = 0
    dead: int = 0
    """Dead-lettered for a reason other than expiry."""
    expired: int = 0
    rejected: int = 0
    """Records rejected."""
    pending: int = 0
    """Pending messages at its end, in the shards that the node was master of."""
    late: tuple[int, ...] = ()
    """Deliveries by bucket of lateness, as in `LATENESS_S`; empty without deliveries."""

    def quantile_s(self, share: float) -> float | None:
        """Return the upper bound of the lateness of this share of its deliveries; None without
        deliveries or beyond the last bound."""
        if not self.late:
            return None
        lateness = Histogram(LATENESS_S)
        lateness.counts = list(self.late)
        return lateness.quantile_s(share)


class _Counts(Struct, frozen=True):
    """The counts of the process since it started."""

    dead: int
    expired: int
    rejected: int
    late: tuple[int, ...]


class History:
    """The minutes of one node. One thread takes the steps; any thread reads."""

    def __init__(self, outcomes: Outcomes) -> None:
        self._outcomes = outcomes
        self._lock = threading.Lock()
        self._minutes: deque[Minute] = deque(maxlen=MINUTES_MAX)
        self._before = self._counts(())

    def step(self, now_ms: int, *, pending: int, lateness: Iterable[Histogram]) -> None:
        """Add what the process has done since the step before to the minute of `now_ms`. `pending`:
        messages of the shards that the node is master of; `lateness`: that of each shard."""
        counts, before = self._counts(lateness), self._before
        self._before = counts
        late = [now - then for now, then in zip(counts.late, before.late, strict=True)]
        start_ms = now_ms // MINUTE_MS * MINUTE_MS
        with self._lock:
            # Minutes that come only now were written by a clock that was ahead.
            while self._minutes and self._minutes[-1].start_ms > start_ms:
                self._minutes.pop()
            if not self._minutes or self._minutes[-1].start_ms < start_ms:
                self._minutes.append(Minute(start_ms=start_ms))
            minute = self._minutes[-1]
            minute.pending = pending
            minute.dead += counts.dead - before.dead
            minute.expired += counts.expired - before.expired
            minute.rejected += counts.rejected - before.rejected
            if any(late):
                known = minute.late or (0,) * len(late)
                minute.late = tuple(a + b for a, b in zip(known, late, strict=True))
                minute.delivered += sum(late)

    def minutes(self, now_ms: int, count: int) -> list[Minute]:
        """Return the minutes among the last `count` in which the process ran, the oldest first; the
        last one is not over yet."""
        since_ms = (now_ms // MINUTE_MS - count) * MINUTE_MS
        with self._lock:
            return [replace(each) for each in self._minutes if each.start_ms > since_ms]

    def _counts(self, lateness: Iterable[Histogram]) -> _Counts:
        dead, rejected = self._outcomes.by_reason()
        late = [0] * (len(LATENESS_S) + 1)
        for histogram in lateness:
            for at, count in enumerate(histogram.counts):
                late[at] += count
        expired = dead.get(Reason.EXPIRED, 0)
        return _Counts(
            dead=sum(dead.values()) - expired,
            expired=expired,
            rejected=sum(rejected.values()),
            late=tuple(late),
        )
