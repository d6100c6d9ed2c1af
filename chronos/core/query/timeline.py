"""The timeline: how many pending messages are due in each interval, from the counts by minute that
the store keeps."""

from chronos.core.keys import MINUTE_MS, count_key, key_number
from chronos.core.shard.step import StoreView, portions

INTERVALS_MAX = 1_500
"""Most intervals of a timeline: a day by the minute, and some more."""

TIMELINE_MAX_MS = 1_100 * 86_400_000
"""Longest period of a timeline, in ms: three years. Only minutes with messages cost anything."""

COUNTS_SCAN = 1_000
"""Counts read in one scan: a scan holds the GIL."""

COUNTS_BYTES = 8_000_000
"""Bytes of counts read in one scan."""


def check_timeline(from_ms: int, to_ms: int, step_ms: int) -> None:
    """Raise ValueError, with a text for users, if such a timeline cannot be computed."""
    if step_ms < MINUTE_MS or step_ms % MINUTE_MS:
        raise ValueError(
            "must be a whole number of minutes, at least 1m: messages are counted by the minute"
        )
    if to_ms <= from_ms:
        raise ValueError("the end must lie after the beginning")
    if to_ms - from_ms > TIMELINE_MAX_MS:
        raise ValueError(f"at most {TIMELINE_MAX_MS // 86_400_000} days at once")
    if -(-(to_ms - from_ms) // step_ms) > INTERVALS_MAX:
        raise ValueError(f"at most {INTERVALS_MAX} intervals at once; choose a longer step")


def timeline(view: StoreView, from_ms: int, to_ms: int, step_ms: int) -> list[int]:
    """Return the pending messages in each interval of `step_ms`, from the minute of `from_ms` on.
    Raises as `check_timeline`."""
    check_timeline(from_ms, to_ms, step_ms)
    first = from_ms // MINUTE_MS
    beyond = -(-to_ms // MINUTE_MS)
    step = step_ms // MINUTE_MS
    counts = [0] * -(-(beyond - first) // step)
    start, stop = count_key(first), count_key(beyond)
    for rows in portions(view, start, stop, COUNTS_SCAN, COUNTS_BYTES):
        for key, data in rows:
            counts[(key_number(key) - first) // step] += int.from_bytes(data, "big")
    return counts
