"""The replica: one node's copy of a shard. It follows the shard's master, or is the master.

In: the two partitions of the shard, its store, and its role (`leadership`). Out: a leadership with
its master (`workers.step`), an up-to-date store on every replica (`follow`, `recovery`), its
deletions (`retention`) and checkpoints (`checkpoint`). Enter `replica.Replica.step`, which does a
turn of a phase (`phases`) with the parts of the replica (`parts`, `stored`) and of its node
(`context`), and for checkpoints, which have a thread of their own, `checkpoint.Checkpointer.step`;
a replica's states are in `state`."""
