"""The partitions of the messages without a key: one for each topic and turn, chosen by the selector
from how the brokers answer. While no partition of the topic is closed, the log chooses instead if
the selector is off, or if the log has no brokers (the embedded log).

A turn is about as many messages as a batch of the client holds, for each target of the step, so
that a small step writes to one partition of each topic, and a large one spreads over several. A
message with a key keeps its partition. The module also follows each transaction: it reports the
brokers' answers to the selector, and names the partitions that do not acknowledge."""

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from chronos.core.keys import partition_of
from chronos.core.selector import FAILED_MS, NO_LEADER, BrokerLatency, Selector
from chronos.errors import ProducerLost
from chronos.ports import Clock, Sent, TopicInfo, Writer
from chronos.workers.step.targets import Targets

log = structlog.get_logger("chronos.push")

TURN_MESSAGES = 1_000
"""Messages of one topic that go to the same partition in a row: a full batch of the client."""

WAITS_MS = 1_000
"""A record that is not acknowledged for longer is named: a commit takes milliseconds."""

LOG_EVERY_MS = 60_000
"""How often a shard logs that one broker is avoided."""

NAMED_MAX = 3
"""Most partitions named in one text."""


class Turn(dict[str, int]):
    """By topic, the partition of its messages without a key, chosen at the first of them; -1: the
    log's choice.

    `clear` begins the next turn.
    """

    def __init__(self, partitions: "Partitions", now_ms: int) -> None:
        super().__init__()
        self.changes = partitions.changes
        """`Partitions.changes` when the turn began: after a later change its choices are
        outdated."""
        self._partitions = partitions
        self._now_ms = now_ms

    def __missing__(self, topic: str) -> int:
        chosen = self[topic] = self._partitions.choose(topic, self._now_ms)
        return chosen

    def place(self, topic: str, key: bytes | None, info: TopicInfo) -> int:
        """Return the partition of one message; -1: the log's choice, which goes by the key if there
        is one."""
        if key is None:
            return self[topic]
        return partition_of(key, info.partitions) if info.closed else -1


