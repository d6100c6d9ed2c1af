"""The decisions about a cluster, without I/O: which node serves which shard, and how nodes and
clients learn it.

In: reports of members, observations and times. Out: the roles of all nodes (`roles`, planned by
`assignment` and `placement`), verdicts on masters (`health`), the followers in sync
(`replication`), and routes for clients (`registry`). The controller is found by the coordinator on
Kafka (`kafka`) or on voters (`raft`). A shard knows nothing of this folder but its role."""
