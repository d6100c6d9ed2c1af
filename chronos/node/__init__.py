"""The composition root: one Chronos process, put together and taken apart in order."""

from chronos.node.node import IN_PLACE, Node

__all__ = ["IN_PLACE", "Node"]
