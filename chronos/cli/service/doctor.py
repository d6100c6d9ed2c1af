"""`chronos doctor`: checks of what a node needs, with the remedy for each problem.

The order, which is not that of a start: settings, tokens, open files, time zones, certificates, the
cluster (if there is one), data directory, disk, stores, log, topics, targets, clocks; last the
service that `--server` names. If a service uses the data directory, the stores are not read: that
service is asked instead, unless `--server` names one, and the disk is examined after the clocks.

Kafka, its topics and its clocks are examined before the first start, while the service runs, and
while it is stopped; stores and the embedded log only while it is stopped. No message, topic or role
is created or changed. The data directory is locked meanwhile, and gets an id if it has none. One
probe record is written to Kafka, which is never delivered."""

import os
from collections.abc import Generator, Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import typer

from chronos.admin.http.tokens import Sender, parse_tokens
from chronos.cli.output import Format, number, printable, put_json, size
from chronos.cli.service.doctor_cluster import examine_cluster
from chronos.cli.service.doctor_kafka import examine_kafka
from chronos.cli.service.doctor_service import ASK_S, due_targets, examine_service
from chronos.cli.service.findings import (
    Finding,
    failed,
    guarded,
    note,
    ok,
    problem,
    unchecked,
)
from chronos.errors import ChronosError, ConfigurationError, StoreInUse
from chronos.zones import VERSION as ZONE_DATA

if TYPE_CHECKING:
    from chronos.config import Config
    from chronos.node import Node
    from chronos.ports import Store, TopicInfo


def examine(
    path: str | None,
    overrides: list[str],
    output: Format,
    *,
    tokens: str | None = None,
    server: str | None = None,
) -> None:
    """Print every finding as it is made; the exit code is that of the most severe one.

    `tokens`: the only file to examine. `server`: a service to ask first; without it, the one that
    uses this machine's data directory."""
    findings = []
    for finding in _findings(path, overrides, server) if tokens is None else examine_tokens(tokens):
        if finding in findings:
            continue  # The service and the coordinator show the same.
        findings.append(finding)
        if output is Format.text:
            _print(finding)
    worst = max((finding.exit_code for finding in findings), default=0)
    if output is Format.json:
        put_json({"ok": worst == 0, "findings": findings})
    elif worst == 0:
        missed = ", ".join(dict.fromkeys(finding.what for finding in findings if finding.unchecked))
        print("\nno problems found" + (f"; not checked: {missed}" if missed else ""))
    raise typer.Exit(worst)


def _print(finding: Finding) -> None:
    import sys

    sign, colour = {"ok": ("ok", "32"), "note": ("note", "33"), "problem": ("PROBLEM", "31")}[
        finding.verdict
    ]
    sign = f"{sign:8}"
    if sys.stdout.isatty():
        sign = f"\033[{colour}m{sign}\033[0m"
    lines = finding.text.splitlines() or [""]
    print(sign, f"{finding.what}:", printable(lines[0]))
    for line in lines[1:]:
        print(" " * 9 + printable(line))


def _findings(path: str | None, overrides: list[str], server: str | None) -> Iterator[Finding]:
    """1. The settings, 2. this machine, by them, 3. the service that was named."""
    said: list[Finding] = []
    asked = None if server is None else _collected(_named_service(server), said)
    yield from _here(path, overrides, server, asked)
    yield from said


def _collected(
    findings: Generator[Finding, None, dict[str, Any] | None], into: list[Finding]
) -> dict[str, Any] | None:
    """Put findings into a list; returns what the generator does."""
    while True:
        try:
            into.append(next(findings))
        except StopIteration as end:
            return cast("dict[str, Any] | None", end.value)


