"""The rejected topic, the dead-letter topic and the partitions that records are forwarded to, as
one shard finds them: whether each takes records at the moment.

Keeps its part of law 8: one of them that takes no records stops only what would go there. Records
for the rejected topic, or for another partition, are held meanwhile (`core.shard.queues`), until
the queues are full and nothing more is pulled; messages that would go to the dead-letter topic are
deferred. Everything else goes on. The state outlives a leadership, because a refusal may cost the
producer, which ends the leadership."""

from collections.abc import Callable, Iterable, Set

from msgspec import Struct, field

from chronos.core.keys import REJECTED

REFUSED_PAUSE_MS = 5_000
"""Time until a topic is tried again whose records made a transaction fail: each attempt may cost
another one."""

DESCRIBED_PAUSE_MS = 1_000
"""Time until a topic is described again whose description says that it takes no records: that costs
a request."""

ELECTION_MS = 10_000
"""How long a topic without open partitions is waited for: Kafka elects other leaders within about 9
s."""

FAILURES_MAX = 2
"""Failures in a row after which the topic is held to be the cause: the first transaction after an
aborted one may fail without a cause of its own (measured)."""

DEAD_LETTERS = -2
"""The destination of dead letters, besides the partitions of the delay topic and REJECTED."""

UNBOUNDED = 1 << 62
"""More bytes than any transaction has."""

BOUND_BYTES_MIN = 4_096
"""Records of at most this size in all are not refused for their payloads, and no bound is lower."""

BOUND_MS = 600_000
"""How long a bound in bytes holds: the topic's limit may be raised."""


class Refusal(Struct, frozen=True, kw_only=True):
    """Why a topic takes no records, by its description."""

    why: str
    passing: bool
    """True if the reason may end by itself within ELECTION_MS."""


