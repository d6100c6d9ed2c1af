"""What Chronos says about itself, where it cannot be said."""

import errno
import io

import structlog

from chronos.logs import set_up


class FullDisk(io.StringIO):
    """A file on a disk without room."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_line_that_cannot_be_written_stops_nobody() -> None:
    """A log on the disk that is full must not end the shard that says so."""
    before = structlog.get_config()
    try:
        set_up("info", "json", FullDisk())
        log = structlog.get_logger("chronos.test")
        for say in (log.debug, log.info, log.warning, log.error, log.exception):
            say("the disk is full")
    finally:
        structlog.configure(**before)
