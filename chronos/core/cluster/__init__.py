"""The decisions about a cluster, without I/O: which node serves which shard, and how the nodes
know.

In: reports, heartbeats, probes and times. Out: roles (`roles`), a controller (`controllership`,
`raft`), judgements (`health`, `replication`), and the registry that clients ask. `assignment.plan`
is the controller's plan, a pure function. A shard knows nothing of this folder but its role."""
