"""Backfill: archived messages selected, planned and sent again, each once for a purpose."""
