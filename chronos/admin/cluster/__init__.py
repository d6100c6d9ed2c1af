"""Handlers about the cluster and the node: roles, shards, registry, checkpoints, rates, targets,
topics and their records, audit trail, metrics and health; the registration of this node with the
registries; and the client that sends a node's requests to other nodes.

In: requests of operators, of clients, of other nodes, of Prometheus and of health checks. Out: the
state of the node and its cluster, records of topics, registrations, and the changes that an
operator requests."""
