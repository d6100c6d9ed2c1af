"""The reader of one partition of the embedded log (`ports.Reader`): the synced records from an
offset on; and the search of an offset by time."""

from pathlib import Path

from chronos.adapters.embedded.journal import Journal
from chronos.adapters.embedded.topics import (
    Partition,
    record_offset,
    unpack_record,
)
from chronos.core.message import Record
from chronos.errors import (
    LogMismatch,
    LogUnavailable,
    StoreCorrupt,
)


class EmbeddedReader:
    """Reads one partition. See `ports.Reader`. For one thread."""

    def __init__(self, journal: Journal, path: Path, partition: Partition, offset: int) -> None:
        self._journal = journal
        self._path = path
        self._partition = partition
        self.position = offset

    @property
    def delayed(self) -> str | None:
        """Never."""
        return None

    def read(self, records_max: int, bytes_max: int) -> list[Record]:
        """Return the next synced records without waiting. Raises LogMismatch, StoreCorrupt,
        LogUnavailable."""
        partition, position, end = self._partition, self.position, self._partition.end
        if self._journal.closed:
            raise LogUnavailable("the embedded log is closed")
        if not partition.start <= position <= end:
            raise LogMismatch(
                f"offset {position} of {partition.name} is not in the log, which holds "
                f"{partition.start} to {end}: it was trimmed, or is not the log that was read "
                "before"
            )
        if position == end or records_max < 1:
            return []
        rows = self._journal.db.rows(
            partition.key(position), partition.key(end), records_max, bytes_max
        )
        records = [unpack_record(record_offset(key), data) for key, data in rows]
        if (
            not records
            or records[0].offset != position
            or records[-1].offset != position + len(records) - 1
        ):
            if position < partition.start:
                raise LogMismatch(f"offset {position} of {partition.name} was trimmed just now")
            raise StoreCorrupt(
                f"{self._path}: records of {partition.name} at or after {position} are missing"
            )
        self.position += len(records)
        return records

    @property
    def waker(self) -> None:
        """Nothing ends a wait."""
        return None

    def wait(self, timeout_s: float) -> bool:
        """Wait for a record, or for an error that `read` will raise."""
        partition, journal = self._partition, self._journal
        with partition.changed:
            return partition.changed.wait_for(
                lambda: journal.closed or not partition.start <= self.position == partition.end,
                timeout_s,
            )

    def seek(self, offset: int) -> None:
        self.position = offset

    def close(self) -> None:
        """Nothing to release."""


def first_after(journal: Journal, partition: Partition, timestamp_ms: int) -> int:
    """Return the first offset with a greater timestamp, by bisection, on the assumption that
    timestamps never went back."""
    low, high = partition.start, partition.end
    while low < high:
        middle = (low + high) // 2
        data = journal.db.get([partition.key(middle)])[0]
        if data is not None and unpack_record(middle, data).timestamp_ms > timestamp_ms:
            high = middle
        else:
            low = middle + 1
    return low
