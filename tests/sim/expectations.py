"""What producers expect of the records they write: the checker compares every outcome with it."""

from __future__ import annotations

from msgspec import Struct


class Expectation(Struct, kw_only=True):
    """What a producer expects of one record of the delay topic."""

    verb: str
    id: bytes | None = None
    due_ms: int = 0
    target: str = ""
    key: bytes | None = None
    value: bytes | None = None
    expire_at_ms: int | None = None
    malformed: bool = False
    """Must be refused, whatever the shard holds."""
