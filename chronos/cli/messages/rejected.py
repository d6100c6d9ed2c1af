"""`chronos rejected`: list, show, count."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import typer

from chronos.cli.messages.letters import header_facts, note_more, payload_facts, read_pages
from chronos.cli.options import header_condition, moment
from chronos.cli.output import (
    Format,
    connect,
    counted,
    given,
    local,
    note,
    number,
    printable,
    put,
    put_json,
    relative,
    table,
)
from chronos.client import Client, requests
from chronos.client.dead_letters import READ_S
from chronos.client.requests import id_path, id_text

FIELDS = {"reason": "reason", "target": "topic", "source": "source"}
"""What records are counted by, and the field of the answer."""


HEADER = "header:"
"""Before the name of a header in `--by`."""


def list_(server: str, output: Format, limit: int, **which: Any) -> None:
    """At most `limit` rejected records; as JSON one object, that of the HTTP interface."""
    query = _query(which)
    with connect(server) as client:

        def page(letters: int, after: str | None) -> dict[str, Any]:
            answer: dict[str, Any] = _ask(client, "/v1/rejected", query, limit=letters, after=after)
            return answer

        found, after, records = read_pages(page, "rejected", limit)
    if output is Format.json:
        put_json({"rejected": found, "after": after, "records": records})
        return
    if found:
        headings = ("REJECTED", "", "REASON", "TARGET", "ID", "SOURCE", "DETAIL")
        put(table([(heading, "left") for heading in headings], [_row(one) for one in found]))
    else:
        note(f"no rejected records; {counted(records, 'record')} of the topic read")
    note_more(after, limit)


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    return (
        local(one["rejected_at"]),
        relative(one["rejected_at"]),
        printable(one["reason"]),
        printable(one["topic"]) or "-",
        printable(one["id"]) or "-",
        printable(one["source"]),
        printable(one["detail"]),
    )


def show(server: str, output: Format, id: str) -> None:
    """The newest rejected record of an id."""
    with connect(server) as client:
        found = _ask(client, f"/v1/rejected/{id_path(given(id))}", {})
    if output is Format.json:
        put_json(found)
    else:
        put(table(None, list(_facts(found))))


def _facts(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "id", printable(found["id"]) or "-"
    yield "reason", printable(found["reason"])
    yield "detail", printable(found["detail"])
    yield "rejected", f"{local(found['rejected_at'])}  ({relative(found['rejected_at'])})"
    yield "target", printable(found["topic"]) or "-"
    yield from header_facts(found.get("headers", {}))
    yield "source", printable(found["source"])
    yield (
        "stored",
        f"partition {found['partition']}, offset {found['offset']} of the rejected topic",
    )
    yield from payload_facts(found["value_bytes"], found.get("value"), found.get("value_base64"))


def count(server: str, output: Format, by: str, **which: Any) -> None:
    """The number of rejected records by some fields, added up part by part."""
    names = by.split(",")
    headers = [name.removeprefix(HEADER) for name in names if name.startswith(HEADER)]
    fields = FIELDS | {f"{HEADER}{name}": "header" for name in headers}
    if not set(names) <= fields.keys() or len(set(names)) < len(names) or "" in headers:
        raise typer.BadParameter(
            f"--by {by}: write one or more of {', '.join(FIELDS)}, {HEADER}NAME, with commas "
            "between"
        )
    if len(headers) > 1:
        raise typer.BadParameter(f"--by {by}: write {HEADER}NAME once")
    query = _query(which) | ({"by_header": headers[0]} if headers else {})
    counts: Counter[tuple[str, ...]] = Counter()
    after, records = None, 0
    with connect(server) as client:
        while True:
            part = _ask(client, "/v1/rejected-counts", query, after=after)
            for one in part["counts"]:
                counts[tuple(one[fields[name]] for name in names)] += one["records"]
            after, records = part["after"], records + part["records"]
            if after is None:
                break
    if output is Format.json:
        rows = [
            dict(zip(names, case, strict=True)) | {"records": found}
            for case, found in counts.most_common()
        ]
        put_json({"counts": rows, "records": records})
    elif counts:
        columns = [(name.upper() if name in FIELDS else name, "left") for name in names] + [
            ("RECORDS", "right")
        ]
        shown = [
            (*(printable(value) or "-" for value in case), number(found))
            for case, found in counts.most_common()
        ]
        put(table(columns, shown))
    else:
        note(f"no rejected records; {counted(records, 'record')} of the topic read")


def _query(which: dict[str, Any]) -> dict[str, Any]:
    """The parameters of the options that were given."""
    found: dict[str, Any] = dict(which)
    for text in which["header"]:
        header_condition(text)
    if which.get("id") is not None:
        found["id"] = id_text(given(str(which["id"])))
    for name in ("since", "until"):
        found[name] = moment(which[name], f"--{name}")
    return {name: value for name, value in found.items() if value is not None and value != []}


def _ask(client: Client, path: str, query: dict[str, Any], **more: Any) -> Any:
    """The answer to one GET, which reads for some seconds."""
    asked = query | {name: value for name, value in more.items() if value is not None}
    return client.call(msgspec.structs.replace(requests.ask(path, asked), wait_s=READ_S))
