"""The composition root: one Chronos process, constructed, started and stopped in order."""

from chronos.node.node import Node
from chronos.workers.replica.state import IN_PLACE

__all__ = ["IN_PLACE", "Node"]
