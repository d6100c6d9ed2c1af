"""The load generators and readers of the benchmarks, each in a separate process."""

import hashlib
import json
import os
import ssl
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from msgspec import Struct

from chronos.core.keys import partition_of

VALUE_BYTES = 200
TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

CONSUMER = {
    "group.id": "bench",
    "enable.auto.commit": False,
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 2,
    "queued.max.messages.kbytes": 16_384,
    "enable.partition.eof": True,
}
DEFAULTS = {
    name: CONSUMER[name]
    for name in (
        "group.id",
        "enable.auto.commit",
        "isolation.level",
        "auto.offset.reset",
        "enable.partition.eof",
    )
}
"""A consumer with the settings that correctness needs, and none for speed."""

PRODUCER = {
    "message.max.bytes": 2_000_000,
    "queue.buffering.max.messages": 1_000_000,
    "partitioner": "murmur2_random",
    "acks": "all",
}


def headers(due_ms: int, target: str) -> dict[str, str | bytes | None]:
    """The three headers of every message."""
    return {
        "chronos-deliver-at": b"%d" % due_ms,
        "chronos-target-topic": target.encode(),
        "traceparent": TRACE,
    }


def read(
    bootstrap: str,
    topic: str,
    partition: int = 0,
    offset: int = 0,
    *,
    idle: bool = True,
    wait_ms: int = 10,
) -> Iterator[list[Message] | None]:
    """Batches of committed records as they arrive; None whenever the end is reached and, if `idle`,
    when no record came for 0.1 s. `wait_ms`: how long a fetch that finds nothing may take."""
    settings = {**CONSUMER, "fetch.wait.max.ms": wait_ms, "bootstrap.servers": bootstrap}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, partition, offset)])
    try:
        while True:
            first = consumer.poll(0.1)
            found = [] if first is None else [first, *consumer.consume(5_000, 0)]
            good, ended = [], idle and first is None
            for message in found:
                error = message.error()
                if error is None:
                    good.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended = True
                else:
                    raise RuntimeError(str(error))
            if good:
                yield good
            if ended:
                yield None
    finally:
        consumer.close()


_NOISE = os.urandom(4_000_000)


def payload(at: int, size: int = VALUE_BYTES) -> bytes:
    """The payload of the message with this number: neighbours differ, and none can be
    compressed."""
    start = at * 7_919 % (len(_NOISE) - size)
    return _NOISE[start : start + size]


SHUFFLED_MS = 7_919_000_003
"""Time between the due times of two messages that follow each other, if they are shuffled, before
it is wrapped around: a prime, and no multiple of a minute or of a day."""


def random_id(at: int) -> bytes:
    """An id with nothing in common with that of the message before."""
    return hashlib.md5(b"%d" % at, usedforsecurity=False).hexdigest().encode()


class Shape(Struct, frozen=True):
    """What messages are like."""

    value_bytes: int = VALUE_BYTES
    headers: int = 0
    """Further headers of each, of 20 bytes."""
    targets: int = 1
    """Topics that they are for, in turns: the name that is given, and a number after it."""
    target_key: bool = False
    """All of them have the same target key."""


