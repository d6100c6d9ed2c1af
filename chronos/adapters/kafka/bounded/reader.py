"""A reader whose batches are decompressed in a child process with bounded memory.

It is for a partition whose last reader's process ended, perhaps for want of memory. It reads in
this way up to the end that the partition had when such a reader was first asked for; from there on
it is a plain reader.

The child reads in one of three modes:

    PROBE    the batch at the position alone: the first one, and the one where a child lacked memory
    STREAM   as a plain reader does, until a child ends for want of memory
    SINGLE   one batch with each fetch, afterwards

A batch is unreadable for want of memory only if two children in PROBE mode lacked the memory to
decompress it or to pass it on, the broker answered with its header, and by its size, compression
and number of records it can take SUSPECT_BYTES of memory. So an outage, a kill or a batch behind it
never counts."""

import json
import os
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Protocol

import structlog

from chronos.adapters.kafka.batches import BatchHeader
from chronos.adapters.kafka.bounded import child as reading_child
from chronos.adapters.kafka.bounded.child import NO_MEMORY_EXIT, READ_BYTES, decode_frame
from chronos.adapters.kafka.bounded.turns import turns
from chronos.adapters.kafka.connection import RECEIVE_BYTES
from chronos.adapters.kafka.reader import KafkaReader, record_bytes_max
from chronos.core.message import Record
from chronos.errors import BatchUnreadable, ChronosError, LogMismatch, LogUnavailable
from chronos.ports import READING_BOUNDED

log = structlog.get_logger("chronos.kafka")

MEMORY_BYTES = 512 * 1024 * 1024
"""Memory that a child may allocate; in proportion more where a record may have more than
RECEIVE_BYTES: a batch of one record takes its size three times."""

SUSPECT_BYTES = 16_000_000
"""A batch that cannot take more memory than this is never unreadable for want of memory."""

STREAM, SINGLE, PROBE = "stream", "single", "probe"

FAILURES = 2
"""Children in PROBE mode that end before a batch is unreadable."""

HIDDEN_MAX = 1_000
"""Batches without visible records that are passed in one call."""

SINGLE_FETCHES: Mapping[str, int] = {"fetch.message.max.bytes": 1, "queued.min.messages": 1}
"""The broker returns a whole batch, and no other one."""

PROBE_FETCHES: Mapping[str, int] = {**SINGLE_FETCHES, "fetch.queue.backoff.ms": 10_000}
"""The same, and the next batch is not fetched while records of this one are queued, nor soon
after."""

ERRORS: Mapping[str, type[ChronosError]] = {
    "LogUnavailable": LogUnavailable,
    "LogMismatch": LogMismatch,
}


class ReaderLog(Protocol):
    """The log that a bounded reader belongs to."""

    def consumer_settings(self, topic: str) -> dict[str, Any]:
        """Return the settings of a consumer of the topic."""

    def batch_header(self, topic: str, partition: int, offset: int) -> BatchHeader:
        """Return the header of the batch that holds the offset."""

    def plain_reader(self, topic: str, partition: int, offset: int) -> KafkaReader:
        """Return a plain reader."""


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
        turns.enter(self)
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
        """The error that the next `read` raises; a BatchUnreadable stays until a seek."""
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
        turns.exit(self)

    @property
    def delayed(self) -> str | None:
        """What it waits for until it has read its stretch. Any thread may read it."""
        if self._plain is not None:
            return None
        waiting, readers = turns.waiting()
        return f"{READING_BOUNDED}: {waiting} of {readers} shards wait for their turn"

    @property
    def waker(self) -> None:
        """Nothing ends a wait."""
        return None

    def seek(self, offset: int) -> None:
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
        turns.exit(self)
        if self._plain is not None:
            self._plain.close()

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
                frame = decode_frame(part)
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
        if not turns.take(self, timeout_s, self._interrupt):
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
            [sys.executable, "-m", reading_child.__name__],
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

    def _interrupt(self) -> None:
        """End the child for another reader's turn; this reader goes on in its next turn. Any thread
        calls."""
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
        turns.leave(self)
