"""The verbs about the archive: their options and their help.

This module imports no PySpark, so that `chronos --help` works without it."""

from typing import Annotated

import typer

from chronos.cli.options import ClusterOptions, ConfigFile, Output, Settings, SparkOptions
from chronos.cli.output import Format

_LOCATION = typer.Option(
    "--location",
    "-l",
    envvar="CHRONOS_ARCHIVE",
    metavar="URI",
    help="The archive: a folder, or a URL such as s3a://bucket/chronos.",
)
Location = Annotated[str, _LOCATION]
MaybeLocation = Annotated[str | None, _LOCATION]
"""For a verb with verbs below it, which have a location of their own: see `need_location`."""
ToClusterFile = Annotated[
    str | None,
    typer.Option(
        "--to-cluster",
        metavar="FILE",
        help=(
            "Send to the Kafka cluster of another service, whose YAML file with settings this is. "
            "What was sent to it is counted apart."
        ),
    ),
]
ToReader = Annotated[
    list[str] | None,
    typer.Option("--to-kafka", metavar="KEY=VALUE", help="The same as --kafka, for --to-cluster."),
]
RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="The run, as `chronos backfill` names it.")
]
Master = Annotated[
    str,
    typer.Option(
        "--master",
        metavar="URL",
        help="Spark's master; auto: the one of spark-submit, otherwise this machine.",
        show_default=True,
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A Spark property. May be repeated."),
]
Reader = Annotated[
    list[str] | None,
    typer.Option(
        "--kafka",
        metavar="KEY=VALUE",
        help=(
            "A property of Spark's Kafka client (Java), such as security.protocol=SSL. May be "
            "repeated."
        ),
    ),
]
OtherCluster = Annotated[
    bool,
    typer.Option(
        "--other-cluster",
        help=(
            "Accept a Kafka cluster with another cluster id than the one that was archived, such "
            "as a new one after a loss."
        ),
    ),
]
DueFrom = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="TIME",
        help=(
            "Only messages due at or after this time: RFC 3339, epoch ms, now, or -2h for two "
            "hours ago."
        ),
    ),
]
DueTo = Annotated[
    str | None,
    typer.Option(
        "--to", metavar="TIME", help="Only messages due before this time; the same forms."
    ),
]
TargetPatterns = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        metavar="TOPIC",
        help="Only messages for this target: a name or a shell-style pattern. May be repeated.",
    ),
]
WantedHeaders = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        metavar="NAME=VALUE",
        help="Only messages with this header. May be repeated: a message must have all of them.",
    ),
]
SendYes = Annotated[bool, typer.Option("--yes", "-y", help="Send without asking for confirmation.")]
IgnoreExpiry = Annotated[
    bool,
    typer.Option("--ignore-expiry", help="Include messages that are past their chronos-expire-at."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Erase without asking for confirmation.")]
AUTO_MASTER = "auto"


def need_location(location: str | None) -> str:
    """The location; typer.BadParameter if none was given."""
    if location is None:
        raise typer.BadParameter("give --location URI, or set CHRONOS_ARCHIVE, to name the archive")
    return location


archive_app = typer.Typer(
    invoke_without_command=True,
    rich_markup_mode=None,
    help="""Copy the logs to Delta tables with Spark: incrementally, each record exactly once.

    Needs Java 17 and `pip install 'kafka-chronos[spark]'`. A run archives everything that is in the topics
    when it starts, and ends; the next run continues from there, with --follow after a pause. If a run is killed at any point, the next one completes it.
    The archive has one Delta table for each kind of record (docs/reference/archive.md). `chronos archive compact` merges small files,
    `chronos archive verify` looks for lost ones, `chronos archive find` for messages, and `chronos archive expire` and `forget` erase them.

    \b
    Examples:
      chronos archive --config chronos.yaml --location /var/lib/chronos-archive
      chronos archive -c chronos.yaml -l s3a://bucket/chronos --targets 'orders,billing-*' --follow --master spark://spark:7077
      chronos archive compact -l /var/lib/chronos-archive
      chronos archive verify -l /var/lib/chronos-archive
    """,  # noqa: E501
)


@archive_app.callback()
def archive(
    context: typer.Context,
    location: MaybeLocation = None,
    targets: Annotated[
        str | None,
        typer.Option(
            "--targets",
            metavar="TOPIC,...",
            help=(
                "Target topics to archive: names or shell-style patterns. Default: those that the "
                "archived messages name."
            ),
        ),
    ] = None,
    all_records: Annotated[
        bool,
        typer.Option(
            "--all-records", help="Also records of target topics that Chronos did not deliver."
        ),
    ] = False,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help=(
                "Keep running: start another run after each one, and serve /metrics and /readyz. "
                "SIGINT or SIGTERM ends it after the current commit, a second one at once."
            ),
        ),
    ] = False,
    every: Annotated[
        str,
        typer.Option(
            "--every", metavar="DURATION", help="With --follow: the pause between two runs."
        ),
    ] = "1m",
    listen: Annotated[
        str,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help=(
                "With --follow: where to serve /metrics and /readyz; port 0 takes any free one. "
                "They need no token."
            ),
            show_default=True,
        ),
    ] = "127.0.0.1:7790",
    batch_records: Annotated[
        int,
        typer.Option(
            "--batch-records",
            metavar="N",
            min=1,
            help="At most this many records in a micro-batch.",
        ),
    ] = 2_000_000,
    reader: Reader = None,
    other_cluster: OtherCluster = False,
    master: Master = AUTO_MASTER,
    conf: Conf = None,
    config: ConfigFile = None,
    settings: Settings = None,
    output: Output = Format.text,
) -> None:
    if context.invoked_subcommand is not None:
        return
    location = need_location(location)
    from chronos.cli.spark.archive import run

    options = None
    if follow:
        from chronos.cli.spark.follow import follow_options

        options = follow_options(every, listen)
    run(
        output,
        SparkOptions(location=location, master=master, conf=conf or []),
        ClusterOptions(
            config=config,
            settings=settings or [],
            reader=reader or [],
            other_cluster=other_cluster,
        ),
        targets=targets,
        all_records=all_records,
        batch_records=batch_records,
        follow=options,
    )


