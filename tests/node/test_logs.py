"""The log and the command line on a terminal: lines that cannot be written, and what clients have
sent."""

import errno
import io
import json

import pytest
import structlog

from chronos.cli.output import complain, note, put, put_json, table
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


HOSTILE = "a\x1b[2J\x07\x9b1m\u202e\udc80\nforged"
"""What clears a terminal, rings it, colours it, turns the direction of the text, is no UTF-8, and
begins a line."""


@pytest.mark.parametrize("form", ["console", "json"])
def test_what_clients_send_does_nothing_to_a_terminal(form: str) -> None:
    """In the event, a value, a value that is no text, and the text of an error; in either format a
    line stays one line."""
    before, out = structlog.get_config(), io.StringIO()
    try:
        set_up("info", form, out)
        log = structlog.get_logger("chronos.test")
        log.warning(HOSTILE, path=HOSTILE, ids=[HOSTILE], raw=HOSTILE.encode(errors="replace"))
        lines = out.getvalue().splitlines()
        assert len(lines) == 1
        try:
            raise ValueError(HOSTILE)
        except ValueError as error:
            log.error("failed", exc_info=error)
    finally:
        structlog.configure(**before)
    assert all(char.isprintable() or char == "\n" for char in out.getvalue())
    assert "x1b[2J" in out.getvalue() or "u001b[2J" in out.getvalue()
    if form == "json":
        assert json.loads(lines[0])["path"] == HOSTILE


def test_a_traceback_shows_no_values() -> None:
    """They may be payloads and tokens, and of any size."""
    before, out = structlog.get_config(), io.StringIO()
    try:
        set_up("info", "console", out)
        payload = "secret" * 3
        try:
            int("x" + payload[:0])
        except ValueError as error:
            structlog.get_logger("chronos.test").error("failed", exc_info=error)
    finally:
        structlog.configure(**before)
    assert "ValueError" in out.getvalue()
    assert payload not in out.getvalue()


def test_tables_of_the_command_line_do_nothing_to_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nor do notes, errors and JSON."""
    put(table([("ID", "left")], [[HOSTILE.replace("\udc80", "")]]))
    note(HOSTILE.replace("\udc80", ""))
    complain(HOSTILE.replace("\udc80", ""))
    put_json({"id": HOSTILE.replace("\udc80", "")})
    captured = capsys.readouterr()
    assert all(char.isprintable() or char == "\n" for char in captured.out + captured.err)
    assert captured.out.count("[2J") == 2
    assert captured.err.count("[2J") == 2
    assert json.loads(captured.out.splitlines()[-1]) == {"id": HOSTILE.replace("\udc80", "")}