def fill(
    bootstrap: str,
    topic: str,
    target: str,
    count: int,
    due_ms: int,
    *,
    keyed: bool,
    partitions: int,
    spread_ms: int = 1_000,
    misplaced: bool = False,
    shuffled: bool = False,
    shape: Shape = Shape(),  # noqa: B008
) -> None:
    """Write `count` messages, due within `spread_ms` from `due_ms` on, evenly over the partitions.

    `misplaced`: each key goes to another partition than that of its id. `shuffled`: neither the due
    times nor the keys are in the order in which they are written.
    """
    producer = Producer(
        {**PRODUCER, "bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 1_000_000}
    )
    further: dict[str, str | bytes | None] = {
        f"header-{number}": b"%020d" % number for number in range(shape.headers)
    }
    if shape.target_key:
        further["chronos-target-key"] = b"customer-1"
    for at in range(count):
        value = payload(at, shape.value_bytes)
        to = target if shape.targets == 1 else f"{target}{at % shape.targets}"
        due = due_ms + (at * SHUFFLED_MS % spread_ms if shuffled else at * spread_ms // count)
        key = None if not keyed else random_id(at) if shuffled else b"order-%d" % at
        while True:
            try:
                partition = -1 if keyed else at % partitions
                if misplaced and key is not None:
                    partition = (partition_of(key, partitions) + 1) % partitions
                producer.produce(
                    topic, value, key, partition, headers={**headers(due, to), **further}
                )
                break
            except BufferError:
                producer.poll(0.1)
        if at % 10_000 == 0:
            producer.poll(0)
    if producer.flush(60) > 0:
        raise RuntimeError("the load was not written")


def repeat(bootstrap: str, topic: str, target: str, count: int, every_ms: int, due_ms: int) -> None:
    """Write `count` series, whose first times are spread over one interval from `due_ms` on."""
    producer = Producer({**PRODUCER, "bootstrap.servers": bootstrap, "linger.ms": 20})
    for at in range(count):
        rhythm = {"chronos-repeat": b"every %dms" % every_ms}
        first = headers(due_ms + at * every_ms // count, target)
        producer.produce(topic, payload(at), None, 0, headers={**first, **rhythm})
    if producer.flush(60) > 0:
        raise RuntimeError("the load was not written")


def generate(
    bootstrap: str,
    topic: str,
    target: str,
    rate: int,
    seconds: float,
    lowest_ms: int,
    highest_ms: int,
) -> None:
    """Write at a constant rate; each message is due `lowest_ms` to `highest_ms` later, and its
    value begins with its number."""
    producer = Producer({**PRODUCER, "bootstrap.servers": bootstrap, "linger.ms": 2})
    padding = os.urandom(VALUE_BYTES - 8)
    count = int(rate * seconds)
    start = time.monotonic() + 0.2
    at = 0
    span = highest_ms - lowest_ms
    while at < count:
        behind = min(count, int((time.monotonic() - start) * rate)) - at
        if behind <= 0:
            producer.poll(0.001)
            continue
        now_ms = time.time_ns() // 1_000_000
        for number in range(at, at + behind):
            due_ms = now_ms + lowest_ms + (number * 7_919) % (span + 1)
            producer.produce(
                topic, number.to_bytes(8, "big") + padding, None, headers=headers(due_ms, target)
            )
        at += behind
        producer.poll(0)
    if producer.flush(60) > 0:
        raise RuntimeError("the load was not written")


def one_at_a_time(bootstrap: str, topic: str, target: str, count: int, gap_s: float) -> None:
    """Write one message every `gap_s` seconds, due one second later: no two are due together."""
    producer = Producer({**PRODUCER, "bootstrap.servers": bootstrap, "linger.ms": 0})
    padding = os.urandom(VALUE_BYTES - 8)
    start = time.monotonic() + 0.2
    for number in range(count):
        while (left := start + number * gap_s - time.monotonic()) > 0:
            producer.poll(left)
        due_ms = time.time_ns() // 1_000_000 + 1_000
        producer.produce(
            topic, number.to_bytes(8, "big") + padding, None, headers=headers(due_ms, target)
        )
    if producer.flush(60) > 0:
        raise RuntimeError("the load was not written")


def watch(
    bootstrap: str, topic: str, count: int, timeout_s: float, wait_ms: int = 10
) -> dict[str, float]:
    """Read `count` messages; quantiles of their lateness at this reader, and the number of lost,
    duplicated and early ones."""
    late_ms: list[float] = []
    seen = bytearray(count)
    duplicated = early = 0
    deadline = time.monotonic() + timeout_s
    for messages in read(bootstrap, topic, wait_ms=wait_ms):
        now_ms = time.time_ns() / 1_000_000
        if time.monotonic() > deadline:
            break
        if messages is None:
            if len(late_ms) >= count:
                break
            continue
        for message in messages:
            late = now_ms - int(dict(message.headers() or ())["chronos-due-at"] or b"0")
            early += late < 0
            late_ms.append(late)
            number = int.from_bytes((message.value() or b"")[:8], "big")
            duplicated += seen[number]
            seen[number] = 1
    late_ms.sort()
    lost = count - sum(seen)

    def quantile(share: float) -> float:
        return (
            round(late_ms[min(len(late_ms) - 1, int(len(late_ms) * share))], 2) if late_ms else -1.0
        )

    return {
        "p50_ms": quantile(0.5),
        "p99_ms": quantile(0.99),
        "p999_ms": quantile(0.999),
        "max_ms": quantile(1.0),
        "early": early,
        "lost": lost,
        "duplicated": duplicated,
    }


def pass_through(
    bootstrap: str, source: str, target: str, count: int, *, tuned: bool, targets: int = 1
) -> float:
    """The references: messages per second of a plain transactional pass-through, 5,000 per
    transaction.

    Either with default settings, or `tuned`: with the settings of Chronos's own consumers.
    `targets`: topics that it writes to in turns, by the name and a number after it.
    """
    consumer = Consumer({**(CONSUMER if tuned else DEFAULTS), "bootstrap.servers": bootstrap})
    consumer.assign([TopicPartition(source, 0, 0)])
    producer = Producer(
        {
            **PRODUCER,
            "bootstrap.servers": bootstrap,
            "transactional.id": f"pass-{target}",
            "linger.ms": 5,
            "transaction.timeout.ms": 10_000,
        }
    )
    producer.init_transactions(30)
    passed = 0
    started = None
    while passed < count:
        batch: list[Message] = []
        while len(batch) < 5_000 and passed + len(batch) < count:
            message = consumer.poll(1.0)
            if message is None:
                break
            batch.append(message)
            batch += consumer.consume(5_000 - len(batch), 0)
        if started is None:
            started = time.perf_counter()
        producer.begin_transaction()
        for message in batch:
            if message.error() is None:
                to = target if targets == 1 else f"{target}{passed % targets}"
                producer.produce(to, message.value(), message.key(), headers=message.headers())
                passed += 1
        producer.commit_transaction(30)
    assert started is not None
    rate = count / (time.perf_counter() - started)
    consumer.close()
    return rate


def post(
    url: str,
    batches: int,
    size: int,
    due_ms: int,
    clients: int = 4,
    authority: str | None = None,
    token: str = "",
) -> float:
    """Messages per second acknowledged to several clients, `size` messages per request, each on a
    connection of its own.

    `authority`: the file with the certificate authority of a service with TLS. `token`: the bearer
    token."""
    messages = [
        {
            "target": {"topic": "orders", "headers": {"traceparent": TRACE.decode()}},
            "value": "x" * VALUE_BYTES,
            "deliver_at": due_ms + at,
        }
        for at in range(size)
    ]
    data = json.dumps(messages).encode()
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    context = ssl.create_default_context(cafile=authority) if authority else None

    def send(_: int) -> None:
        request = urllib.request.Request(url, data=data, headers=headers, method="POST")
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            assert answer.status == 202, answer.status
            answer.read()

    started = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(send, range(batches)))
    return batches * size / (time.perf_counter() - started)


if __name__ == "__main__":
    # Arguments: the name of a function above, and its arguments as JSON; prints the result as JSON.
    result = globals()[sys.argv[1]](**json.loads(sys.argv[2]))
    print(json.dumps(result))
