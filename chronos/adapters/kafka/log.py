"""The log on Apache Kafka, through confluent-kafka (librdkafka).

Exactly once rests on three things here: a fixed `transactional.id` per shard, `read_committed` readers, and a
writer that after any doubt says ProducerLost instead of guessing. Settings that differ from librdkafka's defaults
carry their reason; most were measured.
"""

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from operator import methodcaller
from typing import Any

import structlog
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, NewTopic  # type: ignore[attr-defined]

from chronos.adapters.kafka.offsets import ANSWER_S, ASK_TIMEOUT_S, LEADER_POLL_S, KafkaOffsets, translated
from chronos.core.message import Record
from chronos.errors import (
    ChronosError,
    ConfigurationError,
    LogMismatch,
    LogUnavailable,
    ProducerLost,
    TransactionAborted,
)
from chronos.ports import Appended, Outgoing, TopicInfo, TopicSpec, Watermarks

log = structlog.get_logger("chronos.kafka")

TOPIC_APPEARS_S = 1.0
"""How long a topic that one broker has just shown may not be known to another."""

CREATE_TIMEOUT_S = 30.0
"""How long new topics may take to be there."""

TAKE_OVER_S = 8.0
"""How long `init_transactions` may take: it waits for the last transaction of an earlier master (measured: 0.6 s).
Shorter than what a stop waits for a shard, and tried again after it."""

REPEATED_S = 10.0
"""How long the client need not say again what it has said: about a broker that is gone, a hundred times a second."""

RECORD_BYTES_MAX = 256 * 1024 * 1024
"""Largest record the clients handle; what a topic takes is the topic's own business and is looked up."""

LINES_REMEMBERED = 1_000

DIGITS = re.compile(r"\d+")

BATCH_BYTES = 1_000_000
"""librdkafka's `batch.size`. A topic that takes less is flushed in smaller portions."""

COMMON: Mapping[str, Any] = {
    "client.id": "chronos",
    "log.connection.close": False,
    # When a broker goes, the client asks once who leads its partitions, too early for the answer to be another one, and
    # not again for this long. With the default of 5 min a transaction waits for the dead until its time is over.
    "topic.metadata.refresh.interval.ms": 1_000,
}

CONSUMER: Mapping[str, Any] = {
    "group.id": "chronos-unused",  # required by the client, never joined: partitions are assigned by hand
    "enable.auto.commit": False,
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",  # the default jumps to the end in silence
    "enable.partition.eof": True,  # tells the position behind transaction markers
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 2,  # the default of 1 s stalls a fast consumer
    "queued.max.messages.kbytes": 8_192,  # the default of 64 MB would be the largest part of our memory
    "queued.min.messages": 20_000,
    "fetch.message.max.bytes": 4_194_304,
}

ADMIN: Mapping[str, Any] = {
    # With connections made only on demand, a question to a broker that is gone tries to connect as fast as the machine
    # can: a whole core, until the client learns of another (measured).
    "enable.sparse.connections": False,
}

PRODUCER: Mapping[str, Any] = {
    "enable.idempotence": True,
    "partitioner": "murmur2_random",  # as Java producers place keys
    "topic.metadata.refresh.interval.ms": 2_000,  # it asks for all targets there are, which may be many
    "allow.auto.create.topics": False,  # a typo must not make a topic that swallows messages
    "linger.ms": 5,  # fills batches while a step produces; flush() ends it
    "batch.size": BATCH_BYTES,
    # The broker works on the first batches of a step while the next are made: 12 % less time for 5,000 messages than
    # with the default of 10,000 (measured).
    "batch.num.messages": 1_000,
    "message.max.bytes": RECORD_BYTES_MAX,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 1_048_576,
}

VITAL_SETTINGS = frozenset({"message.timestamp.type", "cleanup.policy"})
"""Settings of Chronos's own topics without which its laws do not hold; the others are the operator's to weigh."""

FORBIDDEN_CODES = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED})

