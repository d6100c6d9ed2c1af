"""`chronos rejected`: list, show and count the records of the rejected topic, with their options
and help.

The verbs change nothing: a rejected record was never a message, so that there is nothing to replay.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import typer

from chronos.cli.messages.dead_letters import (
    ReasonOption,
    Since,
    Until,
    header_facts,
    note_more,
    payload_facts,
    read_pages,
)
from chronos.cli.options import (
    HERE,
    MessageId,
    Output,
    Server,
    at_least,
    header_condition,
    moment,
    with_connection,
)
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

NamedTarget = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="TOPIC",
        help="Only records that name this target topic, or one that a pattern such as 'mail*' "
        "matches.",
    ),
]
SentHeader = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        "-H",
        metavar="NAME=VALUE",
        help="Only records with this header, such as one that names the producer. May be repeated.",
    ),
]
Source = Annotated[
    str | None,
    typer.Option(
        "--source",
        metavar="TOPIC/PARTITION[/OFFSET]",
        help="Only records from this partition or position of the delay topic.",
    ),
]

rejected_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""List, show or count the records that were refused when they were read.

    A rejected record was never a message: correct it and send it again.

    \b
    Examples:
      chronos rejected list --since -1h
      chronos rejected count --by reason,target
    """,
)


@rejected_app.command(name="list")
@with_connection
def list_rejected(
    id: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="ID",
            help="Only records with this key, or the one with this generated id.",
        ),
    ] = None,
    target: NamedTarget = None,
    reason: ReasonOption = None,
    source: Source = None,
    header: SentHeader = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[
        int,
        typer.Option(
            "-n", "--limit", callback=at_least(1), metavar="N", help="Show at most N records."
        ),
    ] = 50,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """List rejected records, the newest first.

    \b
    Examples:
      chronos rejected list
      chronos rejected list --reason conflict --since -2h
      chronos rejected list --source chronos.delay/3 -n 500 -o json
      chronos rejected list --header app=shop
    """
    query = _query(
        target=target, reason=reason, source=source, header=header, since=since, until=until, id=id
    )
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


@rejected_app.command(name="show")
@with_connection
def show_rejected(
    id: MessageId,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Show the newest rejected record of an id, with headers and payload. Exit code 4 if there is
    none.

    ID is the record's key; for a record without a key, the generated id, or the position in the
    delay topic that `list` shows.

    \b
    Examples:
      chronos rejected show reminder-17
      chronos rejected show chronos.delay/3/4711
    """
    with connect(server) as client:
        found = _ask(client, f"/v1/rejected/{id_path(given(id))}", {})
    if output is Format.json:
        put_json(found)
    else:
        put(table(None, list(_facts(found))))


@rejected_app.command(name="count")
@with_connection
def count_rejected(
    by: Annotated[
        str,
        typer.Option(
            "--by",
            metavar="FIELDS",
            help="One or more of reason, target, source, and header:NAME for the values of a "
            "header, with commas between.",
            show_default=True,
        ),
    ] = "reason,target",
    target: NamedTarget = None,
    reason: ReasonOption = None,
    source: Source = None,
    header: SentHeader = None,
    since: Since = None,
    until: Until = None,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Count rejected records by reason, target, partition of the delay topic, or the value of a
    header, the greatest number first.

    \b
    Examples:
      chronos rejected count
      chronos rejected count --by source,reason --since -1d
      chronos rejected count --by header:app,reason
    """
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
    query = _query(
        target=target, reason=reason, source=source, header=header, since=since, until=until
    ) | ({"by_header": headers[0]} if headers else {})
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


def _query(**which: Any) -> dict[str, Any]:
    """The parameters of the options that were given."""
    found = dict(which)
    for text in which["header"] or []:
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
