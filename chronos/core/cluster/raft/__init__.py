"""The election of a leader among a fixed list of nodes, after DLedger, and one replicated value.

In: events: messages, ticks, finished writes, new values and transfers of the leadership (`values`,
`register`). Out: effects: what to send, what to write, and the results, such as a change of role or
a committed value (`elector`, `register`); and the time of the next tick. `sessions` has the members
as the leader knows them, and the content of the value: roles and requests. `adapters.raft` gives
the events and carries out the effects."""