REFUSED_TOPIC_CODES = FORBIDDEN_CODES | {
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.POLICY_VIOLATION,
    KafkaError.INVALID_CONFIG,
    KafkaError.INVALID_PARTITIONS,
}
"""A topic that is not created for what it is: its name, its settings, who asks."""

CONSEQUENCES = frozenset({KafkaError._INCONSISTENT, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
"""Errors of messages, and of transactions, that had to go because of another message."""

POISON_CODES = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._INVALID_ARG,
    }
)
"""Errors that are about a message or its topic, not about a broker being slow or gone."""

NOT_THERE_CODES = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION, KafkaError.TOPIC_AUTHORIZATION_FAILED}
)
"""Answers to a look that mean: for us there is no such topic."""

_headers = methodcaller("headers")
"""`message.headers()`, and SystemError when a name is not UTF-8. Written out, the call is specialised by the
interpreter after some rounds and no more checked: the error then surfaces anywhere, or crashes the process."""


class KafkaReader:
    """One partition through one consumer. See `ports.Reader`."""

    def __init__(self, consumer: Consumer, topic: str, partition: int, offset: int) -> None:
        self._consumer = consumer
        self._topic = topic
        self._partition = partition
        self._held: list[Message] = []
        self.seek(offset)

    def seek(self, offset: int) -> None:
        """Read on from another offset."""
        self.position = offset
        self._held.clear()
        self._consumer.assign([TopicPartition(self._topic, self._partition, offset)])

    def wait(self, timeout_s: float) -> bool:
        """Poll for one message and hold it; `consume(n, t)` would wait the whole time to fill n."""
        if self._held:
            return True
        message = self._consumer.poll(timeout_s)
        if message is None:
            return False
        self._held.append(message)
        return True

    def read(self, records_max: int, bytes_max: int) -> list[Record]:
        """What is there now. The client's queue is bounded in bytes, so one call is too."""
        begun = self.position
        messages = self._held
        self._held = []
        messages += self._consumer.consume(max(0, records_max - len(messages)), 0)
        records: list[Record] = []
        for message in messages:
            error = message.error()
            if error is not None:
                try:
                    self._heed(error, message)
                except ChronosError:
                    self.seek(begun)  # what came with it, before an end of the partition too, comes again
                    raise
                continue
            try:
                headers = _headers(message) or ()
            except SystemError:
                headers = None  # a name is not UTF-8; asking this message again would crash the process
            records.append(
                Record(message.offset(), message.timestamp()[1], message.key(), message.value(), headers)  # type: ignore[arg-type]
            )
        if records:
            self.position = max(self.position, records[-1].offset + 1)
        return records

    def _heed(self, error: KafkaError, message: Message) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            self.position = max(self.position, message.offset() or 0)
        elif code in FORBIDDEN_CODES:
            # The client says it once, and is silent then; after a seek it says it at once again (measured).
            raise LogUnavailable(
                f"reading {self._topic}/{self._partition}: {error.str()}; Chronos needs the permission READ"
            )
        elif code == KafkaError._AUTO_OFFSET_RESET:
            raise LogMismatch(
                f"offset {self.position} of {self._topic}/{self._partition} is not in the log ({error.str()}):"
                " the topic was trimmed, or deleted and created again. If its records are gone for good, remove the"
                " shard's store to start from what the topic still holds."
            )
        elif code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC):
            raise LogUnavailable(f"{self._topic}/{self._partition} is not there: {error.str()}")
        elif error.fatal():
            raise LogUnavailable(f"reading {self._topic}/{self._partition}: {error.str()}")
        # Everything else librdkafka repairs by itself and says again if it cannot.

    def close(self) -> None:
        """Give everything back."""
        self._held.clear()
        self._consumer.close()


