"""The process that reads a stretch of a partition for its parent, within a bound of memory.

It gets its task on the standard input and writes frames to the standard output: a length and a
`Frame` in MessagePack. At the bound librdkafka aborts it, or it ends with NO_MEMORY_EXIT; where the
machine lacks memory, the kernel kills it rather than the service. It ends with its parent."""

import json
import os
import resource
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Consumer
from msgspec import Struct

from chronos.adapters.kafka.reader import KafkaReader, record_bytes_max
from chronos.core.message import Record
from chronos.errors import BatchUnreadable, ChronosError

NO_MEMORY_EXIT = 77
"""Exit code of a child that has a record and no memory to pass it on."""

CHILD_RECORDS = 500
CHILD_BYTES = 8_000_000
"""Most records and bytes of one frame."""

CHILD_WAIT_S = 0.5
"""How often a waiting child looks whether its parent is there."""

READ_BYTES = 1 << 20
"""Most bytes written to, or read from, the pipe at once."""


class Frame(Struct, array_like=True):
    """A message of a child: records and the position after them, or an error. A frame without
    either comes before the records of each batch: the batch was decompressed."""

    position: int
    records: list[Record] = []
    error: tuple[str, str, int] | None = None
    """Class, text, and the offset of a BatchUnreadable."""


_encode = msgspec.msgpack.Encoder().encode

decode_frame = msgspec.msgpack.Decoder(Frame).decode


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
