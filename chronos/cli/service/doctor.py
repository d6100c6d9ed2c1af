"""`chronos doctor`: checks everything a node needs, in the order in which it would fail, and names
the remedy.

settings -> tokens -> open files -> time zones -> the cluster, if there is one -> data directory ->
the service, if it runs here -> disk -> stores -> log -> topics -> targets -> clocks -> the service
that was named

The log, its topics and the clocks are examined before the first start, while the service runs, and
while it is stopped. Nothing is created or changed; one probe record is written, which is never
delivered."""

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import typer

from chronos.admin.http.tokens import Sender, parse_tokens
from chronos.cli.output import Format, local, number, printable, put_json, size
from chronos.cli.service.findings import (
    Finding,
    failed,
    guarded,
    note,
    of_cluster,
    of_nodes,
    of_shard,
    of_zone_data,
    ok,
    problem,
    unchecked,
)
from chronos.core.clock import CLOCK_TOLERANCE_MS
from chronos.errors import ChronosError, ConfigurationError, StoreInUse
from chronos.zones import VERSION as ZONE_DATA

if TYPE_CHECKING:
    from chronos.config import Config
    from chronos.core.cluster.roles import Member
    from chronos.node import Node
    from chronos.ports import ClusterInspection, Store, TopicInfo


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
    """What the node will not do once it runs; one that runs says it itself."""
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
        from chronos.workers.push.targets import due_targets

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
    node.log = log
    rows = yield from guarded("log", log.verify)
    if rows is not None:
        yield ok("log", f"embedded: {number(rows)} rows read, all checksums match")
    specs = own_topics(config)
    described = log.describe([spec.name for spec in specs])
    missing = [name for name, info in described.items() if info is None or info.id == ""]
    if missing and config.topics.create:
        yield note(
            "topics", f"missing: {', '.join(missing)}; the service creates them at its first start"
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


ASK_MEMBER_S = 5.0
"""How long another node may take to answer."""

WILDCARDS = ("0.0.0.0", "::")
"""Addresses to listen on that no other node can reach."""


def examine_cluster(config: "Config", instance: str) -> Iterator[Finding]:
    """1. The coordinator, 2. this node's id, 3. the other nodes, 4. the roles. `instance` is that
    of the data directory."""
    from chronos.node.cluster import inspect_coordinator

    kind = config.coordinator.kind
    found = yield from guarded(kind, lambda: inspect_coordinator(config))
    if found is None:
        return
    yield ok(kind, found.checked)
    for unusual in found.notes:
        yield note(kind, unusual)
    yield from _own_id(config, instance, found)
    zone_data = {config.node.id: ZONE_DATA} | {
        node: member.zone_data for node, member in found.members.items()
    }
    yield from of_zone_data({node: f"IANA {data}" for node, data in zone_data.items() if data})
    yield from _addresses(config, found)
    for member in found.members.values():
        if member.node != config.node.id:
            yield from _reach(member, config)
    yield from _roles(found)


def _own_id(config: "Config", instance: str, found: "ClusterInspection") -> Iterator[Finding]:
    mine = found.members.get(config.node.id)
    if mine is None:
        yield note(
            "members",
            (
                f"node {config.node.id} is not a member at the moment: it is not running, or it "
                "does not reach the coordinator"
            ),
        )
    elif mine.instance != instance:
        yield problem(
            "members",
            f"node.id {config.node.id} is taken by another data directory (instance "
            f"{mine.instance}, at {_shown(mine.address)}): each node needs an id of its own, and "
            "keeps its directory",
        )
    if found.members:
        yield ok(
            "members",
            ", ".join(f"{node} {member.version}" for node, member in sorted(found.members.items())),
        )
    for node in found.unreadable:
        yield problem(
            "members",
            (
                f"{node} runs a version whose data this version cannot read: run the same version "
                "everywhere"
            ),
        )


def _addresses(config: "Config", found: "ClusterInspection") -> Iterator[Finding]:
    """The addresses at which nodes ask each other for copies, and for shards that they do not
    hold."""
    for address, count in Counter(member.address for member in found.members.values()).items():
        nodes = sorted(node for node, member in found.members.items() if member.address == address)
        if count > 1:
            yield problem(
                "members",
                (
                    f"{' and '.join(nodes)} have the same address, {_shown(address)}: set "
                    "admin.advertised"
                ),
            )
        if urlsplit(address).hostname in WILDCARDS:
            yield problem(
                "members",
                (
                    f"the address of {nodes[0]} is {address}, which no other node can reach: set "
                    "admin.advertised"
                ),
            )
    if not found.members and config.admin.advertised is None and config.admin.host in WILDCARDS:
        yield problem(
            "members",
            (
                "admin.advertised is not set, and no other node can reach this one at "
                f"{config.admin.host}: set it"
            ),
        )


def _reach(member: "Member", config: "Config") -> Iterator[Finding]:
    from chronos.client import Client, ClientError
    from chronos.node.tls import client_tls

    try:
        with Client(
            member.address, timeout_s=ASK_MEMBER_S, retries=0, tls=client_tls(config)
        ) as client:
            before_ms = _now_ms()
            shown: dict[str, Any] = client.ask("/v1/nodes")["nodes"][0]
            after_ms = _now_ms()
    except (ClientError, ValueError) as error:
        yield problem(
            f"node {member.node}",
            (
                "it is a member of the cluster, but cannot be reached at "
                f"{_shown(member.address)}: {error}"
            ),
            exit_code=3,
        )
        return
    from chronos.core.timefmt import parse_time_ms

    their_ms = parse_time_ms(shown["now"])
    apart_ms = max(before_ms - their_ms, their_ms - after_ms, 0)
    if shown["node"] != member.node:
        yield problem(
            f"node {member.node}",
            (
                f"its address {_shown(member.address)} leads to node {shown['node']}: set "
                "admin.advertised"
            ),
        )
    elif apart_ms > CLOCK_TOLERANCE_MS:
        yield problem(
            f"node {member.node}",
            f"its clock and this machine's differ by {number(apart_ms)} ms; a node delivers "
            f"nothing while its clock differs from the broker's by more than {CLOCK_TOLERANCE_MS} "
            "ms: check NTP on both",
        )
    elif shown["ready"]:
        yield ok(
            f"node {member.node}",
            f"ready, at {_shown(member.address)}, its clock within {number(apart_ms)} ms",
        )
    for reason in shown["reasons"]:
        yield problem(f"node {member.node}", reason)
    for text in shown.get("switched_off") or ():
        yield note(f"node {member.node}", text)


def _roles(found: "ClusterInspection") -> Iterator[Finding]:
    from chronos.core.cluster.health import is_unhealthy
    from chronos.core.cluster.roles import verdicts
    from chronos.core.timefmt import format_time

    roles = found.roles
    if roles is None:
        yield note("roles", "no roles are assigned yet; the first node that runs assigns them")
        return
    for shard, given in sorted(roles.shards.items()):
        health = verdicts(found.members, shard, given.epoch)
        if is_unhealthy(health.values()):
            nodes = ", ".join(sorted(node for node, healthy in health.items() if not healthy))
            yield problem(
                "roles",
                (
                    f"shard {shard}: the probes of {nodes} find its master {given.master} "
                    "unhealthy; `chronos transfer` moves it"
                ),
            )
    vacant = sorted(
        shard for shard, given in roles.shards.items() if given.master not in found.members
    )
    if vacant and found.members:
        shards = ", ".join(map(str, vacant))
        yield problem(
            "roles",
            f"no member is master of shard {shards}; `chronos status` shows since when and why",
        )
    elif found.members:
        yield ok("roles", f"every shard has a master; {roles.controller} is the controller")
    for node, since_ms in sorted(roles.away.items()):
        yield note(
            "roles",
            f"node {node} holds replicas and has been away since {local(format_time(since_ms))}; "
            f"until it is back no log is trimmed: `chronos forget {node}` if it will not come back",
        )


def _shown(address: str) -> str:
    """The address without a password."""
    url = urlsplit(address)
    return (
        address
        if url.username is None
        else address.replace(f"{url.netloc.rpartition('@')[0]}@", "")
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


if TYPE_CHECKING:
    from chronos.config import Config
    from chronos.node.opening import KafkaLog
    from chronos.ports import Clock, TopicInfo

CONNECT_S = 2.0
"""How long a broker may take to accept a connection."""

PROBE_S = 10.0
"""How long the brokers may take to acknowledge the probe."""

ONE_REPLICA = "a shard that delivers to such a topic waits while its broker is down"
"""The consequence (docs/contributing/laws.md, law 8)."""


def examine_kafka(
    config: "Config", clock: "Clock", due_targets: Callable[[], set[str]]
) -> Generator[Finding, None, "dict[str, TopicInfo]"]:
    """1. Brokers, 2. own topics, 3. targets, 4. clocks. Returns the descriptions of those own
    topics that are as they should be.

    `due_targets`: the targets of the messages that are due next.
    """
    from chronos.node.opening import open_kafka

    log = yield from guarded("log", lambda: open_kafka(config))
    if log is None:
        return {}
    try:
        if not (yield from _brokers(log, config)):
            return {}
        infos = yield from _own_topics(log, config)
        yield from _targets(log, config, due_targets())
        yield from _broker_clock(log, config, clock, is_there=config.topics.delay in infos)
        return infos
    finally:
        log.close()


def _brokers(log: "KafkaLog", config: "Config") -> Generator[Finding, None, bool]:
    """Return whether any broker answers."""
    brokers = yield from guarded("log", log.brokers)
    if brokers is None:
        return False
    unreachable = [f"{host}:{port}" for host, port in brokers if not _accepts(host, port)]
    shown = ", ".join(f"{host}:{port}" for host, port in brokers)
    if unreachable:
        yield problem(
            "log",
            f"the brokers name themselves {shown}, and no connection can be made from here to "
            f"{', '.join(unreachable)}: check that they run, and their advertised.listeners",
            exit_code=3,
        )
    else:
        yield ok(
            "log", f"brokers at {shown} can be reached from {config.log.kafka.bootstrap_servers}"
        )
    return True


def _accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except OSError:
        return False
    return True


def _own_topics(
    log: "KafkaLog", config: "Config"
) -> Generator[Finding, None, "dict[str, TopicInfo]"]:
    """Return the descriptions of the topics that are there and have the right settings; empty after
    a problem."""
    from chronos.node.topics import check_progress_fits, own_topics

    specs = own_topics(config)
    infos = yield from guarded("topics", lambda: log.describe([spec.name for spec in specs]))
    if infos is None:
        return {}
    missing = [spec for spec in specs if infos[spec.name] is None]
    if missing:
        names = ", ".join(spec.name for spec in missing)
        if not config.topics.create:
            refused: str | None = "topics.create is off: create them"
        else:
            problems = yield from guarded("topics", lambda: log.creation_problems(missing))
            if problems is None:
                return {}
            refused = "; ".join(problems) or None
        if refused is None:
            yield note("topics", f"missing: {names}; the service creates them at its first start")
        else:
            yield problem(
                "topics", f"missing: {names}; {refused}", exit_code=ConfigurationError.exit_code
            )
    there = [spec for spec in specs if spec not in missing]
    try:
        found = log.prepare(there, create=False) if there else {}
        if config.topics.progress in found:
            check_progress_fits(config, found[config.topics.progress])
    except ChronosError as error:
        yield failed("topics", error)
        return {}
    yield from _permissions(log, [spec.name for spec in there])
    if there and not missing:
        yield ok("topics", f"{', '.join(found)}: {config.shards} partitions each")
    for text in (text for info in found.values() for text in info.advice):
        yield note("topics", text)
    single = [name for name, info in found.items() if info.replicas == 1]
    if single:
        yield note("topics", f"one replica only: {', '.join(single)}; {ONE_REPLICA}")
    return found


def _permissions(log: "KafkaLog", names: Sequence[str]) -> Iterator[Finding]:
    denied = yield from guarded("topics", lambda: log.denied(names))
    for name, operations in (denied or {}).items():
        yield problem(
            "topics",
            (
                f"{name}: the brokers do not let this client {' and '.join(operations)}: add "
                "ACLs, see docs/how-to/kafka.md"
            ),
            exit_code=ConfigurationError.exit_code,
        )


def _targets(log: "KafkaLog", config: "Config", targets: set[str]) -> Iterator[Finding]:
    """The targets of the messages that are due next: they exist, and have more than one replica."""
    if not targets:
        return
    infos = yield from guarded("targets", lambda: log.describe(sorted(targets)))
    if infos is None:
        return
    missing = sorted(name for name, info in infos.items() if info is None)
    if missing and not config.delivery.create_topics:
        yield note(
            "targets",
            f"missing: {', '.join(missing)}; messages for them become dead letters; create them",
        )
    forbidden = sorted(
        name for name, info in infos.items() if info is not None and not info.writable
    )
    if forbidden:
        text = (
            f"not writable: {', '.join(forbidden)}; messages for them become dead letters; add "
            "the ACL Write"
        )
        yield note("targets", text)
    single = sorted(name for name, info in infos.items() if info is not None and info.replicas == 1)
    if single:
        yield note("targets", f"one replica only: {', '.join(single)}; {ONE_REPLICA}")
    if not missing and not forbidden and not single:
        yield ok("targets", f"{', '.join(sorted(targets))}: they exist and are replicated")


def _broker_clock(
    log: "KafkaLog", config: "Config", clock: "Clock", *, is_there: bool
) -> Iterator[Finding]:
    """The broker's timestamp of a probe, which is not delivered, against the clock of this
    machine."""
    if not is_there:
        yield note(
            "clock",
            f"the brokers' clocks are not known: the probe is written to {config.topics.delay}",
        )
        return
    before_ms = clock.now_ms()
    probe = (config.topics.delay, None, None, {"chronos-action": b"probe"}, 0)
    appended = yield from guarded("clock", lambda: log.append([probe], PROBE_S))
    if appended is None:
        return
    stamp_ms, after_ms = appended[0].timestamp_ms, clock.now_ms()
    apart_ms = max(before_ms - stamp_ms, stamp_ms - after_ms, 0)
    if apart_ms > CLOCK_TOLERANCE_MS:
        yield problem(
            "clock",
            f"the broker's and this machine's differ by {number(apart_ms)} ms; nothing is "
            f"delivered while they differ by more than {CLOCK_TOLERANCE_MS} ms: check NTP on both",
        )
        return
    yield ok("clock", f"within {number(apart_ms)} ms of the broker's")


if TYPE_CHECKING:
    from chronos.client import Client

ASK_S = 10.0
"""How long the service may take to answer."""

TARGETS_LOOK = 1_000
"""Messages, those due next, whose targets are checked."""


def examine_service(
    client: "Client", *, copies: str
) -> Generator[Finding, None, dict[str, Any] | None]:
    """Ask a service; return what it says of the node asked, None if it does not answer. `copies`:
    of `GET /v1/shards`."""
    from chronos.client import ClientError

    try:
        before_ms = _now_ms()
        nodes = client.ask("/v1/nodes")
        after_ms = _now_ms()
        shards = client.ask("/v1/shards", copies=copies)["shards"]
    except ClientError as error:
        yield problem("service", f"{client.server}: {error}", exit_code=error.exit_code)
        yield unchecked("service", "its nodes and shards, which it did not show")
        return None
    asked: dict[str, Any] = nodes["nodes"][0]
    yield from of_nodes(nodes)
    yield from of_cluster(nodes)
    yield from _service_clock(asked, before_ms, after_ms)
    for shard in shards:
        yield from of_shard(shard)
    return asked


def due_targets(client: "Client") -> set[str]:
    """The targets of the messages that are due next; none if the service does not show them."""
    from chronos.client import ClientError

    try:
        due = client.ask("/v1/messages", limit=TARGETS_LOOK)["messages"]
    except ClientError:
        return set()
    return {message["target"]["topic"] for message in due if message["target"]}


def _service_clock(asked: dict[str, Any], before_ms: int, after_ms: int) -> Iterator[Finding]:
    """The clocks of this machine and of the node asked."""
    their_ms = int(datetime.fromisoformat(asked["now"]).timestamp() * 1_000)
    apart_ms = max(before_ms - their_ms, their_ms - after_ms, 0)
    if apart_ms > CLOCK_TOLERANCE_MS:
        yield note(
            "clock",
            (
                f"this machine's and that of node {asked['node']} differ by {number(apart_ms)} "
                "ms: check NTP"
            ),
        )


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
