"""`chronos doctor`: looks at everything a node needs, in the order in which it would fail, and says what to do.

settings -> data directory -> the service, if it runs -> disk -> stores -> log -> topics -> clocks
"""

import os
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import typer
from msgspec import Struct

from chronos.cli.output import Format, number, printable, put_json, size
from chronos.errors import ChronosError, ConfigurationError, Retry, StoreCorrupt, StoreInUse

if TYPE_CHECKING:
    from chronos.config import Config
    from chronos.node import Node
    from chronos.ports import Store

CLOCK_TOLERANCE_MS = 500
"""How far the broker's clock may differ (law 2)."""

ASK_S = 10.0
"""How long the log may take to answer."""


T = TypeVar("T")


class Finding(Struct, frozen=True, kw_only=True):
    """What one look found."""

    what: str
    verdict: str
    """ok, note, or problem."""
    text: str
    exit_code: int = 0


def examine(path: str | None, overrides: list[str], output: Format) -> None:
    """Print every finding as it is made; the exit code is that of the gravest."""
    findings = []
    for finding in _findings(path, overrides):
        findings.append(finding)
        if output is Format.text:
            _print(finding)
    worst = max((finding.exit_code for finding in findings), default=0)
    if output is Format.json:
        put_json({"ok": worst == 0, "findings": findings})
    elif worst == 0:
        print("\nnothing is wrong")
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
        yield _problem("settings", error)
        return
    yield Finding(what="settings", verdict="ok", text=path or "no file; variables, flags and defaults only")
    from chronos.logs import set_up
    from chronos.node import Node

    set_up("error", "console")
    if not os.path.isdir(config.node.data_dir):
        yield Finding(
            what="data directory", verdict="note",
            text=f"{config.node.data_dir} is not there yet; the service makes it at its first start",
        )  # fmt: skip
        return
    node = Node(config)
    try:
        node.directory.claim()
    except StoreInUse:
        yield Finding(
            what="data directory", verdict="ok", text=f"{config.node.data_dir} is in use by a running service"
        )
        yield from _running(config)
        yield _disk(node, config)
        return
    except ChronosError as error:
        yield _problem("data directory", error)
        return
    yield Finding(what="data directory", verdict="ok", text=f"{config.node.data_dir}, instance {node.instance}")
    try:
        yield _disk(node, config)
        yield from _stopped(node, config)
    finally:
        node.stop()


def _running(config: "Config") -> Iterator[Finding]:
    """What the service says about itself."""
    from chronos.client import Client, ClientError

    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(config.admin.host, config.admin.host)
    try:
        with Client(f"http://{host}:{config.admin.port}", timeout_s=ASK_S, retries=1) as client:
            nodes, shards = client.ask("/v1/nodes")["nodes"], client.ask("/v1/shards")["shards"]
    except ClientError as error:
        yield Finding(what="service", verdict="problem", text=f"it runs, but: {error}", exit_code=3)
        return
    for node in nodes:
        if node["ready"]:
            yield Finding(what="service", verdict="ok", text=f"node {node['node']} is ready")
        for reason in node["reasons"]:
            yield Finding(what="service", verdict="problem", text=reason, exit_code=1)
    for shard in shards:
        if shard["oldest_overdue_ms"] > 60_000:
            yield Finding(
                what=f"shard {shard['shard']}", verdict="problem", exit_code=1,
                text=f"its next message is overdue by {number(shard['oldest_overdue_ms'] // 1_000)} s,"
                f" {number(shard['pending'])} are pending",
            )  # fmt: skip
    yield Finding(
        what="stores", verdict="note",
        text="they can only be read and verified while the service is stopped; run this again then",
    )  # fmt: skip


def _disk(node: "Node", config: "Config") -> Finding:
    free, reserve = node.disk_free_bytes(), config.limits.disk_reserve
    if free < reserve:
        return Finding(
            what="disk", verdict="problem", exit_code=1,
            text=f"{size(free)} free, less than limits.disk_reserve ({size(reserve)}): the service would stand still",
        )  # fmt: skip
    return Finding(what="disk", verdict="ok", text=f"{size(free)} free, {size(reserve)} of them in reserve")


def _stopped(node: "Node", config: "Config") -> Iterator[Finding]:
    """The stores and the log, which are ours while we hold the data directory."""
    stores: dict[int, Store] = {}
    try:
        yield from _stores(node, config, stores)
        yield from _log(node, config, stores)
    finally:
        for store in stores.values():
            store.close()


