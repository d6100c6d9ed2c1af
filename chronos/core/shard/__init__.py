"""The shard: one partition of the delay topic as a state machine, without I/O. Enter `shard.Shard`.

In: records of the delay topic, the rows of the store, and progress records: those to replay, or the
one that this master has committed. Out: refusals, selections, and the rows to write. The order of a
step: `parsing` (with `rules` and `order`), `staging` with the `letters` of refused records, held
records (`queues`) and newer zone data (`replans`), selection from the `wheel` and the `lanes`, the
`fate` of each message, the progress record (`record`, `progress`), and the rows in `codec`, with
the counts of minutes (`counts`). `draft` is one step before its plan, `step` has the other values
that one part of a step passes on to the next; `fifo` is the common part of `lanes` and `queues`;
`look_ahead` computes parts of this step and the next during the commit; `digest` computes the text
by which replicas are compared. The package imports nothing of the cluster, the archive or an
interface."""
