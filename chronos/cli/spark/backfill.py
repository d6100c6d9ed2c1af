"""`chronos backfill`: archived messages sent again in bulk, once the plan is accepted, or with
`--yes`. An unfinished run is resumed first; a run can be given another rate, or be
cancelled."""

import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import typer
from msgspec import Struct

from chronos.cli.options import ClusterOptions, SparkOptions, confirm
from chronos.cli.output import Format, note, number, printable, put, put_json, size, table
from chronos.cli.spark.archive import header_pairs, java_properties, pairs, settings_of
from chronos.cli.spark.audit import LOST, parse_window
from chronos.client import NotFound
from chronos.client.requests import delay_ms
from chronos.core.message import REASON_LABELS
from chronos.core.shard.rules import TOPIC_NAME
from chronos.core.timefmt import format_time
from chronos.errors import ArchiveFailed

if TYPE_CHECKING:
    from chronos.cli.spark.jobs import ProgressDisplay
    from chronos.config import Config
    from chronos.spark.backfill.job import Backfill
    from chronos.spark.backfill.sending import KafkaSource
    from chronos.spark.ledger import BackfillReport, BackfillRun
    from chronos.spark.request import BackfillRequest
    from chronos.spark.storage import ArchiveStorage

TARGETS_SHOWN = 20
"""Targets shown on the terminal; `-o json` has all of the report."""

PARTITIONS_SHOWN = 40
"""Partitions of gone messages shown on the terminal; `-o json` has all of the report."""

RUNS_NAMED = 3
"""Runs that are named to somebody who names one that is not there."""

_confirm = partial(confirm, shown="plan", done="sent")

PURPOSE = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)


class BackfillOptions(Struct, frozen=True, kw_only=True):
    """The options that say what is sent, and how, as they were given."""

    modes: dict[str, bool]
    start: str | None
    end: str | None
    targets: list[str]
    headers: list[str]
    ids: list[str]
    purpose: str
    over: str | None
    rate: float | None
    direct: bool
    expired: bool
    compacted: bool = False
    to_topic: str | None = None
    to_cluster: str | None = None
    reasons: list[str] = []


class ToCluster(Struct, frozen=True, kw_only=True):
    """The options that name another Kafka cluster to send to."""

    config: str | None = None
    """The path of its service's settings; None: the archived cluster."""
    reader: list[str] = []
    """`KEY=VALUE` for Spark's Kafka source."""


class RunOptions(Struct, frozen=True, kw_only=True):
    """The options that say how far the command goes."""

    yes: bool = False
    dry_run: bool = False
    beyond_archive: bool = False
    resume: bool = False


def request_of(asked: BackfillOptions) -> "BackfillRequest":
    """The request that the options make; typer.BadParameter if they contradict each other."""
    from chronos.admin.http.encoding import id_bytes
    from chronos.spark.request import BackfillRequest

    now_ms = time.time_ns() // 1_000_000
    mode = _mode(asked.modes)
    _check(mode, asked)
    try:
        over_ms = None if asked.over is None else delay_ms(asked.over)
        wanted_headers = header_pairs(asked.headers)
        wanted_ids = [id_bytes(each).hex() for each in asked.ids]
    except ValueError as error:
        raise typer.BadParameter(f"--over or --id: {error}") from None
    from_ms, to_ms = parse_window(asked.start, asked.end, now_ms)
    options = [mode, f"{asked.start}", f"{asked.end}", *asked.targets, *asked.headers, *asked.ids]
    options += [asked.purpose, *map(str, (asked.over, asked.rate, asked.direct, asked.expired))]
    options += ["compacted"] if asked.compacted else []
    options += [f"reason={reason}" for reason in asked.reasons]
    options += [] if asked.to_topic is None else [f"to-topic={asked.to_topic}"]
    options += [] if asked.to_cluster is None else [f"to-cluster={asked.to_cluster}"]
    return BackfillRequest(
        mode=mode,
        from_ms=from_ms,
        to_ms=to_ms,
        targets=asked.targets,
        headers=wanted_headers,
        ids=wanted_ids,
        purpose=asked.purpose,
        direct=asked.direct,
        over_ms=over_ms,
        rate=asked.rate,
        expired=asked.expired,
        compacted=asked.compacted,
        to_topic=asked.to_topic,
        reasons=asked.reasons,
        options=options,
    )


