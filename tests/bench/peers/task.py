"""What a driver writes or reads."""

from msgspec import Struct


class Task(Struct, frozen=True, kw_only=True):
    """The JSON object that every driver gets as its last argument."""

    server: str
    count: int
    """Messages."""
    timeout_s: float
    """How long the reader waits for all of them."""
    bytes: int = 200
    """Payload of a message."""
    rate: int = 0
    """Messages a second; 0: as fast as they are accepted."""
    due_ms: int = 0
    """When all of them are due (epoch ms); 0: from `lowest_ms` to `highest_ms` after each is
    written."""
    lowest_ms: int = 3_000
    highest_ms: int = 10_000

    def due(self, number: int, now_ms: int) -> int:
        """Return when the message with this number is due, if it is written now."""
        if self.due_ms:
            return self.due_ms
        return now_ms + self.lowest_ms + number * 7_919 % (self.highest_ms - self.lowest_ms + 1)
