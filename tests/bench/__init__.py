"""`scripts/bench`: how fast and how exact, on a real broker, against a reference measured in the
same run."""
