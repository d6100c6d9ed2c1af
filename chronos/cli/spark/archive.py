"""`chronos archive` and its verbs `compact`, `verify` and `find`; and the reading of options that
`backfill` and `jobs` use too: the settings, `KEY=VALUE` pairs, and Java properties."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from msgspec import Struct

from chronos.cli.options import ClusterOptions, SparkOptions
from chronos.cli.output import Format, local, note, number, printable, put, put_json, table
from chronos.config import Config, load
from chronos.config.values import size_bytes
from chronos.core.timefmt import format_time
from chronos.errors import ConfigurationError
from chronos.logs import set_up

if TYPE_CHECKING:
    from chronos.cli.spark.follow import FollowOptions
    from chronos.spark.audit.job import FoundDeliveries
    from chronos.spark.session import Watch
    from chronos.spark.storage import ArchiveStorage


def settings_of(options: ClusterOptions, environ: Mapping[str, str] = os.environ) -> Config:
    """The cluster's configuration; ConfigurationError if the log is not Kafka."""
    config = load(options.config, environ, options.settings)
    if config.log.kind != "kafka":
        raise ConfigurationError(
            [
                "log.kind: the archive reads a Kafka cluster, not the embedded log; give --config, "
                "or --set log.kind=kafka --set log.kafka.bootstrap_servers=..."
            ]
        )
    set_up("warning", config.logging.format)
    return config


def pairs(given: Sequence[str], option: str) -> dict[str, str]:
    """`KEY=VALUE` options as a mapping."""
    found = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{option} {each}: write KEY=VALUE")
        found[key] = value
    return found


def header_pairs(given: Sequence[str]) -> list[tuple[str, str]]:
    """`--header NAME=VALUE` options; a name may be repeated."""
    return [pair for each in given for pair in pairs([each], "--header").items()]


def java_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """The librdkafka properties that the Java client has under the same name, as options of Spark's
    Kafka source."""
    shared = ("security.protocol", "client.id")
    return {f"kafka.{name}": value for name, value in properties.items() if name in shared}


@contextmanager
def archive_job(
    verb: str, options: SparkOptions, stopped: str
) -> "Iterator[tuple[Any, ArchiveStorage, Watch]]":
    """Spark, the archive and the display of progress of a verb that asks no broker. Ctrl-C ends it
    with exit code 1 and the text `stopped`."""
    set_up("warning", "auto")
    from chronos.spark.session import need_spark

    need_spark()
    from chronos.cli.spark.jobs import spark_job
    from chronos.spark.storage import ArchiveStorage

    storage = ArchiveStorage(options.location)
    try:
        with spark_job(verb, options, kafka=False) as (spark, display, _):
            yield spark, storage, display
    except KeyboardInterrupt:
        note(stopped)
        raise typer.Exit(1) from None


def run(
    output: Format,
    options: SparkOptions,
    cluster: ClusterOptions,
    *,
    targets: str | None,
    all_records: bool,
    batch_records: int,
    follow: "FollowOptions | None",
) -> None:
    """Run the archive once, or again and again until a signal."""
    config = settings_of(cluster)
    reading = {f"kafka.{key}": value for key, value in pairs(cluster.reader, "--kafka").items()}
    from chronos.spark.session import need_spark

    need_spark()
    from chronos.cli.spark.jobs import spark_job
    from chronos.node.opening import open_kafka
    from chronos.spark.archive.job import ArchivePlan, archive
    from chronos.spark.storage import ArchiveStorage

    assert config.log.kafka.bootstrap_servers is not None
    plan = ArchivePlan(
        cluster=config.cluster,
        bootstrap_servers=config.log.kafka.bootstrap_servers,
        delay=config.topics.delay,
        progress=config.topics.progress,
        rejected=config.topics.rejected,
        dead_letter=config.topics.dead_letter,
        targets=None if targets is None else [name for name in targets.split(",") if name],
        all_records=all_records,
        batch_records=batch_records,
        other_cluster=cluster.other_cluster,
        reader={**java_properties(config.log.kafka.properties), **reading},
    )
    if follow is not None:
        from chronos.cli.spark.follow import follow_logs

        follow_logs(output, options, config, plan, follow)
        return
    storage = ArchiveStorage(options.location)
    brokers = open_kafka(config)
    try:
        # A broker that is gone is found at once; Spark takes seconds to start and longer to fail.
        brokers.names()
        with spark_job("archive", options) as (spark, display, _):
            done = archive(spark, brokers, storage, plan, display)
            display.pause()
            show_done(done, output)
    except KeyboardInterrupt:
        note("stopped; the next run continues here")
        raise typer.Exit(1) from None
    finally:
        brokers.close()


def show_done(done: list[Any], output: Format) -> None:
    """Print the counts of a run by table."""
    if output is Format.json:
        put_json({"tables": done})
        return
    rows = [
        (each.table, number(each.records), str(each.batches), str(each.gaps) if each.gaps else "-")
        for each in done
    ]
    put(
        table(
            [("table", "left"), ("records", "right"), ("batches", "right"), ("gaps", "right")], rows
        )
    )
    if any(each.gaps for each in done):
        note(
            "gaps: records that were deleted before they were archived, or topics that lost "
            "archived ones; the table `offsets` names them with the reason"
        )