def _mode(modes: dict[str, bool]) -> str:
    chosen = [mode for mode, is_chosen in modes.items() if is_chosen]
    if len(chosen) > 1:
        raise typer.BadParameter(
            "choose one of --missing-only, --all, --gone, --pending, --dead-letters and --rejected"
        )
    return chosen[0] if chosen else "missing"


def _check(mode: str, asked: BackfillOptions) -> None:
    """Raise typer.BadParameter if options contradict each other."""
    if mode == "gone" and not asked.targets:
        raise typer.BadParameter("--gone needs --target: it reads the whole of each target")
    if mode == "all" and asked.start is None:
        raise typer.BadParameter("--all needs --from: everything due since then is sent again")
    if asked.reasons and mode not in ("dead-letters", "rejected"):
        raise typer.BadParameter("--reason needs --dead-letters or --rejected")
    if mode == "rejected" and not asked.reasons:
        raise typer.BadParameter("--rejected needs --reason: most rejected records stay wrong")
    for reason in asked.reasons:
        if reason not in REASON_LABELS:
            raise typer.BadParameter(f"--reason {printable(reason)}: no such reason")
    if PURPOSE.fullmatch(asked.purpose) is None:
        raise typer.BadParameter("--purpose: 1 to 64 letters, digits, dots, dashes and underscores")
    if asked.over is not None and asked.rate is not None:
        raise typer.BadParameter("choose one of --over and --rate")
    if mode == "pending" and asked.to_cluster is not None:
        raise typer.BadParameter(
            "--pending restores messages: give the settings of the new cluster as --config, not as "
            "--to-cluster"
        )
    if asked.to_topic is not None:
        if mode == "pending":
            raise typer.BadParameter("--pending restores messages for their targets: no --to-topic")
        if TOPIC_NAME.fullmatch(asked.to_topic) is None:
            raise typer.BadParameter("--to-topic: give the name of one topic")
    if mode == "pending" and (asked.over is not None or asked.rate is not None or asked.direct):
        raise typer.BadParameter(
            "--pending keeps due times: it cannot be combined with --over, --rate or --direct"
        )
    if asked.rate is not None:
        _check_rate("--rate", asked.rate)


def _check_rate(name: str, rate: float) -> None:
    if not 0 < rate < math.inf:
        raise typer.BadParameter(f"{name}: give more than 0 messages per second")


def run(
    output: Format,
    options: SparkOptions,
    cluster: ClusterOptions,
    to: ToCluster,
    asked: BackfillOptions,
    run_options: RunOptions,
) -> None:
    """End an unfinished run first; then plan, ask for confirmation and send."""
    from chronos.spark.session import need_spark

    need_spark()
    request = request_of(asked)
    try:
        with _job(options, cluster, to) as (job, config, to_config, display):
            if request.mode != "pending" and (job.cluster, job.topic) != (
                config.cluster,
                config.topics.delay,
            ):
                raise ArchiveFailed(
                    f"{options.location} is the archive of {job.cluster} with {job.topic}, not of "
                    f"{config.cluster} with {config.topics.delay}: choose another --location, or "
                    "the --config of that cluster"
                )
            topics = to_config.topics
            own = (topics.delay, topics.progress, topics.rejected, topics.dead_letter)
            if request.to_topic in (*own, topics.cluster):
                raise typer.BadParameter(f"--to-topic {request.to_topic}: a topic of Chronos's own")
            with job.locked():
                left = job.unfinished()
                if left is not None:
                    display.pause()
                    _end(job, left, request, output, run_options, display.pause)
                elif run_options.resume:
                    display.pause()
                    note("there is no unfinished run")
                if not run_options.resume:
                    _replay(job, request, output, run_options, display.pause)
    except KeyboardInterrupt:
        note(
            "stopped; the archive records what was sent: the same command sends the rest, "
            "`chronos backfill cancel` ends the run"
        )
        raise typer.Exit(1) from None


