"""The verbs about messages: send, list, find, get, cancel, reschedule, fire, pause, resume, tail,
bulk operations (jobs), dead letters and rejected records.

In: options and stdin. Out: requests of `chronos.client`, and tables or JSON."""
