"""The step: one transaction of a shard's master, or none. Enter `master.Master.step`.

In the order of a step: whether a master may still commit (`tenure`); what this step may do
(`scope`); the records (`pull`); which of the refused ones wait (`held`, `horizon`); which lanes are
open, and whose turn it is (`lanes`); the targets (`targets`, `partitions`), the decision about each
message (`decisions`) and the transaction made of them (`push`, `letters`, `planned`); and after the
commit its report (`report`). A transaction that fails is searched for the record that fails it
(`poison`, `letter_topics`).

In: the two partitions of the shard, its store, and the descriptions of targets. Out: the records of
one transaction with its progress record, and the write to the store. A missing target topic is
created here, where that is allowed. What a step makes of records and messages without a broker is
`core.shard`; the phases before and after a leadership are `workers.replica`, which this package
does not import."""
