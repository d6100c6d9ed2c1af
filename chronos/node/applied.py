"""The applied records of one shard: what its last steps did with delay records, for the requests
that wait for the outcome of their action. The shard's thread notes each turn; any thread may wait
and look up."""

import threading
from collections import OrderedDict

from chronos.workers.replica.phases import ReplicaTurn

REFUSALS_REMEMBERED = 20_000
"""Refusals, and upserts, kept for HTTP requests that wait for the outcome of their action."""


class AppliedRecords:
    """The position of one shard in its delay partition, and the latest outcomes up to there."""

    def __init__(self) -> None:
        self.pulled = 0
        """Offset in the delay partition up to which everything is executed, transaction markers
        included."""
        self._moved = threading.Condition()
        self._refusals: OrderedDict[int, int] = OrderedDict()
        self._upserts: OrderedDict[int, str] = OrderedDict()
        self._refusals_from: int | None = None
        """Offset from which all refusals are remembered; None before the first turn."""

    def note(self, turn: ReplicaTurn, pulled: int) -> None:
        """Add the outcomes of a turn, after which the position is `pulled`."""
        for offset, reason in turn.refused:
            self._refusals[offset] = reason
        while len(self._refusals) > REFUSALS_REMEMBERED:
            self._refusals_from = self._refusals.popitem(last=False)[0] + 1
        self._upserts.update(turn.upserts)
        while len(self._upserts) > REFUSALS_REMEMBERED:
            self._upserts.popitem(last=False)
        if self._refusals_from is None:
            self._refusals_from = pulled
        # The refusals come first: a thread that sees the position must find the refusals before it.
        if pulled != self.pulled:
            with self._moved:
                self.pulled = pulled
                self._moved.notify_all()

    def wait_pulled(self, offset: int, timeout_s: float) -> bool:
        """Wait until the delay partition is executed up to `offset`, markers included; False if the
        time passes first."""
        with self._moved:
            return self._moved.wait_for(lambda: self.pulled >= offset, timeout_s)

    def refusal(self, offset: int) -> int | None:
        """Return the `Reason` for which the delay record at the offset was refused; None: not
        refused, or too long ago."""
        return self._refusals.get(offset)

    def upsert(self, offset: int) -> str | None:
        """Return what the upsert at the offset did (`core.shard.step.CREATED` and others); None: it
        is none, was rejected, or is too long ago."""
        return self._upserts.get(offset)

    def remembers(self, offset: int) -> bool:
        """Return whether `refusal` would know of a refusal of the delay record at the offset, which
        was applied."""
        since = self._refusals_from
        return since is not None and offset >= since
