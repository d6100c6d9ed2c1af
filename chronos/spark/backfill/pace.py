"""The pace of a run: when each of its messages is due, and which of them a task may send now.

A message has a rank, its number among those that an attempt sends. A change of the rate applies
from a time on that lies beyond everything that was sent before: so all tasks compute the same due
time of a rank, however late they read the change."""

import time
from collections.abc import Callable
from contextlib import suppress
from sys import maxsize

from msgspec import Struct

from chronos.errors import ArchiveFailed

AHEAD_MS = 10_000
"""Most ms that a message is sent before its due time, in a run with a rate: so soon a change of the
rate is in force."""

READ_MS = 5_000
"""Ms between two reads of the changes of the rate."""

TURN_S = 1.0
"""Least seconds that a task waits for its turn: what is due meanwhile is sent in one
transaction."""

Rates = list[tuple[int, float]]
"""`(epoch ms from which it applies, messages per second)`, in the order of time."""


def ahead_ms(*, direct: bool) -> int:
    """How long before its due time a run with a rate sends a message."""
    return 0 if direct else AHEAD_MS


def change_from_ms(now_ms: int, *, direct: bool) -> int:
    """The time from which a change of the rate applies that is recorded now: all that is due before
    it may have been sent when it is read."""
    return now_ms + ahead_ms(direct=direct) + READ_MS


class Pace(Struct, frozen=True, kw_only=True):
    """The due times of the messages of one attempt."""

    base_ms: int
    """Due time of the first message, epoch ms."""
    rates: Rates = []
    """The last rate that applies at `base_ms` is the first one; empty: all are due at
    `base_ms`."""

    def due_ms(self, rank: int) -> int:
        """The due time of a message in epoch ms."""
        at_ms, left = float(self.base_ms), float(rank)
        for (_, rate), until_ms in self._periods():
            due_ms = at_ms + left * 1_000 / rate
            if until_ms is None or due_ms < until_ms:
                return int(due_ms)
            if until_ms > at_ms:
                left -= (until_ms - at_ms) * rate / 1_000
                at_ms = until_ms
        return self.base_ms

    def due_by(self, time_ms: int) -> int:
        """The number of messages that are due by a time."""
        if not self.rates:
            return maxsize
        at_ms, count = self.base_ms, 0.0
        for (_, rate), until_ms in self._periods():
            end_ms = time_ms if until_ms is None else min(until_ms, time_ms)
            count += max(0, end_ms - at_ms) * rate / 1_000
            at_ms = max(at_ms, end_ms)
        return int(count) + 1 if time_ms >= self.base_ms else 0

    def _periods(self) -> list[tuple[tuple[int, float], int | None]]:
        """Each rate with the time until which it applies."""
        ends = [from_ms for from_ms, _ in self.rates[1:]]
        return list(zip(self.rates, [*ends, None], strict=False))


class SendingTurn:
    """The messages that a task may send now. Without `ahead_ms` that is all of them, and the pace
    does not change."""

    def __init__(
        self, pace: Pace, ahead_ms: int | None, changes: Callable[[], Rates] = list
    ) -> None:
        """`ahead_ms`: how long before its due time a message may be sent. `changes`: reads the
        changes of the rate; ArchiveFailed if they cannot be read now."""
        self._first = pace
        self._ahead_ms = ahead_ms
        self._changes = changes
        self._read_s: float | None = None
        self._until = maxsize if ahead_ms is None else 0
        self.pace = pace

    def admits(self, rank: int) -> bool:
        """True if the message may be sent, by the last `wait` or `look`."""
        return rank < self._until

    def look(self) -> None:
        """Admit what may be sent by now, at the rate that was read at most `READ_MS` ago."""
        if self._ahead_ms is None:
            return
        if self._read_s is None or time.monotonic() - self._read_s >= READ_MS / 1_000:
            with suppress(ArchiveFailed):  # what cannot be read now is read next time
                rates = [*self._first.rates, *self._changes()]
                self.pace = Pace(base_ms=self._first.base_ms, rates=rates)
            self._read_s = time.monotonic()
        self._until = self.pace.due_by(_now_ms() + self._ahead_ms)

    def wait(self, rank: int) -> None:
        """Return as soon as the message may be sent."""
        while not self.admits(rank):
            self.look()
            if self.admits(rank) or self._ahead_ms is None:
                return
            left_ms = self.pace.due_ms(rank) - self._ahead_ms - _now_ms()
            time.sleep(max(TURN_S, min(READ_MS, left_ms) / 1_000))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
