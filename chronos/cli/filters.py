"""The options of a filter, shared by the verbs that concern many messages."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from chronos.client import FilterOptions

Target = Annotated[
    str | None, typer.Option("--target", "--to", metavar="TOPIC", help="Only messages for this target topic.")
]
DueFrom = Annotated[
    str | None,
    typer.Option(
        "--due-from", "--from", metavar="TIME",
        help="Only messages due at or after this time: RFC 3339, or -2h, now, +30m.",
    ),
]  # fmt: skip
DueTo = Annotated[
    str | None,
    typer.Option(
        "--due-to", "--until", metavar="TIME", help="Only messages due before this time; the same forms."
    ),
]  # fmt: skip
IdPrefix = Annotated[str | None, typer.Option("--id-prefix", metavar="TEXT", help="Only messages whose id begins so.")]
Key = Annotated[
    str | None, typer.Option("--key", metavar="KEY", help="Only messages that are delivered with this Kafka key.")
]
HasHeader = Annotated[
    list[str] | None,
    typer.Option(
        "--header", "-H", metavar="NAME=VALUE", help="Only messages with this header. May be repeated."
    ),
]  # fmt: skip


def filter_of(
    target: str | None,
    due_from: str | None,
    due_to: str | None,
    id_prefix: str | None,
    key: str | None,
    header: list[str] | None,
) -> "FilterOptions":
    """The filter of these options, empty without any; typer.BadParameter for a value that cannot be sent."""
    from chronos.cli.connect import given
    from chronos.cli.times import moment
    from chronos.client import requests

    found: FilterOptions = {
        "target": target,
        "due_from": moment(due_from, "--due-from"),
        "due_to": moment(due_to, "--due-to"),
        "id_prefix": None if id_prefix is None else given(id_prefix),
        "key": None if key is None else given(key),
        "headers": dict(_condition(text) for text in header or []) or None,
    }
    matching: FilterOptions = {name: value for name, value in found.items() if value is not None}  # type: ignore[assignment]
    try:
        requests.conditions(**matching)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return matching


def _condition(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise typer.BadParameter(f"--header: {text!r} is not NAME=VALUE")
    return name, value
