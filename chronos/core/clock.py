"""The tolerance between clocks."""

CLOCK_TOLERANCE_MS = 500
"""Largest difference between two clocks, and largest step of one, at which messages are still delivered (law 2)."""
