"""Reachability of the log: the brokers are pinged continually, so that a master that is cut off from them is replaced.

A session with the coordinator is not enough: a node may reach the coordinator and not the brokers, and a master that
waits for its brokers in the middle of a step notices long after its messages were due. Safety does not depend on it.
"""

import structlog

from chronos.core.roles import DEGRADED, OK, UNREACHABLE
from chronos.ports import Clock, TopicLog, steady_ms

log = structlog.get_logger("chronos.cluster")

PINGS = 8
"""Pings within the time after which a node counts as cut off."""


class LogReachability:
    """Tracks whether the log's brokers answer this node. One thread calls `step`; any thread may read `verdict`."""

    def __init__(self, log_port: TopicLog, *, unreachable_ms: int, clock: Clock) -> None:
        """`unreachable_ms`: time without an answer until the verdict is UNREACHABLE; after half of it, and before the first answer, it
        is DEGRADED."""
        self._log = log_port
        self._unreachable_ms = unreachable_ms
        self._clock = clock
        self._answered_ms = steady_ms(self._clock)
        self._has_answered = False
        self._logged = OK
        """The verdict of the last step: only its changes are logged."""

    @property
    def verdict(self) -> str:
        """OK, DEGRADED or UNREACHABLE, as of now."""
        silent_ms = steady_ms(self._clock) - self._answered_ms
        if silent_ms >= self._unreachable_ms:
            return UNREACHABLE
        is_late = not self._has_answered or silent_ms >= self._unreachable_ms // 2
        return DEGRADED if is_late else OK

    def step(self, now_ms: int) -> int:
        """Ping once; return when to be called again, in epoch ms."""
        pinged_ms = steady_ms(self._clock)
        if self._log.ping(2 * self._unreachable_ms / PINGS / 1_000):
            self._answered_ms, self._has_answered = steady_ms(self._clock), True
        verdict = self.verdict
        if (verdict == UNREACHABLE) != (self._logged == UNREACHABLE):
            if verdict == UNREACHABLE:
                log.warning("the log does not answer this node", quiet_ms=steady_ms(self._clock) - self._answered_ms)
            else:
                log.info("the log answers this node again")
        self._logged = verdict
        took_ms = steady_ms(self._clock) - pinged_ms
        return now_ms + max(0, self._unreachable_ms // PINGS - took_ms)