@contextmanager
def _job(
    options: SparkOptions, cluster: ClusterOptions, to: ToCluster
) -> Iterator[tuple["Backfill", "Config", "Config", "ProgressDisplay"]]:
    """The backfills of an archive, with the settings of its service, and of the one to send to."""
    config = settings_of(cluster)
    to_config = config
    if to.config is not None:
        # Variables of the environment name the archived cluster.
        to_config = settings_of(
            ClusterOptions(config=to.config, settings=[], reader=[], other_cluster=False),
            environ={},
        )
    from chronos.cli.spark.jobs import spark_job
    from chronos.node.opening import open_bulk
    from chronos.spark.backfill.job import Backfill
    from chronos.spark.backfill.sending import BackfillContext
    from chronos.spark.storage import ArchiveStorage

    with ExitStack() as stack:
        archived = to_source = stack.enter_context(source(config, cluster.reader, "--kafka"))
        if to.config is not None:
            to_source = stack.enter_context(source(to_config, to.reader, "--to-kafka"))
            if to_source.brokers.cluster_id() == archived.brokers.cluster_id():
                raise typer.BadParameter(
                    f"--to-cluster {to.config} names the Kafka cluster of --config"
                )
        with spark_job("backfill", options) as (spark, display, _):
            context = BackfillContext(
                spark=spark,
                storage=ArchiveStorage(options.location),
                archived=archived,
                to=to_source,
                opener=open_bulk(to_config),
                watch=display,
            )
            job = Backfill(
                context,
                delay_topic=to_config.topics.delay,
                other_cluster=cluster.other_cluster,
            )
            yield job, config, to_config, display


@contextmanager
def source(config: "Config", reader: list[str], option: str) -> Iterator["KafkaSource"]:
    """The Kafka cluster of the settings, with Spark's options to read it. LogUnavailable if no
    broker answers."""
    from chronos.node.opening import open_kafka
    from chronos.spark.backfill.sending import KafkaSource

    kafka = config.log.kafka
    assert kafka.bootstrap_servers is not None
    reading = {f"kafka.{key}": value for key, value in pairs(reader, option).items()}
    brokers = open_kafka(config)
    try:
        # A broker that is gone is found at once; Spark takes seconds to start and longer to fail.
        brokers.names()
        yield KafkaSource(
            brokers=brokers,
            options={
                "kafka.bootstrap.servers": kafka.bootstrap_servers,
                **java_properties(kafka.properties),
                **reading,
            },
        )
    finally:
        brokers.close()


def cancel(
    output: Format,
    options: SparkOptions,
    cluster: ClusterOptions,
    to: ToCluster,
    name: str,
    *,
    yes: bool,
) -> None:
    """Ask for confirmation, let the command end that sends the run, and cancel it."""
    from chronos.spark.session import need_spark

    need_spark()
    from chronos.spark import ledger
    from chronos.spark.storage import ArchiveStorage

    storage = ArchiveStorage(options.location)
    run = run_named(storage, name)
    if run.request.direct and run.state == "done":
        note(f"run {name} was sent straight to its targets: nothing can be cancelled")
        raise typer.Exit(1)
    if run.state != "cancelled":
        rest = "" if run.state == "done" else ", and leave the rest unsent"
        confirm(
            f"run {name} of {number(run.total)} messages: cancel what is pending{rest}?",
            yes=yes,
            done="cancelled",
        )
    began_s = time.monotonic()
    try:
        with _job(options, cluster, to) as (job, _, _, display):
            job.check_cluster(run)
            if run.state == "sending":
                # The command that sends the run holds the lock, and ends.
                ledger.ask_to_cancel(storage, name)
            with job.locked():
                report = job.cancel(run_named(storage, name))
            display.pause()
    except KeyboardInterrupt:
        note("stopped; run the same command again")
        raise typer.Exit(1) from None
    _show_end(report, output, time.monotonic() - began_s)


