"""The verbs, their options and their help. What they do stands in `verbs`, `serve` and `doctor`."""

from typing import Annotated
from urllib.parse import quote

import typer

from chronos.cli.output import Format

app = typer.Typer(
    name="chronos",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Chronos delivers messages later: exactly once, at their time, to a topic.

    \b
    Try it, with nothing else installed:
      chronos serve                                 in one terminal
      chronos send --to orders --in 5s hello        in another
      chronos tail orders --from beginning

    \b
    Exit codes: 0 ok, 1 failure, 2 usage or configuration, 3 something is unreachable, 4 not found, 5 store corrupt.
    """,
)

Output = Annotated[
    Format,
    typer.Option(
        "-o", "--output", metavar="text|json", help="For people (text) or for programs (json).", show_default=True
    ),
]
Server = Annotated[
    str,
    typer.Option("--server", envvar="CHRONOS_SERVER", help="Address of the service.", metavar="URL", show_default=True),
]
MessageId = Annotated[str, typer.Argument(metavar="ID", help="The id; bytes that are no text as base64:....")]
ConfigFile = Annotated[
    str | None,
    typer.Option("--config", "-c", envvar="CHRONOS_CONFIG", metavar="FILE", help="YAML file with settings."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="One setting, over file and variables. May be repeated."),
]
In = Annotated[str | None, typer.Option("--in", metavar="DURATION", help="How long from now: 250ms, 90s, 15m, 2h, 7d.")]
At = Annotated[
    str | None,
    typer.Option("--at", metavar="TIME", help="When: RFC 3339 with an offset, or epoch milliseconds."),
]

HERE = "http://127.0.0.1:7700"


@app.command()
def serve(
    config: ConfigFile = None,
    settings: Settings = None,
    from_checkpoint: Annotated[
        bool,
        typer.Option("--from-checkpoint", help="Begin with the newest checkpoints, also where there are stores."),
    ] = False,
) -> None:
    """Run the service in the foreground. SIGINT or SIGTERM end it in order, a second one at once.

    Without settings: the embedded log in ./chronos-data, HTTP and the web page on 127.0.0.1:7700.

    \b
    Examples:
      chronos serve
      chronos serve --config /etc/chronos.yaml
      chronos serve --set log.kind=kafka --set log.kafka.bootstrap_servers=localhost:9092
      CHRONOS_ADMIN__PORT=7701 chronos serve --set node.data_dir=./second
    """
    from chronos.cli.serve import run

    run(config, settings or [], from_checkpoint=from_checkpoint)


@app.command()
def send(
    value: Annotated[str | None, typer.Argument(metavar="[VALUE|-]", help="The payload; - reads stdin.")] = None,
    to: Annotated[str, typer.Option("--to", metavar="TOPIC", help="Topic to deliver to.")] = ...,  # type: ignore[assignment]
    in_: In = None,
    at: At = None,
    id: Annotated[str | None, typer.Option("--id", metavar="ID", help="A name of your choice for the message.")] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", metavar="KEY", help="Kafka key to deliver with.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header to pass through. May be repeated."),
    ] = None,
    on_conflict: Annotated[
        str | None,
        typer.Option("--on-conflict", metavar="POLICY", help="If the id is taken: reject, replace or ignore."),
    ] = None,
    expire_at: Annotated[
        str | None, typer.Option("--expire-at", metavar="TIME", help="Do not deliver after this time.")
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Each line of stdin is a message of its own.")] = False,
    null: Annotated[bool, typer.Option("--null", help="Send a null payload.")] = False,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Send a message to be delivered later. Prints its id once it is on disk.

    \b
    Examples:
      chronos send --to orders --in 90s hello
      chronos send --to orders --at 2030-01-31T09:00:00+01:00 --id reminder-17 --key 17 '{"order": 17}'
      chronos send --to images --in 1h - < picture.png
      chronos send --to events --in 10m --lines < events.jsonl
    """
    from chronos.cli import verbs

    verbs.send(
        server, output, value=value, topic=to, delay=in_, at=at, id=id, key=key, headers=header or [],
        on_conflict=on_conflict, expire_at=expire_at, lines=lines, null=null,
    )  # fmt: skip


@app.command()
def get(id: MessageId, output: Output = Format.text, server: Server = HERE) -> None:
    """Show what is known of a message: its state, times and target. Exit code 4 when nothing is.

    \b
    Examples:
      chronos get reminder-17
      chronos get 2-1893456000123-17 -o json
    """
    from chronos.cli import verbs

    verbs.get(server, output, id)


@app.command(name="list")
def list_(
    target: Annotated[str | None, typer.Option("--to", metavar="TOPIC", help="Only those for this topic.")] = None,
    due_from: Annotated[str | None, typer.Option("--from", metavar="TIME", help="Only those due from then on.")] = None,
    due_to: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only those due before then.")] = None,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, metavar="N", help="Most messages to show.")] = 50,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """List pending messages in the order in which they are due.

    \b
    Examples:
      chronos list
      chronos list --to orders -n 500 -o json
    """
    from chronos.cli import verbs

    verbs.list_(server, output, target=target, due_from=due_from, due_to=due_to, limit=limit)


@app.command()
def cancel(id: MessageId, output: Output = Format.text, server: Server = HERE) -> None:
    """Cancel a message. Exit code 1 when it is too late, 4 when no message has the id."""
    from chronos.cli import verbs

    verbs.act(server, output, "cancel", id)


@app.command()
def reschedule(
    id: MessageId, in_: In = None, at: At = None, output: Output = Format.text, server: Server = HERE
) -> None:
    """Give a pending message a new time. Exit code 1 when it is too late, 4 when no message has the id.

    \b
    Examples:
      chronos reschedule reminder-17 --in 2h
    """
    from chronos.cli import verbs

    verbs.act(server, output, "reschedule", id, delay=in_, at=at)


@app.command()
def fire(id: MessageId, output: Output = Format.text, server: Server = HERE) -> None:
    """Deliver a pending message now. Exit code 1 when it is too late, 4 when no message has the id."""
    from chronos.cli import verbs

    verbs.act(server, output, "fire", id)


@app.command()
def tail(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="A topic of the embedded log.")],
    start: Annotated[
        str, typer.Option("--from", metavar="beginning|end|OFFSET", help="Where to start.", show_default=True)
    ] = "end",
    count: Annotated[
        int | None, typer.Option("-n", "--count", min=1, metavar="N", help="Stop after so many records.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, metavar="N", help="Only this partition; all, if absent.")
    ] = None,
    headers: Annotated[bool, typer.Option("--headers", help="Show offset, time, key and headers too.")] = False,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Follow a topic of the embedded log. With -o json, one record a line.

    A topic in Kafka is read with a Kafka consumer; this says how.

    \b
    Examples:
      chronos tail orders
      chronos tail orders --from beginning -n 10 --headers
      chronos tail chronos.rejected --from beginning -o json
    """
    from chronos.cli.follow import follow

    follow(server, output, topic, start=start, count=count, partition=partition, headers=headers)


@app.command()
def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again every second.")] = False,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Show the node, its shards, and how late it delivers."""
    from chronos.cli.status import show

    show(server, output, watch=watch)


@app.command()
def transfer(
    shard: Annotated[int | None, typer.Argument(min=0, help="Number of the shard.")] = None,
    to: Annotated[str | None, typer.Argument(metavar="NODE", help="Node to make its master.")] = None,
    drain: Annotated[
        str | None, typer.Option("--drain", metavar="NODE", help="Instead: let this node be master of nothing.")
    ] = None,
    undrain: Annotated[str | None, typer.Option("--undrain", metavar="NODE", help="Instead: end a drain.")] = None,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Hand a shard over to another node, or all shards of a node to the others, without losing a moment.

    Before maintenance: `chronos transfer --drain NODE`, and afterwards `chronos transfer --undrain NODE`.
    """
    from chronos.cli import verbs

    given = [drain is not None, undrain is not None, shard is not None or to is not None]
    if sum(given) != 1 or (given[2] and (shard is None or to is None)):
        raise typer.BadParameter("give either SHARD and NODE, or --drain NODE, or --undrain NODE")
    if shard is not None:
        path = f"/v1/shards/{shard}/transfer?to={quote(to or '', safe='')}"
    else:
        path = f"/v1/nodes/{quote(drain or undrain or '', safe='')}/{'drain' if drain else 'undrain'}"
    verbs.transfer(server, output, path)


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

    Needs Java 17 and `pip install 'chronos[spark]'`. A run archives what is there and ends; the next one goes on from
    there. Killed at any point, the next run completes it. The location holds one folder a table (docs/reference/archive.md).

    \b
    Examples:
      chronos archive --config chronos.yaml --location /var/lib/chronos-archive --targets 'orders,billing-*'
      chronos archive -c chronos.yaml -l s3a://bucket/chronos --targets '*' --continuous --master spark://spark:7077
      chronos archive compact -l /var/lib/chronos-archive
    """,
)
app.add_typer(archive_app, name="archive")


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


@app.command()
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


@app.command()
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


@app.command()
def config(
    action: Annotated[str, typer.Argument(metavar="check|show", help="Only check, or show what is in effect.")],
    config: ConfigFile = None,
    settings: Settings = None,
    output: Output = Format.text,
) -> None:
    """Check the settings, or show those in effect, secrets masked. Exit code 2 when something is wrong.

    Settings come from the file, then CHRONOS_* variables, then --set; all that is wrong is listed at once.

    \b
    Examples:
      chronos config check --config chronos.yaml
      chronos config show --set shards=8
    """
    from chronos.cli.settings import check_or_show

    check_or_show(action, config, settings or [], output)


@app.command()
def doctor(config: ConfigFile = None, settings: Settings = None, output: Output = Format.text) -> None:
    """Look for what is wrong, and say what to do about it.

    Looks at settings, cluster, data directory, disk, stores, log, topics and clocks. With the service stopped every store is
    read and its checksums are checked; while it runs, it is asked. Takes the settings that `serve` takes. Exit code 5
    when a store is damaged, 3 when the log does not answer, 1 for the rest.

    \b
    Examples:
      chronos doctor
      chronos doctor --config /etc/chronos.yaml -o json
    """
    from chronos.cli.doctor import examine

    examine(config, settings or [], output)


@app.command()
def version(output: Output = Format.text) -> None:
    """Show the version of Chronos and of what it runs on."""
    from chronos.cli.settings import show_version

    show_version(output)
