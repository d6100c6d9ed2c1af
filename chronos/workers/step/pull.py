"""The pull worker: reads the delay partition for a master's steps, and keeps the records until they
are applied. It does not parse them, and decides about none.

Keeps its part of law 6: `take` returns a time, and every record that could be read at that time is
pulled. It asks for the end of the partition first, and reads up to there afterwards."""

from collections.abc import Callable
from itertools import accumulate

import structlog

from chronos.core.message import Record
from chronos.core.size import memory_bytes
from chronos.errors import BatchUnreadable
from chronos.ports import Log, Reader, ReaderMode
from chronos.workers.step.scope import Pull, Pulled

log = structlog.get_logger("chronos.pull")

CATCH_UP_S = 0.004
"""How long one read waits for records known to be in the log: a few times the broker's fetch
latency."""

CATCH_UPS_MAX = 5
"""Most reads of this kind in one step; after them the step continues, although it has not reached
the end of the partition."""

FEW_HEADERS = 32
"""Sizes are not computed for a batch whose records all have fewer headers and whose payloads are
far below the limit."""


class Puller:
    """Records of one delay partition, kept until the step that staged them is applied."""

    def __init__(
        self,
        log: Log,
        topic: str,
        partition: int,
        offset: int,
        *,
        mode: ReaderMode,
        begun: tuple[Reader | None, list[Record]] = (None, []),
    ) -> None:
        """Read from the offset on, in this mode. `begun`: a reader of this mode, and the records
        from the offset on that it has returned; the client of a new reader takes some time to
        connect."""
        self._log = log
        reader, records = begun
        self._reader = reader or log.reader(topic, partition, offset, mode=mode)
        self._mode: ReaderMode = mode
        self._topic = topic
        self._partition = partition
        self._waiting = list(records)
        """Records read and not applied yet, in order."""
        self._unreadable_at: int | None = None
        """Position at which the next batch could not be read."""
        self._held_up_at: int | None = None
        """Position at which the reader last did not reach the end of the partition; None: it always
        did."""
        self.reached_ms = 0
        """`Pulled.reached_ms` of the last step whose records are applied; 0: it is not known."""

    @property
    def waiting(self) -> int:
        """Number of records that were read and are not applied yet."""
        return len(self._waiting)

    @property
    def position(self) -> int:
        """Offset after the last record read, or after the transaction markers that follow it."""
        return self._reader.position

    @property
    def delayed(self) -> str | None:
        """See `ports.Reader.delayed`."""
        return self._reader.delayed

    def take(self, pull: Pull, now_ms: int, records_max: int, bytes_max: int) -> Pulled:
        """Return the records of a step at this time (epoch ms), within both limits, but at least
        one if there is one; the same ones again until `release`."""
        reached_ms = self.reached_ms
        records: list[Record] = []
        try:
            if pull is Pull.TO_END:
                records, reached = self.batch_to(self.end(), records_max, bytes_max)
                if reached:
                    reached_ms = now_ms
            elif pull is Pull.NEXT:
                records = self.batch(records_max, bytes_max)
        except BatchUnreadable as error:
            return Pulled(unreadable=error, reached_ms=self.reached_ms)
        if not records:
            self.reached_ms = reached_ms
        return Pulled(records=records, reached_ms=reached_ms)

    def batch(self, records_max: int, bytes_max: int) -> list[Record]:
        """Return the next records, at least one if there is one; the same ones again until
        `release`."""
        fitting = _fitting(self._waiting[:records_max], bytes_max)
        # A full batch is not extended: otherwise every step would read more records than it
        # returns.
        if fitting == len(self._waiting) < records_max:
            self._waiting += self._read(records_max - len(self._waiting), bytes_max)
            fitting = _fitting(self._waiting[:records_max], bytes_max)
        return self._waiting[:fitting]

    def batch_ahead(self, taken: int, records_max: int, bytes_max: int) -> list[Record]:
        """Return the records after the first `taken` that can be read now: the next batch, before
        this one is released."""
        if len(self._waiting) < taken + records_max:
            self._waiting += self._read(taken + records_max - len(self._waiting), bytes_max)
        return self._waiting[taken : taken + records_max]

    def _read(self, records_max: int, bytes_max: int) -> list[Record]:
        try:
            return self._reader.read(records_max, bytes_max)
        except BatchUnreadable:
            if not self._waiting:
                raise
            return []  # the records before it are staged first; then the same error comes again

    def unreadable(self, error: BatchUnreadable) -> tuple[int, int]:
        """Return the first and last offset of the batch that a read failed at. Raises the error
        itself the first time.

        The last offset is that of the batch's own header: it is never searched for, because a seek
        into a batch fetches all of it. A second failure, after a pause and with the header read
        from the broker, is no outage."""
        if self._unreadable_at != self.position:
            self._unreadable_at = self.position
            raise error
        first, last = self._log.batch_bounds(self._topic, self._partition, error.offset)
        if not first <= error.offset <= last:
            raise error
        return max(first, self.position), last

    def skip_to(self, offset: int) -> None:
        """Continue after a range that was stepped over."""
        assert not self._waiting, "records before an unreadable range are lost"
        self._reader.seek(offset)

    def end(self) -> int:
        """Return the last stable offset of the partition now."""
        return self._log.stable_end(self._topic, self._partition)

    def batch_to(self, end: int, records_max: int, bytes_max: int) -> tuple[list[Record], bool]:
        """Return the next records, and True if they reach the offset `end`; waits a moment for
        records that are being fetched."""
        batch = self.batch(records_max, bytes_max)
        for _ in range(CATCH_UPS_MAX):
            full = len(batch) >= records_max or len(batch) < len(self._waiting)
            if full or self._reader.position >= end:
                break
            self._reader.wait(CATCH_UP_S)
            batch = self.batch(records_max, bytes_max)
        else:
            self._hurry()
        all_before = len(batch) == len(self._waiting) or self._waiting[len(batch)].offset >= end
        return batch, all_before and self._reader.position >= end

    def _hurry(self) -> None:
        """Replace the patient reader once it was held up twice at the same position: it stands at
        the marker of a producer's transaction, and due messages would wait at each marker.

        A bounded one stays: it is late because it waits for its turn."""
        position = self._reader.position
        if self._mode == "patient" and self._held_up_at == position:
            log.info(
                "records are written in transactions", topic=self._topic, partition=self._partition
            )
            self._mode = "plain"
            self._reader.close()
            self._reader = self._log.reader(self._topic, self._partition, position, mode=self._mode)
        self._held_up_at = position

    def release(self, pulled: Pulled) -> None:
        """Forget the records of a step, which are applied."""
        del self._waiting[: len(pulled.records)]
        if pulled.records:
            # Not before: the end of the log is not reached in a step that is made again without
            # these records.
            self.reached_ms = pulled.reached_ms

    @property
    def waker(self) -> Callable[[], None] | None:
        """Ends a `wait`, see `ports.Reader`."""
        return self._reader.waker

    def wait(self, timeout_s: float) -> bool:
        """Wait until a record can be read, or for the time to pass; return whether one may be
        there."""
        return bool(self._waiting) or self._reader.wait(timeout_s)

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()


def _fitting(batch: list[Record], bytes_max: int) -> int:
    """Return how many leading records, at least one if there is one, stay within the limit."""
    # The payloads are a cheap lower bound: only a batch near the limit is measured record by
    # record.
    if (
        len(batch) < 10_000
        and sum(len(record.value) for record in batch if record.value is not None) < bytes_max // 4
    ):
        few_headers = all(
            record.headers is None or len(record.headers) < FEW_HEADERS for record in batch
        )
        if few_headers:
            return len(batch)
    # Not `core.size.count_within`, which measures the whole batch: 2 ms longer if half of 5,000
    # records fit (measured).
    for count, total in enumerate(
        accumulate(memory_bytes(record.key, record.value, record.headers) for record in batch)
    ):
        if total > bytes_max and count > 0:
            return count
    return len(batch)
