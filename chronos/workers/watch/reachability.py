"""Reachability of the log: whether the brokers answer this node.

A session with the coordinator is not enough: a node may reach the coordinator and not the brokers,
and a master that waits for its brokers in the middle of a step notices it long after its messages
were due. The cluster replaces the masters of a node that the log does not answer. Safety does not
depend on it: the log fences (law 5)."""

import structlog

from chronos.core.cluster.roles import DEGRADED, OK, UNREACHABLE
from chronos.core.timefmt import format_time
from chronos.ports import Clock, TopicLog, steady_ms

log = structlog.get_logger("chronos.cluster")

PINGS = 8
"""Pings within the time after which the verdict is UNREACHABLE."""

LOG_EVERY_MS = 60_000
"""Time between two log lines about the same outage."""


class LogReachability:
    """Tracks whether the log's brokers answer this node. One thread calls `step`; any thread may
    read the rest."""

    def __init__(
        self, log_port: TopicLog, *, unreachable_ms: int, clock: Clock, brokers: str = ""
    ) -> None:
        """`unreachable_ms`: time without an answer after which the verdict is UNREACHABLE; after
        half of it, and before the first answer, it is DEGRADED. `brokers`: their addresses, for
        people."""
        self._log = log_port
        self._brokers = brokers
        self._unreachable_ms = unreachable_ms
        self._clock = clock
        self._ping_ms = 2 * unreachable_ms // PINGS
        """Longest time that a ping waits."""
        self._silence = 0, steady_ms(clock)
        """For how long (ms) the log had not answered at the last count, and the time of that
        (steady ms)."""
        self._answered_at_ms = clock.now_ms()
        self._has_answered = False
        self._logged_ms: int | None = None
        """When the outage was last logged (steady ms); None: there is none."""
        self.outage: str | None = None
        """The text about the outage, for people; None unless the verdict of the last step is
        UNREACHABLE."""

    @property
    def verdict(self) -> str:
        """OK, DEGRADED or UNREACHABLE, as of now."""
        silent_ms = self._silent_ms(steady_ms(self._clock))
        if silent_ms >= self._unreachable_ms:
            return UNREACHABLE
        is_late = not self._has_answered or silent_ms >= self._unreachable_ms // 2
        return DEGRADED if is_late else OK

    def step(self, now_ms: int) -> int:
        """Ping once; return when to be called again, in epoch ms."""
        pinged_ms = steady_ms(self._clock)
        self._silence = self._silent_ms(pinged_ms), pinged_ms
        is_answered = self._log.ping(self._ping_ms / 1_000)
        ended_ms = steady_ms(self._clock)
        self._silence = 0 if is_answered else self._silent_ms(ended_ms), ended_ms
        if is_answered:
            self._answered_at_ms, self._has_answered = self._clock.now_ms(), True
        self._log_outage(ended_ms)
        return now_ms + max(0, self._unreachable_ms // PINGS - (ended_ms - pinged_ms))

    def _silent_ms(self, steady_now_ms: int) -> int:
        """For how long (ms) the log has not answered. Between two counts no more counts than a ping
        waits: a process that was frozen for longer could not receive an answer."""
        silent_ms, counted_ms = self._silence
        return silent_ms + min(steady_now_ms - counted_ms, self._ping_ms)

    def _log_outage(self, steady_now_ms: int) -> None:
        """Log an outage when it begins, once in LOG_EVERY_MS while it lasts, and when it ends."""
        silent_s = self._silent_ms(steady_now_ms) // 1_000
        if self.verdict != UNREACHABLE:
            if self._logged_ms is not None:
                log.info("the log answers this node again")
            self._logged_ms = self.outage = None
            return
        at = f" at {self._brokers}" if self._brokers else ""
        since = format_time(self._answered_at_ms)
        self.outage = f"no broker{at} answers since {since}: nothing is delivered, nothing is lost"
        if self._logged_ms is None or steady_now_ms - self._logged_ms >= LOG_EVERY_MS:
            self._logged_ms = steady_now_ms
            log.warning("the log does not answer this node", seconds=silent_s, why=self.outage)
