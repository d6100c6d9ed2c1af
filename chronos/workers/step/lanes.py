"""Lanes in the steps of a master: which are open, how due messages and lanes take turns, and the
rate limits that open and close them; and the lane in which a message must wait.

A lane is open if what keeps its messages there is over and its topic's rate allows some of them to
leave now, or if they can only be dead-lettered. The rate does not count for the lanes of a topic's
partitions while the topic is set aside. The lane of a rate stays closed while a lane of the same
topic's partitions is open.

A limit is for the whole service; each shard has a share of it by the length of its lanes
(`RateLimits.share`). Every message of a limited target that is delivered takes a token. So does one
that leaves the lane of its rate for another lane, or for a later time because its target is set
aside. Messages that expire, become dead letters, or are retried after a refusal take none.

The buckets of a new master begin empty, so that a take-over never exceeds a rate. A clock that is
set forward fills a bucket, like a time without messages; one that is set back adds nothing.

Without parked messages no lane is looked at, and `LaneTurns` only takes the tokens of what was
delivered. It keeps its part of law 8: a long lane does not delay due messages, a backlog of due
messages does not hold back a lane, and a message of a lane that fails is looked for in that lane
alone."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

from msgspec import Struct, field

from chronos.core.keys import LIMITED, UNCREATED, WHOLE_TOPIC, Lane, partition_of
from chronos.core.message import Entry
from chronos.core.rates import Rate, RateTable
from chronos.core.shard.lanes import count_live
from chronos.core.shard.progress import LANES_MAX
from chronos.core.shard.shard import Shard
from chronos.core.shard.step import Leaving, Selection, Staged, nothing_selected, with_leaving
from chronos.ports import TopicInfo
from chronos.workers.step.targets import NOT_YET, Target

QUANTUM_S = 0.05
"""Messages of a limited target leave their lane together, as many as its rate allows in this time
(in seconds): a transaction for each would cost the brokers many times as much."""

BUCKETS_MAX = 10_000
"""Most topics with a bucket; with more of them all begin again, empty."""

REPORTED_MAX = 50
"""Most topics whose lanes' lengths a replica reports."""

_ROUNDING = 1e-6
"""Tokens by which the sum of many small additions may fall short of a whole number."""


class Openings(Struct, frozen=True, kw_only=True):
    """The lanes that messages may leave at one moment."""

    lanes: frozenset[Lane]
    allowed: Mapping[str, int] = field(default_factory=dict)
    """Limited topic -> number of messages that may leave its open lanes now."""
    waiting: Mapping[str, int] = field(default_factory=dict)
    """Limited topic -> number of messages in its lanes that wait for the rate alone."""
    next_ms: int | None = None
    """When a lane opens that only a rate holds closed (epoch ms); None if there is none."""


class Bucket:
    """The tokens of one topic in one shard; each is one message."""

    def __init__(self, now_ms: int) -> None:
        self.tokens = 0.0
        self._filled_ms = now_ms

    def fill(self, now_ms: int, per_s: float, burst: float) -> None:
        """Add the tokens since the last call; at most `burst` are kept, and at least one can be."""
        passed_ms = max(0, now_ms - self._filled_ms)
        self._filled_ms = now_ms
        self.tokens = min(max(1.0, burst), self.tokens + passed_ms * per_s / 1_000)


class RateLimits:
    """The limits in force on one node, and the shares of its shards; threads share it."""

    def __init__(
        self,
        configured: Mapping[str, Rate | None],
        *,
        changed: Callable[[], Mapping[str, Rate | None]] = dict,
        lengths: Callable[[str], Sequence[int]] = lambda topic: (),
    ) -> None:
        """`changed`: returns the limits set at run time, the same object until they change.
        `lengths`: returns for each shard of the service the number of messages that wait for the
        rate of a topic."""
        self._configured = configured
        self._changed = changed
        self._lengths = lengths
        self._seen = changed()
        self._table = RateTable(configured, self._seen)

    @property
    def table(self) -> RateTable:
        """The limits in force now."""
        changed = self._changed()
        if changed is not self._seen:
            self._table = RateTable(self._configured, changed)
            self._seen = changed
        return self._table

    def share(self, topic: str, shard: int) -> float:
        """Return the share of a topic's rate that a shard has, from 0 to 1; all shards of the
        service together have 1.

        Shares follow the number of messages that wait, as the members report them. One is added to
        each, so that a shard in which none waits can begin."""
        lengths = self._lengths(topic)
        if len(lengths) <= 1:
            return 1.0
        return (lengths[shard] + 1) / (sum(lengths) + len(lengths))


