"""The time wheel against a sorted list: every possible short history, and long random ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronos.core.keys import OFFSET_MAX
from chronos.core.shard.wheel import Item, Position, Wheel
from tests.unit.settings import examples

START: Position = (0, OFFSET_MAX)


class Sorted:
    """The specification of the wheel: a list that is sorted at every read."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.through = START

    def ahead(self, items: list[Item], through: Position) -> None:
        self.items += items
        self.through = through

    def forget(self, position: Position) -> None:
        self.items = [item for item in self.items if item[:2] != position]

    def advance(self, cursor: Position) -> None:
        self.items = [item for item in self.items if item[:2] > cursor]
        self.through = max(self.through, cursor)

    def peek(self, until_ms: int, messages_max: int) -> list[Item]:
        return [item for item in sorted(self.items) if item[0] <= until_ms][:messages_max]


class Both:
    """A wheel and a sorted list that live through the same, and are compared after each step."""

    def __init__(self) -> None:
        self.wheel = Wheel(START)
        self.list = Sorted()
        self.given = 0

    def item(self, position: Position) -> Item:
        """Data of different lengths, so that bytes counted for the wrong entry are noticed."""
        self.given += 1
        return (*position, b"x" * (self.given * 7 % 11))

    def extend(self, positions: list[Position], through: Position) -> None:
        """The store is read further: the positions after the known ones, up to `through`."""
        if through < self.list.through:
            return
        items = [
            self.item(at) for at in sorted(set(positions)) if self.list.through < at <= through
        ]
        self.wheel.extend(items, through)
        self.list.ahead(items, through)

    def add(self, position: Position) -> None:
        """A new message arrives; it is added to the wheel only if it is at or before `through`."""
        if position <= self.list.through and all(item[:2] != position for item in self.list.items):
            item = self.item(position)
            self.wheel.add(*item)
            self.list.items.append(item)

    def forget(self, position: Position) -> None:
        self.wheel.forget(*position)
        self.list.forget(position)

    def advance(self, cursor: Position) -> None:
        self.wheel.advance(cursor)
        self.list.advance(cursor)

    def clear(self, through: Position) -> None:
        self.wheel.clear(through)
        self.list.items, self.list.through = [], through

    def shrink(self, messages_max: int) -> None:
        before = self.list.through
        self.wheel.shrink(messages_max)
        kept = sorted(self.list.items)[:messages_max]
        given_up = sorted(self.list.items)[messages_max:]
        through = self.wheel.through
        if given_up:
            # Complete up to the last one kept at the least, and not up to the first one given up.
            assert kept[-1][:2] <= through < given_up[0][:2]
        else:
            assert through == before
        self.list.items, self.list.through = kept, through

    def check(self) -> None:
        wheel, expected = self.wheel, self.list
        assert wheel.peek(10**9, 10**9) == sorted(expected.items)
        assert wheel.messages == len(expected.items)
        assert wheel.bytes == sum(len(data) for _, _, data in expected.items)
        assert wheel.through == expected.through
        assert wheel.next_due_ms() == (min(expected.items)[0] if expected.items else None)
        assert all(item[:2] <= wheel.through for item in expected.items)
        for until_ms, messages_max in itertools.product((0, 1, 2, 3), (0, 1, 2)):
            assert wheel.peek(until_ms, messages_max) == expected.peek(until_ms, messages_max)
        for after in itertools.product((0, 1, 2, 3), (0, 4, OFFSET_MAX)):
            assert (
                wheel.peek(2, 2, after)
                == [item for item in expected.peek(2, 10**9) if item[:2] > after][:2]
            )


SMALL: dict[str, Callable[[Both], None]] = {
    "read to 1": lambda both: both.extend([(1, 4), (1, 5)], (1, OFFSET_MAX)),
    "read into 2": lambda both: both.extend([(2, 4), (2, 6)], (2, 5)),
    "read to 3": lambda both: both.extend([(2, 4), (2, 6), (3, 1), (3, 2)], (3, OFFSET_MAX)),
    "add 1/5": lambda both: both.add((1, 5)),
    "add 2/3": lambda both: both.add((2, 3)),
    "forget 1/5": lambda both: both.forget((1, 5)),
    "forget 2/4": lambda both: both.forget((2, 4)),
    "advance into 1": lambda both: both.advance((1, 4)),
    "advance over 1": lambda both: both.advance((1, OFFSET_MAX)),
    "advance into 2": lambda both: both.advance((2, 4)),
    "shrink to 1": lambda both: both.shrink(1),
    "shrink to 2": lambda both: both.shrink(2),
    "clear": lambda both: both.clear(START),
}


@pytest.mark.parametrize("length", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_short_history_leaves_the_same_as_in_a_sorted_list(length: int) -> None:
    for history in itertools.product(SMALL, repeat=length):
        both = Both()
        for name in ("read to 1", "read to 3", *history):
            SMALL[name](both)
        both.check()


positions = st.tuples(st.integers(1, 6), st.integers(0, 6))
throughs = st.one_of(positions, st.tuples(st.integers(0, 6), st.just(OFFSET_MAX)))
operations = st.one_of(
    st.tuples(st.just("extend"), st.lists(positions, max_size=8), throughs),
    st.tuples(st.just("add"), positions),
    st.tuples(st.just("forget"), positions),
    st.tuples(st.just("advance"), throughs),
    st.tuples(st.just("shrink"), st.integers(1, 4)),
    st.tuples(st.just("clear"), throughs),
)


@examples(1_500)
@given(st.lists(operations, max_size=20))
def test_every_long_history_leaves_the_same_as_in_a_sorted_list(history: list[tuple]) -> None:
    both = Both()
    for name, *arguments in history:
        getattr(both, name)(*arguments)
        both.check()


def test_an_entry_beyond_the_known_end_is_refused() -> None:
    wheel = Wheel((5, 3))
    with pytest.raises(AssertionError):
        wheel.add(5, 4, b"")
    with pytest.raises(AssertionError):
        wheel.extend([(5, 3, b"")], (6, 0))
    with pytest.raises(AssertionError):
        wheel.extend([(6, 1, b"")], (6, 0))
    assert wheel.messages == 0


def test_an_entry_is_never_added_twice() -> None:
    wheel = Wheel((5, OFFSET_MAX))
    wheel.add(5, 4, b"one")
    with pytest.raises(AssertionError):
        wheel.add(5, 4, b"two")
    assert wheel.peek(5, 9) == [(5, 4, b"one")]


def test_a_slot_whose_entries_were_all_forgotten_has_no_due_time() -> None:
    wheel = Wheel((9, OFFSET_MAX))
    wheel.add(5, 4, b"")
    wheel.add(7, 1, b"")
    wheel.forget(5, 4)
    assert wheel.next_due_ms() == 7
    wheel.add(5, 6, b"")
    assert wheel.next_due_ms() == 5


def test_one_millisecond_may_hold_any_number_of_messages() -> None:
    wheel = Wheel((7, OFFSET_MAX))
    for offset in reversed(range(20_000)):
        wheel.add(7, offset, b"x")
    for first in range(0, 20_000, 5_000):
        items = wheel.peek(7, 5_000)
        assert [offset for _, offset, _ in items] == list(range(first, first + 5_000))
        wheel.advance(items[-1][:2])
    assert (wheel.messages, wheel.bytes, wheel.next_due_ms()) == (0, 0, None)
