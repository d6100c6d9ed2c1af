"""Watches beside the shards: whether a replica stands still, the log answers, topics changed, or a
transaction stays open.

In: looks at replicas and brokers at intervals. Out: a reason that people read in `/readyz`,
`chronos status` and the log. No decision about a message depends on them."""
