"""The decisions about a cluster, without I/O: which node serves which shard, and how nodes and
clients learn it.

In: reports of members (`reports`), observations and times. Out: the roles of all nodes (`roles`,
planned by `planner`, `assignment` and `placement`), verdicts on masters (`health`), the followers
in sync (`replication`), and routes for clients (`registry`). The controller is found by the
coordinator on Kafka (`kafka`) or on voters (`raft`), or else by ZooKeeper itself. Safety depends on
none of it: the log keeps law 5."""
