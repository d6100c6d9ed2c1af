"""What a shard forgets: the horizon of settled ids and noted cancels, and the delete worker, which
deletes settled messages.

No other shard may still forward a record of before the horizon. How far another shard has read, the
state of its replica on this node tells, however old it is; for a shard that this node does not
hold, the end of its progress partition. `Elsewhere` runs in the maintenance thread; the shards'
threads only ask.

The master decides the horizon from times in the logs and records it with every step, so that all
replicas forget alike, whenever their delete workers run (law 9). An id is needed as long as a
record may still come that was written within the deduplication window, or before a cancel: until
this shard has read everything of that time, and every other shard too, because it may forward such
a record.

The delete worker keeps law 7, nothing pending is ever deleted: entries are deleted by range, up to
the cursor of the time one retention ago, and an id's state only if it is still the settled one that
its expiry entry was written for, and forgotten: older than the horizon that the master recorded
(`horizon`), so that it decides nothing any more, whether or not this worker has run (law 9). The
worker runs in the thread of its shard, between steps, one bounded batch at a time."""

from collections.abc import Callable, Mapping, Set

import structlog

from chronos.core.keys import (
    CURSOR_HISTORY,
    ENTRY,
    EXPIRY,
    MINUTE_MS,
    OFFSET_MAX,
    cursor_history_key,
    entry_key,
    id_key,
    key_number,
)
from chronos.core.shard.codec import State, unpack_id_state
from chronos.core.shard.order import is_forgotten
from chronos.core.shard.progress import is_foreign, unpack_progress
from chronos.core.shard.shard import Shard
from chronos.core.timefmt import MS_MAX
from chronos.errors import ChronosError
from chronos.ports import Log, Store

log = structlog.get_logger("chronos.node")

LOOK_EVERY_MS = MINUTE_MS
"""How often the end of a progress partition is read: as often as an idle master writes to it."""

TAIL_OFFSETS = 20
"""Offsets before the end that hold a progress record: it may be followed by its marker, and by
aborted transactions."""

READS_MAX, WAIT_S = 10, 0.1
"""Most reads of one partition, and the wait between two of them."""


class Elsewhere:
    """How far all shards have read, as this node knows it."""

    def __init__(
        self, log_port: Log, progress_topic: str, states: Callable[[], Mapping[int, State]]
    ) -> None:
        """`states`: returns the state of every shard's replica on this node, those that it does not
        hold included."""
        self._log = log_port
        self._topic = progress_topic
        self._states = states
        self._read_ms: dict[int, int] = {}
        """Shard that this node does not hold -> the time up to which it had read (epoch ms)."""
        self._looked_ms = 0

    def read_ms(self, shard: int) -> int:
        """Return a time (epoch ms) that no record lies before that another shard may still forward
        to this one."""
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
                found_ms = self._tail_ms(number)
            except ChronosError as error:
                log.warning("progress of another shard not read", shard=number, why=str(error))
                continue
            self._read_ms[number] = max(found_ms, self._read_ms.get(number, 0))

    def _tail_ms(self, number: int) -> int:
        """Return the time that the last progress records of a shard show (epoch ms); 0 if they show
        none."""
        watermarks = self._log.watermarks(self._topic, number)
        reader = self._log.reader(
            self._topic, number, max(watermarks.start, watermarks.stable - TAIL_OFFSETS)
        )
        found_ms = 0
        try:
            for _ in range(READS_MAX):
                for record in reader.read(TAIL_OFFSETS, 1):
                    if is_foreign(record):
                        continue
                    progress = unpack_progress(record.value, len(self._states()))
                    if progress.cursor_offset == OFFSET_MAX and not progress.held_forwards:
                        found_ms = progress.cursor_due_ms - UNPULLED_BEFORE_MS
                if reader.position >= watermarks.stable:
                    break
                reader.wait(WAIT_S)
        finally:
            reader.close()
        return found_ms


UNPULLED_BEFORE_MS = 16 * MINUTE_MS
"""How far before what was pulled the timestamp of a record may lie that is not pulled yet: a
transaction holds its records back for at most 15 min, Kafka's default of
`transaction.max.timeout.ms`. The rest covers the broker's scan for expired transactions (10 s) and
the difference of clocks."""

ARRIVED_MS = MINUTE_MS
"""Time after which a record that another shard forwarded can be read in its own partition: the
markers of the transaction are written by then. One look at the other shards counts once this shard
has read to the end of its log so much later."""


def reached_ms(state: State) -> int:
    """Return the last time (epoch ms) at which a master had pulled every record that could be read,
    as far as the cursor shows."""
    # A cursor after everything due at a time was committed when every record readable at that time
    # was pulled.
    return state.cursor_due_ms if state.cursor_offset == OFFSET_MAX else 0


def unpulled_ms(state: State) -> int:
    """Return a time (epoch ms) that no timestamp of a record lies before that the shard has not
    pulled."""
    return max(state.watermark_ms, reached_ms(state)) - UNPULLED_BEFORE_MS


def unforwarded_ms(state: State) -> int:
    """Return a time (epoch ms) that no timestamp of a record lies before that the shard may still
    forward; 0 if it is not known."""
    # A held record may be of any time since the last look; what was seen before it was held stays
    # true.
    return 0 if state.held_forwards else unpulled_ms(state)


