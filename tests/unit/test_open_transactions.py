"""The watch of open transactions, on the simulator's brokers."""

from __future__ import annotations

import pytest

from chronos.workers.watch.transactions import OpenTransactions
from tests.sim.broker import DELAY, Brokers, Transaction
from tests.sim.log import SimLog
from tests.sim.simulation import Observer
from tests.sim.world import World


class WatchedPartitions:
    """Two partitions of the delay topic, and a node that is master of both unless told
    otherwise."""

    def __init__(self) -> None:
        self.world = World(0)
        self.brokers = Brokers(self.world, lambda transaction: None)
        self.brokers.create(DELAY, 2)
        self.node = Observer(self.world)
        self.log = SimLog(self.node, self.brokers)
        self.watch = OpenTransactions(self.log, DELAY)

    def write(self, partition: int, transaction: Transaction | None = None) -> None:
        self.brokers.append(self.brokers.topics[DELAY][partition], None, b"", [], transaction)

    def step(self, wait_ms: int, led: tuple[int, ...] = (0, 1)) -> list[tuple[int, int] | None]:
        """Let time pass and step; records and age in ms of what is held back in each partition."""
        self.world.pass_time(wait_ms)
        self.watch.step(self.world.now_ms, led, self.log.stable_ends(DELAY, led))
        found = [self.watch.held_back(partition) for partition in (0, 1)]
        return [
            None if each is None else (each.records, self.world.now_ms - each.since_ms)
            for each in found
        ]


@pytest.fixture
def case() -> WatchedPartitions:
    return WatchedPartitions()


def test_a_transaction_is_reported_once_it_has_been_open_for_more_than_a_second(
    case: WatchedPartitions,
) -> None:
    transaction = Transaction(None, 0)
    case.write(1)
    case.write(1, transaction)
    assert case.step(0) == [None, None]
    assert case.step(1_000) == [None, None]
    case.write(1)
    assert case.step(1) == [None, (2, 1_001)]
    case.brokers.decide(transaction, commit=True)
    assert case.step(1_000) == [None, None]


def test_one_short_transaction_after_another_holds_nothing_back(case: WatchedPartitions) -> None:
    transaction = Transaction(None, 0)
    case.write(0, transaction)
    for _ in range(5):
        following = Transaction(None, 0)
        case.write(0, following)
        case.brokers.decide(transaction, commit=True)
        transaction = following
        assert case.step(900) == [None, None]


def test_a_log_that_does_not_answer_changes_nothing_and_a_lost_shard_is_forgotten(
    case: WatchedPartitions,
) -> None:
    for partition in (0, 1):
        case.write(partition, Transaction(None, 0))
    case.step(0)
    assert case.step(2_000) == [(1, 2_000), (1, 2_000)]
    case.node.log_cut_ms = case.world.now_ms + 5_000
    assert case.step(1_000) == [(1, 3_000), (1, 3_000)]
    assert case.step(5_000, led=(0,)) == [(1, 8_000), None]
