"""Reading a partition of Kafka as a `read_committed` consumer, or in a child process with bounded
memory.

librdkafka refuses a large batch in zstd, but takes the memory for one in gzip, lz4 or snappy, and
aborts the process if it gets none; also for a batch that it only fetches ahead. A process that
ended so, and would end so again, reads on through this reader. It costs speed only, and it ends at
the end that the partition had when it began: from there on it is a plain reader.

The child reads in one of three modes:

    PROBE    one batch alone, the one at the position: the first one, and the one at which a child ended in another mode
    STREAM   as a plain reader does, until a child ends for want of memory
    SINGLE   one batch with each fetch, afterwards

A batch is unreadable only if two children ended for want of memory in PROBE mode before they had
any record of it, the broker answered with its header, and the batch is compressed so much, or has
so many records, that it can exceed the bound. So an outage, a kill or a batch behind it never
counts.

The readers of a process take turns, and one child runs at a time, so that all shards together stay
within the bound. A batch that a master could read before, and that exceeds the bound, is read again
in this process (AloneReader), while no child runs."""  # noqa: E501

import json
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from operator import methodcaller
from pathlib import Path
from typing import Any, Protocol

import msgspec
import structlog
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, Message, TopicPartition
from msgspec import Struct
from msgspec.structs import replace

from chronos.adapters.kafka.batches import BatchHeader
from chronos.adapters.kafka.connection import (
    FORBIDDEN_CODES,
    HARMLESS_READ_CODES,
    MISSING_CODES,
    RECEIVE_BYTES,
    UNREADABLE_CODES,
    consumers,
)
from chronos.core.message import Record
from chronos.errors import BatchUnreadable, ChronosError, LogMismatch, LogUnavailable
from chronos.ports import READING_BOUNDED

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
        """Continue from another offset."""
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


log = structlog.get_logger("chronos.kafka")

MEMORY_BYTES = 512 * 1024 * 1024
"""What a child may allocate, in proportion more where a record may have more than RECEIVE_BYTES: a
batch of one record takes its size three times."""

SUSPECT_BYTES = 16_000_000
"""A batch that cannot take more memory than this is never unreadable for want of memory."""

TURN_S = 10.0
"""How long a turn lasts while other readers wait: decompression takes seconds, but a shard may take
no records for minutes."""

ALONE_WAIT_S = 120.0
"""How long a batch that is read alone waits for its turn: a turn lasts for some seconds, and each
shard may have one before."""

STREAM, SINGLE, PROBE = "stream", "single", "probe"

FAILURES = 2
"""Children in PROBE mode that end before a batch is unreadable."""

HIDDEN_MAX = 1_000
"""Batches without visible records that are passed in one call."""

SINGLE_FETCHES: Mapping[str, int] = {"fetch.message.max.bytes": 1, "queued.min.messages": 1}
"""The broker returns a whole batch, and no other one."""

PROBE_FETCHES: Mapping[str, int] = {**SINGLE_FETCHES, "fetch.queue.backoff.ms": 10_000}
"""And the next batch is not asked for while records of this one are queued, nor soon after."""

NO_MEMORY_EXIT = 77
"""Exit code of a child that has a record and no memory to pass it on."""

CHILD_RECORDS = 500
CHILD_BYTES = 8_000_000
"""One frame of a child."""

CHILD_WAIT_S = 0.5
"""How often a waiting child looks whether its parent is there."""

READ_BYTES = 1 << 20

ERRORS: Mapping[str, type[ChronosError]] = {
    "LogUnavailable": LogUnavailable,
    "LogMismatch": LogMismatch,
}


class Frame(Struct, array_like=True):
    """A message of a child: records and the position after them, or an error. The first frame says
    that there is something."""

    position: int
    records: list[Record] = []
    error: tuple[str, str, int] | None = None
    """Class, text, and the offset of a BatchUnreadable."""


class ReaderLog(Protocol):
    """The log that a bounded reader belongs to."""

    def consumer_settings(self, topic: str) -> dict[str, Any]:
        """Return the settings of a consumer of the topic."""

    def batch_header(self, topic: str, partition: int, offset: int) -> BatchHeader:
        """Return the header of the batch that holds the offset."""

    def plain_reader(self, topic: str, partition: int, offset: int) -> KafkaReader:
        """Return a plain reader."""


