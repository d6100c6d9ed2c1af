"""Counts and histograms of this process's steps, for the metrics by reason and target; and the last
day of the node, minute by minute.

Shard threads count once a step; other threads read. The counts begin with the process. The minutes
are made from them once a second by the maintenance thread, and kept in memory.
"""

import threading
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from itertools import permutations

from msgspec import Struct, field
from msgspec.structs import replace

from chronos.core.keys import MINUTE_MS
from chronos.core.message import Reason
from chronos.core.selector import NO_LEADER
from chronos.core.shard.step import UNCOPIED
from chronos.ports import TopicInfo
from chronos.workers.push.planned import OTHER, LetterCounts
from chronos.workers.replica.report import StepReport

LATENESS_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    10.0,
    60.0,
    300.0,
    900.0,
    3600.0,
)
"""Upper bounds of the lateness buckets, in seconds: 1 ms to 1 h."""

STEP_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds of the buckets of a step's duration, in seconds."""


class Histogram:
    """Counts of values in buckets with fixed upper bounds."""

    def __init__(self, bounds_s: Sequence[float]) -> None:
        assert list(bounds_s) == sorted(bounds_s)
        self.bounds_s = tuple(bounds_s)
        self.counts = [0] * (len(bounds_s) + 1)
        """Number of values in each bucket; the last bucket has no upper bound."""
        self.sum_s = 0.0

    def observe(self, value_s: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds_s, value_s)] += 1
        self.sum_s += value_s

    def observe_late(self, due_ms: Sequence[int], delivered_ms: int) -> None:
        """Count the lateness of messages with these due times, in order, that were delivered at the
        same time."""
        counted = 0
        for at, bound_s in enumerate(self.bounds_s):
            # Messages due at or after delivered - bound are within the bound: the tail of the list.
            first = bisect_left(due_ms, delivered_ms - bound_s * 1_000)
            within = len(due_ms) - first
            self.counts[at] += within - counted
            counted = within
        self.counts[-1] += len(due_ms) - counted
        self.sum_s += (delivered_ms * len(due_ms) - sum(due_ms)) / 1_000

    def quantile_s(self, share: float) -> float | None:
        """Return the upper bound of the bucket that reaches this share of all values; None without
        values or beyond the last."""
        total = sum(self.counts)
        if total == 0:
            return None
        running = 0
        for bound_s, count in zip(self.bounds_s, self.counts, strict=False):
            running += count
            if running >= share * total:
                return bound_s
        return None


RECENT_MS = 600_000
"""For how long dead letters are reported after the last of them: long enough for a person to
look."""

SLOT_MS = 10_000
"""Dead letters are remembered by slots of this length."""

TARGETS_COUNTED = 10_000
"""Targets with counts of their own: some 2 MB."""

TARGETS_SHOWN = 20
"""Targets that are counted apart."""

CANDIDATES_MAX = 1_000
"""Other targets whose messages are counted to find the busiest."""

DEAD_REASONS = (
    Reason.FORBIDDEN_TARGET,
    Reason.EXPIRED,
    Reason.TARGET_MISSING,
    Reason.TOO_LARGE,
    Reason.REFUSED_BY_BROKER,
    Reason.NO_KEY,
)
"""Reasons for which messages are dead-lettered."""

REJECTION_REASONS = tuple(
    reason for reason in Reason if reason < Reason.EXPIRED and reason not in UNCOPIED
)
"""Reasons for which records are rejected."""


def is_over(reason: Reason, info: TopicInfo | None, bytes_max_before: int | None = None) -> bool:
    """Return whether an allowed target takes messages again that died for this reason; False also
    if that is not known.

    `bytes_max_before`: its limit when such messages failed, if it is known.
    """
    if info is None:
        return False
    if reason is Reason.NO_KEY:
        return not info.compacted
    if reason is Reason.TOO_LARGE:
        return bytes_max_before is not None and info.bytes_max > bytes_max_before
    # The progress topic of another Chronos is writable, and forbidden all the same.
    return reason is Reason.TARGET_MISSING or (
        reason is Reason.FORBIDDEN_TARGET and info.writable and not info.stamped
    )


