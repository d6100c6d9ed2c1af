"""The decisions about a cluster, without I/O: which node serves which shard, and how nodes and
clients learn it.

In: reports of members and requests of operators (both values of `roles`; `reports` is an index of
the reports), observations and times. Out: the roles of all nodes (`roles`, planned by `planner`,
`assignment` and `placement`), verdicts on masters (`health`), the followers in sync
(`replication`), and routes for clients (`registry`). The controller is chosen by the coordinator on
Kafka (`kafka`) or on voters (`raft`); on ZooKeeper it is the member with the oldest znode
(`adapters.zookeeper`). Safety depends on none of it: the log keeps law 5."""
