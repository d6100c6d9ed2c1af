"""What goes to the terminal: tables for people, JSON for programs, complaints to stderr."""

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

WIDE = 10_000
"""Columns of an output that is no terminal: nothing is cut off there."""


class Format(StrEnum):
    """`-o`."""

    text = "text"
    json = "json"


def complain(text: str) -> None:
    """An error, for people, on stderr."""
    lines = text.splitlines() or [""]
    head = "\033[31merror:\033[0m" if sys.stderr.isatty() else "error:"
    print(head, lines[0], file=sys.stderr)
    for line in lines[1:]:
        print("      ", line, file=sys.stderr)


def note(text: str) -> None:
    """Something worth knowing that is no result, on stderr."""
    print(text, file=sys.stderr, flush=True)


def put_json(value: Any) -> None:
    """One line of JSON."""
    print(json.dumps(msgspec.to_builtins(value), ensure_ascii=False), flush=True)


def console() -> "Console":
    """Where tables go; wide enough for everything when it is no terminal."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDE, soft_wrap=not sys.stdout.isatty())


def put(what: "RenderableType") -> None:
    """Something of rich's."""
    console().print(what)


def table(columns: Sequence[tuple[str, str]] | None, rows: Sequence[Sequence[str]]) -> Any:
    """A table without lines; a column is `(heading, "left" or "right")`. Without columns: names and values."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0), show_header=columns is not None)
    for heading, justify in columns or [("", "left"), ("", "left")]:
        made.add_column(heading, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))
    return made


def local(moment: datetime | str | None) -> str:
    """A time in this machine's zone."""
    found = parsed(moment)
    if found is None:
        return str(moment) if moment else "-"
    return found.astimezone().isoformat(sep=" ", timespec="milliseconds")


def parsed(moment: datetime | str | None) -> datetime | None:
    """A time as the API writes it; None for one beyond the calendar."""
    if isinstance(moment, str):
        try:
            return datetime.fromisoformat(moment)
        except ValueError:
            return None
    return moment


def relative(moment: datetime | str | None) -> str:
    """`in 5 s`, `3 min ago`."""
    found = parsed(moment)
    if found is None:
        return "-"
    seconds = (found - datetime.now(UTC)).total_seconds()
    text = span(abs(seconds))
    return f"in {text}" if seconds >= 0 else f"{text} ago"


def span(seconds: float) -> str:
    """A length of time, roughly."""
    if seconds < 1:
        return f"{seconds * 1_000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.0f} s"
    for unit, length in (("min", 60), ("h", 3_600), ("d", 86_400)):
        if seconds < 120 * length or unit == "d":
            return f"{seconds / length:.0f} {unit}" if seconds >= 10 * length else f"{seconds / length:.1f} {unit}"
        if unit == "h" and seconds < 48 * length:
            break
    return f"{seconds / 3_600:.0f} h"


def size(count: int | None) -> str:
    """Bytes, for people."""
    if count is None:
        return "-"
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1024
    return ""


def number(count: int | None) -> str:
    """A count, in groups of three."""
    return "-" if count is None else f"{count:,}"


def printable(text: str) -> str:
    """Text that cannot play tricks on a terminal."""
    return "".join(char if char.isprintable() or char in "\t" else repr(char)[1:-1] for char in text)