class TargetCounts(Struct):
    """Messages of one target."""

    delivered: int = 0
    late: int = 0
    """Those of the delivered ones that were late."""
    dead: int = 0
    """Dead-lettered, for whatever reason."""

    def add(self, delivered: int, late: int, dead: int) -> None:
        """Count messages."""
        self.delivered += delivered
        self.late += late
        self.dead += dead


class AllTargets(Struct):
    """Counts of each target, up to TARGETS_COUNTED, and of those that came later together."""

    known: dict[str, TargetCounts] = field(default_factory=dict)
    later: TargetCounts = field(default_factory=TargetCounts)

    def add(self, topic: str, delivered: int, late: int, dead: int) -> None:
        """Count messages."""
        row = self.known.get(topic)
        if row is None and len(self.known) < TARGETS_COUNTED:
            row = self.known[topic] = TargetCounts()
        (self.later if row is None else row).add(delivered, late, dead)


class BusiestTargets(Struct):
    """Counts of the busiest targets, and of all others together: the number of targets is not
    bounded."""

    shown: dict[str, TargetCounts] = field(default_factory=dict)
    other: TargetCounts = field(default_factory=TargetCounts)
    candidates: Counter[str] = field(default_factory=Counter)
    """Messages of targets that are not shown."""

    def add(self, topic: str, delivered: int, late: int, dead: int) -> None:
        """Count messages; a target that has become busier than the least busy one shown takes its
        place, from 0 on."""
        row = self.shown.get(topic)
        if row is None and len(self.shown) < TARGETS_SHOWN:
            row = self.shown[topic] = TargetCounts()
        if row is None:
            row = self.other
            self._compare(topic, delivered + dead)
        row.add(delivered, late, dead)

    def _compare(self, topic: str, messages: int) -> None:
        if len(self.candidates) >= CANDIDATES_MAX and topic not in self.candidates:
            self.candidates.clear()
        self.candidates[topic] += messages
        least = min(self.shown, key=lambda each: self.shown[each].delivered + self.shown[each].dead)
        counts = self.shown[least]
        if self.candidates[topic] > counts.delivered + counts.dead:
            del self.shown[least]
            self.shown[topic] = TargetCounts()
            self.candidates[least] = counts.delivered + counts.dead
            del self.candidates[topic]


class RecentDeaths(Struct, frozen=True, kw_only=True):
    """Messages of one shard that were dead-lettered in the last RECENT_MS, without expired ones."""

    messages: int
    last_ms: int
    """Time of the last of them (epoch ms)."""
    cases: list[tuple[Reason, str, int]]
    """Reason, target and number, the most frequent first."""

    def text(self, *, with_targets: bool = True) -> str:
        """Return the text for people; without the names of targets where everybody may read it."""
        first = ", ".join(
            f"{reason.label} for {target} ({count:,})"
            if with_targets
            else f"{reason.label} ({count:,})"
            for reason, target, count in self.cases[:3]
        )
        more = ", and others" if len(self.cases) > 3 else ""
        verb = "message was" if self.messages == 1 else "messages were"
        return (
            f"{self.messages:,} {verb} dead-lettered in the last {RECENT_MS // 60_000} min: "
            f"{first}{more}"
        )


