"""The topic `chronos.cluster`: two partitions, one consumer of both, their transactional and their
plain producer, and the inspection from outside the cluster.

The position of a reader is lost when the log was truncated by an unclean election, was trimmed
beyond it while this process was stopped, or belongs to another topic of the same name. All of these
are `Forgotten`: the process registers anew."""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from chronos.adapters.kafka.batches import BatchHeader
from chronos.adapters.kafka.connection import (
    CONSUMER,
    FORBIDDEN_CODES,
    PRODUCER,
    RECONNECTING,
    UNREADABLE_CODES,
    Connection,
    consumers,
)
from chronos.adapters.kafka.offsets import TRUNCATED_CODES, KafkaOffsets
from chronos.adapters.kafka.topics import KafkaTopics, public_operations
from chronos.adapters.kafka.writer import KafkaWriter, Throttling, discard
from chronos.core.cluster.controllership import Controllership, Stage
from chronos.core.cluster.heartbeats import (
    HEARTBEATS,
    ROLES,
    ClusterRecord,
    LeaveRecord,
    MemberHeartbeat,
    RecordUnreadable,
    RolesRecord,
    Timing,
    pack_record,
    unpack_record,
    unpack_roles,
)
from chronos.core.cluster.roles import Member, Roles
from chronos.errors import ChronosError, ConfigurationError, CoordinatorUnavailable, LogUnavailable
from chronos.ports import ClusterInspection, TopicSpec, Watermarks

log = structlog.get_logger("chronos.cluster")

PARTITIONS = (HEARTBEATS, ROLES)

STEP_OVER_AGAIN_S = 1.0
"""Pause before a broker is asked again for the header of a batch that cannot be read."""

READER: Mapping[str, Any] = {
    **CONSUMER,
    **RECONNECTING,
    # A fetch is answered as soon as there is a record. The default of 10 ms of the other readers
    # would cost a hundred requests a second.
    "fetch.wait.max.ms": 500,
}
"""Settings of the reader."""

READ_MAX = 1_000
"""Most records of one call."""


class Forgotten(Exception):
    """The position of the reader, or the record of a writer, is not in the log that this process
    has read."""


class TopicEntry(NamedTuple):
    """A record of either partition."""

    partition: int
    offset: int
    value: bytes | None


class ClusterTopic:
    """The topic as an operator sees it: its id, its ends, and what is deleted of it. Any thread may
    call."""

    def __init__(self, connection: Connection, spec: TopicSpec, *, create: bool) -> None:
        """`create`: create the topic if it is missing. No request is made before `open`."""
        self.connection = connection
        self.name = spec.name
        self.id = ""
        """Topic id, as of the last `open`; it changes when the topic is deleted and created
        again."""
        self.advice: tuple[str, ...] = ()
        """Settings that are only unwise, as of the last `open`."""
        self._spec = spec
        self._create = create
        self._topics = KafkaTopics(connection, spec.name)
        self._offsets = KafkaOffsets(connection)

    def exists(self) -> bool:
        """Return whether the topic exists. Raises LogUnavailable."""
        return self._topics.describe([self.name])[self.name] is not None

    def open(self, *, create: bool | None = None) -> None:
        """Create the topic if it is missing, check it, and remember its id. Raises
        ConfigurationError, LogUnavailable."""
        info = self._topics.prepare(
            [self._spec], create=self._create if create is None else create
        )[self.name]
        if info.partitions != len(PARTITIONS):
            raise ConfigurationError(
                [
                    f"{self.name} has {info.partitions} partitions, Chronos needs "
                    f"{len(PARTITIONS)}: name another topic (topics.cluster), or delete this one "
                    "while all nodes are stopped"
                ]
            )
        self.id, self.advice = info.id, info.advice

    def is_same(self) -> bool:
        """Return whether the topic is still the one that was opened; True also if no broker
        answers."""
        try:
            info = self._topics.describe([self.name])[self.name]
        except LogUnavailable:
            return True
        return info is not None and info.id == self.id

    def reader(self) -> "ClusterReader":
        """Return a reader of all that both partitions hold. Raises LogUnavailable."""
        kept = [self.watermarks(partition) for partition in PARTITIONS]
        return ClusterReader(self.connection, self.name, kept, self.batch_header)

    def batch_header(self, partition: int, offset: int) -> BatchHeader:
        """Return the header of the batch that holds the offset. Raises LogUnavailable."""
        return self._topics.batch_header(self.name, partition, offset)

    def watermarks(self, partition: int) -> Watermarks:
        """Return the first and last offsets of a partition. Raises LogUnavailable."""
        return self._offsets.watermarks(self.name, partition)

    def stable_end(self, partition: int) -> int:
        """Return the last stable offset of a partition. Raises LogUnavailable."""
        return self._offsets.stable_end(self.name, partition)

    def trim(self, partition: int, offset: int) -> None:
        """Delete the records of a partition before the offset. Raises LogUnavailable."""
        if offset > self.watermarks(partition).start:
            self._topics.delete_records(self.name, partition, offset)

    def denied(self) -> list[str]:
        """Return which of Read and Write an ACL denies."""
        return self._topics.denied([self.name]).get(self.name, [])

    def public(self) -> list[str]:
        """Return which of Read and Write every client may do. Raises LogUnavailable."""
        return public_operations(self.connection, self.name)

    def close(self) -> None:
        """Release the clients."""
        self._offsets.close()


