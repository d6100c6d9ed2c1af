"""`chronos doctor` on the cluster: the coordinator, the id of this node, the addresses of the nodes
and their roles.

The coordinator is read, and every other node is asked over HTTP. The node does not join, and no
role or member is changed; in ZooKeeper the znode above the members is created if it is missing, and
a test znode is written and deleted."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from chronos.cli.output import local, number
from chronos.cli.service.doctor_service import now_ms
from chronos.cli.service.findings import (
    Finding,
    guarded,
    note,
    of_zone_data,
    ok,
    problem,
)
from chronos.core.clock import CLOCK_TOLERANCE_MS
from chronos.zones import VERSION as ZONE_DATA

if TYPE_CHECKING:
    from chronos.config import Config
    from chronos.core.cluster.roles import Member
    from chronos.ports import ClusterInspection

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
            before_ms = now_ms()
            shown: dict[str, Any] = client.ask("/v1/nodes")["nodes"][0]
            after_ms = now_ms()
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
