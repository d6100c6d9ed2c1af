"""Chronos delivers messages later: a producer says when a message is due, Chronos keeps it on disk and hands it
to its target topic at that time, exactly once, whichever machines fail in between."""

__version__ = "0.1.0"
