"""The cache of the counts of pending messages by minute."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronos.core.keys import count_key
from chronos.core.shard import counts as counts_module
from chronos.core.shard.counts import DAY, UNREAD, MinuteCounts
from tests.harness.memory import MemoryStore


class Reads(MemoryStore):
    """A store that counts the keys that were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Count the keys, and answer."""
        self.asked += len(keys)
        return super().get(keys)


def apply(store: MemoryStore, cache: MinuteCounts, delta: dict[int, int]) -> None:
    """Make one step: change, write, install."""
    puts: list[tuple[bytes, bytes]] = []
    deletes: list[bytes] = []
    counts = cache.changed(delta, puts, deletes)
    store.write(puts, deletes)
    cache.install(counts)


MINUTES = st.integers(0, 3 * DAY)
STEPS = st.lists(st.dictionaries(MINUTES, st.integers(-2, 5), max_size=8), max_size=20)


@given(STEPS, st.sampled_from([1, 2, 3_000]), st.integers(0, 20))
def test_counts_are_those_of_a_dictionary(
    steps: list[dict[int, int]], days_max: int, restart_at: int
) -> None:
    store, expected = MemoryStore(), dict[int, int]()
    cache = MinuteCounts(store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts_module, "DAYS_MAX", days_max)
        for at, step in enumerate(steps):
            if at == restart_at:
                cache = MinuteCounts(store)
            delta = {
                minute: max(change, -expected.get(minute, 0)) for minute, change in step.items()
            }
            apply(store, cache, delta)
            for minute, change in delta.items():
                expected[minute] = expected.get(minute, 0) + change
    keys = list(expected)
    rows = store.get([count_key(minute) for minute in keys])
    found = [0 if row is None else int.from_bytes(row, "big") for row in rows]
    assert dict(zip(keys, found, strict=True)) == expected
    assert all(row is None or any(row) for row in rows), "a count of 0 has no row"


def test_a_minute_is_read_from_the_store_once() -> None:
    store = Reads()
    cache = MinuteCounts(store)
    year = dict.fromkeys(range(0, 365 * DAY, 7), 1)
    apply(store, cache, year)
    assert store.asked == len(year)
    apply(store, cache, year)
    assert store.asked == len(year), "the second message of a minute asks the store again"


def test_a_count_that_the_array_cannot_hold_is_read_each_time() -> None:
    store = Reads()
    store.write([(count_key(7), (UNREAD - 1).to_bytes(8, "big"))], [])
    cache = MinuteCounts(store)
    for _ in range(3):
        apply(store, cache, {7: 1})
    (row,) = store.get([count_key(7)])
    assert row is not None
    assert int.from_bytes(row, "big") == UNREAD + 2


def test_fewer_messages_than_were_settled_are_a_bug_that_is_found() -> None:
    cache = MinuteCounts(MemoryStore())
    with pytest.raises(AssertionError, match="fewer messages"):
        cache.changed({3: -1}, [], [])
