"""The reach: whether the log's brokers answer this node, asked all the time, so that a master that is cut off gives way.

A session with the coordinator proves nothing of it: a node can reach the one and not the other, and a master that
waits for its brokers in the middle of a step notices long after its messages were due. Safety never rests here.
"""

import structlog

from chronos.core.roles import DEGRADED, OK, UNREACHABLE
from chronos.ports import Clock, TopicLog

log = structlog.get_logger("chronos.cluster")

ASKS = 8
"""How often the brokers are asked within the time after which a node counts as cut off."""


class LogReachability:
    """What this node hears from the log. `step` is called by one thread, `verdict` by any."""

    def __init__(self, log_port: TopicLog, *, unreachable_ms: int, clock: Clock) -> None:
        """After `unreachable_ms` without an answer UNREACHABLE, after half of that DEGRADED."""
        self._log = log_port
        self._unreachable_ms = unreachable_ms
        self._clock = clock
        self._answered_ms = self._steady_ms()
        self._told = OK

    @property
    def verdict(self) -> str:
        """OK, DEGRADED or UNREACHABLE, as of now."""
        quiet_ms = self._steady_ms() - self._answered_ms
        if quiet_ms >= self._unreachable_ms:
            return UNREACHABLE
        return DEGRADED if quiet_ms >= self._unreachable_ms // 2 else OK

    def step(self, now_ms: int) -> int:
        """Ask once; when to ask again."""
        asked_ms = self._steady_ms()
        if self._log.ping(2 * self._unreachable_ms / ASKS / 1_000):
            self._answered_ms = self._steady_ms()
        verdict = self.verdict
        if (verdict == UNREACHABLE) != (self._told == UNREACHABLE):
            if verdict == UNREACHABLE:
                log.warning("the log does not answer this node", quiet_ms=self._steady_ms() - self._answered_ms)
            else:
                log.info("the log answers this node again")
        self._told = verdict
        took_ms = self._steady_ms() - asked_ms
        return now_ms + max(0, self._unreachable_ms // ASKS - took_ms)

    def _steady_ms(self) -> int:
        # A wall clock that is set must not look like silence.
        return self._clock.now_ms() - self._clock.stepped_ms()
