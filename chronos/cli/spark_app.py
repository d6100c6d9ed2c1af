"""The verbs that run on Spark: their options and their help. `app` adds them to the command line."""

from typing import Annotated

import typer

from chronos.cli.options import ConfigFile, Output, Settings
from chronos.cli.output import Format

Location = Annotated[
    str,
    typer.Option(
        "--location",
        "-l",
        envvar="CHRONOS_ARCHIVE",
        metavar="URI",
        help="Where the archive lies: a folder, s3a://..., ...",
    ),
]
Master = Annotated[
    str,
    typer.Option(
        "--master",
        metavar="URL",
        help="Spark's master; auto: that of spark-submit, or this machine.",
        show_default=True,
    ),
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark's. May be repeated.")
]
AUTO_MASTER = "auto"

archive_app = typer.Typer(
    invoke_without_command=True,
    rich_markup_mode=None,
    help="""Copy the logs to Parquet with Spark: incrementally, each record exactly once. `archive compact` tidies up.

    Needs Java 17 and `pip install 'kafka-chronos[spark]'`. A run archives what is there and ends; the next one goes on from
    there. Killed at any point, the next run completes it. The location holds one folder a table (docs/reference/archive.md).

    \b
    Examples:
      chronos archive --config chronos.yaml --location /var/lib/chronos-archive --targets 'orders,billing-*'
      chronos archive -c chronos.yaml -l s3a://bucket/chronos --targets '*' --continuous --master spark://spark:7077
      chronos archive compact -l /var/lib/chronos-archive
    """,
)


@archive_app.callback()
def archive(
    context: typer.Context,
    location: Annotated[
        str | None,
        typer.Option("--location", "-l", envvar="CHRONOS_ARCHIVE", metavar="URI", help="Where the archive lies."),
    ] = None,
    targets: Annotated[
        str,
        typer.Option("--targets", metavar="TOPIC,...", help="Target topics to archive: names or shell-style patterns."),
    ] = "*",
    all_records: Annotated[
        bool, typer.Option("--all-records", help="Also records of target topics that Chronos did not deliver.")
    ] = False,
    continuous: Annotated[bool, typer.Option("--continuous", help="Keep running: one run after the other.")] = False,
    every: Annotated[
        str, typer.Option("--every", metavar="DURATION", help="With --continuous: pause between two runs.")
    ] = "1m",
    batch_records: Annotated[
        int, typer.Option("--batch-records", metavar="N", min=1, help="Most records of a micro-batch.")
    ] = 2_000_000,
    reader: Annotated[
        list[str] | None,
        typer.Option(
            "--kafka",
            metavar="KEY=VALUE",
            help="A property of the Java client Spark reads with, such as security.protocol=SSL. May be repeated.",
        ),
    ] = None,
    master: Master = AUTO_MASTER,
    conf: Conf = None,
    config: ConfigFile = None,
    settings: Settings = None,
    output: Output = Format.text,
) -> None:
    if context.invoked_subcommand is not None:
        return
    from chronos.cli.archive import run

    run(
        config, settings or [], output, location=location, targets=targets, all_records=all_records,
        every=every if continuous else None, batch_records=batch_records, reader=reader or [], master=master,
        conf=conf or [],
    )  # fmt: skip


@archive_app.command()
def compact(
    location: Location,
    file_bytes: Annotated[
        str,
        typer.Option("--file-size", metavar="SIZE", help="Files of this size need no tidying up.", show_default=True),
    ] = "128MiB",
    master: Master = AUTO_MASTER,
    conf: Conf = None,
    output: Output = Format.text,
) -> None:
    """Make few files of many small ones. Not while others read the archive; killed at any point, run it again."""
    from chronos.cli.archive import tidy

    tidy(output, location=location, file_bytes=file_bytes, master=master, conf=conf or [])


