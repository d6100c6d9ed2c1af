"""`chronos archive` and `chronos archive compact`."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from chronos.cli.output import Format, note, number, put, put_json, table
from chronos.config import Config, load
from chronos.config.values import size_bytes
from chronos.core.timefmt import parse_duration_ms
from chronos.errors import ConfigurationError, Retry
from chronos.logs import set_up


def settings_of(path: str | None, overrides: Sequence[str], location: str | None) -> tuple[Config, str]:
    """The cluster's settings and the archive's place; ConfigurationError unless both are there."""
    if location is None:
        raise typer.BadParameter("say where the archive lies: --location URI, or the variable CHRONOS_ARCHIVE")
    config = load(path, os.environ, list(overrides))
    if config.log.kind != "kafka":
        raise ConfigurationError(
            ["log.kind: the archive reads a Kafka cluster, and this is the embedded log; give --config, or"
             " --set log.kind=kafka --set log.kafka.bootstrap_servers=..."]
        )  # fmt: skip
    set_up("warning", config.logging.format)
    return config, location


def pairs(given: Sequence[str], option: str) -> dict[str, str]:
    """`KEY=VALUE` options as a mapping."""
    found = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{option} {each}: write KEY=VALUE")
        found[key] = value
    return found


def java_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """What Spark's reader can use of the service's librdkafka properties: those that both clients name alike."""
    alike = ("security.protocol", "client.id")
    return {f"kafka.{name}": value for name, value in properties.items() if name in alike}


def run(
    path: str | None,
    overrides: list[str],
    output: Format,
    *,
    location: str | None,
    targets: str,
    all_records: bool,
    every: str | None,
    batch_records: int,
    reader: list[str],
    master: str,
    conf: list[str],
) -> None:
    """One run, or one after the other."""
    config, location = settings_of(path, overrides, location)
    pause_s = 0.0
    if every is not None:
        try:
            pause_s = parse_duration_ms(every) / 1000
        except ValueError as error:
            raise typer.BadParameter(f"--every: {error}") from None
    reading = {f"kafka.{key}": value for key, value in pairs(reader, "--kafka").items()}
    from chronos.spark.session import need_spark, open_session

    need_spark()
    from chronos.node.opening import open_kafka
    from chronos.spark.archive.job import Plan, archive
    from chronos.spark.storage import Place

    assert config.log.kafka.bootstrap_servers is not None
    plan = Plan(
        cluster=config.cluster,
        bootstrap_servers=config.log.kafka.bootstrap_servers,
        delay=config.topics.delay,
        progress=config.topics.progress,
        rejected=config.topics.rejected,
        dead_letter=config.topics.dead_letter,
        targets=[name for name in targets.split(",") if name],
        all_records=all_records,
        batch_records=batch_records,
        reader={**java_properties(config.log.kafka.properties), **reading},
    )
    place = Place(location)
    brokers = open_kafka(config)
    try:
        brokers.names()  # Spark takes seconds to start, and longer to say that a broker is gone.
        spark = open_session("archive", master, pairs(conf, "--conf"))
        try:
            while True:
                try:
                    _show(archive(spark, brokers, place, plan, _progress), output)
                except Retry as error:
                    if every is None:
                        raise
                    note(f"{error}\ntrying again in {every}")
                if every is None:
                    return
                time.sleep(pause_s)
        except KeyboardInterrupt:
            note("stopped; the next run goes on from here")
        finally:
            spark.stop()
    finally:
        brokers.close()


def _progress(stream: str, records: int, total: int) -> None:
    ending = "\r" if sys.stderr.isatty() and records < total else "\n"
    print(
        f"{stream}: {number(records)} of {number(max(records, total))} offsets", end=ending, file=sys.stderr, flush=True
    )


def _show(done: list[Any], output: Format) -> None:
    if output is Format.json:
        put_json({"tables": done})
        return
    rows = [
        (each.table, number(each.records), str(each.batches), str(each.gaps) if each.gaps else "-") for each in done
    ]
    put(table([("table", "left"), ("records", "right"), ("batches", "right"), ("gaps", "right")], rows))
    if any(each.gaps for each in done):
        note("gaps: records that were gone before they were archived; the table `offsets` says where")


def tidy(output: Format, *, location: str, file_bytes: str, master: str, conf: list[str]) -> None:
    """Few files of many."""
    try:
        wanted = size_bytes(file_bytes)
    except ValueError as error:
        raise typer.BadParameter(f"--file-size: {error}") from None
    set_up("warning", "auto")
    from chronos.spark.session import need_spark, open_session

    need_spark()
    from chronos.spark.archive.compact import compact
    from chronos.spark.storage import Place

    place = Place(location)
    # It reads no Kafka: without a word of ours Spark would fetch the connector.
    spark = open_session("archive compact", master, {"spark.jars": "", **pairs(conf, "--conf")})
    try:
        done = compact(spark, place, wanted, note)
    finally:
        spark.stop()
    if output is Format.json:
        put_json({"tables": done})
        return
    rows = [(each.table, number(each.files_before), number(each.files_after)) for each in done]
    put(table([("table", "left"), ("files before", "right"), ("after", "right")], rows))
