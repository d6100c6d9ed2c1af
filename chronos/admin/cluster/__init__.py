"""Handlers about the cluster and the node: nodes, roles, failovers, shards, digests, timeline,
history, registry, checkpoints, rates, targets, topics and their records, audit trail, audits of the
archive and health; the metrics; the registration of this node with the registries; and the client
that sends a node's requests to other nodes.

In: requests of operators, of clients, of other nodes, of Prometheus and of health checks. Out: the
state of the node and its cluster, records of topics, registrations, and the changes that an
operator requests."""
