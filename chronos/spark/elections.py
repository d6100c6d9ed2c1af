"""Elections of the leader of a target partition, after which records may be lost that the archive
had not read.

After an unclean election, or after a leader has lost its disk, the last records of the old leader
are gone, and other records have their offsets. Offsets do not show this, and a clean election looks
the same. But each batch names the leader epoch in which it was appended, so the log shows between
which two records an election lies. Only records delivered between the times of these two can be
lost. The times are those of the records, or now if none follows the election, with a tolerance for
two clocks."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from chronos.core.clock import CLOCK_TOLERANCE_MS

TOLERANCE_MS = 2 * CLOCK_TOLERANCE_MS
"""Difference in ms of the clocks of two brokers or nodes."""


class HeaderOfBatch(Protocol):
    """The header of a batch."""

    @property
    def last(self) -> int:
        """Offset of its last record."""

    @property
    def leader_epoch(self) -> int:
        """Epoch of the leader that appended it."""

    @property
    def timestamp_ms(self) -> int:
        """Its greatest timestamp (epoch ms)."""


class Ends(Protocol):
    """First and last offsets of a partition."""

    @property
    def start(self) -> int:
        """Offset of the first record kept."""

    @property
    def stable(self) -> int:
        """Last stable offset."""

    @property
    def leader_epoch(self) -> int | None:
        """Epoch of its leader; None: not known."""


class Loss(Struct, frozen=True):
    """Records delivered between these times (epoch ms, both included) may have been lost before the
    archive read them."""

    from_ms: int
    until_ms: int


def find_loss(
    header: Callable[[int], HeaderOfBatch], ends: Ends, since: int, epoch: int | None, now_ms: int
) -> Loss | None:
    """The times between which the elections since an offset may have cost records; None if there
    was none.

    `header`: the header of the batch that holds an offset, or of the next one behind it. `epoch`:
    an epoch in which the log had all records before `since`; None: not known, and that of the
    record at `since` is used. Several elections count as one. Takes some 20 requests. Raises
    LogUnavailable."""
    begin = max(since, ends.start)
    if (
        ends.leader_epoch is None
        or epoch == ends.leader_epoch
        or (epoch is None and begin >= ends.stable)
    ):
        return None
    known = header(begin).leader_epoch if epoch is None else epoch
    if known == ends.leader_epoch:
        return None
    before = _last_until(header, begin, ends, known)
    latest = header(ends.stable - 1).leader_epoch if ends.stable > begin else known
    until_ms = now_ms
    if latest == ends.leader_epoch:
        last_old = _last_until(header, begin, ends, latest - 1)
        until_ms = header(begin if last_old is None else max(begin, last_old.last + 1)).timestamp_ms
    from_ms = 0 if before is None else before.timestamp_ms
    return Loss(max(0, from_ms - TOLERANCE_MS), max(from_ms, until_ms) + TOLERANCE_MS)


def _last_until(
    header: Callable[[int], HeaderOfBatch], begin: int, ends: Ends, epoch: int
) -> HeaderOfBatch | None:
    """The last batch before the stable end that was appended by that epoch; None if it is not in
    the log any more."""
    low, high, found = begin, ends.stable, None
    while low < high:
        middle = (low + high) // 2
        seen = header(middle)
        if seen.leader_epoch > epoch:
            high = middle
        else:
            low, found = seen.last + 1, seen
    if found is None and begin > ends.start:
        seen = header(begin - 1)
        found = seen if seen.leader_epoch <= epoch else None
    return found
