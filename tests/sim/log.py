"""The log as one replica's thread sees it: Kafka's clients in front of the brokers, and their
faults."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from msgspec import Struct

from chronos.adapters.kafka.writer import OWN_OFFSETS
from chronos.core.message import Record
from chronos.errors import (
    BatchUnreadable,
    ConfigurationError,
    LogMismatch,
    LogUnavailable,
    ProducerLost,
    TransactionAborted,
)
from chronos.ports import (
    Appended,
    Outgoing,
    ReaderMode,
    Sent,
    Throttle,
    TopicInfo,
    TopicSpec,
    Verify,
    Watermarks,
)
from tests.sim.broker import DEAD_LETTER, DELAY, PROGRESS, REJECTED, Brokers, Partition, Transaction
from tests.sim.world import World

POISON = b"poison"
"""A payload that every target refuses; no look at the topic tells so beforehand."""


class Faults(Struct, kw_only=True):
    """Probability of each fault, each time it could happen. All are 0 once the world is healed."""

    aborts: float = 0.0
    unclear_commits: float = 0.0
    lost_on_abort: float = 0.0
    """An abort costs the producer too."""
    spurious_fences: float = 0.0
    short_reads: float = 0.0
    no_answer: float = 0.0
    jitter: float = 0.0
    """A call takes a while, and other threads run meanwhile."""


class Host(Protocol):
    """The node that a log's client runs on."""

    name: str
    faults: Faults
    log_cut_ms: int
    """Until when no broker can be reached from here."""
    lost_broker: int
    """A broker that cannot be reached from here, although the others can, until
    `lost_broker_ms`."""
    lost_broker_ms: int


class Caller(Protocol):
    """The thread that uses a log's clients."""

    name: str
    world: World

    @property
    def node(self) -> Host: ...

    def touch(self, where: str) -> None:
        """A port is called: other threads may run now, and the process may freeze or die."""

    def misused(self, text: str) -> None:
        """The code under test broke a rule of the port."""

    def trimmed(self, text: str) -> None:
        """The next offset that it reads was trimmed."""

    def sleep(self, wait_ms: int) -> None:
        """Wait inside a call while other threads run."""

    def nudge(self) -> None:
        """There is something to read."""


class SimReader:
    """See `ports.Reader`. Its fetches may lag behind the partition."""

    def __init__(
        self, log: SimLog, partition: Partition, offset: int, patience_ms: int = 0
    ) -> None:
        """`patience_ms`: how late it passes a transaction marker that it waits at."""
        self._log = log
        self._partition = partition
        self._patience_ms = patience_ms
        self._marker = -1, 0
        """The marker that it came to last, and when."""
        self.position = offset
        partition.watchers.append(log.caller.nudge)

    @property
    def delayed(self) -> str | None:
        return None

    def read(self, records_max: int, bytes_max: int) -> list[Record]:
        self._log.caller.touch("read")
        log, partition = self._log, self._partition
        if self.position < partition.start and not log.reads_trimmed:
            text = (
                f"offset {self.position} of {partition.name} was trimmed; it starts at "
                f"{partition.start}"
            )
            log.caller.trimmed(text)
            raise LogMismatch(text)
        if self.position > partition.high:
            raise LogMismatch(
                f"offset {self.position} of {partition.name} is beyond its end {partition.high}"
            )
        if log.is_cut or log.is_silent(partition):
            return []
        stable = partition.stable
        if log.world.chance(log.faults.short_reads):
            stable = log.world.random.randint(min(self.position, stable), stable)
        records: list[Record] = []
        size = 0
        at = self.position
        while at < stable and len(records) < records_max:
            record, transaction = partition.items[at]
            if at in partition.unreadable:
                if records:
                    break
                raise BatchUnreadable(
                    f"the batch at offset {at} of {partition.name} cannot be read", offset=at
                )
            at += 1
            if record is None or _is_hidden(record, transaction):
                # A marker after the last record is passed with the next fetch only, as in a real
                # client.
                if not records:
                    if not self._passes(at - 1):
                        break
                    self.position = at
                continue
            size += len(record.value or b"")
            if records and size > bytes_max:
                break
            records.append(record)
            self.position = at
        return records

    @property
    def waker(self) -> None:
        return None

    def wait(self, timeout_s: float) -> bool:
        for _ in range(2):
            there = self.position < self._partition.stable and not self._log.is_cut
            if there and not self._log.is_silent(self._partition):
                before = self.position
                self._pass_markers()
                if self.position > before or not self._is_hidden(before):
                    return True
            self._log.caller.sleep(int(timeout_s * 1_000))
        return False

    def _pass_markers(self) -> None:
        stable = self._partition.stable
        while self.position < stable and self._is_hidden(self.position):
            if not self._passes(self.position):
                return
            self.position += 1

    def _is_hidden(self, at: int) -> bool:
        return _is_hidden(*self._partition.items[at])

    def _passes(self, marker: int) -> bool:
        """A fetch that finds a record behind the marker ends at once."""
        if any(not self._is_hidden(at) for at in range(marker + 1, self._partition.stable)):
            return True
        now_ms = self._log.world.now_ms
        if self._marker[0] != marker:
            self._marker = marker, now_ms
        return now_ms - self._marker[1] >= self._patience_ms

    def seek(self, offset: int) -> None:
        self.position = offset

    def close(self) -> None:
        if self._log.caller.nudge in self._partition.watchers:
            self._partition.watchers.remove(self._log.caller.nudge)


