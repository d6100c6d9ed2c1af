"""`chronos doctor` on a running service: its nodes, its shards and its clock, as its HTTP interface
shows them, and the targets of the messages due next.

The findings about nodes and shards are made in `findings`, which `chronos top` uses too."""

import time
from collections.abc import Generator, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from chronos.cli.output import number
from chronos.cli.service.findings import (
    Finding,
    note,
    of_cluster,
    of_nodes,
    of_shard,
    problem,
    unchecked,
)
from chronos.core.clock import CLOCK_TOLERANCE_MS

if TYPE_CHECKING:
    from chronos.client import Client

ASK_S = 10.0
"""How long the service may take to answer."""

TARGETS_LOOK = 1_000
"""Messages, those due next, whose targets are checked."""


def examine_service(
    client: "Client", *, copies: str
) -> Generator[Finding, None, dict[str, Any] | None]:
    """Yield the findings of a service; return its description of the node that answered, None if it
    does not answer. `copies`: of `GET /v1/shards`."""
    from chronos.client import ClientError

    try:
        before_ms = now_ms()
        nodes = client.ask("/v1/nodes")
        after_ms = now_ms()
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


def now_ms() -> int:
    """Return the time of this machine's clock."""
    return time.time_ns() // 1_000_000
