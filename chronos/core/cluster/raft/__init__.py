"""The election of a leader among a fixed list of nodes, after DLedger, and one replicated value.

In: messages, timeouts and requests (`values`). Out: effects: what to send, to write and to wait for
(`elector`, `register`). `sessions` are the members as the leader knows them. `adapters.raft`
carries the messages."""