@archive_app.command()
def compact(
    location: Location,
    file_bytes: Annotated[
        str,
        typer.Option(
            "--file-size",
            metavar="SIZE",
            help="Files of at least this size are left as they are.",
            show_default=True,
        ),
    ] = "128MiB",
    master: Master = AUTO_MASTER,
    conf: Conf = None,
    output: Output = Format.text,
) -> None:
    """Merge small files into large ones, and remove those that no reader needs any more.

    The archive may be read at the same time: files that were merged stay for 7 days. If the command
    is killed at any point, run it again.
    """
    from chronos.cli.spark.archive import compact_archive

    options = SparkOptions(location=location, master=master, conf=conf or [])
    compact_archive(output, options, file_bytes=file_bytes)


@archive_app.command()
def verify(
    location: Location,
    master: Master = AUTO_MASTER,
    conf: Conf = None,
    output: Output = Format.text,
) -> None:
    """Look for every file of what is archived, and read its rows.

    Each missing file is named, and each table that cannot be read; the exit code is 1 then.
    `chronos audit` and `backfill` end with an error when they read such a file."""
    from chronos.cli.spark.archive import verify_archive

    verify_archive(output, SparkOptions(location=location, master=master, conf=conf or []))


@archive_app.command()
def expire(
    location: Location,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than",
            metavar="DURATION",
            help="Erase what was settled longer ago than this, such as 90d.",
        ),
    ],
    yes: Yes = False,
    master: Master = AUTO_MASTER,
    conf: Conf = None,
    output: Output = Format.text,
) -> None:
    """Erase messages that were settled long ago, with their deliveries, letters and steps.

    Their outcomes and times stay: an audit counts them as erased. What is pending stays, with its
    cancels and replacements, and so does a message that is missing, duplicated or early. Files that
    are not needed any more are removed 7 days later, by this command, `compact` or `forget`. If the
    command is killed at any point, run it again.

    \b
    Example:
      chronos archive expire -l /var/lib/chronos-archive --older-than 90d
    """
    from chronos.cli.spark.erase import expire_archive

    options = SparkOptions(location=location, master=master, conf=conf or [])
    expire_archive(output, options, older_than=older_than, yes=yes)


