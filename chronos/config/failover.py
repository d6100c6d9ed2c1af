"""The section `failover`."""

from typing import Literal

from chronos.config.section import Section, key
from chronos.config.values import Duration


class FailoverConfig(Section):
    """Masters that are alive but stuck: nodes of a cluster probe each shard, and replace a master that does nothing."""

    on_unhealthy: Literal["off", "armed", "auto"] | None = key(
        None,
        "What happens when two thirds of the nodes find a shard's master unhealthy. `off`: nothing, and no probes are sent. "
        "`armed`: another node becomes master if an operator permitted it with `chronos failover arm SHARD` within the last 15 s. "
        "`auto`: another node becomes master, at most once in 5 minutes for each shard. null: `auto` with three registered nodes or "
        "more, else `off`. The same on all nodes. A master whose session is lost is always replaced.",
    )
    candidate: bool = key(
        True,
        "This node may become master. Off: it holds replicas, answers requests and observes the masters, and never becomes "
        "master of any shard.",
    )
    every: Duration = key(
        "5s",
        "Time between two observations of a shard. With the defaults a stuck master is found after 25 to 35 s.",
        least="100ms", most="10m",
    )  # fmt: skip
    timeout: Duration = key(
        "500ms",
        "Time for a probe to pass through its shard, and for this node's replica to show it.",
        least="50ms", most="1m",
    )  # fmt: skip
    window: int = key(10, "Observations that count for a verdict.", least=4, most=100)
    failures: int = key(7, "Failed observations within the window that make a master unhealthy.", least=2, most=100)
    in_a_row: int = key(5, "Latest observations that make a master unhealthy if all of them failed.", least=2, most=100)
