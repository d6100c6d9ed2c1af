"""The file of the audit trail (`ports.AuditSink`, `ports.AuditTrail`): JSON lines, appended durably
and read from the end.

Once the file was renamed, the next entry begins a new one under its name; renamed files are not
read. What an entry says is decided in `admin.http.audit`."""

import os
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

from chronos.adapters.disk import sync
from chronos.errors import ConfigurationError, Retry

BLOCK_BYTES = 65_536
"""Bytes of the file that are read at once."""

LINE_BYTES_MAX = 4_000_000
"""Bytes of the longest line that is read: an entry has a tenth of it at most."""


class AuditFile:
    """Appends lines to a file. One thread at a time calls.

    A file that was renamed or removed, as logrotate does, is followed by a new one under the same
    name."""

    def __init__(self, path: str) -> None:
        """Raises ConfigurationError if the file cannot be written."""
        self._path = Path(path)
        self._handle: int | None = None
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
            data = _line_end(handle) + b"".join(entry + b"\n" for entry in entries)
            while data:
                data = data[os.write(handle, data) :]
            os.fsync(handle)
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
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._handle = os.open(self._path, flags, 0o600)
        sync(self._path.parent)
        return self._handle

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _line_end(handle: int) -> bytes:
    """What ends the last line of a file if a write of this or another process was cut short."""
    size = os.fstat(handle).st_size
    return b"\n" if size and os.pread(handle, 1, size - 1) != b"\n" else b""


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