class Outcomes:
    """The counts of one node. Any thread may call."""

    def __init__(self, leaders: Callable[[], Sequence[int]] = tuple) -> None:
        """`leaders`: the broker that leads each partition of the delay topic now; empty: not
        known."""
        self._leaders = leaders
        self._lock = threading.Lock()
        self._dead: Counter[Reason] = Counter(dict.fromkeys(DEAD_REASONS, 0))
        self._rejected: Counter[Reason] = Counter(dict.fromkeys(REJECTION_REASONS, 0))
        self._targets = BusiestTargets()
        """Those of the metrics, which must be few."""
        self._all_targets = AllTargets()
        self._ahead: Counter[tuple[int, int]] = Counter()
        """Hops that are too far ahead, by the brokers that led both partitions then."""
        self._recent: dict[int, deque[tuple[int, Counter[tuple[Reason, str]]]]] = {}
        """Shard -> time and cases of the dead letters of each slot."""

    def count(self, shard: int, step: StepReport) -> None:
        """Count the outcomes of one step."""
        dead = step.dead.cases
        with self._lock:
            for topic, delivered in step.delivered.items():
                if delivered:
                    self._add(topic, delivered, step.late.get(topic, 0), 0)
            if dead:
                self._count_dead(shard, step.dead, step.committed_ms)
            for (reason, _), count in step.rejected.cases.items():
                self._rejected[reason] += count
            for source, _ in step.ahead:
                self._ahead[self._leader(source), self._leader(shard)] += 1

    def _add(self, topic: str, delivered: int, late: int, dead: int) -> None:
        self._targets.add(topic, delivered, late, dead)
        self._all_targets.add(topic, delivered, late, dead)

    def _count_dead(self, shard: int, letters: LetterCounts, now_ms: int) -> None:
        for (reason, target), count in letters.cases.items():
            self._dead[reason] += count
            if target != OTHER:
                self._add(target, 0, 0, count)
        recent = self._recent.setdefault(shard, deque(maxlen=RECENT_MS // SLOT_MS + 1))
        cases = Counter(
            {case: count for case, count in letters.cases.items() if case[0] is not Reason.EXPIRED}
        )
        if recent and cases and now_ms // SLOT_MS == recent[-1][0] // SLOT_MS:
            _, known = recent.pop()
            cases += known
        if cases:
            recent.append((now_ms, cases))

    def by_reason(self) -> tuple[Mapping[Reason, int], Mapping[Reason, int]]:
        """Return the dead letters and the rejected records by reason."""
        with self._lock:
            return dict(self._dead), dict(self._rejected)

    def hops_ahead(self) -> Mapping[tuple[int, int], int]:
        """Return the forwarded records whose first timestamp was too far ahead, by the brokers that
        led their first partition and their own; NO_LEADER: not known.

        Two brokers that lead partitions now are there from the start, with 0: a counter that begins
        with its first count has no increase. A count stays with its brokers when others lead."""
        pairs = permutations({broker for broker in self._leaders() if broker != NO_LEADER}, 2)
        with self._lock:
            return dict.fromkeys(pairs, 0) | self._ahead

    def _leader(self, partition: int) -> int:
        leaders = self._leaders()
        return leaders[partition] if partition < len(leaders) else NO_LEADER

    def by_target(self) -> Mapping[str, TargetCounts]:
        """Return the counts of the busiest targets; those of all others together are under
        OTHER."""
        with self._lock:
            found = {
                topic: TargetCounts(row.delivered, row.late, row.dead)
                for topic, row in self._targets.shown.items()
            }
            other = self._targets.other
            known = found.setdefault(OTHER, TargetCounts())
            known.add(other.delivered, other.late, other.dead)
            return found

    def all_targets(self) -> tuple[Mapping[str, TargetCounts], TargetCounts]:
        """Return the counts of each of the first TARGETS_COUNTED targets, and those of all others
        together."""
        with self._lock:
            found = self._all_targets
            return {topic: copy(row) for topic, row in found.known.items()}, copy(found.later)

    def recent_targets(self, now_ms: int) -> set[str]:
        """Return the targets whose messages were dead-lettered in the last RECENT_MS."""
        with self._lock:
            slots = [slot for of_shard in self._recent.values() for slot in of_shard]
            return {
                target
                for at_ms, cases in slots
                if at_ms > now_ms - RECENT_MS
                for _, target in cases
            } - {OTHER}

    def forget_recent(self, is_over: Callable[[Reason, str], bool]) -> None:
        """Report no longer the dead letters whose cause is over; new ones are reported again."""
        with self._lock:
            for shard, slots in self._recent.items():
                left = [
                    (
                        at_ms,
                        Counter(
                            {case: count for case, count in cases.items() if not is_over(*case)}
                        ),
                    )
                    for at_ms, cases in slots
                ]
                self._recent[shard] = deque(
                    ((at_ms, cases) for at_ms, cases in left if cases), slots.maxlen
                )

    def recent_deaths(self, shard: int, now_ms: int) -> RecentDeaths | None:
        """Return the messages of a shard that were dead-lettered in the last RECENT_MS; None if
        there are none."""
        with self._lock:
            slots = [
                (at_ms, cases)
                for at_ms, cases in self._recent.get(shard, ())
                if at_ms > now_ms - RECENT_MS
            ]
        if not slots:
            return None
        total: Counter[tuple[Reason, str]] = Counter()
        for _, cases in slots:
            total += cases
        return RecentDeaths(
            messages=total.total(),
            last_ms=slots[-1][0],
            cases=[(reason, target, count) for (reason, target), count in total.most_common()],
        )


MINUTES_MAX = 1_440
"""Minutes that are kept: a day, some 500 kB."""


class Minute(Struct, kw_only=True, gc=False):
    """One minute of one node."""

    start_ms: int
    """Its beginning (epoch ms)."""
    delivered: int = 0
    dead: int = 0
    """Dead-lettered for a reason other than expiry."""
    expired: int = 0
    rejected: int = 0
    """Records rejected."""
    pending: int = 0
    """Pending messages at its end, in the shards that the node was master of."""
    late: tuple[int, ...] = ()
    """Deliveries by bucket of lateness, as in `LATENESS_S`; empty without deliveries."""

    def quantile_s(self, share: float) -> float | None:
        """Return the upper bound of the lateness of this share of its deliveries; None without
        deliveries or beyond the last bound."""
        if not self.late:
            return None
        lateness = Histogram(LATENESS_S)
        lateness.counts = list(self.late)
        return lateness.quantile_s(share)


class _Counts(Struct, frozen=True):
    """What the process has counted since it started."""

    dead: int
    expired: int
    rejected: int
    late: tuple[int, ...]


class History:
    """The minutes of one node. One thread takes the steps; any thread reads."""

    def __init__(self, outcomes: Outcomes) -> None:
        self._outcomes = outcomes
        self._lock = threading.Lock()
        self._minutes: deque[Minute] = deque(maxlen=MINUTES_MAX)
        self._before = self._counts(())

    def step(self, now_ms: int, *, pending: int, lateness: Iterable[Histogram]) -> None:
        """Add what the process has done since the step before to the minute of `now_ms`. `pending`:
        messages of the shards that the node is master of; `lateness`: that of each shard."""
        counts, before = self._counts(lateness), self._before
        self._before = counts
        late = [now - then for now, then in zip(counts.late, before.late, strict=True)]
        start_ms = now_ms // MINUTE_MS * MINUTE_MS
        with self._lock:
            # Minutes that come only now were written by a clock that was ahead.
            while self._minutes and self._minutes[-1].start_ms > start_ms:
                self._minutes.pop()
            if not self._minutes or self._minutes[-1].start_ms < start_ms:
                self._minutes.append(Minute(start_ms=start_ms))
            minute = self._minutes[-1]
            minute.pending = pending
            minute.dead += counts.dead - before.dead
            minute.expired += counts.expired - before.expired
            minute.rejected += counts.rejected - before.rejected
            if any(late):
                known = minute.late or (0,) * len(late)
                minute.late = tuple(a + b for a, b in zip(known, late, strict=True))
                minute.delivered += sum(late)

    def minutes(self, now_ms: int, count: int) -> list[Minute]:
        """Return the minutes among the last `count` in which the process ran, the oldest first; the
        last one is not over yet."""
        since_ms = (now_ms // MINUTE_MS - count) * MINUTE_MS
        with self._lock:
            return [replace(each) for each in self._minutes if each.start_ms > since_ms]

    def _counts(self, lateness: Iterable[Histogram]) -> _Counts:
        dead, rejected = self._outcomes.by_reason()
        late = [0] * (len(LATENESS_S) + 1)
        for histogram in lateness:
            for at, count in enumerate(histogram.counts):
                late[at] += count
        expired = dead.get(Reason.EXPIRED, 0)
        return _Counts(
            dead=sum(dead.values()) - expired,
            expired=expired,
            rejected=sum(rejected.values()),
            late=tuple(late),
        )
