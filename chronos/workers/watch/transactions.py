"""The watch over open transactions of producers in the delay topic.

A `read_committed` reader ends at the first open transaction: the records after it, of every
producer, cannot be read, and a cancel among them may be too late (law 6). The watch reports such
partitions and decides nothing."""

from collections.abc import Collection, Mapping

import structlog
from msgspec import Struct

from chronos.core.timefmt import format_time
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
            f"{topic}/{partition}: {self.records} records from offset {self.stable} on are held "
            f"back by a producer's open transaction since {format_time(self.since_ms)}"
        )


class OpenTransactions:
    """Finds open transactions in the partitions of the delay topic. One thread calls `step`; any
    thread may call `held_back`."""

    def __init__(self, log_port: TopicLog, topic: str) -> None:
        self._log = log_port
        self._topic = topic
        self._open: dict[int, HeldBack] = {}
        self._reported: dict[int, HeldBack] = {}

    def held_back(self, partition: int) -> HeldBack | None:
        """Return the records that have been held back for more than HELD_BACK_MS; None if there are
        none."""
        return self._reported.get(partition)

    def step(self, now_ms: int, partitions: Collection[int], stable: Mapping[int, int]) -> None:
        """Compare the ends of these partitions once. A partition whose leader does not answer stays
        as it was.

        `stable`: the last stable offsets of those that answered, requested before this call.
        Records written between the two requests look held back at first, and are not once the next
        call finds another stable offset."""
        for partition in {*self._open, *self._reported}.difference(partitions):
            self._open.pop(partition, None)
            self._reported.pop(partition, None)
        high = self._log.high_watermarks(self._topic, partitions)
        for partition in sorted(stable.keys() & high.keys()):
            self._compare(partition, stable[partition], high[partition], now_ms)

    def _compare(self, partition: int, stable: int, high: int, now_ms: int) -> None:
        before = self._open.pop(partition, None)
        if stable < high:
            same = before is not None and before.stable == stable and before.since_ms <= now_ms
            held_back = self._open[partition] = HeldBack(
                stable=stable,
                records=high - stable,
                since_ms=before.since_ms if same and before is not None else now_ms,
            )
            if now_ms - held_back.since_ms > HELD_BACK_MS:
                if partition not in self._reported:
                    log.warning(
                        "records held back",
                        shard=partition,
                        why=held_back.text(self._topic, partition),
                    )
                self._reported[partition] = held_back
                return
        if self._reported.pop(partition, None) is not None:
            log.info("records no longer held back", shard=partition)