class Horizon:
    """The horizon of one shard while this node is its master."""

    def __init__(self, *, kept_ms: int | None, elsewhere: Callable[[], int]) -> None:
        """`kept_ms`: how long ids are kept; None: for ever. `elsewhere`: returns a time (epoch ms)
        that no record lies before that another shard may still forward to this one."""
        self._kept_ms = kept_ms
        self._elsewhere = elsewhere
        self._looked_ms = 0
        """When the other shards were last looked at (epoch ms)."""
        self._seen_ms = 0
        """The time that they had read up to then."""
        self._arrived_ms = 0
        """A time (epoch ms) that no record lies before that another shard forwards, or that is on
        its way here."""

    def at(self, state: State, now_ms: int) -> int:
        """Return the horizon (epoch ms) for a step on this state. It never goes back."""
        if self._kept_ms is None:
            return state.horizon_ms
        if not 0 <= now_ms - self._looked_ms < MINUTE_MS:
            self._look(state, now_ms)
        read_ms = min(state.progress_ms, unpulled_ms(state), self._arrived_ms)
        return max(state.horizon_ms, (read_ms - self._kept_ms) // MINUTE_MS * MINUTE_MS)

    def _look(self, state: State, now_ms: int) -> None:
        """Look at the other shards, once everything that they had forwarded at the last look has
        arrived."""
        if self._looked_ms > now_ms:
            self._looked_ms = self._seen_ms = 0  # the clock was set back
        elif reached_ms(state) < self._looked_ms + ARRIVED_MS:
            return
        self._arrived_ms = max(self._arrived_ms, self._seen_ms)
        self._looked_ms, self._seen_ms = now_ms, self._elsewhere()


BATCH_KEYS = 1_000
"""Keys read in one step: a few milliseconds, so that no due message waits for the deletion."""

BATCH_BYTES = 1_000_000
"""Bytes of keys and values read in one step."""

ID_STATES_LONGER_MS = 3 * MINUTE_MS
"""Id states outlive their entries, which are deleted by whole minutes: an expired message must not
be found as delivered."""

DELETE_EVERY_MS = 60_000
"""How often the worker looks for something to delete."""


def id_states_kept_ms(delivered_ms: int, deduplication_ms: int) -> int:
    """Return the shortest time for which an id's state is kept after it was settled: the
    deduplication window, and longer than its entry. It is kept for longer while records are not
    pulled."""
    return max(delivered_ms + ID_STATES_LONGER_MS, deduplication_ms)


class Deleter:
    """Deletes from the store of one shard."""

    def __init__(
        self, store: Store, shard: Shard, *, delivered_ms: int, deduplication_ms: int
    ) -> None:
        self._store = store
        self._shard = shard
        self._delivered_ms = delivered_ms
        self.id_states_ms = id_states_kept_ms(delivered_ms, deduplication_ms)
        self._start = EXPIRY
        """Where the next batch of id states begins: a scan over what the batches before it deleted
        costs more than the batch."""

    def step(self, now_ms: int) -> int:
        """Delete one batch; return when to be called again, in epoch ms."""
        state = self._shard.state
        now_ms = min(now_ms, state.progress_ms)
        self._drop_entries(now_ms - self._delivered_ms)
        more = self._drop_id_states(state.horizon_ms)
        return now_ms if more else now_ms + DELETE_EVERY_MS

    def _drop_entries(self, before_ms: int) -> None:
        """Delete every entry at or before the cursor of that time.

        A minute has a row of the history if a record was applied in it: with the cursor at its
        beginning, and of all minutes since the row before. So what was settled before an outage
        goes by the first row after it, and not later than its id state."""
        if before_ms <= 0:
            return
        minute = before_ms // MINUTE_MS
        history, _ = self._store.scan(
            CURSOR_HISTORY, cursor_history_key(minute + 1), BATCH_KEYS, BATCH_BYTES
        )
        if not history:
            return
        history_key, cursor_key = history[-1]
        through = history_key
        if key_number(history_key) < minute:
            through += b"\x00"
            later, _ = self._store.scan(through, bytes([CURSOR_HISTORY[0] + 1]), 1, BATCH_BYTES)
            cursor_key = later[0][1] if later else cursor_key
        assert cursor_key <= entry_key(*self._shard.state.cursor), (
            "the cursor history is ahead of the cursor"
        )
        self._store.delete_range(ENTRY, cursor_key + b"\x00")
        self._store.delete_range(CURSOR_HISTORY, through)

    def _drop_id_states(self, before_ms: int) -> bool:
        """Delete a batch of id states that are forgotten at that horizon; return True if there may
        be more."""
        if before_ms <= 0:
            return False
        stop = EXPIRY + before_ms.to_bytes(8, "big")
        rows, rest = (
            self._store.scan(self._start, stop, BATCH_KEYS, BATCH_BYTES)
            if self._start < stop
            else ([], None)
        )
        self._start = rest or EXPIRY
        if not rows:
            return rest is not None
        ids = [key[9:] for key, _ in rows]
        id_states = self._store.get([id_key(message_id) for message_id in ids])
        deletes = [key for key, _ in rows]
        for (key, _), message_id, data in zip(rows, ids, id_states, strict=True):
            id_state = None if data is None else unpack_id_state(data)
            # One that was settled again, or a cancel noted, later than this row says has a row with
            # that time.
            if (
                id_state is not None
                and id_state.settled_ms <= key_number(key)
                and is_forgotten(id_state, before_ms)
            ):
                deletes.append(id_key(message_id))
        self._store.write([], deletes)
        return rest is not None
