"""`chronos list` and `chronos find`, which show messages, `find` also those in the archive; and
`chronos tail`, which shows the records of a topic."""

import base64
import os
import queue
import select
import shlex
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import typer

from chronos.cli.options import SparkOptions
from chronos.cli.output import (
    NOT_SHOWN,
    Format,
    OutputClosed,
    connect,
    given,
    local,
    note,
    printable,
    put_bytes,
    put_json,
    relative,
    size,
)
from chronos.client import Client, ClientError, NotFound, requests
from chronos.client.models import ListedState
from chronos.client.requests import FilterOptions, time_ms

FIRST_PAGE = 100
"""Messages of the first page: the first lines come at once."""

HEADINGS = ("DUE", "", "TARGET", "ID", "SIZE", "REPEATS")
HEADINGS_SETTLED = ("DUE", "", "TARGET", "ID", "SIZE", "STATE")


EVERY_STATE: tuple[ListedState, ...] = ("pending", "settled")

ARCHIVE_OPTIONS = {
    "target": "--target",
    "id_prefix": "--id-prefix",
    "due_from": "--from",
    "due_to": "--to",
}
"""Condition of a list -> the option of `chronos archive find`."""

WAIT = "20s"
"""Length of one poll."""

READ_TOGETHER = 500
"""Records of one answer."""

LOOK_AGAIN_S = 0.5
"""How often to look for a topic that does not exist yet."""

CLOSED_LOOK_S = 0.2
"""How often to check, while no record arrives, that stdout still has a reader."""

Arrival = list[dict[str, Any]] | ClientError


def list_(
    server: str, output: Format, matching: FilterOptions, limit: int, state: ListedState
) -> None:
    """At most `limit` messages; as JSON one object, that of the HTTP interface."""
    kept_from: list[str] = []
    behind: list[int] = []
    with connect(server) as client:
        pages = _pages(client, matching, limit, state, kept_from, behind)
        if output is Format.json:
            after = _print_json(pages, kept_from)
        else:
            after = _print_table(pages, state)
    _tell_behind(behind)
    if output is Format.json:
        return
    if after is not None:
        _tell_more(limit)
    elif kept_from:
        note(
            f"what ended before {local(kept_from[0])} is not kept; if there is an archive: "
            f"{_in_the_archive(matching)}"
        )


def _tell_behind(behind: list[int]) -> None:
    if behind:
        shards = ", ".join(map(str, behind))
        note(
            f"not applied in time: the log of shard {shards}; messages that were scheduled a "
            "moment ago may be missing. Repeat the command; if it persists, see `chronos status`"
        )


def _tell_more(limit: int) -> None:
    note(f"there may be more; show them with -n {limit * 10}")


def find(
    server: str,
    output: Format,
    id: str | None,
    matching: FilterOptions,
    limit: int,
    location: str | None,
) -> None:
    """Messages in any state: those that the service keeps, and from the archive those that it may
    not keep any more. Exit code 4 if there are none."""
    kept_from: list[str] = []
    behind: list[int] = []
    messages: list[dict[str, Any]] = []
    missing = ""
    """What the service does not have, for people; empty if it has everything."""
    with connect(server) as client:
        if id is not None:
            try:
                messages.append(client.call(requests.get(given(id)).as_json()))
            except NotFound as error:
                missing = str(error)
        else:
            for state in EVERY_STATE:
                left = limit - len(messages)
                for page in _pages(client, matching, left, state, kept_from, behind):
                    messages += page["messages"]
            if _may_be_older(matching, kept_from):
                missing = f"what ended before {local(kept_from[0])} is not kept"
    if output is Format.text and messages:
        _print_table(iter([{"messages": messages, "after": None}]), "settled")
    _tell_behind(behind)
    if id is None and len(messages) >= limit:
        _tell_more(limit)
    archived: dict[str, Any] | None = None
    if missing:
        archived = _from_archive(output, id, matching, missing, limit, location)
    if output is Format.json:
        put_json({"messages": messages, "archive": archived})
    if not messages and not (archived and archived["messages"]):
        note("no message was found")
        raise typer.Exit(4)


def _may_be_older(matching: FilterOptions, kept_from: list[str]) -> bool:
    """Whether the service may no longer keep some that match: a message ends after it was due."""
    start = matching.get("due_from")
    return bool(kept_from) and (start is None or time_ms(str(start)) < time_ms(kept_from[0]))