class ClusterReader:
    """Reads both partitions as a `read_committed` consumer, from the first records kept. For one
    thread."""

    def __init__(
        self,
        connection: Connection,
        topic: str,
        kept: list[Watermarks],
        header: Callable[[int, int], BatchHeader],
    ) -> None:
        """`kept`: the watermarks of both partitions. `header`: see `ClusterTopic.batch_header`."""
        self.start = kept[HEARTBEATS].start
        """First offset of the partition HEARTBEATS when it began."""
        self.positions = [each.start for each in kept]
        """Offset after the last record read of each partition, or after the transaction markers
        that follow it."""
        self.problem = ""
        """What the client reported last and may not mend by itself, for people; empty if
        nothing."""
        self._ends = [each.stable for each in kept]
        self._topic = topic
        self._header = header
        self._unreadable: dict[int, int] = {}
        """Partition -> offset of a batch that the client cannot decompress, until it is stepped
        over."""
        self._step_over_s = 0.0
        """Monotonic time before which no broker is asked again for the header of such a batch."""
        self._consumer = Consumer(connection.settings(READER))
        self._assign()

    def _assign(self) -> None:
        """Read on from the positions."""
        self._consumer.assign(
            [
                TopicPartition(self._topic, partition, position)
                for partition, position in enumerate(self.positions)
            ]
        )

    @property
    def caught_up(self) -> bool:
        """True once everything was read that both partitions held when this reader began."""
        return all(
            position >= end for position, end in zip(self.positions, self._ends, strict=True)
        )

    def poll(self, timeout_s: float) -> list[TopicEntry]:
        """Return the next records of both partitions; wait so long for the first. Raises
        Forgotten."""
        first = self._consumer.poll(timeout_s)
        entries = []
        for message in [] if first is None else [first, *self._consumer.consume(READ_MAX, 0)]:
            error = message.error()
            if error is not None:
                self._check(error, message)
                continue
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            self.positions[partition] = offset + 1
            entries.append(TopicEntry(partition, offset, message.value()))
        if self._unreadable and time.monotonic() >= self._step_over_s:
            self._step_over()
        return entries

    def _step_over(self) -> None:
        """Read on behind the batches that cannot be decompressed; without an answer of the broker,
        try again after a pause."""
        for partition, offset in list(self._unreadable.items()):
            try:
                batch = self._header(partition, offset)
            except LogUnavailable as error:
                self.problem = f"reading {self._topic}/{partition}: a batch cannot be read: {error}"
                self._step_over_s = time.monotonic() + STEP_OVER_AGAIN_S
                return
            log.warning(
                "batch of the cluster topic ignored",
                partition=partition,
                offset=batch.first,
                last=batch.last,
                bytes=batch.bytes,
            )
            self.positions[partition] = max(self.positions[partition], batch.last + 1)
            del self._unreadable[partition]
        self.problem = ""
        self._assign()

    def _check(self, error: KafkaError, message: Message) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            partition = message.partition() or 0
            self.positions[partition] = max(self.positions[partition], message.offset() or 0)
        elif code in TRUNCATED_CODES:
            raise Forgotten(f"{self._topic}/{message.partition()}: {error.str()}")
        elif code in FORBIDDEN_CODES:
            self.problem = (
                f"reading {self._topic}: {error.str()}; Chronos needs the permission READ"
            )
        elif code in UNREADABLE_CODES:
            partition = message.partition() or 0
            self._unreadable[partition] = max(self.positions[partition], message.offset() or 0)

    def read_all(self, timeout_s: float) -> list[TopicEntry]:
        """Return what both partitions held when this reader began, as far as it comes in time.
        Raises Forgotten."""
        deadline = time.monotonic() + timeout_s
        entries: list[TopicEntry] = []
        while not self.caught_up and (left_s := deadline - time.monotonic()) > 0:
            entries += self.poll(min(left_s, 0.1))
        return entries

    def close(self) -> None:
        """Release the client."""
        try:
            consumers.close(self._consumer)
        except (KafkaException, RuntimeError):
            return  # closed before


