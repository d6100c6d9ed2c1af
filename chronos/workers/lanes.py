"""Lanes in the steps of a master: which are open, and how due messages and lanes take turns.

Every step without parked messages passes it by. Keeps its part of law 8: a long lane does not delay due messages, a
backlog of due messages does not hold back a lane, and a message of a lane that fails is looked for in that lane alone.
"""

from collections.abc import Callable

from msgspec import Struct

from chronos.core.keys import Lane
from chronos.core.progress import LANES_MAX
from chronos.core.shard import Shard
from chronos.core.step import Leaving, Selection, Staged, nothing_selected, with_leaving

LOOK_EVERY_MS = 1_000
"""Time between two looks at lanes that are all closed."""

DUE: Lane = ("", -1)
"""Stands for the due messages among the lanes, and comes first."""


class Batch(Struct, frozen=True, kw_only=True):
    """The bounds of one selection."""

    messages: int
    bytes: int
    alone: bool
    """A poison record is being looked for: the selection is made of due messages, or of one lane."""


class LaneTurns:
    """The turns of one shard's due messages and open lanes."""

    def __init__(self, shard: Shard, opened: Callable[[set[Lane], int], set[Lane]]) -> None:
        """`opened`: returns those of the lanes that are open at a time (epoch ms); raises LogUnavailable."""
        self._shard = shard
        self._opened = opened
        self._looked_ms = 0
        self._open: list[Lane] = []
        self._last = DUE
        """The lane, or DUE, that came first in the last step that committed."""
        self._first = DUE
        """The one that comes first in this step."""

    def look(self, now_ms: int) -> list[Lane]:
        """Return the open lanes, in order; the brokers are asked at most once a second while all are closed."""
        lanes = self._shard.lanes.states
        if self._open or not 0 <= now_ms - self._looked_ms < LOOK_EVERY_MS:
            self._looked_ms = now_ms
            self._open = sorted(self._opened(set(lanes), now_ms)) if lanes else []
        return self._open

    def next_look_ms(self) -> int:
        """Return when closed lanes are looked at again (epoch ms)."""
        return self._looked_ms + LOOK_EVERY_MS

    def select(
        self,
        staged: Staged,
        batch: Batch,
        select_due: Callable[[int, int], Selection],
        apart: Callable[[Selection], bool] = lambda due: due.entries[0].attempt > 1,
    ) -> Selection:
        """Return a selection of due messages and of messages that leave open lanes.

        `select_due` returns due messages within a number of messages and bytes; it selects one that failed before alone.
        `apart`: returns whether such due messages must not share a step with lanes.
        """
        queues = sorted([DUE, *self._open])
        behind = [queue for queue in queues if queue > self._last]
        order = behind + [queue for queue in queues if queue <= self._last]
        if batch.alone or batch.messages == 1:
            return self._select_one(order, staged, batch, select_due)
        return self._select_all(order, staged, batch, select_due, apart)

    def committed(self) -> None:
        """End the turn: another queue comes first in the next step."""
        self._last = self._first

    def _select_one(
        self, order: list[Lane], staged: Staged, batch: Batch, select_due: Callable[[int, int], Selection]
    ) -> Selection:
        """Return messages of the first queue that has any."""
        due: Selection | None = None
        for queue in order:
            self._first = queue
            if queue == DUE:
                due = select_due(batch.messages, batch.bytes)
                if due.items:
                    return self._joined(due, [])
            elif (leaving := self._shard.lanes.select(queue, staged, batch.messages, batch.bytes)) is not None:
                return self._joined(self._no_due(), [leaving])
        assert due is not None, "due messages have no turn"
        return due

    def _select_all(
        self,
        order: list[Lane],
        staged: Staged,
        batch: Batch,
        select_due: Callable[[int, int], Selection],
        apart: Callable[[Selection], bool],
    ) -> Selection:
        """Return due messages in at least half of the batch, if there are as many, and messages of the lanes in the rest.

        A message that failed before comes only when its queue is first, and then alone; so do messages that are apart.
        """
        first = self._first = order[0]
        due = select_due(batch.messages - batch.messages // 2, batch.bytes - batch.bytes // 2)
        if due.entries and apart(due):
            if first == DUE:
                return self._joined(due, [])
            due = self._no_due()
        messages_left = batch.messages - len(due.items)
        bytes_left = batch.bytes - sum(len(data) for _, _, data in due.items)
        lanes = [lane for lane in order if lane != DUE][:LANES_MAX]
        leaving: list[Leaving] = []
        for at, lane in enumerate(lanes):
            if messages_left <= 0 or bytes_left <= 0:
                break
            share = len(lanes) - at
            found = self._shard.lanes.select(lane, staged, -(-messages_left // share), -(-bytes_left // share))
            if found is None:
                continue
            if found.entries[0].attempt > 1:
                if lane == first:
                    return self._joined(self._no_due(), [found])
                continue
            leaving.append(found)
            messages_left -= len(found.items)
            bytes_left -= sum(len(data) for _, _, data in found.items)
        if not due.items and not leaving:
            return self._select_one(order, staged, batch, select_due)
        return self._joined(due, leaving)

    def _no_due(self) -> Selection:
        return nothing_selected(self._shard.state.cursor, complete=False)

    def _joined(self, due: Selection, leaving: list[Leaving]) -> Selection:
        emptied = {lane.lane for lane in leaving if lane.is_all}
        complete = due.complete and emptied.issuperset(self._open)
        return with_leaving(due, leaving, complete=complete)
