"""Messages over HTTP: schedule, find, list, cancel, reschedule, fire, in bulk too.

In: calls with checked JSON. Out: records in the delay topic, and answers from the stores of shards,
once they have applied what the sender wrote."""