ASK_AGAIN_S = 0.05
"""Pause before the end of the partition ROLES is asked for again."""

LINES_S = 30.0
"""Least time between two lines about heartbeats that were not written, or about records that are
ignored."""

Settled = Callable[[int | None, str], None]
"""Called with the offset of a record once it is durable; or with None, and why it is not known to
be written."""


class HeartbeatWriter:
    """An idempotent producer of records without transactions, which gives each up after the
    timeout. For one thread.

    A frozen broker answers on its old connections at once when it wakes, and takes seconds for new
    ones (`connection.COMMON`). So the producer keeps its connection; as the broker may be gone
    instead, heartbeats are written with a spare producer besides, until one of the two is
    answered."""

    def __init__(self, connection: Connection, topic: str, timeout_ms: int) -> None:
        self._topic = topic
        settings: Mapping[str, Any] = {
            **PRODUCER,
            **RECONNECTING,
            "linger.ms": 0,
            "message.timeout.ms": timeout_ms,
            "topic.metadata.refresh.interval.ms": 1_000,
            "socket.max.fails": 0,  # requests that time out do not close the connection
        }
        self._settings = connection.settings(settings)
        self._producer = Producer(self._settings)
        self._spare: Producer | None = None
        self._answered: Producer | None = None
        """The producer of the last acknowledgement since the last `poll`."""
        self._timed_out = False
        """A record was not acknowledged in time since the last `poll`."""
        self._under_way: dict[int, Settled] = {}
        self._written = 0
        self._logged_s = -LINES_S
        self._is_told = False
        """The failures since the last acknowledgement are logged: an outage is one line."""

    def write(self, record: ClusterRecord, settled: Settled) -> None:
        """Begin to write a record; `settled` is called by a later `poll`, or at once if the client
        refuses it."""
        self._written += 1
        self._under_way[self._written] = settled
        self._produce(self._producer, self._written, record)
        # A heartbeat that is read twice counts once; a request does not.
        if self._spare is not None and isinstance(record, MemberHeartbeat):
            self._produce(self._spare, self._written, record)

    def _produce(self, producer: Producer, number: int, record: ClusterRecord) -> None:
        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._timed_out |= error.code() == KafkaError._MSG_TIMED_OUT
                self._failed(number, error.str())
                return
            self._answered, self._is_told = producer, False
            if number in self._under_way:
                self._under_way.pop(number)(message.offset(), "")

        try:
            producer.produce(
                self._topic, pack_record(record), partition=HEARTBEATS, on_delivery=report
            )
        except KafkaException as error:
            self._failed(number, error.args[0].str())
            if error.args[0].fatal():
                self._replace(Producer(self._settings), error.args[0].str())
        except BufferError as error:
            self._failed(number, str(error))

    def _failed(self, number: int, why: str) -> None:
        """Settle a record; nothing if another producer's answer has settled it."""
        settled = self._under_way.pop(number, None)
        if settled is None:
            return
        now_s = time.monotonic()
        if not self._is_told and now_s - self._logged_s >= LINES_S:
            self._logged_s, self._is_told = now_s, True
            log.warning("heartbeat not written", topic=self._topic, why=why)
        settled(None, why)

    def _replace(self, producer: Producer, why: str) -> None:
        """Go on with another producer: the outcome of what is under way will not be known."""
        self._drop_spare(producer)
        discard(self._producer)
        self._producer = producer
        for number in list(self._under_way):
            self._failed(number, why)

    def _drop_spare(self, kept: Producer | None = None) -> None:
        if self._spare is not None and self._spare is not kept:
            discard(self._spare)
        self._spare = None

    def poll(self) -> None:
        """Call `settled` for the records whose outcome is known."""
        try:
            self._producer.poll(0)
            if self._spare is not None:
                self._spare.poll(0)
        except (KafkaException, SystemError) as error:
            self._replace(Producer(self._settings), str(error))
        answered, timed_out = self._answered, self._timed_out
        self._answered, self._timed_out = None, False
        if answered is None and timed_out:
            self._drop_spare()
            self._spare = Producer(self._settings)
        elif answered is not None and answered is self._spare:
            self._replace(answered, "another connection was answered first")
        elif answered is self._producer:
            self._drop_spare()

    def close(self) -> None:
        """Release the clients; what is not written yet is dropped."""
        self._drop_spare()
        discard(self._producer)


