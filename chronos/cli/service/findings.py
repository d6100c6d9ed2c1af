"""Findings of `chronos doctor`: their form, and the findings that follow from the answers of a
service alone, which `chronos top` shows too.

This module needs the base installation only. The checks that need the server's packages are in
`doctor`, `doctor_cluster` and `doctor_kafka`."""

import re
from collections.abc import Callable, Generator, Iterator
from datetime import datetime
from typing import Any, TypeVar

from msgspec import Struct

from chronos.cli.output import number, relative
from chronos.core.cluster.replication import too_few
from chronos.errors import ChronosError, Retry, StoreCorrupt

T = TypeVar("T")

ADVICE = re.compile(r" `chronos doctor` tells [^.]*\.")
"""The advice of an error to run `chronos doctor`, which is left out here."""

OVERDUE_MS = 60_000
"""A shard whose next message is overdue by more is a problem."""


class Finding(Struct, frozen=True, kw_only=True):
    """The result of one check."""

    what: str
    verdict: str
    """ok, note, or problem."""
    text: str
    exit_code: int = 0
    unchecked: bool = False
    """`text` names what could not be checked, and why."""


def ok(what: str, text: str) -> Finding:
    """Return the finding that a check has passed."""
    return Finding(what=what, verdict="ok", text=text)


def note(what: str, text: str) -> Finding:
    """Return a finding that is not a problem, but worth knowing."""
    return Finding(what=what, verdict="note", text=text)


def unchecked(what: str, text: str) -> Finding:
    """Return a note that a check was not possible."""
    return Finding(what=what, verdict="note", text=f"not checked: {text}", unchecked=True)


def problem(what: str, text: str, *, exit_code: int = 1) -> Finding:
    """Return the finding of a problem."""
    return Finding(what=what, verdict="problem", text=text, exit_code=exit_code)


def failed(what: str, error: ChronosError) -> Finding:
    """An error as a finding."""
    later = " It may be temporary." if isinstance(error, Retry) else ""
    damage = "damaged: " if isinstance(error, StoreCorrupt) else ""
    return problem(what, f"{damage}{ADVICE.sub('', str(error))}{later}", exit_code=error.exit_code)


def guarded(what: str, check: Callable[[], T]) -> Generator[Finding, None, T | None]:
    """The result of the check; a failure becomes a finding, and the result is None."""
    try:
        return check()
    except ChronosError as error:
        yield failed(what, error)
        return None


def of_nodes(nodes: dict[str, Any]) -> Iterator[Finding]:
    """Of each node of an answer to `/v1/nodes`, the one asked first."""
    asked = nodes["nodes"][0]
    for node in nodes["nodes"]:
        if node["ready"]:
            yield ok(
                "service",
                f"node {node['node']} is ready, version {node['version']}, "
                f"{node['zone_data'] or 'unknown zone data'}, {node['log']} log",
            )
        for reason in node["reasons"]:
            yield problem("service", reason if node is asked else f"node {node['node']}: {reason}")
        for text in node.get("switched_off") or ():
            yield note("service", text if node is asked else f"node {node['node']}: {text}")
        if text := node.get("older_zone_data"):
            yield problem("time zones", text if node is asked else f"node {node['node']}: {text}")


def of_zone_data(found: dict[str, str]) -> Iterator[Finding]:
    """Nodes with different zone data. `found`: node -> its zone data."""
    if len(set(found.values())) > 1:
        nodes = ", ".join(f"{node} {data}" for node, data in sorted(found.items()))
        yield problem(
            "time zones",
            f"the nodes have different zone data: {nodes}. The times of cron expressions are those "
            "of the master's: install the newest version of the package tzdata on every node",
        )


def of_cluster(nodes: dict[str, Any], now: datetime | None = None) -> Iterator[Finding]:
    """The coordinator, different zone data, and the nodes that are away, from an answer to
    `/v1/nodes`. `now`: for the time since when."""
    if not nodes["sure"]:
        yield problem(
            "service", "the coordinator does not answer; roles stay as they are", exit_code=3
        )
    yield from of_zone_data(
        {node["node"]: node["zone_data"] for node in nodes["nodes"] if node["zone_data"]}
    )
    for away in nodes["away"]:
        shards = ", ".join(map(str, away["shards"]))
        yield note(
            "service",
            (
                f"node {away['node']} holds shards {shards}, and is away since "
                f"{relative(away['since'], now)}"
            ),
        )


def of_shard(shard: dict[str, Any]) -> Iterator[Finding]:
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
    if missing := shard.get("in_sync_missing"):
        in_sync = shard.get("in_sync") or []
        yield problem(
            what,
            f"{too_few(shard['in_sync_needed'], missing)}: "
            f"{', '.join(in_sync) or 'none'}. Start the nodes that are down; `chronos status` "
            "shows how far each replica is behind",
        )
    if shard.get("unitless"):
        targets = ", ".join(
            f"{target or 'actions'} ({count:,})" for target, count in shard["unitless"].items()
        )
        yield note(
            what,
            "records have a delay or a spread from 1 to 999 without a unit, which is "
            f"milliseconds: {targets}. If their producers mean seconds, have them write 30s",
        )
    if shard["dead_recently"] is not None:
        yield problem(
            what, f"{shard['dead_recently']['text']}. `chronos get ID` tells why a message died"
        )
