"""The registry: which node serves which shard, for clients, after the rules of RocketMQ's
NameServer.

In: registrations of nodes (`registration`), and changes of the configuration. Out: routes, nodes,
topics and clusters for clients (`registry`, `values`), and the changed configuration
(`configuration`). Nodes register with every registry; registries keep registrations in memory only
and exchange nothing. Safety never depends on them: a stale route costs a forwarded request, because
the log fences (law 5)."""
