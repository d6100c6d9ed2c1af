"""The expectations of producers about their records: the checker compares every outcome with
them."""

from __future__ import annotations

from msgspec import Struct


class Expectation(Struct, kw_only=True):
    """The expectation of a producer about one record of the delay topic."""

    verb: str
    id: bytes | None = None
    due_ms: int = 0
    target: str = ""
    key: bytes | None = None
    value: bytes | None = None
    expire_at_ms: int | None = None
    policy: str = "reject"
    """The conflict policy of a schedule."""
    malformed: bool = False
    """The record must be refused regardless of the shard's state."""
    unreadable: bool = False
    """The record is in a batch that no reader can decompress: its range must be refused as a
    whole."""
    every_ms: int = 0
    """Interval of a series; 0: the message is delivered once."""
    times: int = 1
    """Occurrences of a series."""
    late_policy: str = ""
    spread_ms: int = 0
    attempts: int = 0
    """Its own limit of attempts; 0: it has none."""
    delay_ms: int | None = None
    """The delay from which `due_ms` follows; None: the due time itself is given."""
    first_ms: int | None = None
    """The first timestamp in the hop of a forwarded record, or of one that a producer forged; None:
    it has no hop."""
    first_shard: int | None = None
    """The shard that such a record came to first, by its hop."""
    replayed: bytes | None = None
    """Of a replay: the source of the dead letter that it schedules again."""
