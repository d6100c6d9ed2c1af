"""The replica: one node's copy of a shard. It follows the shard's master, or is the master.

In: the two partitions of the shard, its store, and its role. Out: transactions of a master
(`master`), an up-to-date store on every replica (`follow`, `pull`, `recovery`), and its deletions
and checkpoints. Enter `replica.Replica.step`."""
