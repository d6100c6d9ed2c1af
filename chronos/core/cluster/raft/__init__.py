"""The election of a leader among a fixed list of nodes, after DLedger, and one replicated value.

In: events: messages, ticks, finished writes, new values and transfers of the leadership. Out:
effects: what to send, what to write, and the results, such as a change of role or a committed
value; and the time of the next tick. Events and effects are defined in `values` and `register`; the
state machines are `elector` and, around it, `register`. `sessions` has the members as the leader
knows them, and the content of the value: roles and requests. `adapters.raft` gives the events and
carries out the effects."""
