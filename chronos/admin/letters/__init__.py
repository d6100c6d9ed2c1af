"""Handlers about dead letters and rejected records: list, show and count; replay and discard dead
letters.

In: requests, and the two topics, read in bounded parts. Out: pages, single letters, counts, the
newest rejected record of an id, and the records that replay or resolve dead letters."""
