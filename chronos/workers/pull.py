"""The pull worker: hands the records of a delay partition to the steps, and takes none back before it is applied.

Keeps law 6's half of the watermark: it knows whether the end of the log was reached *after* a moment in time.
"""

from itertools import accumulate

from chronos.core.message import Record
from chronos.ports import Reader, TopicLog

CATCH_UP_S = 0.004
"""How long one read may wait for records known to be in the log: a few times the broker's fetch latency."""

CATCH_UPS_MAX = 5
"""Reads that may wait so in one step; after them the watermark is what was pulled, and the step goes on."""


class Puller:
    """Records of one delay partition, kept until the step that staged them was applied."""

    def __init__(self, log: TopicLog, reader: Reader, topic: str, partition: int) -> None:
        self._log = log
        self._reader = reader
        self._topic = topic
        self._partition = partition
        self._waiting: list[Record] = []

    @property
    def waiting(self) -> int:
        """Records read and not yet applied."""
        return len(self._waiting)

    @property
    def position(self) -> int:
        """Offset behind the last record read, or behind the transaction markers that follow it."""
        return self._reader.position

    def batch(self, records_max: int, bytes_max: int) -> list[Record]:
        """The next records, at least one if there is one; the same again until `release`."""
        fitting = _fitting(self._waiting[:records_max], bytes_max)
        # What waits already and fills the batch is not added to: else every step would read more than it gives.
        if fitting == len(self._waiting) < records_max:
            self._waiting += self._reader.read(records_max - len(self._waiting), bytes_max)
            fitting = _fitting(self._waiting[:records_max], bytes_max)
        return self._waiting[:fitting]

    def batch_ahead(self, taken: int, records_max: int, bytes_max: int) -> list[Record]:
        """Those that follow the first `taken`, as far as they are there: the next batch, before this one is released."""
        if len(self._waiting) < taken + records_max:
            self._waiting += self._reader.read(taken + records_max - len(self._waiting), bytes_max)
        return self._waiting[taken : taken + records_max]

    def end(self) -> int:
        """Where the log ends now, for readers of committed records."""
        return self._log.stable_end(self._topic, self._partition)

    def batch_to(self, end: int, records_max: int, bytes_max: int) -> tuple[list[Record], bool]:
        """The next records, and whether they reach the offset `end`; waits a moment for those that are on their way."""
        batch = self.batch(records_max, bytes_max)
        for _ in range(CATCH_UPS_MAX):
            full = len(batch) >= records_max or len(batch) < len(self._waiting)
            if full or self._reader.position >= end:
                break
            self._reader.wait(CATCH_UP_S)
            batch = self.batch(records_max, bytes_max)
        return batch, self._reader.position >= end and len(batch) == len(self._waiting)

    def release(self, count: int) -> None:
        """The first `count` records waiting are applied."""
        del self._waiting[:count]

    def wait(self, timeout_s: float) -> None:
        """Wait until a record comes, or the time is over."""
        if not self._waiting:
            self._reader.wait(timeout_s)

    def close(self) -> None:
        """Give the reader back."""
        self._reader.close()


def record_bytes(record: Record) -> int:
    """Roughly what a record weighs in memory and in a transaction."""
    size = 64 + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers or ():
        size += 16 + len(name) + len(value or b"")
    return size


def _fitting(batch: list[Record], bytes_max: int) -> int:
    """How many records, at least one, stay within so many bytes."""
    # Payloads alone are a cheap bound from below; only a batch that comes near the limit is weighed exactly.
    if sum(len(record.value) for record in batch if record.value is not None) < bytes_max // 4 and len(batch) < 10_000:
        light = all(record.headers is None or len(record.headers) < 32 for record in batch)
        if light:
            return len(batch)
    for at, size in enumerate(accumulate(map(record_bytes, batch))):
        if size > bytes_max and at > 0:
            return at
    return len(batch)
