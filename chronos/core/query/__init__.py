"""Queries of a shard, answered from its store: one message by its id (`lookup`), pages of messages
by a filter (`pages`, `filter`), the number of pending messages in each interval (`timeline`), and
all pending messages of a filter (`scan`).

In: a view of the store, so that any replica can answer. Out: values for the HTTP interface and the
bulk operations. Every call does a bounded amount of work, except in `scan`, which reads the store
in bounded parts; and nothing here changes a store."""