def change_rate(output: Format, location: str, name: str, rate: float) -> None:
    """Record a new rate of a run; no Spark is started, and the run itself reads it."""
    _check_rate("N", rate)
    from chronos.spark.session import need_spark

    need_spark()
    from chronos.spark import ledger
    from chronos.spark.backfill.pace import change_from_ms
    from chronos.spark.storage import ArchiveStorage

    storage = ArchiveStorage(location)
    run = run_named(storage, name)
    if run.request.rate is None:
        raise typer.BadParameter(f"run {name} was not started with --rate")
    if run.state != "sending":
        note(f"run {name} has ended: {run.state}")
        raise typer.Exit(1)
    from_ms = change_from_ms(time.time_ns() // 1_000_000, direct=run.request.direct)
    ledger.change_rate(storage, name, from_ms, rate)
    if output is Format.json:
        put_json({"run": name, "rate": rate, "from": format_time(from_ms)})
    else:
        put(f"run {name} sends {rate:g} messages per second from {format_time(from_ms)} on")


def run_named(storage: "ArchiveStorage", name: str) -> "BackfillRun":
    """The run of that name; NotFound if there is none that began to send."""
    from chronos.spark import ledger

    names = ledger.runs(storage)
    run = ledger.load_run(storage, name) if name in names else None
    if run is None:
        last = f"; the last ones are {', '.join(names[-RUNS_NAMED:])}" if names else ""
        raise NotFound(f"{storage.uri} has no run {printable(name)}{last}")
    return run


def _end(
    job: "Backfill",
    left: "BackfillRun",
    request: "BackfillRequest",
    output: Format,
    run_options: RunOptions,
    pause: Callable[[], None] = lambda: None,
) -> None:
    """Resume an unfinished run; `pause` takes the progress off the terminal."""
    job.check_wanted(left)
    job.check_cluster(left)
    what = f"run {left.run} of {number(left.total)} messages is unfinished"
    if run_options.dry_run:
        note(f"{what}; it would be resumed first")
        return
    if not run_options.resume and left.request.options != request.options:
        raise typer.BadParameter(
            f"{what}, and was started with other options; end it first: --resume sends the rest, "
            f"`chronos backfill cancel {left.run}` leaves it unsent"
        )
    _confirm(f"{what}: send the rest?", yes=run_options.yes)
    began_s = time.monotonic()
    report = job.send(left)
    pause()
    _show_end(report, output, time.monotonic() - began_s)


def _replay(
    job: "Backfill",
    request: "BackfillRequest",
    output: Format,
    run_options: RunOptions,
    pause: Callable[[], None] = lambda: None,
) -> None:
    """Plan, ask and send; the time that is shown is that of planning and sending, without the time
    to answer."""
    from chronos.spark.audit.job import EmptyWindow

    began_s = time.monotonic()
    try:
        planned = job.plan(request)
    except EmptyWindow as error:
        raise typer.BadParameter(str(error)) from None
    plan_s = time.monotonic() - began_s
    pause()
    try:
        if output is Format.text:
            _show_plan(planned)
        if not run_options.dry_run:
            check_end(planned, beyond_archive=run_options.beyond_archive)
        if run_options.dry_run or not planned.messages:
            if output is Format.json:
                put_json(as_json(planned))
            job.discard(planned)
            return
        _confirm(
            f"send {number(planned.messages)} messages{_how(planned.request)}?", yes=run_options.yes
        )
        began_s = time.monotonic()
        run = job.begin(planned)
    except BaseException:
        job.discard(planned)
        raise
    note(f"run {run.run} begins")
    report = job.send(run)
    pause()
    _show_end(report, output, plan_s + time.monotonic() - began_s)


def check_end(report: "BackfillReport", *, beyond_archive: bool) -> None:
    """Raise typer.BadParameter if the window ends after the archive's end: what is due there may
    not be in the plan."""
    if ends_early(report) and not beyond_archive:
        raise typer.BadParameter(
            f"{_archive_end(report)}: messages that are due after it may be left out. Run "
            "`chronos archive` first, give an earlier --to, or accept it with --beyond-archive"
        )


def ends_early(report: "BackfillReport") -> bool:
    """True if the archive ends before the window of a plan does; the window of --pending is all
    times."""
    request, end_ms = report.request, report.archived_ms
    return request.mode != "pending" and request.to_ms is not None and request.to_ms > end_ms


def _archive_end(report: "BackfillReport") -> str:
    from chronos.spark.audit.job import before_window

    return before_window(report.archived_ms)


def _how(request: "BackfillRequest") -> str:
    """The way a replay takes, and its pace, as the end of a question."""
    if request.direct:
        how = f" straight to {request.to_topic or 'their targets'}, at least once"
    elif request.mode == "pending":
        how = " to the delay topic with their own due times"
    else:
        how = " through the delay topic"
        how += "" if request.to_topic is None else f" to {request.to_topic}"
    if request.to_cluster is not None:
        how += f" in the Kafka cluster {request.to_cluster}"
    if request.rate is not None:
        return f"{how}, {request.rate:g} per second"
    return how if request.over_ms is None else f"{how}, spread over {request.over_ms / 1_000:g} s"


def as_json(report: "BackfillReport") -> dict[str, Any]:
    """The object that `-o json` prints: times as RFC 3339, ids as text."""
    from chronos.admin.http.encoding import id_text

    request = report.request
    return {
        "run": report.run,
        "state": report.state,
        "mode": request.mode,
        "purpose": request.purpose,
        "direct": request.direct,
        "to_topic": request.to_topic,
        "to_cluster": request.to_cluster,
        "from": _time(request.from_ms),
        "to": _time(request.to_ms),
        "messages": report.messages,
        "bytes": report.bytes,
        "sent_before": report.sent_before,
        "expired": report.expired,
        "too_large": report.too_large,
        "no_target": report.no_target,
        "compacted": report.compacted,
        "first_due": _time(report.first_due_ms),
        "last_due": _time(report.last_due_ms),
        "outcomes": report.outcomes,
        "targets": report.targets,
        "absent_targets": report.absent_targets,
        "samples": [
            {
                "source": each.source,
                "id": id_text(each.id),
                "target": each.target,
                "outcome": each.outcome,
                "due": _time(each.due_ms),
                "bytes": each.bytes,
            }
            for each in report.samples
        ],
        "judged": report.judged,
        "archived": _time(report.archived_ms or None),
        "changed_targets": report.changed_targets,
        "gone": [
            {
                "target": each.target,
                "partition": each.partition,
                "deleted": each.deleted,
                "lost": each.lost,
                "log_start": each.log_start,
            }
            for each in report.gone
        ],
        "planned": _time(report.planned_ms),
        "ended": _time(report.ended_ms),
        "attempts": report.attempts,
        "cancels": report.cancels,
    }


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else format_time(at_ms)


def _show_plan(report: "BackfillReport") -> None:
    from rich.console import Group
    from rich.text import Text

    from chronos.admin.http.encoding import id_text

    request = report.request
    assert request.from_ms is not None
    assert request.to_ms is not None
    parts: list[Any] = [
        Text(
            f"{request.mode}: messages due from {format_time(request.from_ms)} to "
            f"{format_time(request.to_ms)}"
        ),
        Text(f"to send: {number(report.messages)}, {size(report.bytes)} of payload"),
        Text(
            f"sent before for the purpose {request.purpose}"
            f"{request.destination and f' to {request.destination}'}: "
            f"{number(report.sent_before)}"
        ),
    ]
    if ends_early(report):
        parts.append(
            Text(
                f"{_archive_end(report)}: messages that are due after it may be left out", "yellow"
            )
        )
    if report.expired:
        parts.append(
            Text(
                f"past their chronos-expire-at, left out: {number(report.expired)} "
                "(--ignore-expiry)"
            )
        )
    if report.too_large:
        parts.append(
            Text(
                f"larger than their topic's max.message.bytes, left out: {number(report.too_large)}"
            )
        )
    if report.no_target:
        parts.append(
            Text(
                "without a target topic, or without a key for a compacted one, left out: "
                f"{number(report.no_target)}"
            )
        )
    if report.compacted:
        parts.append(
            Text(
                "for compacted targets, where they would replace newer records, left out: "
                f"{number(report.compacted)} (--compacted)"
            )
        )
    parts += map(Text, other_modes(report))
    if report.gone:
        columns = [
            ("TARGET", "left"),
            ("PARTITION", "right"),
            ("DELETED", "right"),
            ("LOST", "right"),
            ("BEGINS AT", "right"),
        ]
        rows_of_partitions = [
            (
                printable(each.target),
                _known(each.partition),
                number(each.deleted),
                number(each.lost),
                _known(each.log_start),
            )
            for each in report.gone[:PARTITIONS_SHOWN]
        ]
        parts += [Text(""), table(columns, rows_of_partitions)]
        if len(report.gone) > PARTITIONS_SHOWN:
            parts.append(
                Text(
                    f"and {number(len(report.gone) - PARTITIONS_SHOWN)} more partitions: see -o "
                    "json"
                )
            )
        if any(each.deleted for each in report.gone):
            parts.append(
                Text(
                    "deleted: before the partition's first offset, by retention or trimming; "
                    "--from leaves them out"
                )
            )
    if report.messages:
        rows = [
            (printable(name), number(count))
            for name, count in list(report.targets.items())[:TARGETS_SHOWN]
        ]
        parts += [Text(""), table([("TARGET", "left"), ("MESSAGES", "right")], rows)]
        if len(report.targets) > TARGETS_SHOWN:
            parts.append(
                Text(f"and {number(len(report.targets) - TARGETS_SHOWN)} more targets: see -o json")
            )
        rows_of = [
            (
                each.source,
                printable(id_text(each.id)),
                printable(each.target),
                each.outcome,
                format_time(each.due_ms),
                size(each.bytes),
            )
            for each in report.samples
        ]
        columns = [
            ("SOURCE", "left"),
            ("ID", "left"),
            ("TARGET", "left"),
            ("OUTCOME", "left"),
            ("DUE", "left"),
            ("PAYLOAD", "right"),
        ]
        parts += [Text(""), table(columns, rows_of)]
    put(Group(*parts))
    if report.absent_targets:
        names = ", ".join(printable(name) for name in report.absent_targets[:TARGETS_SHOWN])
        consequence = "is left out" if request.direct else "becomes a dead letter"
        note(
            f"the brokers have no topic {names}: create it first; otherwise each of its messages "
            f"{consequence}"
        )


def other_modes(report: "BackfillReport") -> list[str]:
    """One line for each kind of message of the window that another mode would find."""
    lines, judged, mode = [], report.judged, report.request.mode
    if mode != "gone":
        for name, what in report.changed_targets.items():
            lines.append(
                f"{printable(name)} {LOST[what]}: --gone --target {printable(name)} finds what "
                "was lost with it"
            )
    if mode == "missing" and judged.get("delivered"):
        lines.append(
            f"delivered when they were archived, not sent: {number(judged['delivered'])} (--gone "
            "--target TOPIC compares with what the target holds now)"
        )
    if mode == "missing" and judged.get("unknown"):
        lines.append(
            f"unknown, not sent: {number(judged['unknown'])} (--gone --target TOPIC sends those "
            "that are not in their target)"
        )
    if mode in ("missing", "all", "gone") and judged.get("pending"):
        lines.append(
            f"pending, not sent: {number(judged['pending'])} (run `chronos archive` again; after "
            "a loss of all disks: --pending)"
        )
    return lines


def _known(number_: int | None) -> str:
    return "?" if number_ is None else number(number_)


def _show_end(report: "BackfillReport", output: Format, seconds: float) -> None:
    """`seconds` is the time this command took, without the time it waited for an answer."""
    if output is Format.json:
        put_json(as_json(report))
        return
    what = f"sent {number(report.messages)} messages"
    if report.state == "cancelled":
        what = f"was cancelled after it {what}, with {number(report.cancels)} cancels"
    put(
        f"run {report.run} {what} in {seconds:.1f} s"
        f"{f', {report.attempts} attempts' if report.attempts > 1 else ''}"
    )
