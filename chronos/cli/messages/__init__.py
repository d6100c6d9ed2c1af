"""The verbs about messages: send, list, get, cancel, reschedule, fire, tail, dead letters and
rejected records.

In: options and lines of stdin. Out: requests of `chronos.client`, and tables or JSON. `app`
declares the verbs."""
