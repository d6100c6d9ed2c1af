"""Checkpoints outside a store: as files (`files`), in a folder or in object storage (`folder`), and
from another node (`node`).

In: stores, and places. Out: stores whose content was compared with the manifest, byte by byte. When
one is made or fetched is decided by `workers.replica.checkpoint` and `node.bootstrap`."""
