"""The part of `chronos doctor` that asks a service: its nodes, its shards, and the clock of the node asked."""

import time
from collections.abc import Generator, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from chronos.cli.findings import Finding, note, ok, problem, unchecked
from chronos.cli.output import number, relative
from chronos.core.clock import CLOCK_TOLERANCE_MS

if TYPE_CHECKING:
    from chronos.client import Client

ASK_S = 10.0
"""How long the service may take to answer."""

OVERDUE_MS = 60_000
"""A shard whose next message is overdue by more is a problem."""

TARGETS_LOOK = 1_000
"""Messages, those due next, whose targets are checked."""


def examine_service(client: "Client", *, copies: str) -> Generator[Finding, None, dict[str, Any] | None]:
    """Ask a service; return what it says of the node asked, None if it does not answer. `copies`: of `GET /v1/shards`."""
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
    for node in nodes["nodes"]:
        if node["ready"]:
            yield ok("service", f"node {node['node']} is ready, version {node['version']}, {node['log']} log")
        for reason in node["reasons"]:
            yield problem("service", reason if node is asked else f"node {node['node']}: {reason}")
    yield from _cluster(nodes)
    yield from _clock(asked, before_ms, after_ms)
    for shard in shards:
        yield from _shard(shard)
    return asked


def due_targets(client: "Client") -> set[str]:
    """The targets of the messages that are due next; none if the service does not show them."""
    from chronos.client import ClientError

    try:
        due = client.ask("/v1/messages", limit=TARGETS_LOOK)["messages"]
    except ClientError:
        return set()
    return {message["target"]["topic"] for message in due if message["target"]}


def _cluster(nodes: dict[str, Any]) -> Iterator[Finding]:
    if not nodes["sure"]:
        yield problem("service", "the coordinator does not answer; roles stay as they are", exit_code=3)
    for away in nodes["away"]:
        shards = ", ".join(map(str, away["shards"]))
        yield note("service", f"node {away['node']} holds shards {shards}, and is away since {relative(away['since'])}")


def _clock(asked: dict[str, Any], before_ms: int, after_ms: int) -> Iterator[Finding]:
    """The clocks of this machine and of the node asked."""
    their_ms = int(datetime.fromisoformat(asked["now"]).timestamp() * 1_000)
    apart_ms = max(before_ms - their_ms, their_ms - after_ms, 0)
    if apart_ms > CLOCK_TOLERANCE_MS:
        yield note(
            "clock", f"this machine's and that of node {asked['node']} differ by {number(apart_ms)} ms: check NTP"
        )


def _shard(shard: dict[str, Any]) -> Iterator[Finding]:
    """One shard, as the service reports it."""
    what = f"shard {shard['shard']}"
    if shard["node"] is None:
        yield problem(what, "no node with a replica of it answers", exit_code=3)
        return
    if shard["oldest_overdue_ms"] > OVERDUE_MS:
        paused = f"; it is paused: {shard['paused']}" if shard["paused"] else ""
        yield problem(
            what,
            f"its next message is overdue by {number(shard['oldest_overdue_ms'] // 1_000)} s,"
            f" {number(shard['pending'])} are pending{paused}",
        )
    needed, in_sync = shard.get("in_sync_needed"), shard.get("in_sync") or []
    if needed is not None and len(in_sync) < needed:
        yield problem(
            what,
            f"{len(in_sync)} of {needed} followers in sync (replication.min_in_sync): {', '.join(in_sync) or 'none'}. Start the"
            " nodes that are down; `chronos status` shows how far each replica is behind",
        )
    if shard.get("unitless"):
        targets = ", ".join(f"{target or 'actions'} ({count:,})" for target, count in shard["unitless"].items())
        yield note(
            what,
            f"records have a delay or a spread from 1 to 999 without a unit, which is milliseconds: {targets}. If their producers"
            " mean seconds, have them write 30s",
        )
    if shard["dead_recently"] is not None:
        yield problem(what, f"{shard['dead_recently']['text']}. `chronos get ID` tells why a message died")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