class ShardRates:
    """The buckets of one leadership of one shard."""

    def __init__(self, shard: int, limits: RateLimits, *, began_ms: int = 0) -> None:
        """`began_ms`: since when this leadership could have delivered messages (epoch ms)."""
        self._shard = shard
        self._limits = limits
        self._began_ms = began_ms
        self._buckets: dict[str, Bucket] = {}

    def limited(self, topics: Iterable[str]) -> set[str]:
        """Return those of the topics that have a limit."""
        table = self._limits.table
        return (
            {topic for topic in topics if table.rate(topic) is not None} if table.limits else set()
        )

    def allowed(self, topics: Iterable[str], now_ms: int) -> dict[str, int]:
        """Return, for each of the topics that has a limit, the number of messages that may be
        delivered now."""
        table = self._limits.table
        if not table.limits:
            self._buckets.clear()
            return {}
        return {
            topic: int(self._filled(topic, rate, now_ms)[0].tokens + _ROUNDING)
            for topic in topics
            if (rate := table.rate(topic)) is not None
        }

    def spend(self, spent: Mapping[str, int]) -> None:
        """Take the tokens of messages that were committed."""
        for topic, messages in spent.items():
            if topic in self._buckets:
                self._buckets[topic].tokens -= messages

    def ready_ms(self, topic: str, now_ms: int, *, tokens: float = 1.0) -> int:
        """Return when as many tokens are there (epoch ms); 0 if the topic has no limit."""
        rate = self._limits.table.rate(topic)
        if rate is None:
            return 0
        bucket, per_s = self._filled(topic, rate, now_ms)
        lacking = tokens - bucket.tokens
        if lacking <= _ROUNDING:
            return now_ms
        return now_ms + (int(lacking / per_s * 1_000) + 1 if per_s > 0 else 60_000)

    def openings(
        self,
        lanes: Mapping[Lane, int],
        opened: Set[Lane],
        exempt: Set[str],
        set_aside: Set[str],
        now_ms: int,
    ) -> Openings:
        """Return those of the open lanes that the rates leave open. `lanes`: the length of each;
        `exempt`: topics without any rate.

        The messages in the lane of a partition came before those that wait for the rate, so they
        leave first. Those of a target that is `set_aside` leave as deferred: at once, because they
        would enter a lane that is not empty again."""
        by_topic: dict[str, list[Lane]] = {}
        for lane in opened:
            by_topic.setdefault(lane[0], []).append(lane)
        open_now: set[Lane] = set()
        allowed: dict[str, int] = {}
        waiting: Counter[str] = Counter()
        next_ms = None
        table = self._limits.table
        for topic, of_topic in by_topic.items():
            of_partitions = [lane for lane in of_topic if lane[1] != LIMITED]
            first = of_partitions or of_topic
            defers = topic in set_aside and bool(of_partitions)
            rate = None if topic in exempt or defers else table.rate(topic)
            if rate is not None:
                waiting[topic] = sum(lanes[lane] for lane in of_topic)
                bucket, per_s = self._filled(topic, rate, now_ms)
                needed = max(1.0, min(per_s * QUANTUM_S, waiting[topic]))
                if bucket.tokens + _ROUNDING < needed:
                    ready_ms = self.ready_ms(topic, now_ms, tokens=needed)
                    next_ms = ready_ms if next_ms is None else min(next_ms, ready_ms)
                    continue
                allowed[topic] = int(bucket.tokens + _ROUNDING)
            open_now.update(first)
        reported = dict(waiting.most_common(REPORTED_MAX))
        return Openings(
            lanes=frozenset(open_now), allowed=allowed, waiting=reported, next_ms=next_ms
        )

    def _filled(self, topic: str, rate: Rate, now_ms: int) -> tuple[Bucket, float]:
        """Return the topic's bucket, filled, and the rate in messages per second at which it fills
        in this shard."""
        bucket = self._buckets.get(topic)
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:
                self._buckets.clear()
                self._began_ms = now_ms
            bucket = self._buckets[topic] = Bucket(self._began_ms)
        share = self._limits.share(topic, self._shard)
        bucket.fill(now_ms, rate.per_s * share, rate.burst * share)
        if not rate.per_s:
            # What was saved before the target was stopped would still be delivered.
            bucket.tokens = min(bucket.tokens, 0.0)
        return bucket, rate.per_s * share


LOOK_EVERY_MS = 1_000
"""Time between two looks at lanes that are all closed."""

DUE: Lane = ("", -1)
"""Stands for the due messages among the lanes, and comes first."""


