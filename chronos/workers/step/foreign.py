"""The log lines about records of other programs in a progress partition, which a replica steps
over."""

import structlog

from chronos.core.message import Record
from chronos.core.timefmt import format_time

log = structlog.get_logger("chronos.shard")

NAMED_EVERY_MS = 60_000
"""Least time between two log lines about records of other programs, by their own timestamps."""

HEADERS_SHOWN = 10
"""Headers of another program's record that its log line names."""


class ForeignRecords:
    """The records of other programs in one progress partition, which are stepped over."""

    def __init__(self, topic: str, partition: int) -> None:
        self._partition_name = f"{topic}/{partition}"
        self._named_ms: int | None = None
        self._records = 0

    def stepped_over(self, first: Record, records: int) -> None:
        """Log the first of them, at most once in NAMED_EVERY_MS, with the number of all since the
        last log line."""
        self._records += records
        if self._named_ms is not None and first.timestamp_ms < self._named_ms + NAMED_EVERY_MS:
            return
        headers = ", ".join(
            f"{name}={content!r:.80}" for name, content in (first.headers or [])[:HEADERS_SHOWN]
        )
        log.warning(
            "records of another program stepped over: allow only Chronos to write to this topic",
            partition=self._partition_name,
            records=self._records,
            offset=first.offset,
            key=f"{first.key!r:.80}",
            headers=headers or "none",
            written=format_time(first.timestamp_ms),
        )
        self._named_ms, self._records = first.timestamp_ms, 0
