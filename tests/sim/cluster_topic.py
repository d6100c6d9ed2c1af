"""The simulated topic `chronos.cluster`: partitions that are silent, elect leaders and lose their
tail, and transactions.

Records below the high watermark survive an election, except an unclean one; readers see nothing
above it. The transactions of the partition ROLES behave as Kafka's: `fence` ends the transaction of
every earlier producer and makes all its later calls fail, and a read_committed reader stops at an
open transaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from tests.sim.world import World

TRANSACTION_MS = 10_000
"""Age at which the broker ends an open transaction."""


class Kind(Enum):
    """The state of an entry of a partition."""

    PLAIN = auto()
    OPEN = auto()
    COMMITTED = auto()
    ABORTED = auto()
    MARKER = auto()


@dataclass
class Entry:
    """One offset of a partition."""

    value: bytes
    kind: Kind = Kind.PLAIN


class Truncated(Exception):
    """The reader was further than the log is after an unclean election."""


class FencedProducer(Exception):
    """A later producer has the transactional id."""


class SimPartition:
    """One partition with its leader."""

    def __init__(self, world: World, *, transactional: bool = False) -> None:
        self.world = world
        self.transactional = transactional
        self.entries: list[Entry] = []
        self.high = 0
        """High watermark."""
        self.silent_ms = 0
        """Until when it answers nobody."""
        self.elections = 0
        self.cuts: list[int] = []
        """For each unclean election, the offset from which records were lost."""

    @property
    def answering(self) -> bool:
        return self.world.now_ms >= self.silent_ms

    def silence(self, wait_ms: int) -> None:
        self.silent_ms = max(self.silent_ms, self.world.now_ms + wait_ms)

    def elect(self, wait_ms: int, *, keeps_tail: bool, loses: int = 0) -> None:
        """Change the leader; an unclean election also loses that many records that readers may have
        read."""
        self.elections += 1
        self.silence(wait_ms)
        if keeps_tail:
            self.high = len(self.entries)
            return
        end = max(0, self.high - loses)
        if loses and end < self.high:
            self.cuts.append(end)
        del self.entries[end:]
        self.high = len(self.entries)

    def append(self, entry: Entry) -> int:
        """Append at the leader; the high watermark follows after the replicas have it, unless there
        is an election before."""
        self.entries.append(entry)
        end, elections = len(self.entries), self.elections
        self.world.after(self.world.random.randrange(1, 15), self._replicated, end, elections)
        return end - 1

    def _replicated(self, end: int, elections: int) -> None:
        if elections == self.elections:
            self.high = max(self.high, end)

    @property
    def stable(self) -> int:
        """Last stable offset."""
        for offset in range(max(0, self.high - 8), self.high) if self.transactional else ():
            if self.entries[offset].kind is Kind.OPEN:
                return offset
        return self.high

    def has_more(self, position: int, known_cuts: int) -> bool:
        """Return whether there may be something to read from the position on."""
        return position < self.high or known_cuts < len(self.cuts)

    def read(self, position: int, known_cuts: int) -> list[Entry]:
        """Return the entries from the position on that a read_committed reader may pass. Raises
        Truncated."""
        if any(position > end for end in self.cuts[known_cuts:]):
            raise Truncated
        return self.entries[position : self.stable]


class Transactions:
    """The transactional id of the controller, for the partition ROLES."""

    def __init__(
        self, world: World, partition: SimPartition, committed: Callable[[int, bytes], None]
    ) -> None:
        self.world = world
        self.partition = partition
        self.epoch = 0
        """Epoch of the producer that may write."""
        self._open: Entry | None = None
        self._committed = committed

    @property
    def is_open(self) -> bool:
        return self._open is not None

    def fence(self) -> int:
        """Return a new producer epoch; the open transaction is aborted."""
        self.epoch += 1
        self._end(Kind.ABORTED)
        return self.epoch

    def send(self, epoch: int, value: bytes) -> None:
        if epoch != self.epoch:
            raise FencedProducer
        self._open = entry = Entry(value, Kind.OPEN)
        self.partition.append(entry)
        self.world.after(TRANSACTION_MS, self._expire, entry)

    def commit(self, epoch: int) -> bool:
        """Return False if the record was lost with the tail of the log: the transaction is
        aborted."""
        if epoch != self.epoch:
            raise FencedProducer
        entry = self._open
        kept = entry is not None and any(entry is each for each in self.partition.entries[-8:])
        self._end(Kind.COMMITTED if kept else Kind.ABORTED)
        if kept and entry is not None:
            offset = max(at for at, each in enumerate(self.partition.entries) if each is entry)
            self._committed(offset, entry.value)
        return kept

    def _end(self, kind: Kind) -> None:
        entry, self._open = self._open, None
        if entry is None:
            return
        entry.kind = kind
        self.partition.append(Entry(b"", Kind.MARKER))
        # The coordinator waits for the replicas before it answers.
        self.partition.high = len(self.partition.entries)

    def _expire(self, entry: Entry) -> None:
        if self._open is entry:
            self.epoch += 1
            self._end(Kind.ABORTED)
