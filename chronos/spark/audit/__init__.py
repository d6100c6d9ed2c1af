"""The audit: the outcome of every message that was due in a window, proved from the archive."""
