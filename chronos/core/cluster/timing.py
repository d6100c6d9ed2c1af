"""The times of a coordinator on Kafka or on voters: how often a member sends a heartbeat, and after
which silence it counts as gone."""

from msgspec import Struct

GRACE_TIMEOUTS = 3
"""Number of timeouts for which a process calls no member gone after it was itself stopped, or cut
off from the log."""


class Timing(Struct, frozen=True, kw_only=True):
    """The two times of a coordinator on Kafka or on voters."""

    heartbeat_ms: int = 250
    """Time between two heartbeats."""
    timeout_ms: int = 1_500
    """Silence after which a controller is replaced, and a member is gone."""

    @property
    def prompt_ms(self) -> int:
        """Most time for a heartbeat to come back, and between two heartbeats, for the time between
        them to count."""
        return self.timeout_ms // 2

    @property
    def seen_ms(self) -> int:
        """Most time since the heartbeat that came back last was written, for a process to be
        seen."""
        return self.timeout_ms * 3 // 4

    @property
    def grace_ms(self) -> int:
        """Time that must count before a process calls a member gone after a pause of its own."""
        return GRACE_TIMEOUTS * self.timeout_ms
