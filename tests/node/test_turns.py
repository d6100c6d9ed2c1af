"""The turns of a node's starting shards: how many step at a time, in which order, and how they
end."""

from __future__ import annotations

import threading
from collections.abc import Sized
from functools import partial
from operator import eq

import pytest

from chronos.node.start_turns import StartTurns
from tests.harness.waiting import wait_until

AT_ONCE = 3
THREADS = 50


class Stepping:
    """A thread that takes one turn and keeps it until it is let go."""

    def __init__(
        self, turns: StartTurns, order: list[int], number: int, *, takeover: bool = False
    ) -> None:
        self.called = threading.Event()
        self.has_turn: bool | None = None
        self._turns, self._order, self._number = turns, order, number
        self._takeover = takeover
        self._let_go = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.has_turn = self._turns.take(self.called, takeover=self._takeover)
        if self.has_turn:
            self._order.append(self._number)
            self._let_go.wait()
            self._turns.end()

    def end(self) -> None:
        """Let it go, and wait for its end."""
        self._let_go.set()
        self._thread.join(10)
        assert not self._thread.is_alive()


def test_no_more_than_the_bound_step_at_a_time_in_the_order_in_which_they_asked() -> None:
    """Each that ends lets exactly one more begin."""
    turns, order = StartTurns(AT_ONCE), list[int]()
    threads: list[Stepping] = []
    for number in range(THREADS):
        threads.append(Stepping(turns, order, number))
        wait_until(lambda: turns.waiting + len(order) == len(threads))
    assert order == [*range(AT_ONCE)]
    for number, thread in enumerate(threads):
        thread.end()
        wait_until(partial(eq, order, [*range(min(THREADS, number + 1 + AT_ONCE))]))
    assert order == [*range(THREADS)]
    assert turns.take(threading.Event())


@pytest.mark.parametrize("at", [0, 2, 4])
def test_one_that_is_to_end_leaves_the_queue_and_no_turn_is_lost(at: int) -> None:
    """Wherever it waits."""
    turns, order = StartTurns(1), list[int]()
    first = Stepping(turns, order, -1)
    wait_until(lambda: order == [-1])
    queued: list[Stepping] = []
    for number in range(5):
        queued.append(Stepping(turns, order, number))
        wait_until(lambda: turns.waiting == len(queued))
    queued[at].called.set()
    wait_until(lambda: queued[at].has_turn is False)
    assert turns.waiting == 4
    first.end()
    for number, thread in enumerate(queued):
        if number != at:
            thread.end()
    assert order == [-1, *(number for number in range(5) if number != at)]


def _has(found: Sized, count: int) -> bool:
    return len(found) == count


def test_takeovers_come_before_the_others() -> None:
    """In the order in which they asked."""
    turns, order = StartTurns(1), list[int]()
    assert turns.take(threading.Event())
    threads: list[Stepping] = []
    for number, takeover in enumerate((False, True, False, True)):
        threads.append(Stepping(turns, order, number, takeover=takeover))
        wait_until(lambda: turns.waiting == len(threads))
    turns.end()
    for at, number in enumerate((1, 3, 0, 2)):
        wait_until(partial(_has, order, at + 1))
        assert order[-1] == number
        threads[number].end()


class Noted(threading.Event):
    """Notes for how long it is waited for."""

    def __init__(self, waits_s: list[float | None]) -> None:
        super().__init__()
        self._waits_s = waits_s

    def wait(self, timeout: float | None = None) -> bool:
        self._waits_s.append(timeout)
        return super().wait()


def test_the_more_rest_the_longer_each_waits_and_each_can_be_called() -> None:
    """Together they look as often as those that have a turn at a time would."""
    turns, waits_s = StartTurns(AT_ONCE), list[float | None]()
    threads: list[tuple[Noted, threading.Thread]] = []
    for number in range(2 * AT_ONCE):
        called = Noted(waits_s)
        thread = threading.Thread(target=turns.rest, args=(called, 0.25), daemon=True)
        thread.start()
        threads.append((called, thread))
        wait_until(partial(_has, waits_s, number + 1))
    assert waits_s == [0.25, 0.25, 0.25, *(0.25 * each / AT_ONCE for each in (4, 5, 6))]
    for called, thread in threads:
        called.set()
        thread.join(10)
        assert not thread.is_alive()
    alone = Noted(waits_s)
    alone.set()
    turns.rest(alone, 0.25)
    assert waits_s[-1] == 0.25
