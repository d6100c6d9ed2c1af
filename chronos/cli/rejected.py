"""`chronos rejected`: list, show, count."""

import base64
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import typer

from chronos.cli.connect import connect, given
from chronos.cli.output import (
    NOT_SHOWN,
    Format,
    counted,
    local,
    note,
    number,
    printable,
    put,
    put_json,
    relative,
    size,
    table,
)
from chronos.cli.times import moment
from chronos.client import Client, requests
from chronos.client.dead_letters import PAGE_LETTERS, READ_S
from chronos.client.requests import id_path, id_text

SHOWN_CHARACTERS = 1_000
"""Characters of a payload that are shown."""

FIELDS = {"reason": "reason", "target": "topic", "source": "source"}
"""What records are counted by, and the field of the answer."""


def list_(server: str, output: Format, limit: int, **which: str | None) -> None:
    """At most `limit` rejected records; as JSON one object, that of the HTTP interface."""
    query = _query(which)
    found: list[dict[str, Any]] = []
    after, records = None, 0
    with connect(server) as client:
        while len(found) < limit:
            page = _ask(client, "/v1/rejected", query, limit=min(PAGE_LETTERS, limit - len(found)), after=after)
            found += page["rejected"]
            after, records = page["after"], records + page["records"]
            if after is None:
                break
    if output is Format.json:
        put_json({"rejected": found, "after": after, "records": records})
        return
    if found:
        headings = ("REJECTED", "", "REASON", "TARGET", "ID", "SOURCE", "DETAIL")
        put(table([(heading, "left") for heading in headings], [_row(one) for one in found]))
    else:
        note(f"no rejected records; {counted(records, 'record')} of the topic read")
    if after is not None:
        note(f"there may be more; show them with -n {limit * 10}, or --until the time of the last one")


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    return (
        local(one["rejected_at"]), relative(one["rejected_at"]), printable(one["reason"]), printable(one["topic"]) or "-",
        printable(one["id"]) or "-", printable(one["source"]), printable(one["detail"]),
    )  # fmt: skip


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
    for name, content in found.get("headers", {}).items():
        for one in content if isinstance(content, list) else [content]:
            yield "header", printable(f"{name}={one if isinstance(one, str) else repr(one)}")
    yield "source", printable(found["source"])
    yield "stored", f"partition {found['partition']}, offset {found['offset']} of the rejected topic"
    yield "payload", "null" if found["value_bytes"] is None else size(found["value_bytes"])
    if found["value_bytes"]:
        value = str(base64.b64decode(found["value_base64"])) if "value_base64" in found else found.get("value")
        yield "", NOT_SHOWN if value is None else printable(value[:SHOWN_CHARACTERS])


def count(server: str, output: Format, by: str, **which: str | None) -> None:
    """The number of rejected records by some fields, added up part by part."""
    names = by.split(",")
    if not set(names) <= FIELDS.keys() or len(set(names)) < len(names):
        raise typer.BadParameter(f"--by {by}: write one or more of {', '.join(FIELDS)}, with commas between")
    query = _query(which)
    counts: Counter[tuple[str, ...]] = Counter()
    after, records = None, 0
    with connect(server) as client:
        while True:
            part = _ask(client, "/v1/rejected-counts", query, after=after)
            for one in part["counts"]:
                counts[tuple(one[FIELDS[name]] for name in names)] += one["records"]
            after, records = part["after"], records + part["records"]
            if after is None:
                break
    if output is Format.json:
        rows = [dict(zip(names, case, strict=True)) | {"records": found} for case, found in counts.most_common()]
        put_json({"counts": rows, "records": records})
    elif counts:
        columns = [(name.upper(), "left") for name in names] + [("RECORDS", "right")]
        shown = [(*(printable(value) or "-" for value in case), number(found)) for case, found in counts.most_common()]
        put(table(columns, shown))
    else:
        note(f"no rejected records; {counted(records, 'record')} of the topic read")


def _query(which: dict[str, str | None]) -> dict[str, Any]:
    """The parameters of the options that were given."""
    found: dict[str, Any] = dict(which)
    if which.get("id") is not None:
        found["id"] = id_text(given(str(which["id"])))
    for name in ("since", "until"):
        found[name] = moment(which[name], f"--{name}")
    return {name: value for name, value in found.items() if value is not None}


def _ask(client: Client, path: str, query: dict[str, Any], **more: Any) -> Any:
    """The answer to one GET, which reads for some seconds."""
    asked = query | {name: value for name, value in more.items() if value is not None}
    return client.call(msgspec.structs.replace(requests.ask(path, asked), wait_s=READ_S))
