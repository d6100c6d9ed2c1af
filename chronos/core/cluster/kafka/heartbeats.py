"""The heartbeats of one process, and the time that counts between them.

A process measures the silence of the others by its own monotonic clock, and only between own
heartbeats that each came back in time. Records of the others lie between these in the partition, so
a pause of this process, or of the log, never counts as a silence of theirs. Neither the log's
timestamps nor a wall clock are used. The result is an eventually perfect failure detector: it may
call a slow process gone, and is right once the log and the processes are in time. What follows from
a silence is decided in `incarnations` and `controllership`."""

from collections import OrderedDict

from chronos.core.cluster.timing import Timing


class TimeSince:
    """The time that counts since an event happened last."""

    def __init__(self) -> None:
        self.ms = 0
        self._happened = False

    def happened(self) -> None:
        """Note that the event happened between two own heartbeats: the time between these does not
        count."""
        self.ms, self._happened = 0, True

    def passed(self, ms: int) -> None:
        """Add time that counts."""
        self.ms += 0 if self._happened else ms
        self._happened = False

    def restart(self, from_ms: int = 0) -> None:
        """Count from here; `from_ms`: negative to count longer than others."""
        self.ms, self._happened = from_ms, False


class OwnHeartbeats:
    """The heartbeats of this process: when the next one is due, and how much time counts between
    those that came back."""

    def __init__(self, timing: Timing) -> None:
        assert 0 < 4 * timing.heartbeat_ms <= timing.timeout_ms, (
            "one lost heartbeat must not end the time that counts"
        )
        self._timing = timing
        self._written_ms: OrderedDict[int, int] = OrderedDict()
        """Heartbeats that have not come back -> when they were written. The latest of them only: an
        older one is late anyway."""
        self._kept = 2 + 2 * timing.timeout_ms // timing.heartbeat_ms
        self._number = 0
        self._due_ms: int | None = None
        self._in_flight = 0
        """Number of the heartbeat that is being written; 0: none."""
        self._returned_ms: int | None = None
        """When the heartbeat that came back last was written."""
        self._prompt = False
        """That heartbeat came back in time."""
        self.returned = 0
        """Number of the heartbeat that came back last; 0: none did."""

    def due(self, now_ms: int, *, at_once: bool = False) -> bool:
        """Return whether to write a heartbeat now: at most one is in flight, and none is queued."""
        return not self._in_flight and (at_once or self._due_ms is None or now_ms >= self._due_ms)

    def write(self, now_ms: int) -> int:
        """Return the number of the heartbeat that is written now."""
        self._number += 1
        self._in_flight = self._number
        self._due_ms = now_ms + self._timing.heartbeat_ms
        self._written_ms[self._number] = now_ms
        while len(self._written_ms) > self._kept:
            self._written_ms.popitem(last=False)
        return self._number

    def settled(self, number: int) -> None:
        """Note that the log acknowledged this heartbeat, or refused it."""
        if number == self._in_flight:
            self._in_flight = 0

    def came_back(self, number: int, now_ms: int) -> int | None:
        """Return the time that counts since the heartbeat before; None if it does not count,
        because one of them was late."""
        if not self.returned < number <= self._number:
            return 0
        self.returned = number
        self.settled(number)
        written_ms = self._written_ms.get(number)
        while self._written_ms and next(iter(self._written_ms)) <= number:
            self._written_ms.popitem(last=False)
        was_prompt, before_ms = self._prompt, self._returned_ms
        self._returned_ms = written_ms
        self._prompt = written_ms is not None and now_ms - written_ms <= self._timing.prompt_ms
        if written_ms is None or before_ms is None or not (self._prompt and was_prompt):
            return None
        between_ms = written_ms - before_ms
        if between_ms > self._timing.prompt_ms:
            return None
        return between_ms

    def seen(self, now_ms: int) -> bool:
        """Return whether a heartbeat came back that was written within `Timing.seen_ms`: no other
        process can have called this one gone."""
        return self._returned_ms is not None and now_ms - self._returned_ms <= self._timing.seen_ms
