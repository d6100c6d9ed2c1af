"""Where partitions of a Kafka cluster begin and end, and where groups stand, asked through consumers.

Not through the admin client, whose questions look simpler: refused for an old leader epoch it asks with the same one
for minutes; a leader that is gone costs every question its whole time; and `list_consumer_group_offsets` ends the
process when the group's coordinator moves. A consumer that is assigned to the partition hears who leads it.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from chronos.errors import LogUnavailable

T = TypeVar("T")

ASK_TIMEOUT_S = 5.0
"""How long a question to the brokers may take: offsets, topics, settings."""

ANSWER_S = ASK_TIMEOUT_S + 2.0
"""How long an answer is waited for: the client gives up by itself before that, or never will."""

LEADER_POLL_S = 0.02
"""How often to ask a partition that is without a leader, or whose leader does not know it yet."""

IDLE_MAX = 64
"""Consumers kept for the next questions: as many as ask at once, in all but a burst."""

ASSIGNED_MAX = 500
"""Partitions one consumer is assigned to; beyond that it begins anew, with the one it is asked for."""

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
"""What `isolation.level` decides here is which end is told: the last stable offset, or the high watermark."""

ASKER: Mapping[str, Any] = {
    "group.id": "chronos-unused",  # required by the client, never joined
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    # Nobody polls one that is not asked: it must not have anything to say while all brokers are gone. With connections
    # made only on demand it tries some twenty times a second, and keeps a line about each (measured).
    "enable.sparse.connections": False,
    "fetch.wait.max.ms": 1,  # one fetch may be under way before the pause, and the next question waits behind it
}

LEADER_MOVED_CODES = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,  # a new leader does not know yet how much of its log is committed
        KafkaError._DESTROY_BROKER,  # the client has just heard that the broker it asked is gone
    }
)
"""A partition's leader begins or moves: ask again."""

COORDINATOR_MOVES_CODES = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)
"""A group's coordinator begins or moves: ask again."""


class KafkaOffsets:
    """Asks for offsets; any thread may."""

    def __init__(self, settings: Callable[[Mapping[str, Any]], dict[str, Any]]) -> None:
        """`settings`: completes those of one client with what all of them share."""
        self._settings = settings
        # A consumer answers one thread after the other: behind a broker that hangs, each would wait for all others.
        self._idle: dict[str, list[_Asker]] = {COMMITTED: [], UNCOMMITTED: []}
        self._closed = False

    def start(self, topic: str, partition: int) -> int:
        """The first offset."""
        return self._ask(topic, partition, OFFSET_BEGINNING, COMMITTED)

    def stable_end(self, topic: str, partition: int) -> int:
        """The last stable offset: where the log ends for who reads committed records. Takes 0.05 ms (measured)."""
        return self._ask(topic, partition, OFFSET_END, COMMITTED)

    def high(self, topic: str, partition: int) -> int:
        """The high watermark."""
        return self._ask(topic, partition, OFFSET_END, UNCOMMITTED)

    def at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """The offset of the first record that is not older; None when all are."""
        found = self._ask(topic, partition, timestamp_ms, COMMITTED)
        return found if found >= 0 else None

    def commit_offsets(self, group: str, places: Mapping[tuple[str, int], int]) -> None:
        """Commit the places of a consumer group that has no members."""
        offsets = [TopicPartition(topic, partition, offset) for (topic, partition), offset in places.items()]
        done = self._ask_group(
            group, "committing", lambda consumer: consumer.commit(offsets=offsets, asynchronous=False)
        )
        refused = [f"{part.topic}/{part.partition}: {part.error}" for part in done if part.error is not None]
        if refused:
            raise LogUnavailable(f"committing the place of the group {group} in {', '.join(refused)}")

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        """What a consumer group committed; the broker answers for a group that is not there as for one at no place."""
        asked = [TopicPartition(topic, partition)]
        (found,) = self._ask_group(group, "asking for", lambda consumer: consumer.committed(asked, timeout=ANSWER_S))
        if found.error is not None:
            raise LogUnavailable(f"asking for the place of the group {group} in {topic}/{partition}: {found.error}")
        return int(found.offset) if found.offset >= 0 else None

    def close(self) -> None:
        """End the consumers that nobody asks; one that is asked at the moment ends with its answer."""
        self._closed = True
        for idle in self._idle.values():
            with suppress(IndexError):
                while True:
                    idle.pop().close()

    def _ask(self, topic: str, partition: int, timestamp_ms: int, level: str) -> int:
        doing = f"asking for the ends of {topic}/{partition}"
        asker = self._asker(level, doing)
        try:
            offset = _patiently(
                doing,
                LEADER_MOVED_CODES,
                ASK_TIMEOUT_S,
                lambda left_s: asker.ask(topic, partition, timestamp_ms, max(0.1, left_s)),
            )
        except LogUnavailable:
            asker.close()
            raise
        idle = self._idle[level]
        if self._closed or len(idle) >= IDLE_MAX:
            asker.close()
        else:
            idle.append(asker)
        if offset < 0 and timestamp_ms < 0:
            raise LogUnavailable(f"{doing}: no offset ({offset}); is the broker up, and the address right?")
        return offset

    def _asker(self, level: str, doing: str) -> "_Asker":
        try:
            return self._idle[level].pop()
        except IndexError:
            pass
        try:
            return _Asker(self._settings({**ASKER, "isolation.level": level}))
        except KafkaException as error:
            # This machine has no thread, or no descriptor, left.
            raise translated(doing, error) from error

    def _ask_group(
        self, group: str, doing: str, ask: Callable[[Consumer], list[TopicPartition]]
    ) -> list[TopicPartition]:
        """Through a consumer that knows the group's coordinator and is no member of it."""
        consumer = Consumer(self._settings({"group.id": group, "enable.auto.commit": False}))
        try:
            return _patiently(
                f"{doing} the place of the group {group}", COORDINATOR_MOVES_CODES, ANSWER_S, lambda _: ask(consumer)
            )
        finally:
            consumer.close()


