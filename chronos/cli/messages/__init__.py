"""The verbs about messages: send, list, find, get, cancel, reschedule, fire, pause, resume, tail,
bulk operations (jobs), dead letters and rejected records; and the requests of `transfer`, `forget`
and `failover arm`.

In: options and stdin. Out: requests of `chronos.client`, of `find` also a job of Spark on the
archive, and tables or JSON."""
