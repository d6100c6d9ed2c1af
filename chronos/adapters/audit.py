"""Where the audit trail is kept: a file of JSON lines, or a topic of the log."""

import os
from collections.abc import Sequence
from pathlib import Path

from chronos.adapters.machine import sync
from chronos.errors import ConfigurationError, Retry
from chronos.ports import Appender

WRITE_S = 5.0
"""How long the log may take to acknowledge entries."""


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
