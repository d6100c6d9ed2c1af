"""Offsets of partitions and of consumer groups, requested, compared and committed through
consumers; a part of `ports.TopicLog` and more.

The admin client's requests look simpler but fail in three ways. After a refusal for an old leader
epoch, it repeats the same epoch for minutes; while a leader is gone, every request takes its whole
time-out; and `list_consumer_group_offsets` ends the process when the group's coordinator moves. A
consumer that is assigned to the partition learns its leader."""

import random
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from chronos.adapters.kafka.closing import consumers
from chronos.adapters.kafka.connection import (
    CONSUMER,
    COORDINATOR_MOVED_CODES,
    LEADER_MOVED_CODES,
    LEADER_POLL_S,
    MISSING_CODES,
    OFFSETS_CONSUMER,
    VALIDATING_CONSUMER,
    Connection,
)
from chronos.errors import LogUnavailable
from chronos.ports import Watermarks

T = TypeVar("T")

IDLE_MAX = 64
"""Consumers kept for later requests: enough for all requests at one time, except in a burst."""

IDLE_S = 30.0
"""Time after which a consumer that was not needed is closed: each has five threads, a connection to
each broker, and asks for metadata every second."""

TOGETHER_S = 1.0
"""How long a request for the ends of many partitions may take before each is asked for alone."""

SHARED_FROM = 8
"""Consumers in use at a time from which on a request first waits for one of them: when a node
starts, all shards ask at once, and each consumer has five threads, and costs as much as a hundred
requests."""

SHARED_S = 0.5
"""How long it waits: a consumer whose broker hangs does not come back soon."""

ASSIGNED_MAX = 500
"""Partitions assigned to one consumer; beyond that its assignment starts again with the partition
asked for."""

VALIDATION_S = 0.05
"""Further time for each partition that is compared with its leader epoch."""

TRUNCATED_CODES = frozenset({KafkaError._LOG_TRUNCATION, KafkaError._AUTO_OFFSET_RESET})
"""With `auto.offset.reset: error` the client reports a truncation as the second one (measured)."""

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
"""`isolation.level` decides which end a consumer reports: the last stable offset, or the high
watermark."""


