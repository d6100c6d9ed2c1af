"""Kafka clients that are independent of Chronos: write any bytes, read everything, change topics.

The Python client cannot write header names that are not UTF-8, so `RawProducer` calls the
librdkafka that comes with it."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from operator import methodcaller
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from uuid import uuid4

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from chronos.core.shard.progress import Progress, unpack_progress
from tests.harness.broker import Clients
from tests.harness.command import run
from tests.harness.service import Service
from tests.harness.waiting import check_deadline

READ_TIMEOUT_S = 60.0
"""Bound of every wait: only a test that fails takes this long."""

Pairs = Sequence[tuple[str, bytes | None]]


class Topics(NamedTuple):
    """The four topics of Chronos, under unique names."""

    delay: str
    progress: str
    rejected: str
    dead_letter: str

    @classmethod
    def of(cls, prefix: str) -> Topics:
        """The four topics of a service, named with a prefix."""
        return cls(
            f"{prefix}.delay", f"{prefix}.progress", f"{prefix}.rejected", f"{prefix}.dead-letter"
        )

    def settings(self, **more: object) -> dict[str, object]:
        """Settings of a service on these topics; further ones as `delivery__retry_base="1s"`."""
        own: dict[str, object] = {f"topics.{name}": topic for name, topic in self._asdict().items()}
        own |= {"cluster": self.delay, "shards": 1}
        return own | {name.replace("__", "."): value for name, value in more.items()}


class Sent(NamedTuple):
    """A record to write."""

    value: bytes | None
    headers: Pairs = ()
    key: bytes | None = None
    partition: int = -1


class Got(NamedTuple):
    """A record that was read."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]

    def header(self, name: str) -> bytes | None:
        """The last value of a header; None if it is missing."""
        return dict(self.headers).get(name)

    @property
    def source(self) -> bytes | None:
        """The position of the delay record: `<topic>/<partition>/<offset>`."""
        return self.header("chronos-source")

    @property
    def reason(self) -> str | None:
        """The reason of a rejection or a dead letter."""
        word = self.header("chronos-reason")
        return None if word is None else word.decode()


def schedule(
    target: str, *, delay: str = "0ms", **more: bytes | None
) -> list[tuple[str, bytes | None]]:
    """The headers of a message for a topic; further ones as `target_key=b"k"` for
    `chronos-target-key`."""
    headers: list[tuple[str, bytes | None]] = [
        ("chronos-target-topic", target.encode()),
        ("chronos-delay", delay.encode()),
    ]
    return headers + [(f"chronos-{name.replace('_', '-')}", value) for name, value in more.items()]


def produce(
    bootstrap: str, topic: str, records: Iterable[Sent], **settings: object
) -> list[tuple[int, int]]:
    """Write records with confluent-kafka, in order, and wait until all are acknowledged; partition
    and offset of each."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            # Without it, a batch that a killed broker did not take is written after those that were
            # sent behind it.
            "enable.idempotence": True,
            "message.max.bytes": 64 << 20,
            "queue.buffering.max.messages": 1_000_000,
            "linger.ms": 5,
            "log_level": 2,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )
    places: dict[int, tuple[int, int]] = {}
    failures: list[KafkaError] = []

    def note_at(at: int) -> Callable[[KafkaError | None, Message], None]:
        def note(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append(error)
                return
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            places[at] = partition, offset

        return note

    count = 0
    for at, record in enumerate(records):
        headers: list[tuple[str, str | bytes | None]] = list(record.headers)
        producer.produce(
            topic,
            record.value,
            record.key,
            record.partition,
            on_delivery=note_at(at),
            headers=headers,
        )
        producer.poll(0)
        count += 1
    producer.flush(READ_TIMEOUT_S)
    if failures or len(places) != count:
        raise AssertionError(f"{count - len(places)} records could not be written: {failures[:1]}")
    return [places[at] for at in range(count)]


class Tail:
    """Reads topics from their beginning as a `read_committed` consumer, and keeps all records."""

    def __init__(self, bootstrap: str, *topics: str, isolation: str = "read_committed") -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "tail",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": isolation,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 20,
                "fetch.queue.backoff.ms": 5,
                "queued.max.messages.kbytes": 65_536,
                "log_level": 2,
            }
        )
        self.records: dict[str, list[Got]] = {topic: [] for topic in topics}
        self._bootstrap = bootstrap
        self._parts = [
            TopicPartition(topic, partition, 0)
            for topic in topics
            for partition in self.partitions(topic)
        ]
        self._consumer.assign(self._parts)
        self._ends: dict[tuple[str, int], int] = {}

    def partitions(self, topic: str) -> range:
        """The partitions of a topic."""
        seen = self._consumer.list_topics(topic, timeout=10).topics[topic]
        assert seen.error is None, seen.error
        return range(len(seen.partitions))

    def read(self, wait_s: float = 0.05) -> int:
        """Read the records that are there now; return their number."""
        found = 0
        for message in self._consumer.consume(5_000, wait_s):
            error = message.error()
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                self._ends[_place(message)[:2]] = _place(message)[2]
                continue
            found += 1
            got = _got(message)
            self.records[got.topic].append(got)
        return found

    def until(
        self, condition: Callable[[], bool], what: str, *, timeout_s: float = READ_TIMEOUT_S
    ) -> None:
        """Read until the condition is true."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            seen = {topic: len(records) for topic, records in self.records.items()}
            check_deadline(
                deadline, f"not found within {timeout_s:g} s: {what}; read so far: {seen}"
            )
            self.read()

    def take(self, topic: str, count: int, *, timeout_s: float = READ_TIMEOUT_S) -> list[Got]:
        """All records of the topic, once they are at least `count`."""
        self.until(
            lambda: len(self.records[topic]) >= count,
            f"{count} records in {topic}",
            timeout_s=timeout_s,
        )
        return self.records[topic]

    def settle(self, quiet_s: float = 0.7) -> Self:
        """Read what the brokers say is there now, and then until no record has come for `quiet_s`,
        to see that there are no more."""
        self._read_to_end()
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < quiet_s:
            if self.read():
                quiet_since = time.monotonic()
        return self

    def _read_to_end(self) -> None:
        """Read until each partition has ended where its broker says that it ends now: at the last
        stable offset for `read_committed`."""
        deadline = time.monotonic() + READ_TIMEOUT_S
        for part in self._parts:
            _, end = self._consumer.get_watermark_offsets(part, timeout=READ_TIMEOUT_S)
            while self._ends.get((part.topic, part.partition), 0) < end:
                check_deadline(deadline, f"{part} was not read to {end}")
                self.read()

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


