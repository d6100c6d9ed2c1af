"""The pull worker: when it replaces its reader, on the simulator's brokers."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from chronos.ports import ReaderMode
from chronos.workers.step.pull import Puller
from chronos.workers.step.scope import Pull
from tests.sim.broker import DELAY, Brokers, Transaction
from tests.sim.log import SimLog
from tests.sim.simulation import Observer
from tests.sim.world import World

REPLACED = "records are written in transactions"
"""The event that is logged with a replacement."""


class PulledPartition:
    """A partition of the delay topic, and the puller of its master."""

    def __init__(self, mode: ReaderMode) -> None:
        self.world = World(0)
        self.brokers = Brokers(self.world, lambda transaction: None)
        self.brokers.create(DELAY, 1)
        self.node = Observer(self.world)
        self.log = SimLog(self.node, self.brokers)
        self.log.patience_ms = 500
        self.puller = Puller(self.log, DELAY, 0, 0, mode=mode)
        self.now_ms = 1_000

    def write(self, transaction: Transaction | None = None) -> None:
        self.brokers.append(self.brokers.topics[DELAY][0], None, b"", [], transaction)

    def write_in_transaction(self) -> None:
        transaction = Transaction(None, 0)
        self.write(transaction)
        self.brokers.decide(transaction, commit=True)

    def pull(self) -> tuple[int, bool]:
        """Take in what one step of a master does, which begins now; the number of records, and
        whether they reach the end."""
        self.now_ms += 1
        pulled = self.puller.take(Pull.TO_END, self.now_ms, 100, 1 << 20)
        self.puller.release(pulled)
        return len(pulled.records), pulled.reached_ms == self.now_ms


def test_a_master_whose_producers_use_transactions_goes_back_to_a_plain_reader() -> None:
    """A patient one would have its messages wait at the marker of each transaction."""
    case = PulledPartition("patient")
    with capture_logs() as lines:
        for _ in range(3):
            case.write()
            assert case.pull() == (1, True)
        case.write_in_transaction()
        assert case.pull() == (1, False)
        assert lines == []
        assert case.pull() == (0, False)
        assert [line["event"] for line in lines] == [REPLACED]
    for _ in range(3):
        case.write_in_transaction()
        assert case.pull() == (1, True)


@pytest.mark.parametrize(("mode", "replaced"), [("patient", 1), ("bounded", 0), ("plain", 0)])
def test_only_a_patient_reader_is_replaced(mode: ReaderMode, replaced: int) -> None:
    """A bounded one is late because it waits for its turn."""
    case = PulledPartition(mode)
    case.write()
    end = case.puller.end()
    case.node.log_cut_ms = case.world.now_ms + 60_000
    with capture_logs() as lines:
        for _ in range(4):
            assert case.puller.batch_to(end, 100, 1 << 20) == ([], False)
    assert [line["event"] for line in lines] == [REPLACED] * replaced
    case.node.log_cut_ms = 0
    assert case.pull() == (1, True)


@pytest.mark.parametrize(("records", "expected"), [(0, (0, True)), (1, (1, True))])
def test_a_patient_reader_that_was_held_up_once_is_kept(
    records: int, expected: tuple[int, bool]
) -> None:
    """One transaction is none of many: the marker is passed before it holds a second step up."""
    case = PulledPartition("patient")
    case.write_in_transaction()
    with capture_logs() as lines:
        assert case.pull() == (1, False)
        case.world.pass_time(500)
        for _ in range(records):
            case.write()
        assert case.pull() == expected
        assert lines == []


def test_what_a_step_reached_counts_only_once_its_records_are_applied() -> None:
    """A step that is made again has not reached the end without them."""
    case = PulledPartition("plain")
    assert case.pull() == (0, True)
    case.write()
    for now_ms in (2_000, 3_000):
        again = case.puller.take(Pull.TO_END, now_ms, 100, 1 << 20)
        assert (len(again.records), again.reached_ms, case.puller.reached_ms) == (1, now_ms, 1_001)
    case.puller.release(again)
    assert case.puller.reached_ms == 3_000
    assert case.puller.take(Pull.NOTHING, 4_000, 100, 1 << 20).reached_ms == 3_000
