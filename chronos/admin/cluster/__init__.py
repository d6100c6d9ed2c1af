"""The cluster and the node over HTTP: roles, the registry, checkpoints, rates, topics, metrics, and
requests to other nodes.

In: calls of operators, of other nodes and of Prometheus. Out: the state of the node and its
cluster, and changes that an operator asks for."""
