"""Queries of a shard, answered from its store: one message by its id (`lookup`), pages of messages
by a filter (`pages`, `filter`), the pending messages by minute (`timeline`), and all pending
messages of a filter (`scan`).

In: a view of the store, so that any replica can answer. Out: values for the HTTP interface and the
bulk operations. Every call does a bounded amount of work, except a scan, which is bounded between
two of its parts; and nothing here changes a store."""