class MemoryTurns:
    """Which reader of this process may take much memory: it has a child, or reads a batch alone.
    Any thread may call."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._holder: BoundedReader | AloneReader | None = None
        self._since_s = 0.0
        self._readers: set[BoundedReader] = set()
        """Those that have not read their stretch yet."""

    def enter(self, reader: "BoundedReader") -> None:
        """Count a reader that begins to read its stretch."""
        with self._free:
            self._readers.add(reader)

    def exit(self, reader: "BoundedReader") -> None:
        """No longer count a reader: it has read its stretch, or is closed."""
        self.leave(reader)
        with self._free:
            self._readers.discard(reader)

    def waiting(self) -> tuple[int, int]:
        """Return how many readers wait for their turn, and how many have not read their stretch
        yet."""
        with self._free:
            return len(self._readers - {self._holder}), len(self._readers)

    def take(self, reader: "BoundedReader | AloneReader", timeout_s: float) -> bool:
        """Give the reader the turn if that is possible within the time: if no other one has it, or
        had a child for TURN_S."""
        with self._free:
            if not self._free.wait_for(lambda: self._is_free_for(reader), timeout_s):
                return False
            if isinstance(self._holder, BoundedReader) and self._holder is not reader:
                self._holder.interrupt()
            if self._holder is not reader:
                self._holder, self._since_s = reader, time.monotonic()
            return True

    def _is_free_for(self, reader: "BoundedReader | AloneReader") -> bool:
        if isinstance(self._holder, AloneReader):
            return False  # it cannot be interrupted
        return self._holder in (None, reader) or time.monotonic() > self._since_s + TURN_S

    def leave(self, reader: "BoundedReader | AloneReader") -> None:
        """End the turn of the reader, if it has it."""
        with self._free:
            if self._holder is reader:
                self._holder = None
                self._free.notify()


_turns = MemoryTurns()


class BoundedReader:
    """See `ports.Reader`. For one thread."""

    def __init__(
        self, log_port: ReaderLog, topic: str, partition: int, offset: int, until: int
    ) -> None:
        """`until`: the end of the stretch."""
        self._log = log_port
        self._topic = topic
        self._partition = partition
        self._until = until
        record_bytes = max(record_bytes_max(log_port.consumer_settings(topic)), RECEIVE_BYTES)
        self._memory_bytes = MEMORY_BYTES * record_bytes // RECEIVE_BYTES
        self._plain: KafkaReader | None = None
        _turns.enter(self)
        self._child: subprocess.Popen[bytes] | None = None
        self._interrupted = False
        """The turn went to another reader, and the child was killed for it."""
        self._open(offset)

    def _open(self, offset: int) -> None:
        self.position = offset
        self._mode = PROBE  # most likely it is the batch at which the process ended
        self._mode_next = STREAM
        """The mode after PROBE."""
        self._failures = 0
        self._error: ChronosError | None = None
        """What the next `read` raises; a BatchUnreadable stays until a seek."""
        self._records: list[Record] = []
        self._after = offset
        """Position after `_records`."""
        self._forget_child()
        if offset >= self._until and self._plain is None:
            self._read_plainly()

    def _read_plainly(self) -> None:
        """End the stretch: go on as a plain reader from the position."""
        self._forget_child()
        self._plain = self._log.plain_reader(self._topic, self._partition, self.position)
        _turns.exit(self)

    @property
    def delayed(self) -> str | None:
        """What it waits for until it has read its stretch. Any thread may read it."""
        if self._plain is not None:
            return None
        waiting, readers = _turns.waiting()
        return f"{READING_BOUNDED}: {waiting} of {readers} shards wait for their turn"

    @property
    def waker(self) -> None:
        """Nothing ends a wait."""
        return None

    def seek(self, offset: int) -> None:
        """Continue from another offset."""
        if self._plain is None:
            self._open(offset)
        else:
            self._plain.seek(offset)
            self.position = offset

    def wait(self, timeout_s: float) -> bool:
        """Wait until `read` may return something or raise."""
        if self._plain is not None:
            found = self._plain.wait(timeout_s)
            self.position = self._plain.position
            return found
        if self._error is None and not self._records:
            self._try_to_receive(timeout_s)
        return self._error is not None or bool(self._records)

    def read(self, records_max: int, bytes_max: int) -> list[Record]:
        """Return the next records that the child has passed on."""
        if self._plain is not None:
            records = self._plain.read(records_max, bytes_max)
            self.position = self._plain.position
            return records
        if self._error is None and not self._records:
            self._try_to_receive(0)
        if self._error is not None and not self._records:
            error = self._error
            if not isinstance(error, BatchUnreadable):
                self._error = None  # the next call tries again
            raise error
        records, self._records = self._records[:records_max], self._records[records_max:]
        if records:
            self.position = records[-1].offset + 1
        if not self._records:
            self.position = max(self.position, self._after)
            if self.position >= self._until:
                self._read_plainly()
        return records

    def close(self) -> None:
        """End the child, and close the plain reader."""
        self._forget_child()
        _turns.exit(self)
        if self._plain is not None:
            self._plain.close()

    @property
    def child_pid(self) -> int | None:
        """The process that reads now; None while there is none."""
        return None if self._child is None else self._child.pid

    # --- the child

    def _try_to_receive(self, timeout_s: float) -> None:
        try:
            self._receive(timeout_s)
        except ChronosError as error:
            self._forget_child()
            self._error = error

    def _receive(self, timeout_s: float) -> None:
        """Take what the child has sent, for no longer than the time; begin one if there is none.
        Raises what it reports."""
        assert not self._records
        if self._child is None:
            self._start(timeout_s)
        child = self._child
        if child is None:
            return  # the end is reached, or the child of another reader runs
        assert child.stdout is not None
        ready = select.poll()
        ready.register(child.stdout, select.POLLIN)
        while not self._records:
            if not ready.poll(timeout_s * 1_000):
                return
            data = os.read(child.stdout.fileno(), READ_BYTES)
            if not data:
                self._ended(child)
                return
            self._buffer += data
            self._unpack()

    def _unpack(self) -> None:
        """Take the complete frames out of the buffer."""
        at = 0
        while len(self._buffer) - at >= 4:
            (size,) = struct.unpack_from(">I", self._buffer, at)
            if len(self._buffer) - at - 4 < size:
                break
            with memoryview(self._buffer) as whole, whole[at + 4 : at + 4 + size] as part:
                frame = _decode(part)
            at += 4 + size
            if frame.error is not None:
                self._raise(*frame.error)
            self._has_records = True
            self._records += frame.records
            self._after = max(self._after, frame.position)
        del self._buffer[:at]

    def _raise(self, name: str, text: str, offset: int) -> None:
        if name == BatchUnreadable.__name__:
            raise BatchUnreadable(text, offset=offset)
        raise ERRORS.get(name, LogUnavailable)(text)

    def _ended(self, child: subprocess.Popen[bytes]) -> None:
        """Decide what follows the end of a child: the position is behind everything that it has
        passed on."""
        code = child.wait()
        had_records, interrupted = self._has_records, self._interrupted
        self._forget_child()
        self.position = max(self.position, self._after)
        mode = self._mode
        if interrupted:
            return
        if code == 0 and (mode == PROBE or self.position >= self._until):
            self._mode, self._failures = self._mode_next, 0  # the batch was read, or everything
            return
        if code not in (-signal.SIGABRT, NO_MEMORY_EXIT):
            raise LogUnavailable(
                f"the process that reads {self._topic}/{self._partition} ended with {code}"
            )
        log.warning(
            "no memory to read on",
            topic=self._topic,
            partition=self._partition,
            offset=self.position,
            mode=mode,
        )
        if mode != PROBE or (had_records and code != NO_MEMORY_EXIT):
            self._mode, self._mode_next = PROBE, SINGLE
            return
        self._failures += 1
        if self._failures < FAILURES:
            return
        header = self._log.batch_header(self._topic, self._partition, self.position)
        if header.memory_bytes_max < SUSPECT_BYTES:
            self._failures = 0
            raise LogUnavailable(
                f"the process that reads {self._topic}/{self._partition} has too little memory at "
                f"offset {self.position}"
            )
        raise BatchUnreadable(
            f"reading {self._topic}/{self._partition}: a batch cannot be read: the {header.bytes} "
            f"bytes at offset {header.first} take more than {self._memory_bytes} bytes of memory",
            offset=max(self.position, header.first),
        )

    def _next_visible(self) -> BatchHeader | None:
        """Move the position past markers and aborted records; return the header of the batch there,
        None at the end."""
        for _ in range(HIDDEN_MAX):
            if self.position >= self._until:
                return None
            header = self._log.batch_header(self._topic, self._partition, self.position)
            if not header.hidden:
                return header
            self.position = self._after = header.last + 1
        raise LogUnavailable(
            f"{self._topic}/{self._partition} has only aborted records before offset "
            f"{self.position}"
        )

    def _start(self, timeout_s: float) -> None:
        """Begin a child at the position, if it is this reader's turn within the time."""
        if not _turns.take(self, timeout_s):
            return
        settings = self._log.consumer_settings(self._topic)
        settings.pop("logger", None)
        until = self._until
        if self._mode == PROBE:
            header = self._next_visible()
            if header is None:
                self._forget_child()
                return
            until = header.last + 1
        settings |= {STREAM: {}, SINGLE: SINGLE_FETCHES, PROBE: PROBE_FETCHES}[self._mode]
        self._interrupted = False
        self._child = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._child.stdin is not None
        # By the standard input and not by arguments, which every user of the machine may read:
        # there may be passwords.
        task = {
            "settings": settings,
            "topic": self._topic,
            "partition": self._partition,
            "offset": self.position,
            "until": until,
            "memory_bytes": self._memory_bytes,
            "parent": os.getpid(),
        }
        self._child.stdin.write(json.dumps(task).encode())
        self._child.stdin.close()
        self._buffer = bytearray()
        self._has_records = False

    def interrupt(self) -> None:
        """End the child for another reader's turn; this reader goes on in its next turn. Any thread
        may call."""
        self._interrupted = True
        if (child := self._child) is not None:
            child.kill()

    def _forget_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            assert child.stdout is not None
            child.stdout.close()
        _turns.leave(self)


