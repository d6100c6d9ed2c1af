"""Checkpoints: as files on this machine (`files`), in a folder or in object storage (`folder`, a
`ports.Checkpoints`), and from another node (`node`).

In: a store to copy, or a checkpoint to fetch. Out: a checkpoint that was read back, a stream of one
for another node, or a store of which every byte was compared with its manifest.
`workers.replica.checkpoint` decides when one is made in `folder`, `node.bootstrap` when one is
fetched; `admin.cluster.cluster` makes a stream for each request."""
