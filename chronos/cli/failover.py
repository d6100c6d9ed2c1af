"""`chronos failover status`: the health of the masters, as the nodes find it."""

from typing import Any

from chronos.cli.connect import connect
from chronos.cli.output import Format, printable, put, put_json, relative, table


def show(server: str, output: Format) -> None:
    """All shards."""
    with connect(server) as client:
        found = client.ask("/v1/failover")
    if output is Format.json:
        put_json(found)
        return
    print(f"failover.on_unhealthy: {found['on_unhealthy']}")
    columns = [
        ("SHARD", "right"), ("MASTER", "left"), ("HEALTHY FOR", "left"), ("UNHEALTHY FOR", "left"), ("NEEDED", "right"),
        ("PERMITTED", "left"),
    ]  # fmt: skip
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
