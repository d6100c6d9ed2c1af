"""The verbs that change pending messages, one by its id or many by a filter, and `chronos jobs`:
their options and their help.

One message is changed in `verbs`, many in `bulk`."""

from typing import TYPE_CHECKING, Annotated

import typer

from chronos.cli.options import (
    HERE,
    At,
    ChangeOptions,
    In,
    Output,
    Server,
    moment,
    with_connection,
    with_filter,
    with_filter_of_series,
)
from chronos.cli.output import Format

if TYPE_CHECKING:
    from chronos.client import FilterOptions

OneId = Annotated[
    str | None,
    typer.Argument(
        metavar="ID",
        help=(
            "The id; bytes that are not UTF-8 as base64:.... Without it: all messages of the "
            "filter."
        ),
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Count the messages of the filter by target, and change nothing."
    ),
]
Yes = Annotated[
    bool,
    typer.Option("--yes", "-y", help="Change the messages of the filter without asking."),
]


@with_connection
@with_filter
def cancel(
    id: OneId = None,
    *,
    matching: "FilterOptions",
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Cancel a message, or all pending messages of a filter.

    One message: exit code 1 when it is too late, or not applied within 5 s; 4 when no message has
    the id.

    With a filter: a job on the node asked. The command counts the messages, asks, and shows the
    progress; Ctrl-C stops the job. Exit code 1 when the job failed or was stopped, or an action was
    refused; 3 when the node no longer answers. What was written stays, and the command can be
    repeated for the rest.

    \b
    Examples:
      chronos cancel reminder-17
      chronos cancel --target reminders --header tenant=17 --dry-run
      chronos cancel --id-prefix order-17- --due-to +2h --yes
    """
    _change(server, output, ChangeOptions("cancel"), id, matching, dry_run=dry_run, yes=yes)


@with_connection
@with_filter
def reschedule(
    id: OneId = None,
    in_: In = None,
    at: At = None,
    *,
    matching: "FilterOptions",
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Give a pending message a new time, or all pending messages of a filter.

    The exit codes, and the job with a filter, are those of `chronos cancel`.

    \b
    Examples:
      chronos reschedule reminder-17 --in 2h
      chronos reschedule --target reminders --due-to now --in 10m --yes
    """
    change = ChangeOptions("reschedule", delay=in_, at=at)
    _change(server, output, change, id, matching, dry_run=dry_run, yes=yes)


@with_connection
@with_filter
def fire(
    id: OneId = None,
    *,
    matching: "FilterOptions",
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Deliver a pending message now, or all pending messages of a filter.

    The exit codes, and the job with a filter, are those of `chronos cancel`.

    \b
    Examples:
      chronos fire reminder-17
      chronos fire --target reminders --due-to +1h --dry-run
    """
    _change(server, output, ChangeOptions("fire"), id, matching, dry_run=dry_run, yes=yes)


@with_connection
@with_filter_of_series
def pause(
    id: OneId = None,
    resume_at: Annotated[
        str | None,
        typer.Option(
            "--resume-at",
            "--until",
            metavar="TIME",
            help=(
                "Go on with the first time from then on: RFC 3339 with an offset, or +2h for two "
                "hours from now. Without it: once it is resumed."
            ),
        ),
    ] = None,
    *,
    matching: "FilterOptions",
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Pause a series, or all series of a filter: leave out their occurrences until they are
    resumed, or until a time.

    A series that is never resumed goes on after limits.max_delay, which is ten years; one that is
    fired or rescheduled goes on from there. The exit codes, and the job with a filter, are those of
    `chronos cancel`.

    \b
    Examples:
      chronos pause daily-report
      chronos pause daily-report --resume-at 2030-01-31T00:00:00+01:00
      chronos pause --target polls --resume-at +2h --yes
      chronos pause --series
    """
    until = moment(resume_at, "--resume-at")
    change = ChangeOptions("pause", until=until)
    _change(server, output, change, id, matching, dry_run=dry_run, yes=yes)


@with_connection
@with_filter_of_series
def resume(
    id: OneId = None,
    *,
    matching: "FilterOptions",
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Let a paused series, or all paused series of a filter, go on with the next time of their
    rhythm.

    A series that is not paused stays as it is. The exit codes, and the job with a filter, are those
    of `chronos cancel`.

    \b
    Examples:
      chronos resume daily-report
      chronos resume --target polls --yes
    """
    _change(server, output, ChangeOptions("resume"), id, matching, dry_run=dry_run, yes=yes)


@with_connection
def jobs(
    id: Annotated[str | None, typer.Argument(metavar="ID", help="Show this job only.")] = None,
    stop: Annotated[
        bool, typer.Option("--stop", help="Stop the job: it writes nothing more.")
    ] = False,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Show the bulk operations of a node, or one of them, or stop one. Exit code 4 if the node has
    no such job.

    A node keeps its last 100 jobs in memory, until it stops.

    \b
    Examples:
      chronos jobs
      chronos jobs 5f0c9a31b2d4
      chronos jobs 5f0c9a31b2d4 --stop
    """
    from chronos.cli.messages import bulk

    if stop and id is None:
        raise typer.BadParameter("--stop needs the id of a job; `chronos jobs` lists them")
    bulk.show(server, output, id, stop=stop)


def _change(
    server: str,
    output: Format,
    change: ChangeOptions,
    id: str | None,
    matching: "FilterOptions",
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    if (id is None) == (not matching):
        raise typer.BadParameter(
            "give either an ID or a filter: --target, --due-from, --due-to, --id-prefix or --header"
        )
    if id is None:
        from chronos.cli.messages import bulk

        bulk.act(server, output, change, matching, dry_run=dry_run, yes=yes)
        return
    if dry_run:
        raise typer.BadParameter("--dry-run is for a filter; `chronos get` shows one message")
    from chronos.cli.messages import verbs

    verbs.act(server, output, change, id)
