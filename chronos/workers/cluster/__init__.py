"""The work of a node for its cluster: membership and roles, probes of masters, and followers in
sync.

In: the coordinator, and the state of this node's replicas. Out: their assignments, and, on the
controller, published roles. The decisions are in `core.cluster`."""
