"""Loads and reads Chronos, as the drivers in `go` and `node` do with the other services.

    python -m tests.bench.peers.kafka chronos write|read TASK

TASK is JSON; see `task.Task`. Each message begins with its number and its due time (ms), 8 bytes
each."""

import json
import struct
import sys
import time

import msgspec
from confluent_kafka import Producer

from tests.bench.load import PRODUCER, headers, read
from tests.bench.peers.task import Task

TARGET = "orders"
NUMBERS = struct.Struct(">QQ")


def write(task: Task) -> dict[str, float]:
    """Write the messages; how long it took until all were acknowledged."""
    batches = {"linger.ms": 2} if task.rate else {"linger.ms": 20, "batch.size": 1_000_000}
    producer = Producer({**PRODUCER, **batches, "bootstrap.servers": task.server})
    padding = b"x" * (task.bytes - NUMBERS.size)
    number, start_s = 0, time.monotonic()
    while number < task.count:
        past_s = time.monotonic() - start_s
        until = min(task.count, int(past_s * task.rate) if task.rate else number + 10_000)
        if until <= number:
            producer.poll(0.001)
            continue
        now_ms = time.time_ns() // 1_000_000
        while number < until:
            due_ms = task.due(number, now_ms)
            value = NUMBERS.pack(number, due_ms) + padding
            try:
                producer.produce("chronos.delay", value, headers=headers(due_ms, TARGET))
                number += 1
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    if producer.flush(60) > 0:
        raise RuntimeError("the load was not written")
    return {"accepted_s": time.monotonic() - start_s}


def watch(task: Task) -> dict[str, float]:
    """Read the messages until all have come; how late they were."""
    late_ms: list[float] = []
    times = bytearray(task.count)
    early = duplicated = 0
    deadline_s = time.monotonic() + task.timeout_s
    for messages in read(task.server, TARGET):
        now_ms = time.time_ns() / 1_000_000
        if time.monotonic() > deadline_s:
            break
        for message in messages or ():
            number, due_ms = NUMBERS.unpack_from(message.value() or b"")
            late_ms.append(now_ms - due_ms)
            early += now_ms < due_ms
            duplicated += times[number] > 0
            times[number] = 1
        # One more look at the end: what is duplicated may come last.
        if messages is None and all(times):
            break
    late_ms.sort()

    def at(share: float) -> float:
        return late_ms[min(len(late_ms) - 1, int(share * len(late_ms)))] if late_ms else 0.0

    return {
        **{name: at(share) for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))},
        "early": early,
        "duplicated": duplicated,
        "lost": task.count - sum(times),
    }


if __name__ == "__main__":
    function = {"write": write, "read": watch}[sys.argv[2]]
    print(json.dumps(function(msgspec.json.decode(sys.argv[3], type=Task))))