def _stores(node: "Node", config: "Config", stores: "dict[int, Store]") -> Iterator[Finding]:
    """Reads all of each; those that can be read stay open."""
    from chronos.node.opening import open_store

    for number_, folder in _store_folders(config):
        found = yield from _guarded(f"store of shard {number_}", partial(open_store, config, node.directory, number_))
        if found is None:
            continue
        stores[number_] = found
        rows = yield from _guarded(f"store of shard {number_}", found.verify)
        if rows is None:
            found.close()
            del stores[number_]
        else:
            text = f"{folder}: {number(rows)} rows read, {size(found.size_bytes())}, every checksum is right"
            yield Finding(what=f"store of shard {number_}", verdict="ok", text=text)
    if not os.path.isdir(os.path.join(config.node.data_dir, "shards")):
        yield Finding(what="stores", verdict="note", text="there are none yet")


def _log(node: "Node", config: "Config", stores: "dict[int, Store]") -> Iterator[Finding]:
    from chronos.node.opening import open_log

    log = yield from _guarded("log", lambda: open_log(config, node.directory, node.clock))
    if log is None:
        return
    node.log = log
    verify = getattr(log, "verify", None)
    if verify is not None:
        rows = yield from _guarded("log", verify)
        if rows is not None:
            yield Finding(what="log", verdict="ok", text=f"embedded: {number(rows)} rows read, every checksum is right")
    yield from _topics(node, config, stores)


def _store_folders(config: "Config") -> list[tuple[int, str]]:
    shards = os.path.join(config.node.data_dir, "shards")
    names = os.listdir(shards) if os.path.isdir(shards) else []
    numbers = sorted(int(name) for name in names if name.isdecimal() and int(name) < config.shards)
    return [(number_, os.path.join(shards, str(number_))) for number_ in numbers]


def _topics(node: "Node", config: "Config", stores: "dict[int, Store]") -> Iterator[Finding]:
    from chronos.node.opening import check_identity, identity, own_topics

    names = [config.topics.delay, config.topics.progress, config.topics.rejected, config.topics.dead_letter]
    infos = yield from _guarded("log", lambda: node.log.look(names))
    if infos is None:
        return
    missing = [name for name in names if (info := infos[name]) is None or info.id == ""]
    if missing:
        will = "the service makes them" if config.topics.create else "topics.create is off: make them"
        yield Finding(
            what="topics", verdict="note" if config.topics.create else "problem",
            text=f"missing: {', '.join(missing)}; {will}", exit_code=0 if config.topics.create else 2,
        )  # fmt: skip
        return
    prepared = yield from _guarded("topics", lambda: node.log.prepare(own_topics(config), create=False))
    if prepared is None:
        return
    yield Finding(what="topics", verdict="ok", text=f"{', '.join(names)}: {config.shards} partitions each")
    for number_, store in stores.items():
        mine, path = identity(config, number_, prepared), node.directory.store(number_)
        yield from _guarded(f"store of shard {number_}", partial(check_identity, store, mine, path))
    yield from _clock(node, config)


def _clock(node: "Node", config: "Config") -> Iterator[Finding]:
    """The broker's timestamp of a probe, which is delivered to nobody, against this machine's clock."""
    if config.log.kind == "embedded":
        yield Finding(what="clock", verdict="ok", text="the embedded log's clock is this machine's own")
        return
    before_ms = node.clock.now_ms()
    probe = (config.topics.delay, None, None, {"chronos-action": b"probe"}, 0)
    appended = yield from _guarded("clock", lambda: node.log.append([probe], ASK_S))
    if appended is None:
        return
    stamp_ms, after_ms = appended[0].timestamp_ms, node.clock.now_ms()
    apart_ms = max(before_ms - stamp_ms, stamp_ms - after_ms, 0)
    if apart_ms > CLOCK_TOLERANCE_MS:
        yield Finding(
            what="clock", verdict="problem", exit_code=1,
            text=f"the broker's and this machine's differ by {number(apart_ms)} ms; nothing is delivered while they"
            f" differ by more than {CLOCK_TOLERANCE_MS} ms: check NTP on both",
        )  # fmt: skip
        return
    yield Finding(what="clock", verdict="ok", text=f"within {number(apart_ms)} ms of the broker's")


def _guarded(what: str, look: Callable[[], T]) -> Generator[Finding, None, T | None]:
    """The result; a failure becomes a finding, and None."""
    try:
        return look()
    except ChronosError as error:
        yield _problem(what, error)
        return None


def _problem(what: str, error: ChronosError) -> Finding:
    later = " It may pass." if isinstance(error, Retry) else ""
    damage = "damaged: " if isinstance(error, StoreCorrupt) else ""
    return Finding(what=what, verdict="problem", text=f"{damage}{error}{later}", exit_code=error.exit_code)
