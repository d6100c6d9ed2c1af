"""Producers for Kafka: `KafkaWriter`, the transactional one of a shard (`ports.Writer`) or of the
controller's roles, and `BulkWriter`, which writes in bulk from the tasks of a Spark job; and
`Throttling`, what quotas allow a shard.

Exactly once (law 3) rests on the fixed `transactional.id` of a KafkaWriter, on its raising
ProducerLost after any doubt, and on its having what others wrote to the progress partition verified
before each commit. Spark ships a `BulkOpener` to its executors, which open their producers
there."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer, ThrottleEvent
from msgspec import Struct

from chronos.adapters.kafka.connection import (
    BATCH_BYTES,
    COMMON,
    CONSEQUENCE_CODES,
    FORGOTTEN_CODES,
    INIT_TIMEOUT_S,
    LOST_PRODUCER_CODES,
    POISON_CODES,
    PRODUCER,
    TOO_LARGE_CODES,
    WRITER,
    Connection,
)
from chronos.core.message import Record
from chronos.core.size import batch_bytes, batch_bytes_max
from chronos.errors import LogMismatch, LogUnavailable, ProducerLost, Retry, TransactionAborted
from chronos.ports import Appended, Outgoing, Sent, Throttle, Verify

FOLLOWED_EVERY = 500
"""Of so many messages the report of one is asked for: a report costs as much as producing the
message (measured)."""

FENCE_CLIENTS = 4
"""How many clients try to fence for a moment each before one waits. The broker needs some 20 ms to
end the last transaction of a killed producer, but librdkafka asks only 500 ms later whether it is
ended, a new client at once."""

CONNECT_S = 1.0
"""How long a client may take to reach a broker before it goes on without."""

MOMENT_S = 0.05
"""Least time of an attempt to fence; most often it has as long as connecting took."""

NEAR_S = 0.25
"""A broker that takes longer to be reached is too far or too busy for short attempts: they would
cost more than the 500 ms that they save. librdkafka takes 55 ms for one on the same machine
(measured)."""

OWN_OFFSETS = 2
"""Offsets that a transaction takes in the progress partition: its progress record and its marker.
An aborted one may take fewer, and Kafka may write a marker twice (KAFKA-19999)."""

THROTTLE_GROWTH = 1.25
"""Factor by which the rate grows with a transaction at most: with each that no quota slowed down it
does, until steps are as large again as without quotas."""

UNTHROTTLED_BYTES = 64 << 20
"""Bytes of a transaction above which the rate is no bound of a step."""

PAUSE_MAX_S = 10.0
"""Longest pause before a transaction: the next heartbeat of the master must not be late."""

Report = Callable[[KafkaError | None, Message], None]


class Throttling:
    """What the producers of one shard were told about quotas, and the rate that they reached.

    A broker above whose quota a client is takes a request at once, answers for how long it takes no
    other one from this connection (KIP-219), and so makes the client as slow as its quota."""

    def __init__(self, timeout_s: float) -> None:
        """`timeout_s`: of a transaction."""
        self.timeout_s = timeout_s
        self._half_s = timeout_s / 2
        self._begun_s = 0.0
        """Monotonic time at which the open transaction began."""
        self._told = False
        """A broker told of a quota during the open transaction."""
        self._until_s = 0.0
        """Monotonic time up to which a broker takes nothing."""
        self._rate: float | None = None

    @property
    def is_told(self) -> bool:
        """Whether a quota slows the open transaction down."""
        return self._told

    def begun(self) -> float:
        """Note the beginning of a transaction: the monotonic time by which it must have ended."""
        self._begun_s = time.monotonic()
        return self._begun_s + self.timeout_s

    def told(self, event: ThrottleEvent) -> None:
        """Note what a broker said. The callback of a producer."""
        if event.throttle_time > 0:
            self._told = True
            self._until_s = max(self._until_s, time.monotonic() + event.throttle_time)

    def ended(self, messages: Sequence[Outgoing]) -> None:
        """Note the end of a transaction, whether it was committed or not."""
        told, self._told = self._told, False
        if told:
            size = sum(batch_bytes(*message[1:4]) for message in messages)
            # A broker that takes nothing more for a while makes the transaction so much longer.
            until_s = max(self._until_s, time.monotonic())
            seen = max(1.0, size / max(0.001, until_s - self._begun_s))
            # A broker lets a burst pass and counts it for seconds: one rate proves little.
            self._rate = seen if self._rate is None else min(seen, self._rate * THROTTLE_GROWTH)
        elif self._rate is not None:
            self._rate *= THROTTLE_GROWTH
            if self._rate * self._half_s > UNTHROTTLED_BYTES:
                self._rate = None

    @property
    def throttle(self) -> Throttle | None:
        """See `ports.Writer`."""
        rate = self._rate
        if rate is None:
            return None
        pause_s = min(PAUSE_MAX_S, self._until_s - time.monotonic() - self._half_s)
        return Throttle(
            rate=int(rate),
            bytes_max=max(1, int(rate * self._half_s)),
            pause_ms=max(0, int(pause_s * 1_000)),
        )


class KafkaWriter:
    """The transactional producer of one shard. See `ports.Writer`."""

    def __init__(
        self,
        connection: Connection,
        *,
        transactional_id: str,
        progress_topic: str,
        shard: int,
        throttling: Throttling,
        small_batch_topics: Mapping[str, int],
        read: Callable[[int, int], Iterable[Record]] = lambda start, stop: (),
        failure: str = "",
    ) -> None:
        """`small_batch_topics`: topics that take smaller batches than the client makes, with their
        limits in bytes. `throttling`: of the shard, which earlier writers had too, with the
        time-out of a transaction. `read`: yields the committed records of the progress partition
        from one offset to another, exclusive. `failure`: text of the error when earlier producers
        cannot be fenced."""
        self._transactional_id = transactional_id
        self._progress_topic = progress_topic
        self._read = read
        self._shard = shard
        self._throttling = throttling
        self._timeout_s = timeout_s = throttling.timeout_s
        self._small_batch_topics = small_batch_topics
        self._messages: Sequence[Outgoing] = ()
        """Those of the open transaction."""
        timeout_ms = int(timeout_s * 1_000)
        self._deadline = 0.0
        self._committed_offset = -1
        """Offset of the last progress record committed, or that before the first one expected."""
        self._end: int | None = None
        """Offset of the next progress record if only this writer writes; everything before it is
        known. None: not known."""
        self._reports: list[tuple[KafkaError | None, Message]] = []
        """The delivery report of the progress record, once it is there."""
        self.sent: list[Sent] = []
        self._producer = fencing_producer(
            connection.settings(
                {
                    **PRODUCER,
                    **WRITER,
                    "transactional.id": transactional_id,
                    "transaction.timeout.ms": timeout_ms,
                    "message.timeout.ms": timeout_ms,
                    "throttle_cb": self._throttling.told,
                }
            ),
            progress_topic,
            failure or f"taking over shard {shard}: its last transaction was not resolved",
            lambda: connection.advice(
                f"a broker at {connection.bootstrap_servers} is slow or gone"
            ),
        )

    @property
    def throttle(self) -> Throttle | None:
        """See `ports.Writer`."""
        return self._throttling.throttle

    def begin_at(self, end: int) -> None:
        """Expect the first progress record at this offset."""
        self._end, self._committed_offset = end, end - 1

    def send(self, messages: Sequence[Outgoing], progress: bytes) -> None:
        """1. begin, 2. produce everything; librdkafka's threads send while the caller does
        something else."""
        self._deadline = deadline = self._throttling.begun()
        self._reports = reports = []
        self.sent = []
        self._messages = messages
        follow = self._follow(self._progress_topic, self._shard)

        def report(error: KafkaError | None, message: Message) -> None:
            reports.append((error, message))
            follow(error, message)

        with self._translating(deadline):
            self._producer.begin_transaction()
            # First, so that its partition joins the transaction with those of the messages, and not
            # after them.
            self._producer.produce(
                self._progress_topic,
                progress,
                partition=self._shard,
                on_delivery=report,
            )
        with self._translating(deadline, producing=True):
            self._produce(messages, deadline)

    def commit(self, verify: Verify, meanwhile: Callable[[], None] | None = None) -> Appended:
        """3. flush, 4. read what others wrote before the progress record, 5. verify, 6. commit; in
        a thread of its own where `meanwhile` is given."""
        if meanwhile is None:
            return self._finish(verify)
        done: Future[Appended] = Future()

        def finish() -> None:
            try:
                done.set_result(self._finish(verify))
            except BaseException as error:
                done.set_exception(error)

        # The client releases the GIL while it waits; no Python callback runs but that of the
        # progress record.
        thread = threading.Thread(target=finish, name=f"commit-{self._shard}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # this machine has no thread left
            finish()
        try:
            meanwhile()
        finally:
            wait([done])
        return done.result()

    def _finish(self, verify: Verify) -> Appended:
        try:
            return self._finished(verify)
        finally:
            self._throttling.ended(self._messages)

    def _finished(self, verify: Verify) -> Appended:
        deadline = self._deadline
        with self._translating(deadline):
            self._flush(deadline)
        if not self._reports:
            raise ProducerLost("the progress record was neither written nor refused in time")
        failure, report = self._reports[0]
        if failure is not None:
            raise self._aborted(failure, deadline)
        timestamp_ms, offset = report.timestamp()[1], report.offset()
        assert offset is not None
        if offset <= self._committed_offset:
            self._abort()
            raise LogMismatch(
                f"{self._progress_topic}/{self._shard} took a record at offset {offset} after one "
                f"at {self._committed_offset}: the topic was deleted and created again. Nothing "
                "of this step was committed."
            )
        try:
            verify(timestamp_ms, self._others(offset))
        except BaseException:
            self._abort()
            raise
        self._commit(deadline)
        self._committed_offset, self._end = offset, offset + OWN_OFFSETS
        return Appended(partition=self._shard, offset=offset, timestamp_ms=timestamp_ms)

    def _others(self, offset: int) -> Iterator[Record]:
        """Yield the committed records before this offset of the progress partition that are not
        known. All are decided: the transaction of this writer begins there."""
        if self._end is None or offset == self._end:
            return
        try:
            yield from self._read(self._end, offset)
        except (Retry, LogMismatch) as error:
            raise ProducerLost(
                f"{self._progress_topic}/{self._shard} took a record at offset {offset} instead of "
                f"{self._end}, and what another master may have written between them cannot be "
                f"read: {error}"
            ) from error

    @contextmanager
    def _translating(self, deadline: float, *, producing: bool = False) -> Iterator[None]:
        """Translate what the client raises inside a transaction, after an abort if that is still
        possible."""
        try:
            yield
        except KafkaException as error:
            raise self._aborted(error.args[0], deadline, producing=producing) from error
        except SystemError as error:
            # Raised when a callback runs while the client fails: measured when it is fenced.
            raise ProducerLost(f"the producer failed: {error}") from error

    def _produce(self, messages: Sequence[Outgoing], deadline: float) -> None:
        # Called by position (no callbacks, no timestamp): naming the headers costs 0.2 us a message
        # (measured).
        produce = self._producer.produce
        if not self._small_batch_topics or self._small_batch_topics.keys().isdisjoint(
            [to[0] for to in messages]
        ):
            left = iter(messages)
            for topic, key, value, headers, partition in left:
                produce(
                    topic,
                    value,
                    key,
                    partition,
                    self._follow(topic, partition, key),
                    None,
                    0,
                    headers,  # type: ignore[arg-type]
                )
                for topic, key, value, headers, partition in islice(left, FOLLOWED_EVERY - 1):
                    produce(topic, value, key, partition, None, None, 0, headers)  # type: ignore[arg-type]
            return
        unflushed: dict[str, int] = {}
        for at, (topic, key, value, headers, partition) in enumerate(messages):
            limit = self._small_batch_topics.get(topic)
            if limit is not None:
                # Each counted as a batch of its own, which is more than its share of a common one.
                size = batch_bytes_max(key, value, headers)
                if unflushed.get(topic, 0) + size > limit:
                    self._flush(deadline)
                    unflushed.clear()
                unflushed[topic] = unflushed.get(topic, 0) + size
            report = None if at % FOLLOWED_EVERY else self._follow(topic, partition, key)
            produce(topic, value, key, partition, report, None, 0, headers)  # type: ignore[arg-type]

    def _follow(self, topic: str, partition: int, key: bytes | None = None) -> Report:
        """Return the callback for the delivery report of a record, which is entered in `sent`."""
        sent = Sent(topic=topic, partition=partition, key=key)
        self.sent.append(sent)

        def report(error: KafkaError | None, message: Message) -> None:
            placed, latency_s = message.partition(), message.latency()
            sent.partition = sent.partition if placed is None else placed
            if error is None:
                sent.latency_ms = 0 if latency_s is None else int(latency_s * 1_000)
            elif error.code() == KafkaError._MSG_TIMED_OUT:
                sent.failed = True

        return report

    def _flush(self, deadline: float) -> None:
        if self._producer.flush(max(0.1, deadline - time.monotonic())) > 0:
            raise self._timed_out(
                "a quota of the brokers (producer_byte_rate) makes them slow"
                if self._throttling.is_told
                else "one of them is slow or gone"
            )

    def _timed_out(self, why: str) -> ProducerLost:
        """Return the error for a transaction that the brokers did not take in time, and mark what
        was not acknowledged."""
        for sent in self.sent:
            sent.failed = sent.failed or sent.latency_ms is None
        return ProducerLost(
            f"the brokers did not take a transaction within {self._timeout_s:g} s: {why}"
        )

    def _commit(self, deadline: float) -> None:
        while True:
            try:
                self._producer.commit_transaction(max(0.1, deadline - time.monotonic()))
                return
            except KafkaException as error:
                if error.args[0].txn_requires_abort() or not error.args[0].retriable():
                    raise self._aborted(error.args[0], deadline) from error
                if time.monotonic() >= deadline:
                    raise ProducerLost(
                        f"a commit was not answered in time: {error.args[0].str()}"
                    ) from error

    def _aborted(
        self, error: KafkaError, deadline: float, *, producing: bool = False
    ) -> TransactionAborted | ProducerLost:
        """Abort if the error allows it; return TransactionAborted if this writer can be used again,
        else ProducerLost."""
        # `produce` raises it once an earlier message of the same transaction was refused: an abort
        # ends that state.
        refused_before = producing and error.code() == KafkaError._STATE
        if error.fatal() or (error.code() in LOST_PRODUCER_CODES and not refused_before):
            return ProducerLost(
                f"the producer can no longer be used: {error.str()} ({error.name()})"
            )
        # A consequence proves only that another message failed: early because of itself, late
        # because of the time-out.
        is_consequence = refused_before or error.code() in CONSEQUENCE_CODES
        cause = self._cause(error) if is_consequence else error
        if cause.code() in FORGOTTEN_CODES:
            return ProducerLost(
                f"the brokers have forgotten the transactional id {self._transactional_id}, which "
                "was not used for longer than their transactional.id.expiration.ms "
                f"({cause.name()}): another node may have been master meanwhile"
            )
        if time.monotonic() >= deadline:
            # The coordinator has aborted the transaction after its time-out, and fences a producer
            # that aborts it now.
            return self._timed_out(f"{error.str()} ({error.name()})")
        failed_early = is_consequence and time.monotonic() < deadline - 1.0
        poison_likely = failed_early or error.code() in POISON_CODES
        # A topic refused when it is first named leaves the coordinator without a transaction to
        # abort: that is fatal.
        self._abort(poison_likely=poison_likely)
        return TransactionAborted(
            f"a transaction was aborted: {error.str()} ({error.name()})",
            poison_likely=poison_likely,
            too_large=error.code() in TOO_LARGE_CODES,
        )

    def _cause(self, error: KafkaError) -> KafkaError:
        """Return the error that ended the transaction, of which this one is a consequence."""
        try:
            # Refused within a transaction, and with the cause where that has failed.
            self._producer.begin_transaction()
        except KafkaException as refused:
            return refused.args[0]  # type: ignore[no-any-return]
        return error

    def _abort(self, *, poison_likely: bool = False) -> None:
        try:
            self._producer.abort_transaction(self._timeout_s)
        except KafkaException as error:
            raise ProducerLost(
                f"a transaction could not be aborted: {error.args[0].str()}",
                poison_likely=poison_likely,
            ) from error
        # A progress record at another offset than expected was not compared yet.
        if self._reports and self._reports[0][0] is None:
            offset = self._reports[0][1].offset()
            if offset is not None and offset == self._end:
                self._end = offset + OWN_OFFSETS

    def close(self) -> None:
        """Drop what is queued; an open transaction is ended by the next writer or by the broker's
        time-out."""
        discard(self._producer)


def fencing_producer(
    settings: dict[str, Any], topic: str, failure: str, advice: Callable[[], str]
) -> Producer:
    """Return a producer that has fenced every earlier one of its id, whose last transaction is
    resolved. Raises LogUnavailable.

    `topic`: one that it will write to. `advice`: returns what to check after a failure.
    """
    deadline = time.monotonic() + INIT_TIMEOUT_S
    for _ in range(FENCE_CLIENTS):
        producer = Producer(settings)
        took_s = _connect(producer, topic)
        if took_s > NEAR_S:
            break
        with suppress(KafkaException):
            producer.init_transactions(max(MOMENT_S, took_s))
            return producer
    init_transactions(producer, failure, advice, deadline)
    return producer


def _connect(producer: Producer, topic: str) -> float:
    """Connect to a broker, and return the seconds it took; CONNECT_S or more if none was reached.

    Without a connection librdkafka looks for the transaction coordinator only every 500 ms. The
    first answer may come through the connection to the bootstrap address, which is closed at once:
    the second one shows that there is a connection that lasts.
    """
    begun_s = time.monotonic()
    with suppress(KafkaException):
        producer.list_topics(topic, timeout=CONNECT_S)
        producer.list_topics(topic, timeout=CONNECT_S)
    return time.monotonic() - begun_s


def init_transactions(
    producer: Producer, failure: str, advice: Callable[[], str], deadline: float | None = None
) -> None:
    """Fence every earlier producer of the same id and wait for its last transaction. Raises
    LogUnavailable.

    `advice`: returns what to check after a failure. `deadline`: of the monotonic clock; None:
    INIT_TIMEOUT_S from now."""
    if deadline is None:
        deadline = time.monotonic() + INIT_TIMEOUT_S
    while True:
        try:
            producer.init_transactions(max(1.0, deadline - time.monotonic()))
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() >= deadline:
                raise LogUnavailable(f"{failure}: {error.args[0].str()}; {advice()}") from error


def discard(producer: Producer) -> None:
    """Drop what a producer has queued, without waiting."""
    # A producer that failed fatally raises the same error at every call; it was reported when it
    # failed.
    with suppress(KafkaException, SystemError):
        producer.purge(in_queue=True, in_flight=True, blocking=False)
        producer.poll(0)


BulkRecord = tuple[str, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Topic, key, value, headers. Keys are placed as Java producers place them; without one the client
chooses."""