def _here(
    path: str | None, overrides: list[str], server: str | None, asked: dict[str, Any] | None
) -> Iterator[Finding]:
    """The settings, and this machine, by them. `asked`: what the named service said of itself."""
    from chronos.config import load

    try:
        config = load(path, os.environ, overrides)
    except ConfigurationError as error:
        yield failed("settings", error)
        return
    yield ok("settings", path or "no file; variables, flags and defaults only")
    if config.admin.tokens is not None:
        yield from examine_tokens(config.admin.tokens)
    yield _open_files(config)
    yield ok("time zones", f"IANA {ZONE_DATA}, of the package tzdata on this machine")
    from chronos.logs import set_up
    from chronos.node import Node

    set_up("error", "console")
    node = Node(config)
    for text in node.tls.refused:
        yield note("certificates", text)
    if config.coordinator.kind != "standalone":
        yield from examine_cluster(config, node.directory.known_instance())
    if (
        server is not None
        and config.log.kind != "kafka"
        and asked is not None
        and asked["log"] == "kafka"
    ):
        yield unchecked(
            "log",
            "the service uses Kafka, and the settings here name no brokers: brokers, topics, "
            "targets and their clocks. Give its settings (--config)",
        )
    if not os.path.isdir(config.node.data_dir):
        if server is None:
            yield note(
                "data directory",
                (
                    f"{config.node.data_dir} does not exist yet; the service creates it at its "
                    "first start"
                ),
            )
            yield from _switched_off(node)
        else:
            yield unchecked(
                "data directory, disk, stores",
                (
                    f"{config.node.data_dir} is not on this machine; run the command on each "
                    "node, with its settings (--config)"
                ),
            )
        if config.log.kind == "kafka":
            yield from examine_kafka(
                config, node.clock, lambda: set() if asked is None else asked["due_targets"]
            )
        return
    try:
        node.directory.claim()
    except StoreInUse:
        yield ok("data directory", f"{config.node.data_dir} is in use by a running service")
        yield unchecked(
            "stores",
            "stores can be verified only while the service is stopped: run this command again then",
        )
        if server is None:
            yield from _running(node, config)
        elif config.log.kind == "kafka":
            yield from examine_kafka(
                config, node.clock, lambda: set() if asked is None else asked["due_targets"]
            )
        yield _disk(node, config)
        return
    except ChronosError as error:
        yield failed("data directory", error)
        return
    yield ok("data directory", f"{config.node.data_dir}, instance {node.instance}")
    try:
        yield from _switched_off(node)
        yield _disk(node, config)
        yield from _stopped(node, config)
    finally:
        node.stop()


def _named_service(server: str) -> Generator[Finding, None, dict[str, Any] | None]:
    """The findings of the service that the command was told of; returns what it says of the node
    asked, and the targets due next."""
    from chronos.cli.output import connect
    from chronos.client import ClientError

    try:
        with connect(server) as client:
            asked = yield from examine_service(client, copies="masters")
            return None if asked is None else asked | {"due_targets": due_targets(client)}
    except ClientError as error:
        yield problem("service", str(error), exit_code=error.exit_code)
        return None


def _running(node: "Node", config: "Config") -> Iterator[Finding]:
    """The findings of a service that runs from this machine's data directory."""
    from chronos.client import Client
    from chronos.node.tls import client_tls

    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(config.admin.host, config.admin.host)
    address = f"http://{host}:{config.admin.port}"
    if config.admin.tls.certificate is not None:
        # The certificate is for a name, which `admin.advertised` has.
        address = config.admin.advertised or f"https://{host}:{config.admin.port}"
    targets: set[str] = set()
    with Client(address, timeout_s=ASK_S, retries=1, tls=client_tls(config)) as client:
        if (yield from examine_service(client, copies="own")) is not None:
            targets = due_targets(client)
    if config.log.kind == "kafka":
        yield from examine_kafka(config, node.clock, lambda: targets)


def _switched_off(node: "Node") -> Iterator[Finding]:
    """Return the functions that the settings switch off; a running node reports them itself."""
    for text in node.switched_off:
        yield note("settings", text)


def _open_files(config: "Config") -> Finding:
    """The limit of a process that is started as this one is."""
    from chronos.node.descriptors import needed, too_few

    if (problem_ := too_few(config)) is not None:
        return problem("open files", problem_, exit_code=2)
    return ok(
        "open files",
        (
            f"{config.shards} shards need {number(needed(config))}, and a process may open as "
            "many here"
        ),
    )


def _disk(node: "Node", config: "Config") -> Finding:
    free, reserve = node.disk_free_bytes(), config.limits.disk_reserve
    if free < reserve:
        return problem(
            "disk",
            (
                f"{size(free)} free, less than limits.disk_reserve ({size(reserve)}); the service "
                "would pause"
            ),
        )
    return ok("disk", f"{size(free)} free, {size(reserve)} of them in reserve")