_headers = methodcaller(
    "headers"
)  # As in the adapter: CPython specialises a call written out, and then misses its SystemError.


def _got(message: Message) -> Got:
    try:
        headers = _headers(message) or []
    except SystemError:
        headers = []
    return Got(
        *_place(message),
        message.timestamp()[1],
        message.key(),
        message.value(),
        headers,
    )


def _place(message: Message) -> tuple[str, int, int]:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return topic, partition, offset


def read_all(bootstrap: str, topic: str) -> list[Got]:
    """All records of a topic that a `read_committed` consumer reads now."""
    with Tail(bootstrap, topic) as tail:
        return tail.settle().records[topic]


def progress_of(bootstrap: str, topic: str) -> list[tuple[int, Progress]]:
    """Every committed progress record with its size in bytes."""
    with Tail(bootstrap, topic) as tail:
        shards = len(tail.partitions(topic))
        found = tail.settle().records[topic]
    return [(len(got.value or b""), unpack_progress(got.value, shards)) for got in found]


# ------------------------------------------------------------------------------------------- Topics


def delete_topic(kafka: Clients, *topics: str) -> None:
    """Delete topics, and wait until the metadata no longer lists them."""
    admin = kafka.admin()
    for future in admin.delete_topics(list(topics), operation_timeout=30).values():
        future.result(30)
    deadline = time.monotonic() + 30
    while set(topics) & set(admin.list_topics(timeout=5).topics):
        check_deadline(deadline, f"{topics} are still there")
        time.sleep(0.02)


def alter_topic(kafka: Clients, topic: str, **settings: str) -> None:
    """Change settings of a topic, `max_message_bytes="1000"`, and wait until they are applied.

    A broker applies changes of metadata one after the other: once it lists a topic that was created
    after it showed the change, the change is applied."""
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin = kafka.admin()
    admin.incremental_alter_configs([resource])[resource].result(30)
    deadline = time.monotonic() + 30
    while not _has_settings(admin, topic, settings):
        check_deadline(deadline, f"{topic} does not show {settings}")
    kafka.create_topic(f"after.{uuid4().hex}")


def rule(
    kafka: Clients,
    topic: str,
    operation: AclOperation,
    verdict: AclPermissionType,
    user: str = "ANONYMOUS",
) -> None:
    """Allow or deny a user an operation on a topic; by default all clients that do not log in."""
    admin = kafka.admin()
    binding = AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        operation,
        verdict,
    )
    admin.create_acls([binding])[binding].result(30)


def _has_settings(admin: AdminClient, topic: str, settings: Mapping[str, str]) -> bool:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    shown = admin.describe_configs([resource])[resource].result(30)
    return all(shown[name.replace("_", ".")].value == value for name, value in settings.items())


def topic_names_of(kafka: Clients) -> set[str]:
    """The names of all topics."""
    return set(kafka.admin().list_topics(timeout=10).topics)


# --------------------------------------------------------------------------- Past the Python client

_TOPIC, _PARTITION, _VALUE, _KEY, _MSGFLAGS, _HEADERS = 1, 3, 4, 5, 7, 10
_COPY = 2
_NO_ERROR = 0


