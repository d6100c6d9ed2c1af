"""The verbs of `chronos dead-letters`, their options and their help. `app` adds them to the command line."""

from typing import Annotated

import typer

from chronos.cli.options import HERE, Authorities, Cert, CertKey, MessageId, Output, Server, TokenFile, at_least
from chronos.cli.output import Format

Target = Annotated[
    str | None,
    typer.Option("--target", metavar="TOPIC", help="Only messages for this topic, or for a pattern such as 'mail*'."),
]
ReasonOption = Annotated[
    str | None, typer.Option("--reason", metavar="REASON", help="Only those with this reason, such as target-missing.")
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only those written at or after this time: RFC 3339, or -2h, now."),
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Only those written before this time; the same forms.")
]
OneId = Annotated[
    str | None,
    typer.Argument(metavar="ID", help="The id of a message: its newest dead letter. Or give a filter, or --all."),
]
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
    """,
)


@dead_letters_app.command(name="list")
def list_letters(
    target: Target = None,
    reason: ReasonOption = None,
    since: Since = None,
    until: Until = None,
    resolved: Annotated[bool, typer.Option("--resolved", help="Also those that were replayed or discarded.")] = False,
    limit: Annotated[
        int, typer.Option("-n", "--limit", callback=at_least(1), metavar="N", help="Show at most N dead letters.")
    ] = 50,
    output: Output = Format.text,
    server: Server = HERE,
    token_file: TokenFile = None,
    cert: Cert = None,
    cert_key: CertKey = None,
    ca: Authorities = None,
) -> None:
    """List dead letters, the newest first.

    \b
    Examples:
      chronos dead-letters list
      chronos dead-letters list --target orders --since -2h
      chronos dead-letters list --reason expired -n 500 -o json
    """
    from chronos.cli.dead_letters import list_

    list_(server, output, target=target, reason=reason, since=since, until=until, resolved=resolved, limit=limit)


@dead_letters_app.command(name="show")
def show_letter(
    id: MessageId,
    output: Output = Format.text,
    server: Server = HERE,
    token_file: TokenFile = None,
    cert: Cert = None,
    cert_key: CertKey = None,
    ca: Authorities = None,
) -> None:
    """Show the newest dead letter of a message, with its payload. Exit code 4 if there is none.

    \b
    Examples:
      chronos dead-letters show reminder-17
    """
    from chronos.cli.dead_letters import show

    show(server, output, id)


@dead_letters_app.command(name="replay")
def replay_letters(
    id: OneId = None,
    target: Target = None,
    reason: ReasonOption = None,
    since: Since = None,
    until: Until = None,
    all_: All = False,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="N", help="At most N dead letters a second.", min=0.1)
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Replay also those whose cause is still there: they will die again.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Format.text,
    server: Server = HERE,
    token_file: TokenFile = None,
    cert: Cert = None,
    cert_key: CertKey = None,
    ca: Authorities = None,
) -> None:
    """Schedule dead letters again, due at once, the oldest first. Correct the cause before.

    Those whose cause is still there, because the target is missing or forbidden, or takes neither their size nor a message without a
    key, are named and left as they are. Counts all first and asks. A replayed message keeps its id, target and headers, and has the header chronos-replayed.
    A command that was stopped or killed can be repeated: nothing is delivered twice. Exit code 4 if no dead letter has the id,
    1 if some cannot be replayed.

    \b
    Examples:
      chronos dead-letters replay reminder-17
      chronos dead-letters replay --target orders --reason target-missing --dry-run
      chronos dead-letters replay --target orders --since -2h --rate 500 --yes
      chronos dead-letters replay --all
    """
    from chronos.cli.dead_letters import resolve

    resolve(
        server, output, "replay", id=id, target=target, reason=reason, since=since, until=until, all=all_, rate=rate,
        dry_run=dry_run, yes=yes, anyway=anyway,
    )  # fmt: skip


@dead_letters_app.command(name="discard")
def discard_letters(
    id: OneId = None,
    target: Target = None,
    reason: ReasonOption = None,
    since: Since = None,
    until: Until = None,
    all_: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Format.text,
    server: Server = HERE,
    token_file: TokenFile = None,
    cert: Cert = None,
    cert_key: CertKey = None,
    ca: Authorities = None,
) -> None:
    """Mark dead letters as discarded: they are no longer listed or replayed. Counts them first and asks.

    \b
    Examples:
      chronos dead-letters discard reminder-17
      chronos dead-letters discard --reason expired --until -7d --yes
    """
    from chronos.cli.dead_letters import resolve

    resolve(
        server, output, "discard", id=id, target=target, reason=reason, since=since, until=until, all=all_, rate=None,
        dry_run=dry_run, yes=yes,
    )  # fmt: skip
