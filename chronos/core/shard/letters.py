"""The refused records of a step, each with its reason. They become letters, that is, they are
rejected or forwarded to another partition, or they are counted only. Those that cannot be written
now are held, and a later step writes them from their queue to their destination (`queues`). Dead
letters, which are made of messages, are in `workers.step.letters`.

`Shard.stage` refuses the records; the master then holds or rejects some of them, depending on what
their destinations take (`workers.step.held`). The progress record names the reason of each."""

from collections.abc import Collection, Mapping

import msgspec
from msgspec import Struct

from chronos.core.keys import REJECTED
from chronos.core.message import Reason, Record, Rejection
from chronos.core.shard.codec import HeldRecord

UNCOPIED = frozenset({Reason.IGNORED, Reason.REPEATED})
"""Reasons of refused records that are counted, and not copied to the rejected topic."""


class Held(Struct, frozen=True, gc=False):
    """A refused record that waits for its destination from this step on."""

    record: Record
    destination: int
    """A partition of the delay topic, or REJECTED."""
    reason: int = 0
    """The `Reason` of a rejected record; 0 for one that is to be forwarded."""
    detail: str = ""
    """The reason in words, as the master has it; empty on replay, where the progress record has
    it."""


class Prefix(Struct, frozen=True, kw_only=True):
    """The first held records of a destination, which are written to it."""

    destination: int
    rows: list[tuple[int, HeldRecord, int]]
    """Offset, record, and bytes of the row of each, in order, at least one."""
    too_large: tuple[int, ...] = ()
    """Offsets of the records that are too large for the partition, and go to the rejected topic or
    to its queue instead."""


class Letters(Struct, kw_only=True):
    """The refused records of one step, and the held ones that it writes. `Shard.stage` fills it;
    afterwards the master may hold or reject records in it, or add held ones."""

    refused: list[tuple[int, int]] = msgspec.field(default_factory=list)
    """`(offset, Reason)` of every refused record, in order."""
    rejections: list[tuple[Record, Rejection]] = msgspec.field(default_factory=list)
    """Records that go to the rejected topic, pulled in this step or held before; empty on
    replay."""
    forwards: list[tuple[Record, int]] = msgspec.field(default_factory=list)
    """Records that are forwarded to another partition of the delay topic, each with its number,
    pulled in this step or held before; empty on replay."""
    held: list[Held] = msgspec.field(default_factory=list)
    """The refused records that wait for their destination, in the order of `Progress.held`; in a
    step with `written`, the records that go to another queue."""
    written: list[Prefix] = msgspec.field(default_factory=list)
    """The first records of queues, which this step writes to their destinations; such a step pulls
    no record."""
    ignored: int = 0
    forwarded: int = 0

    def refuse(self, offset: int, reason: int) -> None:
        """Count the record at `offset` as refused."""
        self.refused.append((offset, reason))
        if reason in UNCOPIED:
            self.ignored += 1
        elif reason == Reason.FORWARDED:
            self.forwarded += 1

    def reject_forwards(self, too_large: Mapping[int, str]) -> None:
        """Reject the records in `too_large`, offset -> why, which were to be forwarded."""
        forwards, self.forwards = self.forwards, []
        for record, partition in forwards:
            why = too_large.get(record.offset)
            if why is None:
                self.forwards.append((record, partition))
            else:
                self.rejections.append((record, Rejection(Reason.TOO_LARGE, why)))
        self.rejections.sort(key=lambda rejection: rejection[0].offset)
        self.refused = [
            (offset, Reason.TOO_LARGE if offset in too_large else reason)
            for offset, reason in self.refused
        ]
        self.forwarded -= len(too_large)

    def hold_forwards(self, destinations: Collection[int]) -> None:
        """Hold the records that were to be forwarded to these partitions."""
        held = [
            Held(record, partition)
            for record, partition in self.forwards
            if partition in destinations
        ]
        if not held:
            return
        self.forwards = [forward for forward in self.forwards if forward[1] not in destinations]
        self.held += held
        offsets = {each.record.offset for each in held}
        self.refused = [
            (offset, Reason.HELD if offset in offsets else reason)
            for offset, reason in self.refused
        ]
        self.forwarded -= len(held)

    def hold_rejections(self) -> None:
        """Hold the rejected records."""
        self.held += [
            Held(record, REJECTED, rejection.reason, rejection.detail)
            for record, rejection in self.rejections
        ]
        self.rejections = []

    @property
    def held_forwards(self) -> int:
        """Change of the number of held records that wait for another partition."""
        enter = sum(held.destination != REJECTED for held in self.held)
        return enter - sum(
            len(prefix.rows) for prefix in self.written if prefix.destination != REJECTED
        )

    @property
    def are_written(self) -> bool:
        """A record is rejected or forwarded in this step, and not held."""
        return bool(self.rejections or self.forwards)

    @property
    def begun(self) -> int:
        """Number of records that begin to wait: those that go from one queue to another do not."""
        return 0 if self.written else len(self.held)

    @property
    def rejected_in_all(self) -> int:
        """Number of records that are rejected in this step. Held ones count when they are
        written."""
        at_once = len(self.refused) - self.ignored - self.forwarded - self.begun
        return at_once + self._rejected_on

    @property
    def forwarded_in_all(self) -> int:
        """Number of records that are forwarded in this step. Held ones count when they are
        written."""
        written = sum(len(prefix.rows) for prefix in self.written) - self._requeued
        return self.forwarded + written - self._rejected_on

    @property
    def _requeued(self) -> int:
        """Number of records that go from one queue to another."""
        return len(self.held) if self.written else 0

    @property
    def _rejected_on(self) -> int:
        """Number of records that leave a queue and are rejected."""
        rejected = sum(
            len(prefix.rows) if prefix.destination == REJECTED else len(prefix.too_large)
            for prefix in self.written
        )
        return rejected - self._requeued
