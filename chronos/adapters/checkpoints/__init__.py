"""Checkpoints: as files on this machine (`files`), in a folder or in object storage (`folder`, a
`ports.Checkpoints`), and from another node (`node`).

In: a store to copy, or a checkpoint to fetch. Out: a checkpoint that was read back, or a store of
which every byte was compared with its manifest. `workers.replica.checkpoint` decides when a
checkpoint is made, `node.bootstrap` when one is fetched."""
