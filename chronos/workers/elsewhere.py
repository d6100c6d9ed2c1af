"""How far the other shards have read and forwarded: one of them may still forward a record of any later time to a shard of this
node.

The state of a replica on this node tells it, however old the state is. For a shard that this node does not hold, the end of its
progress partition tells it. Runs in the maintenance thread; the shards' threads only ask.
"""

from collections.abc import Callable, Mapping, Set

import structlog

from chronos.core.codec import State
from chronos.core.keys import MINUTE_MS, OFFSET_MAX
from chronos.core.progress import unpack_progress
from chronos.core.timefmt import MS_MAX
from chronos.errors import ChronosError
from chronos.ports import Log
from chronos.workers.horizon import UNPULLED_BEFORE_MS, unforwarded_ms

log = structlog.get_logger("chronos.node")

LOOK_EVERY_MS = MINUTE_MS
"""How often the end of a progress partition is read: as often as an idle master writes to it."""

TAIL_OFFSETS = 20
"""Offsets before the end that hold a progress record: it may be followed by its marker, and by aborted transactions."""

READS_MAX, WAIT_S = 10, 0.1
"""Most reads of one partition, and the wait between two of them."""


class Elsewhere:
    """How far all shards have read, as this node knows it."""

    def __init__(self, log_port: Log, progress_topic: str, states: Callable[[], Mapping[int, State]]) -> None:
        """`states`: returns the state of every shard's replica on this node, those that it does not hold included."""
        self._log = log_port
        self._topic = progress_topic
        self._states = states
        self._read_ms: dict[int, int] = {}
        """Shard that this node does not hold -> the time up to which it had read (epoch ms)."""
        self._looked_ms = 0

    def read_ms(self, shard: int) -> int:
        """Return a time (epoch ms) that no record lies before that another shard may still forward to this one."""
        others = {number: unforwarded_ms(state) for number, state in self._states().items() if number != shard}
        return min((max(known, self._read_ms.get(number, 0)) for number, known in others.items()), default=MS_MAX)

    def step(self, now_ms: int, foreign: Set[int]) -> None:
        """Read the ends of the progress partitions of shards that this node does not hold, if that is due."""
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
        """Return the time that the last progress records of a shard show (epoch ms); 0 if they show none."""
        watermarks = self._log.watermarks(self._topic, number)
        reader = self._log.reader(self._topic, number, max(watermarks.start, watermarks.stable - TAIL_OFFSETS))
        found_ms = 0
        try:
            for _ in range(READS_MAX):
                for record in reader.read(TAIL_OFFSETS, 1):
                    progress = unpack_progress(record.value)
                    if progress.cursor_offset == OFFSET_MAX and not progress.held_forwards:
                        found_ms = progress.cursor_due_ms - UNPULLED_BEFORE_MS
                if reader.position >= watermarks.stable:
                    break
                reader.wait(WAIT_S)
        finally:
            reader.close()
        return found_ms