@archive_app.command("forget")
def forget_messages(
    location: Location,
    ids: Annotated[
        list[str] | None,
        typer.Option(
            "--id",
            metavar="ID",
            help="An id; bytes that are not UTF-8 as base64:.... May be repeated.",
        ),
    ] = None,
    ids_file: Annotated[
        str | None,
        typer.Option("--ids-file", metavar="FILE", help="A file with an id on each line."),
    ] = None,
    yes: Yes = False,
    master: Master = AUTO_MASTER,
    conf: Conf = None,
    output: Output = Format.text,
) -> None:
    """Erase the messages of some ids from all tables and files of the archive, at once.

    Their deliveries, letters, replays and rows of the ledger go too; shard, offset, occurrence,
    outcome and times stay: an audit counts them as erased. Nothing is forgotten while one of them
    is pending. Exit code 4 if the archive holds nothing of an id; the others are forgotten. If the
    command is killed at any point, run it again.

    \b
    Examples:
      chronos archive forget -l /var/lib/chronos-archive --id order-17 --id order-18
      chronos archive forget -l s3a://bucket/chronos --ids-file ids.txt --yes
    """
    from chronos.cli.spark.erase import forget_ids

    options = SparkOptions(location=location, master=master, conf=conf or [])
    forget_ids(output, options, ids=ids or [], ids_file=ids_file, yes=yes)


@archive_app.command()
def find(
    location: Location,
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID]...", help="Ids; bytes that are not UTF-8 as base64:...."),
    ] = None,
    id_prefix: Annotated[
        str, typer.Option("--id-prefix", metavar="TEXT", help="Only ids that begin so.")
    ] = "",
    targets: TargetPatterns = None,
    headers: WantedHeaders = None,
    start: DueFrom = None,
    end: DueTo = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, help="Show at most N.")
    ] = 100,
    master: Master = AUTO_MASTER,
    conf: Conf = None,
    output: Output = Format.text,
) -> None:
    """Find messages that `chronos list` no longer knows, and what became of them.

    Each is judged as `chronos audit` does: delivered, missing, cancelled, expired, dead-lettered,
    rejected, pending and so on. Ids are looked for in the whole archive, other messages in the last
    30 archived days, unless --from and --to name a window. Exit code 1 if nothing is found.

    \b
    Examples:
      chronos archive find order-17-reminder -l /var/lib/chronos-archive
      chronos archive find -l s3a://bucket/chronos --id-prefix order-17 --from 2030-01-31T00:00:00Z --to 2030-02-01T00:00:00Z
      chronos archive find -l /var/lib/chronos-archive --target 'mail*' --header customer=42 --from -2d -o json
    """  # noqa: E501
    from chronos.cli.spark.archive import FindOptions, ask_archive, put_found

    wanted = FindOptions(
        ids=ids or [],
        id_prefix=id_prefix,
        targets=targets or [],
        headers=headers or [],
        start=start,
        end=end,
    )
    options = SparkOptions(location=location, master=master, conf=conf or [])
    found = ask_archive(options, wanted, limit)
    put_found(found, output)


