"""The filter of a query: conditions on messages, one of which is the reach of the sender."""

from fnmatch import fnmatchcase
from functools import lru_cache

from msgspec import Struct

from chronos.core.message import Entry, EntryHead, entry_id
from chronos.core.reach import EVERYTHING, Reach
from chronos.core.shard.wheel import Position
from chronos.core.timefmt import MS_MAX

WILDCARDS = frozenset("*?[")
"""Characters of a pattern that is not the name of one topic."""


@lru_cache(maxsize=10_000)
def is_like(topic: str, pattern: str) -> bool:
    """Return whether a topic matches a pattern, which is its name or a shell-style pattern as in
    `targets.allow`."""
    return fnmatchcase(topic, pattern)


class Filter(Struct, frozen=True, kw_only=True):
    """Conditions that must all be true of a message; the default is true of every message. Times
    are compared with the message's position in the store."""

    target: str | None = None
    """Its target topic matches this name or pattern."""
    due_from_ms: int = 0
    """It is due at or after this time (epoch ms)."""
    due_to_ms: int = MS_MAX + 1
    """It is due before this time (epoch ms)."""
    id_prefix: bytes = b""
    """First bytes of its id, be it the user's or a generated one."""
    key: bytes | None = None
    """The Kafka key that it is delivered with."""
    headers: tuple[tuple[str, bytes], ...] = ()
    """Headers that it has, among any others, with exactly these values."""
    contains: bytes = b""
    """Its id, its Kafka key, or the name or the value of one of its headers contains this."""
    is_series: bool = False
    """It has a repetition, if True."""
    reach: Reach = EVERYTHING
    """It is the sender's own."""

    @property
    def is_selective(self) -> bool:
        """True if the filter has conditions besides the due window."""
        return (
            self.target is not None
            or bool(self.id_prefix)
            or self.needs_entry
            or self.reach.is_limited
        )

    @property
    def needs_entry(self) -> bool:
        """True if a condition needs more of a message than the head of its entry."""
        return bool(self.headers) or self.key is not None or bool(self.contains) or self.is_series

    @property
    def start(self) -> Position:
        """The first position of the due window."""
        return max(min(self.due_from_ms, MS_MAX), 0), 0

    @property
    def stop(self) -> Position:
        """The first position after the due window."""
        return max(min(self.due_to_ms, MS_MAX + 1), 0), 0

    def concerns_target(self, topic: str) -> bool:
        """Return whether the filter may be true of a message for the topic."""
        return (self.target is None or is_like(topic, self.target)) and self.reach.admits_target(
            topic
        )

    def concerns(self, entry: Entry | EntryHead, shard: int, offset: int) -> bool:
        """Return whether the filter is true of a message whose position is in the due window."""
        if self.target is not None and not is_like(entry.target, self.target):
            return False
        if self.reach is not EVERYTHING and not self.reach.admits(
            entry_id(entry, shard, offset), entry.target
        ):
            return False
        if self.id_prefix and not entry_id(entry, shard, offset).startswith(self.id_prefix):
            return False
        if self.needs_entry:
            assert isinstance(entry, Entry), "this filter needs the whole entry"
            if self.is_series and (entry.options is None or entry.options.repetition is None):
                return False
            if self.key is not None and entry.key != self.key:
                return False
            headers = entry.headers
            pairs = headers.items() if isinstance(headers, dict) else headers
            if self.contains and not (
                self.contains in entry_id(entry, shard, offset)
                or self.contains in (entry.key or b"")
                or any(self.contains in name.encode(errors="surrogatepass") for name, _ in pairs)
                or any(self.contains in (value or b"") for _, value in pairs)
            ):
                return False
            return all(pair in pairs for pair in self.headers)
        return True
