"""Turns of the shards that start or take over: at most STARTS_AT_ONCE take a step at a time.
Where more replicas than that poll for something, each polls less often."""

import threading
import time
from collections import deque

STARTS_AT_ONCE = 64
"""Replicas of a node that take a step of their start, or of a takeover, at a time; and those that
poll for something as often as they want. Where hundreds do, their threads hinder each other until
requests time out and all begin again, for ever (measured: 512 shards on three nodes with two
cores)."""

QUEUED = f"waits for its turn: {STARTS_AT_ONCE} shards of a node start at a time"

QUEUED_S = 5.0
"""How long a replica waits for its turn before it says so."""


class StartTurns:
    """The turns of starting replicas: bounds how many of their steps run at a time. Turns come in
    the order in which they were asked for, but those of takeovers first: their shard has no master
    meanwhile. Threads that wait use no processor time, however many they are."""

    def __init__(self, at_once: int = STARTS_AT_ONCE) -> None:
        self._lock = threading.Lock()
        self._at_once = self._free = at_once
        self._resting = 0
        self._takeovers: deque[threading.Event] = deque()
        self._others: deque[threading.Event] = deque()

    @property
    def waiting(self) -> int:
        """Threads that wait for their turn."""
        return len(self._takeovers) + len(self._others)

    def take(self, called: threading.Event, *, takeover: bool = False) -> bool:
        """Wait for a turn; False if `called` was set by something other than this object."""
        queue = self._takeovers if takeover else self._others
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            queue.append(called)
        called.wait()
        with self._lock:
            if called in queue:
                queue.remove(called)
                return False
        return True

    def end(self) -> None:
        """End a turn: the next thread has it."""
        with self._lock:
            if queue := self._takeovers or self._others:
                queue.popleft().set()
            else:
                self._free += 1

    def rest(self, called: threading.Event, timeout_s: float) -> None:
        """Wait until `called` is set, or for the time; longer where more threads rest than have a
        turn at a time, so that hundreds that poll cost no more than that many."""
        with self._lock:
            self._resting += 1
            timeout_s *= max(1.0, self._resting / self._at_once)
        called.wait(timeout_s)
        with self._lock:
            self._resting -= 1


class ShardTurns:
    """The turns of the thread of one shard. Any thread may ask whether it waits, and stop it."""

    def __init__(self, turns: StartTurns) -> None:
        self._turns = turns
        self._called = threading.Event()
        """Set when the thread has its turn, or is to stop."""
        self._is_stopped = False
        self._since_s: float | None = None
        """Since when the thread waits for its turn (`time.monotonic()`); None: it does not."""

    @property
    def are_awaited(self) -> bool:
        """Whether the thread waits for a turn."""
        return self._since_s is not None

    @property
    def queued(self) -> str | None:
        """A text for people while the thread waits for a turn; None if it does not, or not for
        long."""
        since_s = self._since_s
        return QUEUED if since_s is not None and time.monotonic() - since_s > QUEUED_S else None

    def take(self, *, takeover: bool) -> bool:
        """Wait for a turn; False if the thread is to stop."""
        self._since_s = time.monotonic()
        # `stop` sets both, the flag first.
        self._called.clear()
        if self._is_stopped:
            return False
        has_turn = self._turns.take(self._called, takeover=takeover)
        self._since_s = None
        return has_turn

    def end(self) -> None:
        """End a turn."""
        self._turns.end()

    def rest(self, called: threading.Event, timeout_s: float) -> None:
        """See `StartTurns.rest`."""
        self._turns.rest(called, timeout_s)

    def stop(self) -> None:
        """End a wait for a turn, and take none any more."""
        self._is_stopped = True
        self._called.set()
