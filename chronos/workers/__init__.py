"""The work of a node, as steps over the ports: a replica of a shard and its transactions
(`replica`, `push`), the membership of the cluster (`cluster`), and what is watched beside the
shards (`watch`).

Of Chronos it imports the ports, the core and the errors only. It starts no thread and reads no
configuration: `node` gives it its settings, and runs it."""
