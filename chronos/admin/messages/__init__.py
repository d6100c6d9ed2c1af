"""Handlers about messages: schedule, find, list, cancel, reschedule, fire, pause and resume, the
outcome of a record, and bulk operations.

A change is a record of the delay topic. It is answered once the log has it (schedule), or once the
shard has applied it, if that is in time (actions, and schedule with `wait`). Look-ups and lists are
answered from the stores, those of other nodes included."""
