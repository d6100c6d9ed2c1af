"""The pauses of a replica: how long one lasts."""

PAUSE_MS = 500
"""Pause after a failure that an immediate retry cannot fix."""

ABORT_PAUSE_MS = 50
"""Pause after an aborted transaction without a poison record, doubled each time up to PAUSE_MS."""


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