class _Memory(ctypes.Structure):
    _fields_ = (("ptr", ctypes.c_void_p), ("size", ctypes.c_size_t))


class _Union(ctypes.Union):
    _fields_ = (
        ("cstr", ctypes.c_char_p),
        ("i", ctypes.c_int),
        ("i32", ctypes.c_int32),
        ("mem", _Memory),
        ("ptr", ctypes.c_void_p),
        ("_pad", ctypes.c_char * 64),
    )


class _Argument(ctypes.Structure):
    """`rd_kafka_vu_t`."""

    _fields_ = (("vtype", ctypes.c_int), ("u", _Union))


@cache
def _librdkafka() -> Any:
    """The library inside the installed confluent-kafka."""
    package = Path(confluent_kafka.__file__).parent
    found = [
        path
        for folder in (package.parent / "confluent_kafka.libs", package / ".dylibs")
        for path in folder.glob("librdkafka*")
    ]
    assert found, f"no librdkafka beside {package}"
    library = ctypes.CDLL(str(found[0]))
    pointer, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_ssize_t
    for name, result, arguments in (
        ("rd_kafka_conf_new", pointer, []),
        ("rd_kafka_conf_set", ctypes.c_int, [pointer, text, text, text, ctypes.c_size_t]),
        ("rd_kafka_new", pointer, [ctypes.c_int, pointer, text, ctypes.c_size_t]),
        ("rd_kafka_headers_new", pointer, [ctypes.c_size_t]),
        ("rd_kafka_header_add", ctypes.c_int, [pointer, text, size, text, size]),
        ("rd_kafka_produceva", pointer, [pointer, ctypes.POINTER(_Argument), ctypes.c_size_t]),
        ("rd_kafka_error_string", text, [pointer]),
        ("rd_kafka_flush", ctypes.c_int, [pointer, ctypes.c_int]),
        ("rd_kafka_destroy", None, [pointer]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class RawProducer:
    """Writes records whose header names are any bytes."""

    def __init__(self, bootstrap: str, **settings: str) -> None:
        library = _librdkafka()
        conf = library.rd_kafka_conf_new()
        reason = ctypes.create_string_buffer(512)
        wanted: Mapping[str, str] = {
            "bootstrap.servers": bootstrap,
            "message.max.bytes": str(64 << 20),
            "linger.ms": "5",
            "log_level": "2",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        for name, value in wanted.items():
            failed = library.rd_kafka_conf_set(
                conf, name.encode(), value.encode(), reason, len(reason)
            )
            assert failed == _NO_ERROR, reason.value
        self._handle = library.rd_kafka_new(0, conf, reason, len(reason))
        assert self._handle, reason.value

    def produce(
        self,
        topic: str,
        value: bytes | None,
        headers: Iterable[tuple[bytes, bytes | None]] = (),
        key: bytes | None = None,
        partition: int = -1,
    ) -> None:
        """Queue a record; `flush` waits until it is written."""
        library = _librdkafka()
        listed = library.rd_kafka_headers_new(8)
        for name, content in headers:
            library.rd_kafka_header_add(
                listed, name, len(name), content, -1 if content is None else len(content)
            )
        arguments = [_argument(_TOPIC, cstr=topic.encode()), _argument(_PARTITION, i32=partition)]
        arguments += [_argument(_MSGFLAGS, i=_COPY), _argument(_HEADERS, ptr=listed)]
        for kind, data in ((_VALUE, value), (_KEY, key)):
            if data is not None:
                held = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p)
                arguments.append(_argument(kind, mem=_Memory(held, len(data))))
        error = library.rd_kafka_produceva(
            self._handle, (_Argument * len(arguments))(*arguments), len(arguments)
        )
        assert not error, library.rd_kafka_error_string(error)

    def flush(self) -> None:
        """Wait until all records are written."""
        left = _librdkafka().rd_kafka_flush(self._handle, int(READ_TIMEOUT_S * 1_000))
        assert left == _NO_ERROR, f"flushing failed with {left}"

    def close(self) -> None:
        """Close the producer."""
        _librdkafka().rd_kafka_destroy(self._handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.flush()
        self.close()


def _argument(kind: int, **value: Any) -> _Argument:
    return _Argument(kind, _Union(**value))


def examine(service: Service, **settings: object) -> tuple[int, dict[str, list[str]]]:
    """`chronos doctor` with the settings of a service: its exit code, and its findings by
    verdict."""
    given = {
        **service.settings,
        **{name.replace("__", "."): value for name, value in settings.items()},
    }
    arguments = [part for path, value in given.items() for part in ("--set", f"{path}={value}")]
    done = run("doctor", "-o", "json", *arguments, timeout_s=90)
    assert done.out, done.err
    found: dict[str, list[str]] = {"ok": [], "note": [], "problem": []}
    for finding in done.json["findings"]:
        found[finding["verdict"]].append(f"{finding['what']}: {finding['text']}")
    return done.code, found