def audit(
    location: Location,
    start: DueFrom = None,
    end: DueTo = None,
    details: Annotated[
        str | None,
        typer.Option(
            "--details",
            metavar="URI",
            help="Write one row per message as Parquet, to a folder that does not exist yet.",
        ),
    ] = None,
    report: Annotated[
        str | None,
        typer.Option(
            "--report", metavar="FILE", help="Write a report with plots, as one HTML file."
        ),
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(
            "--slo",
            metavar="OBJECTIVE",
            help=(
                "A bound on the lateness of deliveries, such as 'p99<1s' (p50, p99, p99.9 or max). "
                "May be repeated."
            ),
        ),
    ] = None,
    master: Master = AUTO_MASTER,
    conf: Conf = None,
    output: Output = Format.text,
) -> None:
    """Prove from the archive the outcome of every message that was due in a window.

    Each message is delivered, missing, duplicated, early, cancelled, replaced, expired,
    dead-lettered, rejected, pending, unknown or erased. The lateness of deliveries is shown per target and
    hour. Without --from and --to the window is the last 24 archived hours. A message is called
    missing only where the logs prove that it was settled; the summary shows up to which time they
    do. The audit reads the archive only, no broker. Exit code 1 if a message is missing, duplicated
    or early; else 7 if an objective of --slo is missed; else 6 if the archive does not prove the
    outcome of every message of the window.

    \b
    Examples:
      chronos audit --location /var/lib/chronos-archive
      chronos audit -l s3a://bucket/chronos --from 2030-01-31T00:00:00Z --to 2030-02-01T00:00:00Z --report audit.html
      chronos audit -l /var/lib/chronos-archive --from -30d --slo 'p99<1s' --slo 'max<1m'
      chronos audit -l /var/lib/chronos-archive --from -2h -o json --details /tmp/audit-details
    """  # noqa: E501
    from chronos.cli.spark.audit import run

    run(
        output,
        SparkOptions(location=location, master=master, conf=conf or []),
        start=start,
        end=end,
        details=details,
        report=report,
        slo=slo or [],
    )


backfill_app = typer.Typer(
    invoke_without_command=True,
    rich_markup_mode=None,
    help="""Send archived messages again, in bulk: the missing ones, or all messages of a window.

    They go through the delay topic with payload and headers byte for byte, each under a new id
    (with --pending under its own). The archive records which messages were sent, so none is sent
    twice for the same purpose: after a kill the same command sends the rest, and a week later it
    finds nothing to do. Run `chronos archive` first, and once more afterwards
    (docs/how-to/backfill.md).

    \b
    Examples:
      chronos backfill -c chronos.yaml -l /var/lib/chronos-archive --from -2h --dry-run
      chronos backfill -c chronos.yaml -l /var/lib/chronos-archive --from -2h --target 'billing-*' --over 30m
      chronos backfill -c chronos.yaml -l s3a://bucket/chronos --from -2h --all --purpose incident-42 --rate 500 --yes
      chronos backfill rate 20300131T101500-c0ffee 200 -l s3a://bucket/chronos
      chronos backfill cancel 20300131T101500-c0ffee -c chronos.yaml -l s3a://bucket/chronos
    """,  # noqa: E501
)


