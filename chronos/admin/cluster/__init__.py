"""Handlers about the cluster and the node: roles, registry, checkpoints, rates, topics, audit trail
and metrics; and the client that sends a node's requests to other nodes.

In: requests of operators, of other nodes and of Prometheus. Out: the state of the node and its
cluster, and the changes that an operator requests."""