Tell = Callable[["RolesWriter", Callable[[Controllership, int], None]], None]
"""Applies a result of a RolesWriter to the controllership, with the time of the monotonic clock in
ms; nothing if another RolesWriter has begun."""


class RolesWriter:
    """One attempt to become the controller and to remain it, in a thread of its own: every call may
    wait for the brokers.

    The transactional producer fences those of all earlier attempts, of every process. After any
    error, or an unclear outcome, the attempt has failed; the next one begins with a new producer.
    """

    def __init__(self, topic: ClusterTopic, *, timeout_s: float, tell: Tell) -> None:
        """`timeout_s`: longest transaction."""
        self._topic = topic
        self._timeout_s = timeout_s
        self._tell = tell
        self._writer: KafkaWriter | None = None
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._abandoned = threading.Event()
        self.stage: Stage | None = None
        """The last stage that it was asked to act on."""
        self._is_untrimmed = False
        """The last trim failed, and that is logged: an outage is one line."""
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)
        self._thread.start()

    # --- called by the loop; none of these waits

    def act(self, stage: Stage, opening: RolesRecord | None) -> None:
        """Do what a new stage asks for. `opening`: the epoch record, in the stage OPENING."""
        if stage is self.stage:
            return
        self.stage = stage
        if stage in {Stage.READING, Stage.READING_AGAIN}:
            self._jobs.put(lambda: self._ask_end(stage))
        elif stage is Stage.FENCING:
            self._jobs.put(self._fence)
        elif stage is Stage.OPENING and opening is not None:
            self.commit(opening)

    def commit(self, record: RolesRecord) -> threading.Event:
        """Commit a record in a transaction; the event is set when its outcome was told."""
        done = threading.Event()
        self._jobs.put(lambda: self._commit(record, done))
        return done

    def trim(self, heartbeats: int, roles: int) -> None:
        """Delete the records before these offsets."""
        self._jobs.put(lambda: self._trim(heartbeats, roles))

    def abandon(self) -> None:
        """End the attempt: the thread ends after the call that it waits for, and nothing that it
        finds is told."""
        if not self._abandoned.is_set() and self.stage is not Stage.CONTROLLING:
            # One that takes too long is repeated: if this line comes again and again, the brokers
            # are too slow for the timeout.
            log.info("controller: an attempt ended", stage=self.stage)
        self._abandoned.set()
        self._jobs.put(None)

    # --- in its thread

    def _run(self) -> None:
        try:
            while not self._abandoned.is_set() and (job := self._jobs.get()) is not None:
                job()
        finally:
            if self._writer is not None:
                self._writer.close()

    def _ask_end(self, stage: Stage) -> None:
        """Ask until there is an answer, or the attempt is abandoned because it took too long."""
        while not self._abandoned.is_set():
            with suppress(LogUnavailable):
                end = self._end(stage)
                if end is not None:
                    self._tell(self, partial(_ended, stage, end))
                    return
            self._abandoned.wait(ASK_AGAIN_S)

    def _end(self, stage: Stage) -> int | None:
        if stage is Stage.READING:
            return self._topic.stable_end(ROLES)
        ends = self._topic.watermarks(ROLES)
        return ends.high if ends.stable == ends.high else None

    def _fence(self) -> None:
        try:
            self._writer = KafkaWriter(
                self._topic.connection,
                transactional_id=f"chronos-{self._topic.id}-controller",
                progress_topic=self._topic.name,
                shard=ROLES,
                throttling=Throttling(self._timeout_s),
                small_batch_topics={},
                failure=(
                    "becoming controller: the last transaction of the controller before was not "
                    "resolved"
                ),
            )
        except ChronosError as error:
            self._failed(error)
        else:
            self._tell(self, lambda control, now_ms: control.fenced(now_ms))

    def _commit(self, record: RolesRecord, done: threading.Event) -> None:
        try:
            assert self._writer is not None
            self._writer.send([], pack_record(record))
            self._writer.commit(lambda timestamp_ms, others: None)
        except ChronosError as error:
            self._failed(error)
        else:
            self._tell(self, lambda control, now_ms: control.committed(record, now_ms))
        finally:
            done.set()

    def _failed(self, error: ChronosError) -> None:
        if not self._abandoned.is_set():
            log.info("controller: an attempt failed", stage=self.stage, why=str(error))
        self._tell(self, lambda control, _: control.failed())

    def _trim(self, heartbeats: int, roles: int) -> None:
        try:
            self._topic.trim(HEARTBEATS, heartbeats)
            self._topic.trim(ROLES, roles)
        except LogUnavailable as error:
            if not self._is_untrimmed:
                log.warning("cluster topic not trimmed", why=str(error))
            self._is_untrimmed = True
        else:
            self._is_untrimmed = False


