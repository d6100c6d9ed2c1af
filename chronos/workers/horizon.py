"""The horizon: the time before which a shard's master forgets settled ids and noted cancels.

The master decides it from times in the logs and records it with every step, so that all replicas forget alike, whenever their delete
workers run (law 9). An id is needed as long as a record may still come that was written within the deduplication window, or before
a cancel: until this shard has read everything of that time, and every other shard too, because it may forward such a record.
"""

from collections.abc import Callable

from chronos.core.codec import State
from chronos.core.keys import MINUTE_MS, OFFSET_MAX

UNPULLED_BEFORE_MS = 16 * MINUTE_MS
"""How far before what was pulled the timestamp of a record may lie that is not pulled yet: a transaction holds its records
back for at most 15 min, Kafka's default of `transaction.max.timeout.ms`. The rest covers the broker's scan for expired
transactions (10 s) and the difference of clocks."""

ARRIVED_MS = MINUTE_MS
"""Time after which a record that another shard forwarded can be read in its own partition: the markers of the transaction are
written by then. One look at the other shards counts once this shard has read to the end of its log so much later."""


def reached_ms(state: State) -> int:
    """Return the last time (epoch ms) at which a master had pulled every record that could be read, as far as the cursor shows."""
    # A cursor after everything due at a time was committed when every record readable at that time was pulled.
    return state.cursor_due_ms if state.cursor_offset == OFFSET_MAX else 0


def unpulled_ms(state: State) -> int:
    """Return a time (epoch ms) that no timestamp of a record lies before that the shard has not pulled."""
    return max(state.watermark_ms, reached_ms(state)) - UNPULLED_BEFORE_MS


def unforwarded_ms(state: State) -> int:
    """Return a time (epoch ms) that no timestamp of a record lies before that the shard may still forward; 0 if it is not known."""
    # A held record may be of any time since the last look; what was seen before it was held stays true.
    return 0 if state.held_forwards else unpulled_ms(state)


class Horizon:
    """The horizon of one shard while this node is its master."""

    def __init__(self, *, kept_ms: int | None, elsewhere: Callable[[], int]) -> None:
        """`kept_ms`: how long ids are kept; None: for ever. `elsewhere`: returns a time (epoch ms) that no record lies before that
        another shard may still forward to this one."""
        self._kept_ms = kept_ms
        self._elsewhere = elsewhere
        self._looked_ms = 0
        """When the other shards were last looked at (epoch ms)."""
        self._seen_ms = 0
        """The time that they had read up to then."""
        self._arrived_ms = 0
        """A time (epoch ms) that no record lies before that another shard forwards, or that is on its way here."""

    def at(self, state: State, now_ms: int) -> int:
        """Return the horizon (epoch ms) for a step on this state. It never goes back."""
        if self._kept_ms is None:
            return state.horizon_ms
        if state.rules == 1:
            # The delete workers of rules 1, which looked at this shard only, may have removed as much.
            return max(0, min(state.progress_ms, unpulled_ms(state)) - self._kept_ms)
        if not 0 <= now_ms - self._looked_ms < MINUTE_MS:
            self._look(state, now_ms)
        read_ms = min(state.progress_ms, unpulled_ms(state), self._arrived_ms)
        return max(state.horizon_ms, (read_ms - self._kept_ms) // MINUTE_MS * MINUTE_MS)

    def _look(self, state: State, now_ms: int) -> None:
        """Look at the other shards, once everything that they had forwarded at the last look has arrived."""
        if self._looked_ms > now_ms:
            self._looked_ms = self._seen_ms = 0  # the clock was set back
        elif reached_ms(state) < self._looked_ms + ARRIVED_MS:
            return
        self._arrived_ms = max(self._arrived_ms, self._seen_ms)
        self._looked_ms, self._seen_ms = now_ms, self._elsewhere()
