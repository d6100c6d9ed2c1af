"""Lanes in the steps of a master: which are open, and how due messages and lanes take turns.

A lane is open if what keeps its messages there is over, and its topic's rate allows some of them to leave now.

Every step without parked messages passes it by. Keeps its part of law 8: a long lane does not delay due messages, a
backlog of due messages does not hold back a lane, and a message of a lane that fails is looked for in that lane alone.
"""

from collections.abc import Callable, Mapping, Set

from msgspec import Struct

from chronos.core.keys import LIMITED, UNCREATED, WHOLE_TOPIC, Lane, partition_of
from chronos.core.lanes import count_live
from chronos.core.message import Entry
from chronos.core.progress import LANES_MAX
from chronos.core.shard import Shard
from chronos.core.step import Leaving, Selection, Staged, nothing_selected, with_leaving
from chronos.ports import TopicInfo
from chronos.workers.rates import Openings
from chronos.workers.targets import NOT_YET, Target

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
    now_ms: int
    """Time of the step (epoch ms)."""


class LaneTurns:
    """The turns of one shard's due messages and open lanes."""

    def __init__(
        self,
        shard: Shard,
        openings: Callable[[Mapping[Lane, int], int], Openings],
        spend: Callable[[Mapping[str, int]], None] = lambda spent: None,
    ) -> None:
        """`openings`: returns which of the lanes, given with their lengths, are open at a time (epoch ms); raises LogUnavailable.

        `spend`: called with the number of messages that a committed step took of the rate of each limited topic.
        """
        self._shard = shard
        self._openings = openings
        self._spend = spend
        self._looked_ms = self._next_look_ms = 0
        self._lanes_seen = 0
        self._now = Openings(lanes=frozenset())
        self._open: list[Lane] = []
        self._last = DUE
        """The lane, or DUE, that came first in the last step that committed."""
        self._first = DUE
        """The one that comes first in this step."""
        self._left: dict[str, int] = {}
        """Limited topic -> number of messages that may still leave its lanes in this step."""

    @property
    def waiting(self) -> Mapping[str, int]:
        """Limited topic -> number of messages that wait for its rate, when the lanes were last looked at."""
        return self._now.waiting if self._shard.state.parked else {}

    def look(self, now_ms: int) -> list[Lane]:
        """Return the open lanes, in order; while all are closed the brokers are asked at most once a second."""
        lanes = self._shard.lanes.states
        is_fresh = self._looked_ms <= now_ms < self._next_look_ms and len(lanes) == self._lanes_seen
        if self._open or not is_fresh:
            lengths = {lane: state.length for lane, state in lanes.items()}
            self._now = self._openings(lengths, now_ms) if lanes else Openings(lanes=frozenset())
            self._looked_ms, self._lanes_seen = now_ms, len(lanes)
            self._next_look_ms = now_ms + LOOK_EVERY_MS
            if self._now.next_ms is not None:
                self._next_look_ms = min(self._next_look_ms, max(now_ms + 1, self._now.next_ms))
            self._open = sorted(self._now.lanes)
        return self._open

    def next_look_ms(self) -> int:
        """Return when closed lanes are looked at again (epoch ms)."""
        return self._next_look_ms if len(self._shard.lanes.states) == self._lanes_seen else self._looked_ms

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
        self._left = dict(self._now.allowed)
        queues = sorted([DUE, *self._open])
        behind = [queue for queue in queues if queue > self._last]
        order = behind + [queue for queue in queues if queue <= self._last]
        if batch.alone or batch.messages == 1:
            return self._select_one(order, staged, batch, select_due)
        return self._select_all(order, staged, batch, select_due, apart)

    def committed(self, spent: Mapping[str, int]) -> None:
        """End the turn: another queue comes first in the next step. `spent`: see `spend` of the constructor."""
        self._last = self._first
        if spent:
            self._spend(spent)
            self._next_look_ms = 0

    def _select_lane(
        self, lane: Lane, staged: Staged, batch: Batch, messages_max: int, bytes_max: int
    ) -> Leaving | None:
        """Return the first messages of the lane within both limits and its topic's rate; None if there are none."""
        allowed = self._left.get(lane[0])
        found = self._shard.lanes.select(lane, staged, messages_max, bytes_max, allowed, batch.now_ms)
        if found is not None and allowed is not None:
            self._left[lane[0]] = allowed - count_live(found.entries, batch.now_ms)
        return found

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
            elif (leaving := self._select_lane(queue, staged, batch, batch.messages, batch.bytes)) is not None:
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
            found = self._select_lane(lane, staged, batch, -(-messages_left // share), -(-bytes_left // share))
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
        # A lane whose rate allows no more messages now is not open any longer.
        complete = due.complete and all(lane in emptied or self._left.get(lane[0]) == 0 for lane in self._open)
        return with_leaving(due, leaving, complete=complete)


def is_open(partition: int, target: Target) -> bool:
    """Return whether messages may leave a lane of the target: they can be delivered, or can only be dead-lettered.

    For a partition that does not exist there is no leader to wait for.
    """
    info = target.info
    if info is None:
        return target.is_missing
    if info is NOT_YET:
        return False
    if not info.writable or partition in (UNCREATED, LIMITED):
        return True
    return len(info.closed) < info.partitions if partition == WHOLE_TOPIC else partition not in info.closed


def lane_for(entry: Entry, info: TopicInfo, occupied: Set[Lane], has_token: bool = True) -> int | None:
    """Return the partition of the lane in which the message must wait; None if it can be delivered.

    `has_token`: the rate of the target allows one more message.
    """
    if (entry.target, LIMITED) in occupied:
        return LIMITED
    if info is NOT_YET or (entry.target, UNCREATED) in occupied:
        return UNCREATED
    if entry.key is None:
        lane, is_led = WHOLE_TOPIC, len(info.closed) < info.partitions
    else:
        lane = partition_of(entry.key, info.partitions)
        is_led = lane not in info.closed
    if is_led and (entry.target, lane) not in occupied:
        return None if has_token else LIMITED
    return lane


def why_parked(topic: str, lane: int) -> str:
    """Return why the messages of a lane wait, for people."""
    if lane == LIMITED:
        return f"the rate of {topic} is limited"
    if lane == UNCREATED:
        return f"{topic} does not exist and could not be created yet"
    return (
        f"no partition of {topic} has a leader" if lane == WHOLE_TOPIC else f"partition {lane} of {topic} has no leader"
    )