class AloneReader(KafkaReader):
    """Reads a batch of any size, one with each fetch, in this process: it has the turn until it is
    closed."""

    def __init__(self, log: ReaderLog, topic: str, partition: int, offset: int) -> None:
        """Raises LogUnavailable if other readers do not end their turns in time."""
        deadline = time.monotonic() + ALONE_WAIT_S
        # A turn that has lasted too long is noticed only when it is asked for.
        while not (has_turn := _turns.take(self, 1.0)) and time.monotonic() < deadline:
            pass
        if not has_turn:
            raise LogUnavailable(
                f"{topic}/{partition}: other partitions are still being read in bounded memory"
            )
        try:
            consumer = Consumer({**log.consumer_settings(topic), **PROBE_FETCHES})
            super().__init__(consumer, topic, partition, offset, record_bytes_max=sys.maxsize)
        except BaseException:
            _turns.leave(self)
            raise

    def close(self) -> None:
        """Release the client, and the turn."""
        super().close()
        _turns.leave(self)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Frame).decode


def _send(frame: Frame) -> None:
    data = _encode(frame)
    os.write(1, struct.pack(">I", len(data)))
    with memoryview(data) as rest:
        at = 0
        while at < len(rest):
            at += os.write(1, rest[at : at + READ_BYTES])