def _stopped(node: "Node", config: "Config") -> Iterator[Finding]:
    """The stores and the log, which no other process has open while this one holds the data
    directory."""
    stores: dict[int, Store] = {}
    try:
        yield from _stores(node, config, stores)
        yield from _log(node, config, stores)
    finally:
        for store in stores.values():
            store.close()


def _stores(node: "Node", config: "Config", stores: "dict[int, Store]") -> Iterator[Finding]:
    """Read all of each store; those that can be read stay open."""
    from chronos.node.opening import open_store

    for number_, folder in _store_folders(config):
        found = yield from guarded(
            f"store of shard {number_}", partial(open_store, config, node.directory, number_)
        )
        if found is None:
            continue
        stores[number_] = found
        rows = yield from guarded(f"store of shard {number_}", found.verify)
        if rows is None:
            found.close()
            del stores[number_]
        else:
            text = (
                f"{folder}: {number(rows)} rows read, {size(found.size_bytes())}, all checksums "
                "match"
            )
            yield ok(f"store of shard {number_}", text)
    if not os.path.isdir(os.path.join(config.node.data_dir, "shards")):
        yield note("stores", "there are no stores yet")


def _log(node: "Node", config: "Config", stores: "dict[int, Store]") -> Iterator[Finding]:
    """The log, and that each store belongs to its topics."""
    from chronos.node.opening import check_identity, identity

    if config.log.kind == "kafka":
        from chronos.workers.step.targets import due_targets

        due = lambda: {target for store in stores.values() for target in due_targets(store)}  # noqa: E731
        infos = yield from examine_kafka(config, node.clock, due)
    else:
        infos = yield from _embedded(node, config)
    if config.topics.delay not in infos or config.topics.progress not in infos:
        return
    for number_, store in stores.items():
        mine, path = identity(config, number_, infos), node.directory.store(number_)
        yield from guarded(f"store of shard {number_}", partial(check_identity, store, mine, path))


def _embedded(node: "Node", config: "Config") -> Generator[Finding, None, "dict[str, TopicInfo]"]:
    """Read all of the embedded log; return the descriptions of its own topics, empty if one is
    missing."""
    from chronos.node.opening import open_embedded
    from chronos.node.topics import own_topics

    log = yield from guarded("log", lambda: open_embedded(config, node.directory, node.clock))
    if log is None:
        return {}
    with closing(log):
        rows = yield from guarded("log", log.verify)
        if rows is not None:
            yield ok("log", f"embedded: {number(rows)} rows read, all checksums match")
        specs = own_topics(config)
        described = log.describe([spec.name for spec in specs])
        missing = [name for name, info in described.items() if info is None or info.id == ""]
        if missing and config.topics.create:
            yield note(
                "topics",
                f"missing: {', '.join(missing)}; the service creates them at its first start",
            )
            return {}
        prepared = yield from guarded("topics", lambda: log.prepare(specs, create=False))
        if prepared is None:
            return {}
        yield ok("topics", f"{', '.join(prepared)}: {config.shards} partitions each")
        yield ok("clock", "the embedded log's clock is this machine's own")
        return prepared


def _store_folders(config: "Config") -> list[tuple[int, str]]:
    shards = os.path.join(config.node.data_dir, "shards")
    names = os.listdir(shards) if os.path.isdir(shards) else []
    numbers = sorted(int(name) for name in names if name.isdecimal() and int(name) < config.shards)
    return [(number_, os.path.join(shards, str(number_))) for number_ in numbers]


def examine_tokens(path: str) -> Iterator[Finding]:
    """Findings of one file."""
    try:
        with open(path, "rb") as file:
            found = parse_tokens(file.read())
    except OSError as error:
        yield problem("tokens", f"{path} cannot be read: {error.strerror}", exit_code=2)
        return
    except ValueError as error:
        yield problem("tokens", f"{path} {error}", exit_code=2)
        return
    for sender in found.senders.values():
        yield ok("tokens", _meaning(sender))
        if "*" not in sender.targets and "*" in sender.ids and "write" in sender.roles:
            yield note(
                "tokens",
                f"{sender.name} may write every id: it can take and replace the ids of others",
            )


def _meaning(sender: Sender) -> str:
    roles = ", ".join(sorted(sender.roles))
    return f"{sender.name}: {roles}; targets {' '.join(sender.targets)}; ids {' '.join(sender.ids)}"
