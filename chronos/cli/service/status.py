"""`chronos status`, `chronos whoami`, `chronos failover` and `chronos rates`: the answers of a
service about itself, as tables or JSON; and two changes: that of a rate limit, and the permission
for a failover.

The checks of a service, with their remedies, are in `doctor_service` and `findings`."""

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from chronos.cli.options import HERE, Output, Server, at_least, with_connection
from chronos.cli.output import (
    Format,
    connect,
    console,
    fetch,
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
from chronos.client import Client, ServiceFailed, Unreachable, requests
from chronos.core.texts import shards_text

failover_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Show the health of the masters, or permit the replacement of one that is stuck.

    Needs `failover.on_unhealthy: armed` or `auto`; `auto` is the default with three nodes or more. A master whose session is lost is replaced without it.

    \b
    Examples:
      chronos failover status
      chronos failover arm 3
    """,  # noqa: E501
)

OFF = "off"
"""The rate that removes a limit set at run time."""

BARS = " ▁▂▃▄▅▆▇█"

HISTORY = 5
"""Changes of roles shown."""

WATCH_S = 1.0
"""Time between two refreshes of `--watch`."""


def show_failover(server: str, output: Format) -> None:
    """Print the probes' findings of all shards."""
    found = fetch(server, output, requests.ask("/v1/failover", {}))
    if found is None:
        return
    print(f"failover.on_unhealthy: {found['on_unhealthy']}")
    columns = [
        ("SHARD", "right"),
        ("MASTER", "left"),
        ("HEALTHY FOR", "left"),
        ("UNHEALTHY FOR", "left"),
        ("NEEDED", "right"),
        ("PERMITTED", "left"),
    ]
    put(table(columns, [_row(shard) for shard in found["shards"]]))


def _row(shard: dict[str, Any]) -> list[str]:
    return [
        str(shard["shard"]),
        printable(shard["master"] or "-"),
        printable(" ".join(shard["healthy"]) or "-"),
        printable(" ".join(shard["unhealthy"]) or "-"),
        "-" if shard["needed"] is None else str(shard["needed"]),
        "-" if shard["armed_until"] is None else f"ends {relative(shard['armed_until'])}",
    ]


@failover_app.command()
@with_connection
def status(
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Show what the probes of the nodes find of each shard's master.

    \b
    Examples:
      chronos failover status
      chronos failover status -o json
    """
    show_failover(server, output)


@failover_app.command()
@with_connection
def arm(
    shard: Annotated[
        int, typer.Argument(callback=at_least(0), metavar="SHARD", help="Number of the shard.")
    ],
    output: Output = Format.text,
    server: Server = HERE,
) -> None:
    """Permit one failover of a shard within the next 15 s, if two thirds of the nodes find its
    master unhealthy.

    \b
    Examples:
      chronos failover arm 3
    """
    from chronos.cli.messages import verbs

    verbs.transfer(server, output, f"/v1/shards/{shard}/arm")


def show_token(server: str, output: Format) -> None:
    """Print the token's name, roles and limits."""
    found = fetch(server, output, requests.ask("/v1/whoami", {}))
    if found is None:
        return
    if not found["tokens"]:
        note("the service has no tokens: whoever can reach it may do everything")
        return
    limits = found["limits"] or {}
    rows = [
        ("token", printable(found["token"] or "-")),
        ("roles", ", ".join(found["roles"])),
        ("targets", _patterns(found["targets"])),
        ("ids", _patterns(found["ids"])),
        ("limits", ", ".join(f"{number(count)} {name}" for name, count in limits.items()) or "-"),
        ("changes", ", ".join(found["actions"]) or "none"),
    ]
    put(table(None, rows))


def _patterns(patterns: list[str]) -> str:
    return "all" if "*" in patterns else printable(", ".join(patterns))


def show_rates(server: str, output: Format, topic: str | None) -> None:
    """All limits and lanes, or those of one topic."""
    found = fetch(server, output, requests.rates(topic))
    if found is None:
        return
    if found["rates"]:
        put(
            table(
                [("TOPICS", "left"), ("RATE", "left"), ("FROM", "left")],
                [_limit(limit) for limit in found["rates"]],
            )
        )
    else:
        print(
            "no topic has a rate limit"
            if topic is None
            else f"{printable(topic)} has no rate limit"
        )
    if found["lanes"]:
        print()
        columns = [
            ("LANE", "left"),
            ("WAITS FOR", "left"),
            ("MESSAGES", "right"),
            ("RATE", "left"),
            ("EMPTY", "left"),
        ]
        put(table(columns, [_lane(lane) for lane in found["lanes"]]))


def change(server: str, output: Format, topic: str, rate: str) -> None:
    """Set or remove a limit, and wait until the change is in force."""
    request = requests.remove_rate(topic) if rate == OFF else requests.set_rate(topic, rate)
    with connect(server) as client:
        found = client.call(request)
    if output is Format.json:
        put_json(found)
    elif rate == OFF:
        print(f"{printable(found['pattern'])}: the limit {found['rate']} is removed")
    else:
        print(f"{printable(found['pattern'])}: {found['rate']}")


def _limit(limit: dict[str, Any]) -> list[str]:
    source = "run time" if limit["source"] == "run-time" else limit["source"]
    return [printable(limit["pattern"]), limit["rate"], source]


def _lane(lane: dict[str, Any]) -> list[str]:
    of_partition = lane["partition"] is not None and lane["partition"] >= 0
    name = f"{lane['topic']}/{lane['partition']}" if of_partition else lane["topic"]
    empty = "-" if lane["empty_at"] is None else relative(lane["empty_at"])
    return [
        printable(name),
        lane["waits_for"],
        number(lane["messages"]),
        lane["rate"] or "-",
        empty,
    ]


def show(server: str, output: Format, *, watch: bool) -> None:
    """Print the status once, or every second until Ctrl-C."""
    with connect(server) as client:
        if output is Format.json:
            while True:
                put_json(look(client))
                if not watch:
                    return
                time.sleep(WATCH_S)
        if not watch:
            put(_screen(look(client)))
            return
        from rich.live import Live

        out = console()
        try:
            with Live(console=out, screen=out.is_terminal, auto_refresh=False) as live:
                while True:
                    try:
                        live.update(_screen(look(client)), refresh=True)
                    except (Unreachable, ServiceFailed) as error:
                        live.update(str(error), refresh=True)
                    time.sleep(WATCH_S)
        except KeyboardInterrupt:
            note("")


def look(client: Client) -> dict[str, Any]:
    """The nodes, their shards as the masters show them, and what is due within the next hour."""
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
        dies = any(
            shard["node"] == node["node"] and shard.get("dead_recently")
            for shard in found["shards"]
        )
        state = (
            ("not ready", "red")
            if not node["ready"]
            else ("messages fail", "red")
            if dies
            else ("ready", "green")
        )
        free = node["disk_free_bytes"]
        words = node_words(node, found["controller"])
        parts.append(
            Text.assemble(
                (printable(node["node"]), "bold"),
                f"  cluster {node['cluster']}, {node['log']} log, version {node['version']}, "
                f"{node['zone_data'] or 'unknown zone data'}, up ",
                relative(node["started_at"]).removesuffix(" ago"),
                "" if free is None else f", {size(free)} free",
                f"  {', '.join(words)}  " if words else "  ",
                state,
            )
        )
        parts += [Text(wrapped(printable(reason), "  "), "red") for reason in node["reasons"]]
        notes = [*(node.get("switched_off") or ()), node.get("older_zone_data")]
        parts += [Text(wrapped(printable(text), "  "), "yellow") for text in notes if text]
    for node in found["away"]:
        held = ", ".join(map(str, node["shards"]))
        parts.append(
            Text.assemble(
                (printable(node["node"]), "bold"),
                f"  holds shards {held}  ",
                (f"away since {relative(node['since'])}", "red"),
            )
        )
    shards = found["shards"]
    pending = sum(shard["pending"] for shard in shards)
    delivered, cancelled = (
        sum(shard["totals"][name] for shard in shards) for name in ("delivered", "cancelled")
    )
    parked = sum(shard["parked"] for shard in shards)
    waiting = f" ({number(parked)} of them wait in lanes, see `chronos rates`)" if parked else ""
    held = sum(shard.get("held", 0) for shard in shards)
    held_text = f", {number(held)} records wait to be forwarded or rejected" if held else ""
    parts.append(
        Text(
            f"{number(pending)} pending{waiting}, {number(delivered)} delivered, "
            f"{number(cancelled)} cancelled{held_text}\n"
        )
    )
    if not found["sure"]:
        parts.append(Text("the coordinator does not answer; roles stay as they are", "red"))
    parts.append(_shards(shards, in_cluster=found["controller"] is not None))
    parts += [Text(wrapped(reason, "  "), "red") for reason in other_reasons(found)]
    parts += [
        Text(wrapped(printable(text), "  "), "red") for text in map(held_back, shards) if text
    ]
    parts += [
        Text(wrapped(printable(text), "  "), "red") for text in map(unhealthy, shards) if text
    ]
    parts += [
        Text(wrapped(printable(text), "  "), "red")
        for text in map(_too_few_in_sync, shards)
        if text
    ]
    parts += [
        Text(wrapped(printable(text), "  "), "red") for text in map(waits_for, shards) if text
    ]
    parts += [
        Text(wrapped(printable(text), "  "), "red") for text in map(_dead_recently, shards) if text
    ]
    if found["history"]:
        parts.append(_history(found["history"][:HISTORY]))
    parts.append(_timeline(found["timeline"]))
    return Group(*parts)


def _shards(shards: list[dict[str, Any]], *, in_cluster: bool) -> Any:
    columns = [
        ("SHARD", "right"),
        ("MASTER" if in_cluster else "ROLE", "left"),
        ("PENDING", "right"),
        ("PARKED", "right"),
        ("NEXT DUE", "right"),
        ("LAG", "right"),
        ("LATE p50", "right"),
        ("p99", "right"),
        ("DELIVERED", "right"),
        ("CANCELLED", "right"),
        ("REJECTED", "right"),
        ("DEAD", "right"),
        ("STORE", "right"),
        ("REPLICAS", "left"),
        ("", "left"),
    ]
    rows = [
        [
            str(shard["shard"]),
            _master(shard) if in_cluster else shard["role"],
            number(shard["pending"]),
            number(shard["parked"]),
            next_due(shard["oldest_overdue_ms"], shard["next_due_at"]),
            number(shard["lag"]),
            at_most(shard["lateness"]["p50_ms"]),
            at_most(shard["lateness"]["p99_ms"]),
            *(
                number(shard["totals"][name])
                for name in ("delivered", "cancelled", "rejected", "dead")
            ),
            size(shard["store_bytes"]),
            printable(_replicas(shard)),
            "paused" if shard["paused"] else "",
        ]
        for shard in shards
    ]
    return table(columns, rows)


def other_reasons(found: dict[str, Any]) -> list[str]:
    """Why shards are paused, each reason once, unless a node has named it among its own reasons."""
    named = [reason for node in found["nodes"] for reason in node["reasons"]]
    paused: dict[str, list[int]] = {}
    for shard in found["shards"]:
        if shard["paused"] and not any(shard["paused"] in reason for reason in named):
            paused.setdefault(shard["paused"], []).append(shard["shard"])
    return [
        printable(f"paused: {shards_text(shards)}: {reason}") for reason, shards in paused.items()
    ]


def held_back(shard: dict[str, Any], now: datetime | None = None) -> str:
    """Return a text about the records that wait behind an open transaction; empty if there are
    none."""
    held = shard.get("held_back")
    if held is None:
        return ""
    since = relative(held["since"], now)
    return (
        f"shard {shard['shard']}: {number(held['records'])} records are held back by an open "
        f"transaction, since {since}"
    )


def unhealthy(shard: dict[str, Any]) -> str:
    """The nodes whose probes find the master unhealthy."""
    nodes = shard.get("unhealthy")
    return (
        ""
        if nodes is None
        else f"shard {shard['shard']}: the probes of {', '.join(nodes)} find the master unhealthy"
    )


def _too_few_in_sync(shard: dict[str, Any]) -> str:
    missing = shard.get("in_sync_missing")
    if not missing:
        return ""
    needed = shard["in_sync_needed"]
    return f"shard {shard['shard']}: {needed - missing} of {needed} followers in sync"


def waits_for(shard: dict[str, Any]) -> str:
    """What the shard waits for, such as a partition without a leader."""
    waits = shard.get("waits_for")
    return "" if waits is None else f"shard {shard['shard']}: {waits}"


def _dead_recently(shard: dict[str, Any]) -> str:
    dead = shard.get("dead_recently")
    return (
        ""
        if dead is None
        else f"shard {shard['shard']}: {dead['text']}; the last one {relative(dead['last_at'])}"
    )


def _master(shard: dict[str, Any]) -> str:
    """`a 5 m`: the master, and for how long."""
    if shard["master"] is None:
        return "none"
    since = (
        ""
        if shard["master_since"] is None
        else " " + relative(shard["master_since"]).removesuffix(" ago")
    )
    return printable(shard["master"]) + since


def _replicas(shard: dict[str, Any]) -> str:
    """`a (master) b +12`: the nodes that hold the shard, and how many progress records each is
    behind."""
    in_sync = shard.get("in_sync")

    def state(replica: dict[str, Any]) -> str:
        if replica["role"] not in ("follower", "none"):
            return f" ({replica['role']})"
        is_behind = (
            in_sync is not None and replica["role"] == "follower" and replica["node"] not in in_sync
        )
        return " (not in sync)" if is_behind else ""

    return " ".join(
        replica["node"] + state(replica) + (f" +{replica['lag']}" if replica["lag"] else "")
        for replica in shard["replicas"]
    )


def _history(changes: list[dict[str, Any]]) -> Any:
    columns = [
        ("", "left"),
        ("SHARD", "right"),
        ("MASTER", "left"),
        ("EPOCH", "right"),
        ("WHY", "left"),
    ]
    rows = [
        [
            relative(change["at"]),
            str(change["shard"]),
            f"{printable(change['previous'] or '-')} → {printable(change['master'] or '-')}",
            str(change["epoch"]),
            printable(change["why"]),
        ]
        for change in changes
    ]
    return table(columns, rows)


def next_due(overdue_ms: int, at: datetime | str | None, now: datetime | None = None) -> str:
    """When the next message is due, or by how much one is overdue."""
    return f"overdue {span(overdue_ms / 1_000)}" if overdue_ms > 1_000 else relative(at, now)


def at_most(value_ms: float | None) -> str:
    """An upper bound of lateness; `-` if there is none."""
    return "-" if value_ms is None else f"≤ {span(value_ms / 1_000)}"


def bars(counts: Sequence[int]) -> str:
    """A bar for each count; one of them is not 0."""
    most = max(counts)
    return "".join(BARS[-(-count * (len(BARS) - 1) // most)] for count in counts)


def node_words(node: dict[str, Any], controller: str | None) -> list[str]:
    """The words for the part that a node has in the cluster: `controller`, `leaving`, `retiring`,
    `drained`."""
    words = [word for word in ("leaving", "retiring", "drained") if node.get(word)]
    return ["controller", *words] if node["node"] == controller else words


def _timeline(timeline: dict[str, Any]) -> Any:
    from rich.text import Text

    counts = [interval["pending"] for interval in timeline["intervals"]]
    most = max(counts, default=0)
    if not most:
        return Text("\nnothing is due within the next hour")
    start, end = (local(timeline[side])[11:16] for side in ("start", "end"))
    return Text(f"\nmessages due per minute, at most {number(most)}\n{start} {bars(counts)} {end}")