def _is_hidden(record: Record | None, transaction: Transaction | None) -> bool:
    """Return whether a reader passes this item of a partition: a marker, or an aborted record."""
    return record is None or (transaction is not None and transaction.state != "committed")


class SimWriter:
    """See `ports.Writer`."""

    def __init__(self, log: SimLog, shard: int, epoch: int) -> None:
        self._log = log
        self._brokers = log.brokers
        self._shard = shard
        self.epoch = epoch
        self._transaction: Transaction | None = None
        self._progress = b""
        self._has_poison = False
        self._unreachable = False
        self._sequence_broken = False
        """The transaction after an aborted one fails too, without a poison record
        (OUT_OF_ORDER_SEQUENCE_NUMBER)."""
        self._lost = False
        self._end: int | None = None
        """Offset of the next progress record if only this writer writes; None: not known."""

    @property
    def _fenced(self) -> bool:
        transaction = self._transaction
        return self._brokers.epochs[self._shard] != self.epoch or (
            transaction is not None and transaction.state != "open"
        )

    def _lose(self, text: str, *, poison_likely: bool = False) -> ProducerLost:
        self._lost = True
        return ProducerLost(text, poison_likely=poison_likely)

    def begin_at(self, end: int) -> None:
        self._end = end

    def send(self, messages: Iterable[Outgoing], progress: bytes) -> None:
        log, brokers = self._log, self._brokers
        log.caller.touch("send")
        if self._lost:
            log.caller.misused("a lost producer was used again")
            raise ProducerLost("this producer was lost before")
        self._transaction, self._progress, self._has_poison, self._unreachable = (
            None,
            progress,
            False,
            False,
        )
        if self._fenced:
            raise self._lose("_FENCED")
        if self._shard in brokers.forgotten:
            if log.world.chance(0.5):
                raise self._lose("the brokers have forgotten the transactional id")
            # The client has not sent anything yet, and takes a new producer id with the abort.
            self.epoch = brokers.fence(self._shard)
            raise TransactionAborted("timed out in the client", poison_likely=False)
        last = brokers.open.get(self._shard)
        if last is not None and not brokers.mark_all(last):
            raise self._lose("the last transaction is still being completed")
        transaction = self._transaction = brokers.begin(self._shard, self.epoch)
        for topic, key, value, headers, number in messages:
            if topic not in (DELAY, REJECTED, DEAD_LETTER):
                brokers.attempted(dict(headers))
            is_poison = value == POISON and topic not in (DELAY, REJECTED, DEAD_LETTER)
            if is_poison or not brokers.accepts(topic, key, value):
                self._has_poison = True
                continue
            partition = brokers.place(topic, key, number)
            if log.is_cut or log.is_silent(partition):
                self._unreachable = True
                continue
            pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
            brokers.append(partition, key, value, pairs, transaction)
        log.caller.touch("sent")

    sent: Sequence[Sent] = ()
    throttle: Throttle | None = None

    def commit(self, verify: Verify, meanwhile: Callable[[], None] | None = None) -> Appended:
        log, brokers, world, faults = self._log, self._brokers, self._log.world, self._log.faults
        if meanwhile is not None:
            meanwhile()
        log.caller.touch("commit")
        transaction = self._transaction
        assert transaction is not None, "commit without send"
        progress = brokers.topics[PROGRESS][self._shard]
        if self._unreachable or log.is_cut or log.is_silent(progress):
            log.caller.sleep(world.random.randrange(500, 12_000))
            raise self._lose("the brokers did not take the transaction in time")
        self._check_fenced()
        if self._has_poison:
            self._sequence_broken = world.chance(0.5)
            raise self._abort(poison_likely=True)
        if self._sequence_broken or world.chance(faults.aborts):
            self._sequence_broken = False
            raise self._abort(poison_likely=False)
        offset = brokers.append(progress, None, self._progress, (), transaction)
        record, _ = progress.items[offset]
        assert record is not None
        timestamp_ms = record.timestamp_ms
        log.caller.touch("flushed")
        try:
            verify(timestamp_ms, self._others(progress, offset))
        except BaseException:
            if not self._fenced:
                brokers.decide(transaction, commit=False)
                if offset == self._end:
                    self._end = offset + OWN_OFFSETS
            raise
        log.caller.touch("verified")
        self._check_fenced()
        if world.chance(faults.spurious_fences):
            brokers.fence(self._shard)
            raise self._lose("_FENCED, without a newer producer")
        if world.chance(faults.unclear_commits):
            self._end_unclear(transaction)
        brokers.commit(transaction)
        self._end = offset + OWN_OFFSETS
        log.caller.touch("committed")
        return Appended(partition=self._shard, offset=offset, timestamp_ms=timestamp_ms)

    def _others(self, progress: Partition, offset: int) -> list[Record]:
        """See `KafkaWriter._others`."""
        if self._end is None or offset == self._end:
            return []
        if progress.stable < offset or self._log.world.chance(self._log.faults.no_answer):
            raise self._lose("what others wrote cannot be read")
        return [
            record
            for record, transaction in progress.items[self._end : offset]
            if record is not None and not _is_hidden(record, transaction)
        ]

    def _check_fenced(self) -> None:
        if self._fenced:
            raise self._lose("_FENCED")

    def _abort(self, *, poison_likely: bool) -> TransactionAborted | ProducerLost:
        assert self._transaction is not None
        if self._brokers.is_odd():
            progress = self._brokers.topics[PROGRESS][self._shard]
            if self._brokers.is_odd():
                self._brokers.append(progress, None, self._progress, (), self._transaction)
            else:
                self._brokers.join(self._transaction, progress)
        self._brokers.decide(self._transaction, commit=False)
        if self._log.world.chance(self._log.faults.lost_on_abort):
            return self._lose("refused", poison_likely=poison_likely)
        return TransactionAborted("refused", poison_likely=poison_likely)

    def _end_unclear(self, transaction: Transaction) -> None:
        """The answer is lost, or the request is, or it arrives late."""
        world = self._log.world
        end = world.random.choice(["now", "late", "never"])
        world.trace(f"{self._log.caller.name} commit unclear: {end}")
        if end == "now":
            self._brokers.commit(transaction)
        elif end == "late":
            world.after(world.random.randrange(1, 4_000), self._brokers.commit, transaction)
        raise self._lose("a commit was not answered in time")

    def close(self) -> None:
        self._lost = True


