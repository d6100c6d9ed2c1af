"""One Chronos process: constructed, started and stopped in order.

In: a configuration. Out: `Node`, with its shards, its log and its membership. HTTP is not part of
it: `admin` serves a node, and `cli` starts both. The adapters and workers of a process are
constructed here, from plain values: they do not know the configuration."""

from chronos.node.node import Node
from chronos.workers.replica.state import IN_PLACE

__all__ = ["IN_PLACE", "Node"]
