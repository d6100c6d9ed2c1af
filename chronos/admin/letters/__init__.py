"""Dead letters and rejected records over HTTP: list, show, count, replay, discard.

In: calls, and the two topics, read in bounded parts. Out: pages, and records that replay or resolve
dead letters."""
