"""The verbs of `chronos dead-letters` and `chronos rejected`, their options and their help. `app`
adds them.

`app` adds them to the command line.

`app` adds them to the command line.
"""

from typing import Annotated

import typer

from chronos.cli.options import HERE, MessageId, Output, Server, at_least, with_connection
from chronos.cli.output import Format

Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="TOPIC",
        help="Only messages for this topic, or for a pattern such as 'mail*'.",
    ),
]
ReasonOption = Annotated[
    str | None,
    typer.Option(
        "--reason", metavar="REASON", help="Only those with this reason, such as target-missing."
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="Only those written at or after this time: RFC 3339, or -2h, now.",
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        "--until", metavar="TIME", help="Only those written before this time; the same forms."
    ),
]
OneId = Annotated[
    str | None,
    typer.Argument(metavar="ID", help="The id of a message: its newest dead letter."),
]
POSITION = typer.Option(
    "--position",
    metavar="PARTITION:OFFSET",
    help="The dead letter at this position, as `list` shows it: an id may have several.",
)
OnePosition = Annotated[str | None, POSITION]
Positions = Annotated[list[str] | None, POSITION]
All = Annotated[bool, typer.Option("--all", help="All dead letters that are not resolved.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count them, by reason and target.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

dead_letters_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""List, show, replay or discard the messages that could not be delivered.

    A dead letter is resolved once it was replayed or discarded. Its record stays in the dead-letter topic.

    \b
    Examples:
      chronos dead-letters list
      chronos dead-letters replay --target orders --reason target-missing --dry-run
    """,  # noqa: E501
)


@dead_letters_app.command(name="list")
@with_connection
def list_letters(
    target: Target = None,
    reason: ReasonOption = None,
    since: Since = None,
    until: Until = None,
    resolved: Annotated[
        bool, typer.Option("--resolved", help="Also those that were replayed or discarded.")
    ] = False,
    limit: Annotated[
        int,
        typer.Option(
            "-n", "--limit", callback=at_least(1), metavar="N", help="Show at most N dead letters."
        ),
    ] = 50,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """List dead letters, the newest first.

    \b
    Examples:
      chronos dead-letters list
      chronos dead-letters list --target orders --since -2h
      chronos dead-letters list --reason expired -n 500 -o json
    """
    from chronos.cli.messages.letters import list_

    list_(
        server,
        output,
        target=target,
        reason=reason,
        since=since,
        until=until,
        resolved=resolved,
        limit=limit,
    )


@dead_letters_app.command(name="show")
@with_connection
def show_letter(
    id: OneId = None,
    position: OnePosition = None,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Show the newest dead letter of a message, or the one at a position, with its payload. Exit
    code 4 if there is none.

    \b
    Examples:
      chronos dead-letters show reminder-17
      chronos dead-letters show --position 0:4711
    """
    from chronos.cli.messages.letters import show

    show(server, output, id, position)


@dead_letters_app.command(name="replay")
@with_connection
def replay_letters(
    id: OneId = None,
    position: Positions = None,
    target: Target = None,
    reason: ReasonOption = None,
    since: Since = None,
    until: Until = None,
    all_: All = False,
    rate: Annotated[
        float | None,
        typer.Option("--rate", metavar="N", help="At most N dead letters a second.", min=0.1),
    ] = None,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway",
            help="Replay also those whose cause is still there: they will fail again. Not those "
            "that targets.allow and targets.deny forbid: Chronos would refuse their records.",
        ),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Schedule dead letters again, due at once, the oldest first. Correct the cause before.

    Those whose cause is still there, because the target is missing or forbidden, or takes neither
    their size nor a message without a key, are named and left as they are. Counts all first and
    asks. A replayed message keeps its id, target and headers, and has the header chronos-replayed.
    A command that was stopped or killed can be repeated: nothing is delivered twice. Exit code 4 if
    no dead letter has the id or the position, 1 if some cannot be replayed.

    \b
    Examples:
      chronos dead-letters replay reminder-17
      chronos dead-letters replay --position 0:4711 --position 2:17
      chronos dead-letters replay --target orders --reason target-missing --dry-run
      chronos dead-letters replay --target orders --since -2h --rate 500 --yes
      chronos dead-letters replay --all
    """
    from chronos.cli.messages.letters import resolve

    resolve(
        server,
        output,
        "replay",
        id=id,
        positions=position or [],
        target=target,
        reason=reason,
        since=since,
        until=until,
        all=all_,
        rate=rate,
        dry_run=dry_run,
        yes=yes,
        anyway=anyway,
    )


@dead_letters_app.command(name="discard")
@with_connection
def discard_letters(
    id: OneId = None,
    position: Positions = None,
    target: Target = None,
    reason: ReasonOption = None,
    since: Since = None,
    until: Until = None,
    all_: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Mark dead letters as discarded: they are no longer listed or replayed. Counts them first and
    asks.

    \b
    Examples:
      chronos dead-letters discard reminder-17
      chronos dead-letters discard --position 0:4711
      chronos dead-letters discard --reason expired --until -7d --yes
    """
    from chronos.cli.messages.letters import resolve

    resolve(
        server,
        output,
        "discard",
        id=id,
        positions=position or [],
        target=target,
        reason=reason,
        since=since,
        until=until,
        all=all_,
        rate=None,
        dry_run=dry_run,
        yes=yes,
    )


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
    from chronos.cli.messages.rejected import list_

    list_(
        server,
        output,
        limit,
        id=id,
        target=target,
        reason=reason,
        source=source,
        header=header or [],
        since=since,
        until=until,
    )


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
    from chronos.cli.messages.rejected import show

    show(server, output, id)


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
    from chronos.cli.messages.rejected import count

    count(
        server,
        output,
        by,
        target=target,
        reason=reason,
        source=source,
        header=header or [],
        since=since,
        until=until,
    )
