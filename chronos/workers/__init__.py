"""The work of a node, as steps over the ports: a replica of a shard and its transactions
(`replica`, `push`), the membership of the cluster (`cluster`), and what is watched beside the
shards (`watch`).

It uses the ports and the core only, starts no thread and knows no setting: `node` runs it."""
