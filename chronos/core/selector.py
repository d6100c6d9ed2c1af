"""The fault-aware selector: chooses the partition of messages without a key, by the latency of the
brokers that lead the partitions.

After RocketMQ's MQFaultStrategy and LatencyFaultTolerance: a slow or failed send makes a broker
unavailable for the time in PENALTIES, and the next good send makes it available again. Unavailable
brokers, and the partition of a topic that failed last, are avoided and never excluded: when there
is no other, one led by a broker of the better half is used, and after its penalty a broker is
chosen like any other.

The choice is not part of a decision, and no progress record has it: a message without a key may be
written to any partition of its target."""

from collections.abc import Callable, Collection, Iterable, Sequence, Set

from msgspec import Struct

PENALTIES: tuple[tuple[int, int], ...] = (
    (50, 0),
    (100, 0),
    (550, 30_000),
    (1_000, 60_000),
    (2_000, 120_000),
    (3_000, 180_000),
    (15_000, 600_000),
)
"""Latency of a send in ms, and for how many ms it makes its broker unavailable: the last row that
it reaches counts."""

FAILED_MS = 30_000
"""A send that failed counts as one of this latency, in ms."""

SUSPECT_MS = 120_000
"""For how long a leader that did not answer is suspected: a failover of Kafka takes seconds, and
the shard may then wait 30 s for the brokers (`request.timeout.ms`)."""

NO_LEADER = -1
"""Leader of a partition, where the log names none."""

TOPICS_MAX = 10_000
"""Topics whose last partition is remembered; with more of them every rotation begins anew."""


def penalty_ms(latency_ms: int) -> int:
    """Return for how long a send of this latency makes its broker unavailable."""
    return next((penalty for least_ms, penalty in reversed(PENALTIES) if latency_ms >= least_ms), 0)


class BrokerLatency(Struct, frozen=True):
    """The last send to a broker."""

    latency_ms: int
    penalty_ms: int
    """How long the broker is unavailable after it; 0: not at all."""
    available_ms: int
    """When the broker is available again (epoch ms)."""

    def is_available(self, now_ms: int) -> bool:
        """Return whether the penalty is over; a longer rest than the penalty comes from another
        clock, and does not count."""
        return not 0 < self.available_ms - now_ms <= self.penalty_ms


class Selector:
    """The latencies of the brokers, and the rotation over the partitions of each topic.

    Any thread may call: every entry is replaced as a whole.
    """

    def __init__(self) -> None:
        self.changes = 0
        """How often a report changed the penalty of a broker: choices made before the last change
        are outdated."""
        self._brokers: dict[int, BrokerLatency] = {}
        self._last: dict[str, int] = {}
        """By topic, the partition chosen last."""
        self._failed: dict[str, int] = {}
        """By topic, the partition whose send failed last, until a send to the topic succeeds."""
        self._suspects: dict[str, dict[int, tuple[int, int]]] = {}
        """By topic and partition, a leader that did not answer, and since when (epoch ms)."""

    def suspect(self, topic: str, partition: int, broker: int, now_ms: int) -> None:
        """Note a leader that did not answer when no other one did either: it has failed if Kafka
        elects another one."""
        self._suspects[topic] = {**self._suspects.get(topic, {}), partition: (broker, now_ms)}

    def replaced(self, topic: str, leaders: Sequence[int], now_ms: int) -> list[tuple[int, int]]:
        """Return the partitions whose suspected leader was replaced, with that leader; they are no
        longer suspected."""
        suspects = self._suspects.get(topic)
        if not suspects:
            return []
        known = {
            at: (broker, since_ms)
            for at, (broker, since_ms) in suspects.items()
            if 0 <= now_ms - since_ms < SUSPECT_MS and at < len(leaders)
        }
        left = {
            at: (broker, since_ms)
            for at, (broker, since_ms) in known.items()
            if leaders[at] in (broker, NO_LEADER)
        }
        self._suspects[topic] = left
        return [(at, broker) for at, (broker, _) in known.items() if at not in left]

    def report(
        self, topic: str, partition: int, broker: int, latency_ms: int | None, now_ms: int
    ) -> bool:
        """Note a send to the partition that this broker leads; `latency_ms` None: it failed. Return
        whether it makes an available broker unavailable."""
        before = self._brokers.get(broker)
        was_available = before is None or before.is_available(now_ms)
        if latency_ms is None:
            self._failed[topic] = partition
        else:
            self._failed.pop(topic, None)
        latency_ms = FAILED_MS if latency_ms is None else latency_ms
        penalty = penalty_ms(latency_ms)
        self._brokers[broker] = BrokerLatency(latency_ms, penalty, now_ms + penalty)
        if penalty != (0 if before is None else before.penalty_ms):
            self.changes += 1
        return was_available and penalty > 0

    def is_available(self, broker: int, now_ms: int) -> bool:
        """Return whether the broker has no penalty at the moment; an unknown one has none."""
        known = self._brokers.get(broker)
        return known is None or known.is_available(now_ms)

    def brokers(self) -> dict[int, BrokerLatency]:
        """Return a copy of the table, by broker id."""
        return dict(self._brokers)

    def ranked(self, brokers: Iterable[int], now_ms: int) -> list[int]:
        """Return the brokers from the best to the worst: available ones first, then by latency,
        then by the end of their penalty."""

        def rank(broker: int) -> tuple[bool, int, int, int]:
            known = self._brokers.get(broker, BrokerLatency(0, 0, 0))
            return not known.is_available(now_ms), known.latency_ms, known.available_ms, broker

        return sorted(set(brokers), key=rank)

    def choose(
        self, topic: str, leaders: Sequence[int], closed: Set[int], now_ms: int
    ) -> int | None:
        """Return the partition for the next messages of the topic; None only if all partitions are
        closed.

        `leaders`: the id of the broker that leads each partition. `closed`: partitions that take no
        records."""
        failed = self._failed.get(topic)
        partition = self._next(
            topic,
            leaders,
            lambda at: at not in closed and at != failed and self.is_available(leaders[at], now_ms),
        )
        if partition is not None:
            return partition
        # On a retry another partition than the one that failed last, if there is one.
        taking = [at for at in range(len(leaders)) if at not in closed]
        others = [at for at in taking if at != failed] or taking
        better = self._better_half({leaders[at] for at in others}, now_ms)
        usable = {at for at in others if leaders[at] in better}
        return self._next(topic, leaders, usable.__contains__)

    def _better_half(self, brokers: Collection[int], now_ms: int) -> set[int]:
        return set(self.ranked(brokers, now_ms)[: max(1, len(brokers) // 2)])

    def _next(
        self, topic: str, leaders: Sequence[int], is_usable: Callable[[int], bool]
    ) -> int | None:
        """Return the first usable partition after the topic's last one, in the order of a ring;
        None if none is usable."""
        count, last = len(leaders), self._last.get(topic, -1)
        for step in range(1, count + 1):
            partition = (last + step) % count
            if is_usable(partition):
                if len(self._last) >= TOPICS_MAX:
                    self._last.clear()
                self._last[topic] = partition
                return partition
        return None
