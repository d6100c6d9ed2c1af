"""Rate limits in the steps of a master: token buckets in its memory, and the lanes that they hold closed.

A limit is for the whole service; each shard has a share of it by the length of its lanes (`RateLimits.share`). Every message
that is delivered, or that leaves a lane for another one, takes a token; expired messages and dead letters take none.

A new master's buckets are empty, so that a take-over never exceeds a rate. A clock that is set forward fills a bucket, like a
time without messages; one that is set back adds nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

from msgspec import Struct, field

from chronos.core.keys import LIMITED, Lane
from chronos.core.rates import Rate, RateTable

QUANTUM_S = 0.05
"""Messages of a limited target leave their lane together, as many as its rate allows in this time (in seconds): a transaction for each
would cost the brokers many times as much."""

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
        """`changed`: returns the limits set at run time, the same object until they change. `lengths`: returns for each shard of
        the service the number of messages that wait for the rate of a topic."""
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
        """Return the share of a topic's rate that a shard has, from 0 to 1; all shards of the service together have 1.

        Shares follow the number of messages that wait, as the members report them. One is added to each, so that a shard in
        which none waits can begin.
        """
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
        return {topic for topic in topics if table.rate(topic) is not None} if table.limits else set()

    def allowed(self, topics: Iterable[str], now_ms: int) -> dict[str, int]:
        """Return, for each of the topics that has a limit, the number of messages that may be delivered now."""
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
        self, lanes: Mapping[Lane, int], opened: Set[Lane], exempt: Set[str], set_aside: Set[str], now_ms: int
    ) -> Openings:
        """Return those of the open lanes that the rates leave open. `lanes`: the length of each; `exempt`: topics without any rate.

        The messages in the lane of a partition came before those that wait for the rate, so they leave first. Those of a target
        that is `set_aside` leave as deferred: at once, because they would enter a lane that is not empty again.
        """
        by_topic: dict[str, list[Lane]] = {}
        for lane in opened:
            by_topic.setdefault(lane[0], []).append(lane)
        found: set[Lane] = set()
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
            found.update(first)
        reported = dict(waiting.most_common(REPORTED_MAX))
        return Openings(lanes=frozenset(found), allowed=allowed, waiting=reported, next_ms=next_ms)

    def _filled(self, topic: str, rate: Rate, now_ms: int) -> tuple[Bucket, float]:
        """Return the topic's bucket, filled, and the rate in messages per second at which it fills in this shard."""
        bucket = self._buckets.get(topic)
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:
                self._buckets.clear()
                self._began_ms = now_ms
            bucket = self._buckets[topic] = Bucket(self._began_ms)
        share = self._limits.share(topic, self._shard)
        bucket.fill(now_ms, rate.per_s * share, rate.burst * share)
        return bucket, rate.per_s * share