def _from_archive(
    output: Format,
    id: str | None,
    matching: FilterOptions,
    missing: str,
    limit: int,
    location: str | None,
) -> dict[str, Any] | None:
    """Return the messages in the archive, printed if the output is for people; None, with the
    reason printed, if the archive cannot be read."""
    if unknown := [name for name in matching if name not in {*ARCHIVE_OPTIONS, "headers"}]:
        note(f"{missing}, and the archive has no condition --{', --'.join(unknown)}")
        return None
    if location is None:
        note(f"{missing}; if there is an archive: {_in_the_archive(matching, id)}")
        return None
    note(f"{missing}; looking in the archive {printable(location)}")
    from chronos.cli.spark.archive import FindOptions, ask_archive, found_json, show_found

    target, prefix = matching.get("target"), matching.get("id_prefix")
    start, end = matching.get("due_from"), matching.get("due_to")
    wanted = FindOptions(
        ids=[] if id is None else [id],
        id_prefix="" if prefix is None else requests.id_text(prefix),
        targets=[] if target is None else [target],
        headers=[f"{name}={value}" for name, value in (matching.get("headers") or {}).items()],
        start=None if start is None else str(start),
        end=None if end is None else str(end),
    )
    found = ask_archive(SparkOptions(location=location, master="auto", conf=[]), wanted, limit)
    if output is Format.text:
        show_found(found)
    return found_json(found)


def _in_the_archive(matching: FilterOptions, id: str | None = None) -> str:
    """The command that looks for the same messages in the archive, as far as it has the same
    conditions. A key and `contains` are none of its own."""
    words = ["chronos", "archive", "find", *([] if id is None else [id])]
    if not os.environ.get("CHRONOS_ARCHIVE"):
        words += ["--location", "URI"]
    for name, option in ARCHIVE_OPTIONS.items():
        if (value := matching.get(name)) is not None:
            words += [option, requests.id_text(value) if isinstance(value, bytes) else str(value)]
    for name, value in (matching.get("headers") or {}).items():
        words += ["--header", f"{name}={value}"]
    return shlex.join(words)


def _pages(
    client: Client,
    matching: FilterOptions,
    limit: int,
    state: ListedState,
    kept_from: list[str],
    behind: list[int],
) -> Iterator[dict[str, Any]]:
    """Pages that together hold at most `limit` messages. `kept_from` gets the time before which
    none are kept, `behind` the shards that had not applied their log."""
    after: str | None = None
    page_messages, left = FIRST_PAGE, limit
    while left > 0:
        request = requests.page(
            **matching, state=state, limit=min(page_messages, left), after=after
        )
        found: dict[str, Any] = client.call(request.as_json())
        kept_from[:] = [found["kept_from"]] if "kept_from" in found else []
        behind += found.get("behind", ())
        yield found
        after, left = found["after"], left - len(found["messages"])
        page_messages = requests.PAGE_MESSAGES
        if after is None:
            return


def _print_json(pages: Iterator[dict[str, Any]], kept_from: list[str]) -> str | None:
    """`{"messages": [...], "after": ..., "kept_from": ...}`, written as the pages arrive; the place
    behind the last page. `kept_from` as `_pages` fills it, absent if nothing is missing."""
    import json

    after, separator = None, ""
    sys.stdout.write('{"messages": [')
    for found in pages:
        after = found["after"]
        for one in found["messages"]:
            sys.stdout.write(separator + json.dumps(one, ensure_ascii=False))
            separator = ", "
    rest = {"after": after, **({"kept_from": kept_from[0]} if kept_from else {})}
    sys.stdout.write(f"], {json.dumps(rest)[1:]}\n")
    return after


def _print_table(pages: Iterator[dict[str, Any]], state: ListedState) -> str | None:
    """Columns as wide as the first page needs them; the place behind the last page."""
    after: str | None = None
    headings = HEADINGS if state == "pending" else HEADINGS_SETTLED
    widths: list[int] = []
    for found in pages:
        after = found["after"]
        rows = [_row(one, state) for one in found["messages"]]
        if rows and not widths:
            widths = [max(len(row[at]) for row in [headings, *rows]) for at in range(len(headings))]
            print(_line(headings, widths))
        sys.stdout.write("".join(_line(row, widths) + "\n" for row in rows))
        sys.stdout.flush()
    if not widths:
        note("nothing is pending" if state == "pending" else f"no message is {state}")
    return after


def _row(one: dict[str, Any], listed: ListedState) -> tuple[str, ...]:
    """`listed`: of a list of pending messages, the last column is the rhythm of a series."""
    try:
        planned: datetime | str = datetime.fromisoformat(one["planned_at"])
    except ValueError:  # beyond the calendar
        planned = one["planned_at"]
    target = one["target"]["topic"] if one["target"] else "-"
    last = one["state"]
    if listed == "pending":
        last = one["repetition"]["repeat"] if one.get("repetition") else ""
        last += ", paused" if one.get("paused") else ""
    return (
        local(planned),
        relative(planned),
        printable(target),
        printable(one["id"]),
        size(one["value_bytes"]),
        printable(last),
    )


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    due, wait, target, id, value, last = (
        cell.ljust(width) for cell, width in zip(row, widths, strict=True)
    )
    return f"{due}  {wait.strip().rjust(widths[1])}  {target}  {id}  {value}  {last}".rstrip()