def audit(
    location: Location,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="Due from then on: RFC 3339, epoch ms, or before now as -2h."),
    ] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Due before then; as --from, or now.")] = None,
    details: Annotated[
        str | None, typer.Option("--details", metavar="URI", help="Write a row for each message there, as Parquet.")
    ] = None,
    report: Annotated[
        str | None, typer.Option("--report", metavar="FILE", help="Write a page with plots there, one HTML file.")
    ] = None,
    master: Master = AUTO_MASTER,
    conf: Conf = None,
    output: Output = Format.text,
) -> None:
    """Prove from the archive what became of every message that was due in a window.

    Delivered, missing, duplicated, early, cancelled, replaced, expired, dead-lettered, rejected, pending or unknown;
    and how late, per target and hour. Without --from and --to: the last 24 hours that are archived. It judges as far as
    the logs prove everything settled, and says how far that is. Reads the archive alone, no broker.
    Exit code 1 when something is missing, duplicated or early.

    \b
    Examples:
      chronos audit --location /var/lib/chronos-archive
      chronos audit -l s3a://bucket/chronos --from 2030-01-31T00:00:00Z --to 2030-02-01T00:00:00Z --report audit.html
      chronos audit -l /var/lib/chronos-archive --from -2h -o json --details /tmp/audit-details
    """
    from chronos.cli.audit import run

    run(output, location=location, start=start, end=end, details=details, report=report, master=master, conf=conf or [])


def backfill(
    location: Location,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="Due from then on: RFC 3339, epoch ms, or before now as -2h."),
    ] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Due before then; as --from, or now.")] = None,
    missing_only: Annotated[
        bool, typer.Option("--missing-only", help="What the audit finds missing; the default. Never the unknown.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Everything that was to be delivered in the window, delivered or not.")
    ] = False,
    gone: Annotated[
        bool, typer.Option("--gone", help="What its target does not hold now: after a topic was deleted or trimmed.")
    ] = False,
    pending: Annotated[
        bool,
        typer.Option(
            "--pending", help="What was pending and is in the delay topic no more: after Chronos lost all its disks."
        ),
    ] = False,
    targets: Annotated[
        list[str] | None,
        typer.Option("--target", metavar="TOPIC", help="Only for this target: a name or pattern. May be repeated."),
    ] = None,
    headers: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME=VALUE", help="Only with this header. May be repeated: all of them."),
    ] = None,
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", metavar="ID", help="Only this id; bytes that are no text as base64:.... May be repeated."),
    ] = None,
    purpose: Annotated[
        str, typer.Option("--purpose", metavar="NAME", help="Nothing is sent twice for the same purpose.")
    ] = "backfill",
    over: Annotated[
        str | None, typer.Option("--over", metavar="DURATION", help="Spread the due times over this time from now on.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="N", help="Due so many a second, from now on.")
    ] = None,
    direct: Annotated[
        bool,
        typer.Option("--direct", help="Straight to the targets, without Chronos: at least once, not exactly once."),
    ] = False,
    ignore_expiry: Annotated[
        bool, typer.Option("--ignore-expiry", help="Also what is past its chronos-expire-at.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, show samples, send nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="End the run that was killed, whatever it was asked for, and nothing else.")
    ] = False,
    abandon: Annotated[
        bool, typer.Option("--abandon", help="Leave the rest of the run that was killed unsent, and nothing else.")
    ] = False,
    reader: Annotated[
        list[str] | None,
        typer.Option(
            "--kafka",
            metavar="KEY=VALUE",
            help="A property of the Java client Spark reads with, such as security.protocol=SSL. May be repeated.",
        ),
    ] = None,
    master: Master = AUTO_MASTER,
    conf: Conf = None,
    config: ConfigFile = None,
    settings: Settings = None,
    output: Output = Format.text,
) -> None:
    """Replay archived messages in bulk: what is missing, or everything of a window.

    Back through the delay topic, payload and headers byte for byte, under an id of their own. What was sent is kept
    with the archive, and nothing is sent twice for the same purpose: killed at any point, the same command completes
    it; next week it finds nothing to do. Run `chronos archive` before, and again after (docs/how-to/backfill.md).

    \b
    Examples:
      chronos backfill -c chronos.yaml -l /var/lib/chronos-archive --from -2h --dry-run
      chronos backfill -c chronos.yaml -l /var/lib/chronos-archive --from -2h --target 'billing-*' --over 30m
      chronos backfill -c chronos.yaml -l s3a://bucket/chronos --from -2h --all --purpose incident-42 --rate 500 --yes
    """
    from chronos.cli.backfill import run

    asked = {
        "modes": {"missing": missing_only, "all": everything, "gone": gone, "pending": pending}, "start": start, "end": end,
        "targets": targets or [], "headers": headers or [], "ids": ids or [], "purpose": purpose, "over": over,
        "rate": rate, "direct": direct, "expired": ignore_expiry,
    }  # fmt: skip
    run(
        config, settings or [], output, location=location, asked=asked, dry_run=dry_run, yes=yes, resume=resume,
        abandon=abandon, reader=reader or [], master=master, conf=conf or [],
    )  # fmt: skip