class Partitions:
    """The choices of one leadership, and the reports of its writer."""

    def __init__(self, targets: Targets, selector: Selector | None) -> None:
        """`selector`: the one of the node; None: the log chooses, as long as no partition is
        closed."""
        self._targets = targets
        self._enabled = selector is not None
        self._selector = Selector() if selector is None else selector
        self._followed: tuple[Writer, int] | None = None
        """The writer of the open transaction, and when it was begun (epoch ms); None between two
        transactions."""

        self._doubts: dict[int, tuple[BrokerLatency, int]] = {}
        """By broker that failed: its entry, and when the first answer since then came from it, or
        from another leader (epoch ms)."""
        self._logged_ms: dict[int, int] = {}
        """By broker, when it was logged that it is avoided (epoch ms)."""

    @property
    def changes(self) -> int:
        """How often a report to the selector changed the penalty of a broker."""
        return self._selector.changes

    def turn(self, now_ms: int) -> Turn:
        """Return the choices of the first turn of a step; its topics must have been described."""
        return Turn(self, now_ms)

    def choose(self, topic: str, now_ms: int) -> int:
        """Return the partition for the next messages without a key; -1: the log's choice."""
        info = self._targets.known([topic])[topic].info
        assert info is not None, "a message for a missing topic is not written"
        if not info.closed and not (self._enabled and info.leaders):
            return -1
        leaders = info.leaders or (NO_LEADER,) * info.partitions
        partition = self._selector.choose(topic, leaders, info.closed, now_ms)
        assert partition is not None, (
            "a message for a topic without an open partition is not written"
        )
        return partition

    @contextmanager
    def following(self, writer: Writer, clock: Clock) -> Iterator[None]:
        """Follow a transaction from before its first record; at its end, report to the selector how
        the brokers answered.

        A ProducerLost for the transaction names the partitions that did not acknowledge.
        """
        self._followed = writer, clock.now_ms()
        try:
            yield
        except ProducerLost as error:
            if named := self._named([sent for sent in writer.sent if sent.failed]):
                error.args = (f"{error}; no acknowledgement from {named}",)
            raise
        finally:
            self._followed = None
            if self._enabled:
                self._report(writer, clock.now_ms())

    def _report(self, writer: Writer, now_ms: int) -> None:
        answered = [sent for sent in writer.sent if sent.latency_ms is not None]
        places = [(sent.topic, *self._led(sent)) for sent in writer.sent if sent.failed]
        silent = [place for place in places if place[2] != NO_LEADER]
        if not answered:
            # The coordinator of the transaction or the network may be the cause: a leader is blamed
            # only if it is replaced.
            for topic, partition, broker in silent:
                self._selector.suspect(topic, partition, broker, now_ms)
            return
        for sent in answered:
            partition, broker = self._led(sent)
            if broker != NO_LEADER and not self._may_have_moved(sent.topic, broker, now_ms):
                self._enter(sent.topic, partition, broker, sent.latency_ms, now_ms)
        # Failed ones last: a partition that failed is avoided, although others of its topic
        # answered.
        silent += [
            (topic, *place)
            for topic, target in self._targets.known({sent.topic for sent in answered}).items()
            if target.info is not None
            for place in self._selector.replaced(topic, target.info.leaders, now_ms)
        ]
        for topic, partition, broker in silent:
            self._enter(topic, partition, broker, None, now_ms)

    def _enter(
        self, topic: str, partition: int, broker: int, latency_ms: int | None, now_ms: int
    ) -> None:
        became_slow = self._selector.report(topic, partition, broker, latency_ms, now_ms)
        brokers = self._selector.brokers()
        # The only broker is not avoided.
        if (
            became_slow
            and len(brokers) > 1
            and not 0 <= now_ms - self._logged_ms.get(broker, 0) < LOG_EVERY_MS
        ):
            self._logged_ms[broker] = now_ms
            seconds = (brokers[broker].available_ms - now_ms) // 1_000
            log.warning(
                "broker avoided",
                broker=broker,
                partition=f"{topic}/{partition}",
                took_ms=latency_ms,
                seconds=seconds,
            )

    def _may_have_moved(self, topic: str, broker: int, now_ms: int) -> bool:
        """Return whether the answer may be that of another leader: the broker failed, and the topic
        was described before the first answer since then. It is then described again, and the next
        answer counts."""
        failed = self._selector.brokers().get(broker)
        if failed is None or failed.latency_ms < FAILED_MS:
            return False
        if broker not in self._doubts or self._doubts[broker][0] is not failed:
            self._doubts[broker] = failed, now_ms
        target = self._targets.known([topic])[topic]
        if target.described_ms >= self._doubts[broker][1]:
            return False
        self._targets.forget(topic)
        return True

    def _led(self, sent: Sent) -> tuple[int, int]:
        """Return the partition of the record, -1 if it is not known, and the broker that leads
        it."""
        target = self._targets.known([sent.topic]).get(sent.topic)
        if target is None or target.info is None:
            return sent.partition, NO_LEADER
        partition, leaders = sent.partition, target.info.leaders
        if partition < 0 and sent.key is not None:
            partition = partition_of(sent.key, target.info.partitions)
        return partition, leaders[partition] if 0 <= partition < len(leaders) else NO_LEADER

    def waits_for(self, now_ms: int) -> str | None:
        """Return the records that the open transaction waits for, for people; None if it does not
        wait. Any thread may call."""
        followed = self._followed
        if followed is None or now_ms - followed[1] < WAITS_MS:
            return None
        writer, since_ms = followed
        named = self._named([sent for sent in list(writer.sent) if sent.latency_ms is None])
        return (
            f"no acknowledgement for {(now_ms - since_ms) // 1_000} s from {named}"
            if named
            else None
        )

    def _named(self, silent: list[Sent]) -> str:
        """Return the partitions of the records with their leaders, for people."""
        places = sorted({(sent.topic, *self._led(sent)) for sent in silent})
        more = f" and {len(places) - NAMED_MAX} more" if len(places) > NAMED_MAX else ""
        return ", ".join(_placed(*place) for place in places[:NAMED_MAX]) + more


def _placed(topic: str, partition: int, broker: int) -> str:
    led = "" if broker == NO_LEADER else f" (leader: broker {broker})"
    return f"{topic}{led}" if partition < 0 else f"{topic}/{partition}{led}"
