"""`chronos list`: pending messages, printed page by page as they arrive."""

import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from chronos.cli.connect import connect
from chronos.cli.output import Format, local, note, printable, relative, size
from chronos.client import Client, requests
from chronos.client.requests import FilterOptions

FIRST_PAGE = 100
"""Messages of the first page: the first lines come at once."""

HEADINGS = ("DUE", "", "TARGET", "ID", "SIZE", "REPEATS")


def list_(server: str, output: Format, matching: FilterOptions, limit: int) -> None:
    """At most `limit` pending messages; as JSON one object, that of the HTTP interface."""
    behind: list[int] = []
    with connect(server) as client:
        pages = _pages(client, matching, limit, behind)
        after = _print_json(pages) if output is Format.json else _print_table(pages)
    if behind:
        shards = ", ".join(map(str, behind))
        note(
            f"not applied in time: the log of shard {shards}; messages that were scheduled a moment ago may be missing. Repeat the"
            " command; if it persists, see `chronos status`"
        )
    if after is not None and output is Format.text:
        note(f"there may be more; show them with -n {limit * 10}")


def _pages(client: Client, matching: FilterOptions, limit: int, behind: list[int]) -> Iterator[dict[str, Any]]:
    """Pages that together hold at most `limit` messages; `behind` gets the shards that had not applied their log."""
    after: str | None = None
    page_messages, left = FIRST_PAGE, limit
    while left > 0:
        request = requests.page(**matching, limit=min(page_messages, left), after=after)
        found: dict[str, Any] = client.call(request.as_json())
        behind += found.get("behind", ())
        yield found
        after, left = found["after"], left - len(found["messages"])
        page_messages = requests.PAGE_MESSAGES
        if after is None:
            return


def _print_json(pages: Iterator[dict[str, Any]]) -> str | None:
    """`{"messages": [...], "after": ...}`, written as the pages arrive; the place behind the last page."""
    import json

    after, separator = None, ""
    sys.stdout.write('{"messages": [')
    for found in pages:
        after = found["after"]
        for one in found["messages"]:
            sys.stdout.write(separator + json.dumps(one, ensure_ascii=False))
            separator = ", "
    sys.stdout.write(f'], "after": {json.dumps(after)}}}\n')
    return after


def _print_table(pages: Iterator[dict[str, Any]]) -> str | None:
    """Columns as wide as the first page needs them; the place behind the last page."""
    after: str | None = None
    widths: list[int] = []
    for found in pages:
        after = found["after"]
        rows = [_row(one) for one in found["messages"]]
        if rows and not widths:
            widths = [max(len(row[at]) for row in [HEADINGS, *rows]) for at in range(len(HEADINGS))]
            print(_line(HEADINGS, widths))
        sys.stdout.write("".join(_line(row, widths) + "\n" for row in rows))
        sys.stdout.flush()
    if not widths:
        note("nothing is pending")
    return after


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    try:
        planned: datetime | str = datetime.fromisoformat(one["planned_at"])
    except ValueError:  # beyond the calendar
        planned = one["planned_at"]
    target = one["target"]["topic"] if one["target"] else "-"
    repeats = one["repetition"]["repeat"] if one.get("repetition") else ""
    return (
        local(planned), relative(planned), printable(target), printable(one["id"]), size(one["value_bytes"]),
        printable(repeats),
    )  # fmt: skip


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    due, wait, target, id, value, repeats = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
    return f"{due}  {wait.strip().rjust(widths[1])}  {target}  {id}  {value}  {repeats}".rstrip()
