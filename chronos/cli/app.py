"""The verbs about messages and services, with their options and their help.

The verbs about Spark, changes and jobs, dead letters, rejected records, the registry and failovers
are declared in other modules and added here. `config` and `version` are executed here, every other
verb in another module. The modules of `status`, `whoami`, `rates`, `failover`, dead letters,
rejected records and the registry are imported with this one; those of all other verbs when the verb
runs."""

import os
import sys
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import quote

import typer

from chronos.cli.messages.change_app import cancel, fire, jobs, pause, reschedule, resume
from chronos.cli.messages.dead_letters import dead_letters_app
from chronos.cli.messages.rejected import rejected_app
from chronos.cli.options import (
    HERE,
    At,
    ConfigFile,
    In,
    MessageId,
    NamedServer,
    Output,
    Server,
    Settings,
    at_least,
    interval_s,
    with_connection,
    with_filter,
)
from chronos.cli.output import Format, put_json
from chronos.cli.service.registry import registry_app
from chronos.cli.service.status import failover_app
from chronos.cli.spark.app import archive_app, audit, backfill_app, restore

if TYPE_CHECKING:
    from chronos.client import FilterOptions

MessagesMax = Annotated[
    int,
    typer.Option(
        "-n", "--limit", callback=at_least(1), metavar="N", help="Show at most N messages."
    ),
]

