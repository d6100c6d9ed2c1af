"""What an election may have cost: whatever was lost lies between the times that are found, and
little else does."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from chronos.adapters.kafka.batches import BatchHeader
from chronos.ports import Watermarks
from chronos.spark.elections import TOLERANCE_MS, Loss, find_loss

NOW_MS = 10_000_000


def batches(*epochs_and_times: tuple[int, int], size: int = 3, start: int = 0) -> list[BatchHeader]:
    """A log of batches of `size` records, each with its leader epoch and timestamp."""
    return [
        BatchHeader(
            first=start + at * size,
            last=start + at * size + size - 1,
            bytes=1,
            codec=0,
            leader_epoch=epoch,
            timestamp_ms=ms,
        )
        for at, (epoch, ms) in enumerate(epochs_and_times)
    ]


def find(
    log: list[BatchHeader], since: int, epoch: int | None, leader_epoch: int | None
) -> Loss | None:
    """The loss in a log of whole batches."""
    start = log[0].first if log else since
    end = log[-1].last + 1 if log else since
    asked = []

    def header(offset: int) -> BatchHeader:
        assert start <= offset < end
        asked.append(offset)
        return next(each for each in log if offset <= each.last)

    ends = Watermarks(start=start, stable=end, high=end, leader_epoch=leader_epoch)
    found = find_loss(header, ends, since, epoch, NOW_MS)
    assert len(asked) <= 50
    return found


def widened(from_ms: int, until_ms: int) -> Loss:
    """The times with their tolerance."""
    return Loss(max(0, from_ms - TOLERANCE_MS), until_ms + TOLERANCE_MS)


def test_a_log_of_one_leader_lost_nothing() -> None:
    """Nor one whose epoch is not known, or an empty one that was never looked at before."""
    log = batches((4, 10_000), (4, 20_000))
    assert find(log, 0, 4, 4) is None
    assert find(log, 0, None, 4) is None
    assert find(log, 0, 4, None) is None
    assert find([], 0, None, 4) is None


def test_an_election_lies_between_two_records() -> None:
    """Of the whole log, whichever offset in it is archived already."""
    log = batches((1, 10_000), (1, 20_000), (3, 30_000), (3, 40_000), start=9)
    for since in range(9, 16):
        assert find(log, since, 1, 3) == widened(20_000, 30_000)
    assert find(log, 9, None, 3) == widened(20_000, 30_000)
    assert find(log, 9, 2, 3) == widened(20_000, 30_000)


def test_a_leader_that_wrote_nothing_yet_may_have_lost_everything_until_now() -> None:
    """Also where nothing was archived, or nothing is left."""
    log = batches((1, 10_000), (1, 20_000))
    assert find(log, 0, 1, 2) == widened(20_000, NOW_MS)
    assert find(log, 6, 1, 2) == widened(20_000, NOW_MS)
    assert find([], 6, 1, 2) == Loss(0, NOW_MS + TOLERANCE_MS)


def test_without_a_record_of_the_old_leader_the_loss_has_no_beginning() -> None:
    """It was trimmed, or lost with all that the leader had."""
    assert find(batches((3, 30_000), start=6), 6, 1, 3) == Loss(0, 30_000 + TOLERANCE_MS)


@given(
    kept=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=5),
    last=st.integers(0, 3),
    archived=st.integers(0, 1),
)
def test_whatever_was_lost_lies_within(
    kept: list[tuple[int, int]], last: int, archived: int
) -> None:
    """Leaders append a batch each second; each election loses the last ones, and the next leader
    continues there."""
    log: list[tuple[int, int]] = [(0, 1_000)] * archived
    lost: list[int] = []
    now_ms, epoch = 1_000, 0
    for appends, loses in kept:
        for _ in range(appends):
            now_ms += 1_000
            log.append((epoch, now_ms))
        cut = min(loses, len(log) - archived)
        lost += [time_ms for _, time_ms in log[len(log) - cut :]]
        del log[len(log) - cut :]
        epoch += 2
        now_ms += 1_000
    for _ in range(last):
        now_ms += 1_000
        log.append((epoch, now_ms))
    found = find(batches(*log), 3 * archived, 0, epoch)
    assert (found is None) == (epoch == 0)
    if found is not None:
        assert all(found.from_ms <= time_ms <= found.until_ms for time_ms in lost)
        before = [time_ms for (known, time_ms), (later, _) in pairwise(log) if known == 0 < later]
        assert not before or found.from_ms == max(0, before[0] - TOLERANCE_MS)