@backfill_app.callback()
def backfill(
    context: typer.Context,
    location: MaybeLocation = None,
    start: DueFrom = None,
    end: DueTo = None,
    missing_only: Annotated[
        bool,
        typer.Option(
            "--missing-only",
            help="Messages that the audit proves missing, never unknown ones; the default.",
        ),
    ] = False,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="All messages that were to be delivered in the window, delivered or not."
        ),
    ] = False,
    gone: Annotated[
        bool,
        typer.Option(
            "--gone",
            help="Messages that are not in their target now: after a topic was deleted or trimmed.",
        ),
    ] = False,
    pending: Annotated[
        bool,
        typer.Option(
            "--pending",
            help=(
                "Pending messages that are no longer in the delay topic: after Chronos lost all "
                "its disks."
            ),
        ),
    ] = False,
    dead_letters: Annotated[
        bool,
        typer.Option(
            "--dead-letters",
            help=(
                "Messages that were dead-lettered, and neither replayed nor discarded since; but "
                "for expired ones, unless --reason names them."
            ),
        ),
    ] = False,
    rejected: Annotated[
        bool,
        typer.Option("--rejected", help="Valid records that were rejected with one of --reason."),
    ] = False,
    reasons: Annotated[
        list[str] | None,
        typer.Option(
            "--reason",
            metavar="REASON",
            help="Only those with this chronos-reason, such as target-missing. May be repeated.",
        ),
    ] = None,
    targets: TargetPatterns = None,
    headers: WantedHeaders = None,
    ids: Annotated[
        list[str] | None,
        typer.Option(
            "--id",
            metavar="ID",
            help="Only this id; bytes that are not UTF-8 as base64:.... May be repeated.",
        ),
    ] = None,
    purpose: Annotated[
        str,
        typer.Option(
            "--purpose",
            metavar="NAME",
            help="Name of the occasion; for the same purpose no message is sent twice.",
        ),
    ] = "backfill",
    over: Annotated[
        str | None,
        typer.Option(
            "--over",
            metavar="DURATION",
            help="Spread the due times evenly over this time, beginning now.",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            metavar="N",
            help="Send N messages per second, beginning now; `chronos backfill rate` changes N.",
        ),
    ] = None,
    direct: Annotated[
        bool,
        typer.Option(
            "--direct",
            help="Send straight to the targets, without Chronos: at least once, not exactly once.",
        ),
    ] = False,
    to_topic: Annotated[
        str | None,
        typer.Option(
            "--to-topic",
            metavar="TOPIC",
            help=(
                "Send all messages to this topic instead of their targets. What was sent to it is "
                "counted apart."
            ),
        ),
    ] = None,
    to_cluster: ToClusterFile = None,
    to_reader: ToReader = None,
    ignore_expiry: IgnoreExpiry = False,
    compacted: Annotated[
        bool,
        typer.Option(
            "--compacted",
            help=(
                "Include messages for compacted targets, where a replay takes the place of a "
                "newer record of its key."
            ),
        ),
    ] = False,
    beyond_archive: Annotated[
        bool,
        typer.Option(
            "--beyond-archive",
            help=(
                "Accept a window that ends after the archive does: messages that are due after "
                "its end may be left out."
            ),
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the counts and some samples; send nothing.")
    ] = False,
    yes: SendYes = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Only complete the unfinished run, with the options it was started with.",
        ),
    ] = False,
    reader: Reader = None,
    other_cluster: OtherCluster = False,
    master: Master = AUTO_MASTER,
    conf: Conf = None,
    config: ConfigFile = None,
    settings: Settings = None,
    output: Output = Format.text,
) -> None:
    if context.invoked_subcommand is not None:
        return
    location = need_location(location)
    from chronos.cli.spark.backfill import BackfillOptions, RunOptions, ToCluster, run

    asked = BackfillOptions(
        modes={
            "missing": missing_only,
            "all": everything,
            "gone": gone,
            "pending": pending,
            "dead-letters": dead_letters,
            "rejected": rejected,
        },
        reasons=reasons or [],
        start=start,
        end=end,
        targets=targets or [],
        headers=headers or [],
        ids=ids or [],
        purpose=purpose,
        over=over,
        rate=rate,
        direct=direct,
        expired=ignore_expiry,
        compacted=compacted,
        to_topic=to_topic,
        to_cluster=to_cluster,
    )
    run_options = RunOptions(yes=yes, dry_run=dry_run, beyond_archive=beyond_archive, resume=resume)
    options = SparkOptions(location=location, master=master, conf=conf or [])
    cluster = ClusterOptions(
        config=config, settings=settings or [], reader=reader or [], other_cluster=other_cluster
    )
    to = ToCluster(config=to_cluster, reader=to_reader or [])
    run(output, options, cluster, to, asked, run_options)


@backfill_app.command("rate")
def change_rate(
    run: RunName,
    rate: Annotated[float, typer.Argument(metavar="N", help="Messages per second.")],
    location: Location,
    output: Output = Format.text,
) -> None:
    """Change the rate of a run that was started with --rate, while it sends or before it is
    resumed.

    The run takes it within 5 s. What it has sent keeps its due time, so that the new rate is in
    force after 15 s, with --direct after 5 s. Exit code 4 if there is no such run, 1 if it has
    ended.

    \b
    Examples:
      chronos backfill rate 20300131T101500-c0ffee 200 -l /var/lib/chronos-archive
    """
    from chronos.cli.spark.backfill import change_rate as change

    change(output, location, run, rate)


