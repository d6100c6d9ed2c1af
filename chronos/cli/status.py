"""`chronos status`: the node, its shards, and the next hour of due messages, on one screen."""

import time
from typing import Any

from chronos.cli.connect import connect
from chronos.cli.output import (
    Format,
    console,
    local,
    note,
    number,
    printable,
    put,
    put_json,
    relative,
    size,
    span,
    table,
    wrapped,
)
from chronos.client import Client, ServiceFailed, Unreachable
from chronos.core.values import shards_text

BARS = " ▁▂▃▄▅▆▇█"

HISTORY = 5
"""Changes of roles shown."""

WATCH_S = 1.0
"""Time between two refreshes of `--watch`."""


def show(server: str, output: Format, *, watch: bool) -> None:
    """Once, or every second until Ctrl-C."""
    with connect(server) as client:
        if output is Format.json:
            while True:
                put_json(_look(client))
                if not watch:
                    return
                time.sleep(WATCH_S)
        if not watch:
            put(_screen(_look(client)))
            return
        from rich.live import Live

        out = console()
        try:
            with Live(console=out, screen=out.is_terminal, auto_refresh=False) as live:
                while True:
                    try:
                        live.update(_screen(_look(client)), refresh=True)
                    except (Unreachable, ServiceFailed) as error:
                        live.update(str(error), refresh=True)
                    time.sleep(WATCH_S)
        except KeyboardInterrupt:
            note("")


def _look(client: Client) -> dict[str, Any]:
    return {
        **client.ask("/v1/nodes"),
        "shards": client.ask("/v1/shards?copies=masters")["shards"],
        "timeline": client.ask("/v1/timeline"),
    }


def _screen(found: dict[str, Any]) -> Any:
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = []
    for node in found["nodes"]:
        dies = any(shard["node"] == node["node"] and shard.get("dead_recently") for shard in found["shards"])
        state = ("not ready", "red") if not node["ready"] else ("messages die", "red") if dies else ("ready", "green")
        free = node["disk_free_bytes"]
        words = [word for word in ("leaving", "drained") if node[word]]
        if node["node"] == found["controller"]:
            words.insert(0, "controller")
        parts.append(
            Text.assemble(
                (printable(node["node"]), "bold"),
                f"  cluster {node['cluster']}, {node['log']} log, version {node['version']}, rules {node.get('rules', 1)}, up ",
                relative(node["started_at"]).removesuffix(" ago"),
                "" if free is None else f", {size(free)} free", f"  {', '.join(words)}  " if words else "  ", state,
            )
        )  # fmt: skip
        parts += [Text(wrapped(printable(reason), "  "), "red") for reason in node["reasons"]]
    for node in found["away"]:
        held = ", ".join(map(str, node["shards"]))
        parts.append(Text.assemble((printable(node["node"]), "bold"), f"  holds shards {held}  ",
                                   (f"away since {relative(node['since'])}", "red")))  # fmt: skip
    if text := _rules_held_back(found):
        parts.append(Text(wrapped(printable(text), "  ")))
    shards = found["shards"]
    pending = sum(shard["pending"] for shard in shards)
    delivered, cancelled = (sum(shard["totals"][name] for shard in shards) for name in ("delivered", "cancelled"))
    parked = sum(shard["parked"] for shard in shards)
    waiting = f" ({number(parked)} of them wait in lanes, see `chronos rates`)" if parked else ""
    held = sum(shard.get("held", 0) for shard in shards)
    held_text = f", {number(held)} records wait to be forwarded or rejected" if held else ""
    parts.append(
        Text(
            f"{number(pending)} pending{waiting}, {number(delivered)} delivered, {number(cancelled)} cancelled{held_text}\n"
        )
    )
    if not found["sure"]:
        parts.append(Text("the coordinator does not answer; roles stay as they are", "red"))
    parts.append(_shards(shards, in_cluster=found["controller"] is not None))
    parts += [Text(wrapped(reason, "  "), "red") for reason in _other_reasons(found)]
    parts += [Text(wrapped(printable(text), "  "), "red") for text in map(_held_back, shards) if text]
    parts += [Text(wrapped(printable(text), "  "), "red") for text in map(_unhealthy, shards) if text]
    parts += [Text(wrapped(printable(text), "  "), "red") for text in map(_too_few_in_sync, shards) if text]
    parts += [Text(wrapped(printable(text), "  "), "red") for text in map(_waits_for, shards) if text]
    parts += [Text(wrapped(printable(text), "  "), "red") for text in map(_dead_recently, shards) if text]
    if found["history"]:
        parts.append(_history(found["history"][:HISTORY]))
    parts.append(_timeline(found["timeline"]))
    return Group(*parts)


