"""The simulated brokers: partitions, transactions and fencing as Kafka implements them. The checker
reads them directly.

Each broker has a clock of its own, and a record gets the time of the broker that leads its
partition when it is written.

A transaction is open, then decided, then marked: each partition it touched gets a marker, which
takes an offset, and not all at the same moment. Until the marker is written, the transaction holds
back the partition's last stable offset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

from chronos.core.keys import partition_of
from chronos.core.message import SOURCE, Record
from chronos.workers.step.letter_topics import ELECTION_MS
from tests.sim.world import START_MS, World

TRANSACTION_MS = 10_000
BROKERS = 3
BYTES_MAX = 1_000_000
"""Largest record of a topic unless it is created with another limit."""

CLUSTER = "sim"
DELAY, PROGRESS, REJECTED, DEAD_LETTER = "delay", "progress", "rejected", "dead-letter"

Headers = Sequence[tuple[str, bytes | None]]


class BrokerClock:
    """The clock of one broker, as NTP leaves it: off by a constant and a drift, up to a bound; and
    a fault beyond it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.skew_ms = 0
        """At the start."""
        self.drift = 0.0
        self.bound_ms = 0
        self.wrong_ms = 0
        """The fault: how much further it is ahead."""

    @property
    def ahead_ms(self) -> int:
        """How far it is ahead of the true time."""
        off_ms = self.skew_ms + int((self._world.now_ms - START_MS) * self.drift)
        return max(-self.bound_ms, min(self.bound_ms, off_ms)) + self.wrong_ms

    def now_ms(self) -> int:
        return self._world.now_ms + self.ahead_ms


class Transaction:
    """One transaction. `shard` stands for its transactional id; None: a transaction of a
    producer."""

    def __init__(self, shard: int | None, epoch: int) -> None:
        self.shard = shard
        self.epoch = epoch
        self.state = "open"
        self.touched: list[Partition] = []
        self.unmarked: list[Partition] = []
        self.written: list[tuple[Partition, int]] = []


class Partition:
    """One partition: records and markers, each with its transaction."""

    def __init__(self, topic: str, number: int, broker: int) -> None:
        self.topic = topic
        self.number = number
        self.broker = broker
        """The broker that leads it."""
        self.name = f"{topic}/{number}"
        self.items: list[tuple[Record | None, Transaction | None]] = []
        """Index is the offset; a marker has no record."""
        self.held: list[tuple[int, Transaction]] = []
        """Transactions without a marker in this partition, with their first offset."""
        self.written_ms: list[int] = []
        """For each offset: when the record or marker was written."""
        self.shown_ms: list[int] = []
        """For each offset below the last stable one: the time from which read_committed readers
        could read it."""
        self.watchers: list[Callable[[], None]] = []
        self.unreadable: dict[int, tuple[int, int]] = {}
        """First and last offset of the batch of every record in a batch that cannot be
        decompressed."""
        self.start = 0
        """Records before this offset are trimmed for readers; the checker still sees them."""
        self.trimmed_ms = 0
        """When it was last trimmed."""
        self.begins_at = 0
        """Records before this offset were deleted before any node started."""

    @property
    def high(self) -> int:
        return len(self.items)

    @property
    def stable(self) -> int:
        return min((first for first, _ in self.held), default=len(self.items))

    def committed(self) -> list[Record]:
        """The records that a read_committed reader gets, in order, trimmed ones included."""
        return [
            record
            for record, transaction in self.items[self.begins_at : self.stable]
            if record is not None and (transaction is None or transaction.state == "committed")
        ]


