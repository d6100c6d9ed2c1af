"""How long a node takes to stop, for the tests of systemd and Kubernetes, which stop it."""

from chronos.admin.http import server
from chronos.node import checkpoints, cluster, node

LONGEST_STOP_S = server.STOP_S + cluster.HAND_OVER_S + checkpoints.STOP_S + node.STOP_S
"""Time in s that a stop takes at most: its parts follow each other."""
