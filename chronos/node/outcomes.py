"""Counts of what became of this process's messages and records, by reason and by target, for the
metrics and the HTTP interface: the last day by the minute, the targets, and warnings.

Shard threads count once a step; other threads read, and forget recent dead letters whose cause is
over. The counts begin with the process."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from itertools import permutations

from msgspec import Struct, field

from chronos.core.message import Reason
from chronos.core.selector import NO_LEADER
from chronos.core.shard.letters import UNCOPIED
from chronos.ports import TopicInfo
from chronos.workers.step.planned import OTHER, LetterCounts
from chronos.workers.step.report import StepReport

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
    return reason is Reason.TARGET_MISSING or (reason is Reason.FORBIDDEN_TARGET and info.writable)


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
