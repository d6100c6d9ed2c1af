"""`chronos doctor`: checks everything a node needs, in the order in which it would fail, and names the remedy.

settings -> the cluster, if there is one -> data directory -> the service, if it runs -> disk -> stores -> log -> topics -> targets -> clocks
"""

import os
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import typer

from chronos.cli.doctor_cluster import examine_cluster
from chronos.cli.findings import Finding, failed, guarded, note, ok, problem
from chronos.cli.output import Format, number, printable, put_json, size
from chronos.errors import ChronosError, ConfigurationError, StoreInUse
from chronos.ports import CLOCK_TOLERANCE_MS

if TYPE_CHECKING:
    from chronos.config import Config
    from chronos.node import Node
    from chronos.ports import Store, TopicLog

ASK_S = 10.0
"""How long the log may take to answer."""

TARGETS_LOOK = 1_000
"""Messages, those due next, whose targets are checked."""

ONE_REPLICA = "a shard that delivers to such a topic waits while its broker is down"
"""The consequence (docs/concepts/laws.md, law 8)."""


def examine(path: str | None, overrides: list[str], output: Format) -> None:
    """Print every finding as it is made; the exit code is that of the most severe one."""
    findings = []
    for finding in _findings(path, overrides):
        findings.append(finding)
        if output is Format.text:
            _print(finding)
    worst = max((finding.exit_code for finding in findings), default=0)
    if output is Format.json:
        put_json({"ok": worst == 0, "findings": findings})
    elif worst == 0:
        print("\nno problems found")
    raise typer.Exit(worst)


def _print(finding: Finding) -> None:
    import sys

    sign, colour = {"ok": ("ok", "32"), "note": ("note", "33"), "problem": ("PROBLEM", "31")}[finding.verdict]
    sign = f"{sign:8}"
    if sys.stdout.isatty():
        sign = f"\033[{colour}m{sign}\033[0m"
    lines = finding.text.splitlines() or [""]
    print(sign, f"{finding.what}:", printable(lines[0]))
    for line in lines[1:]:
        print(" " * 9 + printable(line))


def _findings(path: str | None, overrides: list[str]) -> Iterator[Finding]:
    from chronos.config import load

    try:
        config = load(path, os.environ, overrides)
    except ConfigurationError as error:
        yield failed("settings", error)
        return
    yield ok("settings", path or "no file; variables, flags and defaults only")
    from chronos.logs import set_up
    from chronos.node import Node

    set_up("error", "console")
    node = Node(config)
    if config.coordinator.kind == "zookeeper":
        yield from examine_cluster(config, node.directory.known_instance())
    if not os.path.isdir(config.node.data_dir):
        yield note(
            "data directory", f"{config.node.data_dir} does not exist yet; the service creates it at its first start"
        )
        return
    try:
        node.directory.claim()
    except StoreInUse:
        yield ok("data directory", f"{config.node.data_dir} is in use by a running service")
        yield from _running(node, config)
        yield _disk(node, config)
        return
    except ChronosError as error:
        yield failed("data directory", error)
        return
    yield ok("data directory", f"{config.node.data_dir}, instance {node.instance}")
    try:
        yield _disk(node, config)
        yield from _stopped(node, config)
    finally:
        node.stop()


def _running(node: "Node", config: "Config") -> Iterator[Finding]:
    """The findings of a service that runs."""
    from chronos.client import Client, ClientError
    from chronos.node.opening import open_log

    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(config.admin.host, config.admin.host)
    try:
        with Client(f"http://{host}:{config.admin.port}", timeout_s=ASK_S, retries=1) as client:
            nodes, shards = client.ask("/v1/nodes")["nodes"], client.ask("/v1/shards")["shards"]
            due = client.ask("/v1/messages", limit=TARGETS_LOOK)["messages"]
    except ClientError as error:
        yield problem("service", f"the service is running, but {error}", exit_code=3)
        return
    here = nodes[0]
    if here["ready"]:
        yield ok("service", f"node {here['node']} is ready")
    for reason in here["reasons"]:
        yield problem("service", reason)
    for shard in shards:
        if shard["oldest_overdue_ms"] > 60_000:
            yield problem(
                f"shard {shard['shard']}",
                f"its next message is overdue by {number(shard['oldest_overdue_ms'] // 1_000)} s,"
                f" {number(shard['pending'])} are pending",
            )
    yield note("stores", "stores can be verified only while the service is stopped: run this command again then")
    if config.log.kind == "kafka":
        log = yield from guarded("log", lambda: open_log(config, node.directory, node.clock))
        if log is not None:
            try:
                yield from _targets(log, config, {page["target"]["topic"] for page in due if page["target"]})
            finally:
                log.close()


def _disk(node: "Node", config: "Config") -> Finding:
    free, reserve = node.disk_free_bytes(), config.limits.disk_reserve
    if free < reserve:
        return problem(
            "disk", f"{size(free)} free, less than limits.disk_reserve ({size(reserve)}); the service would pause"
        )
    return ok("disk", f"{size(free)} free, {size(reserve)} of them in reserve")


