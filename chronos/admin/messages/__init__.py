"""Handlers about messages: schedule, find, list, cancel, reschedule, fire, pause and resume; in
bulk too.

In: requests with checked JSON. Out: records in the delay topic, and answers from the stores of the
shards once they have applied these records."""