def follow(
    server: str,
    output: Format,
    topic: str,
    *,
    start: str,
    count: int | None,
    partition: int | None,
    headers: bool,
) -> None:
    """Print records until `count` are printed, stdout is closed, or Ctrl-C."""
    try:
        topic.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter(f"TOPIC: {printable(topic)} is not UTF-8") from None
    if start not in ("beginning", "end") and not start.isdecimal():
        raise typer.BadParameter(f"--from {start}: write beginning, end, or an offset")
    arrivals: queue.Queue[Arrival] = queue.Queue(maxsize=100)
    try:
        for number, offset in _begin(server, topic, start, partition):
            thread = threading.Thread(
                target=_read, args=(server, topic, number, offset, arrivals), daemon=True
            )
            thread.start()
        _print_all(arrivals, output, count, headers=headers)
    except KeyboardInterrupt:
        return


def _begin(server: str, topic: str, start: str, partition: int | None) -> list[tuple[int, int]]:
    """`(partition, offset)` to start from; waits for a topic that does not exist yet."""
    is_noted = False
    with connect(server) as client:
        while True:
            found = {
                each["topic"]: each["partitions"]
                for each in client.ask("/v1/topics", topic=topic)["topics"]
            }
            if topic in found:
                break
            if not is_noted:
                note(f"there is no topic {printable(topic)} yet; waiting for its first record")
            is_noted = True
            # All records of a topic that appears later are new.
            start = "beginning" if start == "end" else start
            time.sleep(LOOK_AGAIN_S)
            _check_reader()
    chosen = [each for each in found[topic] if partition is None or each["partition"] == partition]
    if not chosen:
        raise NotFound(f"{topic} has partitions 0 to {len(found[topic]) - 1}")
    if start.isdecimal():
        return [(each["partition"], int(start)) for each in chosen]
    return [
        (each["partition"], each["start" if start == "beginning" else "end"]) for each in chosen
    ]


def _read(
    server: str, topic: str, partition: int, offset: int, arrivals: "queue.Queue[Arrival]"
) -> None:
    with connect(server) as client:
        while True:
            try:
                found = client.records(
                    topic, partition=partition, offset=offset, limit=READ_TOGETHER, wait=WAIT
                )
            except ClientError as error:
                arrivals.put(error)
                return
            offset = found["next_offset"]
            if found["records"]:
                arrivals.put(found["records"])


def _print_all(
    arrivals: "queue.Queue[Arrival]", output: Format, count: int | None, *, headers: bool
) -> None:
    printed = 0
    while True:
        try:
            arrival = arrivals.get(timeout=CLOSED_LOOK_S)
        except queue.Empty:
            _check_reader()
            continue
        if isinstance(arrival, ClientError):
            raise arrival
        for record in arrival:
            if output is Format.json:
                put_json(record)
            else:
                _print(record, headers=headers)
            printed += 1
            if printed == count:
                return


def _check_reader() -> None:
    """OutputClosed if stdout is a pipe whose reader has closed it: `tail | head -1` then ends
    without a next record."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        raise OutputClosed


def _print(record: dict[str, Any], *, headers: bool) -> None:
    if headers:
        key = record["key"] if "key" in record else f"base64:{record['key_base64']}"
        key = "" if key is None else f"key={key} "
        shown = " ".join(
            f"{name}={content!r}" if not isinstance(content, str) else f"{name}={content}"
            for name, content in record.get("headers", {}).items()
        )
        print(
            f"[{record['partition']}:{record['offset']}] {local(record['timestamp'])} "
            f"{printable(key + shown)}"
        )
    _print_value(record)


def _print_value(record: dict[str, Any]) -> None:
    """The payload byte for byte, so that it can be piped; on a terminal with its control characters
    escaped."""
    if "value" not in record and "value_base64" not in record:
        # Nothing is written to a pipe that would read it as a payload.
        note(f"payload of offset {record['offset']} {NOT_SHOWN}")
        return
    value = record.get("value")
    data = (
        base64.b64decode(record["value_base64"])
        if "value_base64" in record
        else (value or "").encode()
    )
    if sys.stdout.isatty():
        print(
            printable(data.decode(errors="backslashreplace"))
            if value is not None or data
            else "(null)",
            flush=True,
        )
    else:
        put_bytes(data + b"\n")