class Brokers:
    """The cluster of brokers. `deciding` is called with every transaction that was just
    committed."""

    def __init__(self, world: World, deciding: Callable[[Transaction], None]) -> None:
        self.world = world
        self.deciding = deciding
        self.topics: dict[str, list[Partition]] = {}
        self.ids: dict[str, int] = {}
        self.bytes_max: dict[str, int] = {}
        self.deleted_ms: dict[str, int] = {}
        """Time of each topic's first deletion; it may exist again, between two looks that did not
        find it."""
        self.clocks = [BrokerClock(world) for _ in range(BROKERS)]
        self.wrong_ms = 0
        """How far at most the clock of a broker was off by a fault."""
        self.paused: list[int] = [0] * BROKERS
        """Until when each broker answers no request."""
        self.paused_since: list[int] = [0] * BROKERS
        """When each broker paused, shorter breaks included."""
        self.leaderless: dict[str, int] = {}
        """Until when each partition, by name, has no leader although its broker answers."""
        self.trimming: Callable[[Partition, str], None] = lambda partition, by: None
        """Called after a trim with the partition and the name of the node that trimmed it."""
        self.epochs: dict[int, int] = {}
        self.open: dict[int, Transaction] = {}
        """The last transaction of each shard."""
        self.refusing_ms: dict[str, int] = {}
        """Until when a topic refuses records, although a look finds it writable."""
        self.compacted: set[str] = set()
        """Topics that refuse records without a key."""
        self.excused_ms: list[int] = [0] * BROKERS
        """Until when a master may not write to the partitions that each broker leads."""
        self.refused_until_ms: dict[str, int] = {}
        """The latest time at which a topic refused records so far."""
        self.attempted_ms: dict[bytes, int] = {}
        """`chronos-source` -> when the message was last in a transaction."""
        self.forgotten: set[int] = set()
        """Shards whose transactional id the brokers no longer know, and with it no fence."""
        self.odd_offsets = 0.0
        """How often a marker is written twice (KAFKA-19999), and how often an aborted transaction
        takes another number of offsets than it mostly does."""
        self.offsets_dice = Random(0)
        self.slow_markers = 0.0
        self.slow_marker_ms = 2_000
        self.made = 0

    # Topics

    def create(self, topic: str, partitions: int, bytes_max: int = 0) -> None:
        """Create the topic; 0 bytes: the default limit."""
        self.made += 1
        self.bytes_max[topic] = bytes_max or BYTES_MAX
        self.ids[topic] = self.made
        self.topics[topic] = [
            Partition(topic, number, (self.made + number) % BROKERS) for number in range(partitions)
        ]

    def delete(self, topic: str) -> None:
        """Delete the topic; writes to it fail."""
        del self.topics[topic]
        self.deleted_ms.setdefault(topic, self.world.now_ms)

    def place(self, topic: str, key: bytes | None, partition: int) -> Partition:
        partitions = self.topics[topic]
        if partition < 0:
            if key is None:
                led = [place for place in partitions if not self.is_paused(place)] or partitions
                return self.world.random.choice(led)
            partition = partition_of(key, len(partitions))
        return partitions[partition]

    def accepts(self, topic: str, key: bytes | None, value: bytes | None) -> bool:
        """Return whether the topic exists, can be written to, and takes a record with this key and
        of this size."""
        is_open = topic in self.topics and self.refusing_ms.get(topic, 0) <= self.world.now_ms
        has_key = key is not None or topic not in self.compacted
        return is_open and has_key and len(value or b"") <= self.bytes_max[topic]

    def is_paused(self, partition: Partition) -> bool:
        return self.paused_until_ms(partition) > self.world.now_ms

    def paused_until_ms(self, partition: Partition) -> int:
        """Until when the partition cannot be read or written."""
        return max(self.paused[partition.broker], self.leaderless.get(partition.name, 0))

    def clock(self, partition: Partition) -> BrokerClock:
        """Return the clock of the partition's leader."""
        return self.clocks[partition.broker]

    @property
    def apart_ms(self) -> int:
        """Most by which two of their clocks differ without a fault, and by which one of them seems
        to be set if a leader changes."""
        return max(clock.bound_ms for clock in self.clocks) * 2

    def elect(self, partition: Partition, dice: Random) -> None:
        """Make some broker that answers the leader of the partition."""
        answering = [
            broker for broker in range(BROKERS) if self.paused[broker] <= self.world.now_ms
        ]
        if answering:
            partition.broker = dice.choice(answering)
            self.world.trace(f"{partition.name} is led by {partition.broker}")
            self.excuse(partition.broker, self.excused_ms[partition.broker])

    def set_wrong(self, broker: int, wrong_ms: int) -> None:
        """Let the clock of a broker be wrong by more than NTP allows, until it is set again."""
        self.world.trace(f"clock of broker {broker} is {wrong_ms} further off")
        self.clocks[broker].wrong_ms = wrong_ms
        self.wrong_ms = max(self.wrong_ms, abs(wrong_ms))

    # Records

    def attempted(self, headers: Mapping[str, bytes | None]) -> None:
        """Note that a message is in a transaction, whatever becomes of it."""
        self.attempted_ms[headers.get(SOURCE) or b""] = self.world.now_ms

    def begin_late(self, partition: Partition, records: int) -> None:
        """Have records in the partition that were deleted before any node started."""
        for number in range(records):
            self.append(partition, b"id-%d" % number, b"deleted", [("chronos-target-topic", b"a")])
        partition.start = partition.begins_at = partition.high

    def append(
        self,
        partition: Partition,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        transaction: Transaction | None = None,
        create_time_ms: int | None = None,
    ) -> int:
        """`create_time_ms`: the producer's timestamp, in a topic whose timestamps are not the
        brokers' at the moment."""
        offset = partition.high
        stamp_ms = self.clock(partition).now_ms() if create_time_ms is None else create_time_ms
        record = Record(
            offset, stamp_ms, key, value, headers, create_time=create_time_ms is not None
        )
        partition.items.append((record, transaction))
        partition.written_ms.append(self.world.now_ms)
        if transaction is not None:
            if partition not in transaction.touched:
                self.join(transaction, partition)
                partition.held.append((offset, transaction))
            transaction.written.append((partition, offset))
        self._show(partition)
        return offset

    def _show(self, partition: Partition) -> None:
        """Wake the readers of records that just became readable."""
        stable = partition.stable
        if stable > len(partition.shown_ms):
            partition.shown_ms += [self.world.now_ms] * (stable - len(partition.shown_ms))
            for watcher in partition.watchers:
                watcher()

    # Transactions

    def begin(self, shard: int, epoch: int) -> Transaction:
        """Begin a transaction of a shard's writer, which must not be fenced; the last one gets its
        markers first."""
        last = self.open.get(shard)
        if last is not None:
            assert last.state != "open"
            self.mark_all(last)
        transaction = self.open[shard] = Transaction(shard, epoch)
        self.world.after(TRANSACTION_MS, self._expire, transaction)
        return transaction

    def _expire(self, transaction: Transaction) -> None:
        """A transaction timed out: the brokers abort it and fence its producer."""
        if transaction.state == "open":
            assert transaction.shard is not None
            self.world.trace(f"transaction of shard {transaction.shard} expires")
            self.epochs[transaction.shard] += 1
            self.decide(transaction, commit=False)

    def fence(self, shard: int) -> int:
        """Return the epoch of a new writer; an open transaction of an earlier one is aborted."""
        self.forgotten.discard(shard)
        epoch = self.epochs[shard] = self.epochs.get(shard, 0) + 1
        last = self.open.get(shard)
        if last is not None and last.state == "open":
            self.decide(last, commit=False)
        return epoch

    def forget_ids(self) -> None:
        """Forget every transactional id that is not in use, as if none had been used for
        `transactional.id.expiration.ms`."""
        for shard in self.epochs:
            last = self.open.get(shard)
            if last is None or (last.state != "open" and not last.unmarked):
                self.forgotten.add(shard)
        self.world.trace(f"the brokers forget the transactional ids of {sorted(self.forgotten)}")

    def join(self, transaction: Transaction, partition: Partition) -> None:
        """Add a partition to the transaction, which gets a marker even if no record is written."""
        if partition not in transaction.touched:
            transaction.touched.append(partition)
            transaction.unmarked.append(partition)

    def is_odd(self) -> bool:
        """Draw whether something takes an unusual number of offsets."""
        return self.odd_offsets > 0 and self.offsets_dice.random() < self.odd_offsets

    def commit(self, transaction: Transaction) -> bool:
        """Commit at a client's request; return False once the transaction was aborted or its
        producer fenced."""
        if transaction.state != "open":
            return False
        if transaction.shard is not None and self.epochs[transaction.shard] != transaction.epoch:
            return False
        self.decide(transaction, commit=True)
        return True

    def decide(self, transaction: Transaction, *, commit: bool) -> None:
        """Decide the end of the transaction for good; readers see it with the markers."""
        assert transaction.state == "open"
        transaction.state = "committed" if commit else "aborted"
        if transaction.shard is not None:
            self.world.trace(
                f"{transaction.state} shard {transaction.shard} epoch {transaction.epoch}"
            )
            if commit:
                self.deciding(transaction)
        for partition in list(transaction.unmarked):
            if self.world.faulty and self.world.chance(self.slow_markers):
                self.world.after(
                    self.world.random.randrange(1, self.slow_marker_ms),
                    self.mark,
                    transaction,
                    partition,
                )
            else:
                self.mark(transaction, partition)

    def mark(self, transaction: Transaction, partition: Partition) -> None:
        if partition not in transaction.unmarked:
            return
        if self.is_paused(partition):
            self.world.at(self.paused_until_ms(partition) + 1, self.mark, transaction, partition)
            return
        transaction.unmarked.remove(partition)
        partition.held = [held for held in partition.held if held[1] is not transaction]
        for _ in range(2 if self.is_odd() else 1):
            partition.items.append((None, transaction))
            partition.written_ms.append(self.world.now_ms)
        self._show(partition)

    def mark_all(self, transaction: Transaction) -> bool:
        """Write all markers that can be written; return whether none is left."""
        for partition in list(transaction.unmarked):
            self.mark(transaction, partition)
        return not transaction.unmarked

    def pause(self, broker: int, until_ms: int) -> None:
        """Let a broker answer no request for a time; a master waits as for an election while it
        cannot write to the rejected topic or forward records."""
        now_ms, before_ms = self.world.now_ms, self.paused[broker]
        self.paused_since[broker] = (
            now_ms if before_ms < now_ms - ELECTION_MS else self.paused_since[broker]
        )
        self.paused[broker] = max(before_ms, until_ms)
        if self.paused[broker] - self.paused_since[broker] >= ELECTION_MS:
            self.excuse(broker, self.paused[broker])

    def excuse(self, broker: int, until_ms: int) -> None:
        """Note that a master could not write to the rejected topic, or forward records, if this
        broker has them."""
        self.excused_ms[broker] = max(until_ms, self.excused_ms[broker])
        for topic in (REJECTED, DELAY):
            if any(place.broker == broker for place in self.topics[topic]):
                self.refused_until_ms[topic] = max(until_ms, self.refused_until_ms.get(topic, 0))

    def refuse(self, topic: str, until_ms: int) -> None:
        """Let a topic refuse records for a time, although a look finds it writable."""
        self.refusing_ms[topic] = until_ms
        self.refused_until_ms[topic] = max(until_ms, self.refused_until_ms.get(topic, 0))

    def heal(self) -> None:
        """End all faults."""
        self.paused = [0] * BROKERS
        for clock in self.clocks:
            clock.wrong_ms = 0
        self.leaderless.clear()
        self.refusing_ms.clear()
        for transaction in self.open.values():
            if transaction.state != "open":
                self.mark_all(transaction)