def _ended(stage: Stage, end: int, control: Controllership, now_ms: int) -> None:
    control.ended(stage, end)


READ_S = 5.0
"""How long reading what the topic holds may take."""


def inspect(topic: ClusterTopic, timing: Timing) -> ClusterInspection:
    """Listen for a timeout, in which every member is heard, and close the topic. Raises
    ConfigurationError, CoordinatorUnavailable."""
    place = f"{topic.connection.bootstrap_servers}, topic {topic.name}"
    try:
        if not topic.exists():
            why = "the topic does not exist yet; the first node that joins creates it"
            return ClusterInspection(checked=place, notes=(why,), members={}, roles=None)
        topic.open(create=False)
        denied, public = topic.denied(), topic.public()
        members, unreadable, roles = _read(topic, timing)
    except (LogUnavailable, Forgotten) as error:
        raise CoordinatorUnavailable(f"no Kafka broker answers for the cluster: {error}") from error
    finally:
        topic.close()
    notes = [*topic.advice]
    notes += [
        f"an ACL denies {word}: a node needs Read and Write on {topic.name}" for word in denied
    ]
    if public:
        notes.append(
            f"every client of this Kafka may {' and '.join(public).lower()} {topic.name}: writing "
            "to it is commanding the cluster, and it holds the tokens of the nodes: allow only "
            "Chronos (docs/how-to/kafka.md#acls)"
        )
    if unreadable:
        notes.append(f"{unreadable} records are not understood: run the same version everywhere")
    return ClusterInspection(
        checked=f"{place}: it can be read", notes=tuple(notes), members=members, roles=roles
    )


def _read(topic: ClusterTopic, timing: Timing) -> tuple[dict[str, Member], int, Roles | None]:
    """Return the members that were heard, the number of records that cannot be decoded, and the
    last roles."""
    reader = topic.reader()
    try:
        entries = reader.read_all(READ_S)
        before = len(entries)
        deadline_s = time.monotonic() + timing.timeout_ms / 1_000
        while (left_s := deadline_s - time.monotonic()) > 0:
            entries += reader.poll(left_s)
    finally:
        reader.close()
    reports: dict[str, Member] = {}
    members: dict[str, Member] = {}
    roles: Roles | None = None
    unreadable = 0
    for at, entry in enumerate(entries):
        try:
            if entry.partition != HEARTBEATS:
                roles = unpack_roles(entry.value).roles
                continue
            record = unpack_record(entry.value)
        except RecordUnreadable:
            unreadable += 1
            continue
        if isinstance(record, MemberHeartbeat) and record.generation:
            node = record.member.node
            reports[node] = reports.get(node, record.member) if record.brief else record.member
            if at >= before:
                members[node] = reports[node]
        elif isinstance(record, LeaveRecord):
            members.pop(record.node, None)
    return members, unreadable, roles
