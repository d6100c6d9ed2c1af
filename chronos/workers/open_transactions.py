"""The watch of open transactions: finds records of the delay topic that a producer's open transaction holds back.

A `read_committed` reader ends at the first open transaction, so the records behind it, of every producer, are not readable,
and a cancel among them may be too late (law 6). The watch reports them; it decides nothing.
"""

from collections import deque
from collections.abc import Container

import structlog
from msgspec import Struct

from chronos.core.timefmt import format_time
from chronos.errors import Retry
from chronos.ports import TopicLog

log = structlog.get_logger("chronos.shard")

HELD_BACK_MS = 1_000
"""Time after which an open transaction is reported: most transactions are shorter."""


class HeldBack(Struct, frozen=True, kw_only=True):
    """Records of one partition that cannot be read because of an open transaction."""

    stable: int
    """Last stable offset: that of the first record held back."""
    records: int
    """Offsets from there to the high watermark, transaction markers included."""
    since_ms: int
    """When the transaction was first found open (epoch ms)."""

    def text(self, topic: str, partition: int) -> str:
        """Return the finding as a sentence for people."""
        return (
            f"{topic}/{partition}: {self.records} records from offset {self.stable} on are held back by a producer's open"
            f" transaction since {format_time(self.since_ms)}"
        )


class OpenTransactions:
    """Watches the partitions of the delay topic. One thread calls `step`; any thread may call `held_back`."""

    def __init__(self, log_port: TopicLog, topic: str, partitions: int) -> None:
        self._log = log_port
        self._topic = topic
        self._queue = deque(range(partitions))
        """The partitions; the one looked at longest ago is first."""
        self._open: dict[int, HeldBack] = {}
        self._reported: dict[int, HeldBack] = {}

    def held_back(self, partition: int) -> HeldBack | None:
        """Return what has been held back for more than HELD_BACK_MS; None if nothing has."""
        return self._reported.get(partition)

    def step(self, now_ms: int, partitions: Container[int]) -> None:
        """Look at those of the partitions once. A log that does not answer ends the round; the next one continues there."""
        for _ in range(len(self._queue)):
            partition = self._queue[0]
            self._queue.rotate(-1)
            if partition not in partitions:
                self._open.pop(partition, None)
                self._reported.pop(partition, None)
                continue
            try:
                self._look(partition, now_ms)
            except Retry:
                return  # the shards pause for the same reason and report it

    def _look(self, partition: int, now_ms: int) -> None:
        watermarks = self._log.watermarks(self._topic, partition)
        before = self._open.pop(partition, None)
        if watermarks.stable < watermarks.high:
            same = before is not None and before.stable == watermarks.stable and before.since_ms <= now_ms
            found = self._open[partition] = HeldBack(
                stable=watermarks.stable,
                records=watermarks.high - watermarks.stable,
                since_ms=before.since_ms if same and before is not None else now_ms,
            )
            if now_ms - found.since_ms > HELD_BACK_MS:
                if partition not in self._reported:
                    log.warning("records held back", shard=partition, why=found.text(self._topic, partition))
                self._reported[partition] = found
                return
        if self._reported.pop(partition, None) is not None:
            log.info("records no longer held back", shard=partition)
