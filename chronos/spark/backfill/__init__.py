"""Backfill: archived messages selected (`selection`), planned (`job`) and sent again (`sending`):
once for a purpose through the delay topic, at least once straight to the targets."""
