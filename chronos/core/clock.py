"""The tolerance between clocks (law 2), and the check of a follower's clock.

A master compares its clock with the broker's at each commit (`workers.step.tenure`). A follower
commits nothing, so it judges its own clock by the ages of the progress records that arrive."""

from collections import deque

CLOCK_TOLERANCE_MS = 500
"""Largest difference between two clocks, and largest step of one, at which messages are still
delivered (law 2)."""

AGE_MS_MAX = 5_000
"""Age of progress records at their arrival from which on a follower suspects its clock: ten times
the tolerance, because a record may also arrive late."""

AGES = 3
"""Arrivals in a row that must agree."""

LAST_CHOICE = (
    f", by the last {AGES} records that arrived: this replica takes over only if there is no "
    "other; check NTP on both"
)
"""The end of the text about a follower's clock."""


class Arrivals:
    """The ages of the progress records that arrived last at a follower, by its own clock. A record
    counts only if the follower had applied everything before it and waited."""

    def __init__(self) -> None:
        self._ages_ms: deque[int] = deque(maxlen=AGES)
        self._stepped_ms = 0

    def add(self, timestamp_ms: int, now_ms: int, stepped_ms: int) -> None:
        """Add a record that the broker wrote at `timestamp_ms`. `stepped_ms`: see `ports.Clock`."""
        self._forget_after_step(stepped_ms)
        self._ages_ms.append(now_ms - timestamp_ms)

    def problem(self, stepped_ms: int) -> str | None:
        """Return why this node should not become master, for people; None if its clock may be
        right."""
        self._forget_after_step(stepped_ms)
        if len(self._ages_ms) < AGES:
            return None
        least_ms, most_ms = min(self._ages_ms), max(self._ages_ms)
        if most_ms < -CLOCK_TOLERANCE_MS:
            return f"this machine's clock is {-most_ms} ms behind the broker's{LAST_CHOICE}"
        if least_ms > AGE_MS_MAX:
            return f"this machine's clock is {least_ms} ms ahead of the broker's{LAST_CHOICE}"
        return None

    def _forget_after_step(self, stepped_ms: int) -> None:
        if abs(stepped_ms - self._stepped_ms) > CLOCK_TOLERANCE_MS:
            self._ages_ms.clear()
            self._stepped_ms = stepped_ms