class SelectionBounds(Struct, frozen=True, kw_only=True):
    """The bounds of one selection."""

    messages: int
    bytes: int
    is_search: bool
    """A poison record is being looked for: the selection is made of due messages, or of one
    lane."""
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
        """`openings`: returns which of the lanes, given with their lengths, are open at a time
        (epoch ms); raises LogUnavailable.

        `spend`: called with the number of messages that a committed step took of the rate of each
        limited topic."""
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
        """Limited topic -> number of messages that wait for its rate, when the lanes were last
        looked at."""
        return self._now.waiting if self._shard.state.parked else {}

    def look(self, now_ms: int) -> list[Lane]:
        """Return the open lanes, in order; while all are closed the brokers are asked at most once
        a second."""
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
        return (
            self._next_look_ms
            if len(self._shard.lanes.states) == self._lanes_seen
            else self._looked_ms
        )

    def select(
        self,
        staged: Staged,
        bounds: SelectionBounds,
        select_due: Callable[[int, int], Selection],
        apart: Callable[[Selection], bool] = lambda due: due.entries[0].attempt > 1,
    ) -> Selection:
        """Return a selection of due messages and of messages that leave open lanes.

        `select_due` returns due messages within a number of messages and bytes; it selects one that
        failed before alone. `apart`: returns whether such due messages must not share a step with
        lanes."""
        self._left = dict(self._now.allowed)
        queues = sorted([DUE, *self._open])
        behind = [queue for queue in queues if queue > self._last]
        order = behind + [queue for queue in queues if queue <= self._last]
        if bounds.is_search or bounds.messages == 1:
            return self._select_one(order, staged, bounds, select_due)
        return self._select_all(order, staged, bounds, select_due, apart)

    def committed(self, spent: Mapping[str, int]) -> None:
        """End the turn: another queue comes first in the next step. `spent`: see `spend` of the
        constructor."""
        self._last = self._first
        if spent:
            self._spend(spent)
            self._next_look_ms = 0

    def _select_lane(
        self, lane: Lane, staged: Staged, bounds: SelectionBounds, messages_max: int, bytes_max: int
    ) -> Leaving | None:
        """Return the first messages of the lane within both limits and its topic's rate; None if
        there are none."""
        allowed = self._left.get(lane[0])
        leaving = self._shard.lanes.select(
            lane, staged, messages_max, bytes_max, allowed, bounds.now_ms
        )
        if leaving is not None and allowed is not None:
            self._left[lane[0]] = allowed - count_live(leaving.entries, bounds.now_ms)
        return leaving

    def _select_one(
        self,
        order: list[Lane],
        staged: Staged,
        bounds: SelectionBounds,
        select_due: Callable[[int, int], Selection],
    ) -> Selection:
        """Return messages of the first queue that has any."""
        due: Selection | None = None
        for queue in order:
            self._first = queue
            if queue == DUE:
                due = select_due(bounds.messages, bounds.bytes)
                if due.items:
                    return self._joined(due, [])
            elif (
                leaving := self._select_lane(queue, staged, bounds, bounds.messages, bounds.bytes)
            ) is not None:
                return self._joined(self._no_due(), [leaving])
        assert due is not None, "due messages have no turn"
        return due

    def _select_all(
        self,
        order: list[Lane],
        staged: Staged,
        bounds: SelectionBounds,
        select_due: Callable[[int, int], Selection],
        apart: Callable[[Selection], bool],
    ) -> Selection:
        """Return due messages in at least half of the batch, if there are as many, and messages of
        the lanes in the rest.

        A message that failed before comes only when its queue is first, and then alone; so do
        messages that are apart."""
        first = self._first = order[0]
        due = select_due(bounds.messages - bounds.messages // 2, bounds.bytes - bounds.bytes // 2)
        if due.entries and apart(due):
            if first == DUE:
                return self._joined(due, [])
            due = self._no_due()
        messages_left = bounds.messages - len(due.items)
        bytes_left = bounds.bytes - sum(len(data) for _, _, data in due.items)
        lanes = [lane for lane in order if lane != DUE][:LANES_MAX]
        leaving: list[Leaving] = []
        for at, lane in enumerate(lanes):
            if messages_left <= 0 or bytes_left <= 0:
                break
            share = len(lanes) - at
            chosen = self._select_lane(
                lane, staged, bounds, -(-messages_left // share), -(-bytes_left // share)
            )
            if chosen is None:
                continue
            if chosen.entries[0].attempt > 1:
                if lane == first:
                    return self._joined(self._no_due(), [chosen])
                continue
            leaving.append(chosen)
            messages_left -= len(chosen.items)
            bytes_left -= sum(len(data) for _, _, data in chosen.items)
        if not due.items and not leaving:
            return self._select_one(order, staged, bounds, select_due)
        return self._joined(due, leaving)

    def _no_due(self) -> Selection:
        return nothing_selected(self._shard.state.cursor, complete=False)

    def _joined(self, due: Selection, leaving: list[Leaving]) -> Selection:
        emptied = {lane.lane for lane in leaving if lane.is_all}
        # A lane whose rate allows no more messages now is not open any longer.
        complete = due.complete and all(
            lane in emptied or self._left.get(lane[0]) == 0 for lane in self._open
        )
        return with_leaving(due, leaving, complete=complete)


def is_open(partition: int, target: Target) -> bool:
    """Return whether messages may leave a lane of the target: they can be delivered, or can only be
    dead-lettered.

    For a partition that does not exist there is no leader to wait for.
    """
    info = target.info
    if info is None:
        return target.is_missing
    if info is NOT_YET:
        return False
    if not info.writable or partition in (UNCREATED, LIMITED):
        return True
    return (
        len(info.closed) < info.partitions
        if partition == WHOLE_TOPIC
        else partition not in info.closed
    )


def lane_for(
    entry: Entry, info: TopicInfo, occupied: Set[Lane], has_token: bool = True
) -> int | None:
    """Return the partition of the lane in which the message must wait; None if it can be delivered.

    `has_token`: the rate of the target allows one more message.
    """
    if has_token and not (occupied or info.closed):
        return None
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
        f"no partition of {topic} has a leader"
        if lane == WHOLE_TOPIC
        else f"partition {lane} of {topic} has no leader"
    )
