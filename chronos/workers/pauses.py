"""The pauses of a replica: the reason that people are told, and how long one lasts."""

import re

import structlog

from chronos.errors import Retry

log = structlog.get_logger("chronos.shard")

PAUSE_MS = 500
"""Pause after a failure that an immediate retry cannot fix."""

ABORT_PAUSE_MS = 50
"""Pause after an aborted transaction without a poison record, doubled each time up to PAUSE_MS."""

DIGITS = re.compile(r"\d+")


class PauseReason:
    """Why a replica is paused; a change is logged."""

    def __init__(self, shard: int) -> None:
        self._shard = shard
        self.text: str | None = None
        """The reason, for people; None if the replica is not paused."""

    def set(self, error: Retry | str) -> None:
        """Pause. A reason in which only numbers change (bytes, milliseconds) is the same reason and is logged once."""
        text = str(error)
        if self.text is None or DIGITS.sub("", self.text) != DIGITS.sub("", text):
            log.warning("paused", shard=self._shard, why=text)
        self.text = text

    def clear(self) -> None:
        """End the pause."""
        if self.text is not None:
            log.info("resumed", shard=self._shard)
            self.text = None


class Backoff:
    """Pauses of growing length: from ABORT_PAUSE_MS on, doubled each time, up to PAUSE_MS."""

    def __init__(self) -> None:
        self._next_ms = ABORT_PAUSE_MS

    def take(self) -> int:
        """Return the length of the pause that begins now (ms)."""
        taken_ms, self._next_ms = self._next_ms, min(2 * self._next_ms, PAUSE_MS)
        return taken_ms

    def reset(self) -> None:
        """Begin again with the shortest pause."""
        self._next_ms = ABORT_PAUSE_MS