def _stopped(node: "Node", config: "Config") -> Iterator[Finding]:
    """The stores and the log, which no other process has open while this one holds the data directory."""
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
        found = yield from guarded(f"store of shard {number_}", partial(open_store, config, node.directory, number_))
        if found is None:
            continue
        stores[number_] = found
        rows = yield from guarded(f"store of shard {number_}", found.verify)
        if rows is None:
            found.close()
            del stores[number_]
        else:
            text = f"{folder}: {number(rows)} rows read, {size(found.size_bytes())}, all checksums match"
            yield ok(f"store of shard {number_}", text)
    if not os.path.isdir(os.path.join(config.node.data_dir, "shards")):
        yield note("stores", "there are no stores yet")


def _log(node: "Node", config: "Config", stores: "dict[int, Store]") -> Iterator[Finding]:
    from chronos.node.opening import open_log

    log = yield from guarded("log", lambda: open_log(config, node.directory, node.clock))
    if log is None:
        return
    node.log = log
    verify = getattr(log, "verify", None)
    if verify is not None:
        rows = yield from guarded("log", verify)
        if rows is not None:
            yield ok("log", f"embedded: {number(rows)} rows read, all checksums match")
    yield from _topics(node, config, stores)


def _store_folders(config: "Config") -> list[tuple[int, str]]:
    shards = os.path.join(config.node.data_dir, "shards")
    names = os.listdir(shards) if os.path.isdir(shards) else []
    numbers = sorted(int(name) for name in names if name.isdecimal() and int(name) < config.shards)
    return [(number_, os.path.join(shards, str(number_))) for number_ in numbers]


def due_targets(store: "Store") -> set[str]:
    """The targets of the messages that are due next in a store."""
    from chronos.core.codec import FRESH, unpack_state
    from chronos.core.keys import STATE_KEY
    from chronos.core.query import page
    from chronos.core.timefmt import MS_MAX

    (data,) = store.get([STATE_KEY])
    state = FRESH if data is None else unpack_state(data)
    rows, _ = page(store, state, 0, after=None, due_from_ms=0, due_to_ms=MS_MAX + 1, target=None, limit=TARGETS_LOOK)
    return {row.entry.target for row in rows}


def _topics(node: "Node", config: "Config", stores: "dict[int, Store]") -> Iterator[Finding]:
    from chronos.node.opening import check_identity, identity, own_topics

    names = [config.topics.delay, config.topics.progress, config.topics.rejected, config.topics.dead_letter]
    infos = yield from guarded("log", lambda: node.log.describe(names))
    if infos is None:
        return
    missing = [name for name in names if (info := infos[name]) is None or info.id == ""]
    if missing:
        will = "the service creates them" if config.topics.create else "topics.create is off: create them"
        text = f"missing: {', '.join(missing)}; {will}"
        yield note("topics", text) if config.topics.create else problem("topics", text, exit_code=2)
        return
    prepared = yield from guarded("topics", lambda: node.log.prepare(own_topics(config), create=False))
    if prepared is None:
        return
    yield ok("topics", f"{', '.join(names)}: {config.shards} partitions each")
    if config.log.kind == "kafka":
        single = [name for name in names if (info := infos[name]) is not None and info.replicas == 1]
        if single:
            yield note("topics", f"one replica only: {', '.join(single)}; {ONE_REPLICA}")
        yield from _targets(node.log, config, {target for store in stores.values() for target in due_targets(store)})
    for number_, store in stores.items():
        mine, path = identity(config, number_, prepared), node.directory.store(number_)
        yield from guarded(f"store of shard {number_}", partial(check_identity, store, mine, path))
    yield from _clock(node, config)


def _targets(log: "TopicLog", config: "Config", targets: set[str]) -> Iterator[Finding]:
    """The targets of the messages that are due next: they exist, and have more than one replica."""
    if not targets:
        return
    infos = yield from guarded("targets", lambda: log.describe(sorted(targets)))
    if infos is None:
        return
    missing = sorted(name for name, info in infos.items() if info is None)
    if missing and not config.delivery.create_topics:
        yield note("targets", f"missing: {', '.join(missing)}; messages for them become dead letters; create them")
    single = sorted(name for name, info in infos.items() if info is not None and info.replicas == 1)
    if single:
        yield note("targets", f"one replica only: {', '.join(single)}; {ONE_REPLICA}")
    if not missing and not single:
        yield ok("targets", f"{', '.join(sorted(targets))}: they exist and are replicated")


def _clock(node: "Node", config: "Config") -> Iterator[Finding]:
    """The broker's timestamp of a probe, which is not delivered, against the clock of this machine."""
    if config.log.kind == "embedded":
        yield ok("clock", "the embedded log's clock is this machine's own")
        return
    before_ms = node.clock.now_ms()
    probe = (config.topics.delay, None, None, {"chronos-action": b"probe"}, 0)
    appended = yield from guarded("clock", lambda: node.log.append([probe], ASK_S))
    if appended is None:
        return
    stamp_ms, after_ms = appended[0].timestamp_ms, node.clock.now_ms()
    apart_ms = max(before_ms - stamp_ms, stamp_ms - after_ms, 0)
    if apart_ms > CLOCK_TOLERANCE_MS:
        yield problem(
            "clock",
            f"the broker's and this machine's differ by {number(apart_ms)} ms; nothing is delivered while they"
            f" differ by more than {CLOCK_TOLERANCE_MS} ms: check NTP on both",
        )
        return
    yield ok("clock", f"within {number(apart_ms)} ms of the broker's")
