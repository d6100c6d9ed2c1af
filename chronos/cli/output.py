"""The output of the command line: tables for people, JSON for programs, errors and notes on stderr;
and the client whose answers are printed.

Output that is not a terminal has no colours, and its tables are not cut off. A failure of stdout is
distinguished from a failure of any other file."""

import errno
import io
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from chronos.client import Client, Refused
from chronos.client.requests import HttpRequest
from chronos.core.texts import printable as printable
from chronos.core.texts import printable_json
from chronos.errors import ChronosError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

NOT_SHOWN = "not shown: the token does not have the role payload"
"""The text in place of a payload."""

WIDE = 10_000
"""Columns of an output that is not a terminal: nothing is cut off there."""

PROSE_COLUMNS = 100
"""Widest line of prose."""

RETRIES = 1
"""Repetitions of a call: fewer than a program makes, because a person can try again."""

OPTIONS = {
    "filter.target": "--target",
    "filter.due_from": "--due-from",
    "filter.due_to": "--due-to",
    "filter.id_prefix": "--id-prefix",
    "filter.contains": "--contains",
    "filter.header": "--header",
    "filter.headers": "--header",
    "target.topic": "--to",
    "target.key": "--key",
    "target.key_base64": "--key",
    "target.headers": "--header",
    "id": "--id",
    "on_conflict": "--on-conflict",
    "expire_at": "--expire-at",
    "repeat_times": "--times",
    "repeat_until": "--until",
    "time_zone": "--time-zone",
    "late_policy": "--late-policy",
    "spread": "--spread",
    "value": "VALUE",
    "value_base64": "VALUE",
}
"""Fields of the HTTP interface, and the option each comes from."""


class Format(StrEnum):
    """`-o`."""

    text = "text"
    json = "json"


class OutputFailed(ChronosError):
    """Stdout can no longer be written, for example because the disk is full."""


class OutputClosed(Exception):
    """The reader of stdout has closed it."""