class SimLog:
    """See `ports.Log`: one thread's clients."""

    marker_offsets = 1

    def __init__(self, caller: Caller, brokers: Brokers) -> None:
        self.caller = caller
        self.brokers = brokers
        self.world = caller.world
        self.faults = caller.node.faults
        self.copied_epochs: dict[int, int] | None = None
        """The epochs of the writers of another machine whose memory this one was copied from: its
        first writer of each shard writes as that one. None: its writers are its own."""
        self.reads_trimmed = False
        """Offsets that were trimmed can still be read."""
        self.patience_ms = 0
        """How late a patient reader passes transaction markers."""

    def prepare(self, topics: Sequence[TopicSpec], *, create: bool) -> dict[str, TopicInfo]:
        for spec in topics:
            partitions = self.brokers.topics.get(spec.name)
            if partitions is None:
                if not create:
                    raise ConfigurationError([f"topic {spec.name} does not exist"])
                self.brokers.create(
                    spec.name,
                    max(1, spec.partitions),
                    int(spec.settings.get("max.message.bytes", 0)),
                )
            elif spec.per_shard and len(partitions) != spec.partitions:
                raise ConfigurationError(
                    [
                        f"topic {spec.name} has {len(partitions)} partitions, there are "
                        f"{spec.partitions} shards"
                    ]
                )
        return {spec.name: self._info(spec.name) for spec in topics}

    def describe(self, topics: Sequence[str]) -> dict[str, TopicInfo | None]:
        self.caller.touch("look")
        self._check_answers()
        return {name: self._info(name) if name in self.brokers.topics else None for name in topics}

    def _info(self, name: str) -> TopicInfo:
        partitions = self.brokers.topics[name]
        leaderless = frozenset(
            place.number for place in partitions if self.brokers.is_paused(place)
        )
        return TopicInfo(
            id=str(self.brokers.ids[name]),
            partitions=len(partitions),
            leaderless=leaderless,
            bytes_max=self.brokers.bytes_max[name],
            compacted=name in self.brokers.compacted,
        )

    def watermarks(self, topic: str, partition: int) -> Watermarks:
        self.caller.touch("ends")
        place = self._answering(topic, partition)
        return Watermarks(start=place.start, stable=place.stable, high=place.high)

    def stable_end(self, topic: str, partition: int) -> int:
        self.caller.touch("end")
        return self._answering(topic, partition).stable

    def stable_ends(self, topic: str, partitions: Collection[int]) -> dict[int, int]:
        return {at: found.stable for at, found in self._ends(topic, partitions).items()}

    def high_watermarks(self, topic: str, partitions: Collection[int]) -> dict[int, int]:
        return {at: found.high for at, found in self._ends(topic, partitions).items()}

    def _ends(self, topic: str, partitions: Collection[int]) -> dict[int, Watermarks]:
        found = {}
        for partition in partitions:
            with suppress(LogUnavailable):
                found[partition] = self.watermarks(topic, partition)
        return found

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int:
        self.caller.touch("offset")
        place = self._answering(topic, partition)
        kept = (place.items[offset][0] for offset in range(place.start, place.stable))
        return next(
            (record.offset for record in kept if record and record.timestamp_ms >= timestamp_ms),
            place.stable,
        )

    def batch_bounds(self, topic: str, partition: int, offset: int) -> tuple[int, int]:
        self.caller.touch("bounds")
        return self._answering(topic, partition).unreadable.get(offset, (offset, offset))

    def trim(self, topic: str, partition: int, offset: int) -> None:
        self.caller.touch("trim")
        place = self._answering(topic, partition)
        offset = min(offset, place.stable)
        if offset > place.start:
            place.start, place.trimmed_ms = offset, self.world.now_ms
            self.world.trace(f"{self.caller.name} trims {place.name} to {offset}")
            self.brokers.trimming(place, self.caller.node.name)
        self.caller.touch("trimmed")

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        return None

    def ping(self, timeout_s: float) -> bool:
        return not self.is_cut

    def _answering(self, topic: str, partition: int) -> Partition:
        self._check_answers()
        partitions = self.brokers.topics.get(topic, [])
        if partition >= len(partitions):
            raise LogUnavailable(f"topic {topic} has no partition {partition}")
        place = partitions[partition]
        if self.is_silent(place):
            raise LogUnavailable(f"no broker answered in time for {place.name}")
        return place

    @property
    def is_cut(self) -> bool:
        """True if the network between this node and the brokers is cut."""
        return self.caller.node.log_cut_ms > self.world.now_ms

    def is_silent(self, partition: Partition) -> bool:
        """Return whether the partition's broker does not answer this node."""
        node = self.caller.node
        is_lost = node.lost_broker_ms > self.world.now_ms and partition.broker == node.lost_broker
        return is_lost or self.brokers.is_paused(partition)

    def _check_answers(self) -> None:
        if self.is_cut:
            raise LogUnavailable("no broker can be reached")
        if self.world.faulty and self.world.chance(self.faults.no_answer):
            raise LogUnavailable("no broker answered in time")

    def reader(
        self, topic: str, partition: int, offset: int, *, mode: ReaderMode = "plain"
    ) -> SimReader:
        patience_ms = self.patience_ms if mode in ("patient", "quiet") else 0
        return SimReader(self, self.brokers.topics[topic][partition], offset, patience_ms)

    def writer(self, shard: int) -> SimWriter:
        self.caller.touch("writer")
        self._check_answers()
        last = self.brokers.open.get(shard)
        copied = None if self.copied_epochs is None else self.copied_epochs.pop(shard, None)
        epoch = self.brokers.fence(shard) if copied is None else copied
        self.world.trace(f"{self.caller.name} fences as {epoch}")
        self.caller.touch("fenced")
        if (
            last is not None
            and last.state == "committed"
            and any(map(self.brokers.is_paused, last.unmarked))
        ):
            raise LogUnavailable("the last transaction was not resolved in time")
        return SimWriter(self, shard, epoch)

    def append(self, records: Sequence[Outgoing], timeout_s: float) -> list[Appended]:
        self.caller.touch("append")
        appended = []
        for topic, key, value, headers, number in records:
            if not self.brokers.accepts(topic, key, value):
                raise LogUnavailable(f"topic {topic} does not accept the record")
            place = self._answering(
                topic, self.brokers.place(topic, key, number).number if number < 0 else number
            )
            pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
            offset, now_ms = (
                self.brokers.append(place, key, value, pairs),
                self.brokers.clock(place).now_ms(),
            )
            appended.append(Appended(partition=place.number, offset=offset, timestamp_ms=now_ms))
        return appended

    def close(self) -> None:
        """Nothing to close."""
