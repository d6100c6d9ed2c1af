"""A clock for tests that set the time themselves."""

START_MS = 1_800_000_000_000


class HandClock:
    """Stands still until `now` is changed; `stepped`: by how much of that it was set."""

    def __init__(self) -> None:
        self.now = START_MS
        self.stepped = 0

    def now_ms(self) -> int:
        return self.now

    def stepped_ms(self) -> int:
        return self.stepped
