"""Where the audit trail is kept: a file of JSON lines, or a topic of the log; and how it is read
from its end."""

import heapq
import os
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

from chronos.adapters.machine import sync
from chronos.core.message import Record
from chronos.errors import BatchUnreadable, ConfigurationError, LogUnavailable, Retry
from chronos.ports import Appender, Log, Reader

WRITE_S = 5.0
"""How long the log may take to acknowledge entries."""

BLOCK_BYTES = 65_536
"""Bytes of the file that are read at once."""

LINE_BYTES_MAX = 4_000_000
"""Bytes of the longest line that is read: an entry has a tenth of it at most."""

CHUNK_RECORDS = 500
"""Records of the topic that are read at once: each reading backwards makes a consumer fetch
anew."""

CHUNK_BYTES = 4_000_000
"""Bytes of one read of the topic; at least one record."""

SILENCE_S = 5.0
"""How long a read of the topic waits for the log."""


class AuditFile:
    """Appends lines to a file. One thread at a time calls.

    A file that was renamed or removed, as logrotate does, is followed by a new one under the same
    name."""

    def __init__(self, path: str) -> None:
        """Raises ConfigurationError if the file cannot be written."""
        self._path = Path(path)
        self._handle: int | None = None
        self._is_torn = False
        """True after a write that failed: the file may end with a part of a line."""
        try:
            self._open()
        except OSError as error:
            raise ConfigurationError(
                [f"audit.path: {path} cannot be written: {error.strerror}"]
            ) from None

    def write(self, entries: Sequence[bytes]) -> None:
        """Append entries, one a line, and return once they are durable. Raises Retry."""
        try:
            handle = self._current()
            data = (b"\n" if self._is_torn else b"") + b"".join(entry + b"\n" for entry in entries)
            self._is_torn = True
            while data:
                data = data[os.write(handle, data) :]
            os.fsync(handle)
            self._is_torn = False
        except OSError as error:
            raise Retry(f"audit.path {self._path} cannot be written: {error.strerror}") from error

    def _current(self) -> int:
        """The open file that has the name now."""
        if self._handle is not None:
            mine = os.fstat(self._handle)
            try:
                named = os.stat(self._path)
            except FileNotFoundError:
                named = None
            if named is not None and (named.st_dev, named.st_ino) == (mine.st_dev, mine.st_ino):
                return self._handle
            self.close()
        return self._open()

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._handle = os.open(self._path, flags, 0o600)
        sync(self._path.parent)
        return self._handle

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


class AuditTopic:
    """Writes entries as records of a topic, without keys. One thread at a time calls."""

    def __init__(self, log: Appender, topic: str, *, owns_log: bool) -> None:
        """`owns_log`: `close` closes the log too."""
        self._log = log
        self._topic = topic
        self._owns_log = owns_log

    def write(self, entries: Sequence[bytes]) -> None:
        """Write one record for each entry, and return once they are durable. Raises Retry, and
        NoSpace."""
        self._log.append([(self._topic, None, entry, {}, -1) for entry in entries], WRITE_S)

    def close(self) -> None:
        """Close the log, if it is this topic's own."""
        if self._owns_log:
            self._log.close()


class AuditFileTrail:
    """Reads the file from its end. Files that were renamed are not read."""

    def __init__(self, path: str) -> None:
        self._path = path

    def newest(self, behind: Sequence[int] | None) -> Generator[tuple[bytes, Sequence[int]]]:
        """Yield the lines, the newest first. A position is the number of the file and an offset in
        it."""
        try:
            with open(self._path, "rb", buffering=0) as file:
                found = os.fstat(file.fileno())
                if behind is None:
                    end = found.st_size
                elif behind[0] == found.st_ino and behind[1] <= found.st_size:
                    end = behind[1]
                else:
                    raise LookupError(f"audit.path {self._path} is another file now")
                for line, offset in _lines(file.fileno(), end):
                    yield line, (found.st_ino, offset)
        except OSError as error:
            raise Retry(f"audit.path {self._path} cannot be read: {error.strerror}") from error


def _lines(handle: int, end: int) -> Iterator[tuple[bytes, int]]:
    """Yield the lines before an offset, the last one first, with the offsets where they begin."""
    rest = b""
    while end > 0:
        first = max(0, end - BLOCK_BYTES)
        block = os.pread(handle, end - first, first) + rest
        rest, *lines = block.split(b"\n")
        at = first + len(block)
        for line in reversed(lines):
            at -= len(line)
            if line:
                yield line, at
            at -= 1
        end = first
        if len(rest) > LINE_BYTES_MAX:
            rest = b""
    if rest:
        yield rest, 0


class AuditTopicTrail:
    """Reads the topic from its end, all of its partitions in the order of their times."""

    def __init__(self, log: Log, topic: str) -> None:
        self._log = log
        self._topic = topic

    def newest(self, behind: Sequence[int] | None) -> Generator[tuple[bytes, Sequence[int]]]:
        """Yield the values of the records, the newest first. A position has the end of what is
        still to be read, by partition."""
        info = self._log.describe([self._topic])[self._topic]
        if info is None:
            raise LogUnavailable(f"the topic {self._topic} does not exist")
        bounds = [self._log.watermarks(self._topic, each) for each in range(info.partitions)]
        ends = [each.stable for each in bounds] if behind is None else list(behind)
        if len(ends) != info.partitions:
            raise LookupError(f"the topic {self._topic} has other partitions now")
        streams = [
            self._partition(partition, each.start, min(end, each.stable))
            for partition, (each, end) in enumerate(zip(bounds, ends, strict=True))
        ]
        for partition, record in heapq.merge(*streams, key=lambda found: -found[1].timestamp_ms):
            ends[partition] = record.offset
            yield record.value or b"", tuple(ends)

    def _partition(self, partition: int, start: int, end: int) -> Iterator[tuple[int, Record]]:
        if start >= end:
            return
        reader = self._log.reader(self._topic, partition, max(start, end - CHUNK_RECORDS))
        try:
            while start < end:
                first = max(start, end - CHUNK_RECORDS)
                for record in reversed(self._chunk(reader, partition, first, end)):
                    yield partition, record
                end = first
        finally:
            reader.close()

    def _chunk(self, reader: Reader, partition: int, first: int, end: int) -> list[Record]:
        """Return the records from `first` up to `end`; steps over what cannot be read."""
        if reader.position != first:
            reader.seek(first)
        found: list[Record] = []
        silent_s = time.monotonic() + SILENCE_S
        while reader.position < end:
            try:
                records = reader.read(end - reader.position, CHUNK_BYTES)
            except BatchUnreadable as error:
                _, last = self._log.batch_bounds(self._topic, partition, error.offset)
                reader.seek(last + 1)
                continue
            found += (record for record in records if record.offset < end)
            if records:
                silent_s = time.monotonic() + SILENCE_S
            elif reader.position < end and not reader.wait(0.1) and time.monotonic() >= silent_s:
                raise LogUnavailable(
                    f"no record of {self._topic}/{partition} came within {SILENCE_S:g} s"
                )
        return found
