"""When a leadership ends because another node may have been master meanwhile, and when it does
not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from chronos.adapters.embedded.log import EmbeddedLog
from chronos.core.message import Record
from chronos.errors import TransactionAborted
from chronos.ports import Appended, Outgoing, Verify, Writer
from chronos.workers.step.master import HEARTBEAT_MS
from chronos.workers.step.tenure import SURE_MS, TENURE_MS
from tests.harness.clock import HandClock
from tests.harness.replicas import Node, S, SharedShard, lead
from tests.harness.writers import AroundWriter


class SharedLog(EmbeddedLog):
    """The embedded log, with what other programs do to a topic of Kafka."""

    others: Sequence[Record] = ()
    """Records that were written to the progress partition before the next step of a master."""
    aborts = False
    """Whether the next transactions are aborted."""
    began_at = -1
    """Where the last writer expects its first progress record."""

    def writer(self, shard: int) -> SharedWriter:  # type: ignore[override]
        return SharedWriter(self, super().writer(shard))


class SharedWriter(AroundWriter):
    """A writer of it."""

    def __init__(self, log: SharedLog, writer: Writer) -> None:
        super().__init__(writer)
        self._log = log

    def begin_at(self, end: int) -> None:
        self._log.began_at = end

    def send(self, messages: Sequence[Outgoing], progress: bytes) -> None:
        if self._log.aborts:
            raise TransactionAborted("a broker is slow", poison_likely=False)
        super().send(messages, progress)

    def commit(self, verify: Verify, meanwhile: Callable[[], None] | None = None) -> Appended:
        return super().commit(
            lambda timestamp_ms, _: verify(timestamp_ms, self._log.others), meanwhile
        )


class Case(SharedShard):
    """One node that is the master, and has a clock of its own, which the test sets."""

    log: SharedLog

    def __init__(self, path: Path) -> None:
        super().__init__(path, log_type=SharedLog)
        self.log_clock = self.clock
        self.clock = HandClock()
        self.node = Node(self, "a", lead(1))
        self.node.until(S.MASTER)

    def pass_time(self, wait_ms: int) -> None:
        self.clock.now += wait_ms
        self.log_clock.now += wait_ms

    def end(self) -> int:
        return self.log.stable_end(self.progress, 0)

    def heartbeat(self) -> bool:
        """Step once it is time for a heartbeat; return whether that was committed."""
        self.pass_time(HEARTBEAT_MS)
        before = self.end()
        self.node.step()
        return self.end() > before

    def ended(self) -> str:
        """Step, and return why the leadership ended; empty if it goes on. Nothing may be
        committed by the step that ends it."""
        before = self.end()
        self.node.step()
        if self.node.replica.role == S.MASTER:
            return ""
        assert self.node.replica.role == S.STEPPED_DOWN
        assert self.end() == before
        return str(self.node.replica.paused)


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    made = Case(tmp_path)
    yield made
    made.log.close()


def test_a_master_that_has_committed_nothing_for_eighty_seconds_begins_anew(case: Case) -> None:
    epoch = case.node.replica.state.log_epoch
    case.pass_time(TENURE_MS - 1)
    assert not case.ended()
    case.pass_time(TENURE_MS)
    assert case.ended() == (
        "nothing was committed for 80 s, and another node may have been master meanwhile"
    )
    with capture_logs() as entries:
        case.node.until(S.MASTER)
    assert case.node.replica.state.log_epoch == epoch + 1
    (begun,) = [entry for entry in entries if entry["event"] == "master"]
    assert "nothing was committed for 80 s" in begun["after"]


@pytest.mark.parametrize("set_ms", [SURE_MS + 1_000, -SURE_MS - 1_000])
def test_a_clock_that_was_set_by_more_than_half_a_minute_ends_a_leadership(
    case: Case, set_ms: int
) -> None:
    """The time since the last commit is not known. The next leadership begins once the clocks
    agree."""
    case.clock.now += set_ms
    case.clock.stepped = set_ms
    assert f"was set by {set_ms} ms" in case.ended()
    case.node.steps(10)
    assert case.node.replica.role == S.TAKING_OVER
    case.log_clock.now += set_ms
    case.node.until(S.MASTER)


@pytest.mark.parametrize("set_ms", [SURE_MS - 1_000, -SURE_MS + 1_000])
def test_a_clock_that_was_set_by_less_does_not(case: Case, set_ms: int) -> None:
    """The step is repeated until the clocks agree."""
    case.clock.now += set_ms
    case.clock.stepped = set_ms
    for _ in range(3):
        assert not case.ended()
    assert "away from this machine's" in str(case.node.replica.paused)
    case.log_clock.now += set_ms
    before = case.end()
    case.node.step()
    assert case.end() == before + 1


def test_a_clock_that_is_set_again_and_again_ends_a_leadership_once_it_is_that_far_off(
    case: Case,
) -> None:
    for _ in range(2):
        case.clock.now -= SURE_MS - 1_000
        case.clock.stepped -= SURE_MS - 1_000
        why = case.ended()
    assert f"was set by {2_000 - 2 * SURE_MS} ms" in why


def test_a_broker_whose_clock_is_half_a_minute_off_ends_a_leadership(case: Case) -> None:
    case.log_clock.now -= SURE_MS + 1_000
    case.pass_time(HEARTBEAT_MS)
    assert "the broker's clock is -31000 ms away" in case.ended()


def test_a_silence_that_the_machine_s_clock_does_not_show_ends_a_leadership(case: Case) -> None:
    """Its clocks stood still, as those of a virtual machine may, and go on from there."""
    case.log_clock.now += TENURE_MS
    case.pass_time(HEARTBEAT_MS)
    assert "by the broker's clock nothing was committed for 140 s" in case.ended()


def test_a_new_master_expects_its_first_record_where_the_log_that_it_applied_ends(
    case: Case,
) -> None:
    case.heartbeat()
    end = case.end()
    case.pass_time(TENURE_MS)
    case.node.until(S.STEPPED_DOWN)
    case.node.until(S.MASTER)
    assert case.log.began_at == end > 0


def test_a_progress_record_of_another_master_ends_a_leadership(case: Case) -> None:
    """Whatever its epoch: a copy of this machine has the same one."""
    assert case.heartbeat()
    case.log.others = [Record(7, case.clock.now, None, b"\x01anything", [])]
    case.pass_time(HEARTBEAT_MS)
    assert "another master committed a step at offset 7" in case.ended()


@pytest.mark.parametrize(("key", "headers"), [(b"k", []), (None, [("h", b"v")])])
def test_a_record_of_another_program_does_not(
    case: Case, key: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    case.log.others = [Record(7, case.clock.now, key, b"v", headers)]
    assert case.heartbeat()


def test_an_abort_ends_a_leadership_whose_last_commit_is_half_a_minute_old(case: Case) -> None:
    """The client does not tell whether it had to take a new producer id."""
    case.schedule(1, delay=b"1ms")
    case.log.aborts = True
    case.pass_time(SURE_MS - 1_000)
    assert not case.ended()
    case.pass_time(2_000)
    assert "the fence may have been lost with it" in case.ended()
    case.log.aborts = False
    case.node.until(S.MASTER)
