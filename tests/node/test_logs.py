"""Logging where a line cannot be written."""

import errno
import io

import structlog

from chronos.logs import set_up


class FullDisk(io.StringIO):
    """A file on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_log_line_that_cannot_be_written_is_dropped() -> None:
    """A log on a full disk must not end the shard that reports the full disk."""
    before = structlog.get_config()
    try:
        set_up("info", "json", FullDisk())
        log = structlog.get_logger("chronos.test")
        for method in (log.debug, log.info, log.warning, log.error, log.exception):
            method("the disk is full")
    finally:
        structlog.configure(**before)
