"""The work of a node, as steps over the ports: the steps of a master (`step`), a replica of a shard
with its phases (`replica`), the membership of the cluster (`cluster`), and the watches beside the
shards (`watch`).

Of Chronos it imports the ports, the core and the errors only. It starts no thread and reads no
configuration: `node` gives it its settings, and runs it."""
