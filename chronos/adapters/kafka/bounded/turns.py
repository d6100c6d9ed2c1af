"""The turns of the readers of this process that may take much memory: one at a time, so that these
together take no more memory than one of them."""

import threading
import time
from collections.abc import Callable

TURN_S = 10.0
"""How long a turn lasts while other readers wait: decompression takes seconds, but a shard may take
no records for minutes."""


class MemoryTurns:
    """The turn to take much memory: the reader that has it runs a child, or reads a batch alone.
    Any thread may call."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._holder: object = None
        self._interrupt: Callable[[], None] | None = None
        """Ends the turn of the holder; None: it cannot be ended."""
        self._since_s = 0.0
        self._readers: set[object] = set()
        """Those that have not read their stretch yet."""

    def enter(self, reader: object) -> None:
        """Count a reader that begins to read its stretch."""
        with self._free:
            self._readers.add(reader)

    def exit(self, reader: object) -> None:
        """No longer count a reader: it has read its stretch, or is closed."""
        self.leave(reader)
        with self._free:
            self._readers.discard(reader)

    def waiting(self) -> tuple[int, int]:
        """Return how many readers wait for their turn, and how many have not read their stretch
        yet."""
        with self._free:
            return len(self._readers - {self._holder}), len(self._readers)

    def take(
        self, reader: object, timeout_s: float, interrupt: Callable[[], None] | None = None
    ) -> bool:
        """Give the reader the turn if that is possible within the time: if no other one has it, or
        has had it for TURN_S and can be interrupted.

        `interrupt`: ends what the reader does in its turn, for another one; None: nothing does."""
        with self._free:
            if not self._free.wait_for(lambda: self._is_free_for(reader), timeout_s):
                return False
            if self._holder is not reader:
                if self._interrupt is not None:
                    self._interrupt()
                self._holder, self._interrupt = reader, interrupt
                self._since_s = time.monotonic()
            return True

    def _is_free_for(self, reader: object) -> bool:
        if self._holder is None or self._holder is reader:
            return True
        return self._interrupt is not None and time.monotonic() > self._since_s + TURN_S

    def leave(self, reader: object) -> None:
        """End the turn of the reader, if it has it."""
        with self._free:
            if self._holder is reader:
                self._holder = self._interrupt = None
                self._free.notify()


turns = MemoryTurns()
"""The turns of all readers of this process."""