class LetterTopicState(Struct, kw_only=True):
    """The state of a destination, which is one of the two topics or a partition that records are
    forwarded to, as one shard finds it."""

    problem: str | None = None
    """Why it takes no records; None as long as it is not known to refuse any."""
    until_ms: int = 0
    """No record is written to it before this time (epoch ms)."""
    patient_until_ms: int = 0
    """Before this time (epoch ms) its refusal may end by itself, and is waited for."""
    failures: int = 0
    """Transactions with its records that failed in a row; FAILURES_MAX after `refuse`."""
    suspected_why: str | None = None
    """Why the last transaction failed, if that had dead letters and deliveries; else None."""
    suspected_bytes: int = 0
    """Bytes of its records in that transaction if it was refused for a size."""
    bytes_max: int = UNBOUNDED
    """Most bytes in one transaction, found by refusals where the topic's own limit may not be
    read."""
    bounded_ms: int = 0
    """When that was found (epoch ms)."""

    def is_open(self, now_ms: int) -> bool:
        """Return whether records may be written to it now. A time too far away was set by a clock
        that was ahead then."""
        if self.problem is not None and now_ms >= self.until_ms + 2 * REFUSED_PAUSE_MS:
            self.took()  # nothing had to be written to it since: what it does is not known any more
        return not now_ms < self.until_ms <= now_ms + REFUSED_PAUSE_MS

    def is_patient(self, now_ms: int) -> bool:
        """Return whether its refusal may still end by itself."""
        return now_ms < self.patient_until_ms <= now_ms + ELECTION_MS

    def refuse(self, now_ms: int, refusal: Refusal) -> None:
        """Note that its description says that it takes no records."""
        if self.problem is None and refusal.passing:
            self.patient_until_ms = now_ms + ELECTION_MS
        if not refusal.passing:
            self.patient_until_ms = 0
        self.problem, self.failures, self.until_ms = (
            refusal.why,
            FAILURES_MAX,
            now_ms + DESCRIBED_PAUSE_MS,
        )

    def fail(self, now_ms: int, why: str, refused_bytes: int = 0) -> None:
        """Note that a transaction of letters alone failed, with records for this topic.
        `refused_bytes`: their bytes if it was refused for a size."""
        if refused_bytes > BOUND_BYTES_MIN:
            # From now on there are fewer in a transaction, and a record that is larger alone goes
            # without its payload.
            self.bytes_max = max(BOUND_BYTES_MIN, min(refused_bytes, self.bound(now_ms)) // 2)
            self.bounded_ms = now_ms
            return
        self.failures += 1
        if self.failures >= FAILURES_MAX:
            self.problem, self.until_ms = why, now_ms + REFUSED_PAUSE_MS

    def bound(self, now_ms: int) -> int:
        """Return the most bytes of its records in one transaction."""
        if self.bytes_max < UNBOUNDED and not 0 <= now_ms - self.bounded_ms < BOUND_MS:
            self.bytes_max = UNBOUNDED
        return self.bytes_max

    def suspect(self, now_ms: int, why: str, refused_bytes: int = 0) -> None:
        """Note that a transaction with records for this topic and deliveries failed: the next one
        is made without these records, and shows them to be the cause if it is committed."""
        self.suspected_why, self.suspected_bytes, self.until_ms = (
            why,
            refused_bytes,
            now_ms + DESCRIBED_PAUSE_MS,
        )

    def took(self) -> None:
        """Note that it took records, or is not known to refuse any."""
        self.problem, self.suspected_why = None, None
        self.until_ms = self.patient_until_ms = self.failures = 0


class LetterTopics(Struct, kw_only=True):
    """The destinations of one shard: both topics, and the other partitions of the delay topic.

    Rejected and forwarded records are alone in their transaction, so that its failure is theirs.
    Dead letters share one with deliveries: after a failure the next one does without them."""

    rejected: LetterTopicState = field(default_factory=LetterTopicState)
    dead_letter: LetterTopicState = field(default_factory=LetterTopicState)
    homes: dict[int, LetterTopicState] = field(default_factory=dict)
    """The states of the other partitions that records were forwarded to."""

    def of(self, destination: int) -> LetterTopicState:
        """Return the state of a destination."""
        if destination == REJECTED:
            return self.rejected
        if destination == DEAD_LETTERS:
            return self.dead_letter
        return self.homes.setdefault(destination, LetterTopicState())

    def failed(
        self,
        destinations: Set[int],
        now_ms: int,
        why: str,
        refused_bytes: Callable[[int], int],
        *,
        are_alone: bool,
    ) -> None:
        """Note that a transaction with letters for these destinations failed, perhaps because of
        them. `refused_bytes`: returns the size of those for one destination, 0 if the transaction
        was not refused for a size. `are_alone`: it had nothing else."""
        for destination in destinations:
            topic = self.of(destination)
            if are_alone:
                topic.fail(now_ms, why, refused_bytes(destination))
            else:
                topic.suspect(now_ms, why, refused_bytes(destination))

    def took(self, destinations: Set[int], now_ms: int) -> None:
        """Note that a transaction was committed, with letters for these destinations alone."""
        suspected, self.dead_letter.suspected_why = self.dead_letter.suspected_why, None
        for destination in destinations:
            self.of(destination).took()
        if suspected is not None and DEAD_LETTERS not in destinations:
            self.dead_letter.fail(now_ms, suspected, self.dead_letter.suspected_bytes)

    def bound(self, now_ms: int) -> int:
        """Return the most bytes of a step whose records may all be rejected or forwarded."""
        return min(topic.bound(now_ms) for topic in (self.rejected, *self.homes.values()))

    def closed(self, destinations: Iterable[int], now_ms: int) -> list[LetterTopicState]:
        """Return those of the destinations that take no records."""
        return [topic for topic in map(self.of, destinations) if not topic.is_open(now_ms)]

    def deferring(self, dead_letter_topic: str) -> list[str]:
        """Return what cannot be done while the dead-letter topic takes no records, for people."""
        if self.dead_letter.problem is None:
            return []
        return [
            f"{dead_letter_topic} takes no records ({self.dead_letter.problem}): messages that "
            "would go there wait, all others are delivered"
        ]