app = typer.Typer(
    name="chronos",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Chronos delivers messages later: exactly once, at their time, to a topic.

    \b
    Try it on this machine:
      chronos serve                                 in one terminal
      chronos send --to orders --in 5s hello        in another
      chronos tail orders --from beginning

    \b
    Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 unreachable, 4 not found, 5 a store is damaged, 6 an audit could not prove every outcome, 7 an objective of an audit is missed.
    """,  # noqa: E501
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from chronos import __version__

        print(f"chronos {__version__}")
        raise typer.Exit()


@app.callback()
def without_verb(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Show the version and exit."
        ),
    ] = False,
    server: Annotated[str | None, typer.Option("--server", hidden=True)] = None,
) -> None:
    """Options without a verb."""
    if server is not None:
        context.fail(
            f"--server belongs after the verb: chronos {context.invoked_subcommand or 'VERB'} "
            f"--server {server}"
        )


@app.command()
def serve(
    config: ConfigFile = None,
    settings: Settings = None,
    from_checkpoint: Annotated[
        bool,
        typer.Option(
            "--from-checkpoint",
            help="Start from the newest checkpoints, even if the data directory has stores.",
        ),
    ] = False,
    processes: Annotated[
        str,
        typer.Option(
            "--processes",
            metavar="N|auto",
            help="Nodes on this machine, each in a process of its own; auto: one for each core. "
            "The second one has _2 after its node.id, the port after admin.port, and "
            "processes/2 in node.data_dir as its directory. With fewer than before, the others "
            "give their replicas away, and their directories are deleted. Needs Kafka and a "
            "coordinator.",
        ),
    ] = "1",
    process: Annotated[str | None, typer.Option("--process", hidden=True)] = None,
) -> None:
    """Run the service in the foreground. SIGINT or SIGTERM stops it in order, a second signal
    immediately.

    Without settings: the embedded log in ./chronos-data, HTTP and the console on 127.0.0.1:7700.

    \b
    Examples:
      chronos serve
      chronos serve --config /etc/chronos.yaml
      chronos serve --set log.kind=kafka --set log.kafka.bootstrap_servers=localhost:9092
      chronos serve --config /etc/chronos.yaml --processes auto
      CHRONOS_ADMIN__PORT=7701 chronos serve --set node.data_dir=./second
    """
    from chronos.cli.service.serve import run, run_process

    if process is None:
        run(config, settings or [], from_checkpoint=from_checkpoint, processes=processes)
    else:
        run_process(config, settings or [], process, from_checkpoint=from_checkpoint)


@app.command(name="send")
@with_connection
def send_message(
    value: Annotated[
        str | None, typer.Argument(metavar="VALUE|-", help="The payload; - reads stdin.")
    ] = None,
    to: Annotated[str, typer.Option("--to", metavar="TOPIC", help="Topic to deliver to.")] = ...,  # type: ignore[assignment]
    in_: In = None,
    at: At = None,
    id: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="ID",
            help="A name of your choice, to find, cancel or replace the message by.",
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", metavar="KEY", help="Kafka key to deliver with.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            "-H",
            metavar="NAME=VALUE",
            help="A header to pass through. May be repeated, also with the same NAME.",
        ),
    ] = None,
    on_conflict: Annotated[
        Literal["reject", "replace", "ignore", "upsert"] | None,
        typer.Option(
            "--on-conflict",
            metavar="POLICY",
            help="If the id is taken: reject, replace, ignore, or upsert, which keeps the time of "
            "a pending message.",
        ),
    ] = None,
    expire_at: Annotated[
        str | None,
        typer.Option(
            "--expire-at", metavar="TIME", help="Do not deliver the message after this time."
        ),
    ] = None,
    attempts: Annotated[
        int | None,
        typer.Option(
            "--attempts",
            callback=at_least(1),
            metavar="N",
            help="Attempt the delivery at most N times if the topic refuses the message.",
        ),
    ] = None,
    every: Annotated[
        str | None, typer.Option("--every", metavar="DURATION", help="Repeat at this interval.")
    ] = None,
    backoff: Annotated[
        str | None,
        typer.Option(
            "--backoff",
            metavar="'BASE FACTOR CAP'",
            help="Repeat at growing intervals, such as '1s 2 1h'.",
        ),
    ] = None,
    cron: Annotated[
        str | None,
        typer.Option(
            "--cron",
            metavar="FIELDS",
            help="Repeat by 5 or 6 cron fields; needs neither --in nor --at.",
        ),
    ] = None,
    times: Annotated[
        int | None,
        typer.Option("--times", callback=at_least(1), metavar="N", help="Repeat N times in all."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Repeat until this time.")
    ] = None,
    time_zone: Annotated[
        str | None,
        typer.Option("--time-zone", metavar="ZONE", help="Time zone of --cron, as Europe/Lisbon."),
    ] = None,
    late_policy: Annotated[
        Literal["fire-once", "fire-all", "skip"] | None,
        typer.Option(
            "--late-policy",
            metavar="POLICY",
            help="For missed repetitions: fire-once, fire-all or skip.",
        ),
    ] = None,
    spread: Annotated[
        str | None,
        typer.Option(
            "--spread", metavar="DURATION", help="Deliver up to this much later, to smooth a burst."
        ),
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Send each line of stdin as a message.")
    ] = False,
    null: Annotated[bool, typer.Option("--null", help="Send a null payload.")] = False,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            help=(
                "Wait until it is known what became of the message; exit code 1 if it is "
                "rejected, or not known in 5 s."
            ),
        ),
    ] = False,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Send a message to be delivered later. Prints its id once it is on disk.

    The shard checks afterwards whether the id is taken. With --wait the command waits up to 5 s for
    the result: exit code 0 if the message is scheduled, or is ignored as --on-conflict ignore asks,
    which stderr says, as it says of an upsert: created, unchanged or changed. What the target would not take now is a warning on stderr.

    \b
    Examples:
      chronos send --to orders --in 90s hello
      chronos send --to orders --at 2030-01-31T09:00:00+01:00 --id reminder-17 --key 17 '{"order": 17}'
      chronos send --to orders --in 1h30m --id reminder-18 --wait 'please pay'
      chronos send --to reports --cron '0 9 * * 1-5' --time-zone Europe/Lisbon --id daily 'report'
      chronos send --to polls --in 1m --every 30s --times 10 --spread 5s 'poll'
      chronos send --to images --in 1h - < picture.png
      chronos send --to events --in 10m --lines < events.jsonl
    """  # noqa: E501
    from chronos.cli.messages.send import PayloadOptions, SendOptions, SeriesOptions, send

    series = SeriesOptions(
        every=every,
        backoff=backoff,
        cron=cron,
        times=times,
        until=until,
        time_zone=time_zone,
        late_policy=late_policy,
        spread=spread,
    )
    asked = SendOptions(
        topic=to,
        delay=in_,
        at=at,
        id=id,
        key=key,
        headers=header or [],
        on_conflict=on_conflict,
        expire_at=expire_at,
        attempts=attempts,
        series=series,
    )
    send(server, output, PayloadOptions(value=value, lines=lines, null=null), asked, wait=wait)


@app.command()
@with_connection
def get(
    id: MessageId,
    payload: Annotated[
        bool, typer.Option("--payload", help="Also show the payload, while the message is kept.")
    ] = False,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Show a message: its state, times and target, and why it was not delivered. Exit code 4 if no
    message has the id.

    \b
    Examples:
      chronos get reminder-17
      chronos get 2-1893456000123-17 --payload -o json
    """
    from chronos.cli.messages import verbs

    verbs.get(server, output, id, payload=payload)


@app.command()
@with_connection
@with_filter
def find(
    id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The id of a message.", show_default=False)
    ] = None,
    *,
    matching: "FilterOptions",
    limit: MessagesMax = 50,
    location: Annotated[
        str | None,
        typer.Option(
            "--location",
            "-l",
            envvar="CHRONOS_ARCHIVE",
            metavar="URI",
            help="The archive, for what the service no longer keeps; it needs the extra spark.",
        ),
    ] = None,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Find messages by what a customer knows, in any state: pending, ended, or in the archive.

    The service keeps messages that have ended for retention.delivered. What may be older is looked
    for in the archive, if there is one. Exit code 4 if nothing is found.

    \b
    Examples:
      chronos find order-17-reminder
      chronos find --id-prefix order-17
      chronos find --header customer=42 --target 'mail*' --from -7d -l /var/lib/chronos-archive
    """
    if id is not None and matching:
        raise typer.BadParameter("give an id, or conditions")
    if id is None and not matching:
        raise typer.BadParameter(
            "give an id or a condition; `chronos list` shows all that is pending"
        )
    from chronos.cli.messages import listing

    listing.find(server, output, id, matching, limit, location)


@app.command(name="list")
@with_connection
@with_filter
def list_messages(
    *,
    matching: "FilterOptions",
    limit: MessagesMax = 50,
    state: Annotated[
        Literal["pending", "settled", "delivered", "cancelled", "expired", "dead"],
        typer.Option(
            "--state",
            metavar="STATE",
            show_default=True,
            help=(
                "pending, or messages that have ended: delivered, cancelled, expired, dead, or "
                "settled for all."
            ),
        ),
    ] = "pending",
    count: Annotated[
        bool, typer.Option("--count", help="Instead: count pending ones exactly, by target topic.")
    ] = False,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """List messages in the order of their due times, or count pending ones by target.

    Messages that have ended are kept for retention.delivered, cancelled ones at the time of their
    cancel; the archive has older ones.

    \b
    Examples:
      chronos list
      chronos list --from -2h --until +30m
      chronos list --target orders -n 500 -o json
      chronos list --id-prefix reminder- --header tenant=17
      chronos list --state settled --key customer-7 --from -1d
      chronos list --contains customer-42 --target 'mail*'
      chronos list --count
    """
    if count and state != "pending":
        raise typer.BadParameter("--count is for pending messages: leave --state out")
    if count:
        from chronos.cli.messages import bulk

        bulk.count(server, output, matching)
        return
    from chronos.cli.messages.listing import list_

    list_(server, output, matching, limit, state)


app.command()(cancel)
app.command()(reschedule)
app.command()(fire)
app.command()(pause)
app.command()(resume)
app.command()(jobs)


@app.command()
@with_connection
def tail(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="A topic.")],
    start: Annotated[
        str,
        typer.Option(
            "--from", metavar="beginning|end|OFFSET", help="Where to start.", show_default=True
        ),
    ] = "end",
    count: Annotated[
        int | None,
        typer.Option(
            "-n", "--count", callback=at_least(1), metavar="N", help="Stop after N records."
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition",
            callback=at_least(0),
            metavar="N",
            help="Only this partition; without it, all.",
        ),
    ] = None,
    headers: Annotated[
        bool, typer.Option("--headers", help="Also show offset, time, key and headers.")
    ] = False,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Follow a topic. With -o json, one record per line.

    The service reads it: on Kafka a topic of Chronos, or one that targets.allow permits and that
    Chronos has the permission to read.

    \b
    Examples:
      chronos tail orders
      chronos tail orders --from beginning -n 10 --headers
      chronos tail chronos.rejected --from beginning -o json
    """
    from chronos.cli.messages.listing import follow

    follow(server, output, topic, start=start, count=count, partition=partition, headers=headers)


@app.command()
@with_connection
def status(
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh the output every second.")
    ] = False,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Show the node, its shards, and how late messages were delivered.

    \b
    Examples:
      chronos status
      chronos status --watch
    """
    from chronos.cli.service.status import show

    show(server, output, watch=watch)


@app.command()
@with_connection
def whoami(
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Show the name of the token that is sent, and what it permits: roles, targets, ids and limits.

    \b
    Examples:
      chronos whoami
      chronos whoami -o json
    """
    from chronos.cli.service.status import show_token

    show_token(server, output)


@app.command()
@with_connection
def top(
    every: Annotated[
        str,
        typer.Option(
            "--every", metavar="DURATION", help="Time between two refreshes.", show_default=True
        ),
    ] = "1s",
    once: Annotated[
        bool, typer.Option("--once", help="Print the state once, as in a pipe, and end.")
    ] = False,
    server: Server = HERE,
) -> None:
    """Show the state of the service on a screen that is refreshed: nodes, shards, what is due,
    deliveries per second, lateness, and what is wrong with the next thing to do.

    Keys: q quits, p pauses and continues. While the service does not answer, the last state stays.
    Times are in the time zone of this machine (TZ=UTC for another one). In a pipe, and with --once,
    the state is printed once, after the second in which the rates are measured.

    \b
    Examples:
      chronos top
      chronos top --every 5s --server http://chronos-1:7700
      chronos top --once
    """
    from chronos.cli.service.top import show

    show(server, every_s=interval_s(every, "--every"), once=once)


@app.command()
@with_connection
def transfer(
    shard: Annotated[
        int | None,
        typer.Argument(callback=at_least(0), metavar="SHARD", help="Number of the shard."),
    ] = None,
    to: Annotated[
        str | None, typer.Argument(metavar="NODE", help="Node that becomes its master.")
    ] = None,
    drain: Annotated[
        str | None,
        typer.Option(
            "--drain", metavar="NODE", help="Instead: this node is no longer master of any shard."
        ),
    ] = None,
    undrain: Annotated[
        str | None, typer.Option("--undrain", metavar="NODE", help="Instead: end a drain.")
    ] = None,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Hand a shard over to another node, or all shards of a node to the others, without an outage.

    Before maintenance use --drain, and afterwards --undrain.

    \b
    Examples:
      chronos transfer 3 node-b
      chronos transfer --drain node-a
      chronos transfer --undrain node-a
    """
    from chronos.cli.messages import verbs

    given = [drain is not None, undrain is not None, shard is not None or to is not None]
    if sum(given) != 1 or (given[2] and (shard is None or to is None)):
        raise typer.BadParameter("give either SHARD and NODE, or --drain NODE, or --undrain NODE")
    if shard is not None:
        path = f"/v1/shards/{shard}/transfer?to={quote(to or '', safe='')}"
    else:
        path = (
            f"/v1/nodes/{quote(drain or undrain or '', safe='')}/{'drain' if drain else 'undrain'}"
        )
    verbs.transfer(server, output, path)


@app.command()
@with_connection
def forget(
    node: Annotated[
        str, typer.Argument(metavar="NODE", help="Node that is away and will not come back.")
    ],
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Forget a node that will not come back, for example a pod that has got another name.

    Its replicas are no longer listed, and the logs are no longer kept for it. After 7 days this
    happens without the command.

    \b
    Examples:
      chronos forget node-b
    """
    from chronos.cli.messages import verbs

    verbs.transfer(server, output, f"/v1/nodes/{quote(node, safe='')}/forget")


@app.command()
@with_connection
def rates(
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC", help="A target topic, or a pattern in quotes, such as 'orders.*'."
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Argument(
            metavar="RATE",
            help="200/s, '50/s burst 100' or unlimited; off removes what was set here.",
        ),
    ] = None,
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Show or change the rate limits of target topics, and show what waits.

    Without RATE: the limits in the order in which they are looked for, or the one in force for
    TOPIC, each with its source; then the lanes. With RATE: set a limit, which wins over the
    configuration, survives restarts and acts within a second.

    \b
    Examples:
      chronos rates
      chronos rates mail
      chronos rates mail '50/s burst 100'
      chronos rates 'orders.*' 200/s
      chronos rates mail off
    """
    from chronos.cli.service.status import change, show_rates

    if topic is None or rate is None:
        show_rates(server, output, topic)
    else:
        change(server, output, topic, rate)


app.add_typer(dead_letters_app, name="dead-letters")
app.add_typer(rejected_app, name="rejected")
app.add_typer(registry_app, name="registry")
app.add_typer(failover_app, name="failover")
app.add_typer(archive_app, name="archive")
app.add_typer(backfill_app, name="backfill")
app.command()(audit)
app.command()(restore)


@app.command()
def config(
    action: Annotated[
        str,
        typer.Argument(
            metavar="check|show", help="check: only check; show: also print the settings in effect."
        ),
    ],
    config: ConfigFile = None,
    settings: Settings = None,
    output: Output = Format.text,
) -> None:
    """Check the settings, or show those in effect with secrets masked. Exit code 2 if a setting is
    wrong.

    Settings come from the file, then CHRONOS_* variables, then --set. All mistakes are listed at
    once.

    \b
    Examples:
      chronos config check --config chronos.yaml
      chronos config show --set shards=8
    """
    if action not in ("check", "show"):
        raise typer.BadParameter(f"{action!r} is neither check nor show")
    from chronos.config import in_effect, load, show
    from chronos.errors import ConfigurationError

    try:
        found = load(config, os.environ, settings or [])
    except ConfigurationError as error:
        if output is Format.json:
            put_json({"ok": False, "problems": error.problems})
        raise
    if action == "check":
        if output is Format.json:
            put_json({"ok": True, "problems": []})
        else:
            print("the configuration is valid")
        return
    if output is Format.json:
        put_json(in_effect(found))
    else:
        sys.stdout.write(show(found))


@app.command()
@with_connection
def doctor(
    config: ConfigFile = None,
    settings: Settings = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            "--tokens",
            metavar="FILE",
            help="Check only this file of tokens: what each may do.",
        ),
    ] = None,
    output: Output = Format.text,
    server: NamedServer = None,
) -> None:
    """Find problems, and show the remedy for each.

    Asks the service of --server or CHRONOS_SERVER, without them the one that runs on this machine.
    Beside it, checks settings, tokens, cluster, data directory, disk, stores, brokers, topics,
    targets and clocks, also before the first start, and says what it could not check. If the
    service is stopped, every store is read and its checksums are verified. Use the same settings as
    for `serve`. Exit code 5 if a store is damaged, 3 if the log does not answer, 2 if topics or
    permissions are missing, 1 for other problems.

    \b
    Examples:
      chronos doctor
      chronos doctor --config /etc/chronos.yaml -o json
      chronos doctor --server http://chronos-1:7700
      chronos doctor --tokens /etc/chronos/tokens.yaml
    """
    from chronos.cli.service.doctor import examine

    examine(config, settings or [], output, tokens=tokens, server=server)


@app.command()
def version(output: Output = Format.text) -> None:
    """Show the versions of Chronos, of Python and of the main libraries.

    \b
    Examples:
      chronos version
      chronos version -o json
    """
    import platform
    from importlib import metadata

    from chronos import __version__

    libraries = {}
    for name in ("aiohttp", "confluent-kafka", "msgspec", "rocksdict"):
        try:
            libraries[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            libraries[name] = "missing"
    if output is Format.json:
        put_json({"chronos": __version__, "python": platform.python_version(), **libraries})
        return
    print(f"chronos {__version__}")
    rest = ", ".join(f"{name} {found}" for name, found in libraries.items())
    print(f"Python {platform.python_version()} on {platform.system()} {platform.machine()}, {rest}")
