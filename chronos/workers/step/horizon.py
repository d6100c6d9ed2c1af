"""The horizon of a shard: the time before which it forgets settled ids and noted cancels.

An id is needed as long as a record may still come that was written within the deduplication window,
or before a cancel: until this shard has read every record of that time, and every other shard too,
because another shard may forward such a record (not if `topics.misplaced` is `reject`: then the
others are not waited for). How far the other shards have read is known from their replicas on this
node, and, for a shard that this node does not hold, from the end of its progress partition
(`Elsewhere`, in the maintenance thread).

The master decides the horizon from times in the logs and records it with every step, so that all
replicas forget alike, whenever their delete workers run (law 9). Nothing is deleted here: see
`workers.replica.retention`."""

from collections.abc import Callable, Mapping, Set

import structlog

from chronos.core.keys import MINUTE_MS, OFFSET_MAX
from chronos.core.shard.codec import State
from chronos.core.shard.progress import is_foreign, unpack_progress
from chronos.core.timefmt import MS_MAX
from chronos.errors import ChronosError
from chronos.ports import Log

log = structlog.get_logger("chronos.node")

LOOK_EVERY_MS = MINUTE_MS
"""How often the end of a progress partition is read: as often as an idle master writes to it."""

TAIL_OFFSETS = 20
"""Offsets before the end that hold a progress record: it may be followed by its marker, and by
aborted transactions."""

READS_MAX, WAIT_S = 10, 0.1
"""Most reads of one partition, and the wait between two of them."""

UNPULLED_BEFORE_MS = 16 * MINUTE_MS
"""How much earlier the timestamp of a record that is not pulled yet may be than those that are: a
transaction holds its records back for at most 15 min, Kafka's default of
`transaction.max.timeout.ms`. The rest covers the broker's scan for expired transactions (10 s) and
the difference of clocks."""

ARRIVED_MS = MINUTE_MS
"""Time after which a record that another shard forwarded can be read in its own partition: the
markers of the transaction are written by then. A bound of the other shards counts once this shard
has read to the end of its log at a time that is so much later."""


def reached_ms(state: State) -> int:
    """Return the last time (epoch ms) at which a master is known, by the cursor, to have pulled
    every record that could be read; 0 if the cursor does not show one."""
    # A cursor after everything due at a time was committed when every record readable at that time
    # was pulled.
    return state.cursor_due_ms if state.cursor_offset == OFFSET_MAX else 0


def unpulled_ms(state: State) -> int:
    """Return a bound (epoch ms): no record that the shard has not pulled has an earlier
    timestamp."""
    return max(state.watermark_ms, reached_ms(state)) - UNPULLED_BEFORE_MS


def unforwarded_ms(state: State) -> int:
    """Return a bound (epoch ms): no record that the shard may still forward has an earlier
    timestamp; 0 if the bound is not known."""
    # A held record may be older than what was pulled last. A bound that was computed before the
    # record was held stays true.
    return 0 if state.held_forwards else unpulled_ms(state)


class Elsewhere:
    """The bounds of the other shards, as this node knows them. The maintenance thread calls `step`;
    the shards' threads call `read_ms`."""

    def __init__(
        self, log_port: Log, progress_topic: str, states: Callable[[], Mapping[int, State]]
    ) -> None:
        """`states`: returns the state of every shard as its store on this node has it, also of
        shards that this node does not hold."""
        self._log = log_port
        self._topic = progress_topic
        self._states = states
        self._read_ms: dict[int, int] = {}
        """Shard that this node does not hold -> its bound by the end of its progress partition
        (epoch ms)."""
        self._looked_ms = 0

    def read_ms(self, shard: int) -> int:
        """Return a bound (epoch ms): no record that another shard may still forward to this one has
        an earlier first timestamp."""
        others = {
            number: unforwarded_ms(state)
            for number, state in self._states().items()
            if number != shard
        }
        return min(
            (max(known, self._read_ms.get(number, 0)) for number, known in others.items()),
            default=MS_MAX,
        )

    def step(self, now_ms: int, foreign: Set[int]) -> None:
        """Read the ends of the progress partitions of shards that this node does not hold, if that
        is due."""
        if not foreign or 0 <= now_ms - self._looked_ms < LOOK_EVERY_MS:
            return
        self._looked_ms = now_ms
        for number in sorted(foreign):
            try:
                bound_ms = self._tail_ms(number)
            except ChronosError as error:
                log.warning("progress of another shard not read", shard=number, why=str(error))
                continue
            self._read_ms[number] = max(bound_ms, self._read_ms.get(number, 0))

    def _tail_ms(self, number: int) -> int:
        """Return the bound of a shard (epoch ms) by its last progress records; 0 if they show
        none."""
        watermarks = self._log.watermarks(self._topic, number)
        reader = self._log.reader(
            self._topic, number, max(watermarks.start, watermarks.stable - TAIL_OFFSETS)
        )
        bound_ms = 0
        try:
            for _ in range(READS_MAX):
                for record in reader.read(TAIL_OFFSETS, 1):
                    if is_foreign(record):
                        continue
                    progress = unpack_progress(record.value, len(self._states()))
                    if progress.cursor_offset == OFFSET_MAX and not progress.held_forwards:
                        bound_ms = progress.cursor_due_ms - UNPULLED_BEFORE_MS
                if reader.position >= watermarks.stable:
                    break
                reader.wait(WAIT_S)
        finally:
            reader.close()
        return bound_ms


class Horizon:
    """The horizon of one shard while this node is its master."""

    def __init__(self, *, kept_ms: int | None, elsewhere: Callable[[], int]) -> None:
        """`kept_ms`: how long ids are kept; None: for ever. `elsewhere`: see
        `Elsewhere.read_ms`."""
        self._kept_ms = kept_ms
        self._elsewhere = elsewhere
        self._looked_ms = 0
        """When the bound of the other shards was last read (epoch ms)."""
        self._seen_ms = 0
        """The bound that was read then (epoch ms)."""
        self._arrived_ms = 0
        """A bound (epoch ms): no record that another shard may still forward, or whose hop this
        shard has not pulled, has an earlier first timestamp."""

    def at(self, state: State, now_ms: int) -> int:
        """Return the horizon (epoch ms) for a step on this state. It never goes back."""
        if self._kept_ms is None:
            return state.horizon_ms
        if not 0 <= now_ms - self._looked_ms < MINUTE_MS:
            self._read_bound(state, now_ms)
        read_ms = min(state.progress_ms, unpulled_ms(state), self._arrived_ms)
        return max(state.horizon_ms, (read_ms - self._kept_ms) // MINUTE_MS * MINUTE_MS)

    def _read_bound(self, state: State, now_ms: int) -> None:
        """Read the bound of the other shards again, once everything that they had forwarded at the
        last reading has arrived."""
        if self._looked_ms > now_ms:
            self._looked_ms = self._seen_ms = 0  # the clock was set back
        elif reached_ms(state) < self._looked_ms + ARRIVED_MS:
            return
        self._arrived_ms = max(self._arrived_ms, self._seen_ms)
        self._looked_ms, self._seen_ms = now_ms, self._elsewhere()
