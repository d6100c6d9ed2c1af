"""`chronos list`: messages, printed page by page as they arrive."""

import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from chronos.cli.connect import connect
from chronos.cli.output import Format, local, note, printable, relative, size
from chronos.client import Client, requests
from chronos.client.models import ListedState
from chronos.client.requests import FilterOptions

FIRST_PAGE = 100
"""Messages of the first page: the first lines come at once."""

HEADINGS = ("DUE", "", "TARGET", "ID", "SIZE", "REPEATS")
HEADINGS_SETTLED = ("DUE", "", "TARGET", "ID", "SIZE", "STATE")


def list_(server: str, output: Format, matching: FilterOptions, limit: int, state: ListedState) -> None:
    """At most `limit` messages; as JSON one object, that of the HTTP interface."""
    kept_from: list[str] = []
    behind: list[int] = []
    with connect(server) as client:
        pages = _pages(client, matching, limit, state, kept_from, behind)
        after = _print_json(pages) if output is Format.json else _print_table(pages, state)
    if behind:
        shards = ", ".join(map(str, behind))
        note(
            f"not applied in time: the log of shard {shards}; messages that were scheduled a moment ago may be missing. Repeat the"
            " command; if it persists, see `chronos status`"
        )
    if output is Format.json:
        return
    if after is not None:
        note(f"there may be more; show them with -n {limit * 10}")
    elif kept_from:
        note(
            f"what ended before {local(kept_from[0])} is not kept: `chronos archive find` looks in the archive, if there is one"
        )


def _pages(
    client: Client,
    matching: FilterOptions,
    limit: int,
    state: ListedState,
    kept_from: list[str],
    behind: list[int],
) -> Iterator[dict[str, Any]]:
    """Pages that together hold at most `limit` messages. `kept_from` gets the time before which none are kept, `behind` the shards that
    had not applied their log."""
    after: str | None = None
    page_messages, left = FIRST_PAGE, limit
    while left > 0:
        request = requests.page(**matching, state=state, limit=min(page_messages, left), after=after)
        found: dict[str, Any] = client.call(request.as_json())
        kept_from[:] = [found["kept_from"]] if "kept_from" in found else []
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


def _print_table(pages: Iterator[dict[str, Any]], state: ListedState) -> str | None:
    """Columns as wide as the first page needs them; the place behind the last page."""
    after: str | None = None
    headings = HEADINGS if state == "pending" else HEADINGS_SETTLED
    widths: list[int] = []
    for found in pages:
        after = found["after"]
        rows = [_row(one) for one in found["messages"]]
        if rows and not widths:
            widths = [max(len(row[at]) for row in [headings, *rows]) for at in range(len(headings))]
            print(_line(headings, widths))
        sys.stdout.write("".join(_line(row, widths) + "\n" for row in rows))
        sys.stdout.flush()
    if not widths:
        note("nothing is pending" if state == "pending" else f"no message is {state}")
    return after


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    try:
        planned: datetime | str = datetime.fromisoformat(one["planned_at"])
    except ValueError:  # beyond the calendar
        planned = one["planned_at"]
    target = one["target"]["topic"] if one["target"] else "-"
    last = one["state"]
    if last == "pending":
        last = one["repetition"]["repeat"] if one.get("repetition") else ""
    return (
        local(planned), relative(planned), printable(target), printable(one["id"]), size(one["value_bytes"]),
        printable(last),
    )  # fmt: skip


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    due, wait, target, id, value, last = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
    return f"{due}  {wait.strip().rjust(widths[1])}  {target}  {id}  {value}  {last}".rstrip()
