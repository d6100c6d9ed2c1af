"""The reach: whether the log's brokers answer this node, asked all the time, so that a master that is cut off gives way.

A session with the coordinator proves nothing of it: a node can reach the one and not the other, and a master that
waits for its brokers in the middle of a step notices long after its messages were due. Safety never rests here.
"""

import structlog

from chronos.core.roles import ANSWERS, LATE, SILENT
from chronos.ports import Clock, Log

log = structlog.get_logger("chronos.cluster")

ASKS = 8
"""How often the brokers are asked within the time after which a node counts as cut off."""


class Reach:
    """What this node hears from the log. `step` is called by one thread, `says` by any."""

    def __init__(self, log_port: Log, *, silent_ms: int, clock: Clock) -> None:
        """After `silent_ms` without an answer SILENT, after half of that LATE."""
        self._log = log_port
        self._silent_ms = silent_ms
        self._clock = clock
        self._answered_ms = self._steady_ms()
        self._told = ANSWERS

    @property
    def says(self) -> str:
        """ANSWERS, LATE or SILENT, as of now."""
        quiet_ms = self._steady_ms() - self._answered_ms
        if quiet_ms >= self._silent_ms:
            return SILENT
        return LATE if quiet_ms >= self._silent_ms // 2 else ANSWERS

    def step(self, now_ms: int) -> int:
        """Ask once; when to ask again."""
        asked_ms = self._steady_ms()
        if self._log.answers(2 * self._silent_ms / ASKS / 1_000):
            self._answered_ms = self._steady_ms()
        says = self.says
        if (says == SILENT) != (self._told == SILENT):
            if says == SILENT:
                log.warning("the log does not answer this node", quiet_ms=self._steady_ms() - self._answered_ms)
            else:
                log.info("the log answers this node again")
        self._told = says
        took_ms = self._steady_ms() - asked_ms
        return now_ms + max(0, self._silent_ms // ASKS - took_ms)

    def _steady_ms(self) -> int:
        # A wall clock that is set must not look like silence.
        return self._clock.now_ms() - self._clock.stepped_ms()
