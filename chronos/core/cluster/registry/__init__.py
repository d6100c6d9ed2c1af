"""The registry: which node serves which shard, for clients, after the rules of RocketMQ's
NameServer.

In: registrations of nodes, and changes of the configuration. Out: routes, nodes, topics and
clusters for clients (`registry`, `values`), the changed configuration (`configuration`), and when a
node sends its own registration, and to which registries (`registration`). Nodes register with every
registry of their cluster; registries keep registrations in memory only and exchange none. Safety
never depends on them, because the log fences (law 5): a stale route costs a forwarded request."""
