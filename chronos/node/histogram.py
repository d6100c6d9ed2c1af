"""Histograms of lateness and of durations: counts in buckets with fixed upper bounds.

One thread counts, without a lock. Another one that reads meanwhile may see part of a step."""

from bisect import bisect_left
from collections.abc import Sequence

LATENESS_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    10.0,
    60.0,
    300.0,
    900.0,
    3600.0,
)
"""Upper bounds of the lateness buckets, in seconds: 1 ms to 1 h."""

STEP_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds of the buckets of a step's duration, in seconds."""


class Histogram:
    """Counts of values in buckets with fixed upper bounds."""

    def __init__(self, bounds_s: Sequence[float]) -> None:
        assert list(bounds_s) == sorted(bounds_s)
        self.bounds_s = tuple(bounds_s)
        self.counts = [0] * (len(bounds_s) + 1)
        """Number of values in each bucket; the last bucket has no upper bound."""
        self.sum_s = 0.0

    def observe(self, value_s: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds_s, value_s)] += 1
        self.sum_s += value_s

    def observe_late(self, due_ms: Sequence[int], delivered_ms: int) -> None:
        """Count the lateness of messages with these due times, in order, that were delivered at the
        same time."""
        counted = 0
        for at, bound_s in enumerate(self.bounds_s):
            # Messages due at or after delivered - bound are within the bound: the tail of the list.
            first = bisect_left(due_ms, delivered_ms - bound_s * 1_000)
            within = len(due_ms) - first
            self.counts[at] += within - counted
            counted = within
        self.counts[-1] += len(due_ms) - counted
        self.sum_s += (delivered_ms * len(due_ms) - sum(due_ms)) / 1_000

    def quantile_s(self, share: float) -> float | None:
        """Return the upper bound of the bucket that reaches this share of all values; None without
        values or beyond the last."""
        total = sum(self.counts)
        if total == 0:
            return None
        running = 0
        for bound_s, count in zip(self.bounds_s, self.counts, strict=False):
            running += count
            if running >= share * total:
                return bound_s
        return None
