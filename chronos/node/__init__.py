"""One Chronos process: constructed, started and stopped in order.

In: a configuration. Out: `Node`, with its shards, its log and its membership. HTTP is not part of
it: `admin` serves a node, and `cli` starts both. Everything that has a setting is constructed here;
`adapters` and `workers` get plain values."""

from chronos.node.node import Node
from chronos.workers.replica.state import IN_PLACE

__all__ = ["IN_PLACE", "Node"]
