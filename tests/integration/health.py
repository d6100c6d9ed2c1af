"""Clusters whose stuck masters are found soon."""

from __future__ import annotations

from tests.chaos.fleet import Fleet
from tests.integration.flow import SHARDS

FAST = {"failover.every": "1s"}
"""A fifth of the default, so that a stuck master is found in 5 to 7 s."""


def give(fleet: Fleet, name: str) -> None:
    """Make the node master of all shards."""
    for shard in range(SHARDS):
        fleet.transfer(shard, name)