def read_for_parent(
    settings: dict[str, Any],
    topic: str,
    partition: int,
    offset: int,
    until: int,
    memory_bytes: int,
    parent: int,
) -> None:
    """The child: pass on the records up to `until`, while the process `parent` is there."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most != resource.RLIM_INFINITY:
        memory_bytes = min(memory_bytes, most)
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(
        OSError
    ):  # Linux only: a container without memory for both loses the child, not the service
        Path("/proc/self/oom_score_adj").write_text("1000")
    reader = KafkaReader(Consumer(settings), topic, partition, offset, record_bytes_max(settings))
    while reader.position < until and os.getppid() == parent:
        if not reader.wait(CHILD_WAIT_S):
            continue
        try:
            _send(
                Frame(position=reader.position)
            )  # tells the parent that this batch was decompressed
            records = reader.read(CHILD_RECORDS, CHILD_BYTES)
            _send(Frame(position=reader.position, records=records))
        except BatchUnreadable as error:
            _send(
                Frame(
                    position=reader.position, error=(type(error).__name__, str(error), error.offset)
                )
            )
            return
        except ChronosError as error:
            _send(Frame(position=reader.position, error=(type(error).__name__, str(error), 0)))
            return


def main() -> None:
    """Run a child; its task is on the standard input."""
    try:
        read_for_parent(**json.load(sys.stdin))
    except (MemoryError, SystemError):
        os._exit(
            NO_MEMORY_EXIT
        )  # `poll` copies the record and raises SystemError if it cannot (measured)
    except BrokenPipeError:
        os._exit(1)
    os._exit(0)  # closing the consumer may wait for a fetch


if __name__ == "__main__":
    main()