class _Asker:
    """A consumer that is asked, by one thread at a time, and reads nothing."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._consumer = Consumer(settings)
        self._assigned: set[tuple[str, int]] = set()

    def ask(self, topic: str, partition: int, timestamp_ms: int, timeout_s: float) -> int:
        """What the leader answers to ListOffsets. Raises KafkaException."""
        (found,) = self._consumer.offsets_for_times([TopicPartition(topic, partition, timestamp_ms)], timeout_s)
        self._consumer.poll(0)  # takes what the client has to say, or it would be kept
        if found.error is not None:
            raise KafkaException(found.error)
        if (topic, partition) not in self._assigned and found.offset >= 0:
            self._assign(TopicPartition(topic, partition, found.offset))
        return int(found.offset)

    def _assign(self, part: TopicPartition) -> None:
        """At an offset that there is: the client closed while it looks for one never ends (a deadlock, measured)."""
        if len(self._assigned) >= ASSIGNED_MAX:
            self._consumer.unassign()
            self._assigned.clear()
        self._consumer.incremental_assign([part])
        self._consumer.pause([part])
        self._assigned.add((part.topic, part.partition))

    def close(self) -> None:
        """Give everything back."""
        self._consumer.close()


def _patiently(doing: str, moving: frozenset[int], within_s: float, ask: Callable[[float], T]) -> T:
    """Ask, with the seconds that are left, and again while who should answer begins or moves. Raises LogUnavailable."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            return ask(deadline - time.monotonic())
        except KafkaException as error:
            if error.args[0].code() not in moving or time.monotonic() > deadline:
                raise translated(doing, error) from error
        time.sleep(LEADER_POLL_S)


def translated(doing: str, error: KafkaException) -> LogUnavailable:
    """What the client raised, as the log's error."""
    cause = error.args[0]
    if cause.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION):
        # The client says so too while no broker answers (measured): whether a topic is gone is told by its id.
        return LogUnavailable(f"{doing}: it is not there ({cause.name()}); is the broker up, or was it deleted?")
    return LogUnavailable(f"{doing}: {cause.str()} ({cause.name()}); is the broker up, and the address right?")