QUEUE_BYTES_MAX = 64 * 1024 * 1024
"""Most bytes that a producer queues, so that a task's memory is bounded."""


class BulkOpener(Struct, frozen=True, kw_only=True):
    """The settings of a bulk producer."""

    bootstrap_servers: str
    properties: Mapping[str, Any]
    """The operator's client properties."""
    timeout_s: float
    """How long a transaction, or the acknowledgement of a portion, may take."""

    def open(self, transactional_id: str | None, batch_bytes: int = BATCH_BYTES) -> "BulkWriter":
        """Open a producer; with an id, fence every earlier one of that id first and resolve its
        last transaction.

        `batch_bytes`: largest batch, for topics whose `max.message.bytes` is below `BATCH_BYTES`.
        """
        return BulkWriter(self, transactional_id, batch_bytes)


class BulkWriter:
    """One producer of one task."""

    def __init__(self, opener: BulkOpener, transactional_id: str | None, batch_bytes: int) -> None:
        self._timeout_s = opener.timeout_s
        self._transactional = transactional_id is not None
        timeout_ms = int(opener.timeout_s * 1_000)
        settings = {
            **COMMON,
            "bootstrap.servers": opener.bootstrap_servers,
            "log_level": 2,
            **PRODUCER,
            "queue.buffering.max.kbytes": QUEUE_BYTES_MAX // 1024,
            "message.timeout.ms": timeout_ms,
            **opener.properties,
        }
        settings["batch.size"] = min(batch_bytes, int(settings["batch.size"]))
        if transactional_id is not None:
            settings |= {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
        self._producer = Producer(settings)
        self._refused: list[KafkaError] = []
        if self._transactional:
            init_transactions(
                self._producer,
                "no transaction can be begun",
                lambda: f"is a broker at {opener.bootstrap_servers} up, and the address right?",
            )

    def send(self, records: Sequence[BulkRecord]) -> None:
        """Write all records, in one transaction or until each is acknowledged. Raises
        LogUnavailable, ProducerLost.

        After ProducerLost it is unknown whether the transaction was committed.
        """
        deadline = time.monotonic() + self._timeout_s
        try:
            if self._transactional:
                self._producer.begin_transaction()
            for topic, key, value, headers in records:
                self._produce(topic, key, value, headers, deadline)
            if self._producer.flush(max(0.1, deadline - time.monotonic())) > 0:
                raise ProducerLost(
                    f"the brokers did not take a portion within {self._timeout_s:g} s"
                )
            if self._refused:
                raise LogUnavailable(
                    f"a record was refused: {self._refused[0].str()} ({self._refused[0].name()})"
                )
            if self._transactional:
                self._commit(deadline)
        except KafkaException as error:
            cause = error.args[0]
            raise ProducerLost(
                f"a portion could not be written: {cause.str()} ({cause.name()})"
            ) from error
        except SystemError as error:
            # Raised when a callback runs while the client fails: measured when it is fenced.
            raise ProducerLost(f"a portion could not be written: {error}") from error

    def _produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
        deadline: float,
    ) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, on_delivery=self._report, headers=headers)  # type: ignore[arg-type]
                return
            except BufferError:
                if time.monotonic() >= deadline:
                    raise ProducerLost(
                        f"the brokers did not take a portion within {self._timeout_s:g} s"
                    ) from None
                self._producer.poll(0.05)

    def _report(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._refused.append(error)

    def _commit(self, deadline: float) -> None:
        while True:
            try:
                self._producer.commit_transaction(max(0.1, deadline - time.monotonic()))
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() >= deadline:
                    raise

    def close(self) -> None:
        """Drop what is queued; an open transaction is ended by the next producer of its id, or by
        its time-out."""
        discard(self._producer)