def _shards(shards: list[dict[str, Any]], *, in_cluster: bool) -> Any:
    columns = [
        ("SHARD", "right"), ("MASTER" if in_cluster else "ROLE", "left"), ("PENDING", "right"), ("PARKED", "right"), ("NEXT DUE", "right"), ("LAG", "right"),
        ("LATE p50", "right"), ("p99", "right"), ("DELIVERED", "right"), ("CANCELLED", "right"), ("REJECTED", "right"),
        ("DEAD", "right"), ("STORE", "right"), ("REPLICAS", "left"), ("", "left"),
    ]  # fmt: skip
    rows = [
        [
            str(shard["shard"]), _master(shard) if in_cluster else shard["role"], number(shard["pending"]),
            number(shard["parked"]),
            f"overdue {span(shard['oldest_overdue_ms'] / 1_000)}" if shard["oldest_overdue_ms"] > 1_000
            else relative(shard["next_due_at"]),
            number(shard["lag"]), _ms(shard["lateness"]["p50_ms"]), _ms(shard["lateness"]["p99_ms"]),
            *(number(shard["totals"][name]) for name in ("delivered", "cancelled", "rejected", "dead")),
            size(shard["store_bytes"]), printable(_replicas(shard)), "paused" if shard["paused"] else "",
        ]
        for shard in shards
    ]  # fmt: skip
    return table(columns, rows)


def _other_reasons(found: dict[str, Any]) -> list[str]:
    """Why shards are paused, each reason once, unless a node has named it among its own reasons."""
    named = [reason for node in found["nodes"] for reason in node["reasons"]]
    paused: dict[str, list[int]] = {}
    for shard in found["shards"]:
        if shard["paused"] and not any(shard["paused"] in reason for reason in named):
            paused.setdefault(shard["paused"], []).append(shard["shard"])
    return [printable(f"paused: {shards_text(shards)}: {reason}") for reason, shards in paused.items()]


def _rules_held_back(found: dict[str, Any]) -> str:
    """Which nodes a newer rules number waits for; empty if there is none, or if the node asked is of a version without them."""
    nodes = found.get("rules_held_back_by")
    if not nodes:
        return ""
    newest = max(node.get("rules", 1) for node in found["nodes"])
    return (
        f"rules {found['rules']} are in use; rules {newest} wait for {', '.join(nodes)}: upgrade them, or `chronos forget` those"
        " that will not come back"
    )


def _held_back(shard: dict[str, Any]) -> str:
    held = shard.get("held_back")
    if held is None:
        return ""
    since = relative(held["since"])
    return (
        f"shard {shard['shard']}: {number(held['records'])} records are held back by an open transaction, since {since}"
    )


def _unhealthy(shard: dict[str, Any]) -> str:
    nodes = shard.get("unhealthy")
    return (
        "" if nodes is None else f"shard {shard['shard']}: the probes of {', '.join(nodes)} find the master unhealthy"
    )


def _too_few_in_sync(shard: dict[str, Any]) -> str:
    in_sync, needed = shard.get("in_sync"), shard.get("in_sync_needed")
    if in_sync is None or needed is None or len(in_sync) >= needed:
        return ""
    return f"shard {shard['shard']}: {len(in_sync)} of {needed} followers in sync"


def _waits_for(shard: dict[str, Any]) -> str:
    waits = shard.get("waits_for")
    return "" if waits is None else f"shard {shard['shard']}: {waits}"


def _dead_recently(shard: dict[str, Any]) -> str:
    dead = shard.get("dead_recently")
    return "" if dead is None else f"shard {shard['shard']}: {dead['text']}; the last one {relative(dead['last_at'])}"


def _master(shard: dict[str, Any]) -> str:
    """`a 5 m`: the master, and for how long."""
    if shard["master"] is None:
        return "none"
    since = "" if shard["master_since"] is None else " " + relative(shard["master_since"]).removesuffix(" ago")
    return printable(shard["master"]) + since


def _replicas(shard: dict[str, Any]) -> str:
    """`a (master) b +12`: the nodes that hold the shard, and how many progress records each is behind."""
    in_sync = shard.get("in_sync")

    def state(replica: dict[str, Any]) -> str:
        if replica["role"] not in ("follower", "none"):
            return f" ({replica['role']})"
        is_behind = in_sync is not None and replica["role"] == "follower" and replica["node"] not in in_sync
        return " (not in sync)" if is_behind else ""

    return " ".join(
        replica["node"] + state(replica) + (f" +{replica['lag']}" if replica["lag"] else "")
        for replica in shard["replicas"]
    )


def _history(changes: list[dict[str, Any]]) -> Any:
    columns = [("", "left"), ("SHARD", "right"), ("MASTER", "left"), ("EPOCH", "right"), ("WHY", "left")]
    rows = [
        [
            relative(change["at"]), str(change["shard"]),
            f"{printable(change['previous'] or '-')} → {printable(change['master'] or '-')}",
            str(change["epoch"]), printable(change["why"]),
        ]
        for change in changes
    ]  # fmt: skip
    return table(columns, rows)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"≤ {span(value / 1_000)}"


def _timeline(timeline: dict[str, Any]) -> Any:
    from rich.text import Text

    counts = [interval["pending"] for interval in timeline["intervals"]]
    most = max(counts, default=0)
    if not most:
        return Text("\nnothing is due within the next hour")
    bars = "".join(BARS[-(-count * (len(BARS) - 1) // most)] for count in counts)
    start, end = (local(timeline[side])[11:16] for side in ("start", "end"))
    return Text(f"\nmessages due per minute, at most {number(most)}\n{start} {bars} {end}")
