"""`chronos restore`: what was pending at the archive's end, in a new service. It is a backfill of
mode `pending` under conditions of its own (`spark.backfill.restore`), with the ledger of all
backfills: an unfinished one is resumed by the same command."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import typer
from msgspec import Struct

from chronos.cli.options import ClusterOptions, SparkOptions, confirm
from chronos.cli.output import Format, note, number, printable, put, put_json, size, span, table
from chronos.cli.spark.archive import settings_of
from chronos.cli.spark.audit import parse_moment
from chronos.cli.spark.backfill import TARGETS_SHOWN, as_json, source
from chronos.core.timefmt import format_time
from chronos.errors import ArchiveFailed, LogUnavailable

if TYPE_CHECKING:
    from chronos.config import Config
    from chronos.spark.backfill.job import Backfill
    from chronos.spark.backfill.sending import KafkaSource
    from chronos.spark.ledger import BackfillReport, BackfillRun
    from chronos.spark.request import BackfillRequest
    from chronos.spark.storage import ArchiveStorage

_confirm = partial(confirm, shown="plan", done="sent")


class RestoreOptions(Struct, frozen=True, kw_only=True):
    """The options of a restore, as they were given."""

    old_cluster: str | None = None
    """The path of the settings of the archived service, if it was on other brokers."""
    old_cluster_is_gone: bool = False
    lost_at: str | None = None
    repeat_unknown: bool = False
    ignore_expiry: bool = False
    dry_run: bool = False
    yes: bool = False


def run(
    output: Format, options: SparkOptions, cluster: ClusterOptions, asked: RestoreOptions
) -> None:
    """Check both services, complete an unfinished restore or plan one, ask, and send."""
    from chronos.spark.session import need_spark

    need_spark()
    from chronos.spark.runs import check_format, no_archive
    from chronos.spark.storage import ArchiveStorage

    config, now_ms = settings_of(cluster), time.time_ns() // 1_000_000
    lost_ms = None if asked.lost_at is None else parse_moment(asked.lost_at, now_ms, "--lost-at")
    storage = ArchiveStorage(options.location)
    claim = check_format(storage)
    if claim is None:
        raise no_archive(storage)
    try:
        with source(config, cluster.reader, "--kafka") as to:
            # Before Spark starts, which takes seconds, and again once no other run can begin.
            is_begun = _check_destination(storage, config, to) is not None
            newest_ms = _stopped_at(storage.uri, claim, to, asked, now_ms)
            if lost_ms is None and newest_ms is None and not is_begun:
                note(
                    "the time of the loss is not known, so that it counts as now: messages that "
                    "were due since may be left out. Give it as --lost-at TIME"
                )
            known_ms = newest_ms or now_ms
            request = _request(config, asked, known_ms if lost_ms is None else lost_ms)
            _restore(output, options, (config, to), request, asked, newest_ms)
    except KeyboardInterrupt:
        note("stopped; the archive records what was sent: the same command sends the rest")
        raise typer.Exit(1) from None


def _request(config: "Config", asked: RestoreOptions, lost_ms: int) -> "BackfillRequest":
    from chronos.spark.request import BackfillRequest

    # The destination is empty, so that nothing was sent to it before, whatever was sent elsewhere.
    return BackfillRequest(
        mode="pending",
        purpose=f"restore-{time.time_ns()}",
        lost_ms=lost_ms,
        deduplication_ms=config.retention.deduplication,
        repeat_unknown=asked.repeat_unknown,
        expired=asked.ignore_expiry,
        options=["restore"],
    )


def _check_destination(
    storage: "ArchiveStorage", config: "Config", to: "KafkaSource"
) -> "BackfillRun | None":
    """The restore to complete; ArchiveFailed if another run is unfinished, or there is none and the
    topics to restore to are not empty."""
    from chronos.spark import ledger
    from chronos.spark.backfill.restore import check_empty

    for name in ledger.runs(storage):
        left = ledger.load_run(storage, name)
        if left is None or left.state not in ("sending", "cancelling"):
            continue
        if not left.request.is_restore or left.topic != config.topics.delay:
            raise ArchiveFailed(
                f"run {left.run} to {left.topic} is unfinished: complete it with the command that "
                f"began it, or end it with `chronos backfill cancel {left.run}`"
            )
        return left
    check_empty(to.brokers, [config.topics.delay, config.topics.progress])
    return None


def _stopped_at(
    location: str, claim: dict[str, Any], to: "KafkaSource", asked: RestoreOptions, now_ms: int
) -> int | None:
    """When the archived service wrote its newest progress record, epoch ms; None: it is gone, or
    wrote none. ArchiveFailed if it may still run."""
    from chronos.spark.archive.job import CLUSTER_ID, check_cluster_id
    from chronos.spark.backfill.restore import check_stopped, newest_ms

    topic, newest = claim["topics"]["progress"], None
    with _old_brokers(claim.get(CLUSTER_ID), to, asked) as brokers:
        if brokers is None and not asked.old_cluster_is_gone:
            raise ArchiveFailed(
                f"{location} was archived from other brokers: give the settings of the archived "
                "service as --old-cluster, so that it is known to have stopped, or accept it with "
                "--old-cluster-is-gone"
            )
        if brokers is not None:
            check_cluster_id(location, claim, brokers.cluster_id(), any_cluster=False)
            try:
                newest = newest_ms(brokers, topic)
            except LogUnavailable:
                if not asked.old_cluster_is_gone:
                    raise
    if not asked.old_cluster_is_gone:
        check_stopped(topic, newest, now_ms)
    return newest


@contextmanager
def _old_brokers(archived: str | None, to: "KafkaSource", asked: RestoreOptions) -> Iterator[Any]:
    """The brokers of the archived service; None if they cannot be asked."""
    if asked.old_cluster is not None:
        options = ClusterOptions(
            config=asked.old_cluster, settings=[], reader=[], other_cluster=False
        )
        # Variables of the environment name the new cluster.
        with source(settings_of(options, environ={}), [], "--kafka") as old:
            yield old.brokers
    else:
        yield to.brokers if archived in (None, to.brokers.cluster_id()) else None


def _restore(
    output: Format,
    options: SparkOptions,
    new: tuple["Config", "KafkaSource"],
    request: "BackfillRequest",
    asked: RestoreOptions,
    newest_ms: int | None,
) -> None:
    """Complete an unfinished restore; without one, create the topics, plan, ask and send.
    `newest_ms`: the time of the newest progress record of the archived service, if its topics can
    be read."""
    from chronos.cli.spark.jobs import spark_job
    from chronos.node.opening import open_bulk
    from chronos.node.topics import own_topics
    from chronos.ports import TopicInfo
    from chronos.spark.backfill.job import Backfill
    from chronos.spark.backfill.sending import BackfillContext
    from chronos.spark.storage import ArchiveStorage

    (config, to), topics = new, own_topics(new[0])
    with spark_job("restore", options) as (spark, display, _):
        context = BackfillContext(
            spark=spark,
            storage=ArchiveStorage(options.location),
            archived=to,
            to=to,
            opener=open_bulk(config),
            watch=display,
        )
        job = Backfill(
            context,
            delay_topic=config.topics.delay,
            other_cluster=True,
            not_created=TopicInfo(
                id="",
                partitions=config.shards,
                leaderless=frozenset(),
                bytes_max=int(topics[0].settings["max.message.bytes"]),
            ),
        )
        with job.locked():
            left = _check_destination(context.storage, config, to)
            if left is not None:
                _complete(job, left, output, asked, display.pause)
                return
            job.unfinished()  # plans that never began are removed
            if not asked.dry_run:
                to.brokers.prepare(topics, create=config.topics.create)  # type: ignore[attr-defined]
            _send(job, request, output, asked, newest_ms, display.pause)


def _complete(
    job: "Backfill",
    left: "BackfillRun",
    output: Format,
    asked: RestoreOptions,
    pause: Callable[[], None],
) -> None:
    """Send the rest of an unfinished restore; `pause` takes the progress off the terminal."""
    pause()
    what = f"restore {left.run} of {number(left.total)} messages and ids is unfinished"
    if asked.dry_run:
        note(f"{what}; it would be completed")
        return
    _confirm(f"{what}: send the rest?", yes=asked.yes)
    report = job.send(left)
    pause()
    _show_end(output, report)


def _send(
    job: "Backfill",
    request: "BackfillRequest",
    output: Format,
    asked: RestoreOptions,
    newest_ms: int | None,
    pause: Callable[[], None],
) -> None:
    planned = job.plan(request)
    pause()
    try:
        if output is Format.text:
            _show_plan(planned)
        if newest_ms is not None and planned.archived_ms < newest_ms:
            note(
                "the topics of the archived service can still be read: `chronos archive` with its "
                "settings, and this command again, restores what was sent since too"
            )
        if asked.dry_run or not planned.messages:
            if output is Format.json:
                put_json(_json(planned))
            job.discard(planned)
            return
        messages, ids = number(planned.messages - planned.settled), number(planned.settled)
        _confirm(f"send {messages} messages and {ids} ids to {job.to}?", yes=asked.yes)
        run = job.begin(planned)
    except BaseException:
        job.discard(planned)
        raise
    note(f"run {run.run} begins")
    report = job.send(run)
    pause()
    _show_end(output, report)


def _json(report: "BackfillReport") -> dict[str, Any]:
    """The object that `-o json` prints: times as RFC 3339, ids as text."""
    lost_ms = report.request.lost_ms
    assert lost_ms is not None
    found = as_json(report)
    own: tuple[str, ...] = (
        "run",
        "state",
        "targets",
        "absent_targets",
        "samples",
        "bytes",
        "expired",
    )
    own += ("too_large", "judged", "archived", "planned", "ended", "attempts")
    return {
        **{name: found[name] for name in own},
        "messages": report.messages - report.settled,
        "settled": report.settled,
        "lost": format_time(lost_ms),
        "lag_ms": _lag_ms(report),
        "unknown": report.unknown,
        "unknown_left_out": report.unknown_left_out,
        "unarchived_targets": report.unarchived_targets,
    }


def _lag_ms(report: "BackfillReport") -> int | None:
    """How long before the loss the archive ends, ms; None: it has no end."""
    assert report.request.lost_ms is not None
    if not report.archived_ms:
        return None
    return max(0, report.request.lost_ms - report.archived_ms)


def _show_plan(report: "BackfillReport") -> None:
    from rich.console import Group
    from rich.text import Text

    lag_ms, lost_ms = _lag_ms(report), report.request.lost_ms
    assert lost_ms is not None
    lines = ["the archive has no end: it never held every partition of the delay topic"]
    if lag_ms is not None:
        lines = [
            f"the archive ends at {format_time(report.archived_ms)}, {span(lag_ms / 1_000)} "
            f"before the loss at {format_time(lost_ms)}: what was sent after it is lost"
        ]
    lines.append(
        f"to restore: {number(report.messages - report.settled)} messages, {size(report.bytes)} of "
        f"payload, and {number(report.settled)} ids as delivered"
    )
    if report.unknown:
        how = "left out (--repeat-unknown)"
        if report.unknown_left_out < report.unknown:
            rest = number(report.unknown - report.unknown_left_out)
            how = f"{number(report.unknown_left_out)} left out, {rest} repeated"
        lines.append(
            f"due between the archive's end and the loss, or overdue at its end, so that they may "
            f"have been delivered: {number(report.unknown)}, {how}"
        )
    if report.expired:
        lines.append(
            f"past their chronos-expire-at, left out: {number(report.expired)} (--ignore-expiry)"
        )
    if report.too_large:
        lines.append(
            f"larger than the delay topic's max.message.bytes, left out: {number(report.too_large)}"
        )
    if report.unarchived_targets:
        names = ", ".join(map(printable, report.unarchived_targets[:TARGETS_SHOWN]))
        lines.append(f"targets that were not archived: {names}")
    rows = [
        (printable(name), number(count))
        for name, count in list(report.targets.items())[:TARGETS_SHOWN]
    ]
    parts: list[Any] = [*map(Text, lines)]
    if rows:
        parts += [Text(""), table([("TARGET", "left"), ("MESSAGES", "right")], rows)]
    put(Group(*parts))
    if report.absent_targets:
        names = ", ".join(map(printable, report.absent_targets[:TARGETS_SHOWN]))
        note(
            f"the brokers have no topic {names}: create it first, or its messages are dead letters"
        )


def _show_end(output: Format, report: "BackfillReport") -> None:
    if output is Format.json:
        put_json(_json(report))
        return
    put(
        f"run {report.run} restored {number(report.messages - report.settled)} messages and "
        f"{number(report.settled)} ids: start the service"
    )