class _Stdout(io.TextIOWrapper):
    """Standard output whose failures are told from those of other files."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as error:
            raise _failure(error) from None

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            raise _failure(error) from None


def _failure(error: OSError) -> Exception:
    if error.errno == errno.EPIPE:
        return OutputClosed()
    return OutputFailed(f"the output cannot be written: {error.strerror}")


def guard_stdout() -> None:
    """From now on a failure of stdout raises OutputFailed or OutputClosed, and text it cannot
    encode is escaped."""
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper):
        sys.stdout = _Stdout(
            out.detach(),
            encoding=out.encoding,
            errors="backslashreplace",
            line_buffering=out.line_buffering,
        )


def discard_stdout() -> None:
    """Drop the unwritten rest of stdout if stdout can no longer be written; Python would report it
    at the exit."""
    try:
        sys.stdout.flush()
    except (OSError, OutputFailed, OutputClosed):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def put_bytes(data: bytes) -> None:
    """Write bytes to stdout unchanged."""
    sys.stdout.flush()
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except OSError as error:
        raise _failure(error) from None


def complain(text: str) -> None:
    """Write an error to stderr."""
    lines = [printable(line) for line in text.splitlines()] or [""]
    head = "\033[31merror:\033[0m" if sys.stderr.isatty() else "error:"
    print(head, lines[0], file=sys.stderr)
    for line in lines[1:]:
        print("      ", line, file=sys.stderr)


def note(text: str) -> None:
    """Write a note to stderr: worth knowing, but not a result."""
    print("\n".join(map(printable, text.split("\n"))), file=sys.stderr, flush=True)


def put_json(value: Any) -> None:
    """Write one line of JSON to stdout."""
    print(printable_json(json.dumps(msgspec.to_builtins(value), ensure_ascii=False)), flush=True)


def console() -> "Console":
    """Where tables go; wide enough for everything if it is not a terminal."""
    from rich.console import Console

    return Console(
        highlight=False,
        width=None if sys.stdout.isatty() else WIDE,
        soft_wrap=not sys.stdout.isatty(),
    )


def put(what: "RenderableType") -> None:
    """Print a renderable of rich; outside a terminal without the blanks that pad its last
    column."""
    made = console()
    if made.is_terminal:
        made.print(what)
        return
    with made.capture() as printed:
        made.print(what)
    sys.stdout.write("".join(f"{line.rstrip(' ')}\n" for line in printed.get().splitlines()))


def table(columns: Sequence[tuple[str, str]] | None, rows: Sequence[Sequence[str]]) -> Any:
    """A table without lines; a column is `(heading, "left" or "right")`. None: two columns without
    headings.

    Control characters in cells are escaped.
    """
    from rich.table import Table
    from rich.text import Text

    made = Table(
        box=None,
        pad_edge=False,
        header_style="bold",
        padding=(0, 2, 0, 0),
        show_header=columns is not None,
    )
    for heading, justify in columns or [("", "left"), ("", "left")]:
        made.add_column(heading, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        made.add_row(*(Text(printable(cell)) for cell in row))
    return made


def local(moment: datetime | str | None) -> str:
    """A time in the time zone of this machine; as it is if it lies beyond the calendar there."""
    found = parsed(moment)
    if found is None:
        return str(moment) if moment else "-"
    with suppress(OverflowError):
        found = found.astimezone()
    return found.isoformat(sep=" ", timespec="milliseconds")


def parsed(moment: datetime | str | None) -> datetime | None:
    """A time as the API writes it; None for one beyond the calendar."""
    if isinstance(moment, str):
        try:
            return datetime.fromisoformat(moment)
        except ValueError:
            return None
    return moment


def relative(moment: datetime | str | None, now: datetime | None = None) -> str:
    """`in 5 s`, `3 min ago`; by the clock of this machine, unless `now` is given."""
    found = parsed(moment)
    if found is None:
        return "-"
    seconds = (found - (now or datetime.now(UTC))).total_seconds()
    text = span(abs(seconds))
    return f"in {text}" if seconds >= 0 else f"{text} ago"


def span(seconds: float) -> str:
    """A length of time, rounded."""
    if seconds < 1:
        return f"{seconds * 1_000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.0f} s"
    for unit, length in (("min", 60), ("h", 3_600), ("d", 86_400)):
        if seconds < 120 * length or unit == "d":
            return (
                f"{seconds / length:.0f} {unit}"
                if seconds >= 10 * length
                else f"{seconds / length:.1f} {unit}"
            )
        if unit == "h" and seconds < 48 * length:
            break
    return f"{seconds / 3_600:.0f} h"


def size(count: int | None) -> str:
    """A number of bytes, rounded."""
    if count is None:
        return "-"
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            return (
                f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
            )
        amount /= 1024
    return ""


def number(count: int | None) -> str:
    """A count, in groups of three digits."""
    return "-" if count is None else f"{count:,}"


def counted(count: int, noun: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def wrapped(text: str, indent: str = "") -> str:
    """Prose in lines that fit the terminal."""
    width = min(PROSE_COLUMNS, shutil.get_terminal_size((PROSE_COLUMNS, 24)).columns)
    return textwrap.fill(
        text, width, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False
    )


def connect(server: str, retries: int = RETRIES) -> Client:
    """A client for a service."""
    return Client(server, retries=retries)


def fetch(server: str, output: Format, request: HttpRequest) -> Any:
    """The answer of a service, for people; None once it was written as JSON."""
    with connect(server) as client:
        found = client.call(request)
    if output is Format.json:
        put_json(found)
        return None
    return found


def given(argument: str) -> str | bytes:
    """An argument as it was typed: text, or bytes that are not UTF-8."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return os.fsencode(argument)
    return argument


def worded(refused: Refused, *, by_delay: bool, repeat: str = "repeat") -> Refused:
    """The refusal with the names of options for those of fields.

    `by_delay`: the time was given by `--in`. `repeat`: the option by which a repetition was given.
    """
    if not refused.errors or any("index" in fault for fault in refused.errors):
        return refused
    names = {
        **OPTIONS,
        "deliver_at": "--in" if by_delay else "--at",
        "delay": "--in",
        "repeat": repeat,
    }
    lines = []
    for fault in refused.errors:
        field = str(fault.get("field", ""))
        lines.append(f"{names.get(field, field)}: {fault['detail']}")
    return Refused("\n".join(lines), refused.errors)