class KafkaWriter:
    """The transactional producer of one shard. See `ports.Writer`."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        progress_topic: str,
        shard: int,
        timeout_s: float,
        small_batch_topics: Mapping[str, int],
    ) -> None:
        self._progress_topic = progress_topic
        self._shard = shard
        self._timeout_s = timeout_s
        self._narrow_topics = small_batch_topics
        self._producer = Producer(dict(settings))
        self._deadline = 0.0
        self._written = -1
        """Offset of the last progress record committed."""
        self._reports: list[tuple[KafkaError | None, Message]] = []
        deadline = time.monotonic() + TAKE_OVER_S
        while True:
            try:
                self._producer.init_transactions(max(1.0, deadline - time.monotonic()))
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() >= deadline:
                    raise LogUnavailable(
                        f"taking over shard {shard}: its last transaction was not resolved: {error.args[0].str()};"
                        " a broker is slow or gone"
                    ) from error

    def send(self, messages: Iterable[Outgoing], progress: bytes) -> None:
        """1. begin, 2. produce everything; librdkafka's threads send while the caller does something else."""
        self._deadline = deadline = time.monotonic() + self._timeout_s
        self._reports = reports = []
        with self._failing(deadline):
            self._producer.begin_transaction()
            # First, so that its partition joins the transaction with those of the messages, and not after them.
            self._producer.produce(
                self._progress_topic,
                progress,
                partition=self._shard,
                on_delivery=lambda error, message: reports.append((error, message)),
            )
            self._produce(messages, deadline)

    def commit(self, verify: Callable[[int], None], meanwhile: Callable[[], None] | None = None) -> Appended:
        """3. flush, 4. verify the broker's timestamp, 5. commit; on a thread of its own if there is something else to do."""
        if meanwhile is None:
            return self._finish(verify)
        done: Future[Appended] = Future()

        def finish() -> None:
            try:
                done.set_result(self._finish(verify))
            except BaseException as error:
                done.set_exception(error)

        # The client waits without the interpreter, and has nothing that would not.
        threading.Thread(target=finish, name=f"commit-{self._shard}", daemon=True).start()
        try:
            meanwhile()
        finally:
            wait([done])
        return done.result()

    def _finish(self, verify: Callable[[int], None]) -> Appended:
        deadline = self._deadline
        with self._failing(deadline):
            self._flush(deadline)
        if not self._reports:
            raise ProducerLost("the progress record was neither written nor refused in time")
        failure, report = self._reports[0]
        if failure is not None:
            raise self._aborted(failure, deadline)
        timestamp_ms, offset = report.timestamp()[1], report.offset()
        assert offset is not None
        if offset <= self._written:
            self._abort()
            raise LogMismatch(
                f"{self._progress_topic}/{self._shard} took a record at offset {offset} after one at {self._written}:"
                " the topic was deleted and created again. Nothing of this step was committed."
            )
        try:
            verify(timestamp_ms)
        except BaseException:
            self._abort()
            raise
        self._commit(deadline)
        self._written = offset
        return Appended(partition=self._shard, offset=offset, timestamp_ms=timestamp_ms)

    @contextmanager
    def _failing(self, deadline: float) -> Iterator[None]:
        """Translate what the client raises inside a transaction, after an abort if that is still possible."""
        try:
            yield
        except KafkaException as error:
            raise self._aborted(error.args[0], deadline) from error
        except SystemError as error:
            # The client's way of saying that it called back while failing: measured when it is fenced.
            raise ProducerLost(f"the producer failed: {error}") from error

    def _produce(self, messages: Iterable[Outgoing], deadline: float) -> None:
        # Called by position (no callbacks, no timestamp): naming the headers costs 0.2 us a message (measured).
        produce = self._producer.produce
        if not self._narrow_topics:
            for topic, key, value, headers, partition in messages:
                produce(topic, value, key, partition, None, None, 0, headers)  # type: ignore[arg-type]
            return
        written: dict[str, int] = {}
        for topic, key, value, headers, partition in messages:
            limit = self._narrow_topics.get(topic)
            if limit is not None:
                size = outgoing_bytes(key, value, headers)
                if written.get(topic, 0) + size > limit:
                    self._flush(deadline)
                    written.clear()
                written[topic] = written.get(topic, 0) + size
            produce(topic, value, key, partition, None, None, 0, headers)  # type: ignore[arg-type]

    def _flush(self, deadline: float) -> None:
        if self._producer.flush(max(0.1, deadline - time.monotonic())) > 0:
            raise ProducerLost(
                f"the brokers did not take a transaction within {self._timeout_s:g} s: one of them is slow or gone"
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
                    raise ProducerLost(f"a commit was not answered in time: {error.args[0].str()}") from error

    def _aborted(self, error: KafkaError, deadline: float) -> TransactionAborted | ProducerLost:
        """Abort if that is what the error asks for, and say whether this writer may go on."""
        if error.fatal() or error.code() in (KafkaError._FENCED, KafkaError._TIMED_OUT, KafkaError._STATE):
            return ProducerLost(f"the producer is of no use any more: {error.str()} ({error.name()})")
        if time.monotonic() >= deadline:
            # Its coordinator aborts it by now without being asked, and fences who asks.
            return ProducerLost(
                f"the brokers did not take a transaction within {self._timeout_s:g} s: {error.str()} ({error.name()})"
            )
        # These say that some other message failed, not why: in good time it was that message, later the time-out.
        failed_early = error.code() in CONSEQUENCES and time.monotonic() < deadline - 1.0
        poison_likely = failed_early or error.code() in POISON_CODES
        # A topic refused when it is first named leaves the coordinator without a transaction to abort: that is fatal.
        self._abort(poison_likely=poison_likely)
        return TransactionAborted(
            f"a transaction was aborted: {error.str()} ({error.name()})", poison_likely=poison_likely
        )

    def _abort(self, *, poison_likely: bool = False) -> None:
        try:
            self._producer.abort_transaction(self._timeout_s)
        except KafkaException as error:
            raise ProducerLost(
                f"a transaction could not be aborted: {error.args[0].str()}", poison_likely=poison_likely
            ) from error

    def close(self) -> None:
        """Drop what is queued; an open transaction is for the next writer, or the broker's timeout, to end."""
        # A producer that failed for good says so again at every call: that was heard when it failed.
        with suppress(KafkaException, SystemError):
            self._producer.purge(in_queue=True, in_flight=True, blocking=False)
            self._producer.poll(0)


class KafkaLog:
    """Topics of a Kafka cluster. See `ports.Log`."""

    def __init__(
        self,
        *,
        bootstrap_servers: str,
        properties: Mapping[str, Any],
        cluster: str,
        progress_topic: str,
        transaction_timeout_s: float,
    ) -> None:
        self._common = {**COMMON, "bootstrap.servers": bootstrap_servers, "logger": _ClientLog()}
        self._properties = dict(properties)
        self._cluster = cluster
        self._progress_topic = progress_topic
        self._transaction_timeout_s = transaction_timeout_s
        self._narrow_topics: dict[str, int] = {}
        self._unseen: set[str] = set()
        """Topics that the last look was not allowed to see, if they are there."""
        self._advised: set[str] = set()
        """Changes of settings that were advised already."""
        self._admin = AdminClient(self._settings(ADMIN))
        self._offsets = KafkaOffsets(self._settings)
        self._appender: Producer | None = None
        self._appender_lock = threading.Lock()
        self._closing = threading.Event()
        self._poller = threading.Thread(target=self._poll, name="kafka-appends", daemon=True)

    def _settings(self, own: Mapping[str, Any]) -> dict[str, Any]:
        return {**self._common, **own, **self._properties}

    # --- topics

    def prepare(self, topics: Sequence[TopicSpec], *, create: bool) -> dict[str, TopicInfo]:
        """Create the missing ones, check all."""
        seen = self.describe([spec.name for spec in topics])
        missing = [spec for spec in topics if seen[spec.name] is None]
        if missing and not create:
            names = ", ".join(spec.name for spec in missing)
            raise ConfigurationError([f"topics.create is off and these topics are missing: {names}"])
        self._create(missing)
        deadline = time.monotonic() + CREATE_TIMEOUT_S
        while any(info is None for info in seen.values()):
            if time.monotonic() > deadline:
                raise LogUnavailable("the topics just created do not appear")
            seen = self.describe([spec.name for spec in topics])
        problems = [problem for spec in topics for problem in self._misfits(spec, seen[spec.name])]
        if problems:
            raise ConfigurationError(problems)
        # An admin client that knows no topic asks every 10 s only which brokers there are, and a question for the controller,
        # one that is gone, waits its whole time (measured: 5 s, for every third client of three brokers). Now it knows one.
        self.ping(ASK_TIMEOUT_S)
        return {name: info for name, info in seen.items() if info is not None}

    def _create(self, specs: Sequence[TopicSpec]) -> None:
        if not specs:
            return
        asked = [
            NewTopic(
                spec.name,
                num_partitions=spec.partitions,
                replication_factor=int(spec.settings.get("replication.factor", "-1")),
                config={name: value for name, value in spec.settings.items() if name != "replication.factor"},
            )
            for spec in specs
        ]
        for name, future in self._admin.create_topics(asked, operation_timeout=CREATE_TIMEOUT_S).items():
            try:
                future.result(CREATE_TIMEOUT_S + ASK_TIMEOUT_S)
            except KafkaException as error:
                code = error.args[0].code()
                if code in REFUSED_TOPIC_CODES:
                    raise ConfigurationError([f"the topic {name} cannot be created: {error.args[0].str()}"]) from error
                if code != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise translated(f"creating the topic {name}", error) from error
                if name in self._unseen:
                    raise ConfigurationError([f"Kafka does not let Chronos see the topic {name}"]) from error

    def _misfits(self, spec: TopicSpec, info: TopicInfo | None) -> list[str]:
        assert info is not None
        problems = []
        if spec.per_shard and info.partitions != spec.partitions:
            problems.append(
                f"{spec.name} has {info.partitions} partitions where `shards` says {spec.partitions}. Set `shards`"
                " to what the topic has; if partitions were added, give the delay and the progress topic the same"
                " number and remove `shards` in the data directory: the stores are rebuilt from the logs"
            )
        found = self._topic_settings([spec.name])[spec.name]
        for name, value in spec.settings.items():
            if found.get(name, value) == value:
                continue
            change = f"kafka-configs --alter --topic {spec.name} --add-config {name}={value}"
            if name in VITAL_SETTINGS:
                problems.append(f"{spec.name} has {name}={found[name]}, Chronos needs {value}: {change}")
            elif change not in self._advised:
                self._advised.add(change)
                log.warning("topic setting", topic=spec.name, has=f"{name}={found[name]}", advised=change)
        return problems

    def describe(self, topics: Sequence[str]) -> dict[str, TopicInfo | None]:
        """Describe the topics: one question about partitions, one about settings; neither creates a topic."""
        if not topics:
            return {}
        infos: dict[str, TopicInfo | None] = {}
        try:
            described = self._admin.describe_topics(
                TopicCollection(list(topics)), include_authorized_operations=True, request_timeout=ASK_TIMEOUT_S
            )
        except (KafkaException, ValueError) as error:
            raise LogUnavailable(f"looking at {', '.join(topics)}: {error}") from error
        found = {}
        for name, future in described.items():
            try:
                found[name] = future.result(ANSWER_S)
            except TimeoutError:
                raise LogUnavailable(f"looking at {name}: no broker answered in time") from None
            except KafkaException as error:
                code = error.args[0].code()
                if code not in NOT_THERE_CODES:
                    raise translated(f"looking at the topic {name}", error) from error
                if code in FORBIDDEN_CODES:
                    self._unseen.add(name)
                infos[name] = None
        settings = self._topic_settings(list(found))
        self._unseen.difference_update(found)
        for name, description in found.items():
            bytes_max = int(settings[name].get("max.message.bytes", RECORD_BYTES_MAX))
            infos[name] = TopicInfo(
                id=str(description.topic_id),
                partitions=len(description.partitions),
                leaderless=frozenset(
                    part.id for part in description.partitions if part.leader is None or part.leader.id < 0
                ),
                bytes_max=bytes_max,
                compacted="compact" in settings[name].get("cleanup.policy", ""),
                writable=AclOperation.WRITE in (description.authorized_operations or (AclOperation.WRITE,)),
                replicas=min((len(part.replicas) for part in description.partitions), default=None),
            )
            if bytes_max < BATCH_BYTES:
                self._narrow_topics[name] = bytes_max
            else:
                self._narrow_topics.pop(name, None)
        return infos

    def _topic_settings(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """Settings by topic; empty for a topic whose settings we may not read."""
        settings: dict[str, dict[str, str]] = {name: {} for name in topics}
        deadline = time.monotonic() + TOPIC_APPEARS_S
        left = list(topics)
        while left:
            unknown = self._read_settings(left, settings, patient=time.monotonic() < deadline)
            if unknown:
                time.sleep(LEADER_POLL_S)
            left = unknown
        return settings

    def _read_settings(self, topics: Sequence[str], settings: dict[str, dict[str, str]], *, patient: bool) -> list[str]:
        """Ask once; the topics that this broker does not know yet, if that is still to be waited for."""
        resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in topics]
        unknown = []
        for resource, future in self._admin.describe_configs(resources, request_timeout=ASK_TIMEOUT_S).items():
            try:
                settings[resource.name] = {name: entry.value for name, entry in future.result(ANSWER_S).items()}
            except TimeoutError:
                raise LogUnavailable(f"looking at {resource.name}: no broker answered in time") from None
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.UNKNOWN_TOPIC_OR_PART and patient:
                    # Another broker has just shown it: one that was made a moment ago is not known to all at once.
                    unknown.append(resource.name)
                elif code not in FORBIDDEN_CODES:
                    raise translated(f"reading the settings of {resource.name}", error) from error
        return unknown

    # --- offsets

    def stable_end(self, topic: str, partition: int) -> int:
        """The last stable offset."""
        return self._offsets.stable_end(topic, partition)

    def watermarks(self, topic: str, partition: int) -> Watermarks:
        """Start, last stable offset and high watermark."""
        offsets = self._offsets
        start, stable = offsets.start(topic, partition), offsets.stable_end(topic, partition)
        return Watermarks(start=start, stable=stable, high=offsets.high(topic, partition))

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """The first offset at or after a time; where nothing is as young, the end."""
        stable = self._offsets.stable_end(topic, partition)
        # Asked after the end: where nothing is as young, all before that end is older.
        found = self._offsets.at(topic, partition, timestamp_ms)
        return stable if found is None else min(found, stable)

    def trim(self, topic: str, partition: int, offset: int) -> None:
        """Delete the records before an offset; the broker answers once its replicas know."""
        watermarks = self.watermarks(topic, partition)
        offset = min(offset, watermarks.stable)
        if offset <= watermarks.start:
            return
        part = TopicPartition(topic, partition, offset)
        try:
            for future in self._admin.delete_records([part], request_timeout=ASK_TIMEOUT_S).values():
                future.result(ANSWER_S)
        except TimeoutError:
            raise LogUnavailable(f"trimming {topic}/{partition}: no broker answered in time") from None
        except KafkaException as error:
            raise translated(f"trimming {topic}/{partition}", error) from error

    def names(self) -> list[str]:
        """All topics but those of Kafka itself (`__consumer_offsets`, ...)."""
        try:
            listed = self._admin.list_topics(timeout=ASK_TIMEOUT_S).topics
        except KafkaException as error:
            raise translated("listing the topics", error) from error
        return sorted(name for name in listed if not name.startswith("__"))

    def commit_offsets(self, group: str, places: Mapping[tuple[str, int], int]) -> None:
        """Commit the places of a consumer group that has no members."""
        self._offsets.commit_offsets(group, places)

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        """What a consumer group committed; None where that is nothing."""
        return self._offsets.committed(group, topic, partition)

    def ping(self, timeout_s: float) -> bool:
        """Whether any broker tells about the progress topic in time."""
        try:
            self._admin.list_topics(self._progress_topic, timeout=timeout_s)
        except KafkaException:
            return False
        return True

    # --- readers and writers

    def reader(self, topic: str, partition: int, offset: int) -> KafkaReader:
        """A consumer of its own for one partition."""
        return KafkaReader(Consumer(self._settings(CONSUMER)), topic, partition, offset)

    def writer(self, shard: int) -> KafkaWriter:
        """The transactional producer `<cluster>-<shard>`; Kafka fences every earlier one."""
        timeout_ms = int(self._transaction_timeout_s * 1_000)
        settings = self._settings(
            {
                **PRODUCER,
                "transactional.id": f"{self._cluster}-{shard}",
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": timeout_ms,
            }
        )
        return KafkaWriter(
            settings,
            progress_topic=self._progress_topic,
            shard=shard,
            timeout_s=self._transaction_timeout_s,
            small_batch_topics=self._narrow_topics,
        )

    def append(self, records: Sequence[Outgoing], timeout_s: float) -> list[Appended]:
        """Produce outside any transaction and wait for every report."""
        producer = self._appending()
        done = threading.Event()
        results: list[Appended | KafkaError | None] = [None] * len(records)
        left = [len(records)]

        def reported(at: int) -> Callable[[KafkaError | None, Message], None]:
            def note(error: KafkaError | None, message: Message) -> None:
                results[at] = error or Appended(
                    partition=message.partition(),  # type: ignore[arg-type]
                    offset=message.offset(),  # type: ignore[arg-type]
                    timestamp_ms=message.timestamp()[1],
                )
                left[0] -= 1
                if left[0] == 0:
                    done.set()

            return note

        try:
            for at, (topic, key, value, headers, partition) in enumerate(records):
                producer.produce(topic, value, key, partition, on_delivery=reported(at), headers=headers)  # type: ignore[arg-type]
        except (KafkaException, BufferError) as error:
            raise LogUnavailable(f"a record could not be sent: {error}") from error
        if records and not done.wait(timeout_s):
            raise LogUnavailable(f"the brokers did not acknowledge within {timeout_s:g} s; it may still be written")
        appended = []
        for result in results:
            if not isinstance(result, Appended):
                raise LogUnavailable(f"the brokers did not take a record: {result.str() if result else 'no report'}")
            appended.append(result)
        return appended

    def _appending(self) -> Producer:
        with self._appender_lock:
            if self._appender is None:
                self._appender = Producer(self._settings({**PRODUCER, "message.timeout.ms": 30_000}))
                self._poller.start()
            return self._appender

    def _poll(self) -> None:
        assert self._appender is not None
        while not self._closing.is_set():
            self._appender.poll(0.1)

    def close(self) -> None:
        """Stop the appends' poller."""
        self._closing.set()
        if self._poller.is_alive():
            self._poller.join(2.0)
        if self._appender is not None:
            self._appender.flush(2.0)
        self._offsets.close()


class _ClientLog:
    """Takes librdkafka's own log lines into ours: its word for a line is a level and a text."""

    def __init__(self) -> None:
        self._said_s: dict[str, float] = {}

    def log(self, level: int, text: str, *arguments: Any) -> None:
        """The one method the client calls; level is Python's."""
        line = text % arguments if arguments else text
        now_s = time.monotonic()
        # Each client and thread says the same of a broker that is gone: what they say counts, not their numbers.
        said = DIGITS.sub("", line.rpartition("]: ")[2])
        if now_s - self._said_s.get(said, -REPEATED_S) < REPEATED_S:
            return
        if len(self._said_s) > LINES_REMEMBERED:
            self._said_s.clear()
        self._said_s[said] = now_s
        log.log(min(level, 30), "librdkafka", text=line)


def outgoing_bytes(
    key: bytes | None, value: bytes | None, headers: Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]]
) -> int:
    """An upper bound for the bytes a record takes in a batch of its own (record format v2: 61 + up to 21 + lengths)."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    size = 100 + len(key or b"") + len(value or b"")
    return size + sum(10 + 3 * len(name) + len(content or b"") for name, content in pairs)