def compact_archive(output: Format, options: SparkOptions, *, file_bytes: str) -> None:
    """Compact the archive: a few large files in place of many small ones."""
    try:
        wanted = size_bytes(file_bytes)
    except ValueError as error:
        raise typer.BadParameter(f"--file-size: {error}") from None
    stopped = "stopped; the archive is as it was, and the next compaction begins again"
    with archive_job("archive compact", options, stopped) as (spark, storage, display):
        from chronos.spark.archive.compact import compact

        done = compact(spark, storage, wanted, display)
    if output is Format.json:
        put_json({"tables": done})
        return
    rows = [(each.table, number(each.files_before), number(each.files_after)) for each in done]
    put(table([("table", "left"), ("files before", "right"), ("after", "right")], rows))


def verify_archive(output: Format, options: SparkOptions) -> None:
    """Look for lost files of the archive, and read all of them; exit code 1 if one is lost or
    cannot be read."""
    stopped = "stopped; the archive was not verified"
    with archive_job("archive verify", options, stopped) as (spark, storage, display):
        from chronos.spark.archive.verify import verify

        found = verify(spark, storage, display)
    if output is Format.json:
        put_json(found)
    else:
        for problem in found.problems:
            put(problem)
        if not found.problems:
            put(f"whole: {number(found.files)} files with {number(found.rows)} rows")
    if found.problems:
        raise typer.Exit(1)


class FindOptions(Struct, frozen=True, kw_only=True):
    """The conditions of the messages that are looked for, as they were given."""

    ids: list[str]
    id_prefix: str
    targets: list[str]
    headers: list[str]
    start: str | None
    end: str | None


def ask_archive(options: SparkOptions, wanted: FindOptions, limit: int) -> "FoundDeliveries":
    """Return the archived messages that match, and their outcomes."""
    from chronos.admin.http.encoding import id_bytes
    from chronos.cli.spark.audit import parse_window
    from chronos.spark.request import BackfillRequest

    now_ms = time.time_ns() // 1_000_000
    try:
        ids = [id_bytes(each).hex() for each in wanted.ids]
    except ValueError as error:
        raise typer.BadParameter(f"ID: {error}") from None
    from_ms, to_ms = parse_window(wanted.start, wanted.end, now_ms)
    request = BackfillRequest(
        mode="all",
        from_ms=from_ms,
        to_ms=to_ms,
        targets=wanted.targets,
        headers=header_pairs(wanted.headers),
        ids=ids,
    )
    stopped = "stopped; nothing was found so far"
    with archive_job("archive find", options, stopped) as (spark, storage, display):
        from chronos.spark.audit.job import EmptyWindow, find

        try:
            return find(
                spark,
                storage,
                request,
                id_prefix=wanted.id_prefix,
                limit=limit,
                now_ms=now_ms,
                watch=display,
            )
        except EmptyWindow as error:
            raise typer.BadParameter(str(error)) from None


def put_found(found: "FoundDeliveries", output: Format) -> None:
    """Print the messages found in the archive; exit code 1 if there are none."""
    if output is Format.json:
        put_json(found_json(found))
    else:
        show_found(found)
    if not found.deliveries:
        raise typer.Exit(1)


def found_json(found: "FoundDeliveries") -> dict[str, object]:
    """Return the messages found in the archive as values for JSON."""
    from chronos.admin.http.encoding import id_text

    return {
        "from": None if found.span is None else format_time(found.span.from_ms),
        "to": None if found.span is None else format_time(found.span.to_ms),
        "messages": [
            {
                "id": None if each.id is None else id_text(each.id),
                "target": each.target,
                "outcome": each.outcome,
                "reason": each.reason,
                "due_at": format_time(each.due_ms),
                "accepted_at": None if each.accepted_ms is None else format_time(each.accepted_ms),
                "delivered_at": None
                if each.delivered_ms is None
                else format_time(each.delivered_ms),
                "shard": each.shard,
                "offset": each.offset,
                "occurrence": each.occurrence,
                "attempt": each.attempt,
            }
            for each in found.deliveries
        ],
        "has_more": found.has_more,
    }


def show_found(found: "FoundDeliveries") -> None:
    """Print the messages found in the archive as a table."""
    from chronos.admin.http.encoding import id_text

    if found.deliveries:
        columns = [
            ("id", "left"),
            ("target", "left"),
            ("due", "left"),
            ("outcome", "left"),
            ("delivered", "left"),
        ]
        put(
            table(
                columns,
                [
                    (
                        "-" if each.id is None else printable(id_text(each.id)),
                        printable(each.target or "-"),
                        local(format_time(each.due_ms)),
                        each.outcome if each.reason is None else f"{each.outcome} ({each.reason})",
                        "-" if each.delivered_ms is None else local(format_time(each.delivered_ms)),
                    )
                    for each in found.deliveries
                ],
            )
        )
    which = "archived messages"
    if found.span is not None:
        which = f"messages due {format_time(found.span.from_ms)} to {format_time(found.span.to_ms)}"
    note(f"{number(len(found.deliveries))} of the {which}")
    if found.has_more:
        note("there are more: give a greater --limit, or a shorter window")
