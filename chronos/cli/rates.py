"""`chronos rates`: the rate limits of target topics, what waits for them, and changes at run time."""

from typing import Any

from chronos.cli.connect import connect
from chronos.cli.output import Format, number, printable, put, put_json, relative, table
from chronos.client import requests

OFF = "off"
"""The rate that removes a limit set at run time."""


def show(server: str, output: Format, topic: str | None) -> None:
    """All limits and lanes, or those of one topic."""
    with connect(server) as client:
        found = client.call(requests.rates(topic))
    if output is Format.json:
        put_json(found)
        return
    if found["rates"]:
        put(
            table([("TOPICS", "left"), ("RATE", "left"), ("FROM", "left")], [_limit(limit) for limit in found["rates"]])
        )
    else:
        print("no topic has a rate limit" if topic is None else f"{printable(topic)} has no rate limit")
    if found["lanes"]:
        print()
        columns = [("LANE", "left"), ("WAITS FOR", "left"), ("MESSAGES", "right"), ("RATE", "left"), ("EMPTY", "left")]
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
    return [printable(name), lane["waits_for"], number(lane["messages"]), lane["rate"] or "-", empty]
