"""The step: one transaction of a shard's master, or none. Enter `master.Master.step`.

In the order of a step: whether a master may still commit (`tenure`); what this step may do
(`scope`); the records (`pull`); the time before which ids are forgotten (`horizon`); which of the
refused records wait (`held`); the turns of due messages and open lanes (`lanes`); the targets
(`targets`, `partitions`), the decision about each message (`decisions`) and the plan of the
transaction (`push`, `letters`, `planned`); and after the commit its report (`report`). A
transaction that fails is searched for the record that makes it fail (`poison`, `letter_topics`).
Records of other programs in the progress partition are logged (`foreign`).

In: the two partitions of the shard, its store, and the descriptions of targets. Out: the records of
one transaction with its progress record, and the write to the store. A missing target topic is
created here, where that is allowed. What a step makes of records and messages without a broker is
in `core.shard`; the phases of a replica are in `workers.replica`, which this package does not
import."""