@backfill_app.command()
def cancel(
    run: RunName,
    location: Location,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Cancel without asking for confirmation.")
    ] = False,
    to_cluster: ToClusterFile = None,
    to_reader: ToReader = None,
    reader: Reader = None,
    other_cluster: OtherCluster = False,
    master: Master = AUTO_MASTER,
    conf: Conf = None,
    config: ConfigFile = None,
    settings: Settings = None,
    output: Output = Format.text,
) -> None:
    """End a run: the rest is not sent, and what is pending in the delay topic is cancelled by id.

    A command that sends the run now ends within 5 s. A run that has sent everything can be
    cancelled too, such as one with --over. What was delivered before stays: its cancels go to the
    rejected topic, as too-late. All that was sent counts as sent; another --purpose sends it again.
    If the command is killed at any point, run it again. Exit code 4 if there is no such run.

    \b
    Examples:
      chronos backfill cancel 20300131T101500-c0ffee -c chronos.yaml -l /var/lib/chronos-archive
    """
    from chronos.cli.spark.backfill import ToCluster
    from chronos.cli.spark.backfill import cancel as cancel_run

    options = SparkOptions(location=location, master=master, conf=conf or [])
    cluster = ClusterOptions(
        config=config, settings=settings or [], reader=reader or [], other_cluster=other_cluster
    )
    to = ToCluster(config=to_cluster, reader=to_reader or [])
    cancel_run(output, options, cluster, to, run, yes=yes)


def restore(
    location: Location,
    old_cluster: Annotated[
        str | None,
        typer.Option(
            "--old-cluster",
            metavar="FILE",
            help=(
                "The settings of the archived service, if it was on other brokers: to see that it "
                "has stopped, and when."
            ),
        ),
    ] = None,
    old_cluster_is_gone: Annotated[
        bool,
        typer.Option(
            "--old-cluster-is-gone",
            help="The archived service delivers nothing more, whatever its topics show.",
        ),
    ] = False,
    lost_at: Annotated[
        str | None,
        typer.Option(
            "--lost-at",
            metavar="TIME",
            help=(
                "When it was lost: RFC 3339, epoch ms, or -2h for two hours ago. Default: the time "
                "of its newest progress record, or now if that cannot be read."
            ),
        ),
    ] = None,
    repeat_unknown: Annotated[
        bool,
        typer.Option(
            "--repeat-unknown",
            help="Include messages that may have been delivered after the archive's end.",
        ),
    ] = False,
    ignore_expiry: IgnoreExpiry = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the counts; create and send nothing.")
    ] = False,
    yes: SendYes = False,
    reader: Reader = None,
    master: Master = AUTO_MASTER,
    conf: Conf = None,
    config: ConfigFile = None,
    settings: Settings = None,
    output: Output = Format.text,
) -> None:
    """Restore what was pending at the archive's end in a new service, after the loss of its topics.

    The configuration is that of the new service, with new topics or on new brokers, before its
    first start. The topics are created; pending messages go there with their ids and due times,
    and ids delivered within retention.deduplication as settled. What may have been delivered
    between the archive's end and the loss is left out and counted, unless --repeat-unknown. After a
    kill the same command sends the rest (docs/how-to/restore.md).

    \b
    Examples:
      chronos restore -c new.yaml -l s3a://bucket/chronos --dry-run
      chronos restore -c new.yaml -l s3a://bucket/chronos --old-cluster-is-gone --lost-at 2030-01-31T09:00:00Z
      chronos restore -c new.yaml -l /var/lib/chronos-archive --old-cluster chronos.yaml --repeat-unknown --yes
    """  # noqa: E501
    from chronos.cli.spark.restore import RestoreOptions, run

    run(
        output,
        SparkOptions(location=location, master=master, conf=conf or []),
        ClusterOptions(
            config=config, settings=settings or [], reader=reader or [], other_cluster=True
        ),
        RestoreOptions(
            old_cluster=old_cluster,
            old_cluster_is_gone=old_cluster_is_gone,
            lost_at=lost_at,
            repeat_unknown=repeat_unknown,
            ignore_expiry=ignore_expiry,
            dry_run=dry_run,
            yes=yes,
        ),
    )