class KafkaOffsets:
    """Asks for offsets. Any thread may call."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # A consumer serves one thread at a time: threads that shared one would all wait for a
        # broker that hangs.
        self._idle: dict[str, list[_OffsetsConsumer]] = {COMMITTED: [], UNCOMMITTED: []}
        self._used = dict.fromkeys(self._idle, 0)
        """Consumers in use."""
        self._returned = threading.Condition()
        self._closed = False

    def stable_end(self, topic: str, partition: int) -> int:
        """Return the last stable offset: the end of the log for a reader of committed records.
        Takes 0.05 ms (measured)."""
        return self._ask(topic, partition, OFFSET_END, COMMITTED)

    def watermarks(self, topic: str, partition: int) -> Watermarks:
        """Start, last stable offset and high watermark, in this order."""
        start = self._ask(topic, partition, OFFSET_BEGINNING, COMMITTED)
        stable = self.stable_end(topic, partition)
        end = self._find(topic, partition, OFFSET_END, UNCOMMITTED)
        return Watermarks(
            start=start, stable=stable, high=int(end.offset), leader_epoch=end.leader_epoch
        )

    def stable_ends(self, topic: str, partitions: Collection[int]) -> dict[int, int]:
        """Return the last stable offset of each partition that answers."""
        return self._ends(topic, partitions, COMMITTED)

    def high_watermarks(self, topic: str, partitions: Collection[int]) -> dict[int, int]:
        """Return the high watermark of each partition that answers."""
        return self._ends(topic, partitions, UNCOMMITTED)

    def _ends(self, topic: str, partitions: Collection[int], level: str) -> dict[int, int]:
        """Ask for all ends at once. The client refuses that while one of them has no leader: each
        is asked for alone then, in any order, as many as answer in the time of one request."""
        self._close_unused()
        with suppress(KafkaException, LogUnavailable):
            return self._ends_together(topic, partitions, level)
        ends: dict[int, int] = {}
        deadline = time.monotonic() + self._connection.request_timeout_s
        for partition in random.sample(list(partitions), len(partitions)):
            with suppress(LogUnavailable):
                ends[partition] = self._ask(topic, partition, OFFSET_END, level)
            if time.monotonic() > deadline:
                break
        return ends

    def _ends_together(self, topic: str, partitions: Collection[int], level: str) -> dict[int, int]:
        if not partitions:
            return {}
        consumer = self._take(level)
        try:
            if consumer is None:
                consumer = self._new(level, f"asking for the ends of {topic}")
            found = consumer.ends(topic, partitions, TOGETHER_S)
        except BaseException:
            self._give_back(level, None)
            if consumer is not None:
                consumer.close()
            raise
        self._give_back(level, consumer)
        return found

    def _close_unused(self) -> None:
        """Close the consumers that were not needed for IDLE_S."""
        now_s = time.monotonic()
        unused = []
        with self._returned:
            for idle in self._idle.values():
                while idle and now_s - idle[0].used_s > IDLE_S:
                    unused.append(idle.pop(0))
        for consumer in unused:
            consumer.close()

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """Return the first offset at or after a time; the last stable offset if every record is
        older."""
        stable = self.stable_end(topic, partition)
        # Asked after the end: if no record is that young, everything before that end is older.
        found = self._ask(topic, partition, timestamp_ms, COMMITTED)
        return min(found, stable) if found >= 0 else stable

    def commit_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit offsets, by topic and partition, for a consumer group that has no members."""
        parts = [
            TopicPartition(topic, partition, offset)
            for (topic, partition), offset in offsets.items()
        ]
        committed = self._ask_group(
            group,
            "committing offsets",
            lambda consumer: consumer.commit(offsets=parts, asynchronous=False),
        )
        refused = [
            f"{part.topic}/{part.partition}: {part.error}"
            for part in committed
            if part.error is not None
        ]
        if refused:
            raise LogUnavailable(f"committing offsets of the group {group} in {', '.join(refused)}")

    def truncated(
        self, positions: Mapping[tuple[str, int], tuple[int, int]]
    ) -> set[tuple[str, int]]:
        """The partitions whose log no longer has the records before an offset that it had in a
        leader epoch.

        `positions`: offset and leader epoch, by topic and partition. The consumer compares them
        with the leader (OffsetForLeaderEpoch) before it fetches. Raises LogUnavailable."""
        doing = "comparing offsets with the leader epochs of the log"
        left = dict(positions)
        found: set[tuple[str, int]] = set()
        consumer = Consumer(self._connection.asking({**CONSUMER, **VALIDATING_CONSUMER}))
        try:
            consumer.assign(
                [
                    TopicPartition(*at, offset, leader_epoch=epoch)
                    for at, (offset, epoch) in positions.items()
                ]
            )
            deadline = (
                time.monotonic() + self._connection.request_timeout_s + len(left) * VALIDATION_S
            )
            while left:
                message = consumer.poll(LEADER_POLL_S)
                if message is None:
                    if time.monotonic() > deadline:
                        raise self._connection.unanswered(doing)
                    continue
                at = (str(message.topic()), int(message.partition() or 0))
                error = message.error()
                if error is not None and error.code() in TRUNCATED_CODES:
                    found.add(at)
                elif error is not None and error.code() != KafkaError._PARTITION_EOF:
                    continue  # the client tries again
                if left.pop(at, None) is not None:
                    consumer.pause([TopicPartition(*at)])
        except KafkaException as error:
            raise self._connection.unavailable(doing, error) from error
        finally:
            consumers.close(consumer)
        return found

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        """Return the committed offset of a group; None if it has none. To the broker, a group that
        does not exist has none."""
        parts = [TopicPartition(topic, partition)]
        (found,) = self._ask_group(
            group,
            "reading offsets",
            lambda consumer: consumer.committed(parts, timeout=self._connection.answer_s),
        )
        if found.error is not None:
            raise LogUnavailable(
                f"reading offsets of the group {group} in {topic}/{partition}: {found.error}"
            )
        return int(found.offset) if found.offset >= 0 else None

    def close(self) -> None:
        """Close the idle consumers; one that is in use is closed when its request ends."""
        self._closed = True
        for idle in self._idle.values():
            with suppress(IndexError):
                while True:
                    idle.pop().close()

    def _ask(self, topic: str, partition: int, timestamp_ms: int, level: str) -> int:
        return int(self._find(topic, partition, timestamp_ms, level).offset)

    def _find(self, topic: str, partition: int, timestamp_ms: int, level: str) -> TopicPartition:
        """ListOffsets for a timestamp, or for OFFSET_BEGINNING or OFFSET_END; negative when no
        record is that young."""
        doing = f"asking for offsets of {topic}/{partition}"
        consumer = self._take(level)
        try:
            if consumer is None:
                consumer = self._new(level, doing)
            found, consumer = self._ask_with(consumer, topic, partition, timestamp_ms, level, doing)
        except BaseException:
            self._give_back(level, None)
            raise
        self._give_back(level, consumer)
        if found.offset < 0 and timestamp_ms < 0:
            raise self._connection.unanswered(doing)
        return found

    def _ask_with(
        self,
        consumer: "_OffsetsConsumer",
        topic: str,
        partition: int,
        timestamp_ms: int,
        level: str,
        doing: str,
    ) -> tuple[TopicPartition, "_OffsetsConsumer"]:
        """Return the answer, and the consumer that was asked last: another one if the topic was
        missing when this one last looked."""

        def ask(left_s: float) -> TopicPartition:
            nonlocal consumer
            try:
                return consumer.ask(topic, partition, timestamp_ms, max(0.1, left_s))
            except KafkaException as error:
                if consumer.is_new or error.args[0].code() not in MISSING_CODES:
                    raise
            # The topic was missing when this consumer last looked, seconds ago; it may have been
            # created since.
            kept, consumer = consumer, self._new(level, doing)
            kept.close()
            return consumer.ask(topic, partition, timestamp_ms, max(0.1, left_s))

        try:
            found = self._retrying(
                doing, LEADER_MOVED_CODES, self._connection.request_timeout_s, ask
            )
        except LogUnavailable:
            consumer.close()
            raise
        return found, consumer

    def _take(self, level: str) -> "_OffsetsConsumer | None":
        """Return an idle consumer; None if there is none, and none is given back soon enough."""
        with self._returned:
            idle = self._idle[level]
            if not idle and self._used[level] >= SHARED_FROM:
                self._returned.wait_for(lambda: idle, SHARED_S)
            self._used[level] += 1
            return idle.pop() if idle else None

    def _give_back(self, level: str, consumer: "_OffsetsConsumer | None") -> None:
        """Keep a consumer for later requests; None: it is closed."""
        with self._returned:
            self._used[level] -= 1
            idle = self._idle[level]
            if consumer is not None and not self._closed and len(idle) < IDLE_MAX:
                consumer.used_s = time.monotonic()
                idle.append(consumer)
                self._returned.notify()
                return
        if consumer is not None:
            consumer.close()

    def _new(self, level: str, doing: str) -> "_OffsetsConsumer":
        try:
            return _OffsetsConsumer(
                self._connection.asking({**OFFSETS_CONSUMER, "isolation.level": level})
            )
        except KafkaException as error:
            # This machine has no thread, or no file descriptor, left.
            raise self._connection.unavailable(doing, error) from error

    def _ask_group(
        self, group: str, doing: str, ask: Callable[[Consumer], list[TopicPartition]]
    ) -> list[TopicPartition]:
        """Ask through a consumer that finds the group's coordinator and does not join the group."""
        consumer = Consumer(
            self._connection.settings({"group.id": group, "enable.auto.commit": False})
        )
        try:
            return self._retrying(
                f"{doing} of the group {group}",
                COORDINATOR_MOVED_CODES,
                self._connection.answer_s,
                lambda _: ask(consumer),
            )
        finally:
            consumers.close(consumer)

    def _retrying(
        self, doing: str, codes: frozenset[int], timeout_s: float, ask: Callable[[float], T]
    ) -> T:
        """Call `ask` with the seconds that are left, and again after an error with one of the
        codes."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return ask(deadline - time.monotonic())
            except KafkaException as error:
                if error.args[0].code() not in codes or time.monotonic() > deadline:
                    raise self._connection.unavailable(doing, error) from error
            time.sleep(LEADER_POLL_S)


class _OffsetsConsumer:
    """A consumer that asks for offsets and reads nothing. For one thread at a time."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._consumer = Consumer(settings)
        self._assigned: set[tuple[str, int]] = set()
        self.is_new = True
        """No request of this consumer has been answered yet."""
        self.used_s = time.monotonic()
        """When it was given back last."""

    def ask(
        self, topic: str, partition: int, timestamp_ms: int, timeout_s: float
    ) -> TopicPartition:
        """The leader's answer to ListOffsets. Raises KafkaException."""
        (found,) = self._consumer.offsets_for_times(
            [TopicPartition(topic, partition, timestamp_ms)], timeout_s
        )
        self._consumer.poll(0)  # takes the client's events, which would be kept otherwise
        if found.error is not None:
            raise KafkaException(found.error)
        self.is_new = False
        if (topic, partition) not in self._assigned and found.offset >= 0:
            end = found
            if timestamp_ms != OFFSET_END:
                (end,) = self._consumer.offsets_for_times(
                    [TopicPartition(topic, partition, OFFSET_END)], timeout_s
                )
            if end.error is None and end.offset >= 0:
                self._assign(TopicPartition(topic, partition, end.offset))
        return found

    def ends(self, topic: str, partitions: Collection[int], timeout_s: float) -> dict[int, int]:
        """The ends of these partitions, without those that their leaders do not tell. Raises
        KafkaException."""
        asked = [TopicPartition(topic, partition, OFFSET_END) for partition in partitions]
        found = self._consumer.offsets_for_times(asked, timeout_s)
        self._consumer.poll(0)
        self.is_new = False
        return {
            part.partition: int(part.offset)
            for part in found
            if part.error is None and part.offset >= 0
        }

    def _assign(self, part: TopicPartition) -> None:
        """Assign at an offset that exists: a client closed while it looks for one never ends (a
        deadlock, measured).

        It is the end: a fetch may be under way before the pause, and must not bring a batch that
        takes too much memory."""
        if len(self._assigned) >= ASSIGNED_MAX:
            self._consumer.unassign()
            self._assigned.clear()
        self._consumer.incremental_assign([part])
        self._consumer.pause([part])
        self._assigned.add((part.topic, part.partition))

    def close(self) -> None:
        """Close the consumer."""
        consumers.close(self._consumer)
