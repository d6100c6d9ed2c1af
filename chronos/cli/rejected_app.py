"""The verbs of `chronos rejected`, their options and their help. `app` adds them to the command line."""

from typing import Annotated

import typer

from chronos.cli.dead_letters_app import ReasonOption, Since, Until
from chronos.cli.options import HERE, Authorities, Cert, CertKey, MessageId, Output, Server, TokenFile, at_least
from chronos.cli.output import Format

Target = Annotated[
    str | None, typer.Option("--target", metavar="TOPIC", help="Only records that name this target topic.")
]
Source = Annotated[
    str | None,
    typer.Option(
        "--source", metavar="TOPIC/PARTITION[/OFFSET]", help="Only records from this partition or position of the delay topic."
    ),
]  # fmt: skip

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
def list_rejected(
    id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="Only records with this key, or the one with this generated id."),
    ] = None,
    target: Target = None,
    reason: ReasonOption = None,
    source: Source = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[
        int, typer.Option("-n", "--limit", callback=at_least(1), metavar="N", help="Show at most N records.")
    ] = 50,
    output: Output = Format.text,
    server: Server = HERE,
    token_file: TokenFile = None,
    cert: Cert = None,
    cert_key: CertKey = None,
    ca: Authorities = None,
) -> None:
    """List rejected records, the newest first.

    \b
    Examples:
      chronos rejected list
      chronos rejected list --reason conflict --since -2h
      chronos rejected list --source chronos.delay/3 -n 500 -o json
    """
    from chronos.cli.rejected import list_

    list_(server, output, limit, id=id, target=target, reason=reason, source=source, since=since, until=until)


@rejected_app.command(name="show")
def show_rejected(
    id: MessageId,
    output: Output = Format.text,
    server: Server = HERE,
    token_file: TokenFile = None,
    cert: Cert = None,
    cert_key: CertKey = None,
    ca: Authorities = None,
) -> None:
    """Show the newest rejected record of an id, with headers and payload. Exit code 4 if there is none.

    ID is the record's key; for a record without a key, the generated id, or the position in the delay topic that `list` shows.

    \b
    Examples:
      chronos rejected show reminder-17
      chronos rejected show chronos.delay/3/4711
    """
    from chronos.cli.rejected import show

    show(server, output, id)


@rejected_app.command(name="count")
def count_rejected(
    by: Annotated[
        str,
        typer.Option("--by", metavar="FIELDS", help="One or more of reason, target and source, with commas between.",
                     show_default=True),
    ] = "reason,target",
    target: Target = None,
    reason: ReasonOption = None,
    source: Source = None,
    since: Since = None,
    until: Until = None,
    output: Output = Format.text,
    server: Server = HERE,
    token_file: TokenFile = None,
    cert: Cert = None,
    cert_key: CertKey = None,
    ca: Authorities = None,
) -> None:  # fmt: skip
    """Count rejected records by reason, target and partition of the delay topic, the greatest number first.

    \b
    Examples:
      chronos rejected count
      chronos rejected count --by source,reason --since -1d
    """
    from chronos.cli.rejected import count

    count(server, output, by, target=target, reason=reason, source=source, since=since, until=until)
