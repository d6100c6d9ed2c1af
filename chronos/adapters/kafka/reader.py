"""One partition of Kafka through one `read_committed` consumer (`ports.Reader`).

A batch that the client cannot decompress, or with a record that is too large when decompressed, is
BatchUnreadable; every other error that is not known to end by itself is LogUnavailable or
LogMismatch. librdkafka takes the memory that a batch in gzip, lz4 or snappy needs, and aborts the
process if it gets none: after that, a delay partition is read in a child process (`bounded`)."""

from collections.abc import Mapping
from operator import methodcaller
from typing import Any, Protocol

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, Message, TopicPartition
from msgspec.structs import replace

from chronos.adapters.kafka.closing import consumers
from chronos.adapters.kafka.connection import (
    FORBIDDEN_CODES,
    HARMLESS_READ_CODES,
    MISSING_CODES,
    UNREADABLE_CODES,
)
from chronos.core.message import Record
from chronos.errors import BatchUnreadable, ChronosError, LogMismatch, LogUnavailable

_headers = methodcaller("headers")
"""`message.headers()`, and SystemError when a name is not UTF-8. Written out, the interpreter
specialises the call after some rounds and no longer checks it: the error then surfaces anywhere, or
crashes the process."""


def record_bytes_max(settings: Mapping[str, Any]) -> int:
    """Return how large a record may be when it is decompressed: the consumer's own limit for zstd,
    here for every codec."""
    return int(settings["receive.message.max.bytes"])


class PartitionConsumer(Protocol):
    """The part of a consumer's interface that a reader uses, for one partition."""

    def assign(self, partitions: list[TopicPartition], /) -> object:
        """Fetch the partition from its offset on."""

    def unassign(self) -> object:
        """Fetch no more."""

    def poll(self, timeout_s: float, /) -> Message | None:
        """Wait for a message."""

    def consume(self, count: int, timeout_s: float, /) -> list[Message]:
        """Return messages."""

    def close(self) -> object:
        """Close it."""


class KafkaReader:
    """One partition through one consumer. See `ports.Reader`."""

    def __init__(
        self,
        consumer: PartitionConsumer,
        topic: str,
        partition: int,
        offset: int,
        record_bytes_max: int,
    ) -> None:
        """`record_bytes_max`: a record with a larger value is a BatchUnreadable."""
        self._consumer = consumer
        self._topic = topic
        self._partition = partition
        self._record_bytes_max = record_bytes_max
        self._polled: list[Message] = []
        self.seek(offset)

    @property
    def delayed(self) -> str | None:
        """Never."""
        return None

    @property
    def waker(self) -> None:
        """Nothing ends a wait."""
        return None

    def seek(self, offset: int) -> None:
        self.position = offset
        self._polled.clear()
        self._too_large: tuple[str, int] | None = None
        """The next record is too large: the text and the offset of the error until the next
        seek."""
        self._consumer.assign([TopicPartition(self._topic, self._partition, offset)])

    def wait(self, timeout_s: float) -> bool:
        """Poll one message and keep it for `read`; `consume(n, t)` would wait the whole time to
        fill n."""
        if self._polled or self._too_large is not None:
            return True
        message = self._consumer.poll(timeout_s)
        if message is None:
            return False
        self._polled.append(message)
        return True

    def read(self, records_max: int, bytes_max: int) -> list[Record]:
        """Return what the client has fetched. Its queue is bounded in bytes, and so is one call.

        The records before an error are returned; the next call raises it.
        """
        if self._too_large is not None:
            text, offset = self._too_large
            raise BatchUnreadable(text, offset=offset)
        start = self.position
        messages = self._polled
        self._polled = []
        messages += self._consumer.consume(max(0, records_max - len(messages)), 0)
        records: list[Record] = []
        for at, message in enumerate(messages):
            error = message.error()
            if error is not None:
                try:
                    self._check(error, message)
                except ChronosError:
                    if records:
                        self._polled = messages[at:]
                        break
                    self.seek(start)  # an end of the partition before it is read again
                    raise
                continue
            try:
                headers = _headers(message) or ()
            except SystemError:
                # a name is not UTF-8; a second call on this message would crash the process
                headers = None
            kind, timestamp_ms = message.timestamp()
            value = message.value()
            if value is not None and len(value) > self._record_bytes_max:
                self._refuse(message.offset() or 0, len(value))
                break
            record = Record(message.offset(), timestamp_ms, message.key(), value, headers)  # type: ignore[arg-type]
            records.append(
                record if kind == TIMESTAMP_LOG_APPEND_TIME else replace(record, create_time=True)
            )
        if records:
            self.position = max(self.position, records[-1].offset + 1)
        return records

    def _refuse(self, offset: int, size: int) -> None:
        """Fail from the next call on, and read nothing more: the memory of this record, and of
        those behind it, is free then."""
        self._consumer.unassign()
        text = (
            f"decompressed, the record at offset {offset} has {size} bytes, more than "
            f"{self._record_bytes_max}"
        )
        self._too_large = (
            f"reading {self._topic}/{self._partition}: a batch cannot be read: {text}",
            offset,
        )

    def _check(self, error: KafkaError, message: Message) -> None:
        """Move the position at an end of the partition; raise every error that is not known to be
        harmless."""
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            self.position = max(self.position, message.offset() or 0)
        elif code in FORBIDDEN_CODES:
            # The client reports it once and then not again; after a seek it reports it again at
            # once (measured).
            raise LogUnavailable(
                f"reading {self._topic}/{self._partition}: {error.str()}; Chronos needs the "
                "permission READ"
            )
        elif code == KafkaError._AUTO_OFFSET_RESET:
            raise LogMismatch(
                f"offset {self.position} of {self._topic}/{self._partition} is not in the log "
                f"({error.str()}): the topic was trimmed, or deleted and created again. If its "
                "records are gone for good, remove the shard's store to start from what the "
                "topic still holds."
            )
        elif code in UNREADABLE_CODES:
            raise BatchUnreadable(
                f"reading {self._topic}/{self._partition}: a batch cannot be read: {error.str()}",
                offset=max(self.position, message.offset() or 0),
            )
        elif code in MISSING_CODES:
            raise LogUnavailable(f"{self._topic}/{self._partition} is not there: {error.str()}")
        elif error.fatal() or code not in HARMLESS_READ_CODES:
            raise LogUnavailable(
                f"reading {self._topic}/{self._partition} at offset {self.position}: "
                f"{error.str()} ({error.name()})"
            )

    def close(self) -> None:
        """Close the consumer."""
        self._polled.clear()
        consumers.close(self._consumer)

    def leave(self) -> None:
        """Close the consumer, but do not wait: a fetch may be under way."""
        self._polled.clear()
        consumers.leave(self._consumer)
